"""``python -m tests.vllm.watched``: what the watch sees when random traffic runs under vLLM's real scheduler.

``seeds`` (no vLLM needed here: it starts the releases that were fetched) runs the seed bugs' worlds in every release and says
at which step which rule fell, and at which step vLLM itself or the bytes were wrong. ``long`` runs the worlds in which a
release should be silent, for as many steps as are asked for, and stops at the first violation. ``seed`` is one row, in this
process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import asdict, evolve, frozen

from tests.vllm.releases import CHECKSUMS, Shelf
from tests.vllm.run import python

if TYPE_CHECKING:
    from tests.vllm.rig import Rig
    from tests.vllm.worlds import World

STEPS = 300
DRAIN = 400
STUCK = 100
"""An engine that computes nothing for so many steps has come to a stand: requests wait for each other. That is no run."""
SLICE = 2000
"""Steps of one seed of a long run."""


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
    """What was wrong first: bytes, an error of vLLM's own, a block stored twice, or a copy left behind."""


# --- one seed, where vLLM is ----------------------------------------------------------------------------------------------


def run_seed(name: str, seed: int, steps: int) -> Row:
    """Drive one seed of a world that has a name."""
    from tests.vllm.worlds import WORLDS

    return list(driven(name, WORLDS[name], seed, steps))[-1]


def driven(name: str, world: World, seed: int, steps: int) -> Iterator[Row]:
    """The row of a seed, as it stands after each step; it ends when vLLM falls, or when all is done."""
    from blocklife.engines.vllm.watch import Mode, Options, attach
    from tests.vllm.engine import RELEASE
    from tests.vllm.rig import Rig
    from tests.vllm.traffic import Traffic

    rig = Rig(world.spec, seed)
    watch = attach(rig.scheduler, Options(mode=Mode.COUNT))
    traffic = Traffic.drawn(rig, seed, world=world)
    rules: dict[str, int] = {}
    trouble: tuple[int, str] | None = None
    verified = moved = 0
    for number in range(steps + DRAIN):
        if number < steps:
            traffic.act()
        elif rig.idle:
            break
        fallen = None
        try:
            rig.step()
        except Exception as error:
            fallen = (rig.step_number, type(error).__name__)
        for violation in watch.violations:
            rules.setdefault(violation.rule, rig.step_number)
        trouble = trouble or _trouble(rig) or fallen
        step, what = trouble or (None, "")
        yield Row(RELEASE, name, seed, rig.step_number, dict(rules), step, what)
        if rig.verified > verified or rig.idle:
            verified, moved = rig.verified, number
        if fallen is not None or number - moved > STUCK:
            break


def _trouble(rig: Rig) -> tuple[int, str] | None:
    if rig.corruptions:
        return rig.corruptions[0].step, "wrong bytes"
    if any(rank.copies.stored_twice for rank in rig.ranks):
        return rig.step_number, "stored twice"
    if rig.idle and rig.left_behind:
        return rig.step_number, "left behind"
    return None


# --- the table of seeds ---------------------------------------------------------------------------------------------------


