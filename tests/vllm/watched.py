"""``python -m tests.vllm.watched seeds``: what the watch sees when random traffic runs under vLLM's real scheduler.

``seeds`` (no vLLM needed here: it starts the releases that were fetched) runs the seed bugs' worlds in every release and says
at which step which rule fell, and at which step vLLM itself or the bytes were wrong. ``long`` runs the worlds in which a
release should be silent, for as many steps as are asked for, and stops at the first violation. ``seed`` is one row, in this
process. These two need vLLM: ``python -m tests.vllm.run --python VERSION -m tests.vllm.watched long``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from attrs import asdict, evolve, frozen

from tests.behind.shelf import Command
from tests.programs import importing, natural, positive, refused, stoppable, target
from tests.programs import table as tabled
from tests.vllm.releases import CHECKSUMS, Shelf
from tests.vllm.run import chosen_command
from tests.vllm.worlds import LONG, WORLDS, World

if TYPE_CHECKING:
    from blocklife.engines.vllm.watch import Watch, WorkerWatch
    from tests.vllm.rig import Rig

STEPS = 300
DRAIN = 400
STUCK = 100
"""An engine that computes nothing for so many steps, and has requests, stands still: they wait for each other."""
SLICE = 2000
"""Steps of one seed of a long run."""
PROGRESS_S = 60.0
TAIL = 20
"""Lines that are shown of what a process that failed has said last."""

Trouble: TypeAlias = tuple[int, str]
"""A step, and what was wrong then."""


@frozen
class Bug:
    """A fault that was mended upstream, with the world that shows it and the rule that it breaks."""

    number: str
    about: str
    world: str
    rule: str
    releases: tuple[str, ...]


BUGS = (
    Bug("42945", "group sizes count null blocks", "chunks", "I15", ("0.21.0",)),
    Bug("41289", "a block is stored while its store is in flight", "simple", "I14", ("0.21.0",)),
    Bug("42611", "the last step leaves stores behind", "full", "I5", ("0.21.0",)),
    Bug("42959", "blocks are stored that have a new tenant", "window", "I8", ("0.21.0", "0.22.1")),
)

SEED_WORLDS = ("full", "window", "window-async", "chunks", "simple")
"""The worlds of the table."""


@frozen
class Row:
    """One seed of one world in one release: the first step of each rule, and of whatever was wrong without the watch."""

    release: str
    world: str
    seed: int
    steps: int
    rules: Mapping[str, int]
    trouble: int | None
    what: str
    """What was wrong first: bytes, vLLM's own error, a block stored twice, a copy left behind, no way on, or a lost watch."""


# --- one seed, where vLLM is ----------------------------------------------------------------------------------------------


def run_seed(name: str, seed: int, steps: int) -> Row:
    """Drive one seed of a world that has a name."""
    return list(driven(name, WORLDS[name], seed, steps))[-1]


def driven(
    name: str,
    world: World,
    seed: int,
    steps: int,
    judge: Callable[[Rig], Trouble | None] | None = None,
    *,
    workers: bool = False,
) -> Iterator[Row]:
    """The row of a seed, as it stands after each step; it ends when vLLM falls, or when all is done.

    A *judge* says in the place of `trouble_of` what is wrong without the watch. With *workers* they are watched, too.
    """
    from blocklife.engines.vllm.watch import Options, WatchMode, attach, attach_worker
    from tests.vllm.engine import RELEASE
    from tests.vllm.rig import Rig
    from tests.vllm.traffic import Traffic

    judge, options = judge or trouble_of, Options(mode=WatchMode.COUNT)
    rig = Rig(world.spec, seed)
    watch = attach(rig.scheduler, options)
    sides = [rank.worker.side for rank in rig.ranks if workers and rank.worker is not None]
    watches: list[Watch | WorkerWatch] = [watch, *(attach_worker(side, options) for side in sides)]
    traffic = Traffic.drawn(rig, seed, world=world)
    rules: dict[str, int] = {}
    trouble: Trouble | None = None
    verified = moved = 0
    for number in range(steps + DRAIN):
        if number >= steps and rig.idle:
            break
        fallen = None
        try:
            if number < steps:
                traffic.act()
            rig.step()
        except Exception as error:
            fallen = (rig.step_number, type(error).__name__)
        for violation in (violation for each in watches for violation in each.violations):
            rules.setdefault(violation.rule, rig.step_number)
        lost = None if watch.lost is None else (rig.step_number, "the watch is lost")
        trouble = trouble or judge(rig) or fallen or lost
        step, what = trouble or (None, "")
        yield Row(RELEASE, name, seed, rig.step_number, dict(rules), step, what)
        if rig.verified > verified or rig.idle:
            verified, moved = rig.verified, number
        if number - moved > STUCK:
            yield Row(RELEASE, name, seed, rig.step_number, dict(rules), *(trouble or (rig.step_number, "stands still")))
        if fallen is not None or number - moved > STUCK:
            break
    for each in watches:
        each.close()  # until then a process that ends would close it
    rig.close()


