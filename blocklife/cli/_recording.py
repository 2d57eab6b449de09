"""`blocklife recording`: recorded runs. Texts are made in the recording room; here they are asked for and put out."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import attrs

from blocklife.cli._common import (
    OK,
    PIPE_WIDTH,
    Parser,
    complain,
    file,
    print_help,
    printable,
    put_out,
    reading,
    refuse_overwriting,
    source,
    whole,
    write_whole,
    writing_whole,
)
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from blocklife.recording._format import Head
    from blocklife.recording._lives import Life, Lives
    from blocklife.recording._statistics import MachineStatistics, RunStatistics, Stay
    from blocklife.recording._story import Wanted

COMMANDS: Mapping[str, str] = {
    "check": "check that every transition of a recording is legal",
    "show": "show what happened to one block, slot, job or request, and why",
    "stats": "count how often each row was taken, and the time in each state",
    "view": "write a page that shows the run in a browser",
    "perfetto": "write a recording as a trace for the Perfetto UI",
}
"""Each command with its line in the help."""
_MACHINES = ("block", "slot", "job", "request")


def add_options(parser: Parser) -> None:
    """Its commands."""
    parser.description = "Recordings: JSON lines of a run."
    parser.set_defaults(run=lambda _: print_help(parser))
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for add, (name, said) in zip((_add_check, _add_show, _add_stats, _add_view, _add_perfetto), COMMANDS.items(), strict=True):
        command = actions.add_parser(name, help=said)
        command.add_argument("file", type=source, metavar="FILE", help="the recording; - is standard input")
        add(command)


# --- check ---------------------------------------------------------------------------------------------------------------


def _add_check(parser: Parser) -> None:
    parser.describe(
        "Read a recording and check that every line was legal: states, epochs, holders and pins are recomputed from "
        "the lines. The first illegal line is reported with its history. blocklife replay can write a recording.",
        """\
examples:
  blocklife recording check run.jsonl               is every line of it legal?
  blocklife recording check run.jsonl --whole       treat it as complete, though it has no end line
  blocklife recording check - --json < run.jsonl    from standard input; one JSON report
exit status: 0 nothing is wrong, 1 something is illegal, 2 it cannot be read, 130 after Ctrl-C
For a damaged file, the lines before the damage are reported as usual, and the damage on standard error.
""",
    )
    parser.add_argument("--whole", action="store_true", help="the run was recorded to its end, where nothing may be left over")
    parser.add_argument("--json", action="store_true", help="print one JSON report")
    parser.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    from blocklife.recording import check_file

    with reading("transitions") as progress:
        verdict = check_file(args.file, whole=args.whole, progress=progress)
    if args.json:
        print(json.dumps({**attrs.asdict(verdict), "clean": verdict.clean, "status": verdict.status}))
    else:
        print(verdict.told(damage=False))
    if verdict.damage is not None:
        complain(f"{verdict.name}: {verdict.damage}")
    return verdict.status


# --- show ----------------------------------------------------------------------------------------------------------------

_ENDINGS = {".txt": "text", ".mmd": "mermaid", ".mermaid": "mermaid", ".svg": "svg", ".json": "json"}


def _add_show(parser: Parser) -> None:
    parser.describe(
        "Show the history of one place in a recording: each of its lives, step by step, with the jobs that touched "
        "it and the cause of each step; as text, or as a sequence diagram between request, scheduler, ledger, copier and "
        "worker.",
        """\
examples:
  blocklife recording show run.jsonl --block 17            all its lives: what happened, and why
  blocklife recording show run.jsonl --slot 3 --last 2     its two latest lives
  blocklife recording show run.jsonl --job 5 -o job5.svg   a sequence diagram
  blocklife recording show run.jsonl --request chat-7 --format mermaid
                                                           the same for Markdown
  blocklife recording show run.jsonl --block 17 --json | jq .lives[0].steps
