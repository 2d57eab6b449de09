"""The executor keeps the order of a step, whatever the copier does; and the record of a worker sees who meets whom.

Method: a copier that does nothing but write down its calls, and lands what it is told to. Both are tables of plays.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import pytest
from attrs import define, field

from blocklife.copiers import Executor, Report
from blocklife.engines.toy import Traffic
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Direction, JobId, Plan, Result, Transfer, Worker
from blocklife.ledger.records import Ids, Launched, Seal, TierTransfer
from blocklife.lifecycle import Transition
from blocklife.states import BlockLife, JobLife
from tests.copiers.rig import LOAD, STORE, job, transfer
from tests.plays import play, plays

JobNumbers: TypeAlias = Collection[int]


def plan(*, loads: JobNumbers = (), stores: JobNumbers = (), flushes: JobNumbers = (), number: int = 1) -> Plan:
    return Plan(
        number,
        tuple(transfer(each, LOAD) for each in loads),
        tuple(transfer(each) for each in stores),
        tuple(job(each) for each in flushes),
    )


def completion(number: int) -> Completion:
    """The report of a job; a negative number is that of one that has failed."""
    return Completion(job(abs(number)), Worker(0), Result.OK if number > 0 else Result.FAILED)


@define(eq=False)
class Diary:
    """A copier, of either kind, that writes its calls down."""

    calls: list[str] = field(factory=list)
    landed: list[Completion] = field(factory=list)
    refuses: JobNumbers = ()
    misused: bool = False
    interrupted: bool = False
    out: set[int] = field(factory=set)
    worker: Worker = field(default=Worker(0))

    def launch(self, given: Transfer | TierTransfer) -> None:
        if given.job.number in self.refuses:
            raise RuntimeError("the driver is gone")
        if self.misused:
            raise MisuseError(f"job {given.job}: call computed() first")
        self.calls.append(f"{given.direction.name.lower()}-{given.job.number}")
        self.out.add(given.job.number)

    def poll(self) -> list[Completion]:
        self.calls.append("poll")
        landed, self.landed = self.landed, []
        self.out -= {each.job.number for each in landed}
        return landed

    def wait(self, jobs: Collection[JobId]) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.calls.append("wait-" + "-".join(str(each.number) for each in jobs))

    def busy(self) -> bool:
        return bool(self.out)

    def close(self) -> None:
        self.calls.append("close")


class QueuingDiary(Diary):
    """One whose device can wait in the host's place. It writes down where loads that are needed now begin and end."""

    @contextmanager
    def needed_now(self) -> Iterator[None]:
        self.calls.append("now")
        yield
        self.calls.append("later")

    def fence(self, jobs: Collection[JobId]) -> None:
        self.calls.append("fence-" + "-".join(str(each.number) for each in jobs))


class LayerDiary(QueuingDiary):
    """One of which each layer can wait for its own part of a load."""

    @contextmanager
    def needed_now(self, num_parts: int = 1) -> Iterator[None]:
        self.calls.append(f"now-{num_parts}")
        yield
        self.calls.append("later")

    def before_layer(self, layer: int) -> None:
        self.calls.append(f"layer-{layer}")


# --- the executor -------------------------------------------------------------------------------------------------------

TROUBLE: Mapping[str, tuple[type[BaseException], str]] = {
    "misuse": (MisuseError, r"job 1\.1: call computed\(\) first"),
    "kernel": (ValueError, "no such kernel"),
    "interrupt": (KeyboardInterrupt, ""),
}


