"""The lives of places say what the ledger did, and why; what no line tells, they do not claim.

Goal: who reads a life can believe each state, each job and each cause in it. Method: replays under pressure and faults are
recorded while a listener notes what the ledger itself knows of its jobs and of requests that give up; lives read from the lines
must agree. Small ledgers show each link once, by name; lines of another writer must not break anything.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define, field

from blocklife.core import _couplings as couplings
from blocklife.core._columns import Core
from blocklife.engines.toy import Replay
from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import Contract, Direction, GroupTransfer, Launched, Ledger, LedgerTransition, Result, Worker
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK
from blocklife.recording import Lives, Recorder
from blocklife.states import COUPLINGS, MACHINES
from tests.planting import planted
from tests.recordings import read, written
from tests.recordings import recorded as recorded_run
from tests.recordings import step as line
from tests.worlds import block_of, held, in_flight, keys, make_ledger, ready, report, sealed, store

# --- recorded runs -----------------------------------------------------------------------------------------------------


@define(eq=False)
class Truth:
    """What the ledger itself knew while a run was recorded."""

    ledger: Ledger
    path: Path
    jobs: dict[int, tuple[str, dict[int, int], set[int]]] = field(factory=dict)
    given_up: list[tuple[int, int, int]] = field(factory=list)
    """Rows of requests that gave up, with the commits between which everything happened because of that."""

    def hear(self, _: LedgerTransition) -> None:
        """Note every job that is out, with its places."""
        for job in self.ledger.jobs.alive():
            kind = "store" if job.direction is Direction.STORE else "load"
            blocks = {int(life) & ID_MASK: int(life) >> EPOCH_SHIFT for life in job.lives}
            self.jobs[job.number] = kind, blocks, {int(slot) for slot in job.slots}


def run_recorded(path: Path, *, contract: Contract, seed: int) -> Truth:
    """Record a run, and what its ledger knew meanwhile."""
    right = couplings.give_up

    def begun(replay: Replay) -> None:
        truths.append(Truth(replay.ledger, path))
        replay.ledger.on(hook=truths[0].hear)

    def give_up(core: Core, row: int, event: int) -> int:
        before = core.journal.steps
        right(core, row, event)
        truths[0].given_up.append((core.requests.place[row], before, core.journal.steps))
        return 0

    truths: list[Truth] = []
    with pytest.MonkeyPatch.context() as patch:
        planted(patch, right, give_up)
        recorded_run(path, prompts=1_500, seed=seed, abort=0.2, contract=contract, begun=begun)
    return truths[0]


@pytest.fixture(scope="module", params=list(Contract), ids=lambda each: each.name.lower())
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    contract: Contract = request.param
    return run_recorded(tmp_path_factory.mktemp("lives") / "run.jsonl", contract=contract, seed=2)


@pytest.fixture(scope="module")
def lives(truth: Truth) -> Lives:
    return read(truth.path)


def places(lives: Lives) -> list[tuple[str, int]]:
    return [place for place in lives.places if place[0] != "job"]


def test_lives_end_where_the_ledger_stands(truth: Truth, lives: Lives) -> None:
    """Last states and epochs are those of the ledger's columns, and no line is missing."""
    ledger = truth.ledger
    states = {"block": ledger.blocks.state, "slot": ledger.slots.state}
    requests = ledger.requests.rows()
    lines = truth.path.read_text().splitlines()

    assert lives.whole
    assert len(lives) == len(lines) - 2
    for machine, place in places(lives):
        last = lives.step(lives.steps_of(machine, place)[-1])
        if machine == "request":
            assert last.target == (ledger.requests.state(requests[place]).name if place in requests else "FINISHED")
        else:
            assert last.target == states[machine](place).name
        if machine == "block":
            assert last.epoch == ledger.blocks.epochs[place]


