"""Files below the host's slots: vLLM's own tier of them, with threads whose work is done when the seed says so.

What is real: the tiering manager, the primary tier in shared memory, the file-system tier, the names of the files, how they
are written and read, and the look-ups. What is not: the tier's threads. A job's bytes move in the step in which it is over, so
that what is read too early and what is given away too early both show.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random

import numpy as np
from attrs import define, field, frozen
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager

from tests.vllm.device import Words
from tests.vllm.worlds import Lag

STEP_S = 0.002
"""What a step of the engine takes at least, where the tier's own threads move files."""
_FAILED = "no such luck"


@frozen(eq=False)
class FileJob:
    """A job that is not over."""

    number: int
    is_store: bool
    task: Callable[[], object]
    due: int


@define(eq=False)
class Threads:
    """In the place of the tier's pool of threads: the work of a job is done in the step in which it is due."""

    lag: Lag
    faults: float
    rng: Random
    step: int = 0
    jobs: list[FileJob] = field(factory=list)
    over: list[tuple[int, bool, float]] = field(factory=list)
    stores: int = 0
    """Jobs that have written their files."""
    loads: int = 0
    """Jobs that have read theirs."""
    failed: int = 0

    def enqueue_load(self, number: int, count: int, tasks: Iterable[Callable[[], object]]) -> None:
        """Take a job that reads files."""
        self._take(number, tasks, is_store=False)

    def enqueue_store(self, number: int, count: int, tasks: Iterable[Callable[[], object]]) -> None:
        """Take a job that writes files."""
        self._take(number, tasks, is_store=True)

    def get_finished(self) -> list[tuple[int, bool, float]]:
        """The jobs that are over and were not reported."""
        over, self.over = self.over, []
        return over

    def wait_idle(self) -> None:
        """Do all work now."""
        self._work(lambda job: True)

    def shutdown(self, wait: bool = True) -> None:
        """Do no work any more."""
        self.jobs.clear()

    def turn(self, step: int) -> None:
        """Do the work that is due. Jobs are over in any order."""
        self.step = step
        self._work(lambda job: job.due <= step)

    def _take(self, number: int, tasks: Iterable[Callable[[], object]], *, is_store: bool) -> None:
        (task,) = tasks
        due = self.step + self.rng.randint(self.lag.shortest, self.lag.longest)
        self.jobs.append(FileJob(number, is_store, task, due))

    def _work(self, wanted: Callable[[FileJob], bool]) -> None:
        due = [job for job in self.jobs if wanted(job)]
        self.jobs = [job for job in self.jobs if job not in due]
        self.rng.shuffle(due)
        for job in due:
            self.over.append((job.number, self._done(job), 0.0))

    def _done(self, job: FileJob) -> bool:
        try:
            if self.rng.random() < self.faults:
                self._spoil(job)
            job.task()
        except OSError:
            self.failed += 1
            return False
        self.stores += job.is_store
        self.loads += not job.is_store
        return True

    def _spoil(self, job: FileJob) -> None:
        """Let a job fail: the disk is full, or one of its files is cut or gone."""
        if job.is_store:
            raise OSError(_FAILED)
        paths = [path for cell in job.task.__closure__ or () if isinstance(found := cell.cell_contents, list) for path in found]
        named = [Path(path) for path in paths if isinstance(path, str) and os.path.exists(path)]
        if not named:
            return
        path = self.rng.choice(named)
        if self.rng.random() < 0.5:
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.truncate(self.rng.choice((0, 1, 512)))


class Answers:
    """In the place of the queue to the thread that looks files up: it answers at once, for the next step."""

    def __init__(self, tier: FileSystemTierManager) -> None:
        self._tier = tier
        self._to_thread = tier._lookup_manager._lookup_queue

    def put(self, batch: list[tuple[OffloadKey, ReqContext, int]] | None) -> None:
        """Answer a batch of questions; None ends the thread, which has had nothing to do."""
        if batch is None:
            self._to_thread.put(None)
            return
        known = self._tier._lookup_manager
        found = [next(iter(known.batch_lookup([key], context))) for key, context, _ in batch]
        known._pending_results.put([(key, turn, there) for (key, _, turn), there in zip(batch, found, strict=True)])


