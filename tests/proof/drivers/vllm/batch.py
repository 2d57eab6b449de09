"""A forward pass as a device sees it: the block tables of a vLLM worker, and which blocks a step reads and writes.

Rules of this file:

* A worker knows only what the scheduler has sent it: the tables are built from `SchedulerOutput` alone.
* It does not import vLLM; the protocols below describe what it uses, the same in every release.

Theory. Full attention reads every token before it, a sliding window those that its first token sees, Mamba the one state that
the step continues from. A block that was a hit is full, although the request may compute its last token again: that writes the
same bytes, and does not count as a write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from attrs import define, frozen

from blocklife.offload import Geometry, Mamba
from blocklife.testing import Pass
from blocklife.testing.worlds._device import Content


class PoolBlock(Protocol):
    """A block of vLLM's pool."""

    block_id: int


class Status(Protocol):
    """Where a request stands."""

    name: str


class SchedulerRequest(Protocol):
    """A request of vLLM's scheduler."""

    request_id: str
    status: Status
    num_computed_tokens: int
    num_tokens: int
    block_hashes: Sequence[bytes]


class NewRequest(Protocol):
    """A request that is new to a worker, or resumed after it was preempted."""

    req_id: str
    prompt_token_ids: Sequence[int]
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


class RequestUpdates(Protocol):
    """The changes to requests that a worker knows."""

    req_ids: Sequence[str]
    resumed_req_ids: Collection[str]
    new_block_ids: Sequence[tuple[list[int], ...] | None]
    num_computed_tokens: Sequence[int]
    num_output_tokens: Sequence[int]


class BlockCopy(Protocol):
    """A copy from one block to another one, which a worker makes ahead of the forward pass."""

    src_block_id: int
    dst_block_id: int


class Output(Protocol):
    """The parts of vLLM's `SchedulerOutput` that workers use."""

    scheduled_new_reqs: Sequence[NewRequest]
    scheduled_cached_reqs: RequestUpdates
    num_scheduled_tokens: Mapping[str, int]
    finished_req_ids: Collection[str]
    preempted_req_ids: Collection[str] | None
    kv_connector_metadata: object


@define(eq=False)
class WorkerRow:
    """A worker's view of one request."""

    name: str
    num_prompt: int
    tables: list[list[int]]
    computed: int
    known: int
    """The number of tokens that are known, and not sampled."""
    is_fresh: bool = True
    """Whether its first step since its admission is still to come: until then, all its blocks are hits."""
    state_at: int | None = None
    """The position in its table of the last step's state; None while it is fresh."""
    is_out: bool = False
    """Whether it was preempted, and has not come back."""


@frozen
class RequestTurn:
    """One request's part in one step: its tokens from *start* to *stop*."""

    row: WorkerRow
    start: int
    stop: int
    is_fresh: bool
    state_from: int
    """The position in its table of the state at *start*; negative if there is none."""
    says: bool
    """Whether a token is sampled at its end."""


