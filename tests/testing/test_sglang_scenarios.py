"""The scenarios for SGLang as far as they need no SGLang: their files, the tables of results, and the driver's refusal.

Goal: what is claimed of SGLang is one table, whose lines and files agree, and the files speak of engines and not of SGLang
alone. Method: the tables are read as the tests under SGLang read them (`tests/sglang/test_scenarios.py`); its files run
against our own engine.
"""

from __future__ import annotations

import importlib.util
import re

import pytest

from blocklife.errors import MisuseError
from blocklife.testing import OurDriver, Outcome, run_scenario
from blocklife.testing.scenarios._cases import SHIPPED, files_of
from blocklife.testing.scenarios._running import driver_named, read_scenario, world_of
from tests.behind.scenario_tables import cases_above, table
from tests.proof.drivers.sglang import LinkerDriver, SglangDriver, SkewedLinkerDriver, SkewedSglangDriver
from tests.sglang.scenarios import COLUMNS, FOLDER, rows

FILES = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
DRIVER = "tests.proof.drivers.sglang:SglangDriver"

no_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="SGLang is here")


def test_every_case_has_a_line_with_a_cell_for_each_release() -> None:
    """And no line is about anything else, or stands twice."""
    header, lines = table("sglang", "releases")

    assert header == ["case", *COLUMNS]
    assert [line[0] for line in lines] == [row.name for row in rows()]
    assert all(all(line) and len(line) == len(header) for line in lines)


def test_every_cell_holds_or_names_a_rule_and_a_step() -> None:
    """No case of SGLang's own ends in another way."""
    _, lines = table("sglang", "releases")
    form = re.compile(r"holds|not expressible|I\d+, step \d+( \([^()]+\); else holds)?")

    assert [cell for line in lines for cell in line[1:] if not form.fullmatch(cell)] == []
    assert any("I" in cell for line in lines for cell in line[1:])


def test_every_case_of_the_folder_above_has_a_line() -> None:
    """With what it shows, or a reason."""
    _, lines = table("sglang", "above")

    assert [line[0] for line in lines] == cases_above()
    assert all(all(line) for line in lines)


def test_files_are_found_by_the_name_of_the_folder() -> None:
    """As those for vLLM are."""
    assert files_of(["sglang"]) == list(FILES.values())
    assert files_of(["sglang/G1"]) == [FILES["G1"]]


@pytest.mark.parametrize("name", FILES)
def test_file_says_what_its_case_is(name: str) -> None:
    """Cases from elsewhere keep their name, and say that they are driven otherwise; each runs with SGLang's contract only."""
    scenario, above = read_scenario(FILES[name]), SHIPPED / FILES[name].name

    assert scenario.id == name
    assert scenario.title.endswith(", as SGLang is driven") == above.exists()
    assert scenario.source
    assert scenario.invariants
    assert {world_of(scenario, each).contract for each in scenario.each_variant()} == {"hold"}


@pytest.mark.parametrize("name", FILES)
def test_file_holds_for_our_own_engine(name: str) -> None:
    """It speaks of engines and not of SGLang alone."""
    scenario = read_scenario(FILES[name])
    for variant in scenario.each_variant():
        verdict = run_scenario(scenario, OurDriver, variant)
        print(verdict)

        assert verdict.outcome is Outcome.HELD


@no_sglang
@pytest.mark.parametrize("driver", [SglangDriver, SkewedSglangDriver, LinkerDriver, SkewedLinkerDriver])
def test_driver_without_sglang_says_what_is_missing(driver: type[SglangDriver]) -> None:
    """It can be named and looked at; made it cannot be."""
    assert driver_named(DRIVER.replace("SglangDriver", driver.__name__)) is driver
    with pytest.raises(MisuseError, match=r"^SGLang cannot be imported here \(python -m tests\.sglang\.run --python VERSION"):
        driver()
