"""The torch copier keeps the protocol: bytes arrive, trouble becomes a verdict, and nothing is reported before it is quiet.

Method: on CPU tensors it is held against a naive copier, and a whole replay is run with it under both contracts, every byte
verified. Trouble is made on the fake device, which refuses, hangs and answers with errors when told; time is a number that the
test sets.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
import torch
from attrs import define, field

from blocklife.copiers._executor import Executor
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.copiers.torch._streams import DeviceLostError, HostDevice, device_for
from blocklife.errors import MisuseError
from blocklife.ledger.records import ON_DEVICE, Direction, Plan, Transfer
from blocklife.testing._fake_device import FakeDevice, FakeEvent
from tests.copiers.rig import FAILED, LOAD, OK, PLACES, RANK, STORE, WORDS, Rows, job, on_cpu, results, tensors, transfer

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
    copier = TorchCopier(cache, Rows([torch.from_numpy(host.view(np.uint8))]), worker=RANK, clock=clock)
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


# --- the engine's part ----------------------------------------------------------------------------------------------------


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
            Rows([torch.zeros(PLACES, 4, dtype=torch.uint8)]),
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


@pytest.mark.parametrize("direction", ON_DEVICE)
def test_a_launch_that_does_not_know_what_it_comes_after_is_refused(direction: Direction) -> None:
    """Before the first word of the engine, and between a forward pass and the word about it; nothing has changed then."""
    rig = Rig()
    asked = transfer(1, direction, [1], [1])
    with pytest.raises(MisuseError, match=r"call computed\(\) first"):
        rig.copier.launch(asked)
    rig.copier.computed()
    rig.copier.before_forward()
    with pytest.raises(MisuseError, match=r"job 1\.1: cannot LAUNCH without knowing what to wait for"):
        rig.copier.launch(asked)
    idle = rig.copier.busy()
    rig.copier.computed()
    rig.copier.launch(asked)

    assert not idle
    assert rig.copier.busy()
    assert rig.copier.statistics().num_launched == 1


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
    rig.copier.launch(transfer(1, STORE, [1], [1]))
    with pytest.raises(MisuseError, match="block 16: does not exist"):
        rig.copier.before_forward(blocks=[BLOCKS])
    rig.copier.launch(transfer(2, STORE, [1], [1]))

    assert rig.copier.statistics().num_launched == 2


def test_a_broken_word_of_the_engine_lets_nothing_be_launched(rig: Rig) -> None:
    """If the device refuses to follow the engine, the old word no longer holds."""
    rig.device.engine.refuses = {"record"}
    with pytest.raises(RuntimeError, match="refuses to record"):
        rig.copier.computed()
    with pytest.raises(MisuseError, match=r"call computed\(\) first"):
        rig.copier.launch(transfer(1, STORE, [1], [1]))


# --- completions ----------------------------------------------------------------------------------------------------------


def test_a_job_is_reported_when_its_event_has_passed_and_once(rig: Rig) -> None:
    rig.copier.launch(transfer(1, STORE, [1], [1]))
    rig.copier.launch(transfer(2, STORE, [2], [2]))
    before = rig.copier.poll()
    rig.land_all()

    assert before == []
    assert results(rig.copier.poll()) == [(1, OK), (2, OK)]
    assert rig.copier.poll() == []
    assert not rig.copier.busy()


def test_wait_lands_what_it_must_and_reports_nothing(rig: Rig) -> None:
    """The job and those before it in its direction are quiet; those behind it are left to the device. Polls report."""
    for number in (1, 2):
        rig.copier.launch(transfer(number, STORE, [number], [number]))
    rig.device.named("load").hangs = True
    rig.copier.launch(transfer(3, LOAD, [9], [9]))
    rig.copier.wait([job(1), job(99)])
    rig.copier.wait([job(2), job(1)])
    rig.copier.wait([])

    assert not rig.device.named("store").queue
    assert results(rig.copier.poll()) == [(1, OK), (2, OK)]
    assert rig.copier.busy()


def test_executor_drives_it(rig: Rig) -> None:
    """Stores of a step are launched with the next one, a flush waits, loads follow the forward pass."""
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
    assert (1, OK) in results([*second.completions])
    assert (2, OK) in results([*third.completions])
    assert rig.device.findings == []


# --- trouble --------------------------------------------------------------------------------------------------------------


def a_copy_that_raises(rig: Rig) -> None:
    rig.device.named("store").refuses = {"copy"}
    rig.copier.launch(transfer(1, STORE, [1, 5], [3, 9]))
    rig.device.named("store").refuses = set()


def an_event_that_cannot_be_recorded(rig: Rig) -> None:
    rig.device.named("store").refuses = {"record"}
    rig.copier.launch(transfer(1, STORE, [1, 5], [3, 9]))
    rig.device.named("store").refuses = set()


def an_event_that_answers_with_an_error(rig: Rig) -> None:
    rig.copier.launch(transfer(1, STORE, [1, 5], [3, 9]))
    rig.event_of("store").error = RuntimeError("an illegal address")
    rig.copier.poll()


def a_deadline_that_passes(rig: Rig) -> None:
    rig.copier.launch(transfer(1, STORE, [1, 5], [3, 9]))
    rig.now = 10.0
    rig.copier.poll()


TROUBLES: dict[Callable[[Rig], None], tuple[str, bool]] = {
    a_copy_that_raises: ("the driver refuses to copy", True),
    an_event_that_cannot_be_recorded: ("the driver refuses to record", False),
    an_event_that_answers_with_an_error: ("an illegal address", False),
    a_deadline_that_passes: ("not over after 10 s", False),
}
"""What goes wrong: what is said of it, and whether a poll alone will still report it."""


def names(trouble: Callable[[Rig], None]) -> str:
    return trouble.__name__


@pytest.mark.parametrize("trouble", TROUBLES, ids=names)
def test_a_failed_job_is_suspect_and_not_reported_until_it_is_quiet(trouble: Callable[[Rig], None], rig: Rig) -> None:
    """The verdict stands at once, with the job, its places and the reason; polls say nothing while bytes may move."""
    trouble(rig)
    early = rig.copier.poll()
    (suspect,) = rig.copier.suspect()

    assert early == []
    assert (suspect.job, suspect.direction, suspect.num_bytes) == (job(1), STORE, 8)
    assert (suspect.blocks.tolist(), suspect.places.tolist()) == ([1, 5], [3, 9])
    assert TROUBLES[trouble][0] in suspect.why
    assert suspect.why == rig.copier.statistics().last_error
    assert rig.copier.statistics().num_suspect == 1
    assert rig.copier.busy() is TROUBLES[trouble][1]


@pytest.mark.parametrize("proof", ["later job", "wait", "close", "proven"])
@pytest.mark.parametrize("trouble", TROUBLES, ids=names)
def test_a_failed_job_is_reported_once_it_is_proven_quiet(trouble: Callable[[Rig], None], proof: str, rig: Rig) -> None:
    """By a later event of its direction, by a wait, at the close, or by the word of the engine: FAILED each time, and once."""
    trouble(rig)
    rig.now = 0.0
    match proof:
        case "later job":
            rig.copier.launch(transfer(2, STORE, [7], [7]))
            rig.land_all()
        case "wait":
            rig.copier.wait([job(1)])
        case "close":
            rig.copier.close()
        case _:
            rig.copier.proven()
    reported = results(rig.copier.poll())

    assert reported == [(1, FAILED), (2, OK)][: 1 + (proof == "later job")]
    assert rig.copier.suspect() == ()
    assert not rig.copier.busy()
    assert rig.copier.poll() == []
    assert rig.device.findings == []


def test_an_event_that_answered_with_an_error_is_not_used_again(rig: Rig) -> None:
    """Once the device is proven quiet by other means, the next jobs get other events."""
    rig.copier.launch(transfer(1, STORE, [1], [1]))
    bad = rig.event_of("store")
    bad.error = RuntimeError("an illegal address")
    rig.copier.wait([job(1)])
    for number in range(2, 8):
        rig.copier.launch(transfer(number, STORE, [1], [1]))
        rig.copier.wait([job(number)])

    assert results(rig.copier.poll()) == [(1, FAILED), *((number, OK) for number in range(2, 8))]
    assert rig.copier.suspect() == ()


def test_a_compute_event_that_answers_with_an_error_is_passed_over(rig: Rig) -> None:
    """A later one stands for it: events are pooled as before, and copies go on."""
    rig.event_of("compute").error = RuntimeError("an illegal address")
    for number in range(1, 30):
        rig.copier.computed()
        rig.copier.launch(transfer(number, STORE, [1], [1]))
        rig.copier.wait([job(number)])

    assert rig.copier.statistics().num_events < 8
    assert {result for _, result in results(rig.copier.poll())} == {OK}


@pytest.mark.parametrize("call", ["wait", "copy", "record"])
def test_a_launch_that_raises_raises_nothing(call: str, rig: Rig) -> None:
    """Whatever the driver refuses, the engine's loop hears of it by a completion; what was queued before it comes first."""
    rig.copier.launch(transfer(1, LOAD, [1], [1]))
    rig.device.named("store").refuses = {call}
    rig.copier.launch(transfer(2, STORE, [1, 5], [1, 9]))
    rig.device.named("store").refuses = set()
    rig.copier.launch(transfer(3, STORE, [1], [2]))
    rig.copier.close()

    assert results(rig.copier.poll()) == [(1, OK), (2, FAILED), (3, OK)]
    assert rig.device.findings == []


