"""A verb that takes many does what the verb that takes one does, called for each in the same order.

Goal: no verb for many is a second opinion. Method: seeded programs drive two ledgers, one with the verbs for many
(`plan_store` and `submit` of several, and a `settle` that gets all reports in one call) and one with a call for each, with
`complete` for each report. After every call both are compared: the snapshot, the rows that were taken, everything
counted, what was published, and the story of every place, step by step, with the job in whose name it happened. Only the order
of places within one machine may differ, and that of blocks without content among the free ones; those of the twin are then put
in the same order, so that both hand out the same blocks.
"""

from __future__ import annotations

import enum
import functools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import pytest
from attrs import define, field

from blocklife.core import _plans as plans
from blocklife.core._tables import Rule
from blocklife.errors import CapacityError, DefinitionError, MisuseError, RefusedError
from blocklife.ledger import (
    Batch,
    Completion,
    Contract,
    Direction,
    JobId,
    Jobs,
    Launched,
    Ledger,
    LedgerTransition,
    Result,
    Seal,
    Worker,
)
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger.invariants import check
from blocklife.ledger.jobs import GroupTransfer, Store
from blocklife.states import ADMISSIBLE, ADMITTED, MACHINES, TERMINAL, Block, Job, Request, Slot
from tests.ledger.test_ledger_groups import owners, planned, sound
from tests.worlds import BOTH, in_flight, keys, make_ledger, ready, refuses, report, sealed, unchanged

Change: TypeAlias = tuple[bool, int, int, bytes]
Told: TypeAlias = dict[tuple[str, int], list[tuple[int, int, int | None]]]

SEEDS = range(60)
STEPS = 90
NAMES = keys(*"klmnopqrst")
REQUESTS = ("a", "b", "c")
GROUPS = 2
SUB = 2
"""Host places of a slot."""
WANTED = (
    *("job IN_FLIGHT to DONE", "job IN_FLIGHT to FAILED", "job AWAITED to DONE", "job AWAITED to FAILED"),
    *("job UNWANTED to CANCELLED", "job QUARANTINED to FAILED", "job PLANNED to CANCELLED"),
    *("slot WRITING to READY", "slot WRITING to EMPTY", "slot QUARANTINED to EMPTY", "twins that landed together"),
    *("blocks lent", "plan_load", "duplicate", "late", "unknown", "allocate refused"),
)
"""What the programs have to reach, each more than ten times."""
LONG_AGO = -1e9
"""A time at which no deadline has passed."""


# --- two ledgers --------------------------------------------------------------------------------------------------------


@define(eq=False)
class Witness:
    """One ledger and all that it told since it was last looked at."""

    ledger: Ledger
    told: Told = field(factory=lambda: defaultdict(list))
    changes: list[Change] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.ledger.on(hook=self.hear)
        self.ledger.slots.note(self.note)

    def note(self, changes: Sequence[Change]) -> None:
        """Keep each change, with its content."""
        self.changes.extend(changes)

    def hear(self, record: LedgerTransition) -> None:
        """File each step under its place, with its row, its job and the epoch afterwards."""
        epochs: Sequence[int | None] = record.epochs or [None] * len(record)
        for (place, row), job, epoch in zip(record.steps(), record.job_of_each(), epochs, strict=True):
            self.told[record.machine, place].append((row, job, epoch))

    def forget(self) -> None:
        """Start anew."""
        self.told.clear()
        self.changes.clear()


def facts(ledger: Ledger) -> tuple[object, ...]:
    """Everything that two equal ledgers agree on, the journal and the order of free blocks apart."""
    views = (ledger.blocks, ledger.slots, ledger.jobs, ledger.requests)
    return (
        ledger.snapshot()._replace(queue=()),
        [list(view.row_counts()) for view in views],
        *(ledger.counts.tally, dict(ledger.counts.flushes), ledger.counts.ended, ledger.counts.moved),
        *(owners(ledger), planned(ledger), ledger.slots.next_empty(len(ledger.slots))),
    )


def queue_of(ledger: Ledger) -> tuple[set[int], list[int]]:
    """The free blocks without content, and those with content in their order."""
    order = ledger.blocks.free_order()
    cached = [place for place in order if ledger.blocks.state(place) is Block.CACHED]
    return set(order) - set(cached), cached


