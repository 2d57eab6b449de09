"""Runs one worker's share of every plan, in the order that both contracts depend on.

The order of one step is: copies between host slots and a store below, which touch no block; stores left by the previous step;
the waits; loads that the plan itself waits for, and that wait; the forward pass; the other loads. The step's own stores are
left for the next step, so that they never delay the forward pass.
Stores after the waits, or loads before them, would let a new tenant write what a copy still reads.

A wait is queued on the device where the copier can (`QueuesWaits`): what is computed next begins when the copies are over, and
the host goes on. It waits itself where nothing can be queued: for a store below, and for the loads of a step before it is
reported, for the engine must know then which of them have failed.

An engine that can launch beside its forward pass takes the left stores into its own hands (``stores_behind``): those that
nothing in the step waits for are launched by `launch_deferred`, when the forward pass has been queued.

Each share is a machine of its own, with the table of the ledger's jobs. The copy is launched from a hook on its `submit` edge:
the first hook of the executor, beside which an engine can register its own (`Executor.on`). A launch that raises cannot undo
the commit: the share takes its failing edge, and FAILED is reported to the ledger. If the copier refuses a launch as misuse,
the engine has made a mistake that would make every copy fail silently: the step is completed, and then the refusal is raised.
Errors of the engine's hooks are kept and change nothing (`Executor.hook_errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext

from attrs import define, frozen

from blocklife.copiers._protocol import Copier, LoadsByLayer, QueuesWaits, TierCopier
from blocklife.errors import MisuseError
from blocklife.hook_errors import HookErrors, OnError, errors_of
from blocklife.ledger.records import Completion, JobId, Launched, Plan, Result, TierTransfer, Transfer
from blocklife.lifecycle import Hooks, Subscription, Transition, What
from blocklife.states import Job, JobLife


@define(eq=False)
class _WorkerShare:
    """One worker's part of one job."""

    transfer: Transfer | TierTransfer
    life: JobLife


@frozen(eq=False)
class Report:
    """The report of one worker after a step."""

    launched: tuple[Launched, ...]
    completions: tuple[Completion, ...]


