"""Does the check of a recording accept what really happened, and name what did not?

Goal: a true recording is never blamed, and every kind of damage that is planted into one is found at its line. Method: small
replays under pressure and faults are recorded, and checked as they are; then one thing is spoiled, and the verdict must name
the rule, the line and the place. Random removals are drawn from a seed that is printed.
"""

from __future__ import annotations

import io
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blocklife.cli import main
from blocklife.copiers import FaultRates
from blocklife.engines.toy import Replay, ReplayOptions, generate_workload
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Contract, GroupTransfer, Ledger, Result, Store, Worker
from blocklife.offload import Mode
from blocklife.recording import CheckVerdict, Illegal, Recorder, check_file, check_recording
from blocklife.recording import _format as recording_format
from blocklife.recording._format import LINE_BYTES_MAX, DamagedError, Line, read_head, read_line
from blocklife.recording._rules import Checker, IllegalError
from blocklife.states import MACHINES
from tests.worlds import BOTH, behind_fence, held, in_flight, keys, make_ledger, report, sealed

Lines = list[dict[str, Any]]
FAULTS = FaultRates(fail=0.1, late=0.1, twice=0.1, reorder=0.1, never=0.05)


def recorded(options: ReplayOptions, *, requests: int, seed: int) -> bytes:
    """A recorded replay that ends well, as the command writes it."""
    stream = io.StringIO()
    workload = generate_workload(requests=requests, seed=seed, mean_first_prompt_tokens=800, max_input_length=4_000)
    replay = Replay(workload, options)
    recorder = Recorder(stream)
    recorder.begin(replay.ledger)
    report = replay.run()
    recorder.end()

    assert report.clean
    return stream.getvalue().encode()


