"""Two pictures of a lifecycle, compared: which states and rows were added, removed or changed, as one picture with marks.

Rules of this file:

* States are identified by their names. Rows are compared within one state and one event, because only there does their order
  count: the first whose guard holds is taken.
* Guards are compared by their names and inputs. A predicate that was rewritten under the same name is not noticed here.
* The resulting picture is the second one plus everything that only the first has, so that nothing is hidden. Removed rows are
  numbered after the last row of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
from attrs import frozen

from blocklife.drawing._picture import Arrow, Emphasis, Explained, Label, Mark, Marks, Node, Picture

_SIGNS = {Emphasis.ADDED: "+", Emphasis.REMOVED: "-", Emphasis.CHANGED: "~"}
_WORDS = {Emphasis.ADDED: "added", Emphasis.REMOVED: "removed", Emphasis.CHANGED: "changed"}


@frozen
class Rung:
    """One row of a picture, with its source and target."""

    source: str
    target: str
    label: Label

    def __str__(self) -> str:
        return f"{self.source} --{self.label}--> {self.target}"


@frozen
class LifecycleChange:
    """One difference. An added or removed state or row has only one side."""

    kind: Emphasis
    name: str
    """The state, or the row in words."""
    before: Node | Rung | None
    after: Node | Rung | None
    note: str
    """What changed, in a few words."""

    def __str__(self) -> str:
        state = "state " if isinstance(self.before or self.after, Node) else ""
        told = f" ({self.note})" if self.kind is Emphasis.CHANGED else ""
        return f"{_SIGNS[self.kind]} {state}{self.name}{told}"


@frozen
class Difference:
    """All differences between two lifecycles.

    Invariant: every change has its mark in ``marks``, and what it marks is in ``picture``.
    """

    names: tuple[str, str]
    """The names of the two."""
    picture: Picture
    marks: Marks
    states: tuple[LifecycleChange, ...]
    rows: tuple[LifecycleChange, ...]

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        return not self.states and not self.rows

    @property
    def summary(self) -> str:
        """The number of differences by kind, in one line."""
        if self.equal:
            rows = sum(len(arrow.labels) for arrow in self.picture.arrows)
            return f"equal: {len(self.picture.nodes)} states, {rows} rows"
        return "; ".join([*_counted("state", self.states), *_counted("row", self.rows)])

    def __str__(self) -> str:
        head = f"{self.names[0]} -> {self.names[1]}: {self.summary}"
        return "\n".join([head, *(f"  {change}" for change in (*self.states, *self.rows))])

    def as_json(self) -> dict[str, object]:
        """The same as plain data."""
        return {
            "before": self.names[0],
            "after": self.names[1],
            "equal": self.equal,
            "summary": self.summary,
            "states": [_written(change) for change in self.states],
            "rows": [_written(change) for change in self.rows],
        }


def compare(before: Picture, after: Picture, names: tuple[str, str] | None = None) -> Difference:
    """The states and rows added, removed and changed from one picture to another; *names* name the two in texts."""
    names = names or (before.name, after.name)
    states = tuple(_state_changes(before, after))
    last = max((rung.label.row for rung in _rungs(after)), default=0)
    rows = tuple(_row_changes(before, after, last))
    marks = Marks(
        title=f"{names[0]} → {names[1]}",
        states={change.name: _mark(change) for change in states},
        rows={_drawn(change).label.row: _mark(change) for change in rows},
    )
    merged = _merged(before, after, [change.after or change.before for change in rows])
    difference = Difference(names, merged, marks, states, rows)
    notes = [difference.summary, *(str(change) for change in (*states, *rows))]
    return attrs.evolve(difference, marks=attrs.evolve(marks, notes=tuple(notes)))


# --- states --------------------------------------------------------------------------------------------------------------


def _state_changes(before: Picture, after: Picture) -> Iterator[LifecycleChange]:
    old, new = ({node.name: node for node in each.nodes} for each in (before, after))
    for name, node in new.items():
        if name not in old:
            yield LifecycleChange(Emphasis.ADDED, name, None, node, "added")
        elif note := ", ".join(_differs(old[name], node)):
            yield LifecycleChange(Emphasis.CHANGED, name, old[name], node, note)
    for name, node in old.items():
        if name not in new:
            yield LifecycleChange(Emphasis.REMOVED, name, node, None, "removed, was initial" if node.initial else "removed")


def _differs(old: Node, new: Node) -> Iterator[str]:
    if old.initial != new.initial:
        yield "is initial" if new.initial else "was initial"
    if old.final != new.final:
        yield "is final" if new.final else "was final"
    if old.about != new.about:
        yield "means something else"


# --- rows ----------------------------------------------------------------------------------------------------------------


def _rungs(picture: Picture) -> list[Rung]:
    """The rows of a picture in the order of its table."""
    found = [Rung(arrow.source, arrow.target, label) for arrow in picture.arrows for label in arrow.labels]
    return sorted(found, key=lambda rung: rung.label.row)


def _by_situation(picture: Picture) -> dict[tuple[str, str], list[Rung]]:
    """The rows by state and event, each in the order in which they are tried."""
    found: dict[tuple[str, str], list[Rung]] = {}
    for rung in _rungs(picture):
        found.setdefault((rung.source, rung.label.event), []).append(rung)
    return found


def _row_changes(before: Picture, after: Picture, last: int) -> Iterator[LifecycleChange]:
    """The rows of the second picture in its order, then the removed ones, numbered after *last*."""
    old, new = _by_situation(before), _by_situation(after)
    reads = {word.name: word.reads for word in before.guards}
    reread = {word.name: reads[word.name] for word in after.guards if reads.get(word.name, word.reads) != word.reads}
    found: list[tuple[int, LifecycleChange]] = []
    gone: list[Rung] = []
    for situation in dict.fromkeys([*new, *old]):
        ours, theirs = old.get(situation, []), new.get(situation, [])
        pairs = _pairs(ours, theirs)
        for was, now in pairs:
            if note := ", ".join([*_rung_differs(was, now, reread), *_overtakes(was, now, pairs)]):
                found.append((now.label.row, LifecycleChange(Emphasis.CHANGED, str(now), was, now, note)))
        kept = [now for _, now in pairs]
        found += [
            (now.label.row, LifecycleChange(Emphasis.ADDED, str(now), None, now, "added")) for now in theirs if now not in kept
        ]
        left = [was for was, _ in pairs]
        gone += [was for was in ours if was not in left]
    yield from (change for _, change in sorted(found, key=lambda each: each[0]))
    for number, was in enumerate(sorted(gone, key=lambda rung: rung.label.row), last + 1):
        drawn = attrs.evolve(was, label=attrs.evolve(was.label, row=number))
        yield LifecycleChange(Emphasis.REMOVED, str(was), drawn, None, "removed")


def _pairs(ours: Sequence[Rung], theirs: Sequence[Rung]) -> list[tuple[Rung, Rung]]:
    """Pairs of corresponding rows: equal ones first, then those with the same guard, the same target, or the same position."""
    alike: Sequence[Callable[[Rung, Rung], bool]] = (
        lambda was, now: (was.label.guard, was.target) == (now.label.guard, now.target),
        lambda was, now: was.label.guard == now.label.guard,
        lambda was, now: was.target == now.target,
        lambda was, now: ours.index(was) == theirs.index(now),
    )
    pairs: list[tuple[Rung, Rung]] = []
    left, free = list(ours), list(theirs)
    for fits in alike:
        for was in list(left):
            now = next((each for each in free if fits(was, each)), None)
            if now is not None:
                pairs.append((was, now))
                left.remove(was)
                free.remove(now)
    return pairs


def _rung_differs(was: Rung, now: Rung, reread: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if was.target != now.target:
        yield f"led to {was.target}"
    if was.label.guard != now.label.guard:
        yield "had no guard" if was.label.guard is None else f"guard was {was.label.guard}"
    elif was.label.guard is not None and was.label.guard in reread:
        yield f"guard read {', '.join(reread[was.label.guard]) or 'nothing'}"


def _overtakes(was: Rung, now: Rung, pairs: Iterable[tuple[Rung, Rung]]) -> Iterator[str]:
    """The rows before which a row is tried now; those to the same state do not count, since their order has no effect."""
    for other, there in pairs:
        if other.label.row < was.label.row and there.label.row > now.label.row and there.target != now.target:
            guard = "the one without a guard" if there.label.guard is None else f"[{there.label.guard}]"
            yield f"is tried before {guard}"


# --- the two in one ------------------------------------------------------------------------------------------------------


def _drawn(change: LifecycleChange) -> Rung:
    """The row that represents a change in the picture."""
    found = change.after or change.before
    if not isinstance(found, Rung):
        raise TypeError(f"{change} is about no row")
    return found


def _merged(before: Picture, after: Picture, changed: Iterable[Node | Rung | None]) -> Picture:
    """The second picture plus everything that only the first has."""
    known = {node.name for node in after.nodes}
    nodes = [*after.nodes, *(attrs.evolve(node, initial=False) for node in before.nodes if node.name not in known)]
    present = {rung.label.row for rung in _rungs(after)}
    gone = [each for each in changed if isinstance(each, Rung) and each.label.row not in present]
    grouped: dict[tuple[str, str], list[Label]] = {}
    for node in nodes:
        for rung in [*_rungs(after), *gone]:
            if rung.source == node.name:
                grouped.setdefault((rung.source, rung.target), []).append(rung.label)
    named = {name for labels in grouped.values() for label in labels for name in (*label.causes, *label.follows)}
    couplings = {each.name: each for each in (*after.couplings, *before.couplings) if each.name in named}
    return Picture(
        name=after.name,
        about=after.about,
        nodes=tuple(nodes),
        arrows=tuple(Arrow(source, target, tuple(labels)) for (source, target), labels in grouped.items()),
        couplings=tuple(couplings.values()),
        events=_united(after.events, before.events),
        guards=_united(after.guards, before.guards),
    )


def _united(words: Sequence[Explained], others: Sequence[Explained]) -> tuple[Explained, ...]:
    """The first ones, and those of the others whose names are new."""
    return tuple({**{each.name: each for each in others}, **{each.name: each for each in words}}.values())


def _mark(change: LifecycleChange) -> Mark:
    return Mark(change.kind, note=change.note, about=str(change))


def _counted(what: str, changes: Sequence[LifecycleChange]) -> Iterator[str]:
    """``3 rows added, 1 removed``."""
    counts = {kind: sum(change.kind is kind for change in changes) for kind in _WORDS}
    told = [f"{count} {_WORDS[kind]}" for kind, count in counts.items() if count]
    if told:
        number, _, rest = told[0].partition(" ")
        told[0] = f"{number} {what}{'' if number == '1' else 's'} {rest}"
        yield ", ".join(told)


def _written(change: LifecycleChange) -> dict[str, object]:
    return {
        "kind": _WORDS[change.kind],
        "name": change.name,
        "note": change.note,
        "before": _side(change.before),
        "after": _side(change.after),
    }


def _side(side: Node | Rung | None) -> Mapping[str, object] | None:
    if side is None:
        return None
    if isinstance(side, Node):
        return {"state": side.name, "about": side.about, "initial": side.initial, "final": side.final}
    return {"from": side.source, "event": side.label.event, "guard": side.label.guard, "to": side.target}
