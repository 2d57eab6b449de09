"""The data of a run for the page: the lives of its places as packed columns, with the tables that explain them.

Rules of this file:

* It passes on the results of `recording._lives` and `recording._checking`, and adds no checks of its own.
* A row or a state that is in no table keeps its name and is marked as unknown, so that a damaged recording can be viewed.
* Steps are limited to the requested plans; of the time before them, only the state of each place at their start is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from blocklife.drawing._picture import picture
from blocklife.drawing._theme import state_colours
from blocklife.drawing.viewer._packing import packed
from blocklife.errors import MisuseError
from blocklife.ledger._ids import FIRST_EPOCH
from blocklife.recording._checking import CheckVerdict, Illegal
from blocklife.recording._format import StepKind, show_name
from blocklife.recording._lives import Lives
from blocklife.recording._reader import LETS_GO
from blocklife.states import COUPLINGS, MACHINES

MAX_EVENTS = 1_000_000
"""The default limit of transitions: browsers become slow with more."""

Value = str | int | bool | None | Sequence["Value"] | Mapping[str, "Value"]
"""A value that JSON can hold."""
Numbers = NDArray[np.int64]


@frozen
class ViewSettings:
    """The part of a run to show, and how large it may be."""

    plans: tuple[int, int] | None = None
    max_events: int = MAX_EVENTS


@define(eq=False)
class _Machine:
    """One machine for the page: the contents of its table first, then additions from the recording."""

    name: str
    states: dict[str, Mapping[str, Value]] = field(factory=dict)
    rows: dict[tuple[str, str, str, str], Mapping[str, Value]] = field(factory=dict)

    @classmethod
    def of(cls, name: str) -> _Machine:
        """A machine with the contents of its table; empty if there is no such machine."""
        made = cls(name)
        if name in MACHINES:
            table = MACHINES[name]
            for node in picture(table, name).nodes:
                made.add_state(node.name, about=node.about, initial=node.initial, final=node.final)
            for row in table.rows:
                made.add_row(row.event, row.source.name, row.target.name, row.guard.name if row.guard else "", number=row.index)
        return made

    def add_state(self, name: str, *, about: str, initial: bool = False, final: bool = False) -> int:
        """The number of a state; a new one is added."""
        if name not in self.states:
            light, dark = state_colours(name)
            self.states[name] = {
                "name": name,
                "about": about,
                "initial": initial,
                "final": final,
                "light": light,
                "dark": dark,
            }
        return list(self.states).index(name)

    def add_row(self, event: str, source: str, target: str, guard: str, *, number: int) -> int:
        """The number of a row; a new one is added."""
        key = event, source, target, guard
        if key not in self.rows:
            unknown = "the table has no such state"
            self.rows[key] = {
                "event": event,
                "from": self.add_state(source, about=unknown),
                "to": self.add_state(target, about=unknown),
                "guard": guard,
                "ends": False,
                "number": number,
            }
        return list(self.rows).index(key)

    def told(self, svg: str) -> Mapping[str, Value]:
        """As JSON."""
        table = MACHINES.get(self.name)
        guards = {row.guard.name: row.guard.doc for row in table.rows if row.guard} if table else {}
        return {
            "name": self.name,
            "about": picture(table, self.name).about if table else "no machine has this name",
            "states": list(self.states.values()),
            "rows": list(self.rows.values()),
            "events": {event.name: event.doc for event in table.events.values()} if table else {},
            "guards": guards,
            "svg": svg,
        }


def told_run(lives: Lives, verdict: CheckVerdict, settings: ViewSettings, drawings: Mapping[str, str]) -> Mapping[str, Value]:
    """All data of the page. Raises `MisuseError` if it is too much, or nothing."""
    return _ShownRun(lives, verdict, settings).told(drawings)


@define(eq=False)
class _ShownRun:
    """Invariant: steps ``low`` to ``high`` are shown, and ``lane_of`` numbers the places shown, in the order of the page."""

    lives: Lives
    verdict: CheckVerdict
    settings: ViewSettings
    low: int = 0
    high: int = 0
    machines: list[_Machine] = field(factory=list)
    rows: Numbers = field(factory=lambda: np.zeros(0, np.int64))
    """The number of each kind among the rows of its machine."""
    targets: Numbers = field(factory=lambda: np.zeros(0, np.int64))
    """The state that each kind leads to."""
    at: Numbers = field(factory=lambda: np.zeros(0, np.int64))
    kind: Numbers = field(factory=lambda: np.zeros(0, np.int64))
    lane_of: dict[int, int] = field(factory=dict)

    def told(self, drawings: Mapping[str, str]) -> Mapping[str, Value]:
        """As JSON."""
        self.at, self.kind = _numbers(self.lives.at), _numbers(self.lives.kind)
        self._cut()
        self._number_rows()
        lanes = self._lanes()
        steps = slice(self.low, self.high)
        count = self.high - self.low
        lane_at = np.zeros(len(self.lives.places), np.int64)
        lane_at[list(self.lane_of)] = list(self.lane_of.values())
        cause = _numbers(self.lives.cause)[steps]
        shown = (cause >= self.low) & (cause < self.high)
        back = np.where(shown, np.arange(self.low, self.high) - cause, 0)
        return {
            "name": PurePath(self.lives.name).name,
            "about": self._about(),
            "notes": self._notes(),
            "machines": [machine.told(drawings.get(machine.name, "")) for machine in self.machines],
            "couplings": [
                {"name": name, "why": next((each.why for each in COUPLINGS if each.name == name), "")}
                for name in self.lives.couplings
            ],
            "violation": self._violation(),
            "broken": self._broken(),
            "lanes": lanes,
            "steps": {
                "count": count,
                "line": packed(_numbers(self.lives.line)[steps]),
                "n": packed(_numbers(self.lives.n)[steps]),
                "plan": packed(_numbers(self.lives.plan)[steps]),
                "lane": packed(lane_at[self.at[steps]]),
                "row": packed(self.rows[self.kind[steps]]),
                "job": packed(_numbers(self.lives.job)[steps]),
                "epoch": packed(np.maximum(_numbers(self.lives.epoch)[steps], 0)),
                "coupling": packed(_numbers(self.lives.coupling)[steps]),
                "cause": packed(back),
            },
            "times": self._times(),
            "names": self._names(),
            "touches": self._touches(),
            "refusals": self._refusals(),
        }

    def _cut(self) -> None:
        """Find the steps to show."""
        plan = _numbers(self.lives.plan)
        self.high = len(plan)
        if self.settings.plans is not None:
            first, last = self.settings.plans
            self.low, self.high = int(np.searchsorted(plan, first)), int(np.searchsorted(plan, last, side="right"))
        most = self.settings.max_events
        if self.high - self.low > most:
            fits = f"{plan[self.low]}-{max(plan[self.low], plan[self.low + most] - 1)}"
            raise MisuseError(
                f"{self.lives.name}: it has {self.high - self.low:,} transitions, and a page shows {most:,} "
                f"(choose some, for example with --plans {fits}, or raise --max-events)"
            )
        if self.low == self.high:
            told = f"its plans are {plan[0]} to {plan[-1]}" if len(plan) else "it holds none at all"
            raise MisuseError(f"{self.lives.name}: no transition to show ({told})")

    def _number_rows(self) -> None:
        names = list(dict.fromkeys([*MACHINES, *(machine for machine, _ in self.lives.places)]))
        self.machines = [_Machine.of(name) for name in names]
        rows, targets = [], []
        for kind in self.lives.kinds:
            machine = self.machines[names.index(kind.machine)]
            rows.append(_row_of(machine, kind))
            targets.append(list(machine.states).index(kind.target))
        self.rows, self.targets = np.array(rows, np.int64), np.array(targets, np.int64)

    def _lanes(self) -> Mapping[str, Value]:
        """The places that moved, or were not at rest, in the order of the page, with their states before the first step."""
        lives, names = self.lives, [machine.name for machine in self.machines]
        before: dict[int, int] = {}  # the last step of each place before those that are shown
        for index, place in enumerate(lives.at[: self.low]):
            before[place] = index
        moved = set(lives.at[self.low : self.high])
        born = {}
        for story in lives.jobs():
            if story.effects and self.low <= story.effects[0] < self.high:
                born[story.id] = story.effects[0] - self.low + 1
        chosen: list[tuple[int, int, int, int, int, int]] = []
        for place, (name, number) in enumerate(lives.places):
            machine = self.machines[names.index(name)]
            start = int(self.targets[lives.kind[before[place]]]) if place in before else 0
            said = list(machine.states.values())[start]
            if place in moved or (place in before and not (said["initial"] or said["final"])):
                epoch = max(lives.epoch[before[place]], 0) if place in before else FIRST_EPOCH
                come = born.get(number, 0) if name == "job" and place not in before else 0
                chosen.append((names.index(name), number, start, epoch, come, place))
        chosen.sort()
        self.lane_of = {each[-1]: lane for lane, each in enumerate(chosen)}
        columns = {
            key: packed([each[i] for each in chosen]) for i, key in enumerate(("machine", "id", "start", "epoch", "born"))
        }
        return {"count": len(chosen), **columns}

    def _names(self) -> Mapping[str, Value]:
        """The displayable names of requests, by step; step 0 of a lane is the one that led to its first state."""
        lives = self.lives
        words: dict[str, int] = {}
        before: dict[int, int] = {}
        found: list[tuple[int, int, int]] = []
        for index, name in lives.names.items():
            lane = self.lane_of.get(lives.at[index])
            if lane is not None and index < self.high:
                word = words.setdefault(show_name(name), len(words))
                if index < self.low:
                    before[lane] = word
                else:
                    found.append((lane, index - self.low + 1, word))
        found = sorted([*found, *((lane, 0, word) for lane, word in before.items())])
        columns = {key: packed([each[i] for each in found]) for i, key in enumerate(("lane", "step", "word"))}
        return {"count": len(found), "words": list(words), **columns}

    def _touches(self) -> Mapping[str, Value]:
        """The steps during which a job held a place: from the first that names both to the one that unpins it."""
        lives = self.lives
        found = []
        for story in lives.jobs():
            held: dict[int, tuple[int, int]] = {}
            for index in story.effects:
                place = lives.at[index]
                begin = held[place][0] if place in held else index
                held[place] = begin, index if lives.kinds[lives.kind[index]].event in LETS_GO else -1
            for place, (begin, end) in held.items():
                inside = begin < self.high and (end < 0 or end >= self.low) and place in self.lane_of
                if inside and lives.places[place][0] in ("block", "slot"):
                    until = end - self.low + 1 if 0 <= end < self.high else 0
                    start = begin - self.low + 1 if begin >= self.low else 0
                    found.append((self.lane_of[place], start, story.id, until, int(story.kind == "load")))
        found.sort()
        keys = ("lane", "begin", "job", "end", "load")
        return {"count": len(found), **{key: packed([each[i] for each in found]) for i, key in enumerate(keys)}}

    def _times(self) -> Mapping[str, Value]:
        """The steps at which the time changes, with the new time, counted from the first recorded one."""
        if not self.lives.timed:
            return {"count": 0}
        ns = _numbers(self.lives.ns)
        first = int(ns[ns >= 0][0]) if (ns >= 0).any() else 0
        ns = np.maximum(ns[self.low : self.high] - first, 0)
        changes = np.flatnonzero(np.diff(ns, prepend=np.int64(-1)))
        return {"count": len(changes), "step": packed(changes), "ns": packed(ns[changes])}

    def _refusals(self) -> Mapping[str, Value]:
        places = {place: number for number, place in enumerate(self.lives.places)}
        words: dict[str, int] = {}
        found = []
        for each in self.lives.refused:
            lane = self.lane_of.get(places.get((each.machine, each.id), -1), -1)
            if lane >= 0 and self.low <= each.index <= self.high:
                event, state = (words.setdefault(word, len(words)) for word in (each.event, each.state))
                found.append((lane, each.index - self.low, each.line, each.plan, event, state))
        keys = ("lane", "before", "line", "plan", "event", "state")
        columns = {key: packed([each[i] for each in found]) for i, key in enumerate(keys)}
        return {"count": len(found), "words": list(words), **columns}

    def _violation(self) -> Value:
        illegal = self.verdict.illegal
        if illegal is None:
            return None
        line = _numbers(self.lives.line)
        index = int(np.searchsorted(line, illegal.line))
        ended = index == len(line) == self.high  # only the end of the recording has shown it
        shown = self.low <= index < self.high and line[index] == illegal.line
        return {
            "rule": illegal.rule,
            "message": illegal.message,
            "line": illegal.line,
            "step": index - self.low if shown else -1,
            "lane": self._lane_blamed(illegal),
            "outside": not (shown or ended),
            "history": list(illegal.history),
            "places": list(illegal.places),
            "further": self.verdict.further,
        }

    def _lane_blamed(self, illegal: Illegal) -> int:
        for place, lane in self.lane_of.items():
            if self.lives.places[place] == (illegal.machine, illegal.place):
                return lane
        return -1

    def _broken(self) -> Mapping[str, Value]:
        """Steps after the first illegal one whose source is not the state in which their place was left."""
        if self.verdict.illegal is None:
            return {"count": 0, "step": ""}
        lives, first = self.lives, self.verdict.illegal.line
        found = [index - self.low for index in lives.astray if self.low <= index < self.high and lives.line[index] > first]
        return {"count": len(found), "step": packed(found)}

    def _about(self) -> str:
        head, plan = self.lives.head, self.lives.plan
        parts = [
            f"{self.high - self.low:,} transitions",
            f"plans {plan[self.low]:,} to {plan[self.high - 1]:,}",
            f"{head.num_blocks:,} blocks, {head.num_slots:,} slots, {head.num_workers:,} "
            + ("worker" if head.num_workers == 1 else "workers"),
            f"contract {'fence' if head.fence else 'hold'}",
        ]
        return " · ".join(parts)

    def _notes(self) -> list[str]:
        notes = [f"{note[0].upper()}{note[1:]}." for note in self.verdict.notes]
        if self.high - self.low < len(self.lives):
            notes.append(
                f"Of {len(self.lives):,} transitions {self.high - self.low:,} are shown, those of the plans asked for."
            )
        if not self.lives.whole:
            notes.append("The recording does not say that it is whole.")
        return notes


def _row_of(machine: _Machine, kind: StepKind) -> int:
    key = kind.event, kind.source, kind.target, kind.guard or ""
    number = machine.add_row(*key, number=0)
    machine.rows[key] = {**machine.rows[key], "ends": kind.ends}
    return number


def _numbers(values: Sequence[int]) -> Numbers:
    return np.asarray(values, dtype=np.int64)
