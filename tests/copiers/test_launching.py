"""Copies that another thread launches are as safe as those that the caller launches, however late it is.

Method: the walks of `test_torch_order.py`, over a launcher that the dice move: it runs what it was given one by one, at any
time, and at the latest when somebody waits. Each rule of the file is broken in turn, and the fake device finds it. The thread
itself is tried alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import threading
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="the copier needs torch (pip install torch)")

import torch

from blocklife.copiers.torch import DeviceLostError, KvCache, TorchCopier
from blocklife.copiers.torch import _launching as launching
from blocklife.copiers.torch._launching import (
    LaunchingDevice,
    LaunchLane,
    LaunchLanes,
    LaunchThread,
    QueuedEvent,
    QueuedStream,
    RunsOut,
    Work,
)
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.copiers.torch._order import COPYING, NUM_BULK, Use
from blocklife.copiers.torch._streams import HostDevice, StreamEvent
from blocklife.errors import MisuseError
from blocklife.ledger import Result, Worker
from blocklife.testing import FakeDevice
from tests.copiers.rig import LOAD, STORE, Rows, transfer
from tests.copiers.test_torch_order import BLOCKS, FIVE_LAYERS, PLACES, SEEDS, Rig, fails_in_part, land_all, walk, walk_by_layer
from tests.programs import HANGS_S


class Dawdler:
    """A launcher that runs some of what it has whenever something is added, as the dice say, and the rest when it must.

    It takes from any lane whose next work is ready. Where none is, it calls *idle*: a device has to make room.
    """

    def __init__(self, seed: int, eager: float | None = None, idle: Callable[[], object] | None = None) -> None:
        self.dice = random.Random(seed)
        self.eager = self.dice.random() if eager is None else eager
        self.idle = idle
        self.lanes: list[LaunchLane] = []

    def lane(self, *, first: bool = False) -> LaunchLane:
        self.lanes.append(LaunchLane())
        return self.lanes[-1]

    def put(self, lane: LaunchLane, work: Work) -> None:
        lane.works.append(work)
        while self.left() and self.dice.random() < self.eager:
            self.run()

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.run()

    def close(self) -> None:
        while self.left():
            self.run()

    def left(self) -> bool:
        return any(lane.works for lane in self.lanes)

    def run(self) -> None:
        while not (ready := [lane for lane in self.lanes if lane.is_ready()]):
            assert self.idle is not None, "nothing can be launched any more"
            self.idle()
        self.dice.choice(ready).works.popleft().run()


def lazy() -> Dawdler:
    """One that runs nothing before it must."""
    return Dawdler(0, eager=0.0)


# --- walks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_no_walk_finds_a_race(seed: int) -> None:
    """Every job is reported once, all are good, and nobody met anybody."""
    rig = walk(seed, launcher=Dawdler(seed))
    statistics = rig.copier.statistics()

    assert rig.device.findings == []
    assert (statistics.num_launched, statistics.num_failed, statistics.num_suspect) == (rig.num_jobs, 0, 0)
    assert statistics.num_landed == rig.num_jobs


def wait_at_once(self: QueuedStream, event: StreamEvent) -> None:
    assert isinstance(event, QueuedEvent)
    self.inner.wait(event.inner)


BROKEN: dict[str, tuple[type, str, object]] = {
    "a lane goes on before what it waits for was launched": (LaunchLane, "is_ready", lambda self: bool(self.works)),
    "what was not recorded is taken for passed": (QueuedEvent, "owed", False),
    "the engine waits for what was not recorded": (QueuedEvent, "recorded", QueuedEvent.marking),
    "a wait is queued before the launches in front of it": (QueuedStream, "wait", wait_at_once),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_rule_that_is_broken_is_found(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a race, by an event that is recorded too early, or because a job is reported that was not launched."""
    owner, name, broken = BROKEN[case]
    monkeypatch.setattr(owner, name, broken)

    def found(seed: int) -> bool:
        try:
            return bool(walk(seed, launcher=Dawdler(seed)).device.findings)
        except IndexError:  # it waits for what was never queued
            return True

    assert any(found(seed) for seed in SEEDS)


@pytest.mark.parametrize("seed", range(10))
def test_layers_wait_for_their_part_of_a_load_that_is_launched_at_some_time(seed: int) -> None:
    rig = walk_by_layer(seed, 3, Dawdler(seed))

    assert rig.device.findings == []
    assert not rig.copier.busy()


