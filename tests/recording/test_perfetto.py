"""A recording as Chrome trace events: by the rules of that format, and with just what the recording tells.

Goal: a viewer shows every stay, step and job of a run where and when it was. Method: a replay under faults is written as a
trace, which is read back with the json module, held against the rules of the format and against a second reading of the lines,
made here in the plainest way; small recordings are written by hand.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tracemalloc
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from blocklife.cli import main
from blocklife.errors import MisuseError
from blocklife.recording import open_recording, write_perfetto
from blocklife.recording._perfetto import PLAN_NS, Traced
from blocklife.states import MACHINES
from tests.recordings import Line, at, lines_of, recorded, refusal, step, written

Events = list[dict[str, Any]]

UNIX = 1_700_000_000_000_000_000


def traced(path: Path, **options: Any) -> tuple[dict[str, Any], Traced]:
    """A recording as a trace, read back."""
    sink = io.StringIO()
    with open_recording(str(path)) as recording:
        report = write_perfetto(recording, sink, **options)
    whole: dict[str, Any] = json.loads(sink.getvalue())
    assert len(whole["traceEvents"]) == report.events
    return whole, report


@pytest.fixture(scope="module", params=["timed", "untimed"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run, with and without times."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    recorded(path, clock=itertools.count(UNIX, 1_234).__next__ if request.param == "timed" else None)
    return path


@pytest.fixture(scope="module")
def events(run: Path) -> Events:
    found: Events = traced(run)[0]["traceEvents"]
    return found


# --- the rules of the format ----------------------------------------------------------------------------------------------


def test_trace_events_have_what_every_event_has(events: Events) -> None:
    """A phase that is known, a name, a time, a process and a thread; times never go back."""
    assert {event["ph"] for event in events} == set("MBEibenC")
    for event in events:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["ts"], float)
        assert event["ts"] >= 0
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] != "i" or event["s"] == "t"
        assert event["ph"] not in "ben" or (event["cat"], event["id"][:2]) == ("job", "0x")
        assert event["ph"] != "C" or all(type(value) is int and value >= 0 for value in event["args"].values())
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)


def test_trace_slices_nest(events: Events) -> None:
    """On each thread every slice that begins ends, the latest first; so it is with the two slices of a job."""
    stacks: defaultdict[object, list[str]] = defaultdict(list)
    deepest: defaultdict[str, int] = defaultdict(int)
    for event in events:
        track = (event["pid"], event["tid"]) if event["ph"] in "BE" else ("job", event.get("id"))
        if event["ph"] in "Bb":
            stacks[track].append(event["name"])
            deepest[event["ph"]] = max(deepest[event["ph"]], len(stacks[track]))
        elif event["ph"] in "Ee":
            assert stacks[track].pop() == event["name"]
    assert not any(stacks.values())
    assert deepest == {"B": 1, "b": 2}


def test_trace_arrows_begin_somewhere(events: Events) -> None:
    """Every slice that an arrow leads to names a job from which one has left, and each job has sent one."""
    left: set[str] = set()
    led: Counter[str] = Counter()
    for event in events:
        if event.get("flow_out"):
            left.add(event["bind_id"])
        if event.get("flow_in"):
            assert event["bind_id"] in left
            led[event["bind_id"]] += 1
            assert event["bind_id"] == hex(event["args"]["job"])
    assert set(led) == left


def test_trace_names_every_process_and_thread_once(events: Events) -> None:
    """Four processes; each thread has one name, a number that no other process uses, and the name comes first."""
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads: dict[int, tuple[int, str]] = {}
    for event in events:
        if event["name"] == "thread_name":
            assert event["tid"] not in threads
            threads[event["tid"]] = (event["pid"], event["args"]["name"])
        elif event["ph"] in "BEi":
            assert threads[event["tid"]][0] == event["pid"]
    assert sorted(processes.values()) == ["blocks", "jobs", "requests", "slots"]
    assert len({name for _, name in threads.values()}) == len(threads)


# --- what the recording tells -----------------------------------------------------------------------------------------------


def test_trace_has_a_slice_for_each_stay(run: Path, events: Events) -> None:
    """For each place the slices are the states that its lines lead to, a step that stays being an instant in them."""
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices: defaultdict[str, list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] == "B":
            slices[threads[event["tid"]]].append(event["name"])
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    stayed: Counter[str] = Counter()
    for line in lines_of(run):
        place = f"{line['machine']} {line['id']}"
        if line["machine"] == "job":
            continue
        if wanted[place] and line["to"] == wanted[place][-1]:
            stayed[line["event"]] += 1
        else:
            wanted[place].append(line["to"])

    assert slices == wanted
    assert Counter(event["name"] for event in events if event.get("cat") == "step") == stayed


def test_trace_has_every_job_with_its_states(run: Path, events: Events) -> None:
    """A job is a slice from the first line that names it to its end, its states stand in it, and late reports are instants."""
    states: defaultdict[str, list[str]] = defaultdict(list)
    late: Counter[str] = Counter()
    for event in events:
        if event["ph"] == "b":
            states[event["id"]].append(event["name"])
        elif event["ph"] == "n":
            late[event["name"]] += 1
    wanted: dict[str, list[str]] = {}
    stays: Counter[str] = Counter()
    for line in lines_of(run):
        if "job" in line and hex(line["job"]) not in wanted:
            kind = {"plan_store": "store", "plan_load": "load"}[line["event"]]
            wanted[hex(line["job"])] = [f"{kind} {line['job']}", "PLANNED"]
        if line["machine"] == "job":
            if line["to"] == line["from"]:
                stays[line["event"]] += 1
            else:
                wanted[hex(line["id"])].append(line["to"])

    assert states == wanted
    assert late == stays


def test_trace_names_the_requests(run: Path, events: Events) -> None:
    """Each slice of a request says what it is called, as it can be shown."""
    names = {line["name"] for line in map(json.loads, run.read_text().splitlines()) if line.get("machine") == "request"}
    told = [event["args"].get("request") for event in events if event["ph"] == "B" and event["cat"] == "request"]

    assert names
    assert set(told) == names
    assert not [event for event in events if event["ph"] == "B" and event["cat"] != "request" and "request" in event["args"]]


def test_trace_counts_places_by_state(run: Path, events: Events) -> None:
    """After each time the counters are what a second count of the lines gives; blocks and slots add up to all there are."""
    head = json.loads(run.read_text().split("\n", 1)[0])["limits"]
    processes = {event["pid"]: event["args"]["name"].removesuffix("s") for event in events if event["name"] == "process_name"}
    counters: dict[str, dict[str, int]] = {name: {} for name in MACHINES}
    all_of = {"block": head["num_blocks"] - 1, "slot": head["num_slots"]}
    for ts, group in itertools.groupby((event for event in events if event["ph"] == "C"), key=lambda event: event["ts"]):
        for event in group:
            counters[processes[event["pid"]]][event["name"]] = event["args"]["places"]
        for name, count in all_of.items():
            assert sum(counters[name].values()) == count, ts
    stands: dict[tuple[str, int], str] = {}
    for line in lines_of(run):
        stands[line["machine"], line["id"]] = line["to"]
    for name, table in MACHINES.items():
        finals = {state.name for state in table.finals}
        ends = Counter(state for (machine, _), state in stands.items() if machine == name and state not in finals)
        if name in all_of:
            ends[table.initial.name] += all_of[name] - sum(ends.values())
        assert Counter(counters[name]) == ends


def test_trace_tells_when_lives_end(run: Path, events: Events) -> None:
    """There is an instant for each time that the epoch of a block rises."""
    epochs: dict[int, int] = {}
    ended: Counter[str] = Counter()
    for line in lines_of(run):
        if line["machine"] == "block":
            if line["epoch"] != epochs.get(line["id"], line["epoch"]):
                ended[f"life {epochs[line['id']]} ends"] += 1
            epochs[line["id"]] = line["epoch"]

    assert sum(ended.values()) > 50
    assert Counter(event["name"] for event in events if event.get("cat") == "life") == ended


# --- time -------------------------------------------------------------------------------------------------------------------


def test_trace_takes_the_times_that_are_told(tmp_path: Path) -> None:
    """Nanoseconds become microseconds to the last digit; what stands before the first time happened by then."""
    path = written(
        tmp_path / "hand.jsonl",
        step(1, 0, "block 1", "FREED allocate ALLOCATED"),
        at(5_001),
        step(2, 0, "block 2", "FREED allocate ALLOCATED"),
        at(7_250),
        step(3, 0, "block 1", "ALLOCATED release FREED", epoch=1),
    )
    whole, report = traced(path)

    assert report.timed
    assert [(event["ts"], event["name"]) for event in whole["traceEvents"] if event["ph"] in "BEi"][:5] == [
        (5.001, "ALLOCATED"),
        (5.001, "ALLOCATED"),
        (7.25, "life 0 ends"),
        (7.25, "ALLOCATED"),
        (7.25, "FREED"),
    ]
    assert "baseTimeNanoseconds" not in whole


def test_trace_of_times_since_1970_begins_at_zero(tmp_path: Path) -> None:
    """What zero is stands in the head, the offset included, so that no digit is lost in a double."""
    path = written(tmp_path / "hand.jsonl", at(UNIX + 1), step(1, 0, "block 1", "FREED allocate ALLOCATED"))

    assert traced(path)[0]["baseTimeNanoseconds"] == UNIX + 1
    assert traced(path, offset_ns=5)[0]["baseTimeNanoseconds"] == UNIX + 6
    assert traced(path, offset_ns=-UNIX)[0].get("baseTimeNanoseconds") is None
    assert {event["ts"] for event in traced(path)[0]["traceEvents"]} == {0.0}
    assert {event["ts"] for event in traced(path, offset_ns=-UNIX)[0]["traceEvents"]} == {0.001}


def test_trace_without_times_gives_a_plan_a_millisecond(tmp_path: Path) -> None:
    """The commits and refusals of a plan are spread evenly over it; plans without steps take their time too."""
    path = written(
        tmp_path / "hand.jsonl",
        step(1, 0, "block 1", "FREED allocate ALLOCATED"),
        step(1, 0, "block 2", "FREED allocate ALLOCATED"),
        refusal("block 1", "ALLOCATED", "drop"),
        step(2, 0, "block 1", "ALLOCATED seal SEALED"),
        step(3, 0, "block 2", "ALLOCATED seal SEALED"),
        step(4, 3, "block 3", "FREED allocate ALLOCATED"),
    )
    whole, report = traced(path)
    times = [event["ts"] for event in whole["traceEvents"] if event["ph"] == "B"]
    refused = [event for event in whole["traceEvents"] if event.get("cat") == "refused"]

    assert not report.timed
    assert (report.lines, PLAN_NS) == (6, 1_000_000)
    assert times == [0, 0, 500, 750, 3_000]
    assert [(event["ts"], event["name"], event["args"]["state"]) for event in refused] == [(250, "refused: drop", "ALLOCATED")]
    assert max(event["ts"] for event in whole["traceEvents"]) == 4_000
    assert "a plan is 1 ms" in whole["otherData"]["clock"]


def test_trace_says_where_times_came_too_late(tmp_path: Path) -> None:
    """A recording whose first time stands behind its first plan is drawn by plans, and says so."""
    path = written(
        tmp_path / "hand.jsonl",
        step(1, 0, "block 1", "FREED allocate ALLOCATED"),
        step(2, 1, "block 1", "ALLOCATED seal SEALED"),
        at(9),
        step(3, 1, "block 1", "SEALED release CACHED"),
    )
    whole, report = traced(path)

    assert not report.timed
    assert "from line 4 on came too late" in whole["otherData"]["clock"]


@pytest.mark.parametrize("timed", [False, True], ids=["plans", "times"])
def test_trace_of_times_below_zero_is_refused(timed: bool, tmp_path: Path) -> None:
    """A recording may be moved down to zero, and not below."""
    row = step(1, 5, "slot 0", "EMPTY reserve WRITING")
    path = written(tmp_path / "hand.jsonl", *([at(5 * PLAN_NS)] if timed else []), row)
    moved = traced(path, offset_ns=-5 * PLAN_NS)[0]["traceEvents"]

    assert min(event["ts"] for event in moved) == 0
    with pytest.raises(MisuseError, match=r"with --offset-ns -5000001 it begins 1 ns below zero .give at least -5000000."):
        traced(path, offset_ns=-5 * PLAN_NS - 1)


@pytest.mark.parametrize("offset", [10**35, -(10**35)], ids=["up", "down"])
def test_offset_that_no_clock_has_is_refused(offset: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A viewer counts in 64 bits; nothing is written."""
    path = written(tmp_path / "hand.jsonl", at(7), step(1, 0, "slot 0", "EMPTY reserve WRITING"))

    assert main(["recording", "perfetto", str(path), f"--offset-ns={offset}", "-o", str(tmp_path / "trace.json")]) == 2
    assert capsys.readouterr().err.startswith("blocklife: --offset-ns must be from -")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_trace_of_a_row_that_is_used_again_has_no_slice_between(tmp_path: Path) -> None:
    """A request that is over leaves its row; the next one begins a slice of its own, and nobody is counted twice."""
    path = written(
        tmp_path / "hand.jsonl",
        step(1, 0, "request 0", "WAITING admit RUNNING"),
        step(2, 1, "request 0", "RUNNING finish FINISHED"),
        step(3, 2, "request 0", "WAITING admit RUNNING"),
    )
    events = traced(path)[0]["traceEvents"]
    slices = [(event["ph"], event["name"], event["ts"]) for event in events if event["ph"] in "BE"]

    assert slices == [
        ("B", "RUNNING", 0),
        ("E", "RUNNING", 1_000),
        ("B", "FINISHED", 1_000),
        ("E", "FINISHED", 1_000),
        ("B", "RUNNING", 2_000),
        ("E", "RUNNING", 3_000),
    ]
    assert [event["args"]["places"] for event in events if event["ph"] == "C" and event["name"] == "RUNNING"] == [1, 0, 1]


