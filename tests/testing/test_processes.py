"""Several processes explore what one explores: the same counts, verdicts and counterexamples, and nobody is left behind.

Method: models that are small and can be divided, and pinned worlds, are explored by one, two and three processes. What goes
wrong in a child goes wrong by its process number, so that the parent never does it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from attrs import define, field

from blocklife.errors import CapacityError, MisuseError
from blocklife.testing import Bounds, Broken, Exploration, Kind, Property, Verdict, World, explore, pinned_world
from blocklife.testing.exploring import _explore as exploring
from blocklife.testing.exploring import _processes as processes
from blocklife.testing.exploring._model import ActionT
from tests.programs import HANGS_S
from tests.proof.ledger_world.settings import LedgerSettings
from tests.proof.ledger_world.world import LedgerWorld
from tests.proof.mutants.planting import mutant_named, planted
from tests.proof.mutants.table import Row, read_table

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="processes share a search only where the system can fork"
)

HERE = Path(__file__).parents[2]
SEEDS = [row for row in read_table() if row.kind == "seed"]


class At(NamedTuple):
    """A place: ``row`` is the number under which the grid keeps the row's name."""

    row: int
    column: int


@define(eq=False)
class Grid:
    """Rows by columns, one step right or down; rows are parts, kept in the order in which they are met."""

    size: int = 12
    wanted: Sequence[Property[At, str]] = ()
    on_step: Callable[[int, int], None] = lambda row, column: None
    """Called with the place that a step leads from; what it raises, the model raises."""
    rows: list[str] = field(factory=list)
    taken: int = 0

    def _row(self, name: str) -> int:
        if name not in self.rows:
            self.rows.append(name)
        return self.rows.index(name)

    def place(self, state: At) -> tuple[int, int]:
        """Where it is, whatever the row is called here."""
        return int(self.rows[state.row]), state.column

    def initial(self) -> At:
        return At(self._row("0"), 0)

    def actions(self, state: At) -> Iterable[str]:
        row, column = self.place(state)
        return [*(["right"] if column < self.size else []), *(["down"] if row < self.size else [])]

    def step(self, state: At, action: str) -> At:
        self.taken += 1
        row, column = self.place(state)
        self.on_step(row, column)
        return At(self._row(str(row + 1)), column) if action == "down" else At(state.row, column + 1)

    def properties(self) -> Sequence[Property[At, str]]:
        return self.wanted

    def rules(self) -> Sequence[str]:
        return ("law",)

    def parts(self) -> tuple[int, ...]:
        return (len(self.rows),)

    def pack(self, kind: int, number: int) -> object:
        return self.rows[number]

    def unpack(self, kind: int, value: object) -> int:
        return self._row(str(value))

    def divided(self, state: At) -> tuple[tuple[int, ...], object]:
        return (state.row,), state.column

    def joined(self, parts: tuple[int, ...], rest: object) -> At:
        assert isinstance(rest, int)
        return At(parts[0], rest)

    def tallied(self) -> list[int]:
        return [self.taken]

    def add_tally(self, more: Sequence[int]) -> None:
        self.taken += more[0]


def counts(found: Exploration[ActionT]) -> tuple[object, ...]:
    """All that an exploration has found, but for how long it took."""
    return found.states, found.edges, found.depth, found.verdicts, found.counterexamples, found.bounds_hit, found.complete


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterable[None]:
    """Every process has ended, and was waited for."""
    yield
    assert multiprocessing.active_children() == []


# --- what is found ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", ["clients-fence", "two-workers", "holes"])
def test_processes_find_what_one_finds(name: str, number: int) -> None:
    """In a pinned world: states, steps, depth, verdicts; also as many calls of the real code, and every row as often."""
    alone, shared = World(pinned_world(name).settings), World(pinned_world(name).settings)
    one, several = explore(alone, processes=1), explore(shared, processes=number)

    assert counts(several) == counts(one)
    assert (several.states, several.edges, several.depth) == pinned_world(name).counts
    assert shared.core_calls == alone.core_calls
    assert shared.coverage() == alone.coverage()
    assert shared.digest() == alone.digest()


