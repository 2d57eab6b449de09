"""The ledger of an engine's own pool: what it is told of a whole step is what it would be told one by one.

Goal: no verb for many is a second opinion. Method: seeded programs drive two ledgers, one with `observe_tables`, `seal_many`
and `finish_many`, one with `skip`, `observe_take`, `observe_allocate`, `seal` and `finish`. After every call both hold the same
world, and have taken every row of every table equally often.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import Batch, Completion, Contract, JobId, Ledger, Limits, Result, Seal, Worker
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger.jobs import GroupTransfer, Storable, Store
from blocklife.ledger.records import Growth
from blocklife.states import COPYING, KEYED, Block, Request, Slot
from tests.ledger.test_ledger_bulk import facts
from tests.ledger.test_ledger_groups import sound
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


def growth(*tables: tuple[str, int, list[int], list[int]]) -> Growth:
    """Name, group, what is taken, what is handed out."""
    found = Growth()
    for name, group, taken, fresh in tables:
        found.note(name, group, fresh, taken)
    return found


def one_by_one(ledger: Ledger, grown: Growth) -> None:
    """What `observe_tables` does in one call: first all that is taken, then all that is handed out."""
    for verb, parts in ((ledger.observe_take, grown.taken), (ledger.observe_allocate, grown.fresh)):
        for name, group, blocks in zip(grown.names, grown.groups, parts, strict=True):
            for block in blocks:
                if block == NULL:
                    ledger.skip(name, 1, group)
                else:
                    verb(name, [block], group)


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
        return [life & ID_MASK for life in self.many.table(name, group) if life != NULL]

    def grow(self) -> None:
        """Hits that several share, hand-outs of free and of copied blocks, nulls."""
        blocks, dice = self.many.blocks, self.random
        lent = [*BUSY, *([Block.IN_FLIGHT, Block.STALE, Block.PENDING_STORE] if self.many.contract is Contract.HOLD else [])]
        free = [
            place
            for place in range(1, len(blocks))
            if not blocks.refs(place) and blocks.at(place) not in lent and not blocks.writes(place)
        ]
        dice.shuffle(free)
        names = [name for name in self.many.requests if self.many.request_state(name) is not Request.LOADING]
        tables = [(name, group) for name in names for group in range(GROUPS)]
        grown, held = Growth(), set[int]()
        for name, group in dice.sample(tables, dice.randint(1, len(tables))) if tables else ():
            keyed = [place for place in range(1, len(blocks)) if blocks.at(place) in KEYED and blocks.group(place) == group]
            known = [place for place in keyed if place not in self.table(name, group)]
            taken = dice.sample(known, dice.randint(0, min(4, len(known)))) if dice.random() < 0.4 else []
            self.seen["shared in one call"] += not held.isdisjoint(taken)
            held |= set(taken)
            grown.note(name, group, [], [*taken, NULL] if taken and dice.random() < 0.3 else taken)
        free = [place for place in free if place not in held]
        for at in range(len(grown.names)):
            own = [free.pop() for _ in range(min(len(free), dice.randint(0, self.most)))]
            grown.fresh[at] = [NULL, *own] if dice.random() < 0.2 else own
            self.seen["copied, handed out"] += sum(blocks.at(place) not in (Block.FREED, Block.CACHED) for place in own)
        self.do(lambda ledger: ledger.observe_tables(grown), lambda ledger: one_by_one(ledger, grown))

    def seal(self) -> None:
        """What is open in both groups, now and then with a life that is over."""
        seals = []
        for group in range(GROUPS):
            blocks = self.many.blocks
            places = {place: None for name in self.many.requests for place in self.table(name, group)}
            lives = [self.many.life(place) for place in places if blocks.at(place) is Block.ALLOCATED]
            if lives and self.random.random() < 0.2:
                lives.append(self.many.life(next(iter(places))) + (5 << 32))
                lives = [life for life in lives if (life & ID_MASK) != lives[-1] & ID_MASK] + [lives[-1]]
                self.seen["stale"] += 1
            if lives:
                seals.append(Seal(group, lives, [self.random.choice(NAMES) for _ in lives]))

        def one(ledger: Ledger) -> None:
            for each in seals:
                ledger.seal(Batch(list(each.lives), each.group), each.keys)

        self.do(lambda ledger: ledger.seal_many(seals), one)

    def store(self) -> None:
        """One job of some content that nothing reads, for two requests."""
        blocks, slots = self.many.blocks, self.many.slots
        group = self.random.randrange(GROUPS)
        for place in range(1, len(blocks)):
            key, spare = blocks.key(place), slots.next_empty(1)
            if key is None or blocks.group(place) != group or blocks.at(place) not in KEYED - COPYING or not spare:
                continue
            if slots.find(group, key) is not None or not self.many.jobs.room:
                continue
            transfer: GroupTransfer[Storable] = GroupTransfer(Batch([self.many.life(place)], group), spare, [key])
            self.do(lambda ledger, transfer=transfer: ledger.plan_stores([Store("a", [transfer], ("b",))]))  # type: ignore[misc]
            if self.random.random() < 0.5:
                return

    def step(self) -> None:
        """A plan, and some reports."""
        self.do(lambda ledger: ledger.dispatch(0.0))
        self.out = list(self.many.submitted().ids)
        done = self.random.sample(self.out, self.random.randint(0, len(self.out)))
        results = [self.random.choice([Result.OK, Result.OK, Result.FAILED]) for _ in done]
        reports = [Completion(job, Worker(0), result) for job, result in zip(done, results, strict=True)]
        self.do(lambda ledger: ledger.settle(ledger.plan_number, 0.0, completions=reports))

    def release(self) -> None:
        """A request lets go of some places."""
        if self.many.requests:
            name, group = self.random.choice(list(self.many.requests)), self.random.randrange(GROUPS)
            table = self.many.table(name, group)
            chosen = [at for at, life in enumerate(table) if life != NULL and self.random.random() < 0.3]
            if self.many.request_state(name) is Request.RUNNING:
                self.do(lambda ledger: ledger.release(name, chosen, group))

    def load(self) -> None:
        """A request that waits loads what is in the host tier."""
        slots = self.many.slots
        ready = [slot for slot in slots.where(Slot.READY) if slots.group(slot) == 0][:2]
        free = [place for place in range(1, len(self.many.blocks)) if self.many.blocks.at(place) is Block.FREED][: len(ready)]
        waiting = [name for name in self.many.requests if self.many.request_state(name) is Request.WAITING]
        if not waiting or len(free) < len(ready) or not ready or not self.many.jobs.room:
            return

        def one(ledger: Ledger) -> None:
            target = ledger.observe_allocate(waiting[0], free, 0)
            ledger.plan_group_load(waiting[0], [GroupTransfer(target, ready, [slots.key(slot) or b"" for slot in ready])])

        self.do(one)
        self.seen["loads"] += 1

    def finish(self) -> None:
        """Some requests end, loading ones among them; others come for them."""
        names = self.random.sample(list(self.many.requests), self.random.randint(1, len(self.many.requests)))
        lives = [life for name in names for group in range(GROUPS) for life in self.many.table(name, group) if life != NULL]
        self.seen["shared at the end"] += len(set(lives)) < len(lives)
        self.seen["loading at the end"] += any(self.many.request_state(name) is Request.LOADING for name in names)

        def one(ledger: Ledger) -> None:
            # who loads goes first, as in the verb for many
            for name in sorted(names, key=lambda name: not ledger.requests.load(name)):
                ledger.finish(name)

        self.do(lambda ledger: ledger.finish_many(names), one)
        for name in names:
            self.do(lambda ledger, name=name: ledger.add_request(name))  # type: ignore[misc]
            if self.random.random() < 0.7:
                self.do(lambda ledger, name=name: ledger.admit(name))  # type: ignore[misc]


def test_what_is_told_of_a_step_is_what_is_told_one_by_one() -> None:
    """In small worlds, and in some with many blocks a call; each rare thing happens often."""
    seen: Counter[str] = Counter()
    for contract in Contract:
        for seed in range(24):
            seen += Program(seed, contract, 400 if seed % 4 == 0 else 24).run()

    for what in ("shared in one call", "copied, handed out", "stale", "loads", "shared at the end", "loading at the end"):
        assert seen[what] > 10, (what, seen)


# --- refusals -----------------------------------------------------------------------------------------------------------


def known(ledger: Ledger) -> int:
    """A block with content of group 0 that nobody holds."""
    ledger.seal(ledger.observe_allocate("a", [1]), [b"k"])
    ledger.release("a", [0])
    return 1


@pytest.mark.parametrize(
    ("tables", "match"),
    [
        ([("a", 0, [], [2]), ("z", 0, [], [3])], "request z"),
        ([("a", 0, [], [2]), ("b", 0, [], [2])], "block 2.*twice"),
        ([("a", 0, [], [2]), ("b", 0, [], [99])], "block 99"),
        ([("a", 0, [1], [2]), ("b", 0, [], [1])], "block 1: it is a hit"),
        ([("a", 1, [1], [2])], "block 1: it was handed out for group 0"),
        ([("a", 0, [1, 1], [2])], "block 1.*twice"),
        ([("a", 0, [], [2]), ("b", 2, [], [3])], "group 2"),
        ([("a", -1, [], [2])], "group -1"),
    ],
)
def test_tables_that_cannot_have_grown_so_are_refused(tables: list[tuple[str, int, list[int], list[int]]], match: str) -> None:
    """Nothing of the call has happened then."""
    ledger = engine_ledger()
    known(ledger)
    with refuses(ledger, MisuseError, match):
        ledger.observe_tables(growth(*tables))


def test_hand_out_that_is_illegal_takes_nothing() -> None:
    """A block that somebody holds is handed out: the hit of the same call is not taken."""
    ledger = engine_ledger()
    known(ledger)
    ledger.observe_allocate("b", [2])
    with refuses(ledger, RefusedError, "block 2"):
        ledger.observe_tables(growth(("a", 0, [1], [3]), ("c", 0, [], [2])))


def test_hit_that_the_request_holds_already_is_refused() -> None:
    """A table names a life once (I4)."""
    ledger = engine_ledger()
    known(ledger)
    ledger.observe_take("a", [1])
    with refuses(ledger, MisuseError, "holds it already"):
        ledger.observe_tables(growth(("a", 0, [1], [2])))


def test_seals_of_a_step_are_refused_as_a_whole() -> None:
    """Wrong numbers, a group that is none, a block twice, and a state in which nothing is made."""
    ledger = engine_ledger()
    first, second = (int(life) for life in ledger.observe_allocate("a", [1, 2]).lives)
    third = int(ledger.observe_allocate("a", [3], 1).lives[0])
    cases: list[tuple[type[Exception], str, list[Seal]]] = [
        (MisuseError, "do not agree", [Seal(0, [first], [b"k"]), Seal(1, [third], [])]),
        (MisuseError, "group 2", [Seal(0, [first], [b"k"]), Seal(2, [third], [b"l"])]),
        (MisuseError, "twice", [Seal(0, [first], [b"k"]), Seal(0, [first], [b"l"])]),
        (MisuseError, "handed out for group 1", [Seal(0, [second, third], [b"k", b"l"])]),
    ]
    for error, match, seals in cases:
        with refuses(ledger, error, match):
            ledger.seal_many(seals)
    ledger.seal_many([Seal(0, [first], [b"k"]), Seal(1, [third], [b"l"])])
    over = (1 << 32) + ledger.life(4)
    for stale in ([], [over]):  # a life that is over is passed over, and makes no difference to that
        with refuses(ledger, RefusedError, "block 3"):
            ledger.seal_many([Seal(0, [second, *stale], [b"m", *([b"n"] * len(stale))]), Seal(1, [third], [b"l"])])


def test_requests_of_one_call_end_once() -> None:
    """A name that comes twice, and one that is not known."""
    ledger = engine_ledger()
    for names in (["a", "b", "a"], ["a", "z"]):
        with refuses(ledger, MisuseError, "twice|request z"):
            ledger.finish_many(names)
    ledger.finish_many([])
    ledger.finish_many(["a", "b"])

    assert set(ledger.requests) == {"c", "d"}
    assert ledger.blocks.count_held() == 0