class Executor:
    """Executes plans on one worker. It has no ledger, and its input and output can be pickled.

    Invariant: ``_deferred`` and ``_running`` are disjoint; together they hold the shares that are not over.

    With ``errors="raise"``, for tests, `execute` raises the first error of a hook when the step is done. With
    ``stores_behind`` the engine calls `launch_deferred` in each step.
    """

    def __init__(
        self, copier: Copier, below: TierCopier | None = None, *, errors: OnError = "keep", stores_behind: bool = False
    ) -> None:
        self.copier = copier
        self.below = below
        self._stores_behind = stores_behind
        self._awaited: list[JobId] = []
        """Loads within the step that the device waits for, and the host before the next report."""
        self._deferred: list[_WorkerShare] = []
        self._running: dict[JobId, _WorkerShare] = {}
        self._launched: list[Launched] = []
        self._failed: list[Completion] = []
        self._problem: Exception | None = None
        """The error that the next `execute` raises: a launch refused as misuse."""
        self._unlaunched: Exception | None = None
        """Why the copy being submitted was not launched."""
        self.hook_errors: HookErrors = errors_of(errors)
        """What hooks of the engine have raised."""
        self._hooks: Hooks[Transition] = Hooks({JobLife.table.name: JobLife.table}, self.hook_errors)
        self.on(JobLife.submit, hook=self._launch)

    def on(
        self,
        *what: What,
        entered: Job | None = None,
        left: Job | None = None,
        hook: Callable[[Transition], None] | None = None,
    ) -> Subscription[Transition]:
        """Register a hook for this worker's share of every job: ``executor.on(JobLife.submit, JobLife.finish)``.

        ``transition.payload["transfer"]`` is the `Transfer` or `TierTransfer`, and the place is the job number. The copy is
        launched before all other hooks on `submit`. An error in a hook changes nothing (`hook_errors`). See `Hooks.on`.
        """
        return self._hooks.on(*what, entered=entered, left=left, hook=hook)

    def execute(self, plan: Plan, forward: Callable[[], None]) -> Report:
        """Run one step, as `run`, and return its report."""
        self.run(plan, forward)
        return self.report()

    def run(self, plan: Plan, forward: Callable[[], None], *, load_parts: int = 1) -> None:
        """Run one step: waits before anything is written, then the forward pass, then loads. Next: `report`.

        Loads that the plan waits for itself (`Plan.within`) run before the forward pass, which reads what they bring. With more
        *load_parts* than one they go in so many, and each layer of the pass is to wait for its own
        (`LoadsByLayer.before_layer`). Refuses: MisuseError for a copier that has no layers, with nothing done.

        Raises errors of the forward pass, and the MisuseError of a launch that the copier refused. Even then
        the plan counts as executed, and none of its jobs is lost: its loads run, its stores are left for the next step, and
        they are in the next `report`. Never execute a plan twice.
        """
        if load_parts > 1 and not isinstance(self.copier, LoadsByLayer):
            raise MisuseError(f"executor: {type(self.copier).__name__} loads all layers at once (give load_parts=1)")
        quiet = False
        within = plan.within
        try:
            for between in (*plan.promotes, *plan.demotes):  # they touch no block, so that nothing here orders them
                self._submit(self._share(between))
            if not self._stores_behind:
                self.launch_deferred()
            self._fence([job for job in plan.flushes if job not in within] if within else plan.flushes)
            quiet = True
            if within:
                self._load_within(plan, within, load_parts)
            forward()
        finally:
            self._deferred += [self._share(transfer) for transfer in plan.stores]
            for transfer in plan.loads:
                if quiet and transfer.job not in within:
                    self._submit(self._share(transfer))
                elif not quiet:  # its target may still be read: it is never launched, so it fails and is quiet
                    self._failed.append(Completion(transfer.job, self.copier.worker, Result.FAILED))
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        self.hook_errors.end()

    def launch_deferred(self) -> None:
        """Launch the stores that were left by the previous step."""
        while self._deferred:
            self._submit(self._deferred.pop(0))

    def _load_within(self, plan: Plan, within: Collection[JobId], parts: int) -> None:
        """Launch the loads that the forward pass of this step reads, and let it wait for them, or each layer for its own."""
        copier = self.copier
        if isinstance(copier, LoadsByLayer):
            now = copier.needed_now(parts)
        else:
            now = copier.needed_now() if isinstance(copier, QueuesWaits) else nullcontext()
        with now:
            for transfer in plan.loads:
                if transfer.job in within:
                    self._submit(self._share(transfer))
        if parts > 1:
            self._flush(within)
        else:
            self._fence(within)
        if isinstance(copier, QueuesWaits):
            self._awaited += within

    def wait(self, jobs: Iterable[JobId]) -> None:
        """Block until these jobs are quiet: a share that is still held back is launched first.

        A launch that fails is in the next `report`; one refused as misuse is also raised by the next `execute`.
        """
        self._stop_for(jobs, queued=False)

    def _fence(self, jobs: Iterable[JobId]) -> None:
        """Let whatever is computed next wait for these jobs, and the host only where the device cannot."""
        self._stop_for(jobs, queued=True)

    def _stop_for(self, jobs: Iterable[JobId], *, queued: bool) -> None:
        wanted = tuple(jobs)
        if not wanted:
            return
        held_back = [share for share in self._deferred if share.transfer.job in wanted]
        for share in held_back:
            self._deferred.remove(share)
            self._submit(share)
        self._flush(wanted)
        if queued and isinstance(self.copier, QueuesWaits):
            self.copier.fence(wanted)
        else:
            self.copier.wait(wanted)
        if self.below is not None:
            self.below.wait(wanted)

    def _flush(self, jobs: Iterable[JobId]) -> None:
        """The engine waits for these jobs."""
        for job in jobs:
            running = self._running.get(job)
            if running is not None and running.life.can(JobLife.flush):
                running.life.flush()

    def report(self) -> Report:
        """The jobs launched and landed since the last report; loads within the step have ended."""
        if self._awaited:
            self.copier.wait(self._awaited)
            self._awaited = []
        completions = [*self._failed, *self.copier.poll(), *(self.below.poll() if self.below is not None else ())]
        for completion in completions:
            share = self._running.get(completion.job)
            if share is None:
                continue
            share.life.finish(outstanding=0, ok=completion.result is Result.OK)
            del self._running[completion.job]
        launched = tuple(self._launched)
        self._launched, self._failed = [], []
        return Report(launched, tuple(completions))

    def drop(self, jobs: Iterable[JobId]) -> None:
        """Drop shares that were proven quiet and will never be reported."""
        for job in jobs:
            self._running.pop(job, None)

    def busy(self) -> bool:
        """Whether a later report may have content without a new plan."""
        return bool(self._deferred) or self.copier.busy() or (self.below is not None and self.below.busy())

    def close(self) -> None:
        """Drain the copiers. Shares that were never launched are dropped: their places were not touched."""
        self._deferred = []
        try:
            self.copier.close()
        finally:
            if self.below is not None:
                self.below.close()

    def _share(self, transfer: Transfer | TierTransfer) -> _WorkerShare:
        life = JobLife()
        life.report_to(self._hooks, transfer.job.number, transfer=transfer)
        return _WorkerShare(transfer, life)

    def _submit(self, share: _WorkerShare) -> None:
        job = share.transfer.job
        self._launched.append(Launched(job, self.copier.worker))
        self._running[job] = share
        share.life.submit()
        error, self._unlaunched = self._unlaunched, None
        if error is not None:
            if isinstance(error, MisuseError):
                self._problem = self._problem or error
            share.life.finish(outstanding=0, ok=False)
            self._failed.append(Completion(job, self.copier.worker, Result.FAILED))
            del self._running[job]

    def _launch(self, transition: Transition) -> None:
        """The hook on `submit`; an error of the driver must not reach the engine's loop."""
        transfer = transition.payload["transfer"]
        try:
            if isinstance(transfer, Transfer):
                self.copier.launch(transfer)
            elif isinstance(transfer, TierTransfer):
                if self.below is None:
                    raise MisuseError(f"job {transfer.job}: this worker has no copier to a store below (Executor(below=...))")
                self.below.launch(transfer)
        except Exception as error:
            self._unlaunched = error
