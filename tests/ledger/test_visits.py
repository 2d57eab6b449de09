"""Visits: what a request brings for one copy, and takes along, is what it would bring and take by the ledger's own verbs.

Goal: the verbs that SGLang's linker calls are no second opinion, and refuse whole. Method: seeded programs drive two ledgers,
one with visits, one with the verbs that their docstrings name; after every call both hold the same world, and have taken every
row of every table equally often. Each refusal leaves the world as it was.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from blocklife.errors import BlocklifeError, CapacityError, MisuseError, RefusedError
from blocklife.ledger import Completion, Contract, Direction, JobId, Jobs, Ledger, Limits, Placement, Result, Store, Worker
from blocklife.ledger.jobs import GroupTransfer, Planned
from blocklife.states import TERMINAL, Block, Job, Request, Slot, Trait, states_with
from tests.ledger.test_connector_ledger import facts
from tests.ledger.test_ledger_groups import sound
from tests.worlds import keys, refuses

NAMES = keys(*"klmnopqrst")
BLOCKS, SLOTS, JOBS, REQUESTS = 14, 12, 6, 6
FREE = states_with(Trait.FREE, Block)


def ledger_of_visits() -> Ledger:
    """A small one, whose blocks an engine's own cache keeps."""
    limits = Limits(num_blocks=BLOCKS, num_slots=SLOTS, max_jobs=JOBS, max_requests=REQUESTS)
    return Ledger(limits, contract=Contract.HOLD, deadline=1e9, own_pool=False, indexed=False)


def store_by_verbs(ledger: Ledger, name: str, blocks: list[int], contents: list[bytes], slots: list[int]) -> None:
    """What `RowVerbs.visit_to_store` does."""
    ledger.add_request(name)
    sealed = ledger.seal(ledger.observe_place(name, [Placement(allocated=blocks)])[0], contents)
    ledger.plan_store(Store.of(sealed, slots, contents, owner=name))


def load_by_verbs(ledger: Ledger, name: str, blocks: list[int], slots: list[int]) -> None:
    """What `RowVerbs.visit_to_load` does."""
    ledger.add_request(name)
    ledger.plan_load(name, GroupTransfer(ledger.observe_place(name, [Placement(allocated=blocks)])[0], slots))


def leave_by_verbs(ledger: Ledger, name: str) -> None:
    """What `RowVerbs.leave` does."""
    lives = [life for life in ledger.requests.table(name) if life]
    ledger.finish(name)
    ledger.drop([life for life in reversed(lives) if ledger.blocks.of(life) is Block.CACHED])


