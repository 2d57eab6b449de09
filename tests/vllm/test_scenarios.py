"""Scenarios run against vLLM's real schedulers and connectors, in the release under which these tests run.

Goal: red and green stand where `specs/scenarios/vllm/releases.csv` says, and a red one is red for the reason that it says.
Method: the table is the expectation of every file, contract and release; bugs that no release has are planted in vLLM's
connectors and must be found. Scenarios made up for vLLM: `tests/behind/test_scenarios.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import vllm
from attrs import evolve
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata

from blocklife.engines.vllm.connector._messages import StepPlan
from blocklife.errors import MisuseError
from blocklife.ledger import Plan
from blocklife.ledger.invariants import Violation
from blocklife.testing import EngineSetup, Outcome, ScenarioVerdict, run_files, run_scenario
from blocklife.testing.scenarios._running import WRONG, read_scenario, world_of
from blocklife.testing.scenarios._telling import summary
from tests.behind.scenario_tables import cases_above, table
from tests.proof.drivers.vllm.driver import BlocklifeDriver, VllmDriver
from tests.proof.drivers.vllm.lending import Lending
from tests.proof.test_vllm_driver import BLOCKLIFE, FILES, FOLDER, Row, rows, without_words
from tests.vllm.above import above

RELEASE = vllm.__version__
only_newest = pytest.mark.skipif(not RELEASE.startswith("0.33."), reason="older releases have bugs of their own")


def runs(name: str, contract: str, driver: Callable[[], VllmDriver] = VllmDriver) -> list[ScenarioVerdict]:
    """Every variant of a file that has this contract."""
    scenario = read_scenario(FILES[name])
    chosen = [each for each in scenario.each_variant() if world_of(scenario, each).contract == contract]
    return [run_scenario(scenario, driver, each) for each in chosen]


def said(verdict: ScenarioVerdict) -> str:
    """What one run shows, in the words of the table; its outcome and message if that has none."""
    told = {Outcome.HELD: "holds", Outcome.NOT_APPLICABLE: "not expressible"}
    return told.get(verdict.outcome, f"{verdict.outcome.value}: {verdict.message}")


# --- the table --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "driver"), [(RELEASE, VllmDriver), (RELEASE + BLOCKLIFE, BlocklifeDriver)])
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.case}-{row.contract}")
def test_case_ends_as_the_table_says(row: Row, column: str, driver: Callable[[], VllmDriver]) -> None:
    """In every variant; what fails fails with the rule or the words of its cell, what is not expressible says so."""
    if column not in row.cells:
        pytest.skip(f"the table has no column for vLLM {column}")
    cell, _, only = row.cells[column].partition(" (")
    for verdict in runs(row.case, row.contract, driver):
        print(verdict)
        expected = cell if not only or verdict.variant["scheduling"] == only.rstrip(")") else "holds"

        assert expected in said(verdict)
        assert (verdict.outcome in WRONG) == (expected not in ("holds", "not expressible"))
        assert "not expressible" in verdict.message or verdict.outcome is not Outcome.NOT_APPLICABLE


def test_cases_that_are_not_expressible_never_hold_by_chance() -> None:
    """Those that have a reason do not hold when their own files are run; of A11 and S4c a half does."""
    files = [str(FOLDER.parent / f"{name}.toml") for name in sorted(without_words() - {"A11", "S4c", *AS_THEY_ARE})]
    verdicts = list(run_files(files, VllmDriver))
    print(*summary(verdicts), sep="\n")

    assert all(each.outcome is not Outcome.HELD for each in verdicts)
    assert sum(each.outcome is Outcome.NOT_APPLICABLE for each in verdicts) >= len(files)


AS_THEY_ARE = {
    **dict.fromkeys(("B03", "B09", "B11", "B12", "B13", "B15", "B16"), ("fence",)),
    **dict.fromkeys(("B08", "B14", "B17", "B23", "B24", "B26", "B31", "B32", "B37", "B38", "B39"), ("fence", "hold")),
    "S4b": ("hold",),
}
"""Cases whose own files hold with 0.33.0, and with which contracts."""


@only_newest
@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_case_of_the_folder_above_holds_as_it_is(name: str) -> None:
    """As the page says: with these connectors, in every variant that vLLM can have; with the others in none."""
    scenario = read_scenario(FOLDER.parent / f"{name}.toml")
    for variant in scenario.each_variant():
        verdict = run_scenario(scenario, VllmDriver, variant)
        print(verdict)

        if variant["contract"] in AS_THEY_ARE[name] and variant.get("weights") != "others":
            assert verdict.outcome is Outcome.HELD
        else:
            assert verdict.outcome in (Outcome.NOT_APPLICABLE, Outcome.OTHER_POLICY)


@only_newest
@pytest.mark.parametrize("case", cases_above())
def test_case_of_the_folder_above_ends_with_our_connector_as_the_table_says(case: str) -> None:
    """None of them is unsafe, and each that cannot be run says why."""
    ((_, found),) = above([case])

    assert [case, found] in table("vllm", "above")[1]
    assert "unsafe" not in found


def test_hybrid_with_states_holds_as_it_is_where_a_connector_may_have_one() -> None:
    """The seed's own file, with a Mamba group; up to 0.22 vLLM itself asserts that there is none."""
    scenario = read_scenario(FOLDER.parent / "S4.toml")
    chosen = [each for each in scenario.each_variant() if each["contract"] == "fence"]
    verdicts = [run_scenario(scenario, VllmDriver, each) for each in chosen]
    is_old = RELEASE.startswith(("0.21.", "0.22."))

    assert {each.outcome for each in verdicts} == {Outcome.NOT_APPLICABLE if is_old else Outcome.HELD}


