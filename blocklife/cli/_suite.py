"""`blocklife-suite`: the scenarios as a command of their own, for the CI of an engine; `blocklife scenario` is the same.

The distribution `blocklife-suite` has this command and what it imports, and no engine of ours: a driver must be named.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife import __version__
from blocklife.cli import _scenario, run_with
from blocklife.cli._common import Parser


def make_parser() -> Parser:
    """The parser of the command line."""
    parser = Parser(prog="blocklife-suite")
    _scenario.add_options(parser, ours=False)
    parser.add_argument("--version", action="version", version=f"blocklife-suite {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    return run_with(make_parser, argv)