def test_a_launch_of_which_nothing_was_queued_is_reported_by_the_next_poll(rig: Rig) -> None:
    """A refused wait comes before the copy: no byte is under way, so nothing is suspect."""
    rig.device.named("store").refuses = {"wait"}
    rig.copier.launch(transfer(1, STORE, [1], [1]))

    assert rig.copier.suspect() == ()
    assert results(rig.copier.poll()) == [(1, FAILED)]


def test_a_job_in_time_is_not_failed(rig: Rig) -> None:
    """Just before its deadline a job is as good as ever; a job behind one that hangs is judged by its own."""
    rig.copier.launch(transfer(1, STORE, [1], [1]))
    rig.now = 5.0
    rig.copier.launch(transfer(2, STORE, [2], [2]))
    rig.now = 9.9
    rig.copier.poll()
    in_time = rig.copier.suspect()
    rig.now = 10.0
    rig.copier.poll()
    (first,) = rig.copier.suspect()
    busy = rig.copier.busy()
    rig.land_all()

    assert in_time == ()
    assert first.job == job(1)
    assert busy
    assert results(rig.copier.poll()) == [(1, FAILED), (2, OK)]


@pytest.mark.parametrize("call", ["wait", "close"])
def test_wait_never_returns_without_proof(call: str, rig: Rig) -> None:
    """On a device that can prove nothing it raises; the job stays suspect until the engine says that all is quiet."""
    rig.copier.launch(transfer(1, STORE, [1], [1]))
    rig.device.named("store").hangs = True
    with pytest.raises(DeviceLostError, match=r"job 1\.1: cannot be proven quiet"):
        rig.copier.wait([job(1)]) if call == "wait" else rig.copier.close()
    unproven = results(rig.copier.poll()), len(rig.copier.suspect())
    rig.copier.proven()
    rig.copier.close()

    assert unproven == ([], 1)
    assert results(rig.copier.poll()) == [(1, FAILED)]


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
        TorchCopier(cache, Rows([torch.zeros(4, 4, dtype=torch.uint8)]), worker=RANK, deadline_s=deadline_s)


def test_a_cuda_device_wants_pinned_memory() -> None:
    """Said before anything is asked of CUDA."""
    cache = KvCache([[torch.zeros(4, 4, dtype=torch.uint8)]])
    cache.device = torch.device("cuda")
    with pytest.raises(MisuseError, match="give pinned memory"):
        TorchCopier(cache, Rows([torch.zeros(4, 4, dtype=torch.uint8)]), worker=RANK)


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
    host = Rows([torch.zeros(4, 4, dtype=torch.uint8)])
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