@define(eq=False)
class Pair:
    """A ledger that is driven by the verbs for many, and its twin that is driven by those for one."""

    many: Witness
    one: Witness
    seen: Counter[str] = field(factory=Counter)
    done: list[str] = field(factory=list)

    def do(self, what: str, many: Callable[[Ledger], object], one: Callable[[Ledger], object] | None = None) -> bool:
        """Make the call on both and compare; whether it was accepted."""
        self.done.append(what)
        refused = []
        for witness, call in ((self.many, many), (self.one, one or many)):
            try:
                call(witness.ledger)
                refused.append("")
            except (MisuseError, CapacityError) as refusal:
                refused.append(f"{type(refusal).__name__}: {refusal}")
        assert refused[0] == refused[1], self.done[-5:]
        self.compare()
        self.seen[what.partition("(")[0] + (" refused" if refused[0] else "")] += 1
        return not refused[0]

    def compare(self) -> None:
        """Both are in one world, and told the same of every place."""
        first, second = self.many, self.one
        assert facts(first.ledger) == facts(second.ledger), self.done[-5:]
        assert queue_of(first.ledger) == queue_of(second.ledger), self.done[-5:]
        assert first.told == second.told, self.done[-5:]
        assert first.changes == second.changes, self.done[-5:]
        sound(first.ledger)
        sound(second.ledger)
        self.note(first)
        second.ledger._state.core.blocks.line_up(first.ledger.blocks.free_order())
        first.forget()
        second.forget()

    def note(self, witness: Witness) -> None:
        """Count what is worth to have happened: the ends of jobs, and what became of what they wrote."""
        for (machine, _), steps in witness.told.items():
            for row, _, _ in steps:
                if machine in ("job", "slot"):
                    line = MACHINES[machine].row(row)
                    if line.event == "land" or (line.target in TERMINAL and line.source is not line.target):
                        self.seen[f"{machine} {line.source.name} to {line.target.name}"] += 1


def make_pair(contract: Contract, workers: int) -> Pair:
    """Two ledgers with two groups and some running requests; each knows nothing of the other."""
    worlds = [
        make_ledger(
            num_blocks=40,
            num_slots=16,
            max_jobs=12,
            groups=GROUPS,
            workers=workers,
            contract=contract,
            requests=REQUESTS,
            max_requests=8,
        )
        for _ in range(2)
    ]
    return Pair(Witness(worlds[0]), Witness(worlds[1]))


def ripe_stores(ledger: Ledger) -> list[JobId]:
    """The planned stores whose content is final."""
    rows = plans.ripe_jobs(ledger._state.core)
    return [JobId(1, job.number) for job in map(ledger._state.job, rows) if job.direction is Direction.STORE]


# --- programs -----------------------------------------------------------------------------------------------------------


