"""The torch copier keeps the protocol: bytes arrive, trouble becomes a verdict, and nothing is reported before it is quiet.

Method: on CPU tensors it is held against a naive copier, and a whole replay is run with it under both contracts, every byte
verified. Trouble is made on the fake device, which refuses, hangs and answers with errors when told; time is a number that the
test sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest
import torch
from attrs import define, field

from blocklife.copiers import Executor
from blocklife.copiers.torch import DeviceLostError, HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._launching import device_for
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.copiers.torch._streams import HostDevice
from blocklife.errors import MisuseError
from blocklife.ledger.records import Plan, Transfer
from blocklife.testing import FakeDevice, FakeEvent
from tests.copiers.rig import FAILED, LOAD, OK, PLACES, RANK, STORE, WORDS, Rows, job, on_cpu, results, tensors, transfer
from tests.plays import play, plays

BLOCKS = PLACES


# --- on CPU tensors -------------------------------------------------------------------------------------------------------


def test_statistics_count_jobs_runs_and_bytes() -> None:
    copier = on_cpu(*tensors())
    copier.launch(transfer(1, STORE, [1, 2, 3], [4, 5, 9]))
    copier.launch(transfer(2, STORE, [BLOCKS], [1]))
    copier.poll()
    statistics = copier.statistics()

    assert (statistics.num_launched, statistics.num_landed, statistics.num_failed, statistics.num_suspect) == (2, 2, 1, 0)
    assert (statistics.num_runs, statistics.num_bytes) == (2, 3 * WORDS * 8)
    assert "job 1.2: IndexError('block 16 does not exist" in statistics.last_error


def test_a_job_with_a_place_that_does_not_exist_moves_nothing() -> None:
    device, host = tensors()
    before = host.copy()
    copier = on_cpu(device, host)
    copier.launch(transfer(1, STORE, [1, BLOCKS, 2], [1, 2, 3]))

    assert results(copier.poll()) == [(1, FAILED)]
    np.testing.assert_array_equal(host, before)
    assert copier.suspect() == ()


def test_a_copy_takes_the_time_of_its_bytes_and_no_more() -> None:
    """The clock is read where the bytes begin to move and where they have moved: neither the next copy's time counts, nor what
    passes until somebody asks. What has failed, and what was told before, has none.
    """
    device, host = tensors()
    now = 100.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    cache = KvCache([[torch.from_numpy(device.view(np.int64))]])
    copier = TorchCopier(cache, Rows(torch.from_numpy(host.view(np.uint8))), worker=RANK, clock=clock)
    copier.computed()
    copier.launch(transfer(1, STORE, [1], [7]))
    copier.launch(transfer(2, STORE, [BLOCKS], [7]))
    copier.launch(transfer(3, LOAD, [7], [2]))
    now += 50.0
    copier.wait([job(1)])
    copier.poll()
    first = copier.durations()
    copier.poll()

    assert first == {job(1): 1.0, job(3): 1.0}
    assert copier.durations() == {}


# --- on a fake device -----------------------------------------------------------------------------------------------------


@define(eq=False)
class Rig:
    """A copier on a fake device; its clock is a number."""

    device: FakeDevice = field(factory=FakeDevice)
    now: float = 0.0
    copier: TorchCopier = field(init=False)

    def __attrs_post_init__(self) -> None:
        cache = KvCache([[torch.zeros(BLOCKS, 4, dtype=torch.uint8)]])
        self.copier = TorchCopier(
            cache,
            Rows(torch.zeros(PLACES, 4, dtype=torch.uint8)),
            worker=RANK,
            device=self.device,
            deadline_s=10.0,
            clock=lambda: self.now,
        )

    def land_all(self) -> None:
        while self.device.landable():
            self.device.land_any()

    def event_of(self, name: str) -> FakeEvent:
        """The event that was recorded last on a stream."""
        stream = self.device.named(name)
        return max(
            (event for event in self.device.events if event.recorded is not None and event.recorded.stream is stream),
            key=lambda event: event.recorded.number if event.recorded is not None else 0,
        )

    # --- what happens

    def store(self, number: int, blocks: Sequence[int] = (1,), places: Sequence[int] = (1,)) -> None:
        self.copier.launch(transfer(number, STORE, blocks, places))

    def load(self, number: int, places: Sequence[int] = (1,), blocks: Sequence[int] = (1,)) -> None:
        self.copier.launch(transfer(number, LOAD, places, blocks))

    def computed(self) -> None:
        self.copier.computed()

    def forward(self) -> None:
        """A forward pass begins."""
        self.copier.before_forward()

    def wait(self, *numbers: int) -> None:
        self.copier.wait([job(number) for number in numbers])

    def close(self) -> None:
        self.copier.close()

    def proven(self) -> None:
        self.copier.proven()

    def land(self) -> None:
        self.land_all()

    def at(self, seconds: int) -> None:
        self.now = float(seconds)

    def refuses(self, stream: str, *calls: str) -> None:
        """From now on; nothing any more without any."""
        chosen = self.device.engine if stream == "engine" else self.device.named(stream)
        chosen.refuses = {*calls}

    def hangs(self, stream: str) -> None:
        self.device.named(stream).hangs = True

    def errs(self, stream: str) -> None:
        """The event that was recorded last on a stream answers with an error."""
        self.event_of(stream).error = RuntimeError("an illegal address")

    def misuse(self, call: str, *numbers: int) -> None:
        """It is refused, for nobody knows what it would come after."""
        with pytest.raises(MisuseError, match=r"cannot LAUNCH without knowing what to wait for .*call computed\(\) first"):
            getattr(self, call)(*numbers)

    def lost(self, call: str, *numbers: int) -> None:
        """It raises: the device can prove nothing."""
        with pytest.raises(DeviceLostError, match=r"job 1\.1: cannot be proven quiet"):
            getattr(self, call)(*numbers)

    # --- what must be so

    def poll(self, *numbers: int) -> None:
        """One poll reports these; a negative number is that of a job that has failed."""
        assert results(self.copier.poll()) == [(abs(each), OK if each > 0 else FAILED) for each in numbers]

    def suspect(self, *numbers: int) -> None:
        """These have failed, and are not known to be quiet."""
        assert [each.job for each in self.copier.suspect()] == [job(number) for number in numbers]
        assert self.copier.statistics().num_suspect == len(numbers)

    def busy(self, is_so: bool) -> None:
        assert self.copier.busy() is is_so

    def idle(self, stream: str) -> None:
        """Nothing waits on it."""
        assert not self.device.named(stream).queue

    def launched(self, count: int) -> None:
        assert self.copier.statistics().num_launched == count

    def clean(self) -> None:
        """No race, and no event that was used too early."""
        assert self.device.findings == []


@pytest.fixture
def rig() -> Rig:
    """Knows already what was computed."""
    rig = Rig()
    rig.copier.computed()
    return rig


@define(eq=False)
class Dial:
    """A timer that says what it is told, and refuses a call when it is told to."""

    says: float
    refuses: str = ""

    def start(self, stream: object) -> None:
        self._answer("start")

    def stop(self, stream: object) -> None:
        self._answer("stop")

    def seconds(self) -> float:
        self._answer("seconds")
        return self.says

    def _answer(self, call: str) -> None:
        if call == self.refuses:
            raise RuntimeError(f"no {call}")


@pytest.mark.parametrize(("refuses", "took"), [("", 0.25), ("start", 7.0), ("stop", 7.0), ("seconds", 7.0)])
def test_the_devices_own_time_of_a_copy_counts_where_it_has_one(rig: Rig, refuses: str, took: float) -> None:
    """Where it has none, or does not tell it, the host's does, from the launch until the job was found quiet."""
    dial = Dial(0.25, refuses)
    with mock.patch.object(rig.device, "timer", return_value=dial):
        rig.copier.launch(transfer(1, STORE, [1], [1]))
    rig.now = 7.0
    rig.land_all()

    assert results(rig.copier.poll()) == [(1, OK)]
    assert rig.copier.durations() == {job(1): took}


