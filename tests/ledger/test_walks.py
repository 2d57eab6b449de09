"""Long seeded walks over every verb, beside a device record, with every invariant checked after every call.

Goal: what no story thought of. Method: a walker plays engine, scheduler and workers at once. Its seed decides the world (pool,
workers, sizes) and how much it likes each verb, so that some walks starve one of them. After every call the ledger is counted
again (`invariants.check`), compared with what the device is doing (`worlds.compare`), and what it calls readable is compared
with the bytes that were promised. A finding is printed as a program that can be pasted.

The last part plants bugs and demands that the walks find them, with only one of the two truths at a time where that matters.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, cast

import pytest

from blocklife.core import _couplings as couplings
from blocklife.core._columns import Blocks, Core
from blocklife.core._moves import fire_job
from blocklife.core._rules import PlaceMove
from blocklife.core._tables import ALL_OK, BLOCK_RULES, J_FINISH, J_FLUSH, MORE, PLAN_STORE, RULES
from blocklife.errors import BlocklifeError, CapacityError, MisuseError
from blocklife.ledger import (
    Batch,
    Completion,
    Contract,
    GroupTransfer,
    JobId,
    Jobs,
    Launched,
    Ledger,
    Limits,
    Placement,
    Plan,
    Result,
    Seal,
    Store,
    Worker,
)
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK, NULL
from blocklife.ledger.invariants import check
from blocklife.ledger.views import View
from blocklife.states import KEYED, LENT, MACHINES, OUT_AND_WANTED, Block, Job, JobLife, Request, Slot, Trait, states_with
from blocklife.testing.judges._model import PLAIN
from tests.worlds import Claims, Content, Device, DeviceFault, compare, places_for, world_key

SEED = 20_000
NUM_WALKS, NUM_WALKS_NIGHTLY = 20, 60
"""In each world; those of the night are others."""
NUM_STEPS = 220
EVENTUALLY = 1e9
KEYS = [bytes([letter]) for letter in b"klmnopqrstuvwxyz"]

VERBS = [
    "add",
    "admit",
    "allocate",
    "bring_in",
    "squeeze",
    "launch",
    "seal",
    "hit",
    "plan_store",
    "plan_load",
    "release",
    "preempt",
    "finish",
    "cancel",
    "abandon",
    "flush",
    "drop",
    "evict",
    "pin",
    "unpin",
    "quiesce",
    "expire",
    "jump",
    "stale",
    "report",
    "reset",
    "reset_drained",
    "snapshot",
]
"""What the walker may like more or less; plans and their settling come in every step."""

DEEP = {
    "block: LOADING --land [own_pinned]--> STALE": "a load behind a fence is given up before the older copy is proven quiet",
    "block: LOADING --land [own_overdue]--> QUARANTINED": "the same, and the older copy is past its deadline by then",
    "block: LOADING --expire--> LOADING": "the older copy expires between the plan that waits for it and its settling",
    "block: LOADING --release [is_overdue]--> QUARANTINED": "the same, and then the request lets go",
    "block: FLUSHED --release [is_overdue]--> QUARANTINED": "the same, without a load",
    "block: STALE --land [pinned]--> STALE": "an older copy and an abandoned load, one of which lands",
    "block: QUARANTINED --expire--> QUARANTINED": "an older copy and an abandoned load, and both expire",
    "block: QUARANTINED --land [is_overdue]--> QUARANTINED": "the same, and one of them lands",
    "block: QUARANTINED --land [pinned]--> STALE": "an older copy and an abandoned load, of which one expires and lands first",
}
"""Rows that need two copies on one place; `test_journeys.py` takes each of them, a walk only by luck."""


class Finding(AssertionError):  # noqa: N818 - what it reports is no error of the test
    """Something that must hold does not; the message is the program that shows it."""


class Walker:
    """One seeded walk."""

    def __init__(self, seed: int, contract: Contract, workers: int, *, invariants: bool = True, device: bool = True) -> None:
        self.rnd = rnd = random.Random(f"{seed}/{contract.name}/{workers}")
        self.seed = f"seed {seed}, {contract.name}, {workers} workers"
        self.judges = (invariants, device)
        self.own = rnd.random() < 0.75
        sizes = {
            "num_blocks": rnd.choice((3, 3, 4, 6)),
            "num_slots": rnd.choice((2, 3, 5)),
            "max_jobs": rnd.choice((2, 4, 8)),
            "max_requests": rnd.choice((2, 4)),
            "num_groups": rnd.choice((1, 1, 2)),
            "num_workers": workers,
            "max_journal": 16,
        }
        self.deadline = deadline = rnd.choice((3.0, 9.0, 30.0))
        self.program = [f"ledger = Ledger(Limits(**{sizes}), contract={contract}, deadline={deadline}, own_pool={self.own})"]
        self.ledger = Ledger(Limits(**sizes), contract=contract, deadline=deadline, own_pool=self.own)
        self.device = Device(sizes["num_blocks"], sizes["num_slots"], workers, contract)
        self.sizes, self.workers = sizes, workers
        self.weights = [rnd.choice((0.0, 0.3, 1.0, 1.0, 3.0)) for _ in VERBS]
        for verb in ("add", "allocate", "bring_in", "squeeze", "seal", "plan_store"):
            self.weights[VERBS.index(verb)] += 2.0
        for verb in ("reset", "reset_drained", "cancel", "drop", "jump"):
            self.weights[VERBS.index(verb)] *= 0.1
        self.speed = rnd.choice((0.02, 0.1, 0.3))
        """How likely a worker is to be done with its share in one step."""
        self.reliable = rnd.choice((0.5, 0.9, 1.0))
        """How often a report arrives at all."""
        self.now = 0.0
        self.tenants: dict[int, tuple[Content, int]] = {}
        """What the tenant of a life computes or was promised, and the group."""
        self.open: dict[int, bool] = {}
        """Lives with open content, and whether a forward pass has written it."""
        self.over: list[int] = []
        """Lives that were named once; most of them are over."""
        self.seen: set[int] = set()
        """Every life that was ever given."""
        self.promised: dict[int, Content] = {}
        """What the slots hold, should they ever be READY."""
        self.inbox: list[Completion] = []
        self.started: list[Launched] = []
        self.plans: list[Plan] = []
        self.refusals: Counter[str] = Counter()

    # --- calling and judging ------------------------------------------------------------------------------------------------

    def call(self, verb: str, *args: object, refused: bool = False, **named: object) -> Any:
        """Call a verb, note it, judge the world. A refusal gives None; with *refused* it must come."""
        given = [spelt(each) for each in args] + [f"{name}={spelt(each)}" for name, each in named.items()]
        line = f"ledger.{verb}({', '.join(given)})"
        before = world_key(self.ledger)
        try:
            result = getattr(self.ledger, verb)(*args, **named)
        except (MisuseError, CapacityError) as refusal:
            self.refusals[type(refusal).__name__] += 1
            self.program.append(f"# refused: {line}")
            if world_key(self.ledger) != before:
                self.found("a refused call changed the world")
            return None
        except BlocklifeError as problem:
            self.program.append(line)
            self.found(f"{type(problem).__name__}: {problem}")
        self.program.append(line)
        if refused:
            self.found("this call must be refused")
        self.judge()
        return result

    def judge(self) -> None:
        """Ask both truths about the world as it is."""
        invariants, device = self.judges
        if invariants and (broken := check(self.ledger)):
            self.found(str(broken[0]))
        if device:
            self.on_device(lambda: compare(self.device, Claims(self.ledger)))
            for life, (content, _) in self.tenants.items():
                place = life & ID_MASK
                readable = self.ledger.blocks.life(place) == life and self.ledger.blocks.state(place) in KEYED
                if readable and self.device.blocks[place] != content:
                    self.found(f"block {place} promises {content} and holds {self.device.blocks[place]}")
            for slot, content in self.promised.items():
                if self.ledger.slots.state(slot) is Slot.READY and self.device.slots[slot] != content:
                    self.found(f"slot {slot} promises {content} and holds {self.device.slots[slot]}")

    def on_device(self, act: Callable[[], object]) -> None:
        """Let the device do something; a fault counts only where the device is asked at all."""
        try:
            act()
        except DeviceFault as fault:
            if self.judges[1]:
                self.found(f"DeviceFault: {fault}")

    def found(self, problem: str) -> NoReturn:
        """Raise a finding with the program so far."""
        raise Finding("\n".join([f"{self.seed}: {problem}", *self.program]))

    # --- the walk -----------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> Walker:
        """Walk, then drain."""
        for _ in range(steps):
            self.now += 1.0
            for verb in self.rnd.choices(VERBS, self.weights, k=self.rnd.randrange(6)):
                getattr(self, verb)()
            self.take_others()
            if len(self.plans) < 3 and self.rnd.random() < 0.6:
                self.dispatch()
            if self.plans and self.rnd.random() < 0.7:
                self.settle()
            self.work()
        self.drain()
        return self

    def take_others(self) -> None:
        """Events of a place and nothing else for which nothing stands here, seldom, and without the dice of the walk."""
        for verb, machine in PLAIN.items():
            if not hasattr(self, verb) and self.now % 7 == 0:
                self.call(verb, places_for(self.ledger, verb, machine)[:1])

    def request(self) -> str | None:
        """Any request."""
        return self.rnd.choice(list(self.ledger.requests)) if self.ledger.requests else None

    def lives(self, *states: Block) -> list[int]:
        """The current lives of the blocks in these states."""
        blocks = self.ledger.blocks
        return [self.ledger.blocks.life(place) for place in range(1, len(blocks)) if blocks.state(place) in states]

    def some(self, values: list[int], most: int = 2) -> list[int]:
        """A few of them, in any order."""
        return self.rnd.sample(values, min(len(values), self.rnd.randrange(1, most + 1)))

    def jobs(self, *states: Job) -> list[JobId]:
        """Jobs in these states."""
        return [JobId(1, job.number) for job in self.ledger.jobs.known() if job.state in states]

    def add(self) -> None:
        self.call("add_request", f"r{self.rnd.randrange(5)}")

    def admit(self) -> None:
        if request := self.request():
            self.call("admit", request)

    def allocate(self) -> None:
        if not (request := self.request()):
            return
        group, count = self.rnd.randrange(self.sizes["num_groups"]), self.rnd.randrange(1, 3)
        if self.own:
            batch = self.call("allocate", request, count, group)
        else:  # the engine's allocator hands out whatever it likes; what the contract forbids is refused
            chosen = self.rnd.sample(range(1, self.sizes["num_blocks"]), min(count, self.sizes["num_blocks"] - 1))
            batch = self.call("observe_place", request, [Placement(group, allocated=chosen)])
        if batch is None:
            return
        self._welcome(batch if self.own else batch[0])

    def squeeze(self) -> None:
        """A request that waits takes every block there is and one that is still busy, and loads into that one."""
        waiting = (Request.WAITING, Request.PREEMPTED)
        names = [name for name in self.ledger.requests if self.ledger.requests.state(name) in waiting]
        blocks = self.ledger.blocks
        lendable = [life & ID_MASK for life in self.lives(*LENT)]
        lendable = [block for block in lendable if not blocks.refs(block) and not blocks.writes(block)]
        if not names or not lendable or self.ledger.contract is not Contract.FENCE:
            return
        name = self.rnd.choice(names)
        if not self.own:
            batch = self.call("observe_place", name, [Placement(allocated=lendable[:1])])
        else:
            batch = self.call("allocate", name, self.ledger.blocks.free + 1)
        if batch:
            batch = batch if self.own else batch[0]
            self._welcome(batch)
            self.plan_load(name, life=int(batch.lives[-1]))

    def _welcome(self, batch: Batch[Any]) -> None:
        """Note new tenants, and tell the device."""
        for life in map(int, batch.lives):
            if life in self.seen:
                self.found(f"life {life >> EPOCH_SHIFT} of block {life & ID_MASK} was given twice")
            self.seen.add(life)
            self.tenants[life] = (self.rnd.choice(KEYS), life), batch.group
            self.open[life] = False
            self.over.append(life)
        self.over = self.over[-12:]
        keep = {*self.over, *self.lives(*Block)}
        self.tenants = {life: tenant for life, tenant in self.tenants.items() if life in keep}
        self.open = {life: written for life, written in self.open.items() if life in keep}
        self.on_device(lambda: self.device.handed_out([int(life) & ID_MASK for life in batch.lives]))

    def bring_in(self) -> None:
        """A request that waits gets blocks, and content for them if there is any: mostly it loads."""
        waiting = (Request.WAITING, Request.PREEMPTED)
        names = [name for name in self.ledger.requests if self.ledger.requests.state(name) in waiting]
        if not names or not self.own:
            return
        name, group = self.rnd.choice(names), self.rnd.randrange(self.sizes["num_groups"])
        has_room = any(life in self.open for life in self.ledger.requests.table(name, group))
        if not has_room and (batch := self.call("allocate", name, 1, group)):
            self._welcome(batch)
        self.plan_load(name, group)

    def seal(self) -> None:
        if not (request := self.request()):
            return
        group = self.rnd.randrange(self.sizes["num_groups"])
        mine = [life for life in self.ledger.requests.table(request, group) if life in self.open]
        flushed = [life for life in mine if self.ledger.blocks.state(life & ID_MASK) is Block.FLUSHED]
        lives = self.some([life for life in mine if self.open[life] and life not in flushed] or flushed)
        if lives:
            names = [self.tenants[life][0][0] for life in lives]
            if self.call("seal", Batch(lives, group), names, refused=bool(set(lives) & set(flushed))):
                for life in lives:
                    del self.open[life]

    def hit(self) -> None:
        group = self.rnd.randrange(self.sizes["num_groups"])
        lives = self.ledger.blocks.prefix([self.rnd.choice(KEYS)], group)
        if lives and (request := self.request()):
            if self.own or self.rnd.random() < 0.5:
                self.call("acquire", request, lives, group)
            else:
                self.call("observe_place", request, [Placement(group, taken=[life & ID_MASK for life in lives])])

    def plan_store(self) -> None:
        group = self.rnd.randrange(self.sizes["num_groups"])
        wanted = self.lives(Block.ALLOCATED, Block.SEALED, Block.CACHED)
        lives = self.some([life for life in wanted if self.tenants[life][1] == group])
        slots = self.ledger.slots.next_empty(len(lives))
        names = [self.tenants[life][0][0] for life in lives]
        if not slots:
            self.evict()
        if lives and len(slots) == len(lives) and len(set(names)) == len(names):
            owner = self.request() or ""
            if self.call("plan_store", Store(owner, [GroupTransfer(Batch(lives, group), slots, names)])):
                for life, slot in zip(lives, slots, strict=True):
                    self.promised[slot] = self.tenants[life][0]

    def plan_load(self, request: str | None = None, group: int = 0, life: int = NULL) -> None:
        if not (request := request or self.request()):
            return
        ready = [
            slot
            for slot in range(self.sizes["num_slots"])
            if self.ledger.slots.state(slot) is Slot.READY and self.ledger.slots.group(slot) == group
        ]
        wanted = [life for life in self.ledger.requests.table(request, group) if life in self.open]
        lives = [life] if life else self.some(wanted)
        slots = self.rnd.sample(ready, min(len(ready), len(lives)))
        lives = lives[: len(slots)]
        if lives and self.call("plan_load", request, GroupTransfer(Batch(lives, group), slots)):
            for life, slot in zip(lives, slots, strict=True):
                self.tenants[life] = self.promised[slot], group
                del self.open[life]

    def release(self) -> None:
        if request := self.request():
            group = self.rnd.randrange(self.sizes["num_groups"])
            table = self.ledger.requests.table(request, group)
            positions = self.some(list(range(len(table))), 3)
            if not positions:
                return
            if self.own or NULL in (table[each] for each in positions):
                self.call("release", request, positions, group)
            else:
                self.call("observe_free", request, [table[each] & ID_MASK for each in positions], group)

    def preempt(self) -> None:
        if request := self.request():
            self.call("preempt", request)

    def finish(self) -> None:
        if (request := self.request()) and self.rnd.random() < 0.5:
            self.call("finish", request)

    def _with_jobs(self, verb: str, *states: Job) -> None:
        if found := self.jobs(*states):
            self.call(verb, Jobs(tuple(self.rnd.sample(found, self.rnd.randrange(1, min(3, len(found)) + 1)))))

    def cancel(self) -> None:
        self._with_jobs("cancel", Job.PLANNED, Job.PLANNED, Job.IN_FLIGHT)

    def abandon(self) -> None:
        self._with_jobs("abandon", Job.IN_FLIGHT, Job.AWAITED, Job.UNWANTED)

    def flush(self) -> None:
        self._with_jobs("flush", Job.IN_FLIGHT, Job.AWAITED, Job.UNWANTED, Job.QUARANTINED)

    def drop(self) -> None:
        if lives := self.some(self.lives(Block.CACHED, Block.IN_FLIGHT, Block.PENDING_STORE)):
            if self.own:
                self.call("drop", lives)
            else:
                self.call("drop", [self.ledger.blocks.life(life & ID_MASK) for life in lives])

    def evict(self) -> None:
        self.call("evict", self.some(list(range(self.sizes["num_slots"]))))

    def pin(self) -> None:
        self.call("pin", self.rnd.choice("pq"), self.some(list(range(self.sizes["num_slots"]))))

    def unpin(self) -> None:
        self.call("unpin", self.rnd.choice("pq"), self.some(list(range(self.sizes["num_slots"]))))

    def quiesce(self) -> None:
        every = self.rnd.random() < 0.1
        if found := self.jobs(Job.QUARANTINED, *((Job.UNWANTED, Job.AWAITED, Job.IN_FLIGHT) if every else ())):
            chosen = self.rnd.sample(found, 1)
            self.on_device(lambda: self.device.quiet(chosen[0]))
            self.call("quiesce", Jobs(tuple(chosen)))

    def expire(self) -> None:
        self.call("expire", self.now)

    def jump(self) -> None:
        """Much time passes between two steps: whatever was launched is late."""
        self.now += self.deadline
        self.call("expire", self.now)

    def launch(self) -> None:
        """Hear of a launch as soon as it happens, before the plan settles."""
        if self.started:
            self.call("launched", self.started.pop(), self.now)

    def stale(self) -> None:
        """Use a name that may be old: whatever is over must be refused, or be passed over."""
        if not self.over or not (request := self.request()):
            return
        life = self.rnd.choice(self.over)
        group = self.tenants[life][1]
        if self.ledger.blocks.is_current(life):
            return
        name = self.tenants[life][0][0]
        act = self.rnd.randrange(5)
        if act == 0:
            self.call("acquire", request, [life], group)
        elif act == 1 and (slots := self.ledger.slots.next_empty(1)):
            if self.call("plan_store", Store(None, [GroupTransfer(Batch([life], group), slots, [name])])):
                self.promised[slots[0]] = self.tenants[life][0]
        elif act == 2:
            self.call("drop", [life])
        elif act == 3:
            self.call("seal", Batch([life], group), [name])
        elif act == 4:
            self.call("plan_load", request, GroupTransfer(Batch([life], group), [0]))

    def report(self) -> None:
        """Apply one report at once, out of any plan; or one that cannot be right."""
        act = self.rnd.randrange(4)
        if act < 2 and self.inbox:
            self.call("complete", self.inbox.pop(self.rnd.randrange(len(self.inbox))))
        elif act == 2:
            number = self.rnd.randrange(1, self.ledger.jobs.last_number + 3)
            self.call("complete", Completion(JobId(2, number), Worker(0), Result.OK))
        else:
            number = self.rnd.randrange(1, self.ledger.jobs.last_number + 2)
            self.call("complete", Completion(JobId(1, number), Worker(self.workers), Result.OK))

    def reset(self) -> None:
        self.call("reset")

    def reset_drained(self) -> None:
        self.call("reset", drain=True)

    def snapshot(self) -> None:
        """A round trip changes nothing, in the middle of anything."""
        before = world_key(self.ledger)
        self.ledger.restore(self.ledger.snapshot())
        if world_key(self.ledger) != before:
            self.found("a round trip through a snapshot changed the world")

    # --- plans and workers --------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        plan = cast(Plan, self.call("dispatch", self.now))
        self.plans.append(plan)
        writes: dict[int, Content] = {}
        for request in self.ledger.requests:
            if self.ledger.requests.state(request) is not Request.LOADING:
                for life in itertools.chain(
                    *(self.ledger.requests.table(request, each) for each in range(self.sizes["num_groups"]))
                ):
                    if life in self.open:
                        writes[life & ID_MASK] = self.tenants[life][0]
                        self.open[life] = True
        self.on_device(lambda: self._execute(plan, writes))
        for transfer in (*plan.loads, *plan.stores):
            for worker in range(self.workers):
                if self.rnd.random() < self.reliable:
                    self.started.append(Launched(transfer.job, Worker(worker)))
        self.judge()

    def _execute(self, plan: Plan, writes: dict[int, Content]) -> None:
        for job, worker, ok in self.device.run(plan, writes, lambda _: self.rnd.random() < 0.8):
            self._post(job, worker, ok)

    def _post(self, job: JobId, worker: int, ok: bool) -> None:
        """A report is on its way: it may be lost, and it may come twice."""
        record = Completion(job, Worker(worker), Result.OK if ok else Result.FAILED)
        if self.rnd.random() < self.reliable:
            self.inbox.append(record)
        if self.rnd.random() < 0.1:
            self.inbox.append(record)

    def work(self) -> None:
        """Some copies land."""
        for job, copy in list(self.device.copies.items()):
            for worker in sorted(copy.pending):
                if self.rnd.random() < self.speed:
                    ok = self.rnd.random() < 0.8
                    self.on_device(functools.partial(self.device.land, job, worker, ok))
                    self._post(job, worker, ok)

    def settle(self) -> None:
        plan = self.plans[0]
        if self.rnd.random() < 0.05 and len(self.plans) > 1:
            self.call("settle", self.plans[1].number, self.now, refused=True)
        self.rnd.shuffle(self.inbox)
        count = self.rnd.randrange(len(self.inbox) + 1)
        came, self.inbox = self.inbox[:count], self.inbox[count:]
        forged = self.rnd.random() < 0.03
        if forged:
            number = self.ledger.jobs.last_number
            self.call(
                *("settle", plan.number, self.now),
                completions=[*came, Completion(JobId(1, number), Worker(-1), Result.OK)],
                refused=True,
            )
        seals = []
        if self.rnd.random() < 0.5:
            ready = [life for life, written in self.open.items() if written and self.tenants[life][1] == 0]
            if lives := self.some(ready, 3) if ready else []:
                seals.append(Seal(0, lives, [self.tenants[life][0][0] for life in lives]))
        before = self.ledger.jobs.last_number, len(self.ledger.plans.out)
        self.call("settle", plan.number, self.now, launched=self.started, completions=came, seals=seals)
        if len(self.ledger.plans.out) == before[1]:  # the seals came too early; without them it goes
            seals = []
            self.call("settle", plan.number, self.now, launched=self.started, completions=came)
        self.started = []
        self.plans.pop(0)
        for seal in seals:
            for life in map(int, seal.lives):
                del self.open[life]

    def drain(self) -> None:
        """Every way out leads home: nothing alive, nothing pinned, every place accounted for."""
        ledger = self.ledger
        for request in list(ledger.requests):
            self.call("finish", request)
        while ledger.slots.holders:
            holder, held = next(iter(ledger.slots.holders.items()))
            self.call("unpin", holder, list(held))
        while self.plans:
            self.settle()
        self.dispatch()
        if self.rnd.random() < 0.5:
            self.call("flush", ledger.jobs.submitted())
            self.dispatch()
            while self.plans:
                self.settle()
        else:
            self.call(
                "settle",
                self.plans.pop().number,
                self.now,
                launched=[Launched(job, Worker(0)) for job in ledger.jobs.submitted().ids],
            )
            self.call("expire", EVENTUALLY)
            jobs = ledger.jobs.submitted()
            for job in jobs.ids:
                self.on_device(functools.partial(self.device.quiet, job))
            self.call("quiesce", jobs)
        blocks, slots, now = ledger.blocks, ledger.slots, ledger.statistics()
        counts = [
            count(at)
            for count in (blocks.pins, blocks.refs, blocks.writes, blocks.overdue, blocks.job)
            for at in range(len(blocks))
        ]
        counts += map(slots.pins, range(len(slots)))
        idle = sum(now.blocks[state.name] for state in states_with(Trait.FREE, Block))
        if any(counts) or ledger.has_pending_work() or now.jobs_alive:
            self.found("after the drain something is still held")
        if idle != now.free or idle != self.sizes["num_blocks"] - 1:
            self.found(f"after the drain {idle} blocks are idle and {now.free} free")
        if now.slots["EMPTY"] + now.slots["READY"] != self.sizes["num_slots"]:
            self.found(f"after the drain slots are {dict(now.slots)}")


def spelt(value: object) -> str:
    """A value as it is written in a program."""
    return re.sub(r"<(Result\.\w+): [^>]*>", r"\1", repr(value))


def rows_taken(ledger: Ledger) -> Counter[str]:
    """How often each row of each table was taken."""
    views: dict[str, View] = {"block": ledger.blocks, "slot": ledger.slots, "job": ledger.jobs, "request": ledger.requests}
    return Counter({f"{name}: {row}": count for name, view in views.items() for row, count in view.row_counts()})


WORLDS = [(contract, workers) for contract in Contract for workers in (1, 2)]


@pytest.fixture(scope="module")
def all_walks() -> tuple[Counter[str], Counter[str]]:
    """The walks of a build, once: the rows taken, and the refusals met."""
    return walked(range(NUM_WALKS))


def walked(numbers: Iterable[int]) -> tuple[Counter[str], Counter[str]]:
    """Walks through every world: the rows taken, and the refusals met."""
    taken: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for number in numbers:
        for contract, workers in WORLDS:
            walker = Walker(SEED + number, contract, workers).run(NUM_STEPS)
            taken.update(rows_taken(walker.ledger))
            refusals.update(walker.refusals)
    return taken, refusals


def test_walks_find_nothing_and_drain(all_walks: tuple[Counter[str], Counter[str]]) -> None:
    """Under both contracts, with one worker and two, no call breaks a rule, and every walk ends with nothing held."""
    _, refusals = all_walks

    assert refusals["MisuseError"] > 1000
    assert refusals["CapacityError"] > 100


@pytest.mark.slow
def test_more_walks_find_nothing_and_drain() -> None:
    """The same, further on."""
    _, refusals = walked(range(NUM_WALKS, NUM_WALKS + NUM_WALKS_NIGHTLY))

    assert refusals["MisuseError"] > 1000


def test_walks_take_every_row_but_those_listed(all_walks: tuple[Counter[str], Counter[str]]) -> None:
    """A row that is never taken is either impossible, and says why, or a blind spot."""
    taken, _ = all_walks
    every = {f"{name}: {row}" for name, table in MACHINES.items() for row in table.rows}

    assert {row for row in every if not taken[row]} - set(DEEP) == set()


def test_walk_is_repeated_by_its_program() -> None:
    """What a finding prints leads a new ledger to the same state, call by call."""
    walker = Walker(SEED, Contract.FENCE, 2)
    walker.run(60)
    scope: dict[str, object] = dict(globals())
    exec("\n".join(walker.program), scope)
    repeated = scope["ledger"]

    assert isinstance(repeated, Ledger)
    assert world_key(repeated) == world_key(walker.ledger)


def test_walk_is_a_function_of_its_seed() -> None:
    """Two walks with one seed make the same calls."""
    first, second = (Walker(SEED + 1, Contract.HOLD, 1).run(60) for _ in range(2))

    assert first.program == second.program


# --- planted bugs -------------------------------------------------------------------------------------------------------


def findings(*, invariants: bool = True, device: bool = True, walks: int = 20) -> str:
    """What some walks say first about a ledger with a planted bug, one line each; empty if they see nothing."""
    found = []
    for number in range(walks):
        try:
            Walker(SEED + number, Contract.FENCE, 1, invariants=invariants, device=device).run(120)
        except Finding as finding:
            found.append(str(finding).splitlines()[0].partition(": ")[2])
    return "\n".join(found)


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """Puts the look-ups back."""
    blocks, jobs = tuple(map(bytes, BLOCK_RULES["release"].tables)), bytes(RULES.job_rows)
    yield
    BLOCK_RULES["release"].load(blocks)
    RULES.job_rows[:] = jobs


def plant_early_release() -> None:
    """The last release of a block frees it although a store reads it."""
    table, event = MACHINES["block"], MACHINES["block"].events["release"]
    width = len(event.guards)
    freed = next(row.index for row in event.rows if row.target is Block.FREED)
    held = next(bit for bit, each in enumerate(event.guards) if each.name == "held")
    lut = bytearray(event.lut)
    for facts in range(1 << width):
        if not facts >> held & 1:
            lut[table.index[Block.IN_FLIGHT] << width | facts] = freed
    BLOCK_RULES["release"].load(BLOCK_RULES["release"].rows_of(bytes(lut)))


def plant_forgotten_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reference counts as fresh."""
    monkeypatch.setattr(Blocks, "is_current", lambda blocks, life: True)