class Stage:
    """An executor over a diary. Where a job is reported, a negative number is one that has failed."""

    def __init__(self) -> None:
        self.made(Diary())

    def made(self, diary: Diary, *, stores_behind: bool = False) -> None:
        self.diary = diary
        self.executor = Executor(self.diary, stores_behind=stores_behind)
        self.report = Report((), ())

    def step(self, loads: JobNumbers = (), stores: JobNumbers = (), flushes: JobNumbers = (), within: JobNumbers = ()) -> None:
        """Execute a plan; the forward pass is written down, too. *within*: what the plan itself launches and waits for."""
        given = plan(loads=loads, stores=stores, flushes=flushes)
        assert given.within == {job(each) for each in within}
        self.report = self.executor.execute(given, lambda: self.diary.calls.append("forward"))

    def parts(self, number: int, loads: JobNumbers = (), flushes: JobNumbers = ()) -> None:
        """The same with loads within the step in so many parts."""
        forward = lambda: self.diary.calls.append("forward")  # noqa: E731
        self.executor.run(plan(loads=loads, flushes=flushes), forward, load_parts=number)

    def no_parts(self, loads: JobNumbers) -> None:
        """A copier without layers has no parts: nothing was done."""
        with pytest.raises(MisuseError, match=r"executor: \w*Diary loads all layers at once \(give load_parts=1\)"):
            self.parts(2, loads=loads, flushes=loads)

    def fails(self, how: str, loads: JobNumbers = (), stores: JobNumbers = (), flushes: JobNumbers = ()) -> None:
        """A step that raises, by what the copier does or, if that is well, by its forward pass."""
        error, said = TROUBLE[how]

        def forward() -> None:
            if how == "kernel":
                raise ValueError(said)
            self.diary.calls.append("forward")

        self.diary.misused, self.diary.interrupted = how == "misuse", how == "interrupt"
        with pytest.raises(error, match=said or None):
            self.executor.execute(plan(loads=loads, stores=stores, flushes=flushes), forward)
        self.diary.misused = self.diary.interrupted = False

    def misused(self) -> None:
        """From now on, until a step has failed, launches are misuse."""
        self.diary.misused = True

    def queuing(self, behind: bool = False) -> None:
        """The copier can let the device wait; *behind*: and the engine launches the stores that were left."""
        self.made(QueuingDiary(), stores_behind=behind)

    def by_layer(self) -> None:
        """Each layer can wait for its own part of a load."""
        self.made(LayerDiary())

    def launch(self) -> None:
        """The engine launches them."""
        self.executor.launch_deferred()

    def hear(self) -> None:
        self.report = self.executor.report()

    def wait(self, *numbers: int) -> None:
        self.executor.wait([job(each) for each in numbers])

    def drop(self, *numbers: int) -> None:
        self.executor.drop([job(each) for each in numbers])

    def close(self) -> None:
        self.executor.close()

    def refuse(self, *numbers: int) -> None:
        """The copier will raise when it is to launch these."""
        self.diary.refuses = numbers

    def lands(self, *numbers: int) -> None:
        """The copier will report these."""
        self.diary.landed = [completion(each) for each in numbers]

    # --- what must be so

    def did(self, *calls: str) -> None:
        """The calls since the last such question."""
        made, self.diary.calls = self.diary.calls, []
        assert made == [*calls]

    def launched(self, *numbers: int) -> None:
        assert self.report.launched == tuple(Launched(job(each), Worker(0)) for each in numbers)

    def ended(self, *numbers: int) -> None:
        assert self.report.completions == tuple(map(completion, numbers))

    def busy(self, is_so: bool) -> None:
        assert self.executor.busy() is is_so


