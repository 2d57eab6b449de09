"""A copier whose copies take steps to land, and fail on request: for whoever must not be right by luck.

About half of a copy's runs of bytes move when it starts and the rest when it lands, so that whoever reads or writes too early
reads or writes wrong bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

import numpy as np
from attrs import define
from numpy.typing import NDArray

from blocklife.copiers.torch import HostMemory, KvCache
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import RunMover
from blocklife.ledger import Completion, Direction, JobId, Result, Transfer, Worker
from blocklife.ledger.records import ON_DEVICE
from tests.vllm.worlds import Lag


@define(eq=False)
class _Copy:
    transfer: Transfer
    pages: Pages
    early: NDArray[np.bool_]
    due: int
    fails: bool
    by_layer: bool = False
    """Whether each layer of the forward pass waits for its own part."""
    started: bool = False


class LagCopier:
    """A copier whose copies land some steps after their launch, in order within a direction; some fail, half-done."""

    def __init__(
        self, cache: KvCache, host: HostMemory, worker: Worker, lag: Lag, fails: Mapping[Direction, float], rng: Random
    ) -> None:
        self._layout = CopyLayout(cache, host)
        self._mover = RunMover(self._layout)
        self._worker = worker
        self._lag = lag
        self.fails = dict(fails)
        """How likely a copy fails, by direction."""
        self._rng = rng
        self._step = 0
        self._queues: dict[Direction, deque[_Copy]] = {direction: deque() for direction in ON_DEVICE}
        self._landed: list[Completion] = []
        self._fenced: list[tuple[int, Completion]] = []
        """Copies that the forward pass was to wait for: their bytes have landed, and the host sees it some steps later."""
        self.failed: list[JobId] = []
        """Copies that have failed."""
        self._behind = False
        self._num_parts = 1
        self.beside: set[int] = set()
        """Blocks that loads of this step fill beside its forward pass."""
        self.waits = 0
        """Copies that somebody had to wait for."""

    @property
    def worker(self) -> Worker:
        """The rank."""
        return self._worker

    def computed(self, engine: object = None) -> None:
        """The rig computes at once."""

    def before_forward(self, engine: object = None, blocks: Sequence[int] | None = None) -> None:
        """A step begins."""
        self._step += 1
        self.beside.clear()

    @contextmanager
    def behind_forward(self) -> Iterator[None]:
        """What is launched in it counts as launched before this step."""
        self._step -= 1
        self._behind = True
        yield
        self._behind = False
        self._step += 1

    @contextmanager
    def needed_now(self, num_parts: int = 1) -> Iterator[None]:
        """All copies of a direction come one after the other here; loads in parts land layer by layer when they are asked."""
        self._num_parts = num_parts
        yield
        self._num_parts = 1

    def before_layer(self, layer: int) -> None:
        """The loads in parts, and all before them, bring this layer. What is not asked for stays as it is until they land."""
        queue = self._queues[Direction.LOAD]
        ours = [at for at, copy in enumerate(queue) if copy.by_layer]
        if ours:
            for _ in range(ours[0]):
                self._land(queue)
            for at in range(len(ours)):
                self._start_one(queue[at])
                if not queue[at].fails:
                    self._move(queue[at], ~queue[at].early & (queue[at].pages.layer == layer))

    def durations(self) -> Mapping[JobId, float]:
        """Nothing: there is no clock here."""
        return {}

    def launch(self, transfer: Transfer) -> None:
        """Queue a copy; the first of its direction starts."""
        pages = self._layout.pages(transfer, *self._layout.own_part(transfer))
        if self._behind and transfer.direction is Direction.LOAD:
            self.beside.update(transfer.target.tolist())
        rng, queue = self._rng, self._queues[transfer.direction]
        early = np.array([rng.random() < 0.5 for _ in range(len(pages))], dtype=np.bool_)
        due = self._step + rng.randint(self._lag.shortest, self._lag.longest)
        fails = rng.random() < self.fails.get(transfer.direction, 0.0)
        queue.append(_Copy(transfer, pages, early, due, fails, self._num_parts > 1 and transfer.direction is Direction.LOAD))
        self._start(queue)

    def poll(self) -> list[Completion]:
        """Those that have landed."""
        for queue in self._queues.values():
            while queue and queue[0].due <= self._step:
                self._land(queue)
        landed, self._landed = self._landed, []
        landed += [completion for due, completion in self._fenced if due <= self._step]
        self._fenced = [each for each in self._fenced if each[0] > self._step]
        return landed

    def fence(self, jobs: Collection[JobId]) -> None:
        """Nothing computes beside the host here, so these land now, and those before them; they may be reported late."""
        seen = len(self._landed)
        self.wait(jobs)
        if not self._lag.late_fences:
            return
        due = self._step + self._rng.randint(self._lag.shortest, self._lag.longest)
        self._fenced += [(due, completion) for completion in self._landed[seen:]]
        del self._landed[seen:]

    def wait(self, jobs: Collection[JobId]) -> None:
        """Let these land now, and those before them."""
        self._fenced = [(0 if each.job in jobs else due, each) for due, each in self._fenced]
        for queue in self._queues.values():
            last = max((at for at, copy in enumerate(queue) if copy.transfer.job in jobs), default=-1)
            for _ in range(last + 1):
                self.waits += 1
                self._land(queue)

    def reads(self, block: int) -> bool:
        """Whether a store that is out reads this block."""
        return any(block in copy.transfer.source for copy in self._queues[Direction.STORE])

    def busy(self) -> bool:
        """Whether something is out."""
        return bool(self._fenced) or any(self._queues.values())

    def close(self) -> None:
        """Let everything land."""
        for queue in self._queues.values():
            while queue:
                self._land(queue)

    def _start(self, queue: deque[_Copy]) -> None:
        if queue:
            self._start_one(queue[0])

    def _start_one(self, copy: _Copy) -> None:
        if not copy.started:
            copy.started = True
            self._move(copy, copy.early)

    def _land(self, queue: deque[_Copy]) -> None:
        self._start(queue)
        copy = queue.popleft()
        if not copy.fails:
            self._move(copy, ~copy.early)
        else:
            self.failed.append(copy.transfer.job)
        self._landed.append(Completion(copy.transfer.job, self._worker, Result.FAILED if copy.fails else Result.OK))
        self._start(queue)

    def _move(self, copy: _Copy, runs: NDArray[np.bool_]) -> None:
        self._mover.move(copy.pages.chosen(runs), copy.transfer.direction)
