"""The number of places in each state over a run, as a small stacked chart.

It is one SVG, for use alone or in a page: its classes begin with the name of the machine, and each state has the colour that it
has in every drawing of a run. Terminal states are left out, because they only grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from blocklife.drawing import _elements as elements
from blocklife.drawing._layout import Box
from blocklife.drawing._svg import slug
from blocklife.drawing._text_width import fixed_width, prose_width
from blocklife.drawing._theme import Theme, state_colours
from blocklife.recording._statistics import MachineStatistics, RunStatistics

WIDTH = 900.0
HEIGHT = 170.0
"""Height of the areas only."""
POINTS_MAX = 256
_TOP, _RIGHT, _GAP = 34.0, 14.0, 8.0
_TICKS = 6
_SIZE = 11.0
_LINE = 17.0


def population_chart(run: RunStatistics, machine: str, theme: Theme | None = None) -> str:
    """The chart of one machine; empty if the recording has none of its places."""
    told = run.machine(machine)
    areas = _Areas.of(told, run.plans)
    if areas is None:
        return ""
    name = f"bl-chart-{slug(machine)}"
    left = _GAP + fixed_width(f"{areas.highest:,}", _SIZE) + 6
    plot = Box(left, _TOP, WIDTH - left - _RIGHT, HEIGHT)
    legend, below = _legend(areas.states, name, _TOP + HEIGHT + 26)
    title = f"{machine}s in each state, over {run.last_plan:,} plans"
    parts = [
        elements.element("title", elements.escaped(title)),
        f"<style>\n{_style(name, areas.states, theme)}</style>",
        elements.rect(Box(0, 0, WIDTH, below), f"{name}-panel", 6),
        elements.text(title, _GAP, 20, f"{name}-said {name}-head"),
        *areas.drawn(plot, name),
        *_axes(areas, plot, name),
        *legend,
    ]
    return elements.element(
        "svg",
        "\n" + "\n".join(parts) + "\n",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {elements.number(WIDTH)} {elements.number(below)}",
        width=WIDTH,
        height=float(below),
        role="img",
        class_="blocklife-chart",
    )


@frozen(eq=False)
class _Areas:
    """The areas of a chart.

    Invariant: ``tops`` has one line for each of ``plans`` and one column for each of ``states``, none below the previous one;
    the area of a state lies between the two.
    """

    states: tuple[str, ...]
    plans: NDArray[np.int64]
    counts: NDArray[np.int64]
    tops: NDArray[np.int64]
    highest: int
    last: int
    """Where the last plan ends."""

    @classmethod
    def of(cls, told: MachineStatistics, plans: NDArray[np.int64]) -> _Areas | None:
        """The areas of the states that had any place, with at most as many plans as there are pixels."""
        finals = {state.name for state in told.table.finals}
        kept = [at for at, state in enumerate(told.dwell) if state not in finals and told.population[:, at].any()]
        if not kept:
            return None
        every = -(-len(plans) // POINTS_MAX)
        counts = told.population[::every, kept]
        tops = counts.cumsum(axis=1)
        states = tuple(told.dwell)
        return cls(tuple(states[at] for at in kept), plans[::every], counts, tops, int(tops.max()), int(plans[-1]) + 1)

    def x(self, plan: float, plot: Box) -> float:
        """Where a plan begins."""
        first = int(self.plans[0])
        return plot.x + plot.width * (plan - first) / (self.last - first)

    def y(self, count: float, plot: Box) -> float:
        """The y coordinate of a number."""
        return plot.y + plot.height * (1 - count / self.highest)

    def drawn(self, plot: Box, name: str) -> Iterator[str]:
        """An area for each state, the first state at the bottom."""
        edges = [self.x(float(plan), plot) for plan in (*self.plans.tolist(), self.last)]
        below = np.zeros(len(self.plans), dtype=np.int64)
        for at, state in enumerate(self.states):
            above = self.tops[:, at]
            there, back = self._steps(above, edges, plot), reversed(self._steps(below, edges, plot))
            path = "M" + "L".join(f"{elements.number(x)} {elements.number(y)}" for x, y in (*there, *back)) + "Z"
            told = f"{state}: at most {int(self.counts[:, at].max()):,}, at the end {int(self.counts[-1, at]):,}"
            yield elements.element(
                "path", f"<title>{elements.escaped(told)}</title>", d=path, class_=f"{name}-area {name}-{slug(state)}"
            )
            below = above

    def _steps(self, counts: NDArray[np.int64], edges: Sequence[float], plot: Box) -> list[tuple[float, float]]:
        """The corners of a step line, which is level from plan to plan."""
        heights = [self.y(count, plot) for count in counts.tolist()]
        found = [(edges[0], heights[0])]
        for at in range(1, len(heights)):
            if heights[at] != heights[at - 1]:
                found += [(edges[at], heights[at - 1]), (edges[at], heights[at])]
        return [*found, (edges[-1], heights[-1])]


def _axes(areas: _Areas, plot: Box, name: str) -> Iterator[str]:
    """Numbers and lines: places upwards, plans to the right."""
    for count in dict.fromkeys((0, areas.highest)):
        y = areas.y(count, plot)
        said = f"{count:,}"
        yield elements.text(said, plot.x - 6 - fixed_width(said, _SIZE), y + (10 if count else 0), f"{name}-said {name}-faint")
    yield elements.element("rect", x=plot.x, y=plot.y, width=plot.width, height=plot.height, class_=f"{name}-frame")
    first = int(areas.plans[0])
    step = _round_step((areas.last - first) / _TICKS)
    for plan in range(first + -first % step, areas.last, step):
        said, x = f"{plan:,}", areas.x(plan, plot)
        yield elements.element(
            "path", d=f"M{elements.number(x)} {elements.number(plot.y + plot.height)}v4", class_=f"{name}-frame"
        )
        place = min(max(x - fixed_width(said, _SIZE) / 2, plot.x), plot.x + plot.width - fixed_width(said, _SIZE))
        yield elements.text(said, place, plot.y + plot.height + 15, f"{name}-said {name}-faint")


def _round_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that is at least a number."""
    size = 1
    while True:
        for step in (size, 2 * size, 5 * size):
            if step >= least:
                return step
        size *= 10


