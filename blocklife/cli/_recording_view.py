"""`blocklife recording view`: one page that shows what a run did, for a browser."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from blocklife.cli._common import (
    OK,
    Occasional,
    Parser,
    complain,
    file,
    on_terminal,
    printable,
    put_out,
    refuse_overwriting,
    whole,
    write_whole,
)
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from blocklife.recording._checking import CheckVerdict
    from blocklife.recording._lives import Lives

_EXAMPLES = """\
examples:
  blocklife recording view run.jsonl -o page.html   open page.html in any browser; it needs nothing else
  blocklife recording view run.jsonl -o page.html --plans 100-180
                                                    a part of a long run
exit status: 0 the page is written (it also shows whether the run is legal), 2 bad input, 130 after Ctrl-C
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Write a page that shows a recorded run: a lane for each place, a colour for each state, jobs over the "
        "places they touch, refusals, the first illegal line, and the diagrams of the machines.",
        _EXAMPLES,
    )
    parser.add_argument("file", type=file, metavar="FILE", help="the recording; - is standard input")
    parser.add_argument("-o", "--output", type=file, required=True, metavar="PAGE.html", help="the page; - is standard output")
    parser.add_argument("--plans", metavar="A-B", help="only these plans (default: all)")
    parser.add_argument(
        "--max-events", type=whole, metavar="N", help="refuse to show more transitions than this (default 1000000)"
    )
    parser.set_defaults(run=_view)


def _view(args: argparse.Namespace) -> int:
    from blocklife.drawing.viewer import MAX_EVENTS, ViewSettings, view

    most = MAX_EVENTS if args.max_events is None else args.max_events
    if most < 1:
        raise MisuseError(f"--max-events {most}: a page shows at least one transition (give a number of at least 1)")
    settings = ViewSettings(_plans(args.plans), most)
    refuse_overwriting(args.output, args.file)
    with _on_disk(args.file) as path, _progress() as progress:
        verdict, lives = _read(path, args.file, progress)
    page = view(lives, verdict, settings, _drawings())
    if args.output == "-":
        put_out(page)
        return OK
    write_whole(args.output, page)
    print(printable(_told(args.output, len(page), verdict)))
    return OK


def _plans(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)) or (dash and int(first) > int(last)):
        raise MisuseError(f"--plans {text[:40]!r}: plans are given as 100-180, or as one number")
    return int(first), int(last or first)


@contextlib.contextmanager
def _on_disk(path: str) -> Iterator[str]:
    """A file that can be read twice: once to check it, once to draw it."""
    if path != "-":
        yield path
        return
    if sys.stdin is None:
        raise MisuseError("standard input is closed (name a file)")
    with tempfile.NamedTemporaryFile(prefix="blocklife-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield copy.name


def _read(path: str, name: str, progress: Callable[[str, int, int], None] | None) -> tuple[CheckVerdict, Lives]:
    from blocklife.recording._checking import check_file
    from blocklife.recording._lives import Lives
    from blocklife.recording._reading import open_recording

    with open_recording(path, name if path == name else "standard input") as recording:
        lives = Lives.of(recording, None if progress is None else lambda size, count: progress("reading", size, count))
    verdict = check_file(path, progress=None if progress is None else lambda size, count: progress("checking", size, count))
    if verdict.interrupted:  # the check ends with what it has; a page would call that the whole
        raise KeyboardInterrupt
    return attrs.evolve(verdict, name=lives.name), lives


def _drawings() -> Mapping[str, str]:
    """The diagrams of the four machines; none where Graphviz is not there, and then the page lists the states."""
    from blocklife.drawing._picture import Panel, picture
    from blocklife.drawing._svg import svg
    from blocklife.states import MACHINES

    try:
        return {name: svg([Panel(picture(table, name))]) for name, table in MACHINES.items()}
    except MisuseError as problem:
        complain(f"no diagrams, lists instead: {problem}")
        return {}


def _told(output: str, size: int, verdict: CheckVerdict) -> str:
    told = f"{Path(output)}: {size / 1e6:.1f} MB"
    if verdict.illegal is not None:
        told += f"; NOT legal: line {verdict.illegal.line}: {verdict.illegal.message}"
    return told


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    with on_terminal(_columns) as bar:
        if bar is None:
            line = Occasional("recording")
            yield lambda doing, size, lines: line(lambda: f"{doing}, {size >> 20:,} MiB, {lines:,} lines")
            return
        task = bar.add_task("", total=None, doing="reading", megabytes=0, lines=0)
        yield lambda doing, size, lines: bar.update(task, doing=doing, megabytes=size >> 20, lines=lines)


def _columns() -> list[str | ProgressColumn]:
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    counts = "{task.fields[megabytes]:,} MiB, {task.fields[lines]:,} lines"
    return [TextColumn("{task.fields[doing]}"), SpinnerColumn(), TextColumn(counts), TimeElapsedColumn()]
