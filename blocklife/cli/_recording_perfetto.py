"""`blocklife recording perfetto`: a recording for the Perfetto UI."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import sys
from collections.abc import Iterator
from typing import TextIO

from blocklife.cli._common import OK, Parser, file, printable, reading, refuse_overwriting, whole, writing_whole

_EXAMPLES = """\
examples:
  blocklife recording perfetto run.jsonl -o trace.json
                                        open it at ui.perfetto.dev or chrome://tracing
  blocklife recording perfetto run.jsonl -o trace.json.gz
                                        smaller; the Perfetto UI opens it as it is
  blocklife recording perfetto run.jsonl --offset-ns 1700000000000000000 -o trace.json
                                        for a recorder whose clock did not count from 1970
exit status: 0 written, 2 it cannot be read or written, 130 after Ctrl-C
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Write a recording as Chrome trace events: a process for each machine, a thread for each place, a slice "
        "for each time in a state, jobs with arrows to the places they touch, and the number of places in each state. Times "
        "are those of the recording; if it has none, a plan lasts one millisecond.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("file", type=file, metavar="FILE", help="the recording; - is standard input")
    add(
        "-o",
        "--output",
        type=file,
        default="-",
        metavar="FILE",
        help="output file; .gz compresses it (default - is standard output)",
    )
    add("--offset-ns", type=whole, default=0, metavar="N", help="add N nanoseconds to every time (default 0)")
    parser.set_defaults(run=_perfetto)


def _perfetto(args: argparse.Namespace) -> int:
    from blocklife.recording._perfetto import write_perfetto
    from blocklife.recording._reading import open_recording

    refuse_overwriting(args.output, args.file)
    with contextlib.ExitStack() as stack:
        recording = stack.enter_context(open_recording(args.file))
        sink = stack.enter_context(_sink(args.output))
        progress = stack.enter_context(reading())
        traced = write_perfetto(recording, sink, offset_ns=args.offset_ns, progress=progress)
    if args.output != "-":
        print(printable(f"{args.output}: {traced}"))
    return OK


@contextlib.contextmanager
def _sink(output: str) -> Iterator[TextIO]:
    """Where the text goes: a file is there as a whole or not at all."""
    if output == "-":
        yield sys.stdout
        return
    with writing_whole(output) as raw:
        if output.endswith(".gz"):  # no name and no time in it: the same recording gives the same bytes
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed, io.TextIOWrapper(packed, encoding="utf-8") as text:
                yield text
        else:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                yield text