def test_an_event_of_the_engine_says_it_too() -> None:
    """A store comes after the event, not after what the engine queued behind it."""
    rig = Rig()
    event = rig.device.event()
    rig.device.engine.kernel("forward", (), ())
    rig.device.engine.record(event)
    rig.device.engine.kernel("next", (), ())
    rig.copier.computed(event)
    rig.copier.launch(transfer(1, STORE, [1], [1]))
    rig.device.land(rig.device.engine)
    rig.device.land(rig.device.engine)
    store = rig.device.named("store")
    while streams := [stream for stream in rig.device.landable() if stream is not rig.device.engine]:
        rig.device.land(streams[0])

    assert not store.queue
    assert len(rig.device.engine.queue) == 1


def test_what_is_no_stream_is_refused_and_changes_nothing(rig: Rig) -> None:
    """The copier still knows what it knew."""
    with pytest.raises(MisuseError, match="str is not one of its streams"):
        rig.copier.computed("now")
    rig.store(1)
    with pytest.raises(MisuseError, match="block 16: does not exist"):
        rig.copier.before_forward(blocks=[BLOCKS])
    rig.store(2)
    rig.launched(2)


def test_a_broken_word_of_the_engine_lets_nothing_be_launched(rig: Rig) -> None:
    """If the device refuses to follow the engine, the old word no longer holds."""
    rig.refuses("engine", "record")
    with pytest.raises(RuntimeError, match="refuses to record"):
        rig.copier.computed()
    rig.misuse("store", 1)


