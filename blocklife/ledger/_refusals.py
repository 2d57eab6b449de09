"""The sentences of the ledger's refusals: what is in the way, by name, and what to do about it.

Rules of this file:

* It decides nothing. A table has refused, and its guards show which values of the payload caused it.
* It searches all jobs and all block tables, so it runs only after a refusal. Steps that succeed pay nothing for it.
* A refusal without a sentence of its own falls back to the text of the table. `tests/ledger/refusals.txt` lists them all.

Theory. A refusal is one sentence, ``block 3: cannot ALLOCATE while IN_FLIGHT: job 1.5 still reads it, and the contract is hold
(wait for job 1.5 to land)``. The reason follows from the state (`_STANDS`), or from the guard that did not hold; the remedy
from the event and the state (`_REMEDIES`). Both are templates, filled in with the jobs and requests at that place.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from attrs import field, frozen

from blocklife.core._columns import Core
from blocklife.core._refused import KernelRefusal, Why
from blocklife.core._rules import PlaceMove
from blocklife.core._tables import Situation
from blocklife.errors import BlocklifeError, CapacityError, InvariantError, MisuseError, RefusedError
from blocklife.ledger._ids import EPOCH_SHIFT, NULL
from blocklife.ledger.jobs import JobView
from blocklife.ledger.records import Direction
from blocklife.lifecycle import Guard
from blocklife.states import BLANK, COPYING, LIFELESS, MACHINES, OUT, TERMINAL, Block, Job, Request, Slot

BLOCK_STATES, SLOT_STATES, REQUEST_STATES = (MACHINES[name].states for name in ("block", "slot", "request"))
JOB_EVENTS, REQUEST_EVENTS = (tuple(MACHINES[name].events) for name in ("job", "request"))
_MOST_NAMES = 3
"""How many names of a long list are given; the others are counted."""

_NOT_IN_THE_WAY: Mapping[str, object] = MappingProxyType(
    {"fence": True, "refs": 0, "pins": 0, "writes": 0, "overdue": 0, "own": True, "ok": True}
)
"""Values of a payload that never cause a refusal."""


def counted(count: int, one: str) -> str:
    """A count with its noun: 1 job, 2 jobs."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def some(count: int, one: str = "") -> str:
    """A count with noun and verb: 1 job is, 2 jobs are. Without *one* the noun is left out."""
    return f"{counted(count, one) if one else count} {'is' if count == 1 else 'are'}"