class Program:
    """One random program: what it does next is decided by its seed and by the world it has made."""

    def __init__(self, seed: int, contract: Contract, workers: int) -> None:
        self.random = random.Random(seed)
        self.pair = make_pair(contract, workers)
        self.now = 0.0
        self.workers = workers
        self.promised: dict[int, bytes] = {}
        self.plans: list[int] = []
        self.launched: list[JobId] = []

    @property
    def world(self) -> Ledger:
        """The state to decide by; that of the twin is the same."""
        return self.pair.many.ledger

    def run(self) -> Counter[str]:
        """Run it, and let everything land."""
        verbs: list[tuple[Callable[[], object], int]] = [
            (self.allocate, 8),
            (self.seal, 8),
            (self.skip, 1),
            (self.hit, 4),
            (self.plan_stores, 12),
            (self.admit, 3),
            (self.submit, 2),
            (self.dispatch, 8),
            (self.settle, 10),
            (self.release, 5),
            (self.give_back, 3),
            (self.job_verb, 4),
            (self.slot_verb, 2),
            (self.rare, 1),
        ]
        for _ in range(STEPS):
            self.random.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])[0]()
        self.dispatch()
        while self.plans:
            self.settle(last=True)
        self.pair.seen.update({name: self.world.counts.tally[name] for name in ("duplicate", "late", "unknown")})
        return self.pair.seen

    # --- blocks ---------------------------------------------------------------------------------------------------------

    def some_requests(self, most: int) -> list[str]:
        """A few requests, each once."""
        names = list(self.world.requests)
        return self.random.sample(names, min(len(names), self.random.randint(1, most)))

    def allocate(self) -> None:
        """Free blocks for several requests; where copied ones have to be lent, or there are not enough, for one."""
        names, group = self.some_requests(3), self.random.randrange(GROUPS)
        counts = [self.random.choice([1, 1, 2, 3, 6]) for _ in names]
        lent = sum(counts) > self.world.blocks.free
        for name, count in list(zip(names, counts, strict=True))[: 1 if lent else None]:
            more = functools.partial(Ledger.allocate, request=name, count=count, group=group)
            if self.pair.do(f"allocate({name}, {count}, {group})", more):
                self.pair.seen["blocks lent"] += lent

    def held_lives(self, request: str, group: int, *states: Block) -> list[int]:
        """The lives that a request holds in some states."""
        return [
            life for life in self.world.requests.table(request, group) if life != NULL and self.world.blocks.of(life) in states
        ]

    def open_lives(self, most: int) -> tuple[int, list[int], list[bytes]]:
        """Some lives whose content can be sealed, with their keys."""
        (request,), group = self.some_requests(1), self.random.randrange(GROUPS)
        found = self.held_lives(request, group, Block.ALLOCATED, Block.PLEDGED)[:most]
        return group, found, [self.promised.get(life, self.random.choice(NAMES)) for life in found]

    def seal(self) -> None:
        """Content becomes final; keys may repeat."""
        group, lives, names = self.open_lives(6)
        self.pair.do(f"seal({lives}, {names})", lambda x: x.seal(Batch(lives, group), names))

    def skip(self) -> None:
        """Nulls in a table."""
        (request,), group = self.some_requests(1), self.random.randrange(GROUPS)
        self.pair.do(f"skip({request})", lambda x: x.skip(request, 2, group))

    def hit(self) -> None:
        """Requests share content."""
        group = self.random.randrange(GROUPS)
        found = [life for key in self.random.sample(NAMES, 3) for life in self.world.blocks.prefix([key], group)]
        for request in self.some_requests(3):
            lives = [life for life in found if life not in self.world.requests.table(request, group)]
            self.pair.do(
                f"acquire({request}, {lives})", functools.partial(Ledger.acquire, request=request, lives=lives, group=group)
            )

    def release(self) -> None:
        """Several requests let go of some places each; lives may be shared."""
        names, group = self.random.choice([self.some_requests(3), list(self.world.requests)]), self.random.randrange(GROUPS)
        share = self.random.choice([0.2, 0.8])
        for name in names:
            table = self.world.requests.table(name, group)
            chosen = [at for at in range(len(table)) if self.random.random() < share]
            self.pair.do(
                f"release({name}, {chosen}, {group})",
                functools.partial(Ledger.release, request=name, positions=chosen, group=group),
            )

    def give_back(self) -> None:
        """A request gives everything back, and comes again."""
        (request,) = self.some_requests(1)
        event = self.random.choice(["preempt", "finish", "drop"])
        if event == "preempt" and self.world.requests.state(request) in ADMITTED:
            self.pair.do("preempt", lambda x: x.preempt(request))
        elif event == "finish":
            self.pair.do("finish", lambda x: x.finish(request))
            self.pair.do("add", lambda x: x.add_request(request))
        if event != "drop" and self.random.random() < 0.7:
            self.plan_load(request)
        elif event == "drop":
            blocks = self.world.blocks
            places = [place for place in range(1, len(blocks)) if blocks.state(place) is Block.IN_FLIGHT]
            idle = [self.world.blocks.life(place) for place in places if not blocks.refs(place)]
            self.pair.do("drop", lambda x: x.drop(idle))

    # --- jobs -----------------------------------------------------------------------------------------------------------

    def transfer(self, request: str, group: int, spare: list[int]) -> GroupTransfer[Any] | None:
        """Chunks of one or two blocks of one group; takes the slots from *spare*, and no key twice."""
        blocks, slots = self.world.blocks, self.world.slots
        lives = self.held_lives(request, group, Block.ALLOCATED, Block.SEALED)
        self.random.shuffle(lives)
        chosen: list[int] = []
        places: list[int] = []
        taken: list[int] = []
        names: list[bytes] = []
        one_each = self.random.random() < 0.7
        while lives and spare and len(taken) < 2:
            chunk = [lives.pop() for _ in range(1 if one_each else min(2, len(lives)))]
            last = chunk[-1]
            key = blocks.key(last & ID_MASK) or self.random.choice(NAMES)
            slot = slots.find(group, key)
            if key in names or (slot is not None and slots.state(slot) is Slot.READY):
                continue
            taken.append(spare.pop())
            names.append(key)
            chosen += chunk
            places += [taken[-1] * SUB + at for at in range(SUB - len(chunk), SUB)]
        if not chosen:
            return None
        if len(chosen) == len(names):
            self.promised.update(zip(chosen, names, strict=True))
        return GroupTransfer(Batch(chosen, group), taken, names, places)

    def plan_stores(self) -> None:
        """Several stores of one or two groups; content of equal keys is stored twice at once."""
        spare = self.world.slots.next_empty(len(self.world.slots))
        stores: list[Store] = []
        used: set[str] = set()
        for request in self.some_requests(3)[: self.world.jobs.room]:
            groups = range(GROUPS) if self.random.random() < 0.4 else [self.random.randrange(GROUPS)]
            transfers = [transfer for group in groups if (transfer := self.transfer(request, group, spare)) is not None]
            lives = [int(life) for transfer in transfers for life in transfer.blocks.lives]
            if transfers and used.isdisjoint(map(str, lives)):
                stores.append(Store(self.random.choice([request, None]), transfers))
                used.update(map(str, lives))

        def one(ledger: Ledger) -> None:
            for store in stores:
                ledger.plan_store(store)

        names = [(group.blocks.group, group.keys) for store in stores for group in store.transfers]
        if not self.pair.do(f"plan_store({names})", lambda x: x.plan_store(*stores), one):
            raise AssertionError(self.pair.done[-1])
        self.pair.seen["several stores in one call"] += len(stores) > 1

    def admit(self) -> None:
        """A request that holds nothing comes into the batch, one that holds something goes through its life first."""
        for name in self.world.requests:
            if self.world.requests.state(name) in ADMISSIBLE:
                self.pair.do("admit", functools.partial(Ledger.admit, request=name))

    def plan_load(self, request: str) -> None:
        """A request that is out of the batch loads content of one or both groups."""
        out = self.world.requests.state(request) in ADMISSIBLE
        ready = self.world.slots.where(Slot.READY)[:4]
        if not out or not ready or self.world.blocks.free < 4 or not self.world.jobs.room:
            return
        parts = [(group, [slot for slot in ready if self.world.slots.group(slot) == group]) for group in range(GROUPS)]

        def load(ledger: Ledger) -> None:
            transfers: list[GroupTransfer[Any]] = []
            for group, own in parts:
                names = [key for slot in own if (key := ledger.slots.key(slot)) is not None]
                if own:
                    places = [slot * SUB + SUB - 1 for slot in own]
                    transfers.append(GroupTransfer(ledger.allocate(request, len(own), group), own, names, places, names))
            ledger.plan_load(request, *transfers)

        self.pair.do(f"plan_load({request}, {parts})", load)

    def submit(self) -> None:
        """Some planned stores go out without a plan."""
        ids = [job for job in ripe_stores(self.world) if self.random.random() < 0.7]

        def one(ledger: Ledger) -> None:
            for job in ids:
                ledger.submit(Jobs((job,)))

        self.pair.do(f"submit({ids})", lambda x: x.submit(Jobs(tuple(ids))), one)

    def dispatch(self) -> None:
        """A plan; the twin has submitted each store by itself before."""
        if len(self.plans) > 2:
            return
        self.now += 1.0

        def one(ledger: Ledger) -> None:
            for job in ripe_stores(ledger):
                ledger.submit(Jobs((job,)))
            ledger.dispatch(self.now)

        self.pair.do("dispatch", lambda x: x.dispatch(self.now), one)
        self.plans.append(self.world.plans.number)

    def reports(self, last: bool) -> list[Completion]:
        """What came back: most of what is out, in runs of whole jobs or mixed, some of it failed, twice, late or of nobody."""
        found: list[Completion] = []
        running = list(self.world.jobs.submitted().ids)
        self.random.shuffle(running)
        for job in running:
            if last or self.random.random() < 0.7:
                ok = self.random.random() < 0.85
                for worker in range(self.workers):
                    if not last and self.random.random() < 0.1:
                        continue
                    result = Result.OK if ok or self.random.random() < 0.5 else Result.FAILED
                    found.append(Completion(job, Worker(worker), result))
                    if self.random.random() < 0.1:
                        found.append(found[-1])
        known = [JobId(1, job.number) for job in self.world.jobs.known() if job.state in TERMINAL]
        for job in known[:1] if self.random.random() < 0.3 else []:
            found.append(report(job, worker=self.random.randrange(self.workers)))
        if self.random.random() < 0.1:
            found.append(report(JobId(99, 1)))
        if self.random.random() < 0.3:
            self.random.shuffle(found)
        return found

    def settle(self, last: bool = False) -> None:
        """One call with everything, or: waits and their reports, the proof, each other report, each seal, the deadlines."""
        if not self.plans:
            return
        plan = self.plans.pop(0)
        self.now += self.random.choice([0.0, 1.0, 4.0])
        completions = self.reports(last)
        waited = self.world._state.core.waiting[plan]
        launched = [Launched(job, Worker(0)) for job in self.world.jobs.submitted().ids if self.random.random() < 0.5]
        group, lives, names = self.open_lives(3)
        seals = [Seal(group, lives, names)] if lives else []
        first = [each for each in completions if each.job.incarnation == 1 and each.job.number in waited]
        later = [each for each in completions if each not in first]

        def one(ledger: Ledger) -> None:
            for record in launched:
                ledger.launched(record, self.now)
            for completion in first:
                ledger.complete(completion)
            ledger.settle(plan, LONG_AGO)
            for completion in later:
                ledger.complete(completion)
            for seal in seals:
                ledger.seal(Batch(seal.lives, seal.group), seal.keys)
            ledger.expire(self.now)

        def many(ledger: Ledger) -> None:
            ledger.settle(plan, self.now, launched=launched, completions=completions, seals=seals)

        with self.world.on() as heard:
            if not self.pair.do(f"settle({plan}, {completions})", many, one):
                raise AssertionError(self.pair.done[-1])
        steps = [(each.job, each.machine, MACHINES[each.machine].row(row)) for each in heard.heard for _, row in each.steps()]
        done = {
            job for job, machine, row in steps if machine == "job" and row.target is Job.DONE and row.source is not Job.DONE
        }
        self.pair.seen["stores that ended together"] += len(done) * (len(done) > 1)
        landed = [row.target for job, machine, row in steps if machine == "slot" and row.event == "land" and job in done]
        self.pair.seen["twins that landed together"] += landed.count(Slot.EMPTY) * (Slot.READY in landed)

    def job_verb(self) -> None:
        """Jobs are given up, waited for, proven quiet: the same call on both."""
        alive = self.world.jobs.alive()
        if not alive:
            return
        job = self.random.choice(alive)
        jobs = Jobs[Any]((JobId(1, job.number),))
        verb = self.random.choice(["cancel", "abandon", "flush", "flush", "flush", "flush", "expire", "quiesce"])
        if verb == "expire":
            self.now += self.random.choice([0.0, 8.0])
            self.pair.do("expire", lambda x: x.expire(self.now))
        elif verb == "flush":
            self.pair.do("flush", lambda x: x.flush(jobs, "test"))
        else:
            self.pair.do(verb, lambda x: getattr(x, verb)(jobs))

    def slot_verb(self) -> None:
        """Make room below."""
        ready = self.world.slots.where(Slot.READY)
        self.pair.do("evict", lambda x: x.evict(ready[:3]))

    def rare(self) -> None:
        """A worker is gone, or everything is forgotten."""
        if self.random.random() < 0.5:
            self.pair.do("lose", lambda x: x.lose(Worker(self.workers - 1)))
        else:
            host = self.random.random() < 0.5
            self.pair.do(f"reset(host={host})", lambda x: x.reset(host=host))