def test_lives_are_cut_where_they_begin_and_end(lives: Lives) -> None:
    """Every step is in one life, in order; a block's begins with its hand-out, a slot's leaves EMPTY, and both end as told."""
    for machine, place in places(lives):
        found = lives.place(machine, place)
        assert [index for life in found for index in life.steps] == list(lives.steps_of(machine, place))
        assert [life.number for life in found] == list(range(1, len(found) + 1))
        for life, after in zip(found, [*found[1:], None], strict=True):
            first = lives.step(life.steps[0])
            assert {"block": first.event == "allocate", "slot": first.source == "EMPTY"}.get(machine, True)
            ended = None if life.end is None else lives.step(life.end)
            if ended is None:
                assert after is None
            elif ended.event == "allocate":
                assert after is not None
                assert after.steps[0] == ended.index
            else:
                assert life.steps[-1] == ended.index
                assert ended.target == {"block": "FREED", "slot": "EMPTY", "request": "FINISHED"}[machine]
        if machine == "block":
            epochs = [life.epoch for life in found if life.epoch is not None]
            assert epochs == sorted(set(epochs))


def test_lives_have_spans_without_gaps(lives: Lives) -> None:
    """A span begins with the step that led to its state, and ends with the one that left it for another."""
    for machine, place in places(lives):
        for life in lives.place(machine, place):
            assert life.spans[0].start == life.steps[0]
            assert life.spans[-1].stop == life.end
            for one, other in zip(life.spans, life.spans[1:], strict=False):
                assert one.stop == other.start
                assert one.state != other.state
            for span in life.spans:
                assert lives.step(span.start).target == span.state
                assert span.stop is None or lives.step(span.stop).source == span.state


def test_jobs_have_the_places_that_the_ledger_gave_them(truth: Truth, lives: Lives) -> None:
    """Kind, blocks with their epochs, and slots; every job that was ever out, and no other."""
    told = {job.id: (job.kind, dict(job.blocks), set(job.slots)) for job in lives.jobs()}

    assert told == truth.jobs
    assert lives.last_job == max(truth.jobs)
    assert {job.kind for job in lives.jobs()} == {"store", "load"}


def test_causes_are_those_of_the_coupling_table(lives: Lives) -> None:
    """A coupled step is an effect of the row that is named, and its cause a step that the row begins with."""
    rows = {row.name: row for row in COUPLINGS}
    seen = set()
    for index in range(len(lives)):
        step = lives.step(index)
        if not step.coupling:
            continue
        row = rows[step.coupling]
        seen.add(row.name)
        assert any(_covers(effect, step.machine, step.event) for effect in row.effects), step
        if step.cause is None:
            assert row.name in ("store-planned", "load-planned")
            continue
        cause = lives.step(step.cause)
        events = ("finish", "quiesce") if cause.event in ("finish", "quiesce") else (cause.event,)
        assert any(_covers(row.cause, cause.machine, event) for event in events), (step, cause)
        assert not row.into or cause.target in [state.name for state in row.into]
        if cause.machine == "job" and step.job and step.machine != "job":
            assert cause.id == step.job

    assert seen >= {
        "submitted",
        "store-planned",
        "load-planned",
        "store-ended",
        "load-done",
        "store-expired",
        "request-gives-up",
    }
    assert {"life-ends", "hand-out-flushes"} & seen or not lives.head.fence


def _covers(named: str, machine: str, event: str) -> bool:
    of, _, events = named.partition(".")
    return of == machine and (events == "*" or event in events.partition("(")[0].split("|"))


def test_causes_are_found_for_every_step_that_a_job_brings(lives: Lives) -> None:
    """No step of a place in the name of a job stands without its coupling."""
    for index in range(len(lives)):
        step = lives.step(index)
        if step.job and step.machine != "job":
            assert step.coupling, step


