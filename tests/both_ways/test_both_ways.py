"""The compiled core is the interpreted one: random walks of verbs, and every column compared after every call.

Method: two processes walk with the same seed, one with the core read from its sources, one with it compiled, and the first
call after which a column differs is told. That needs a compiled core (`make test-compiled`); what compares is tested anywhere.
And a rule of the sources is checked: no expression depends on the order in which its parts are evaluated, for a compiler may
choose another.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import product
from pathlib import Path
from typing import TypeAlias

import pytest

from blocklife.cli import _built as built
from blocklife.ledger import Snapshot
from blocklife.ledger._snapshot import SavedBlocks, SavedJob, SavedSlots
from blocklife.ledger.views import CountsView
from blocklife.offload._snapshot import SavedScheduler
from tests.both_ways.comparing import ROOT, first_difference, trace
from tests.both_ways.trace import NIGHTLY, PINNED

CASES = [(walk, seeds[0]) for walk, seeds in PINNED.items()]
"""The walks of every build, with their seeds: the same program in both processes."""
REST = [(walk, seed) for walk, seeds in PINNED.items() for seed in seeds[1:]]
MORE = [pytest.param(*each, marks=pytest.mark.slow) for each in (*REST, *product(("ledger", "scheduler", "pool"), NIGHTLY))]
"""Those of the night; `test_rows.py` says that all pinned ones together leave nothing out."""
EXPECTED = os.environ.get("BLOCKLIFE_EXPECT_CORE", "")
"""What whoever runs the tests believes to run: `compiled`, or nothing."""

needs_a_compiled_core = pytest.mark.skipif(not built.examine().compiled, reason="the core is interpreted (make test-compiled)")


# --- the two cores -----------------------------------------------------------------------------------------------------


@needs_a_compiled_core
@pytest.mark.parametrize(("walk", "seed"), [*CASES, *MORE])
def test_both_ways_leave_the_same_trace(walk: str, seed: int) -> None:
    """States, counts, epochs, keys, indexes, free order, journal, statistics and refusals are equal after every call."""
    interpreted, compiled = trace(walk, seed, "--interpreted"), trace(walk, seed)
    print(f"{walk}, seed {seed}: {len(compiled) - 1} calls")

    assert [json.loads(each[0])["core"] for each in (interpreted, compiled)] == ["interpreted", "compiled"]
    assert len(compiled) > 30
    assert first_difference(interpreted[1:], compiled[1:]) is None


@pytest.mark.skipif(EXPECTED != "compiled", reason="nobody says that the core must be compiled")
def test_the_core_that_is_tested_is_the_compiled_one() -> None:
    """Every module of the core is an extension, made of the very source beside it; no test ran the other by mistake."""
    core = built.examine()
    own = [name for name in built.CORE if not name.startswith("engines.")]  # that of an engine runs where the engine is
    files = [str(importlib.import_module(f"blocklife.{name}").__file__) for name in own]

    assert core.compiled == built.CORE
    assert core.stale == ()
    assert [file for file in files if file.endswith(".py")] == []


# --- ways to compile ---------------------------------------------------------------------------------------------------

OFF = {
    "off.py": """
from array import array

def put(at: int) -> None:
    column = array("H", [0]) * 8
    column[at] = 1

def add(value: int) -> int:
    total = value
    total += 1
    return total
""",
    "off.pxd": """
