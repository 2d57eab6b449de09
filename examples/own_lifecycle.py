"""A lifecycle of your own: the slots of a serving engine that hold the weights of LoRA adapters.

Twenty lines declare it. Then one slot runs alone, ten thousand run in bulk, and the table is drawn and handed to
`transitions`. Among other lines it prints:

    one slot is SERVING
    AdapterLife: cannot EVICT while SERVING: 2 requests still use it (it is allowed when no request uses it)
    AdapterLife: cannot SERVE while EMPTY: no weights in the slot (it is allowed while READY or SERVING)
    10000 slots: 8000 READY, 2000 EMPTY
    adapter 1: this handle was used up, it is SERVING now (take a new handle)
    | state | `load` | `land` | `serve` | `done` | `evict` |
    the same as a transitions machine: LOADING
"""

from __future__ import annotations

import enum

import numpy as np

from blocklife.drawing import state_event_table
from blocklife.errors import MisuseError, RefusedError
from blocklife.lifecycle import Lifecycle, Pool, edge, guard
from blocklife.machines import as_machine


class Adapter(enum.Enum):
    EMPTY = "no weights in the slot"
    LOADING = "weights are on their way"
    READY = "resident; no request uses them"
    SERVING = "requests use them"


@guard
def arrived(ok: bool) -> bool:
    return ok


@guard(otherwise="{users} requests still use it")
def idle(users: int) -> bool:
    """No request uses it."""
    return users == 0


class AdapterLife(Lifecycle, initial=Adapter.EMPTY):
    """One slot for the weights of an adapter."""

    @edge(Adapter.EMPTY, to=Adapter.LOADING)
    def load(self) -> None: ...

    @edge(Adapter.LOADING, to=Adapter.READY, when=arrived)
    @edge(Adapter.LOADING, to=Adapter.EMPTY)
    def land(self, ok: bool) -> None: ...

    @edge(Adapter.READY, Adapter.SERVING, to=Adapter.SERVING)
    def serve(self) -> None: ...

    @edge(Adapter.SERVING, to=Adapter.READY, when=idle)
    @edge(Adapter.SERVING, to=Adapter.SERVING)
    def done(self, users: int) -> None: ...

    @edge(Adapter.READY, Adapter.SERVING, to=Adapter.EMPTY, when=idle)
    def evict(self, users: int) -> None: ...


def one_alone() -> None:
    slot = AdapterLife()
    slot.load()
    slot.land(ok=True)
    slot.serve()
    print("one slot is", slot.state.name)
    try:
        slot.evict(users=2)
    except RefusedError as refused:
        print(refused)
    try:
        AdapterLife().serve()
    except RefusedError as refused:
        print(refused)


def many_at_once() -> None:
    pool = Pool(AdapterLife, 10_000)
    loading = pool.fire(AdapterLife.load, pool.handle(Adapter.EMPTY))
    pool.fire_each(AdapterLife.land, loading, ok=np.arange(len(loading)) % 5 != 0)
    counts = {state.name: number for state, number in pool.column.count().items() if number}
    print(f"{len(pool)} slots: {counts['READY']} READY, {counts['EMPTY']} EMPTY")

    ready = pool.handle(Adapter.READY)
    pool.fire(AdapterLife.serve, ready)
    try:
        pool.fire(AdapterLife.evict, ready, users=0)
    except MisuseError as misuse:
        print(misuse)


def the_table() -> None:
    print(state_event_table(AdapterLife.table))
    machine = as_machine(AdapterLife)
    machine.dispatch("load")
    print("the same as a transitions machine:", machine.get_model_state(machine).name)


if __name__ == "__main__":
    one_alone()
    many_at_once()
    the_table()
