"""Copies that another thread launches are as safe as those that the caller launches, however late it is.

Method: the walks of `test_torch_order.py`, over a launcher that the dice move: it runs what it was given one by one, at any
time, and at the latest when somebody waits. Each rule of the file is broken in turn, and the fake device finds it. The thread
itself is tried alone.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="the copier needs torch (pip install torch)")

import torch

from blocklife.copiers.torch import DeviceLostError, KvCache, TorchCopier
from blocklife.copiers.torch._launching import LaunchingDevice, LaunchThread, QueuedEvent, QueuedStream, RunsOut
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.copiers.torch._streams import HostDevice, StreamEvent
from blocklife.errors import MisuseError
from blocklife.ledger import Result, Worker
from blocklife.testing import FakeDevice
from tests.copiers.rig import LOAD, STORE, Rows, transfer
from tests.copiers.test_torch_order import BLOCKS, PLACES, SEEDS, Rig, land_all, walk
from tests.programs import HANGS_S

Work = Callable[[], None]


class Dawdler:
    """A launcher that runs some of what it has whenever something is added, as the dice say, and the rest when it must."""

    def __init__(self, seed: int, eager: float | None = None) -> None:
        self.dice = random.Random(seed)
        self.eager = self.dice.random() if eager is None else eager
        self.work: deque[Work] = deque()

    def put(self, work: Work) -> None:
        self.work.append(work)
        while self.work and self.dice.random() < self.eager:
            self.work.popleft()()

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.work.popleft()()

    def close(self) -> None:
        while self.work:
            self.work.popleft()()


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


class Noted:
    """An event that is waited for."""

    def __init__(self, name: str, waited: list[str], *, fails: bool = False) -> None:
        self.name, self.waited, self.fails = name, waited, fails

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.waited.append(self.name)
        if self.fails:
            raise RuntimeError("the device is lost")


def test_the_oldest_runs_are_waited_for_where_too_many_would_be_out() -> None:
    """As few as make room; an event that raises makes room, too; one job larger than the limit goes alone."""
    out, waited = RunsOut(10), list[str]()
    for name, count in (("a", 4), ("b", 4), ("c", 0)):
        out.make_room(count)
        out.marked(count, Noted(name, waited, fails=name == "a"))
    free = list(waited)
    out.make_room(3)
    one = list(waited)
    out.marked(3, Noted("d", waited))
    out.make_room(99)
    out.make_room(99)

    assert (free, one, waited) == ([], ["a"], ["a", "b", "d"])


def test_a_launcher_waits_on_the_device_and_the_engine_does_not() -> None:
    """With two runs a job and three at most, the second launch makes the launcher wait for the first."""
    launcher, device = lazy(), FakeDevice()
    rig = Rig(device, launcher=launcher)
    rig.copier._device._out._most = 3  # type: ignore[attr-defined]
    for block in (1, 2):
        rig.launch(STORE, [block], [block])
    queued = len(device.named("store").queue)
    launcher.close()

    assert queued == 0
    assert [operation.landed for operation in device.operations] == [True, False]


# --- the thread ---------------------------------------------------------------------------------------------------------


def test_the_thread_runs_what_it_is_given_in_order() -> None:
    """It enters first; whoever waits goes on when it is done; what is queued at the close still runs."""
    ran: list[str] = []
    names: set[str] = set()
    opened = threading.Event()
    thread = LaunchThread(lambda: ran.append("enter"))
    thread.put(lambda: names.add(threading.current_thread().name))
    for word in ("one", "two"):
        thread.put(lambda word=word: ran.append(word))  # type: ignore[misc]
    thread.run_until(lambda: "two" in ran)
    seen = list(ran)
    thread.put(lambda: ran.append("opened" if opened.wait(HANGS_S) else "hangs"))
    thread.put(lambda: ran.append("three"))
    opened.set()
    thread.close()
    thread.close()

    assert names == {"blocklife-launch"}
    assert seen == ["enter", "one", "two"]
    assert ran == ["enter", "one", "two", "opened", "three"]


def test_a_thread_moves_the_bytes_that_its_caller_would() -> None:
    """Two hundred copies between few blocks and places, each of which meets others: the same bytes as one after the other."""
    dice = random.Random(5)
    cache = KvCache([[torch.arange(BLOCKS * 64, dtype=torch.uint8).view(BLOCKS, 64)]])
    rows = torch.full((PLACES, 64), 255, dtype=torch.uint8)
    blocks, places = cache.layers[0].clone(), rows.clone()
    layout = CopyLayout(cache, Rows(rows))
    copier = TorchCopier(cache, Rows(rows), worker=Worker(0), device=LaunchingDevice(HostDevice(layout)))
    copier.computed()
    for number in range(1, 201):
        block, place, store = dice.randrange(BLOCKS), dice.randrange(PLACES), dice.random() < 0.5
        ends = (block, place) if store else (place, block)
        copier.launch(transfer(number, STORE if store else LOAD, [ends[0]], [ends[1]]))
        if store:
            places[place] = blocks[block]
        else:
            blocks[block] = places[place]
    copier.close()

    assert len(copier.poll()) == 200
    assert torch.equal(cache.layers[0], blocks)
    assert torch.equal(rows, places)
