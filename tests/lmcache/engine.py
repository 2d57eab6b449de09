"""LMCache's multi-process mode in this process: the context with its storage manager, and the modules that a worker talks to.

What a server would be told over its socket is called here; `tests/lmcache/server.py` has the server itself.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from typing import Any

from attrs import define
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey, RegisterEngineDrivenContextPayload
from lmcache.v1.multiprocess.engine_context import MPCacheServerContext
from lmcache.v1.multiprocess.modules.engine_driven_transfer import EngineDrivenTransferModule
from lmcache.v1.multiprocess.modules.lookup import LookupModule

from tests.lmcache.adapter import LateAdapter, LateConfig
from tests.lmcache.content import PLACE, Witness, stamp
from tests.lmcache.worlds import WorldSpec

RELEASE = importlib.metadata.version("lmcache")
MODEL = "model"
SHAPE = {"num_layers": 1, "hidden_dim_size": PLACE // 8, "num_physical_slots": 4, "dtype_str": "uint8", "use_mla": False}
"""A chunk is two times one layer of four slots: a place."""


def configured(spec: WorldSpec, shared: str) -> StorageManagerConfig:
    """What LMCache is told of a world; *shared* is the name of its shared memory."""
    memory = L1MemoryManagerConfig(spec.places * PLACE, use_lazy=False, align_bytes=PLACE, shm_name=shared)
    adapters = []
    for number, places in enumerate(spec.adapters):
        adapters.append(LateConfig(places, f"L2.{number}"))
        if spec.l2_evicts:
            adapters[-1].eviction_config = EvictionConfig("LRU", spec.watermark, spec.ratio)
    return StorageManagerConfig(
        L1ManagerConfig(memory, write_ttl_seconds=spec.write_lease, read_ttl_seconds=spec.read_lease),
        EvictionConfig(spec.policy, spec.watermark, spec.ratio),
        L2AdaptersConfig(adapters),
        store_policy=spec.store,
        prefetch_policy=spec.prefetch,
        prefetch_max_in_flight=spec.max_prefetches,
    )


def key_of(
    tokens: Sequence[int], start: int, end: int, *, request: str, worker: int | None, workers: int, salt: str = ""
) -> Any:
    """How a worker, or with None the scheduler, names the tokens from *start* to *end* of a text."""
    return IPCCacheServerKey(
        *(MODEL, workers, worker, tuple(tokens), start, end), request_id=request, cache_salt=salt, num_kv_readers=1
    )


def registration(worker: int, spec: WorldSpec) -> Any:
    """What a worker says of itself when it begins."""
    told = {"instance_id": worker, "model_name": MODEL, "world_size": spec.workers, "block_size": spec.chunk_tokens}
    return RegisterEngineDrivenContextPayload(**told, **SHAPE)


@define(eq=False)
class Engine:
    """One LMCache."""

    context: Any
    lookup: Any
    transfer: Any
    adapters: list[LateAdapter]
    base: int
    """The address of its L1 memory."""

    @classmethod
    def of(cls, spec: WorldSpec, witness: Witness) -> Engine:
        """One for this world, whose workers are registered."""
        context = MPCacheServerContext(configured(spec, f"blocklife_{os.getpid()}"), chunk_size=spec.chunk_tokens)
        storage = context.storage_manager
        adapters = list(storage._l2_adapters.values())
        for each in adapters:
            each.witness = witness
        base = storage._l1_manager.get_l1_memory_desc().ptr
        engine = cls(context, LookupModule(context), EngineDrivenTransferModule(context), adapters, base)
        for worker in range(spec.workers):
            engine.transfer.register_kv_cache_engine_driven_context(registration(worker, spec))
        return engine

    @property
    def storage(self) -> Any:
        """LMCache's storage manager."""
        return self.context.storage_manager

    @property
    def l1(self) -> Any:
        """Its L1 manager."""
        return self.storage._l1_manager

    def close(self) -> None:
        """End it."""
        self.transfer.close()
        self.context.close()


def teach(engine: Engine, witness: Witness, tokens: Sequence[int], spec: WorldSpec, salt: str) -> None:
    """Let the witness know what belongs to each chunk of a text."""
    size, whole = spec.chunk_tokens, len(tokens) // spec.chunk_tokens * spec.chunk_tokens
    for worker in range(spec.workers):
        key = key_of(tokens, 0, whole, request="", worker=worker, workers=spec.workers, salt=salt)
        hashes = engine.context.token_hasher.compute_chunk_hashes(list(tokens), end=whole)
        for number, each in enumerate(object_keys(key, hashes)):
            text = tokens[: (number + 1) * size]
            witness.knows(each, f"chunk {number} of worker {worker}", stamp(text, worker, salt))


def object_keys(key: Any, hashes: Sequence[bytes]) -> list[Any]:
    """LMCache's keys of the chunks of one worker."""
    from lmcache.v1.distributed.api import ipc_key_to_object_keys

    found: list[Any] = ipc_key_to_object_keys(key, list(hashes), [0])[0]
    return found