# --- bugs that no release has -----------------------------------------------------------------------------------------------


def in_meta(monkeypatch: pytest.MonkeyPatch, change: Callable[[OffloadingConnectorMetadata], None]) -> None:
    """Let the offloading connector tell its workers something else."""
    original = OffloadingConnectorScheduler.build_connector_meta

    def told(self: OffloadingConnectorScheduler, output: SchedulerOutput) -> OffloadingConnectorMetadata:
        meta = original(self, output)
        change(meta)
        return meta

    monkeypatch.setattr(OffloadingConnectorScheduler, "build_connector_meta", told)


@pytest.mark.parametrize("name", ["A01", "A02"])
def test_connector_that_forgets_to_wait_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block goes on while a copy reads it."""
    in_meta(monkeypatch, lambda meta: setattr(meta, "jobs_to_flush", None))

    assert all("a rule is broken: I1" in each.message for each in runs(name, "fence"))


def test_connector_that_does_not_hold_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a store are let go of as soon as it is planned."""

    def let_go(self: SimpleCPUOffloadScheduler, output: SchedulerOutput) -> SimpleCPUOffloadMetadata:
        meta = original(self, output)
        self._gpu_block_pool.free_blocks(self._gpu_block_pool.blocks[block] for block in meta.store_gpu_blocks)
        return meta

    original = SimpleCPUOffloadScheduler.build_connector_meta
    monkeypatch.setattr(SimpleCPUOffloadScheduler, "build_connector_meta", let_go)

    assert all(each.outcome is Outcome.UNSAFE for each in runs("A01", "hold"))


def test_connector_that_lends_and_does_not_say_so_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks are free while another owner reads them; with the other connector a store still holds them."""
    monkeypatch.setattr(Lending, "_finished", lambda self, original, request: original(request))
    verdicts = [each for each in run_files(["B31"], VllmDriver) if each.variant["contract"] == "fence"]
    print(*verdicts, sep="\n")

    assert {each.outcome for each in verdicts} == {Outcome.UNSAFE}


def test_connector_that_swaps_two_blocks_is_found_by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found in the host under a name is not what lies there."""

    def swap(meta: OffloadingConnectorMetadata) -> None:
        for job in meta.store_jobs.values():
            source = job.transfer_spec[0] if hasattr(job, "transfer_spec") else job.src_spec
            source.block_ids = source.block_ids[::-1]

    in_meta(monkeypatch, swap)
    verdicts = runs("A16", "fence")

    assert all(each.outcome is Outcome.UNSAFE for each in verdicts)
    assert all("I6" in each.message or "I8" in each.message for each in verdicts)


def in_plans(monkeypatch: pytest.MonkeyPatch, change: Callable[[Plan], Plan]) -> None:
    """Let our own connector tell its workers something else."""
    from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler

    original = ConnectorScheduler.build_step

    def told(self: ConnectorScheduler, output: SchedulerOutput) -> StepPlan:
        step = original(self, output)
        return evolve(step, plans=tuple(map(change, step.plans)))

    monkeypatch.setattr(ConnectorScheduler, "build_step", told)


@only_newest
@pytest.mark.parametrize("name", ["A01", "A02"])
def test_connector_of_ours_that_forgets_to_wait_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block goes on while a copy reads it."""
    in_plans(monkeypatch, lambda plan: evolve(plan, flushes=()))

    assert all("a rule is broken: I1" in each.message for each in runs(name, "fence", BlocklifeDriver))


@only_newest
def test_connector_of_ours_that_swaps_two_blocks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found in the host under a name is not what lies there."""

    def swap(plan: Plan) -> Plan:
        return evolve(plan, stores=tuple(evolve(each, source=each.source[::-1]) for each in plan.stores))

    in_plans(monkeypatch, swap)

    assert all("a rule is broken: I6" in each.message for each in runs("A16", "fence", BlocklifeDriver))


@only_newest
def test_connector_of_ours_whose_ledger_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its invariants are checked after every step, and errors that it raises end the run."""
    monkeypatch.setattr("tests.proof.drivers.vllm.driver.check", lambda ledger: [Violation("I4", "told by the test")])

    assert all("a rule is broken: I4: told by the test" in each.message for each in runs("A01", "fence", BlocklifeDriver))


def test_error_inside_vllm_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict has the kind of the error, its text and the function that raised it."""

    def stumble(self: object, output: object) -> None:
        raise KeyError("job 7")

    monkeypatch.setattr(OffloadingConnectorScheduler, "update_connector_output", stumble)
    verdict, *_ = runs("S1", "fence")

    assert verdict.outcome is Outcome.FAILED
    assert "RaisedInside: KeyError ('job 7') in " in verdict.message


def test_release_that_was_not_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its name, and those that are taken."""
    monkeypatch.setattr("tests.proof.drivers.vllm.engine.RELEASE", "0.99.1")
    with pytest.raises(MisuseError, match=r"^vLLM 0\.99\.1: scenarios run against 0\.21\.x"):
        VllmDriver()


def test_engine_with_nothing_to_do_takes_no_step() -> None:
    """vLLM's own loop would not: its scheduler is not called, and a step stays empty."""
    driver = VllmDriver()
    driver.start(EngineSetup())
    driver.scheduler.schedule = None
    found = driver.step(compute=None, let_in=None)

    assert found.orders.forward == ((), ())
    assert not driver.pending()
    assert driver.settle([]).loaded == ()