class WorkerBatch:
    """The requests of a worker. *texts* has all tokens that each of them will have."""

    def __init__(self, geometry: Geometry, texts: Mapping[str, str]) -> None:
        self._geometry = geometry
        self._texts = texts
        self._rows: dict[str, WorkerRow] = {}
        sizes = (each.block_tokens for each in geometry.groups if isinstance(each, Mamba))
        self._state_tokens = next(sizes, None)

    def turns(self, output: Output) -> list[RequestTurn]:
        """Process the output of the scheduler. Returns the part of each request in this step."""
        for name in output.finished_req_ids:
            self._rows.pop(name, None)
        for new in output.scheduled_new_reqs:
            known = len(getattr(new, "prefill_token_ids", None) or new.prompt_token_ids)
            tables = [list(ids) for ids in new.block_ids]
            self._rows[new.req_id] = WorkerRow(new.req_id, len(new.prompt_token_ids), tables, new.num_computed_tokens, known)
        cached = output.scheduled_cached_reqs
        for at, name in enumerate(cached.req_ids):
            self._go_on(self._rows[name], cached, at)
        for name in {*(output.preempted_req_ids or ()), *cached.resumed_req_ids}:
            if name in self._rows:
                self._rows[name].state_at = None
                self._rows[name].is_fresh = True
                self._rows[name].is_out = name not in cached.resumed_req_ids
        return [self._turn(self._rows[name], tokens) for name, tokens in output.num_scheduled_tokens.items()]

    def _go_on(self, row: WorkerRow, cached: RequestUpdates, at: int) -> None:
        row.computed = cached.num_computed_tokens[at]
        row.known = row.num_prompt + cached.num_output_tokens[at]
        ids = cached.new_block_ids[at]
        if row.name in cached.resumed_req_ids:
            row.tables = [list(each) for each in ids or ()]
        elif ids is not None:
            for table, more in zip(row.tables, ids, strict=True):
                table.extend(more)

    def _turn(self, row: WorkerRow, tokens: int) -> RequestTurn:
        start, stop, state_from = row.computed, row.computed + tokens, -1
        if self._state_tokens is not None:
            state_from = (start - 1) // self._state_tokens if row.state_at is None else row.state_at
            row.state_at = (stop - 1) // self._state_tokens
        is_fresh, row.is_fresh = row.is_fresh, False
        return RequestTurn(row, start, stop, is_fresh, state_from, says=stop >= row.known)

    def table(self, name: str, group: int) -> list[int]:
        """The blocks of a request in the batch; none of one that was preempted, whose row is taken out."""
        row = self._rows.get(name)
        return [] if row is None or row.is_out else list(row.tables[group])

    # --- what a step touches ------------------------------------------------------------------------------------------------

    def forward(self, output: Output, turns: Iterable[RequestTurn]) -> Pass:
        """The forward pass of a step. New blocks are zeroed ahead of it, and ahead of copies from block to block."""
        copied = {target for _, target in self.block_copies(output)}
        zeroed = [block for block in getattr(output, "new_block_ids_to_zero", None) or () if block not in copied]
        reads: list[tuple[int, Content]] = []
        writes: list[tuple[int, Content]] = [(block, None) for block in zeroed]
        for turn in turns:
            for group, kind in enumerate(self._geometry.groups):
                if not isinstance(kind, Mamba):
                    reads += self._attended(turn, group)
                    writes += self._written(turn, group)
                else:
                    reads += self._state(turn, group)
                    writes.append(
                        (self._block(turn, group, (turn.stop - 1) // kind.block_tokens), self._content(turn, group, turn.stop))
                    )
        # Requests of one step may share a block that one of them computes in it.
        made = set(writes)
        return Pass(tuple(each for each in reads if each not in made), tuple(writes))

    @staticmethod
    def block_copies(output: Output) -> tuple[tuple[int, int], ...]:
        """The copies from block to block that a step begins with; older releases have none."""
        copies: Iterable[BlockCopy] = getattr(output, "kv_cache_block_copies", None) or ()
        return tuple((copy.src_block_id, copy.dst_block_id) for copy in copies)

    def _attended(self, turn: RequestTurn, group: int) -> Iterable[tuple[int, Content]]:
        size = self._geometry.block_tokens[group]
        for position in self._geometry.needed(group, turn.start):
            end = (position + 1) * size
            yield (
                self._block(turn, group, position),
                self._content(turn, group, end if turn.is_fresh else min(turn.start, end)),
            )

    def _written(self, turn: RequestTurn, group: int) -> Iterable[tuple[int, Content]]:
        size = self._geometry.block_tokens[group]
        first = -(-turn.start // size) if turn.is_fresh else turn.start // size
        for position in range(first, -(-turn.stop // size)):
            yield self._block(turn, group, position), self._content(turn, group, min(turn.stop, (position + 1) * size))

    def _state(self, turn: RequestTurn, group: int) -> Iterable[tuple[int, Content]]:
        if turn.state_from >= 0:
            yield self._block(turn, group, turn.state_from), self._content(turn, group, turn.start)

    def _block(self, turn: RequestTurn, group: int, position: int) -> int:
        """The block at a position; a missing one is the null block, whose content is garbage."""
        table = turn.row.tables[group]
        return table[position] if position < len(table) else 0

    def _content(self, turn: RequestTurn, group: int, tokens: int) -> Content:
        return f"{group}:{self._texts[turn.row.name][:tokens]}"
