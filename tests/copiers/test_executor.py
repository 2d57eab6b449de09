"""The executor keeps the order of a step, whatever the copier does; and the record of a worker sees who meets whom.

Method: a copier that does nothing but write down its calls, and lands what a test tells it to.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection

import numpy as np
import pytest
from attrs import define, field

from blocklife.copiers._executor import Executor, Report
from blocklife.engines.toy._traffic import Traffic
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Direction, JobId, Plan, Result, Transfer, Worker
from blocklife.ledger.records import Launched, Seal, TierTransfer
from blocklife.lifecycle import Transition
from blocklife.states import BlockLife, JobLife
from tests.copiers.rig import LOAD, STORE, job, transfer


def plan(*, loads: Collection[int] = (), stores: Collection[int] = (), flushes: Collection[int] = (), number: int = 1) -> Plan:
    return Plan(
        number,
        tuple(transfer(each, LOAD) for each in loads),
        tuple(transfer(each) for each in stores),
        tuple(job(each) for each in flushes),
    )


def completion(number: int, result: Result = Result.OK) -> Completion:
    return Completion(job(number), Worker(0), result)


@define(eq=False)
class Diary:
    """A copier that writes its calls down."""

    calls: list[str] = field(factory=list)
    landed: list[Completion] = field(factory=list)
    refuses: set[int] = field(factory=set)
    misused: bool = False
    out: set[int] = field(factory=set)
    worker: Worker = field(default=Worker(0))

    def launch(self, given: Transfer) -> None:
        if given.job.number in self.refuses:
            raise RuntimeError("the driver is gone")
        if self.misused:
            raise MisuseError(f"job {given.job}: call computed() first")
        self.calls.append(f"{given.direction.name.lower()} {given.job.number}")
        self.out.add(given.job.number)

    def poll(self) -> list[Completion]:
        self.calls.append("poll")
        landed, self.landed = self.landed, []
        self.out -= {each.job.number for each in landed}
        return landed

    def wait(self, jobs: Collection[JobId]) -> None:
        self.calls.append("wait " + " ".join(str(each.number) for each in jobs))

    def busy(self) -> bool:
        return bool(self.out)

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def diary() -> Diary:
    return Diary()


def step(executor: Executor, diary: Diary, given: Plan) -> Report:
    """Execute, with a forward pass that is written down too."""
    return executor.execute(given, lambda: diary.calls.append("forward"))


# --- the order of a step ------------------------------------------------------------------------------------------------


def test_executor_keeps_the_order_of_a_step(diary: Diary) -> None:
    """The stores that were left, the waits, the forward pass, the loads, the poll; the step's own stores wait."""
    executor = Executor(diary)
    step(executor, diary, plan(stores=[1, 2]))
    first, diary.calls[:] = [*diary.calls], []
    step(executor, diary, plan(loads=[3, 4], stores=[5], flushes=[1]))

    assert first == ["forward", "poll"]
    assert diary.calls == ["store 1", "store 2", "wait 1", "forward", "load 3", "load 4", "poll"]


def test_executor_launches_what_it_holds_back_before_it_waits(diary: Diary) -> None:
    """A wait for a store that is still deferred launches it first, alone: else it would wait for nothing."""
    executor = Executor(diary)
    step(executor, diary, plan(stores=[1, 2]))
    diary.calls.clear()
    executor.wait([job(2)])
    step(executor, diary, plan())

    assert diary.calls == ["store 2", "wait 2", "store 1", "forward", "poll"]


def test_executor_does_not_wait_for_nothing(diary: Diary) -> None:
    Executor(diary).wait([])

    assert diary.calls == []


def test_executor_flushes_a_load_of_the_former_step(diary: Diary) -> None:
    """Loads run since the former step; a flush waits for them before anything is written."""
    executor = Executor(diary)
    step(executor, diary, plan(loads=[1]))
    diary.calls.clear()
    step(executor, diary, plan(flushes=[1]))

    assert diary.calls == ["wait 1", "forward", "poll"]


def test_executor_asks_the_table_what_can_be_flushed(diary: Diary) -> None:
    """A share takes the edge wherever the table has a row, not where this file has heard of a state."""
    executor = Executor(diary)
    step(executor, diary, plan(loads=[1]))
    life = executor._running[job(1)].life
    life.abandon()
    life.on(JobLife.flush, hook=lambda _: diary.calls.append("flush"))
    executor.wait([job(1)])

    assert diary.calls[-2:] == ["flush", "wait 1"]


# --- what is reported ---------------------------------------------------------------------------------------------------


