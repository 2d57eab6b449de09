"""The table of what became of vLLM's own tests is sound, its page says the same, and every test that it names is there.

Goal: no row says "the same" of a test that nobody has written. Method: the table as data, and the syntax trees of the test
files; vLLM is not needed. That what passes does pass is checked where vLLM is, by the plugin ``behaviour``.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.behind.scenes import heads
from tests.vllm.behaviour.page import PAGE, rendered
from tests.vllm.behaviour.table import Entry, Table

PROJECT = Path(__file__).parents[2]
TABLE = Table.read()


@cache
def told_in(path: str) -> frozenset[str]:
    """The scenes of a file, and its other test functions."""
    tree = ast.parse((PROJECT / path).read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "scenes"]
    tables = [node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)]
    names = {name for table in tables for name, _, _ in heads(str(table))}
    return frozenset(names | {name for name in tests if not name.endswith("_scene")})


def test_table_has_every_case() -> None:
    """All 443 cases of 134 functions have a verdict."""
    assert len(TABLE.by_test()) == 134
    assert sum(entry.count for entry in TABLE.entries) == 443


@pytest.mark.parametrize("name", sorted({name for entry in TABLE.entries for name in entry.by}))
def test_table_names_tests_that_exist(name: str) -> None:
    """A test of ours that a row names is a function of its file, or a scene of one of its tables."""
    path, _, function = name.partition("::")

    assert function in told_in(path)


def test_behaviour_tests_are_all_named() -> None:
    """None of the tests that were written for a row has been forgotten by it."""
    named = {name for entry in TABLE.entries for name in entry.by}
    files = sorted((PROJECT / "tests" / "vllm").glob("test_behaviour_*.py"))
    ours = {f"tests/vllm/{path.name}::{function}" for path in files for function in told_in(f"tests/vllm/{path.name}")}

    assert files
    assert ours <= named


def test_page_says_what_the_table_says() -> None:
    """The page is the one that is made of the table (python -m tests.vllm.behaviour --write)."""
    assert PAGE.read_text(encoding="utf-8") == rendered(TABLE)


def test_entry_must_say_something() -> None:
    """A verdict that there is not, a claim without a test and an exclusion without a reason are refused."""
    good = Entry("test_x", 1, "lookup", "passes")

    for wrong in ({"verdict": "fine"}, {"verdict": "same"}, {"verdict": "excluded"}, {"count": 0}):
        with pytest.raises(ValueError, match="test_x"):
            replace(good, **wrong)


def test_table_finds_what_does_not_agree() -> None:
    """Cases go to the entry that names them, the others to the one without patterns; what is new or gone is told."""
    some = Entry("test_x", 2, "lookup", "passes", cases=("a-*",))
    rest = Entry("test_x", 1, "lookup", "same", by=("y",))
    table = replace(TABLE, entries=(some, rest))

    assert table.entry_of("test_x", "a-1") is some
    assert table.entry_of("test_x", "b") is rest
    assert table.entry_of("test_z", "") is None
    assert table.problems([("test_x", "a-1"), ("test_x", "a-2"), ("test_x", "b")]) == []
    assert len(table.problems([("test_x", "b"), ("test_z", "")])) == 2
    with pytest.raises(ValueError, match="two entries"):
        replace(table, entries=(rest, rest)).check()
    with pytest.raises(ValueError, match="no theme"):
        replace(table, entries=(replace(rest, theme="weather"),)).check()
