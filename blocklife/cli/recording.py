"""`blocklife recording`: what a run wrote down, checked line by line; what else is done with it has modules of its own."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import attrs

from blocklife.cli.common import Commands, Parser, complain, file, print_help, reading
from blocklife.cli.recording_perfetto import add_perfetto
from blocklife.cli.recording_show import add_show
from blocklife.cli.recording_stats import add_stats
from blocklife.cli.recording_view import add_view

if TYPE_CHECKING:
    pass

_EXAMPLES = """\
examples:
  blocklife recording check run.jsonl               is every line of it legal?
  blocklife recording check run.jsonl --whole       it was recorded to its end, though it does not say so
  blocklife recording check - --json < run.jsonl    from standard input; one report for machines
exit status: 0 nothing is wrong, 1 something is illegal, 2 it cannot be read, 130 after Ctrl-C
Where it is damaged, what stands before is told as ever, and the line and the reason on standard error.
"""


def add_recording(commands: Commands) -> None:
    """Its options."""
    said = "check, tell, count and draw recorded runs"
    parser = commands.add_parser("recording", help=said, description="Recordings: JSON lines of a run.")
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    parser.set_defaults(run=lambda _: print_help(parser))
    check = actions.add_parser(
        "check",
        help="is every transition of a recording legal?",
        description="Read a recording and ask of every line whether it was legal: states, epochs, holders and pins are counted "
        "again from the lines. The first illegal one is told with what led to it. blocklife replay can write one.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("file", type=file, metavar="FILE", help="the recording; - is standard input")
    check.add_argument("--whole", action="store_true", help="the run was recorded to its end; nothing may be left over there")
    check.add_argument("--json", action="store_true", help="print one JSON report")
    check.set_defaults(run=_check)
    add_show(actions)
    add_stats(actions)
    add_view(actions)
    add_perfetto(actions)


def _check(args: argparse.Namespace) -> int:
    from blocklife.recording.checking import check_file

    with reading("transitions") as progress:
        verdict = check_file(args.file, whole=args.whole, progress=progress)
    if args.json:
        print(json.dumps({**attrs.asdict(verdict), "clean": verdict.clean, "status": verdict.status}))
    else:
        print(verdict.told(damage=False))
    if verdict.damage is not None:
        complain(f"{verdict.name}: {verdict.damage}")
    return verdict.status