def test_a_load_of_which_one_part_is_not_launched_has_failed() -> None:
    """Whose error comes out of the event behind that part, though the last one says nothing of it."""
    assert fails_in_part(Rig(cache=KvCache(FIVE_LAYERS), launcher=lazy()))


# --- one by one ---------------------------------------------------------------------------------------------------------


def test_a_launch_only_says_what_to_launch() -> None:
    """The stream gets nothing before the launcher runs, and the job is out meanwhile."""
    launcher = lazy()
    rig = Rig(launcher=launcher)
    rig.launch(STORE, [1], [1])
    before = len(rig.device.named("store").queue), rig.poll(), rig.copier.busy()
    launcher.close()
    land_all(rig.device)

    assert before == (0, [], True)
    assert [completion.result for completion in rig.poll()] == [Result.OK]


def test_a_wait_of_the_host_launches_what_it_waits_for() -> None:
    rig = Rig(launcher=lazy())
    job = rig.launch(STORE, [1], [1])
    rig.copier.wait([job])

    assert [completion.job for completion in rig.poll()] == [job]


def test_a_launch_that_raises_is_a_failed_job_and_its_places_stay_busy() -> None:
    """Some of it may be under way: it is quiet when a later event of its direction has passed."""
    launcher = lazy()
    rig = Rig(launcher=launcher)
    rig.device.named("store").refuses = {"copy"}
    first = rig.launch(STORE, [1, 2], [1, 2])
    launcher.close()
    land_all(rig.device)
    early, suspects = rig.poll(), [each.why for each in rig.copier.suspect()]
    rig.device.named("store").refuses = set()
    second = rig.launch(STORE, [3], [3])
    launcher.close()
    land_all(rig.device)

    assert early == []
    assert len(suspects) == 1
    assert "refuses to copy" in suspects[0]
    assert [(each.job, each.result) for each in rig.poll()] == [(first, Result.FAILED), (second, Result.OK)]


def test_a_wait_for_a_later_job_does_not_make_a_failed_one_good() -> None:
    """The event of the later job stands for both, and only the earlier one's own event knows that its copy was not whole."""
    launcher = lazy()
    rig = Rig(launcher=launcher)
    rig.device.named("store").refuses = {"copy"}
    first = rig.launch(STORE, [1, 2], [1, 2])
    launcher.close()
    rig.device.named("store").refuses = set()
    second = rig.launch(STORE, [3], [3])
    rig.copier.wait([second])

    assert [(each.job, each.result) for each in rig.poll()] == [(first, Result.FAILED), (second, Result.OK)]


def test_nothing_moves_behind_a_mark_that_was_not_made() -> None:
    """The store's event was refused: a load into its block would wait for nothing, so it moves nothing and fails."""
    launcher = lazy()
    rig = Rig(launcher=launcher)
    rig.device.named("store").refuses = {"record"}
    store = rig.launch(STORE, [1], [1])
    load = rig.launch(LOAD, [2], [1])
    launcher.close()
    copies = [operation.label for operation in rig.device.operations]
    with pytest.raises(RuntimeError, match="refuses to record"):
        rig.copier.fence([store])
    land_all(rig.device)
    rig.poll()
    rig.copier.proven()

    assert copies == ["store 1"]
    assert rig.device.findings == []
    assert [(each.job, each.result) for each in rig.poll()] == [(store, Result.FAILED), (load, Result.FAILED)]


def test_a_lost_device_is_told_by_a_wait() -> None:
    launcher = lazy()
    rig = Rig(launcher=launcher)
    rig.device.named("store").refuses = {"record"}
    job = rig.launch(STORE, [1], [1])
    rig.device.named("store").hangs = True
    with pytest.raises(DeviceLostError, match="cannot be proven quiet"):
        rig.copier.wait([job])


@pytest.mark.parametrize("call", ["event", "stream", "follows", "copies"])
def test_what_is_not_the_devices_own_is_refused(call: str) -> None:
    inner = FakeDevice()
    device = LaunchingDevice(inner, lazy())
    copies, follows = device.stream("copies"), device.stream("follows", copies=False)
    calls: dict[str, Callable[[], object]] = {
        "event": lambda: copies.record(inner.event()),
        "stream": lambda: device.follow(copies, None),
        "follows": lambda: follows.copy(None, STORE),  # type: ignore[arg-type]
        "copies": lambda: follows.record(inner.event()),
    }
    with pytest.raises(MisuseError, match=r"launching device: .* \("):
        calls[call]()