PLAYS = plays("""
# --- the order of a step
keeps-the-order-of-a-step
    # the stores that were left, the waits, the forward pass, the loads, the poll; the step's own stores wait
    step stores=[1,2]; did forward poll
    step loads=[3,4] stores=[5] flushes=[1]; did store-1 store-2 wait-1 forward load-3 load-4 poll
launches-what-it-holds-back-before-it-waits
    # a wait for a store that is still deferred launches it first, alone: else it would wait for nothing
    step stores=[1,2]; did forward poll; wait 2; did store-2 wait-2; step; did store-1 forward poll
does-not-wait-for-nothing
    wait; did
flushes-a-load-of-the-former-step
    # loads run since the former step; a flush waits for them before anything is written
    step loads=[1]; did forward load-1 poll; step flushes=[1]; did wait-1 forward poll
loads-before-the-forward-pass-what-the-plan-waits-for-itself
    # after the other waits, and before the loads that nobody in this step reads
    step stores=[1]; did forward poll; step loads=[2,3] stores=[4] flushes=[3,1] within=[3]; launched 1 3 2
    did store-1 wait-1 load-3 wait-3 forward load-2 poll

# --- waits on the device
lets-the-device-wait-for-a-flush
    queuing; step loads=[1]; did forward load-1 poll; step flushes=[1]; did fence-1 forward poll; wait 1; did wait-1
waits-for-loads-within-the-step-when-it-is-reported
    # the device waits before the forward pass, the host behind it; once
    queuing; step loads=[2,3] flushes=[3,1] within=[3]; did fence-1 now load-3 later fence-3 forward load-2 wait-3 poll
    hear; did poll
leaves-loads-within-the-step-to-its-layers
    # the host waits for them when it reports, as ever
    by_layer; parts 3 loads=[2,3] flushes=[3]; did now-3 load-3 later forward load-2; hear; did wait-3 poll; launched 3 2
    parts 1 loads=[4] flushes=[4]; did now-1 load-4 later fence-4 forward
has-no-parts-without-layers
    queuing; no_parts [1]; hear; launched; did poll; step loads=[1]; did forward load-1 poll
leaves-stores-to-the-engine
    # what is waited for goes ahead; the rest is launched when the engine says so
    queuing yes; step stores=[1,2]; step flushes=[2] stores=[3]; did forward poll store-2 fence-2 forward poll
    launch; did store-1 store-3; launch; did; hear; launched 1 3

# --- what is reported
reports-launches-and-landings-once
    # a launch in the step in which it happened, a landing when the copier tells it
    step stores=[1] loads=[2]; launched 2; lands 2; step; launched 1; ended 2; step; launched; ended
launch-that-raises-is-a-failure
    # the engine's loop sees no exception, the ledger a FAILED share; its neighbours go on, and the step goes on
    refuse 1 3; step loads=[1,2] stores=[3]; launched 1 2; ended -1; step; ended -3; did forward load-2 poll forward poll
store-whose-launch-raises-is-waited-for
    # a flush of a share that could not be launched ends, and its failure is in the report of the same step
    refuse 1; step stores=[1]; step flushes=[1]; ended -1; busy no
misuse-is-raised-when-the-step-is-done
    # the engine's own mistake reaches the engine, once; the step is carried out, and every share is reported
    step stores=[1]; fails misuse loads=[2,3] stores=[4]; hear; launched 1 2 3; ended -1 -2 -3; step; launched 4
    did forward poll forward poll store-4 forward poll
misuse-in-a-wait-is-raised-when-the-step-is-done
    step stores=[1]; misused; wait 1; fails misuse loads=[2,3] stores=[4]; hear; launched 1 2 3; ended -1 -2 -3
    step; launched 4
loses-no-job-when-the-forward-pass-raises
    # the caller hears of it; the plan's loads run and are reported, its stores are left for the next step as ever
    step stores=[1]; fails kernel loads=[2] stores=[3]; hear; launched 1 2; step; launched 3
    did forward poll store-1 load-2 poll store-3 forward poll
launches-no-load-when-a-wait-raises
    # nobody has proven that the load's target is quiet: it fails unlaunched, and is reported
    fails interrupt loads=[1] stores=[2] flushes=[9]; hear; launched; ended -1; step; did poll store-2 forward poll
passes-late-and-unknown-reports-on
    # they are the ledger's to judge; the executor's own shares are not disturbed by them
    step loads=[1]; lands 1 1 99 -1; step; ended 1 1 99 -1; step; ended
forgets-a-share-that-was-proven-quiet
    # its late landing is passed on and moves no machine; forgetting twice, or what is unknown, is no error
    step loads=[1]; drop 1 77; drop 1; lands 1; step; ended 1
may-flush-a-share-twice
    step loads=[1]; step flushes=[1]; step flushes=[1]; lands 1; step; ended 1
is-busy-while-a-store-is-held-back
    # a deferred store will report although no new plan names it
    busy no; step stores=[1]; busy yes; step; busy yes; lands 1; step; busy no
close-drops-what-was-never-launched
    # nobody has touched the places of a deferred store; the copier drains the rest
    step stores=[1]; close; did forward poll close; busy no
""")


