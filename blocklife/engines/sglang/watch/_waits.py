"""Ears on the forward pass: for which load its layers wait, and whether each has waited for its part when it reads its pages.

A load is launched layer by layer, and each layer has an event of its own: SGLang's pool waits for it when a layer asks for its
buffers. What is heard are the events themselves, for a layer may ask its counter for another layer, or that for another load.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.watch._calls import given


class LayerWaits:
    """What the forward pass of the planned step has waited for."""

    def __init__(self, ears: Ears, parts: CacheParts) -> None:
        self.is_launching = False
        """Whether that pass has begun."""
        self.consumes = -1
        """The load that it was told to wait for, by its place in the counter of layers; -1 for none."""
        self.unready: Callable[[int], None] = lambda layer: None
        """Called with the first layer that reads its pages and has not waited for its part of what the step waits for."""
        self._expects = -1
        """The load that the step must wait for, until that is known to be so or not."""
        self._waited: list[tuple[int, int]] = []
        """The loads and layers that were waited for in this pass, in their order."""
        self._has_waited = False
        self._first_layer = parts.first_layer
        counter = getattr(parts.controller, "layer_done_counter", None)
        ears.hear(counter, "set_consumer", after=self._begins)
        for load, event in enumerate(getattr(counter, "events", None) or (None,)):
            ears.hear(event, "wait", after=functools.partial(self._waits, load), tells="waits of layers for their loads")
        for name in ("get_key_buffer", "get_value_buffer"):
            is_due = lambda: self.is_launching and self._expects >= 0  # noqa: E731
            ears.hear(parts.pool, name, after=self._reads, while_=is_due, tells="reads of layers")

    def planned(self, load: int) -> None:
        """A step was planned that must wait for this load; -1 for none."""
        self.is_launching, self._expects, self._has_waited, self._waited = False, load, False, []

    def launched(self) -> int:
        """The planned step is past its launch. Returns the load that it should have waited for, and has not; -1 for none."""
        load, self._expects = self._expects, -1
        return -1 if self._has_waited else load

    def has_waited(self, load: int, layers: Collection[int]) -> bool:
        """Whether the pass has waited for these layers of a load: for each by itself, or for the last of them ahead of all."""
        waited = [layer for of, layer in self._waited if of == load >= 0]
        return bool(waited and layers) and (waited[0] >= max(layers) or set(layers) <= set(waited))

    def _begins(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        index = given(args, kwargs, "index")[0]
        self.consumes = index if isinstance(index, int) else -1
        self._waited = []
        self.is_launching = True

    def _waits(self, load: int, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        layer = given(args, kwargs, "layer_index")[0]
        if isinstance(layer, int):
            self._waited.append((load, layer))
            self._has_waited |= load == self._expects

    def _reads(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        layer = given(args, kwargs, "layer_id")[0]
        if not isinstance(layer, int):
            return
        layer -= self._first_layer
        if not any(load == self._expects and at >= layer for load, at in self._waited):
            self.unready(layer)
            self._expects = -1