# --- how much is out ----------------------------------------------------------------------------------------------------


def test_what_is_out_is_limited() -> None:
    """By runs and by bytes; what has landed, or whose event raises, makes room; one part that is more than all goes alone."""
    device = FakeDevice()
    stream = device.stream("one")
    out = RunsOut(10, 100, device.event)

    def launched(runs: int, nbytes: int) -> None:
        stream.kernel("part")
        out.launched(runs, nbytes, stream)

    launched(4, 40)
    launched(4, 40)
    held = [out.has_room(runs, nbytes) for runs, nbytes in ((2, 20), (3, 20), (2, 21), (99, 999))]
    device.land(stream)
    device.land(stream)
    one = [out.has_room(runs, nbytes) for runs, nbytes in ((6, 60), (7, 0))]
    device.events[1].error = RuntimeError("the device is lost")
    lost = out.has_room(99, 999)
    launched(99, 999)

    assert (held, one, lost) == ([True, False, False, False], [True, False], True)
    assert not out.has_room(1, 1)


def test_few_events_stand_for_what_is_out() -> None:
    """One for each sixteenth of it, used again when its point is passed; where none can be had, a later one does."""
    device = FakeDevice()
    stream = device.stream("one")
    out = RunsOut(160, math.inf, device.event)
    rooms = []
    for number in range(1, 2_000):
        rooms.append(out.has_room(1, 1))
        stream.refuses = {"record"} if number == 70 else set()
        out.launched(1, 1, stream)
        land_all(device)

    assert all(rooms)
    assert len(device.events) < 40
    assert device.findings == []


def test_a_lane_without_room_stands_still_and_the_others_and_the_engine_go_on() -> None:
    """With two runs a job and three at most, the second store is launched when the first has landed; a load is before."""
    device = FakeDevice()
    launcher = Dawdler(0, eager=0.0, idle=device.land_any)
    rig = Rig(device, launcher=launcher)
    rig.copier._streams[COPYING[Use.STORE][0]]._out._most = (3, 999)  # type: ignore[attr-defined]
    for block in (1, 2):
        rig.launch(STORE, [block], [block])
    rig.launch(LOAD, [3], [3])
    while any(lane.is_ready() for lane in launcher.lanes):
        launcher.run()
    early = {operation.stream.name: operation.landed for operation in device.operations}
    launcher.close()

    assert early == {"store": False, "load": False}
    assert [operation.stream.name for operation in device.operations][2:] == ["store"]
    assert next(operation.landed for operation in device.operations if operation.stream.name == "store")


# --- small loads and large ones -----------------------------------------------------------------------------------------


def test_lanes_take_turns_and_the_first_goes_before_all() -> None:
    """A turn ends with a part. What is not ready holds up its own lane only."""
    said: list[str] = []

    def say(word: str, *, ready: bool = True, is_part: bool = True) -> Work:
        return Work(lambda: said.append(word), lambda: ready, is_part)

    lanes = LaunchLanes()
    one, two, first = lanes.add(first=False), lanes.add(first=False), lanes.add(first=True)
    one.works += [say("a"), say("b"), say("c")]
    two.works += [say("wait", is_part=False), say("A"), say("B"), say("never", ready=False), say("C")]
    first.works += [say("!", is_part=False), say("!!"), say("!!!")]
    while (work := lanes.take()) is not None:
        work.run()

    assert said == ["!", "!!", "!!!", "a", "wait", "A", "b", "B", "c"]


class Stepper(Dawdler):
    """A launcher that takes as the thread does, when it is told to."""

    def __init__(self) -> None:
        super().__init__(0, eager=0.0)
        self.taking = LaunchLanes()

    def lane(self, *, first: bool = False) -> LaunchLane:
        self.lanes.append(self.taking.add(first=first))
        return self.lanes[-1]

    def run(self) -> None:
        work = self.taking.take()
        assert work is not None, "nothing can be launched any more"
        work.run()


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> tuple[Stepper, Rig]:
    """A launcher and a rig whose parts are one run each; a block has two."""
    monkeypatch.setattr(launching, "PART_RUNS", 1)
    launcher = Stepper()
    return launcher, Rig(launcher=launcher)