def plant_published_failure() -> None:
    """A job whose copy failed is DONE all the same."""
    for state in OUT_AND_WANTED:
        start = J_FINISH << 6 | JobLife.table.index[state] << 2
        for facts in (0, MORE):
            RULES.job_rows[start | facts] = RULES.job_rows[start | facts | ALL_OK]


def plant_unordered_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-out forgets to put the wait into the plan."""

    def flush(core: Core, row: int, cause: str) -> int:
        return fire_job(core, row, J_FLUSH, 0)

    monkeypatch.setattr(couplings, "flush", flush)


def plant_pins(monkeypatch: pytest.MonkeyPatch, moves: Iterable[PlaceMove], pins: int) -> None:
    """One event of a block changes its pins by another number."""
    for move in moves:
        monkeypatch.setattr(move, "pins", pins)


def test_early_release_is_found() -> None:
    """A block that is freed while the device reads it is seen by the invariants, and by the device alone."""
    plant_early_release()

    assert "I1: block" in findings(device=False)
    assert re.search(r"DeviceFault: copy \S+ touches block \d+, which is FREED in the ledger", findings(invariants=False))


@pytest.mark.interpreted
def test_forgotten_epoch_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to a life that is over is not taken for one to the new tenant."""
    plant_forgotten_epoch(monkeypatch)

    assert findings(invariants=False)
    assert findings(device=False)


