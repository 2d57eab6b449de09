"""The compiled form of a lifecycle: guards, rows, events, and one look-up table."""

from __future__ import annotations

import enum
import functools
import inspect
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, ParamSpec, overload

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from blocklife.errors import DefinitionError, MisuseError, RefusedError

P = ParamSpec("P")

REFUSED = 0
"""The number that stands for no row. Rows are numbered from 1."""


def first_line(thing: object) -> str:
    text = inspect.getdoc(thing)
    return text.strip().splitlines()[0] if text else ""


def runs_later(thing: object) -> bool:
    """Whether a call would only create a coroutine or a generator."""
    return inspect.iscoroutinefunction(thing) or inspect.isgeneratorfunction(thing) or inspect.isasyncgenfunction(thing)


def _fields(text: str) -> set[str]:
    """The names in braces in a text."""
    found = set()
    for _, name, form, _ in string.Formatter().parse(text):
        if name is not None:
            found |= {name} | _fields(form or "")
    return found


@frozen(eq=False)
class Guard(Generic[P]):
    """A named predicate over the payload of an event."""

    test: Callable[P, bool]
    name: str
    doc: str
    parameters: tuple[str, ...]
    otherwise: str = ""
    """Why the event is refused when the guard fails; ``{users}`` stands for the value of that parameter. May be empty."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether the guard holds for one payload."""
        return bool(self.test(*args, **kwargs))

    def failure(self, payload: Mapping[str, object]) -> str:
        """Why the event is refused when the guard fails, filled in with what is known of the payload."""
        if self.otherwise and _fields(self.otherwise) <= payload.keys():
            return self.otherwise.format_map(payload)
        return f"guard {self.name} does not hold"

    @property
    def demand(self) -> str:
        """When the guard holds, as the end of a sentence: the first line of its docstring, or its name."""
        text = self.doc.rstrip(" .")
        return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text or f"{self.name} holds"


@overload
def guard(test: Callable[P, bool], /) -> Guard[P]: ...
@overload
def guard(*, otherwise: str) -> Callable[[Callable[P, bool]], Guard[P]]: ...


def guard(test: Callable[P, bool] | None = None, /, *, otherwise: str = "") -> object:
    """Make a guard from a predicate; it takes some or all of the parameters of the events that it guards, by name.

    *otherwise* is the text of a refusal when the guard fails: ``@guard(otherwise="{users} requests still use it")``. It may
    name parameters of the guard in braces. Without it, the refusal is built from the guard's name and docstring.
    """
    if test is None:
        return functools.partial(_guard, otherwise=otherwise)
    return _guard(test)


def _guard(test: Callable[P, bool], otherwise: str = "") -> Guard[P]:
    if runs_later(test):
        raise DefinitionError(f"guard {test.__name__}: a guard answers at once; it cannot be async or a generator")
    parameters = tuple(inspect.signature(test).parameters)
    try:
        unknown = _fields(otherwise).difference(parameters)
    except ValueError as problem:
        raise DefinitionError(f"guard {test.__name__}: {otherwise!r} cannot be filled in: {problem}") from problem
    if unknown:
        raise DefinitionError(f"guard {test.__name__}: it says {{{min(unknown)}}}, and has no such parameter")
    return Guard(test, test.__name__, first_line(test), parameters, otherwise)


@frozen(eq=False)
class Row:
    """One arrow of the table."""

    index: int
    """Counted from 1; `REFUSED` stands for no row."""
    event: str
    source: enum.Enum
    target: enum.Enum
    guard: Guard[...] | None

    def __str__(self) -> str:
        condition = f" [{self.guard.name}]" if self.guard else ""
        return f"{self.source.name} --{self.event}{condition}--> {self.target.name}"


