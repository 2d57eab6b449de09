"""``python -m tests.bench [--json] [--smoke] [suite ...]``: measure, and print a table or JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from attrs import asdict
from rich.console import Console
from rich.table import Table

from tests.bench import FULL, SMOKE, Figure, Scale

SUITES = (
    "calls",
    "lifecycle",
    "hooks",
    "ledger",
    "offload",
    "loads",
    "pool",
    "silent",
    "exploring",
    "startup",
    "replay",
    "growth",
    "below",
    "memory",
    "before",
)
"""Modules of this package that have a function ``measure``."""


def measured(suites: Sequence[str], scale: Scale) -> dict[str, list[Figure]]:
    """The figures of each suite."""
    return {name: importlib.import_module(f"tests.bench.{name}").measure(scale) for name in suites}


def as_json(found: Mapping[str, Sequence[Figure]]) -> str:
    """Every figure with its ratio, and what it ran on."""
    return json.dumps(
        {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "suites": {
                suite: [{**asdict(figure), "ratio": figure.ratio} for figure in figures] for suite, figures in found.items()
            },
        },
        indent=2,
    )


def show(found: Mapping[str, Sequence[Figure]], console: Console) -> None:
    """One table per suite, with a column for each core that ran."""
    for suite, figures in found.items():
        cores = list(dict.fromkeys(each.core for each in figures))
        rows: dict[tuple[str, str], dict[str, Figure]] = {}
        for each in figures:
            rows.setdefault((each.name, each.peer_name), {})[each.core] = each
        table = Table(title=suite, title_justify="left")
        table.add_column("what")
        for heading in (*cores, "peer's", *("ratio" if len(cores) == 1 else f"ratio, {core}" for core in cores)):
            table.add_column(heading, justify="right")
        for heading in ("unit", "peer", "the bar"):
            table.add_column(heading)
        for (name, peer_name), row in rows.items():
            first = next(iter(row.values()))
            table.add_row(
                name,
                *(_number(row[core].ours) if core in row else "" for core in cores),
                _number(first.peer),
                *(_times(row[core].ratio) if core in row else "" for core in cores),
                first.unit,
                peer_name,
                first.target,
            )
        console.print(table)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


def _times(ratio: float | None) -> str:
    """With as many digits as it takes to compare it with a bar."""
    return "" if ratio is None else f"{ratio:,.1f} x" if ratio >= 10 else f"{ratio:.2f} x" if ratio >= 0.1 else f"{ratio:.2g} x"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"one or more of {', '.join(SUITES)}; all if none is named")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--smoke", action="store_true", help="tiny repetitions: see that it runs, not what it costs")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.suites) - set(SUITES):
        parser.error(f"no suite is called {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")

    try:
        found = measured(chosen.suites or SUITES, SMOKE if chosen.smoke else FULL)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    if chosen.json:
        print(as_json(found))
    else:
        console = Console()
        show(found, console if console.is_terminal else Console(width=160))
    return 0


if __name__ == "__main__":
    sys.exit(main())
