"""Does what is counted from a recording agree with what happened?

Goal: rows, places, stays and refusals are those of the lines, and memory does not grow with them. Method: a replay under
pressure and faults is counted and held against its own report and against a second count, made here from parsed lines in the
plainest way; small recordings are written by hand, or by a ledger whose clock the test turns, so that every figure is known.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocklife.cli import main
from blocklife.engines.toy import ReplayReport
from blocklife.errors import MisuseError, RefusedError
from blocklife.recording import Recorder, RunStatistics, count_file
from blocklife.recording._statistics import POINTS_MAX, Spans, spell_time
from blocklife.states import MACHINES
from tests.recordings import at, recorded, refusal, step, written
from tests.worlds import held, keys, make_ledger, report, store

ROOT = Path(__file__).parents[2]

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReplayReport]:
    """A recorded run whose clock moves with every look."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    return path, recorded(path, clock=itertools.count(0, 1_000_000).__next__)


@pytest.fixture(scope="module")
def counted(run: tuple[Path, ReplayReport]) -> RunStatistics:
    return count_file(str(run[0]))


def parsed(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- a whole run -------------------------------------------------------------------------------------------------------


def test_statistics_count_the_rows_that_the_report_counts(run: tuple[Path, ReplayReport], counted: RunStatistics) -> None:
    """Every row of every machine was taken as often as the ledger says, and the others never."""
    for name, machine in counted.machines.items():
        taken = {str(row): machine.taken[row.index] for row in MACHINES[name].rows}
        assert taken == run[1].transitions[name]
        assert machine.never == tuple(row for row, times in taken.items() if not times)
    assert sum(sum(machine.taken.values()) for machine in counted.machines.values()) == counted.steps
    assert (counted.complete, counted.astray) == (True, 0)


def plain_count(lines: Lines, machine: str) -> tuple[dict[str, list[int]], dict[str, list[int]], Counter[str]]:
    """Stays by state, in plans and in nanoseconds, and where places are at last: written down one by one."""
    limits = lines[0]["limits"]
    final = {state.name for state in MACHINES[machine].finals}
    places = {"block": range(1, limits["num_blocks"]), "slot": range(limits["num_slots"])}.get(machine, range(0))
    initial = MACHINES[machine].initial.name
    stands: dict[int, tuple[str, int | None, int]] = dict.fromkeys(places, (initial, 0, 0))
    over: Counter[str] = Counter()
    plans: dict[str, list[int]] = defaultdict(list)
    times: dict[str, list[int]] = defaultdict(list)
    now = 0
    for line in lines[1:]:
        if line.get("blocklife") == "at":
            now = line["ns"]
        if "blocklife" in line:
            continue
        if machine == "job" and line["event"] in ("plan_store", "plan_load") and line["machine"] == "block":
            stands.setdefault(line["job"], (initial, line["plan"], now))
        if line["machine"] != machine or line["from"] == line["to"]:
            continue
        state, plan, ns = stands.get(line["id"], (initial, None, 0))
        if state in final:
            state, plan, ns = initial, None, 0
        assert state == line["from"]
        if plan is not None:
            plans[state].append(line["plan"] - plan)
            times[state].append(now - ns)
        stands[line["id"]] = line["to"], line["plan"], now
        over[line["to"]] += line["to"] in final
    return plans, times, Counter(state for state, _, _ in stands.values() if state not in final) + over


@pytest.mark.parametrize("machine", MACHINES)
def test_statistics_count_stays_as_the_lines_tell_them(
    run: tuple[Path, ReplayReport], counted: RunStatistics, machine: str
) -> None:
    """Visits and their sum are exact, in plans and in time; medians and percentiles are right to one per cent."""
    plans, times, last = plain_count(parsed(run[0]), machine)
    seen = 0
    for state, dwell in counted.machine(machine).dwell.items():
        assert dwell.open == last[state], state
        assert dwell.visits == len(plans[state]), state
        for stay, spans, unit in ((dwell.plans, plans[state], 1), (dwell.seconds, times[state], 10**9)):
            assert (stay is None) == (not spans)
            if stay is not None:
                assert stay.total == pytest.approx(sum(spans) / unit)
                assert stay.median == pytest.approx(np.quantile(spans, 0.5, method="inverted_cdf") / unit, rel=0.01)
                assert stay.p99 == pytest.approx(np.quantile(spans, 0.99, method="inverted_cdf") / unit, rel=0.01)
                seen += 1

    assert seen >= 4


def test_statistics_count_the_places_of_every_plan(run: tuple[Path, ReplayReport], counted: RunStatistics) -> None:
    """Blocks and slots are always all there; the states at the end of a plan are those that the lines lead to."""
    lines = parsed(run[0])
    limits = lines[0]["limits"]
    blocks = counted.machine("block")
    plans = counted.plans.tolist()
    names = list(blocks.dwell)
    stands = dict.fromkeys(range(1, limits["num_blocks"]), "FREED")
    left: dict[int, Counter[str]] = {}
    for line in lines[1:]:
        if line.get("machine") == "block":
            stands[line["id"]] = line["to"]
        if "plan" in line:
            left[line["plan"]] = Counter(stands.values())
    wanted = [[left[max(each for each in left if each <= plan)][name] for name in names] for plan in plans]

    assert plans == sorted(set(plans))
    assert plans[-1] == counted.last_plan
    assert (blocks.population.sum(axis=1) == limits["num_blocks"] - 1).all()
    assert (counted.machine("slot").population.sum(axis=1) == limits["num_slots"]).all()
    assert blocks.population.tolist() == wanted
    assert sum(blocks.shares.values()) == pytest.approx(1)


def test_statistics_of_a_run_with_times_tell_how_long_it_was(run: tuple[Path, ReplayReport], counted: RunStatistics) -> None:
    """From the first time that is told to the last."""
    times = [line["ns"] for line in parsed(run[0]) if line.get("blocklife") == "at"]

    assert counted.seconds == pytest.approx((times[-1] - times[0]) / 1e9)


# --- every figure known ------------------------------------------------------------------------------------------------


def test_statistics_of_a_ledger_whose_every_step_is_known(tmp_path: Path) -> None:
    """One block is stored: each of its stays has its length in plans and in time, and a refusal is counted where it was."""
    now = 0
    path = tmp_path / "run.jsonl"
    ledger = make_ledger(requests=())
    with path.open("w") as stream:
        Recorder(stream, clock=lambda: now).begin(ledger)
        ledger.add_request("a")
        ledger.admit("a")
        now = 1_000
        source = ledger.seal(held(ledger, "a"), keys("k"))
        now = 3_000
        job = store(ledger, source, keys("k")).ids[0]
        plan = ledger.dispatch(0.0)
        ledger.settle(plan.number, 0.0)
        ledger.settle(ledger.dispatch(0.0).number, 0.0)
        with pytest.raises(RefusedError):
            ledger.drop(source.lives)
        now = 10_000
        ledger.complete(report(job))
    counted = count_file(str(path))
    block = counted.machine("block").dwell
    flight = block["IN_FLIGHT"]

    assert (block["FREED"].visits, block["FREED"].open) == (1, 4)
    assert block["FREED"].seconds is not None
    assert block["FREED"].seconds.total == pytest.approx(1e-6)
    assert block["SEALED"].open == 1
    assert flight.plans is not None
    assert flight.seconds is not None
    assert (flight.visits, flight.plans.total) == (1, 1)
    assert flight.seconds.median == pytest.approx(7e-6, rel=0.01)
    assert counted.machine("block").refused == {("drop", "IN_FLIGHT"): 1}
    assert counted.machine("job").dwell["DONE"].open == 1
    assert not counted.complete


def test_statistics_do_not_end_a_visit_by_a_step_that_leads_back(tmp_path: Path) -> None:
    """A slot that is pinned twice is READY all the while."""
    lines = [
        step(1, 0, "slot 0", "EMPTY reserve WRITING", job=1),
        step(2, 1, "slot 0", "WRITING land READY", job=1, guard="published"),
        step(3, 2, "slot 0", "READY pin READY"),
        step(4, 3, "slot 0", "READY pin READY"),
        step(5, 7, "slot 0", "READY evict EMPTY", guard="unpinned"),
    ]
    slots = count_file(str(written(tmp_path / "run.jsonl", *lines))).machine("slot")
    ready = slots.dwell["READY"]

    assert ready.plans is not None
    assert (ready.visits, ready.open, ready.plans.total) == (1, 0, 6)
    assert slots.dwell["EMPTY"].open == 3
    assert slots.dwell["READY"].seconds is None


def test_statistics_do_not_guess_times_from_before_the_clock(tmp_path: Path) -> None:
    """A stay that began before any time was told has plans, and no time; the next one has both."""
    lines = [
        step(1, 0, "request 0", "WAITING admit RUNNING"),
        at(500),
        step(2, 4, "request 0", "RUNNING preempt PREEMPTED"),
        at(900),
        step(3, 5, "request 0", "PREEMPTED admit RUNNING"),
    ]
    requests = count_file(str(written(tmp_path / "run.jsonl", *lines))).machine("request").dwell

    assert requests["RUNNING"].plans is not None
    assert (requests["RUNNING"].plans.total, requests["RUNNING"].seconds) == (4, None)
    assert requests["PREEMPTED"].seconds is not None
    assert requests["PREEMPTED"].seconds.total == pytest.approx(4e-7)
    assert (requests["WAITING"].visits, requests["WAITING"].plans) == (0, None)


def test_statistics_count_a_row_of_requests_once_for_each_of_its_requests(tmp_path: Path) -> None:
    """Two requests came and went on one row: two are finished."""
    lines = [
        line
        for n, plan in ((1, 0), (3, 2))
        for line in (
            step(n, plan, "request 1", "WAITING admit RUNNING"),
            step(n + 1, plan, "request 1", "RUNNING finish FINISHED"),
        )
    ]
    requests = count_file(str(written(tmp_path / "run.jsonl", *lines))).machine("request")

    assert requests.dwell["FINISHED"].open == 2
    assert requests.dwell["RUNNING"].visits == 2
    assert requests.shares["FINISHED"] == 0


def test_statistics_count_what_goes_astray_and_never_below_nothing(tmp_path: Path) -> None:
    """A line that does not go on from where its place stood is counted; the place then stands where the line says."""
    lines = [
        step(1, 0, "slot 0", "WRITING land READY", job=1, guard="published"),
        step(2, 1, "slot 0", "WRITING land READY", job=1, guard="published"),
        step(3, 2, "job 9", "PLANNED submit IN_FLIGHT", job=9),
    ]
    counted = count_file(str(written(tmp_path / "run.jsonl", *lines)))

    assert counted.astray == 3
    assert counted.machine("slot").dwell["READY"].open == 1
    assert (counted.machine("slot").population >= 0).all()
    assert (counted.machine("job").population == 0).all()


def test_statistics_of_nothing_are_all_nothing(tmp_path: Path) -> None:
    """A head alone: all places are where they begin."""
    counted = count_file(str(written(tmp_path / "run.jsonl")))

    assert (counted.steps, counted.commits, counted.last_plan, counted.plans.tolist()) == (0, 0, 0, [0])
    assert counted.machine("block").population.tolist() == [[4, *[0] * (len(MACHINES["block"].states) - 1)]]
    assert counted.seconds is None


def test_statistics_keep_few_points_of_a_long_run(tmp_path: Path) -> None:
    """However many plans there are, some hundred of them are kept, evenly, the first and the last among them."""
    plans = 5 * POINTS_MAX + 3
    rows = ["EMPTY reserve WRITING", "WRITING cancel EMPTY"]
    lines = [step(plan + 1, plan, "slot 0", rows[plan % 2], job=1) for plan in range(plans)]
    counted = count_file(str(written(tmp_path / "run.jsonl", *lines)))
    kept = counted.plans.tolist()

    assert POINTS_MAX // 2 < len(kept) <= POINTS_MAX + 1
    assert (kept[0], kept[-1]) == (0, plans - 1)
    assert len(set(np.diff(kept[:-1]).tolist())) == 1
    assert counted.machine("slot").population[:, 1].tolist() == [1 - plan % 2 for plan in kept]


def test_statistics_keep_few_points_of_a_run_that_leaps(tmp_path: Path) -> None:
    """What was so for many plans is kept at each of those that are kept, however far a number leaps."""
    lines = [
        step(1, 0, "slot 0", "EMPTY reserve WRITING", job=1),
        step(2, 10**17, "slot 0", "WRITING cancel EMPTY", job=1),
    ]
    counted = count_file(str(written(tmp_path / "run.jsonl", *lines)))
    writing = counted.machine("slot").population[:, 1].tolist()

    assert POINTS_MAX // 2 < len(writing) <= POINTS_MAX + 1
    assert writing == [1] * (len(writing) - 1) + [0]
    assert counted.plans[-1] == 10**17
    assert counted.machine("slot").shares["WRITING"] == pytest.approx(1 / 3)


def test_spans_are_right_to_one_per_cent() -> None:
    """Quantiles of spans of all sizes are the least of a bucket, which is less than one per cent below the truth."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    values = [int(10 ** rng.uniform(0, 15)) for _ in range(3_000)] + [0, 1, 127, 128, 129, 255, 256, (1 << 62) - 1]
    spans = Spans()
    for value in values:
        spans.add(value)
    ordered = sorted(values)

    assert (spans.count, spans.total) == (len(values), sum(values))
    for share in (0.001, 0.1, 0.5, 0.9, 0.99, 1.0):
        truth = ordered[max(int(np.ceil(share * len(ordered))) - 1, 0)]
        assert 0.99 * truth < spans.quantile(share) + 1e-9
        assert spans.quantile(share) <= truth


def test_spell_time_uses_the_unit_that_suits() -> None:
    """Three digits, and never an exponent."""
    said = [spell_time(seconds) for seconds in (0, 2e-9, 1.5e-6, 0.000_999_9, 0.012_34, 0.9999, 12.3, 1_234.5)]

    assert said == ["0 ns", "2 ns", "1.5 µs", "1 ms", "12.3 ms", "1 s", "12.3 s", "1,234 s"]


# --- what cannot be counted --------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Mapping[str, object], str]] = {
    "machine": (step(1, 0, "page 0", "B a C"), "line 2: there is no machine page"),
    "row": (step(1, 0, "slot 0", "EMPTY pin READY"), "line 2: slot 0: there is no row EMPTY --pin--> READY"),
    "guard": (step(1, 0, "slot 0", "READY pin READY", guard="x"), r"there is no row READY --pin \[x\]--> READY"),
    "slot": (step(1, 0, "slot 3", "READY pin READY"), "line 2: slot 3: ids are 0 to 2"),
    "block": (step(1, 0, "block 0", "SEALED acquire SEALED"), "line 2: block 0: ids are 1 to 4"),
    "refused machine": (
        refusal("page 0", "B", "a"),
        "line 2: there is no machine page",
    ),
    "refused event": (
        refusal("slot 0", "EMPTY", "fly"),
        "line 2: a slot has no event fly",
    ),
    "no JSON": ({"blocklife": "at"}, "line 2: it has no ns"),
}


@pytest.mark.parametrize("case", WRONG)
def test_statistics_refuse_what_no_table_has(case: str, tmp_path: Path) -> None:
    """The message names the file, the line and what is wrong with it."""
    line, message = WRONG[case]
    path = written(tmp_path / "run.jsonl", line)
    with pytest.raises(MisuseError, match=message) as raised:
        count_file(str(path))

    assert str(raised.value).startswith(f"{path}: line 2")


def test_statistics_know_four_machines(counted: RunStatistics) -> None:
    """Another name is refused with those that there are."""
    with pytest.raises(MisuseError, match="covers block, slot, job, request, not door"):
        counted.machine("door")


# --- the command -------------------------------------------------------------------------------------------------------


def test_command_prints_tables(run: tuple[Path, ReplayReport], capsys: pytest.CaptureFixture[str]) -> None:
    """States with their stays, rows with their counts, guards in brackets."""
    status = main(["recording", "stats", str(run[0]), "--machine", "block"])
    told = capsys.readouterr().out

    assert status == 0
    assert "IN_FLIGHT --land [held]--> SEALED" in told
    assert "never" in told
    assert "median time" in told
    assert "\nslot\n" not in told
    assert not any(line.endswith(" ") for line in told.splitlines())


def test_command_prints_one_report_for_machines(run: tuple[Path, ReplayReport], capsys: pytest.CaptureFixture[str]) -> None:
    """JSON with everything, and the same twice."""
    first, second = ((main(["recording", "stats", str(run[0]), "--json"]), capsys.readouterr().out) for _ in range(2))
    said = json.loads(first[1])

    assert first == second
    assert list(said["machines"]) == list(MACHINES)
    block = said["machines"]["block"]
    assert sum(sum(machine["rows"].values()) for machine in said["machines"].values()) == said["steps"]
    assert len(block["population"]["FREED"]) == len(said["plans"])
    assert block["states"]["FREED"]["plans"].keys() == {"total", "median", "p99"}


def test_command_tells_refusals_and_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused event, a cut-off recording and lines that do not fit are told in words."""
    refused = refusal("slot 0", "EMPTY", "evict")
    lost = step(1, 0, "slot 0", "WRITING land READY", job=1, guard="published")
    status = main(["recording", "stats", str(written(tmp_path / "run.jsonl", refused, refused, lost))])
    told = capsys.readouterr().out

    assert status == 0
    assert "refused: evict while EMPTY, 2 times" in told
    assert "does not say that it is whole" in told
    assert "1 steps do not go on" in told


def test_command_that_cannot_print_says_so(run: tuple[Path, ReplayReport]) -> None:
    """Standard output that is full is one line and status 2, although the tables are made by a library."""
    command = f"{sys.executable} -m blocklife recording stats {run[0]} >/dev/full"
    ran = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert ran.stderr.startswith("blocklife: standard output")
    assert len(ran.stderr.splitlines()) == 1