def pressed(contract: Contract) -> ReplayOptions:
    """A small device behind a slow link."""
    return ReplayOptions(
        gpu_blocks=100, host_slots=60, block_bytes=8, contract=contract, link_blocks=1, deadline=8, faults=FAULTS, abort=0.3,
        workers=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run() -> bytes:
    """A recorded run with hand-outs behind a fence."""
    return recorded(pressed(Contract.FENCE), requests=60, seed=4)


@pytest.fixture(scope="module")
def parsed(run: bytes) -> Lines:
    """Its lines, not to be touched."""
    return parse(run)


@pytest.fixture
def lines(parsed: Lines) -> Lines:
    """Its lines, to be spoiled."""
    head = {**parsed[0], "limits": {**parsed[0]["limits"]}}
    return [head, *map(dict, parsed[1:])]


def parse(data: bytes) -> Lines:
    return [json.loads(line) for line in data.splitlines()]


def spell(lines: Lines) -> bytes:
    """As the recorder writes them."""
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def spell_freely(lines: Lines) -> bytes:
    """As another writer might: other order, spaces, a key of its own, Windows line ends."""
    free = [lines[0], *(dict([("by", "me"), *reversed(line.items())]) for line in lines[1:])]
    return b"".join(json.dumps(line, indent=None, separators=(" , ", ": ")).encode() + b" \r\n" for line in free)


def check(lines: Lines | bytes) -> CheckVerdict:
    return check_recording(io.BytesIO(lines if isinstance(lines, bytes) else spell(lines)))


def blamed(lines: Lines | bytes) -> Illegal:
    """What is illegal, which there must be."""
    verdict = check(lines)

    assert verdict.illegal is not None, str(verdict)
    assert verdict.status == 1
    assert f"line {verdict.illegal.line}: {verdict.illegal.message}" in str(verdict)
    return verdict.illegal


def first(lines: Lines, **wanted: object) -> int:
    """The position of the first line that says all this; ``to=...`` and so on, ``source`` for *from*."""
    said = {("from" if key == "source" else key): value for key, value in wanted.items()}
    return next(at for at, line in enumerate(lines) if all(line.get(key) == value for key, value in said.items()))


def bare(lines: Lines) -> Lines:
    """Without what a writer need not say: the sizes of commits, and the end."""
    return [{key: value for key, value in line.items() if key != "of"} for line in lines if line.get("blocklife") != "end"]


def without(lines: Lines, at: int) -> Lines:
    """A recording that never had this line: sizes are left out, and commits are numbered without a gap."""
    left = bare(lines)
    gone = left.pop(at)
    if all(line.get("n") != gone["n"] for line in left):
        left = [left[0], *({**line, "n": line["n"] - (line["n"] > gone["n"])} for line in left[1:])]
    return left


def inserted(lines: Lines, at: int, **line: object) -> Lines:
    """A recording with one more commit behind a position; what follows is never reached."""
    said = {("from" if key == "source" else key): value for key, value in line.items()}
    return [*bare(lines)[: at + 1], {"n": lines[at]["n"] + 1, "plan": lines[at]["plan"], **said}]


# --- what really happened ----------------------------------------------------------------------------------------------


@BOTH
def test_check_finds_nothing_in_a_real_recording(contract: Contract) -> None:
    """A run under pressure and faults is legal, and its counts are those of the file."""
    data = recorded(pressed(contract), requests=60, seed=3)
    verdict = check(data)
    said = parse(data)

    assert (verdict.status, verdict.clean, verdict.complete, verdict.notes) == (0, True, True, ())
    assert (verdict.lines, verdict.events, verdict.commits) == (len(said), len(said) - 2, said[-1]["n"])
    assert verdict.jobs == max(line["id"] for line in said if line.get("machine") == "job")
    assert "legal: every transition" in str(verdict)


@pytest.mark.sampled(every=2)
@BOTH
@pytest.mark.parametrize(
    ("groups", "chunk", "asynchronous", "mode"),
    [
        ("full:16,swa:16:64", 1, False, Mode.EAGER),
        ("full:16,swa:16:1024,mamba:256", 4, False, Mode.EAGER),
        ("full:64,mamba:512", 1, True, Mode.EAGER),
        ("full:16,swa:16:64", 4, True, Mode.LAZY),
    ],
)
def test_check_finds_nothing_in_hybrid_runs(
    contract: Contract, groups: str, chunk: int, asynchronous: bool, mode: Mode
) -> None:
    """Groups, chunks, planning ahead and lazy stores take the same steps."""
    options = ReplayOptions(
        gpu_blocks=420, host_slots=100, block_bytes=8, contract=contract, link_blocks=4, deadline=16, faults=FAULTS, abort=0.1,
        groups=groups, blocks_per_chunk=chunk, asynchronous=asynchronous, mode=mode, workers=2,
    )  # fmt: skip
    verdict = check(recorded(options, requests=12, seed=1))

    assert verdict.clean, str(verdict)
    assert verdict.events > 1_000


def test_check_reads_other_writers_the_same(run: bytes) -> None:
    """Keys in another order, spaces, unknown keys and carriage returns change nothing but the speed."""
    own, free = check(run), check(spell_freely(parse(run)))

    assert free.clean, str(free)
    assert (free.lines, free.events, free.commits, free.jobs) == (own.lines, own.events, own.commits, own.jobs)


def test_check_needs_neither_sizes_nor_an_end(lines: Lines) -> None:
    """They are optional; the verdict says that nobody knows whether the recording is whole."""
    verdict = check(bare(lines))

    assert (verdict.status, verdict.complete) == (0, False)
    assert "does not say that it is whole" in str(verdict)


def small(contract: Contract = Contract.FENCE) -> tuple[Ledger, io.StringIO]:
    """A small ledger that is recorded from its first step on, with a running request *a*."""
    ledger, stream = make_ledger(contract=contract, requests=()), io.StringIO()
    Recorder(stream).begin(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    return ledger, stream


def test_check_follows_a_life_that_ends_into_its_planned_store() -> None:
    """*life-ends*: the store is cancelled at once; without that step, the next one is illegal."""
    ledger, stream = small()
    ledger.plan_store(Store.of(held(ledger, "a", 1), [0], keys("k")))
    ledger.finish("a")
    lines = parse(stream.getvalue().encode())

    assert check(lines).clean
    cancel = first(lines, machine="job", event="cancel")
    illegal = blamed(without(lines, cancel))
    assert (illegal.rule, illegal.line) == ("coupling", cancel + 1)
    assert "job 1: it has had no cancel (coupling life-ends)" in illegal.message


def test_check_wants_older_copies_quiet_before_a_load_is_done() -> None:
    """*load-done*: a load into a block behind a fence proves the older store quiet first."""
    ledger, stream = make_ledger(num_blocks=2, requests=()), io.StringIO()
    Recorder(stream).begin(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    target, _ = behind_fence(ledger)
    load = ledger.plan_load("b", GroupTransfer(target, [0])).ids[0]
    ledger.dispatch(1.0)
    ledger.complete(report(load))
    lines = parse(stream.getvalue().encode())
    quiet, done = first(lines, machine="job", event="quiesce"), first(lines, machine="job", id=load.number, to="DONE")
    illegal = blamed([*lines[:quiet], {**lines[done], "n": lines[quiet]["n"]}])

    assert check(lines).clean
    assert (illegal.rule, illegal.line) == ("coupling", quiet + 1)
    assert "it is DONE before older jobs of its places are quiet (load-done)" in illegal.message


# --- what did not happen -----------------------------------------------------------------------------------------------


def change(**new: object) -> Callable[[Lines, int], Lines]:
    """Say something else in one line; ``source`` for *from*, None for nothing at all."""
    said = {("from" if key == "source" else key): value for key, value in new.items()}

    def spoil(lines: Lines, at: int) -> Lines:
        line = {**lines[at], **said}
        return [*lines[:at], {key: value for key, value in line.items() if value is not None}, *lines[at + 1 :]]

    return spoil


def add(key: str, delta: int) -> Callable[[Lines, int], Lines]:
    return lambda lines, at: change(**{key: lines[at][key] + delta})(lines, at)


BLOCK, SLOT, JOB, REQUEST = ({"machine": name} for name in MACHINES)

SPOILED: dict[str, tuple[dict[str, str], Callable[[Lines, int], Lines], str, str]] = {
    "wrong from": ({**BLOCK, "event": "allocate", "source": "FREED"}, change(**{"from": "CACHED"}), "table", "stands FREED"),
    "no such row": ({**BLOCK, "event": "seal"}, change(to="CACHED"), "table", r"no row .* \(it stands "),
    "wrong guard": ({**BLOCK, "event": "release", "to": "CACHED"}, change(to="SEALED", guard="held"), "table", "with refs=0"),
    "land while freed": (
        {**BLOCK, "event": "allocate", "source": "FREED"},
        change(event="land", source="STALE", to="FREED", job=1),
        "table",
        r"block \d+: cannot LAND while FREED: no holder and no content; no copy touches it \(it is allowed while",
    ),
    "unknown machine": (BLOCK, change(machine="page"), "table", "there is no machine page"),
    "unknown event": (SLOT, change(event="melt"), "table", r"slot \d+: there is no event melt"),
    "unknown state": (JOB, change(to="LOST"), "table", r"job \d+: there is no state LOST"),
    "null block": (BLOCK, change(id=0), "limits", "block 0: ids are 1 to 99"),
    "block too high": (BLOCK, change(id=100), "limits", "block 100: ids are 1 to 99"),
    "slot too high": (SLOT, change(id=60), "limits", "slot 60: ids are 0 to 59"),
    "epoch not raised": ({**BLOCK, "event": "allocate", "source": "CACHED"}, add("epoch", -1), "epoch", "this row ends a life"),
    "epoch raised": ({**BLOCK, "event": "seal"}, add("epoch", 1), "epoch", "its epoch is 1 after"),
    "epoch missing": (BLOCK, change(epoch=None), "epoch", "blocks have an epoch"),
    "epoch of a slot": (SLOT, change(epoch=1), "epoch", "nothing else does"),
    "job missing": ({**BLOCK, "event": "land"}, change(job=None), "coupling", "the line names none"),
    "job too many": ({**BLOCK, "event": "allocate"}, change(job=1), "coupling", "the line names job 1"),
    "job unknown": ({**BLOCK, "event": "land"}, change(job=10**6), "coupling", "has had no land in the name of job"),
    "job never planned": ({**JOB, "event": "submit"}, change(id=10**6, job=10**6), "I3", "before anything was reserved"),
    "a report missing": (
        {**JOB, "event": "finish", "guard": "more", "source": "IN_FLIGHT"},
        change(to="DONE", guard="all_ok"),
        "I9",
        "DONE after 1 of 2 reports",
    ),
    "a commit goes back": ({**BLOCK, "event": "seal"}, add("n", -2), "commit", "comes after commit"),
    "a commit is left out": ({**REQUEST, "event": "finish"}, add("n", 1), "commit", "a line between them is missing"),
    "a plan goes back": ({**REQUEST, "event": "finish"}, change(plan=0), "commit", "plan 0 comes after plan"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(SPOILED))
@pytest.mark.parametrize("respelt", [False, True], ids=["own", "other"])
def test_check_names_what_was_spoiled(lines: Lines, what: str, respelt: bool) -> None:
    """One changed word is found in its very line, with the rule, in the recorder's spelling and in another."""
    where, spoil, rule, message = SPOILED[what]
    at = first(lines, **where)
    spoiled = spoil(bare(lines), at)[: at + 300]
    illegal = blamed(spell_freely(spoiled) if respelt else spoiled)

    assert (illegal.rule, illegal.line) == (rule, at + 1), illegal.message
    assert re.search(message, illegal.message), illegal.message


MISSING: dict[str, tuple[dict[str, str], str]] = {
    "unpin of a load": ({**SLOT, "event": "unpin", "source": "READY"}, r"slot \d+.* no unpin in the name of job|let go"),
    "land of a store": ({**BLOCK, "event": "land", "source": "IN_FLIGHT"}, r"\(block\.land is due first\)"),
    "land of a slot": ({**SLOT, "event": "land", "to": "READY"}, r"slot \d+ has had no land .*store-ended"),
    "submit of a block": ({**BLOCK, "event": "submit"}, r"block \d+ has had no submit .*submitted"),
    "flush after a hand-out": ({**JOB, "event": "flush"}, r"job \d+: it has had no flush \(coupling hand-out-flushes\)"),
    "loaded": ({**REQUEST, "event": "loaded"}, r"request \d+: it has had no loaded \(coupling load-done\)"),
    "load failed": ({**REQUEST, "event": "load_failed"}, r"request \d+: it has had no load_failed \(coupling load-"),
    "expire of a slot": ({**SLOT, "event": "expire"}, r"slot \d+ has had no expire .*store-expired"),
    "drop of a failed load": (
        {**SLOT, "event": "drop"},
        r"slot \d+(: it leaves STALE by unpin, and stands READY| has had no d)",
    ),
}


@pytest.mark.parametrize("what", list(MISSING))
def test_check_names_the_effect_that_is_missing(lines: Lines, what: str) -> None:
    """A coupling without one of its effects is named where something else comes first."""
    where, message = MISSING[what]
    named = [at for at, line in enumerate(lines) if what != "unpin of a load" or "job" in line]
    at = next(at for at in named if all(lines[at].get("from" if k == "source" else k) == v for k, v in where.items()))
    illegal = blamed(without(lines, at)[: at + 300])

    assert illegal.rule == ("table" if "leaves STALE" in illegal.message else "coupling"), illegal.message
    assert at < illegal.line <= at + 200
    assert re.search(message, illegal.message), illegal.message
    if job := re.search(r"in the name of job (\d+)", illegal.message):
        assert illegal.places[0].startswith(f"job {job[1]}: a ")


def test_check_lets_only_a_done_store_publish(lines: Lines) -> None:
    """I6: the slot of a store that has failed is not readable."""
    failed = {line["id"] for line in lines if line.get("machine") == "job" and line["to"] == "FAILED"}
    wanted = {"machine": "slot", "event": "land", "from": "WRITING"}
    at = next(at for at, line in enumerate(lines) if line.get("job") in failed and wanted.items() <= line.items())
    illegal = blamed(change(to="READY", guard="published")(bare(lines), at))

    assert (illegal.rule, illegal.line) == ("I6", at + 1)
    assert "it is READY although its store is not DONE" in illegal.message


def test_check_wants_the_load_given_up_before_its_request(lines: Lines) -> None:
    """*request-gives-up*: who waits for a load cannot end while nobody has cancelled or abandoned it."""
    at = first(lines, machine="request", event="plan_load")
    line = {"machine": "request", "id": lines[at]["id"], "event": "finish", "source": "LOADING", "to": "FINISHED"}
    illegal = blamed(inserted(lines, at, **line))

    assert illegal.line == at + 2
    assert "was not given up before (coupling request-gives-up)" in illegal.message


@pytest.mark.parametrize("event", ["loaded", "load_failed"])
def test_check_lets_a_request_hear_only_of_the_end_of_its_load(lines: Lines, event: str) -> None:
    """I10: a load that is out has neither arrived nor failed."""
    at = first(lines, machine="request", event="plan_load")
    line: dict[str, object] = {"machine": "request", "id": lines[at]["id"], "event": event, "source": "LOADING"}
    line |= {"to": "RUNNING", "job": lines[at]["job"]} if event == "loaded" else {"to": "WAITING"}
    illegal = blamed(inserted(lines, at, **line))

    assert (illegal.rule, illegal.line) == ("I10", at + 2)
    assert f"{event}, and its load has not ended so" in illegal.message


def test_check_counts_pins_beside_the_tables(lines: Lines) -> None:
    """I1 is asked of the counts alone: a row that frees a block too early would be found even if the tables had it."""
    at = first(lines, machine="block", event="land", source="IN_FLIGHT")
    checker = Checker(read_head("run", json.dumps(lines[0])))
    told = spell(lines).decode().splitlines()

    def read(text: str) -> Line:
        line = read_line(text)
        assert isinstance(line, Line)
        return line

    for text in told[1:at]:
        checker.read(1, read(text))
    checker.reader.places["block", lines[at]["id"]].holders.append(checker.reader.job(10**6))
    with pytest.raises(IllegalError, match=r"it becomes [A-Z]+ while 1 jobs pin it") as raised:
        checker.read(1, read(told[at]))

    assert raised.value.rule == "I1"


@BOTH
def test_check_hands_out_a_busy_block_only_behind_a_fence(contract: Contract) -> None:
    """I1: under hold, or while a request holds it, the row into FLUSHED is not there."""
    ledger, stream = small(contract)
    in_flight(ledger)
    lines = parse(stream.getvalue().encode())
    at = len(lines) - 1
    place = next(line for line in reversed(lines) if line["machine"] == "block" and line["to"] == "IN_FLIGHT")
    handed = {"machine": "block", "id": place["id"], "epoch": place["epoch"] + 1, "event": "allocate"}
    illegal = blamed(inserted(lines, at, **handed, source="IN_FLIGHT", to="FLUSHED", guard="lendable"))

    assert (illegal.rule, illegal.line) == ("I1", at + 2)
    assert f"fence={'yes' if contract is Contract.FENCE else 'no'}" in illegal.message


def test_check_counts_holders(lines: Lines) -> None:
    """I4: nobody releases what nobody holds, however often the table would allow it."""
    at = first(lines, machine="block", event="release", source="IN_FLIGHT", to="IN_FLIGHT")
    again = {key: lines[at][key] for key in ("machine", "id", "epoch", "event", "to")}
    held_by = lines[at]["id"]
    spoiled = inserted(lines, at, source="IN_FLIGHT", **again)
    spoiled += [{**spoiled[-1], "n": spoiled[-1]["n"] + more} for more in range(1, 9)]
    illegal = blamed(spoiled)

    assert (illegal.rule, illegal.place) == ("I4", held_by)
    assert "no request holds it" in illegal.message


def test_check_counts_pins_of_lookups(lines: Lines) -> None:
    """I4: a lookup lets go only of what a lookup has pinned."""
    at = first(lines, machine="slot", event="land", to="READY")
    line = {"machine": "slot", "id": lines[at]["id"], "event": "unpin", "source": "READY", "to": "READY"}
    last = max(number for number, each in enumerate(lines) if each.get("n") == lines[at]["n"])
    illegal = blamed(inserted(lines, last, **line))

    assert (illegal.rule, illegal.line) == ("I4", last + 2)


@pytest.mark.parametrize("number", [1, 2])
def test_check_refuses_a_job_number_that_was_used(lines: Lines, number: int) -> None:
    """I3: whether it is over or was passed over, a number is given out once."""
    done = first(lines, machine="job", to="DONE")
    later = next(
        at for at, line in enumerate(lines) if at > done and line.get("event") == "plan_store" and line["machine"] == "block"
    )
    spoiled = bare(lines)
    spoiled[later] = {**spoiled[later], "job": lines[done]["id"] if number == 1 else 0}
    illegal = blamed(spoiled)

    assert (illegal.rule, illegal.line) == ("I3", later + 1)
    assert ("its number is given out again" if number == 1 else "jobs are numbered from 1") in illegal.message


def test_check_refuses_a_job_number_that_was_passed_over() -> None:
    """I3: numbers only grow, also where a lower one was never used."""
    ledger, stream = small()
    for name in ("k", "l"):
        ledger.plan_store(Store.of(held(ledger, "a", 1), [int(name == "l")], keys(name)))
    lines = parse(stream.getvalue().encode())
    renamed = [{**line, "job": {1: 5, 2: 3}[line["job"]]} if "job" in line else line for line in lines]
    grown = [{**line, "job": {1: 3, 2: 5}[line["job"]]} if "job" in line else line for line in lines]

    assert check(grown).clean
    assert blamed(renamed).rule == "I3"
    assert "job 3: its number is given out after 5 (they only grow)" in blamed(renamed).message


def test_check_wants_one_event_in_a_commit() -> None:
    """Steps that are lawful one by one cannot be one commit."""
    ledger, stream = small()
    ledger.seal(held(ledger, "a", 1), keys("k"))
    held(ledger, "a", 1)
    lines = parse(stream.getvalue().encode())
    lines[-1]["n"] -= 1
    illegal = blamed(lines)

    assert (illegal.rule, illegal.line) == ("commit", len(lines))
    assert "is seal, not allocate" in illegal.message


def test_check_refuses_more_jobs_than_there_may_be(lines: Lines) -> None:
    """The limit of the head is one of jobs that are out."""
    lines[0]["limits"]["max_jobs"] = 1

    assert blamed(lines).rule == "limits"


def test_check_finds_a_line_that_comes_twice(lines: Lines) -> None:
    """A place takes one step in a commit, also where the row leads nowhere else."""
    for where in ({"machine": "block", "event": "allocate"}, {"machine": "block", "event": "release", "to": "SEALED"}):
        at = first(lines, **where)
        illegal = blamed([*bare(lines)[: at + 1], *bare(lines)[at:]])

        assert (illegal.rule, illegal.line) == ("commit", at + 2)
        assert "a line comes twice" in illegal.message


def test_check_counts_the_lines_of_a_commit(lines: Lines) -> None:
    """What is missing is told where the next commit begins."""
    at = next(at for at, line in enumerate(lines) if line.get("of") == 4)
    illegal = blamed([*lines[: at + 1], *lines[at + 2 :]])

    assert (illegal.rule, illegal.line) == ("commit", at + 4)
    assert "has 3 of its 4 lines" in illegal.message


def test_check_tells_the_history_of_the_place_and_the_places_of_its_job(lines: Lines) -> None:
    """The latest steps with line, plan, row and job, this one last; and what the job holds."""
    at = first(lines, machine="block", event="land", source="IN_FLIGHT")
    place, job = lines[at]["id"], lines[at]["job"]
    mine = [number for number, line in enumerate(lines[: at + 1], 1) if line.get("machine") == "block" and line["id"] == place]
    illegal = blamed(change(to="CACHED" if lines[at]["to"] == "SEALED" else "SEALED", guard=None)(bare(lines), at))
    verdict = str(check(change(epoch=77)(bare(lines), at)))

    assert [int(re.findall(r"\d+", step)[0]) for step in illegal.history] == mine[-8:]
    assert f"line {mine[-1]}, plan {lines[at]['plan']}: IN_FLIGHT --land" in illegal.history[-1]
    assert illegal.history[-1].endswith(f"(job {job})")
    assert f"job {job}: a store, DONE; blocks" in verdict or f"job {job}: a store, FAILED; blocks" in verdict


def test_check_goes_on_with_the_tables_alone(lines: Lines) -> None:
    """After the first illegal line, only places that do not go on from where they were left are counted."""
    at = first(lines, machine="block", event="seal")
    one = check(change(epoch=5)(bare(lines), at))
    other = first(lines[at + 500 :], machine="block", event="seal") + at + 500
    two = check(change(epoch=5)(change(**{"from": "CACHED"})(bare(lines), other), at))

    assert (one.further, two.further) == (0, 1)
    assert one.lines == len(lines) - 1


# --- what cannot be read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"\x00\xff\xfe\x80", b"{", b"[1]", b"17", b'{"n":1}', b'{"n":true}', b'"text"', b"\xc3("])
def test_check_stops_at_damage_and_says_where(run: bytes, garbage: bytes) -> None:
    """What stands before it is checked; the line is named."""
    parts = run.splitlines(keepends=True)
    verdict = check(b"".join([*parts[:100], garbage + b"\n", *parts[100:]]))

    assert (verdict.status, verdict.events, verdict.illegal) == (2, 99, None)
    assert verdict.damage is not None
    assert verdict.damage.startswith("line 101: ")
    assert str(verdict).splitlines()[1:] == [verdict.damage, "legal as far as it can be read"]


def test_check_says_that_a_line_was_cut_off(run: bytes) -> None:
    """A file that ends in the middle of a line is told apart from one with garbage in it."""
    verdict = check(run[: run.index(b"\n", 20_000) - 7])

    assert verdict.status == 2
    assert verdict.damage == f"line {verdict.lines}: it is cut off (everything before it was checked, nothing after it)"
    assert verdict.events == verdict.lines - 2


@pytest.mark.parametrize(
    "words",
    ["check", "check --json", "show --block 1", "stats", "stats --json", "view -o {page}", "perfetto -o {page}"],
)
@pytest.mark.parametrize("what", ["cut off", "no JSON", "too long", "far too long", "no recording"])
def test_every_command_tells_damage_on_standard_error(
    run: bytes, words: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line there names the file, the line and the reason, whatever is printed besides; no page is written."""
    path, page = tmp_path / "run.jsonl", tmp_path / "page.html"
    whole = run[: run.index(b"\n", 20_000) + 1]
    long = b'{"n":1,"more":"' + b"x" * (17 << 20 if what == "far too long" else LINE_BYTES_MAX - 16) + b'"}\n'
    damaged = {"cut off": whole[:-8], "no JSON": whole + b"}\n" + whole, "no recording": b"{}\n" + whole}
    path.write_bytes(damaged.get(what, whole + long + whole))
    command, *options = words.format(page=page).split()

    assert main(["recording", command, str(path), *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith(f"blocklife: {path}: ")
    reason = {"cut off": "it is cut off", "no JSON": "it is not JSON", "no recording": "its first line is not"}
    assert reason.get(what, "it is longer than 65,536 bytes, and no line of a recording is") in err
    count = len(whole.splitlines()) + (what != "cut off")
    assert what == "no recording" or f"line {count}: " in err
    assert not page.exists()


@pytest.mark.parametrize("letter", ["x", "é"])
def test_line_of_the_greatest_length_is_read(letter: str) -> None:
    """The limit is in bytes, whatever they spell, and one more is refused."""
    spare = LINE_BYTES_MAX - len('{"blocklife":"at","ns":7,"more":""}')
    line = '{"blocklife":"at","ns":7,"more":"' + letter * (spare // len(letter.encode())) + '"}'
    line = line.replace("{", "{" + " " * (LINE_BYTES_MAX - len(line.encode())))

    assert len(line.encode()) == LINE_BYTES_MAX
    assert read_line(line).ns == 7  # type: ignore[union-attr]
    with pytest.raises(DamagedError, match="it is longer than 65,536 bytes"):
        read_line(line + " ")


def test_check_tells_what_it_has_read_before_the_damage(run: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its report stays on standard output; that for machines has the reason, too."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(run[: run.index(b"\n", 20_000) - 7])
    main(["recording", "check", str(path)])
    text = capsys.readouterr()
    main(["recording", "check", str(path), "--json"])
    damage = json.loads(capsys.readouterr().out)["damage"]

    assert "it is cut off" in damage
    assert damage in text.err
    assert damage not in text.out
    assert text.out.splitlines()[-1] == "legal as far as it can be read"


def test_check_tells_damage_behind_what_is_illegal_on_standard_error(
    lines: Lines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is illegal weighs more, and is told as ever."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(spell(change(epoch=9)(bare(lines), first(lines, machine="block", event="seal"))) + b"\xff\n")

    assert main(["recording", "check", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].startswith("NOT legal (")
    assert told.err == f"blocklife: {path}: {check(path.read_bytes()).damage}\n"


def test_check_reads_a_last_line_without_a_line_end(run: bytes) -> None:
    """Other writers may leave it out."""
    assert check(run.rstrip(b"\n")).clean


def test_check_notes_a_recording_that_ends_early(lines: Lines) -> None:
    """Whole lines, but a step is not finished and jobs are out: a note, unless somebody says that it is whole."""
    at = first(lines, machine="job", event="finish", to="DONE")
    early = bare(lines)[: at + 1]
    verdict = check(early)
    whole = check_recording(io.BytesIO(spell(early)), whole=True)

    assert verdict.status == 0
    assert any("ends in the middle of a step" in note for note in verdict.notes)
    assert whole.illegal is not None
    assert whole.illegal.rule == "coupling"


def test_check_wants_every_job_ended_in_a_whole_run(lines: Lines) -> None:
    """I5: a job that is out where a whole run ends was left out."""
    at = first(lines, machine="job", event="submit")
    last = max(number for number, line in enumerate(lines) if line.get("job") == lines[at]["job"] and line["event"] == "submit")
    early = bare(lines)[: last + 1]
    while early[-1]["n"] == lines[last + 1]["n"]:
        early.append(bare(lines)[len(early)])
    verdict = check_recording(io.BytesIO(spell(early)), whole=True)

    assert verdict.illegal is not None
    assert verdict.illegal.rule in ("I5", "coupling")
    assert "still out" in "".join(check(early).notes)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "it is empty"),
        (b"\x7fELF" + bytes(100_000), "not the head of a recording"),
        (b"timestamp,length\n1,2\n", "not the head of a recording"),
        (b'{"n":1}\n', "not the head of a recording"),
        (b'{"blocklife":"recording","version":1}\n', "it is of version 1, but only 3 is read"),
        (b'{"blocklife":"recording","version":3,"contract":"fence"}\n', "its head has no limits"),
    ],
)
def test_check_refuses_what_is_no_recording(data: bytes, complaint: str) -> None:
    """One line says what it is instead."""
    with pytest.raises(MisuseError, match=complaint):
        check(data)


@pytest.mark.parametrize("name", ["num_blocks", "num_slots", "max_jobs", "max_requests", "num_workers"])
def test_check_refuses_a_head_without_a_limit(lines: Lines, name: str) -> None:
    """A limit that is asked about must be there, and be a number."""
    for wrong in (None, 0, "7"):
        lines[0]["limits"][name] = wrong
        with pytest.raises(MisuseError, match=f"{name} of its limits must be a whole number"):
            check(lines)


def test_check_refuses_a_head_without_a_contract(lines: Lines) -> None:
    """What may be handed out depends on it."""
    lines[0]["contract"] = "none"
    with pytest.raises(MisuseError, match="its contract must be fence or hold"):
        check(lines)


def test_check_refuses_a_recording_that_began_late() -> None:
    """Without what came before, no state is known."""
    ledger, stream = make_ledger(), io.StringIO()
    sealed(ledger, "a", keys("k"))
    Recorder(stream).begin(ledger)
    held(ledger, "a", 1)
    with pytest.raises(MisuseError, match=r"it begins with commit \d+, and earlier commits are missing"):
        check(stream.getvalue().encode())


def test_check_refuses_lines_behind_the_end(run: bytes, lines: Lines) -> None:
    """And an end that counts wrongly is a missing line."""
    verdict = check(run + spell(lines[1:2]))
    lines[-1]["lines"] += 1

    assert verdict.status == 2
    assert "after the end" in str(verdict.damage)
    assert "the end counts" in blamed(lines).message


# --- files -------------------------------------------------------------------------------------------------------------


class Pipe(io.BytesIO):
    """A stream that cannot be read twice."""

    def seekable(self) -> bool:
        return False


def test_check_reads_files_and_standard_input(run: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both give one verdict; a name that leads nowhere is refused."""
    (tmp_path / "run").write_bytes(run)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Pipe(run)))

    assert check_file(str(tmp_path / "run")).clean
    assert check_file("-").clean
    for name in ("none", "."):
        with pytest.raises(MisuseError, match=r"No such file|Is a directory"):
            check_file(str(tmp_path / name))


def test_check_tells_the_history_of_a_pipe_as_far_as_it_is_kept(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of the stream is kept; with a small one, older steps are forgotten and the illegal line is not."""
    at = first(lines, machine="block", event="land", source="IN_FLIGHT")
    spoiled = spell(change(epoch=77)(bare(lines), at))
    whole = check(spoiled).illegal
    kept = check_recording(Pipe(spoiled)).illegal
    monkeypatch.setattr(recording_format, "CHUNK_BYTES", 512)
    monkeypatch.setattr(recording_format, "WINDOW_BYTES", 1024)
    short = check_recording(Pipe(spoiled)).illegal

    assert whole is not None
    assert kept == whole
    assert short is not None
    assert 1 <= len(short.history) < len(whole.history)
    assert short.history[-1] == whole.history[-1]


@pytest.mark.parametrize("size", [1, 7, 100, 4096])
def test_check_reads_in_pieces_of_any_size(run: bytes, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Where a piece ends has no meaning."""
    data = run[: run.index(b"\n", 30_000) + 1]
    whole = check(data)
    monkeypatch.setattr(recording_format, "CHUNK_BYTES", size)
    pieces = check(data)

    assert (pieces.status, pieces.lines, pieces.events, pieces.notes) == (whole.status, whole.lines, whole.events, whole.notes)


def test_check_can_be_interrupted(run: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C gives what was found so far; progress counts bytes and transitions."""
    monkeypatch.setattr(recording_format, "CHUNK_BYTES", 10_000)
    heard: list[tuple[int, int]] = []

    def stop(size: int, events: int) -> None:
        heard.append((size, events))
        if len(heard) == 3:
            raise KeyboardInterrupt

    verdict = check_recording(io.BytesIO(run), progress=stop)

    assert (verdict.status, verdict.interrupted, verdict.clean) == (130, True, False)
    assert [size for size, _ in heard] == [10_000, 20_000, 30_000]
    assert verdict.events == verdict.lines - 1 > 100
    assert "interrupted" in str(verdict)


# --- a line that is missing --------------------------------------------------------------------------------------------


def test_check_finds_any_line_that_is_missing(run: bytes) -> None:
    """With sizes and an end, no line can be taken out: not a self-loop, not the last step of a place.

    Without the very first commit, the recording is refused as one that began late.
    """
    seed = 7
    print(f"seed {seed}")
    parts = run.splitlines(keepends=True)
    for at in random.Random(seed).sample(range(2, len(parts) - 1), 25):
        verdict = check(b"".join(parts[:at] + parts[at + 1 :]))

        assert verdict.illegal is not None, (at, parts[at])
        assert verdict.illegal.line >= at + 1


def test_check_finds_a_missing_line_without_sizes_or_it_has_no_consequence(run: bytes) -> None:
    """Without sizes, gaps and an end it is found, unless no later line of that place depends on it.

    Two kinds have no consequence: the last step of a place, and a row that leads back to its own state, whose counts nothing
    asks about later. What is left is the legal recording of another run.
    """
    seed = 11
    print(f"seed {seed}")
    lines = parse(run)
    lines = lines[: len(lines) // 4]
    found = 0
    for at in random.Random(seed).sample(range(2, len(lines)), 40):
        gone = lines[at]
        verdict = check(without(lines, at))
        found += verdict.illegal is not None
        if verdict.illegal is None:
            later = [each for each in lines[at + 1 :] if (each["machine"], each["id"]) == (gone["machine"], gone["id"])]
            assert not later or gone["from"] == gone["to"], (at, gone)

    assert found > 25


def recorded_below() -> bytes:
    """Two promotions and a demotion, one of which does not bring everything."""
    ledger = make_ledger(requests=())
    stream = io.StringIO()
    recorder = Recorder(stream)
    recorder.begin(ledger)
    up = ledger.plan_promotion([0, 1], [b"p", b"q"]).ids[0]
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[Completion(up, Worker(0), Result.OK, (1,))])
    down = ledger.plan_demotion([0]).ids[0]
    again = ledger.plan_promotion([1], [b"q"]).ids[0]
    plan = ledger.dispatch(1.0)
    failed = Completion(again, Worker(0), Result.FAILED)
    ledger.settle(plan.number, 1.0, completions=[Completion(down, Worker(0), Result.OK), failed])
    recorder.end()
    return stream.getvalue().encode()


def test_check_follows_jobs_below_the_slots() -> None:
    """They reserve slots and no blocks."""
    assert check(recorded_below()).illegal is None


def test_check_lets_only_a_done_promotion_publish() -> None:
    """As a store: what failed is not readable (I6)."""
    lines = parse(recorded_below())
    at = max(at for at, line in enumerate(lines) if line.get("machine") == "slot" and line["event"] == "land")
    illegal = blamed(change(to="READY", guard="published")(bare(lines), at))

    assert "it is READY although its promote is not DONE" in illegal.message
    assert illegal.rule == "I6"


def test_check_wants_a_demotion_to_let_go() -> None:
    """Its pin is taken back by its end (coupling demotion-ended)."""
    lines = parse(recorded_below())
    at = next(at for at, line in enumerate(lines) if line.get("event") == "unpin")
    illegal = blamed(without(lines, at))

    assert illegal.rule == "coupling"
