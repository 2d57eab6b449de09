"""What the types stop. Never run; every marked line, and no other, must fail under mypy with the code it names."""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import numpy as np

from blocklife.ledger import Batch, GroupTransfer, Jobs, Ledger, Store
from blocklife.ledger.jobs import Allocated, InFlight, Loading, Planned, Sealed
from blocklife.lifecycle import Column, Edge, Handle, Lifecycle, Pool, Transition, edge, guard
from blocklife.states import Block, BlockLife


class Door(enum.Enum):
    CLOSED = "shut, but not locked"
    OPEN = "anybody may pass"
    LOCKED = "needs the code"


class Lamp(enum.Enum):
    OFF = "dark"
    ON = "bright"


Closed: TypeAlias = Literal[Door.CLOSED]
Open: TypeAlias = Literal[Door.OPEN]
Locked: TypeAlias = Literal[Door.LOCKED]


@guard
def knows(code: int) -> bool:
    return code == 4711


@guard  # E: arg-type
def undecided(code: int) -> str:
    return str(code)


class DoorLife(Lifecycle, initial=Door.CLOSED):
    @edge[Closed, Open](Door.CLOSED, to=Door.OPEN)
    def open(self) -> None: ...

    @edge[Open, Closed](Door.OPEN, to=Door.CLOSED)
    def shut(self) -> None: ...

    @edge[Closed, Locked](Door.CLOSED, to=Door.LOCKED)
    def lock(self, code: int, *, twice: bool = False) -> None: ...

    @edge[Locked, Closed](Door.LOCKED, to=Door.CLOSED, when=knows)
    def unlock(self, code: int) -> None: ...


class LampLife(Lifecycle, initial=Lamp.OFF):
    @edge(Lamp.OFF, to=Lamp.ON)
    def light(self) -> None: ...

    @edge(Lamp.ON, to=Lamp.OFF)
    def dim(self) -> None: ...


class WrongLife(Lifecycle, initial=Door.CLOSED):
    @edge[Closed, Locked](Door.OPEN, to=Door.LOCKED)  # E: arg-type
    def source_is_not_its_type(self) -> None: ...

    @edge[Closed, Locked](Door.CLOSED, to=Door.OPEN)  # E: arg-type
    def target_is_not_its_type(self) -> None: ...

    @edge(Door.CLOSED, to=Door.LOKED)  # E: attr-defined
    def state_is_misspelt(self) -> None: ...

    @edge("CLOSED", to=Door.LOCKED)  # E: type-var
    def state_is_text(self) -> None: ...

    @edge(Door.CLOSED, to=Door.LOCKED, when=lambda: True)  # E: arg-type
    def guard_is_a_lambda(self) -> None: ...

    @edge(Door.CLOSED)  # E: call-arg
    def target_is_missing(self) -> None: ...

    @edge(Door.CLOSED, to=Door.LOCKED)  # E: arg-type
    def answer_is_not_none(self) -> int:
        return 1

    @edge(Door.CLOSED, to=Door.LOCKED)  # E: arg-type
    async def answer_is_a_coroutine(self) -> None: ...


class NoInitial(Lifecycle):  # E: call-arg
    pass


class TextInitial(Lifecycle, initial="CLOSED"):  # E: arg-type
    pass


def payloads(door: DoorLife) -> None:
    door.lock("4711")  # E: arg-type
    door.lock()  # E: call-arg
    door.lock(1, True)  # E: call-arg
    door.lock(1, slam=True)  # E: call-arg
    door.lock(1, twice="yes")  # E: arg-type
    door.open(1)  # E: call-arg
    door.unlok(1)  # E: attr-defined
    door.unlock(None)  # E: arg-type
    knows("4711")  # E: arg-type
    knows()  # E: call-arg
    guard(otherwise=4711)  # E: call-overload
    print(DoorLife.unlok)  # E: attr-defined
    BlockLife().allocate(True, 0)  # E: call-arg


