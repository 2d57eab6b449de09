"""Every state of a few places of one lifecycle, also of one's own, and the rows that no given payload takes.

Rules of this file:

* Guards are asked with the payloads that are given: a row is taken only if a payload makes it so.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import define, field, frozen

from blocklife.errors import MisuseError
from blocklife.lifecycle import REFUSED, Event, Lifecycle, Row, Table
from blocklife.lifecycle._hooks import AnyEdge
from blocklife.testing.exploring._explore import Bounds, Exploration, explore
from blocklife.testing.exploring._model import Kind, Property

Payloads: TypeAlias = Mapping[AnyEdge, Iterable[Mapping[str, object]]]
"""For events, the payloads to fire them with."""
Places: TypeAlias = Callable[[Sequence[enum.Enum]], bool]
"""Whether something holds for the states of all places."""

_BOUNDS = Bounds(max_states=1_000_000)


@frozen
class Fired:
    """One event of one place, with the number of its payload among those that were given."""

    place: int
    event: str
    payload: int = 0

    def __str__(self) -> str:
        return f"{self.event} {self.place}"


@frozen(kw_only=True)
class LifecycleExploration:
    """What a search has found. Printed: its counts, every counterexample, and the rows that were never taken."""

    lifecycle: str
    search: Exploration[Fired]
    rows: Mapping[Row, int]
    """How often each row was taken, each state and payload once."""

    @property
    def never(self) -> tuple[Row, ...]:
        """Rows that no given payload takes, in any state."""
        return tuple([row for row, times in self.rows.items() if not times])

    def __str__(self) -> str:
        lines = [f"{self.lifecycle}: {self.search.states} states, {self.search.edges} steps"]
        lines += [
            f"  {each.rule}: {each.message} (after {', '.join(map(str, each.actions)) or 'nothing'})"
            for each in self.search.counterexamples
        ]
        return "\n".join([*lines, *(f"  never taken: {row}" for row in self.never)])


@define(eq=False)
class _PlacesModel:
    """Some places of a lifecycle; a state is a byte for each."""

    table: Table
    places: int
    facts: Mapping[str, Sequence[int]]
    """The facts of each payload, by event."""
    always: Mapping[str, Places]
    taken: dict[Row, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.taken = dict.fromkeys(self.table.rows, 0)

    def initial(self) -> bytes:
        """All places where the lifecycle begins."""
        return bytes([self.table.index[self.table.initial]]) * self.places

    def actions(self, state: bytes) -> Iterator[Fired]:
        """Everything that is not refused."""
        for place in range(self.places):
            for name, event in self.table.events.items():
                for number, facts in enumerate(self.facts[name]):
                    if event.lut[state[place] << len(event.guards) | facts] != REFUSED:
                        yield Fired(place, name, number)

    def step(self, state: bytes, action: Fired) -> bytes:
        """The states of the places after it."""
        event, place = self.table.events[action.event], action.place
        row = self.table.row(event.lut[state[place] << len(event.guards) | self.facts[action.event][action.payload]])
        self.taken[row] += 1
        return state[:place] + bytes([self.table.index[row.target]]) + state[place + 1 :]

    def properties(self) -> Sequence[Property[bytes, Fired]]:
        """What must hold in every state."""

        def wrong(name: str, holds: Places) -> Callable[[bytes], str]:
            def judge(state: bytes) -> str:
                found = [self.table.states[each] for each in state]
                return "" if holds(found) else f"it does not hold in {', '.join(each.name for each in found)}"

            return judge

        return [Property(name, Kind.ALWAYS, name, always=wrong(name, holds)) for name, holds in self.always.items()]

    def rules(self) -> Sequence[str]:
        """None: the table itself refuses illegal steps."""
        return ()


def explore_lifecycle(
    lifecycle: type[Lifecycle],
    payloads: Payloads | None = None,
    *,
    places: int = 1,
    always: Mapping[str, Places] | None = None,
    bounds: Bounds = _BOUNDS,
) -> LifecycleExploration:
    """Visit every state that *places* of a lifecycle can reach, firing every event with each of its *payloads*.

    ``explore_lifecycle(DoorLife, {DoorLife.unlock: [{"code": 1}, {"code": 4711}]}, places=2)``. An event whose guards read no
    payload needs none. *always*: what must hold in every state, by name, of the states of all places. Bodies of edges and hooks
    do not run. Raises `MisuseError` for an event that the lifecycle does not have, and for guards without a payload to read.
    """
    if places < 1:
        raise MisuseError(f"explore_lifecycle: places must be at least 1, not {places}")
    table, given = lifecycle.table, dict[str, list[Mapping[str, object]]]()
    for edge, each in (payloads or {}).items():
        event = getattr(edge, "event", None)
        if not isinstance(event, Event) or event.table is not table:
            raise MisuseError(f"{edge!r} is not an event of {table.name}")
        given[event.name] = list(each)
    facts = {name: _facts_of(event, given.get(name, [])) for name, event in table.events.items()}
    model = _PlacesModel(table, places, facts, always or {})
    search = explore(model, bounds, every=True, processes=1)
    return LifecycleExploration(lifecycle=table.name, search=search, rows=model.taken)


def _facts_of(event: Event, payloads: Sequence[Mapping[str, object]]) -> list[int]:
    """The facts of each payload; one without facts where no guard reads any."""
    where = f"{event.table.name}.{event.name}"
    wanted = dict.fromkeys(name for guard in event.guards for name in guard.parameters)
    if not payloads:
        if wanted:
            raise MisuseError(f"{where}: its guards read {', '.join(wanted)} (give payloads: {{{where}: [{{...}}, ...]}})")
        payloads = [{}]
    found = []
    for payload in payloads:
        if missing := [name for name in wanted if name not in payload]:
            raise MisuseError(f"{where}: a payload lacks {', '.join(missing)}, which its guards read")
        facts = event.facts(payload)
        if not isinstance(facts, int):
            raise MisuseError(f"{where}: a payload has an array (give one value for each parameter)")
        found.append(facts)
    return found
