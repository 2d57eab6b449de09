"""`blocklife recording check`: check a recording line by line."""

from __future__ import annotations

import argparse
import json

import attrs

from blocklife.cli._common import Parser, complain, file, reading

_EXAMPLES = """\
examples:
  blocklife recording check run.jsonl               is every line of it legal?
  blocklife recording check run.jsonl --whole       treat it as complete, though it has no end line
  blocklife recording check - --json < run.jsonl    from standard input; one JSON report
exit status: 0 nothing is wrong, 1 something is illegal, 2 it cannot be read, 130 after Ctrl-C
For a damaged file, the lines before the damage are reported as usual, and the damage on standard error.
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Read a recording and check that every line was legal: states, epochs, holders and pins are recomputed from "
        "the lines. The first illegal line is reported with its history. blocklife replay can write a recording.",
        _EXAMPLES,
    )
    parser.add_argument("file", type=file, metavar="FILE", help="the recording; - is standard input")
    parser.add_argument("--whole", action="store_true", help="the run was recorded to its end, where nothing may be left over")
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
