"""Of what is repeated every value is tried, the rest is run nightly and by name; what is shared is made once."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.behind.shelf import PROJECT
from tests.sparing import once, sample

SIZES = [(5,), (2, 3), (4, 4), (2, 2, 6), (1, 7, 3), (2, 2, 2, 4, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_sample_has_every_value_of_every_parameter(sizes: tuple[int, ...]) -> None:
    """And no more combinations than the longest of them has values."""
    taken = sample(list(product(*map(range, sizes))))

    assert len(taken) == max(sizes)
    assert [{each[at] for each in taken} for at in range(len(sizes))] == [set(range(size)) for size in sizes]


@pytest.mark.parametrize("sizes", SIZES)
def test_sample_can_have_every_pair(sizes: tuple[int, ...]) -> None:
    """Of values of two parameters; of all combinations of many parameters that is a small part."""
    every = list(product(*map(range, sizes)))
    taken = sample(every, pairs=True)

    for one, other in combinations(range(len(sizes)), 2):
        assert {(each[one], each[other]) for each in taken} == set(product(range(sizes[one]), range(sizes[other])))
    assert len(taken) <= max(len(every) // 4, max(one * other for one, other in combinations((1, *sizes), 2)))


def test_sample_does_not_tie_parameters_of_a_size_together() -> None:
    """Else two switches would only ever be turned together."""
    taken = sample(list(product(range(6), range(2), range(2))))

    assert {each[1:] for each in taken} == set(product(range(2), range(2)))


def test_sample_has_every_value_where_combinations_are_missing() -> None:
    """Such as where the values of two parameters are given together."""
    taken = sample([(0, 1), (0, 2), (1, 0), (2, 1)])

    assert {each[0] for each in taken} == {each[1] for each in taken} == {0, 1, 2}


def test_sample_of_a_long_list_is_every_so_many_th() -> None:
    assert sample([(each,) for each in range(20)], every=8) == {(0,), (8,), (16,)}
    assert sample([(each,) for each in range(20)], every=8, first=5) == {(5,), (13,)}


REPEATED = """
import os
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_repeated(seed, ahead):
    pass
"""
SHARING = """
import os, subprocess, sys
import pytest
from tests.sparing import once

def make():
    with open("made", "a") as file:
        print(os.getpid(), file=file)
    return {"a": (1, 2)}

@pytest.mark.parametrize("turn", range(6))
def test_reads(turn):
    assert once("thing", make) == {"a": (1, 2)}
    assert not [name for name in os.environ if "SHARED" in name]
"""


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test file as all tests are run; this project's settings apply."""
    file = folder / "test_a.py"
    file.write_text(text, encoding="utf-8")
    (folder / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    words = ["-m", "pytest", "-v", "-c", str(PROJECT / "pyproject.toml"), f"--rootdir={folder}", "-p", "no:cacheprovider"]
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
    where = [] if any("::" in each for each in options) else [str(file)]
    return subprocess.run(
        [sys.executable, "-m", "tests.again", sys.executable, *words, *where, *options],
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "3 passed, 3 deselected"),
        (("-m", "slow or not slow"), "6 passed"),
        (("-m", "slow"), "3 passed, 3 deselected"),
        (("test_a.py::test_repeated[2-0]", "test_a.py::test_repeated[1-0]"), "2 passed"),
    ],
    ids=["the build", "nightly", "explore", "by name"],
)
def test_rest_is_run_nightly_and_by_name(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    ran = run(tmp_path, REPEATED, *options)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{told} in" in ran.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["in one process", "in two"])
def test_what_is_shared_is_made_once_in_a_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    """And what a test starts does not take part: it may have changed what is made."""
    ran = run(tmp_path, SHARING, *options)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len((tmp_path / "made").read_text(encoding="utf-8").split()) == 1


def test_without_a_run_everybody_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "again_notes", raising=False)
    made: list[int] = []
    for _ in range(2):
        once("thing", lambda: made.append(1))

    assert made == [1, 1]
