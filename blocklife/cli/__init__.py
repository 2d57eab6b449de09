"""The command line: one module for each command.

Exit status: 0 all is well, 1 the run found something wrong (or a page is stale), 2 bad input or options, 3 the search stopped
at a limit, 130 after Ctrl-C. Errors go to standard error, in one line.

The name and help line of a command are in the table `COMMANDS`; everything else is in its module, which is imported when the
command is called. So a command imports only what it uses, and the help imports none of them.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from blocklife import __version__
from blocklife.cli._common import BAD_INPUT, INTERRUPTED, OK, Parser, add_commands, check_sources, complain, source
from blocklife.errors import MisuseError

COMMANDS: Mapping[str, str] = {
    "replay": "replay a workload through explicit block lifecycles, and verify every byte",
    "check": "explore every state of a small world: the real scheduler and an independent device",
    "scenario": "run scenarios: test cases written step by step",
    "recording": "check, show, summarize and draw recorded runs",
    "workload": "generate request workloads",
    "draw": "draw lifecycles as pictures, pages or tables",
    "spec": "check or write the generated parts of specs/; print a model for SPIN",
    "size": "say how many tokens of a model the vLLM connector's host memory holds",
    "store": "check that a store for content below the host tier keeps its promises",
    "completion": "print a script that completes commands and options in bash or zsh",
    "doctor": "show what is installed, what works on this machine, and what to install for more",
}
"""Each command with its line in the help."""

READS: Mapping[str, str] = {"replay": "", "check": "name a world as a TOML file, or a pinned one with --world"}
"""Commands whose first argument is a file to read, each with what the refusal advises if that file does not exist."""

_STATUS = """\
exit status: 0 all is well, 1 something is wrong or stale, 2 bad input or options, 3 the search stopped at a
limit, 130 after Ctrl-C
Errors are one line on standard error; then there is no report, not even with --json.
"""

_NOT_TAKEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What an error that names no file says of standard output; an error of any other file names it."""


class _Version(argparse.Action):
    """`--version`; the report on how the core was built is imported only if the option is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> NoReturn:
        """Print the version and exit."""
        from blocklife.cli._built import examine

        print(f"blocklife {__version__} (core {examine()})")
        parser.exit()


def make_parser() -> Parser:
    """The parser of the command line; a command adds its options when it is parsed."""
    parser = Parser(prog="blocklife")
    parser.describe("Typed state machines for the life of every KV-cache block.", _STATUS)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version, and whether the core is compiled")
    add_commands(parser, COMMANDS, "blocklife.cli._")
    return parser


def _check_stdout() -> None:
    """Refuse to start without standard output: output would be lost, and the next opened file would take its descriptor."""
    if sys.stdout is None:
        raise MisuseError("standard output is closed (send it to a file, or to /dev/null)")


def _drop_output() -> None:
    """Keep Python from failing at its exit because of what standard output did not take."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _name(file: object) -> str:
    """The file of an error, which may be bytes or a descriptor."""
    return os.fsdecode(file) if isinstance(file, bytes) else str(file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    return run_with(make_parser, argv)


def run_with(make: Callable[[], Parser], argv: Sequence[str] | None) -> int:
    """Run one command of a parser and return its exit status; an error is one line."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        return _run(make, argv)
    before = stdout.errors
    stdout.reconfigure(errors="backslashreplace")  # spells out what it cannot encode: names of files, titles
    try:
        return _run(make, argv)
    finally:
        if not stdout.closed:
            stdout.reconfigure(errors=before)


def _run(make: Callable[[], Parser], argv: Sequence[str] | None) -> int:
    try:
        _check_stdout()
        words = sys.argv[1:] if argv is None else argv
        if len(words) > 1 and words[0] in READS and words[1] and not words[1].startswith("-") and "\0" not in words[1]:
            source(words[1], READS[words[0]]).check()  # before the options are imported
        args = make().parse_args(words)
        check_sources(args)
        status: int = args.run(args)
        print(end="", flush=True)
    except MisuseError as problem:
        complain(str(problem))
        return BAD_INPUT
    except BrokenPipeError:  # the reader has gone (head, for example)
        _drop_output()
        return OK
    except OSError as problem:
        name = None if problem.filename is None else _name(problem.filename)
        if name is None and problem.errno in _NOT_TAKEN:
            name = "standard output"
            _drop_output()
        reason = problem.strerror or str(problem)
        complain(reason if name is None else f"{name}: {reason}")
        return BAD_INPUT
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return status
