"""One machine: the base of all lifecycles."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import ClassVar, ParamSpec, TypeVar

from blocklife.errors import DefinitionError, MisuseError
from blocklife.lifecycle._compiling import compile_table
from blocklife.lifecycle._edges import Edge
from blocklife.lifecycle._table import Table

P = ParamSpec("P")
SourceT = TypeVar("SourceT", bound=enum.Enum)
TargetT = TypeVar("TargetT", bound=enum.Enum)

painters: dict[str, Callable[[object], str | None]] = {}
"""How a notebook shows the things of this package, by the method that it asks for. Empty until what draws is imported."""


def painted(method: str, thing: object) -> str | None:
    """What a notebook shows of *thing*; None where nobody draws, and it shows the repr then."""
    painter = painters.get(method)
    return None if painter is None else painter(thing)


class Lifecycle:
    """Base of all lifecycles; an instance is one machine.

    ``class DoorLife(Lifecycle, initial=Door.CLOSED, finals={...})``. A state without a way out must be final, and every state
    must be reachable and must have a way home: to a final state, or to the initial one where none is final.
    """

    table: ClassVar[Table]
    _at: int
    _hooks: dict[str, list[Callable[[], None]]] | None = None

    def __init_subclass__(cls, *, initial: enum.Enum, finals: Iterable[enum.Enum] = (), **rest: object) -> None:
        super().__init_subclass__(**rest)
        if any(issubclass(base, Lifecycle) and base is not Lifecycle for base in cls.__bases__):
            raise DefinitionError(f"{cls.__name__}: a lifecycle cannot extend another; write its rows out")
        cls.table = compile_table(cls, initial, frozenset(finals), _edges_of(cls))

    def __init__(self) -> None:
        self._at = self.table.index[self.table.initial]

    @property
    def state(self) -> enum.Enum:
        """Where this machine stands."""
        return self.table.states[self._at]

    def on(self, fired: Edge[SourceT, TargetT, P], hook: Callable[[], None]) -> None:
        """Call *hook* after every commit of this event on this machine, after the edge's own body.

        A hook that raises cannot undo the commit: the machine stands in its new state, and the exception reaches the caller.
        """
        if fired.event.table is not self.table:
            raise MisuseError(f"{fired.event.table.name}.{fired.name} is no event of {self.table.name}")
        if self._hooks is None:
            self._hooks = {}
        self._hooks.setdefault(fired.name, []).append(hook)

    def _run_hooks(self, event: str) -> None:
        for hook in (self._hooks or {}).get(event, ()):
            hook()

    def can(self, event: str) -> bool:
        """Whether *event* has a row in this state, guards aside."""
        return bool(self.table.event(event).rows_of(self.state))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}>"

    def _repr_svg_(self) -> str | None:
        return painted("_repr_svg_", self)

    def _repr_html_(self) -> str | None:
        return painted("_repr_html_", self)


def _edges_of(cls: type[Lifecycle]) -> list[Edge[enum.Enum, enum.Enum, ...]]:
    """The edges written in the body of *cls*; they must stand under their own names and belong to it alone."""
    for base in cls.__mro__[1:]:
        for name, value in vars(base).items():
            if isinstance(value, Edge):
                raise DefinitionError(f"{cls.__name__}: edge {name} comes from {base.__name__}; write its rows out")
    found = []
    for name, value in vars(cls).items():
        if isinstance(value, Edge):
            if name != value.name:
                raise DefinitionError(f"{cls.__name__}.{name}: the edge is called {value.name}; use one name")
            if name in vars(Lifecycle) or name in Lifecycle.__annotations__:
                raise DefinitionError(f"{cls.__name__}.{name}: the name is taken by every lifecycle; choose another verb")
            if value._event is not None:
                raise DefinitionError(f"{cls.__name__}.{name}: the edge belongs to {value.event.table.name} already")
            found.append(value)
    return found
