"""A report as tables in Markdown, for a terminal and for `specs/measurements.md`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from attrs import frozen

from tests.bench.gpu.records import (
    COPIER,
    EACH,
    EACH_RATIO_MIN,
    GATHER,
    LARGE_PAGE,
    LIMIT,
    LIMIT_SHARE_MIN,
    MOVERS,
    NEIGHBOURS,
    PACKAGES,
    Beside,
    Case,
    Report,
    Timed,
    size,
)


@frozen
class Grid:
    """A table before anybody draws it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def grids(report: Report) -> Iterator[Grid]:
    """All tables of a report."""
    yield Grid(
        "Ours against the limit and the peers",
        ("pages", "direction", "limit, GB/s", "ours, GB/s", "of the limit", "in a row", "x copy_", "x gather", "us", "the bar"),
        tuple(_against(case) for case in report.cases),
        f"Medians; slowest and quickest in brackets. Limit: one copy of the same bytes. In a row: neighbouring blocks, of the "
        f"limit. x copy_: as fast as one copy_ a block so many times. x gather: the same for {GATHER} and one copy (loads: one "
        f"copy and index_copy_), whose places on the host lie all in a row. us: microseconds that a launch holds the engine's "
        f"thread. The bar: {LIMIT_SHARE_MIN:.0%} of the limit from {size(LARGE_PAGE)} on, {EACH_RATIO_MIN:g} x copy_ below.",
    )
    there = [name for name in (*PACKAGES, EACH, GATHER) if any(case.of(name) for case in report.cases)]
    yield Grid(
        "Ours beside what people use",
        (
            "pages",
            "direction",
            *(f"{name}, of the limit" for name in (COPIER, *there)),
            *(f"{name}, us" for name in (COPIER, *there)),
        ),
        tuple(_beside_packages(case, there) for case in report.cases),
        "Share of the limit, and microseconds that a launch holds the engine's thread. Each package by its own call, for pages "
        "of any size and in both directions: vLLM itself takes its kernel for loads below 28 KiB only. The host's places of "
        f"LMCache and of {GATHER} lie all in a row. Who is not here is named below.",
    )
    yield Grid(
        "Each mover by itself",
        (
            "pages",
            "direction",
            *(f"{name}, GB/s" for name in MOVERS),
            *(f"{name}, us" for name in MOVERS),
            "best",
            "taken",
            "of the best",
        ),
        tuple(_by_mover(case) for case in report.cases),
        "GB/s and microseconds a launch. Taken: what the copier chooses by itself, and what it reaches as a share of the best.",
    )
    if report.beside:
        yield Grid(
            "A matrix product beside copies",
            ("pages", "direction", "by", "alone, ms", "beside, ms", "slower by", "SMs", "copied, GB/s", "of the limit"),
            tuple(_beside(each, report) for each in report.beside),
            "One product, median. Copied: what landed meanwhile, and its share of the limit alone. SMs: multiprocessors that "
            "the product has lost, derived from its speed: all that the device has, times the share of the speed that is gone. "
            "The device's memory, which copies use too, counts in it: the row of the limit, which takes none, shows how much.",
        )


def _beside(each: Beside, report: Report) -> tuple[str, ...]:
    alone = [case.of(LIMIT) for case in report.cases if (case.page, case.direction) == (each.page, each.direction)]
    return (
        size(each.page),
        each.direction,
        each.mover,
        f"{statistics.median(each.alone_ms):.3f}",
        f"{statistics.median(each.beside_ms):.3f}",
        f"{each.slowdown:+.1%}",
        f"{each.taken:.1f}" if each.multiprocessors else "",
        f"{each.copied_rate:.1f}",
        next((_share(each.copied_rate / limit.rate) for limit in alone if limit is not None), ""),
    )


def _beside_packages(case: Case, there: Sequence[str]) -> tuple[str, ...]:
    names = (COPIER, *there)
    held = [case.of(name) for name in names]
    return (
        size(case.page),
        case.direction,
        *(_share(case.ratio(name, LIMIT)) for name in names),
        *("" if each is None else f"{each.launch_us:,.0f}" for each in held),
    )


def _against(case: Case) -> tuple[str, ...]:
    ours, limit = case.of(COPIER), case.of(LIMIT)
    return (
        size(case.page),
        case.direction,
        _spread(limit),
        _spread(ours),
        _share(case.ratio(COPIER, LIMIT)),
        _share(case.ratio(NEIGHBOURS, LIMIT)),
        _times(case.ratio(COPIER, EACH)),
        _times(case.ratio(COPIER, GATHER)),
        "" if ours is None else f"{ours.launch_us:,.0f}",
        case.bar,
    )


def _by_mover(case: Case) -> tuple[str, ...]:
    movers = [case.of(name) for name in MOVERS]
    best = case.best
    return (
        size(case.page),
        case.direction,
        *("" if each is None else f"{each.rate:.1f}" for each in movers),
        *("" if each is None else f"{each.launch_us:,.0f}" for each in movers),
        best,
        case.chosen,
        _share(case.ratio(COPIER, best)) if best else "",
    )


def _spread(timed: Timed | None) -> str:
    return "" if timed is None else f"{timed.rate:.1f} ({timed.slowest:.1f} to {timed.quickest:.1f})"


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0%}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}"


def remarks(report: Report) -> list[str]:
    """What the tables do not say."""
    return [
        *([f"ENDED EARLY: {report.broken}"] if report.broken else []),
        *(f"WRONG: {trouble}" for trouble in report.troubles),
        *(f"not here: {name}: {why}" for name, why in report.absent.items()),
        *(f"left out: {what}" for what in report.left_out),
    ]


def markdown(report: Report) -> str:
    """Facts, tables and remarks, as a part of a page."""
    lines = [f"## {report.facts.get('device', 'An unknown device')}, {report.facts.get('date', 'some day')}", ""]
    lines += [f"* {name}: {value}" for name, value in report.facts.items() if name not in ("device", "date")]
    for grid in grids(report):
        lines += ["", f"### {grid.title}", "", grid.note, "", _row(grid.headings)]
        lines += [_row(["---"] * 2 + ["---:"] * (len(grid.headings) - 2)), *map(_row, grid.rows)]
    if told := remarks(report):
        lines += ["", "### What is not in the tables", "", *(f"* {line}" for line in told)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
