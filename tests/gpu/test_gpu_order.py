"""On a device, too, copies come after everybody who was at their places, and each wait is what makes them (I2).

Goal: bytes say it, not bookkeeping. Method: for each row of `WAITS` a scene in which one stream sleeps, with the earlier use
behind it, and the later use is on another stream. With all waits every byte is right, in every run; with that one wait taken
out some are wrong, in every run, because nothing else is in the way of the later use. No wait is without a scene: a GPU has its
own engines for each direction of copies and for kernels, so each pair of uses really runs side by side.

Where there is no GPU the same scenes are played on a fake device that lands what sleeps last: that judges the scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from attrs import frozen

from blocklife.copiers.torch import _order as order
from blocklife.copiers.torch._order import WAITS, Channel, Order, Side, StreamMark, Use, Wait
from blocklife.ledger.records import Result
from tests.gpu.movers import AbsentError
from tests.gpu.play import Play
from tests.gpu.stages import CudaStage, FakeStage, nap, shown

RUNS = 20


@frozen
class Scene:
    """Two uses of one place, of which the earlier is late; everything else is at other places."""

    waiter: Use
    holder: Use
    side: Side
    how: str
    program: Callable[[Play], object]

    @property
    def wait(self) -> Wait:
        """The row that keeps them apart."""
        (row,) = [row for row in WAITS if (row.waiter, row.holder, row.side) == (self.waiter, self.holder, self.side)]
        return row

    def __str__(self) -> str:
        return f"{self.waiter.name} after {self.holder.name} at {self.side.value}, {self.how}"


def stored_before_it_is_computed(play: Play) -> None:
    play.stage.slow(play.stage.engine)
    play.compute(writes={1: "new"})
    play.store([1], [1])


def stored_before_it_is_loaded(play: Play, large: bool) -> None:
    play.stage.slow("bulk 0" if large else "load")
    play.load([2], [1], large=large)
    play.store([1], [3])


def overwritten_in_the_host_before_it_is_loaded(play: Play, large: bool) -> None:
    play.stage.slow("bulk 0" if large else "load")
    play.load([1], [2], large=large)
    play.store([3], [1])


def loaded_before_the_zero_fill(play: Play, large: bool) -> None:
    play.stage.slow(play.stage.engine)
    play.compute(writes={1: "zero"})
    play.load([1], [1], large=large)


def loaded_before_it_is_read(play: Play, large: bool) -> None:
    play.stage.slow(play.stage.engine)
    play.compute(reads=[1])
    play.load([1], [1], large=large)


def loaded_before_it_is_stored(play: Play, large: bool) -> None:
    play.stage.slow("store")
    play.store([1], [2])
    play.load([3], [1], large=large)


def loaded_before_it_is_in_the_host(play: Play, large: bool) -> None:
    play.stage.slow("store")
    play.store([2], [1])
    play.load([1], [3], large=large)


def computed_before_it_is_loaded(play: Play, large: bool) -> None:
    play.stage.slow("bulk 0" if large else "load")
    play.load([2], [1], large=large)
    play.compute(reads=[1])


def computed_before_all_is_loaded(play: Play, large: bool) -> None:
    play.stage.slow("bulk 0" if large else "load")
    play.load([2], [1], large=large)
    play.compute(reads=[1], named=False)


def loaded_before_an_older_load(play: Play, large: bool) -> None:
    play.stage.slow("load" if large else "bulk 0")
    play.load([2], [1], large=not large)
    play.load([3], [1], large=large)


def loaded_before_an_older_large_load(play: Play) -> None:
    play.stage.slow("bulk 0")
    play.load([2], [1], large=True)
    play.load([3], [1], large=True)


def overwritten_before_it_is_stored(play: Play) -> None:
    play.stage.slow("store")
    play.compute(writes={1: "new"}, fenced=[play.store([1], [2])])


def of_loads(use: Use, large: bool) -> tuple[Scene, ...]:
    """The scenes of loads, or of large ones."""

    def scene(waiter: Use, holder: Use, side: Side, how: str, program: Callable[[Play, bool], object]) -> Scene:
        return Scene(waiter, holder, side, how, lambda play: program(play, large))

    return (
        scene(Use.STORE, use, Side.DEVICE, "which writes", stored_before_it_is_loaded),
        scene(Use.STORE, use, Side.HOST, "which reads", overwritten_in_the_host_before_it_is_loaded),
        scene(use, Use.COMPUTE, Side.DEVICE, "which zeroes", loaded_before_the_zero_fill),
        scene(use, Use.COMPUTE, Side.DEVICE, "which reads", loaded_before_it_is_read),
        scene(use, Use.STORE, Side.DEVICE, "which reads", loaded_before_it_is_stored),
        scene(use, Use.STORE, Side.HOST, "which writes", loaded_before_it_is_in_the_host),
        scene(use, Use.LOAD if large else Use.BULK, Side.DEVICE, "which writes", loaded_before_an_older_load),
        scene(Use.COMPUTE, use, Side.DEVICE, "block named", computed_before_it_is_loaded),
        scene(Use.COMPUTE, use, Side.DEVICE, "nothing named", computed_before_all_is_loaded),
    )


SCENES = (
    Scene(Use.STORE, Use.COMPUTE, Side.DEVICE, "which writes", stored_before_it_is_computed),
    Scene(Use.COMPUTE, Use.STORE, Side.DEVICE, "which is fenced", overwritten_before_it_is_stored),
    *of_loads(Use.LOAD, large=False),
    *of_loads(Use.BULK, large=True),
    Scene(Use.BULK, Use.BULK, Side.DEVICE, "which writes", loaded_before_an_older_large_load),
)

DEVICES = [
    pytest.param(("fake", 1 << 8), id="fake"),
    *(
        pytest.param((mover, page), id=f"cuda, {mover}, {page >> 10} KiB", marks=pytest.mark.gpu)
        for mover, page in (
            ("chosen", 1 << 12),
            ("chosen", 1 << 18),
            ("slices", 1 << 16),
            ("batch", 1 << 16),
            ("kernel", 1 << 14),
        )
    ),
]
"""A stage, or the mover that a GPU is to use, and the bytes of a page."""


@pytest.fixture(params=DEVICES)
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """A copier on a device of each kind."""
    mover, page = request.param
    try:
        play = Play(FakeStage() if mover == "fake" else CudaStage(mover), page)
    except AbsentError as absent:
        pytest.skip(str(absent))
    yield play
    play.close()


def played(play: Play, scene: Scene) -> list[str] | None:
    """What is wrong after one run; None if the host was too slow for it to show anything."""
    play.reset()
    scene.program(play)
    in_time = play.stage.asleep()
    wrong = play.wrong()
    return wrong if in_time else None


def runs(play: Play, scene: Scene) -> list[list[str]]:
    """What is wrong after each of so many runs."""
    return [shown(lambda: played(play, scene)) for _ in range(RUNS)]


# --- each wait ------------------------------------------------------------------------------------------------------------


def test_every_wait_has_its_scene() -> None:
    """None of the table is left out."""
    assert {scene.wait for scene in SCENES} == {*WAITS}


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_bytes_are_right_with_all_waits_and_wrong_without_one(
    scene: Scene, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each of twenty runs, both times; what is wrong then is what the scene is about."""
    kept = runs(play, scene)
    monkeypatch.setattr(order, "WAITS", tuple(row for row in WAITS if row is not scene.wait))
    lost = runs(play, scene)
    print(*lost[0], sep="\n")

    assert sum(map(bool, kept)) == 0, kept
    assert sum(map(bool, lost)) == RUNS, lost


