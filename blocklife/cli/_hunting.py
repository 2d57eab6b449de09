"""`blocklife check --walk` and `--mutants`: long random ways through a world, and every rule switched off in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from blocklife.cli._common import (
    INTERRUPTED,
    OK,
    WRONG,
    Occasional,
    check_writable,
    complain,
    on_terminal,
    refuse_overwriting,
    stopping,
    write_whole,
)
from blocklife.cli._exploring import folder_for, write_story
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from blocklife.testing.mutants._judging import Judgement
    from blocklife.testing.worlds._world import WorldSettings


def walk_in(settings: WorldSettings, args: argparse.Namespace) -> int:
    """Walk through a world at random, and print what was met."""
    from blocklife.testing.exploring._walk import walk

    if args.walk < 1:
        raise MisuseError(f"--walk must be at least 1 step, not {args.walk}")
    folder = folder_for(args.write, args.file)
    with stopping() as stop, _steps(args.walk) as progress:
        walked = walk(settings, steps=args.walk, seed=args.seed or 0, progress=progress, stop=stop)
    print(json.dumps(walked.record()) if args.json else "\n".join(walked.lines()))
    if walked.finding is not None and folder is not None:
        files, notes = write_story(walked.finding.story(), folder)
        if not args.json:
            print("\n".join([*(f"wrote {name}" for name in files), *notes]))
        for note in notes if args.json else ():  # the report is out already
            complain(note)
    return WRONG if walked.finding else INTERRUPTED if walked.interrupted else OK


@contextlib.contextmanager
def _steps(total: int) -> Iterator[Callable[[int, int, int], None]]:
    with on_terminal(lambda: _columns("walk", "{task.fields[said]}")) as bar:
        if bar is None:
            line = Occasional("walk")
            yield lambda steps, legs, states: line(lambda: f"{steps:,} of {total:,} steps, {legs:,} legs, {states:,} states")
            return
        task = bar.add_task("", total=total, said="")
        yield lambda steps, legs, states: bar.update(
            task, completed=steps, said=f"{steps:,} steps, {legs:,} legs, {states:,} states"
        )


def _columns(name: str, said: str) -> list[str | ProgressColumn]:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    return [TextColumn(name), BarColumn(), TextColumn(said), TimeElapsedColumn()]


def hunt(args: argparse.Namespace) -> int:
    """Judge every mutant, and print what each was found by."""
    from blocklife.testing.mutants._judging import grounds, judge_all
    from blocklife.testing.mutants._planting import all_mutants
    from blocklife.testing.mutants._table import holes, lines, page, read_caught

    every = all_mutants()
    tests = read_caught(args.tests, [each.name for each in every]) if args.tests else {}
    mutants = [each for each in every if args.mutants in each.name]
    if not mutants:
        raise MisuseError(f"--mutants {args.mutants!r}: no mutant has that in its name")
    if args.page and args.mutants:
        raise MisuseError(f"--page {args.page} needs all mutants (leave out what --mutants names)")
    if args.page == "-":
        raise MisuseError("--page -: standard output takes the report (name a file)")
    if args.page:
        refuse_overwriting(args.page, args.tests)
        check_writable(args.page)
    with stopping() as stop, _judged(len(mutants)) as progress:
        judged = judge_all(mutants, grounds(), processes=os.cpu_count() or 1, progress=progress, stop=stop)
    if args.json:
        print(json.dumps([{**attrs.asdict(each), "fate": each.fate.name.lower(), "length": each.length} for each in judged]))
    else:
        print("\n".join(lines(judged, tests)))
    if len(judged) < len(mutants):
        return INTERRUPTED
    if args.page:
        write_whole(args.page, page(judged, tests))
    return WRONG if holes(judged, tests, whole=not args.mutants) else OK


@contextlib.contextmanager
def _judged(total: int) -> Iterator[Callable[[int, Judgement], None]]:
    with on_terminal(lambda: _columns("mutants", "{task.completed}/{task.total} {task.fields[said]}")) as bar:
        if bar is None:
            complain(f"mutants: {total} to judge; first the worlds as they are")
            line = Occasional("mutants")
            yield lambda number, judgement: line(
                lambda: f"{number} of {total}; {judgement.fate.name.lower()}: {judgement.mutant[:60]}"
            )
            return
        task = bar.add_task("", total=total, said="first the worlds as they are")
        yield lambda number, judgement: bar.update(
            task, completed=number, said=f"{judgement.fate.name.lower()}: {judgement.mutant[:60]}"
        )
