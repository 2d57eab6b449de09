"""Tables of cases: what happens, in a line of events, and the rules that fall of it, with their words.

Goal: a case is read once, and says nothing that its stage can say. Method: an event is a method of the stage, with arguments.
A table is text:

    name-of-the-case I1 what the violation says
        give a [1]; store 7 a 1; step; end a [1]; give b [1]; step

Several rules are joined by `+`, in the order in which they fall, and their words by `//`; `silent` is none. A line that begins
with `#` says why. Words of an event: `3` is a number, `[1,2]` a list, `:8` and `4:8` tokens of `TEXT`, `:8+[7]` both, `yes` and
`no`, `none`; anything else is a name. `key=word` is an argument by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from blocklife.watch import RULES

TEXT = [*range(100, 132)]
_NUMBER, _PART = re.compile(r"-?\d+"), re.compile(r"(\d*):(\d*)")
_WORDS: Mapping[str, object] = {"yes": True, "no": False, "none": None}


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
    lines = [line for line in table.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for block in re.split(r"\n(?=\S)", "\n".join(lines)):
        head, *events = block.splitlines()
        name, rules, *said = head.split(maxsplit=2)
        fallen = [] if rules == "silent" else rules.split("+")
        assert set(fallen) <= set(RULES), head
        assert name not in found, name
        found[name] = Case(name, fallen, [each.strip() for each in " ".join(said).split("//")], ";".join(events))
    return found


def play(stage: object, events: str) -> None:
    """Call the methods of a stage that these events name."""
    for event in filter(None, map(str.strip, events.replace("\n", ";").split(";"))):
        verb, *words = event.split()
        named = dict(word.split("=", 1) for word in words if re.match(r"[a-z_]+=", word))
        given = [read(word) for word in words if not re.match(r"[a-z_]+=", word)]
        act: Callable[..., object] = getattr(stage, verb)
        act(*given, **{key: read(word) for key, word in named.items()})


def read(word: str) -> object:
    """What a word of an event means."""
    if "+" in word:
        return [each for part in word.split("+") if isinstance(found := read(part), list) for each in found]
    if word.startswith("["):
        return [read(each) for each in word[1:-1].split(",") if each]
    if (part := _PART.fullmatch(word)) is not None:
        start, stop = (int(each) if each else None for each in part.groups())
        return TEXT[start:stop]
    return int(word) if _NUMBER.fullmatch(word) else _WORDS.get(word, word)