exit status: 0 shown, 2 bad input, nothing to show, or the file cannot be written
""",
    )
    places = parser.add_mutually_exclusive_group(required=True)
    for machine in _MACHINES[:3]:
        places.add_argument(f"--{machine}", type=whole, metavar="N", help=f"the history of {machine} N")
    places.add_argument("--request", metavar="NAME", help="the history of the request with that name, or in that row")
    lives = parser.add_mutually_exclusive_group()
    lives.add_argument("--life", type=whole, metavar="K", help="only its life number K, from 1")
    lives.add_argument("--last", type=whole, metavar="N", help="only its latest N lives")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument(
        "--format", choices=("text", "mermaid", "svg"), help="(default: by the extension of the file, else text)"
    )
    formats.add_argument("--json", action="store_true", help="one JSON object, with every step")
    themes = ("auto", "light", "dark")
    parser.add_argument("--theme", choices=themes, default="auto", help="of an SVG (default: follow the reader's system)")
    parser.add_argument("-o", "--output", type=file, metavar="FILE", help=f"output file ({', '.join(_ENDINGS)})")
    parser.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> int:
    from blocklife.recording import Lives, open_recording
    from blocklife.recording._story import record, text

    form = _format(args)
    refuse_overwriting(args.output, args.file)
    machine, place = next((each, getattr(args, each)) for each in _MACHINES if getattr(args, each) is not None)
    with open_recording(args.file) as recording, reading() as progress:
        if machine != "request":
            _check_place(recording.name, recording.head, machine, place)
        lives = Lives.of(recording, progress)
    told = _told(lives, machine, place)
    chosen = _chosen(lives, told, args)
    if form == "text":  # words of a recording may hold anything; a line is one that any terminal can show
        lines = ("".join(each if each.isprintable() else "?" for each in line) for line in text(lives, told, chosen))
        shown = "\n".join(lines) + "\n"
    elif form == "json":
        shown = json.dumps(record(lives, told, chosen)) + "\n"
    else:
        shown = _drawn(lives, f"{told.title} in {Path(lives.name).name}", chosen, form, args.theme)
    if args.output in (None, "-"):
        put_out(shown)
    else:
        write_whole(args.output, shown)
    return OK


def _drawn(lives: Lives, title: str, chosen: list[Life], form: str, theme: str) -> str:
    from blocklife.drawing._messages import diagram
    from blocklife.drawing._sequence import mermaid
    from blocklife.drawing._sequence_svg import svg
    from blocklife.drawing._theme import Theme

    if not chosen:
        raise MisuseError(f"{title}: nothing of it but refusals is recorded, and these are told as text (--format text)")
    sequence = diagram(lives, chosen, title)
    return mermaid(sequence) if form == "mermaid" else svg(sequence, None if theme == "auto" else Theme[theme.upper()])


def _format(args: argparse.Namespace) -> str:
    """The format that is asked for, or that the name of the file says."""
    asked = "json" if args.json else args.format
    if args.output in (None, "-"):
        return asked or "text"
    ending = Path(args.output).suffix.lower()
    ended = _ENDINGS.get(ending)
    if asked is None and ended is None:
        said = f"the ending {ending}" if ending else "no ending"
        raise MisuseError(
            f"{args.output}: {said} names no format (choose from {', '.join(_ENDINGS)}; or name one with --format)"
        )
    if asked is not None and ended not in (None, asked):
        raise MisuseError(f"{args.output}: the ending says {ended}, the options {asked} (leave one of them out)")
    return asked or ended or "text"


def _check_place(name: str, head: Head, machine: str, place: int) -> None:
    """Refuse a place that the limits of the recording do not have."""
    ids = head.ids(machine)
    if place not in ids:
        there = "jobs count from 1" if machine == "job" else f"its {machine}s are {ids.start} to {ids.stop - 1}"
        raise MisuseError(f"{machine} {place}: {name} has no such {machine} ({there})")


def _told(lives: Lives, machine: str, place: int | str) -> Wanted:
    """What is meant, once all was read: a name comes before a row."""
    from blocklife.recording._format import show_name
    from blocklife.recording._story import Wanted

    if isinstance(place, int):
        return Wanted(f"{machine} {place}", machine, place, None, lives.place(machine, place), lives.refusals(machine, place))
    found, refused = lives.called(place), [each for each in lives.refused if each.name == place]
    if found or refused:
        row = found[-1].id if found else refused[-1].id
        return Wanted(f"request {show_name(place)} (row {row})", machine, row, place, found, refused)
    if not (place.isascii() and place.isdecimal() and len(place) < 20 and str(int(place)) == place):
        rows = f"rows are 0 to {lives.head.max_requests - 1}"
        raise MisuseError(
            f"request {show_name(place)}: {lives.name} tells of no request of that name (give a name or a row; {rows})"
        )
    _check_place(lives.name, lives.head, machine, int(place))
    return _told(lives, machine, int(place))


def _chosen(lives: Lives, told: Wanted, args: argparse.Namespace) -> list[Life]:
    """The lives that are asked for."""
    found, machine, place = list(told.lives), told.machine, told.id
    if not found and not told.refused:
        if machine == "job":
            there = f"its jobs are 1 to {lives.last_job}" if lives.last_job else "it has no jobs"
            raise MisuseError(f"job {place}: {lives.name} tells of no such job ({there})")
        from blocklife.states import MACHINES

        stays = MACHINES[machine].initial.name
        raise MisuseError(f"{machine} {place}: it never moves in {lives.name}, and stays {stays} (choose another)")
    if args.life is not None:
        if not 1 <= args.life <= len(found):
            have = f"lives 1 to {len(found)}" if len(found) > 1 else "one life" if found else "no life"
            raise MisuseError(f"{told.title}: it has {have}, and no life {args.life}")
        return [found[args.life - 1]]
    if args.last is not None and args.last < 1:
        raise MisuseError(f"--last {args.last}: ask for at least 1 life")
    return found[-args.last :] if args.last is not None else found


# --- stats ---------------------------------------------------------------------------------------------------------------

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 16
"""So many characters show how a number changed over a run."""


def _add_stats(parser: Parser) -> None:
    parser.describe(
        "Statistics of a recording: how often each row was taken, which never were, how many places were in each "
        "state over the plans, how long they stayed there, and what was refused. Times need a recording that has them "
        "(blocklife replay --record FILE --times).",
        """\
