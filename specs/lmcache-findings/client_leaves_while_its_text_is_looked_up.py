"""A client is gone while its prefetch runs: the locks that it gets are given back by nobody.

Plain LMCache 0.5.6, multi-process mode, engine-driven transfers: its storage manager with its threads, and the modules that a
worker calls. No GPU, no model; the worker is imitated, and so is the adapter of L2. Exit status: 0 if the fault
shows, else 1.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable
from ctypes import memmove, string_at
from functools import partialmethod
from itertools import count
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
import lmcache
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase, L2AdaptersConfig, register_l2_adapter_type
from lmcache.v1.distributed.l2_adapters.factory import register_l2_adapter_factory
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey, RegisterEngineDrivenContextPayload
from lmcache.v1.multiprocess.engine_context import MPCacheServerContext
from lmcache.v1.multiprocess.modules.engine_driven_transfer import EngineDrivenTransferModule
from lmcache.v1.multiprocess.modules.lookup import LookupModule
from lmcache.v1.platform import create_event_notifier

CHUNK, PLACE, TEXT, OTHER = 4, 4096, (1,) * 8, (2,) * 8
NUMBERS = count(1)
"""Tokens and bytes of a chunk, and two texts of two chunks."""


class Late(L2AdapterInterface):  # type: ignore[misc]
    """An L2 adapter. What is asked of it is done at once, or, what is in *held*, when the script says so: see `land`."""

    def __init__(self, places: int) -> None:
        super().__init__(max_capacity_bytes=places * PLACE)
        self.places = places
        self.content: dict[Any, bytes] = {}
        self.held: set[str] = set()
        self.tasks: list[tuple[str, int, list[Any], list[int]]] = []
        self.events = {kind: create_event_notifier() for kind in ("store", "lookup", "load")}
        self.done: dict[str, dict[int, Any]] = {kind: {} for kind in self.events}

    def land(self) -> None:
        """Move the bytes of what was held, at the addresses that it was given, and report."""
        tasks, self.tasks = self.tasks, []
        for kind, number, keys, addresses in tasks:
            found = Bitmap(len(keys))
            for at, key in enumerate(keys):
                if kind == "store" and len(self.content) < self.places:
                    self.content[key] = string_at(addresses[at], PLACE)
                if key in self.content:
                    found.set(at)
                    if kind == "load":
                        memmove(addresses[at], self.content[key], PLACE)
            self.done[kind][number] = L2StoreResult(True, 0) if kind == "store" else found
            self.events[kind].notify()

    def submit(self, kind: str, keys: list[Any], objects: list[Any]) -> int:
        addresses = [each.data_ptr for each in objects] if kind != "lookup" else []
        self.tasks.append((kind, number := next(NUMBERS), list(keys), addresses))
        if kind not in self.held:
            self.land()
        return number

    def fd(self, kind: str) -> int:
        return int(self.events[kind].fileno())

    def result(self, kind: str, task: int) -> Bitmap | None:
        return self.done[kind].pop(task, None)

    get_store_event_fd, submit_store_task = partialmethod(fd, "store"), partialmethod(submit, "store")
    get_load_event_fd, submit_load_task = partialmethod(fd, "load"), partialmethod(submit, "load")
    get_lookup_and_lock_event_fd, submit_lookup_and_lock_task = partialmethod(fd, "lookup"), partialmethod(submit, "lookup")
    query_load_result, query_lookup_and_lock_result = partialmethod(result, "load"), partialmethod(result, "lookup")

    def submit_unlock(self, keys: list[Any]) -> None:
        """Nothing leaves it."""

    def close(self) -> None:
        """It has no thread."""

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        done, self.done["store"] = self.done["store"], {}
        return done


class LateConfig(L2AdapterConfigBase):  # type: ignore[misc]
    def __init__(self, places: int) -> None:
        self.places = places

    @classmethod
    def from_dict(cls, said: dict[str, int]) -> "LateConfig":
        return cls(**said)

    @classmethod
    def help(cls) -> str:
        return "places (int): objects that it keeps"


register_l2_adapter_type("late", LateConfig)
register_l2_adapter_factory("late", lambda config, _memory: Late(config.places))


def write(places: list[int], text: tuple[int, ...]) -> None:
    """A worker writes: every byte of a chunk is the text's first token."""
    for place in places:
        memmove(place, bytes([text[0]]) * PLACE, PLACE)


def until(reached: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for LMCache's threads."""
    ends = time.monotonic() + seconds
    while not reached() and time.monotonic() < ends:
        time.sleep(0.01)


class Server:
    def __init__(self, places: int) -> None:
        memory = L1MemoryManagerConfig(places * PLACE, use_lazy=False, align_bytes=PLACE, shm_name=f"lmcache_{os.getpid()}")
        self.context = MPCacheServerContext(
            StorageManagerConfig(
                L1ManagerConfig(memory, write_ttl_seconds=600, read_ttl_seconds=300),
                EvictionConfig("LRU", 0.9, 0.2),
                L2AdaptersConfig([LateConfig(16)]),
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

    def close(self) -> None:
        self.transfer.close()
        self.context.close()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.disable(logging.CRITICAL)
    server = Server(4)
    (adapter,) = server.storage._l2_adapters.values()
    server.store(TEXT, "first")
    until(lambda: len(adapter.content) == 2 and not server.l1.report_status()["read_locked_count"])
    adapter.held.add("lookup")
    server.storage.clear()
    server.ask(TEXT, "second")
    until(lambda: adapter.tasks)
    server.lookup.free_lookup_locks(server.key(TEXT, "second", None), 1)
    server.lookup.end_session("second")
    adapter.held.clear()
    adapter.land()
    until(lambda: server.l1.report_status()["read_locked_count"], 2)
    until(lambda: not server.l1.report_status()["read_locked_count"], 2)
    left = server.l1.report_status()["read_locked_count"]
    server.close()
    print(f"LMCache {lmcache.__version__}: the request has ended, its prefetch is over, and {left} places are locked")
    sys.exit(not left)
