"""Copiers move the bytes they were told to, as late as they may, and prove when nothing moves any more.

Method: the real copier on two small tensors whose every word tells where it came from. Where a thread must be caught in the act
it is held at a gate; nothing sleeps and nothing is timed.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import attrs
import numpy as np
import pytest

from blocklife.copiers import Copier, CpuCopier, FaultRates, FaultyCopier
from blocklife.errors import MisuseError
from blocklife.ledger.records import ON_DEVICE, Completion, Direction, JobId, Result, TierTransfer, Transfer, Worker
from tests.copiers.rig import LOAD, PLACES, RANK, STORE, Words, faulty, job, numbers, tensors, transfer
from tests.plays import play, plays

Build = Callable[..., CpuCopier]


@pytest.fixture
def build() -> Iterator[Build]:
    """Builds copiers of numpy on `tensors` unless told otherwise, and closes them."""
    built: list[CpuCopier] = []

    def make(device: Words | None = None, host: Words | None = None, pace: int | None = None) -> CpuCopier:
        fresh = tensors()
        device, host = fresh[0] if device is None else device, fresh[1] if host is None else host
        built.append(CpuCopier(device, host, worker=RANK, blocks_per_poll=pace))
        return built[-1]

    yield make
    for copier in built:
        copier.close()


class Gate(np.ndarray[Any, Any]):
    """A tensor whose reader does something first: waits at a gate, or dies."""

    def __getitem__(self, key: Any) -> Any:
        self.before_read()
        return super().__getitem__(key)

    @staticmethod
    def before_read() -> None:
        """Replaced by each test."""


def gated(before_read: Callable[[], None]) -> Words:
    kind = type("Gated", (Gate,), {"before_read": staticmethod(before_read)})
    return tensors()[0].view(kind)


class Stage:
    """A copier of numpy, with planted faults if any are asked for, and what both ends held before."""

    def __init__(self) -> None:
        self.device, self.host = tensors()
        self.was, self.were = self.device.copy(), self.host.copy()
        self.came: list[tuple[int, int]] = []

    def make(self, pace: int, faults: bool = False, most: int = 5, **percent: int) -> None:
        """A copier that moves so many blocks a poll; reports are late for *most* polls, faults so many of a hundred."""
        self.copier: Copier = CpuCopier(self.device, self.host, worker=RANK, blocks_per_poll=pace)
        if faults or percent:
            rates = FaultRates(**{name: each / 100 for name, each in percent.items()})
            self.copier = FaultyCopier(self.copier, rates, np.random.default_rng(0), late_polls_max=most)

    def store(self, number: int, blocks: list[int], places: list[int], sizes: list[int] | None = None) -> None:
        source, target = np.array(blocks), np.array(places)
        self.copier.launch(Transfer(job(number), STORE, source, target, tuple(sizes or [len(blocks)])))

    def load(self, number: int, places: list[int], blocks: list[int]) -> None:
        self.copier.launch(transfer(number, LOAD, places, blocks))

    def stores(self, count: int) -> None:
        """Jobs from 1 on, of one block each; wait for them all."""
        for number in range(1, count + 1):
            self.store(number, [number % PLACES], [number % PLACES])
        self.wait(*range(1, count + 1))

    def wait(self, *numbers: int) -> None:
        self.copier.wait([job(each) for each in numbers])

    def close(self) -> None:
        self.copier.close()

    def spoil(self, block: int) -> None:
        self.device[block] = 77

    def spoil_host(self, *places: int) -> None:
        self.host[[*places]] = 77

    def polls(self, count: int) -> None:
        """Poll so often."""
        self.came = [
            (at, report.job.number if report.result is Result.OK else -report.job.number)
            for at in range(count)
            for report in self.copier.poll()
        ]

    # --- what must be so

    def poll(self, *numbers: int) -> None:
        """One poll reports these; a negative number is that of a job that has failed."""
        self.polls(1)
        assert [number for _, number in self.came] == [*numbers]

    def reported(self, *numbers: int) -> None:
        """The same of several polls, in the order of the jobs."""
        assert sorted((number for _, number in self.came), key=abs) == [*numbers]

    def within(self, *polls: int) -> None:
        """In exactly these polls something was reported."""
        assert {poll for poll, _ in self.came} == {*polls}

    def counted_late(self) -> None:
        """What came behind the first poll counts as late, and nothing else; it was some and not all."""
        num_late = sum(poll > 0 for poll, _ in self.came)
        self.has(num_late=num_late)
        assert 0 < num_late < len(self.came)

    def arrived(self, *places: int) -> None:
        """These have what the block of the same number had."""
        np.testing.assert_array_equal(self.host[[*places]], self.was[[*places]])

    def moved(self, block: int, other: int) -> None:
        """This block has what another one had: a store took it to the host, and a load from there."""
        np.testing.assert_array_equal(self.device[block], self.was[other])

    def kept(self, *places: int) -> None:
        np.testing.assert_array_equal(self.host[[*places]], self.were[[*places]])

    def untouched(self, *blocks: int) -> None:
        np.testing.assert_array_equal(self.device[[*blocks]], self.was[[*blocks]])

    def spoilt(self, *places: int) -> None:
        assert (self.host[[*places]] == 77).all()

    def busy(self, is_so: bool) -> None:
        assert self.copier.busy() is is_so

    def has(self, **counts: int) -> None:
        found = attrs.asdict(self.copier.statistics())  # type: ignore[attr-defined]
        assert {name: found[name] for name in counts} == counts


PLAYS = plays("""
# --- the pace of a copier
pacing-depends-on-the-calls-alone
    # two blocks a poll and direction
    make 2; store 1 [1,2,3] [1,2,3]; store 2 [4] [4]; load 3 [5,6,7,8,9] [5,6,7,8,9]; poll; poll; poll 1 2; store 4 [1] [1]
    poll 3; poll 4; poll
