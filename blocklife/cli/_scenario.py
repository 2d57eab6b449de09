"""`blocklife scenario`: run scenarios, test cases written step by step, against an engine."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from blocklife.cli._common import (
    INCOMPLETE,
    INTERRUPTED,
    OK,
    WRONG,
    Parser,
    check_writable,
    complain,
    file,
    put_out,
    source,
    stopping,
    telling,
    wrapped,
    write_whole,
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
  {prog} run                            all built-in scenarios, every variant
  {prog} run A01 S2 -v                  some of them, each step with its transitions
  {prog} run --group a-b-a              those of a group
  {prog} run counterexample.toml my/    files and folders of your own
  {prog} run --driver module:Class      against another engine
  {prog} run --driver module:Class --expect known.toml --junit runs.xml --badge safety.svg
                                                    in the CI of an engine
exit status: 0 nothing unsafe, and no other policy; 1 something is unsafe or fails, or does not fail as expected; 2 a file is
malformed or a driver unusable; 3 an engine has another policy than a scenario expects, and nothing worse; 130 after Ctrl-C
"""


def add_options(parser: Parser, *, ours: bool = True) -> None:
    """Its options. *ours*: whether there is an engine of our own to run them against, where no driver is named."""
    command = parser.commands("Scenarios: one case in one TOML file.")
    run, listed = command("run", "run every variant of scenario files"), command("list", "list scenarios, and what each needs")
    shown = command("show", "print a scenario file")
    run.describe(
        "Run scenarios. A run holds, is UNSAFE, shows another policy than expected, fails (the engine raises), or is not "
        "applicable (the engine lacks what the scenario tests).",
        _EXAMPLES.format(prog=parser.prog),
    )
    listed.describe("List what each scenario is about, whether it tests safety or a policy, and which methods it needs.")
    shown.describe("Print scenario files as they are.")
    said = "files, folders, or names of built-in scenarios, such as A01, or vllm, sglang or lmcache for a folder"
    for each in (run, listed):
        each.add_argument("files", nargs="*", type=_scenario, metavar="FILE", help=f"{said} (default: all but these)")
        each.add_argument("--group", action="append", default=[], metavar="NAME", help="only those of a group; may be repeated")
    shown.add_argument("files", nargs="+", type=_scenario, metavar="FILE", help="files, or names of built-in scenarios")
    default = " (default: our own)" if ours else ""
    run.add_argument("--driver", required=not ours, metavar="MODULE:CLASS", help=f"the engine to run them against{default}")
    run.add_argument(
        "--expect", type=source, metavar="FILE", help="a TOML file of failures that are known, each with its thread"
    )
    run.add_argument("--junit", type=file, metavar="FILE", help="write the runs as JUnit's XML, a case for each scenario")
    run.add_argument("--badge", type=file, metavar="FILE", help="write how many scenarios hold, as a small SVG")
    run.add_argument("-v", "--verbose", action="store_true", help="print each step with its transitions")
    run.add_argument("--json", action="store_true", help="print one JSON line for each run")
    how = listed.add_mutually_exclusive_group()
    how.add_argument(
        "--methods", action="store_true", help="list the methods of a driver, each with the scenarios that need it"
    )
    how.add_argument("--groups", action="store_true", help="list the groups, each with its scenarios")
    how.add_argument("--json", action="store_true", help="print one JSON line for each scenario")
    run.set_defaults(run=_run)
    listed.set_defaults(run=_list)
    shown.set_defaults(run=_show)


def _scenario(text: str) -> str:
    """A file, a folder or the name of a built-in scenario."""
    if os.path.lexists(meant(file(text))):
        return text
    said = f"near are {', '.join(found)}" if (found := near(text)) else "or name a scenario of the package"
    return source(text, f"{_REMEDY}; {said}: see the command list")


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
    from blocklife.testing.scenarios._cases import chosen, names_of_all, planned
    from blocklife.testing.scenarios._known import KnownFailures, read_known
    from blocklife.testing.scenarios._reports import JUnitRun, badge, junit
    from blocklife.testing.scenarios._running import driver_named, run_scenario
    from blocklife.testing.scenarios._telling import told

    verdicts: list[ScenarioVerdict] = []
    seconds: dict[str, float] = {}
    interrupted = False
    driver = None if args.driver is None else driver_named(args.driver)
    scenarios = chosen(args.files, args.group)
    plan = planned(scenarios)
    known = KnownFailures("") if args.expect is None else read_known(args.expect, names_of_all(scenarios))
    started = datetime.now(UTC)
    for path in filter(None, (args.junit, args.badge)):
        check_writable(path)

    def runs() -> Iterator[ScenarioVerdict]:
        nonlocal interrupted
        with stopping() as stop, telling("scenario") as tell:
            for scenario, variant in plan:
                since = time.perf_counter()
                found = run_scenario(scenario, driver, variant, log=args.verbose or args.junit is not None)
                verdicts.append(known.marked(found))
                seconds[scenario.id] = seconds.get(scenario.id, 0.0) + time.perf_counter() - since
                tell(lambda: f"{len(verdicts)} of {len(plan)} runs", len(verdicts), len(plan))
                yield verdicts[-1]
                if interrupted := stop():
                    return

    lines = list(told(runs(), log=args.verbose, as_json=args.json))
    for line in lines:
        print(line if args.json else wrapped(line))
    if interrupted:
        return INTERRUPTED
    outdated = known.outdated(verdicts)
    for said in outdated.values():
        complain(said)
    if args.junit is not None:
        write_whole(args.junit, junit(verdicts, JUnitRun(started, seconds, outdated)))
    if args.badge is not None:
        write_whole(args.badge, badge(verdicts))
    return WRONG if outdated else _status(verdicts)


def _status(verdicts: Sequence[ScenarioVerdict]) -> int:
    """Another policy is no fault of memory, and has a status of its own; what is known to fail counts for nothing."""
    from blocklife.testing.scenarios._running import Outcome

    found = {each.outcome for each in verdicts if not each.expected}
    if found & {Outcome.UNSAFE, Outcome.FAILED}:
        return WRONG
    return OTHER_POLICY if Outcome.OTHER_POLICY in found else OK


def _list(args: argparse.Namespace) -> int:
    from blocklife.testing.scenarios._cases import chosen
    from blocklife.testing.scenarios._telling import list_files, list_groups, list_methods, list_records

    how = list_methods if args.methods else list_groups if args.groups else list_records if args.json else list_files
    for line in how(chosen(args.files, args.group)):
        print(line if args.json else wrapped(line, 8))
    return OK


def _show(args: argparse.Namespace) -> int:
    from blocklife.files import read_text
    from blocklife.testing.scenarios._cases import files_of

    for path in files_of(args.files):
        put_out(read_text(path, _REMEDY))
    return OK
