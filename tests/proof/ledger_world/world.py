"""The real ledger and the device, with an engine that does whatever the tables allow: one verb at a time, in any order.

Rules of this file:

* In every state, what the ledger says is compared with what the device does.
* `LedgerWorld.abstract` gives the variables of the model for SPIN, in their order, so that SPIN and this world can be compared.

Theory. This is the small world of the model for SPIN, where ledger and engine are a program made from the tables: a request
holds at most one block, a job moves one block, content is a letter. Blocks, slots and requests keep their names, so that both
worlds count the same states.

The world is a product of two parts, the ledger and the device, which see only each other's records. Every distinct value of a
part is kept once and numbered; a call is made once on each value, by the real code, and its result is memoized. A state is two
numbers, the reports not yet made, and how many faults are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attrs import field, frozen

from blocklife.errors import CapacityError, InvariantError, MisuseError
from blocklife.ledger import Snapshot
from blocklife.ledger.invariants import check
from blocklife.states import KEYED, LOAD_READS, MACHINES, OUT, Block, Slot, Trait, blocks_touched, slots_touched, states_with
from blocklife.testing import Broken, CopyOrder, Device, DeviceFault, FrozenDevice, Kind, Landing, Orders, Pass, Property
from blocklife.testing.worlds._device import DeviceMemo, DeviceNames, renamed
from blocklife.testing.worlds._row_counts import RowCounts
from tests.proof.ledger_world.settings import FAILED, HELD_BACK, LANDED, RUNS, LedgerSettings
from tests.proof.ledger_world.verbs import MISSING, LedgerAction, LedgerValue, NamedJob, Report, Verbs

__all__ = ["LedgerAction", "LedgerSettings", "LedgerState", "LedgerWorld"]

BLOCK, SLOT, JOB = (MACHINES[name].index for name in ("block", "slot", "job"))
_LAWFUL = {
    stores: (
        frozenset(BLOCK[each] for each in blocks_touched(stores=stores)),
        frozenset(SLOT[each] for each in slots_touched(stores=stores)),
    )
    for stores in (True, False)
}
_READABLE = frozenset(BLOCK[each] for each in KEYED)
_READY = SLOT[Slot.READY]
_KEPT_BLOCKS = _READABLE | {BLOCK[Block.LOADING]}
_KEPT_SLOTS = frozenset(SLOT[each] for each in states_with(Trait.KEYED, Slot) | LOAD_READS)
"""States of places whose content can be read, now or once a copy has landed. The sources of copies are kept, too."""
_SUBMITTED = frozenset(1 + JOB[each] for each in OUT)

RULES = ("I1", "I2", "I5", "I6", "ledger", "refusals")
"""The rules checked in every step: the device's own, those of `ledger.invariants`, that a refusal changes nothing, and that the
ledger's state of each place fits what the device does there."""


class LedgerState(NamedTuple):
    """A state of the world; ``ledger`` and ``device`` are numbers of values that the world keeps."""

    ledger: int
    device: int
    reports: tuple[int, ...]
    """For each job and worker, the report not yet made: `LANDED`, `FAILED`, `MISSING`, or 0."""
    left: tuple[int, int, int]
    """How many failures, losses and repetitions may still happen."""


@frozen(eq=False)
class Kept:
    """One value of the ledger, and the snapshot that restores it."""

    value: LedgerValue
    saved: Snapshot
    names: tuple[NamedJob, ...]


@frozen(eq=False)
class Made:
    """The result of one call on a value of the ledger."""

    value: LedgerValue
    saved: Snapshot
    names: tuple[NamedJob, ...]
    orders: Orders | None
    over: tuple[int, ...]
    """Jobs that are over."""
    becomes: dict[int, int] = field(factory=dict)
    """The number of the new value, keyed by the set of finished jobs that have to be remembered (one bit each)."""


