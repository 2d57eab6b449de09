"""The ledger of an engine's own pool: what it is told of a whole step is what it would be told one by one.

Goal: no verb for many is a second opinion. Method: seeded programs drive two ledgers, one with whole tables in `observe_place`
and the scheduler's own `seal` and `finish_many`, one with `skip`, one block in each `observe_place`, `seal` and `finish`. After
every call both hold the same world, and have taken every row of every table equally often.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import Batch, Completion, Contract, JobId, Ledger, Limits, Placement, Result, Seal, Worker
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger.jobs import GroupTransfer, Storable, Store
from blocklife.states import COPYING, KEYED, Block, Request, Slot, Trait, states_with
from tests.ledger.test_ledger_groups import owners, planned, sound
from tests.worlds import keys, refuses

NAMES = keys(*"klmnopqrst")
REQUESTS = "abcd"
GROUPS = 2
BUSY = (Block.LOADING, Block.QUARANTINED, Block.PLEDGED)


def engine_ledger(contract: Contract = Contract.FENCE, num_blocks: int = 24) -> Ledger:
    """Two groups, and some requests that run."""
    limits = Limits(num_blocks=num_blocks, num_slots=12, max_jobs=8, max_requests=8, num_groups=GROUPS)
    ledger = Ledger(limits, contract=contract, deadline=1e9, own_pool=False, indexed=False)
    for name in REQUESTS:
        ledger.add_request(name)
        ledger.admit(name)
    return ledger


def one_by_one(ledger: Ledger, name: str, grown: list[Placement]) -> None:
    """What one `observe_place` does: first nulls and all that is taken, then all that is handed out."""
    for each in grown:
        ledger.skip(name, each.skipped, each.group)
        for block in each.taken:
            ledger.observe_place(name, [Placement(each.group, taken=[block])])
    for each in grown:
        for block in each.allocated:
            ledger.observe_place(name, [Placement(each.group, allocated=[block])])


class Program:
    """One random program on two ledgers."""

    def __init__(self, seed: int, contract: Contract, num_blocks: int) -> None:
        self.random = random.Random(seed)
        self.many, self.one = engine_ledger(contract, num_blocks), engine_ledger(contract, num_blocks)
        self.most = num_blocks // 4
        self.seen: Counter[str] = Counter()
        self.out: list[JobId] = []

    def run(self) -> Counter[str]:
        """A hundred calls."""
        calls = [self.grow, self.grow, self.seal, self.store, self.step, self.release, self.finish, self.load]
        for _ in range(100):
            self.random.choice(calls)()
        return self.seen

    def do(self, many: Callable[[Ledger], object], one: Callable[[Ledger], object] | None = None) -> None:
        """The call on both."""
        many(self.many)
        (one or many)(self.one)
        assert facts(self.many) == facts(self.one)
        sound(self.many)

    def table(self, name: str, group: int) -> list[int]:
        """The blocks that a request holds."""
        return [life & ID_MASK for life in self.many.requests.table(name, group) if life != NULL]

    def grow(self) -> None:
        """Hits that several share, hand-outs of free and of copied blocks, nulls."""
        blocks, dice = self.many.blocks, self.random
        lent = [*BUSY, *([Block.IN_FLIGHT, Block.STALE, Block.PENDING_STORE] if self.many.contract is Contract.HOLD else [])]
        free = [
            place
            for place in range(1, len(blocks))
            if not blocks.refs(place) and blocks.state(place) not in lent and not blocks.writes(place)
        ]
        dice.shuffle(free)
        names = [name for name in self.many.requests if self.many.requests.state(name) is not Request.LOADING]
        held: set[int] = set()
        for name in dice.sample(names, dice.randint(1, len(names))) if names else ():
            held |= self.grow_one(name, free, held)

    def grow_one(self, name: str, free: list[int], held: set[int]) -> set[int]:
        """The tables of one request; returns its hits."""
        blocks, dice, mine, grown = self.many.blocks, self.random, set[int](), list[Placement]()
        for group in dice.sample(range(GROUPS), dice.randint(1, GROUPS)):
            keyed = [place for place in range(1, len(blocks)) if blocks.state(place) in KEYED and blocks.group(place) == group]
            known = [place for place in keyed if place not in self.table(name, group)]
            taken = dice.sample(known, dice.randint(0, min(4, len(known)))) if dice.random() < 0.4 else []
            self.seen["shared"] += not held.isdisjoint(taken)
            mine |= set(taken)
            free[:] = [place for place in free if place not in mine]
            grown.append(Placement(group, int(dice.random() < 0.2), taken))
        for at, each in enumerate(grown):
            own = [free.pop() for _ in range(min(len(free), dice.randint(0, self.most)))]
            grown[at] = Placement(each.group, each.skipped, each.taken, own)
            self.seen["copied, handed out"] += sum(blocks.state(place) not in states_with(Trait.FREE, Block) for place in own)
        self.do(lambda ledger: ledger.observe_place(name, grown), lambda ledger: one_by_one(ledger, name, grown))
        return mine

    def seal(self) -> None:
        """What is open in both groups, now and then with a life that is over."""
        seals = []
        for group in range(GROUPS):
            blocks = self.many.blocks
            places = {place: None for name in self.many.requests for place in self.table(name, group)}
            lives = [self.many.blocks.life(place) for place in places if blocks.state(place) is Block.ALLOCATED]
            if lives and self.random.random() < 0.2:
                lives.append(self.many.blocks.life(next(iter(places))) + (5 << 32))
                lives = [life for life in lives if (life & ID_MASK) != lives[-1] & ID_MASK] + [lives[-1]]
                self.seen["stale"] += 1
            if lives:
                seals.append(Seal(group, lives, [self.random.choice(NAMES) for _ in lives]))

        def one(ledger: Ledger) -> None:
            for each in seals:
                ledger.seal(Batch(list(each.lives), each.group), each.keys)

        self.do(lambda ledger: ledger._rows.seal([(each.group, list(each.lives), each.keys) for each in seals]), one)

    def store(self) -> None:
        """One job of some content that nothing reads, for two requests."""
        blocks, slots = self.many.blocks, self.many.slots
        group = self.random.randrange(GROUPS)
        for place in range(1, len(blocks)):
            key, spare = blocks.key(place), slots.next_empty(1)
            if key is None or blocks.group(place) != group or blocks.state(place) not in KEYED - COPYING or not spare:
                continue
            if slots.find(group, key) is not None or not self.many.jobs.room:
                continue
            transfer: GroupTransfer[Storable] = GroupTransfer(Batch([self.many.blocks.life(place)], group), spare, [key])
            self.do(lambda ledger, transfer=transfer: ledger.plan_store(Store("a", [transfer], ("b",))))  # type: ignore[misc]
            if self.random.random() < 0.5:
                return

    def step(self) -> None:
        """A plan, and some reports."""
        self.do(lambda ledger: ledger.dispatch(0.0))
        self.out = list(self.many.jobs.submitted().ids)
        done = self.random.sample(self.out, self.random.randint(0, len(self.out)))
        results = [self.random.choice([Result.OK, Result.OK, Result.FAILED]) for _ in done]
        reports = [Completion(job, Worker(0), result) for job, result in zip(done, results, strict=True)]
        self.do(lambda ledger: ledger.settle(ledger.plans.number, 0.0, completions=reports))

    def release(self) -> None:
        """A request lets go of some places."""
        if self.many.requests:
            name, group = self.random.choice(list(self.many.requests)), self.random.randrange(GROUPS)
            table = self.many.requests.table(name, group)
            chosen = [at for at, life in enumerate(table) if life != NULL and self.random.random() < 0.3]
            if self.many.requests.state(name) is Request.RUNNING:
                self.do(lambda ledger: ledger.release(name, chosen, group))

    def load(self) -> None:
        """A request that waits loads what is in the host tier."""
        slots = self.many.slots
        ready = [slot for slot in slots.where(Slot.READY) if slots.group(slot) == 0][:2]
        free = [place for place in range(1, len(self.many.blocks)) if self.many.blocks.state(place) is Block.FREED][
            : len(ready)
        ]
        waiting = [name for name in self.many.requests if self.many.requests.state(name) is Request.WAITING]
        if not waiting or len(free) < len(ready) or not ready or not self.many.jobs.room:
            return

        def one(ledger: Ledger) -> None:
            target = ledger.observe_place(waiting[0], [Placement(allocated=free)])[0]
            ledger.plan_load(waiting[0], GroupTransfer(target, ready, [slots.key(slot) or b"" for slot in ready]))

        self.do(one)
        self.seen["loads"] += 1

    def finish(self) -> None:
        """Some requests end, loading ones among them; others come for them."""
        names = self.random.sample(list(self.many.requests), self.random.randint(1, len(self.many.requests)))
        lives = [
            life for name in names for group in range(GROUPS) for life in self.many.requests.table(name, group) if life != NULL
        ]
        self.seen["shared at the end"] += len(set(lives)) < len(lives)
        self.seen["loading at the end"] += any(self.many.requests.state(name) is Request.LOADING for name in names)

        def one(ledger: Ledger) -> None:
            # who loads goes first, as in the verb for many
            for name in sorted(names, key=lambda name: not ledger.requests.load(name)):
                ledger.finish(name)

        self.do(lambda ledger: ledger._rows.finish_many(names), one)
        for name in names:
            self.do(lambda ledger, name=name: ledger.add_request(name))  # type: ignore[misc]
            if self.random.random() < 0.7:
                self.do(lambda ledger, name=name: ledger.admit(name))  # type: ignore[misc]


def test_what_is_told_of_a_step_is_what_is_told_one_by_one() -> None:
    """In small worlds, and in some with many blocks a call; each rare thing happens often."""
    told_both_ways(range(12))


@pytest.mark.slow
def test_more_is_told_of_a_step_as_it_is_told_one_by_one() -> None:
    """The same with more seeds."""
    told_both_ways(range(12, 24))


def told_both_ways(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for contract in Contract:
        for seed in seeds:
            seen += Program(seed, contract, 400 if seed % 4 == 0 else 24).run()

    for what in ("shared", "copied, handed out", "stale", "loads", "shared at the end", "loading at the end"):
        assert seen[what] > 10, (what, seen)


# --- refusals -----------------------------------------------------------------------------------------------------------


def facts(ledger: Ledger) -> tuple[object, ...]:
    """Everything that two equal ledgers agree on, the journal and the order of free blocks apart."""
    views = (ledger.blocks, ledger.slots, ledger.jobs, ledger.requests)
    return (
        ledger.snapshot()._replace(queue=()),
        [list(view.row_counts()) for view in views],
        *(ledger.counts.tally, dict(ledger.counts.flushes), ledger.counts.ended, ledger.counts.moved),
        *(owners(ledger), planned(ledger), ledger.slots.next_empty(len(ledger.slots))),
    )


def known(ledger: Ledger) -> int:
    """A block with content of group 0 that nobody holds."""
    ledger.seal(ledger.observe_place("a", [Placement(allocated=[1])])[0], [b"k"])
    ledger.release("a", [0])
    return 1


@pytest.mark.parametrize(
    ("placed", "match"),
    [
        ([Placement(0, allocated=[2]), Placement(1, allocated=[2])], "block 2.*twice"),
        ([Placement(0, allocated=[2]), Placement(1, allocated=[99])], "block 99"),
        ([Placement(0, 0, [1], [2]), Placement(1, allocated=[1])], "block 1.*twice"),
        ([Placement(1, 0, [1], [2])], "block 1: it was handed out for group 0"),
        ([Placement(0, 0, [1, 1], [2])], "block 1.*twice"),
        ([Placement(0, allocated=[2]), Placement(2, allocated=[3])], "group 2"),
        ([Placement(-1, allocated=[2])], "group -1"),
        ([Placement(0, allocated=[2]), Placement(1, -1)], "cannot skip -1"),
    ],
)
def test_tables_that_cannot_have_grown_so_are_refused(placed: list[Placement], match: str) -> None:
    """Nothing of the call has happened then."""
    ledger = engine_ledger()
    known(ledger)
    with refuses(ledger, MisuseError, match):
        ledger.observe_place("a", placed)


def test_hand_out_that_is_illegal_takes_nothing() -> None:
    """A block that somebody holds is handed out: the hit of the same call is not taken."""
    ledger = engine_ledger()
    known(ledger)
    ledger.observe_place("b", [Placement(allocated=[2])])
    with refuses(ledger, RefusedError, "block 2"):
        ledger.observe_place("a", [Placement(0, 0, [1], [3]), Placement(1, allocated=[2])])


def test_hit_that_the_request_holds_already_is_refused() -> None:
    """A table names a life once (I4)."""
    ledger = engine_ledger()
    known(ledger)
    ledger.observe_place("a", [Placement(taken=[1])])
    with refuses(ledger, MisuseError, "holds it already"):
        ledger.observe_place("a", [Placement(0, 0, [1], [2])])


def test_seals_of_a_step_are_refused_as_a_whole() -> None:
    """Wrong numbers, a group that is none, a block twice, and a state in which nothing is made."""
    ledger = engine_ledger()
    first, second = (int(life) for life in ledger.observe_place("a", [Placement(allocated=[1, 2])])[0].lives)
    third = int(ledger.observe_place("a", [Placement(1, allocated=[3])])[0].lives[0])
    cases: list[tuple[type[Exception], str, list[Seal]]] = [
        (MisuseError, "do not agree", [Seal(0, [first], [b"k"]), Seal(1, [third], [])]),
        (MisuseError, "group 2", [Seal(0, [first], [b"k"]), Seal(2, [third], [b"l"])]),
        (MisuseError, "twice", [Seal(0, [first], [b"k"]), Seal(0, [first], [b"l"])]),
        (MisuseError, "handed out for group 1", [Seal(0, [second, third], [b"k", b"l"])]),
    ]
    plan = ledger.dispatch(0.0).number
    for error, match, seals in cases:
        with refuses(ledger, error, match):
            ledger.settle(plan, 0.0, seals=seals)
    ledger.settle(plan, 0.0, seals=[Seal(0, [first], [b"k"]), Seal(1, [third], [b"l"])])
    plan = ledger.dispatch(0.0).number
    over = (1 << 32) + ledger.blocks.life(4)
    for stale in ([], [over]):  # a life that is over is passed over, and makes no difference to that
        with refuses(ledger, RefusedError, "block 3"):
            seals = [Seal(0, [second, *stale], [b"m", *([b"n"] * len(stale))]), Seal(1, [third], [b"l"])]
            ledger.settle(plan, 0.0, seals=seals)


def test_requests_of_one_call_end_once() -> None:
    """A name that comes twice, and one that is not known."""
    ledger = engine_ledger()
    for names in (["a", "b", "a"], ["a", "z"]):
        with refuses(ledger, MisuseError, "twice|request z"):
            ledger._rows.finish_many(names)
    ledger._rows.finish_many([])
    ledger._rows.finish_many(["a", "b"])

    assert set(ledger.requests) == {"c", "d"}
    assert ledger.blocks.count_held() == 0