def test_executor_reports_launches_and_landings_once(diary: Diary) -> None:
    """A launch is reported in the step in which it happened, a landing when the copier tells it."""
    executor = Executor(diary)
    planned = step(executor, diary, plan(stores=[1], loads=[2]))
    diary.landed = [completion(2)]
    landed = step(executor, diary, plan())
    quiet = step(executor, diary, plan())

    assert planned.launched == (Launched(job(2), Worker(0)),)
    assert (landed.launched, landed.completions) == ((Launched(job(1), Worker(0)),), (completion(2),))
    assert (quiet.launched, quiet.completions) == ((), ())


def test_executor_turns_a_launch_that_raises_into_a_failure(diary: Diary) -> None:
    """The engine's loop sees no exception, the ledger a FAILED share; its neighbours go on, and the step goes on."""
    executor = Executor(diary)
    diary.refuses = {1, 3}
    first = step(executor, diary, plan(loads=[1, 2], stores=[3]))
    second = step(executor, diary, plan())

    assert first.completions == (completion(1, Result.FAILED),)
    assert [each.job for each in first.launched] == [job(1), job(2)]
    assert second.completions == (completion(3, Result.FAILED),)
    assert diary.calls == ["forward", "load 2", "poll", "forward", "poll"]


@pytest.mark.parametrize("when", ["launch", "wait"])
def test_executor_raises_misuse_when_the_step_is_done(when: str, diary: Diary) -> None:
    """The engine's own mistake reaches the engine, once; the step is carried out, and every share is reported."""
    executor = Executor(diary)
    step(executor, diary, plan(stores=[1]))
    diary.misused = True
    if when == "wait":
        executor.wait([job(1)])
    with pytest.raises(MisuseError, match=r"job 1\.1: call computed\(\) first"):
        step(executor, diary, plan(loads=[2, 3], stores=[4]))
    diary.misused = False
    told = executor.report()
    later = step(executor, diary, plan())

    assert [each.job for each in told.launched] == [job(1), job(2), job(3)]
    assert told.completions == tuple(completion(number, Result.FAILED) for number in (1, 2, 3))
    assert [each.job for each in later.launched] == [job(4)]
    assert diary.calls[-5:] == ["forward", "poll", "store 4", "forward", "poll"]


def test_executor_waits_for_a_store_whose_launch_raises(diary: Diary) -> None:
    """A flush of a share that could not be launched ends, and its failure is in the report of the same step."""
    executor = Executor(diary)
    diary.refuses = {1}
    step(executor, diary, plan(stores=[1]))
    report = step(executor, diary, plan(flushes=[1]))

    assert report.completions == (completion(1, Result.FAILED),)
    assert not executor.busy()


def test_executor_loses_no_job_when_the_forward_pass_raises(diary: Diary) -> None:
    """The caller hears of it; the plan's loads run and are reported, its stores are left for the next step as ever."""
    executor = Executor(diary)
    step(executor, diary, plan(stores=[1]))

    def broken() -> None:
        raise ValueError("no such kernel")

    with pytest.raises(ValueError, match="no such kernel"):
        executor.execute(plan(loads=[2], stores=[3]), broken)
    told = executor.report()
    later = step(executor, diary, plan())

    assert [each.job for each in told.launched] == [job(1), job(2)]
    assert [each.job for each in later.launched] == [job(3)]
    assert diary.calls == ["forward", "poll", "store 1", "load 2", "poll", "store 3", "forward", "poll"]


def test_executor_loads_before_the_forward_pass_what_the_plan_waits_for_itself(diary: Diary) -> None:
    """After the other waits, and before the loads that nobody in this step reads."""
    executor = Executor(diary)
    step(executor, diary, plan(stores=[1]))
    diary.calls.clear()
    made = plan(loads=[2, 3], stores=[4], flushes=[3, 1])
    report = step(executor, diary, made)

    assert made.within == {job(3)}
    assert [each.job for each in report.launched] == [job(1), job(3), job(2)]
    assert diary.calls == ["store 1", "wait 1", "load 3", "wait 3", "forward", "load 2", "poll"]


