"""Blocks that a second owner fills or uses: another connector of the engine, which the scheduler neither commands nor asks.

Rules of this file:

* The engine says who fills a block and when that is over. Until then nothing in it is final here, whatever the engine calls it.
* What a second owner uses stays held in the ledger, by a *guest*: a request of the ledger that the scheduler does not know.

Theory. A second owner can do three things. It *fills* the blocks of a request between two steps: the request holds them and
does not run; when the engine lets it run, the content is final like any other. It fills them *within* the step that needs them:
whether that went well is known with the report of the step, and until then neither these blocks nor what the request computes
behind them may be named, because a load that failed makes both wrong. And it *uses* the blocks of a request that is over, as
reader or writer: the lives of the request go on or end as ever, but their places are not free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from attrs import evolve, frozen

from blocklife.connector_states import CONNECTOR_MACHINES, Trust, TrustLife
from blocklife.errors import CapacityError
from blocklife.ledger._ids import NULL
from blocklife.ledger.records import Placement
from blocklife.ledger.views import block_of
from blocklife.lifecycle import Hooks, Transition
from blocklife.offload._engine_pool import EnginePool
from blocklife.offload.records import Hit
from blocklife.states import BLANK, KEYED

MAX_GUESTS = 256
"""Guests at once. Blocks of further requests are not held here: the engine holds them, and that is what counts."""


@frozen(eq=False)
class _Doubt:
    """A running request whose content counts only if what another owner has put before it was right."""

    trust: TrustLife
    serial: int
    sealed: list[int]
    offered: list[int]
    blocks: frozenset[int]
    """What the engine gave it when it was admitted."""
    plan: int
    """The plan whose report tells."""


class OtherOwners:
    """What the scheduler is told of other owners, for an engine that owns the pool."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._scheduler = pool.scheduler
        self._state = pool.scheduler._state
        self._admissions = pool.scheduler._steps.admissions
        self._ledger = pool.scheduler.ledger
        self._progress = pool.scheduler._state.progress
        self.doubts: dict[str, _Doubt] = {}
        """Running requests whose content waits for a report (DOUBTED), or is wrong (REFUTED)."""
        tables = {table.name: table for table in CONNECTOR_MACHINES.values()}
        self.hooks: Hooks[Transition] = Hooks(tables, pool.scheduler.ledger._calls.errors)
        """Hooks on what a connector keeps of requests; the place of a step of a `TrustLife` is the row of its request."""
        self.guests: dict[str, str] = {}
        """Requests that are over and whose blocks are held, by the names that `lend` was given, and who stands for each in the
        ledger."""
        self._serial = 0

    def brought(self, name: str, hit: Hit, computed: int) -> Hit:
        """The hit of a request for which another owner brings the tokens up to *computed*. Pass it to `admit`, or `receive`."""
        tracked = self._state.tracked(name)
        tracked.hit = evolve(hit, compute_from=computed)
        return tracked.hit

    # --- filled between two steps -------------------------------------------------------------------------------------------

    def receive(self, name: str, hit: Hit) -> None:
        """A waiting request, whose table was placed, does not run: another owner fills its blocks behind the hit.

        State: RUNNING; it is not scheduled, and nothing of it is final. Next: `received`, or `preempt` if that failed.
        """
        self._state.check_held(name)
        self._admissions.enter(name, self._state.tracked(name), hit, None)

    def received(self, name: str, computed: int) -> None:
        """The engine lets such a request run: its first *computed* tokens are there, whoever has brought them."""
        row, table = self._state.tracked(name).row, self._progress
        table.run(row, computed)
        table.look(row)

    # --- filled within a step -----------------------------------------------------------------------------------------------

    def doubted(self, blocks: Iterable[int]) -> bool:
        """Whether one of these blocks belongs to a request whose content waits for a report."""
        found = set(blocks)
        for name, doubt in self.doubts.items():
            if doubt.trust.state is not Trust.DOUBTED:
                continue
            if not found.isdisjoint(doubt.blocks):
                return True
            if self._holds(name, doubt.serial) and any(
                not found.isdisjoint([block_of(life) for life in self._ledger.requests.table(name, group) if life != NULL])
                for group in self._state.groups
            ):
                return True
        return False

    def doubt(self, name: str, blocks: Collection[int]) -> None:
        """An admitted request reads what another owner brings in this step: name nothing of it until the step has reported."""
        row, table = self._state.tracked(name).row, self._progress
        if name in self.doubts:  # it was preempted before the step had reported
            self.doubts.pop(name).trust.drop()
        trust = TrustLife()
        trust.report_to(self.hooks, row)
        self.doubts[name] = _Doubt(
            trust,
            table.serial[row],
            [table.sealed[group * table.size + row] for group in self._state.groups],
            [table.offered[group * table.size + row] for group in self._state.groups],
            frozenset(blocks),
            self._ledger.plans.number + 1,
        )
        self._pool.keep_unnamed(name)

    def hear(self, plan: int, wrong: Collection[int]) -> None:
        """All steps up to this plan have run, and other owners failed to fill the blocks *wrong* in the last of them.

        Call it before the plan is settled.
        """
        for name, doubt in list(self.doubts.items()):
            is_wrong = not doubt.blocks.isdisjoint(wrong)
            if doubt.trust.state is not Trust.DOUBTED or (doubt.plan > plan and not is_wrong):
                continue
            if is_wrong and self._holds(name, doubt.serial):
                doubt.trust.refute()
                continue
            del self.doubts[name]
            if not self._holds(name, doubt.serial):
                doubt.trust.drop()
                continue
            doubt.trust.confirm()
            row, table = self._state.requests[name].row, self._progress
            for group in self._state.groups:
                at = group * table.size + row
                table.sealed[at], table.offered[at] = doubt.sealed[group], doubt.offered[group]
            table.look(row)
            self._pool.store_late(row, plan)

    def take_wrong(self) -> list[str]:
        """Running requests that the engine computes again from an earlier token, each once. Nothing of them is named."""
        found: list[str] = []
        for name in [name for name, doubt in self.doubts.items() if doubt.trust.state is Trust.REFUTED]:
            doubt = self.doubts.pop(name)
            doubt.trust.drop()
            if self._holds(name, doubt.serial) and self._scheduler.requests.is_running(name):
                found.append(name)
        return found

    def _holds(self, name: str, serial: int) -> bool:
        """Whether the request still is what it was when it was admitted: neither over nor preempted since."""
        tracked = self._state.requests.get(name)
        return tracked is not None and self._progress.serial[tracked.row] == serial

    # --- used after the end -------------------------------------------------------------------------------------------------

    def lend(self, who: str, tables: Sequence[Sequence[int]]) -> bool:
        """Another owner uses these blocks of a request that has left the scheduler: hold them until `give_back`.

        Final content stays what it is, and can be hit; of the others nobody may say what is in them. Blocks that a copy of ours
        still touches are held by it. Returns False, with nothing held, if there are too many guests.
        """
        if who in self.guests or len(self.guests) >= MAX_GUESTS:
            return False
        name = self._name_for(who)
        try:
            self._ledger.add_request(name)
        except CapacityError:
            return False
        state = self._ledger.blocks.state
        placed: list[Placement] = []
        for group, table in enumerate(tables):
            there = [block for block in table if block != NULL]
            known, blank = ([block for block in there if state(block) in kind] for kind in (KEYED, BLANK))
            placed.append(Placement(group, taken=known, allocated=blank))
        self._ledger.observe_place(name, placed)
        self._ledger.admit(name)
        self.guests[who] = name
        return True

    def give_back(self, who: str) -> None:
        """The other owner is done with the blocks of this request; one that `lend` does not hold is left as it is."""
        guest = self.guests.pop(who, None)
        if guest is not None:
            self._ledger.finish(guest)

    def _name_for(self, who: str) -> str:
        self._serial += 1
        return f"{who}+{self._serial}"
