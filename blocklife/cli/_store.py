"""`blocklife store`: stores below the host tier, and whether they keep what the protocol promises."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from blocklife.cli._common import INTERRUPTED, OK, WRONG, Occasional, Parser, on_terminal, print_help, stopping
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from blocklife.testing.stores._suite import StoreCheck

_EXAMPLES = """\
examples:
  blocklife store check fs:/data/kv-check:48M       every check, against files in a folder of their own
  blocklife store check my_package.module:factory   against a store of your own
  blocklife store check fs:/data/kv --only any_key  one of them; may be given more than once
  blocklife store check --list                      what is checked
exit status: 0 no check fails, 1 some fail, 2 there is no such store or check, 130 after Ctrl-C
What a check puts it takes away again, where the store can. Checks of its room need a store of 2 MiB to 64 MiB. A bound counts
for all that is in a folder: with BYTES the folder must be empty, so that nothing that is in use is evicted.
"""


def add_options(parser: Parser) -> None:
    """Its commands."""
    parser.description = "Stores that keep content below the host tier."
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    parser.set_defaults(run=lambda _: print_help(parser))
    check = actions.add_parser(
        "check",
        help="run the conformance suite against a store",
        description="Check that a store does what blocklife.stores.ContentStore promises. Each check passes, fails or is "
        "skipped, and says why.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    said = "the store: fs:DIR, fs:DIR:BYTES, mooncake:HOST:PORT or package.module:factory"
    check.add_argument("address", nargs="?", metavar="ADDRESS", help=said)
    check.add_argument("--only", action="append", default=[], metavar="NAME", help="make this check only")
    check.add_argument("--list", action="store_true", help="list the checks")
    check.add_argument("--json", action="store_true", help="print one JSON line for each check")
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    if args.list:
        return _list(as_json=args.json)
    if args.address is None:
        raise MisuseError("store check: names no store (give fs:DIR, mooncake:HOST:PORT or package.module:factory)")
    from blocklife.testing.stores._suite import StoreCheckVerdict, check_address, store_checks

    verdicts: list[StoreCheckVerdict] = []
    interrupted = False
    answers = sys.stdout
    # what a store prints, now or in a thread of its own, is no line of the report
    with contextlib.redirect_stdout(sys.stderr), stopping() as stop, on_terminal(_columns) as bar:
        found = check_address(args.address, names=args.only)
        task = None if bar is None else bar.add_task("", total=len(args.only) or len(store_checks()))
        line = Occasional("store check")
        for each in found:
            verdicts.append(each.verdict)
            _print(each, answers, bar, as_json=args.json)
            if bar is None:
                line(lambda: f"{len(verdicts)} checks")
            elif task is not None:
                bar.update(task, advance=1)
            if interrupted := stop():
                break
    failed = verdicts.count(StoreCheckVerdict.FAILED)
    if not args.json:
        passed, skipped = verdicts.count(StoreCheckVerdict.PASSED), verdicts.count(StoreCheckVerdict.SKIPPED)
        print(f"{len(verdicts)} checks of {args.address}: {passed} passed, {failed} failed, {skipped} skipped")
    if interrupted:
        return INTERRUPTED
    return WRONG if failed else OK


def _print(found: StoreCheck, answers: TextIO, bar: Progress | None, *, as_json: bool) -> None:
    record = {"name": found.name, "verdict": found.verdict.name.lower(), "says": found.says}
    line = json.dumps(record) if as_json else str(found)
    if bar is not None and answers.isatty():
        bar.console.print(line, markup=False, highlight=False, soft_wrap=True)  # above the bar, which is drawn again
    else:
        print(line, file=answers, flush=True)


def _list(*, as_json: bool) -> int:
    from blocklife.testing.stores._suite import store_checks
    from blocklife.testing.stores._trial import CHECKS

    for each in map(CHECKS.__getitem__, store_checks()):
        print(json.dumps({"name": each.name, "says": each.says}) if as_json else f"{each.name:<34}{each.says}")
    return OK


def _columns() -> Sequence[str | ProgressColumn]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    return [TextColumn("store check"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
