"""The command line: `replay`, `check`, `scenario`, `recording`, `workload`, `draw`, `spec` and `doctor`, a module for each.

Exit status: 0 all is well, 1 the run found something wrong (or a page is stale), 2 bad input or options, 3 a search hit a bound
before it was through, 130 after Ctrl-C. Errors go to standard error, in one line.

The name of a command and its line in the help stand in a table of the parser above it, `COMMANDS`; all else is in its module,
which is imported when the command is called. So a command costs what it uses, and help costs nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from blocklife import __version__
from blocklife.cli._common import BAD_INPUT, INTERRUPTED, OK, Parser, add_commands, complain
from blocklife.errors import MisuseError

COMMANDS: Mapping[str, str] = {
    "replay": "replay a workload through explicit block lifecycles, and verify every byte",
    "check": "explore every state of a small world of the real scheduler and a device that never asks it",
    "scenario": "run cases that are written down step by step",
    "recording": "check, tell, count and draw recorded runs",
    "workload": "generate request workloads",
    "draw": "draw lifecycles, as pictures, pages or tables",
    "spec": "check or write the generated parts of specs/; print a model for SPIN",
    "doctor": "say what is installed, what of it works here, and what to install for more",
}
"""Each command with the line that the help has for it."""

_STATUS = """\
exit status: 0 all is well, 1 something is wrong or stale, 2 bad input or options, 3 a search hit a bound, 130 after Ctrl-C
What is refused is told in one line on standard error; then there is no report, not even with --json.
"""


class _Version(argparse.Action):
    """`--version`: it imports the report on how the core was built only when the option is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> NoReturn:
        """The option is there."""
        from blocklife.cli._built import examine

        print(f"blocklife {__version__} (core {examine()})")
        parser.exit()


def _parser() -> Parser:
    parser = Parser(prog="blocklife")
    parser.describe("Typed state machines for the life of every KV-cache block.", _STATUS)
    parser.add_argument("--version", action=_Version, nargs=0, help="say which version this is, and how its core runs")
    add_commands(parser, COMMANDS, "blocklife.cli._")
    return parser


def _check_stdout() -> None:
    """Refuse to begin without standard output: what is printed would be lost, and the next file opened would take its place."""
    if sys.stdout is None:
        raise MisuseError("standard output is closed (send it to a file, or to /dev/null)")


def _leave_stdout() -> None:
    """Keep the interpreter from failing at its exit with what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _spelling_out() -> Iterator[None]:
    """Spell out what standard output cannot encode (the names of files, titles), as standard error does by itself."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        yield
        return
    before = stdout.errors
    stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        if not stdout.closed:
            stdout.reconfigure(errors=before)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    with _spelling_out():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    try:
        _check_stdout()
        args = _parser().parse_args(argv)
        status: int = args.run(args)
        print(end="", flush=True)
    except MisuseError as problem:
        complain(str(problem))
        return BAD_INPUT
    except BrokenPipeError:  # the reader has gone (head, say): nobody is left to be told
        _leave_stdout()
        return OK
    except OSError as problem:
        _leave_stdout()
        complain(f"standard output: {problem.strerror or problem}")
        return BAD_INPUT
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return status
