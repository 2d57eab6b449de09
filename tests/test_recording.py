"""A recording says exactly what happened: its lines are the transitions that the report counts, and they hang together."""

from __future__ import annotations

import errno
import io
import itertools
import json
from collections import Counter
from typing import Any

import pytest

from blocklife.copiers.faults import FaultRates
from blocklife.engines.toy.replay import Replay, ReplayOptions, ReplayReport
from blocklife.engines.toy.workload import generate_workload
from blocklife.ledger import Contract
from blocklife.recording import VERSION, Recorder
from blocklife.states import MACHINES, ends_life
from tests.worlds import held, in_flight, make_ledger

Lines = list[dict[str, Any]]


def recorded(contract: Contract) -> tuple[dict[str, Any], Lines, ReplayReport]:
    """The head, the lines and the report of a run under pressure and faults."""
    stream = io.StringIO()
    workload = generate_workload(requests=60, seed=0, mean_first_prompt_tokens=1_000, max_input_length=6_000)
    options = ReplayOptions(
        gpu_blocks=120,
        host_slots=300,
        block_bytes=8,
        contract=contract,
        link_blocks=4,
        deadline=16,
        faults=FaultRates(fail=0.1, late=0.1, twice=0.1, reorder=0.1, never=0.05),
        abort=0.1,
        workers=2,
    )
    replay = Replay(workload, options)
    Recorder(stream).begin(replay.ledger)
    report = replay.run()
    text = stream.getvalue()

    assert report.clean
    assert text.endswith("}\n")
    head, *lines = (json.loads(line) for line in text.splitlines())
    return head, lines, report


@pytest.fixture(scope="module", params=list(Contract), ids=lambda each: each.name.lower())
def run(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Lines, ReplayReport]:
    return recorded(request.param)


def test_recording_begins_with_a_head(run: tuple[dict[str, Any], Lines, ReplayReport]) -> None:
    """The first line says what the ledger was made with."""
    head, _, _ = run

    assert (head["blocklife"], head["version"], head["incarnation"]) == ("recording", VERSION, 1)
    assert head["contract"] in {contract.name.lower() for contract in Contract}
    assert (head["limits"]["num_blocks"], head["limits"]["num_slots"], head["limits"]["num_workers"]) == (120, 300, 2)


def spelt(line: dict[str, Any]) -> str:
    """The row of a line as the report spells it."""
    condition = f" [{line['guard']}]" if "guard" in line else ""
    return f"{line['from']} --{line['event']}{condition}--> {line['to']}"


def test_recording_holds_exactly_what_the_report_counts(run: tuple[dict[str, Any], Lines, ReplayReport]) -> None:
    """Per machine and row, the lines are as many as the report says; each is a row of its table."""
    _, lines, report = run
    found = {name: Counter(spelt(line) for line in lines if line["machine"] == name) for name in MACHINES}

    assert len(lines) > 1_000
    for name, table in MACHINES.items():
        assert set(found[name]) <= {str(row) for row in table.rows}
        assert found[name] == Counter({row: count for row, count in report.transitions[name].items() if count})


def test_recording_chains_the_states_of_each_place(run: tuple[dict[str, Any], Lines, ReplayReport]) -> None:
    """Every place begins in the initial state, and goes on where it was left; rows of requests are used again."""
    _, lines, _ = run
    at: dict[tuple[str, int], str] = {}
    for line in lines:
        table, place = MACHINES[line["machine"]], (line["machine"], line["id"])
        before = at.get(place, table.initial.name)
        if line["machine"] == "request" and before in {state.name for state in table.finals}:
            before = table.initial.name
        assert line["from"] == before, line
        at[place] = line["to"]


def test_recording_raises_epochs_exactly_where_a_life_ends(run: tuple[dict[str, Any], Lines, ReplayReport]) -> None:
    """Epochs are written for blocks alone, never fall, and rise by one with every row that ends a life, only then."""
    _, lines, _ = run
    ends = {str(row): ends_life(row) for row in MACHINES["block"].rows}
    epochs: Counter[int] = Counter()
    for line in lines:
        assert ("epoch" in line) == (line["machine"] == "block")
        if "epoch" in line:
            assert line["epoch"] == epochs[line["id"]] + ends[spelt(line)], line
            epochs[line["id"]] = line["epoch"]

    assert max(epochs.values()) > 1


def test_recording_counts_commits_and_plans(run: tuple[dict[str, Any], Lines, ReplayReport]) -> None:
    """Commits and plans only go up; what happens in one commit is one event of one machine."""
    _, lines, _ = run
    for one, two in itertools.pairwise(lines):
        assert two["n"] >= one["n"]
        assert two["plan"] >= one["plan"]
        if two["n"] == one["n"]:
            assert (two["machine"], two["event"]) == (one["machine"], one["event"])


def test_recording_names_the_job_of_every_transition_that_has_one(run: tuple[dict[str, Any], Lines, ReplayReport]) -> None:
    """A job's own lines name it, and the places it moves with it too."""
    _, lines, _ = run

    assert all(line["job"] == line["id"] for line in lines if line["machine"] == "job")
    assert all("job" in line for line in lines if line["event"] in ("land", "submit", "expire", "plan_store"))


def test_recording_begins_when_it_is_told() -> None:
    """What happened before is not in it; a refused call writes nothing."""
    ledger, stream = make_ledger(), io.StringIO()
    in_flight(ledger)
    Recorder(stream).begin(ledger)
    with pytest.raises(Exception, match="blocks wanted"):
        ledger.allocate("a", 100)
    silent = len(stream.getvalue().splitlines())
    held(ledger, "a", 2)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()[1:]]

    assert silent == 1
    assert [(line["machine"], line["event"], line["to"]) for line in lines] == [("block", "allocate", "ALLOCATED")] * 2


def test_recording_says_how_many_lines_a_commit_has(run: tuple[dict[str, Any], Lines, ReplayReport]) -> None:
    """Each line of a commit of several says so; a commit of one says nothing."""
    _, lines, _ = run
    counts = Counter(line["n"] for line in lines)

    assert max(counts.values()) > 1
    assert all(line.get("of", 1) == counts[line["n"]] for line in lines)
    assert all(line.get("of") != 1 for line in lines)


def test_recording_ends_with_what_it_counted() -> None:
    """The last line has the number of the last commit and of all lines, so that a cut can be seen."""
    ledger, stream = make_ledger(), io.StringIO()
    recorder = Recorder(stream)
    recorder.begin(ledger)
    held(ledger, "a", 2)
    recorder.end()
    *_, last, end = (json.loads(line) for line in stream.getvalue().splitlines())

    assert end == {"blocklife": "end", "n": last["n"], "lines": 2}


def test_recording_to_a_full_disk_fails_after_the_commit() -> None:
    """The error reaches the caller of the verb; what the verb did has been done."""

    class Full(io.StringIO):
        def writelines(self, _: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    ledger = make_ledger()
    Recorder(Full()).begin(ledger)
    with pytest.raises(OSError, match="No space left"):
        ledger.allocate("a", 2)

    assert len(ledger.table("a")) == 2