@functools.cache
def run(seed: int, contract: Contract) -> Counter[str]:
    """One program, run once."""
    return Program(seed, contract, workers=1 + seed % 3).run()


@BOTH
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_many_is_one_by_one(seed: int, contract: Contract) -> None:
    """After each call of a random program both ledgers are in one world, and no rule is broken in either."""
    assert run(seed, contract)["plan_store"] > 0


def test_programs_do_what_they_are_for() -> None:
    """The programs together take every way that a job can end, in numbers: else their agreement would say nothing."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        for contract in Contract:
            seen.update(run(seed, contract))

    assert seen["several stores in one call"] > 100
    assert seen["stores that ended together"] > 100
    assert {name: seen[name] > 10 for name in WANTED} == dict.fromkeys(WANTED, True)


# --- what many refuse ---------------------------------------------------------------------------------------------------


def source(ledger: Ledger, name: str, request: str = "a") -> GroupTransfer[Any]:
    """One sealed block that is to go into the slot of its number, under its name."""
    return GroupTransfer(sealed(ledger, request, keys(name)), [int(name)], keys(name))


def mixed() -> Ledger:
    """Two requests that hold something each, one slot with content, one on its way that nobody else holds."""
    ledger = make_ledger(num_blocks=12, num_slots=6, groups=2, requests=("a", "b"), max_jobs=4)
    ready(ledger, "r", 0)
    in_flight(ledger, "a", "w", 1)
    ledger.release("a", [1])
    ledger.allocate("a", 2)
    sealed(ledger, "b", keys("s"))
    return ledger


def test_several_stores_are_planned_all_or_none() -> None:
    """A good store that stands before or behind a bad one is not planned."""
    ledger = make_ledger(num_blocks=16, num_slots=6, max_jobs=3)
    ready(ledger, "r", 0)
    good, other, third, fourth = (source(ledger, name) for name in "1234")
    stale = Batch[Any]([int(ledger.blocks.life(1)) + (1 << 32)])
    cases: list[tuple[GroupTransfer[Any], type[Exception], str]] = [
        (GroupTransfer(other.blocks, [1], other.keys), MisuseError, "slot 1: it is named twice in one call"),
        (GroupTransfer(other.blocks, [0], other.keys), RefusedError, "slot 0: cannot RESERVE while READY"),
        (GroupTransfer(other.blocks, [2], keys("r")), MisuseError, "key 72: it is stored already"),
        (GroupTransfer(other.blocks, [2], keys("x")), MisuseError, "block 3: it holds 32, which cannot be stored as 78"),
        (GroupTransfer(good.blocks, [2], good.keys), MisuseError, "plan_store: a block is named twice in one call"),
        (GroupTransfer(stale, [2], keys("x")), MisuseError, "block 1: cannot plan_store its life 2, which is over"),
        (GroupTransfer(other.blocks, [2, 3], other.keys), MisuseError, "2 slots and 1 keys do not agree"),
        (GroupTransfer(Batch([]), [], []), MisuseError, "a job with nothing to copy cannot be built"),
    ]
    for bad, error, match in cases:
        for stores in ([good, bad], [bad, good]):
            with refuses(ledger, error, match):
                ledger.plan_store(*[Store("a", [transfer]) for transfer in stores])
    with refuses(ledger, CapacityError, r"4 jobs wanted, 3 of 3 can be made; let some land first \(max_jobs\)"):
        ledger.plan_store(*[Store("a", [transfer]) for transfer in (good, other, third, fourth)])
    ledger.plan_store(*[Store("a", [transfer]) for transfer in (good, other, third)])
    with refuses(ledger, CapacityError, r"all 3 jobs are out; let one land first \(max_jobs\)"):
        ledger.plan_store(Store("a", [fourth]))

    assert check(ledger) == []


def test_nothing_at_all_is_planned_without_a_trace() -> None:
    """No stores, no positions, no nulls: nothing happens, and that is no error."""
    ledger = mixed()
    with unchanged(ledger):
        planned = ledger.plan_store()
        ledger.release("a", [])
        ledger.skip("a", 0)

    assert planned.ids == ()


# --- what many give -----------------------------------------------------------------------------------------------------


def test_reports_of_one_call_count_each_for_its_own() -> None:
    """The second report of one worker within a run of good stores finds its job over; the others are not disturbed."""
    ledger = make_ledger(num_blocks=8)
    ids = [in_flight(ledger, "a", name, slot)[1] for slot, name in enumerate("pqr")]
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[*map(report, ids[:2]), report(ids[0], Result.FAILED), report(ids[2])])

    assert [ledger.jobs.state(job) for job in ids] == [Job.DONE] * 3
    assert ledger.counts.tally == {"duplicate": 1}
    assert ledger.counts.moved == {"STORE": 3}
    assert ledger.counts.ended == {"DONE": 3}
    assert check(ledger) == []


def test_jobs_of_one_call_take_their_steps_one_after_the_other() -> None:
    """Each record is of one job and names it, for listeners and in the journal."""
    ledger = make_ledger(num_blocks=8)
    transfers = [source(ledger, name) for name in "012"]
    heard: list[LedgerTransition] = []
    ledger.on(hook=heard.append)
    planned = ledger.plan_store(*[Store("a", [transfer]) for transfer in transfers])
    ledger.submit(planned)
    ledger.settle(ledger.dispatch(0.0).number, 0.0, completions=map(report, planned.ids))
    steps = [
        *(("block", "plan_store"), ("slot", "reserve")),
        *(("job", "submit"), ("block", "submit")),
        *(("job", "finish"), ("block", "land"), ("slot", "land")),
    ]

    assert [(each.machine, each.event, each.job) for each in heard] == [
        (machine, event, job) for part in (steps[:2], steps[2:4], steps[4:]) for job in (1, 2, 3) for machine, event in part
    ]
    assert all(len(each) == 1 and list(each.job_of_each()) == [each.job] for each in heard)
    assert [(each.machine, each.event, each.job) for each in ledger.journal][-7:] == [
        (each.machine, each.event, each.job) for each in heard
    ][-7:]
    assert ledger.journal.history("slot", 1) == [
        "plan 0: EMPTY --reserve--> WRITING (job 2)",
        "plan 1: WRITING --land [published]--> READY (job 2)",
    ]


def test_waits_are_counted_by_their_cause() -> None:
    """A wait counts once, for whoever ordered it first; a new plan counts anew."""
    ledger = make_ledger(num_blocks=4)
    ids = [in_flight(ledger, "a", name, slot)[1] for slot, name in enumerate("pq")]
    ledger.flush(Jobs(tuple(ids)), "last step")
    ledger.flush(Jobs((ids[0],)), "again")
    first = dict(ledger.counts.flushes)
    ledger.dispatch(0.0)
    ledger.flush(Jobs((ids[0],)))

    assert first == {"last step": 2}
    assert ledger.counts.flushes == {"last step": 2, "asked": 1}


def test_jobs_are_filed_under_their_owner() -> None:
    """As long as they are out, and through a snapshot; a store of nobody is nobody's."""
    ledger = make_ledger(num_blocks=8, requests=("a", "b"))
    first = ledger.plan_store(Store("a", [source(ledger, "0")]), Store(None, [source(ledger, "1")]))
    second = ledger.plan_store(Store("a", [source(ledger, "2")]), Store("b", [source(ledger, "3", "b")]))
    ledger.submit(first)
    saved = ledger.snapshot()
    filed = [owners(ledger)]
    waiting = [planned(ledger)]
    ledger.cancel(second)
    filed.append(owners(ledger))
    ledger.complete(report(first.ids[0]))
    filed.append(owners(ledger))
    ledger.plan_store(Store("b", [source(ledger, "2")]))
    ledger.restore(saved)
    filed.append(owners(ledger))
    waiting.append(planned(ledger))

    assert filed == [{"a": [1, 3], "b": [4]}, {"a": [1]}, {}, {"a": [1, 3], "b": [4]}]
    assert waiting == [[3, 4], [3, 4]]
    assert ledger.jobs.of("a").ids == first.ids[:1]
    assert ledger.jobs.of("b").ids == ledger.jobs.of("z").ids == ()
    assert ledger.jobs.submitted().ids == first.ids
    assert check(ledger) == []


