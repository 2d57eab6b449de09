"""A page for one or several lifecycles: the drawing, and below it tables that say the same in words.

It is one file without scripts and external resources, so that it can be mailed and printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from blocklife.drawing import _elements as elements
from blocklife.drawing._layout import numbers_of
from blocklife.drawing._picture import Emphasis, Explained, Label, Mark, Node, Panel
from blocklife.drawing._svg import slug, svg
from blocklife.drawing._tables import REFUSAL
from blocklife.drawing._theme import Palette, Theme

_NO_CHARTS: Mapping[str, str] = {}


def page(panels: Sequence[Panel], theme: Theme | None = None, charts: Mapping[str, str] = _NO_CHARTS) -> str:
    """One page; without a theme the reader's system chooses between light and dark.

    *charts* are SVG to show with the marks of a lifecycle, by its name.
    """
    title = "Lifecycle: " + ", ".join(panel.picture.name for panel in panels)
    sections = "\n".join(_section(panel, charts.get(panel.picture.name, "")) for panel in panels)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{elements.escaped(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>\n{_style(theme)}</style>\n</head>\n'
        f"<body>\n<main>\n<h1>{elements.escaped(title)}</h1>\n<figure>\n{svg(panels, theme)}</figure>\n{sections}\n"
        f"{_couplings(panels)}</main>\n</body>\n</html>\n"
    )


# --- sections ----------------------------------------------------------------------------------------------------------


def _section(panel: Panel, chart: str) -> str:
    picture, marks = panel.picture, panel.marks
    name = slug(picture.name)
    parts = [
        f'<section id="{name}">',
        f"<h2>{elements.escaped(picture.name)}</h2>",
        f"<p>{elements.escaped(picture.about)}</p>",
    ]
    if marks.title or marks.notes:
        parts += [
            f"<h3>{elements.escaped(marks.title or 'Marks')}</h3>",
            *(f"<p>{elements.escaped(each)}</p>" for each in marks.notes),
        ]
    if chart:
        parts.append(f"<figure>\n{chart}\n</figure>")
    parts.append(_titled("State by event", _matrix(panel)))
    states = [[_code(node.name), _node_about(node), *_mark_cells(marks.state(node))] for node in picture.nodes]
    parts.append(_titled("States", _table(["state", "means", "mark", "about"], states)))
    parts.append(_titled("Events", _words(picture.events, ["event", "payload", "means"])))
    if picture.guards:
        parts.append(_titled("Guards", _words(picture.guards, ["guard", "reads", "holds when"])))
    parts.append(_titled("Rows", _rows(panel)))
    return "\n".join([*parts, "</section>"])


def _rows(panel: Panel) -> str:
    """Every row in the order of the table, with its couplings and its mark."""
    found = sorted(((label, arrow) for arrow in panel.picture.arrows for label in arrow.labels), key=lambda each: each[0].row)
    cells = [
        [
            str(label.row),
            _code(arrow.source),
            _event(label, panel.marks.row(label)),
            _code(arrow.target),
            elements.escaped(", ".join(label.causes)),
            elements.escaped(", ".join(label.follows)),
            *_mark_cells(panel.marks.row(label)),
        ]
        for label, arrow in found
    ]
    return _table(["row", "from", "event", "to", "causes", "caused by", "mark", "about"], cells)


def _couplings(panels: Sequence[Panel]) -> str:
    """Every coupling that a lifecycle of the page touches, under its number in the drawing."""
    couplings = {each.name: each for panel in panels for each in panel.picture.couplings}
    if not couplings:
        return ""
    cells = [
        [
            str(number),
            _code(name),
            _code(each.cause),
            ", ".join(_code(state.name) for state in each.into) or "any state",
            "<br>".join(_code(effect) for effect in each.effects),
            elements.escaped(each.why),
        ]
        for name, number in numbers_of(panels).items()
        for each in [couplings[name]]
    ]
    table = _table(["number", "coupling", "when", "leads into", "then, in this order", "why"], cells)
    return f'<section id="couplings">\n<h2>Couplings</h2>\n{table}\n</section>\n'


def _matrix(panel: Panel) -> str:
    """Where each event leads from each state."""
    events = [word.name for word in panel.picture.events]
    cells = [[_code(node.name), *(_cell(panel, node, event) for event in events)] for node in panel.picture.nodes]
    return _table(["state", *events], cells)


def _cell(panel: Panel, node: Node, event: str) -> str:
    rows = panel.picture.rows_of(node.name, event)
    lines = []
    for target, label in rows:
        mark = panel.marks.row(label)
        guard = f' <span class="guard">[{elements.escaped(label.guard)}]</span>' if label.guard is not None else ""
        note = f" <b>{elements.escaped(mark.note)}</b>" if mark.note else ""
        lines.append(f"<span{_classed(mark)}>{_code(target)}</span>{guard}{note}")
    if all(label.guard is not None for _, label in rows):
        lines.append(f'<span class="refused">{REFUSAL}</span>')
    return "<br>".join(lines)


def _words(words: Iterable[Explained], heading: Sequence[str]) -> str:
    cells = [
        [_code(word.name), ", ".join(_code(each) for each in word.reads) or "nothing", elements.escaped(word.about)]
        for word in words
    ]
    return _table(heading, cells)


def _event(label: Label, mark: Mark) -> str:
    guard = f' <span class="guard">[{elements.escaped(label.guard)}]</span>' if label.guard is not None else ""
    return f"<span{_classed(mark)}>{_code(label.event)}</span>{guard}"


def _node_about(node: Node) -> str:
    where = " <i>(initial)</i>" if node.initial else " <i>(final)</i>" if node.final else ""
    return elements.escaped(node.about) + where


# --- markup ------------------------------------------------------------------------------------------------------------


def _titled(title: str, table: str) -> str:
    return f"<h3>{title}</h3>\n{table}"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls if it is too wide; empty optional columns are left out."""
    kept = [at for at, title in enumerate(heading) if title not in _OPTIONAL or any(row[at] for row in rows)]
    head = "".join(f'<th scope="col">{elements.escaped(heading[at])}</th>' for at in kept)
    body = "\n".join(f"<tr>{''.join(f'<td>{row[at]}</td>' for at in kept)}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


_OPTIONAL = ("mark", "about", "causes", "caused by")


def _mark_cells(mark: Mark) -> tuple[str, str]:
    return elements.escaped(mark.note or _MARKS.get(mark.emphasis, "")), elements.escaped(mark.about)


_MARKS = {
    Emphasis.UNUSED: "never",
    Emphasis.ALARM: "wrong",
}


def _code(said: str) -> str:
    return f"<code>{elements.escaped(said)}</code>"


def _classed(mark: Mark) -> str:
    return "" if mark.emphasis is Emphasis.PLAIN else f' class="{mark.emphasis.name.lower()}"'


def _style(theme: Theme | None) -> str:
    return elements.themed(_SHAPES, lambda each: _colours(each.value), theme)


_SHAPES = f"""\
body{{margin:0;font:15px/1.5 {elements.PROSE_FONT}}}
main{{max-width:980px;margin:0 auto;padding:16px}}
figure{{margin:0 0 24px;overflow-x:auto}}
figure svg{{max-width:100%;height:auto}}
.wide{{overflow-x:auto;margin-bottom:20px}}
table{{border-collapse:collapse;font-size:13px}}
th,td{{border:1px solid;padding:4px 8px;text-align:left;vertical-align:top}}
code{{font-family:{elements.FIXED_FONT};font-size:12px;white-space:nowrap}}
"""


def _colours(palette: Palette) -> str:
    rules = [
        f"body{{background:{palette.ground};color:{palette.text}}}",
        f"th,td{{border-color:{palette.rule}}}th{{background:{palette.panel}}}",
        f".guard{{color:{palette.guard}}}.refused{{color:{palette.faint}}}",
        *(f".{emphasis.name.lower()}{{color:{tint.text}}}" for emphasis, tint in palette.emphases.items()),
    ]
    return "".join(f"{each}\n" for each in rules)