def handles(pool: Pool, opened: Handle[Literal[Door.OPEN]], closed: Handle[Closed], blocks: Handle[Block]) -> None:
    pool.fire(DoorLife.lock, opened, 1)  # E: arg-type
    pool.fire(DoorLife.unlock, closed, 1)  # E: arg-type
    pool.fire(DoorLife.lock, closed, "1")  # E: arg-type
    pool.fire(DoorLife.lock, closed)  # E: call-arg
    pool.fire(DoorLife.lock, closed, 1, True)  # E: call-arg
    pool.fire(DoorLife.lock, closed, 1, slam=True)  # E: call-arg
    pool.fire(DoorLife.lok, closed, 1)  # E: attr-defined
    pool.fire(LampLife.light, closed)  # E: arg-type
    pool.fire(BlockLife.acquire, closed)  # E: arg-type
    pool.fire(DoorLife.open, blocks)  # E: arg-type
    pool.fire(DoorLife.open.method, closed)  # E: arg-type
    pool.fire_each(DoorLife.unlock, closed, code=np.ones(1))  # E: arg-type
    pool.fire_each(DoorLife.lock, closed, code=[1])  # E: arg-type
    wrong: Handle[Locked] = pool.fire(DoorLife.open, closed)  # E: arg-type
    taken: Handle[Open] = pool.handle(DoorLife.unlock)  # E: arg-type
    pool.fire(DoorLife.open, pool.fire(DoorLife.open, closed))  # E: arg-type
    pool.handle(Door.CLOSED, ["1"])  # E: list-item
    pool.handle("CLOSED")  # E: call-overload
    closed.ids = opened.ids  # E: misc
    print(wrong, taken)


def takes_text(told: str) -> None: ...


async def runs_later(told: Transition) -> None: ...


def hooks(pool: Pool, door: DoorLife, column: Column, ledger: Ledger) -> None:
    door.on(hook=takes_text)  # E: arg-type
    door.on()(takes_text)  # E: arg-type
    pool.on(DoorLife.lock)(takes_text)  # E: arg-type
    column.on(entered=Door.OPEN)(takes_text)  # E: arg-type
    door.on(hook=runs_later)  # E: arg-type
    pool.on()(runs_later)  # E: arg-type
    ledger.on(hook=takes_text)  # E: arg-type
    door.can(Door.OPEN)  # E: arg-type
    door.can(DoorLife.lok)  # E: attr-defined


def columns(column: Column) -> None:
    column.fire(DoorLife.open, [0])  # E: arg-type
    column.fire(DoorLife.open.event, 0)  # E: arg-type
    column.fire(DoorLife.open.event, (0, 1))  # E: arg-type
    column.fire(DoorLife.open.event, ["0"])  # E: list-item
    column.fire(DoorLife.open.event, [0], 0.5)  # E: arg-type


def edges() -> None:
    typed: Edge[Open, Locked, [int]] = DoorLife.unlock  # E: assignment
    print(typed)


def nothing_is_any(pool: Pool, closed: Handle[Closed], door: DoorLife) -> None:
    number: int = pool.fire(DoorLife.open, closed)  # E: assignment
    text: str = door.state  # E: assignment
    ids: str = closed.ids  # E: assignment
    call: int = door.lock  # E: assignment
    name: int = DoorLife.lock.event.name  # E: assignment
    print(number, text, ids, call, name)


def ledger_verbs(
    ledger: Ledger,
    held: Batch[Allocated],
    sealed: Batch[Sealed],
    loading: Batch[Loading],
    planned: Jobs[Planned],
    flying: Jobs[InFlight],
) -> None:
    ledger.submit(flying)  # E: arg-type
    ledger.submit(held)  # E: arg-type
    ledger.submit(ledger.jobs.of("r"))  # E: arg-type
    ledger.cancel(ledger.submit(planned))  # E: arg-type
    ledger.abandon(planned)  # E: arg-type
    ledger.abandon(ledger.jobs.submitted())  # E: arg-type
    ledger.flush(planned)  # E: arg-type
    ledger.seal(sealed, [b"k"])  # E: arg-type
    ledger.seal(held, b"k")  # E: arg-type
    ledger.seal(held)  # E: call-arg
    ledger.plan_store(Store.of(loading, [0], [b"k"]))  # E: arg-type
    ledger.plan_load("r", GroupTransfer(sealed, [0]))  # E: arg-type
    ledger.alocate("r", 1)  # E: attr-defined
