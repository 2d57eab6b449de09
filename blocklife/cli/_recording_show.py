"""`blocklife recording show`: the story of one place, life by life, for a terminal, for machines, or as a sequence diagram.

Rules of this file:

* What happened and why is asked of `recording.lives`, what is said to whom of `drawing.messages`; here it becomes text.
* Who asks for a place that the recording cannot have, or that never moved, is told so; nothing is drawn then.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from attrs import frozen

from blocklife.cli._common import OK, Parser, file, put_out, reading, refuse_overwriting, whole, write_whole
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from blocklife.drawing._messages import Fold
    from blocklife.recording._format import Head
    from blocklife.recording._lives import JobStory, Life, Lives, RecordedRefusal

_EXAMPLES = """\
examples:
  blocklife recording show run.jsonl --block 17            all its lives: what happened, and why
  blocklife recording show run.jsonl --slot 3 --last 2     its two latest lives
  blocklife recording show run.jsonl --job 5 -o job5.svg   a sequence diagram
  blocklife recording show run.jsonl --request chat-7 --format mermaid
                                                           the same for Markdown
  blocklife recording show run.jsonl --block 17 --json | jq .lives[0].steps
exit status: 0 shown, 2 bad input, nothing to show, or the file cannot be written
"""
_MACHINES = ("block", "slot", "job", "request")
_ENDINGS = {".txt": "text", ".mmd": "mermaid", ".mermaid": "mermaid", ".svg": "svg", ".json": "json"}
_THEMES = ("auto", "light", "dark")
IDS_MAX = 12
"""So many places of a job are named; the others are counted."""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Show the history of one place in a recording: each of its lives, step by step, with the jobs that touched "
        "it and the cause of each step; as text, or as a sequence diagram between request, scheduler, ledger, copier and "
        "worker.",
        _EXAMPLES,
    )
    parser.add_argument("file", type=file, metavar="FILE", help="the recording; - is standard input")
    places = parser.add_mutually_exclusive_group(required=True)
    for machine in _MACHINES:
        if machine != "request":
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
    parser.add_argument("--theme", choices=_THEMES, default="auto", help="of an SVG (default: follow the reader's system)")
    parser.add_argument("-o", "--output", type=file, metavar="FILE", help=f"output file ({', '.join(_ENDINGS)})")
    parser.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> int:
    from blocklife.recording._lives import Lives
    from blocklife.recording._reading import open_recording

    form = _format(args)
    refuse_overwriting(args.output, args.file)
    machine, place = next((each, getattr(args, each)) for each in _MACHINES if getattr(args, each) is not None)
    with open_recording(args.file) as recording, reading() as progress:
        if machine != "request":
            _check_place(recording.name, recording.head, machine, place)
        lives = Lives.of(recording, progress, only=(machine, place))
    told = _told(lives, machine, place)
    chosen = _chosen(lives, told, args)
    if form == "text":
        shown = "\n".join(_plain(line) for line in text(lives, told, chosen)) + "\n"
    elif form == "json":
        shown = json.dumps(record(lives, told, chosen)) + "\n"
    else:
        shown = _drawn(lives, f"{told.title} in {Path(lives.name).name}", chosen, form, args.theme)
    if args.output in (None, "-"):
        put_out(shown)
    else:
        write_whole(args.output, shown)
    return OK


def _drawn(lives: Lives, title: str, chosen: Sequence[Life], form: str, theme: str) -> str:
    from blocklife.drawing._messages import diagram
    from blocklife.drawing._sequence import mermaid
    from blocklife.drawing._sequence_svg import svg
    from blocklife.drawing._theme import Theme

    if not chosen:
        raise MisuseError(f"{title}: nothing of it but refusals is recorded, and these are told as text (--format text)")
    sequence = diagram(lives, chosen, title)
    if form == "mermaid":
        return mermaid(sequence)
    return svg(sequence, None if theme == "auto" else Theme[theme.upper()])


# --- what is meant -----------------------------------------------------------------------------------------------------


def _format(args: argparse.Namespace) -> str:
    """The format that is asked for, or that the name of the file says."""
    asked = "json" if args.json else args.format
    if args.output in (None, "-"):
        return asked or "text"
    ending = Path(args.output).suffix.lower()
    ended = _ENDINGS.get(ending)
    if asked is None and ended is None:
        said = f"the ending {ending}" if ending else "no ending"
        raise MisuseError(f"{args.output}: {said} names no format (there are {', '.join(_ENDINGS)}; or name one with --format)")
    if asked is not None and ended not in (None, asked):
        raise MisuseError(f"{args.output}: the ending says {ended}, the options {asked} (leave one of them out)")
    return asked or ended or "text"


def _check_place(name: str, head: Head, machine: str, place: int) -> None:
    """Refuse a place that the limits of the recording do not have."""
    low, stop = {"block": (1, head.num_blocks), "slot": (0, head.num_slots), "request": (0, head.max_requests)}.get(
        machine, (1, 1 << 63)
    )
    if not low <= place < stop:
        there = "jobs count from 1" if machine == "job" else f"its {machine}s are {low} to {stop - 1}"
        raise MisuseError(f"{machine} {place}: {name} has no such {machine} ({there})")


@frozen
class Wanted:
    """The place that is asked for, or the request: all its lives, and what was refused to it."""

    title: str
    machine: str
    id: int
    """A name that was used again may have had several rows: the latest."""
    name: str | None
    lives: Sequence[Life]
    refused: Sequence[RecordedRefusal]


def _told(lives: Lives, machine: str, place: int | str) -> Wanted:
    """What is meant, once all was read: a name comes before a row."""
    from blocklife.recording._format import number_of, show_name

    if isinstance(place, int):
        return Wanted(f"{machine} {place}", machine, place, None, lives.place(machine, place), lives.refusals(machine, place))
    found, refused = lives.called(place), [each for each in lives.refused if each.name == place]
    if found or refused:
        row = found[-1].id if found else refused[-1].id
        return Wanted(f"request {show_name(place)} (row {row})", machine, row, place, found, refused)
    number = number_of(place)
    if number is None:
        rows = f"rows are 0 to {lives.head.max_requests - 1}"
        raise MisuseError(
            f"request {show_name(place)}: {lives.name} tells of no request of that name (give a name or a row; {rows})"
        )
    _check_place(lives.name, lives.head, machine, number)
    return _told(lives, machine, number)


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


# --- text ----------------------------------------------------------------------------------------------------------------


def text(lives: Lives, of: Wanted, chosen: Sequence[Life]) -> Iterator[str]:
    """The lives for a terminal."""
    from blocklife.drawing._messages import counted

    all_lives, refused = of.lives, of.refused
    steps = counted(sum(len(life.steps) for life in all_lives), "step")
    told = [steps] if of.machine == "job" else [counted(len(all_lives), "life", "lives"), steps]
    told += [counted(len(refused), "refusal")] if refused else []
    yield f"{of.title} in {lives.name}: {', '.join(told)}"
    shown = {each.line for life in chosen for each in life.refused}
    for life in chosen:
        yield ""
        yield from _life(lives, life)
    apart = [each for each in refused if each.line not in shown]
    if apart and len(chosen) == len(all_lives):
        yield ""
        yield "while it had no life:"
        yield from (f"  {_when(lives, each.plan, each.ns)}  {_refused(each)}" for each in apart)
    if not lives.whole:
        yield ""
        yield "note: the recording does not say that it is whole"


def _life(lives: Lives, life: Life) -> Iterator[str]:
    from blocklife.drawing._messages import folded, heading

    yield heading(lives, life)
    entries: list[int | Fold | RecordedRefusal] = [*folded(lives, life.steps), *life.refused]
    entries.sort(key=_order)
    rows = [row for entry in entries for row in _rows(lives, life, entry)]
    widths = [max((len(row[at]) for row in rows if len(row) > 2), default=0) for at in range(4)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
    if life.machine == "job":
        yield from _places(lives, lives.job_story(life.id))
    for number in life.jobs if life.machine != "job" else ():
        yield from _places(lives, lives.job_story(number))


def _order(entry: int | Fold | RecordedRefusal) -> tuple[int, int]:
    if isinstance(entry, int):
        return entry, 1
    steps = getattr(entry, "steps", None)
    return (steps[0], 1) if steps else (getattr(entry, "index", 0), 0)


def _rows(lives: Lives, life: Life, entry: int | Fold | RecordedRefusal) -> Iterator[tuple[str, ...]]:
    """One line of a life as cells: when, the event, the change, why; two cells where it is said in words."""
    from blocklife.drawing._messages import Fold
    from blocklife.recording._lives import RecordedRefusal

    if isinstance(entry, RecordedRefusal):
        yield _when(lives, entry.plan, entry.ns), _refused(entry)
    elif isinstance(entry, Fold):
        first = lives.step(entry.steps[0])
        yield _when(lives, first.plan, first.ns), f"... {entry.text} (--json has all)"
    else:
        step = lives.step(entry)
        guard = "" if step.guard is None else f" [{step.guard}]"
        stays = step.source == step.target
        change = f"stays {step.source}{guard}" if stays else f"{step.source} > {step.target}{guard}"
        why = lives.because(entry)
        if not why and step.job and life.machine != "job":
            story = lives.job_story(step.job)
            why = f"job {step.job}" if story is None else story.name
        yield _when(lives, step.plan, step.ns), step.event, change, why


def _when(lives: Lives, plan: int, ns: int | None) -> str:
    width = len(str(lives.plans[1]))
    time = "" if ns is None else f"  +{(ns - lives.times[0]) / 1e6:,.3f} ms"
    return f"plan {plan:>{width}}{time}"


def _refused(refusal: RecordedRefusal) -> str:
    return f"REFUSED: {refusal.event} while {refusal.state}"


def _places(lives: Lives, story: JobStory | None) -> Iterator[str]:
    """One line about a job: what it moved, and how it stands at the end."""
    from blocklife.drawing._messages import counted

    if story is None:
        return
    moved = f"{counted(len(story.blocks), 'block')} ({ranges(list(story.blocks))})"
    slots = f"{counted(len(story.slots), 'slot')} ({ranges(list(story.slots))})"
    ways = (moved, slots) if story.kind != "load" else (slots, moved)
    waits = "" if story.request is None else f", for {story.owner}"
    yield f"  {story.name}: {story.state}; {' to '.join(ways)}{waits}; planned at plan {story.first[2]}"


def ranges(ids: Sequence[int]) -> str:
    """Numbers in order, with neighbours taken together: ``1-3, 7``; the last of many are counted."""
    found: list[list[int]] = []
    for each in sorted(ids):
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    said = [str(low) if low == high else f"{low}-{high}" for low, high in found[:IDS_MAX]]
    rest = sum(high - low + 1 for low, high in found[IDS_MAX:])
    return ", ".join(said) + (f" and {rest} more" if rest else "")


def _plain(line: str) -> str:
    """A line that any terminal can show: words of a recording may hold anything."""
    return "".join(each if each.isprintable() else "?" for each in line)


# --- for machines --------------------------------------------------------------------------------------------------------


def record(lives: Lives, told: Wanted, chosen: Sequence[Life]) -> Mapping[str, object]:
    """The lives as one JSON object."""
    machine = told.machine
    numbers = sorted({number for life in chosen for number in (life.jobs if machine != "job" else (life.id,))})
    stories = [story for number in numbers if (story := lives.job_story(number)) is not None]
    return {
        "recording": lives.name,
        "whole": lives.whole,
        "machine": machine,
        "id": told.id,
        "name": told.name,
        "lives": [
            {
                "number": life.number,
                "id": life.id,
                "name": life.name,
                "epoch": life.epoch,
                "end": None if life.end is None else lives.line[life.end],
                "steps": [_step_record(lives, index) for index in life.steps],
                "spans": [_span_record(lives, span.state, span.start, span.stop) for span in life.spans],
                "jobs": list(life.jobs),
                "refused": [_refusal_record(each) for each in life.refused],
            }
            for life in chosen
        ],
        "jobs": [
            {
                "number": story.number,
                "kind": story.kind,
                "state": story.state,
                "blocks": [{"id": block, "epoch": epoch} for block, epoch in story.blocks.items()],
                "slots": list(story.slots),
                "request": story.request,
                "planned": {"line": story.first[0], "plan": story.first[2]},
                "steps": [_step_record(lives, index) for index in story.steps],
            }
            for story in stories
        ],
        "refused": [_refusal_record(each) for each in told.refused],
    }


def _step_record(lives: Lives, index: int) -> dict[str, object]:
    """A step as it was written, with what made it happen; steps are named by their lines."""
    step = lives.step(index)
    told = attrs.asdict(step, filter=lambda attribute, _: attribute.name not in ("index", "source", "target", "cause"))
    cause = None if step.cause is None else lives.line[step.cause]
    return {**told, "from": step.source, "to": step.target, "cause": cause, "because": lives.because(index)}


def _span_record(lives: Lives, state: str, start: int, stop: int | None) -> dict[str, object]:
    ends = None if stop is None else {"line": lives.line[stop], "plan": lives.plan[stop]}
    return {"state": state, "start": {"line": lives.line[start], "plan": lives.plan[start]}, "stop": ends}


def _refusal_record(refusal: RecordedRefusal) -> dict[str, object]:
    return {
        "line": refusal.line,
        "plan": refusal.plan,
        "ns": refusal.ns,
        "event": refusal.event,
        "state": refusal.state,
        "name": refusal.name,
    }