class LedgerPart:
    """The real ledger: every value reached, and the result of each verb on each value."""

    def __init__(self, settings: LedgerSettings) -> None:
        self.verbs = Verbs(settings)
        self.kept: list[Kept] = []
        self.verb_calls = 0
        """How often a verb of the real ledger was called."""
        self._at = -1
        """The number of the ledger's present value; -1 if it has none."""
        self._numbers: dict[LedgerValue, int] = {}
        self._ways: dict[LedgerValue, tuple[Snapshot, tuple[NamedJob, ...]]] = {}
        """The snapshot of each value that a verb has made, finished jobs included."""
        self._calls: dict[tuple[int, LedgerAction, tuple[Report, ...]], Made | None] = {}
        self._engine: dict[int, tuple[LedgerAction, ...]] = {}
        self.initial = self.keep(self.verbs.value(), self.verbs.ledger.snapshot(), self.verbs.names)
        """The number of the empty ledger."""

    def engine(self, number: int) -> tuple[LedgerAction, ...]:
        """The verbs of the engine that need nothing from the device and that the ledger accepts."""
        found = self._engine.get(number)
        if found is None:
            self.verbs.names = self.kept[number].names
            tried = tuple(self.verbs.candidates(self.kept[number].value))
            found = self._engine[number] = tuple([each for each in tried if self._can(number, each)])
        return found

    def _can(self, number: int, action: LedgerAction) -> bool:
        try:
            return self.call(number, action) is not None
        except Broken:  # taking the step will report it
            return True

    def call(self, number: int, action: LedgerAction, reports: tuple[Report, ...] = ()) -> Made | None:
        """The result of a verb on a value; None where the ledger refuses it."""
        key = number, action, reports
        if key not in self._calls:
            self._calls[key] = self._run(number, action, reports)
        return self._calls[key]

    def becomes(self, made: Made, reports: Sequence[int], workers: int) -> int:
        """The number of the new value, in which a finished job keeps its number only while a report of it is still to come."""
        kept = 0
        for job in made.over:
            if any(reports[job * workers : (job + 1) * workers]):
                kept |= 1 << job
        number = made.becomes.get(kept)
        if number is None:
            jobs, names = list(made.value.jobs), list(made.names)
            for job in made.over:
                if not kept >> job & 1:
                    jobs[job], names[job] = self.verbs.quiet, NamedJob()
            number = made.becomes[kept] = self.keep(made.value._replace(jobs=tuple(jobs)), made.saved, tuple(names))
        return number

    def _run(self, number: int, action: LedgerAction, reports: tuple[Report, ...]) -> Made | None:
        kept, verbs = self.kept[number], self.verbs
        if self._at != number:
            verbs.ledger.restore(kept.saved)
            self._at = number
        verbs.names = kept.names
        before = verbs.fingerprint()
        self.verb_calls += 1
        try:
            orders = verbs.do(action, reports)
        except (MisuseError, CapacityError) as refusal:
            if verbs.fingerprint() != before:
                self._at = -1
                raise Broken("refusals", f"{action} was refused but has changed something: {refusal}") from refusal
            return None
        except InvariantError as broken:
            self._at = -1
            raise Broken("ledger", f"{action}: {broken}") from broken
        self._at = -1
        value = verbs.value()
        if value not in self._ways:
            for problem in check(verbs.ledger):
                raise Broken("ledger", f"after {action}: {problem}")
            self._ways[value] = verbs.ledger.snapshot(), verbs.names
        saved, names = self._ways[value]
        return Made(value, saved, names, orders, tuple(job for job, named in enumerate(names) if named.over))

    def keep(self, value: LedgerValue, saved: Snapshot, names: tuple[NamedJob, ...]) -> int:
        """The number of a value; a new one is kept with its snapshot."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.kept)
            self.kept.append(Kept(value, saved, names))
        return number


# --- the device --------------------------------------------------------------------------------------------------------


class DevicePart(DeviceMemo):
    """The device: every value reached, and the result of each operation on each value."""

    def __init__(self, settings: LedgerSettings) -> None:
        self.shares: list[tuple[int, ...]] = []
        """For each value, by job and worker: `HELD_BACK`, `RUNS`, or 0."""
        self._settings = settings
        self._names = DeviceNames(range(settings.blocks + 1), range(settings.slots), {job: job for job in range(settings.jobs)})
        self._cleaned: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        entries = (settings.requests + 1) * settings.below
        super().__init__(Device(settings.blocks + 1, settings.slots, settings.workers, num_entries=entries))

    def do(
        self, number: int, what: tuple[object, ...], act: Callable[[Device], Sequence[Landing]]
    ) -> tuple[int, tuple[Landing, ...]]:
        """Apply an operation, identified by *what*, to a value of the device. Returns the new number and what landed."""

        def done(device: Device) -> tuple[FrozenDevice, tuple[Landing, ...]]:
            landed = tuple(act(device))
            return device.freeze(), landed

        try:
            return self.call(number, what, done)
        except DeviceFault as fault:
            raise Broken(fault.rule, str(fault)) from fault

    def cleaned(self, number: int, blocks: tuple[int, ...], places: tuple[int, ...]) -> int:
        """The same value, without unreadable content: only these *blocks* and *places*, and sources of copies, keep theirs."""
        key = number, blocks, places
        found = self._cleaned.get(key)
        if found is None:
            frozen_device = self.values[number]
            waiting = [block for worker in frozen_device.workers for order in worker.held_back for block in order.source]
            found = self.number(renamed(frozen_device, self._names, (*blocks, *waiting), places))
            self._cleaned[key] = found
        return found

    def number(self, value: FrozenDevice) -> int:
        """The number of a value; the shares of a new one are recorded."""
        number = super().number(value)
        if number == len(self.shares):
            workers = self._settings.workers
            shares = [0] * (self._settings.jobs * workers)
            for rank, worker in enumerate(value.workers):
                for order, _, _ in worker.copies:
                    shares[order.job * workers + rank] = RUNS
                for order in worker.held_back:
                    shares[order.job * workers + rank] = HELD_BACK
            self.shares.append(tuple(shares))
        return number


def _forget_wait(device: Device, job: int) -> None:
    """Forget the wait for a copy that has landed everywhere: its number will be reused."""
    if all(job not in worker.copies for worker in device.workers):
        device.awaited.pop(job, None)


# --- the world ---------------------------------------------------------------------------------------------------------


class LedgerWorld:
    """A model for `explore`: everything that can happen to a small ledger."""

    def __init__(self, settings: LedgerSettings) -> None:
        self.settings = settings
        self.ledger = LedgerPart(settings)
        self._rows = RowCounts(self.ledger.verbs.ledger)
        self.devices = DevicePart(settings)
        self._claims: dict[tuple[int, int], str] = {}
        self._readable: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._abstract: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    # --- the model ----------------------------------------------------------------------------------------------------------

    def initial(self) -> LedgerState:
        """The empty world: no requests, no copies."""
        settings = self.settings
        shares = (0,) * (settings.jobs * settings.workers)
        return LedgerState(self.ledger.initial, 0, shares, (settings.failures, settings.losses, settings.repeats))

    def rules(self) -> Sequence[str]:
        """The rules checked in each step."""
        return RULES

    def properties(self) -> Sequence[Property[LedgerState, LedgerAction]]:
        """Claims fit; everything drains; and, so that this is not vacuous, something is stored."""
        closing = frozenset({"land", "report", "settle", "dispatch"}) | ({"quiesce"} if self.settings.losses else set())
        found: list[Property[LedgerState, LedgerAction]] = [
            Property("claims", Kind.ALWAYS, "the ledger's state of each place fits what happens there", always=self.claims),
            Property("publishes", Kind.SOMETIMES, "something is stored", goal=self._published),
        ]
        if not self.settings.losses or "quiesce" in self.settings.verbs:
            drains = Property[LedgerState, LedgerAction](
                "drains",
                Kind.LEADS_TO,
                f"everything that the workers have ends by {', '.join(sorted(closing))} alone",
                goal=self._drained,
                closing=lambda action: action.verb in closing,
            )
            found.append(drains)
        return found

    def actions(self, state: LedgerState) -> Iterator[LedgerAction]:
        """What can happen next."""
        settings, value = self.settings, self.ledger.kept[state.ledger].value
        workers, shares = settings.workers, self.devices.shares[state.device]
        yield from self.ledger.engine(state.ledger)
        if value.plans < settings.plans:
            made = self.ledger.call(state.ledger, _DISPATCH)
            orders = made and made.orders
            if orders and (orders.flushes or orders.loads or orders.stores or orders.below or HELD_BACK in shares):
                yield _DISPATCH
        if value.plans:
            yield _SETTLE
            if settings.bulk and any(state.reports):
                yield LedgerAction("settle_all")
        for at, share in enumerate(shares):
            if share == RUNS:
                yield LedgerAction("land", divmod(at, workers))
                if state.left[0]:
                    yield LedgerAction("fail", divmod(at, workers))
            if state.reports[at]:
                yield LedgerAction("report", divmod(at, workers))
                if state.left[1]:
                    yield LedgerAction("lose", divmod(at, workers))
                if state.left[2]:
                    yield LedgerAction("repeat", divmod(at, workers))
        for rank, worker in enumerate(self.devices.values[state.device].workers):
            yield from (LedgerAction("vanish", (entry, rank)) for entry, at in enumerate(worker.below) if at is not None)
        yield from self._hard(state, value, shares)

    def step(self, state: LedgerState, action: LedgerAction) -> LedgerState:
        """The state after an action; raises `Broken` with the rule that does not hold."""
        verb, places = action
        if verb in ("land", "fail"):
            return self._land(state, *places, good=verb == "land")
        if verb in ("report", "repeat", "lose"):
            return self._report(state, verb, *places)
        if verb == "settle_all":
            reports = self._under_way(state)
            made = self.ledger.call(state.ledger, _SETTLE, reports)
            return self._after(state, made, state.device, (0,) * len(state.reports))
        if verb == "vanish":
            device, _ = self.devices.do(state.device, action, lambda device: _vanish(device, *places))
            return state._replace(device=device)
        made = self.ledger.call(state.ledger, action)
        device, reports_after = self._follow(state, action, made)
        return self._after(state, made, device, reports_after)

    def coverage(self) -> dict[str, dict[int, int]]:
        """How often the real code took each row of each table, by the number of the row."""
        return {name: {row.index: times for row, times in rows.items()} for name, rows in self._rows.by_machine().items()}

    def digest(self) -> int:
        """A hash of the set of ledger values, to tell worlds apart; comparable only within one process."""
        return hash(frozenset(each.value for each in self.ledger.kept))

    # --- in several processes -----------------------------------------------------------------------------------------------

    def parts(self) -> tuple[int, ...]:
        """How many values of the ledger, and of the device, are kept."""
        return len(self.ledger.kept), len(self.devices.values)

    def pack(self, kind: int, number: int) -> object:
        """A value of the ledger, or of the device."""
        return self.devices.values[number] if kind else self.ledger.kept[number]

    def unpack(self, kind: int, value: object) -> int:
        """The number of such a value here."""
        match value:
            case FrozenDevice():
                return self.devices.number(value)
            case Kept():
                return self.ledger.keep(value.value, value.saved, value.names)
        raise MisuseError(f"{value!r}: it is not part of a world")

    def divided(self, state: LedgerState) -> tuple[tuple[int, ...], object]:
        """The numbers of a state's values, and the rest of it."""
        return (state.ledger, state.device), (state.reports, state.left)

    def joined(self, parts: tuple[int, ...], rest: object) -> LedgerState:
        """The state with these values."""
        match parts, rest:
            case (ledger, device), (tuple(reports), (int(failures), int(losses), int(repeats))):
                return LedgerState(ledger, device, reports, (failures, losses, repeats))
        raise MisuseError(f"{parts}, {rest!r}: they are not parts of a state")

    def tallied(self) -> list[int]:
        """Calls of verbs, and how often each row of each table was taken."""
        return [self.ledger.verb_calls, *self._rows.taken()]

    def add_tally(self, more: Sequence[int]) -> None:
        """Add what was counted elsewhere."""
        calls, *taken = more
        self.ledger.verb_calls += calls
        self._rows.add(taken)

    # --- the abstraction ----------------------------------------------------------------------------------------------------

    def abstract(self, state: LedgerState) -> tuple[int, ...]:
        """The variables of the model for SPIN, in their order: what SPIN stores."""
        found = self._abstract.get(state.ledger)
        if found is None:
            found = self._abstract[state.ledger] = _flat(self.ledger.kept[state.ledger].value)
        before, after = found
        shares = [max(pair) for pair in zip(self.devices.shares[state.device], state.reports, strict=True)]
        return (*before, *after, *shares, *state.left, 0)

    # --- what can happen ----------------------------------------------------------------------------------------------------

    def _hard(self, state: LedgerState, value: LedgerValue, shares: tuple[int, ...]) -> Iterator[LedgerAction]:
        """Deadlines, and proofs that the device is quiet."""
        verbs, workers = self.settings.verbs, self.settings.workers
        for job, each in enumerate(value.jobs):
            if each.job not in _SUBMITTED:
                continue
            mine = shares[job * workers : (job + 1) * workers]
            if "expire" in verbs and not each.armed and RUNS in mine:
                yield LedgerAction("launched", (job,))
            if "quiesce" in verbs and not any(mine):
                yield LedgerAction("quiesce", (job,))
        if "expire" in verbs and self.ledger.call(state.ledger, _EXPIRE) is not None:
            yield _EXPIRE

    def _under_way(self, state: LedgerState) -> tuple[Report, ...]:
        workers = self.settings.workers
        return tuple((*divmod(at, workers), kind) for at, kind in enumerate(state.reports) if kind)

    # --- taking a step ------------------------------------------------------------------------------------------------------

    def _land(self, state: LedgerState, job: int, worker: int, *, good: bool) -> LedgerState:
        def act(device: Device) -> Sequence[Landing]:
            landing = device.land(job, worker, ok=good)
            _forget_wait(device, job)
            return (landing,)

        device, (landing,) = self.devices.do(state.device, ("land", job, worker, good), act)
        at = job * self.settings.workers + worker
        reports = (*state.reports[:at], _told(landing), *state.reports[at + 1 :])
        left = state.left if good else (state.left[0] - 1, *state.left[1:])
        return LedgerState(state.ledger, self._clean(device, state.ledger), reports, left)

    def _report(self, state: LedgerState, verb: str, job: int, worker: int) -> LedgerState:
        at = job * self.settings.workers + worker
        kind, left = state.reports[at], state.left
        reports = state.reports if verb == "repeat" else (*state.reports[:at], 0, *state.reports[at + 1 :])
        if verb == "lose":
            left = (left[0], left[1] - 1, left[2])
            made = self.ledger.call(state.ledger, _NOTHING)
        else:
            left = (left[0], left[1], left[2] - (verb == "repeat"))
            made = self.ledger.call(state.ledger, _REPORT, ((job, worker, kind),))
        return self._after(state._replace(left=left), made, state.device, reports)

    def _follow(self, state: LedgerState, action: LedgerAction, made: Made | None) -> tuple[int, tuple[int, ...]]:
        """The effect of a verb on the device: its new number, and the reports not yet made."""
        verb, places = action
        devices, number = self.devices, state.device
        if verb == "allocate":
            fence, block = self.ledger.verbs.fence, places[1] + 1
            number, _ = devices.do(number, action, lambda device: _hand_out(device, block, fence))
        elif verb == "seal":
            forward = Pass(writes=((places[1] + 1, self.ledger.verbs.letter(places[0])),))
            number, _ = devices.do(number, action, lambda device: _compute(device, forward))
        elif verb == "submit":
            order = self.ledger.verbs.order_of(self.ledger.kept[state.ledger].value, places[0])
            number, _ = devices.do(number, (verb, order), lambda device: _launch(device, order))
        elif verb == "dispatch" and made is not None and made.orders is not None:
            orders = made.orders._replace(plan=0)
            number, landed = devices.do(number, (verb, orders), lambda device: _carry_out(device, orders))
            reports = list(state.reports)
            for each in landed:
                reports[each.job * self.settings.workers + each.worker] = _told(each)
            return number, tuple(reports)
        return number, state.reports

    def _after(self, state: LedgerState, made: Made | None, device: int, reports: tuple[int, ...]) -> LedgerState:
        if made is None:
            raise Broken("refusals", "the ledger refused a verb that is always allowed")
        ledger = self.ledger.becomes(made, reports, self.settings.workers)
        return LedgerState(ledger, self._clean(device, ledger), reports, state.left)

    def _clean(self, device: int, ledger: int) -> int:
        found = self._readable.get(ledger)
        if found is None:
            value = self.ledger.kept[ledger].value
            blocks = tuple(block for block, at in enumerate(value.block, 1) if at in _KEPT_BLOCKS)
            found = self._readable[ledger] = blocks, tuple(slot for slot, at in enumerate(value.slot) if at in _KEPT_SLOTS)
        return self.devices.cleaned(device, *found)

    # --- what holds ---------------------------------------------------------------------------------------------------------

    def claims(self, state: LedgerState) -> str:
        """The first difference between what the ledger says of a place and what the device does there; empty if none."""
        key = state.ledger, state.device
        found = self._claims.get(key)
        if found is None:
            found = self._claims[key] = _compared(self.ledger.kept[state.ledger].value, self.devices.values[state.device])
        return found

    def _published(self, state: LedgerState) -> bool:
        return _READY in self.ledger.kept[state.ledger].value.slot

    def _drained(self, state: LedgerState) -> bool:
        value = self.ledger.kept[state.ledger].value
        return (
            not value.plans
            and not any(state.reports)
            and not any(self.devices.shares[state.device])
            and all(each.job not in _SUBMITTED for each in value.jobs)
        )


