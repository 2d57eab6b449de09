"""Shared by all commands: exit statuses, one-line errors, Ctrl-C between two steps, progress, atomic files."""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib.util
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, NoReturn, TextIO

from blocklife.errors import MisuseError, one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

OK, WRONG, BAD_INPUT, INCOMPLETE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses of a command."""
PIPE_WIDTH = 140
"""How wide tables may be where no terminal says it."""
EVERY = 15.0
"""Seconds between two lines of progress."""


class Help(argparse.HelpFormatter):
    """Descriptions are wrapped as options are; examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line.startswith(" ") else fill(line, width, indent) for line in text.split("\n"))


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that point to the help, and commands that are imported when they are called."""

    module: str | None = None
    """The module whose `add_options` adds the options when something is parsed; None if they are already there."""
    is_command = False
    """Whether it parses what stands behind a command; it refuses what it does not know itself, and points to its own help."""

    if not TYPE_CHECKING:  # mypy keeps the signatures of the base

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **{"formatter_class": Help, **kwargs})

        def parse_known_args(self, args=None, namespace=None):
            """Parse, after adding the options of the module."""
            self.complete()
            found, others = super().parse_known_args(args, namespace)
            if others and self.is_command:
                self.error(f"unrecognized arguments: {' '.join(others)}")
            return found, others

        def _check_value(self, action, value):
            """As argparse, with the nearest choice."""
            if action.choices is not None and value not in action.choices:
                what = "unknown command" if isinstance(action, argparse._SubParsersAction) else "invalid choice:"
                problem = f"{what} {value!r} ({suggestion(str(value), map(str, action.choices))})"
                raise argparse.ArgumentError(None if what == "unknown command" else action, problem)

    def complete(self) -> None:
        """Add the options of the module, if they are not there yet."""
        if self.module is not None:
            module, self.module = self.module, None
            importlib.import_module(module).add_options(self)

    def commands(self, description: str) -> Callable[[str, str], Parser]:
        """Have commands: returns how one is added, by its name and its line of help."""
        self.description = description
        actions = self.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
        self.set_defaults(run=lambda _: print_help(self))

        def add(name: str, said: str) -> Parser:
            parser: Parser = actions.add_parser(name, help=said)
            parser.is_command = True
            return parser

        return add

    def describe(self, description: str, examples: str = "") -> None:
        """Set the help text above the options, which is wrapped, and below them, with its lines kept."""
        self.description, self.epilog = description, examples

    def exit(self, status: int = OK, message: str | None = None) -> NoReturn:
        """Leave, once the help is written: where it cannot be, that is an error like any other."""
        print(end="", flush=True)
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and exit."""
        self.exit(BAD_INPUT, one_line(f"blocklife: {message} (see {self.prog} --help)") + "\n")


def add_commands(parser: Parser, commands: Mapping[str, str], prefix: str) -> None:
    """Give a parser commands, each a name and a line of help; module *prefix* and name is imported when it is called."""
    add = parser.commands(parser.description or "")
    for name, said in commands.items():
        add(name, said).module = f"{prefix}{name}"


def print_help(parser: argparse.ArgumentParser) -> int:
    """Print the help as an error: a command is missing."""
    if sys.stderr is not None:
        parser.print_help(sys.stderr)
    return BAD_INPUT


def suggestion(name: str, known: Iterable[str]) -> str:
    """What there is to choose from, the nearest first."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, 1)
    return f"did you mean {near[0]}? choose from {', '.join(names)}" if near else f"choose from {', '.join(names)}"


def wrapped(text: str, indent: int = 4) -> str:
    """Lines for standard output: on a terminal wrapped at its width, continued so many columns in; elsewhere as they are."""
    if not sys.stdout.isatty():
        return text
    import textwrap

    width = max(20 + indent, shutil.get_terminal_size().columns)
    fill = textwrap.TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(fill(line) for line in text.split("\n"))


def complain(message: str) -> None:
    """Print one line on standard error. Without a standard error nothing is printed: print() would use standard output."""
    if sys.stderr is not None:
        print(one_line(f"blocklife: {message}"), file=sys.stderr)


def names_of(choices: type[enum.Enum]) -> tuple[str, ...]:
    """The members of an enumeration as values of an option."""
    return tuple(each.name.lower() for each in choices)


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number") from None


def file(text: str) -> str:
    """The name of a file."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file")
    return text


class InputFile(str):
    """The name of a file that is to be read; - is standard input."""

    __slots__ = ("remedy",)
    remedy: str

    def check(self) -> None:
        """Refuse a file that is not there."""
        if self != "-":
            try:
                os.lstat(self)
            except OSError as problem:
                raise MisuseError(f"{self}: {problem.strerror}" + (f" ({self.remedy})" if self.remedy else "")) from None


def source(text: str, remedy: str = "") -> InputFile:
    """The name of a file to read, with what to do if it is not there: `check_sources` sees that before a command begins."""
    found = InputFile(file(text))
    found.remedy = remedy
    return found


