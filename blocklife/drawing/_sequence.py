"""A sequence diagram as a value, and as Mermaid.

Rules of this file:

* A sequence knows no format and no machine: its maker decides what it says, and `_sequence_svg` draws it.
* In Mermaid a text ends at a semicolon or the end of the line, and a number sign begins an entity: `_mermaid.escaped` writes
  all of them as entities, and everything outside ASCII, too, so that no locale can garble it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TypeAlias

from attrs import frozen

from blocklife.drawing._mermaid import escaped
from blocklife.lifecycle import Tone


class Way(enum.Enum):
    """The kinds of messages; the value is the arrow in Mermaid."""

    ASKS = "->>"
    ANSWERS = "-->>"
    LOST = "--x"


@frozen
class Party:
    """A party of the diagram. ``key`` is one word."""

    key: str
    name: str


@frozen
class Message:
    """A message from one party to another."""

    source: str
    target: str
    text: str
    way: Way = Way.ASKS
    when: str = ""
    """Shown where it changes; empty if it is as before."""


@frozen
class Note:
    """A note over one party, or over a range of parties; ``tone`` gives its colour."""

    over: tuple[str, ...]
    lines: tuple[str, ...]
    tone: Tone = Tone.REST
    when: str = ""


@frozen
class Band:
    """A line across everything: another part begins, or something was left out."""

    text: str
    faint: bool = False


Item: TypeAlias = Message | Note | Band


@frozen
class PartySequence:
    """A whole diagram. Invariant: items name only parties of it, a message two different ones."""

    parties: tuple[Party, ...]
    items: tuple[Item, ...]
    title: str = ""


def mermaid(sequence: PartySequence) -> str:
    """A sequence as Mermaid draws it."""
    return "\n".join(_lines(sequence)) + "\n"


def _lines(sequence: PartySequence) -> Iterator[str]:
    across = ",".join(dict.fromkeys(sequence.parties[at].key for at in (0, -1)))
    yield "sequenceDiagram"
    for party in sequence.parties:
        yield f"    participant {party.key} as {_said(party.name)}"
    if sequence.title:
        yield f"    Note over {across}: {_said(sequence.title)}"
    when = ""
    for item in sequence.items:
        if isinstance(item, Band):
            yield f"    Note over {across}: {_said(item.text)}"
            when = ""
            continue
        told = f"{item.when}: " if item.when not in ("", when) else ""
        when = item.when or when
        if isinstance(item, Message):
            yield f"    {item.source}{item.way.value}{item.target}: {_said(told + item.text)}"
        else:
            first, *others = item.lines
            yield f"    Note over {','.join(item.over)}: {'<br/>'.join(_said(each) for each in (told + first, *others))}"


def _said(text: str) -> str:
    return "".join(each if each.isascii() else f"#{ord(each)};" for each in escaped(text))
