"""`blocklife spec`: the generated parts of specs/."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from blocklife.cli._common import OK, WRONG, Parser
from blocklife.errors import MisuseError

_SPEC_EXAMPLES = """\
examples:
  blocklife spec --check            is every generated part of specs/ up to date?
  blocklife spec --write            write the stale ones
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "The tables and drawings in specs/ are generated from the machines; Python is the source.",
        _SPEC_EXAMPLES,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="name stale parts, and exit 1 if there are any")
    what.add_argument("--write", action="store_true", help="rewrite stale parts")
    parser.add_argument("--root", default="specs", metavar="DIR", help="(default specs)")
    parser.set_defaults(run=_spec)


def _spec(args: argparse.Namespace) -> int:
    from blocklife.drawing._spec import stale, write

    root = Path(args.root)
    if not os.path.isdir(root):
        raise MisuseError(
            f"{root}: no such folder (the pages are in a checkout of blocklife: go there, or name it with --root)"
        )
    wanted, whole = parts(), tables()
    if args.write:
        for name in write(root, wanted, whole):
            print(f"wrote {name}")
    problems = stale(root, wanted, whole)
    for problem in problems:
        print(problem, file=sys.stderr)
    return WRONG if problems else OK


def parts() -> dict[str, str]:
    """Every generated part of the pages, by name."""
    from blocklife.drawing._spec import generated
    from blocklife.engines.vllm.connector._families import metrics_table
    from blocklife.knobs import knobs_table
    from blocklife.offload import BelowPolicies, Policies
    from blocklife.offload.replacement import replacements_table
    from blocklife.testing.scenarios._telling import groups_table
    from blocklife.testing.worlds._format import faults_table
    from blocklife.watch._metrics import watch_metrics_table

    lines = {
        "metrics.connector": metrics_table(),
        "metrics.watch": watch_metrics_table(),
        "policies": knobs_table(Policies),
        "policies.below": knobs_table(BelowPolicies),
        "replacements": replacements_table(),
        "suite.groups": groups_table(),
        "worlds.faults": faults_table(),
    }
    return generated({name: "".join(f"{line}\n" for line in made) for name, made in lines.items()})


def tables() -> dict[str, str]:
    """Every generated table that is a file of its own, by its path below the pages."""
    from blocklife.testing.scenarios._telling import methods_as_csv, words_as_csv

    return {"scenarios/methods.csv": methods_as_csv(), "scenarios/words.csv": words_as_csv()}