PLAYS = plays("""
# --- the word of the engine, which has not said anything yet
store-that-does-not-know-what-it-comes-after
    # before the first word of the engine, and between a forward pass and the word about it; nothing has changed then
    misuse store 1; computed; forward; misuse store 1; busy no; computed; store 1; busy yes; launched 1
load-that-does-not-know-what-it-comes-after
    misuse load 1; computed; forward; misuse load 1; busy no; computed; load 1; busy yes; launched 1

# --- completions
job-is-reported-when-its-event-has-passed-and-once
    computed; store 1; store 2; poll; land; poll 1 2; poll; busy no
wait-lands-what-it-must-and-reports-nothing
    # the job and those before it in its direction are quiet; those behind it are left to the device; polls report
    computed; store 1; store 2; hangs load; load 3; wait 1 99; wait 2 1; wait; idle store; poll 1 2; busy yes

# --- trouble
event-that-answered-with-an-error-is-not-used-again
    # once the device is proven quiet by other means, the next jobs get other events
    computed; store 1; errs store; wait 1; store 2; wait 2; store 3; wait 3; store 4; wait 4; store 5; wait 5
    poll -1 2 3 4 5; suspect
launch-that-raises-at-its-wait-raises-nothing
    # the engine's loop hears of it by a completion; what was queued before it comes first
    computed; load 1; refuses store wait; store 2 [1,5] [1,9]; refuses store; store 3; close; poll 1 -2 3; clean
launch-that-raises-at-its-copy-raises-nothing
    computed; load 1; refuses store copy; store 2 [1,5] [1,9]; refuses store; store 3; close; poll 1 -2 3; clean
launch-that-raises-at-its-record-raises-nothing
    computed; load 1; refuses store record; store 2 [1,5] [1,9]; refuses store; store 3; close; poll 1 -2 3; clean
launch-of-which-nothing-was-queued-is-reported-by-the-next-poll
    # a refused wait comes before the copy: no byte is under way, so nothing is suspect
    computed; refuses store wait; store 1; suspect; poll -1
job-in-time-is-not-failed
    # just before its deadline a job is as good as ever; a job behind one that hangs is judged by its own
    computed; store 1; at 5; store 2; at 9; poll; suspect; at 10; poll; suspect 1; busy yes; land; poll -1 2
wait-never-returns-without-proof
    # on a device that can prove nothing it raises; the job stays suspect until the engine says that all is quiet
    computed; store 1; hangs store; lost wait 1; poll; suspect 1; proven; close; poll -1
close-never-returns-without-proof
    computed; store 1; hangs store; lost close; poll; suspect 1; proven; close; poll -1
""")