def test_executor_launches_no_load_when_a_wait_raises(diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has proven that the load's target is quiet: it fails unlaunched, and is reported."""
    executor = Executor(diary)

    def interrupted(_: Collection[JobId]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Diary, "wait", lambda _, jobs: interrupted(jobs))
        with pytest.raises(KeyboardInterrupt):
            step(executor, diary, plan(loads=[1], stores=[2], flushes=[9]))
    told = executor.report()
    step(executor, diary, plan())

    assert (told.launched, told.completions) == ((), (completion(1, Result.FAILED),))
    assert diary.calls == ["poll", "store 2", "forward", "poll"]


def test_executor_passes_late_and_unknown_reports_on(diary: Diary) -> None:
    """They are the ledger's to judge; the executor's own shares are not disturbed by them."""
    executor = Executor(diary)
    step(executor, diary, plan(loads=[1]))
    diary.landed = [completion(1), completion(1), completion(99), completion(1, Result.FAILED)]
    expected = tuple(diary.landed)
    report = step(executor, diary, plan())

    assert report.completions == expected
    assert step(executor, diary, plan()).completions == ()


def test_executor_forgets_a_share_that_was_proven_quiet(diary: Diary) -> None:
    """Its late landing is passed on and moves no machine; forgetting twice, or what is unknown, is no error."""
    executor = Executor(diary)
    step(executor, diary, plan(loads=[1]))
    executor.drop([job(1), job(77)])
    executor.drop([job(1)])
    diary.landed = [completion(1)]

    assert step(executor, diary, plan()).completions == (completion(1),)


def test_executor_may_flush_a_share_twice(diary: Diary) -> None:
    """Two plans wait for one job."""
    executor = Executor(diary)
    step(executor, diary, plan(loads=[1]))
    for _ in range(2):
        step(executor, diary, plan(flushes=[1]))
    diary.landed = [completion(1)]

    assert step(executor, diary, plan()).completions == (completion(1),)


def test_executor_is_busy_while_a_store_is_held_back(diary: Diary) -> None:
    """A deferred store will report although no new plan names it."""
    executor = Executor(diary)
    before = executor.busy()
    step(executor, diary, plan(stores=[1]))
    deferred = executor.busy()
    step(executor, diary, plan())
    running = executor.busy()
    diary.landed = [completion(1)]
    step(executor, diary, plan())

    assert (before, deferred, running, executor.busy()) == (False, True, True, False)


def test_executor_close_drops_what_was_never_launched(diary: Diary) -> None:
    """Nobody has touched the places of a deferred store; the copier drains the rest."""
    executor = Executor(diary)
    step(executor, diary, plan(stores=[1]))
    executor.close()

    assert diary.calls == ["forward", "poll", "close"]
    assert not executor.busy()


# --- across processes ---------------------------------------------------------------------------------------------------


def test_executor_takes_and_gives_what_can_be_pickled(diary: Diary) -> None:
    """Plans and reports cross a process boundary and mean the same there."""
    given = plan(loads=[1], stores=[2], flushes=[3], number=7)
    found = pickle.loads(pickle.dumps(given))
    report = step(Executor(diary), diary, found)
    told = pickle.loads(pickle.dumps(report))

    assert (found.number, found.flushes) == (given.number, given.flushes)
    for one, two in zip((*found.loads, *found.stores), (*given.loads, *given.stores), strict=True):
        assert (one.job, one.direction, one.group_sizes) == (two.job, two.direction, two.group_sizes)
        np.testing.assert_array_equal(one.source, two.source)
        np.testing.assert_array_equal(one.target, two.target)
    assert (told.launched, told.completions) == (report.launched, report.completions)


@pytest.mark.parametrize("record", [job(3), completion(3), completion(3, Result.FAILED), Launched(job(3), Worker(1))], ids=repr)
def test_record_survives_pickling(record: object) -> None:
    assert pickle.loads(pickle.dumps(record)) == record


def test_seal_survives_pickling() -> None:
    found = pickle.loads(pickle.dumps(Seal(0, [1, 2], [b"a", b"b"])))

    assert (found.group, found.lives, found.keys) == (0, [1, 2], [b"a", b"b"])


# --- the record of a worker ---------------------------------------------------------------------------------------------


def ids(*places: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(places, dtype=np.int64)


@pytest.fixture
def traffic(diary: Diary) -> Traffic:
    return Traffic(diary, 8, 8)


def test_traffic_sees_a_forward_pass_that_writes_what_a_store_reads(traffic: Traffic) -> None:
    """Until the store is reported or waited for; reading beside it is lawful."""
    traffic.launch(transfer(1, STORE, [2, 3], [0, 1]))
    traffic.compute(ids(2, 3), ids(4))
    before = traffic.take_clashes()
    traffic.compute(ids(), ids(3))

    assert before == []
    assert traffic.take_clashes() == ["worker 0: the forward pass meets job 1.1 at block 3, and one writes it"]
    assert traffic.take_clashes() == []


def test_traffic_sees_a_forward_pass_that_touches_what_a_load_writes(traffic: Traffic) -> None:
    traffic.launch(transfer(1, LOAD, [0], [5]))
    traffic.compute(ids(5), ids(5))

    assert len(traffic.take_clashes()) == 2


@pytest.mark.parametrize("end", ["report", "wait", "close"])
def test_traffic_forgets_who_is_proven_quiet(end: str, traffic: Traffic, diary: Diary) -> None:
    """A report, a wait and the end of the copier prove it, each alone."""
    traffic.launch(transfer(1, STORE, [2], [0]))
    traffic.launch(transfer(2, LOAD, [1], [3]))
    if end == "report":
        diary.landed = [completion(1), completion(2, Result.FAILED), completion(9)]
        traffic.poll()
    elif end == "wait":
        traffic.wait([job(1), job(2), job(9)])
    else:
        traffic.close()
    traffic.compute(ids(3), ids(2, 3))

    assert traffic.take_clashes() == []


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        (transfer(1, STORE, [2], [0]), transfer(2, LOAD, [1], [2]), "block 2"),
        (transfer(1, LOAD, [1], [2]), transfer(2, STORE, [2], [0]), "block 2"),
        (transfer(1, LOAD, [1], [2]), transfer(2, LOAD, [3], [2]), "block 2"),
        (transfer(1, STORE, [2], [0]), transfer(2, LOAD, [0], [3]), "slot 0"),
        (transfer(1, LOAD, [0], [3]), transfer(2, STORE, [2], [0]), "slot 0"),
        (transfer(1, STORE, [2], [0]), transfer(2, STORE, [3], [0]), "slot 0"),
    ],
    ids=["load over store", "store from load", "load over load", "load from store", "store over load", "store over store"],
)
def test_traffic_sees_two_jobs_that_meet(first: Transfer, second: Transfer, place: str, traffic: Traffic) -> None:
    """Two jobs at one place, one of them writing it, in either order and direction."""
    traffic.launch(first)
    traffic.launch(second)

    assert traffic.take_clashes() == [
        f"worker 0: job 1.2 meets job 1.1 at {place}, and one writes it",
    ]


