"""Lifecycles as DOT, the language of Graphviz: plain text, for readers who want a layout of their own.

Several machines become clusters. Names are quoted; in labels a backslash begins an escape, so it is doubled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blocklife.drawing._picture import Arrow, Emphasis, Mark, Node, Panel
from blocklife.drawing._theme import Palette, Theme, Tint


def dot(panels: Sequence[Panel], theme: Theme | None = None) -> str:
    """One graph: an edge for each pair of states, with one label line for each row. Without a theme it is light."""
    palette = (theme or Theme.LIGHT).value
    name = " ".join(panel.picture.name for panel in panels)
    lines = [
        f"digraph {quoted(name)} {{",
        f'    graph [fontname="Helvetica", bgcolor="{palette.ground}", fontcolor="{palette.text}", color="{palette.rule}"]',
        '    node [fontname="Courier-Bold", fontsize="12", shape="box", style="rounded,filled"]',
        '    edge [fontname="Courier", fontsize="10", arrowsize="0.7"]',
    ]
    for number, panel in enumerate(panels):
        prefix = f"{panel.picture.name}." if len(panels) > 1 else ""
        if prefix:
            lines.append(f"    subgraph {quoted(f'cluster_{number}')} {{")
        drawn = [f"label={_label([panel.picture.name, *panel.marks.notes])}", *_machine(panel, prefix, palette)]
        lines += [("        " if prefix else "    ") + line for line in drawn]
        if prefix:
            lines.append("    }")
    return "\n".join([*lines, "}"]) + "\n"


def quoted(text: str) -> str:
    """A name, or one line of text, without control characters."""
    plain = "".join(" " if ord(each) < 32 else each for each in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _label(lines: Sequence[str]) -> str:
    """Lines of text, centred one below the other."""
    return '"' + "\\n".join(quoted(line)[1:-1] for line in lines) + '"'


def _machine(panel: Panel, prefix: str, palette: Palette) -> Iterator[str]:
    picture = panel.picture
    yield f'{quoted(f"{prefix}(begin)")} [shape="point", width="0.12", label="", color="{palette.text}"]'
    for node in picture.nodes:
        yield f"{quoted(prefix + node.name)} [{_node(panel, node, palette)}]"
    for node in picture.nodes:
        if node.initial:
            yield f'{quoted(f"{prefix}(begin)")} -> {quoted(prefix + node.name)} [color="{palette.text}"]'
    for arrow in picture.arrows:
        mark = panel.mark_of(arrow)
        tint = palette.emphases[mark.emphasis] if panel.marked else palette.tones[picture.tone(arrow.target)]
        ends = f"{quoted(prefix + arrow.source)} -> {quoted(prefix + arrow.target)}"
        yield f"{ends} [{_edge(panel, arrow, mark, tint)}]"


def _node(panel: Panel, node: Node, palette: Palette) -> str:
    mark = panel.marks.state(node)
    tint = palette.tones[node.tone] if mark.emphasis is Emphasis.PLAIN else palette.emphases[mark.emphasis]
    words = [
        f"label={_label([node.name, mark.note] if mark.note else [node.name])}",
        f'color="{tint.line}"',
        f'fillcolor="{tint.fill}"',
        f'fontcolor="{tint.text}"',
        f"tooltip={quoted(': '.join(filter(None, [node.name, node.about, mark.about])))}",
    ]
    if node.final:
        words.append('peripheries="2"')
    if mark.emphasis is Emphasis.UNUSED:
        words.append('style="rounded,filled,dashed"')
    if mark.weight > 0 or mark.emphasis is Emphasis.ALARM:
        words.append(f'penwidth="{1 + 2.5 * max(mark.weight, 0.4):.2f}"')
    return ", ".join(words)


def _edge(panel: Panel, arrow: Arrow, mark: Mark, tint: Tint) -> str:
    said = [f"{label} {panel.marks.row(label).note}".strip() for label in arrow.labels]
    about = "; ".join(filter(None, (panel.marks.row(label).about for label in arrow.labels)))
    words = [
        f"label={_label(said)}",
        f'color="{tint.line}"',
        f'fontcolor="{tint.text}"',
        f"tooltip={quoted(': '.join(filter(None, [f'{arrow.source} to {arrow.target}', about])))}",
    ]
    if mark.emphasis is Emphasis.UNUSED:
        words.append('style="dashed"')
    if mark.weight > 0 or mark.emphasis is Emphasis.ALARM:
        words.append(f'penwidth="{1 + 3 * max(mark.weight, 0.4):.2f}"')
    return ", ".join(words)