class NoFiles:
    """In the place of the files of a tier, where no byte moves: a job is over some steps later, and its keys are there then.

    What is real is what the scheduler does: the tiering manager, the primary tier, and the tier as far as its queue of work.
    """

    def __init__(self, manager: TieringOffloadingManager, steps: int) -> None:
        (tier,) = manager.secondary_tiers
        assert isinstance(tier, FileSystemTierManager)
        self._manager, self._steps = manager, steps
        self._step = 0
        self._out: deque[tuple[int, int, bool]] = deque()
        self._keys: dict[int, list[OffloadKey]] = {}
        self._there: set[OffloadKey] = set()
        self.stores = self.loads = 0
        """Jobs that are over."""
        tier._pool.shutdown()
        tier._pool = self
        tier._lookup_manager.batch_lookup = lambda keys, context: [key in self._there for key in keys]
        tier._lookup_manager._lookup_queue = Answers(tier)
        self._submit, tier.submit_store = tier.submit_store, self._submit_store
        weakref.finalize(self, manager.shutdown)

    def turn(self) -> None:
        """A step begins."""
        self._step += 1

    def _submit_store(self, job_metadata: TransferJob) -> None:
        self._keys[job_metadata.job_id] = list(job_metadata.keys)
        self._submit(job_metadata)

    def enqueue_load(self, number: int, count: int, tasks: object) -> None:
        """Take a job that would read files."""
        self._out.append((self._step + self._steps, number, False))

    def enqueue_store(self, number: int, count: int, tasks: object) -> None:
        """Take a job that would write files."""
        self._out.append((self._step + self._steps, number, True))

    def get_finished(self) -> list[tuple[int, bool, float]]:
        """The jobs that are over and were not reported."""
        found = []
        while self._out and self._out[0][0] <= self._step:
            _, number, is_store = self._out.popleft()
            self._there.update(self._keys.pop(number, ()))
            self.stores += is_store
            self.loads += not is_store
            found.append((number, True, 0.0))
        return found

    def wait_idle(self) -> None:
        """End all work now."""
        self._step += self._steps

    def shutdown(self, wait: bool = True) -> None:
        """There are no threads."""


class Disk:
    """The tier of files of a rig."""

    def __init__(self, manager: TieringOffloadingManager, lag: Lag | None, faults: float, rng: Random) -> None:
        """*lag*: how long files take; None: as long as the tier's own threads do."""
        self.manager = manager
        (tier,) = manager.secondary_tiers
        assert isinstance(tier, FileSystemTierManager)
        self.tier = tier
        self.threads: Threads | None = None
        if lag is not None:
            tier._pool.shutdown()
            tier._pool = self.threads = Threads(lag, faults, rng)
            tier._lookup_manager._lookup_queue = Answers(tier)
        self._is_open = True

    def host(self, rank: int, row_words: int) -> Words:
        """The part of the host's slots that belongs to one worker: a row for each."""
        return host_rows(self.manager, rank, row_words)

    def turn(self, step: int) -> None:
        """A step begins."""
        if self.threads is None:
            time.sleep(STEP_S)
        else:
            self.threads.turn(step)

    def files(self) -> Iterator[Path]:
        """All files with content."""
        yield from Path(self.tier.file_mapper.base_path).parent.rglob("*.bin")

    @property
    def moved(self) -> tuple[int, int]:
        """How many jobs have written files, and have read them."""
        jobs = self.threads
        return (0, 0) if jobs is None else (jobs.stores, jobs.loads)

    def close(self) -> None:
        """Shut the manager down, with its tiers and its shared memory."""
        if self._is_open:
            self._is_open = False
            self.manager.shutdown()


def host_rows(manager: TieringOffloadingManager, rank: int, row_words: int) -> Words:
    """The part of a tiering manager's host slots that belongs to one worker: a row for each."""
    size = row_words * np.dtype(np.uint64).itemsize
    tier = manager.primary_tier
    rows = tier._mmap_region.base_tensor.numpy().reshape(tier._num_chunks, -1)
    words: Words = rows[:, rank * size : (rank + 1) * size].view(np.uint64)
    return words
