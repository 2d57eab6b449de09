"""The command line: `replay`, `check`, `scenario`, `recording`, `workload`, `draw`, `spec` and `doctor`, a module for each.

Exit status: 0 all is well, 1 the run found something wrong (or a page is stale), 2 bad input or options, 3 a search hit a bound
before it was through, 130 after Ctrl-C. Errors go to standard error, in one line.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence

from blocklife import __version__
from blocklife.cli.check import add_check
from blocklife.cli.common import BAD_INPUT, INTERRUPTED, OK, Parser, complain, print_help
from blocklife.cli.doctor import add_doctor
from blocklife.cli.draw import add_draw
from blocklife.cli.recording import add_recording
from blocklife.cli.replay import add_replay
from blocklife.cli.scenario import add_scenario
from blocklife.cli.spec import add_spec
from blocklife.cli.workload import add_workload
from blocklife.errors import MisuseError

_STATUS = """\
exit status: 0 all is well, 1 something is wrong or stale, 2 bad input or options, 3 a search hit a bound, 130 after Ctrl-C
What is refused is told in one line on standard error; then there is no report, not even with --json.
"""


def _parser() -> Parser:
    parser = Parser(
        prog="blocklife",
        description="Typed state machines for the life of every KV-cache block.",
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"blocklife {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    parser.set_defaults(run=lambda _: print_help(parser))
    add_replay(commands)
    add_check(commands)
    add_scenario(commands)
    add_recording(commands)
    add_workload(commands)
    add_draw(commands)
    add_spec(commands)
    add_doctor(commands)
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