def test_requests_that_give_up_are_blamed_for_what_they_did(truth: Truth, lives: Lives) -> None:
    """A release or an abandoned load that is blamed on a request lies within the very verb in which it gave up."""
    within = {n: row for row, before, last in truth.given_up for n in range(before + 1, last + 1)}
    blamed = [
        step for step in map(lives.step, range(len(lives))) if step.coupling == "request-gives-up" and step.cause is not None
    ]

    assert {step.machine for step in blamed} == {"block", "job"}
    for step in blamed:
        assert step.cause is not None
        assert within[step.n] == lives.step(step.cause).id


def test_releases_right_before_a_request_ends_name_no_coupling(lives: Lives) -> None:
    """Which request held a block no line tells: the two stand side by side, in neighbouring commits, and no more is said."""
    beside = [step for step in map(lives.step, range(len(lives))) if step.cause is not None and not step.coupling]

    assert beside
    for step in beside:
        assert step.cause is not None
        request = lives.step(step.cause)
        assert (step.machine, step.event, request.machine, request.n) == ("block", "release", "request", step.n + 1)
        assert lives.because(step.index).startswith(f"right before {request.place} ")


# --- each link once ----------------------------------------------------------------------------------------------------


def recorded(ledger: Ledger, clock: Iterator[int] | None = None) -> io.StringIO:
    """Record a ledger from here on."""
    stream = io.StringIO()
    Recorder(stream, None if clock is None else lambda: next(clock)).begin(ledger)
    return stream


def lives_of(stream: io.StringIO, tmp_path: Path) -> Lives:
    path = tmp_path / "small.jsonl"
    path.write_text(stream.getvalue())
    return read(path)


def reasons(lives: Lives, machine: str, place: int) -> list[tuple[str, str]]:
    return [(lives.step(index).event, lives.because(index)) for index in lives.steps_of(machine, place)]


