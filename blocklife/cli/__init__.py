"""The command line: one module for each command.

Exit status: 0 all is well, 1 the run found something wrong (or a page is stale), 2 bad input or options, 3 a search hit a bound
before it was finished, 130 after Ctrl-C. Errors go to standard error, in one line.

The name and help line of a command are in the table `COMMANDS`; everything else is in its module, which is imported when the
command is called. So a command imports only what it uses, and the help imports none of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from blocklife import __version__
from blocklife.cli._common import BAD_INPUT, INTERRUPTED, OK, Parser, add_commands, complain
from blocklife.errors import MisuseError

COMMANDS: Mapping[str, str] = {
    "replay": "replay a workload through explicit block lifecycles, and verify every byte",
    "check": "explore every state of a small world: the real scheduler and an independent device",
    "scenario": "run scenarios: test cases written step by step",
    "recording": "check, show, summarize and draw recorded runs",
    "workload": "generate request workloads",
    "draw": "draw lifecycles as pictures, pages or tables",
    "spec": "check or write the generated parts of specs/; print a model for SPIN",
    "store": "check that a store for content below the host tier keeps its promises",
    "doctor": "show what is installed, what works on this machine, and what to install for more",
}
"""Each command with its line in the help."""

_STATUS = """\
exit status: 0 all is well, 1 something is wrong or stale, 2 bad input or options, 3 a search hit a bound, 130 after Ctrl-C
Errors are one line on standard error; then there is no report, not even with --json.
"""


_STDOUT = "standard output"


class _Version(argparse.Action):
    """`--version`; the report on how the core was built is imported only if the option is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> NoReturn:
        """Print the version and exit."""
        from blocklife.cli._built import examine

        print(f"blocklife {__version__} (core {examine()})")
        parser.exit()


def _parser() -> Parser:
    parser = Parser(prog="blocklife")
    parser.describe("Typed state machines for the life of every KV-cache block.", _STATUS)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version, and whether the core is compiled")
    add_commands(parser, COMMANDS, "blocklife.cli._")
    return parser


def _check_stdout() -> None:
    """Refuse to start without standard output: output would be lost, and the next opened file would take its descriptor."""
    if sys.stdout is None:
        raise MisuseError("standard output is closed (send it to a file, or to /dev/null)")


def _leave_stdout() -> None:
    """Keep the interpreter from failing at exit because of unwritten output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _name(file: object) -> str:
    """The file of an error, which may be bytes or a descriptor."""
    return os.fsdecode(file) if isinstance(file, bytes) else str(file)


@contextlib.contextmanager
def _naming_stdout() -> Iterator[None]:
    """Errors of standard output get its name as that of their file, so that it is blamed for no others.

    Where it is not the process's own, as in a test, errors stay as they are.
    """
    stdout = sys.stdout
    if stdout is None or stdout is not sys.__stdout__ or not isinstance(stdout, io.TextIOWrapper):
        yield
        return
    raw: Any = getattr(stdout.buffer, "raw", stdout.buffer)  # without buffers (python -u) there is one layer less
    write = raw.write

    def named(data: bytes) -> int | None:
        try:
            written: int | None = write(data)
        except OSError as problem:
            problem.filename = _STDOUT
            raise
        return written

    raw.write = named
    try:
        yield
    finally:
        del raw.write


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
    with _spelling_out(), _naming_stdout():
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
    except BrokenPipeError:  # the reader has gone (head, for example)
        _leave_stdout()
        return OK
    except OSError as problem:
        if problem.filename == _STDOUT:
            _leave_stdout()
        reason = problem.strerror or str(problem)
        complain(reason if problem.filename is None else f"{_name(problem.filename)}: {reason}")
        return BAD_INPUT
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return status