def test_store_of_several_requests_is_each_of_theirs() -> None:
    """Whoever has content in it is told of it, counts it among what is out, and keeps doing so through a snapshot."""
    ledger = make_ledger(num_blocks=8, requests=("a", "b", "c"))
    (job,) = ledger.plan_store(Store("a", [source(ledger, "0")], ("b",))).ids
    ledger.submit(Jobs((job,)))
    saved = ledger.snapshot()
    out = owners(ledger)
    problems = check(ledger)
    ledger.complete(report(job))
    over = owners(ledger)
    ledger.restore(saved)

    assert (out, over, problems) == ({"a": [1], "b": [1]}, {}, [])
    assert ledger.jobs.of("a").ids == ledger.jobs.of("b").ids == (job,)
    assert ledger.jobs.of("c").ids == ()
    assert owners(ledger) == out
    assert check(ledger) == []


@BOTH
@pytest.mark.parametrize("count", [2, 60])
def test_load_that_fails_leaves_its_targets_to_others(count: int, contract: Contract) -> None:
    """Few and many targets of a failed load are free, nobody holds them, and they can be handed out again."""
    ledger = make_ledger(num_blocks=count + 1, num_slots=count, contract=contract)
    names = keys(*map(str, range(count)))
    filled = ledger.plan_store(Store.of(ledger.seal(ledger.allocate("a", count), names), list(range(count)), names))
    ledger.submit(filled)
    ledger.complete(report(filled.ids[0]))
    ledger.finish("a")
    ledger.add_request("b")
    load = ledger.plan_load("b", GroupTransfer(ledger.allocate("b", count), list(range(count))))
    ledger.submit(load)
    ledger.complete(report(load.ids[0], Result.FAILED))

    assert ledger.requests.state("b") is Request.WAITING
    assert check(ledger) == []
    assert (ledger.blocks.free, ledger.blocks.count_held()) == (count, 0)
    assert len(ledger.allocate("b", count)) == count
    assert check(ledger) == []