class Program:
    """One random program on two ledgers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.visits, self.verbs = ledger_of_visits(), ledger_of_visits()
        self.seen: Counter[str] = Counter()
        self.number = 0

    def run(self) -> Counter[str]:
        """Two hundred calls."""
        calls = [self.store, self.store, self.load, self.step, self.step, self.leave, self.cancel, self.evict]
        for _ in range(200):
            self.random.choice(calls)()
        return self.seen

    def do(self, what: str, visit: Callable[[Ledger], object], verbs: Callable[[Ledger], object] | None = None) -> None:
        """The call on both."""
        visit(self.visits)
        (verbs or visit)(self.verbs)
        assert facts(self.visits) == facts(self.verbs)
        sound(self.visits)
        self.seen[what] += 1

    def name(self) -> str:
        """A new one, or one that has been free for long."""
        self.number += 1
        return f"visit {self.number % 9}"

    def blocks(self, most: int) -> list[int]:
        """Some that nobody has."""
        view = self.visits.blocks
        free = [block for block in range(1, BLOCKS) if view.state(block) in FREE]
        return self.random.sample(free, min(most, len(free)))

    @property
    def is_full(self) -> bool:
        """Whether no visit may come."""
        return not self.visits.jobs.room or len(self.visits.requests) == REQUESTS

    def store(self) -> None:
        """Content that is not there, some of it on its way."""
        new = [key for key in NAMES if self.visits.slots.find_ready(0, key) is None]
        empty = self.visits.slots.next_empty(SLOTS)
        name, blocks = self.name(), self.blocks(self.random.randint(1, min(4, len(new), len(empty)) or 1))
        if self.is_full or name in self.visits.requests or not blocks or len(blocks) > min(len(new), len(empty)):
            return
        contents, slots = self.random.sample(new, len(blocks)), self.random.sample(empty, len(blocks))
        self.seen["on its way"] += any(self.visits.slots.find(0, key) is not None for key in contents)
        self.do(
            "store",
            lambda ledger: ledger._rows.visit_to_store(name, blocks, contents, slots),
            lambda ledger: store_by_verbs(ledger, name, blocks, contents, slots),
        )

    def load(self) -> None:
        """What is there, some of it for two at once."""
        ready = [*self.visits.slots.where(Slot.READY)]
        name, blocks = self.name(), self.blocks(self.random.randint(1, min(3, len(ready)) or 1))
        if self.is_full or name in self.visits.requests or not blocks or len(blocks) > len(ready):
            return
        slots = self.random.sample(ready, len(blocks))
        self.seen["read twice"] += any(self.visits.slots.pins(slot) for slot in slots)
        self.do(
            "load",
            lambda ledger: ledger._rows.visit_to_load(name, blocks, slots),
            lambda ledger: load_by_verbs(ledger, name, blocks, slots),
        )

    def step(self) -> None:
        """A plan, and some reports."""
        self.do("step", lambda ledger: ledger.dispatch(0.0))
        out = list(self.visits.jobs.submitted().ids)
        done = self.random.sample(out, self.random.randint(0, len(out)))
        reports = [Completion(job, Worker(0), self.random.choice((Result.OK, Result.OK, Result.FAILED))) for job in done]
        self.do("reports", lambda ledger: ledger.settle(ledger.plans.number, 0.0, completions=reports))

    def leave(self) -> None:
        """One goes whose copy is over; now and then one whose copy is planned or under way."""
        for name in self.random.sample([*self.visits.requests], len(self.visits.requests)):
            out = any(job.state not in TERMINAL for job in self.visits.jobs.serving(name))
            if not out or self.random.random() < 0.3:
                loads = self.visits.requests.state(name) is Request.LOADING
                self.seen[f"leaves a {'load' if loads else 'store'}"] += out
                return self.leaves(name)
        return None

    def leaves(self, name: str) -> None:
        """This one goes."""
        self.do("leave", lambda ledger: ledger._rows.leave(name), lambda ledger: leave_by_verbs(ledger, name))

    def cancel(self) -> None:
        """A planned store is given up."""
        stores = [job for job in self.visits.jobs.alive() if job.direction is Direction.STORE and job.state is Job.PLANNED]
        if stores:
            given_up: Jobs[Planned] = Jobs((JobId(1, stores[0].number),))
            self.do("cancel", lambda ledger: ledger.cancel(given_up))

    def evict(self) -> None:
        """Room in host memory."""
        ready = [slot for slot in self.visits.slots.where(Slot.READY) if self.visits.slots.can_evict(slot)]
        chosen = self.random.sample(ready, min(2, len(ready)))
        self.do("evict", lambda ledger: ledger.evict(chosen))


def test_visits_are_what_their_verbs_are() -> None:
    """Whatever was done before, and each rare thing often."""
    seen: Counter[str] = Counter()
    for seed in range(24):
        seen += Program(seed).run()

    assert {what: count for what, count in seen.items() if count < 10} == {}, seen
    assert {*seen} >= {
        "store",
        "on its way",
        "load",
        "read twice",
        "leave",
        "leaves a load",
        "leaves a store",
        "cancel",
        "evict",
    }


# --- refusals -----------------------------------------------------------------------------------------------------------


def visited() -> Ledger:
    """Block 1 is being stored as k in slot 0, block 2 was stored as l in slot 1, and block 3 is being filled from there."""
    ledger = ledger_of_visits()
    job = ledger._rows.visit_to_store("second", [2], [b"l"], [1])
    ledger.dispatch(0.0)
    ledger.settle(1, 0.0, completions=[Completion(JobId(1, job), Worker(0), Result.OK)])
    ledger._rows.leave("second")
    ledger._rows.visit_to_store("first", [1], [b"k"], [0])
    ledger._rows.visit_to_load("third", [3], [1])
    ledger.dispatch(0.0)
    ledger.settle(2, 0.0)
    return ledger


STORES: list[tuple[type[BlocklifeError], str, str, list[int], list[bytes], list[int]]] = [
    (MisuseError, "request first: it is known already", "first", [4], [b"m"], [4]),
    (MisuseError, "block 0: blocks are 1 to 13", "a", [4, 0], [b"m", b"n"], [4, 5]),
    (MisuseError, "block 14: blocks are 1 to 13", "a", [4, 14], [b"m", b"n"], [4, 5]),
    (MisuseError, "a block is named twice", "a", [4, 4], [b"m", b"n"], [4, 5]),
    (RefusedError, "block 1: cannot ALLOCATE", "a", [4, 1], [b"m", b"n"], [4, 5]),
    (RefusedError, "block 3: cannot ALLOCATE", "a", [4, 3], [b"m", b"n"], [4, 5]),
    (MisuseError, "slot 12: slots are 0 to 11", "a", [4, 5], [b"m", b"n"], [4, 12]),
    (MisuseError, "slot 4.*twice", "a", [4, 5], [b"m", b"n"], [4, 4]),
    (RefusedError, "slot 0: cannot RESERVE", "a", [4, 5], [b"m", b"n"], [4, 0]),
    (MisuseError, "key 6d.*twice", "a", [4, 5], [b"m", b"m"], [4, 5]),
    (MisuseError, "key 6c: it is stored already, in slot 1", "a", [4, 5], [b"m", b"l"], [4, 5]),
]


@pytest.mark.parametrize(("error", "match", "name", "blocks", "contents", "slots"), STORES)
def test_store_that_cannot_be_is_refused_whole(
    error: type[BlocklifeError], match: str, name: str, blocks: list[int], contents: list[bytes], slots: list[int]
) -> None:
    """Nothing is left of the visit: no request, no content, no block."""
    ledger = visited()
    with refuses(ledger, error, match):
        ledger._rows.visit_to_store(name, blocks, contents, slots)
    sound(ledger)


@pytest.mark.parametrize(
    ("error", "match", "blocks", "slots"),
    [
        (RefusedError, "block 3: cannot ALLOCATE", [4, 3], [1, 1]),
        (MisuseError, "slot 1.*twice", [4, 5], [1, 1]),
        (MisuseError, "slot -1: slots are 0 to 11", [4], [-1]),
        (RefusedError, "slot 0: cannot PIN", [4], [0]),
        (RefusedError, "slot 5: cannot PIN", [4], [5]),
    ],
)
def test_load_that_cannot_be_is_refused_whole(
    error: type[BlocklifeError], match: str, blocks: list[int], slots: list[int]
) -> None:
    """The same, of content that is not there, or not yet."""
    ledger = visited()
    with refuses(ledger, error, match):
        ledger._rows.visit_to_load("a", blocks, slots)
    sound(ledger)


def test_visit_beyond_the_limits_is_refused_whole() -> None:
    """Neither more requests than there may be, nor more jobs."""
    ledger = ledger_of_visits()
    for at in range(REQUESTS):
        ledger._rows.visit_to_store(f"{at}", [1 + at], [NAMES[at]], [at])
    with refuses(ledger, CapacityError, "all 6 requests are in use"):
        ledger._rows.visit_to_store("a", [9], [NAMES[9]], [9])
    ledger.finish("0")
    ledger.dispatch(0.0)
    with refuses(ledger, CapacityError, "job"):
        ledger._rows.visit_to_store("a", [9], [NAMES[9]], [9])


def test_what_is_left_behind_is_forgotten() -> None:
    """A block that was stored, or filled, keeps nothing for whoever comes next."""
    ledger = visited()
    for job in ledger.jobs.submitted().ids:
        ledger.complete(Completion(job, Worker(0), Result.OK))
    assert [ledger.blocks.key(block) for block in (1, 3)] == [b"k", b"l"]
    ledger._rows.leave("first")
    ledger._rows.leave("third")

    assert [ledger.blocks.state(block) for block in (1, 3)] == [Block.FREED] * 2
    assert [ledger.slots.key(slot) for slot in (0, 1)] == [b"k", b"l"]
    assert not [*ledger.requests]


def test_handle_of_a_block_that_has_left_is_stale() -> None:
    """Whoever has kept its life is refused."""
    ledger = visited()
    (life,) = ledger.requests.table("first")
    for job in ledger.jobs.submitted().ids:
        ledger.complete(Completion(job, Worker(0), Result.OK))
    ledger._rows.leave("first")
    ledger._rows.visit_to_store("next", [1], [b"m"], [4])
    with refuses(ledger, BlocklifeError, "block 1"):
        ledger.drop([life])
