"""The driver of vLLM as far as it needs no vLLM: its refusals, its tables of results, its files, and the forward pass.

Goal: what is claimed of vLLM is one table, whose rows and files agree, and whoever lacks vLLM is told so in one line. Method:
the tables are read as the tests under vLLM read them (`tests/vllm/test_scenarios.py`); its files run against our own engine; a
worker's block tables are fed with what vLLM's scheduler would send.
"""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from attrs import frozen

from blocklife.errors import MisuseError
from blocklife.offload import Geometry
from blocklife.testing import OurDriver, Outcome, run_scenario
from blocklife.testing.scenarios._cases import SHIPPED
from blocklife.testing.scenarios._running import driver_named, read_scenario, world_of
from blocklife.testing.worlds._device import Content
from tests.behind.scenario_tables import cases_above, table
from tests.programs import HANGS_S
from tests.proof.drivers.vllm.batch import Output, WorkerBatch
from tests.proof.drivers.vllm.driver import RELEASES, BlocklifeDriver, VllmDriver

ROOT = Path(__file__).parents[2]
FOLDER = SHIPPED / "vllm"
TABLES = ROOT / "specs" / "scenarios" / "vllm"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
DRIVER = "tests.proof.drivers.vllm:VllmDriver"
BLOCKLIFE = " blocklife"
"""Behind the release, in the column of our own connector."""

OURS_DIFFER = {"S3"}
"""Files that our own engine takes another way: it does not store what was a hit on the device."""

no_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")


@frozen
class Row:
    """One line of the table of results."""

    case: str
    contract: str
    cells: dict[str, str]
    """By release, or by release with our connector."""


def rows() -> list[Row]:
    """The table of results."""
    with (TABLES / "releases.csv").open(encoding="utf-8", newline="") as file:
        return [Row(cells.pop("case"), cells.pop("contract"), cells) for cells in csv.DictReader(file)]


def without_words() -> set[str]:
    """The cases that are not expressible, each of which has a reason."""
    with (TABLES / "not_expressible.csv").open(encoding="utf-8", newline="") as file:
        return {cells["case"] for cells in csv.DictReader(file) if cells["why"]}


# --- the tables -------------------------------------------------------------------------------------------------------------


def test_every_file_has_a_row_for_each_contract_it_runs_with() -> None:
    """And no row is about anything else, or stands twice."""
    wanted = {
        (name, world_of(scenario, variant).contract)
        for name, scenario in ((name, read_scenario(path)) for name, path in FILES.items())
        for variant in scenario.each_variant()
    }
    found = [(row.case, row.contract) for row in rows()]

    assert set(found) == wanted
    assert len(found) == len(wanted)


def test_table_speaks_of_every_release_that_the_driver_takes() -> None:
    """One column for each minor release, one for our connector in the newest, and every cell says something."""
    for row in rows():
        *releases, ours = row.cells
        assert tuple(release.rpartition(".")[0] for release in releases) == RELEASES
        assert ours == releases[-1] + BLOCKLIFE
        assert all(row.cells.values())


def test_every_case_is_expressed_or_has_a_reason() -> None:
    """No case of the folder above is forgotten, and none is in both lists."""
    cases = {path.stem for path in FOLDER.parent.glob("*.toml")}

    assert cases - set(FILES) == without_words() - set(FILES)
    assert not without_words() & set(FILES)


def test_every_case_of_the_folder_above_has_a_line_for_our_connector() -> None:
    """With what it shows, or a reason."""
    _, lines = table("vllm", "above")

    assert [line[0] for line in lines] == cases_above()
    assert all(all(line) for line in lines)


# --- the files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_file_says_what_its_case_is(name: str) -> None:
    """The name, the source and the rules are those of the case that it expresses."""
    scenario, original = read_scenario(FILES[name]), FOLDER.parent / FILES[name].name

    assert scenario.id == name
    assert scenario.title.endswith(", as an engine is driven")
    assert scenario.source
    assert scenario.invariants
    if original.exists():
        assert set(scenario.source.split(", ")) <= set(read_scenario(original).source.split(", "))