@pytest.mark.parametrize("name", PLAYS)
def test_copier_plays(name: str) -> None:
    play(Rig(), PLAYS[name])


TROUBLES = plays("""
the driver refuses to copy
    refuses store copy; store 1 [1,5] [3,9]; refuses store
the driver refuses to record
    refuses store record; store 1 [1,5] [3,9]; refuses store
an illegal address
    store 1 [1,5] [3,9]; errs store; poll
not over after 10 s
    store 1 [1,5] [3,9]; at 10; poll
""")
"""What goes wrong, by what is said of it."""
PROOFS = plays("""
a later job of its direction
    store 2 [7] [7]; land; poll -1 2
a wait
    wait 1; poll -1
the close
    close; poll -1
the word of the engine
    proven; poll -1
""")


@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_failed_job_is_suspect_and_reported_once_it_is_proven_quiet(trouble: str, proof: str, rig: Rig) -> None:
    """The verdict stands at once, with the job, its places and the reason; polls say nothing while bytes may move. A poll alone
    will report it only where an event is still to come: behind a copy that was refused.
    """
    play(rig, TROUBLES[trouble])
    play(rig, "poll; suspect 1")
    (suspect,) = rig.copier.suspect()
    places = suspect.blocks.tolist(), suspect.places.tolist()

    assert (suspect.job, suspect.direction, suspect.num_bytes, places) == (job(1), STORE, 8, ([1, 5], [3, 9]))
    assert trouble in suspect.why == rig.copier.statistics().last_error
    rig.busy("copy" in trouble)
    play(rig, f"at 0; {PROOFS[proof]}; suspect; busy no; poll; clean")


def test_a_compute_event_that_answers_with_an_error_is_passed_over(rig: Rig) -> None:
    """A later one stands for it: events are pooled as before, and copies go on."""
    play(rig, "errs compute")
    for number in range(1, 30):
        play(rig, f"computed; store {number}; wait {number}; poll {number}")

    assert rig.copier.statistics().num_events < 8


def test_executor_drives_it(rig: Rig) -> None:
    """Stores of a step are launched with the next one, the device waits for a flush, loads follow the forward pass."""
    executor = Executor(rig.copier)

    def forward() -> None:
        rig.copier.before_forward()
        rig.copier.computed()

    executor.execute(Plan(1, (), (transfer(1, STORE, [1], [1]),), ()), forward)
    second = executor.execute(Plan(2, (transfer(2, LOAD, [2], [2]),), (), (job(1),)), forward)
    rig.land_all()
    third = executor.execute(Plan(3, (), (), ()), forward)
    executor.close()

    assert [each.job.number for each in second.launched] == [1, 2]
    assert results([*second.completions]) == []
    assert sorted(results([*third.completions])) == [(1, OK), (2, OK)]
    assert rig.device.findings == []


def test_after_the_proof_from_outside_nothing_old_is_used(rig: Rig) -> None:
    """The engine must speak again before a launch; events that hang are neither waited for nor recorded again."""
    rig.copier.launch(transfer(1, LOAD, [1], [1]))
    rig.device.named("load").hangs = True
    rig.copier.proven()
    hung = {event for event in rig.device.events if event.recorded is not None and not event.recorded.landed}
    with pytest.raises(MisuseError, match=r"call computed\(\) first"):
        rig.copier.launch(transfer(2, STORE, [1], [1]))
    rig.copier.before_forward()
    rig.copier.computed()
    waited = [event for event in hung if event.waits and event.recorded is not None]
    rig.copier.launch(transfer(3, STORE, [1], [1]))
    rig.copier.wait([job(3)])

    assert [event for event in hung if event.waits and event.recorded is not None] == waited
    assert results(rig.copier.poll()) == [(1, FAILED), (3, OK)]
    assert not any("again" in finding for finding in rig.device.findings)