@frozen(eq=False)
class Event:
    """A verb of a lifecycle, with its rows and its compiled look-up."""

    name: str
    doc: str
    parameters: tuple[str, ...]
    guards: tuple[Guard[...], ...]
    """Distinct guards in the order in which they are first tried; guard *i* is bit *i* of the facts."""
    rows: tuple[Row, ...]
    table: Table = field(repr=False)
    lut: bytes = field(repr=False)
    """Row index by ``state << len(guards) | facts``."""
    _lut_view: NDArray[np.uint8] = field(repr=False, init=False)

    @_lut_view.default
    def _view(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.lut, dtype=np.uint8)

    def bit(self, wanted: Guard[...]) -> int:
        """The bit of one guard, as a mask."""
        return 1 << self.guards.index(wanted)

    def facts(self, payload: Mapping[str, object], *, each_place: bool = False) -> int | NDArray[np.uint8]:
        """The facts of one payload: a number, or an array if a value of the payload is an array.

        *each_place*: the values have one entry a place. Refuses: DefinitionError for a guard that cannot judge them so.
        """
        total = np.zeros((), dtype=np.uint8)
        for bit, each in enumerate(self.guards):
            chosen = {name: payload[name] for name in each.parameters}
            try:
                holds = np.asarray(each.test(**chosen), dtype=np.bool_)
            except ValueError as problem:
                raise DefinitionError(
                    f"guard {each.name} cannot judge a batch: {problem} (write it with &, | and comparisons)"
                ) from problem
            if each_place and chosen and holds.ndim == 0:
                raise DefinitionError(
                    f"guard {each.name} cannot judge a batch: it answers once for all places "
                    "(write it with &, | and comparisons)"
                )
            total = total | (holds.view(np.uint8) << np.uint8(bit))
        return int(total) if total.ndim == 0 else total

    def rows_of(self, state: enum.Enum) -> tuple[Row, ...]:
        """The rows that start in *state*, in the order in which they are tried."""
        return tuple(row for row in self.rows if row.source is state)

    def lookup(self, at: NDArray[np.uint8], facts: int | NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The row of each place, from its state and facts; `REFUSED` if there is none."""
        width = len(self.guards)
        if len(self.lut) > 256:
            wide: NDArray[np.uint8] = self._lut_view[(at.astype(np.intp) << width) | facts]
            return wide
        index = at if width == 0 else (at << width) | np.asarray(facts, dtype=np.uint8)
        return np.frombuffer(index.tobytes().translate(self.lut.ljust(256, b"\0")), dtype=np.uint8)


@enum.unique
class Tone(enum.Enum):
    """The kind of a state. Each has its colour in drawings, whose legend has these words."""

    REST = "at rest"
    USE = "in use"
    COPY = "a copy is planned or runs"
    TROUBLE = "in trouble"
    OVER = "ended"
    FAILED = "ended in failure"


@frozen(eq=False)
class Table:
    """A checked and compiled lifecycle, with everything that drawing, exploring and exporting need."""

    name: str
    doc: str
    states: tuple[enum.Enum, ...]
    initial: enum.Enum
    finals: frozenset[enum.Enum]
    tones: Mapping[enum.Enum, Tone] = MappingProxyType({})
    """The tones that the definition gives; `tone` has those of all states."""
    rows: tuple[Row, ...] = field(init=False, factory=tuple)
    events: Mapping[str, Event] = field(init=False, factory=dict)

    @functools.cached_property
    def index(self) -> Mapping[enum.Enum, int]:
        """The byte that stands for each state."""
        return {state: number for number, state in enumerate(self.states)}

    @functools.cached_property
    def targets(self) -> bytes:
        """Target state by row index; the first byte (`REFUSED`) is never used."""
        return bytes([0, *(self.index[row.target] for row in self.rows)])

    def tone(self, state: enum.Enum) -> Tone:
        """The tone of a state: as defined, or else OVER for a final state, REST for the initial one, and USE for all others."""
        usual = Tone.OVER if state in self.finals else Tone.REST if state is self.initial else Tone.USE
        return self.tones.get(state, usual)

    def row(self, index: int) -> Row:
        """The row with that number."""
        return self.rows[index - 1]

    def event(self, name: str) -> Event:
        """The event of that name; `MisuseError` for one that this lifecycle does not have."""
        if name not in self.events:
            raise MisuseError(f"{self.name}: it has no event {name!r} (known are {', '.join(self.events)})")
        return self.events[name]

    def next_state(self, state: enum.Enum, event: str, facts: int = 0) -> enum.Enum | None:
        """The state that *event* leads to from *state* when exactly these guards hold; None if it is refused."""
        compiled = self.event(event)
        if facts >> len(compiled.guards):
            raise MisuseError(
                f"{self.name}.{event}: facts must be 0 to {(1 << len(compiled.guards)) - 1}, a bit for each guard, not {facts}"
            )
        found = compiled.lut[self.index[state] << len(compiled.guards) | facts]
        return None if found == REFUSED else self.row(found).target

    def reason(self, state: enum.Enum, event: str, payload: Mapping[str, object] = MappingProxyType({})) -> str:
        """Why *event* is refused, as a clause: the guards that fail, or else the meaning of *state*.

        The meaning of a state is its value, if that is a text of several words; otherwise the clause is empty.
        """
        if rows := self.events[event].rows_of(state):
            return " and ".join(each.failure(payload) for each in _guards_of(rows))
        meaning = state.value
        return meaning if isinstance(meaning, str) and " " in meaning else ""

    def remedy(self, state: enum.Enum, event: str) -> str:
        """What to do about a refusal, as far as the table can tell.

        It names an event only if that is the only way on; among several, the table cannot know which one the caller wants.
        """
        if rows := self.events[event].rows_of(state):
            return "it is allowed when " + ", or when ".join(each.demand for each in _guards_of(rows))
        allowed = [goal for goal in self.states if self.events[event].rows_of(goal)]
        ways = {row.event for row in self.rows if row.source is state and row.target in allowed}
        if len(ways) == 1:
            return f"first {ways.pop()}"
        reached = {state}
        while more := {row.target for row in self.rows if row.source in reached} - reached:
            reached |= more
        where = any_of([goal.name for goal in allowed])
        return f"it is allowed while {where}" + ("" if reached.intersection(allowed) else ", and nothing leads back there")

    def refusal(
        self,
        thing: str,
        state: enum.Enum,
        event: str,
        place: int | None = None,
        payload: Mapping[str, object] = MappingProxyType({}),
    ) -> RefusedError:
        """The error to raise when *event* is refused in *state*; *place* is the number of *thing*, if it is one of many.

        What is known of the *payload* is filled into the texts of the guards.
        """
        return RefusedError(thing, state.name, event, self.remedy(state, event), place, self.reason(state, event, payload))


def any_of(names: Sequence[str]) -> str:
    """Names as a list in a sentence: A, B or C."""
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _guards_of(rows: Iterable[Row]) -> Iterable[Guard[...]]:
    """The guards of some rows, each once, in order."""
    return dict.fromkeys(row.guard for row in rows if row.guard)
