"""Many machines of a lifecycle of your own, moved in typed batches."""

from __future__ import annotations

import enum
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Never, ParamSpec, Protocol, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from blocklife.errors import MisuseError, RefusedError, plain_repr
from blocklife.lifecycle._column import Column
from blocklife.lifecycle._handle import Handle
from blocklife.lifecycle._hooks import Subscription, Transition, What
from blocklife.lifecycle._lifecycle import Edge, Lifecycle
from blocklife.lifecycle._table import Table

P = ParamSpec("P")
SourceT = TypeVar("SourceT", bound=enum.Enum)
TargetT = TypeVar("TargetT", bound=enum.Enum)
StateT_co = TypeVar("StateT_co", bound=enum.Enum, covariant=True)
TargetT_co = TypeVar("TargetT_co", bound=enum.Enum, covariant=True)


class FiresBatch(Protocol[P, TargetT_co]):
    """An event, by what `Pool.fire` takes behind it: a handle on places in its states, and its payload."""

    if TYPE_CHECKING:

        def _batch(self, *args: P.args, **kwargs: P.kwargs) -> TargetT_co: ...


class FiresEach(Protocol[P, TargetT_co]):
    """An event, by what `Pool.fire_each` takes behind it: a handle on places in its states, and arrays by name."""

    if TYPE_CHECKING:

        def _each(self, *args: P.args, **kwargs: P.kwargs) -> TargetT_co: ...


