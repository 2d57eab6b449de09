"""Tables of cases: what happens, in a line of events, and the rules that fall of it, with their words.

Goal: a case is read once, and says nothing that its stage can say:

    name-of-the-case I1 what the violation says
        give a [1]; store 7 a 1; step; end a [1]; give b [1]; step

Several rules are joined by `+`, in the order in which they fall, and their words by `//`; `silent` is none. `tests.plays` says
what an event is.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from blocklife.watch import RULES
from tests.plays import blocks, play


@frozen
class Case:
    """One row of a table."""

    name: str
    rules: Sequence[str]
    said: Sequence[str]
    """What each violation says, or a part of it; there may be fewer than rules."""
    events: str

    def play(self, stage: object) -> None:
        """Let it happen."""
        play(stage, self.events)

    def check(self, found: Sequence[tuple[str, str]]) -> None:
        """Check the rule and the words of each violation that was found."""
        assert [rule for rule, _ in found] == list(self.rules), found
        for said, (_, what) in zip(self.said, found, strict=False):
            assert said in what


def cases(table: str) -> dict[str, Case]:
    """The cases of a table, by name."""
    found: dict[str, Case] = {}
    for head, events in blocks(table):
        name, rules, *said = head.split(maxsplit=2)
        assert name not in found, name
        fallen = [] if rules == "silent" else rules.split("+")
        assert set(fallen) <= set(RULES), head
        found[name] = Case(name, fallen, [each.strip() for each in " ".join(said).split("//")], events)
    return found
