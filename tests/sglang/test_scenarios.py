"""Scenarios run against SGLang's real scheduler, tree and cache controller, in the release under which these tests run.

Goal: red and green stand where `specs/scenarios/sglang/releases.csv` says, and a red one is red for the reason that it says.
Method: its table is the expectation of every case and release; each case also finds a fault that is planted in the newest
release, under the rule that it is about. Those made up for SGLang: `tests/behind/test_scenarios.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from blocklife.errors import MisuseError
from blocklife.testing import EngineSetup, Outcome, ScenarioVerdict, parse_scenario, run_scenario
from blocklife.testing.scenarios._running import read_scenario
from tests.behind.scenario_tables import cases_above, table
from tests.proof.drivers.sglang import LinkerDriver, SglangDriver, SkewedSglangDriver
from tests.sglang import scenarios
from tests.sglang.engine import RELEASE
from tests.sglang.planted import FAULTS
from tests.sglang.scenario_ranks import ScenarioRank
from tests.sglang.scenarios import FOLDER, NEWEST, Row, rows

only_newest = pytest.mark.skipif(RELEASE != NEWEST, reason="faults are planted in the newest release")


def one(steps: str, driver: Callable[[], SglangDriver] = SglangDriver) -> ScenarioVerdict:
    """A scenario made up here."""
    return run_scenario(
        parse_scenario(f'id = "one"\ntitle = "one"\ntests = "safety"\nworld.contract = "hold"\n{steps}'), driver
    )


BEGUN = """
[[step]]
do = "arrive"
request = "a"
prompt = "abcdefghi"
[[step]]
do = "step"
[[step]]
do = "tick"
times = 4
"""


# --- the tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", scenarios.columns_of(RELEASE))
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.case}-{row.driver}")
def test_case_ends_as_the_table_says(row: Row, column: str) -> None:
    """In every variant; what fails fails with the rule, and in the step, of its cell."""
    if RELEASE not in scenarios.RELEASES:
        pytest.skip(f"the table has no column for SGLang {RELEASE}")
    found = scenarios.verdicts(row, column)
    print(*found, sep="\n")

    assert scenarios.shown(found) == scenarios.cells_of(column)[row.name]


@only_newest
@pytest.mark.parametrize("case", cases_above())
def test_case_of_the_folder_above_ends_as_the_table_says(case: str) -> None:
    """With SGLang's contract, and with our linker; none of them is unsafe, and each that cannot be run says why."""
    ((_, *found),) = scenarios.above([case])

    assert [case, *found] in table("sglang", "above")[1]
    assert not any("unsafe" in each for each in found)


# --- faults that are planted ------------------------------------------------------------------------------------------------


def flushes_nothing(rank: ScenarioRank) -> None:
    """A flush says that it is done, and forgets nothing."""
    rank.scheduler.flush_cache = lambda *_, **__: True


def first_rank_skips(rank: ScenarioRank) -> None:
    """The first of several ranks does not ask the others while it waits for nothing itself."""
    tree = rank.tree
    look = tree.check_hicache_events

    def looked() -> None:
        if rank.number or tree.ongoing_write_through:
            look()

    tree.check_hicache_events = looked


def host_lock_kept(rank: ScenarioRank) -> None:
    """What a load reads in the host stays locked when it has landed."""
    rank.tree.dec_host_lock_ref = lambda *_, **__: None


def looks_when_it_computes(rank: ScenarioRank) -> None:
    """What has landed is not noted while there is nothing to compute."""
    tree = rank.tree
    look = tree.check_hicache_events

    def looked() -> None:
        if not rank.is_idle:
            look()

    tree.check_hicache_events = looked


Plant = Callable[[Any], None]

PLANTED: Mapping[str, tuple[Plant, str]] = {
    "A01": (FAULTS["write_unlocked"].plant, "a rule is broken: I1"),
    "A03": (FAULTS["host_page_freed"].plant, "a rule is broken: I7"),
    "A13": (flushes_nothing, "not_on_device: abcd (0:abcd) can be found"),
    "A16": (FAULTS["write_unlocked"].plant, "a rule is broken: I1"),
    "A39": (FAULTS["prefix_unlocked"].plant, "a rule is broken: I6"),
    "G1": (FAULTS["host_page_freed"].plant, "a rule is broken: I7"),
    "G2": (FAULTS["no_write_fence"].plant, "a rule is broken: I2"),
    "G4": (first_rank_skips, "a rule is broken: I9"),
    "G5": (host_lock_kept, "there is no room for 14 more slots in the host"),
    "G6": (FAULTS["acknowledged_early"].plant, "a rule is broken: I6"),
    "G7": (FAULTS["page_freed_twice"].plant, "a rule is broken: I4"),
    "G8": (FAULTS["prefix_unlocked"].plant, "a rule is broken: I6"),
    "G9": (FAULTS["no_load_fence"].plant, "a rule is broken: I2"),
    "S2": (FAULTS["load_not_waited_for"].plant, "a rule is broken: I6"),
    "S5": (looks_when_it_computes, "pending: ticking must go on"),
}
"""By case: what is planted, and what it is found by. G3 is run with unequal hosts, which the table has a row for."""


