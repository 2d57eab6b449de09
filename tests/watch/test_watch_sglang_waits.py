"""The watch over SGLang's forward pass: each layer must wait for its own part of the load that its step waits for.

Goal: a layer that reads its pages and has waited for another layer, for another load or for none is named when it reads; every
lawful way to wait is silent. Method: fakes whose layers ask their counter as SGLang's memory does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach
from tests.watch.sglang_fakes import FakeEngine
from tests.watch.test_watch_sglang import LONGER, loaded, served


def watched() -> tuple[FakeEngine, Watch]:
    """An engine whose host has a text, and a watch over it."""
    engine = FakeEngine()
    watch = attach(engine, Options(mode=WatchMode.LOG))
    served(engine)
    engine.free(5, 6, 7, 8, 9)
    return engine, watch


@pytest.mark.parametrize(
    ("waits_for", "layer"),
    [
        (lambda layer: None if layer else 0, 1),
        (lambda layer: 0, 1),
        (lambda layer: layer - 1, 0),
        (lambda layer: None, 0),
    ],
    ids=["one waits for nothing", "all wait for the first", "each waits for the one before", "none waits"],
)
def test_layer_that_has_not_waited_for_its_part_is_i6(waits_for: Callable[[int], int | None], layer: int) -> None:
    """It is named once a step, by its layer and the job of the load."""
    engine, watch = watched()
    engine.pool.waits_for = waits_for
    loaded(engine)

    assert watch.counts == {"I6": 1}
    assert watch.violations[0].what == f"layer {layer} of a step reads, and has not waited for its part of the load, job 3"
    assert watch.lost is None


def test_counter_that_looks_at_another_load_is_i6() -> None:
    """The layers ask for their own parts, and their counter has them wait for the load before."""
    engine, watch = watched()
    counter = engine.controller.layer_done_counter
    counter.wait_until = lambda threshold: counter.events[(counter.consumer_index - 1) % 3].wait(threshold)  # type: ignore[method-assign]
    loaded(engine)

    assert watch.counts == {"I6": 1}


def test_layers_are_numbered_from_the_first_of_their_stage() -> None:
    """A stage of a pipeline has layers from 10 on; a load counts its own."""
    engine = FakeEngine()
    engine.pool.start_layer = 10
    engine.pool.waits_for = lambda layer: layer - 10
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.forward = lambda waits=-1, layers=2: None  # type: ignore[method-assign]
    served(engine)
    producer = engine.load([0, 1, 2, 3], [10, 11, 12, 13])
    engine.take(14)
    engine.step("c", LONGER, [10, 11, 12, 13, 14], 16, waits=producer)
    engine.controller.layer_done_counter.set_consumer(producer)
    for layer in (10, 11):
        engine.pool.get_key_buffer(layer)
    engine.result()

    assert [each.job for each in watch.violations] == [2]  # of the step in `served`, which has no forward pass


@pytest.mark.parametrize(
    "waits_for",
    [lambda layer: layer, lambda layer: 1, lambda layer: layer + 1],
    ids=["its own", "the last", "one further"],
)
def test_layer_that_has_waited_for_as_much_is_lawful(waits_for: Callable[[int], int | None]) -> None:
    """A load is launched layer by layer, so who has waited for a later layer has waited for the earlier ones."""
    engine, watch = watched()
    engine.pool.waits_for = waits_for
    loaded(engine)

    assert watch.counts == {}


def test_pass_that_waits_once_ahead_of_all_layers_is_lawful() -> None:
    """A recorded graph asks for no buffers: it waits for the last layer ahead of its replay."""
    engine, watch = watched()
    producer = engine.load([0, 1, 2, 3], [5, 6, 7, 8])
    engine.take(9)
    engine.pool.waits_for = lambda layer: None
    engine.forward = lambda waits=-1, layers=2: engine.controller.layer_done_counter.set_consumer(waits)  # type: ignore[method-assign]
    engine.step("b", LONGER, [5, 6, 7, 8, 9], 16, waits=producer)
    engine.controller.layer_done_counter.wait_until(1)
    engine.result()

    assert watch.counts == {}


def test_result_between_a_plan_and_its_launch_is_no_launch() -> None:
    """With overlap the engine may process the step before while the planned one has not begun to wait."""
    engine, watch = watched()
    engine.take(10)
    engine.step("a", LONGER[:4], [10])
    producer = engine.load([0, 1, 2, 3], [5, 6, 7, 8])
    engine.take(9)
    forward, engine.forward = engine.forward, lambda waits=-1, layers=2: None  # type: ignore[method-assign]
    engine.step("b", LONGER, [5, 6, 7, 8, 9], 16, waits=producer)
    engine.result()
    assert watch.counts == {}
    forward(producer)
    engine.result()

    assert watch.counts == {}


def test_load_that_has_landed_needs_no_wait() -> None:
    """What the engine has taken note of is there."""
    engine, watch = watched()
    producer = engine.load([0, 1, 2, 3], [5, 6, 7, 8])
    engine.land()
    engine.take(9)
    engine.pool.waits_for = lambda layer: None
    engine.compute("b", LONGER, [5, 6, 7, 8, 9], 16, waits=producer)

    assert watch.counts == {}