@pytest.mark.parametrize("count", [2, 60])
def test_targets_of_a_failed_load_stay_while_an_older_store_reads_them(count: int) -> None:
    """Few and many: the load has landed, and the blocks are handed out only when the store of their last life has, too."""
    ledger = make_ledger(num_blocks=count + 1, num_slots=2 * count)
    slots, names = list(range(2 * count)), keys(*map(str, range(2 * count)))
    filled = ledger.plan_store(Store.of(ledger.seal(ledger.allocate("a", count), names[:count]), slots[:count], names[:count]))
    ledger.submit(filled)
    ledger.complete(report(filled.ids[0]))
    ledger.release("a", range(count))
    store = ledger.plan_store(Store.of(ledger.seal(ledger.allocate("a", count), names[count:]), slots[count:], names[count:]))
    ledger.submit(store)
    ledger.finish("a")
    ledger.add_request("b")
    load = ledger.plan_load("b", GroupTransfer(ledger.allocate("b", count), slots[:count]))
    ledger.dispatch(0.0)  # the plan that loads waits for the store
    ledger.complete(report(load.ids[0], Result.FAILED))
    held = [ledger.blocks.state(place) for place in range(1, count + 1)]
    free = ledger.blocks.free
    ledger.complete(report(store.ids[0]))

    assert (set(held), free) == ({Block.STALE}, 0)
    assert ledger.blocks.free == count
    assert check(ledger) == []


