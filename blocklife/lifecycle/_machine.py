"""The base class of all lifecycles; an instance is one machine."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, cast

from blocklife.errors import DefinitionError, MisuseError
from blocklife.lifecycle._compiling import compile_table
from blocklife.lifecycle._edges import Edge
from blocklife.lifecycle._hooks import Hooks, Subscription, Transition, What
from blocklife.lifecycle._table import Table

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    StateT_co = TypeVar("StateT_co", bound=enum.Enum, covariant=True, default=enum.Enum)
else:
    from typing import TypeVar

    StateT_co = TypeVar("StateT_co", bound=enum.Enum, covariant=True)

painters: dict[str, Callable[[object], str | None]] = {}
"""How a notebook displays objects of this package, by display method. Empty until the drawing code is imported."""


def painted(method: str, thing: object) -> str | None:
    """What a notebook displays for *thing*; None, so that it shows the repr, if no drawing code is loaded."""
    painter = painters.get(method)
    return None if painter is None else painter(thing)


class Lifecycle(Generic[StateT_co]):
    """Base of all lifecycles; an instance is one machine, which starts in its initial state, or in the state *at*.

    ``class DoorLife(Lifecycle[Door], initial=Door.CLOSED, finals={...})``. The enum of the states, given as type parameter, is
    the type of `state`. A state without outgoing rows must be final. Every state must be reachable, and from every state there
    must be a way to a final state, or to the initial one if none is final.
    """

    table: ClassVar[Table]
    _at: int
    _hooks: Hooks[Transition] | None = None
    _place: int = 0
    _context: Mapping[str, object] = {}

    def __init_subclass__(cls, *, initial: enum.Enum, finals: Iterable[enum.Enum] = (), **rest: object) -> None:
        super().__init_subclass__(**rest)
        if any(issubclass(base, Lifecycle) and base is not Lifecycle for base in cls.__bases__):
            raise DefinitionError(f"{cls.__name__}: a lifecycle cannot extend another; write its rows out")
        cls.table = compile_table(cls, initial, frozenset(finals), _edges_of(cls))
        cls._at = cls.table.index[initial]

    def __init__(self, at: StateT_co | None = None) -> None:
        if at is None:
            return
        found = self.table.index.get(at)
        if found is None:
            known = ", ".join(state.name for state in self.table.states)
            raise MisuseError(f"{self.table.name}: it cannot begin at {at!r} (its states are {known})")
        self._at = found

    @property
    def state(self) -> StateT_co:
        """The current state."""
        return cast(StateT_co, self.table.states[self._at])

    def on(
        self,
        *what: What,
        entered: enum.Enum | None = None,
        left: enum.Enum | None = None,
        hook: Callable[[Transition], object] | None = None,
    ) -> Subscription[Transition]:
        """Register a hook for the steps of this machine: of some of its events (all by default), into or out of a state.

        A hook runs after the commit and the body of the edge, and gets a `Transition`. It cannot undo the step: the machine is
        in its new state, and an error of a hook reaches the caller after all have run. See `Hooks.on`.
        """
        if self._hooks is None:
            self._hooks = Hooks({self.table.name: self.table})
        return self._hooks.on(*what, entered=entered, left=left, hook=hook)

    def tell_to(self, hooks: Hooks[Transition], place: int, **context: object) -> None:
        """Report the steps of this machine to the hooks of an owner, as place *place*; *context* is added to every payload."""
        self._hooks, self._place, self._context = hooks, place, context

    def _tell(self, event: str, before: int, row: int, payload: Mapping[str, object]) -> None:
        """Called after an event was committed; *row* is 0 if the state has only one row."""
        hooks, table = self._hooks, self.table
        if hooks is not None and hooks.active:
            row = row or table.events[event].lut[before << len(table.events[event].guards)]
            if hooks.hears(table.name, row):
                hooks.tell([Transition(table, event, [self._place], row, {**self._context, **payload})])

    def can(self, event: str) -> bool:
        """Whether *event* has a row in this state, whatever the guards say."""
        return bool(self.table.event(event).rows_of(self.state))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}>"

    def _repr_svg_(self) -> str | None:
        return painted("_repr_svg_", self)

    def _repr_html_(self) -> str | None:
        return painted("_repr_html_", self)


def _edges_of(cls: type[Lifecycle]) -> list[Edge[enum.Enum, enum.Enum, ...]]:
    """The edges defined in the body of *cls*; each must have its own name and belong to this class only."""
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
