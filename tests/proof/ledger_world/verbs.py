"""The real ledger of a small world: the verbs that an engine may try, the calls, and the ledger as a value.

Rules of this file:

* The ledger alone decides whether a verb is legal. This file leaves out only what an engine would never try, and what this
  world cannot express: a request that may hold one block is not given a second.
* A job of the world has a number of its own, the lowest that is free; `NamedJob` maps it to a job of the ledger.

A value holds the variables of the model for SPIN that belong to the ledger, and what affects order only: the ages of jobs, the
order of waits, and which of two equal contents an index names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from blocklife.errors import DefinitionError, MisuseError
from blocklife.ledger import (
    Batch,
    Completion,
    Contract,
    Direction,
    GroupTransfer,
    JobId,
    Jobs,
    Launched,
    Ledger,
    Limits,
    Placement,
    Plan,
    Result,
    Snapshot,
    Store,
    TierTransfer,
    Transfer,
    Worker,
)
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK, NULL
from blocklife.states import ADMISSIBLE, ADMITTED, MACHINES, TERMINAL, JobLife, Request, RequestLife, states_before
from blocklife.testing import CopyOrder, Orders
from tests.proof.ledger_world.settings import FAILED, LANDED, LOAD, NONE, PLAIN, STORE, LedgerSettings

DEADLINE = 8.0
"""Every deadline starts at time 0 and ends here; it runs for the jobs whose launch was reported."""
OVER = frozenset(1 + JobLife.table.index[state] for state in TERMINAL)
DEMOTE, PROMOTE = max(STORE, LOAD) + 1, max(STORE, LOAD) + 2
"""Kinds of jobs that the model for SPIN does not have."""
MISSING = max(LANDED, FAILED) + 1
"""A report that a promotion has landed, and the store below did not have the content."""
_KIND = {Direction.STORE: STORE, Direction.LOAD: LOAD, Direction.DEMOTE: DEMOTE, Direction.PROMOTE: PROMOTE}
_HOLDER = "lookup"
_OF_JOBS = frozenset({"submit", "cancel", "abandon", "flush", "quiesce"})
"""Verbs that take jobs, and nothing else."""
_REQUEST, _JOB = MACHINES["request"].index, MACHINES["job"].index
_LOADS = states_before(RequestLife.table.events["loaded"], Request)
_MAY_GROW = frozenset(_REQUEST[each] for each in ADMISSIBLE | ADMITTED - _LOADS)

for _verb, _machine in PLAIN.items():
    if not hasattr(Ledger, _verb):
        raise DefinitionError(
            f"{_machine}.{_verb}: nothing takes this event; write the verb Ledger.{_verb}(), which gets a list of {_machine}s, "
            "or a row of COUPLINGS that has it as an effect"
        )


class LedgerAction(NamedTuple):
    """One action; its name and places are those of the actions of the model for SPIN."""

    verb: str
    places: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.verb, *map(str, self.places)])


Report: TypeAlias = tuple[int, int, int]
"""Job, worker, and what is reported: `LANDED`, `FAILED`, or `MISSING`."""


class NamedJob(NamedTuple):
    """The job of the ledger behind a job of the world, and its last state if it is over."""

    number: int = 0
    over: int = 0
    promotes: bool = False
    """A report of it may say that content was missing, even when it is over."""


class JobValue(NamedTuple):
    """The variables of one job."""

    job: int = 0
    kind: int = 0
    jblock: int = 0
    fresh: int = 0
    jslot: int = 0
    jkey: int = 0
    failed: int = 0
    expired: int = 0
    armed: int = 0
    ordered: int = 0
    awaited: int = 0
    awaited_next: int = 0
    reported: tuple[int, ...] = ()


class LedgerValue(NamedTuple):
    """A ledger as a value; the names are those of the variables of the model."""

    block: tuple[int, ...]
    refs: tuple[int, ...]
    pins: tuple[int, ...]
    writes: tuple[int, ...]
    overdue: tuple[int, ...]
    bkey: tuple[int, ...]
    source: tuple[int, ...]
    slot: tuple[int, ...]
    spins: tuple[int, ...]
    skey: tuple[int, ...]
    counted: tuple[int, ...]
    jobs: tuple[JobValue, ...]
    request: tuple[int, ...]
    table: tuple[int, ...]
    load: tuple[int, ...]
    plans: int
    order: tuple[object, ...]
    """What affects order only, and is not a variable of the model."""


class Verbs:
    """A ledger, and the names that its jobs have in the world.

    Invariant: ``names[job].number`` is the job of the ledger, 0 for none; ``over`` its last state, once it is terminal.
    """

    def __init__(self, settings: LedgerSettings) -> None:
        self.settings = settings
        limits = Limits(
            num_blocks=settings.blocks + 1,
            num_slots=settings.slots,
            max_jobs=settings.jobs,
            max_requests=settings.requests,
            num_workers=settings.workers,
            max_plans=settings.plans,
            max_journal=1,
        )
        self.ledger = Ledger(limits, contract=settings.contract, deadline=DEADLINE, own_pool=False, errors="raise")
        self.names: tuple[NamedJob, ...] = (NamedJob(),) * settings.jobs
        none_reported = (0,) * settings.workers
        self._gone = {
            (over, promotes): JobValue(over, PROMOTE * promotes, reported=none_reported)
            for over in (0, *OVER)
            for promotes in (False, True)
        }
        self.quiet = self._gone[0, False]
        """The value of an unused job."""
        self._keys = [b"%c" % (ord("a") + number) for number in range(settings.requests)]
        self._letters: dict[bytes | None, int] = {None: 0} | {key: 1 + at for at, key in enumerate(self._keys)}
        self._requests = [chr(ord("p") + number) for number in range(settings.requests)]

    def letter(self, request: int) -> int:
        """The content of a request, from 1."""
        return 1 if self.settings.shared else request + 1

    # --- what may be tried --------------------------------------------------------------------------------------------------

    def candidates(self, at: LedgerValue) -> Iterator[LedgerAction]:
        """What an engine could try, legal or not, that needs nothing from the device."""
        settings = self.settings
        for request in range(settings.requests):
            known = at.request[request] != _REQUEST[Request.FINISHED]
            yield from (LedgerAction(verb, (request,)) for verb in (("admit", "preempt", "finish") if known else ("add",)))
            held = at.table[request]
            if held == NONE and at.request[request] in _MAY_GROW:
                for block in range(settings.blocks):
                    yield LedgerAction("allocate", (request, block))
                    if at.bkey[block] == self.letter(request):
                        yield LedgerAction("acquire", (request, block))
            if 0 < held <= settings.blocks:
                if at.request[request] == _REQUEST[Request.RUNNING]:
                    yield LedgerAction("seal", (request, held - 1))
                if "release" in settings.verbs:
                    yield LedgerAction("release", (request,))
        free = next((job for job, named in enumerate(self.names) if not named.number), None)
        if free is not None:
            yield from self._job_candidates(at, free)
        yield from self._verb_candidates(at)

    def _job_candidates(self, at: LedgerValue, free: int) -> Iterator[LedgerAction]:
        settings = self.settings
        for slot in range(settings.slots) if settings.below else ():
            for letter in {self.letter(request) for request in range(settings.requests)}:
                yield LedgerAction("promote", (slot, letter, free))
            if at.skey[slot]:
                yield LedgerAction("demote", (slot, free))
        for slot in range(settings.slots):
            for block in range(settings.blocks):
                if at.bkey[block]:
                    yield LedgerAction("store", (block, slot, free))
            for request, held in enumerate(at.table):
                if not 0 < held <= settings.blocks:
                    continue
                if not at.bkey[held - 1] and at.request[request] == _REQUEST[Request.RUNNING]:
                    yield LedgerAction("pledge", (request, held - 1, slot, free))
                if settings.loads and at.skey[slot] == self.letter(request):
                    yield LedgerAction("load", (request, held - 1, slot, free))

    def _verb_candidates(self, at: LedgerValue) -> Iterator[LedgerAction]:
        verbs = self.settings.verbs
        for job, named in enumerate(self.names):
            if named.number and not named.over:
                for verb in ("submit", "cancel", "abandon"):
                    if verb in verbs:
                        yield LedgerAction(verb, (job,))
                if "flush" in verbs and not at.jobs[job].ordered:
                    yield LedgerAction("flush", (job,))
        if "drop" in verbs:
            yield from (LedgerAction("drop", (block,)) for block in range(self.settings.blocks))
        sizes = {"block": self.settings.blocks, "slot": self.settings.slots}
        for verb in filter(verbs.__contains__, PLAIN):
            yield from (LedgerAction(verb, (place,)) for place in range(sizes[PLAIN[verb]]))
        for slot in range(self.settings.slots):
            if "pin" in verbs:
                yield LedgerAction("unpin" if at.counted[slot] else "pin", (slot,))
        if "reset" in verbs:
            yield LedgerAction("reset")

    # --- the calls ----------------------------------------------------------------------------------------------------------

    def do(self, action: LedgerAction, reports: Sequence[Report] = ()) -> Orders | None:
        """Make one call. Returns the plan, if it made one, as orders."""
        ledger, (verb, places) = self.ledger, action
        match verb:
            case "dispatch":
                return self._orders(ledger.dispatch(0.0))
            case "settle":
                ledger.settle(ledger.plans.out[0], 0.0, completions=[self._completion(each) for each in reports])
            case "report":
                for each in reports:
                    ledger.complete(self._completion(each))
            case "expire":
                if not ledger.expire(DEADLINE).ids:
                    raise MisuseError("no deadline is running")
            case "reset":
                ledger.reset()
            case "store" | "pledge" | "load":
                self._do_plan(verb, places)
            case "promote":
                slot, letter, job = places
                self._rename(job, NamedJob(ledger.plan_promotion([slot], [self._keys[letter - 1]]).ids[0].number, 0, True))
            case "demote":
                slot, job = places
                self._rename(job, NamedJob(ledger.plan_demotion([slot]).ids[0].number))
            case "drop":
                ledger.drop([ledger.blocks.life(places[0] + 1)])
            case "pin" | "unpin":
                getattr(ledger, verb)(_HOLDER, places)
            case "launched":
                ledger.launched(Launched(self._id(places[0]), Worker(0)), 0.0)
            case _ if verb in PLAIN:
                getattr(ledger, verb)([places[0] + (PLAIN[verb] == "block")])
            case _ if verb in _OF_JOBS:
                getattr(ledger, verb)(Jobs((self._id(places[0]),)))
            case _:
                self._do_request(verb, *places)
        self._note_ends()
        return None

    def _do_request(self, verb: str, request: int, block: int = 0) -> None:
        ledger, name = self.ledger, self._requests[request]
        match verb:
            case "add":
                ledger.add_request(name)
            case "admit" | "preempt" | "finish":
                getattr(ledger, verb)(name)
            case "allocate":
                ledger.observe_place(name, [Placement(allocated=[block + 1])])
            case "acquire":
                ledger.acquire(name, [ledger.blocks.life(block + 1)])
            case "seal":
                ledger.seal(Batch([ledger.blocks.life(block + 1)]), [self._keys[self.letter(request) - 1]])
            case "release":
                ledger.release(name, [0])
            case _:
                raise MisuseError(f"{verb}: there is no such verb in this world")

    def _do_plan(self, verb: str, places: tuple[int, ...]) -> None:
        ledger, block, slot, job = self.ledger, *places[-3:]
        life = ledger.blocks.life(block + 1)
        if verb == "load":
            found = ledger.plan_load(self._requests[places[0]], GroupTransfer(Batch([life]), [slot]))
        elif verb == "pledge":
            found = ledger.plan_store(Store.of(Batch([life]), [slot], [self._keys[self.letter(places[0]) - 1]]))
        else:
            found = ledger.plan_store(Store.of(Batch([life]), [slot], [ledger.blocks.key(block + 1) or b""]))
        self._rename(job, NamedJob(found.ids[0].number))

    def _id(self, job: int) -> JobId:
        return JobId(self.ledger.incarnation, self.names[job].number)

    def _completion(self, report: Report) -> Completion:
        job, worker, outcome = report
        result = Result.FAILED if outcome == FAILED else Result.OK
        return Completion(self._id(job), Worker(worker), result, (0,) if outcome == MISSING else ())

    def _rename(self, job: int, named: NamedJob) -> None:
        self.names = (*self.names[:job], named, *self.names[job + 1 :])

    def _note_ends(self) -> None:
        for job, named in enumerate(self.names):
            view = self.ledger.jobs.get(named.number) if named.number and not named.over else None
            if view is not None:
                at = 1 + _JOB[view.state]
                if at in OVER:
                    self._rename(job, named._replace(over=at))

    def _orders(self, plan: Plan) -> Orders:
        """A plan under the names of the world."""
        own = {named.number: job for job, named in enumerate(self.names)}

        def order(each: Transfer) -> CopyOrder:
            source, target = tuple(each.source.tolist()), tuple(each.target.tolist())
            return CopyOrder(own[each.job.number], each.direction is Direction.STORE, source, target)

        flushes = tuple(own[each.number] for each in plan.flushes)
        stores, below = tuple(map(order, plan.stores)), tuple(map(self._order_below, (*plan.promotes, *plan.demotes)))
        return Orders(plan.number, flushes, tuple(map(order, plan.loads)), stores, below=below)

    def _order_below(self, each: TierTransfer) -> CopyOrder:
        """A copy between the slots and the store below, under the names of the world."""
        job = next(job for job, named in enumerate(self.names) if named.number == each.job.number)
        slots, letters = tuple(each.slots.tolist()), tuple([self._letters[key] for key in each.keys])
        promotes = each.direction is Direction.PROMOTE
        source, target = (letters, slots) if promotes else (slots, letters)
        return CopyOrder(job, promotes, source, target, below=True)

    def order_of(self, at: LedgerValue, job: int) -> CopyOrder:
        """The order for a job that is submitted outside of any plan."""
        block, slot, kind = (at.jobs[job].jblock + 1,), (at.jobs[job].jslot,), at.jobs[job].kind
        if below := kind in (DEMOTE, PROMOTE):
            block = (at.jobs[job].jkey,)
        fills = kind in (STORE, PROMOTE)
        return CopyOrder(job, fills, block if fills else slot, slot if fills else block, below=below)

    # --- the ledger as a value ----------------------------------------------------------------------------------------------

    def fingerprint(self) -> tuple[object, ...]:
        """A value that changes whenever a verb writes anything."""
        return self.ledger.snapshot(), len(self.ledger.journal)

    def value(self) -> LedgerValue:
        """The present state of the ledger."""
        ledger, letters = self.ledger, self._letters
        saved = ledger.snapshot()
        blocks, slots, out = saved.blocks, saved.slots, [job.number for job in ledger.jobs.alive()]
        own = {named.number: job for job, named in enumerate(self.names) if named.number}
        rows = {0: 0} | {each.row: own[each.number] + 1 for each in saved.jobs if each.number in out}
        waits = [numbers for _, numbers in saved.waiting]
        counted: Mapping[int, int] = ledger.slots.holders.get(_HOLDER, {})
        known = {each.name: each for each in saved.requests}
        requests = [known.get(name) for name in self._requests]
        return LedgerValue(
            tuple(blocks.state[1:]),
            tuple(memoryview(blocks.refs).cast("H")[1:]),
            tuple(blocks.pins[1:]),
            tuple(blocks.writes[1:]),
            tuple(blocks.overdue[1:]),
            tuple([letters[key] for key in blocks.key[1:]]),
            tuple([rows[row] for row in memoryview(blocks.job).cast("i")[1:]]),
            tuple(slots.state),
            tuple(slots.pinned()),
            tuple([letters[key] for key in slots.key]),
            tuple([counted.get(slot, 0) for slot in range(len(slots.state))]),
            tuple([self._job_value(named, saved) for named in self.names]),
            tuple([_REQUEST[Request.FINISHED] if each is None else each.state for each in requests]),
            tuple([0 if each is None else self._held(each.tables[0]) for each in requests]),
            tuple([0 if each is None or not each.load else own[each.load] + 1 for each in requests]),
            len(waits),
            (
                saved.block_index[0],
                saved.slot_index[0],
                tuple([own[number] for number in out]),
                tuple([own[number] for number in saved.to_flush if number in out]),
                tuple([tuple([own[number] for number in plan if number in out]) for plan in waits]),
                tuple([own[each.number] for each in saved.jobs if each.number in out and each.missing]),
            ),
        )

    def _held(self, table: Sequence[int]) -> int:
        """The block in a table, counted from 1; the number of blocks plus one for the null block."""
        if len(table) > 1:
            raise MisuseError(f"a request of this world holds one block, not {len(table)}")
        if not table:
            return NONE
        return self.settings.blocks + 1 if table[0] == NULL else table[0] & ID_MASK

    def _job_value(self, named: NamedJob, saved: Snapshot) -> JobValue:
        if not named.number or named.over:
            return self._gone[named.over, named.promotes]
        number, waits = named.number, [numbers for _, numbers in saved.waiting]
        (job,) = [each for each in saved.jobs if each.number == number]
        life = job.payload.lives[0] if job.payload.lives else 0
        return JobValue(
            1 + job.state,
            _KIND[job.direction],
            max((life & ID_MASK) - 1, 0),
            int(life > 0 and saved.blocks.epochs()[life & ID_MASK] == life >> EPOCH_SHIFT),
            job.payload.slots[0],
            self._letters[job.payload.keys[0]],
            int(job.failed),
            int(job.expired),
            int(job.deadline is not None),
            int(number in saved.to_flush),
            int(len(waits) > 0 and number in waits[0]),
            int(len(waits) > 1 and number in waits[1]),
            tuple([job.reported >> worker & 1 for worker in range(self.settings.workers)]),
        )

    @property
    def fence(self) -> bool:
        """Whether blocks that a copy reads may be handed out (the fence contract)."""
        return self.settings.contract is Contract.FENCE
