"""Write down what random walks do to every column: the same program, run by the interpreted core or by the compiled one.

    python -m tests.both_ways.trace ledger 0 --interpreted
    python -m tests.both_ways.trace pool 7

One JSON object a call: the walk, the number of the call, the call with what came of it, and the columns after it; of a long
column its digest. There are walks over the verbs of the ledger (`drawing`), over the scheduler of an engine that makes no
mistake and of one that owns the pool (`scheduling`), through the pinned worlds of the explorer, which have all kinds of groups
and a store below, and the steps of many requests in `tests/bench`.

With ``--interpreted`` the modules of the core are read from their sources, whatever lies beside those.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, TypeAlias

from blocklife.cli import _built as built

if TYPE_CHECKING:
    from types import ModuleType

    from blocklife.ledger import Ledger
    from blocklife.lifecycle import Row
    from blocklife.offload import OffloadScheduler

LONGEST = 200
"""Characters of a column that is written as it is."""
LEGS, LEDGER_STEPS, SCHEDULER_STEPS, POOL_STEPS, WORLD_STEPS, CROWD_STEPS = 2, 40, 40, 30, 60, 40
PARTS = 4
"""Into how many walks the pinned worlds are divided."""
CROWD = 64
"""Requests that run at once, so that batches take the paths for many."""

PINNED: Mapping[str, Sequence[int]] = {
    "ledger": range(6), "scheduler": (1, 2, 3), "pool": range(3), "worlds": range(PARTS), "crowd": (3,)
}  # fmt: skip
"""The walks that take every row, with their seeds."""
NIGHTLY = range(100, 120)
"""More seeds, for the night."""

Put: TypeAlias = "Callable[[str], object] | None"
"""Takes one line; without it nothing is written, and each walk is judged instead."""


class SourceFinder(MetaPathFinder):
    """Finds the modules of the core as sources, before anybody finds an extension."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Asked for every import."""
        package, _, name = fullname.partition(".")
        if package != "blocklife" or name not in built.CORE:
            return None
        return importlib.util.spec_from_file_location(fullname, built.source_of(name))


def how_it_runs() -> str:
    """How the modules of the core run that have been imported: `interpreted`, `compiled`, or both."""
    found = set()
    for name in built.CORE:
        if module := sys.modules.get(f"blocklife.{name}"):
            found.add("interpreted" if str(module.__file__).endswith(".py") else "compiled")
    return " and ".join(sorted(found))


# --- columns -----------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """A text without what says where a thing lies in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def spell(value: object) -> str:
    """A column as text; the digest of one that is long."""
    text = plain(repr(value))
    return text if len(text) <= LONGEST else f"{hashlib.sha256(text.encode()).hexdigest()[:16]} of {len(text)}"


def columns_of(name: str, value: object) -> Iterator[tuple[str, str]]:
    """A value as columns: a record by its fields, rows of records by theirs."""
    rows = value if isinstance(value, tuple) and not hasattr(value, "_fields") else (value,)
    fields: Sequence[str] = getattr(rows[0], "_fields", ()) if rows else ()
    if not fields:
        yield name, spell(value)
    for field in fields:
        found = [getattr(row, field) for row in rows]
        yield from columns_of(f"{name}.{field}", found[0] if rows[0] is value else found)


def told(ledger: Ledger) -> str:
    """The journal; how many places make an array of a batch is another number where loops are compiled."""
    return spell(
        [
            (each.sequence, each.plan, each.machine, each.event, each.steps(), list(each.job_of_each()), each.request)
            for each in ledger.journal
        ]
    )