cimport cython
@cython.locals(column=cython.ushort[::1])
cpdef void put(Py_ssize_t at) except *
@cython.locals(total=cython.longlong)
cpdef long long add(long long value) except? -1
""",
}
"""A module that writes where it is told to; its types are in the file beside it."""
LARGEST = 2**63 - 1

RunOff: TypeAlias = Callable[[str, str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run_off(tmp_path_factory: pytest.TempPathFactory) -> RunOff:
    """Call that module, compiled in one of the ways, in a process of its own."""

    @cache
    def made(flavour: str) -> Path:
        where = tmp_path_factory.mktemp(flavour)
        for name, text in OFF.items():
            (where / name).write_text(text, encoding="utf-8")
        script = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; import compile_core as c; "
            f"c.build_extension('off', Path('off.py'), c.FLAVOURS[{flavour!r}], Path('made'), checked=False)"
        )
        subprocess.run([sys.executable, "-c", script], cwd=where, check=True, capture_output=True)
        return where / "made" / "lib"

    def run(flavour: str, call: str) -> subprocess.CompletedProcess[str]:
        script = f"import off; print('loaded', flush=True); off.{call}; print('went on')"
        return subprocess.run([sys.executable, "-c", script], cwd=made(flavour), capture_output=True, text=True, check=False)

    return run


@needs_a_compiled_core
@pytest.mark.parametrize(
    ("call", "error"),
    [("put(8)", "IndexError: Out of bounds"), ("put(-9)", "IndexError: Out of bounds"), (f"add({LARGEST})", "OverflowError")],
)
def test_checks_are_on_in_tests_where_a_module_wants_none(call: str, error: str, run_off: RunOff) -> None:
    """An index out of bounds and a number that does not fit raise."""
    ran = run_off("checked", call)

    assert ran.stdout == "loaded\n", ran.stderr
    assert error in ran.stderr


@needs_a_compiled_core
def test_what_is_shipped_has_no_checks_where_none_are_wanted(run_off: RunOff) -> None:
    """A number wraps around, as in C."""
    assert run_off("shipped", f"add({LARGEST})").stdout == "loaded\nwent on\n"


@pytest.mark.skipif("libasan" not in os.environ.get("LD_PRELOAD", ""), reason="no sanitizer is loaded (make test-sanitized)")
@pytest.mark.parametrize(
    ("call", "found"),
    [("put(8)", "AddressSanitizer: heap-buffer-overflow"), (f"add({LARGEST})", "runtime error: signed integer overflow")],
)
def test_sanitizers_see_what_no_check_does(call: str, found: str, run_off: RunOff) -> None:
    """One write behind a column, and one overflow, end the process."""
    ran = run_off("sanitized", call)

    assert ran.stdout == "loaded\n"
    assert found in ran.stderr


# --- what compares them ------------------------------------------------------------------------------------------------


@cache
def interpreted(walk: str, seed: int) -> list[str]:
    """The trace of a walk, made once."""
    return trace(walk, seed, "--interpreted")


@pytest.mark.interpreted
def test_an_interpreted_walk_is_a_function_of_its_seed() -> None:
    """Or else no comparison would mean anything."""
    once, again, other = interpreted("pool", 0), trace("pool", 0, "--interpreted"), trace("pool", 1, "--interpreted")

    assert json.loads(once[0])["core"] == "interpreted"
    assert once == again
    assert once != other


def line(number: int = 1, call: str = "seal()", **columns: str) -> str:
    return json.dumps({"walk": "seed 1", "number": number, "call": call, "columns": columns})


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ([line(a="1", b="2")], [line(a="1", b="2")], None),
        ([line(a="1", b="2")], [line(a="1", b="3")], "seed 1, call 1: seal()\n  b: 2\n  b: 3"),
        ([line(a="1")], [line(a="1", b="3")], "seed 1, call 1: seal()\n  b: None\n  b: 3"),
        ([line(a="1"), line(2)], [line(a="1")], "seed 1: one trace ends before call 2, seal()"),
        ([line()], [line(call="drop()")], "seed 1, call 1: seal()\nthe other trace has seed 1, call 1: drop()"),
    ],
    ids=["equal", "a value", "a column", "the end", "a call"],
)
def test_the_first_difference_is_told(one: list[str], other: list[str], said: str | None) -> None:
    """The walk, the call, and the columns with both values."""
    assert first_difference(one, other) == said


@pytest.mark.interpreted
def test_a_walk_has_every_column() -> None:
    """What is compared is what there is: the fields of a snapshot, the journal, and what was counted."""
    seen = {name for said in interpreted("pool", 0)[1:] for name in json.loads(said)["columns"]}

    assert {f"scheduler.ledger.blocks.{each}" for each in SavedBlocks._fields} <= seen
    assert {f"scheduler.ledger.slots.{each}" for each in SavedSlots._fields} <= seen
    assert {f"scheduler.ledger.jobs.{each}" for each in SavedJob._fields} <= seen
    assert {name.split(".")[2] for name in seen if name.startswith("scheduler.ledger.")} == set(Snapshot._fields)
    assert {name.split(".")[1] for name in seen if name.startswith("scheduler.")} == set(SavedScheduler._fields)
    assert {
        "journal",
        "statistics",
        "statistics of the scheduler",
        "rows of the scheduler",
        "verdicts",
        "jobs that serve",
    } <= seen
    assert {f"rows of {each}" for each in ("blocks", "slots", "jobs", "requests")} <= seen
    assert {f"counts.{name}" for name in vars(CountsView) if isinstance(getattr(CountsView, name), property)} <= seen


# --- the order of evaluation -------------------------------------------------------------------------------------------


_EVALUATED_IN_TURN = (
    ast.Call | ast.Tuple | ast.List | ast.BinOp | ast.Compare | ast.Subscript | ast.Dict | ast.Set | ast.JoinedStr
)


def unordered(source: str) -> Iterator[int]:
    """Lines on which one expression reads a name and gives it another value (``f(x, x := 1)``)."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, _EVALUATED_IN_TURN):
            continue
        parts = list(ast.iter_child_nodes(node))
        for at, part in enumerate(parts):
            given = {each.target.id for each in ast.walk(part) if isinstance(each, ast.NamedExpr)}
            others = (each for other in parts[:at] for each in ast.walk(other) if isinstance(each, ast.Name))
            if any(each.id in given for each in others):
                yield node.lineno


