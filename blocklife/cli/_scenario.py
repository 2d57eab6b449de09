"""`blocklife scenario`: cases that are written down step by step, run against an engine."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from blocklife.cli._common import INTERRUPTED, OK, WRONG, Parser, file, on_terminal, print_help, stopping
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from blocklife.testing.scenarios._running import ScenarioVerdict

FOLDER = "specs/scenarios"

_EXAMPLES = """\
examples:
  blocklife scenario run specs/scenarios            every file, every variant
  blocklife scenario run counterexample.toml -v     each step with its transitions
  blocklife scenario run FILE --driver module:Class against another engine
  blocklife scenario run FILE --json                one line for each run, for machines
  blocklife scenario list                           what there is
exit status: 0 nothing failed, 1 something did, 2 a file is malformed or a driver unusable, 130 after Ctrl-C
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.description = "Scenarios: one case in one TOML file."
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    parser.set_defaults(run=lambda _: print_help(parser))
    run = actions.add_parser(
        "run",
        help="run every variant of scenario files",
        description="Run scenarios. A run holds, fails with one sentence, or is not applicable: the engine cannot do what the "
        "case is about.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("files", nargs="+", type=file, metavar="FILE", help="scenario files, and folders of them")
    run.add_argument("--driver", metavar="MODULE:CLASS", help="the engine to run them against (our own)")
    run.add_argument("-v", "--verbose", action="store_true", help="print each step with its transitions")
    run.add_argument("--json", action="store_true", help="print one JSON line for each run")
    run.set_defaults(run=_run)
    listed = actions.add_parser("list", help="one line for each scenario", description="What each scenario is about.")
    listed.add_argument("files", nargs="*", type=file, metavar="FILE", help=f"files, and folders of them ({FOLDER})")
    listed.set_defaults(run=_list)


def _run(args: argparse.Namespace) -> int:
    from blocklife.testing.scenarios._running import DriverError

    try:
        return _run_all(args)
    except DriverError as problem:
        if not args.verbose:
            raise MisuseError(f"{problem} (-v shows the traceback)") from problem
        if sys.stderr is not None:
            traceback.print_exception(problem.__cause__)
        raise


def _run_all(args: argparse.Namespace) -> int:
    from blocklife.testing.scenarios._running import Outcome, driver_named, run_files, told

    verdicts: list[ScenarioVerdict] = []
    interrupted = False

    def runs() -> Iterator[ScenarioVerdict]:
        nonlocal interrupted
        found = run_files(args.files, log=args.verbose) if driver is None else run_files(args.files, driver, log=args.verbose)
        with stopping() as stop, on_terminal(_columns) as bar:
            task = None if bar is None else bar.add_task("", total=None, runs=0)
            for each in found:
                verdicts.append(each)
                if bar is not None and task is not None:
                    bar.update(task, runs=len(verdicts))
                yield each
                if interrupted := stop():
                    return

    driver = None if args.driver is None else driver_named(args.driver)
    lines = list(told(runs(), log=args.verbose, as_json=args.json))
    for line in lines:
        print(line)
    if interrupted:
        return INTERRUPTED
    return WRONG if any(each.outcome is Outcome.FAILED for each in verdicts) else OK


def _columns() -> list[str | ProgressColumn]:
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    return [TextColumn("scenario"), SpinnerColumn(), TextColumn("{task.fields[runs]} runs"), TimeElapsedColumn()]


def _list(args: argparse.Namespace) -> int:
    from blocklife.testing.scenarios._running import list_files

    for line in list_files(args.files or [FOLDER]):
        print(line)
    return OK