@pytest.mark.parametrize("name", PLAYS)
def test_executor_plays(name: str) -> None:
    play(Stage(), PLAYS[name])


@pytest.fixture
def diary() -> Diary:
    return Diary()


def step(executor: Executor, diary: Diary, given: Plan) -> Report:
    """Execute, with a forward pass that is written down too."""
    return executor.execute(given, lambda: diary.calls.append("forward"))


def test_executor_asks_the_table_what_can_be_flushed(diary: Diary) -> None:
    """A share takes the edge wherever the table has a row, not where this file has heard of a state."""
    executor = Executor(diary)
    step(executor, diary, plan(loads=[1]))
    life = executor._running[job(1)].life
    life.abandon()
    life.on(JobLife.flush, hook=lambda _: diary.calls.append("flush"))
    executor.wait([job(1)])

    assert diary.calls[-2:] == ["flush", "wait-1"]


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


@pytest.mark.parametrize("record", [job(3), completion(3), completion(-3), Launched(job(3), Worker(1))], ids=repr)
def test_record_survives_pickling(record: object) -> None:
    assert pickle.loads(pickle.dumps(record)) == record


def test_seal_survives_pickling() -> None:
    found = pickle.loads(pickle.dumps(Seal(0, [1, 2], [b"a", b"b"])))

    assert (found.group, found.lives, found.keys) == (0, [1, 2], [b"a", b"b"])


# --- the record of a worker ---------------------------------------------------------------------------------------------


def ids(places: Collection[int]) -> Ids:
    return np.array([*places], dtype=np.int64)


class Record:
    """The record of a worker, whose slots are chunks of two places, and of its copies to and from a store below."""

    def __init__(self) -> None:
        self.above, self.under = Diary(), Diary()
        self.traffic = Traffic(self.above, 8, 8, 2)
        self.below = self.traffic.below(self.under)

    def store(self, number: int, blocks: JobNumbers, places: JobNumbers) -> None:
        self.traffic.launch(transfer(number, STORE, blocks, places))

    def load(self, number: int, places: JobNumbers, blocks: JobNumbers) -> None:
        self.traffic.launch(transfer(number, LOAD, places, blocks))

    def promote(self, number: int, slots: JobNumbers) -> None:
        self._move(number, Direction.PROMOTE, slots)

    def demote(self, number: int, slots: JobNumbers) -> None:
        self._move(number, Direction.DEMOTE, slots)

    def _move(self, number: int, direction: Direction, slots: JobNumbers) -> None:
        self.below.launch(TierTransfer(job(number), direction, ids(slots), bytes(len(slots)), (b"key",) * len(slots)))

    def compute(self, read: JobNumbers, written: JobNumbers) -> None:
        self.traffic.compute(ids(read), ids(written))

    def lands(self, *numbers: int, below: bool = False) -> None:
        (self.under if below else self.above).landed = [completion(each) for each in numbers]
        (self.below if below else self.traffic).poll()

    def wait(self, *numbers: int, below: bool = False) -> None:
        (self.below if below else self.traffic).wait([job(each) for each in numbers])

    def close(self, below: bool = False) -> None:
        (self.below if below else self.traffic).close()

    def raises(self, number: int) -> None:
        """A store that cannot be launched."""
        self.above.refuses = [number]
        with pytest.raises(RuntimeError, match="the driver is gone"):
            self.store(number, [2], [0])

    # --- what must be so

    def clash(self, *met: str) -> None:
        """Who has met whom since the last such question: ``2-1-slot-0`` is job 2 that meets job 1 there."""
        who = {"forward": "the forward pass"}
        told = []
        for each in met:
            one, other, kind, place = each.split("-")
            told.append(f"worker 0: {who.get(one, f'job 1.{one}')} meets job 1.{other} at {kind} {place}, and one writes it")
        assert self.traffic.take_clashes() == told

    def age(self, polls: int) -> None:
        """Of the oldest copy below."""
        assert (self.below.age, self.below.worker) == (polls, 0)

    def idle(self) -> None:
        assert (self.traffic.worker, self.traffic.busy(), self.below.busy()) == (0, False, False)

    def promoted(self, *slots: int) -> None:
        """Exactly these of all slots were filled by a promotion."""
        assert np.flatnonzero(self.traffic.promoted(ids(range(8)))).tolist() == [*slots]

    def written(self, *places: int) -> None:
        """Exactly these of all places were written by the latest job that writes in their slots."""
        assert np.flatnonzero(self.traffic.written(ids(range(8)))).tolist() == [*places]


