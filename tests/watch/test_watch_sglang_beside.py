"""What lies beside SGLang's pages in the same slots: indices of sparse attention, and the layers of a drafter.

Goal: a copy that leaves a part of it out, or takes it to another place, is named like one of the pages. Method: an operation
with a part that goes along, whose launch a test bends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach
from tests.watch.sglang_fakes import NUM_LAYERS, PAGE, FakeEngine, FakeHostPool, slots_of

TEXT = [*range(100, 100 + 2 * PAGE)]


class Kind(Enum):
    """Kinds of memory, as SGLang's host pools call them."""

    KV = 0
    INDEXER = 1


class Stage:
    """Two pages of a text are stored and loaded, with what lies beside them."""

    def __init__(self) -> None:
        self.engine = engine = FakeEngine()
        self.beside = FakeHostPool()
        engine.host.entries = [SimpleNamespace(name=Kind.INDEXER, host_pool=self.beside)]
        spec = SimpleNamespace(pool_name=Kind.INDEXER, indices_from_pool=Kind.KV)
        vars(engine.tree_cache)["sidecar_pool_specs"] = [spec]
        self.watch: Watch = attach(engine, Options(mode=WatchMode.COUNT))

    def play(self) -> None:
        """Compute the pages, store them and load them."""
        engine, controller = self.engine, self.engine.controller
        engine.take(1, 2)
        engine.compute("first", TEXT, [1, 2])
        engine.host.next = [0, 1]
        controller.write(slots_of([1, 2]), beside=[self._part([1, 2], [0, 1])])
        controller.start_writing()
        engine.land()
        engine.allocator.next = [3, 4]
        controller.load(slots_of([0, 1]), beside=[self._part([3, 4], [0, 1])])
        controller.start_loading()

    def _part(self, device: list[int], host: list[int]) -> object:
        return SimpleNamespace(name=Kind.INDEXER, device_indices=slots_of(device), host_indices=slots_of(host))

    def bend(self, launch: str, change: Callable[[list[Any]], list[Any]]) -> None:
        """Let a launch have other transfers."""
        moves: Any = self.engine.controller.l2_transfer_engine
        submit = getattr(moves, launch)
        setattr(moves, launch, lambda transfers, **more: submit(change(transfers), **more))


def turned(transfers: list[Any]) -> list[Any]:
    """What lies beside the pages goes one page off."""
    parts = vars(transfers[1])
    return [transfers[0], SimpleNamespace(**{**parts, "device_indices": parts["device_indices"][::-1]})]


def drafted(transfers: list[Any]) -> list[Any]:
    """A drafter's layers go along in the pages' own host pool."""
    more = {"is_draft": True, "layer_mapper": lambda layer: NUM_LAYERS if layer == 0 else None}
    return [*transfers, SimpleNamespace(**{**vars(transfers[0]), **more})]


def test_what_lies_beside_the_pages_is_copied_with_them() -> None:
    """Nothing is said, and nothing is named as not followed."""
    stage = Stage()
    stage.play()

    assert stage.watch.counts == {}
    assert stage.watch.left_out == {}
    assert stage.watch.mirror.counts["jobs"] == 1


@pytest.mark.parametrize(("launch", "rule"), [("submit_device_to_host", "I8"), ("submit_host_to_device", "I7")])
def test_copy_that_takes_it_to_another_place_is_named(launch: str, rule: str) -> None:
    """Stored or loaded, each page must go to the same place as its keys and values."""
    stage = Stage()
    stage.bend(launch, turned)
    stage.play()

    assert stage.watch.counts == {rule: 1}


@pytest.mark.parametrize("layer", range(NUM_LAYERS))
def test_layer_that_a_load_leaves_out_is_named(layer: int) -> None:
    """Of the pages, or of what lies beside them."""
    for is_beside in (False, True):
        stage = Stage()
        skips = lambda each, at, of=is_beside, it=stage: at == layer and (each.host_pool is it.beside) is of  # noqa: E731
        vars(stage.engine.controller.l2_transfer_engine)["skips"] = skips
        stage.play()

        assert stage.watch.counts == {"I7": 1}


@pytest.mark.parametrize("is_left_out", [False, True])
def test_layers_of_a_drafter_are_layers_of_the_pages(is_left_out: bool) -> None:
    """A load must bring them, too."""
    stage = Stage()
    stage.bend("submit_host_to_device", drafted)
    skips = lambda each, at: is_left_out and each.is_draft  # noqa: E731
    vars(stage.engine.controller.l2_transfer_engine)["skips"] = skips
    stage.play()

    assert stage.watch.counts == ({"I7": 1} if is_left_out else {})
