"""How a request leaves the batch: it ends, its load fails, or all content is given up.

A change goes to the ledger first and is noted here afterwards, so that a refusal leaves both unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.offload._admissions import Admissions
from blocklife.offload._asking import Asking
from blocklife.offload._offers import Offers
from blocklife.offload._state import SchedulerState, Tracked
from blocklife.policies import LastStep
from blocklife.states import Request


class Endings:
    """What ends the requests of one scheduler."""

    def __init__(self, state: SchedulerState, asking: Asking, offers: Offers, admissions: Admissions) -> None:
        self._state, self._ledger, self._rows, self._asking = state, state.ledger, state.rows, asking
        self._offers, self._admissions = offers, admissions
        self._jobs, self._own_pool = state.ledger.jobs, state.ledger.own_pool
        self._geometry, self._policies = state.geometry, state.policies
        self._progress, self._stays, self._stores = state.progress, state.stays, state.stores
        self._calls = state.ledger._calls
        self._drafts = any(state.geometry.drafters)

    def end(self, name: str, *, early: bool) -> None:
        """Queue the last stores and release everything; delayed while an outstanding plan still writes for the request."""
        tracked = self._state.tracked(name)
        self._state.check_held(name)
        row, table = tracked.row, self._progress
        if not table.in_flight_of(row) and self._ledger.requests.state(name) is Request.RUNNING:
            self._asking.ask_end(tracked, table.computed_of(row), table.known_of(row), early=early)
        self._calls.writes()
        if table.in_flight_of(row):
            self._stays.ended(row, early=early, computes=True)
            self.stop_drafting(row)
            table.wanted[row] = 0
            self._offers.cut_states(name, table.begin_of(row))
            return
        self.leave_behind(name, tracked, early=early)
        self._ledger.finish(name)
        self.leave(name, tracked, early=early)

    def end_many(self, names: Sequence[str]) -> None:
        """`end` for requests whose plans have settled. If the engine owns the pool, their blocks are released in one call."""
        if self._own_pool:
            for name in names:
                self.end(name, early=self._stays.is_aborted(self._state.requests[name].row))
            return
        for name in names:
            tracked = self._state.requests[name]
            self.leave_behind(name, tracked, early=self._stays.is_aborted(tracked.row))
        self._rows.finish_many(names)
        for name in names:
            tracked = self._state.requests[name]
            self.leave(name, tracked, early=self._stays.is_aborted(tracked.row))

    def leave_behind(self, name: str, tracked: Tracked, *, early: bool) -> None:
        """Queue the last stores of a request without outstanding plans."""
        if self._ledger.requests.state(name) is Request.RUNNING:
            row, table = tracked.row, self._progress
            computed = table.computed_of(row)
            last = self._asking.last(tracked, computed, table.known_of(row), early=early)
            self.stop_drafting(row)
            if self._drafts and (spans := table.finishing([row], [computed])):
                self._rows.seal(self._offers.seals(spans))
                table.sealed_up_to(spans)
            self._offers.offer(name, tracked, last, at_once=not self._state.lost)
            if self._geometry.tail_tokens is not None:
                self._offers.offer_tail(name, tracked, last)
            if not self._state.lost:
                self._stores.plan([name])
            self._offers.touch_own(tracked, computed)

    def stop_drafting(self, row: int) -> None:
        """A request runs no more, so no draft follows: the last full unit of a group with a drafter is final as well."""
        self._progress.stop(row)
        if self._drafts:
            self._progress.look(row)

    def leave(self, name: str, tracked: Tracked, *, early: bool) -> None:
        """Forget a request that has left the ledger."""
        self.drop(name, tracked)
        self._stays.ended(tracked.row, early=early, computes=False)
        self._progress.leave(tracked.row)
        del self._state.requests[name], self._state.names[tracked.row]
        self._state.preempted.pop(name, None)
        if self._jobs.serve(name):
            self._state.outlived.add(name)

    def drop(self, name: str, tracked: Tracked) -> None:
        """The request holds nothing any more: forget its progress, and what it waited for."""
        if name in self._state.waiting_loads:
            self._state.given_up += 1
        self._admissions.end_load(name)
        self._state.unpin(name)
        self._state.states.pop(name, None)
        self._stays.emptied(tracked.row)
        tracked.hit = None
        tracked.tail = 0
        self._progress.clear(tracked.row)

    def load_failed(self, name: str, tracked: Tracked) -> None:
        """The load of a request has failed: it holds nothing, and waits again."""
        tracked.failures += 1
        self.drop(name, tracked)

    def reset(self, *, drain: bool, host: bool) -> list[str]:
        """All content is gone, that of the host tier only with *host*; requests wait, and pending ends are completed."""
        alive = {name: self._ledger.requests.state(name) for name in self._state.requests}
        self._ledger.reset(drain=drain, host=host)
        self._stores.clear()
        preempted = []
        for name, state in alive.items():
            tracked = self._state.requests[name]
            ending = self._stays.is_ending(tracked.row)
            # a load that has failed but was not reported yet counts as well
            loads = name in self._state.waiting_loads
            self.drop(name, tracked)
            if ending:
                self.end(name, early=self._stays.is_aborted(tracked.row))
            elif loads or state is Request.RUNNING:
                preempted.append(name)
        return preempted

    def over(self) -> list[str]:
        """Requests that only waited for their plans to settle, and whose plans have."""
        in_flight, state = self._progress.in_flight_of, self._state
        return [state.names[row] for row in sorted(self._stays.ending) if not in_flight(row)]

    def is_last_step(self) -> bool:
        """Whether at least one request is tracked, all that are tracked are over, and copies are then to be waited for.

        A request is tracked until its last job is over (vLLM's change 42611; waiting for "no request is tracked" would never
        flush).
        """
        state = self._state
        if self._policies.last_step is not LastStep.FLUSH:
            return False
        ending = self._stays.ending
        return len(ending) == len(state.requests) and bool(ending or state.outlived)
