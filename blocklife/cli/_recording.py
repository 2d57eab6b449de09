"""`blocklife recording`: what a run wrote down. Each thing that is done with it is a command, in a module of its own."""

from __future__ import annotations

from collections.abc import Mapping

from blocklife.cli._common import Parser, add_commands

COMMANDS: Mapping[str, str] = {
    "check": "is every transition of a recording legal?",
    "show": "what happened to one block, slot, job or request, and because of what?",
    "stats": "how often was each row taken, and how long did places stay in each state?",
    "view": "one page that shows the run, for a browser",
    "perfetto": "write a recording as a trace for the Perfetto UI",
}
"""Each command with the line that the help has for it."""


def add_options(parser: Parser) -> None:
    """Its commands."""
    parser.description = "Recordings: JSON lines of a run."
    add_commands(parser, COMMANDS, "blocklife.cli._recording_")
