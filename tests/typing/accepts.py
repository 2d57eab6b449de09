"""What the types let through: clean under mypy strict, and run by `tests/project/test_typing.py`."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Literal, TypeAlias, assert_type

import numpy as np

from blocklife.ledger import Batch, Jobs, Ledger, Limits, Store
from blocklife.ledger.jobs import Allocated, InFlight, Planned, Sealed, Unwanted
from blocklife.lifecycle import Column, Edge, Guard, Handle, Lifecycle, Pool, Subscription, Transition, edge, guard


class Door(enum.Enum):
    CLOSED = "shut, but not locked"
    OPEN = "anybody may pass"
    LOCKED = "needs the code"


Closed: TypeAlias = Literal[Door.CLOSED]
Open: TypeAlias = Literal[Door.OPEN]
Locked: TypeAlias = Literal[Door.LOCKED]


@guard
def knows(code: int) -> bool:
    return code == 4711


@guard(otherwise="{code} is not the code")
def is_code(code: int) -> bool:
    return code == 4711


class DoorLife(Lifecycle, initial=Door.CLOSED):
    """A lifecycle whose edges carry their states as types."""

    @edge[Closed, Open](Door.CLOSED, to=Door.OPEN)
    def open(self) -> None: ...

    @edge[Open, Closed](Door.OPEN, to=Door.CLOSED)
    def shut(self) -> None: ...

    @edge[Closed, Locked](Door.CLOSED, to=Door.LOCKED)
    @edge[Open, Locked](Door.OPEN, to=Door.LOCKED)
    def lock(self, code: int, *, twice: bool = False) -> None: ...

    @edge[Locked, Closed](Door.LOCKED, to=Door.CLOSED, when=knows)
    def unlock(self, code: int) -> None: ...


class TypedLife(Lifecycle[Door], initial=Door.CLOSED):
    """One whose machines know the enum of their states."""

    @edge(Door.CLOSED, to=Door.OPEN)
    @edge(Door.OPEN, to=Door.LOCKED)
    @edge(Door.LOCKED, to=Door.CLOSED)
    def turn(self) -> None: ...


class PlainLife(Lifecycle, initial=Door.CLOSED):
    """The same without: states are checked when the program runs, payloads still by mypy."""

    @edge(Door.CLOSED, Door.OPEN, to=Door.LOCKED)
    @edge(Door.LOCKED, to=Door.OPEN, when=knows)
    def turn(self, code: int) -> None: ...

    @edge(Door.OPEN, to=Door.CLOSED)
    def shut(self) -> None: ...


def guards_keep_their_signature() -> None:
    assert_type(knows(4711), bool)
    same: Guard[[int]] = knows
    assert same is knows
    assert_type(is_code(4711), bool)
    told: Guard[[int]] = is_code
    assert told.otherwise == "{code} is not the code"


def events_are_methods_with_the_written_signature() -> None:
    door = DoorLife()
    assert_type(door.lock(1, twice=True), None)
    door.unlock(code=4711)
    as_value: Callable[[], None] = door.open
    as_value()
    assert_type(door.state, enum.Enum)


def edges_know_their_states() -> None:
    unlock: Edge[Locked, Closed, [int]] = DoorLife.unlock
    assert_type(unlock.event.name, str)


def handles_carry_their_state() -> None:
    pool = Pool(DoorLife, 4)
    closed: Handle[Closed] = pool.handle(Door.CLOSED)
    opened = pool.fire(DoorLife.open, closed)
    assert_type(opened, Handle[Open])
    shut = pool.fire(DoorLife.shut, opened)
    assert_type(shut, Handle[Closed])
    locked = pool.fire(DoorLife.lock, shut, 4711, twice=True)
    assert_type(locked, Handle[Locked])
    assert_type(pool.fire_each(DoorLife.unlock, locked, code=np.full(4, 4711)), Handle[Closed])


def handles_are_taken_by_state_or_by_event() -> None:
    pool = Pool(DoorLife, 4)
    opened = pool.fire(DoorLife.open, pool.handle(Door.CLOSED, [0]))
    assert_type(opened, Handle[Open])
    assert_type(pool.handle(DoorLife.unlock), Handle[Locked])
    assert_type(pool.handle(DoorLife.lock, [0, 1]), Handle[Closed | Open])
    taken = pool.handle(Door.CLOSED)
    pool.fire(DoorLife.lock, taken, 1)


def machines_know_the_enum_of_their_states() -> None:
    assert_type(TypedLife().state, Door)
    assert_type(TypedLife(Door.OPEN).state, Door)


def hooks_are_typed() -> None:
    door, pool, heard = DoorLife(), Pool(DoorLife, 2), list[str]()

    @door.on(DoorLife.lock, DoorLife.unlock)
    def hear(transition: Transition) -> None:
        heard.append(transition.event)

    with pool.on(entered=Door.OPEN) as opened:
        pool.fire(DoorLife.open, pool.handle(Door.CLOSED))
    door.lock(4711)
    hear(opened.heard[0])
    assert heard == ["lock", "open"]
    assert_type(opened, Subscription[Transition])


def one_event_may_start_from_several_states() -> None:
    pool = Pool(DoorLife, 2)
    closed: Handle[Closed] = pool.handle(Door.CLOSED, [0])
    other: Handle[Closed] = pool.handle(Door.CLOSED, [1])
    opened = pool.fire(DoorLife.open, other)
    assert_type(pool.fire(DoorLife.lock, closed, 1), Handle[Locked])
    assert_type(pool.fire(DoorLife.lock, opened, 1), Handle[Locked])


def edges_without_types_give_handles_on_any_state() -> None:
    pool = Pool(PlainLife, 4)
    handle = pool.fire(PlainLife.turn, pool.handle(Door.CLOSED), 1)
    assert_type(handle, Handle[Door])
    assert_type(pool.fire(PlainLife.turn, handle, code=4711), Handle[Door])


def columns_take_lists_arrays_and_slices() -> None:
    column = Column(DoorLife.table, 4)
    event = DoorLife.open.event
    column.fire(event, [0])
    column.fire(event, np.array([1], dtype=np.int64), [0])
    column.fire(event, slice(2, 4), np.zeros(2, dtype=np.uint8))


def ledger_verbs_hand_on_what_they_left() -> None:
    ledger = Ledger(Limits(num_blocks=4, num_slots=2))
    ledger.add_request("r")
    held = assert_type(ledger.allocate("r", 1), Batch[Allocated])
    sealed = assert_type(ledger.seal(held, [b"k"]), Batch[Sealed])
    planned = assert_type(ledger.plan_store(Store.of(sealed, [0], [b"k"])), Jobs[Planned])
    flying = assert_type(ledger.submit(planned), Jobs[InFlight])
    ledger.flush(ledger.flush(flying))
    assert_type(ledger.abandon(flying), Jobs[Unwanted])
    ledger.quiesce(ledger.jobs.submitted())


if __name__ == "__main__":
    guards_keep_their_signature()
    events_are_methods_with_the_written_signature()
    edges_know_their_states()
    handles_carry_their_state()
    handles_are_taken_by_state_or_by_event()
    machines_know_the_enum_of_their_states()
    hooks_are_typed()
    one_event_may_start_from_several_states()
    edges_without_types_give_handles_on_any_state()
    columns_take_lists_arrays_and_slices()
    ledger_verbs_hand_on_what_they_left()
