"""One guarded transition, bulk transitions, and memory, against other libraries and a dictionary written by hand.

A column is given facts; its figures leave the guards out, except where the name says that guards are judged.
"""

from __future__ import annotations

import enum
import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from statemachine import State, StateMachine

from blocklife.lifecycle import Column, Lifecycle, edge, guard
from blocklife.machines import as_machine
from tests.bench import Figure, Scale, nanoseconds

CODE = 4711


class Door(enum.Enum):
    CLOSED = "shut, but not locked"
    LOCKED = "needs the code"


@guard
def knows(code: int) -> bool:
    return code == CODE


class DoorLife(Lifecycle, initial=Door.CLOSED):
    """Two guarded edges, so that a machine can go back and forth for ever."""

    @edge(Door.CLOSED, to=Door.LOCKED, when=knows)
    def lock(self, code: int) -> None: ...

    @edge(Door.LOCKED, to=Door.CLOSED, when=knows)
    def unlock(self, code: int) -> None: ...


DICT = {("closed", "lock"): (knows.test, "locked"), ("locked", "unlock"): (knows.test, "closed")}


class DictDoor:
    """What one writes without a library: a dictionary, a guard, an attribute; no payload types, no checks, no counts."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = "closed"

    def fire(self, event: str, code: int) -> None:
        row = DICT.get((self.state, event))
        if row is None:
            raise ValueError(f"cannot {event} while {self.state}")
        test, target = row
        if not test(code):
            raise ValueError(f"{event}: wrong code")
        self.state = target


# Every loop below makes pairs, there and back, so that each call is a lawful one.


def single(number: int) -> None:
    door = DoorLife()
    for _ in range(number // 2):
        door.lock(CODE)
        door.unlock(CODE)


def by_dict(number: int) -> None:
    door = DictDoor()
    for _ in range(number // 2):
        door.fire("lock", CODE)
        door.fire("unlock", CODE)


def scalar(number: int) -> None:
    column = Column(DoorLife.table, 64)
    lock, unlock, ids, fire = DoorLife.lock.event, DoorLife.unlock.event, [17], column.fire
    for _ in range(number // 2):
        fire(lock, ids, 1)
        fire(unlock, ids, 1)


def transitions_loop() -> Callable[[int], None]:
    door = as_machine(DoorLife)
    # The triggers are planted on the model when it runs; no type knows them.
    lock, unlock = getattr(door, "lock"), getattr(door, "unlock")  # noqa: B009

    def loop(number: int) -> None:
        for _ in range(number // 2):
            lock(code=CODE)
            unlock(code=CODE)

    return loop


class OtherDoor(StateMachine):
    """The same door in python-statemachine."""

    closed, locked = State(initial=True), State()
    lock, unlock = closed.to(locked, cond="knows"), locked.to(closed, cond="knows")

    def knows(self, code: int) -> bool:
        return code == CODE


def statemachine(number: int) -> None:
    door = OtherDoor()
    for _ in range(number // 2):
        door.send("lock", code=CODE)
        door.send("unlock", code=CODE)


def bulk_loop(size: int, ids: NDArray[np.int64] | slice, facts: int | NDArray[np.uint8]) -> Callable[[int], None]:
    column = Column(DoorLife.table, size)
    lock, unlock, fire = DoorLife.lock.event, DoorLife.unlock.event, column.fire

    def loop(number: int) -> None:
        for _ in range(number // 2):
            fire(lock, ids, facts)
            fire(unlock, ids, facts)

    return loop


def judged_loop(size: int, ids: NDArray[np.int64]) -> Callable[[int], None]:
    """As a bulk loop, but the guard judges one payload per place in every batch."""
    column = Column(DoorLife.table, size)
    lock, unlock, fire = DoorLife.lock.event, DoorLife.unlock.event, column.fire
    payload = {"code": np.full(size, CODE)}

    def loop(number: int) -> None:
        for _ in range(number // 2):
            fire(lock, ids, lock.facts(payload))
            fire(unlock, ids, unlock.facts(payload))

    return loop


def bytes_each(make: Callable[[int], object], count: int) -> float:
    """Bytes that stay allocated for each of *count* machines."""
    make(2)
    gc.collect()
    tracemalloc.start()
    try:
        kept = make(count)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    del kept
    return size / count


class Model:
    """What `transitions` plants its triggers on."""


def many_models(count: int) -> object:
    """One machine for many models, which is how `transitions` saves memory."""
    first = Model()
    machine = as_machine(DoorLife, model=first)
    models = [Model() for _ in range(count)]
    machine.add_model(models)
    return machine, models


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    one = nanoseconds(single, scale)
    peer = nanoseconds(transitions_loop(), scale, max(2, scale.calls // 20))
    other = nanoseconds(statemachine, scale, max(2, scale.calls // 200))
    plain = nanoseconds(by_dict, scale)
    alone = nanoseconds(scalar, scale)
    target = "at most 250 ns"
    figures = [
        Figure(name="guarded step, one machine", ours=one, unit="ns", peer_name="transitions", peer=peer, target=target),
        Figure(name="guarded step, one machine", ours=one, unit="ns", peer_name="python-statemachine", peer=other),
        Figure(name="guarded step, one machine", ours=one, unit="ns", peer_name="plain dict", peer=plain),
        Figure(name="guarded step, one place of a column", ours=alone, unit="ns", peer_name="transitions", peer=peer),
        Figure(name="guarded step, one place of a column", ours=alone, unit="ns", peer_name="plain dict", peer=plain),
    ]
    for size in scale.sizes:
        every = np.arange(size, dtype=np.int64)
        shuffled = np.random.default_rng(7).permutation(every)
        facts = np.ones(size, dtype=np.uint8)
        batches = max(2, scale.calls * 10 // size)
        for name, loop, bar in (
            ("contiguous, one fact", bulk_loop(size, slice(0, size), 1), "at most 3 ns"),
            ("contiguous, a fact each", bulk_loop(size, slice(0, size), facts), "at most 3 ns"),
            ("list of ids in order", bulk_loop(size, every, facts), "at most 10 ns"),
            ("list of ids, shuffled", bulk_loop(size, shuffled, facts), "at most 10 ns"),
            ("list of ids, guards judged", judged_loop(size, shuffled), "at most 10 ns"),
        ):
            cost = nanoseconds(loop, scale, batches) / size
            figures.append(
                Figure(
                    name=f"{size} places, {name}", ours=cost, unit="ns a place", peer_name="transitions", peer=peer, target=bar
                )
            )
    figures.append(
        Figure(
            name="memory of one machine",
            ours=bytes_each(lambda count: Column(DoorLife.table, count), scale.models * 100),
            unit="bytes",
            peer_name="transitions",
            peer=bytes_each(many_models, scale.models),
            target="at most 32 bytes, all columns",
        )
    )
    figures.append(
        Figure(
            name="memory of one machine object",
            ours=bytes_each(lambda count: [DoorLife() for _ in range(count)], scale.models),
            unit="bytes",
            peer_name="transitions",
            peer=figures[-1].peer,
        )
    )
    figures.append(
        Figure(
            name="memory of one machine object",
            ours=figures[-1].ours,
            unit="bytes",
            peer_name="python-statemachine",
            peer=bytes_each(lambda count: [OtherDoor() for _ in range(count)], scale.models // 10 or 1),
        )
    )
    return figures
