"""Many ranks, one ledger: rank 0 schedules, every rank copies its share, over `torch.distributed`.

Rules of this file:

* Rank 0 has the ledger and talks to each other rank separately; the others talk only to rank 0.
* Rank 0 never waits for a rank longer than `timeout_s`. A rank that has died, does not answer in time, or sends an invalid
  answer is **lost**: it gets no more messages, and the engine is told once (`take_losses`).
* The outstanding jobs of a lost rank are not handled here: the engine tells its scheduler (`lose_worker`), and the ledger fails
  them.

Theory. A lost rank may only be slow, and its copies may still run. That is harmless: they run in that rank's own memory, which
is not used before the rank was restarted and `regain_worker` was called. So losing a rank needs no proof of quiet from it, and
a hang of one rank cannot become a hang of all.

Each pair of rank 0 and another rank has its own process group (gloo), because a message that times out breaks its group.
Messages are numbered, and answers to older ones are ignored. They are pickles, which can execute any code: keep the ranks on a
network that you trust.

What is not here, and why. Starting and restarting ranks: that is the job of `torchrun`, which by default ends all ranks when
one dies. Tensors: every rank moves its own, and the forward pass exchanges them in its own way (nccl).
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from attrs import define, evolve, frozen
from torch import distributed

from blocklife.copiers._executor import Executor, Report
from blocklife.errors import BlocklifeError, MisuseError
from blocklife.ledger.records import Completion, JobId, Launched, Plan, Result, Worker

TIMEOUT_S = 60.0
"""How long rank 0 waits for an answer, in seconds."""
PATIENCE_S = 24 * 3600.0
"""How long another rank waits for the next message of rank 0, which may pause between steps; in seconds."""

_LEAST_S = 0.5
"""Minimum time for an answer that may have arrived already, once the deadline has passed."""
_BYTES_MAX = 1 << 31
"""Maximum size of a message; a larger announced size is invalid."""


class LinkError(BlocklifeError):
    """The other end of a link is gone, or did not answer in time."""


class ForwardError(BlocklifeError):
    """The forward pass raised on another rank; its copies go on and will be in the next report."""


# --- messages ---------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class _RankAnswer:
    number: int
    """The number of the message that it answers."""
    worker: Worker
    report: Report
    result: object
    busy: bool
    error: str
    """The error that was raised; empty if none."""


# --- a link ------------------------------------------------------------------------------------------------------------


class Link:
    """One end of the connection between rank 0 and another rank. Made by `connect`."""

    def __init__(self, peer: Worker, group: distributed.ProcessGroup) -> None:
        self.peer = peer
        self._group = group

    def send(self, payload: bytes, timeout_s: float) -> None:
        """Send bytes. Raises LinkError if the other end is gone or does not receive in time."""
        header = torch.tensor([len(payload)], dtype=torch.int64)
        body = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        deadline = time.monotonic() + timeout_s
        for tensor in (header, body):
            self._finish(distributed.isend(tensor, self.peer, group=self._group), deadline)

    def receive(self, timeout_s: float) -> bytes:
        """Receive the next bytes. Raises LinkError if the other end is gone or sends nothing in time."""
        deadline = time.monotonic() + timeout_s
        header = torch.empty(1, dtype=torch.int64)
        self._finish(distributed.irecv(header, self.peer, group=self._group), deadline)
        if not 0 < (size := int(header[0])) <= _BYTES_MAX:
            raise LinkError(f"rank {self.peer}: it announces a message of {size} bytes")
        body = torch.empty(size, dtype=torch.uint8)
        self._finish(distributed.irecv(body, self.peer, group=self._group), deadline)
        return body.numpy().tobytes()

    def _finish(self, work: distributed.Work | None, deadline: float) -> None:
        if work is None:
            raise LinkError(f"rank {self.peer}: this process is not at either end of the link")
        left = max(_LEAST_S, deadline - time.monotonic())
        begin = time.monotonic()
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError as problem:
            late = time.monotonic() - begin > left - _LEAST_S / 2  # gloo counts whole milliseconds
            raise LinkError(f"rank {self.peer}: {'no answer in time' if late else 'the connection is broken'}") from problem


def connect() -> list[Link]:
    """Open the links of this rank: on rank 0 one to each other rank, in order; elsewhere the one to rank 0.

    Needs: `torch.distributed.init_process_group`, and that every rank calls this at the same point.
    """
    if not distributed.is_initialized():
        raise MisuseError("ranks: torch.distributed is not initialised (call init_process_group first, on every rank)")
    here, made = distributed.get_rank(), []
    for rank in range(1, distributed.get_world_size()):
        group = distributed.new_group([0, rank], backend="gloo", timeout=timedelta(seconds=PATIENCE_S))
        if here in (0, rank):
            made.append(Link(Worker(rank if here == 0 else 0), group))
    return made


# --- rank 0 ------------------------------------------------------------------------------------------------------------


@frozen
class Loss:
    """A rank that was lost."""

    worker: Worker
    why: str


@frozen
class RankStatistics:
    """What one rank has reported so far; jobs are counted for this rank alone."""

    worker: Worker
    num_plans: int
    """Plans that it has executed."""
    num_launched: int
    num_ok: int
    num_failed: int
    lost: str
    """Why it is lost; empty if it is not."""


@define(eq=False)
class _Rank:
    """Rank 0's data about another rank."""

    link: Link
    busy: bool = False
    lost: str = ""


