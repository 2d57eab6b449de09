"""The story of one place, life by life: in words for a terminal, and as a record for machines.

Rules of this file:

* What happened and why is asked of `Lives`; here it becomes text. `drawing._messages` makes a sequence diagram of the same
  entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
from attrs import frozen

from blocklife.recording._format import ranges, show_name
from blocklife.recording._lives import Life, Lives, RecordedRefusal
from blocklife.recording._reader import JobStory

ENTRIES_MAX = 40
"""A life with more steps than this shows only this many, from its two ends together."""
LOOPS_MIN = 4
"""This many consecutive steps that lead back to their own state, or more, are shown as a count."""
IDS_MAX = 12
"""So many runs of a job's places are named; the others are counted."""


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


def counted(count: int, one: str, many: str = "") -> str:
    """A number of things."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# --- folding -------------------------------------------------------------------------------------------------------------


@frozen
class Fold:
    """Steps that are shown as a count. Invariant: ``steps`` are indices, oldest first, and not empty."""

    steps: tuple[int, ...]
    text: str


def folded(lives: Lives, steps: Sequence[int]) -> list[int | Fold]:
    """The steps of a life, short enough to be read: rows of loops, and the middle of what is still long, become folds."""
    found: list[int | Fold] = []
    run: list[int] = []
    for index in (*steps, -1):
        if index >= 0 and _loops(lives, index):
            run.append(index)
            continue
        found += [_fold(lives, run)] if len(run) >= LOOPS_MIN else run
        run = []
        if index >= 0:
            found.append(index)
    if len(found) > ENTRIES_MAX:
        half = ENTRIES_MAX // 2
        middle = [index for each in found[half:-half] for index in (each.steps if isinstance(each, Fold) else (each,))]
        found[half:-half] = [_fold(lives, middle)]
    return found


def _loops(lives: Lives, index: int) -> bool:
    kind = lives.kinds[lives.kind[index]]
    return kind.source == kind.target and not lives.job[index]


def _fold(lives: Lives, steps: Sequence[int]) -> Fold:
    kinds = [lives.kinds[lives.kind[index]] for index in steps]
    counts = Counter(kind.event for kind in kinds)
    stays = f" in {kinds[0].source}" if len({each for kind in kinds for each in (kind.source, kind.target)}) == 1 else ""
    return Fold(
        tuple(steps), f"{len(steps):,} steps{stays}: {', '.join(f'{count:,} {event}' for event, count in counts.items())}"
    )


# --- text ----------------------------------------------------------------------------------------------------------------

_ENDS = {"allocate": "handed out again", "drop": "dropped", "evict": "evicted", "cancel": "its store was cancelled"}


def heading(lives: Lives, life: Life) -> str:
    """One line about a life: which, when, and how it ended."""
    story = lives.job_story(life.id) if life.machine == "job" else None
    epoch = "" if life.epoch is None else f", epoch {life.epoch}"
    name = "" if life.name is None else f", {show_name(life.name)} (row {life.id})"
    which = f"life {life.number}{epoch}{name}" if story is None else story.label
    begun = lives.plan[life.steps[0]] if story is None else story.first[2]
    if life.end is None:
        state = lives.kinds[lives.kind[life.steps[-1]]].target if life.steps else "PLANNED"
        return f"{which}: from plan {begun} on; {state} where the recording ends"
    end = lives.step(life.end)
    how = end.target if life.machine in ("job", "request") else _ENDS.get(end.event, f"{end.target} by {end.event}")
    return f"{which}: plan {begun}" + (f" to {end.plan}" if end.plan != begun else "") + f", {how}"


def text(lives: Lives, of: Wanted, chosen: Sequence[Life]) -> Iterator[str]:
    """The lives for a terminal."""
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
    if isinstance(entry, RecordedRefusal):
        return entry.index, 0
    return (entry, 1) if isinstance(entry, int) else (entry.steps[0], 1)


def _rows(lives: Lives, life: Life, entry: int | Fold | RecordedRefusal) -> Iterator[tuple[str, ...]]:
    """One line of a life as cells: when, the event, the change, why; two cells where it is said in words."""
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
            why = f"job {step.job}" if story is None else story.label
        yield _when(lives, step.plan, step.ns), step.event, change, why


def _when(lives: Lives, plan: int, ns: int | None) -> str:
    width = len(str(lives.plans[1]))
    time = "" if ns is None else f"  +{(ns - lives.times[0]) / 1e6:,.3f} ms"
    return f"plan {plan:>{width}}{time}"


def _refused(refusal: RecordedRefusal) -> str:
    return f"REFUSED: {refusal.event} while {refusal.state}"


def _places(lives: Lives, story: JobStory | None) -> Iterator[str]:
    """One line about a job: what it moved, and how it stands at the end."""
    if story is None:
        return
    moved = f"{counted(len(story.blocks), 'block')} ({ranges(story.blocks, IDS_MAX)})"
    slots = f"{counted(len(story.slots), 'slot')} ({ranges(story.slots, IDS_MAX)})"
    ways = (moved, slots) if story.kind != "load" else (slots, moved)
    waits = ""
    if story.request is not None:
        waits = f", for request {story.request.id if story.request.name is None else show_name(story.request.name)}"
    yield f"  {story.label}: {story.state}; {' to '.join(ways)}{waits}; planned at plan {story.first[2]}"


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
                "number": story.id,
                "kind": story.kind,
                "state": story.state,
                "blocks": [{"id": block, "epoch": epoch} for block, epoch in story.blocks.items()],
                "slots": list(story.slots),
                "request": None if story.request is None else story.request.id,
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
