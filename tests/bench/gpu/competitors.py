"""Who moves pages: the copier with any mover, and what one would write without it.

Each queues its jobs, one call a job, on streams of its own, and says which bytes should be where afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

from blocklife.copiers.torch import TorchCopier
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.copiers.torch._moves import ChoosingMover, Mover
from blocklife.ledger.records import ON_DEVICE, Direction, JobId, Result, Transfer, Worker
from tests.bench.gpu.arena import LOAD, STORE, Arena, Work
from tests.bench.gpu.records import EACH, GATHER, LIMIT, NEIGHBOURS
from tests.gpu.movers import ForcedLaunching, forced


class Competitor:
    """Moves all of a direction's bytes, job by job, on streams of its own."""

    name = ""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        cuda, where = arena.buffers.cuda, arena.buffers.where
        self._streams: dict[Direction, torch.cuda.Stream | None] = {
            direction: torch.cuda.Stream(device=where) if cuda else None for direction in ON_DEVICE
        }
        self._marks: deque[torch.cuda.Event | None] = deque()
        """One for each job that `launch` has queued and nobody has heard of; None has passed."""
        self.work = {direction: self.cut(direction) for direction in ON_DEVICE}
        self.jobs = {direction: work.jobs(arena.job_blocks) for direction, work in self.work.items()}

    def cut(self, direction: Direction) -> Work:
        """Which blocks it moves where."""
        return self.arena.scattered(direction)

    def streams(self, direction: Direction) -> list[torch.cuda.Stream]:
        """What it works on; nothing where there are no streams."""
        stream = self._streams[direction]
        return [] if stream is None else [stream]

    def on(self, direction: Direction) -> torch.cuda.StreamContext:
        """The direction's stream is the current one inside; None changes nothing."""
        return torch.cuda.stream(self._streams[direction])

    def num_jobs(self, direction: Direction) -> int:
        """How many calls move all."""
        return len(self.jobs[direction])

    def job_bytes(self, direction: Direction, number: int) -> int:
        """What one job moves."""
        return len(self.jobs[direction][number][0]) * self.arena.block

    def begin(self) -> None:
        """Get ready. Nothing is under way."""

    def launch(self, direction: Direction, number: int) -> None:
        """Queue one job of which `hear` will tell."""
        self.queue(direction, number)
        stream = self._streams[direction]
        self._marks.append(None if stream is None else stream.record_event())

    def hear(self) -> int:
        """How many jobs of `launch` have landed since anybody asked; all go in one direction."""
        count = 0
        while self._marks and ((mark := self._marks[0]) is None or mark.query()):
            self._marks.popleft()
            count += 1
        return count

    def flush(self, direction: Direction) -> None:
        """Return when all that was queued lies on the streams."""

    def queue(self, direction: Direction, number: int) -> None:
        """Queue one job."""
        raise NotImplementedError

    def end(self) -> None:
        """Wait until all that was queued has run. Raises RuntimeError if something has not moved."""
        self.arena.buffers.settle()
        self._marks.clear()

    def close(self) -> None:
        """Give back what it holds. Nothing is under way."""

    def expect(self, direction: Direction, device: torch.Tensor, host: torch.Tensor) -> None:
        """Do the same to other buffers, of words of eight bytes, in the plainest way."""
        work = self.work[direction]
        blocks, places = (torch.from_numpy(ids).to(device.device) for ids in (work.blocks, work.places))
        layers, rows = self.arena.cut(device), self.arena.cut_host(host)
        if direction is STORE:
            rows[:, places] = layers[:, blocks]
        else:
            layers[:, blocks] = rows[:, places]


class Ours(Competitor):
    """The copier, from `launch` on, with its thread. Its name is that of a mover, or how the blocks lie where it chooses."""

    def __init__(self, arena: Arena, name: str, mover: Mover) -> None:
        self.name = name
        super().__init__(arena)
        self._layout = CopyLayout(arena.cache, arena.rows)
        self._mover = mover
        self._device = ForcedLaunching(forced(self._layout, mover), arena.buffers.where)
        self.copier = TorchCopier(arena.cache, arena.rows, worker=Worker(0), device=self._device)
        self._out: set[JobId] = set()
        self._num_jobs = 0

    def cut(self, direction: Direction) -> Work:
        return self.arena.neighbours(direction) if self.name == NEIGHBOURS else self.arena.scattered(direction)

    def streams(self, direction: Direction) -> list[torch.cuda.Stream]:
        return self._device.streams_of(direction.name.lower())

    def chosen(self, direction: Direction) -> str:
        """Which mover it takes for the first job of a direction; empty where there is nothing to choose."""
        if not isinstance(self._mover, ChoosingMover):
            return ""
        pages = self._layout.pages(self._transfer(direction, 0), *self.jobs[direction][0])
        return next(self._mover.order(len(pages), pages.total, direction))

    def begin(self) -> None:
        self.copier.computed()

    def queue(self, direction: Direction, number: int) -> None:
        self._num_jobs += 1
        transfer = self._transfer(direction, number)
        self.copier.launch(transfer)
        self._out.add(transfer.job)

    def launch(self, direction: Direction, number: int) -> None:
        self.queue(direction, number)

    def flush(self, direction: Direction) -> None:
        self._device.flush(direction.name.lower())

    def close(self) -> None:
        self.copier.close()

    def hear(self) -> int:
        """As there. Raises RuntimeError if a job has failed."""
        completions = self.copier.poll()
        if any(completion.result is not Result.OK for completion in completions):
            raise RuntimeError(self.copier.statistics().last_error)
        self._out -= {completion.job for completion in completions}
        return len(completions)

    def end(self) -> None:
        self.copier.wait(self._out)
        self.hear()
        if self._out:
            raise RuntimeError(f"{len(self._out)} jobs were not reported")

    def _transfer(self, direction: Direction, number: int) -> Transfer:
        blocks, places = self.jobs[direction][number]
        source, target = (blocks, places) if direction is STORE else (places, blocks)
        return Transfer(JobId(1, self._num_jobs), direction, source, target, (len(blocks),))