def check_sources(args: argparse.Namespace) -> None:
    """Refuse a file to read that is not there, before the command imports what it works with."""
    for value in vars(args).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, InputFile):
                each.check()


@contextlib.contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether to stop: the first Ctrl-C ends a run between two steps, a second one immediately."""
    stopped = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: stopped
    finally:
        signal.signal(signal.SIGINT, previous)


class Telling:
    """Progress of one run, on standard error: a line that is drawn anew on a terminal, elsewhere one in `EVERY` seconds."""

    def __init__(self, name: str, bar: Progress | None) -> None:
        self._name, self._bar = name, bar
        self._next = time.monotonic() + EVERY
        self._task: TaskID | None = None

    def __call__(self, said: Callable[[], str], done: int = 0, total: int | None = None) -> None:
        """Say how far it is: in words, which are made only if they are shown; and for a bar in numbers, if it is known how
        much there is."""
        if self._bar is None:
            if (now := time.monotonic()) >= self._next:
                self._next = now + EVERY
                complain(f"{self._name}: {said()}")
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=total, said="")
        self._bar.update(self._task, completed=done, said=said())

    def print(self, line: str, stream: TextIO) -> None:
        """Print a line of the report; above the bar, which is drawn again, where both are on the terminal."""
        if self._bar is not None and stream.isatty():
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=stream, flush=True)


@contextlib.contextmanager
def telling(name: str) -> Iterator[Telling]:
    """Tell of a run until it is over, and remove the line then."""
    # stderr may be None, and rich is not there where only the scenarios are installed
    if not getattr(sys.stderr, "isatty", bool)() or importlib.util.find_spec("rich") is None:
        yield Telling(name, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn(name), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Telling(name, bar)


@contextlib.contextmanager
def reading(what: str = "lines") -> Iterator[Callable[[int, int], None]]:
    """Progress while a recording is read: hears how many bytes were read, and how many of *what*."""
    with telling("recording") as tell:
        yield lambda size, count: tell(lambda: f"{size >> 20:,} MiB, {count:,} {what}")


def refuse_overwriting(output: str | None, *sources: str | None) -> None:
    """Refuse to write to a file that is also read, by any name; ``-`` is standard input, None is no file."""
    for source in sources:
        if output is not None and source is not None and output != "-" and _are_one(output, source):
            raise MisuseError(f"{output}: it is also read, and would be overwritten (write to another file)")


def _are_one(output: str, source: str) -> bool:
    try:
        written, read = os.stat(output), os.stat(0 if source == "-" else source)
    except OSError:  # what is not there yet is not read; what cannot be read is refused by who reads it
        return False
    return stat.S_ISREG(written.st_mode) and os.path.samestat(written, read)


def check_writable(path: str) -> None:
    """Refuse what `write_whole` could not write, before work that takes long."""
    import tempfile  # which takes longer than all else here

    with _opening(path) as (target, is_plain):
        if is_plain:
            tempfile.TemporaryFile(dir=target.parent).close()
        else:
            target.open("wb").close()


def write_whole(path: str, data: str | bytes) -> None:
    """Write a file atomically; `MisuseError` if it cannot be written."""
    content = _encoded(data)
    with writing_whole(path) as stream:
        stream.write(content)


@contextlib.contextmanager
def writing_whole(path: str) -> Iterator[IO[bytes]]:
    """A file to write to, which is there whole or not at all; `MisuseError` where it cannot be written.

    What is no plain file, such as a pipe or ``/dev/stdout``, is written to as it is.
    """
    with _opening(path) as (target, is_plain):
        if not is_plain:
            with target.open("wb") as stream:
                yield stream
            return
        beside = target.with_name(f".{target.name}.{os.getpid()}.new")
        try:
            with beside.open("wb") as stream:
                yield stream
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _opening(path: str) -> Iterator[tuple[Path, bool]]:
    """What a file to write to is when all links are followed, and whether it is, or will be, a plain file.

    An error within becomes a `MisuseError` with the name that was given. A loop of links leads nowhere and is refused too:
    `Path.exists` and `Path.resolve` answer differently about it from one Python to the next.
    """
    try:
        try:
            is_plain = stat.S_ISREG(os.stat(path).st_mode)
        except FileNotFoundError:
            is_plain = True
        yield Path(os.path.realpath(path) if is_plain else path), is_plain  # a link stays a link
    except BrokenPipeError:  # a reader that has gone is no bad input
        raise
    except OSError as problem:
        raise MisuseError(f"{path}: {problem.strerror or problem}") from problem


def put_out(data: str | bytes) -> None:
    """Write to standard output, the same bytes whatever the locale is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(_encoded(data))
    sys.stdout.buffer.flush()


def printable(text: str) -> str:
    """Text with what the name of a file may have of another encoding spelt out, as Python does in messages."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _encoded(data: str | bytes) -> bytes:
    return printable(data).encode("utf-8") if isinstance(data, str) else data
