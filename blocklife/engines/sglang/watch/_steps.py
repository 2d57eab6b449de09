"""Ears on SGLang's scheduler: which requests each step computes, from which pages it reads, and what it does with states.

A request's row of the tables says which slots it has; its tokens say what should be in them. The step is launched right after
the scheduler has made its batch, and the engine has its result when it processes it.

*States.* A step is planned first; then slots of states are cleared or filled from cached states, on the way into the forward
pass. So what was planned of states counts as launched only when the engine is past that: when it processes a result, or plans
anew.

*Waits.* A load is launched layer by layer, and each layer has an event of its own: SGLang's pool waits for it when a layer asks
for its buffers. What is heard are the events themselves, for a layer may ask its counter for another layer, or that for another
load.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from attrs import frozen

from blocklife.engines.sglang.watch._copies import Acknowledged, CopyEars
from blocklife.engines.sglang.watch._memory import FollowedMemory
from blocklife.engines.sglang.watch._parts import CacheParts, StateParts, seed_of
from blocklife.engines.sglang.watch._reading import numbers
from blocklife.engines.sglang.watch._storage import StorageEars
from blocklife.engines.sglang.watch._tree import CoreEars
from blocklife.watch import Ears, HeardCall, KeptState, PageBook, PageTurn, StateTurn, Text, Watch

NUM_TEXTS = 1024
"""How many texts are kept; one that is dropped, though its request goes on, is read anew."""


def batch_of(planned: object) -> object:
    """The batch of a plan; older releases return the batch itself."""
    return getattr(planned, "batch_to_run", planned)


class BatchedRequest(Protocol):
    """A request of SGLang."""

    rid: str


def extends(batch: object) -> bool:
    """Whether a batch computes parts of prompts, and not one token of each answer."""
    mode = getattr(batch, "forward_mode", None)
    return mode is not None and bool(mode.is_extend())


def spans_of(batch: object) -> list[tuple[BatchedRequest, int, int]]:
    """The requests of a batch, each with the tokens from where and up to where it is computed."""
    stops = numbers(getattr(batch, "seq_lens_cpu", None))
    starts = getattr(batch, "prefix_lens", None) or () if extends(batch) else [stop - 1 for stop in stops]
    return list(zip(getattr(batch, "reqs", ()), starts, stops, strict=False))


def _row_of(request: object) -> int | None:
    """The row of the tables that a request has, as it says itself."""
    found = getattr(getattr(request, "kv", request), "req_pool_idx", None)
    return found if isinstance(found, int) else None


class LayerWaits:
    """What the forward pass of the planned step has waited for."""

    def __init__(self, ears: Ears, parts: CacheParts) -> None:
        self.is_launching = False
        """Whether that pass has begun."""
        self.consumes = -1
        """The load that it was told to wait for, by its place in the counter of layers; -1 for none."""
        self.unready: Callable[[int, int], None] = lambda load, layer: None
        """Called with what the step waits for, and the first layer that reads its pages and has not waited for its part."""
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

    def _begins(self, call: HeardCall) -> None:
        index = call.given("index")[0]
        self.consumes = index if isinstance(index, int) else -1
        self._waited = []
        self.is_launching = True

    def _waits(self, load: int, call: HeardCall) -> None:
        layer = call.given("layer_index")[0]
        if isinstance(layer, int):
            self._waited.append((load, layer))
            self._has_waited |= load == self._expects

    def _reads(self, call: HeardCall) -> None:
        layer = call.given("layer_id")[0]
        if not isinstance(layer, int):
            return
        layer -= self._first_layer
        if not any(load == self._expects and at >= layer for load, at in self._waited):
            self.unready(self._expects, layer)
            self._expects = -1


@frozen(eq=False)
class PlannedStates:
    """What a step that was planned does with states."""

    turns: list[StateTurn]
    load: int
    """What its layers must wait for, by its place in the counter of layers; -1 for nothing."""
    jobs: Sequence[int]
    """The jobs of that load."""


class StepEars:
    """Ears on one scheduler, and on its pool of states if there is one."""

    def __init__(self, watch: Watch, parts: CacheParts, copies: CopyEars, core: CoreEars) -> None:
        self._watch, ears = watch, watch.ears
        self._reading = parts.reading
        self._parts = parts
        self._pages = parts.pages.book
        self._paged = parts.paged
        self._states = parts.states
        self._copies = copies
        self._waits = waits = LayerWaits(ears, parts)
        parts.pages.host_locked, parts.pages.slots_rest = core.host_locked, StorageEars(ears, parts).rests
        self._texts: dict[str, tuple[object, Text]] = {}
        self._rows: list[int] = []
        """The rows of the tables that the requests of the planned step have."""
        self._waited = deque[list[Acknowledged]]()
        """What each step in flight waits for."""
        self._planned_states: PlannedStates | None = None
        """What the planned step does with states, until it is known to be launched."""
        waits.unready = self._unready
        scheduler = parts.scheduler
        ears.hear(scheduler, "get_next_batch_to_run", before=self._plans, after=self._planned, tells="steps")
        ears.hear(scheduler, "process_batch_result", before=self._processed, after=self._ended)
        if self._states is not None:
            ears.hear(self._states.pool, "clear_slots", after=self._clears)
            ears.hear(self._states.pool, "copy_from", after=self._copies_states)

    def _plans(self, call: HeardCall) -> None:
        self._launched_states()
        self._launched()

    def _planned(self, call: HeardCall) -> None:
        batch = batch_of(call.result)
        turns = {} if batch is None else self._turns(batch)
        self._reading.report()
        for memory in self._parts.memories:
            memory.book.counted(memory)
        self._copies.look()
        load: int = getattr(batch, "hicache_consumer_index", -1)
        self._waits.planned(load)
        if batch is not None:
            self._waited.append(self._copies.used(load))
            for memory in self._paged:
                memory.book.launched(turns.get(memory, ()), self._copies.waited_for(load, memory.book))
            if self._states is not None:
                jobs = self._copies.waited_for(load, self._states.memory.book)
                self._planned_states = PlannedStates(self._state_turns(self._states, batch), load, jobs)
        elif self._parts.is_at_rest():
            self._texts.clear()
            for memory in self._parts.memories:
                memory.book.rests(memory)
        else:
            waiting = getattr(self._parts.scheduler, "waiting_queue", ())
            self._pages.stands_still([getattr(each, "rid", "") for each in waiting])
        if batch is not None:
            self._watch.step()

    def _processed(self, call: HeardCall) -> None:
        self._reading.report()
        # With overlap a result may be processed between the plan of the next step and its launch.
        if self._states is not None:
            book = self._states.memory.book
            if self._waits.is_launching or not book.num_in_flight:
                self._launched_states()
            book.computed()
        if self._waits.is_launching or self._pages.num_in_flight == 1:
            self._launched()
        for memory in self._paged:
            memory.book.computed()
        if self._waited:
            self._copies.has_result(self._waited.popleft())

    def _ended(self, call: HeardCall) -> None:
        over = {request.rid for request in getattr(call.given("batch")[0], "reqs", ()) if request.finished()}
        for name in over:
            self._texts.pop(name, None)
            for memory in self._paged:
                memory.book.ended(name)
        while len(self._texts) > NUM_TEXTS:
            self._texts.pop(next(iter(self._texts)))
        if self._planned_states is not None:  # their slots are free: what the step does with them is of no use to anybody
            turns = self._planned_states.turns
            turns[:] = [turn for turn in turns if turn.request not in over]

    # --- the forward pass ---------------------------------------------------------------------------------------------------

    def _launched(self) -> None:
        load = self._waits.launched()
        if load >= 0:
            self._reading.report()
            self._unready(load)

    def _unready(self, load: int, layer: int | None = None) -> None:
        waits = {memory.book: self._copies.waited_for(load, memory.book) for memory in self._paged}
        for book in [book for book, jobs in waits.items() if jobs][:1]:  # one violation says it of all
            book.unwaited(waits[book], layer)

    # --- states -------------------------------------------------------------------------------------------------------------

    def _launched_states(self) -> None:
        """The engine is past the launch of what was planned, with whatever was cleared and copied on the way."""
        step, self._planned_states = self._planned_states, None
        if step is not None and self._states is not None:
            self._reading.report()
            has_waited = self._waits.has_waited(step.load, self._states.layers)
            self._states.memory.book.launched(step.turns, step.jobs if has_waited else ())

    def _clears(self, call: HeardCall) -> None:
        if self._states is not None:
            self._reading.later(self._states.memory.book.cleared, call.given("indices")[0])

    def _copies_states(self, call: HeardCall) -> None:
        if self._states is not None:
            load, book = self._waits.consumes, self._states.memory.book
            waits = self._copies.waited_for(load, book) if self._waits.has_waited(load, self._states.layers) else ()
            tell = functools.partial(book.copied, waits=waits)
            self._reading.later(tell, *call.given("src_indices", "dst_indices"))

    # --- batches ------------------------------------------------------------------------------------------------------------

    def _turns(self, batch: object) -> dict[FollowedMemory[PageBook], list[PageTurn]]:
        """What a step computes, by the memory in pages that it does so in."""
        page, table = self._parts.pages.page, getattr(self._parts.rows, "req_to_token", None)
        spans = spans_of(batch)
        if table is None:
            return {}
        said = getattr(batch, "req_pool_indices", None)
        rows = [row for request, _, _ in spans if (row := _row_of(request)) is not None]
        if len(rows) < len(spans):
            rows = numbers(said)

        lists: list[list[int]] = []
        for _ in range(2):  # once more where the requests say something else than their batch, which is what the layers go by
            asked: list[object] = []
            for memory in self._paged:
                for row, (_, start, stop) in zip(rows, spans, strict=False):
                    # the slot of the first token of each page, and in pages of several tokens that of each token computed
                    first = _skipped(memory, start) * page
                    both = (table[row, first:stop:page], table[row, start : stop if page > 1 else start])
                    asked += map(memory.places, both)
            found, *lists = self._reading.now(said, *asked)
            if found == rows:
                break
            rows = found
        self._rows = rows
        parts = iter(lists)
        turns: dict[FollowedMemory[PageBook], list[PageTurn]] = {}
        for memory in self._paged:
            turns[memory] = own = []
            for request, start, stop in spans[: len(rows)]:
                skipped = _skipped(memory, start)
                blocks = [0] * skipped + [token // page for token in next(parts)]
                astray = _astray(next(parts), start, blocks, page)
                own.append(PageTurn(request.rid, self._text_of(request), start, stop, blocks, astray, skipped))
        return turns

    def _text_of(self, request: object) -> Text:
        """The text of a request; it grows as the request does."""
        name = getattr(request, "rid", "")
        owner, text = self._texts.get(name, (None, None))
        if owner is not request or text is None:
            text = Text(self._parts.pages.page, seed_of(request), more=functools.partial(_tokens_behind, request))
            self._texts[name] = request, text
        return text

    def _state_turns(self, states: StateParts, batch: object) -> list[StateTurn]:
        table = getattr(self._parts.rows, "req_index_to_mamba_index_mapping", None)
        if table is None:
            return []
        spans, is_prompt, rows = spans_of(batch), extends(batch), self._rows
        said = getattr(batch, "mamba_prefill_track_mask_cpu" if is_prompt else "mamba_track_mask_cpu", None)
        keeps = said if isinstance(said, list) else getattr(batch, "mamba_track_mask", None)
        kept = [keeps, *[getattr(batch, name, None) for name in ("mamba_track_indices", "mamba_track_seqlens")]]
        mask, targets, reached, *slots = self._reading.now(*kept, *[table[row : row + 1] for row in rows])
        turns: list[StateTurn] = []
        for at, ((request, start, stop), (block,)) in enumerate(zip(spans, slots, strict=False)):
            own: list[KeptState] = []
            if any(mask) and mask[at] and targets[at] > 0:
                own.append(_kept(states, targets[at], start, stop, reached[at] if is_prompt else None))
            turns.append(StateTurn(request.rid, self._text_of(request), start, stop, block, own))
        return turns


def _skipped(memory: FollowedMemory[PageBook], start: int) -> int:
    """The pages ahead of all that a step reads which computes from this token on."""
    return 0 if memory.window is None else max(0, start - memory.window) // memory.page


def _astray(slots: Sequence[int], start: int, blocks: Sequence[int], page: int) -> tuple[int, int] | None:
    """The first position from *start* on whose slot of a token is not its place in its page, and that slot."""
    for at, slot in enumerate(slots, start):
        if slot != blocks[at // page] * page + at % page:
            return at, slot
    return None


def _tokens_behind(request: object, count: int) -> Sequence[int]:
    """The tokens of a request behind the first so many, as far as the engine knows them."""
    prompt: Sequence[int] = getattr(request, "origin_input_ids", ())
    answer: Sequence[int] = getattr(request, "output_ids", ())
    if count >= len(prompt):
        return answer[count - len(prompt) :]
    return [*prompt[count:], *answer]


def _kept(states: StateParts, block: int, start: int, stop: int, reached: int | None) -> KeptState:
    """Which state the layers will write for the cache. *reached* is the token of a prompt they are told; None: an answer."""
    if reached is None:
        return KeptState(block, stop)
    # As the layers do: the recent inputs behind whole multiples of the grid from the first token of the step on; the
    # state proper behind whole chunks, but behind the last token where that ends one.
    chunk, grid, length = states.chunk, states.grid, reached - start
    recent = start + length // grid * grid
    proper = stop if length % chunk == 0 else start + length // chunk * chunk
    return KeptState(block, recent if recent == proper else None)
