"""Ledger verbs, one life at a time and in batches, against a table of blocks in dictionaries written by hand.

A pair of verbs (acquire and release, say) is one round; its cost is halved, so that every figure is that of one verb.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blocklife.ledger import Batch, Completion, Contract, Ledger, Limits, Result, Worker
from blocklife.ledger.jobs import Allocated
from tests.bench import Figure, Scale, nanoseconds
from tests.bench.lifecycle import bytes_each

POOL = 16
"""Blocks of the pool for each block of a batch: a step of an engine touches a small part of its pool."""


class DictLedger:
    """What one writes first: a dictionary of states and a dictionary of counts. No couplings, no pins, no epochs, no bulk."""

    ACQUIRE = ("acquire", {"cached": "sealed", "sealed": "sealed"})
    RELEASE = ("release", {"sealed": "cached"})

    def __init__(self, num_blocks: int) -> None:
        self.state = dict.fromkeys(range(num_blocks), "cached")
        self.refs = dict.fromkeys(range(num_blocks), 0)

    def fire(self, event: tuple[str, dict[str, str]], block: int, change: int) -> None:
        target = event[1].get(self.state[block])
        if target is None:
            raise ValueError(f"block {block}: cannot {event[0]} while {self.state[block]}")
        refs = self.refs[block] + change
        if refs < 0:
            raise ValueError(f"block {block}: nobody holds it")
        self.refs[block] = refs
        self.state[block] = target if refs == 0 or change > 0 else "sealed"


def by_dict(number: int) -> None:
    ledger = DictLedger(64)
    for _ in range(number // 2):
        ledger.fire(DictLedger.ACQUIRE, 17, +1)
        ledger.fire(DictLedger.RELEASE, 17, -1)


def cached_ledger(num_blocks: int) -> tuple[Ledger, list[int]]:
    """A ledger with so many cached blocks, and their lives."""
    ledger = Ledger(Limits(num_blocks=num_blocks + 1, num_slots=num_blocks), contract=Contract.FENCE)
    ledger.add_request("maker")
    made = ledger.allocate("maker", num_blocks)
    ledger.seal(made, [number.to_bytes(8, "little") for number in range(num_blocks)])
    lives = ledger.table("maker")
    ledger.finish("maker")
    ledger.add_request("reader")
    return ledger, lives


def take_and_release(size: int) -> Callable[[int], None]:
    ledger, lives = cached_ledger(POOL * size)
    chosen = np.array(lives[:size], dtype=np.int64) if size > 1 else lives[:1]
    everything = range(size)
    table = ledger.requests["reader"].tables[0]

    def loop(number: int) -> None:
        for _ in range(number // 2):
            ledger.acquire("reader", chosen)
            ledger.release("reader", everything)
            del table[:]

    return loop


def allocate_and_preempt(size: int) -> Callable[[int], None]:
    ledger = Ledger(Limits(num_blocks=POOL * size, num_slots=64))
    ledger.add_request("reader")

    def loop(number: int) -> None:
        for _ in range(number // 2):
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
            job = ledger.plan_store(chosen, slots, keys).ids[0]
            plan = ledger.dispatch(0)
            ledger.settle(plan.number, 0, completions=[Completion(job, Worker(0), Result.OK)])
            ledger.evict(slots)

    return loop


def block_columns(count: int) -> object:
    """Everything that a ledger keeps per block."""
    return Ledger(Limits(num_blocks=count, num_slots=1, max_jobs=1, max_requests=1)).blocks


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    plain = nanoseconds(by_dict, scale)
    figures = [
        Figure(
            name="acquire or release one life",
            ours=nanoseconds(take_and_release(1), scale),
            unit="ns",
            peer_name="plain dict, unguarded",
            peer=plain,
            target="at most 2 000 ns",
        ),
        Figure(
            name="allocate or preempt one block",
            ours=nanoseconds(allocate_and_preempt(1), scale),
            unit="ns",
            peer_name="plain dict, unguarded",
            peer=plain,
            target="at most 2 000 ns a verb (three verbs a round)",
        ),
        Figure(name="store one block, from plan to eviction", ours=nanoseconds(store_and_evict(1), scale), unit="ns"),
    ]
    for size in (scale.sizes[0] // 10, *scale.sizes):
        batches = max(2, scale.calls * 5 // size)
        for name, loop, target in (
            ("acquire or release", take_and_release(size), "at most 50 ns"),
            ("allocate or preempt", allocate_and_preempt(size), "at most 50 ns"),
        ):
            cost = nanoseconds(loop, scale, batches) / size
            figures.append(
                Figure(
                    name=f"{name}, batches of {size}",
                    ours=cost,
                    unit="ns a block",
                    peer_name="plain dict, unguarded",
                    peer=plain,
                    target=target,
                )
            )
        cost = nanoseconds(store_and_evict(size), scale, max(1, batches // 4)) / size
        figures.append(Figure(name=f"store, from plan to eviction, batches of {size}", ours=cost, unit="ns a block"))
    figures.append(
        Figure(
            name="memory of one block",
            ours=bytes_each(block_columns, scale.models * 100),
            unit="bytes",
            target="at most 32 bytes, all columns",
        )
    )
    return figures