def _legend(states: Sequence[str], name: str, top: float) -> tuple[list[str], float]:
    """The legend of the colours, in as many lines as needed, and the y coordinate where it ends."""
    parts: list[str] = []
    x, y = _GAP, top
    for state in states:
        width = 16 + prose_width(state, _SIZE) + 16
        if x > _GAP and x + width > WIDTH:
            x, y = _GAP, y + _LINE
        parts.append(elements.rect(Box(x, y, 11, 11), f"{name}-area {name}-{slug(state)}", 2))
        parts.append(elements.text(state, x + 16, y + 9.5, f"{name}-said"))
        x += width
    return parts, y + _LINE + 3


def _style(name: str, states: Sequence[str], theme: Theme | None) -> str:
    shapes = (
        f".{name}-said{{font-family:{elements.PROSE_FONT};font-size:{elements.number(_SIZE)}px}}\n"
        f".{name}-head{{font-weight:bold}}\n.{name}-area{{stroke-width:.5}}\n.{name}-frame{{fill:none;stroke-width:1}}\n"
    )
    return elements.themed(shapes, lambda each: _colours(name, states, each), theme)


def _colours(name: str, states: Sequence[str], theme: Theme) -> str:
    palette, tint = theme.value, int(theme is Theme.DARK)
    rules = [
        f".{name}-panel{{fill:{palette.panel};stroke:{palette.rule}}}",
        f".{name}-said{{fill:{palette.text}}}.{name}-faint{{fill:{palette.faint}}}",
        f".{name}-frame{{stroke:{palette.rule}}}.{name}-area{{stroke:{palette.panel}}}",
        *(f".{name}-{slug(state)}{{fill:{state_colours(state)[tint]}}}" for state in states),
    ]
    return "".join(f"{each}\n" for each in rules)
