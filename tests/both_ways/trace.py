"""Write down what random walks do to every column: the same program, run by the interpreted core or by the compiled one.

    python -m tests.both_ways.trace ledger 20000 --interpreted
    python -m tests.both_ways.trace scheduler 7

One JSON object a call: the walk, the number of the call, the call, and the columns after it; of a long column its digest. The
walks are those of `tests/ledger/test_walks.py` and `tests/offload/test_offload_walks.py`, which judge the ledger and the
scheduler there, and the steps of many requests in `tests/bench`. Here nobody judges them, they are compared.

With ``--interpreted`` the modules of the core are read from their sources, whatever lies beside those.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from blocklife.cli import _built as built

if TYPE_CHECKING:
    from types import ModuleType

    from blocklife.ledger import Ledger
    from blocklife.offload import OffloadScheduler

LONGEST = 200
"""Characters of a column that is written as it is."""
LEDGER_STEPS, SCHEDULER_STEPS, CROWD_STEPS = 60, 40, 40
CROWD = 64
"""Requests that run at once, so that batches take the paths for many."""

Columns = Mapping[str, str]


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


def spell(value: object) -> str:
    """A column as text; the digest of one that is long. Where a thing lies in memory says nothing of it."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
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


def ledger_columns(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Everything that decides what a ledger does next, column by column, and what it has counted and told."""
    yield from columns_of("ledger", ledger.snapshot())
    yield "journal", told(ledger)
    yield "statistics", spell(ledger.statistics())


def scheduler_columns(scheduler: OffloadScheduler) -> Iterator[tuple[str, str]]:
    """The same of a scheduler, and of its ledger."""
    yield from columns_of("scheduler", scheduler.snapshot())
    yield "journal", told(scheduler.ledger)
    yield "statistics", spell(scheduler.ledger.statistics())
    yield "statistics of the scheduler", spell(scheduler.statistics())


# --- walks -------------------------------------------------------------------------------------------------------------


class Sheet:
    """Where one walk is written down."""

    def __init__(self, walk: str, put: Callable[[str], object]) -> None:
        self.walk, self._put, self._calls = walk, put, 0

    def note(self, call: str, columns: Iterator[tuple[str, str]]) -> None:
        """One call is over."""
        self._calls += 1
        self._put(json.dumps({"walk": self.walk, "number": self._calls, "call": call, "columns": dict(columns)}) + "\n")


def walk_ledger(seed: int, put: Callable[[str], object]) -> None:
    """Every verb of the ledger, under both contracts, with one worker and two; batches are walked, then gathered."""
    from blocklife.errors import BlocklifeError
    from blocklife.ledger import Contract
    from tests.ledger.test_walks import Walker

    class Written(Walker):
        """Is written down after each call, and judged by nobody."""

        sheet: Sheet

        def call(self, verb: str, *args: object, refused: bool = False, **named: object) -> Any:
            said = f"{verb} {spell([*args, named])}"
            try:
                found: Any = getattr(self.ledger, verb)(*args, **named)
            except BlocklifeError as refusal:
                found, said = None, f"{said} refused: {type(refusal).__name__}: {refusal}"
            self.sheet.note(said, ledger_columns(self.ledger))
            return found

    for gathered in (False, True):
        for module in sys.modules.values() if gathered else ():
            if module.__name__.startswith("blocklife.") and hasattr(module, "BULK"):
                setattr(module, "BULK", 1)  # noqa: B010 - whoever asks from how many on a batch is gathered
        for contract in Contract:
            for workers in (1, 2):
                walker = Written(seed, contract, workers, invariants=False, device=False)
                how = "gathered" if gathered else "walked"
                walker.sheet = Sheet(f"{walker.seed}, {how}", put)
                walker.run(LEDGER_STEPS)


def walk_scheduler(seed: int, put: Callable[[str], object]) -> None:
    """Every call of the offload scheduler, in worlds that the seed chooses."""
    import random

    from blocklife.errors import BlocklifeError
    from tests.offload.test_offload_walks import WORLDS, Walker

    class Written(Walker):
        """Is written down after each call."""

        sheet: Sheet

        def call(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
            said = f"{getattr(method, '__name__', 'a call')} {spell([*args, named])}"
            try:
                return method(*args, **named)
            except BlocklifeError as refusal:
                said = f"{said} refused: {type(refusal).__name__}: {refusal}"
                raise
            finally:
                self.sheet.note(said, scheduler_columns(self.scheduler))

    for world in random.Random(seed).sample(WORLDS, 8):
        walker = Written(world, seed, steps=SCHEDULER_STEPS)
        walker.sheet = Sheet(f"{world}, seed {seed}", put)
        walker.run()


def walk_crowd(seed: int, put: Callable[[str], object]) -> None:
    """Steps of many running requests, which cross boundaries, leave windows, store and land; the seed says how many wait."""
    from tests.bench.offload import World

    world = World(CROWD, seed % 7, CROWD_STEPS)
    sheet = Sheet(f"a crowd, seed {seed}", put)
    for number in range(CROWD_STEPS):
        plan = world.step(scheduled=(number + seed) % 5 != 0)
        sheet.note(f"step {spell(plan)}", scheduler_columns(world.offload))


WALKS: Mapping[str, Callable[[int, Callable[[str], object]], None]] = {
    "ledger": walk_ledger,
    "scheduler": walk_scheduler,
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
