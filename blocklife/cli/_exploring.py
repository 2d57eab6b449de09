"""`blocklife check`, the search itself: explore one world, or walk through it at random, and say what was found."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from blocklife.cli._common import (
    INCOMPLETE,
    INTERRUPTED,
    OK,
    PIPE_WIDTH,
    WRONG,
    check_writable,
    complain,
    refuse_overwriting,
    stopping,
    telling,
    write_whole,
)
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from blocklife.testing.exploring._explore import Bounds, Counterexample, Exploration
    from blocklife.testing.exploring._story import Story
    from blocklife.testing.worlds._world import Action, World, WorldSettings

FILES = ("story.txt", "counterexample.toml", "counterexample.py", "counterexample.mmd")
"""What `--write` writes."""


@frozen(kw_only=True)
class Refuted:
    """One counterexample with its story, and the files that tell it."""

    counterexample: Counterexample[Action]
    story: Story
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What could not be written, and why."""


def explore_world(settings: WorldSettings, args: argparse.Namespace) -> int:
    """Explore a world within the bounds of the options, and print what was found."""
    from blocklife.testing.exploring._explore import explore
    from blocklife.testing.exploring._story import retell
    from blocklife.testing.worlds._world import World

    bounds = _bounds(args)
    if args.processes is not None and args.processes < 1:
        raise MisuseError(f"--processes must be at least 1, not {args.processes}")
    folder = folder_for(args.write, args.file)
    world = World(settings)
    with stopping() as stop, telling("check") as tell:

        def progress(states: int, edges: int, depth: int) -> None:
            tell(lambda: f"{states:,} states, {edges:,} edges, depth {depth}")

        exploration = explore(world, bounds, every=args.all, progress=progress, stop=stop, processes=args.processes)
        found = [Refuted(counterexample=each, story=retell(world, each)) for each in exploration.counterexamples]
    places = [None if folder is None else _place(folder, each, many=args.all) for each in found]
    if args.json:
        written = [_written(each, where) for each, where in zip(found, places, strict=True)]
        print(json.dumps(_record(world, args.world, exploration, written)))
        return _status(exploration)
    _print(world, exploration, verbose=args.verbose)
    for each, where in zip(found, places, strict=True):  # what was found is printed before anything is written
        print(f"\n--- {each.counterexample.rule}: {len(each.story.steps)} steps ---\n\n{each.story}", flush=True)
        _print_files(_written(each, where))
    return _status(exploration)


def _status(exploration: Exploration[Action]) -> int:
    from blocklife.testing.exploring._explore import Verdict

    if exploration.interrupted and exploration.verdict is not Verdict.VIOLATED:
        return INTERRUPTED
    return {Verdict.HOLDS: OK, Verdict.VIOLATED: WRONG, Verdict.UNKNOWN: INCOMPLETE}[exploration.verdict]


def _bounds(args: argparse.Namespace) -> Bounds:
    from blocklife.testing.exploring._explore import Bounds

    for option, least in (("max_states", 1), ("max_depth", 0)):
        value = getattr(args, option)
        if value is not None and value < least:
            raise MisuseError(f"--{option.replace('_', '-')} must be at least {least}, not {value}")
    if args.max_seconds is not None and not 0 < args.max_seconds < float("inf"):
        raise MisuseError(f"--max-seconds must be above 0, not {args.max_seconds}")
    return Bounds(args.max_states, args.max_depth, args.max_seconds)


def folder_for(name: str | None, world: str | None) -> Path | None:
    """Where counterexamples go, but not over the *world*; made before a search that may take long."""
    if name is None:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise MisuseError(f"{name}: {problem.strerror or problem}") from problem
    for each in FILES:
        refuse_overwriting(str(folder / each), world)
    for each in FILES:
        check_writable(str(folder / each))
    return folder


# --- a walk -----------------------------------------------------------------------------------------------------------------


def walk_in(settings: WorldSettings, args: argparse.Namespace) -> int:
    """Walk through a world at random, and print what was met."""
    from blocklife.testing.exploring._walk import walk

    if args.walk < 1:
        raise MisuseError(f"--walk must be at least 1 step, not {args.walk}")
    folder = folder_for(args.write, args.file)
    with stopping() as stop, telling("walk") as tell:

        def progress(steps: int, legs: int, states: int) -> None:
            tell(lambda: f"{steps:,} of {args.walk:,} steps, {legs:,} legs, {states:,} states", steps, args.walk)

        walked = walk(settings, steps=args.walk, seed=args.seed or 0, progress=progress, stop=stop)
    print(json.dumps(walked.record()) if args.json else "\n".join(walked.lines()))
    if walked.finding is not None and folder is not None:
        files, notes = write_story(walked.finding.story(), folder)
        if not args.json:
            print("\n".join([*(f"wrote {name}" for name in files), *notes]))
        for note in notes if args.json else ():  # the report is out already
            complain(note)
    return WRONG if walked.finding else INTERRUPTED if walked.interrupted else OK


# --- counterexamples --------------------------------------------------------------------------------------------------------


def _place(folder: Path, found: Refuted, *, many: bool) -> Path:
    """Where the files of a counterexample go; with *many* each rule gets a folder of its own."""
    return folder / found.counterexample.rule.replace(" ", "-") if many else folder


def _written(found: Refuted, where: Path | None) -> Refuted:
    """With the files that were written, if any are wanted."""
    if where is None:
        return found
    files, notes = write_story(found.story, where)
    return evolve(found, files=files, notes=notes)


