"""Ledger verbs, one life at a time and in batches, against a table of blocks in dictionaries written by hand.

A pair of verbs (acquire and release, say) is one round; its cost is divided, so that every figure is that of one verb.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blocklife.ledger import Batch, Completion, Contract, Ledger, Limits, Result, Store, Worker
from blocklife.ledger.jobs import Allocated
from tests.bench import Figure, Scale, nanoseconds
from tests.bench.lifecycle import bytes_each
from tests.bench.targets import BLOCK_BYTES, BULK, ONE_STORE, ONE_VERB, SLOT_BYTES

POOL = 16
"""Blocks of the pool for each block of a batch: a step of an engine touches a small part of its pool."""


class DictLedger:
    """What one writes first: a dictionary of states and a dictionary of counts. No couplings, no pins, no epochs, no bulk."""

    ACQUIRE = ("acquire", {"cached": "sealed", "sealed": "sealed"})
    RELEASE = ("release", {"sealed": "cached"})
    PLAN_STORE = ("plan a store", {"cached": "pending", "empty": "writing"})
    SUBMIT = ("submit", {"pending": "in flight"})
    LAND = ("land", {"in flight": "cached", "writing": "ready"})
    EVICT = ("evict", {"ready": "empty"})

    def __init__(self, num_places: int, state: str = "cached") -> None:
        self.state = dict.fromkeys(range(num_places), state)
        self.refs = dict.fromkeys(range(num_places), 0)

    def fire(self, event: tuple[str, dict[str, str]], place: int, change: int = 0) -> None:
        target = event[1].get(self.state[place])
        if target is None:
            raise ValueError(f"place {place}: cannot {event[0]} while {self.state[place]}")
        refs = self.refs[place] + change
        if refs < 0:
            raise ValueError(f"place {place}: nobody holds it")
        self.refs[place] = refs
        self.state[place] = target if refs == 0 or change > 0 else "sealed"


def by_dict(number: int) -> None:
    ledger = DictLedger(64)
    for _ in range(number // 2):
        ledger.fire(DictLedger.ACQUIRE, 17, +1)
        ledger.fire(DictLedger.RELEASE, 17, -1)


def store_by_dict(number: int) -> None:
    blocks, slots = DictLedger(64), DictLedger(64, "empty")
    index: dict[bytes, int] = {}
    jobs: dict[int, tuple[int, int, bytes]] = {}
    key = bytes(8)
    for job in range(number):
        blocks.fire(DictLedger.PLAN_STORE, 17)
        slots.fire(DictLedger.PLAN_STORE, 23)
        jobs[job] = (17, 23, key)
        blocks.fire(DictLedger.SUBMIT, 17)
        block, slot, name = jobs.pop(job)
        blocks.fire(DictLedger.LAND, block)
        slots.fire(DictLedger.LAND, slot)
        index[name] = slot
        slots.fire(DictLedger.EVICT, slot)
        del index[name]


def cached_ledger(num_blocks: int) -> tuple[Ledger, list[int]]:
    """A ledger with so many cached blocks, and their lives."""
    ledger = Ledger(Limits(num_blocks=num_blocks + 1, num_slots=num_blocks), contract=Contract.FENCE)
    ledger.add_request("maker")
    made = ledger.allocate("maker", num_blocks)
    ledger.seal(made, [number.to_bytes(8, "little") for number in range(num_blocks)])
    lives = ledger.requests.table("maker")
    ledger.finish("maker")
    ledger.add_request("reader")
    return ledger, lives


def take_and_release(size: int, register: Callable[[Ledger], object] = bool) -> Callable[[int], None]:
    """*register* gets the ledger first: for hooks."""
    ledger, lives = cached_ledger(POOL * size)
    register(ledger)
    chosen = np.array(lives[:size], dtype=np.int64) if size > 1 else lives[:1]
    everything = range(size)
    core = ledger._state.core
    table = core.requests.by_name["reader"]  # of the one group

    def loop(number: int) -> None:
        for _ in range(number // 2):
            ledger.acquire("reader", chosen)
            ledger.release("reader", everything)
            core.requests.clear(table)

    return loop


def allocate_and_preempt(size: int) -> Callable[[int], None]:
    """To admit is a third verb, on one request: it counts where the others touch one block, too."""
    ledger = Ledger(Limits(num_blocks=POOL * size, num_slots=64))
    ledger.add_request("reader")
    verbs = 3 if size == 1 else 2

    def loop(number: int) -> None:
        for _ in range(max(1, number // verbs)):
            ledger.admit("reader")
            ledger.allocate("reader", size)
            ledger.preempt("reader")

    return loop


def store_and_evict(size: int) -> Callable[[int], None]:
    """The whole life of a store: plan, submit, land, publish, evict."""
    ledger, lives = cached_ledger(POOL * size)
    chosen: Batch[Allocated] = Batch(np.array(lives[:size], dtype=np.int64) if size > 1 else lives[:1])
    slots = list(range(size))
    keys = [number.to_bytes(8, "little") for number in range(size)]

    def loop(number: int) -> None:
        for _ in range(number):
            job = ledger.plan_store(Store.of(chosen, slots, keys)).ids[0]
            plan = ledger.dispatch(0)
            ledger.settle(plan.number, 0, completions=[Completion(job, Worker(0), Result.OK)])
            ledger.evict(slots)

    return loop


def with_blocks(count: int) -> Ledger:
    """A ledger with so many blocks, and as little else as there can be."""
    return Ledger(Limits(num_blocks=count, num_slots=1, max_jobs=1, max_requests=1))


def with_slots(count: int) -> Ledger:
    """The same of slots."""
    return Ledger(Limits(num_blocks=2, num_slots=count, max_jobs=1, max_requests=1))


MEMORY: dict[str, tuple[Callable[[int], object], str]] = {
    "memory of one block": (lambda count: with_blocks(count)._state.core.blocks, str(BLOCK_BYTES)),
    "memory of one slot": (lambda count: with_slots(count)._state.core.slots, str(SLOT_BYTES)),
    "memory of one content": (lambda count: with_blocks(count)._state.core.contents, ""),
    "all that a ledger has more for one block more": (with_blocks, ""),
    "all that a ledger has more for one slot more": (with_slots, ""),
}
"""Whose memory is counted. A content is what a block or a slot may have; the journal has some room for each of them, too."""


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    plain, stored = nanoseconds(by_dict, scale), nanoseconds(store_by_dict, scale)
    unguarded = "plain dict, unguarded"
    figures = [
        Figure(
            name=name, ours=nanoseconds(loop, scale), unit="ns a verb", peer_name=unguarded, peer=plain, target=str(ONE_VERB)
        )
        for name, loop in (
            ("acquire or release one life", take_and_release(1)),
            ("admit, allocate or preempt one block", allocate_and_preempt(1)),
        )
    ]
    figures.append(
        Figure(
            name="store one block, from plan to eviction",
            ours=nanoseconds(store_and_evict(1), scale),
            unit="ns",
            peer_name=unguarded,
            peer=stored,
            target=str(ONE_STORE),
        )
    )
    for size in (scale.sizes[0] // 10, *scale.sizes):
        batches = max(2, scale.calls * 5 // size)
        target = str(BULK[size]) if size in BULK else ""
        for name, loop in (("acquire or release", take_and_release(size)), ("allocate or preempt", allocate_and_preempt(size))):
            figures.append(
                Figure(
                    name=f"{name}, batches of {size}",
                    ours=nanoseconds(loop, scale, batches) / size,
                    unit="ns a life",
                    peer_name=unguarded,
                    peer=plain,
                    target=target,
                )
            )
        figures.append(
            Figure(
                name=f"store, from plan to eviction, batches of {size}",
                ours=nanoseconds(store_and_evict(size), scale, max(1, batches // 4)) / size,
                unit="ns a block",
                peer_name=unguarded,
                peer=stored,
            )
        )
    by_hand = bytes_each(DictLedger, scale.models * 100)
    for name, (kept, bar) in MEMORY.items():
        ours = bytes_each(kept, scale.models * 100)
        figures.append(Figure(name=name, ours=ours, unit="bytes", peer_name=unguarded, peer=by_hand, target=bar))
    return figures
