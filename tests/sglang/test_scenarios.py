"""Scenarios run against SGLang's real scheduler, tree and cache controller, in the release under which these tests run.

Goal: red and green stand where `specs/scenarios/sglang/README.md` says, and a red one is red for the reason that it says.
Method: its table is the expectation of every case and release; each case also finds a fault that is planted in the newest
release, under the rule that it is about; and what SGLang decides for itself ends a run as not expressible, and never as held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from blocklife.errors import MisuseError
from blocklife.testing.scenarios._driver import EngineSetup
from blocklife.testing.scenarios._running import Outcome, ScenarioVerdict, parse_scenario, read_scenario, run_scenario
from tests.sglang import scenarios
from tests.sglang.engine import RELEASE
from tests.sglang.planted import FAULTS
from tests.sglang.scenario_driver import SglangDriver, SkewedSglangDriver
from tests.sglang.scenario_ranks import ScenarioRank
from tests.sglang.scenarios import FOLDER, NEWEST, Row, rows

only_newest = pytest.mark.skipif(RELEASE != NEWEST, reason="faults are planted in the newest release")


def one(steps: str, world: str = "", driver: Callable[[], SglangDriver] = SglangDriver) -> ScenarioVerdict:
    """A scenario made up here."""
    head = f'id = "one"\ntitle = "one"\ntests = "safety"\n[world]\ncontract = "hold"\n{world}\n'
    return run_scenario(parse_scenario(head + steps), driver)


# --- the page ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.case}-{row.driver}")
def test_case_ends_as_the_page_says(row: Row) -> None:
    """In every variant; what fails fails with the rule, and in the step, of its cell."""
    if RELEASE not in scenarios.RELEASES:
        pytest.skip(f"the page has no column for SGLang {RELEASE}")
    found = scenarios.verdicts(row.case, row.driver)
    print(*found, sep="\n")

    assert scenarios.cell(found) == scenarios.cells_of(RELEASE)[row.name]


@only_newest
@pytest.mark.parametrize("case", scenarios.cases_above())
def test_case_of_the_page_above_ends_as_the_page_says(case: str) -> None:
    """With SGLang's contract; none of them is unsafe, and each that cannot be run says why."""
    ((_, found),) = scenarios.above([case])

    assert [scenarios.name_above(case), found] in scenarios.table("above")[1]
    assert "unsafe" not in found


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
"""By case: what is planted, and what it is found by. G3 is run with unequal hosts, which the page has a row for."""


def planted(plant: Plant) -> Callable[[], SglangDriver]:
    """A driver of an SGLang with this fault."""

    class Planted(SglangDriver):
        def on_rank(self, rank: ScenarioRank) -> None:
            plant(rank)

    return Planted


@only_newest
@pytest.mark.parametrize("case", PLANTED)
def test_planted_fault_is_found(case: str) -> None:
    """In one variant at least, under its rule; the page says that the case holds without it."""
    plant, words = PLANTED[case]
    scenario = read_scenario(FOLDER / f"{case}.toml")
    found = [run_scenario(scenario, planted(plant), each) for each in scenario.each_variant()]
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

    verdict = one(f'{TWO}\n[[step]]\ndo = "tick"\ntimes = 4', driver=planted(stumbles))

    assert verdict.outcome is Outcome.FAILED
    assert "RaisedInside: TypeError (" in verdict.message
    assert " in unified_radix_cache.py:" in verdict.message


# --- what SGLang decides ----------------------------------------------------------------------------------------------------

TWO = """
[[step]]
do = "arrive"
request = "a"
prompt = "abcdefghi"
[[step]]
do = "step"
[[step]]
do = "arrive"
request = "b"
prompt = "rstuvwx"
"""


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ('do = "step"\ncompute = { a = 1 }\nlet_in = ["b"]', "a step in which a computes 1 tokens (SGLang schedules 0 for it)"),
        ('do = "step"\ncompute = { a = 3 }\nlet_in = {}', "a step in which a computes 3 tokens (SGLang schedules 1 for it)"),
        ('do = "step"\nlet_in = { b = 6 }', "a step in which b enters with 6 tokens (SGLang schedules 4)"),
        ('do = "step"\nsampled = { a = 2 }', "a gets 2 tokens at once"),
        ('do = "step"\npreempt = ["a"]', "preempt (SGLang retracts where memory runs out"),
        ('do = "lookup"\nrequest = "b"', "lookup (SGLang looks up only while it schedules"),
        ('do = "renew"\ngeneration = "two"', "renew (SGLang has no name for its weights"),
        ('do = "reset"', "reset while there are requests or copies (SGLang flushes only when it is idle)"),
        ('do = "sleep"', "sleep while there are requests"),
        ('do = "enter"\nrequest = "c"', "enter (SGLang's scheduler alone decides"),
        ('do = "check"\nexpect.count = { stale = 0 }', "the count 'stale' (SGLang does not count it)"),
        ('do = "report"\ncopy = "nobody"\n[[step]]\ndo = "tick"', "a report of an unknown copy"),
        ('do = "abort"\nrequest = "a"\nexpect.nothing_left = true', "what is left right after a is aborted"),
    ],
)
def test_what_sglang_decides_otherwise_is_not_expressible(step: str, why: str) -> None:
    """With what was asked for and what SGLang does; the run does not go on as if it had."""
    verdict = one(f"{TWO}\n[[step]]\n{step}")

    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert f"not expressible: {why}" in verdict.message


