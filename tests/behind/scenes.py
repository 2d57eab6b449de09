"""Tables of scenes: in what engine it is, what happens there, and what must be so at which moment.

Goal: a scene is read once, and says nothing that its stage can say. A table is text:

    name-of-the-scene key=value key=one|another
        # why it is so
        with key=value
        add 16 2; step 3; note before stored; drain; then stored == before + 4

It is played for each choice of its values; `*` is all that there are. Of several keys with choices so many combinations are run
that each value is there, the others are slow (`tests.sparing`). In an event ``{key}`` is the value, also of a key that begins
with `$` and says nothing of the engine. An event is a method of the stage with its words: a number, `yes`, `no`, `none`,
``key=word``, or a name. Four are the player's: ``then`` checks an expression of Python, ``note`` keeps the value of one by a
name, ``until`` steps as long as one is false, and ``refuses MESSAGE <- EVENT`` wants that event to be refused. The names in
them are what was noted, and attributes of the stage, which are read before anything is called. A word that was noted is its
value, and ``like NAME`` has the events of a scene above.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from attrs import frozen

from blocklife.errors import BlocklifeError
from tests.plays import act, blocks
from tests.sparing import places, sample

MOST = 2000
"""Steps in which what is waited for must have come."""


@frozen(eq=False)
class Scene:
    """A scene with one of its choices."""

    name: str
    settings: Mapping[str, str]
    events: Sequence[str]

    def play(self, stage: object) -> None:
        """Let all happen, and check what must be so."""
        known: dict[str, object] = {}
        for event in self.events:
            self._happen(event, stage, known)

    def _happen(self, event: str, stage: object, known: dict[str, object]) -> None:
        verb, _, rest = event.partition(" ")
        if verb == "then":
            assert value(rest, stage, known), f"{self.name}: {rest}: {scope(rest, stage, known)}"
        elif verb == "note":
            name, _, expression = rest.partition(" ")
            known[name] = value(expression, stage, known)
        elif verb == "refuses":
            message, _, refused = rest.partition(" <- ")
            with pytest.raises(BlocklifeError, match=re.escape(message)):
                self._happen(refused, stage, known)
        elif verb == "until":
            for _ in itertools.takewhile(lambda _: not value(rest, stage, known), range(MOST)):
                act(stage, "step", (), known)
            assert value(rest, stage, known), f"{self.name}: not in {MOST} steps: {rest}"
        else:
            act(stage, verb, rest.split(), known)


def scope(expression: str, stage: object, known: Mapping[str, object]) -> dict[str, object]:
    """What the names of an expression mean."""
    names = {node.id for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)}
    found = {each: getattr(stage, each) for each in names - known.keys() if hasattr(stage, each)}
    return {**found, **{each: known[each] for each in names & known.keys()}}


def value(expression: str, stage: object, known: Mapping[str, object]) -> Any:
    """What an expression is now."""
    return eval(expression, scope(expression, stage, known))


def heads(table: str) -> Iterator[tuple[str, list[str], str]]:
    """Name, settings and events of each scene of a table."""
    found: dict[str, str] = {}
    for head, events in blocks(table):
        name, *settings = head.split()
        assert name not in found, name
        while (more := re.match(r" +with (.*)\n", events)) is not None:
            settings, events = [*settings, *more[1].split()], events[more.end() :]
        if (other := re.match(r" +like (\S+)$", events)) is not None:
            events = found[other[1]]
        found[name] = events
        yield name, settings, events


def scenes(table: str, every: Mapping[str, Sequence[str]] = {}, common: Mapping[str, str] = {}) -> list[Any]:
    """The scenes of a table as parameters of a test. *every*: all values that a key can have; *common*: what is set in all."""
    found = []
    for name, settings, events in heads(table):
        keys = {**common, **dict(setting.split("=", 1) for setting in settings)}
        axes = {key: every[key] if told == "*" else told.split("|") for key, told in keys.items()}
        choices = [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values())]
        indices = places(choices)
        taken = sample(indices) if len(choices) > 1 else set(indices)
        for chosen, index in zip(choices, indices, strict=True):
            told = re.sub(r"\{(\w+)\}", lambda word: chosen.get(f"${word[1]}", chosen.get(word[1], word[0])), events)  # noqa: B023
            each = [event.strip() for event in re.split(r"[;\n]", told) if event.strip()]
            shown = "-".join([name, *(chosen[key] for key in axes if len(axes[key]) > 1)])
            marks = [] if index in taken else [pytest.mark.slow]
            found.append(pytest.param(Scene(name, chosen, each), id=shown, marks=marks))
    return found