@pytest.mark.parametrize("name", [name for name in FILES if name not in OURS_DIFFER])
def test_file_holds_for_our_own_engine(name: str) -> None:
    """It speaks of engines and not of vLLM alone."""
    scenario = read_scenario(FILES[name])
    for variant in scenario.each_variant():
        verdict = run_scenario(scenario, OurDriver, variant)
        print(verdict)

        assert verdict.outcome is Outcome.HELD


# --- without vLLM -----------------------------------------------------------------------------------------------------------


@no_vllm
@pytest.mark.parametrize("driver", [VllmDriver, BlocklifeDriver])
def test_driver_without_vllm_says_what_is_missing(driver: type[VllmDriver]) -> None:
    """It can be named and looked at; made it cannot be."""
    assert driver_named(DRIVER.replace("VllmDriver", driver.__name__)) is driver
    with pytest.raises(MisuseError, match=r"^vLLM cannot be imported here \(run this in an environment that has it"):
        driver()


@no_vllm
def test_command_without_vllm_is_one_line_and_status_2() -> None:
    """No traceback, and nothing on standard output."""
    command = [sys.executable, "-m", "blocklife", "scenario", "run", str(FILES["S1"]), "--driver", DRIVER]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("blocklife: vLLM cannot be imported here")
    assert ran.stderr.count("\n") == 1


def test_importing_the_driver_imports_no_vllm() -> None:
    """Nor torch: what needs them is imported when a driver is made."""
    script = "import sys, tests.proof.drivers.vllm.driver; sys.exit(bool({'vllm', 'torch'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=HANGS_S, check=False).returncode == 0


# --- the forward pass -------------------------------------------------------------------------------------------------------


def sent(
    tokens: dict[str, int],
    *,
    new: Sequence[tuple[str, int, int, tuple[list[int], ...]]] = (),
    more: Sequence[tuple[str, int, int, tuple[list[int], ...] | None]] = (),
    resumed: Sequence[str] = (),
    preempted: Sequence[str] = (),
    zeroed: Sequence[int] = (),
    copied: Sequence[object] = (),
) -> Output:
    """What vLLM's scheduler sends in one step.

    *new*: name, prompt tokens, computed tokens and tables; *more*: name, computed and said tokens, and the new blocks.
    """
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, prompt_token_ids=[0] * prompt, block_ids=tables, num_computed_tokens=computed)
            for name, prompt, computed, tables in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, *_ in more],
            resumed_req_ids=set(resumed),
            new_block_ids=[blocks for *_, blocks in more],
            num_computed_tokens=[computed for _, computed, *_ in more],
            num_output_tokens=[said for _, _, said, _ in more],
        ),
        num_scheduled_tokens=tokens,
        finished_req_ids=set(),
        preempted_req_ids=set(preempted),
        kv_connector_metadata=None,
        new_block_ids_to_zero=list(zeroed),
        kv_cache_block_copies=list(copied),
    )


class Run:
    """A worker that is sent one step after the other."""

    def __init__(self, groups: str, **texts: str) -> None:
        self.batch = WorkerBatch(Geometry.parse(groups), texts)
        self.says: list[str] = []

    def step(self, output: Output) -> tuple[list[tuple[int, Content]], list[tuple[int, Content]]]:
        """What the step reads and writes."""
        turns = self.batch.turns(output)
        self.says = [turn.row.name for turn in turns if turn.says]
        forward = self.batch.forward(output, turns)
        return sorted(forward.reads, key=str), sorted(forward.writes, key=str)


def test_prompt_is_written_and_then_read() -> None:
    """Full blocks with all tokens up to their end, the last one as far as it goes; the next step reads all of it."""
    run = Run("full:4", a="abcdefA")
    first = run.step(sent({"a": 6}, new=[("a", 6, 0, ([1, 2],))]))
    says = run.says
    second = run.step(sent({"a": 1}, more=[("a", 6, 1, None)]))

    assert first == ([], [(1, "0:abcd"), (2, "0:abcdef")])
    assert says == ["a"]
    assert second == ([(1, "0:abcd"), (2, "0:abcdef")], [(2, "0:abcdefA")])


