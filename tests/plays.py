"""Tables of what happens on a stage, in lines of events, and who plays them.

A table is text. A line that is not indented is the head of a block, the lines below it are its events, and a line that begins
with ``#`` says why. Events stand in lines of their own or between semicolons. An event is a method of the stage with its words:
`3` is a number, `[1,2]` a list, `:8` and `4:8` tokens of `TEXT`, `:8+[7]` both, `yes`, `no` and `none`; all else is a name, and
`key=word` an argument by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

TEXT = [*range(100, 132)]
_NUMBER, _PART, _NAMED = re.compile(r"-?\d+"), re.compile(r"(\d*):(\d*)"), re.compile(r"[a-z_]+=")
_WORDS: Mapping[str, object] = {"yes": True, "no": False, "none": None}


def blocks(table: str) -> Iterator[tuple[str, str]]:
    """Head and events of each block, without what says why; no two are headed alike."""
    lines = [line for line in table.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    heads = set[str]()
    for block in re.split(r"\n(?=\S)", "\n".join(lines)):
        head, _, events = block.partition("\n")
        assert head not in heads, head
        heads.add(head)
        yield head, events


def plays(table: str) -> dict[str, str]:
    """The events of each block, by its head."""
    return dict(blocks(table))


def play(stage: object, events: str) -> None:
    """Call the methods of a stage that these events name."""
    for event in filter(None, map(str.strip, re.split(r"[;\n]", events))):
        verb, *words = event.split()
        act(stage, verb, words)


def act(stage: object, verb: str, words: Sequence[str], known: Mapping[str, object] = {}) -> None:
    """Call a method of a stage; a word that is *known* means what it is known to."""
    named = dict(word.split("=", 1) for word in words if _NAMED.match(word))
    given = [known[word] if word in known else read(word) for word in words if not _NAMED.match(word)]
    called: Callable[..., object] = getattr(stage, verb)
    called(*given, **{key: read(word) for key, word in named.items()})


def read(word: str) -> Any:
    """What a word of an event means."""
    parts = [read(part) for part in word.split("+")] if "+" in word else []
    if parts and all(isinstance(part, list) for part in parts):
        return [each for part in parts if isinstance(part, list) for each in part]
    if word.startswith("["):
        return [read(each) for each in word[1:-1].split(",") if each]
    if (part := _PART.fullmatch(word)) is not None:
        start, stop = (int(each) if each else None for each in part.groups())
        return TEXT[start:stop]
    return int(word) if _NUMBER.fullmatch(word) else _WORDS.get(word, word)