_DISPATCH, _SETTLE, _EXPIRE, _REPORT, _NOTHING = (
    LedgerAction(verb) for verb in ("dispatch", "settle", "expire", "report", "report")
)


def _told(landing: Landing) -> int:
    """What the worker reports."""
    if landing.missing:
        return MISSING
    return LANDED if landing.ok else FAILED


def _vanish(device: Device, entry: int, worker: int) -> Sequence[Landing]:
    device.vanish(entry, worker)
    return ()


def _hand_out(device: Device, block: int, fence: bool) -> Sequence[Landing]:
    device.hand_out([block], fence=fence)
    return ()


def _compute(device: Device, forward: Pass) -> Sequence[Landing]:
    for worker in device.workers:
        worker.forward(0, forward)
    device.finish_pass(0)
    return ()


def _launch(device: Device, order: CopyOrder) -> Sequence[Landing]:
    for worker in device.workers:
        worker.launch(order, events=True)
    return ()


def _carry_out(device: Device, orders: Orders) -> Sequence[Landing]:
    landed = device.carry_out(orders)
    device.finish_pass(orders.plan)
    return landed


def _compared(value: LedgerValue, frozen_device: FrozenDevice) -> str:
    """The first difference between ledger and device; empty if there is none."""
    for rank, worker in enumerate(frozen_device.workers):
        for order, _, _ in worker.copies:
            touched, blocks, places = f"copy {order.job} of worker {rank} touches", *_LAWFUL[order.stores]
            for block in order.blocks:
                if (at := value.block[block - 1]) not in blocks:
                    return f"{touched} block {block}, which is {_said('block', at)} in the ledger"
            for place in order.places:
                if (at := value.slot[place]) not in places:
                    return f"{touched} slot {place}, which is {_said('slot', at)} in the ledger"
        for block, (at, letter) in enumerate(zip(value.block, value.bkey, strict=True), 1):
            if at in _READABLE and worker.blocks[block] != letter:
                return f"block {block} holds {letter} in the ledger, but {worker.blocks[block]} on worker {rank}"
        for slot, (at, letter) in enumerate(zip(value.slot, value.skey, strict=True)):
            if at == _READY and worker.places[slot] != letter:
                return f"slot {slot} holds {letter} in the ledger, but {worker.places[slot]} on worker {rank}"
    return ""


def _said(machine: str, at: int) -> str:
    return str(MACHINES[machine].states[at].name)


def _flat(value: LedgerValue) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ledger's variables: those before the requests, and the rest."""
    jobs = zip(*(each[:-1] for each in value.jobs), strict=True)
    before = [each for variable in (*value[:11], *jobs) for each in variable]
    before += [bit for each in value.jobs for bit in each.reported]
    return tuple(before), (*value.request, *value.table, *value.load, value.plans)
