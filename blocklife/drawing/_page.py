"""A page for one or several lifecycles: the drawing, and below it tables that say the same in words.

It is one file without scripts and external resources, so that it can be mailed and printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blocklife.drawing import _elements as elements
from blocklife.drawing._elements import escaped
from blocklife.drawing._layout import numbers_of
from blocklife.drawing._picture import Panel
from blocklife.drawing._svg import slug, svg
from blocklife.drawing._tables import as_html, couplings_of, sections
from blocklife.drawing._theme import Palette, Theme

_NO_CHARTS: Mapping[str, str] = {}


def page(panels: Sequence[Panel], theme: Theme | None = None, charts: Mapping[str, str] = _NO_CHARTS) -> str:
    """One page; without a theme the reader's system chooses between light and dark.

    *charts* are SVG to show with the marks of a lifecycle, by its name.
    """
    title = "Lifecycle: " + ", ".join(panel.picture.name for panel in panels)
    parts = [_section(panel, charts.get(panel.picture.name, "")) for panel in panels]
    couplings = {each.name: each for panel in panels for each in panel.picture.couplings}
    leads = [(slug(panel.picture.name), panel.picture.name) for panel in panels] + (
        [("couplings", "couplings")] if couplings else []
    )
    links = " ".join(f'<a href="#{to}">{escaped(name)}</a>' for to, name in leads)
    nav = f"<nav>{links}</nav>\n" if len(leads) > 1 else ""
    if couplings:
        numbers = numbers_of(panels)
        table = as_html(couplings_of([couplings[name] for name in numbers], numbers))
        parts.append(f'<section id="couplings">\n<h2>Couplings</h2>\n{table}\n</section>')
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escaped(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{elements.themed(_SHAPES, lambda each: _colours(each.value), theme)}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escaped(title)}</h1>\n{nav}<figure>\n{svg(panels, theme)}</figure>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(panel: Panel, chart: str) -> str:
    name, marks = escaped(panel.picture.name), panel.marks
    parts = [f'<section id="{slug(panel.picture.name)}">', f"<h2>{name}</h2>", f"<p>{escaped(panel.picture.about)}</p>"]
    if marks.title or marks.notes:
        parts += [f"<h3>{escaped(marks.title or 'Marks')}</h3>", *(f"<p>{escaped(each)}</p>" for each in marks.notes)]
    if chart:
        parts.append(f"<figure>\n{chart}\n</figure>")
    parts += [f"<h3>{grid.title}</h3>\n{as_html(grid)}" for grid in sections(panel)]
    return "\n".join([*parts, "</section>"])


_SHAPES = f"""\
body{{margin:0;font:15px/1.5 {elements.PROSE_FONT}}}
main{{max-width:980px;margin:0 auto;padding:16px}}
nav{{position:sticky;top:0;padding:6px 0;display:flex;flex-wrap:wrap;gap:4px 16px}}
nav a{{color:inherit}}
section{{scroll-margin-top:40px}}
figure{{margin:0 0 24px;overflow-x:auto}}
figure svg{{max-width:100%;height:auto}}
.wide{{overflow-x:auto;margin-bottom:20px}}
table{{border-collapse:collapse;font-size:13px}}
th,td{{border:1px solid;padding:4px 8px;text-align:left;vertical-align:top}}
code{{font-family:{elements.FIXED_FONT};font-size:12px;white-space:nowrap}}
"""


def _colours(palette: Palette) -> str:
    rules = [
        f"body,nav{{background:{palette.ground};color:{palette.text}}}",
        f"th,td{{border-color:{palette.rule}}}th{{background:{palette.panel}}}",
        f".guard{{color:{palette.guard}}}.refused{{color:{palette.faint}}}",
        *(f".{emphasis.name.lower()}{{color:{tint.text}}}" for emphasis, tint in palette.emphases.items()),
    ]
    return "".join(f"{each}\n" for each in rules)