class Limit(Competitor):
    """One copy of the same bytes, all in a row: what the link gives. Or a few, which follow each other."""

    name = LIMIT
    parts = 1

    def num_jobs(self, direction: Direction) -> int:
        return self.parts

    def job_bytes(self, direction: Direction, number: int) -> int:
        return self.arena.volume // self.parts

    def queue(self, direction: Direction, number: int) -> None:
        with self.on(direction):
            self._copy(direction, number, self.arena.buffers.device, self.arena.buffers.host)

    def expect(self, direction: Direction, device: torch.Tensor, host: torch.Tensor) -> None:
        for number in range(self.parts):
            self._copy(direction, number, device.view(torch.uint8), host.view(torch.uint8))

    def _copy(self, direction: Direction, number: int, device: torch.Tensor, host: torch.Tensor) -> None:
        nbytes = self.job_bytes(direction, number)
        begin = (0 if direction is STORE else 2 * self.arena.volume) + number * nbytes
        part = slice(begin, begin + nbytes)
        source, target = (device, host) if direction is STORE else (host, device)
        target[part].copy_(source[part], non_blocking=True)


class LimitInParts(Limit):
    """The same in sixteen, so that what has landed can be counted while they run."""

    parts = 16


class Each(Competitor):
    """One ``copy_`` for each page, in a loop over layers and blocks."""

    name = EACH

    def queue(self, direction: Direction, number: int) -> None:
        blocks, places = (ids.tolist() for ids in self.jobs[direction][number])
        with self.on(direction):
            pages = self.arena.cut_host(self.arena.buffers.host)
            for layer, there in zip(self.arena.cache.layers, pages, strict=True):
                for block, place in zip(blocks, places, strict=True):
                    if direction is STORE:
                        there[place].copy_(layer[block], non_blocking=True)
                    else:
                        layer[block].copy_(there[place], non_blocking=True)


class Gather(Competitor):
    """Gathered on the device with ``index_select``, sent as one copy; loads the other way round with ``index_copy_``.

    It is spared what the copier does: its places on the host are all in a row, its ids are on the device before it begins,
    it orders nothing, and it reads words of eight bytes.
    """

    name = GATHER

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        where = arena.buffers.where
        self._words = [layer.view(torch.int64) for layer in arena.cache.layers]
        self._ids = {
            direction: [torch.from_numpy(blocks).to(where) for blocks, _ in jobs] for direction, jobs in self.jobs.items()
        }
        self._staging = {
            direction: torch.zeros(arena.job_blocks * arena.block // 8, dtype=torch.int64, device=where)
            for direction in ON_DEVICE
        }

    def queue(self, direction: Direction, number: int) -> None:
        ids = self._ids[direction][number]
        there = self._there(self.arena.buffers.host, direction, number).view(torch.int64)
        staging = self._staging[direction][: there.numel()]
        parts = staging.view(len(self._words), len(ids), -1)
        with self.on(direction):
            if direction is STORE:
                for words, part in zip(self._words, parts, strict=True):
                    torch.index_select(words, 0, ids, out=part)
                there.copy_(staging, non_blocking=True)
            else:
                staging.copy_(there, non_blocking=True)
                for words, part in zip(self._words, parts, strict=True):
                    words.index_copy_(0, ids, part)

    def expect(self, direction: Direction, device: torch.Tensor, host: torch.Tensor) -> None:
        layers = self.arena.cut(device)
        for number, ids in enumerate(self._ids[direction]):
            there = self._there(host.view(torch.uint8), direction, number).view(torch.int64).view(len(layers), len(ids), -1)
            if direction is STORE:
                there.copy_(layers[:, ids])
            else:
                layers[:, ids] = there

    def _there(self, host: torch.Tensor, direction: Direction, number: int) -> torch.Tensor:
        """Where a job's bytes lie in the host, all in a row; the directions share none."""
        begin = (0 if direction is STORE else 2 * self.arena.volume) + number * self.arena.job_blocks * self.arena.block
        return host[begin : begin + len(self._ids[direction][number]) * self.arena.block]


PEERS: Sequence[Callable[[Arena], Competitor]] = (Limit, Each, Gather)

DIRECTIONS: dict[str, tuple[Direction, ...]] = {"store": (STORE,), "load": (LOAD,), "both": (STORE, LOAD)}