def trouble_of(rig: Rig) -> Trouble | None:
    """What is wrong after a step, if there is something."""
    if rig.corruptions:
        return rig.corruptions[0].step, "wrong bytes"
    if any(rank.copies.stored_twice for rank in rig.ranks):
        return rig.step_number, "stored twice"
    if rig.idle and rig.left_behind:
        return rig.step_number, "left behind"
    return None


# --- the table of seeds ---------------------------------------------------------------------------------------------------


class ChildError(Exception):
    """A process has failed; the message is its status, and the end of what it has said on standard error."""


def command_for(shelf: Shelf, release: str, seeds: Sequence[int], steps: int) -> Command:
    """All seeds of a release in a process of its own. A release that is not here is refused as by ``tests.vllm.run``."""
    words = ["seed", "--steps", str(steps), "--seeds", *map(str, seeds), "--worlds", *SEED_WORLDS]
    around = {**os.environ, "PYTHONHASHSEED": "0"}
    return chosen_command(["--python", release, "-m", "tests.vllm.watched", *words], shelf, around)


def child(command: Command) -> Iterator[str]:
    """The lines that a command says; at their end `ChildError`, if it has failed."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        subprocess.Popen(
            command.words, cwd=command.folder, env=dict(command.environ), stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        try:
            yield from process.stdout or ()
        except BaseException:
            process.terminate()
            raise
        if status := process.wait():
            said.seek(0)
            raise ChildError("\n".join([f"failed with status {status}", *said.read().splitlines()[-TAIL:]]))


def table(commands: Mapping[str, Command]) -> tuple[list[Row], list[str]]:
    """All rows of the releases' processes, with a line of progress each; and what has failed."""
    rows: list[Row] = []
    failures: list[str] = []
    for release, command in commands.items():
        try:
            for line in child(command):
                if line.startswith("{"):
                    rows.append(row := Row(**json.loads(line)))
                    print(f"{release} {row.world} seed {row.seed}: {dict(row.rules)} {row.what}", file=sys.stderr, flush=True)
        except ChildError as error:
            failures.append(f"vLLM {release} {error}")
    return rows, failures


def _steps(found: Sequence[int]) -> str:
    return f"{statistics.median(found):.0f} ({min(found)})" if found else ""


def _late(row: Row) -> bool:
    """Whether something was wrong before any rule fell."""
    return row.trouble is not None and min(row.rules.values(), default=sys.maxsize) > row.trouble


def missed(rows: Sequence[Row], releases: Sequence[str]) -> list[str]:
    """What was missed, a line each: something wrong before any rule fell, a bug that no seed shows, a release without a row."""
    found = [f"{row.release} {row.world} seed {row.seed}: {row.what} at step {row.trouble}" for row in rows if _late(row)]
    there = {row.release for row in rows}
    found += [f"{release}: not one row" for release in releases if release not in there]
    for bug in BUGS:
        for release in sorted(there.intersection(bug.releases)):
            if not any(row.release == release and row.world == bug.world and bug.rule in row.rules for row in rows):
                found.append(f"{release}: no seed of the world {bug.world} breaks {bug.rule} ({bug.about})")
    return found


def markdown(rows: Sequence[Row]) -> str:
    """For each release and world in how many seeds which rule fell, when, and whether in time; then every seed, briefly."""
    heads = ["release", "world", "seeds", "rule: seeds, step: median (first)", "wrong without the watch", "step", "late"]
    lines, each = list[list[str]](), list[list[str]]()
    for release in sorted({row.release for row in rows}):
        for world in SEED_WORLDS:
            own = [row for row in rows if row.release == release and row.world == world]
            fell: dict[str, list[int]] = {}
            for row in own:
                for rule, step in row.rules.items():
                    fell.setdefault(rule, []).append(step)
            told = [f"{rule}: {len(steps)}, {_steps(steps)}" for rule, steps in sorted(fell.items())]
            wrong = [row for row in own if row.trouble is not None]
            kinds = [f"{what}: {sum(row.what == what for row in wrong)}" for what in sorted({row.what for row in wrong})]
            cells = [release, world, str(len(own)), "; ".join(told) or "silent", "; ".join(kinds) or "nothing"]
            cells += [_steps([row.trouble or 0 for row in wrong]), str(sum(map(_late, own)))]
            lines.append(cells)
            if told:
                each.append([release, world, ", ".join(map(_seed, own))])
    seeds = ["release", "world", "seed: step of each rule / step at which something was wrong"]
    return f"{tabled(heads, lines)}\n{tabled(seeds, each)}"


def _seed(row: Row) -> str:
    told = " ".join(f"{rule} {step}" for rule, step in row.rules.items()) or "-"
    return f"{row.seed}: {told} / {'-' if row.trouble is None else row.trouble}"


# --- the long run ---------------------------------------------------------------------------------------------------------


def logged(log: Path) -> list[int]:
    """The steps of each run that a log tells of; none where it is not there. What is no log is refused."""
    if not log.exists():
        return []
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        refused("tests.vllm.watched", f"{log} cannot be read as the log of a long run: {error} (name another file)")
    return [_steps_of(line, f"{log}, line {number}") for number, line in enumerate(lines, 1)]


