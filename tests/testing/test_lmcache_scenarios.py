"""The scenarios from LMCache's threads and their tables, without LMCache: `tests/lmcache` runs them against a real one.

Goal: each case says what it is, and speaks of engines and not of LMCache alone. Method: our own engine runs them.
"""

from __future__ import annotations

import pytest

from blocklife.testing import OurDriver, Outcome, run_scenario
from blocklife.testing.scenarios._cases import SHIPPED, files_of
from blocklife.testing.scenarios._running import read_scenario
from tests.behind.scenario_tables import cases_above, table

FILES = {path.stem: path for path in sorted((SHIPPED / "lmcache").glob("*.toml"))}


def test_every_case_has_a_line() -> None:
    """In the table of its kind, and nothing else has."""
    assert [line[0] for line in table("lmcache", "releases")[1]] == list(FILES)
    assert [line[0] for line in table("lmcache", "above")[1]] == cases_above()
    assert all(all(line) for name in ("releases", "above") for line in table("lmcache", name)[1])


def test_files_are_found_by_the_name_of_the_folder() -> None:
    """As those for vLLM are."""
    assert files_of(["lmcache"]) == list(FILES.values())


@pytest.mark.parametrize("name", FILES)
def test_file_holds_for_our_own_engine(name: str) -> None:
    """In every variant; it names its thread and its rules."""
    scenario = read_scenario(FILES[name])
    found = [run_scenario(scenario, OurDriver, each) for each in scenario.each_variant()]
    print(*found, sep="\n")

    assert (scenario.id, bool(scenario.source), bool(scenario.invariants)) == (name, True, True)
    assert {each.outcome for each in found} == {Outcome.HELD}
