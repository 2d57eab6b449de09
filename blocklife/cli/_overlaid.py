"""What `blocklife draw` lays over a drawing: a recorded run, the coverage of a test run, or judged mutants."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from blocklife.cli._common import Parser, file, reading

if TYPE_CHECKING:
    from blocklife.drawing._picture import Marks
    from blocklife.drawing._theme import Theme


@frozen
class Overlay:
    """What is laid over, by the name of a machine."""

    marks: Mapping[str, Marks] = field(factory=dict)
    chart: Callable[[str, Theme | None], str] | None = None
    """Draws how a machine went through a run; None where none is shown."""

    def charts(self, theme: Theme | None) -> dict[str, str]:
        """The charts of all machines that have one."""
        drawn = {} if self.chart is None else {name: self.chart(name, theme) for name in self.marks}
        return {name: chart for name, chart in drawn.items() if chart}


def add_overlays(parser: Parser) -> None:
    """The options; only one of them can be given."""
    add = parser.add_mutually_exclusive_group().add_argument
    add("--recording", type=file, metavar="FILE", help="show what a run did: rows taken and never taken, stays, refusals")
    add("--coverage", type=file, metavar="FILE.json", help="show what tests cover: a report of pytest --blocklife-report")
    add(
        "--mutants",
        type=file,
        metavar="FILE",
        help="show which guards are missed when switched off (check --mutants, JSON or page)",
    )


def overlaid(args: argparse.Namespace, machines: Iterable[str]) -> Overlay:
    """What was asked for, for these machines."""
    if args.recording:
        return _run(args.recording, list(machines))
    if args.coverage:
        from blocklife.drawing._overlays import marks_of_coverage, read_coverage

        report = read_coverage(args.coverage)
        return Overlay({name: marks_of_coverage(report, name) for name in machines})
    if args.mutants:
        from blocklife.drawing._overlays import marks_of_mutants, read_mutants

        judged = read_mutants(args.mutants)
        return Overlay({name: marks_of_mutants(judged, name) for name in machines})
    return Overlay()


def _run(path: str, machines: list[str]) -> Overlay:
    from blocklife.drawing._chart import population_chart
    from blocklife.drawing._overlays import check_machine, marks_of_run
    from blocklife.recording._statistics import count_file

    for name in machines:  # before anything long is read
        check_machine(name, "a recording")
    with reading() as progress:
        run = count_file(path, progress)
    return Overlay({name: marks_of_run(run, name) for name in machines}, lambda name, theme: population_chart(run, name, theme))
