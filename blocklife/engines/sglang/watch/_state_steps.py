"""Ears on what becomes of states within the device: copies from slot to slot, clearing, and the steps that go on from them.

A step is planned first; then its slots are cleared or filled from cached states, on the way into the forward pass. So what
was planned counts as launched only when the engine is past that: when it processes a result, or plans anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts, numbers
from blocklife.engines.sglang.watch._state_parts import StateParts
from blocklife.engines.sglang.watch._steps import StepEars, batch_of, extends, spans_of
from blocklife.watch._calls import given
from blocklife.watch._states import KeptState, StateBook, StateTurn


@frozen(eq=False)
class Planned:
    """A step that was planned, and is not known to be launched."""

    turns: list[StateTurn]
    loads: Sequence[int]
    """Loads that its layers must wait for."""


class StateStepEars:
    """Ears on one scheduler, and on its pool of states."""

    def __init__(
        self, ears: Ears, parts: CacheParts, states: StateParts, book: StateBook, copies: CopyEars, steps: StepEars
    ) -> None:
        self._parts = parts
        self._states = states
        self._book = book
        self._copies = copies
        self._steps = steps
        self._planned_step: Planned | None = None
        self._is_launching = False
        """Whether the forward pass of the planned step has begun."""
        self._consumes = -1
        """The load for which layers wait now, by its place in the counter of layers."""
        self._waited: list[int] = []
        """The layers that were waited for since then, in their order."""
        counter = getattr(parts.controller, "layer_done_counter", None)
        ears.hear(counter, "set_consumer", before=self._begins)
        ears.hear(counter, "wait_until", before=self._waits)
        ears.hear(states.pool, "clear_slots", before=self._clears)
        ears.hear(states.pool, "copy_from", before=self._copies_states)
        ears.hear(parts.scheduler, "get_next_batch_to_run", before=self._plans, after=self._planned)
        ears.hear(parts.scheduler, "process_batch_result", before=self._processed, after=self._ended)

    # --- the forward pass ---------------------------------------------------------------------------------------------------

    def _begins(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        index = given(args, kwargs, "index")[0]
        self._consumes = index if isinstance(index, int) else -1
        self._waited = []
        self._is_launching = True

    def _waits(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        layer = given(args, kwargs, "threshold")[0]
        if self._consumes >= 0 and isinstance(layer, int):
            self._waited.append(layer)

    def _clears(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.cleared(numbers(given(args, kwargs, "indices")[0]))

    def _copies_states(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        source, target = (numbers(each) for each in given(args, kwargs, "src_indices", "dst_indices"))
        loads = self._copies.waited_for(self._consumes, self._book) if self._has_waited() else ()
        self._book.copied(source, target, loads)

    def _has_waited(self) -> bool:
        """Whether all layers with states were waited for: each by itself, when it was computed, or the last ahead of all."""
        layers, waited = self._states.layers, self._waited
        return layers.issubset(waited) or (bool(waited and layers) and waited[0] >= max(layers))

    # --- steps --------------------------------------------------------------------------------------------------------------

    def _plans(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._launched()

    def _planned(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        batch = batch_of(result)
        self._is_launching = False
        if batch is not None:
            loads = self._copies.waited_for(getattr(batch, "hicache_consumer_index", -1), self._book)
            self._planned_step = Planned(self._turns(batch), loads)
        elif self._parts.is_at_rest():
            states = self._states
            self._book.rests(locked=states.locked, kept=states.kept, free=states.free)

    def _processed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        # With overlap a result may be processed between the plan of the next step and its launch.
        if self._is_launching or not self._book.num_in_flight:
            self._launched()
        self._book.computed()

    def _ended(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        step = self._planned_step
        if step is None:
            return
        over = {request.rid for request in getattr(given(args, kwargs, "batch")[0], "reqs", ()) if request.finished()}
        if over:  # their slots are free: what the step does with them is of no use to anybody
            step.turns[:] = [turn for turn in step.turns if turn.request not in over]

    def _launched(self) -> None:
        step, self._planned_step = self._planned_step, None
        if step is not None:
            self._book.launched(step.turns, step.loads if self._has_waited() else ())

    # --- batches ------------------------------------------------------------------------------------------------------------

    def _turns(self, batch: object) -> list[StateTurn]:
        spans, kept = spans_of(batch), self._kept_by(batch)
        table = getattr(self._states.rows, "req_index_to_mamba_index_mapping", None)
        blocks = [] if table is None else numbers(table[[row for _, row, _, _ in spans]])
        return [
            StateTurn(request.rid, self._steps.text_of(request), start, stop, block, kept(at, start, stop))
            for at, ((request, _, start, stop), block) in enumerate(zip(spans, blocks, strict=False))
        ]

    def _kept_by(self, batch: object) -> Callable[[int, int, int], list[KeptState]]:
        """What the layers are to write for the cache: of a request at a place of the batch, with what it starts and ends."""
        is_prompt = extends(batch)
        said = getattr(batch, "mamba_prefill_track_mask_cpu" if is_prompt else "mamba_track_mask_cpu", None)
        mask: list[int] = said if isinstance(said, list) else numbers(getattr(batch, "mamba_track_mask", None))
        if not any(mask):
            return lambda at, start, stop: []
        blocks = numbers(getattr(batch, "mamba_track_indices", None))
        reached = numbers(getattr(batch, "mamba_track_seqlens", None)) if is_prompt else []
        chunk, grid = self._states.chunk, self._states.grid

        def kept(at: int, start: int, stop: int) -> list[KeptState]:
            if not mask[at] or blocks[at] <= 0:
                return []
            if not is_prompt:
                return [KeptState(blocks[at], stop)]
            # As the layers do: the recent inputs behind whole multiples of the grid from the first token of the step on; the
            # state proper behind whole chunks, but behind the last token where that ends one.
            length = reached[at] - start
            recent = start + length // grid * grid
            proper = stop if length % chunk == 0 else start + length // chunk * chunk
            return [KeptState(blocks[at], recent if recent == proper else None)]

        return kept