def test_a_keyboard_interrupt_leaves_a_copier_that_can_be_closed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches a caller that waits; afterwards close drains as ever, and the verdict is good."""

    def interrupt(_event: FakeEvent) -> None:
        raise KeyboardInterrupt

    rig.copier.launch(transfer(1, STORE, [1], [1]))
    with monkeypatch.context() as patch:
        patch.setattr(FakeEvent, "synchronize", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rig.copier.wait([job(1)])
    rig.copier.close()

    assert results(rig.copier.poll()) == [(1, OK)]


# --- construction ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("nan")])
def test_a_deadline_that_is_none_is_refused(deadline_s: float) -> None:
    cache = KvCache([[torch.zeros(4, 4, dtype=torch.uint8)]])
    with pytest.raises(MisuseError, match="passes at once"):
        TorchCopier(cache, Rows(torch.zeros(4, 4, dtype=torch.uint8)), worker=RANK, deadline_s=deadline_s)


def test_a_cuda_device_wants_pinned_memory() -> None:
    """Said before anything is asked of CUDA."""
    cache = KvCache([[torch.zeros(4, 4, dtype=torch.uint8)]])
    cache.device = torch.device("cuda")
    with pytest.raises(MisuseError, match="give pinned memory"):
        TorchCopier(cache, Rows(torch.zeros(4, 4, dtype=torch.uint8)), worker=RANK)


def test_host_memory_is_made_from_the_rows_of_the_cache() -> None:
    """A cache of two groups, whose pages differ, and the package's own memory: bytes go there and come back."""
    first, second = torch.arange(32, dtype=torch.int32).view(8, 4), torch.arange(16, dtype=torch.uint8).view(8, 2)
    cache = KvCache([[first, first.clone()], [second]])
    with HostMemory(cache.row_bytes, PLACES, pinned=False) as host:
        copier = TorchCopier(cache, host, worker=RANK)
        copier.computed()
        copier.launch(Transfer(job(1), STORE, np.array([1, 2, 5]), np.array([8, 9, 10]), (2, 1)))
        copier.launch(Transfer(job(2), LOAD, np.array([8, 9, 10]), np.array([6, 7, 0]), (2, 1)))
        copier.close()

        assert results(copier.poll()) == [(1, OK), (2, OK)]
        assert torch.equal(first[6:], first[1:3])
        assert torch.equal(second[0], second[5])
        del copier


def test_the_device_is_that_of_the_cache() -> None:
    """CPU tensors get the host's device, which knows the calling thread only; other kinds are refused."""
    host = Rows(torch.zeros(4, 4, dtype=torch.uint8))
    layout = CopyLayout(KvCache([[torch.zeros(4, 4, dtype=torch.uint8)]]), host)
    device = device_for(layout)
    with pytest.raises(MisuseError, match="CPU tensors cannot wait for"):
        device.follow(device.stream("any"), torch.zeros(1))
    with pytest.raises(MisuseError, match="CPU tensors cannot wait for"):
        device.precede(device.event(), torch.zeros(1))
    layout.cache.device = torch.device("meta")
    with pytest.raises(MisuseError, match="a cache on 'meta' cannot be copied"):
        device_for(layout)

    assert isinstance(device, HostDevice)


# --- graphs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["computed", "before_forward", "launch"])
def test_nothing_is_queued_while_a_graph_is_captured(call: str) -> None:
    """It would not run now, and would run with every replay; afterwards all is as before."""
    rig = Rig()
    rig.copier.computed()
    calls = {
        "computed": rig.copier.computed,
        "before_forward": rig.copier.before_forward,
        "launch": lambda: rig.copier.launch(transfer(1)),
    }
    queued = [len(stream.queue) for stream in rig.device.streams]
    rig.device.capturing = True
    with pytest.raises(MisuseError, match="while a CUDA graph is captured"):
        calls[call]()
    rig.device.capturing = False

    assert [len(stream.queue) for stream in rig.device.streams] == queued
    assert not rig.copier.busy()
    rig.copier.launch(transfer(1))
    rig.land_all()
    assert results(rig.copier.poll()) == [(1, OK)]