def planted(plant: Plant) -> Callable[[], SglangDriver]:
    """A driver of an SGLang with this fault."""

    class Planted(SglangDriver):
        def on_rank(self, rank: ScenarioRank) -> None:
            plant(rank)

    return Planted


@only_newest
@pytest.mark.parametrize("case", PLANTED)
def test_planted_fault_is_found(case: str) -> None:
    """In one variant at least, under its rule; the table says that the case holds without it."""
    plant, words = PLANTED[case]
    scenario = read_scenario(FOLDER / f"{case}.toml")
    found = [run_scenario(scenario, planted(plant), each) for each in scenario.each_variant()]
    print(*found, sep="\n")

    assert any(each.outcome is Outcome.UNSAFE and words in each.message for each in found)


@only_newest
@pytest.mark.parametrize(
    ("case", "fault", "words"),
    [
        ("A01", "acknowledged_early", "a rule is broken: I1"),
        ("S2", "pages_swapped", "a rule is broken: I6"),
        ("G2", "forward_not_waited_for", "a rule is broken: I2"),
        ("S2", "load_not_waited_for", "a rule is broken: I6"),
    ],
)
def test_fault_planted_in_our_linker_is_found(case: str, fault: str, words: str) -> None:
    """The same of its column, which says that each case holds."""
    from tests.sglang.planted_linker import LINKER_FAULTS, linker_of

    class Planted(LinkerDriver):
        def on_rank(self, rank: ScenarioRank) -> None:
            LINKER_FAULTS[fault].plant(linker_of(rank))

    scenario = read_scenario(FOLDER / f"{case}.toml")
    found = [run_scenario(scenario, Planted, each) for each in scenario.each_variant()]
    print(*found, sep="\n")

    assert any(each.outcome is Outcome.UNSAFE and words in each.message for each in found)


def test_every_case_has_a_fault_that_it_finds() -> None:
    """One that is planted here, or one of the ranks with unequal hosts."""
    assert {path.stem for path in FOLDER.glob("*.toml")} == {*PLANTED, "G3"}


@only_newest
def test_bytes_alone_find_a_store_that_overtakes_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the watch the rig's bytes say the same: the copy reads what the step has not written yet."""
    monkeypatch.setattr("blocklife.watch._pages.PageBook._ask_order", lambda self, job: None)
    scenario = read_scenario(FOLDER / "G2.toml")
    found = run_scenario(scenario, planted(FAULTS["no_write_fence"].plant), {"scheduling": "async", "said": "three"})

    assert found.outcome is Outcome.UNSAFE
    assert "a rule is broken: I2: bytes: " in found.message
    assert "a copy to host reads" in found.message


@only_newest
def test_device_alone_finds_a_block_that_goes_on_while_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the watch the runner's device says the same."""
    monkeypatch.setattr("blocklife.engines.sglang.watch.Watch.violations", property(lambda self: []))
    scenario = read_scenario(FOLDER / "A01.toml")
    found = run_scenario(scenario, planted(FAULTS["write_unlocked"].plant), {"scheduling": "sync"})

    assert found.outcome is Outcome.UNSAFE
    assert "a rule is broken: I1: block 1 (first) was handed out while copy 1 (the store of a) touches it" in found.message


def test_ranks_with_unequal_hosts_are_found() -> None:
    """By what they store, or before that by how they agree."""
    scenario = read_scenario(FOLDER / "G3.toml")
    found = run_scenario(scenario, SkewedSglangDriver, {"scheduling": "sync"})

    assert found.outcome is Outcome.UNSAFE
    assert "a rule is broken: I9" in found.message


@only_newest
def test_error_inside_sglang_says_where() -> None:
    """The verdict has the kind of the error, its text and the function that raised it."""

    def stumbles(rank: ScenarioRank) -> None:
        rank.tree.ongoing_write_through = None

    verdict = one(BEGUN, planted(stumbles))

    assert verdict.outcome is Outcome.FAILED
    assert "RaisedInside: TypeError (" in verdict.message
    assert " in unified_radix_cache.py:" in verdict.message


def test_world_that_sglang_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the place in SGLang."""
    monkeypatch.setattr("tests.sglang.scenario_ranks.engine_of", lambda *_: int("none"))
    with pytest.raises(MisuseError, match=rf"^SGLang {RELEASE} refuses this world: ValueError"):
        SglangDriver().start(EngineSetup(contract="hold"))
