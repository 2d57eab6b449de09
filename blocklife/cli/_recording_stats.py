"""`blocklife recording stats`: what a recorded run amounts to, for people and for machines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from blocklife.cli._common import OK, Parser, file, put_out, reading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from blocklife.recording._statistics import MachineStatistics, RunStatistics, Stay

_EXAMPLES = """\
examples:
  blocklife recording stats run.jsonl                    all four machines
  blocklife recording stats run.jsonl --machine block    one of them
  blocklife recording stats run.jsonl --json | jq .machines.block.never
"""
_MACHINES = ("block", "slot", "job", "request")
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 16
"""So many characters show how a number changed over a run."""
_PIPE_WIDTH = 140
"""How wide tables may be where no terminal says it."""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Statistics of a recording: how often each row was taken, which never were, how many places were in each "
        "state over the plans, how long they stayed there, and what was refused. Times need a recording that has them "
        "(blocklife replay --record FILE --times).",
        _EXAMPLES,
    )
    parser.add_argument("file", type=file, metavar="FILE", help="the recording; - is standard input")
    parser.add_argument("--machine", choices=_MACHINES, help="only this machine")
    parser.add_argument("--json", action="store_true", help="print one JSON report instead of tables")
    parser.set_defaults(run=_stats)


def _stats(args: argparse.Namespace) -> int:
    from blocklife.recording._statistics import count_file

    with reading() as progress:
        run = count_file(args.file, progress)
    chosen = [args.machine] if args.machine else list(run.machines)
    if args.json:
        record = run.record()
        record["machines"] = {name: run.machine(name).record() for name in chosen}
        put_out(json.dumps(record) + "\n")
    else:
        _print(run, [run.machine(name) for name in chosen])
    return OK


# --- for people --------------------------------------------------------------------------------------------------------


def _print(run: RunStatistics, machines: list[MachineStatistics]) -> None:
    from rich.console import Console

    from blocklife.recording._statistics import spell_time

    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.begin_capture()  # so that we meet a reader that has gone, or a full disk, and not rich
    took = "" if run.seconds is None else f" in {spell_time(run.seconds)}"
    told = f"{run.name}: {run.steps:,} steps in {run.commits:,} commits, {run.last_plan:,} plans{took}"
    console.print(told, markup=False)
    for machine in machines:
        console.print(f"\n{machine.name}", style="bold")
        console.print(_state_table(machine, timed=run.seconds is not None))
        console.print(_row_table(machine))
        for (event, state), times in machine.refused.items():
            console.print(f"refused: {event} while {state}, {_times(times)}", style="red")
    if not run.complete:
        console.print("\nnote: the recording does not say that it is whole")
    if run.astray:
        console.print(f"\nnote: {run.astray:,} steps do not go on from where their place stood (see blocklife recording check)")
    put_out("".join(f"{line.rstrip()}\n" for line in console.end_capture().splitlines()))


def _state_table(machine: MachineStatistics, *, timed: bool) -> Table:
    from rich.table import Table

    from blocklife.recording._statistics import spell_time

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("state", no_wrap=True)
    for title in ("visits", "open", "share", "median plans", "p99", *(("median time", "p99") if timed else ())):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("over plans", no_wrap=True)
    for at, (state, dwell) in enumerate(machine.dwell.items()):
        cells = [
            f"{dwell.visits:,}",
            f"{dwell.open:,}",
            f"{machine.shares[state]:.1%}",
            *_stay(dwell.plans, lambda x: f"{x:,.0f}"),
        ]
        if timed:
            cells += _stay(dwell.seconds, spell_time)
        table.add_row(state, *cells, _spark(machine.population[:, at]))
    return table


def _stay(stay: Stay | None, spell: Callable[[float], str]) -> list[str]:
    return ["", ""] if stay is None else [spell(stay.median), spell(stay.p99)]


def _row_table(machine: MachineStatistics) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("row", no_wrap=True)
    table.add_column("taken", justify="right")
    for row in machine.table.rows:
        times = machine.taken[row.index]
        table.add_row(_plain(str(row)), f"{times:,}" if times else "never", style=None if times else "dim")
    return table


def _plain(text: str) -> str:
    """What rich must not take for its own markup: guards stand in brackets."""
    from rich.markup import escape

    return escape(text)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _spark(counts: NDArray[np.int64]) -> str:
    """How a count went, each character the most of its part of the run."""
    import numpy as np

    highest = int(counts.max())
    if not highest:
        return ""
    parts = np.array_split(counts, min(_WIDTH, len(counts)))
    return "".join(_BARS[-(-int(part.max()) * (len(_BARS) - 1) // highest)] for part in parts)