def counted(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What a ledger counts and tells, none of which is in a snapshot."""
    yield "journal", told(ledger)
    yield "statistics", spell(ledger.statistics())
    for name in ("tally", "flushes", "ended", "moved"):
        yield f"counts.{name}", spell(sorted(getattr(ledger.counts, name).items()))
    for name in ("blocks", "slots", "jobs", "requests"):
        yield f"rows of {name}", spell([times for _, times in getattr(ledger, name).row_counts()])
    yield "verdicts", spell(ledger.jobs.verdicts)
    yield "jobs that serve", spell([ledger.jobs.serve(name) for name in ("gone", *ledger.requests)])


def ledger_columns(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Everything that decides what a ledger does next, column by column, and what it has counted and told."""
    yield from columns_of("ledger", ledger.snapshot())
    yield from counted(ledger)


def scheduler_columns(scheduler: OffloadScheduler) -> Iterator[tuple[str, str]]:
    """The same of a scheduler, and of its ledger."""
    yield from columns_of("scheduler", scheduler.snapshot())
    yield from counted(scheduler.ledger)
    yield "statistics of the scheduler", spell(scheduler.statistics())
    yield "rows of the scheduler", spell([list(rows.values()) for rows in scheduler.requests.row_counts().values()])


# --- walks -------------------------------------------------------------------------------------------------------------


class Sheet:
    """Where one walk is written down, if it is."""

    def __init__(self, walk: str, put: Put) -> None:
        self.walk, self._put, self.calls = walk, put, 0

    def note(self, call: str, columns: Iterator[tuple[str, str]]) -> None:
        """One call is over."""
        self.calls += 1
        if self._put is not None:
            told = {"walk": self.walk, "number": self.calls, "call": plain(call), "columns": dict(columns)}
            self._put(json.dumps(told) + "\n")


def walk_ledger(seed: int, put: Put) -> Taken:
    """Every verb of the ledger, under both contracts, in both pools, with one worker to three; refused calls among them."""
    from tests.both_ways.drawing import SHAPES, Drawer

    taken = Taken()
    for shape in SHAPES:
        sheet = Sheet(f"{shape}, seed {seed}", put)

        def said(call: str, ledger: Ledger, sheet: Sheet = sheet) -> None:
            sheet.note(call, ledger_columns(ledger))

        walker = Drawer(shape, seed, said, judged=put is None).run(LEGS, LEDGER_STEPS)
        taken.add(sheet, walker.refused, walker.ledger)
    return taken


def walk_scheduler(seed: int, put: Put) -> Taken:
    """Every call of an engine that makes no mistake, in worlds that the seed chooses, and calls that it does not expect."""
    from tests.both_ways.scheduling import Pestered
    from tests.rigs import ENGINE_GROUPS

    taken = Taken()
    for groups in ENGINE_GROUPS:
        sheet = Sheet(f"{groups}, seed {seed}", put)
        engine = Pestered(seed, groups, scheduler_said(sheet), judged=put is None)
        for _ in range(SCHEDULER_STEPS):
            engine.step()
        engine.drain()
        taken.add(sheet, engine.made.refused, engine.ledger, engine.scheduler)
    return taken


def walk_pool(seed: int, put: Put) -> Taken:
    """Every call of an engine that owns the pool; with all kinds of groups that such an engine has."""
    from tests.both_ways.scheduling import POOL_GROUPS, PoolEngine

    taken = Taken()
    for groups in POOL_GROUPS:
        sheet = Sheet(f"an engine's own pool, {groups}, seed {seed}", put)
        engine = PoolEngine(groups, seed, scheduler_said(sheet), judged=put is None).run(POOL_STEPS)
        taken.add(sheet, engine.made.refused, engine.ledger, engine.scheduler)
    return taken


def scheduler_said(sheet: Sheet) -> Callable[[str, OffloadScheduler], object]:
    """Notes each call with the columns of the scheduler."""
    return lambda call, scheduler: sheet.note(call, scheduler_columns(scheduler))


def walk_worlds(seed: int, put: Put) -> Taken:
    """What may happen in a part of the pinned worlds, where each step is judged by their own rules."""
    from blocklife.testing import World
    from blocklife.testing.worlds._pinned import WORLDS

    taken = Taken()
    for pinned in WORLDS[seed % PARTS :: PARTS]:
        world, sheet = World(pinned.settings), Sheet(f"world {pinned.name}, seed {seed}", put)
        for leg in range(LEGS):
            dice, likes = random.Random(f"{pinned.name}/{seed}/{leg}"), dict[str, float]()
            state = world.initial()
            for _ in range(WORLD_STEPS):
                offered = list(world.actions(state))
                if not offered:
                    break
                for each in offered:
                    likes.setdefault(each.verb, dice.choice((0.1, 1, 1, 3)))
                (action,) = dice.choices(offered, [likes[each.verb] for each in offered])
                state = world.step(state, action)
                sheet.note(str(action), columns_of("scheduler", world.core(state).saved))
        taken.count(sheet, world.coverage())
    return taken


def walk_crowd(seed: int, put: Put) -> Taken:
    """Steps of many running requests, which cross boundaries, leave windows, store and land; the seed says how many wait."""
    from tests.bench.offload import World

    world, taken = World(CROWD, seed % 7, CROWD_STEPS), Taken()
    sheet = Sheet(f"a crowd, seed {seed}", put)
    for number in range(CROWD_STEPS):
        plan = world.step(scheduled=(number + seed) % 5 != 0)
        sheet.note(f"step {spell(plan)}", scheduler_columns(world.offload))
    taken.add(sheet, Counter(), world.ledger, world.offload)
    return taken


class Taken:
    """What some walks have done."""

    def __init__(self) -> None:
        self.calls = 0
        self.refused: Counter[str] = Counter()
        """Refused calls, by the kind of error."""
        self.rows: Counter[str] = Counter()
        """How often each row of each table was taken, as ``block: FREED --allocate--> ALLOCATED``."""

    def add(self, sheet: Sheet, refused: Counter[str], ledger: Ledger, scheduler: OffloadScheduler | None = None) -> None:
        """One walk is over."""
        from blocklife.testing.worlds._row_counts import RowCounts

        self.refused += refused
        self.count(sheet, RowCounts(ledger, scheduler).by_machine())

    def count(self, sheet: Sheet, rows: Mapping[str, Mapping[Row, int]]) -> None:
        """The same, where nothing is said of refusals."""
        self.calls += sheet.calls
        self.rows.update({f"{name}: {row}": times for name, own in rows.items() for row, times in own.items()})


WALKS: Mapping[str, Callable[[int, Put], Taken]] = {
    "ledger": walk_ledger,
    "scheduler": walk_scheduler,
    "pool": walk_pool,
    "worlds": walk_worlds,
    "crowd": walk_crowd,
}


def main() -> None:
    """Walk, and say first how the core ran."""
    parser = argparse.ArgumentParser(description="Write down what a random walk does to every column.")
    parser.add_argument("walk", choices=WALKS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--interpreted", action="store_true", help="read the core from its sources")
    args = parser.parse_args()
    if args.interpreted:
        sys.meta_path.insert(0, SourceFinder())
    lines: list[str] = []
    WALKS[args.walk](args.seed, lines.append)
    sys.stdout.write(json.dumps({"core": how_it_runs()}) + "\n")
    sys.stdout.writelines(lines)


if __name__ == "__main__":
    main()