examples:
  blocklife recording stats run.jsonl                    all four machines
  blocklife recording stats run.jsonl --machine block    one of them
  blocklife recording stats run.jsonl --json | jq .machines.block.never
""",
    )
    parser.add_argument("--machine", choices=_MACHINES, help="only this machine")
    parser.add_argument("--json", action="store_true", help="print one JSON report instead of tables")
    parser.set_defaults(run=_stats)


def _stats(args: argparse.Namespace) -> int:
    from blocklife.recording import count_file

    with reading() as progress:
        run = count_file(args.file, progress)
    chosen = [args.machine] if args.machine else list(run.machines)
    if args.json:
        record = {**run.record(), "machines": {name: run.machine(name).record() for name in chosen}}
        put_out(json.dumps(record) + "\n")
    else:
        _print(run, [run.machine(name) for name in chosen])
    return OK


def _print(run: RunStatistics, machines: list[MachineStatistics]) -> None:
    from rich.console import Console

    from blocklife.recording._statistics import spell_time

    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.begin_capture()  # so that we meet a reader that has gone, or a full disk, and not rich
    took = "" if run.seconds is None else f" in {spell_time(run.seconds)}"
    told = f"{run.name}: {run.steps:,} steps in {run.commits:,} commits, {run.last_plan:,} plans{took}"
    console.print(told, markup=False)
    for machine in machines:
        console.print(f"\n{machine.name}", style="bold")
        console.print(_state_table(machine, timed=run.seconds is not None))
        console.print(_row_table(machine))
        for (event, state), times in machine.refused.items():
            often = "once" if times == 1 else f"{times:,} times"
            console.print(f"refused: {event} while {state}, {often}", style="red")
    if not run.complete:
        console.print("\nnote: the recording does not say that it is whole")
    if run.astray:
        console.print(f"\nnote: {run.astray:,} steps do not go on from where their place stood (see blocklife recording check)")
    put_out("".join(f"{line.rstrip()}\n" for line in console.end_capture().splitlines()))


def _state_table(machine: MachineStatistics, *, timed: bool) -> Table:
    from blocklife.recording._statistics import spell_time

    numbers = ["visits", "open", "share", "median plans", "p99", *(("median time", "p99") if timed else ())]
    table = _table("state", *numbers)
    table.add_column("over plans", no_wrap=True)
    for at, (state, dwell) in enumerate(machine.dwell.items()):
        cells = [f"{dwell.visits:,}", f"{dwell.open:,}", f"{machine.shares[state]:.1%}"]
        cells += _stay(dwell.plans, lambda x: f"{x:,.0f}")
        cells += _stay(dwell.seconds, spell_time) if timed else []
        table.add_row(state, *cells, _spark(machine.population[:, at]))
    return table


def _stay(stay: Stay | None, spell: Callable[[float], str]) -> list[str]:
    return ["", ""] if stay is None else [spell(stay.median), spell(stay.p99)]


def _row_table(machine: MachineStatistics) -> Table:
    from rich.markup import escape

    table = _table("row", "taken")
    for row in machine.table.rows:
        times = machine.taken[row.index]
        # guards stand in brackets, which rich must not take for its own markup
        table.add_row(escape(str(row)), f"{times:,}" if times else "never", style=None if times else "dim")
    return table


def _table(name: str, *numbers: str) -> Table:
    """A table with a name and some numbers in each line."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(name, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _spark(counts: NDArray[np.int64]) -> str:
    """How a count went, each character the most of its part of the run."""
    import numpy as np

    highest = int(counts.max())
    if not highest:
        return ""
    parts = np.array_split(counts, min(_WIDTH, len(counts)))
    return "".join(_BARS[-(-int(part.max()) * (len(_BARS) - 1) // highest)] for part in parts)


# --- view ----------------------------------------------------------------------------------------------------------------


def _add_view(parser: Parser) -> None:
    parser.describe(
        "Write a page that shows a recorded run: a lane for each place, a colour for each state, jobs over the "
        "places they touch, refusals, the first illegal line, and the diagrams of the machines.",
        """\
examples:
  blocklife recording view run.jsonl                write run.html; any browser opens it, and it needs nothing else
  blocklife recording view run.jsonl -o page.html --plans 100-180
                                                    a part of a long run
exit status: 0 the page is written (it also shows whether the run is legal), 2 bad input, 130 after Ctrl-C
""",
    )
    said = "the page; - is standard output (default: beside the recording, with the ending .html)"
    parser.add_argument("-o", "--output", type=file, metavar="PAGE.html", help=said)
    parser.add_argument("--plans", metavar="A-B", help="only these plans (default: all)")
    parser.add_argument(
        "--max-events", type=whole, metavar="N", help="refuse to show more transitions than this (default 1000000)"
    )
    parser.set_defaults(run=_view)


def _view(args: argparse.Namespace) -> int:
    from blocklife.drawing.viewer import MAX_EVENTS, ViewSettings, view
    from blocklife.recording import open_recording
    from blocklife.recording._checking import check_lives

    most = MAX_EVENTS if args.max_events is None else args.max_events
    if most < 1:
        raise MisuseError(f"--max-events {most}: a page shows at least one transition (give a number of at least 1)")
    settings = ViewSettings(_plans(args.plans), most)
    output = args.output or _page_beside(args.file)
    refuse_overwriting(output, args.file)
    with open_recording(args.file) as recording, reading() as progress:
        verdict, lives = check_lives(recording, progress)
    drawings, undrawn = _drawings()
    page = view(lives, verdict, settings, drawings, undrawn=undrawn)
    if output == "-":
        put_out(page)
        return OK
    write_whole(output, page)
    wrong = verdict.illegal
    told = "" if wrong is None else f"; NOT legal: line {wrong.line}: {wrong.message}"
    print(printable(f"{Path(output)}: {len(page) / 1e6:.1f} MB{told}"))
    return OK


def _page_beside(recording: str) -> str:
    """Where the page of a recording goes if nothing is said."""
    if recording == "-":
        raise MisuseError("a recording from standard input has no file to write the page beside (name one with -o)")
    path = Path(recording)
    return str((path.with_suffix("") if path.suffix == ".gz" else path).with_suffix(".html"))


def _plans(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)) or (dash and int(first) > int(last)):
        raise MisuseError(f"--plans {text[:40]!r}: plans are given as 100-180, or as one number")
    return int(first), int(last or first)


def _drawings() -> tuple[Mapping[str, str], str]:
    """The diagrams of the four machines; none where Graphviz is not there, and then why the page lists the states."""
    from blocklife.drawing._picture import Panel, picture
    from blocklife.drawing._svg import svg
    from blocklife.states import MACHINES

    try:
        return {name: svg([Panel(picture(table, name))]) for name, table in MACHINES.items()}, ""
    except MisuseError as problem:
        undrawn = f"no diagrams, lists instead: {problem}"
        complain(undrawn)
        return {}, f"{undrawn[0].upper()}{undrawn[1:]}."


# --- perfetto ------------------------------------------------------------------------------------------------------------


def _add_perfetto(parser: Parser) -> None:
    parser.describe(
        "Write a recording as Chrome trace events: a process for each machine, a thread for each place, a slice "
        "for each time in a state, jobs with arrows to the places they touch, and the number of places in each state. Times "
        "are those of the recording; if it has none, a plan lasts one millisecond.",
        """\
examples:
  blocklife recording perfetto run.jsonl -o trace.json
                                        open it at ui.perfetto.dev or chrome://tracing
  blocklife recording perfetto run.jsonl -o trace.json.gz
                                        smaller; the Perfetto UI opens it as it is
  blocklife recording perfetto run.jsonl --offset-ns 1700000000000000000 -o trace.json
                                        for a recorder whose clock did not count from 1970
exit status: 0 written, 2 it cannot be read or written, 130 after Ctrl-C
""",
    )
    said = "output file; .gz compresses it (default - is standard output)"
    parser.add_argument("-o", "--output", type=file, default="-", metavar="FILE", help=said)
    parser.add_argument("--offset-ns", type=whole, default=0, metavar="N", help="add N nanoseconds to every time (default 0)")
    parser.set_defaults(run=_perfetto)


def _perfetto(args: argparse.Namespace) -> int:
    from blocklife.recording import open_recording, write_perfetto

    refuse_overwriting(args.output, args.file)
    with open_recording(args.file) as recording, _sink(args.output) as sink, reading() as progress:
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
