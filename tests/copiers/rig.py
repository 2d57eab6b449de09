"""Copiers of every kind over two small tables, whose every word tells where it came from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from attrs import define
from numpy.typing import NDArray

from blocklife.copiers import Copier, CpuCopier, FaultRates, FaultyCopier, Sharing
from blocklife.copiers.torch import KvCache, TorchCopier
from blocklife.ledger import Completion, Direction, JobId, Result, Transfer, Worker

STORE, LOAD = Direction.STORE, Direction.LOAD
OK, FAILED = Result.OK, Result.FAILED
RANK = Worker(3)
PLACES, WORDS = 16, 4

Words = NDArray[np.uint64]
Build = Callable[[Words, Words], Copier]


@define(eq=False)
class Rows:
    """The host's end, plain."""

    rows: torch.Tensor
    pinned: bool = False
    lock_places: int = 1 << 40
    shared: Sharing | None = None

    def close(self) -> None:
        """Nothing to give back."""


def job(number: int) -> JobId:
    return JobId(1, number)


def transfer(
    number: int, direction: Direction = STORE, source: Collection[int] = (1,), target: Collection[int] = (0,)
) -> Transfer:
    return Transfer(job(number), direction, np.array([*source]), np.array([*target]), (len(source),))


def numbers(completions: list[Completion]) -> list[int]:
    return [completion.job.number for completion in completions]


def results(completions: Collection[Completion]) -> list[tuple[int, Result]]:
    return [(completion.job.number, completion.result) for completion in completions]


def tensors() -> tuple[Words, Words]:
    words = np.arange(PLACES * WORDS, dtype=np.uint64).reshape(PLACES, WORDS)
    return words + np.uint64(1_000), words + np.uint64(2_000)


def on_cpu(device: Words, host: Words) -> TorchCopier:
    """A copier of torch that sees the same bytes, and knows what was computed."""
    cache = KvCache([[torch.from_numpy(device.view(np.int64))]])
    copier = TorchCopier(cache, Rows(torch.from_numpy(host.view(np.uint8))), worker=RANK)
    copier.computed()
    return copier


def faulty(inner: Copier, seed: int = 0, late_polls_max: int = 5, **rates: float) -> FaultyCopier[Transfer]:
    return FaultyCopier(inner, FaultRates(**rates), np.random.default_rng(seed), late_polls_max=late_polls_max)


KINDS: Mapping[str, Build] = {
    "cpu": lambda device, host: CpuCopier(device, host, worker=RANK),
    "cpu, paced": lambda device, host: CpuCopier(device, host, worker=RANK, blocks_per_poll=2),
    "torch": on_cpu,
    "faulty, without faults": lambda device, host: faulty(CpuCopier(device, host, worker=RANK, blocks_per_poll=1)),
}