def test_processes_find_what_one_finds_in_a_world_of_the_ledger() -> None:
    """It has no scheduler, and keeps other values."""
    settings = LedgerSettings.parse("smallest")
    alone, shared = LedgerWorld(settings), LedgerWorld(settings)
    one, several = explore(alone, processes=1), explore(shared, processes=2)

    assert one.verdict is Verdict.HOLDS
    assert one.states > 100
    assert counts(several) == counts(one)
    assert shared.digest() == alone.digest()


@pytest.mark.sampled
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("row", SEEDS, ids=lambda row: row.mutant[:2])
def test_processes_find_the_same_counterexample(row: Row, every: bool) -> None:
    """Of planted bugs: the rule, what it says, every action, and how much was seen by then."""
    with planted(mutant_named(row.mutant)):
        one, *others = [
            explore(World(pinned_world(row.world).settings), Bounds(max_depth=row.steps + 1), every=every, processes=number)
            for number in (1, 2, 3)
        ]

    assert one.verdict is Verdict.VIOLATED
    assert [counts(each) for each in others] == [counts(one)] * 2


def judged(size: int) -> list[Property[At, str]]:
    return [
        Property("inside", Kind.ALWAYS, "it stays inside", always=lambda at: "outside" if at.column > 9 else ""),
        Property("slow", Kind.EDGE, "it is slow", edge=lambda a, action, b: "fast" if b.column > a.column + 1 else ""),
        Property("ends", Kind.SOMETIMES, "it comes to an end", goal=lambda at: at.column == size),
        Property(
            "down",
            Kind.LEADS_TO,
            "it gets to the side",
            goal=lambda at: at.column == size,
            closing=lambda each: each == "right",
        ),
    ]


@pytest.mark.parametrize(
    "bounds", [Bounds(), Bounds(max_states=50), Bounds(max_depth=5), Bounds(max_depth=0), Bounds(max_seconds=0.0)], ids=str
)
@pytest.mark.parametrize("size", [9, 12])
def test_bounds_and_properties_are_those_of_one_process(size: int, bounds: Bounds) -> None:
    """Whatever is judged, and wherever it stops."""
    one, several = (explore(Grid(size, judged(size)), bounds, every=True, processes=number) for number in (1, 3))

    assert counts(several) == counts(one)


def test_a_large_search_is_shared_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process until it is large, then as many as processors; what was known by then is known to all."""
    made: list[int] = []
    right = processes.Team.__init__

    def noted(team: processes.Team[At, str], model: processes.Divisible[At, str], number: int) -> None:
        made.append(number)
        right(team, model, number)

    monkeypatch.setattr(processes.Team, "__init__", noted)
    monkeypatch.setattr(processes, "usable_processors", lambda: 2)
    small = explore(Grid(20))
    monkeypatch.setattr(exploring, "LARGE", 100)
    large = explore(Grid(20))

    assert made == [2]
    assert counts(large) == counts(small)


# --- where it cannot be shared ----------------------------------------------------------------------------------------------


def test_one_process_where_the_system_cannot_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is then no more than a wish; so it is for a model that cannot be divided."""
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    grid = Grid()

    assert counts(explore(grid, processes=3)) == counts(explore(Grid(), processes=1))
    assert grid.taken == 2 * 12 * 13


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
def test_a_number_that_is_none_is_refused(number: object) -> None:
    """Before anything is explored."""
    with pytest.raises(MisuseError, match="processes must be a whole number of at least 1"):
        explore(Grid(), processes=number)  # type: ignore[arg-type]


# --- what goes wrong --------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """An error that cannot cross as it is."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def raising(problem: Callable[[], Exception]) -> Callable[[int, int], None]:
    def step(row: int, column: int) -> None:
        if (row, column) == (7, 7):
            raise problem()

    return step