launch-alone-moves-nothing
    # an idle direction saves no grants, and a grant reaches only what was queued when it was given
    make 8; poll; poll; poll; poll; poll; store 1 [1] [1]; poll; poll 1
block-is-copied-when-its-grant-comes
    # a source overwritten after the launch but before its grant arrives overwritten: early reuse does corrupt
    make 1; store 1 [1,2] [1,2]; poll; spoil 2; poll; poll 1; arrived 1; spoilt 2
wait-moves-only-what-it-must
    # what stands behind the awaited job, and the whole other direction, stays where it is
    make 1; store 1 [1] [1]; store 2 [2] [2]; store 3 [3] [3]; load 4 [9] [9]; wait 2; arrived 1 2; kept 3; untouched 9
    poll 1 2
failed-job-leaves-its-grant-to-nobody
    # waiting for a job that fails early does not move the jobs behind it
    make 1; store 1 [16,1,2] [1,2,3]; store 2 [9] [9]; wait 1; kept 9; poll -1; poll 2; arrived 9
every-turn-begins-with-the-stores
    # what moves first depends on the calls alone, not on what moved before: the load reads what the store has written
    make 1; store 1 [1] [5]; wait 1; store 2 [2] [6]; load 3 [6] [7]; poll 1; poll 2 3; moved 7 2
every-wait-begins-with-the-stores
    make 1; store 1 [1] [5]; wait 1; store 2 [2] [6]; load 3 [6] [7]; wait 2 3; moved 7 2

# --- planted faults
fail-moves-half-and-says-so
    # of a single block none
    make 8 fail=100; store 1 [1,2,3,4,5] [1,2,3,4,5]; store 2 [6] [6]; polls 3; reported -1 -2; arrived 1 2; kept 3 4 5 6
    has num_failed=2; busy no
fail-cuts-the-groups-with-the-blocks
    make 8 fail=100; store 1 [0,1,2,3,4,5] [0,1,2,3,4,5] sizes=[2,3,1]; wait 1; arrived 0 1 2; kept 3 4 5; poll -1
failure-of-its-own-comes-through
    # and is not counted as planted
    make 1 faults=yes; store 1 [16] [1]; wait 1; poll -1; has num_failed=0
late-holds-the-report-back-and-not-the-bytes
    # the first poll takes over what has landed, and each report comes one poll to the most behind it
    make 1 late=100; stores 32; arrived 1 2 3 14 15; polls 7; within 1 2 3 4 5; has num_late=32
