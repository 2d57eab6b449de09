"""A table of scenes is played as it is read: choices, values, what must be so, and what a mistake in it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from blocklife.errors import MisuseError
from tests.behind.scenes import Scene, scenes

TABLE = """
# --- a part
first size=1|2 of=* $extra=7
    # why
    put {size}; put {extra} late=yes; note before total; step; then total == before + 1 == {size} + 8
second
    with size=3
    with $extra=7
    like first
third size=4
    until total >= 5; note words ["a", 2]; put words; then heard[-1] == words; refuses 0 is not taken <- put 0
"""


class Counter:
    """A stage that adds up what it is given."""

    def __init__(self) -> None:
        self.total = 0
        self.heard: list[object] = []

    def step(self, times: int = 1) -> None:
        """One more."""
        self.total += times

    def put(self, what: object, late: bool = False) -> None:
        """Keep it."""
        if what == 0:
            raise MisuseError("0 is not taken", "give another")
        self.heard.append(what)
        self.total += what if isinstance(what, int) else 0


def played(table: str, common: Mapping[str, str] = {}) -> list[tuple[str, Scene, Sequence[pytest.Mark]]]:
    """The scenes of a table, with the marks that they have."""
    return [(each.id, each.values[0], each.marks) for each in scenes(table, {"of": ("x", "y")}, common)]


def test_scene_is_played_for_its_choices() -> None:
    """Each value is in one that runs; the rest is slow. What is common to all gives way to what a scene says."""
    found = played(TABLE, {"size": "9"})
    for _, scene, _ in found:
        scene.play(Counter())

    assert [name for name, _, _ in found] == ["first-1-x", "first-1-y", "first-2-x", "first-2-y", "second", "third"]
    assert [bool(marks) for _, _, marks in found] == [False, True, True, False, False, False]
    assert [scene.settings["size"] for _, scene, _ in found] == ["1", "1", "2", "2", "3", "4"]


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ("step; then total == 2", r"wrong: total == 2: .*'total': 1"),
        ("until total < 0", "wrong: not in 2000 steps: total < 0"),
        ("refuses more <- step", "DID NOT RAISE"),
        ("jump", "no attribute 'jump'"),
        ("then tota == 1", "name 'tota' is not defined"),
    ],
)
def test_what_is_not_so_is_told(events: str, told: str) -> None:
    """With the name of the scene, the expression, and what its names are."""
    ((_, scene, _),) = played(f"wrong\n    {events}")
    with pytest.raises((AssertionError, AttributeError, NameError, pytest.fail.Exception), match=told):
        scene.play(Counter())