def test_part_of_a_prompt_says_nothing() -> None:
    """The model says a token only at the end of what is known."""
    run = Run("full:4", a="abcdefA")
    run.step(sent({"a": 4}, new=[("a", 6, 0, ([1],))]))

    assert run.says == []


def test_hit_is_read_whole_and_not_written_again() -> None:
    """The last token of a hit on the whole prompt is computed once more into a block that has it."""
    run = Run("full:4", b="abcdefghB")
    step = run.step(sent({"b": 1}, new=[("b", 8, 7, ([5, 6],))]))

    assert step == ([(5, "0:abcd"), (6, "0:abcdefgh")], [])


def test_block_that_another_one_computes_in_the_same_step_is_not_read_before() -> None:
    """vLLM lets requests of one step share: who comes later finds what the step itself writes."""
    run = Run("full:4", a="abcdef", b="abcdxy")
    step = run.step(sent({"a": 5, "b": 1}, new=[("a", 5, 0, ([1, 2],)), ("b", 5, 4, ([1, 3],))]))

    assert step == ([], [(1, "0:abcd"), (2, "0:abcde"), (3, "0:abcdx")])


def test_window_reads_what_its_first_token_sees() -> None:
    """A block that has left it is the null block in the table, and nobody touches it."""
    run = Run("swa:4:8", a="abcdefghijklmA")
    run.step(sent({"a": 12}, new=[("a", 12, 0, ([1, 2, 3],))]))
    step = run.step(sent({"a": 1}, more=[("a", 12, 1, ([1],))]))

    assert step == ([(2, "0:abcdefgh"), (3, "0:abcdefghijkl")], [(1, "0:abcdefghijklm")])


def test_state_goes_from_block_to_block() -> None:
    """Mamba reads the one state at its start, and leaves one in the block in which the step ends."""
    run = Run("mamba:4", a="abcdefghA")
    first = run.step(sent({"a": 4}, new=[("a", 8, 0, ([1],))], zeroed=[1]))
    second = run.step(sent({"a": 4}, more=[("a", 4, 0, ([2],))]))

    assert first == ([], [(1, "0:abcd"), (1, None)])
    assert second == ([(1, "0:abcd")], [(2, "0:abcdefgh")])


def test_request_that_comes_again_has_other_blocks() -> None:
    """After a preemption the table is sent anew, and what is in it by then are hits."""
    run = Run("full:4", a="abcdefAAA")
    run.step(sent({"a": 6}, new=[("a", 6, 0, ([1, 2],))]))
    step = run.step(sent({"a": 3}, more=[("a", 4, 1, ([7, 8],))], resumed=["a"]))

    assert step == ([(7, "0:abcd")], [(8, "0:abcdefA")])


def test_copy_between_blocks_comes_behind_the_zeroing_of_its_target() -> None:
    """A worker zeroes new blocks first: what was copied there stays."""
    run = Run("full:4", a="abcdefA")
    output = sent(
        {"a": 2},
        new=[("a", 6, 4, ([1, 3],))],
        zeroed=[2, 3],
        copied=[SimpleNamespace(src_block_id=9, dst_block_id=3)],
    )

    assert run.batch.block_copies(output) == ((9, 3),)
    assert run.step(output) == ([(1, "0:abcd")], [(2, None), (3, "0:abcdef")])


def test_table_of_a_worker_is_what_it_was_sent() -> None:
    """It grows by what is sent, is gone while its request is preempted, and is replaced when that comes back."""
    run = Run("full:4", a="abcdefAAAAA")
    seen = []
    for output in (
        sent({"a": 6}, new=[("a", 6, 0, ([1, 2],))]),
        sent({"a": 3}, more=[("a", 6, 1, ([3],))]),
        sent({}, preempted=["a"]),
        sent({"a": 6}, more=[("a", 0, 3, ([7, 8, 9],))], resumed=["a"]),
    ):
        run.step(output)
        seen.append(run.batch.table("a", 0))

    assert seen == [[1, 2], [1, 2, 3], [], [7, 8, 9]]
    assert run.batch.table("b", 0) == []