BAD_TIMES: dict[str, tuple[list[Line | str], str]] = {
    "time goes back": ([at(7), at(6)], "line 3: the time goes back, from 7 to 6"),
    "plans go back": (
        [step(1, 4, "slot 0", "EMPTY reserve WRITING"), step(2, 3, "slot 0", "WRITING cancel EMPTY")],
        "plan 3 comes after plan 4",
    ),
    "a line that is none": (["{"], "line 2: it is not JSON"),
}


@pytest.mark.parametrize("case", BAD_TIMES)
def test_recording_that_cannot_be_drawn_leaves_no_file(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input is one line, status 2, and neither a trace nor half of one."""
    lines, message = BAD_TIMES[case]
    path = written(tmp_path / "hand.jsonl", *lines)

    assert main(["recording", "perfetto", str(path), "-o", str(tmp_path / "trace.json")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_trace_is_written_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the lines of the same few places take no more memory."""
    monkeypatch.setattr("blocklife.recording._format.CHUNK_BYTES", 1 << 14)
    cycle = ["FREED allocate ALLOCATED", "ALLOCATED seal SEALED", "SEALED release CACHED", "CACHED drop FREED"]

    def peak(rounds: int) -> int:
        lines = (
            step(4 * turn + number + 1, turn, "block 1", row, epoch=turn + number // 3)
            for turn in range(rounds)
            for number, row in enumerate(cycle)
        )
        path = written(tmp_path / "hand.jsonl", *lines)
        with open_recording(str(path)) as recording, (tmp_path / "trace.json").open("w") as sink:
            tracemalloc.start()
            write_perfetto(recording, sink)
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return most

    few, many = peak(200), peak(2_000)
    print(f"peak {few:,} and {many:,} bytes")

    assert many < 2 * few


# --- the command --------------------------------------------------------------------------------------------------------------


def test_command_writes_the_same_bytes_each_time(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain, packed and on standard output it is the same trace; packed twice, it is the same bytes."""
    plain, packed, again = (tmp_path / name for name in ("trace.json", "trace.json.gz", "again.json.gz"))
    for file in (plain, packed, again):
        assert main(["recording", "perfetto", str(run), "-o", str(file)]) == 0
    said = capsys.readouterr().out
    assert main(["recording", "perfetto", str(run)]) == 0

    assert f"{plain}: " in said
    assert " trace events (" in said
    assert packed.read_bytes() == again.read_bytes()
    assert gzip.decompress(packed.read_bytes()).decode() == plain.read_text() == capsys.readouterr().out
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again.json.gz", "trace.json", "trace.json.gz"]
