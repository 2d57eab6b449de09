"""`blocklife recording`: recorded runs. Each command has a module of its own."""

from __future__ import annotations

from collections.abc import Mapping

from blocklife.cli._common import Parser, add_commands

COMMANDS: Mapping[str, str] = {
    "check": "check that every transition of a recording is legal",
    "show": "show what happened to one block, slot, job or request, and why",
    "stats": "count how often each row was taken, and the time in each state",
    "view": "write a page that shows the run in a browser",
    "perfetto": "write a recording as a trace for the Perfetto UI",
}
"""Each command with its line in the help."""


def add_options(parser: Parser) -> None:
    """Its commands."""
    parser.description = "Recordings: JSON lines of a run."
    add_commands(parser, COMMANDS, "blocklife.cli._recording_")