def launched(rig: Rig) -> list[str]:
    return [operation.stream.name for operation in rig.device.operations]


@pytest.mark.parametrize("now", [False, True], ids=["small", "needed now"])
def test_no_load_is_launched_behind_more_than_what_was_begun(stepped: tuple[Stepper, Rig], now: bool) -> None:
    """A large load and a store are out in parts; a load that is small, or that a step needs, is launched before all others."""
    launcher, rig = stepped
    rig.copier._large_bytes = rig.cache.row_bytes
    rig.launch(LOAD, [0, 1, 2], [0, 1, 2])
    rig.launch(STORE, [5], [5])
    launcher.run_until(lambda: len(launched(rig)) == 3)
    begun = launched(rig)
    blocks = [3, 4] if now else [3]
    quick = rig.launch(LOAD, blocks, blocks, now=now)
    launcher.run_until(lambda: len(launched(rig)) == 3 + 2 * len(blocks))
    then = launched(rig)[3:]
    rig.device.named("bulk 0").hangs = rig.device.named("store").hangs = True
    launcher.close()
    land_all(rig.device)

    assert set(begun) == {"bulk 0", "store"}
    assert set(then) == {"load"}
    assert launched(rig).count("bulk 0") == 6
    assert [each.job for each in rig.poll()] == [quick]
    assert rig.device.findings == []


def test_large_loads_take_turns_a_part_each(stepped: tuple[Stepper, Rig]) -> None:
    """So the shorter one is out before the longer one, however much that is; the next one goes where the least is out."""
    launcher, rig = stepped
    rig.copier._large_bytes = 0
    rig.launch(LOAD, [0, 1, 2, 3], [0, 1, 2, 3])
    rig.launch(LOAD, [4], [4])
    launcher.close()
    between = launched(rig)
    land_all(rig.device)
    rig.poll()
    for blocks in ([0, 1], [2, 3], [4], [5], [4]):
        rig.launch(LOAD, blocks, blocks)
    launcher.close()
    land_all(rig.device)

    assert between == ["bulk 0", "bulk 1"] * 2 + ["bulk 0"] * 6
    assert launched(rig)[10:].count("bulk 2") == 4  # the last one follows the first of one block
    assert rig.device.findings == []


@pytest.mark.parametrize("now", [False, True])
def test_of_large_loads_no_more_is_out_than_so_many_bytes(now: bool) -> None:
    """The next one is launched when the one before has landed; of those that are needed now as many as there are."""
    device = FakeDevice()
    launcher = Dawdler(0, eager=0.0, idle=device.land_any)
    rig = Rig(device, launcher=launcher)
    host = Rows(torch.zeros(PLACES, rig.cache.row_bytes, dtype=torch.uint8))
    limited = LaunchingDevice(device, launcher, bytes_most=rig.cache.row_bytes)
    rig.copier = TorchCopier(rig.cache, host, worker=Worker(0), device=limited)
    rig.copier._large_bytes = 0
    rig.copier.computed()
    for block in range(BLOCKS):
        rig.launch(LOAD, [block], [block], now=now)
    while any(lane.is_ready() for lane in launcher.lanes):
        launcher.run()
    early = launched(rig)
    launcher.close()

    bulk = [f"bulk {number}" for number in range(NUM_BULK)]
    assert sorted(early) == (["load"] * BLOCKS if now else bulk)
    assert [operation.landed for operation in device.operations[: BLOCKS - NUM_BULK]] == [not now] * (BLOCKS - NUM_BULK)


@pytest.mark.parametrize("word", ["load", "bulk"])
def test_a_load_that_meets_what_is_not_launched_yet_stands_still_and_nothing_else(
    stepped: tuple[Stepper, Rig], word: str
) -> None:
    """A small load into a block of a large one, or the other way round, comes behind all of it; no lane waits for ever."""
    launcher, rig = stepped
    small, large = ([0], [1]), ([3, 4, 5], [1, 2, 3])
    for source, target in (small, large) if word == "bulk" else (large, small):
        rig.launch(LOAD, source, target)
    launcher.close()
    land_all(rig.device)

    assert launched(rig) == (["load"] * 2 + ["bulk 0"] * 6 if word == "bulk" else ["bulk 0"] * 6 + ["load"] * 2)
    assert len(rig.poll()) == 2
    assert rig.device.findings == []


