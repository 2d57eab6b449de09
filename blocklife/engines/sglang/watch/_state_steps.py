"""Ears on what becomes of states within the device: copies from slot to slot, clearing, and the steps that go on from them.

A step is planned first; then its slots are cleared or filled from cached states, on the way into the forward pass. So what
was planned counts as launched only when the engine is past that: when it processes a result, or plans anew.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from attrs import frozen

from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.engines.sglang.watch._state_parts import StateParts
from blocklife.engines.sglang.watch._steps import StepEars, batch_of, extends, spans_of
from blocklife.engines.sglang.watch._waits import LayerWaits
from blocklife.watch._calls import given
from blocklife.watch._states import KeptState, StateBook, StateTurn


@frozen(eq=False)
class Planned:
    """A step that was planned, and is not known to be launched."""

    turns: list[StateTurn]
    load: int
    """What its layers must wait for, by its place in the counter of layers; -1 for nothing."""
    jobs: Sequence[int]
    """The jobs of that load."""


class StateStepEars:
    """Ears on one scheduler, and on its pool of states."""

    def __init__(
        self,
        ears: Ears,
        parts: CacheParts,
        states: StateParts,
        book: StateBook,
        copies: CopyEars,
        steps: StepEars,
        waits: LayerWaits,
    ) -> None:
        self._reading = ears.reading
        self._parts = parts
        self._states = states
        self._book = book
        self._copies = copies
        self._steps = steps
        self._waits = waits
        self._planned_step: Planned | None = None
        ears.hear(states.pool, "clear_slots", after=self._clears)
        ears.hear(states.pool, "copy_from", after=self._copies_states)
        ears.hear(parts.scheduler, "get_next_batch_to_run", before=self._plans, after=self._planned)
        ears.hear(parts.scheduler, "process_batch_result", before=self._processed, after=self._ended)

    # --- within the device --------------------------------------------------------------------------------------------------

    def _clears(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._reading.later(self._book.cleared, given(args, kwargs, "indices")[0])

    def _copies_states(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        load = self._waits.consumes if self._has_waited(self._waits.consumes) else -1
        waits = self._copies.waited_for(load, self._book)
        tell = functools.partial(self._book.copied, waits=waits)
        self._reading.later(tell, *given(args, kwargs, "src_indices", "dst_indices"))

    def _has_waited(self, load: int) -> bool:
        return self._waits.has_waited(load, self._states.layers)

    # --- steps --------------------------------------------------------------------------------------------------------------

    def _plans(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._launched()

    def _planned(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        batch = batch_of(result)
        if batch is not None:
            load = getattr(batch, "hicache_consumer_index", -1)
            self._planned_step = Planned(self._turns(batch), load, self._copies.waited_for(load, self._book))
        elif self._parts.is_at_rest():
            states = self._states
            self._book.rests(locked=states.locked, kept=states.kept, free=states.free)

    def _processed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._reading.settle()
        # With overlap a result may be processed between the plan of the next step and its launch.
        if self._waits.is_launching or not self._book.num_in_flight:
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
            self._reading.settle()
            self._book.launched(step.turns, step.jobs if self._has_waited(step.load) else ())

    # --- batches ------------------------------------------------------------------------------------------------------------

    def _turns(self, batch: object) -> list[StateTurn]:
        table = getattr(self._states.rows, "req_index_to_mamba_index_mapping", None)
        if table is None:
            return []
        spans, is_prompt, rows = spans_of(batch), extends(batch), self._steps.rows
        said = getattr(batch, "mamba_prefill_track_mask_cpu" if is_prompt else "mamba_track_mask_cpu", None)
        keeps = said if isinstance(said, list) else getattr(batch, "mamba_track_mask", None)
        kept = [keeps, *[getattr(batch, name, None) for name in ("mamba_track_indices", "mamba_track_seqlens")]]
        mask, targets, reached, *slots = self._reading.now(*kept, *[table[row : row + 1] for row in rows])
        turns: list[StateTurn] = []
        for at, ((request, start, stop), (block,)) in enumerate(zip(spans, slots, strict=False)):
            own: list[KeptState] = []
            if any(mask) and mask[at] and targets[at] > 0:
                own.append(self._kept(targets[at], start, stop, reached[at] if is_prompt else None))
            turns.append(StateTurn(request.rid, self._steps.text_of(request), start, stop, block, own))
        return turns

    def _kept(self, block: int, start: int, stop: int, reached: int | None) -> KeptState:
        """What the layers are to write for the cache, by what they are told of a prompt (*reached*), or behind an answer."""
        if reached is None:
            return KeptState(block, stop)
        # As the layers do: the recent inputs behind whole multiples of the grid from the first token of the step on; the
        # state proper behind whole chunks, but behind the last token where that ends one.
        chunk, grid, length = self._states.chunk, self._states.grid, reached - start
        recent = start + length // grid * grid
        proper = stop if length % chunk == 0 else start + length // chunk * chunk
        return KeptState(block, recent if recent == proper else None)