def test_failed_copy_published_is_found() -> None:
    """Bytes that did not arrive are not readable: the verdict is counted again, and the bytes are looked at."""
    plant_published_failure()

    assert re.search(r"I9: job \d+ is DONE with reports", findings(device=False))
    assert re.search(r"(slot|block) \d+ promises .* and holds None", findings(invariants=False))


@pytest.mark.interpreted
def test_flush_not_ordered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait nobody may write: the invariants miss it in the books, the device in the plan."""
    plant_unordered_flush(monkeypatch)

    assert re.search(r"I12: block \d+ is FLUSHED and no plan waits", findings(device=False))
    assert re.search(r"DeviceFault: plan \d+ does not wait for copy", findings(invariants=False))


@pytest.mark.interpreted
def test_forgotten_pin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planned store that does not pin its source is seen at once."""
    plant_pins(monkeypatch, [RULES.moves[PLAN_STORE]], 0)

    assert re.search(r"I1: pins of place \d+ say 0, counted 1", findings(device=False))


@pytest.mark.interpreted
def test_unpin_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A landing that takes two pins is an error, never a clamp."""
    plant_pins(monkeypatch, RULES.land, -2)

    assert "pins would fall below zero (I4)" in findings(device=False)
    assert "pins would fall below zero (I4)" in findings(invariants=False)


def test_nothing_is_found_where_nothing_is_planted() -> None:
    """The same walks are silent about the ledger as it is."""
    assert findings() == ""
