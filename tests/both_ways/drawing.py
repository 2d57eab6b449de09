"""Draws calls of every verb of a ledger, from what the ledger says of itself.

A walk draws verbs and their arguments, many of them wrong: old lives, slots that are taken, jobs that are over, reports that
cannot be right. Its seed decides the world and how much each verb is liked. A call that is refused must leave the world as it
was, and after every call the ledger is counted again (`invariants.check`).

Two copies seldom touch one place if each verb is drawn alone. So `squeeze` hands out a block that a store still reads, and
loads into it; calls that end jobs or report landings mostly name jobs that touch such a block (`crowded`), and half of all
releases give up blocks with a copy.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from attrs import frozen

from blocklife.errors import CapacityError, LateError, MisuseError
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
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK
from blocklife.ledger.invariants import check
from blocklife.states import (
    ADMISSIBLE,
    LENT,
    STORABLE,
    Block,
    BlockLife,
    Job,
    Slot,
    Trait,
    states_before,
    states_with,
)
from tests.proof.ledger_world.settings import PLAIN
from tests.worlds import places_for, world_key

DEADLINE = 20.0
LATE = (5, 25, 25)
"""How much time passes at once: too little for a copy to be late, or enough."""
KNOTS = 5
"""How many more knots there are for each leg, under the contract that lets a block go on while a copy reads it."""
SEALABLE, LOADABLE = (states_before(BlockLife.table.events[each], Block) for each in ("seal", "plan_load"))
"""States in which content can become final, and in which a block can become the target of a load."""
REFUSALS = (MisuseError, CapacityError, LateError)

Said = Callable[[str, Ledger], object]
"""Hears of each call, with what came of it."""


@frozen
class Shape:
    """What the name of a walk tells of its world; the seed draws the rest."""

    contract: Contract
    own_pool: bool
    workers: int

    def __str__(self) -> str:
        return f"{self.contract.name.lower()}, {'own' if self.own_pool else 'foreign'} pool, {self.workers} workers"


SHAPES = [Shape(*each) for each in product(Contract, (True, False), (1, 2, 3))]


def shown(result: object) -> object:
    """What a call has returned, as a value; of a plan everything that goes to the workers."""
    if not isinstance(result, Plan):
        return result
    moves = [
        (each.job, each.direction.name, each.source.tolist(), each.target.tolist(), each.group_sizes)
        for each in (*result.loads, *result.stores)
    ]
    below = [
        (each.job, each.slots.tolist(), each.groups, each.keys, each.space) for each in (*result.promotes, *result.demotes)
    ]
    return result.number, moves, below, result.flushes


class Drawer:
    """One walk: a ledger, and a die."""

    def __init__(self, shape: Shape, seed: int, said: Said, *, judged: bool = True) -> None:
        self.name = f"{shape}, seed {seed}"
        self.dice = dice = random.Random(f"{shape}/{seed}")
        self.own, self.fence, self.workers = shape.own_pool, shape.contract is Contract.FENCE, shape.workers
        small = dice.random() < 0.6
        self.groups = dice.choice((1, 1, 2) if small else (1, 2, 3))
        limits = Limits(
            num_blocks=dice.choice((3, 4, 6)) if small else dice.randint(4, 24),
            num_slots=dice.choice((2, 3, 5)) if small else dice.randint(3, 16),
            num_groups=self.groups,
            num_workers=shape.workers,
            max_jobs=dice.choice((3, 6, 12)),
            max_requests=dice.choice((3, 6)),
            max_plans=5,
            max_journal=16,
        )
        indexed = self.own or dice.random() < 0.5
        self.ledger = Ledger(
            limits, contract=shape.contract, deadline=DEADLINE, own_pool=self.own, indexed=indexed, errors="raise"
        )
        self.said, self.judged = said, judged
        self.now = 0.0
        self.serial = self.keys = 0
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.over: list[int] = []
        """Lives that were handed out; most of them are over."""
        self.verbs = list(self._verbs())
        self.likes = [weight * dice.choice((0.3, 1.0, 1.0, 3.0)) for weight, _ in self.verbs]

    def _verbs(self) -> Iterator[tuple[float, Callable[[str, int], object]]]:
        """Every way to go on, and how often it is taken."""
        yield from ((14, self.hand_out), (4, self.admit), (2, self.give_up), (4, self.release), (14, self.seal), (5, self.hit))
        yield from ((1.5, self.drop), (9, self.store), (9, self.load), (4, self.end_jobs), (9, self.dispatch))
        yield from ((10, self.settle), (5, self.complete), (2, self.launch), (1, self.expire), (3, self.pin))
        yield from ((1, self.evict), (3, self.below), (0.3, self.lose), (0.3, self.reset), (0.8, self.reopen))
        yield from ((0.5, self.restore), (0.6, self.first), (0.5, self.submit), (0.6, self.finish_many))
        yield from ((6, self.bring_in), (6, self.squeeze), (1, self.stale))
        yield from ((1, self.event_of(verb, machine)) for verb, machine in PLAIN.items() if not hasattr(self, verb))

    # --- calls

    def call(self, verb: str, *args: object, **named: object) -> Any:
        """Make one call; None where it is refused, which changes nothing."""
        of, _, method = verb.rpartition(".")
        ledger: Any = self.ledger
        before = world_key(ledger) if self.judged else None
        try:
            result = getattr(ledger._rows if of else ledger, method)(*args, **named)
        except REFUSALS as refusal:
            self.refused[type(refusal).__name__] += 1
            result, came = None, f"refused: {type(refusal).__name__}: {refusal}"
            assert not self.judged or world_key(ledger) == before, f"{self.name}: {verb}{args} is refused and changes the world"
        else:
            self.done[verb] += 1
            came = f"-> {shown(result)}"
        self.said(f"{verb}{args}{named or ''} {came}", ledger)
        assert not self.judged or check(ledger) == [], f"{self.name}: {verb}{args}"
        return result

    def step(self) -> None:
        """One call, or a few that belong together."""
        name, group = self.request(), self.dice.randrange(self.groups)
        full = len(self.ledger.requests) == self.ledger.limits.max_requests
        if name is None or self.dice.random() < (0.005 if full else 0.06):
            self.serial += 1
            fresh = f"r{self.serial}" if self.dice.random() < 0.9 else f"r{self.dice.randint(1, self.serial)}"
            self.call("add_request", fresh)
            return
        ((_, chosen),) = self.dice.choices(self.verbs, self.likes)
        chosen(name, group)

    def run(self, legs: int, steps: int) -> Drawer:
        """Walk in legs: each begins in an empty ledger with a knot, goes on at random, and drains."""
        for _ in range(legs):
            for most in (steps, *[0] * (KNOTS * self.fence)):
                self.knot()
                for _ in range(most):
                    self.step()
                self.drain()
        return self

    def knot(self) -> None:
        """A request leaves a block that is being stored; another gets it, and loads into it."""
        group = self.dice.randrange(self.groups)
        self.leave(group)
        self.squeeze("", group)

    def drain(self) -> None:
        """Every way out leads home: nothing is alive, nothing held, and no wait is left."""
        ledger = self.ledger
        for name in list(ledger.requests):
            self.call("finish", name)
        while held := ledger.slots.holders.get("h"):
            self.call("unpin", "h", list(held))
        while ledger.plans.out:
            self.call("settle", ledger.plans.out[0], self.now)
        if planned := self.in_state(Job.PLANNED):
            self.call("cancel", self.handle(*planned))
        if out := self.in_state(Job.IN_FLIGHT):
            self.call("flush", self.handle(*out))
        if out := self.out():
            self.call("quiesce", self.handle(*out))
        self.call("evict", ledger.slots.where(Slot.READY))
        self.call("drop", [ledger.blocks.life(each) for each in self.blocks() if ledger.blocks.state(each) is Block.CACHED])
        self.call("dispatch", self.now)
        self.call("settle", ledger.plans.out[0], self.now)
        left = ledger.statistics()
        assert (left.jobs_alive, left.requests, left.free) == (0, 0, len(self.blocks())), f"{self.name}: {left}"
        assert left.slots["EMPTY"] == len(ledger.slots), f"{self.name}: {left}"

    # --- drawing

    def key(self) -> bytes:
        """A key, now and then one that there was before."""
        if self.keys and self.dice.random() < 0.3:
            return self.dice.randrange(self.keys).to_bytes(4, "little")
        self.keys += 1
        return self.keys.to_bytes(4, "little")

    def some(self, values: list[Any], most: int) -> list[Any]:
        """A few of them, in any order."""
        return self.dice.sample(values, min(len(values), self.dice.randint(1, most)))

    def request(self) -> str | None:
        """Any request."""
        names = list(self.ledger.requests)
        return self.dice.choice(names) if names else None

    def table(self, name: str, group: int) -> list[int]:
        """The lives that a request holds; none where it has gone meanwhile."""
        requests = self.ledger.requests
        return list(requests.table(name, group)) if name in requests else []

    def blocks(self) -> range:
        """All blocks but the null block."""
        return range(1, len(self.ledger.blocks))

    def job(self, number: int) -> JobId:
        """The name of a job."""
        return JobId(1, number)

    def handle(self, *numbers: int) -> Jobs[Any]:
        """A handle, whatever the state."""
        return Jobs(tuple(map(self.job, numbers)))

    def crowded(self) -> set[int]:
        """The jobs that touch a place which two copies touch, or one that is late and was handed out again."""
        blocks = self.ledger.blocks
        places = {each for each in self.blocks() if blocks.pins(each) > 1 or (blocks.pins(each) and blocks.overdue(each))}
        return {
            job.number
            for job in self.ledger.jobs.alive()
            if job.direction.on_device and not places.isdisjoint(life & ID_MASK for life in job.lives)
        }

    def jobs(self, numbers: list[int], most: int) -> list[int]:
        """A few of these jobs, mostly of those that share a place with another."""
        near = sorted(self.crowded().intersection(numbers))
        return self.some(near if near and self.dice.random() < 0.7 else numbers, most)

    def in_state(self, *states: Job) -> list[int]:
        """The jobs in these states."""
        return [job.number for job in self.ledger.jobs.alive() if job.state in states]

    def out(self) -> list[int]:
        """The jobs that the workers have."""
        return [job.number for job in self.ledger.jobs.alive() if job.state is not Job.PLANNED]

    # --- requests and blocks

    def hand_out(self, name: str, group: int) -> None:
        """Blocks, or a table that the engine has filled, hits and holes included."""
        if not self.free() and self.dice.random() < 0.8:
            self.make_room(name)
        elif self.own:
            most = 4 if self.dice.random() < 0.1 else max(1, min(4, self.ledger.blocks.free))
            self.welcome(self.call("allocate", name, self.dice.randint(1, most), group))
        else:
            self.place(name, group)

    def make_room(self, name: str) -> None:
        """A request gives its blocks back, or late copies are proven quiet."""
        if (late := self.in_state(Job.QUARANTINED)) and self.dice.random() < 0.5:
            self.call("quiesce", self.handle(*late))
        else:
            verb = "roll_back" if self.ledger.requests.state(name) in ADMISSIBLE else "preempt"
            self.call("finish" if self.dice.random() < 0.3 else verb, name)

    def place(self, name: str, group: int) -> None:
        """What the engine has put into a table: fresh blocks, hits and holes."""
        blocks = self.ledger.blocks
        busy = [each for each in self.blocks() if blocks.state(each) in LENT] if self.dice.random() < 0.4 else []
        free = sorted([*self.free(), *busy])
        if self.dice.random() < 0.05:
            free = list(self.blocks())
        named = [block for _, _, block in blocks.named() if blocks.group(block) == group]
        hits = self.some(named, 2) if named and self.dice.random() < 0.5 else []
        placed = Placement(group, int(self.dice.random() < 0.3), hits, self.some(free, 4) if free else [])
        self.welcome(self.call("observe_place", name, [placed]))

    def welcome(self, found: Any) -> list[int]:
        """Note the lives that begin; returns them."""
        batches = found if isinstance(found, list) else [] if found is None else [found]
        fresh = [int(life) for batch in batches for life in batch.lives]
        self.over = [*self.over, *fresh][-12:]
        return fresh

    def waiting(self) -> str | None:
        """A request that may load: one that waits, or else one that is preempted for it, or comes."""
        requests = self.ledger.requests
        if waiting := [each for each in requests if requests.state(each) in ADMISSIBLE]:
            return self.dice.choice(waiting)
        if len(requests) < self.ledger.limits.max_requests:
            self.serial += 1
            self.call("add_request", f"r{self.serial}")
            return f"r{self.serial}"
        self.call("preempt", self.dice.choice(list(requests)))
        return None

    def fill(self, group: int) -> list[int]:
        """Slots that can be read; where there are none, some are filled from below."""
        if not (ready := self.ready(group)):
            empty = self.ledger.slots.next_empty(2)
            if empty and (jobs := self.call("plan_promotion", empty, [self.key() for _ in empty], group)):
                self.call("submit", jobs)
                self.land(jobs)
        return ready or self.ready(group)

    def land(self, jobs: Jobs[Any], result: Result = Result.OK) -> None:
        """Every worker says so."""
        for job, worker in product(jobs.ids, range(self.workers)):
            self.call("complete", Completion(job, Worker(worker), result))

    def bring_in(self, name: str, group: int) -> None:
        """A request that waits gets blocks, and a load into some of them."""
        waiting, ready = self.waiting(), self.fill(group)
        if waiting is None or not ready:
            return
        if self.own:
            self.welcome(self.call("allocate", waiting, self.dice.randint(1, 2), group))
        elif free := self.free():
            self.welcome(self.call("observe_place", waiting, [Placement(group, allocated=self.some(free, 2))]))
        self.load(waiting, group)
        if self.dice.random() < 0.5:
            self.submit(waiting, group)

    def free(self) -> list[int]:
        """The blocks that may be handed out under every contract."""
        return [each for each in self.blocks() if self.ledger.blocks.state(each) in states_with(Trait.FREE, Block)]

    def squeeze(self, name: str, group: int) -> None:
        """A request that waits gets a block that a copy still reads, all free ones before it, and mostly loads into it."""
        blocks = self.ledger.blocks
        lent = [each for each in self.blocks() if blocks.state(each) in LENT]
        busy = [each for each in lent if not blocks.refs(each) and not blocks.writes(each)]
        if not busy or not self.fence or (waiting := self.waiting()) is None:
            return
        if self.own:
            found = self.call("allocate", waiting, blocks.free + 1, group)
        else:
            found = self.call("observe_place", waiting, [Placement(group, allocated=self.some(busy, 1))])
        if lives := self.welcome(found):
            jobs = None
            if (ready := self.ready(group)) and self.dice.random() < 0.8:
                jobs = self.call("plan_load", waiting, GroupTransfer(Batch(lives[-1:], group), self.dice.sample(ready, 1)))
            if self.dice.random() < 0.8:
                self.call("dispatch", self.now)
            self.tangle(jobs or self.handle(), waiting)

    def tangle(self, load: Jobs[Any], name: str) -> None:
        """Two copies touch one block: they land, fail, are late, and are given up, in any order."""
        if self.dice.random() < 0.6:
            self.begin(list(load.ids))
        for _ in range(self.dice.randint(1, 7)):
            older = self.handle(*sorted(self.crowded() - {job.number for job in load.ids}))
            act = self.dice.choice((0, 0, 1, 2, 3, 4, 5, 6, 7, 8))
            if act < 2:
                self.expire("", 0)
            elif act < 3:
                self.begin([*load.ids, *older.ids])
            elif act < 5 and name in self.ledger.requests:
                self.call(self.dice.choice(("preempt", "finish", "roll_back")), name)
            elif act < 6 and load.ids:
                self.land(load, self.dice.choice(list(Result)))
            elif act < 7 and older.ids:
                self.land(older)
            elif older.ids:
                self.call(self.dice.choice(("flush", "quiesce", "abandon")), older)

    def leave(self, group: int) -> None:
        """A new request leaves a block that is being stored, and that is perhaps late or given up."""
        slots = self.fill(group)
        if (name := self.waiting()) is None or not (empty := self.ledger.slots.next_empty(1)):
            return
        if self.own:
            held = self.call("allocate", name, 1, group)
        elif held := self.call("observe_place", name, [Placement(group, allocated=self.some(self.free(), 1))]):
            held = held[0]
        key = self.key()
        if not held:
            return
        self.call("admit", name)
        store = Store(name, [GroupTransfer(held, empty, [key])])
        early = self.dice.random() < 0.3
        jobs = self.call("plan_store", store) if early else None
        self.call("seal", held, [key])
        jobs = jobs or self.call("plan_store", store)
        if jobs is None:
            return
        if self.dice.random() < 0.9:
            self.call("submit", jobs)
        for act in self.dice.sample(range(5), self.dice.randint(1, 3)):
            if act == 0:
                self.begin(list(jobs.ids))
            elif act == 1 or act == 4:
                self.expire("", 0)
            elif act == 2 and self.dice.random() < 0.3:
                self.call("abandon", jobs)
            elif act == 3 and name in self.ledger.requests:
                self.call("release", name, [0], group)
        if name in self.ledger.requests:
            self.call("preempt" if self.dice.random() < 0.7 else "finish", name)
        if self.dice.random() < 0.2:
            self.call("drop", [int(held.lives[0])])
        if slots and self.dice.random() < 0.2:
            self.call("pin", "h", slots)

    def begin(self, jobs: list[JobId]) -> None:
        """Copies have begun to run, so that they can be late."""
        for job in jobs:
            self.call("launched", Launched(job, Worker(0)), self.now)

    def admit(self, name: str, group: int) -> None:
        """Let a request in, or leave a hole in its table."""
        if self.dice.random() < 0.1:
            self.call("skip", name, 1, group)
        elif self.ledger.requests.state(name) in ADMISSIBLE or self.dice.random() < 0.1:
            self.call("admit", name)

    def give_up(self, name: str, group: int) -> None:
        """A request gives everything back."""
        self.call(self.dice.choice(("preempt", "preempt", "finish", "roll_back")), name)

    def finish_many(self, name: str, group: int) -> None:
        """Several at once."""
        self.call("rows.finish_many", self.some(list(self.ledger.requests), 2))

    def release(self, name: str, group: int) -> None:
        """Some blocks of a request; those first that a late copy touches."""
        blocks, table = self.ledger.blocks, self.table(name, group)
        if not table:
            return
        positions = self.some(list(range(len(table))), 4) if self.dice.random() < 0.95 else [len(table)]
        late = [at for at, life in enumerate(table) if life and blocks.pins(life & ID_MASK)]
        if late and self.dice.random() < 0.5:
            positions = self.some(late, 2)
        if self.own or self.dice.random() < 0.5:
            self.call("release", name, positions, group)
        else:
            held = [table[at] & ID_MASK if at < len(table) else 0 for at in positions]
            self.call("observe_free", name, held, group)

    def seal(self, name: str, group: int) -> None:
        """Content becomes final, mostly where it can."""
        lives = [
            life for life in self.table(name, group)
            if life and (self.dice.random() < 0.1 or self.ledger.blocks.of(life) in SEALABLE)
        ][: self.dice.randint(1, 4)]  # fmt: skip
        if not lives:
            return
        if self.dice.random() < 0.5:
            self.call("seal", Batch(lives, group), self.keys_of(lives))
        else:
            self.call("rows.seal", [(group, lives, self.keys_of(lives))])

    def keys_of(self, lives: list[int]) -> list[bytes]:
        """Keys that planned stores have promised, or new ones."""
        keys = []
        for life in lives:
            number = self.ledger.blocks.job(life & ID_MASK)
            job = self.ledger.jobs.get(number) if number else None
            known = dict(zip(job.lives, job.names, strict=True)) if job is not None and job.names else {}
            keys.append(known[life] if life in known and self.dice.random() < 0.95 else self.key())
        return keys

    def hit(self, name: str, group: int) -> None:
        """Content that is there, now and then of a life that is over."""
        named = [block for of, _, block in self.ledger.blocks.named() if of == group]
        lives = [self.ledger.blocks.life(block) for block in self.some(named, 3)] if named else []
        if lives and self.dice.random() < 0.1:
            lives[0] -= 1 << EPOCH_SHIFT
        if lives:
            self.call("acquire", name, lives, group)

    def drop(self, name: str, group: int) -> None:
        """Forget the content of one block, mostly of one that no request holds and a copy still touches."""
        blocks = self.ledger.blocks
        idle = [each for each in self.blocks() if blocks.state(each) in LENT and not blocks.refs(each)]
        block = self.dice.choice(idle) if idle and self.dice.random() < 0.6 else self.dice.choice(self.blocks())
        self.call("drop", [blocks.life(block)])

    def first(self, name: str, group: int) -> None:
        """Blocks that are to be handed out before others."""
        self.call("rows.hand_out_first", [self.ledger.blocks.life(block) for block in self.some(list(self.blocks()), 3)])

    def reopen(self, name: str, group: int) -> None:
        """A request writes on in a block that is final."""
        if table := self.table(name, group):
            self.call("rows.reopen", name, self.dice.randrange(len(table)), group)

    def stale(self, name: str, group: int) -> None:
        """A name that may be old, wherever a life is taken."""
        if not self.over:
            return
        life, key, slots = self.dice.choice(self.over), self.key(), self.ledger.slots.next_empty(1)
        act = self.dice.randrange(5)
        if act == 0:
            self.call("acquire", name, [life], group)
        elif act == 1 and slots:
            self.call("plan_store", Store(None, [GroupTransfer(Batch([life], group), slots, [key])]))
        elif act == 2:
            self.call("drop", [life])
        elif act == 3:
            self.call("seal", Batch([life], group), [key])
        elif act == 4:
            self.call("plan_load", name, GroupTransfer(Batch([life], group), [0]))

    # --- jobs

    def store(self, name: str, group: int) -> None:
        """Plan one store or two, of slots of one or two blocks; its owner is a request, one that is gone, or nobody."""
        ledger = self.ledger
        blocks = [
            block for block in self.blocks() if ledger.blocks.state(block) in STORABLE and ledger.blocks.group(block) == group
        ]
        slots = ledger.slots.next_empty(8)
        self.dice.shuffle(blocks)
        if not slots and self.dice.random() < 0.5:
            self.evict(name, group)
        if self.dice.random() < 0.05:
            slots = [self.dice.randrange(len(ledger.slots)) for _ in range(8)]
        stores = []
        for _ in range(self.dice.choice((1, 1, 1, 2))):
            count, chunk = self.dice.randint(1, 3), self.dice.choice((1, 1, 1, 2))
            own = [ledger.blocks.life(blocks.pop()) for _ in range(min(len(blocks), count * chunk))]
            places, slots = slots[: -(-len(own) // chunk)], slots[-(-len(own) // chunk) :]
            if not own or len(places) * chunk < len(own):
                break
            if self.dice.random() < 0.04:
                own[-1] -= 1 << EPOCH_SHIFT
            where = None if chunk == 1 else [places[at // chunk] * 2 + at % chunk for at in range(len(own))]
            keys = [(ledger.blocks.key(life & ID_MASK) or self.key()) for life in own] if chunk == 1 else [
                self.key() for _ in places
            ]  # fmt: skip
            owner = self.dice.choice((name, name, None, "gone"))
            sharers = tuple(each for each in self.some(list(ledger.requests), 2) if each != name) if owner else ()
            stores.append(Store(owner, [GroupTransfer(Batch(own, group), places, keys, where)], sharers))
        if stores:
            self.call("plan_store", *stores)

    def ready(self, group: int) -> list[int]:
        """The slots of a group that can be read."""
        slots = self.ledger.slots
        return [slot for slot in range(len(slots)) if slots.state(slot) is Slot.READY and slots.group(slot) == group]

    def load(self, name: str, group: int) -> None:
        """A load for some groups of a request."""
        parts: list[GroupTransfer[Any]] = []
        for each in sorted(self.dice.sample(range(self.groups), self.dice.randint(1, self.groups))):
            ready = self.ready(each)
            mine = [life for life in self.table(name, each) if life and self.ledger.blocks.of(life) in LOADABLE]
            if count := min(len(ready), len(mine), self.dice.randint(1, 3)):
                slots = self.dice.sample(ready, count)
                if self.dice.random() < 0.04:
                    slots[0] = self.dice.randrange(len(self.ledger.slots))
                parts.append(
                    GroupTransfer(Batch(mine[:count], each), slots, [self.ledger.slots.key(slot) or b"" for slot in slots])
                )
        if parts:
            self.call("plan_load", name, *parts, within=self.dice.random() < 0.3)

    def below(self, name: str, group: int) -> None:
        """Content goes to the store below, or comes from there."""
        slots = self.ledger.slots
        if self.dice.random() < 0.5:
            ready = slots.where(Slot.READY) if self.dice.random() < 0.9 else list(range(len(slots)))
            self.call("plan_demotion", self.some(ready, 3) if ready else [], space=b"s")
        else:
            empty = slots.next_empty(self.dice.randint(1, 3))
            self.call("plan_promotion", empty, [self.key() for _ in empty], group)

    def end_jobs(self, name: str, group: int) -> None:
        """Jobs are given up, waited for, or proven quiet."""
        alive, known = self.ledger.jobs.alive(), self.ledger.jobs.known()
        numbers = [job.number for job in (alive if self.dice.random() < 0.8 else known)]
        if numbers:
            verb = self.dice.choice(("cancel", "abandon", "abandon", "flush", "quiesce"))
            self.call(verb, self.handle(*self.jobs(numbers, 2)))

    def submit(self, name: str, group: int) -> None:
        """Jobs go out without a plan."""
        if planned := self.in_state(Job.PLANNED):
            self.call("submit", self.handle(*self.some(planned, 2)))

    def dispatch(self, name: str, group: int) -> None:
        """The plan of a step, mostly where few are out."""
        if len(self.ledger.plans.out) > 2 and self.dice.random() < 0.9:
            self.settle(name, group)
            return
        self.now += 1
        self.call("dispatch", self.now)

    def settle(self, name: str, group: int) -> None:
        """The oldest plan is over, with whatever the workers say by then, and content that it has made final."""
        ledger, dice = self.ledger, self.dice
        if not ledger.plans.out:
            return
        self.now += 1
        plan = ledger.plans.out[0 if dice.random() < 0.95 else -1]
        reports = []
        for job in ledger.jobs.alive():
            for worker in range(self.workers if job.state is not Job.PLANNED else 0):
                if dice.random() < 0.45:
                    missing = (0,) if not job.direction.on_device and dice.random() < 0.3 else ()
                    reports.append(self.report(job.number, worker, missing=missing))
        if dice.random() < 0.2:
            number = dice.randint(1, ledger.jobs.last_number + 2)
            if (found := ledger.jobs.get(number)) is None or found.state is not Job.PLANNED or dice.random() < 0.1:
                reports.append(self.report(number, dice.randrange(self.workers)))
        if reports and dice.random() < 0.2:
            reports.append(dice.choice(reports))
        if dice.random() < 0.5:
            dice.shuffle(reports)
        seals = []
        for each in range(self.groups if dice.random() < 0.5 else 0):
            lives = [life for life in self.table(name, each) if life and ledger.blocks.of(life) in SEALABLE | LOADABLE][:2]
            seals.append(Seal(each, lives, self.keys_of(lives)))
        begun = [Launched(self.job(each), Worker(dice.randrange(self.workers))) for each in self.out() if dice.random() < 0.4]
        self.call("settle", plan, self.now, launched=begun, completions=reports, seals=seals)

    def report(self, number: int, worker: int, *, missing: tuple[int, ...] = ()) -> Completion:
        """What a worker says of a job; one in fifty cannot be right."""
        result = Result.OK if self.dice.random() < 0.8 else Result.FAILED
        wrong = self.dice.random()
        job = JobId(2, number) if wrong < 0.01 else self.job(number)
        return Completion(job, Worker(self.workers if wrong > 0.99 else worker), result, missing)

    def complete(self, name: str, group: int) -> None:
        """One report, out of any plan."""
        known = [job.number for job in self.ledger.jobs.known()]
        if known:
            (number,) = self.jobs(known, 1)
            self.call("complete", self.report(number, self.dice.randrange(self.workers)))

    def launch(self, name: str, group: int) -> None:
        """A copy has begun."""
        if out := self.out():
            self.call("launched", Launched(self.job(self.dice.choice(out)), Worker(0)), self.now)

    def expire(self, name: str, group: int) -> None:
        """Much time passes."""
        self.now += self.dice.choice(LATE)
        self.call("expire", self.now)

    # --- slots, and everything at once

    def pin(self, name: str, group: int) -> None:
        """A holder counts on slots, or lets go."""
        slots = self.ledger.slots
        some = self.some(list(range(len(slots))), 2)
        if self.dice.random() < 0.5:
            ready = slots.where(Slot.READY)
            self.call("pin", "h", self.some(ready, 2) if ready else some)
        else:
            self.call("unpin", "h", list(slots.holders.get("h", {}))[:1] or some[:1])

    def evict(self, name: str, group: int) -> None:
        """Room is made."""
        self.call("evict", self.some(self.ledger.slots.where(Slot.READY) or [0], 2))

    def event_of(self, verb: str, machine: str) -> Callable[[str, int], object]:
        """A verb that is an event of a place and nothing else, for which nothing stands here: where it has a row, or not."""

        def move(name: str, group: int) -> None:
            self.call(verb, self.some(places_for(self.ledger, verb, machine) or [1], 2))

        return move

    def lose(self, name: str, group: int) -> None:
        """A worker is gone."""
        self.call("lose", Worker(self.dice.randrange(self.workers)))

    def reset(self, name: str, group: int) -> None:
        """Content is forgotten: that of the device, that of the host, or both; now and then twice."""
        kind = self.dice.random()
        for _ in range(self.dice.choice((1, 1, 2))):
            if kind < 0.4:
                self.call("reset", device=False)
            else:
                self.call("reset", drain=kind < 0.6, host=kind < 0.85)

    def restore(self, name: str, group: int) -> None:
        """What is saved and restored goes on as it was."""
        saved = self.ledger.snapshot(now=self.now)
        before = world_key(self.ledger)
        self.call("restore", saved, self.now)
        assert world_key(self.ledger)[0] == before[0], f"{self.name}: a round trip changes the world"
