"""The rig with other ways to be parallel than tensor parallelism: context parallelism, stages without a group, own schedulers.

With context parallelism a block covers the tokens of all context ranks, and each rank has its share of them: token after token,
or so many neighbours (*interleave*) at a time. A pipeline stage has the layers of some groups, and none of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any
from unittest import mock

import numpy as np
from attrs import frozen
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheGroupSpec

from tests.proof.drivers.vllm import making
from tests.vllm import workers
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.device import Memory
from tests.vllm.engine import Engine
from tests.vllm.rig import Rank
from tests.vllm.runner import Forward, Turn, Witness
from tests.vllm.worlds import GroupSpec, WorldSpec


@frozen(kw_only=True)
class Parallel:
    """How the workers of an engine share the work."""

    decode: int = 1
    prefill: int = 1
    interleave: int = 1
    lacking: Mapping[int, Sequence[int]] = {}
    """By rank, the groups of which it has no layer."""
    launcher: str | None = None
    launched: int = 1
    """Workers with schedulers of their own, of which this engine is one."""


def _apart(parallel: Parallel) -> Callable[[making.Shape], VllmConfig]:
    make = making.config_of

    def config_of(shape: making.Shape) -> VllmConfig:
        config = make(shape)
        its = config.parallel_config
        its.decode_context_parallel_size, its.prefill_context_parallel_size = parallel.decode, parallel.prefill
        its.cp_kv_cache_interleave_size = parallel.interleave
        if parallel.lacking:
            its.pipeline_parallel_size = shape.num_workers
        if parallel.launcher is not None:
            its.distributed_executor_backend, its.world_size = parallel.launcher, parallel.launched
        return config

    return config_of


def _lacks(group: KVCacheGroupSpec) -> KVCacheGroupSpec:
    bare = copy(group)
    bare.layer_names = []
    return bare


@contextmanager
def _stages(parallel: Parallel) -> Iterator[None]:
    """Each worker's layout of the cache is that of its stage."""
    make = workers.Worker.__init__

    def init(self: workers.Worker, engine: Engine, spec: WorldSpec, copies: object, memory: Memory) -> None:
        own, whole = parallel.lacking.get(memory.rank, ()), engine.kv_cache_config
        engine.kv_cache_config = copy(whole)
        engine.kv_cache_config.kv_cache_groups = [
            _lacks(group) if number in own else group for number, group in enumerate(whole.kv_cache_groups)
        ]
        make(self, engine, spec, copies, memory)  # type: ignore[arg-type]
        engine.kv_cache_config = whole

    with mock.patch.object(workers.Worker, "__init__", init):
        yield


class ShareForward(Forward):
    """The forward pass of one rank: of each block its share of the tokens, and only the groups that its stage has."""

    def __init__(self, spec: WorldSpec, memory: Memory, witness: Witness, parallel: Parallel) -> None:
        super().__init__(spec.groups, memory, memory.rank, witness)
        lacking = parallel.lacking.get(memory.rank, ())
        self._attention = [each for each in self._attention if each[0] not in lacking]
        self._states = [each for each in self._states if each[0] not in lacking]
        self._ranks, self._own, self._interleave = parallel.decode, memory.rank % parallel.decode, parallel.interleave

    def _places(self, turn: Turn, at: int, group: GroupSpec, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The tokens that are this rank's, with block and row."""
        span, turns = group.block_tokens * self._ranks, self._interleave * self._ranks
        table = turn.row.tables[at]
        for token in range(start, stop):
            if token // self._interleave % self._ranks == self._own:
                within = token % span
                row = within // turns * self._interleave + within % self._interleave
                yield token, table[token // span] if token // span < len(table) else 0, row

    def _row(self, block: int, row: int, group: GroupSpec) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        found: np.ndarray[tuple[int], np.dtype[np.uint64]] = self._memory.device[block].reshape(group.block_tokens, -1)[row]
        return found

    def _write(self, turn: Turn, at: int, group: GroupSpec) -> None:
        if self._ranks == 1:
            super()._write(turn, at, group)
            return
        prints = turn.row.text.prints(at, 0, turn.stop) ^ self._memory.salt
        for token, block, row in self._places(turn, at, group, turn.start, turn.stop):
            self._row(block, row, group)[:] = prints[token]

    def _read(self, turn: Turn, at: int, group: GroupSpec) -> None:
        if self._ranks == 1:
            super()._read(turn, at, group)
            return
        prints = turn.row.text.prints(at, 0, turn.stop) ^ self._memory.salt
        for token, block, row in self._places(turn, at, group, 0, turn.stop):
            self._count(1)
            if not block or (self._row(block, row, group) != prints[token]).any():
                self._wrong(turn, at, token, token // (group.block_tokens * self._ranks), block)


class ParallelRig(ConnectorRig):
    """A rig whose workers share the work in one of these ways."""

    def __init__(self, spec: WorldSpec, seed: int = 0, *, parallel: Parallel, **more: Any) -> None:
        self.parallel = parallel
        with mock.patch.object(making, "config_of", _apart(parallel)), _stages(parallel):
            super().__init__(spec, seed, **more)

    def _check_rewrites(self, name: str) -> None:
        """There are no drafters here, and a block covers more tokens than its group says."""

    def _rank(self, number: int) -> Rank:
        rank = super()._rank(number)
        rank.forward = ShareForward(self.spec, rank.memory, self.witness, self.parallel)
        return rank