def test_what_breaks_in_a_child_is_a_counterexample() -> None:
    """With the way there that one process finds."""

    def broken() -> Exception:
        return Broken("law", "seven")

    one, several = (explore(Grid(on_step=raising(broken)), processes=number) for number in (1, 2))

    assert one.counterexamples[0].message == "seven"
    assert counts(several) == counts(one)


def test_what_a_model_raises_in_a_child_is_raised() -> None:
    """It is no finding; where it cannot cross, its text does."""
    with pytest.raises(ZeroDivisionError, match="seven"):
        explore(Grid(on_step=raising(lambda: ZeroDivisionError("seven"))), processes=2)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*OddError: seven eight"):
        explore(Grid(on_step=raising(lambda: OddError("seven", "eight"))), processes=2)


def test_a_child_that_is_killed_is_told_of() -> None:
    """The others end, too."""
    parent = os.getpid()

    def killed(row: int, column: int) -> None:
        if os.getpid() != parent and row == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(CapacityError, match=r"one of 3 that explore, has ended \(signal 9\).*fewer processes"):
        explore(Grid(on_step=killed), processes=3)


def test_an_interrupt_ends_all_of_them() -> None:
    """Ctrl-C in the parent, while the children do something that would take a minute."""
    parent = os.getpid()

    def slow(row: int, column: int) -> None:
        if os.getpid() != parent:
            os.kill(parent, signal.SIGALRM)  # not earlier: an exception in the middle of a fork is ignored
            time.sleep(HANGS_S)

    def interrupted(_signal: int, _frame: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # one is enough: the other child sends it, too
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            explore(Grid(on_step=slow), processes=2)
    finally:
        signal.signal(signal.SIGALRM, before)

    assert time.monotonic() - begin < HANGS_S


def test_a_search_that_is_stopped_counts_what_it_has() -> None:
    """What is known so far is told; children that still work are waited for, so that they can say what they have counted."""
    asked: list[int] = []
    grid = Grid(40)
    seen = explore(grid, progress=lambda *seen: asked.append(seen[0]), stop=lambda: len(asked) > 3, processes=2)

    assert seen.interrupted
    assert seen.verdict is Verdict.UNKNOWN
    assert seen.edges <= grid.taken


PROGRAM = """
    import multiprocessing, os, sys, time
    from blocklife.testing.exploring._explore import explore
    from tests.testing.test_processes import Grid

    def slow(row, column):
        time.sleep(0.01)

    told = []
    def progress(*_):
        if multiprocessing.active_children() and not told:
            told.append(print(*[each.pid for each in multiprocessing.active_children()], flush=True))

    explore(Grid(500, on_step=slow), processes=2, progress=progress)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks for processes there")
def test_children_end_with_their_parent() -> None:
    """Killed, it can tell nobody: they notice."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE) as parent:
        assert parent.stdout is not None
        children = [int(each) for each in parent.stdout.readline().split()]
        parent.kill()
    left = children
    until = time.monotonic() + HANGS_S
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = [each for each in children if runs(each)]

    assert len(children) == 2
    assert left == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks for processes there")
def test_ctrl_c_at_a_terminal_ends_all_of_them() -> None:
    """All processes get it. One of them tells what was seen by then; there is no word from the others."""
    command = [sys.executable, "-m", "blocklife", "check", "--world", "wide-fence", "--processes", "2", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE, start_new_session=True
    ) as parent:
        until = time.monotonic() + HANGS_S
        while len(children := children_of(parent.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.1)
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=HANGS_S)
    report = json.loads(out)

    assert (parent.returncode, err) == (130, "")
    assert (report["interrupted"], report["verdict"]) == (True, "unknown")
    assert 0 < report["states"] < pinned_world("wide-fence").counts.states
    assert len(children) == 2
    assert not any(runs(each) for each in children)


def children_of(process: int) -> list[int]:
    """The processes that one has made."""
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def runs(process: int) -> bool:
    """Whether a process is there, and is more than an entry that nobody has asked for."""
    try:
        told = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return told.rpartition(")")[2].split()[0] != "Z"
