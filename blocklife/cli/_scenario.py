"""`blocklife scenario`: run scenarios, test cases written step by step, against an engine."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from blocklife.cli._common import (
    INCOMPLETE,
    INTERRUPTED,
    OK,
    WRONG,
    Parser,
    file,
    put_out,
    source,
    stopping,
    telling,
    wrapped,
)
from blocklife.errors import MisuseError
from blocklife.testing.scenarios._shipped import meant, near

if TYPE_CHECKING:
    from blocklife.testing.scenarios._running import ScenarioVerdict

OTHER_POLICY = INCOMPLETE
"""The status where an engine decides otherwise, and nothing worse was seen."""

_REMEDY = "name a scenario file, or a folder of them"
_EXAMPLES = """\
examples:
  blocklife scenario run                            all built-in scenarios, every variant
  blocklife scenario run A01 S2 -v                  some of them, each step with its transitions
  blocklife scenario run counterexample.toml my/    files and folders of your own
  blocklife scenario run --driver module:Class      against another engine
  blocklife scenario run --json                     one JSON line for each run
exit status: 0 nothing unsafe, and no other policy; 1 something is unsafe or fails; 2 a file is malformed or a driver unusable;
3 an engine has another policy than a scenario expects, and nothing worse; 130 after Ctrl-C
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    command = parser.commands("Scenarios: one case in one TOML file.")
    run, listed = command("run", "run every variant of scenario files"), command("list", "list scenarios, and what each needs")
    shown = command("show", "print a scenario file")
    run.describe(
        "Run scenarios. A run holds, is UNSAFE, shows another policy than expected, fails (the engine raises), or is not "
        "applicable (the engine lacks what the scenario tests).",
        _EXAMPLES,
    )
    listed.describe("List what each scenario is about, whether it tests safety or a policy, and which methods it needs.")
    shown.describe("Print scenario files as they are.")
    said = "files, folders, or names of built-in scenarios, such as A01, or vllm, sglang or lmcache for a folder"
    for each in (run, listed):
        each.add_argument("files", nargs="*", type=_scenario, metavar="FILE", help=f"{said} (default: all but these)")
    shown.add_argument("files", nargs="+", type=_scenario, metavar="FILE", help="files, or names of built-in scenarios")
    run.add_argument("--driver", metavar="MODULE:CLASS", help="the engine to run them against (default: our own)")
    run.add_argument("-v", "--verbose", action="store_true", help="print each step with its transitions")
    run.add_argument("--json", action="store_true", help="print one JSON line for each run")
    how = listed.add_mutually_exclusive_group()
    how.add_argument(
        "--methods", action="store_true", help="list the methods of a driver, each with the scenarios that need it"
    )
    how.add_argument("--json", action="store_true", help="print one JSON line for each scenario")
    run.set_defaults(run=_run)
    listed.set_defaults(run=_list)
    shown.set_defaults(run=_show)


def _scenario(text: str) -> str:
    """A file, a folder or the name of a built-in scenario."""
    if os.path.lexists(meant(file(text))):
        return text
    said = f"near are {', '.join(found)}" if (found := near(text)) else "or name a scenario of the package"
    return source(text, f"{_REMEDY}; {said}: see blocklife scenario list")


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
    from blocklife.testing.scenarios._cases import planned
    from blocklife.testing.scenarios._our_driver import OurDriver
    from blocklife.testing.scenarios._running import driver_named, run_scenario
    from blocklife.testing.scenarios._telling import told

    verdicts: list[ScenarioVerdict] = []
    interrupted = False
    driver = OurDriver if args.driver is None else driver_named(args.driver)
    plan = planned(args.files)

    def runs() -> Iterator[ScenarioVerdict]:
        nonlocal interrupted
        with stopping() as stop, telling("scenario") as tell:
            for scenario, variant in plan:
                verdicts.append(run_scenario(scenario, driver, variant, log=args.verbose))
                tell(lambda: f"{len(verdicts)} of {len(plan)} runs", len(verdicts), len(plan))
                yield verdicts[-1]
                if interrupted := stop():
                    return

    lines = list(told(runs(), log=args.verbose, as_json=args.json))
    for line in lines:
        print(line if args.json else wrapped(line))
    if interrupted:
        return INTERRUPTED
    return _status(verdicts)


def _status(verdicts: Sequence[ScenarioVerdict]) -> int:
    """Another policy is no fault of memory, and has a status of its own."""
    from blocklife.testing.scenarios._running import Outcome

    found = {each.outcome for each in verdicts}
    if found & {Outcome.UNSAFE, Outcome.FAILED}:
        return WRONG
    return OTHER_POLICY if Outcome.OTHER_POLICY in found else OK


def _list(args: argparse.Namespace) -> int:
    from blocklife.testing.scenarios._telling import list_files, list_methods, list_records

    for line in (list_methods if args.methods else list_records if args.json else list_files)(args.files):
        print(line if args.json else wrapped(line, 8))
    return OK


def _show(args: argparse.Namespace) -> int:
    from blocklife.files import read_text
    from blocklife.testing.scenarios._cases import files_of

    for path in files_of(args.files):
        put_out(read_text(path, _REMEDY))
    return OK