late-by-one-poll-at-most
    make 1 most=1 late=100; stores 32; polls 3; within 1; has num_late=32
late-counts-the-reports-that-it-holds-back
    make 1 late=50; stores 32; polls 6; counted_late
nothing-is-late-without-a-fault
    make 1 late=0; stores 32; polls 6; within 0; has num_late=0
twice-reports-again-some-polls-later
    # never in one poll, and the copier is busy until the second
    make 1 twice=100; store 1 [1] [1]; wait 1; poll 1; busy yes; polls 5; reported 1; has num_twice=1; busy no
reorder-lets-later-jobs-overtake
    # jobs that land together come out backwards; one alone waits for a later one, or for the bound
    make 1 reorder=100; stores 3; poll 3 2 1; store 4 [1] [1]; wait 4; polls 10; reported 4; within 5; has num_reordered=2
never-stops-half-way-and-stays-silent
    # not even after wait and close; nobody need tick for it
    make 1 never=100; store 1 [1,2,3,4] [1,2,3,4]; store 2 [5] [5]; busy no; wait 1 2; arrived 1 2; polls 30; reported; close
    poll; kept 3 4 5; has num_never=2
hung-job-moves-only-before-the-wait-returns
    # wait is proof of quiet: what is written into its places afterwards stays there
    make 1 never=100; store 1 [1,2,3,4] [1,2,3,4]; wait 1; spoil_host 1 2 3 4; polls 10; spoilt 1 2 3 4
