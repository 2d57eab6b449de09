"""Two recipes of CONTRIBUTING, followed in a copy of the project: *a state*, and *a replacement*.

Goal: the files that a recipe names are those that have to change, no more and no fewer, and each test that it names fails until
its row is done. Method: each row is a list of replacements in files of the copy. `make spec` is what the Makefile says that it
is; whatever differs at the end and was not written by hand, it has written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.project.makefile import modules_of
from tests.project.test_recipe_of_a_state import ROOT, STEPS

pytestmark = pytest.mark.slow  # a minute of processor time each; what is forgotten is also found by `test_recipe_of_a_state`

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv*", ".vllm", ".sglang", ".lmcache", ".model", ".source-mutants", ".hypothesis", ".*_cache", "__pycache__",
    "*.so", "build", "dist", "node_modules",
)  # fmt: skip
"""What is fetched, built or kept."""

Edit = tuple[str, str, str]
"""A file, the text at which it is changed, and what stands there then, with ``{}`` for that text."""


def of_steps(*names: str) -> list[Edit]:
    """Steps that the other test of this recipe takes, too."""
    return [(f"blocklife/{file}", place, after) for file, place, after in (STEPS[name] for name in names)]


CHANGELOG: Edit = ("CHANGELOG.md", "\n## 0.1.0", "\n### Lifecycle\n\n- Something is new.\n{}")
STATES, WORLDS = "tests/test_states.py", "tests/proof/test_ledger_world.py"
LAST_ROW = '        IN_FLIGHT drop -> STALE [idle]\n    """,\n'
A_STATE: Mapping[int, list[Edit]] = {
    1: of_steps("member"),
    2: of_steps("nature"),
    3: of_steps("row to it", "row from it"),
    5: of_steps("colour"),
    6: [
        *of_steps("verb", "imports of the verb"),
        ("tests/project/test_surface.py", "LEDGER_MOST = 50", "LEDGER_MOST = 51"),
    ],
    7: [
        (STATES, "        CACHED acquire -> SEALED\n", "        WIPED allocate -> ALLOCATED\n{}"),
        (STATES, LAST_ROW, "        IN_FLIGHT drop -> STALE [idle]\n        FREED wipe -> WIPED\n" + LAST_ROW[-9:]),
        (STATES, '"FREE": "FREED CACHED"', '"FREE": "FREED WIPED CACHED"'),
        (STATES, 'Block: "REST REST USE', 'Block: "REST REST REST USE'),
    ],
    8: [("specs/block.md", "\n## Drawing\n", "* A free block can be overwritten: `WIPED`, until it is handed out.\n{}")],
    9: [
        (WORLDS, '"verbs": (1_604, 746)', '"verbs": (1_744, 816)'),
        (WORLDS, '"verbs,contract=hold": (1_396, 698)', '"verbs,contract=hold": (1_536, 768)'),
    ],
    10: [CHANGELOG],
}  # fmt: skip
"""A block that is free and overwritten. Row 4 has nothing to do: no other machine moves with it."""

FIFO = '''class Fifo:
    """Evicts first what came first, however often it is used.

    Invariant: ``_order`` holds every slot that was inserted or touched and not removed since, the one that came first in front.
    """

    def __init__(self) -> None:
        self._order = SlotOrder()

    def insert(self, slots: Sequence[int], names: Sequence[Name]) -> None:
        """New content goes to the end."""
        for slot in slots:
            self._order.push(slot)

    def touch(self, slots: Iterable[int]) -> None:
        """A use moves nothing; slots that others have filled go to the end."""
        self.insert([slot for slot in slots if not self._order.has(slot)], ())

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        self._order.drop(slot)

    def snapshot(self, names: Sequence[int]) -> Hashable:
        """The order."""
        return tuple([names[slot] for slot in self._order])

    def restore(self, saved: Hashable) -> None:
        """Go back to an order."""
        self._order = SlotOrder()
        self.insert(_saved(saved), ())

    def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
        """The first *count* evictable slots."""
        return [slot for slot in self._order if evictable(slot)][: max(count, 0)]


{}'''
POLICIES = "blocklife/offload/replacement"
A_REPLACEMENT: Mapping[int, list[Edit]] = {
    1: [(f"{POLICIES}.py", "class Arc:\n", FIFO)],
    2: [
        ("blocklife/policies.py", '    "arc": (\n', '    "fifo": "what came first",\n{}'),
        (f"{POLICIES}.py", '"arc": Arc}', '"fifo": lambda num_slots: Fifo(), {}'),
    ],
    3: [(f"{POLICIES}.pxd", "cdef class Arc:\n", "cdef class Fifo:\n    cdef SlotOrder _order\n\n\n{}")],
    4: [
        (
            "tests/offload/test_host.py",
            "def test_policy_must_have_all_methods(",
            'def test_fifo_evicts_what_came_first() -> None:\n    fifo = replacement("fifo", 3)\n    fifo.insert([0, 1], [])\n'
            "    fifo.touch([0])\n    assert fifo.victims(1, lambda _slot: True, []) == [0]\n\n\n{}",
        ),
        CHANGELOG,
    ],
}


