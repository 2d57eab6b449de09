"""vLLM's scheduler for a world of the rig, and what has another name or shape from release to release.

Rules of this file and of ``workers``:

* A difference is found by looking at what is there; a version number is asked only where nothing can be seen from outside.
* The scheduler, its managers and the connectors are vLLM's own and unchanged.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from math import lcm

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import vllm
from attrs import evolve
from vllm.config import KVEventsConfig, KVTransferConfig, VllmConfig
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.request import Request, RequestStatus

from blocklife.groups import Group
from blocklife.offload import FullAttention, LocalAttention, Mamba, SlidingWindow
from tests.proof.drivers.vllm import making
from tests.vllm.worlds import TEXT_ALONE, Beside, GroupSpec, WorldSpec

RELEASE: str = vllm.__version__
MINOR = int(RELEASE.split(".")[1])

_ENGINES = itertools.count()

QUEUES_EMPTY_STEPS = MINOR >= 30
"""Whether the engine, with asynchronous scheduling, goes on to the next step behind one that schedules nothing."""
DRAINS_SIMPLE = MINOR >= 30
"""Whether the engine goes on while SimpleCPUOffload has stores out; before, they lay until the next request."""


def row_words(groups: Sequence[GroupSpec]) -> int:
    """Words of one block: as many a token in each group, one in the group whose blocks hold most tokens if they divide it."""
    return lcm(*(group.block_tokens for group in groups))


def _group(group: GroupSpec) -> Group | making.Ring | making.Replayed:
    if group.kind == "mamba":
        return Mamba(group.block_tokens)
    if group.kind == "ring":
        return making.Ring(group.block_tokens)
    if group.window is None:
        return FullAttention(group.block_tokens, drafter=group.drafter)
    if group.kind == "local":
        return LocalAttention(group.block_tokens, group.window)
    if group.kind == "replay":
        return making.Replayed(group.block_tokens, group.window)
    return SlidingWindow(group.block_tokens, group.window, drafter=group.drafter)


def shape_of(spec: WorldSpec, folder: str = "") -> making.Shape:
    """What the engine of a world is made for; *folder* is for the files of a tier below the host."""
    shape = making.Shape(
        groups=tuple(map(_group, spec.groups)),
        num_blocks=spec.num_gpu_blocks,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        asynchronous=spec.async_scheduling,
        num_workers=spec.world_size,
        transfer=None,
        prefix_caching=spec.prefix_caching,
        keeps_every_block=spec.dense_retention,
        part_tokens=spec.part_tokens,
        priority=spec.priority,
        hash_tokens=spec.hash_tokens,
        alike=spec.alike,
        latents=tuple(at for at, group in enumerate(spec.groups) if group.kind in ("latents", "recent")),
    )
    return evolve(shape, transfer=_transfer_config(spec, shape, folder))


def _transfer_config(spec: WorldSpec, shape: making.Shape, folder: str) -> KVTransferConfig | None:
    if spec.connector is None:
        return None
    extra: dict[str, object] = {}
    engine = f"rig-{os.getpid()}-{next(_ENGINES)}" if spec.alike > 1 else "rig"  # the name of memory that workers share
    more: dict[str, str] = {}
    if spec.connector == "blocklife":
        name, more = "BlocklifeConnector", {"kv_connector_module_path": "blocklife.engines.vllm"}
        extra["host_blocks"], extra["blocks_per_chunk"] = spec.host_blocks, spec.blocks_per_chunk
    elif spec.connector == "simple":
        name = "SimpleCPUOffloadConnector"
        extra["cpu_bytes_to_use"] = spec.host_blocks * shape.page_bytes * spec.world_size
    else:
        name, chunks = "OffloadingConnector", spec.host_blocks // spec.blocks_per_chunk
        extra["cpu_bytes_to_use"] = chunks * making.chunk_bytes(shape, spec.blocks_per_chunk)
        extra["offload_prompt_only"] = False
        if spec.below is not None:
            chunk = -(-shape.page_bytes * spec.world_size // mmap.PAGESIZE) * mmap.PAGESIZE
            files = {"type": "fs", "root_dir": folder, "n_read_threads": 1, "n_write_threads": 1}
            extra |= {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": chunks * chunk, "secondary_tiers": [files]}
            engine = f"rig-{os.getpid()}-{next(_ENGINES)}"  # the name of its shared memory
        if spec.blocks_per_chunk > 1:
            extra["block_size"] = spec.blocks_per_chunk * spec.groups[0].block_tokens
    extra.update(spec.extra_config)
    return KVTransferConfig(kv_connector=name, kv_role=spec.role, kv_connector_extra_config=extra, engine_id=engine, **more)


def resets_connector(scheduler: Scheduler) -> bool:
    """Whether a reset may include this connector: some say that they cannot, some inherit a method that says nothing."""
    name = type(scheduler.connector).__name__
    return scheduler.connector is not None and (name != "SimpleCPUOffloadConnector" or MINOR >= 33)


def host_manager(scheduler: Scheduler) -> CPUOffloadingManager:
    """OffloadingConnector's manager of the host's slots, which may have tiers below it."""
    manager = scheduler.connector.connector_scheduler.manager
    found: CPUOffloadingManager = getattr(manager, "primary_tier", manager)
    return found


class Engine:
    """vLLM's scheduler for a world, with the configuration it was built from."""

    def __init__(self, spec: WorldSpec) -> None:
        folder = "" if spec.below is None else tempfile.mkdtemp(prefix="blocklife-rig-")
        if folder:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        shape = shape_of(spec, folder)
        self.config = making.config_of(shape)
        if spec.events:
            self.config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        guesses = self.config.speculative_config
        self.kv_cache_config = making.cache_of(evolve(shape, guesses=guesses.num_speculative_tokens if guesses else 0))
        self.scheduler, hash_tokens = making.scheduler_of(self.config, self.kv_cache_config)
        self.hasher = making.hasher_of(hash_tokens)
        if spec.encoder_tokens:  # the size follows from a model, and this one has no encoder
            self.scheduler.max_num_encoder_input_tokens = spec.encoder_tokens
            self.scheduler.encoder_cache_manager = EncoderCacheManager(spec.encoder_tokens)

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int,
        priority: int = 0,
        beside: Beside = TEXT_ALONE,
        transfer: Mapping[str, object] | None = None,
    ) -> None:
        """Hand a request to the scheduler; it ends by its length only. A smaller *priority* goes first."""
        self.scheduler.add_request(self.request_of(name, prompt, max_tokens, priority, beside, transfer))

    def request_of(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int = 1,
        priority: int = 0,
        beside: Beside = TEXT_ALONE,
        transfer: Mapping[str, object] | None = None,
    ) -> Request:
        """The request, which the scheduler does not know."""
        own = partial(making.request_of, adapter=beside.adapter, images=beside.images, transfer=transfer)
        return own(name, prompt, max_tokens, self.hasher, priority, beside.salt)

    def config_of(self, rank: int) -> VllmConfig:
        """The configuration as this worker's process has it."""
        config = copy(self.config)
        config.parallel_config = copy(self.config.parallel_config)
        config.parallel_config.rank = rank
        return config

    def abort(self, names: Sequence[str]) -> None:
        """End requests as the engine does when a client goes away."""
        self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def host_places(self, spec: WorldSpec) -> int | None:
        """How many blocks the host tier has room for, asked from the tier itself; None where there is nobody to ask."""
        connector = self.scheduler.connector
        if spec.connector == "offloading":
            manager = host_manager(self.scheduler)
            chunks = getattr(manager, "_num_chunks", None)
            return int(manager._num_blocks if chunks is None else chunks) * spec.blocks_per_chunk
        if spec.connector == "simple":
            return int(connector.scheduler_manager.num_cpu_blocks)
        return None