""")


@pytest.mark.parametrize("name", PLAYS)
def test_copier_plays(name: str) -> None:
    """The same in every run."""
    for _ in range(5):
        stage = Stage()
        play(stage, PLAYS[name])
        stage.close()


class TestCpuCopier:
    def test_moves_a_job_larger_than_one_slab(self, build: Build) -> None:
        """A job of several megabytes goes in several pieces and arrives whole."""
        device = np.arange(40 * 20_000, dtype=np.uint64).reshape(40, 20_000)
        host = np.zeros_like(device)
        copier = build(device, host)

        copier.launch(transfer(1, STORE, list(range(40)), list(range(39, -1, -1))))
        copier.wait([job(1)])

        np.testing.assert_array_equal(host, device[::-1])

    @pytest.mark.parametrize("pace", [None, 2])
    def test_a_dead_thread_hangs_nobody(self, build: Build, pace: int | None) -> None:
        """When the thread dies in a copy, all that was out has failed, and so does all that is launched later."""

        def die() -> None:
            raise SystemExit

        copier = build(device=gated(die), pace=pace)
        copier.launch(transfer(1, STORE, [1], [1]))
        copier.launch(transfer(2, LOAD, [PLACES], [2]))
        copier.wait([job(1)])
        copier.launch(transfer(3, STORE, [1], [1]))
        copier.wait([job(3)])
        completions = copier.poll()

        assert numbers(completions) == [1, 2, 3]
        assert {completion.result for completion in completions} == {Result.FAILED}
        assert not copier.busy()

    @pytest.mark.parametrize("pace", [0, -1])
    def test_a_pace_that_never_ends_is_refused(self, pace: int) -> None:
        with pytest.raises(MisuseError, match="never end a job"):
            CpuCopier(*tensors(), worker=RANK, blocks_per_poll=pace)

    def test_tensors_that_do_not_fit_are_refused(self) -> None:
        device, host = tensors()
        with pytest.raises(MisuseError, match="make them equal"):
            CpuCopier(device, host[:, 1:], worker=RANK)
        with pytest.raises(MisuseError, match="2-d uint64"):
            CpuCopier(device, host[0], worker=RANK)

    def test_unpaced_moves_at_once_and_polls_without_waiting(self, build: Build) -> None:
        """While the thread stands at the gate a poll returns empty; once let through, it lands without a poll."""
        gate, arrived = threading.Event(), threading.Event()

        def stand() -> None:
            arrived.set()
            gate.wait()

        copier = build(device=gated(stand))
        copier.launch(transfer(1, STORE, [1], [1]))
        arrived.wait()
        early = copier.poll()
        gate.set()
        copier.wait([job(1)])

        assert early == []
        assert numbers(copier.poll()) == [1]

    def test_the_directions_take_turns(self, build: Build) -> None:
        """Of two stores and two loads granted together, one of each moves first: neither direction starves the other."""
        log: list[str] = []
        copier = build(gated(lambda: log.append("store")), gated(lambda: log.append("load")), pace=2)
        for number in (1, 2):
            copier.launch(transfer(number, STORE, [number], [number]))
        for number in (3, 4):
            copier.launch(transfer(number, LOAD, [number], [number]))
        copier.poll()
        copier.poll()

        assert log == ["store", "load", "store", "load"]

    def test_the_copy_runs_beside_the_caller(self, build: Build) -> None:
        """A poll returns while its own grant is still moving; the next poll waits for it."""
        gate, arrived = threading.Event(), threading.Event()

        def stand() -> None:
            arrived.set()
            gate.wait()

        copier = build(device=gated(stand), pace=1)
        copier.launch(transfer(1, STORE, [1], [1]))
        granted = copier.poll()
        arrived.wait()
        gate.set()

        assert granted == []
        assert numbers(copier.poll()) == [1]

    def test_an_interrupted_wait_leaves_a_copier_that_can_be_closed(self, build: Build) -> None:
        """Ctrl-C reaches a caller that waits for a copy; afterwards close drains as ever.

        A signal that arrives just before the caller falls asleep is noted but wakes nobody, so the thread knocks again until
        one was answered; only the first is.
        """
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("signals reach the main thread only")
        gate, knocked, caller = threading.Event(), threading.Event(), threading.get_ident()
        answered: list[int] = []

        def answer(number: int, _frame: object) -> None:
            answered.append(number)
            if len(answered) == 1:
                raise KeyboardInterrupt

        def knock() -> None:
            while not answered:
                signal.pthread_kill(caller, signal.SIGINT)
                gate.wait(0.001)
            knocked.set()
            gate.wait()

        copier = build(device=gated(knock), pace=1)
        copier.launch(transfer(1, STORE, [1], [1]))
        before = signal.signal(signal.SIGINT, answer)
        try:
            with pytest.raises(KeyboardInterrupt):
                copier.wait([job(1)])
            knocked.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            gate.set()
        copier.close()

        assert numbers(copier.poll()) == [1]


@attrs.define(eq=False)
class NaiveCopier:
    """The second truth: no thread, no lock, one block at a time. A granted block moves when the grant is given."""

    device: Words
    host: Words
    pace: int
    queues: dict[Direction, list[tuple[int, Transfer, int]]] = attrs.field(factory=lambda: {STORE: [], LOAD: []})
    landed: list[tuple[int, JobId]] = attrs.field(factory=list)
    num_launched: int = 0

    def launch(self, given: Transfer) -> None:
        self.num_launched += 1
        self.queues[given.direction].append((self.num_launched, given, 0))

    def poll(self) -> list[JobId]:
        reported = [name for _, name in sorted(self.landed)]
        self.landed.clear()
        for direction in ON_DEVICE:
            for _ in range(self.pace):
                self.move(direction)
        return reported

    def wait(self, names: list[JobId]) -> None:
        for direction, queue in self.queues.items():
            while any(given.job in names for _, given, _ in queue):
                self.move(direction)

    def move(self, direction: Direction) -> None:
        if not self.queues[direction]:
            return
        order, given, moved = self.queues[direction].pop(0)
        source, target = (self.device, self.host) if direction is STORE else (self.host, self.device)
        target[given.target[moved]] = source[given.source[moved]]
        if moved + 1 < len(given.source):
            self.queues[direction].insert(0, (order, given, moved + 1))
        else:
            self.landed.append((order, given.job))


@pytest.mark.parametrize("seed", range(25))
def test_walk_agrees_with_the_naive_copier(build: Build, seed: int) -> None:
    """Random launches, polls, waits and overwrites leave the same reports and, whenever all is quiet, the same bytes.

    Stores keep to the lower halves of both tensors and loads to the upper ones; sources are overwritten only where nothing
    is granted, that is right after a wait for everything: races between directions are nobody's promise.
    """
    dice = random.Random(seed)
    device, host = tensors()
    pace = dice.randint(1, 5)
    copier, naive = build(device, host, pace), NaiveCopier(device.copy(), host.copy(), pace)
    number = 0
    for _ in range(150):
        match dice.choices(["launch", "poll", "wait", "overwrite"], [dice.randint(1, 6), 4, 1, 1])[0]:
            case "launch":
                number += 1
                direction, half = dice.choice([(STORE, range(PLACES // 2)), (LOAD, range(PLACES // 2, PLACES))])
                count = dice.randint(1, PLACES // 2)
                given = transfer(number, direction, dice.choices(half, k=count), dice.sample(half, count))
                copier.launch(given)
                naive.launch(given)
            case "poll":
                assert [completion.job for completion in copier.poll()] == naive.poll()
            case "wait":
                names = [job(dice.randint(1, number + 1)) for _ in range(2)]
                copier.wait(names)
                naive.wait(names)
            case _:
                names = [job(name) for name in range(number + 1)]
                copier.wait(names)
                naive.wait(names)
                np.testing.assert_array_equal(device, naive.device)
                np.testing.assert_array_equal(host, naive.host)
                row, word = dice.randrange(PLACES), dice.randrange(1 << 30)
                device[row] = naive.device[row] = host[row] = naive.host[row] = word
    copier.close()
    naive.wait([job(name) for name in range(number + 1)])

    np.testing.assert_array_equal(device, naive.device)
    np.testing.assert_array_equal(host, naive.host)


def drive(copier: Copier, polls: int) -> list[tuple[int, int, Result]]:
    """Poll so many times: (poll, job, result) of each report."""
    return [(number, completion.job.number, completion.result) for number in range(polls) for completion in copier.poll()]


class TestFaultyCopier:
    def test_reorder_comes_right_after_the_job_that_overtook(self, build: Build) -> None:
        """With some jobs reordered and some not, each reordered one follows a later one whenever there is one in time."""
        copier = faulty(build(pace=1), seed=4, reorder=0.4)
        for number in range(1, 41):
            copier.launch(transfer(number, STORE, [1], [1]))
        reported = [number for _, number, _ in drive(copier, 60)]

        assert sorted(reported) == list(range(1, 41))
        assert reported != sorted(reported)
        assert copier.statistics().num_reordered >= sum(a > b for a, b in itertools.pairwise(reported)) > 0

    def test_fates_are_the_same_in_every_run(self, build: Build) -> None:
        """The same seed and jobs give the same reports and counts; another seed gives others."""

        def run(seed: int) -> tuple[object, object]:
            copier = faulty(build(pace=2), seed, fail=0.2, late=0.3, twice=0.3, reorder=0.3, never=0.1)
            log = []
            for number in range(1, 61):
                copier.launch(transfer(number, STORE if number % 3 else LOAD, [1, 2, 3], [number % 9, 10, 11]))
                log += drive(copier, 2)
            return log + drive(copier, 100), copier.statistics()

        first = run(7)

        assert run(7) == run(7) == first
        assert run(8) != first

    def test_the_fate_of_a_job_does_not_depend_on_the_others(self, build: Build) -> None:
        """Leaving out other jobs, or polling more often, fails the same ones."""

        def failed(chosen: range, polls: int) -> set[int]:
            copier = faulty(build(), 3, fail=0.5)
            reports = []
            for number in chosen:
                copier.launch(transfer(number, STORE, [1], [1]))
                reports += drive(copier, polls)
            copier.wait([job(number) for number in chosen])
            return {number for _, number, result in reports + drive(copier, 1) if result is Result.FAILED}

        everything, every_second = failed(range(1, 41), 0), failed(range(1, 41, 2), 3)

        assert every_second == {number for number in everything if number % 2}
        assert 0 < len(every_second) < 20

    def test_every_job_comes_to_an_end(self, build: Build) -> None:
        """On a bad day every job is reported once, twice if so fated, or counted as never; and the copier falls silent."""
        copier = faulty(build(pace=3), 11, fail=0.2, late=0.3, twice=0.3, reorder=0.3, never=0.2)
        for number in range(1, 101):
            copier.launch(transfer(number, STORE if number % 2 else LOAD, [1, 2], [3, 4]))
        reported = []
        while copier.busy():
            reported += numbers(copier.poll())
        counts = copier.statistics()

        assert len(set(reported)) == 100 - counts.num_never
        assert len(reported) == len(set(reported)) + counts.num_twice
        assert min(counts.num_failed, counts.num_late, counts.num_twice, counts.num_reordered, counts.num_never) > 0

    def test_refuses_what_no_copier_could_honour(self, build: Build) -> None:
        """A second launch, a launch after close, and a hold-back of no polls."""
        copier = faulty(build(pace=1), fail=1.0)
        copier.launch(transfer(1, STORE, [1], [1]))
        with pytest.raises(MisuseError, match="launched once"):
            copier.launch(transfer(1, STORE, [1], [1]))
        copier.close()
        copier.close()
        with pytest.raises(MisuseError, match="CLOSED"):
            copier.launch(transfer(2, STORE, [1], [1]))
        with pytest.raises(MisuseError, match="not late"):
            faulty(copier, late_polls_max=0)

        assert copier.statistics().num_launched == 1


class Shelf:
    """A copier to and from a store below that moves at once, and says so at the next poll; it lacks the key ``gone``."""

    def __init__(self) -> None:
        self.worker = Worker(0)
        self.moved: list[TierTransfer] = []
        self._landed: list[Completion] = []

    def launch(self, transfer: TierTransfer) -> None:
        self.moved.append(transfer)
        missing = [at for at, key in enumerate(transfer.keys) if key == b"gone"]
        self._landed.append(Completion(transfer.job, self.worker, Result.OK, missing))

    def poll(self) -> list[Completion]:
        landed, self._landed = self._landed, []
        return landed

    def wait(self, jobs: Collection[JobId]) -> None:
        """It is quiet as soon as it has launched."""

    def busy(self) -> bool:
        return bool(self._landed)

    def close(self) -> None:
        """There is nothing to end."""


def promotion(number: int, *keys: bytes) -> TierTransfer:
    slots = np.arange(len(keys), dtype=np.int64)
    return TierTransfer(job(number), Direction.PROMOTE, slots, bytes(len(keys)), keys, b"space")


class TestFaultyTierCopier:
    """Copies between slots and a store below have the same faults, and keep what did not come."""

    def shelf(self, **rates: float) -> tuple[Shelf, FaultyCopier[TierTransfer]]:
        shelf = Shelf()
        return shelf, FaultyCopier(shelf, FaultRates(**rates), np.random.default_rng(0), late_polls_max=5)

    def test_without_faults_what_is_missing_is_reported(self) -> None:
        _, copier = self.shelf()
        copier.launch(promotion(1, b"a", b"gone"))

        assert copier.poll() == [Completion(job(1), Worker(0), Result.OK, [1])]
        assert not copier.busy()

    def test_fail_moves_the_first_half_and_says_nothing_of_what_is_missing(self) -> None:
        """FAILED is for the whole job."""
        shelf, copier = self.shelf(fail=1.0)
        copier.launch(promotion(1, b"gone", b"b", b"c"))
        copier.launch(promotion(2, b"d"))

        assert [(each.keys, len(each.slots), each.groups, each.space) for each in shelf.moved] == [
            ((b"gone",), 1, bytes(1), b"space")
        ]
        found = sorted(copier.poll(), key=lambda each: each.job.number)
        assert found == [Completion(job(number), Worker(0), Result.FAILED) for number in (1, 2)]

    def test_late_and_twice_keep_what_is_missing(self) -> None:
        """Each report comes two times, some polls later, and both are the same."""
        _, copier = self.shelf(late=1.0, twice=1.0)
        copier.launch(promotion(1, b"gone"))
        reports = [each for _ in range(12) for each in copier.poll()]

        assert reports == [Completion(job(1), Worker(0), Result.OK, [0])] * 2

    def test_never_is_not_reported(self) -> None:
        shelf, copier = self.shelf(never=1.0)
        copier.launch(promotion(1, b"a", b"b"))

        assert [each for _ in range(12) for each in copier.poll()] == []
        assert len(shelf.moved[0].slots) == 1
        assert not copier.busy()