def test_a_part_that_raises_ends_its_copy(stepped: tuple[Stepper, Rig]) -> None:
    """Nothing of it moves any more, the job has failed, and others are launched: on its stream, too."""
    launcher, rig = stepped
    large = rig.launch(LOAD, [0, 1, 2], [0, 1, 2])
    launcher.run_until(lambda: len(launched(rig)) == 1)
    rig.device.named("bulk 0").refuses = {"copy"}
    launcher.run_until(lambda: rig.device.num_copies == 2)
    rig.device.named("bulk 0").refuses = set()
    others = [rig.launch(LOAD, [0, 1, 2], blocks) for blocks in itertools.repeat([3, 4, 5], NUM_BULK)]
    launcher.close()
    land_all(rig.device)

    assert rig.device.num_copies == 2 + 6 * NUM_BULK
    assert [(each.job, each.result) for each in rig.poll()] == [(large, Result.FAILED), *((job, Result.OK) for job in others)]


# --- the thread ---------------------------------------------------------------------------------------------------------


def test_the_thread_runs_what_it_is_given_in_order() -> None:
    """It enters first; whoever waits goes on when it is done; what is queued at the close still runs."""
    ran: list[str] = []
    names: set[str] = set()
    opened = threading.Event()
    thread = LaunchThread(lambda: ran.append("enter"))
    lane = thread.lane()
    thread.put(lane, Work(lambda: names.add(threading.current_thread().name)))
    for word in ("one", "two"):
        thread.put(lane, Work(lambda word=word: ran.append(word)))  # type: ignore[misc]
    thread.run_until(lambda: "two" in ran)
    seen = list(ran)
    thread.put(lane, Work(lambda: ran.append("opened" if opened.wait(HANGS_S) else "hangs")))
    thread.put(lane, Work(lambda: ran.append("three")))
    opened.set()
    thread.close()
    thread.close()

    assert names == {"blocklife-launch"}
    assert seen == ["enter", "one", "two"]
    assert ran == ["enter", "one", "two", "opened", "three"]


def test_the_thread_waits_for_room_and_launches_what_comes_meanwhile() -> None:
    """What is not ready holds up its own lane; the thread ends when that has run, too."""
    ran: list[str] = []
    room = threading.Event()
    thread = LaunchThread(lambda: None)
    slow, quick = thread.lane(), thread.lane(first=True)
    thread.put(slow, Work(lambda: ran.append("slow"), room.is_set))
    thread.put(quick, Work(lambda: ran.append("quick")))
    thread.run_until(lambda: bool(ran))
    seen = list(ran)
    room.set()
    thread.close()

    assert (seen, ran) == (["quick"], ["quick", "slow"])


def test_a_thread_moves_the_bytes_that_its_caller_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred copies between few blocks and places, each of which meets others: the same bytes as one after the other.

    Loads of more than one block are large ones, some are needed now, and each run is a part of its own.
    """
    monkeypatch.setattr(launching, "PART_RUNS", 1)
    dice = random.Random(5)
    cache = KvCache([[torch.arange(BLOCKS * 64, dtype=torch.uint8).view(BLOCKS, 64)]])
    rows = torch.full((PLACES, 64), 255, dtype=torch.uint8)
    blocks, places = cache.layers[0].clone(), rows.clone()
    layout = CopyLayout(cache, Rows(rows))
    copier = TorchCopier(cache, Rows(rows), worker=Worker(0), device=LaunchingDevice(HostDevice(layout)))
    copier._large_bytes = 64
    copier.computed()
    for number in range(1, 201):
        count, store = dice.randint(1, 3), dice.random() < 0.5
        some_blocks, some_places = dice.sample(range(BLOCKS), count), dice.sample(range(PLACES), count)
        with copier.needed_now() if dice.random() < 0.2 else contextlib.nullcontext():
            ends = (some_blocks, some_places) if store else (some_places, some_blocks)
            copier.launch(transfer(number, STORE if store else LOAD, *ends))
        if store:
            places[some_places] = blocks[some_blocks]
        else:
            blocks[some_blocks] = places[some_places]
    copier.close()

    assert len(copier.poll()) == 200
    assert torch.equal(cache.layers[0], blocks)
    assert torch.equal(rows, places)