def _steps_of(line: str, where: str) -> int:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    steps = row.get("steps") if isinstance(row, dict) else None
    if type(steps) is not int or steps < 1:
        refused("tests.vllm.watched", f"{where}: not the line of a long run (remove it, or name another file)")
    return steps


def long_run(steps: int, first_seed: int, log: Path | None, done: Sequence[int]) -> int:
    """Worlds in turn, a slice of steps each, until there are enough. Exit status 1 at the first violation.

    It goes on behind those *done*, which the *log* tells of; a slice that was not silent is not in it.
    """
    total, number, began, told = sum(done), len(done), time.monotonic(), 0.0
    if done:
        print(f"goes on behind {total} steps in {number} runs ({log})", file=sys.stderr)
    worlds, first, line, silent = list(LONG.items()), total, "", True
    with contextlib.ExitStack() as stack:
        out = sys.stdout if log is None else stack.enter_context(log.open("a", encoding="utf-8"))
        while total < steps and silent:
            name, world = worlds[number % len(worlds)]
            ways = number // len(worlds) % 4
            spec = evolve(world.spec, async_scheduling=bool(ways & 1), world_size=1 + (ways >> 1))
            for row in driven(name, evolve(world, spec=spec), first_seed + number, SLICE):
                told = _progress(told, began, total - first + row.steps, steps - first)
                line = json.dumps({**asdict(row), "async": spec.async_scheduling, "workers": spec.world_size})
                silent = not row.rules and row.trouble is None
                if not silent:
                    break
            total, number = total + json.loads(line)["steps"], number + 1
            if silent:
                print(line, file=out, flush=True)
    spent = time.monotonic() - began
    what = f"{total} steps in {number} runs; {total - first} of them in {spent:.0f} s, {(total - first) / spent:.0f} a second"
    print(f"{what}: {'silent' if silent else f'not silent: {line}'}", file=sys.stderr)
    return not silent


def _progress(told: float, began: float, done: int, wanted: int) -> float:
    """Say once in a while how far it is. Returns when that was said last."""
    now = time.monotonic()
    if now - max(told, began) < PROGRESS_S:
        return told
    left = (wanted - done) * (now - began) / done
    print(f"{done} of {wanted} steps, {left / 60:.0f} minutes left", file=sys.stderr, flush=True)
    return now


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.watched", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    seeds = actions.add_parser("seeds", help="the table of seed bugs, over all releases")
    seeds.add_argument("--releases", nargs="+", default=sorted(CHECKSUMS))
    seeds.add_argument("--num-seeds", type=positive, default=20)
    seeds.add_argument("--steps", type=positive, default=STEPS)
    seeds.add_argument("--json", type=target, help="write all rows there, too")
    seed = actions.add_parser("seed", help="rows of some seeds, in this process")
    seed.add_argument("--worlds", nargs="+", choices=sorted(WORLDS), required=True)
    seed.add_argument("--seeds", nargs="+", type=natural, required=True)
    seed.add_argument("--steps", type=positive, default=STEPS)
    long = actions.add_parser("long", help="a long run that should be silent, in this process")
    long.add_argument("--steps", type=positive, default=1_000_000)
    long.add_argument("--first-seed", type=natural, default=0)
    long.add_argument("--log", type=target, help="one line a run goes there; what is there already is not run again")
    return parser.parse_args(arguments)


def table_run(shelf: Shelf, releases: Sequence[str], num_seeds: int, steps: int, file: Path | None) -> int:
    """The table of seeds. Exit status 1 where something was missed, or a release has failed."""
    commands = {release: command_for(shelf, release, range(num_seeds), steps) for release in releases}
    rows, failures = table(commands)
    print(markdown(rows), end="", flush=True)
    for failure in failures:
        print(failure, file=sys.stderr)
    problems = missed(rows, list(commands))
    for problem in problems:
        print(f"missed: {problem}", file=sys.stderr)
    if file is not None:
        try:
            file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            refused("tests.vllm.watched", f"{file} cannot be written: {error.strerror} (the table is above)")
    return bool(failures or problems)


def seed_run(worlds: Sequence[str], seeds: Sequence[int], steps: int) -> int:
    """A row for each seed of each world."""
    for world in worlds:
        for seed in seeds:
            print(json.dumps(asdict(run_seed(world, seed, steps))), flush=True)
    return 0


@stoppable
def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for."""
    chosen = parsed(arguments)
    if chosen.action == "seeds":
        return table_run(Shelf(), chosen.releases, chosen.num_seeds, chosen.steps, chosen.json)
    done = [] if chosen.action == "seed" or chosen.log is None else logged(chosen.log)
    with importing(f"tests.vllm.watched {chosen.action}"):
        importlib.import_module("tests.vllm.rig")  # it takes a while, and is no step
    if chosen.action == "seed":
        return seed_run(chosen.worlds, chosen.seeds, chosen.steps)
    return long_run(chosen.steps, chosen.first_seed, chosen.log, done)


if __name__ == "__main__":
    sys.exit(main())
