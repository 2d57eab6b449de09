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
from blocklife.engines.sglang.watch._parts import CacheParts, numbers
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


def spans_of(batch: object) -> list[tuple[BatchedRequest, int, int, int]]:
    """The requests of a batch, each with its row of the tables, and the tokens from where and up to where it is computed."""
    rows, stops = (numbers(getattr(batch, name, None)) for name in ("req_pool_indices", "seq_lens_cpu"))
    starts = getattr(batch, "prefix_lens", None) or () if extends(batch) else [stop - 1 for stop in stops]
    return list(zip(getattr(batch, "reqs", ()), rows, starts, stops, strict=False))


class StepEars:
    """Ears on one scheduler."""

    def __init__(self, ears: Ears, parts: CacheParts, book: PageBook, copies: CopyEars, core: CoreEars) -> None:
        self._parts = parts
        self._book = book
        self._copies = copies
        self._core = core
        self._texts: dict[str, tuple[object, Text]] = {}
        self._consumes = -1
        """The load that the next step must wait for, by its place in the counter of layers; -1 for none."""
        scheduler = parts.scheduler
        ears.hear(scheduler, "get_next_batch_to_run", before=self._plans, after=self._planned, is_step=_is_step)
        ears.hear(scheduler, "process_batch_result", before=self._processed, after=self._ended)
        ears.hear(getattr(parts.controller, "layer_done_counter", None), "set_consumer", before=self._told_to_wait)

    def _plans(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._must_wait()

    def _planned(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._copies.look()
        batch = batch_of(result)
        if batch is not None:
            consumes = getattr(batch, "hicache_consumer_index", -1)
            self._book.launched(self._turns(batch), self._copies.waited_for(consumes, self._book))
            self._consumes = consumes
        elif self._parts.is_at_rest():
            self._texts.clear()
            parts = self._parts
            self._book.rests(locked=parts.locked, kept=parts.kept, free=parts.free, host_locked=self._core.host_locked)
        else:
            waiting = getattr(self._parts.scheduler, "waiting_queue", ())
            self._book.stands_still([getattr(each, "rid", "") for each in waiting])

    def _processed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._must_wait()
        self._book.computed()

    def _ended(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for request in getattr(given(args, kwargs, "batch")[0], "reqs", ()):
            if request.finished():
                self._texts.pop(request.rid, None)
                self._book.ended(request.rid)
        while len(self._texts) > NUM_TEXTS:
            self._texts.pop(next(iter(self._texts)))

    def _told_to_wait(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if given(args, kwargs, "index")[0] == self._consumes:
            self._consumes = -1

    def _must_wait(self) -> None:
        consumes, self._consumes = self._consumes, -1
        if consumes >= 0:
            self._book.unwaited(self._copies.waited_for(consumes, self._book))

    # --- batches ------------------------------------------------------------------------------------------------------------

    def _turns(self, batch: object) -> list[PageTurn]:
        page, table = self._parts.page, getattr(self._parts.rows, "req_to_token", None)
        turns: list[PageTurn] = []
        if table is None:
            return turns
        for request, row, start, stop in spans_of(batch):
            tokens = numbers(table[row, :stop:page])
            blocks = [token // page for token in tokens]
            astray = None if page == 1 else _astray(numbers(table[row, start:stop]), start, blocks, page)
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


def seed_of(owner: object) -> tuple[object, ...] | None:
    """What keeps the content of requests or keys apart, whatever their tokens; None if nothing does."""
    found = tuple(getattr(owner, name, None) or None for name in ("extra_key", "cache_salt"))
    return found if any(found) else None


def _is_step(planned: object) -> bool:
    return batch_of(planned) is not None