def test_traffic_lets_readers_share(traffic: Traffic) -> None:
    """Two stores of one block, and two loads of one slot, are lawful."""
    traffic.launch(transfer(1, STORE, [2], [0]))
    traffic.launch(transfer(2, STORE, [2], [1]))
    traffic.launch(transfer(3, LOAD, [5], [6]))
    traffic.launch(transfer(4, LOAD, [5], [7]))

    assert traffic.take_clashes() == []


class Shelf:
    """A copier to a store below that does nothing by itself."""

    worker = Worker(0)

    def __init__(self) -> None:
        self.landed: list[Completion] = []

    def launch(self, _transfer: TierTransfer) -> None: ...

    def poll(self) -> list[Completion]:
        landed, self.landed = self.landed, []
        return landed

    def wait(self, _jobs: Collection[JobId]) -> None: ...

    def busy(self) -> bool:
        return False

    def close(self) -> None: ...


def between(number: int, direction: Direction, *slots: int) -> TierTransfer:
    return TierTransfer(job(number), direction, ids(*slots), bytes(len(slots)), (b"key",) * len(slots))


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        (between(1, Direction.PROMOTE, 4, 0), transfer(2, LOAD, [1], [2]), "slot 0"),
        (between(1, Direction.PROMOTE, 0), transfer(2, STORE, [2], [0]), "slot 0"),
        (transfer(1, STORE, [2], [3]), between(2, Direction.DEMOTE, 1), "slot 1"),
        (transfer(1, LOAD, [2], [3]), between(2, Direction.PROMOTE, 1), "slot 1"),
        (between(1, Direction.DEMOTE, 0), between(2, Direction.PROMOTE, 0), "slot 0"),
    ],
    ids=["load of a promotion", "store over a promotion", "demotion of a store", "promotion under a load", "both below"],
)
def test_traffic_sees_copies_below(
    first: Transfer | TierTransfer, second: Transfer | TierTransfer, place: str, diary: Diary
) -> None:
    """Copies between slots and a store below touch every place of their slots, here two."""
    traffic = Traffic(diary, 8, 8, 2)
    below = traffic.below(Shelf())
    for each in (first, second):
        if isinstance(each, TierTransfer):
            below.launch(each)
        else:
            traffic.launch(each)

    assert traffic.take_clashes() == [f"worker 0: job 1.2 meets job 1.1 at {place}, and one writes it"]