@frozen(eq=False)
class JointReport(Report):
    """The reports of all ranks after a step, by rank."""

    results: Mapping[Worker, object]
    """The result of the forward pass on each other rank."""


class Ranks(Executor):
    """Rank 0's end: used in place of an executor, it executes on all ranks, its own share by an executor of its own.

    Invariant: a received report, of this rank or another, is in ``_joint`` until it is returned. Inherited state is neither
    read nor changed, so that there is one record of each share.
    """

    def __init__(self, executor: Executor, links: Sequence[Link], *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(executor.copier)
        if executor.copier.worker != 0:
            raise MisuseError(f"ranks: the copier of rank 0 is worker {executor.copier.worker} (make it worker 0)")
        if [link.peer for link in links] != list(range(1, len(links) + 1)):
            raise MisuseError(f"ranks: links to {[link.peer for link in links]} (give those that connect() made on rank 0)")
        if not timeout_s > 0:
            raise MisuseError(f"ranks: {timeout_s} seconds leave no time to answer")
        self._own = executor
        self._timeout_s = timeout_s
        self._ranks = [_Rank(link) for link in links]
        self._number = 0
        self._losses: list[Loss] = []
        self._joint: tuple[list[Launched], list[Completion]] = ([], [])
        self._errors: list[Loss] = []
        self._counts: dict[Worker, Counter[str]] = {Worker(rank): Counter() for rank in range(len(links) + 1)}
        self._closed = False

    @property
    def lost(self) -> frozenset[Worker]:
        """The lost ranks."""
        return frozenset(rank.link.peer for rank in self._ranks if rank.lost)

    def execute(self, plan: Plan, forward: Callable[[], None], work: object = None) -> JointReport:
        """Run one step on all ranks at once: each as `Executor.execute`, with *work* as input of its forward pass.

        Raises errors of the forward pass on this rank, and ForwardError if it raised on another; no report is lost by that.
        Never execute a plan twice. Next: `take_losses`, and settle the plan.
        """
        number = self._say("execute", plan, work)
        results: dict[Worker, object] = {}
        try:
            self._keep(Worker(0), self._own.execute(plan, forward))
            self._counts[Worker(0)]["plans"] += 1
        finally:
            for worker, answer in self._hear(number):
                results[worker] = answer.result
                self._counts[worker]["plans"] += 1
        self._raise_errors()
        return self._report(results)

    def wait(self, jobs: Iterable[JobId]) -> None:
        """Block until these jobs are quiet on every rank that is not lost; a rank that does not confirm in time is lost."""
        wanted = tuple(jobs)
        if wanted:
            self._everywhere(lambda: self._own.wait(wanted), "wait", wanted)

    def report(self) -> JointReport:
        """The jobs launched and landed on all ranks since the last report."""
        self._everywhere(lambda: self._keep(Worker(0), self._own.report()), "report")
        return self._report({})

    def drop(self, jobs: Iterable[JobId]) -> None:
        """Drop shares that were proven quiet and will never be reported, on every rank."""
        over = tuple(jobs)
        if over:
            self._everywhere(lambda: self._own.drop(over), "drop", over)

    def ask(self, question: object) -> dict[Worker, object]:
        """Send a question of the engine to every other rank; returns the answers of those that are not lost.

        Raises ForwardError if answering raised.
        """
        answers = {worker: answer.result for worker, answer in self._hear(self._say("answer", question))}
        self._raise_errors()
        return answers

    def busy(self) -> bool:
        """Whether a later report may have content without a new plan; for other ranks, as they last reported."""
        return self._own.busy() or any(rank.busy for rank in self._ranks if not rank.lost)

    def take_losses(self) -> tuple[Loss, ...]:
        """The ranks lost since the last call. Next: `lose_worker` for each of them."""
        losses, self._losses = tuple(self._losses), []
        return losses

    def statistics(self) -> tuple[RankStatistics, ...]:
        """Counts by rank."""
        lost = {rank.link.peer: rank.lost for rank in self._ranks}
        return tuple(
            RankStatistics(
                worker=worker,
                num_plans=counts["plans"],
                num_launched=counts["launched"],
                num_ok=counts[Result.OK.name],
                num_failed=counts[Result.FAILED.name],
                lost=lost.get(worker, ""),
            )
            for worker, counts in self._counts.items()
        )

    def close(self) -> None:
        """Drain every rank, and end the others' `serve`. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._everywhere(self._own.close, "close")

    def _everywhere(self, here: Callable[[], None], verb: str, *given: object) -> None:
        """Do something on all ranks at once. A rank that fails is lost, because the state of its copies is unknown."""
        number = self._say(verb, *given)
        try:
            here()
        finally:
            self._hear(number)
            for error in self._errors:
                self._lose(self._ranks[error.worker - 1], error.why)
            self._errors = []

    def _say(self, verb: str, *given: object) -> int:
        """Send one message to every rank that is not lost, a verb of `_obey` with what it is given; returns its number."""
        self._number += 1
        payload = pickle.dumps((self._number, verb, *given), protocol=pickle.HIGHEST_PROTOCOL)
        for rank in self._ranks:
            if not rank.lost:
                try:
                    rank.link.send(payload, self._timeout_s)
                except LinkError as problem:
                    self._lose(rank, str(problem))
        return self._number

    def _hear(self, number: int) -> list[tuple[Worker, _RankAnswer]]:
        """The answers to a message, by rank; a rank that does not answer in time is lost. Their reports are kept."""
        deadline = time.monotonic() + self._timeout_s
        answers = []
        for rank in self._ranks:
            if rank.lost:
                continue
            try:
                answer = _answer_to(number, rank.link, deadline)
            except LinkError as problem:
                self._lose(rank, str(problem))
                continue
            rank.busy = answer.busy
            self._keep(rank.link.peer, answer.report)
            if answer.error:
                self._errors.append(Loss(rank.link.peer, f"rank {rank.link.peer}: {answer.error}"))
            answers.append((rank.link.peer, answer))
        return answers

    def _lose(self, rank: _Rank, why: str) -> None:
        rank.lost = why
        self._losses.append(Loss(rank.link.peer, why))

    def _keep(self, worker: Worker, report: Report) -> None:
        launched, completions = self._joint
        launched += report.launched
        completions += report.completions
        counts = self._counts[worker]
        counts["launched"] += len(report.launched)
        counts.update(completion.result.name for completion in report.completions)

    def _report(self, results: Mapping[Worker, object]) -> JointReport:
        (launched, completions), self._joint = self._joint, ([], [])
        return JointReport(tuple(launched), tuple(completions), results)

    def _raise_errors(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            raise ForwardError("; ".join(error.why for error in errors))


def _answer_to(number: int, link: Link, deadline: float) -> _RankAnswer:
    """The answer to one message; answers to older ones are skipped. Raises LinkError, also for an invalid answer."""
    while True:
        payload = link.receive(deadline - time.monotonic())
        try:
            answer = pickle.loads(payload)
        except Exception as problem:  # an invalid pickle can raise anything
            raise LinkError(f"rank {link.peer}: its answer cannot be read ({problem!r})") from problem
        if not isinstance(answer, _RankAnswer) or answer.number > number:
            raise LinkError(f"rank {link.peer}: it answers a message that was never sent")
        report = answer.report
        signed = {answer.worker, *(each.worker for each in report.launched), *(each.worker for each in report.completions)}
        if signed != {link.peer}:
            raise LinkError(f"rank {link.peer}: it reports in the name of another worker")
        if answer.number == number:
            return answer


# --- the other ranks ---------------------------------------------------------------------------------------------------


def serve(
    executor: Executor,
    link: Link,
    work: Callable[[object], object],
    answer: Callable[[object], object] | None = None,
) -> None:
    """Execute on another rank what rank 0 sends, until it closes. The copier is drained in any case.

    *work* is the forward pass: it gets the ``work`` of rank 0 and returns a result to it; *answer* does the same for
    `Ranks.ask`. Errors are sent to rank 0, which decides. Raises LinkError if rank 0 is gone.
    """
    try:
        while True:
            number, verb, *given = pickle.loads(link.receive(PATIENCE_S))
            link.send(_packed(_obey(executor, number, verb, given, work, answer)), TIMEOUT_S)
            if verb == "close":
                return
    finally:
        executor.close()


def _obey(
    executor: Executor,
    number: int,
    verb: str,
    given: list[Any],
    work: Callable[[object], object],
    answer: Callable[[object], object] | None,
) -> _RankAnswer:
    report, error = Report((), ()), ""
    results: list[object] = []
    try:
        match verb:
            case "execute":
                plan, asked = given
                report = executor.execute(plan, lambda: results.append(work(asked)))
            case "report":
                report = executor.report()
            case "answer":
                if answer is None:
                    raise MisuseError("this rank does not answer questions (give serve an answer)")
                results.append(answer(*given))
            case "wait":
                executor.wait(*given)
            case "drop":
                executor.drop(*given)
            case "close":
                executor.close()
    except Exception as problem:  # any error must be reported to rank 0
        error = f"{type(problem).__name__}: {problem}"
    return _RankAnswer(number, executor.copier.worker, report, results[0] if results else None, executor.busy(), error)


def _packed(told: _RankAnswer) -> bytes:
    """An answer as bytes; results that cannot be pickled are left out, and named."""
    try:
        return pickle.dumps(told, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as problem:  # a result can be anything
        error = told.error or f"its result cannot be pickled: {problem}"
        return pickle.dumps(evolve(told, result=None, error=error), protocol=pickle.HIGHEST_PROTOCOL)
