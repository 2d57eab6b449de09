"""A step of the scheduler: who runs in it, the plan that it ends in, and what has come of an earlier plan.

`_scheduler.py` and `_engine_pool.py` have the calls of an engine and refuse a wrong order; the work is done here, in
`_admissions.py`, `_offers.py` and `_endings.py`. A change goes to the ledger first and is noted here afterwards, so that a
refusal leaves both unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from blocklife.core._progress import EntrySpans, PlanTokens, Span, spans_of
from blocklife.errors import MisuseError
from blocklife.ledger import Plan
from blocklife.ledger.records import Completion, Launched
from blocklife.offload._admissions import Admissions
from blocklife.offload._asking import Asking
from blocklife.offload._endings import Endings
from blocklife.offload._offers import Offers
from blocklife.offload._state import PlanOut, SchedulerState
from blocklife.offload.records import Hit, Settled
from blocklife.states import Request

_NOBODY_SETTLED = Settled((), (), ())


class SchedulerSteps:
    """The steps of one scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self._state, self._ledger, self._rows = state, state.ledger, state.rows
        self._blocks, self._jobs, self._own_pool = state.ledger.blocks, state.ledger.jobs, state.ledger.own_pool
        self._geometry, self._policies = state.geometry, state.policies
        self._progress, self._stays = state.progress, state.stays
        self.asking = Asking(state)
        self.offers = Offers(state, self.asking)
        self.admissions = Admissions(state)
        self.endings = Endings(state, self.asking, self.offers, self.admissions)
        self._calls = state.ledger._calls

    def make_plan(self, now: float) -> Plan:
        """The plan of this step (`OffloadScheduler.build_plan`)."""
        table = self._progress
        rows = table.looked_at()
        doubtful = self.admissions.in_doubt() if self._state.waiting_loads and self._policies.load_within_tokens else []
        spans = table.filling([row for row in rows if row not in doubtful] if doubtful else rows)
        keys = self.asking.ask_filled(spans)
        self._calls.writes()
        if self._state.preempted:
            if (jobs := self._jobs.of(*self._state.preempted)).ids:
                self._ledger.flush(jobs, "preempted")
            self._state.preempted.clear()
        self.offers.plan_stores(spans, keys, list(self._state.states))
        if self.endings.is_last_step() and (jobs := self._jobs.submitted(on_device=True)).ids:
            self._ledger.flush(jobs, "last step")
        if self._state.pinned:
            for name in list(self._state.pinned):
                self._state.unpin(name)
        self._state.now = now
        if self._state.below is not None:
            self._state.below.ask_again()
            self._state.below.plan_demotions()
        plan = self._rows.dispatch(now)
        table.depart(doubtful)
        self._state.plans[plan.number] = PlanOut(self._state.handed, self.asking.hand_over())
        self._state.handed = {}
        self._state.within.clear()
        return plan

    def settle(
        self, plan: int, now: float, sampled: Mapping[str, int], launched: Iterable[Launched], completions: Iterable[Completion]
    ) -> Settled:
        """Apply the oldest plan that is out (`OffloadScheduler.settle`)."""
        table = self._progress
        (handed, keys), turn = self._state.plans[plan], table.turns[0]
        rows, known, computed = self.advance(turn, sampled)
        self.asking.recall(keys)
        final = table.finishing(rows, computed)
        seals = self.offers.seals(final) if final else []
        if handed or self._stays.ending:
            reached = dict(zip(rows, computed, strict=True))
            self.asking.ask_keys_of_ending(turn, dict(zip(rows, known, strict=True)), reached)
            seals += self.offers.state_seals(handed, reached)
        # the reports come first: seals of a request whose load has failed are stale by then, and change nothing
        self._rows.settle(plan, now, launched, completions, seals)
        del self._state.plans[plan]
        if self._state.below is not None:
            self._state.below.land()
        loads = bool(self._state.waiting_loads)
        before = [table.known[row] for row in rows] if loads else known
        table.settle(rows, known, computed)
        if final:
            table.sealed_up_to(final)
        loaded, failed = self.hear_of_loads() if loads else ([], [])
        if failed:  # what they have sampled is void
            lost = {self._state.requests[name].row for name in failed}
            for row, tokens in zip(rows, before, strict=True):
                if row in lost:
                    table.known[row] = tokens
        if ended := self.endings.over() if self._stays.ending else []:
            self.endings.end_many(ended)
            loaded = [name for name in loaded if name not in ended]
            failed = [name for name in failed if name not in ended]
        if self._state.outlived:
            self._state.outlived = {name for name in self._state.outlived if self._jobs.serve(name)}
        return Settled(tuple(loaded), tuple(failed), tuple(ended)) if loaded or failed or ended else _NOBODY_SETTLED

    def advance(self, turn: PlanTokens, sampled: Mapping[str, int]) -> tuple[list[int], list[int], list[int]]:
        """Of the requests that a plan says something of: their rows, and the known and computed tokens once it settles.

        Besides those in its turn these are silent ones that may need attention then.
        """
        table = self._progress
        counts: dict[int, int] = {}
        for name, count in sampled.items():
            if count < 0:
                raise MisuseError(f"request {name}: cannot have sampled {count} tokens")
            row = self._state.requests[name].row
            if count != 1:
                table.speak_up(row)
            counts[row] = count
        if counts and self._state.has_states:
            for row, tokens, serial in zip(turn.rows, turn.tokens, turn.serials, strict=True):
                if row in counts and table.serial[row] == serial:
                    news = 1 if table.computed_of(row) + tokens >= table.known_of(row) else 0
                    self._check_sampled(row, tokens, counts[row], news)
        return table.reach(turn, counts)

    def _check_sampled(self, row: int, tokens: int, count: int, expected: int) -> None:
        """Refuse fewer tokens than expected where a state has taken in what was to be sampled."""
        name = self._state.names[row]
        ahead = self._progress.in_flight_of(row) > tokens
        if ahead and count < expected and not self._stays.is_ending(row):
            raise MisuseError(
                f"request {name}: a Mamba state cannot be taken back, and a plan that is out takes in the token that "
                f"plan {next(iter(self._state.plans))} was to sample (it has sampled 1 at least; preempt the request first)"
            )

    def hear_of_loads(self) -> tuple[list[str], list[str]]:
        """Handle requests whose load is over. Returns the names of those that run now, and of those that wait again."""
        loaded: list[str] = []
        failed: list[str] = []
        if (left := self._ledger.requests.times_left(Request.LOADING)) == self._state.loads_heard:
            return loaded, failed
        table = self._progress
        for name, hit in list(self._state.waiting_loads.items()):
            state = self._ledger.requests.state(name)
            if state is Request.LOADING:
                continue
            tracked = self._state.requests[name]
            if state is Request.RUNNING:
                self.admissions.end_load(name)
                self._stays.landed(tracked.row)
                if not hit.within:  # otherwise it runs since its admission
                    if hit.tokens % self._geometry.block_alignment:
                        self._write_behind(name, hit)
                    table.run(tracked.row, hit.compute_from)
                loaded.append(name)
            else:
                self.endings.load_failed(name, tracked)
                failed.append(name)
        self._state.loads_heard = left
        return loaded, failed

    def _write_behind(self, name: str, hit: Hit) -> None:
        """A request computes on in the blocks that hold its tail: their content is not final any more."""
        for group, tokens in enumerate(self._geometry.block_tokens):
            if hit.tokens % tokens:
                self._rows.reopen(name, hit.tokens // tokens, group)

    def schedule(self, wanted: Mapping[int, int]) -> list[int]:
        """Schedule all running requests that are not scheduled yet: one token each, or as in *wanted*.

        If the ledger owns the pool, their blocks are taken and given back; returns the rows without room, which are not
        scheduled then. Otherwise their tables must hold the tokens. If it is refused, nobody is scheduled.
        """
        table = self._progress
        short: list[int] = []
        for row, count in wanted.items():
            if count != 1:
                table.speak_up(row)
        rows = table.propose()
        try:
            for row, count in wanted.items():
                if not table.silent[row]:
                    table.wanted[row] = count
            if self._state.has_states:
                self.check_no_drafts(rows)
            due = table.due_now()
            looked = sorted([*rows, *due]) if rows and due else due or rows
            if self._own_pool:
                self.leave_windows(looked)
                short = self.make_room(looked, list(wanted))
            elif spans := table.lacking(looked):
                lacking = sorted({row for _, row, _, _ in spans.tuples() if table.wanted_of(row)})
                self.admissions.check_placed(lacking, [table.end_of(row) for row in lacking])
        except BaseException:
            table.withdraw(rows)
            raise
        table.schedule(rows)
        for row in short:
            table.call_off(row)
        return short

    def leave_windows(self, rows: list[int]) -> None:
        """Release blocks that no settled token needs any more; tokens in flight can still be taken back."""
        if spans := self._progress.leaving(rows):
            self._rows.leave_spans(self._progress, spans)

    def make_room(self, rows: list[int], order: Sequence[int]) -> list[int]:
        """Allocate the missing blocks of these requests, at once or one after the other. Returns the rows without room."""
        spans = self._progress.lacking(rows)
        if not spans:
            return []
        if self._blocks_of(spans) <= self._blocks.free:
            self._rows.grow(self._progress, spans)
            return []
        by_row: dict[int, list[Span]] = {}
        for span in sorted(spans.tuples(), key=_row_of):
            by_row.setdefault(span[1], []).append(span)
        first = dict.fromkeys([row for row in order if row in by_row])
        queue = [*first, *[row for row in by_row if row not in first]]
        for at, row in enumerate(queue):
            # all groups or none: the place of a state depends on where the step ends, and the next one may end elsewhere
            own = spans_of(by_row[row])
            if not self._blocks.has_room(self._blocks_of(own)):
                return queue[at:]
            self._rows.grow(self._progress, own)
        return []

    def _blocks_of(self, spans: EntrySpans) -> int:
        """The number of blocks for some entries of tables."""
        total = 0
        for each in range(spans.count):
            total += self._progress.blocks_of(spans.group[each], spans.start[each], spans.stop[each])
        return total

    def check_no_drafts(self, rows: Sequence[int]) -> None:
        """A state cannot step back: beyond the known tokens it may include only tokens that an outstanding plan will sample.

        Besides these, as many drafts as the policies give states to.
        """
        table = self._progress
        for row in rows:
            # a plan that reaches the last known token samples one more, so the next step may go one token further
            ahead = table.begin_of(row) + (table.in_flight_of(row) > 0)
            most = max(table.known_of(row), ahead) + self._policies.state_drafts
            if table.end_of(row) > most:
                self.refuse_drafts(self._state.names[row], table.known_of(row), most)

    def refuse_drafts(self, name: str, known: int, most: int) -> NoReturn:
        raise MisuseError(
            f"request {name}: a Mamba state cannot be taken back, so that at most {most - known} tokens beyond the known "
            f"{known} can be scheduled (one for each plan that is out and samples it, and state_drafts)"
        )


def _row_of(span: Span) -> int:
    return span[1]
