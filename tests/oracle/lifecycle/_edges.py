"""The `edge` decorator: methods as events, with the states that they start from and lead to."""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from attrs import frozen

from tests.oracle.errors import DefinitionError
from tests.oracle.lifecycle._table import Event, Guard, runs_later

if TYPE_CHECKING:
    from tests.oracle.lifecycle._machine import Lifecycle

P = ParamSpec("P")
MachineT = TypeVar("MachineT")
SourceT = TypeVar("SourceT", bound=enum.Enum)
TargetT = TypeVar("TargetT", bound=enum.Enum)
OtherT = TypeVar("OtherT", bound=enum.Enum)
NextT = TypeVar("NextT", bound=enum.Enum)


class edge(Generic[SourceT, TargetT]):  # noqa: N801 - it is used as a decorator
    """One row, or one per source state: ``@edge(S.FREED, to=S.ALLOCATED, when=guard)``.

    If the states are also given as types, ``@edge[Closed, Locked](Door.CLOSED, to=Door.LOCKED)``, mypy knows which handles the
    event accepts (`Pool.fire`) and checks that types and values agree.
    """

    def __init__(self, *sources: SourceT, to: TargetT, when: Guard[...] | None = None) -> None:
        self._sources = sources
        self._to = to
        self._when = when

    @overload
    def __call__(self, method: Callable[Concatenate[MachineT, P], None]) -> Edge[SourceT, TargetT, P]: ...
    @overload
    def __call__(self, method: Edge[OtherT, NextT, P]) -> Edge[SourceT | OtherT, TargetT | NextT, P]: ...

    def __call__(self, method: object) -> object:
        """Add these rows above the rows that *method* already has."""
        below = method.pending if isinstance(method, Edge) else ()
        written = method.method if isinstance(method, Edge) else method
        if not inspect.isfunction(written) or runs_later(written):
            raise DefinitionError(f"an edge must be a plain method, not {written!r}")
        here = tuple(_Pending(source, self._to, self._when) for source in self._sources)
        if not here:
            raise DefinitionError(f"edge {written.__name__}: name at least one state it starts from")
        return Edge(written, here + below)


@frozen
class _Pending:
    """A row as written, before the class exists."""

    source: enum.Enum
    target: enum.Enum
    guard: Guard[...] | None


if TYPE_CHECKING:

    class _Descriptor:
        """The base as mypy sees it: empty, so that `Edge` can declare its own return types."""

else:
    # property's __get__ runs in C and costs half as much as one in Python, on the hottest path of a single machine.
    _Descriptor = property


class Edge(_Descriptor, Generic[SourceT, TargetT, P]):
    """An event of a lifecycle: on the class the edge itself, on an instance the bound method that fires it."""

    def __init__(self, method: types.FunctionType, pending: tuple[_Pending, ...]) -> None:
        self.method = method
        self.pending = pending
        self.name = method.__name__
        self._event: Event | None = None

    @property
    def event(self) -> Event:
        """The compiled event."""
        if self._event is None:
            raise DefinitionError(f"edge {self.name} stands outside a Lifecycle class")
        return self._event

    def _compiled(self, event: Event, fire: Callable[..., None]) -> None:
        self._event = event
        if not TYPE_CHECKING:
            property.__init__(self, functools.partial(types.MethodType, fire), doc=event.doc)

    if TYPE_CHECKING:

        @overload
        def __get__(self, machine: None, owner: type) -> Self: ...
        @overload
        def __get__(self, machine: Lifecycle, owner: type) -> Callable[P, None]: ...
        def __get__(self, machine: object, owner: type) -> object: ...
