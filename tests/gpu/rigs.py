"""Caches of every shape on a device, the host's memory beside them, a copier between them, and their shadow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from attrs import define

from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.copiers.torch._moves import Mover
from blocklife.copiers.torch._streams import StreamDevice
from blocklife.ledger.records import Completion, Direction, JobId, Result, Transfer, Worker
from tests.gpu.movers import AbsentError, forced, is_cuda, made
from tests.gpu.shadow import Shadow, scatter

STORE, LOAD = Direction.STORE, Direction.LOAD
OK, FAILED = Result.OK, Result.FAILED
RANK = Worker(3)


def job(number: int) -> JobId:
    return JobId(1, number)


def transfer(
    number: int,
    direction: Direction,
    source: Sequence[int],
    target: Sequence[int],
    group_sizes: tuple[int, ...] = (),
) -> Transfer:
    return Transfer(job(number), direction, np.array(source), np.array(target), group_sizes or (len(source),))


def results(completions: Sequence[Completion]) -> list[tuple[int, Result]]:
    return [(completion.job.number, completion.result) for completion in completions]


@define(eq=False)
class Rig:
    """A copier, both its ends, and what must be there."""

    cache: KvCache
    host: HostMemory
    device: StreamDevice
    copier: TorchCopier
    shadow: Shadow
    num_jobs: int = 0

    def launch(
        self, direction: Direction, source: Sequence[int], target: Sequence[int], group_sizes: tuple[int, ...] = ()
    ) -> JobId:
        """Ask the copier, and the shadow."""
        self.num_jobs += 1
        asked = transfer(self.num_jobs, direction, source, target, group_sizes)
        self.copier.launch(asked)
        self.shadow.move(asked)
        return asked.job

    def close(self) -> list[tuple[int, Result]]:
        """Let everything land; what was reported."""
        self.copier.close()
        settle(self.cache.device)
        return results(self.copier.poll())


@contextmanager
def rigged(
    groups: Sequence[Sequence[torch.Tensor]],
    num_places: int,
    mover: str = "chosen",
    *,
    seed: int = 0,
    wrap: Callable[[Mover], Mover] | None = None,
) -> Iterator[Rig]:
    """A rig around these tensors, full of random bytes. *wrap*: what to put around the mover. Skips where there is none."""
    cache = KvCache(groups)
    with HostMemory(cache.row_bytes, num_places, pinned=is_cuda(cache.device)) as host:
        scatter(cache, host, seed)
        settle(cache.device)
        layout = CopyLayout(cache, host)
        try:
            chosen = made(mover, layout)
        except AbsentError as absent:
            pytest.skip(str(absent))
        device = forced(layout, chosen if wrap is None else wrap(chosen))
        copier = TorchCopier(cache, host, worker=RANK, device=device)
        copier.computed()
        try:
            yield Rig(cache, host, device, copier, Shadow(cache, host))
        finally:
            settle(cache.device)
            copier.close()


def settle(where: torch.device) -> None:
    """Wait until nothing runs there."""
    if is_cuda(where):
        torch.cuda.synchronize(where)