def listing(names: Sequence[str]) -> str:
    """Names as a list in a sentence: a, b and c. A long list ends with how many more there are."""
    said = [*names[:_MOST_NAMES], f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES + 1 else list(names)
    return " and ".join(filter(None, (", ".join(said[:-1]), *said[-1:])))


def named(kind: str, names: Sequence[str]) -> str:
    """Things of one kind by name: job 1.4, or jobs 1.4 and 1.5."""
    return f"{kind}{'s' if len(names) > 1 else ''} {listing(names)}"


@frozen
class Toucher:
    """A job that touches a place, or is going to."""

    name: str
    writes: bool
    planned: bool = False
    """No worker has it yet."""
    expired: bool = False
    """It is past its deadline."""
    load: bool = False

    @property
    def doing(self) -> tuple[str, str]:
        """What it does to the place: the verb for one such job, and for several."""
        verb = "write" if self.writes else "read"
        if self.planned:
            return f"will {verb} it", f"will {verb} it"
        if self.expired:
            return f"is past its deadline and may still {verb} it", f"are past their deadline and may still {verb} it"
        return f"still {verb}s it", f"still {verb} it"

    @property
    def ending(self) -> tuple[str, str]:
        """What to do to end it, in two parts; the names of such jobs go between them."""
        if self.expired:
            return "wait for ", " to report, or quiesce it once the device is proven idle"
        if self.planned and not self.load:
            return "cancel ", " or wait for it to land"
        return "wait for ", " to land"


@frozen
class Bystanders:
    """The jobs that touch one place, the requests that hold it, and the names of others that have pinned it."""

    jobs: tuple[Toucher, ...] = ()
    requests: tuple[str, ...] = ()
    pinners: tuple[str, ...] = ()
    refs: int = field(default=0)
    """How many requests hold it, where their names are not known."""

    def writing(self) -> Bystanders:
        """Only the jobs that write the place."""
        return Bystanders(tuple(each for each in self.jobs if each.writes))

    def touched(self) -> list[str]:
        """What the jobs do to the place, as clauses; jobs that do the same share one."""
        doing: dict[tuple[str, str], list[str]] = {}
        for each in self.jobs:
            doing.setdefault(each.doing, []).append(each.name)
        return [f"{named('job', names)} {verbs[len(names) > 1]}" for verbs, names in doing.items()]

    def held(self) -> list[str]:
        """A clause that names the requests holding the place; empty if no request holds it."""
        if self.requests:
            return [f"{named('request', self.requests)} hold{'s' * (len(self.requests) == 1)} it"]
        return [f"{counted(self.refs, 'request')} hold{'s' * (self.refs == 1)} it"] if self.refs else []

    def used(self) -> list[str]:
        """Who reads a slot or has pinned it, as clauses."""
        pinning = f"{listing(self.pinners)} {'has' if len(self.pinners) == 1 else 'have'} pinned it"
        return [*self.touched(), *([pinning] if self.pinners else [])]

    def end(self) -> str:
        """What to do to end the jobs at the place."""
        ways: dict[tuple[str, str], list[str]] = {}
        for each in self.jobs:
            ways.setdefault(each.ending, []).append(each.name)
        ends = []
        for (before, after), names in ways.items():
            several = len(names) > 1
            ends.append(f"{before}{named('job', names)}{after.replace(' it', ' them') if several else after}")
        return ", and ".join(ends) or "wait for its job to land"

    def unused(self) -> str:
        """What to do until nobody uses the slot."""
        ways = [self.end()] if self.jobs else []
        if self.pinners:
            ways.append(f"let {listing(self.pinners)} unpin it")
        return ", and ".join(ways) or "unpin it first"

    def blanks(self) -> dict[str, str]:
        """The values for the templates of this file."""
        touched, held = self.touched(), self.held()
        return {
            "held": clauses(held) or "a request holds it",
            "touched": clauses(touched) or "a job touches it",
            "used": clauses(self.used()) or "somebody has pinned it",
            "jobs": named("job", [each.name for each in self.jobs]) if self.jobs else "its job",
            "end": self.end(),
            "unused": self.unused(),
        }


def clauses(parts: Iterable[str]) -> str:
    """Clauses joined to one: a, b, and c."""
    said = [each for each in parts if each]
    return said[0] if len(said) == 1 else ", ".join(said[:-1]) + ", and " + said[-1] if said else ""


# --- the sentences ------------------------------------------------------------------------------------------------------

_STANDS: Mapping[enum.Enum, str] = MappingProxyType(
    {
        Block.FREED: "nobody holds it, and it has no content",
        Block.CACHED: "nobody holds it, and its content is kept for a hit",
        Block.ALLOCATED: "{held}, and its content is not final",
        Block.PLEDGED: "{held}, its content is not final, and {touched}",
        Block.LOADING: "{held}, and {touched}",
        Block.SEALED: "{held}, and its content is final",
        Block.PENDING_STORE: "its content is final, and {touched}",
        Block.IN_FLIGHT: "its content is final, and {touched}",
        Block.FLUSHED: "{held}, and {touched} for its previous holder",
        Block.STALE: "its content is forgotten, and {touched}",
        Block.QUARANTINED: "its content is forgotten, and {touched}",
        Slot.EMPTY: "nothing is in it",
        Slot.WRITING: "{touched}",
        Slot.READY: "it holds content",
        Slot.STALE: "its content is forgotten, and {used}",
        Slot.QUARANTINED: "{touched}",
        Job.PLANNED: "no worker has it yet",
        Job.IN_FLIGHT: "the workers have it",
        Job.AWAITED: "the workers have it, and a plan waits for it",
        Job.UNWANTED: "it was abandoned, and the workers still have it",
        Job.QUARANTINED: "it is past its deadline, and the workers may still run it",
        Job.DONE: "it has succeeded",
        Job.FAILED: "it has failed",
        Job.CANCELLED: "it was given up",
        Request.WAITING: "it is not in the batch",
        Request.RUNNING: "it is in the batch",
        Request.LOADING: "it waits for {jobs}, which loads its blocks",
        Request.PREEMPTED: "it was preempted, and is not in the batch",
        Request.FINISHED: "it is over",
    }
)
"""What is in the way in each state; used where no guard gives a better reason."""

_GIVEN_UP = LIFELESS - BLANK
"""Block states: its life is over, and a copy may still touch it."""


def _by_state(*rows: tuple[str, Collection[enum.Enum]]) -> Mapping[enum.Enum, str]:
    return {state: text for text, states in rows for state in states}


_REMEDIES: Mapping[str, Mapping[enum.Enum, str]] = MappingProxyType(
    {
        "block.allocate": _by_state(
            ("release it first", (Block.ALLOCATED, Block.PLEDGED, Block.SEALED)),
            ("release it first, then {end}", (Block.LOADING, Block.FLUSHED)),
            ("{end}", (Block.QUARANTINED,)),
        ),
        "block.acquire": _by_state(
            ("allocate it instead", (Block.FREED,)),
            ("seal it first", (Block.ALLOCATED, Block.PLEDGED)),
            ("{end}", (Block.LOADING,)),
            ("settle the plan that waits for {jobs}, then seal it", (Block.FLUSHED,)),
            ("look the prefix up again", _GIVEN_UP),
        ),
        "block.seal": _by_state(
            ("allocate it first", (Block.FREED,)),
            ("acquire it instead", (Block.CACHED,)),
            ("{end}: a load seals what it brings", (Block.LOADING,)),
            ("seal it only once", (Block.SEALED, Block.PENDING_STORE, Block.IN_FLIGHT)),
            ("settle the plan that waits for {jobs} first", (Block.FLUSHED,)),
            ("allocate another block and compute it again", _GIVEN_UP),
        ),
        "block.plan_store": _by_state(
            ("allocate and fill it first", (Block.FREED,)),
            ("one store at a time reads a block: {end}", COPYING),
            ("{end}", (Block.LOADING,)),
            ("settle the plan that waits for {jobs} first", (Block.FLUSHED,)),
            ("there is no content left to store", _GIVEN_UP),
        ),
        "block.plan_load": _by_state(
            ("allocate it first", (Block.FREED, Block.CACHED)),
            ("load into a block that was just allocated", (Block.SEALED, *COPYING, *_GIVEN_UP)),
            ("one load at a time fills a block: {end}", (Block.LOADING,)),
        ),
        "block.submit": _by_state(
            ("plan a store or a load of it first", (Block.FREED, Block.CACHED, Block.ALLOCATED, Block.SEALED, Block.FLUSHED)),
            ("seal it first", (Block.PLEDGED,)),
            ("submit it only once", (Block.IN_FLIGHT,)),
            ("{end}", _GIVEN_UP),
        ),
        "block.cancel": _by_state(
            (
                "only a planned store can be cancelled",
                (Block.FREED, Block.CACHED, Block.ALLOCATED, Block.SEALED, Block.FLUSHED),
            ),
            ("a load is given up with its request: preempt or finish it", (Block.LOADING,)),
            ("abandon {jobs}, and wait for it to land", (Block.IN_FLIGHT,)),
            ("{end}", _GIVEN_UP),
        ),
        "block.release": _by_state(
            ("only a request that holds it can release it", (Block.FREED, Block.CACHED, *_GIVEN_UP)),
        ),
        "block.land": _by_state(
            (
                "only a submitted job can land",
                (Block.FREED, Block.CACHED, Block.ALLOCATED, Block.SEALED, Block.PLEDGED, Block.PENDING_STORE),
            ),
        ),
        "block.expire": _by_state(
            (
                "only a submitted job can pass its deadline",
                (Block.FREED, Block.CACHED, Block.ALLOCATED, Block.SEALED, Block.PLEDGED, Block.PENDING_STORE),
            ),
        ),
        "block.drop": _by_state(
            ("there is nothing to forget", (Block.FREED,)),
            ("release it first", (Block.ALLOCATED, Block.PLEDGED, Block.SEALED, Block.FLUSHED)),
            ("preempt or finish its request", (Block.LOADING,)),
            ("there is nothing left to forget", _GIVEN_UP),
        ),
        "slot.reserve": _by_state(
            ("choose an empty slot", (Slot.WRITING, Slot.STALE, Slot.QUARANTINED)),
            ("evict it first, or choose an empty slot", (Slot.READY,)),
        ),
        "slot.cancel": _by_state(
            ("only a planned store can be cancelled", (Slot.EMPTY, Slot.READY, Slot.STALE)),
            ("{end}", (Slot.QUARANTINED,)),
        ),
        "slot.land": _by_state(("only a store that fills a slot can land in it", (Slot.EMPTY, Slot.READY, Slot.STALE))),
        "slot.expire": _by_state(
            ("only a store that fills a slot can pass its deadline", (Slot.EMPTY, Slot.READY, Slot.STALE)),
            ("a store expires only once: {end}", (Slot.QUARANTINED,)),
        ),
        "slot.pin": _by_state(
            ("look the key up again", (Slot.EMPTY, Slot.STALE, Slot.QUARANTINED)),
            ("{end}", (Slot.WRITING,)),
        ),
        "slot.unpin": _by_state(
            ("unpin a slot only as often as it was pinned", (Slot.EMPTY, Slot.WRITING, Slot.QUARANTINED)),
        ),
        "slot.evict": _by_state(
            ("there is nothing to evict", (Slot.EMPTY,)),
            ("{end}", (Slot.WRITING, Slot.QUARANTINED)),
            ("{unused}", (Slot.STALE,)),
        ),
        "slot.drop": _by_state(
            ("there is nothing to forget", (Slot.EMPTY,)),
            ("{end}", (Slot.WRITING, Slot.QUARANTINED)),
        ),
        "job.submit": _by_state(("submit it only once", OUT), ("plan a new job", TERMINAL)),
        "job.cancel": _by_state(
            ("abandon it, and wait for it to land", (Job.IN_FLIGHT, Job.AWAITED)),
            ("wait for it to land", (Job.UNWANTED,)),
            ("wait for its reports, or quiesce it once the device is proven idle", (Job.QUARANTINED,)),
            ("there is nothing left to cancel", TERMINAL),
        ),
        "job.finish": _by_state(("submit it first", (Job.PLANNED,))),
        "job.flush": _by_state(
            ("cancel it, or submit it first", (Job.PLANNED,)),
            ("there is nothing left to wait for", TERMINAL),
        ),
        "job.abandon": _by_state(
            ("cancel it instead", (Job.PLANNED,)),
            ("wait for it to land", (Job.UNWANTED,)),
            ("wait for its reports, or quiesce it once the device is proven idle", (Job.QUARANTINED,)),
            ("there is nothing left to abandon", TERMINAL),
        ),
        "job.expire": _by_state(
            ("a deadline starts once the job is submitted", (Job.PLANNED,)),
            ("a job expires only once", (Job.QUARANTINED,)),
            ("there is nothing left to give up", TERMINAL),
        ),
        "job.quiesce": _by_state(
            ("cancel it instead", (Job.PLANNED,)),
            ("first flush it, or let its deadline pass", (Job.IN_FLIGHT,)),
            ("there is nothing left to prove", TERMINAL),
        ),
        "request.admit": _by_state(
            ("admit it only once", (Request.RUNNING,)),
            ("it runs once {jobs} has landed", (Request.LOADING,)),
            ("add it as a new request", (Request.FINISHED,)),
        ),
        "request.plan_load": _by_state(
            ("preempt it first: a request loads before it is admitted", (Request.RUNNING,)),
            ("a request has one load at a time: wait for {jobs} to land", (Request.LOADING,)),
            ("add it as a new request", (Request.FINISHED,)),
        ),
        "request.loaded": _by_state(
            (
                "only a request that waits for a load can get its result",
                (Request.WAITING, Request.RUNNING, Request.PREEMPTED, Request.FINISHED),
            ),
        ),
        "request.load_failed": _by_state(
            (
                "only a request that waits for a load can get its result",
                (Request.WAITING, Request.RUNNING, Request.PREEMPTED, Request.FINISHED),
            ),
        ),
        "request.preempt": _by_state(
            ("use roll_back to give back what it holds", (Request.WAITING, Request.PREEMPTED)),
            ("there is nothing left to give back", (Request.FINISHED,)),
        ),
        "request.finish": _by_state(("there is nothing left to finish", (Request.FINISHED,))),
    }
)
"""What to do about each refusal where the event has no row in that state."""


# --- reasons from guards ------------------------------------------------------------------------------------------------


def blamed(guard: Guard[...], payload: Mapping[str, object]) -> list[str]:
    """The names of the values of a payload that each make a guard fail on their own; none if it asks for anything unknown."""
    if not (_NOT_IN_THE_WAY.keys() & payload.keys()).issuperset(guard.parameters):
        return []
    clear = {name: _NOT_IN_THE_WAY[name] for name in guard.parameters}
    return [name for name in guard.parameters if not guard.test(**{**clear, name: payload[name]})]


def _of_guards(machine: str, state: enum.Enum, event: str, payload: Mapping[str, object], there: Bystanders) -> tuple[str, str]:
    """Reason and remedy where there are rows, but none of their guards holds."""
    table = MACHINES[machine]
    guards = dict.fromkeys(row.guard for row in table.events[event].rows_of(state) if row.guard)
    wrong = {name for each in guards for name in blamed(each, payload)}
    reasons: list[str] = []
    remedies: list[str] = []
    if "refs" in wrong:
        reasons += there.held()
        remedies.append("release it first")
    if "pins" in wrong:
        reasons += there.used()
        remedies.append(there.unused())
    if wrong & {"writes", "fence"}:
        blocking = there if "fence" in wrong else there.writing()
        reasons += blocking.touched()
        remedies.append(blocking.end())
    if "fence" in wrong:
        reasons.append("the contract is hold")
    if not reasons:
        return table.reason(state, event, payload), table.remedy(state, event)
    return clauses(reasons), ", then ".join(remedies)


def sentence(machine: str, state: enum.Enum, event: str, payload: Mapping[str, object], there: Bystanders) -> tuple[str, str]:
    """The reason and the remedy of one refusal; in the words of the table, where there are none of its own."""
    table = MACHINES[machine]
    if table.events[event].rows_of(state):
        return _of_guards(machine, state, event, payload, there)
    blanks = there.blanks()
    reason, remedy = _STANDS.get(state), _REMEDIES.get(f"{machine}.{event}", {}).get(state)
    return (
        table.reason(state, event) if reason is None else reason.format_map(blanks),
        table.remedy(state, event) if remedy is None else remedy.format_map(blanks),
    )


_COUNTS = {1: "refs", 2: "pins", 4: "writes", 8: "overdue"}
"""The counts of a place, by their bit in a look-up."""
_BYTES_WIDE = frozenset({2, 4, 8})
"""Counts of a block whose column has one byte; all others have two."""


class Refusals:
    """Makes the errors of one ledger of what its kernel refuses, with the names of its jobs and requests."""

    def __init__(self, core: Core, holders: Mapping[str, Mapping[int, int]], incarnation: int) -> None:
        self._core = core
        self._holders = holders
        self._incarnation = incarnation
        self.of_gone: Callable[[int], BlocklifeError] = lambda row: MisuseError(f"request in row {row}: it is gone")
        """The error for a request that its scheduler still counts on, by row of progress; the scheduler knows its name."""

    def of(self, problem: KernelRefusal, verb: str) -> BlocklifeError:
        """The error that a caller of *verb* gets."""
        why, place, move = problem.why, problem.place, problem.move
        if why is Why.NO_ROW and move is not None:
            return self.of_slot(place, move) if move.of_slots else self.of_block(place, move)
        if why is Why.NO_JOB_ROW:
            return self.of_job(place, JOB_EVENTS[problem.other])
        if why is Why.NO_REQUEST_ROW:
            return self.of_request(place, REQUEST_EVENTS[problem.other])
        if why is Why.NO_ROOM_FOR_JOBS:
            return self.of_jobs(place, problem.other)
        if why is Why.GONE:
            return self.of_gone(place)
        if why is Why.NO_ROOM:
            return self.of_room(place, problem.other)
        if why is Why.BELOW_ZERO and move is not None:
            return InvariantError(f"{move.machine} {place}: {_COUNTS[problem.other]} would fall below zero (I4)")
        if why is Why.TOO_MANY and move is not None:
            most = 255 if problem.other in _BYTES_WIDE and not move.of_slots else 65535
            return CapacityError(
                f"{move.machine} {place}: more than {most} {_COUNTS[problem.other]}; let some of them end first"
            )
        return MisuseError(self._misuse(problem, verb))

    def _misuse(self, problem: KernelRefusal, verb: str) -> str:
        """What is wrong about an argument."""
        core, place, other, key = self._core, problem.place, problem.other, problem.key.hex()
        names = core.requests.names
        match problem.why:
            case Why.NO_LIFE if NULL < other < core.blocks.size:
                hint = f"use what allocate returned, or ledger.blocks.life({other})"
                return f"{verb}: {other} is the number of a block, not a life ({hint})"
            case Why.NO_LIFE:
                return f"{verb}: {other} is no life of a block; blocks are 1 to {core.blocks.size - 1}"
            case Why.LIFE_IS_OVER:
                state, now = BLOCK_STATES[core.blocks.state[place]].name, core.blocks.epoch[place]
                return (
                    f"block {place}: cannot {verb} its life {other >> EPOCH_SHIFT}, which is over; it is {state} in life {now} "
                    "(look it up again)"
                )
            case Why.TWICE:
                return (
                    f"slot {place}: it is named twice in one call" if other else f"{verb}: a block is named twice in one call"
                )
            case Why.OTHER_GROUP:
                return f"block {place}: it was handed out for group {core.blocks.group[place]}, not {other}"
            case Why.HELD_ALREADY:
                return f"block {place}: request {names[other]} holds it already (a table names a life once)"
            case Why.NOT_HELD:
                return f"block {place}: request {names[other]} does not hold it (load only into its own blocks)"
            case Why.NO_SLOT:
                return f"slot {place}: slots are 0 to {core.slots.size - 1}"
            case Why.OTHER_KEY:
                own = core.contents.key[core.blocks.key[place]].hex()
                return f"block {place}: it holds {own}, which cannot be stored as {key} (one content, one key)"
            case Why.PROMISED:
                promised, store = core.contents.key[other].hex(), self._name(core.blocks.job[place])
                hint = "one content has one key"
                return f"block {place}: cannot SEAL it as {key}, its store {store} will publish {promised} ({hint})"
            case Why.NAMED_TWICE:
                return f"key {key}: it is named twice in one job (I14)"
            case Why.STORED | Why.COMING:
                how = "stored" if problem.why is Why.STORED else "on its way"
                return f"key {key}: it is {how} already, in slot {other} (look it up first)"
            case Why.SLOT_OF_OTHER if core.slots.group[place] != other:
                return f"slot {place}: it holds content of group {core.slots.group[place]}, not {other} (look it up again)"
            case Why.SLOT_OF_OTHER:
                return f"slot {place}: it does not hold {key} (look it up again)"
            case Why.NO_POSITION:
                length = core.requests.length[place * core.num_groups + other]
                return f"request {names[place]}: positions must be distinct and below {length}, the length of its table"
            case Why.NO_BLOCK:
                return f"block {other}: blocks are 1 to {core.blocks.size - 1} (0 is the null block)"
            case Why.UNEQUAL:
                return f"{verb}: {place} blocks, {other} keys and the slots of their chunks do not agree"
            case Why.TAKEN_AND_HANDED_OUT:
                return f"block {place}: it is a hit, and handed out in the same call (name it once)"
        return f"{verb}: {problem.why.name}, {place}, {other}"

    def of_block(self, place: int, move: PlaceMove) -> RefusedError:
        """The error where a block has no row for a move."""
        blocks = self._core.blocks
        payload = {
            "fence": bool(move.situation & Situation.FENCE),
            "refs": blocks.refs[place] + move.seen_refs,
            "pins": blocks.pins[place] + move.pins,
            "writes": blocks.writes[place] + move.writes,
            "overdue": blocks.overdue[place] + move.overdue,
        }
        there = Bystanders(
            tuple(self._toucher(job, of_block=True) for job in self._alive() if place in job.ids),
            tuple(self._holders_of(blocks.epoch[place] << EPOCH_SHIFT | place)),
            refs=payload["refs"],
        )
        return self._refusal("block", f"block {place}", place, BLOCK_STATES[blocks.state[place]], move.event, payload, there)

    def of_slot(self, place: int, move: PlaceMove) -> RefusedError:
        """The error where a slot has no row for a move."""
        slots = self._core.slots
        there = Bystanders(
            tuple(self._toucher(job, of_block=False) for job in self._alive() if place in job.slots),
            pinners=tuple(name for name, held in self._holders.items() if held.get(place)),
        )
        payload = {"pins": slots.pins[place] + move.pins}
        return self._refusal("slot", f"slot {place}", place, SLOT_STATES[slots.state[place]], move.event, payload, there)

    def of_job(self, row: int, event: str) -> RefusedError:
        """The error where a job has no row for *event*."""
        job = JobView(self._core, row)
        there = Bystanders((self._toucher(job, of_block=True),))
        return self._refusal("job", f"job {self._name(row)}", job.number, job.state, event, {}, there)

    def of_request(self, row: int, event: str) -> RefusedError:
        """The error where a request has no row for *event*."""
        requests, load = self._core.requests, self._core.jobs.find(self._core.requests.load[row])
        there = Bystanders((self._toucher(JobView(self._core, load), of_block=True),) if load else ())
        state = REQUEST_STATES[requests.state[row]]
        return self._refusal("request", f"request {requests.names[row]}", requests.place[row], state, event, {}, there)

    def of_jobs(self, room: int, wanted: int) -> CapacityError:
        """The error where there are too few rows for jobs."""
        most = self._core.jobs.max_jobs
        if not room:
            return CapacityError(f"all {most} jobs are out; let one land first (max_jobs)")
        return CapacityError(f"{wanted} jobs wanted, {room} of {most} can be made; let some land first (max_jobs)")

    def of_room(self, row: int, count: int) -> CapacityError:
        """The error where too few blocks can be handed out, to the request in a row, or, if that is -1, to several.

        Busy blocks are found from the jobs, without searching the pool.
        """
        blocks, total = self._core.blocks, self._core.blocks.size - 1
        who = f"request {self._core.requests.names[row]}: " if row >= 0 else ""
        begin = f"{who}{counted(count, 'block')} wanted"
        if count > total:
            return CapacityError(f"{begin}, and the device has {total} (it never fits: ask for less, or refuse the request)")
        touched = {job.number: job.ids for job in self._alive()}
        places = {place for own in touched.values() for place in own}
        bad = {place for place in places if BLOCK_STATES[blocks.state[place]] is Block.QUARANTINED}
        idle = {place for place in places - bad if not blocks.refs[place]}
        held = "" if self._core.fence else ", which the contract hold does not hand out"
        coming = idle | bad
        jobs = [f"{self._incarnation}.{number}" for number, own in touched.items() if not coming.isdisjoint(own)]
        wait = f", or wait for {named('job', jobs)} to land" if jobs else ""
        return CapacityError(
            f"{begin}, {some(blocks.free)} free, {some(len(idle))} freeing soon{held}, "
            f"{some(len(bad))} quarantined (preempt a request{wait})"
        )

    def _name(self, row: int) -> str:
        return f"{self._incarnation}.{self._core.jobs.number[row]}"

    def _alive(self) -> list[JobView]:
        """The jobs that are not over, the oldest first."""
        found, jobs, row = list[JobView](), self._core.jobs, self._core.jobs.following[0]
        while row:
            found.append(JobView(self._core, row))
            row = jobs.following[row]
        return found

    def _holders_of(self, life: int) -> Iterable[str]:
        """The requests that hold a life."""
        requests = self._core.requests
        for name, row in requests.by_name.items():
            for table in range(row * requests.num_groups, (row + 1) * requests.num_groups):
                begin = requests.begin[table]
                if any(requests.lives[at] == life for at in range(begin, begin + requests.length[table])):
                    yield name
                    break

    def _toucher(self, job: JobView, *, of_block: bool) -> Toucher:
        load = job.direction is Direction.LOAD
        return Toucher(self._name(job.row), load is of_block, job.state is Job.PLANNED, job.expired, load)

    @staticmethod
    def _refusal(
        machine: str,
        thing: str,
        place: int,
        state: enum.Enum,
        event: str,
        payload: Mapping[str, object],
        there: Bystanders,
    ) -> RefusedError:
        reason, remedy = sentence(machine, state, event, payload, there)
        return RefusedError(thing, state.name, event, remedy, place, reason)
