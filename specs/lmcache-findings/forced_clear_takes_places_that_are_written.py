"""An operator clears by force: the place of a writer is given to the next one, and both write it.

Plain LMCache 0.5.6, multi-process mode, engine-driven transfers: its storage manager with its threads, and the modules that a
worker calls. No GPU, no model; the worker is imitated. Exit status: 0 if the fault
shows, else 1.
"""

import argparse
import logging
import os
import sys
from ctypes import memmove, string_at

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
import lmcache
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey, RegisterEngineDrivenContextPayload
from lmcache.v1.multiprocess.engine_context import MPCacheServerContext
from lmcache.v1.multiprocess.modules.engine_driven_transfer import EngineDrivenTransferModule
from lmcache.v1.multiprocess.modules.lookup import LookupModule

CHUNK, PLACE, TEXT, OTHER = 4, 4096, (1,) * 8, (2,) * 8
"""Tokens and bytes of a chunk, and two texts of two chunks."""


def write(places: list[int], text: tuple[int, ...]) -> None:
    """A worker writes: every byte of a chunk is the text's first token."""
    for place in places:
        memmove(place, bytes([text[0]]) * PLACE, PLACE)


class Server:
    def __init__(self, places: int) -> None:
        memory = L1MemoryManagerConfig(places * PLACE, use_lazy=False, align_bytes=PLACE, shm_name=f"lmcache_{os.getpid()}")
        self.context = MPCacheServerContext(
            StorageManagerConfig(
                L1ManagerConfig(memory, write_ttl_seconds=600, read_ttl_seconds=300),
                EvictionConfig("LRU", 0.9, 0.2),
                L2AdaptersConfig([]),
            ),
            chunk_size=CHUNK,
        )
        self.storage, self.l1 = self.context.storage_manager, self.context.storage_manager._l1_manager
        self.lookup, self.transfer = LookupModule(self.context), EngineDrivenTransferModule(self.context)
        self.memory = self.l1.get_l1_memory_desc().ptr
        self.register()

    def register(self) -> None:
        """The one worker begins. What it has of a chunk is one page of bytes."""
        said = {"instance_id": 0, "model_name": "model", "world_size": 1, "block_size": CHUNK, "num_layers": 1}
        said |= {"hidden_dim_size": PLACE // 8, "dtype_str": "uint8", "use_mla": False, "num_physical_slots": 4}
        self.transfer.register_kv_cache_engine_driven_context(RegisterEngineDrivenContextPayload(**said))

    def key(self, text: tuple[int, ...], request: str, worker: int | None = 0) -> IPCCacheServerKey:
        return IPCCacheServerKey("model", 1, worker, text, 0, len(text), request_id=request, cache_salt="", num_kv_readers=1)

    def reserve(self, text: tuple[int, ...], request: str) -> list[int]:
        """A worker is to write. Returns the addresses."""
        told = self.transfer.prepare_store(self.key(text, request), 0)
        return [self.memory + each["offset"] for each in told.context["slots"]]

    def commit(self, text: tuple[int, ...], request: str) -> bool:
        """It has written."""
        return bool(self.transfer.commit_store(self.key(text, request), 0, b""))

    def store(self, text: tuple[int, ...], request: str) -> None:
        """All of it."""
        write(self.reserve(text, request), text)
        self.commit(text, request)

    def ask(self, text: tuple[int, ...], request: str) -> None:
        """A scheduler looks a text up."""
        self.lookup.lookup(self.key(text, request, None), 1)

    def hit(self, request: str) -> int:
        """What it is told: chunks."""
        return int(self.lookup.wait_prefetch_status(request, 60) or 0)

    def places(self, text: tuple[int, ...], request: str) -> list[int] | None:
        """A worker is to read. Returns the addresses, or None: LMCache has them no more."""
        told = self.transfer.prepare_retrieve(self.key(text, request), 0)
        return [self.memory + each["offset"] for each in told.context["slots"]] if told.success else None

    def read(self, text: tuple[int, ...], request: str) -> list[int]:
        """A request reads what there is of a text. Returns the first byte of each chunk."""
        self.ask(text, request)
        if not (hit := self.hit(request)):
            return []
        found = [string_at(place, PLACE)[0] for place in self.places(text[: hit * CHUNK], request) or ()]
        self.transfer.commit_retrieve(self.key(text[: hit * CHUNK], request), 0)
        return found

    def close(self) -> None:
        self.transfer.close()
        self.context.close()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.disable(logging.CRITICAL)
    server = Server(4)
    first = server.reserve(TEXT, "first")
    server.storage.clear(force=True)
    server.store(OTHER, "second")
    write(first, TEXT)
    found = server.read(OTHER, "reader")
    server.close()
    print(f"LMCache {lmcache.__version__}: of {list(OTHER[:2])} a reader gets {found}")
    sys.exit(found == [OTHER[0]] * 2)