@pytest.mark.parametrize("name", built.CORE)
def test_no_module_of_the_core_has_directives_of_its_own(name: str) -> None:
    """They would hold in tests, too, which are to have every check."""
    assert "cython" not in built.source_of(name).read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("name", built.CORE)
def test_no_expression_of_the_core_depends_on_the_order_of_its_parts(name: str) -> None:
    """Cython reads a plain name when it makes the call, and not when its turn comes among the arguments."""
    assert list(unordered(built.source_of(name).read_text(encoding="utf-8"))) == []


def test_an_expression_that_depends_on_the_order_is_found() -> None:
    """The line on which it stands; an assignment that is only read further on is none."""
    assert list(unordered("a = 1\nb = slice(a, a := a + 2)\n")) == [2]
    assert list(unordered("if (a := f(1)) > 2:\n    g(a, 3)\n")) == []


# --- what is told of a build -------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with every module of the core, nothing in them."""
    for name in built.CORE:
        source = built.source_of(name, tmp_path)
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(f"# {name}\n", encoding="utf-8")
    return tmp_path


def compile_some(package: Path, names: tuple[str, ...]) -> None:
    for name in names:
        built.source_of(name, package).with_suffix(EXTENSION_SUFFIXES[0]).write_bytes(b"")
    sources = {name: built.digest(built.source_of(name, package)) for name in names}
    (package / built.RECORD).write_text(json.dumps({"by": "Cython 9", "sources": sources}), encoding="utf-8")


def test_built_tells_a_package_of_sources(package: Path) -> None:
    core = built.examine(package)

    assert (str(core), core.compiled, core.stale) == ("interpreted", (), ())
    assert {str(each) for each in core.modules} == {"interpreted"}


def test_built_tells_a_compiled_package(package: Path) -> None:
    compile_some(package, built.CORE)
    core = built.examine(package)

    assert (str(core), core.compiled, core.stale) == ("compiled by Cython 9", built.CORE, ())


def test_built_tells_a_package_that_is_compiled_in_part(package: Path) -> None:
    compile_some(package, built.CORE[:2])

    assert str(built.examine(package)) == f"compiled by Cython 9, 2 of {len(built.CORE)} modules"


def test_built_tells_a_source_that_was_changed_after_it_was_compiled(package: Path) -> None:
    compile_some(package, built.CORE)
    built.source_of(built.CORE[1], package).write_text("# another\n", encoding="utf-8")
    core = built.examine(package)

    assert core.stale == (built.CORE[1],)
    assert str(core.modules[1]) == "compiled from another source"
