"""Mistakes of an engine, and what the scheduler says: ``python -m tests.project.mistakes`` writes `specs/refusals.csv`."""

from __future__ import annotations

import csv
from collections.abc import Callable

from blocklife.errors import BlocklifeError
from blocklife.ledger import Ledger, Limits
from blocklife.offload import Geometry, HostTier, OffloadScheduler
from tests.project.pages import ROOT

TABLE = ROOT / "specs" / "refusals.csv"
HEAD = ("mistake", "message")


def make(groups: str = "full:4", *, own_pool: bool = True) -> OffloadScheduler:
    """A scheduler with 15 blocks and 8 slots, and a request *a* with a prompt of 5 tokens."""
    geometry = Geometry.parse(groups)
    ledger = Ledger(Limits(num_blocks=16, num_slots=8, num_groups=len(geometry.groups)), own_pool=own_pool)
    scheduler = OffloadScheduler(ledger, HostTier(ledger), geometry)
    add(scheduler, "a", 5)
    return scheduler


def add(scheduler: OffloadScheduler, name: str, tokens: int) -> None:
    """All requests have the same tokens."""
    scheduler.add_request(name, lambda _group, start, stop: [b"%d" % at for at in range(start, stop)], prompt_tokens=tokens)


def let_in(scheduler: OffloadScheduler, name: str = "a", tokens: int = 5) -> OffloadScheduler:
    scheduler.admit(name, scheduler.lookup(name, tokens), tokens)
    return scheduler


def tick(scheduler: OffloadScheduler, times: int = 1) -> OffloadScheduler:
    """Steps in which nothing lands."""
    for _ in range(times):
        scheduler.settle(scheduler.build_plan(1.0).number, 1.0)
    return scheduler


def planned(scheduler: OffloadScheduler) -> OffloadScheduler:
    """A plan is out."""
    scheduler.build_plan(1.0)
    return scheduler


def lost() -> None:
    scheduler = make()
    scheduler.abort("a")
    scheduler.lookup("a", 5)


def old_hit() -> None:
    scheduler = make()
    hit = scheduler.lookup("a", 5)
    tick(scheduler).admit("a", hit, 5)


def deferred_hit() -> None:
    """Only a store that is out brings the content of *b*."""
    scheduler = tick(let_in(make()), 2)
    scheduler.finish("a")
    scheduler.ledger.drop(scheduler.ledger.blocks.prefix([b"0"]))
    add(scheduler, "b", 5)
    let_in(scheduler, "b")


def no_room() -> None:
    let_in(make(), "a", 80)


def again(scheduler: OffloadScheduler) -> None:
    hit = scheduler.lookup("a", 5)
    for _ in range(2):
        scheduler.admit("a", hit, 5)


def ended() -> None:
    scheduler = planned(let_in(make()))
    scheduler.finish("a")
    scheduler.preempt("a")


def twice() -> None:
    scheduler = tick(make())
    scheduler.settle(1, 1.0)


def unplaced() -> None:
    scheduler = make(own_pool=False)
    scheduler.admit("a", scheduler.lookup("a", 5, 0), 5)


def asleep() -> None:
    scheduler = make()
    scheduler.sleep()
    scheduler.lookup("a", 5)


def woken() -> None:
    scheduler = tick(let_in(make()), 2)
    scheduler.sleep()
    scheduler.wake()


MISTAKES: dict[str, Callable[[], object]] = {
    "a request that was never added, or is over": lost,
    "adding it twice": lambda: add(make(), "a", 5),
    "growing a waiting request": lambda: make().grow({"a": 1}),
    "growing twice in a step": lambda: let_in(make()).grow({"a": 1}),
    "looking up a running request": lambda: let_in(make()).lookup("a", 5),
    "admitting twice": lambda: again(make()),
    "a hit of an earlier step": old_hit,
    "a hit that is deferred": deferred_hit,
    "no room, ever": no_room,
    "preempting a waiting request": lambda: make().preempt("a"),
    "preempting a request that has ended": ended,
    "a state of another kind of group": lambda: let_in(make()).hand_off("a", 0, 4),
    "a state where the step does not end": lambda: let_in(make("full:4,mamba:4")).hand_off("a", 1, 8),
    "the next step before `settle`": lambda: planned(make()).lookup("a", 5),
    "settling out of order": lambda: planned(make()).settle(2, 1.0),
    "settling twice": twice,
    "own pool, but a hit is given": lambda: make().lookup("a", 5, 0),
    "own pool, but blocks are placed": lambda: make().place("a", []),
    "foreign pool, but no hit is given": lambda: make(own_pool=False).lookup("a", 5),
    "foreign pool, but nothing was placed": unplaced,
    "foreign pool, freeing what it does not hold": lambda: make(own_pool=False).free("a", 0, [9]),
    "a drain that comes too early": lambda: tick(let_in(make()), 2).reset(drain=True),
    "a step while it sleeps": asleep,
    "waking too early": woken,
    "a generation that is the present one": lambda: make().reset(generation=""),
    "regaining a worker that is there": lambda: make().regain_worker(0),
}


def answer(mistake: str) -> str:
    """What is said to one of them."""
    try:
        MISTAKES[mistake]()
    except BlocklifeError as refused:
        return str(refused)
    raise AssertionError(f"{mistake}: nothing refuses it")


def told() -> dict[str, str]:
    """Each mistake of the table with its message."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
        return {row[0]: row[1] for row in rows}


if __name__ == "__main__":
    with TABLE.open("w", encoding="utf-8", newline="") as table:
        csv.writer(table, lineterminator="\n").writerows([HEAD, *((each, answer(each)) for each in MISTAKES)])