def child(release: str, *words: str) -> Iterator[str]:
    """The lines that this module says under a release, in a process of its own."""
    command = python(Shelf(), release, ["-m", "tests.vllm.watched", *words], {**os.environ, "PYTHONHASHSEED": "0"})
    with subprocess.Popen(
        command.words,
        cwd=command.folder,
        env=dict(command.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield from process.stdout or ()
        except BaseException:
            process.terminate()
            raise


def table(releases: Sequence[str], seeds: Sequence[int], steps: int) -> list[Row]:
    """All rows, with a line of progress each."""
    rows: list[Row] = []
    worlds = sorted({bug.world for bug in BUGS})
    for release in releases:
        for line in child(release, "seed", "--steps", str(steps), "--seeds", *map(str, seeds), "--worlds", *worlds):
            if line.startswith("{"):
                rows.append(Row(**json.loads(line)))
                row = rows[-1]
                print(f"{release} {row.world} seed {row.seed}: {dict(row.rules)} {row.what}", file=sys.stderr, flush=True)
    return rows


def _steps(found: Sequence[int]) -> str:
    return f"{statistics.median(found):.0f} ({min(found)} to {max(found)})" if found else ""


def markdown(rows: Sequence[Row]) -> str:
    """The table: for each bug and release in how many seeds the rule fell, when, and whether it fell in time."""
    lines = [
        "| bug | release | seeds | rule fell | at step: median (range) | without the watch | at step | late | other rules |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for bug in BUGS:
        for release in sorted({row.release for row in rows}):
            own = [row for row in rows if row.release == release and row.world == bug.world]
            fell = [row.rules[bug.rule] for row in own if bug.rule in row.rules]
            wrong = [row for row in own if row.trouble is not None]
            late = [row for row in wrong if row.rules.get(bug.rule, sys.maxsize) > (row.trouble or 0)]
            others = sorted({rule for row in own for rule in row.rules} - {bug.rule})
            kinds = sorted({row.what for row in wrong})
            cells = [f"{bug.number}, {bug.about}", release, str(len(own)), f"{bug.rule} in {len(fell)}" if fell else "none"]
            cells += [_steps(fell), f"{len(wrong)} {', '.join(kinds)}".strip(), _steps([row.trouble or 0 for row in wrong])]
            cells += [str(len(late)), ", ".join(others)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# --- the long run ---------------------------------------------------------------------------------------------------------


def long_run(steps: int, first_seed: int, log: Path | None) -> int:
    """Worlds in turn, a slice of steps each, until there are enough. Exit status 1 at the first violation."""
    from tests.vllm.worlds import GroupSpec, Lag, World, WorldSpec

    full, window, state = GroupSpec("full"), GroupSpec("swa", window=8), GroupSpec("mamba")
    lag = Lag(0, 4)
    worlds = {
        "full": World("", WorldSpec((full,), 24, 24, max_num_batched_tokens=16, lag=lag), connector_resets=True),
        "window": World("", WorldSpec((window,), 20, 24, max_num_batched_tokens=16, lag=lag, refusals=0.3), busy=True),
        "hybrid": World("", WorldSpec((full, window), 40, 40, max_num_batched_tokens=16, lag=lag, refusals=0.2)),
        "states": World("", WorldSpec((full, window, state), 60, 60, max_num_batched_tokens=16, lag=lag)),
        "chunks": World("", WorldSpec((full,), 40, 64, max_num_batched_tokens=16, blocks_per_chunk=4, lag=lag)),
        "sync loads": World(
            "",
            WorldSpec(
                (full, window), 40, 40, max_num_batched_tokens=16, lag=lag, extra_config={"sync_load_budget_bytes": 100_000}
            ),
        ),
        "simple": World(
            "", WorldSpec((full,), 32, 48, max_num_batched_tokens=16, connector="simple", lag=Lag(1, 4)), busy=True
        ),
        "simple hybrid": World("", WorldSpec((full, window), 48, 48, 8, 16, connector="simple", lag=Lag(1, 4))),
    }
    total, began, number, silent, line = 0, time.monotonic(), 0, True, ""
    out = None if log is None else log.open("a", encoding="utf-8")
    while total < steps and silent:
        name, world = list(worlds.items())[number % len(worlds)]
        ways = number // len(worlds) % 4
        spec = evolve(world.spec, async_scheduling=bool(ways & 1), world_size=1 + (ways >> 1))
        for row in driven(name, evolve(world, spec=spec), first_seed + number, SLICE):
            line = json.dumps({**asdict(row), "async": spec.async_scheduling, "workers": spec.world_size, "before": total})
            silent = not row.rules and row.trouble is None
            if not silent:
                break
        total, number = total + json.loads(line)["steps"], number + 1
        print(line, file=out or sys.stdout, flush=True)
    what = f"{total} steps, {number} runs, {time.monotonic() - began:.0f} s"
    print(f"{what}: {'silent' if silent else f'not silent: {line}'}", file=sys.stderr)
    return not silent


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.watched", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    seeds = actions.add_parser("seeds", help="the table of seed bugs, over all releases")
    seeds.add_argument("--releases", nargs="+", default=sorted(CHECKSUMS))
    seeds.add_argument("--num-seeds", type=int, default=20)
    seeds.add_argument("--steps", type=int, default=STEPS)
    seeds.add_argument("--json", type=Path, help="write all rows there, too")
    seed = actions.add_parser("seed", help="rows of some seeds, in this process")
    seed.add_argument("--worlds", nargs="+", required=True)
    seed.add_argument("--seeds", nargs="+", type=int, required=True)
    seed.add_argument("--steps", type=int, default=STEPS)
    long = actions.add_parser("long", help="a long run that should be silent, in this process")
    long.add_argument("--steps", type=int, default=1_000_000)
    long.add_argument("--first-seed", type=int, default=0)
    long.add_argument("--log", type=Path, help="one line a run goes there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for."""
    chosen = parsed(arguments)
    try:
        if chosen.action == "long":
            return long_run(chosen.steps, chosen.first_seed, chosen.log)
        if chosen.action == "seed":
            for world in chosen.worlds:
                for seed in chosen.seeds:
                    print(json.dumps(asdict(run_seed(world, seed, chosen.steps))), flush=True)
            return 0
        rows = table(chosen.releases, range(chosen.num_seeds), chosen.steps)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    print(markdown(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
