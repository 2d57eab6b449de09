"""A recording says exactly what happened: its lines are the transitions that the report counts, and they hang together.

Goal: who reads the lines knows what the ledger knew, when it was, and what was refused. Method: a replay under pressure and
faults is recorded and held against its own report; small ledgers are recorded with a clock that the test turns, and asked for
what their tables refuse, in small batches and in bulk. The check of recordings must pass over what is no step.
"""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from blocklife.cli import main
from blocklife.engines.toy import ReplayReport
from blocklife.errors import CapacityError, MisuseError, RefusedError
from blocklife.ledger import Contract, JobId, Jobs, Ledger, LedgerTransition, Refusal, Store
from blocklife.recording import VERSION, BusyError, Recorder, check_file, check_recording, open_file, open_recording
from blocklife.recording._format import NAME_SHOWN, Line, Refused, show_name
from blocklife.recording._writing import NAME_MAX
from blocklife.states import MACHINES, Block, Request, ends_life
from tests.recordings import recorded
from tests.worlds import held, in_flight, keys, make_ledger, refuses, report, sealed

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module", params=list(Contract), ids=lambda each: each.name.lower())
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Lines, ReplayReport]:
    """The head, the lines and the report of a run under pressure and faults."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    report = recorded(path, contract=request.param)
    text = path.read_text()

    assert text.endswith("}\n")
    head, *lines, _ = (json.loads(line) for line in text.splitlines())
    return head, lines, report


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
    epochs: defaultdict[int, int] = defaultdict(lambda: 1)
    for line in lines:
        assert ("epoch" in line) == (line["machine"] == "block")
        if "epoch" in line:
            assert line["epoch"] == epochs[line["id"]] + ends[spelt(line)], line
            epochs[line["id"]] = line["epoch"]

    assert max(epochs.values()) > 2


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
    """What happened before is not in it; a call for which there is no room writes nothing."""
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


def test_recording_to_a_full_disk_ends_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """The verbs go on; the recorder says once what has ended it, and raises that when it is asked."""

    class Full(io.StringIO):
        def writelines(self, _: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    ledger, recorder = make_ledger(), Recorder(Full())
    recorder.begin(ledger)
    ledger.allocate("a", 2)
    ledger.allocate("a", 1)

    assert len(ledger.requests.table("a")) == 3
    assert ledger.hook_errors.count == 0
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the recording has ended before the run: [Errno 28] No space left on device" in caplog.text
    for ask in (recorder.check, recorder.end):
        with pytest.raises(OSError, match="No space left"):
            ask()


# --- names -------------------------------------------------------------------------------------------------------------

NASTY = 'a"b\\c</script>\x1b[2J\n\u202e\ud800é', "", "17", "x" * 100_000
"""Names that a client may choose."""


def named(path: Path, names: Iterable[str], known: Callable[[str], str] | None = None) -> None:
    """Record requests of these names, each with a refusal, and end."""
    ledger = make_ledger(requests=())
    with open_file(str(path)) as stream:
        recorder = Recorder(stream, names=known)
        recorder.begin(ledger)
        for name in names:
            ledger.add_request(name)
            ledger.admit(name)
            with pytest.raises(RefusedError):
                ledger.admit(name)
            ledger.finish(name)
        recorder.end()


def test_recording_names_requests(tmp_path: Path) -> None:
    """Every line about a request says what it is called, cut where it is long; readers get it back."""
    path = tmp_path / "run.jsonl"
    named(path, NASTY)
    wanted = [NASTY[0], None, "17", "x" * (NAME_MAX - 1) + "…"]
    with open_recording(str(path)) as recording:
        read = [line.name for _, line in recording.lines() if isinstance(line, Line | Refused)]

    assert read == [name for name in wanted for _ in range(3)]
    assert path.read_bytes().isascii()
    assert max(map(len, path.read_text().splitlines())) < 2_000
    lines = [line for line in path.read_text().splitlines(keepends=True) if '"refused"' not in line]
    assert check_recording(io.BytesIO("".join(lines).encode())).clean


def test_recording_names_requests_as_its_caller_does(tmp_path: Path) -> None:
    """A ledger that mirrors an engine has names of its own."""
    path = tmp_path / "run.jsonl"
    named(path, ["1", "2"], {"1": "chat", "2": ""}.__getitem__)
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    assert [line.get("name") for line in lines[1:-1]] == ["chat"] * 3 + [None] * 3


@pytest.mark.parametrize("name", ['"a', '"a"', '"\\q"}', '"\x1b"}', '"a"}}', "a}"])
def test_damaged_name_is_damage(name: str, tmp_path: Path) -> None:
    """A line that is cut off in the name, or holds what no text can, is no line."""
    path = tmp_path / "run.jsonl"
    named(path, ["a"])
    text = path.read_text().replace('"name":"a"}', f'"name":{name}', 1)
    path.write_text(text)

    with pytest.raises(MisuseError, match="line 2: it is not JSON"), open_recording(str(path)) as recording:
        list(recording.lines())
    assert "line 2: it is not JSON" in str(check_file(str(path)).damage)


@pytest.mark.parametrize("spelt", ["", ',"name":7', ',"name":null', ',"name":["a"]', ', "name" : ""'])
def test_recording_without_names_is_read(spelt: str, tmp_path: Path) -> None:
    """As those are that were written before, and those of writers that mean something else by the key."""
    path = tmp_path / "run.jsonl"
    named(path, ["a"])
    path.write_text(path.read_text().replace(',"name":"a"', spelt))
    with open_recording(str(path)) as recording:
        assert {line.name for _, line in recording.lines() if isinstance(line, Line | Refused)} == {None}

    assert check_file(str(path)).clean


def test_names_are_shown_short_and_plain() -> None:
    """A terminal is told nothing by them, and nothing is lost of those that are harmless."""
    for name in (*NASTY, "é 漢 chat-7"):
        shown = show_name(name)
        assert shown.isprintable()
        assert len(shown) <= NAME_SHOWN
    assert show_name("é 漢 chat-7") == "é 漢 chat-7"
    assert show_name("x" * (NAME_SHOWN + 1)) == "x" * (NAME_SHOWN - 1) + "…"
    assert show_name("x" * NAME_SHOWN) == "x" * NAME_SHOWN


# --- the file ----------------------------------------------------------------------------------------------------------

_WRITER = """
import os, signal, sys
from blocklife.recording import open_file
stream = open_file(sys.argv[1])
stream.write("half a li")
stream.flush()
print("ready", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_replay_writes_over_no_recording_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused in one line, and the file is as it was; once the writer has closed it, it is written over."""
    path = tmp_path / "run.jsonl"
    argv = ["replay", "--requests", "2", "--record", str(path)]
    with open_file(str(path)) as stream:
        stream.write("of another\n")
        stream.flush()
        assert main(argv) == 2
        told = capsys.readouterr()
        assert path.read_text() == "of another\n"
    assert told.out == ""
    assert told.err == f"blocklife: {path}: another recording is being written there (record to another file, or wait)\n"
    assert main(argv) == 0
    assert main(["recording", "check", str(path)]) == 0


def test_writer_that_has_crashed_blocks_nobody(tmp_path: Path) -> None:
    """While it runs the file is its own, by whatever name it is called; when it is killed, the next one begins anew."""
    path, link = tmp_path / "run.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    command = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        with pytest.raises(BusyError, match="another recording is being written there"):
            open_file(str(link))
        assert path.read_text() == "half a li"
        writer.communicate()
    with open_file(str(path)) as stream:
        stream.write("whole")

    assert writer.returncode == -signal.SIGKILL
    assert path.read_text() == "whole"


def test_device_is_written_to_by_any_number() -> None:
    """What holds nothing cannot be destroyed."""
    with open_file(os.devnull) as one, open_file(os.devnull) as other:
        one.write("a")
        other.write("b")


def test_file_system_without_locks_takes_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have none."""

    def flock(_stream: object, _how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with open_file(str(tmp_path / "run.jsonl")) as stream:
        stream.write("a line")

    assert (tmp_path / "run.jsonl").read_text() == "a line"


# --- what was refused --------------------------------------------------------------------------------------------------


Refuse = Callable[[Ledger], object]

REFUSALS: dict[str, tuple[Refuse, Refusal]] = {
    "block": (lambda x: x.drop([x.requests.table("a")[0]]), Refusal(1, "block", 1, "drop", "IN_FLIGHT")),
    "slot": (lambda x: x.evict([0]), Refusal(1, "slot", 0, "evict", "WRITING")),
    "slot, of a batch the first": (lambda x: x.pin("me", [3, 1]), Refusal(1, "slot", 3, "pin", "EMPTY")),
    "job": (lambda x: x.cancel(Jobs((JobId(1, 1),))), Refusal(1, "job", 1, "cancel", "IN_FLIGHT")),
    "request": (lambda x: x.admit("a"), Refusal(1, "request", 0, "admit", "RUNNING", "a")),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_of_each_machine_is_told_and_changes_nothing(case: str) -> None:
    """Listeners hear the place, the event and the state; they hear of no step; the ledger is as it was."""
    call, told = REFUSALS[case]
    ledger = make_ledger()
    in_flight(ledger)
    steps: list[LedgerTransition] = []
    heard: list[Refusal] = []
    ledger.on(hook=steps.append)
    ledger.on_refusal(heard.append)
    with refuses(ledger, RefusedError, "cannot"):
        call(ledger)

    assert heard == [told]
    assert steps == []


@pytest.mark.parametrize("count", [3, 300])
def test_refusal_of_a_batch_is_told_once_however_it_is_checked(count: int) -> None:
    """One place of a small or a large batch is refused: listeners hear of that place, once."""
    ledger = make_ledger(num_blocks=count + 1, num_slots=2, max_journal=10_000)
    batch = sealed(ledger, "a", keys(*range(count)))
    ledger.release("a", range(count - 1))  # all but the last are CACHED
    heard: list[Refusal] = []
    ledger.on_refusal(heard.append)
    with refuses(ledger, RefusedError, f"block {count}: cannot DROP while SEALED"):
        ledger.drop(batch.lives)

    assert heard == [Refusal(0, "block", count, "drop", Block.SEALED.name)]


def test_refusal_for_other_reasons_is_not_told() -> None:
    """No room, an unknown name and a life that is over are no events of a place."""
    ledger = make_ledger()
    over = held(ledger, "a")
    ledger.release("a", [0])
    heard: list[Refusal] = []
    ledger.on_refusal(heard.append)
    with pytest.raises(CapacityError):
        ledger.allocate("a", 100)
    with pytest.raises(MisuseError):
        ledger.admit("nobody")
    with pytest.raises(MisuseError):
        ledger.plan_store(Store.of(over, [0], keys("k")))

    assert heard == []


def test_refusal_inside_another_verb_is_told_once() -> None:
    """A verb that is made of verbs is told once, when it raises."""
    ledger = make_ledger(own_pool=False)
    held(ledger, "a")
    heard: list[Refusal] = []
    ledger.on_refusal(heard.append)
    with refuses(ledger, RefusedError, "block 1: cannot DROP while ALLOCATED"):
        ledger.drop([ledger.blocks.life(1)])

    assert heard == [Refusal(0, "block", 1, "drop", "ALLOCATED")]


def test_refusal_reaches_all_who_listen_for_it() -> None:
    """One that raises keeps nobody from hearing, nor the caller from hearing of the refusal: its error is kept."""
    ledger = make_ledger(errors="keep")
    heard: list[Refusal] = []

    def full(_: Refusal) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ledger.on_refusal(full)
    ledger.on_refusal(heard.append)
    with pytest.raises(RefusedError):
        ledger.admit("a")
    ledger.preempt("a")

    assert [str(each.first) for each in ledger.hook_errors.failed] == ["[Errno 28] No space left on device"]
    assert len(heard) == 1


def test_refusal_cannot_be_answered_by_a_verb() -> None:
    """Who hears of one cannot call the ledger, like any listener; afterwards everybody can."""
    ledger = make_ledger(errors="keep")
    ledger.on_refusal(lambda _: ledger.preempt("a"))
    with pytest.raises(RefusedError):
        ledger.admit("a")

    assert "a hook cannot call the ledger" in str(ledger.hook_errors.failed[0].first)
    assert ledger.requests.state("a") is Request.RUNNING
    ledger.preempt("a")


def test_recording_tells_what_was_refused() -> None:
    """A refusal has a line of its own, between what happened before it and after; it counts in no commit and not in the end."""
    ledger, stream = make_ledger(requests=()), io.StringIO()
    recorder = Recorder(stream)
    recorder.begin(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    with pytest.raises(RefusedError):
        ledger.admit("a")
    ledger.preempt("a")
    recorder.end()
    _, admit, refused, preempt, end = (json.loads(line) for line in stream.getvalue().splitlines())

    assert (admit["event"], preempt["event"]) == ("admit", "preempt")
    place = {"machine": "request", "id": 0, "name": "a"}
    assert refused == {"blocklife": "refused", "plan": 0, **place, "event": "admit", "from": "RUNNING"}
    assert (admit["n"], preempt["n"]) == (1, 2)
    assert (end["n"], end["lines"]) == (2, 2)


# --- when it was -------------------------------------------------------------------------------------------------------


def timed(ticks: list[int]) -> tuple[Ledger, io.StringIO]:
    """A ledger that is recorded from its first step on by a clock that shows these numbers, one at each look."""
    ledger, stream = make_ledger(requests=()), io.StringIO()
    left = iter(ticks)
    Recorder(stream, clock=lambda: next(left)).begin(ledger)
    return ledger, stream


def test_recording_tells_the_time_only_when_it_has_moved() -> None:
    """One line before a commit or a refusal, and none while the clock stands, or where it goes back."""
    ledger, stream = timed([0, 7, 7, 5, 9])
    ledger.add_request("a")
    ledger.admit("a")
    ledger.preempt("a")
    with pytest.raises(RefusedError):
        ledger.preempt("a")
    ledger.admit("a")
    ledger.finish("a")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()[1:]]
    told = [line.get("ns", line.get("event")) for line in lines]

    assert told == [0, "admit", 7, "preempt", "preempt", "admit", 9, "finish"]


def test_recording_without_a_clock_tells_no_time(run: tuple[dict[str, Any], Lines, ReplayReport]) -> None:
    """Its lines are those of transitions, and spelt as they always were."""
    _, lines, _ = run

    assert not any("blocklife" in line for line in lines)


def test_replay_records_times(tmp_path: Path) -> None:
    """With --times the clock begins with the run and only goes forward; the check finds nothing, and counts only steps."""
    path = tmp_path / "run.jsonl"
    status = main(["replay", "--requests", "6", "--record", str(path), "--times", "--json"])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    times = [line["ns"] for line in lines if line.get("blocklife") == "at"]
    verdict = check_file(str(path))

    assert status == 0
    assert len(times) > 10
    assert times == sorted(set(times))
    assert times[0] < 60e9
    assert verdict.clean, str(verdict)
    assert verdict.events == len(lines) - 2 - len(times)


def test_replay_refuses_times_without_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to write them to."""
    status = main(["replay", "--times", "--requests", "1"])

    assert status == 2
    assert "add --record FILE" in capsys.readouterr().err


# --- who reads them ----------------------------------------------------------------------------------------------------

OTHER_LINES = (
    b'{"blocklife":"at","ns":12}',
    b'{"blocklife":"at","ns":4611686018427387903}',
    b'{ "by": "me", "ns": 12, "blocklife": "at" } \r',
    b'{"blocklife":"refused","plan":0,"machine":"block","id":1,"event":"seal","from":"FREED"}',
    b'{ "from": "FREED", "event": "seal", "id": 1, "machine": "block", "plan": 0, "blocklife": "refused" }',
)
"""As the recorder spells them, and as another writer might."""


def stored() -> bytes:
    """The recording of a store, from first to last."""
    ledger, stream = make_ledger(requests=()), io.StringIO()
    recorder = Recorder(stream)
    recorder.begin(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    held(ledger, "a", 2)
    _, job = in_flight(ledger)
    ledger.complete(report(job))
    ledger.finish("a")
    recorder.end()
    return stream.getvalue().encode()


@pytest.mark.parametrize("other", OTHER_LINES)
def test_check_passes_over_other_lines_wherever_they_stand(other: bytes) -> None:
    """Behind the head, inside a commit and before the end they change nothing that is found."""
    lines = stored().splitlines()
    plain = check_recording(io.BytesIO(stored()))
    full = [lines[0], *(each for line in lines[1:] for each in (other, line))]
    verdict = check_recording(io.BytesIO(b"\n".join(full) + b"\n"))

    assert verdict.clean, str(verdict)
    assert (verdict.events, verdict.commits, verdict.jobs) == (plain.events, plain.commits, plain.jobs)
    assert verdict.lines == len(full)


@pytest.mark.parametrize("other", OTHER_LINES)
def test_check_takes_nothing_behind_the_end(other: bytes) -> None:
    """Also a line that changes nothing is damage there."""
    verdict = check_recording(io.BytesIO(stored() + other + b"\n"))

    assert verdict.status == 2
    assert "there is something after the end" in str(verdict.damage)


@pytest.mark.parametrize(
    ("line", "damage"),
    [
        (b'{"blocklife":"at"}', "it has no ns"),
        (b'{"blocklife":"at","ns":-1}', "ns must be a whole number"),
        (b'{"blocklife":"at","ns":1.5}', "ns must be a whole number"),
        (b'{"blocklife":"at","ns":007}', "it is not JSON"),
        (b'{"blocklife":"refused","plan":0,"machine":"block","id":1,"event":"seal"}', "it has no from"),
        (b'{"blocklife":"refused","plan":0,"machine":7,"id":1,"event":"seal","from":"FREED"}', "machine must be a word"),
    ],
)
def test_check_finds_other_lines_that_are_damaged(line: bytes, damage: str) -> None:
    """What is passed over must still be what it says."""
    head, *rest = stored().splitlines()
    verdict = check_recording(io.BytesIO(b"\n".join([head, line, *rest])))

    assert verdict.status == 2
    assert str(verdict.damage).startswith(f"line 2: {damage}")


def test_check_blames_the_line_behind_other_lines() -> None:
    """They are counted as lines, also when what follows an illegal one is read."""
    lines = stored().splitlines()
    gone = next(at for at, line in enumerate(lines) if b'"event":"submit"' in line)
    full = [line for at, line in enumerate(lines) for line in (OTHER_LINES[0], line) if at != gone][1:]
    verdict = check_recording(io.BytesIO(b"\n".join(full)))

    assert verdict.illegal is not None
    assert b'"at"' not in full[verdict.illegal.line - 1]


def test_reading_gives_other_lines_in_their_place(tmp_path: Path) -> None:
    """Who reads a recording gets times and refusals between the steps."""
    lines = stored().splitlines()
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\n".join([lines[0], OTHER_LINES[0], lines[1], OTHER_LINES[4], *lines[2:]]))
    with open_recording(str(path)) as recording:
        kinds = [type(line).__name__ for _, line in recording.lines()]

    assert kinds[:4] == ["At", "Line", "Refused", "Line"]
    assert recording.end is not None


HUGE = 1 << 62
"""The least number that fits no column."""


@pytest.mark.parametrize("key", ["n", "of", "plan", "id", "epoch", "job"])
@pytest.mark.parametrize("number", [HUGE, 9_999_999_999_999_999_999, 10**30], ids=["least", "nineteen-digits", "thirty"])
def test_reader_refuses_numbers_that_fit_nowhere(key: str, number: int, tmp_path: Path) -> None:
    """Who draws or counts is told the line; the largest that fits is read."""
    head, line = stored().decode().splitlines()[:2]
    path = tmp_path / "run.jsonl"
    path.write_text(f"{head}\n{json.dumps({**json.loads(line), key: number})}\n")
    with open_recording(str(path)) as recording, pytest.raises(MisuseError, match="line 2: a number in it is larger than"):
        list(recording.lines())
    path.write_text(f"{head}\n{json.dumps({**json.loads(line), key: HUGE - 1})}\n")
    with open_recording(str(path)) as recording:
        assert next(recording.lines())[0] == 2


def test_reader_refuses_times_and_limits_that_fit_nowhere(tmp_path: Path) -> None:
    """A time, a refused place, and what the head says are numbers too."""
    head = json.loads(stored().splitlines()[0])
    path = tmp_path / "run.jsonl"
    for other in ({"blocklife": "at", "ns": HUGE}, {**json.loads(OTHER_LINES[3]), "plan": HUGE}):
        path.write_text(f"{json.dumps(head)}\n{json.dumps(other)}\n")
        with open_recording(str(path)) as recording, pytest.raises(MisuseError, match="line 2: a number in it"):
            list(recording.lines())
    path.write_text(json.dumps({**head, "limits": {**head["limits"], "num_slots": HUGE}}) + "\n")
    with pytest.raises(MisuseError, match="a limit of its head"), open_recording(str(path)):
        pass


def test_reader_refuses_a_recording_that_ends_inside_a_commit(tmp_path: Path) -> None:
    """Half a step is not drawn as a whole one, though its last line is whole."""
    head, line = stored().decode().splitlines()[:2]
    path = tmp_path / "run.jsonl"
    path.write_text(f"{head}\n{json.dumps({**json.loads(line), 'of': 3})}\n")
    with (
        open_recording(str(path)) as recording,
        pytest.raises(MisuseError, match="it ends in commit 1, of which 2 lines are missing"),
    ):
        list(recording.lines())
