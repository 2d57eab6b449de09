"""Lifecycles as a Mermaid state diagram, which GitHub and most Markdown viewers draw.

In that grammar a label ends at a colon, a semicolon or the end of the line, a number sign begins a comment or an entity, and
keywords are recognised in any case. So such characters are written as entities, and a state whose name is a keyword, or not a
word, gets another id. Marks become classes of states; an arrow cannot have a class, so its label names the mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from blocklife.drawing._picture import Emphasis, Label, Panel, Picture
from blocklife.drawing._theme import Theme

KEYWORDS = frozenset(
    {"accdescr", "acctitle", "as", "class", "classdef", "click", "default", "direction", "end", "hide", "note", "scale"}
    | {"fork", "join", "choice", "history", "linkstyle", "root"}
    | {"state", "statediagram", "style", "title"}
)
"""Words that a state cannot have as its id; the grammar reads them in any case."""

_ENTITIES = {character: f"#{ord(character)};" for character in '#;:"<>&\\%{}`'}


def mermaid(panels: Sequence[Panel], *, meanings: bool = True) -> str:
    """Draw lifecycles: one arrow for each pair of states, one line of its label for each row; several as composite states.

    With *meanings*, each state shows what it means below its name.
    """
    lines = ["stateDiagram-v2"]
    taken: set[str] = set()
    for panel in panels:
        if len(panels) == 1:
            lines += _machine(panel, _ids(panel.picture, "", taken), "    ", meanings=meanings)
            continue
        frame = _free(_word(panel.picture.name), taken)
        lines.append(f'    state "{escaped(panel.picture.name)}" as {frame} {{')
        lines += _machine(panel, _ids(panel.picture, f"{frame}_", taken), "        ", meanings=meanings)
        lines.append("    }")
    return "\n".join([*lines, *_classes(panels)]) + "\n"


def _machine(panel: Panel, ids: Mapping[str, str], indent: str, *, meanings: bool) -> list[str]:
    picture = panel.picture
    lines = []
    for node in picture.nodes:
        mark = panel.marks.state(node)
        lines.append(f'state "{escaped(node.name)}" as {ids[node.name]}')
        told = [node.about if meanings else "", mark.note]
        lines += [f"{ids[node.name]} : {escaped(each)}" for each in told if each.strip()]
    lines += [f"[*] --> {ids[node.name]}" for node in picture.nodes if node.initial]
    for arrow in picture.arrows:
        labels = "<br/>".join(_label(panel, label) for label in arrow.labels)
        lines.append(f"{ids[arrow.source]} --> {ids[arrow.target]} : {labels}")
    lines += [f"{ids[node.name]} --> [*]" for node in picture.nodes if node.final]
    for node in picture.nodes:
        if (emphasis := panel.marks.state(node).emphasis) is not Emphasis.PLAIN:
            lines.append(f"class {ids[node.name]} {_class(emphasis)}")
    return [indent + line for line in lines]


def _label(panel: Panel, label: Label) -> str:
    """The text of one row on its arrow: the event, its guard in brackets, and its mark."""
    mark = panel.marks.row(label)
    return escaped(" ".join(filter(None, [mark.word and f"({mark.word})", str(label), mark.note])))


def _classes(panels: Sequence[Panel]) -> list[str]:
    """One class for each emphasis of a state, in the colours of a light drawing: its fill is light under either theme."""
    used = {mark.emphasis for panel in panels for mark in panel.marks.states.values()}
    found = []
    for emphasis in Emphasis:
        if emphasis in used and emphasis is not Emphasis.PLAIN:
            tint = Theme.LIGHT.value.emphases[emphasis]
            dashed = ",stroke-dasharray:4 3" if emphasis is Emphasis.UNUSED else ""
            colours = f"fill:{tint.fill},stroke:{tint.line},color:{tint.text}{dashed}"
            found.append(f"    classDef {_class(emphasis)} {colours}")
    return found


def _class(emphasis: Emphasis) -> str:
    return f"marked_{emphasis.name.lower()}"


def escaped(text: str) -> str:
    """Text that a label can hold; line ends become spaces."""
    return "".join(_ENTITIES.get(character, character) for character in " ".join(text.split()))


def _ids(picture: Picture, prefix: str, taken: set[str]) -> dict[str, str]:
    """An id for each state: its name, unless it means something else in the grammar."""
    names = sorted((node.name for node in picture.nodes), key=lambda name: prefix + name != _word(name, prefix))
    return {name: _free(_word(name, prefix), taken) for name in names}


def _word(name: str, prefix: str = "") -> str:
    """A name as a word of the grammar: letters, digits and underscores, but not a keyword."""
    word = prefix + (re.sub(r"[^A-Za-z0-9_]", "_", name) or "_")
    return word + "_" if word.lower() in KEYWORDS else word


def _free(word: str, taken: set[str]) -> str:
    """The word, with a number added if it is already taken."""
    while word in taken:
        word += "_"
    taken.add(word)
    return word