@pytest.mark.parametrize(
    ("land", "why"), [("fail", "a copy that fails"), ('land"\nreport = "twice', "a second report of a copy")]
)
def test_report_that_no_event_gives_is_not_expressible(land: str, why: str) -> None:
    """SGLang asks events, which are reached once and never fail."""
    out = '[[step]]\ndo = "step"\nuntil = { out = ["the store of a"] }'
    verdict = one(f'{TWO}\n{out}\n[[step]]\ndo = "{land}"\n[[step]]\ndo = "tick"')

    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert f"not expressible: {why}" in verdict.message


@pytest.mark.parametrize(
    ("world", "why"),
    [
        ("deadline = 4", "deadline = 4 (SGLang has no deadline for copies)"),
        ('pool = "engine"', "pool = engine"),
        ("blocks_per_chunk = 2", "blocks_per_chunk = 2 (SGLang stores page by page)"),
        ('groups = "full:4,swa:4:8"', "groups = full:4,swa:4:8 (the driver runs models with full attention only)"),
        ('groups = "full:4/1"', "groups = full:4/1 (SGLang's tree has whole pages)"),
        ("load_within_tokens = 8", "load_within_tokens = 8"),
    ],
)
def test_setting_that_sglang_has_not_is_not_expressible(world: str, why: str) -> None:
    """Before anything runs."""
    verdict = one('[[step]]\ndo = "check"', world)

    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert f"not expressible: {why}" in verdict.message


def test_request_that_sglang_never_admits_is_not_expressible() -> None:
    """It keeps a page more than the request needs, so three blocks do not do for three."""
    verdict = one(TWO, "blocks = 3")

    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert "not expressible: a in a memory of 3 blocks" in verdict.message


def test_world_that_sglang_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the place in SGLang."""
    monkeypatch.setattr("tests.sglang.scenario_ranks.engine_of", lambda *_: int("none"))
    with pytest.raises(MisuseError, match=rf"^SGLang {RELEASE} refuses this world: ValueError"):
        SglangDriver().start(EngineSetup(contract="hold"))


# --- what is asked and heard ------------------------------------------------------------------------------------------------


def test_states_are_those_of_the_mirror_and_of_sglang() -> None:
    """A block, its slot and its request, along the life of a store, and then of a load."""
    verdict = one(
        """
        [[step]]
        do = "arrive"
        request = "a"
        prompt = "abcdefghi"
        expect.state = { a = "WAITING" }
        expect.count = { free = 15, requests = 1, jobs_made = 0 }
        [[step]]
        do = "step"
        remember = { first = "block 0 of a" }
        expect.state = { a = "RUNNING" }
        expect.tokens = { a = 9 }
        expect.not_in_host = ["abcd"]
        [[step]]
        do = "step"
        remember = { slot = "the slot of abcd" }
        expect.state = { slot = "WRITING" }
        expect.out = ["the store of a"]
        expect.pending = true
        expect.tokens = { a = 10 }
        [[step]]
        do = "land"
        [[step]]
        do = "tick"
        expect.state = { slot = "READY" }
        expect.in_host = ["abcd", "abcdefgh"]
        expect.pending = false
        expect.count = { ready = 2, jobs_out = 0, jobs_made = 1 }
        [[step]]
        do = "finish"
        request = "a"
        expect.state = { a = "FINISHED" }
        [[step]]
        do = "drain"
        expect.count = { free = 15 }
        expect.on_device = ["abcd", "abcdefgh"]
        [[step]]
        do = "empty_device"
        expect.not_on_device = ["abcd"]
        [[step]]
        do = "arrive"
        request = "b"
        prompt = "abcdefghijk"
        [[step]]
        do = "step"
        expect.hit = { b = 8 }
        expect.hit_on_device = { b = 0 }
        expect.loads = ["block 0 of b", "block 1 of b"]
        expect.loaded = ["b"]
        expect.holds = { "block 1 of b" = "abcdefgh" }
        """
    )

    assert str(verdict) == "one: holds"


def test_memory_that_runs_out_retracts_a_request_which_comes_back() -> None:
    """Which of them is SGLang's choice; the state says so."""
    verdict = one(
        """
        [[step]]
        do = "arrive"
        request = "a"
        prompt = "abcdefghi"
        [[step]]
        do = "arrive"
        request = "b"
        prompt = "rstuvwxyz"
        [[step]]
        do = "step"
        [[step]]
        do = "step"
        times = 4
        [[step]]
        do = "land"
        [[step]]
        do = "step"
        until = { state = { b = "PREEMPTED" } }
        expect.state = { a = "RUNNING" }
        policy.has = { b = [] }
        [[step]]
        do = "drain"
        [[step]]
        do = "tick"
        [[step]]
        do = "finish"
        request = "a"
        [[step]]
        do = "drain"
        [[step]]
        do = "step"
        until = { state = { b = "RUNNING" } }
        """,
        "blocks = 9\nslots = 16",
    )

    assert str(verdict) == "one: holds"


def test_host_that_is_full_refuses_and_takes_again() -> None:
    """Nothing is stored while other content has every slot."""
    verdict = one(
        """
        [[step]]
        do = "fill_host"
        [[step]]
        do = "arrive"
        request = "a"
        prompt = "abcdefghi"
        [[step]]
        do = "step"
        times = 3
        expect.stores = []
        expect.count = { jobs_made = 0 }
        [[step]]
        do = "tick"
        [[step]]
        do = "finish"
        request = "a"
        [[step]]
        do = "free_host"
        [[step]]
        do = "crowd_host"
        slots = 8
        [[step]]
        do = "arrive"
        request = "b"
        prompt = "rstuvwxyz"
        [[step]]
        do = "step"
        until = { out = ["the store of b"] }
        """
    )

    assert str(verdict) == "one: holds"