def write_story(story: Story, where: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write all forms; a scenario that does not show the same is written all the same, and said to be so.

    The files that were written, and notes. A file that cannot be written is a note: what was found counts for more.
    """
    from blocklife.testing.exploring._story_forms import diagram, program, replayed, scenario_text

    notes: list[str] = []
    forms: dict[str, str] = {FILES[0]: str(story), FILES[2]: program(story), FILES[3]: diagram(story)}
    try:
        forms[FILES[1]] = scenario_text(story)
        if problem := replayed(story):
            notes.append(f"{where / FILES[1]}: {problem}")
    except MisuseError as problem:
        notes.append(f"{where / FILES[1]} was not written: {problem}")
    files: list[str] = []
    for name in FILES:
        if name not in forms:
            continue
        try:
            where.mkdir(parents=True, exist_ok=True)
            write_whole(str(where / name), forms[name])
            files.append(str(where / name))
        except OSError as problem:
            notes.append(f"{where / name} was not written: {problem.strerror or problem}")
        except MisuseError as problem:
            notes.append(f"not written: {problem}")
    return tuple(files), tuple(notes)


# --- what is said -----------------------------------------------------------------------------------------------------------


def _never(world: World) -> dict[str, list[str]]:
    """The rows of each table that were never taken."""
    return {name: [str(row) for row, times in rows.items() if not times] for name, rows in world.coverage().items()}


def _record(world: World, pinned: str | None, found: Exploration[Action], stories: Sequence[Refuted]) -> dict[str, object]:
    from blocklife.testing.worlds._format import words_of

    never, meanings = _never(world), _meanings(world)
    return {
        "world": words_of(world.settings),
        "name": pinned,
        "verdict": found.verdict.name.lower(),
        "complete": found.complete,
        "interrupted": found.interrupted,
        "bounds_hit": list(found.bounds_hit),
        "states": found.states,
        "edges": found.edges,
        "depth": found.depth,
        "seconds": round(found.seconds, 3),
        "states_per_second": round(found.states_per_second),
        "calls": world.core_calls,
        "properties": [
            {
                "name": name,
                "kind": found.kinds.get(name, "step"),
                "verdict": verdict.name.lower(),
                "means": meanings.get(name, ""),
            }
            for name, verdict in found.verdicts.items()
        ],
        "counterexamples": [
            {
                "rule": each.counterexample.rule,
                "message": each.story.message,
                "actions": [str(step.named) for step in each.story.steps],
                "story": str(each.story),
                "files": list(each.files),
                "notes": list(each.notes),
            }
            for each in stories
        ],
        "rows": {name: len(rows) for name, rows in world.coverage().items()},
        "rows_never_taken": never,
    }


def _print_files(found: Refuted) -> None:
    for name in found.files:
        print(f"wrote {name}")
    for note in found.notes:
        print(f"note: {note}")


def _meanings(world: World) -> dict[str, str]:
    """What each property and rule says, in a phrase."""
    from blocklife.testing.worlds._cross_checks import MEANINGS

    return {**MEANINGS, **{each.name: each.doc for each in world.properties()}}


def _print(world: World, found: Exploration[Action], *, verbose: bool) -> None:
    """The verdict, what it is about, and each property with its own."""
    from rich.console import Console
    from rich.table import Table

    from blocklife.testing.worlds._format import said

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.begin_capture()  # so that print meets a reader that has gone, or a full disk, and not rich
    console.print(_conclusion(found))
    for bound in found.bounds_hit:
        console.print(f"stopped at a limit: {bound}")
    console.print(f"\n{said(world.settings)}\n")
    meanings = _meanings(world)
    table = Table(box=None, pad_edge=False)
    for title in ("property", "kind", "verdict"):
        table.add_column(title, no_wrap=True)
    table.add_column("means")
    for name, verdict in found.verdicts.items():
        told = verdict.name if verdict.name == "VIOLATED" else verdict.name.lower()
        table.add_row(name, found.kinds.get(name, "step").replace("_", " "), told, meanings.get(name, ""))
    console.print(table)
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("states", f"{found.states:,}")
    table.add_row("edges", f"{found.edges:,}")
    table.add_row("depth", f"{found.depth:,}")
    table.add_row("speed", f"{found.states_per_second:,.0f} states per second, {found.seconds:.1f} s")
    table.add_row("calls", f"{world.core_calls:,} of the real code")
    console.print(table)
    console.print()
    _print_rows(console.print, world, verbose=verbose)
    print("".join(f"{line.rstrip()}\n" for line in console.end_capture().splitlines()), end="")


def _print_rows(say: Callable[[str], None], world: World, *, verbose: bool) -> None:
    """How many rows of the tables were taken; and which were not, if that is wanted."""
    never = _never(world)
    rows = sum(map(len, world.coverage().values()))
    missing = sum(map(len, never.values()))
    more = (", never:" if verbose else " (-v names the others)") if missing else ""
    say(f"{rows - missing} of {rows} rows of the tables were taken{more}")
    for name, each in never.items() if verbose else ():
        for row in each:
            say(f"  {name} {row}")


def _conclusion(found: Exploration[Action]) -> str:
    from blocklife.testing.exploring._explore import Verdict

    if found.verdict is Verdict.VIOLATED:
        return "VIOLATED"
    if found.interrupted:
        return "interrupted: nothing is violated so far; the figures are those so far"
    if not found.complete:
        return "INCOMPLETE: nothing is violated so far, and not every state was visited"
    return "holds: every state was visited"