MEETINGS = plays("""
forward-pass-that-writes-what-a-store-reads
    # until the store is reported or waited for; reading beside it is lawful
    store 1 [2,3] [0,1]; compute [2,3] [4]; clash; compute [] [3]; clash forward-1-block-3; clash
forward-pass-that-touches-what-a-load-writes
    load 1 [0] [5]; compute [5] [5]; clash forward-1-block-5 forward-1-block-5
report-proves-quiet
    store 1 [2] [0]; load 2 [1] [3]; lands 1 -2 9; compute [3] [2,3]; clash
wait-proves-quiet
    store 1 [2] [0]; load 2 [1] [3]; wait 1 2 9; compute [3] [2,3]; clash
close-proves-quiet
    store 1 [2] [0]; load 2 [1] [3]; close; compute [3] [2,3]; clash
load-over-store
    store 1 [2] [0]; load 2 [1] [2]; clash 2-1-block-2
store-from-load
    load 1 [1] [2]; store 2 [2] [0]; clash 2-1-block-2
load-over-load
    load 1 [1] [2]; load 2 [3] [2]; clash 2-1-block-2
load-from-store
    store 1 [2] [0]; load 2 [0] [3]; clash 2-1-slot-0
store-over-load
    load 1 [0] [3]; store 2 [2] [0]; clash 2-1-slot-0
store-over-store
    store 1 [2] [0]; store 2 [3] [0]; clash 2-1-slot-0
readers-share
    # two stores of one block, and two loads of one slot, are lawful
    store 1 [2] [0]; store 2 [2] [1]; load 3 [5] [6]; load 4 [5] [7]; clash
launch-that-raises-does-not-count
    # nobody touches the places of a copy that was never begun
    raises 1; compute [] [2]; clash; idle

# --- copies below touch every place of their slots
load-of-a-promotion
    promote 1 [4,0]; load 2 [1] [2]; clash 2-1-slot-0
store-over-a-promotion
    promote 1 [0]; store 2 [2] [0]; clash 2-1-slot-0
demotion-of-a-store
    store 1 [2] [3]; demote 2 [1]; clash 2-1-slot-1
promotion-under-a-load
    load 1 [2] [3]; promote 2 [1]; clash 2-1-slot-1
both-below
    demote 1 [0]; promote 2 [0]; clash 2-1-slot-0
other-copier-proves-nothing
    # a wait or a report of the copier above says nothing about a copy below
    promote 1 [5]; wait 1; close; lands below=yes; load 2 [10] [1]; clash 2-1-slot-5; age 1
    lands 1 below=yes; age 0; load 3 [10] [2]; clash
wait-below-proves-quiet
    promote 1 [5]; wait 1 below=yes; load 3 [10] [2]; clash; age 0
close-below-proves-quiet
    promote 1 [5]; close below=yes; load 3 [10] [2]; clash; age 0
slot-is-filled-by-the-latest-job
    # a promotion, or a store, which may leave places out
    store 1 [1,2,3] [0,1,3]; promote 2 [2]; demote 3 [0]; promoted 2; written 0 1 3 4 5
""")


@pytest.mark.parametrize("name", MEETINGS)
def test_traffic_meets(name: str) -> None:
    """Two users of one place, at least one of them writing, are a clash."""
    play(Record(), MEETINGS[name])


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
    assert diary.calls[:3] == ["forward", "load-1", "hook"]


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
    executor.on(JobLife.finish, hook=lambda _: print(1 / 0))
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