class Copy:
    """A copy of the project in which a recipe is followed."""

    def __init__(self, folder: Path) -> None:
        self.root = Path(shutil.copytree(ROOT, folder / "project", ignore=LEFT_BEHIND))
        self.by_hand: set[str] = set()

    def change(self, edits: Iterable[Edit]) -> None:
        """Do these parts of a row."""
        for file, place, after in edits:
            path = self.root / file
            text = path.read_text(encoding="utf-8")
            assert text.count(place) == 1, (file, place)
            path.write_text(text.replace(place, after.replace("{}", place)), encoding="utf-8")
            self.by_hand.add(file)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a module of Python there."""
        known = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", *words]
        return subprocess.run(command, cwd=self.root, env=known, capture_output=True, text=True, check=False)

    def make_spec(self) -> None:
        """What the Makefile does for ``make spec``."""
        for words in modules_of(self.root, "spec"):
            ran = self.run(*words)
            assert ran.returncode == 0, (words, ran.stderr)

    def failing(self, tests: Sequence[str]) -> set[str]:
        """Those of some tests that fail, without their parameters."""
        ran = self.run("pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:randomly", *tests)
        assert ran.returncode in (0, 1), ran.stdout + ran.stderr
        return set(re.findall(r"^(?:FAILED|ERROR) ([\w./]+::\w+)", ran.stdout, flags=re.MULTILINE))

    def changed(self) -> set[str]:
        """Every file that differs from the project's, or is new."""
        return {
            name
            for path in self.root.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
            for name in [path.relative_to(self.root).as_posix()]
            if not (ROOT / name).exists() or (ROOT / name).read_bytes() != path.read_bytes()
        }


def rows_of(recipe: str) -> dict[int, tuple[set[str], list[str]]]:
    """The rows of a recipe: the files that each names to be changed, and the tests that fail if that is forgotten."""
    _, _, text = PAGE.partition(f"\n### {recipe}\n")
    found = {}
    for line in text.partition("\n### ")[0].splitlines():
        if match := re.match(r"\| (\d+) \| (.*)", line):
            cells = match[2].strip("| ").split(" | ")
            files = re.findall(r"`([\w./-]+\.(?:py|pxd|md|toml))`", cells[0])
            found[int(match[1])] = set(files), re.findall(r"`(tests/[\w./]+::\w+)`", cells[-1])
    return found


def files_of(edits: Iterable[Edit]) -> set[str]:
    return {file for file, _, _ in edits}


def narrowed(tests: Iterable[str]) -> list[str]:
    """The same, of the worlds only those in which the new verb is called."""
    sized = f"{WORLDS}::test_ledger_world_keeps_its_promises_and_its_size"
    worlds = [f"{sized}[verbs]", f"{sized}[verbs,contract=hold]"]
    return [each for test in tests for each in (worlds if test == sized else [test])]


GENERATED_BY_A_STATE = {
    "specs/block.md", "specs/drawings/block.svg", "specs/drawings/block-plain.svg", "specs/measurements/run.svg",
    "tests/ledger/refusals.txt",
}  # fmt: skip


def test_recipe_of_a_state_names_what_has_to_change(tmp_path: Path) -> None:
    """The code first: the named tests fail. Then the rest, and `make spec`: they pass, and no other file has changed."""
    rows, copy = rows_of("A state"), Copy(tmp_path)
    named = {number: narrowed(tests) for number, (_, tests) in rows.items()}
    code = [edit for number in (1, 2, 3, 5, 6) for edit in A_STATE[number] if edit[0].startswith("blocklife/")]
    copy.change(code)
    # the colours are there, and so is the verb: what would tell of those is silent
    silent = {f"{WORLDS}::test_ledger_worlds_take_every_row"}

    assert {number: files_of(edits) for number, edits in A_STATE.items()} == {
        number: files for number, (files, _) in rows.items() if number != 4
    }
    waiting = [test for number in (6, 7, 8, 9) for test in named[number]]
    assert copy.failing(waiting) == {test.partition("[")[0] for test in waiting} - silent

    copy.change(edit for edits in A_STATE.values() for edit in edits if edit not in code)
    copy.make_spec()
    assert copy.failing([*waiting, *named[5], "tests/ledger/test_edge.py", STATES]) == set()
    assert copy.changed() == copy.by_hand | GENERATED_BY_A_STATE


def test_recipe_of_a_replacement_names_what_has_to_change(tmp_path: Path) -> None:
    """Without its row it has no name; without its two methods it cannot be saved; without `make spec` the pages lack it."""
    rows, copy = rows_of("A replacement"), Copy(tmp_path)
    named = [test for _, tests in rows.values() for test in tests]
    can_be_saved, has_a_name, is_fresh = named

    assert {number: files_of(edits) for number, edits in A_REPLACEMENT.items()} == {
        number: files for number, (files, _) in rows.items()
    }
    copy.change(A_REPLACEMENT[1])
    assert copy.failing(named) == {has_a_name}
    copy.change([*A_REPLACEMENT[2], *A_REPLACEMENT[3], *A_REPLACEMENT[4]])
    assert copy.failing(named) == {is_fresh}
    path = copy.root / f"{POLICIES}.py"
    whole = path.read_text(encoding="utf-8")
    head, fifo, rest = whole.partition("class Fifo:")
    path.write_text(head + fifo + rest.replace("def restore(", "def put_back(", 1), encoding="utf-8")
    assert can_be_saved in copy.failing(named)
    path.write_text(whole, encoding="utf-8")

    copy.make_spec()
    assert copy.failing([*named, "tests/offload/test_host.py"]) == set()
    assert copy.changed() == copy.by_hand | {"specs/offload.md", "specs/scenarios/words.csv"}
