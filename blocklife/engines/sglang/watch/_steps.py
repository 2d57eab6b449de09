"""Ears on SGLang's scheduler: which requests each step computes, and from which pages it reads.

A request's row of the table says which slots it has; its tokens say what should be in them. The step is launched right after
the scheduler has made its batch, and the engine has its result when it processes it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._core import CoreEars
from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts, seed_of
from blocklife.engines.sglang.watch._reading import numbers
from blocklife.engines.sglang.watch._storage import StorageEars
from blocklife.engines.sglang.watch._waits import LayerWaits
from blocklife.watch._calls import given
from blocklife.watch._pages import PageBook, PageTurn
from blocklife.watch._texts import Text

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


class StepEars:
    """Ears on one scheduler."""

    def __init__(
        self,
        ears: Ears,
        parts: CacheParts,
        book: PageBook,
        copies: CopyEars,
        core: CoreEars,
        storage: StorageEars,
        waits: LayerWaits,
    ) -> None:
        self._reading = ears.reading
        self._parts = parts
        self._book = book
        self._copies = copies
        self._core = core
        self._storage = storage
        self._waits = waits
        self._texts: dict[str, tuple[object, Text]] = {}
        self._consumes = -1
        """The load that the planned step must wait for, by its place in the counter of layers; -1 for none."""
        self.rows: list[int] = []
        """The rows of the tables that the requests of the planned step have."""
        waits.unready = self._unready
        scheduler = parts.scheduler
        ears.hear(scheduler, "get_next_batch_to_run", before=self._plans, after=self._planned, is_step=_is_step, tells="steps")
        ears.hear(scheduler, "process_batch_result", before=self._processed, after=self._ended)

    def _plans(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._launched()

    def _planned(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        batch = batch_of(result)
        turns = [] if batch is None else self._turns(batch)
        self._reading.settle()
        self._copies.look()
        self._consumes = getattr(batch, "hicache_consumer_index", -1)
        self._waits.planned(self._consumes)
        if batch is not None:
            self._book.launched(turns, self._copies.waited_for(self._consumes, self._book))
        elif self._parts.is_at_rest():
            self._texts.clear()
            parts = self._parts
            self._book.rests(
                locked=parts.locked,
                kept=parts.kept,
                free=parts.free,
                host_locked=self._core.host_locked,
                slots_rest=self._storage.rests,
            )
        else:
            waiting = getattr(self._parts.scheduler, "waiting_queue", ())
            self._book.stands_still([getattr(each, "rid", "") for each in waiting])

    def _processed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._reading.settle()
        # With overlap a result may be processed between the plan of the next step and its launch.
        if self._waits.is_launching or self._book.num_in_flight == 1:
            self._launched()
        self._book.computed()

    def _ended(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for request in getattr(given(args, kwargs, "batch")[0], "reqs", ()):
            if request.finished():
                self._texts.pop(request.rid, None)
                self._book.ended(request.rid)
        while len(self._texts) > NUM_TEXTS:
            self._texts.pop(next(iter(self._texts)))

    # --- the forward pass ---------------------------------------------------------------------------------------------------

    def _launched(self) -> None:
        load = self._waits.launched()
        if load >= 0:
            self._reading.settle()
            self._book.unwaited(self._copies.waited_for(load, self._book))

    def _unready(self, layer: int) -> None:
        self._book.unwaited(self._copies.waited_for(self._consumes, self._book), layer)

    # --- batches ------------------------------------------------------------------------------------------------------------

    def _turns(self, batch: object) -> list[PageTurn]:
        page, table = self._parts.page, getattr(self._parts.rows, "req_to_token", None)
        spans = spans_of(batch)
        if table is None:
            return []
        said = getattr(batch, "req_pool_indices", None)
        rows = [row for request, _, _ in spans if (row := _row_of(request)) is not None]
        if len(rows) < len(spans):
            rows = numbers(said)

        lists: list[list[int]] = []
        for _ in range(2):  # once more where the requests say something else than their batch, which is what the layers go by
            asked: list[object] = []
            for row, (_, start, stop) in zip(rows, spans, strict=False):
                # the slot of the first token of each page, and in pages of several tokens that of each token that is computed
                asked += (table[row, :stop:page], table[row, start : stop if page > 1 else start])
            found, *lists = self._reading.now(said, *asked)
            if found == rows:
                break
            rows = found
        self.rows = rows
        turns: list[PageTurn] = []
        for at, (request, start, stop) in enumerate(spans[: len(rows)]):
            blocks = [token // page for token in lists[2 * at]]
            astray = _astray(lists[2 * at + 1], start, blocks, page)
            turns.append(PageTurn(request.rid, self.text_of(request), start, stop, blocks, astray))
        return turns

    def text_of(self, request: object) -> Text:
        """The text of a request; it grows as the request does."""
        name = getattr(request, "rid", "")
        owner, text = self._texts.get(name, (None, None))
        if owner is not request or text is None:
            text = Text(self._parts.page, seed_of(request), more=functools.partial(_tokens_behind, request))
            self._texts[name] = request, text
        return text


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


def _is_step(planned: object) -> bool:
    return batch_of(planned) is not None