def test_block_that_is_handed_out_under_its_copy_tells_all_of_it(tmp_path: Path) -> None:
    """The flush is because of the hand-out; what lands behind the fence is the old store; two lives share one place."""
    ledger = make_ledger(requests=(), num_blocks=2)
    stream = recorded(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    _, job = in_flight(ledger)
    ledger.release("a", [0])
    ledger.add_request("b")
    ledger.admit("b")
    held(ledger, "b")
    plan = ledger.dispatch(0.0)
    ledger.complete(report(job))
    ledger.settle(plan.number, 0.0)
    lives = lives_of(stream, tmp_path)
    old, new = lives.place("block", 1)

    assert [span.state for span in old.spans] == ["ALLOCATED", "SEALED", "PENDING_STORE", "IN_FLIGHT"]
    assert [span.state for span in new.spans] == ["FLUSHED", "ALLOCATED"]
    assert (old.epoch, new.epoch, new.end, old.jobs, new.jobs) == (1, 2, None, (1,), (1,))
    assert reasons(lives, "block", 1)[2:] == [
        ("plan_store", "because store 1 was planned"),
        ("submit", "because store 1 was submitted"),
        ("release", ""),
        ("allocate", ""),
        ("land", "because store 1 landed"),
    ]
    assert reasons(lives, "job", 1) == [
        ("submit", ""),
        ("flush", "because block 1 was handed out while the copy reads it"),
        ("finish", ""),
    ]


def test_store_whose_source_is_gone_is_cancelled_because_of_that(tmp_path: Path) -> None:
    """A planned store dies with the life of its block: the job names the block, the slot the job."""
    ledger = make_ledger(requests=(), num_blocks=2)
    stream = recorded(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    source = sealed(ledger, "a", keys("k"))
    store(ledger, source, keys("k"), 2)
    ledger.release("a", [0])
    ledger.drop(source.lives)
    lives = lives_of(stream, tmp_path)
    (life,) = lives.place("slot", 2)

    assert reasons(lives, "slot", 2) == [
        ("reserve", "because store 1 was planned"),
        ("cancel", "because store 1 was cancelled"),
    ]
    assert reasons(lives, "job", 1) == [("cancel", "because block 1 lost its life")]
    assert lives.step(lives.steps_of("block", 1)[-1]).event == "drop"
    assert life.end == life.steps[-1]


@pytest.mark.parametrize("submitted", [False, True], ids=["planned", "submitted"])
def test_request_that_gives_up_explains_its_load_and_its_blocks(tmp_path: Path, submitted: bool) -> None:
    """Its own line is the last of them; the load and the releases before it point there."""
    ledger = make_ledger(requests=(), num_blocks=3)
    stream = recorded(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    ready(ledger)
    ledger.add_request("b")
    target = ledger.allocate("b", 1)
    (job,) = ledger.plan_load("b", GroupTransfer(target, [0])).ids
    if submitted:
        ledger.dispatch(0.0)
    ledger.finish("b")
    lives = lives_of(stream, tmp_path)
    finished = lives.steps_of("request", 1)[-1]
    steps = lives.steps_of("block", block_of(target))
    released = [
        (step.cause, step.coupling, lives.because(step.index)) for step in map(lives.step, steps) if step.event == "release"
    ]
    gone = lives.step(lives.steps_of("job", job.number)[-1])

    assert (gone.event, gone.cause, gone.coupling) == ("abandon" if submitted else "cancel", finished, "request-gives-up")
    # a planned load that is cancelled ends the life of its target: nothing is left to release
    assert released == [(finished, "request-gives-up", "because request b gives up")] * submitted
    story = lives.job_story(job.number)
    assert story is not None
    assert story.request is not None
    assert (story.label, story.request.id, story.over) == ("load 2", 1, not submitted)


def test_failed_load_says_so_to_its_request(tmp_path: Path) -> None:
    """The request hears of its loss because of the job, and its blocks go because of the request."""
    ledger = make_ledger(requests=(), num_blocks=3)
    stream = recorded(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    ready(ledger)
    ledger.add_request("b")
    (job,) = ledger.plan_load("b", GroupTransfer(ledger.allocate("b", 1), [0])).ids
    ledger.dispatch(0.0)
    ledger.complete(report(job, Result.FAILED))
    lives = lives_of(stream, tmp_path)

    assert reasons(lives, "request", 1) == [
        ("plan_load", "because load 2 was planned"),
        ("load_failed", "because load 2 has failed"),
    ]
    assert reasons(lives, "slot", 0)[-2:] == [("drop", "because load 2 has failed"), ("unpin", "because load 2 has failed")]


def test_request_that_has_given_up_its_load_is_not_blamed_for_it_later(tmp_path: Path) -> None:
    """What it does after that has nothing to do with the load, although this one expires in the same plan."""
    ledger = make_ledger(requests=(), num_blocks=4, deadline=1.0)
    stream = recorded(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    ready(ledger)
    ledger.add_request("b")
    (job,) = ledger.plan_load("b", GroupTransfer(ledger.allocate("b", 1), [0])).ids
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0)
    ledger.launched(Launched(job, Worker(0)), 0.0)
    ledger.preempt("b")
    ledger.admit("b")
    block = block_of(held(ledger, "b"))
    ledger.expire(9.0)
    ledger.release("b", [0])
    ledger.finish("b")
    lives = lives_of(stream, tmp_path)

    assert reasons(lives, "job", job.number)[1:] == [("abandon", "because request b gives up"), ("expire", "")]
    assert reasons(lives, "block", block)[-1] == ("release", "right before request b finishes")


def test_lives_tell_times_and_refusals(tmp_path: Path) -> None:
    """Times are those of the lines before; a refusal belongs to the life in which it came, and to no other."""
    ledger = make_ledger(requests=(), max_requests=1)
    stream = recorded(ledger, iter([5, 20, 20, 35, 50]))
    ledger.add_request("a")
    ledger.admit("a")
    with pytest.raises(RefusedError):
        ledger.admit("a")
    ledger.finish("a")
    ledger.add_request("b")
    ledger.admit("b")
    with pytest.raises(RefusedError):
        ledger.admit("b")
    lives = lives_of(stream, tmp_path)
    first, second = lives.place("request", 0)

    assert lives.timed
    assert [lives.step(index).ns for index in range(3)] == [5, 20, 35]
    assert lives.times == (5, 50)
    assert [(each.event, each.state, each.ns, each.index) for each in first.refused] == [("admit", "RUNNING", 20, 1)]
    assert [each.ns for each in second.refused] == [50]
    assert [each.ns for each in lives.refusals("request", 0)] == [20, 50]
    assert list(lives.refusals("request", 1)) == []


def test_job_that_is_only_planned_has_a_life(tmp_path: Path) -> None:
    """No line of its own is written yet; it stands PLANNED since its first block was reserved."""
    ledger = make_ledger(requests=())
    stream = recorded(ledger)
    ledger.add_request("a")
    ledger.admit("a")
    store(ledger, sealed(ledger, "a", keys("k")), keys("k"))
    lives = lives_of(stream, tmp_path)
    (life,) = lives.place("job", 1)

    assert (list(life.steps), life.end, not lives.whole) == ([], None, True)
    assert [(span.state, span.stop) for span in life.spans] == [("PLANNED", None)]
    assert lives.place("job", 2) == []


# --- lines of others ---------------------------------------------------------------------------------------------------


def test_lives_believe_rows_that_are_in_no_table(tmp_path: Path) -> None:
    """They become kinds without a row; a job that nothing was reserved for has no kind, and nothing is made up."""
    odd = line(1, 0, "block 1", "ICE melt WATER", job=9), line(2, 0, "lake 7", "WATER freeze ICE")
    lives = read(written(tmp_path / "odd.jsonl", *odd, line(3, 0, "job 9", "DONE finish DONE", job=9)))

    assert [kind.row for kind in lives.kinds[:2]] == [0, 0]
    assert lives.kinds[2].row in [row.index for row in MACHINES["job"].rows]
    assert [lives.because(index) for index in range(3)] == ["", "", ""]
    assert [job.label for job in lives.jobs()] == ["job 9"]
    assert [life.machine for life in lives.place("lake", 7)] == ["lake"]


def test_lives_do_not_blame_a_request_that_never_came(tmp_path: Path) -> None:
    """A load that is abandoned without its request explains nothing of a later plan."""
    lines = [
        line(1, 0, "block 1", "ALLOCATED plan_load LOADING", job=1),
        line(2, 0, "request 0", "WAITING plan_load LOADING", job=1),
        line(3, 0, "job 1", "IN_FLIGHT abandon UNWANTED", job=1),
        line(4, 1, "block 1", "LOADING release STALE"),
        line(6, 1, "request 0", "LOADING finish FINISHED"),
    ]
    lives = read(written(tmp_path / "torn.jsonl", *lines))

    assert [lives.because(index) for index in (2, 3)] == ["", ""]


def test_lives_do_not_blame_a_hand_out_that_is_long_over(tmp_path: Path) -> None:
    """A wait that is ordered after other things have happened was somebody's own wish."""
    lines = [
        line(1, 0, "block 1", "SEALED plan_store PENDING_STORE", job=1),
        line(2, 0, "job 1", "PLANNED submit IN_FLIGHT", job=1),
        line(3, 0, "block 1", "IN_FLIGHT allocate FLUSHED"),
        line(4, 0, "slot 1", "READY evict EMPTY"),
        line(5, 0, "job 1", "IN_FLIGHT flush AWAITED", job=1),
    ]
    lives = read(written(tmp_path / "torn.jsonl", *lines))

    assert reasons(lives, "job", 1)[-1] == ("flush", "")


def test_lives_of_what_is_cut_off_are_refused(truth: Truth, tmp_path: Path) -> None:
    """Half a run is not taken for a whole one."""
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(truth.path.read_bytes()[:-40])

    with pytest.raises(MisuseError, match="cut off"):
        read(torn)
