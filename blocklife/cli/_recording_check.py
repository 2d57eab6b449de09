"""`blocklife recording check`: what a run wrote down, checked line by line."""

from __future__ import annotations

import argparse
import json

import attrs

from blocklife.cli._common import Parser, complain, file, reading

_EXAMPLES = """\
examples:
  blocklife recording check run.jsonl               is every line of it legal?
  blocklife recording check run.jsonl --whole       it was recorded to its end, though it does not say so
  blocklife recording check - --json < run.jsonl    from standard input; one report for machines
exit status: 0 nothing is wrong, 1 something is illegal, 2 it cannot be read, 130 after Ctrl-C
Where it is damaged, what stands before is told as ever, and the line and the reason on standard error.
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Read a recording and ask of every line whether it was legal: states, epochs, holders and pins are counted "
        "again from the lines. The first illegal one is told with what led to it. blocklife replay can write one.",
        _EXAMPLES,
    )
    parser.add_argument("file", type=file, metavar="FILE", help="the recording; - is standard input")
    parser.add_argument("--whole", action="store_true", help="the run was recorded to its end; nothing may be left over there")
    parser.add_argument("--json", action="store_true", help="print one JSON report")
    parser.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    from blocklife.recording._checking import check_file

    with reading("transitions") as progress:
        verdict = check_file(args.file, whole=args.whole, progress=progress)
    if args.json:
        print(json.dumps({**attrs.asdict(verdict), "clean": verdict.clean, "status": verdict.status}))
    else:
        print(verdict.told(damage=False))
    if verdict.damage is not None:
        complain(f"{verdict.name}: {verdict.damage}")
    return verdict.status