@pytest.mark.parametrize("count", [5, 60])
def test_free_blocks_keep_their_order_for_ever(count: int) -> None:
    """Few and many at a time: what has content goes to the end, and nothing is lost or doubled however long that goes on."""
    ledger = make_ledger(num_blocks=10 * count + 1, requests=())
    free = list(range(1, 10 * count + 1))
    for turn in range(25):
        ledger.add_request("a")
        given = ledger.allocate("a", count)
        ids = [int(life) & ID_MASK for life in given.lives]
        ledger.seal(given, keys(*(f"{turn}.{number}" for number in range(count))))
        assert ids == free[:count], turn
        ledger.release("a", range(count))
        ledger.finish("a")
        free = free[count:] + ids
        assert ledger.blocks.free_order() == free, turn
        assert check(ledger) == []


def test_a_machine_with_more_states_than_a_byte_holds_is_refused() -> None:
    """At import, and not when a place is asked for the first time."""
    state = enum.Enum("State", {f"S{number}": number for number in range(17)})  # type: ignore[misc]
    table = attrs.evolve(MACHINES["block"], name="Wide", states=tuple(state))
    event = attrs.evolve(MACHINES["block"].events["seal"], table=table)

    with pytest.raises(DefinitionError, match="Wide: 17 states; the kernel has room for 16"):
        Rule(event, 0)