# --- events that are recorded again ---------------------------------------------------------------------------------------


def hasty(self: Order, channel: Channel, *rest: object) -> StreamMark:
    """Marks as `Order` does, and gives the event of a store away at once."""
    mark = _HONEST(self, channel, *rest)  # type: ignore[arg-type]
    if channel.use is Use.STORE and mark.event is not None:
        self._free.append(mark.event)
    return mark


def without_doubles(self: Order, mark: StreamMark) -> None:
    """Gives back as `Order` does; an event that was given away is not free twice."""
    _GIVEN_BACK(self, mark)
    self._free = [*dict.fromkeys(self._free)]


_HONEST, _GIVEN_BACK = Order.mark, Order._recycle


def reported_too_early(play: Play) -> bool | None:
    """A store sleeps and a load of other places does not: whether the store is reported while its bytes are not there.

    None if the store awoke meanwhile.
    """
    play.reset()
    play.stage.slow("store")
    store = play.store([1], [2])
    play.load([3], [4])
    play.stage.others()
    reported = [number for number, _ in play.results()]
    there = not play.host_holds(2, "place 2")
    return store.number in reported and not there if play.stage.asleep() else None


def test_an_event_that_was_not_passed_is_not_recorded_again(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded again on another stream it would answer for that one: a store would be over before its bytes are there."""
    honest = [shown(lambda: reported_too_early(play)) for _ in range(RUNS)]
    play.reset()
    monkeypatch.setattr(Order, "mark", hasty)
    monkeypatch.setattr(Order, "_recycle", without_doubles)
    early = [shown(lambda: reported_too_early(play)) for _ in range(RUNS)]

    assert not any(honest)
    assert all(early)


@pytest.mark.gpu
def test_a_wait_is_for_what_the_event_stood_for_when_it_was_asked_for() -> None:
    """CUDA keeps the point, not the event: that one is recorded again while a stream has yet to wait for it shows in no byte.

    So the half of the pool's rule that speaks of those who have yet to wait is kept for devices with one point for each event.
    It cannot be shown here; `test_torch_order` shows it on the fake.
    """
    slow, waiter, idle = (torch.cuda.Stream() for _ in range(3))
    event = torch.cuda.Event()
    written, read = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    right = []
    for run in range(RUNS):
        torch.cuda.synchronize()
        with torch.cuda.stream(slow):
            nap(5.0)
            written.fill_(run + 1)
            event.record()
        with torch.cuda.stream(waiter):
            event.wait()
            read.copy_(written)
        event.record(idle)
        torch.cuda.synchronize()
        right.append(bool((read == run + 1).all()))

    assert right == [True] * RUNS


# --- the engine's own streams and events ----------------------------------------------------------------------------------


def test_a_store_comes_after_each_stream_that_the_engine_has_told_of(play: Play) -> None:
    """Two streams computed, and the copier was told of both, one after the other: the slow one is not forgotten."""
    second = play.stage.another()
    found = []
    for _ in range(RUNS):
        play.reset()
        play.stage.slow(second)
        play.compute(writes={1: "new"}, on=second)
        play.compute(writes={2: "zero"})
        play.store([1, 2], [1, 2])
        found += play.wrong()

    assert found == []


def test_a_store_comes_after_an_event_and_not_after_what_follows_it(play: Play) -> None:
    """Told of an event, the copier stores while the engine's stream is busy with what it was given behind it."""
    wrong = []

    def over() -> bool | None:
        play.reset()
        play.compute(writes={1: "new"}, told=play.stage.event)
        play.stage.slow(play.stage.engine)
        store = play.store([1], [1])
        play.stage.others()
        reported = play.results()
        asleep = play.stage.asleep()
        wrong.extend(play.wrong())
        return (store.number, Result.OK) in reported if asleep else None

    found = [shown(over) for _ in range(RUNS)]

    assert wrong == []
    assert found == [True] * RUNS