@pytest.mark.parametrize("end", ["report", "wait", "close"])
def test_traffic_keeps_a_copy_below_until_its_own_copier_proves_it_quiet(end: str, diary: Diary) -> None:
    """A wait or a report of the other copier says nothing about it."""
    traffic, shelf = Traffic(diary, 8, 8), Shelf()
    below = traffic.below(shelf)
    below.launch(between(1, Direction.PROMOTE, 5))
    traffic.wait([job(1)])
    traffic.close()
    below.poll()
    traffic.launch(transfer(2, LOAD, [5], [1]))
    met = traffic.take_clashes()
    if end == "report":
        shelf.landed = [completion(1)]
        age = below.age
        below.poll()
    else:
        age = below.age
        below.wait([job(1)]) if end == "wait" else below.close()
    traffic.launch(transfer(3, LOAD, [5], [2]))

    assert len(met) == 1
    assert (age, below.age, below.worker, below.busy()) == (1, 0, 0, False)
    assert traffic.take_clashes() == []


def test_traffic_knows_what_filled_a_slot(diary: Diary) -> None:
    """The latest job that writes it: a promotion, or a store, which may leave places out."""
    traffic = Traffic(diary, 8, 4, 2)
    below = traffic.below(Shelf())
    traffic.launch(transfer(1, STORE, [1, 2, 3], [0, 1, 3]))
    below.launch(between(2, Direction.PROMOTE, 2))
    below.launch(between(3, Direction.DEMOTE, 0))

    np.testing.assert_array_equal(traffic.promoted(ids(0, 1, 2)), [False, False, True])
    np.testing.assert_array_equal(traffic.written(ids(0, 1, 2, 3)), [[True, True], [False, True], [True, True], [False, False]])


def test_traffic_does_not_count_a_launch_that_raises(traffic: Traffic, diary: Diary) -> None:
    """Nobody touches the places of a copy that was never begun."""
    diary.refuses = {1}
    with pytest.raises(RuntimeError, match="the driver is gone"):
        traffic.launch(transfer(1, STORE, [2], [0]))
    traffic.compute(ids(), ids(2))

    assert traffic.take_clashes() == []
    assert (traffic.worker, traffic.busy()) == (0, False)


# --- hooks ----------------------------------------------------------------------------------------------------------------


def test_hooks_of_the_executor_hear_of_each_share_with_its_transfer(diary: Diary) -> None:
    """Launched ahead of the hooks on `submit`; then the wait and the end, each with the transfer that it is about."""
    executor, heard = Executor(diary), list[tuple[str, list[int], object]]()
    executor.on(hook=lambda told: heard.append((told.event, list(told.places), told.payload["transfer"])))
    executor.on(JobLife.submit, hook=lambda _: diary.calls.append("hook"))
    given = plan(loads=[1])
    step(executor, diary, given)
    step(executor, diary, plan(flushes=[1]))
    diary.landed = [completion(1)]
    executor.report()

    assert heard == [(event, [1], given.loads[0]) for event in ("submit", "flush", "finish")]
    assert diary.calls[:3] == ["forward", "load 1", "hook"]


def test_hook_of_the_executor_that_raises_fails_no_copy(diary: Diary) -> None:
    """The copy was launched and goes on; the error is raised when the step is done, and the report comes next."""
    executor = Executor(diary, errors="raise")

    @executor.on(JobLife.submit)
    def failing(_: Transition) -> None:
        raise KeyError("a hook")

    with pytest.raises(KeyError, match="a hook"):
        step(executor, diary, plan(loads=[1, 2]))
    first = executor.report()
    diary.landed = [completion(1), completion(2)]
    second = executor.report()

    assert [each.job for each in first.launched] == [job(1), job(2)]
    assert (first.completions, second.completions) == ((), (completion(1), completion(2)))


def test_hook_of_the_executor_on_an_end_that_raises_loses_no_report(diary: Diary) -> None:
    """What came out of the copier is reported, and later steps go on; the errors are kept."""
    executor = Executor(diary)
    executor.on(JobLife.finish, hook=lambda _: 1 / 0)
    step(executor, diary, plan(loads=[1, 2]))
    diary.landed = [completion(1), completion(2)]

    assert executor.report().completions == (completion(1), completion(2))
    step(executor, diary, plan())
    (kept,) = executor.hook_errors.failed
    assert (type(kept.first), kept.count, executor.hook_errors.count) == (ZeroDivisionError, 2, 2)


def test_executor_refuses_hooks_that_could_hear_nothing(diary: Diary) -> None:
    """It runs jobs, and no blocks."""
    with pytest.raises(MisuseError, match="BlockLife: nothing of it can be heard here"):
        Executor(diary).on(BlockLife)