class Pool:
    """Many machines of one lifecycle of your own, moved in typed batches.

    A pool holds states only: the bodies of the edges do not run, for they are effects of single machines.
    """

    def __init__(self, lifecycle: type[Lifecycle], size: int) -> None:
        if not isinstance(getattr(lifecycle, "table", None), Table):
            raise MisuseError(f"a pool: {plain_repr(lifecycle)} is not a lifecycle (give the class that has the edges)")
        if size < 1:
            raise MisuseError(f"a pool of {lifecycle.__name__}: the size must be at least 1, not {size}")
        self.column = Column(lifecycle.table, size)
        self._stamps = np.zeros(size, dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def handle(self, state: enum.Enum, ids: Iterable[int] | None = None) -> Handle[Never]: ...
    @overload
    def handle(self, state: Edge[SourceT, TargetT, P], ids: Iterable[int] | None = None) -> Handle[SourceT]: ...

    def handle(self, state: object, ids: Iterable[int] | None = None) -> Handle[Never]:
        """A handle on the places in *state*: all of them, or just *ids*, which must be distinct and in that state.

        Instead of a state you can pass an edge: the handle then holds the places from which it can start. If the edge has its
        states as types, mypy knows the states of that handle. A handle taken by state is accepted by every edge, and the table
        decides when it is fired. The handle that `fire` returns always has the type of the state that the edge leads to.
        """
        table = self.column.table
        if isinstance(state, Edge):
            if state.event.table is not table:
                raise MisuseError(f"{state.event.table.name}.{state.name} is not an event of {table.name}")
            among = list(dict.fromkeys(row.source for row in state.event.rows))
        elif isinstance(state, enum.Enum) and state in table.index:
            among = [state]
        else:
            raise MisuseError(f"{plain_repr(state)} is not a state of {table.name}")
        there = np.isin(self.column.view, [table.index[each] for each in among])
        if ids is None:
            return self._handle(np.flatnonzero(there).astype(np.int64))
        chosen = _places(ids)
        if len(np.unique(chosen)) != len(chosen):
            raise MisuseError(f"{table.name}: a place is named twice in {chosen.tolist()}")
        if len(chosen) and not (int(chosen.min()) >= 0 and int(chosen.max()) < len(self)):
            raise MisuseError(f"{table.name}: places are 0 to {len(self) - 1}, not {chosen.tolist()}")
        for place in chosen[~there[chosen]].tolist():
            wanted = " or ".join(each.name for each in among)
            raise MisuseError(f"{table.name}: place {place} is {self.column.at(place).name}, not {wanted}")
        return self._handle(chosen)

    def fire(self, fired: FiresBatch[P, TargetT_co], /, *args: P.args, **kwargs: P.kwargs) -> Handle[TargetT_co]:
        """Move a whole batch with one payload: ``pool.fire(DoorLife.lock, handle, 4711)``.

        *args*: the handle, and the payload of the event behind it. Refuses, and changes nothing, if a place has moved since or
        has no row.
        """
        edge, handle, rest = self._batch(fired, args)
        try:
            payload = inspect.signature(edge.method).bind(None, *rest, **kwargs)
        except TypeError as problem:
            takes = ", ".join(edge.event.parameters) or "nothing"
            raise TypeError(f"{edge!r}: {problem} (behind the handle it takes {takes})") from None
        payload.apply_defaults()
        return cast(Handle[TargetT_co], self._move(edge, handle, payload.arguments))

    def fire_each(self, fired: FiresEach[P, TargetT_co], /, *args: P.args, **kwargs: P.kwargs) -> Handle[TargetT_co]:
        """Move a batch with arrays as its payload, one value a place: ``pool.fire_each(DoorLife.lock, closed, code=them)``.

        Refuses: MisuseError for a payload that is not an array with one value a place, DefinitionError for a guard that answers
        once for all places.
        """
        edge, handle, _ = self._batch(fired, args)
        moved = self._move_each(edge, handle, cast(Mapping[str, NDArray[np.generic]], kwargs))
        return cast(Handle[TargetT_co], moved)

    def _move_each(
        self, fired: Edge[enum.Enum, enum.Enum, ...], handle: Handle[enum.Enum], payload: Mapping[str, NDArray[np.generic]]
    ) -> Handle[enum.Enum]:
        missing = set(fired.event.parameters) ^ set(payload)
        if missing:
            raise MisuseError(f"{fired.name} takes {', '.join(fired.event.parameters) or 'nothing'}; check {sorted(missing)}")
        for name, values in payload.items():
            if not isinstance(values, np.ndarray):
                raise MisuseError(f"{fired.name}: {name} is of type {type(values).__name__} (give an array: np.asarray(...))")
            if np.shape(values) != (len(handle),):
                raise MisuseError(f"{fired.name}: {name} has shape {np.shape(values)}, for {len(handle)} places")
        return self._move(fired, handle, payload, each_place=True)

    def on(
        self,
        *what: What,
        entered: enum.Enum | None = None,
        left: enum.Enum | None = None,
        hook: Callable[[Transition], None] | None = None,
    ) -> Subscription[Transition]:
        """Register a hook for batches: of some events (all by default), into or out of a state.

        The payload of a transition is that of `fire`, or the arrays of `fire_each`. See `Hooks.on`.
        """
        return self.column.on(*what, entered=entered, left=left, hook=hook)

    def _batch(
        self, fired: object, args: Sequence[object]
    ) -> tuple[Edge[enum.Enum, enum.Enum, ...], Handle[enum.Enum], Sequence[object]]:
        """The event, the handle and the rest; refuses what is not an event, and what is not a handle."""
        name = self.column.table.name
        if not isinstance(fired, Edge):
            one = next(iter(self.column.table.events))
            raise MisuseError(f"{name}: {plain_repr(fired)} is not an event (name it by its class, {name}.{one})")
        if not args or not isinstance(args[0], Handle):
            given = plain_repr(args[0]) if args else "nothing"
            raise MisuseError(f"{name}.{fired.name}: {given} is not a handle (pool.handle(...) gives one)")
        return fired, args[0], args[1:]

    def _move(
        self,
        fired: Edge[enum.Enum, enum.Enum, ...],
        handle: Handle[enum.Enum],
        payload: Mapping[str, object],
        *,
        each_place: bool = False,
    ) -> Handle[enum.Enum]:
        table = self.column.table
        if fired.event.table is not table:
            raise MisuseError(f"{fired.event.table.name}.{fired.name} is not an event of {table.name}")
        if handle.pool is not self:
            raise MisuseError(f"{table.name}: the handle belongs to another pool")
        moved_on = self._stamps[handle.ids] != handle.stamps
        if moved_on.any():
            place = int(handle.ids[moved_on][0])
            state = self.column.at(place).name
            raise MisuseError(f"{self.column.thing(place)}: this handle was used up, it is {state} now (take a new handle)")
        column, ids, facts = self.column, handle.ids, fired.event.facts(payload, each_place=each_place)
        try:
            rows = column.ask(fired.event, ids, facts)
        except RefusedError as refusal:
            raise column.refusal_among(fired.event, ids, refusal, payload) from None
        column.commit(ids, rows)
        self._stamps[ids] += np.uint32(1)
        moved: Handle[enum.Enum] = Handle(ids, self._stamps[ids], self)
        column.notify(fired.event, ids, rows, payload)
        return moved

    def _handle(self, ids: NDArray[np.int64]) -> Handle[Never]:
        ids.setflags(write=False)
        return Handle(ids, self._stamps[ids], self)


def _places(ids: Iterable[int]) -> NDArray[np.int64]:
    """A copy of *ids* as an array. Anything but integers is a `TypeError`; floats are not rounded, bools are no mask."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TypeError(f"places are a row of integers, not {ids.dtype} of shape {ids.shape}")
        return ids.astype(np.int64)
    return np.fromiter(map(operator.index, ids), dtype=np.int64)
