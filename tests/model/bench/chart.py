"""A report as a small picture: a bar for each row, for the time to the first token and for tokens a second."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from blocklife.drawing import Theme
from blocklife.drawing import _elements as elements
from blocklife.drawing._layout import Box
from blocklife.lifecycle import Tone
from tests.model.bench.records import Report, Row, Source, Spread

WIDTH = 900.0
_LEFT, _GAP, _TOP, _LINE, _BAR = 250.0, 14.0, 56.0, 34.0, 16.0
_FIGURE = 118.0
"""Room for the figure right of a bar."""
_TONES = {Source.NOWHERE: Tone.REST, Source.HOST: Tone.COPY, Source.DEVICE: Tone.USE}
_SIZE = 11.0


@frozen
class _Panel:
    """One of the two figures."""

    title: str
    unit: str
    scale: float
    x: float
    width: float


def chart(report: Report, theme: Theme | None = None) -> str:
    """An SVG, light or dark as the reader's system is, or in one *theme*. Rows that do not count are left out."""
    rows = [row for row in report.rows() if not row.troubles]
    width = (WIDTH - _LEFT - 2 * _GAP) / 2 - _FIGURE
    panels = (
        _Panel("time to the first token, and how many times as soon", "ms", 1e3, _LEFT, width),
        _Panel("tokens a second, and how many times as many", "/s", 1.0, _LEFT + width + _FIGURE + _GAP, width),
    )
    height = _TOP + _LINE * len(rows) + 28
    wish, facts = report.wish, report.facts
    title = f"Conversations behind system prompts of {wish.prefix:,} tokens: where the prefix comes from"
    below = (
        f"medians of {wish.rounds} rounds, lines from the lowest to the highest; model {wish.model}, vLLM on a CPU "
        f"({facts.get('processor', '?')}, {facts.get('cores', '?')} cores); {facts.get('date', '')}"
    )
    parts = [
        elements.element("title", elements.escaped(title)),
        f"<style>\n{_style(theme)}</style>",
        elements.rect(Box(0, 0, WIDTH, height), "blc-panel", 6),
        elements.text(title, _GAP, 22, "blc-said blc-head"),
        *(elements.text(panel.title, panel.x, 44, "blc-said blc-faint") for panel in panels),
        *(line for at, row in enumerate(rows) for line in _row(row, _TOP + at * _LINE, panels, rows)),
        elements.text(below, _GAP, height - 12, "blc-said blc-faint"),
    ]
    return (
        elements.element(
            "svg",
            "\n" + "\n".join(parts) + "\n",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {elements.number(WIDTH)} {elements.number(height)}",
            width=WIDTH,
            height=height,
            role="img",
            class_="blocklife-chart",
        )
        + "\n"
    )


def _row(row: Row, y: float, panels: tuple[_Panel, _Panel], rows: list[Row]) -> Iterator[str]:
    yield elements.text(row.variant.what, _GAP, y + _BAR - 4, "blc-said")
    ratios = (row.sooner, row.faster)
    spreads = ((row.first_s, [each.first_s for each in rows]), (row.tokens_per_s, [each.tokens_per_s for each in rows]))
    for panel, ratio, (spread, beside) in zip(panels, ratios, spreads, strict=True):
        yield from _bar(row, spread, max(each.high for each in beside), panel, ratio, y)


def _bar(row: Row, spread: Spread, highest: float, panel: _Panel, ratio: float, y: float) -> Iterator[str]:
    low, middle, high = (panel.x + panel.width * value / highest for value in (spread.low, spread.median, spread.high))
    tone = f"blc-{_TONES[row.variant.source].name.lower()}"
    yield elements.rect(Box(panel.x, y, max(middle - panel.x, 1.0), _BAR), f"blc-bar {tone}", 2)
    centre = y + _BAR / 2
    ends = f"M{elements.number(low)} {elements.number(centre)}H{elements.number(high)}"
    marks = "".join(f"M{elements.number(x)} {elements.number(centre - 3)}v6" for x in (low, high))
    yield elements.element("path", d=ends + marks, class_="blc-range")
    value = spread.median * panel.scale
    figure = f"{value:,.0f} {panel.unit}" if value >= 100 else f"{value:.1f} {panel.unit}"
    said = figure if row.variant.source is Source.NOWHERE else f"{figure}, {ratio:.1f} x"
    yield elements.text(said, max(middle, high) + 6, y + _BAR - 4, "blc-said blc-mono")


def _style(theme: Theme | None) -> str:
    shapes = (
        f".blc-said{{font-family:{elements.PROSE_FONT};font-size:{elements.number(_SIZE)}px}}\n"
        ".blc-head{font-weight:bold}\n.blc-range{fill:none;stroke-width:1}\n.blc-bar{stroke-width:1}\n"
    )
    return elements.themed(shapes, _colours, theme)


def _colours(theme: Theme) -> str:
    palette = theme.value
    rules = [
        f".blc-panel{{fill:{palette.panel};stroke:{palette.rule}}}",
        f".blc-said{{fill:{palette.text}}}.blc-faint{{fill:{palette.faint}}}.blc-range{{stroke:{palette.text}}}",
    ]
    for tone in _TONES.values():
        tint = palette.tones[tone]
        rules.append(f".blc-{tone.name.lower()}{{fill:{tint.line};stroke:{tint.line}}}")
    return "".join(f"{each}\n" for each in rules)
