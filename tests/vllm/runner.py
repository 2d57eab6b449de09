"""A model runner without a model: block tables as a worker keeps them, and a forward pass that writes what it should and checks
what it reads.

What is read follows from each group's kind. Full attention: all tokens so far. A sliding window: as many of them as the first
token of the step sees. Mamba: the state at that token, one block. The places of a step's tokens are written first, by all
requests, and then read: a request may share a block with another one that computes it in the same step. States are the other
way round, and ahead of both the state of the last step moves to the block that this step ends in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import define, field, frozen

from tests.proof.drivers.vllm.batch import Output, RequestUpdates
from tests.vllm.device import Memory, Text, Words
from tests.vllm.worlds import GroupSpec

JUNK = np.uint64(0xDEAD)
"""What is computed from a wrong guess."""


@frozen
class Corruption:
    """A forward pass read bytes that are not what the text says."""

    step: int
    rank: int
    request: str
    group: int
    position: int
    """The first token whose place is wrong, or for a state the number of tokens it should cover."""
    block: int
    """0 is the null block: no step should read or write it."""

    def __str__(self) -> str:
        where = f"group {self.group}, token {self.position}, block {self.block}"
        return f"step {self.step}: request {self.request} reads wrong bytes ({where}, rank {self.rank})"


@define(eq=False)
class Row:
    """What a worker knows about one request."""

    name: str
    text: Text
    prompt_tokens: int
    tables: list[list[int]]
    computed: int
    known: int
    """Tokens that are not the model's to say any more."""
    state_index: int | None = None
    """Where in its table the states of the last step begin; None for a request that comes fresh."""
    state_behind: int = 0
    """How many entries behind that its running state is: that of the last guess that was right."""
    kept_from: int = 0
    """From here to *kept_to* the content of groups with keys is there already, and the others are computed once more."""
    kept_to: int = 0
    rejected: dict[int, int] = field(factory=dict)
    """How many guesses were wrong in steps whose output the scheduler has not taken in, by step."""


@frozen
class Turn:
    """One request's part in one step: tokens from *start* to *stop*."""

    row: Row
    start: int
    stop: int
    state_from: int
    """Index of the block with the state at *start*; negative where there is none."""
    moves: bool = True
    """Whether the states of this step begin in another block than those of the last one."""
    guesses: int = 0
    """How many of the tokens were guessed; they come last, and the state after each is in a block of its own."""
    right: int = 0
    """How many of the guesses are what the model says."""

    @property
    def speaks(self) -> bool:
        """Whether the model says a token at the end of the step."""
        return self.stop >= self.row.known


class Batch:
    """The requests of a worker, brought up to date from what the scheduler sends and from nothing else."""

    def __init__(self, groups: Sequence[GroupSpec], texts: dict[str, Text]) -> None:
        self._texts = texts
        self._rows: dict[str, Row] = {}
        self._state_tokens = next((group.block_tokens for group in groups if group.kind == "mamba"), None)
        self._replays = next((group.window or 0 for group in groups if group.kind == "replay"), 0)

    def turns(self, output: Output, guess: Callable[[Row], Sequence[int]] | None = None) -> list[Turn]:
        """Take in one scheduler output. Returns what the requests of this step do; *guess* returns the guesses of one."""
        for name in output.finished_req_ids:
            self._rows.pop(name, None)
        for new in output.scheduled_new_reqs:
            tables = [list(ids) for ids in new.block_ids]
            known = len(getattr(new, "prefill_token_ids", None) or new.prompt_token_ids)
            prompt = len(new.prompt_token_ids)
            text = self._texts[new.req_id]
            self._rows[new.req_id] = row = Row(new.req_id, text, prompt, tables, new.num_computed_tokens, known)
            if self._replays and (first := getattr(new, "replay_start", 0)):
                row.kept_from, row.kept_to = first, first + self._replays
        self._take_cached(output.scheduled_cached_reqs)
        for name in (*(output.preempted_req_ids or ()), *output.scheduled_cached_reqs.resumed_req_ids):
            if name in self._rows:
                self._rows[name].state_index = None
        rows = [(self._rows[name], tokens) for name, tokens in output.num_scheduled_tokens.items()]
        return [self._turn(row, tokens, () if guess is None else guess(row)) for row, tokens in rows]

    def _take_cached(self, cached: RequestUpdates) -> None:
        for at, name in enumerate(cached.req_ids):
            row = self._rows[name]
            ids = cached.new_block_ids[at]
            if name in cached.resumed_req_ids:
                row.rejected.clear()
            wrong = sum(row.rejected.values())
            row.computed = cached.num_computed_tokens[at] - wrong
            row.known = row.prompt_tokens + cached.num_output_tokens[at] - wrong
            if name in cached.resumed_req_ids:
                row.tables = [list(each) for each in ids or ()]
            elif ids is not None:
                for table, more in zip(row.tables, ids, strict=True):
                    table.extend(more)

    def _turn(self, row: Row, tokens: int, guesses: Sequence[int]) -> Turn:
        start, stop, state_from, moves = row.computed, row.computed + tokens, -1, True
        right = next((at for at, token in enumerate(guesses) if token != row.text.token(row.known + at)), len(guesses))
        if (size := self._state_tokens) is not None:
            index = (stop - 1) // size
            state_from = (start - 1) // size if row.state_index is None else row.state_index + row.state_behind
            moves = row.state_index != index
            stays = _kept(stop - len(guesses), right, size) == (right, index)
            row.state_index, row.state_behind = index, 0 if stays else right
        return Turn(row, start, stop, state_from, moves, len(guesses), right)


def _kept(first: int, right: int, size: int) -> tuple[int, int] | None:
    """The state at the end of a block that a step keeps, of those after *first* to *first* + *right* tokens.

    Returns which of them it is, and the index of the block that it is moved to; None if the step reaches no end of a block.
    """
    end = (first + right) // size * size
    return (end - first, end // size - 1) if end >= first else None


@define(eq=False)
class Witness:
    """What the workers saw: how many blocks were compared, and each wrong one once, although it is read in every step."""

    step: Callable[[], int]
    verified: int = 0
    corruptions: list[Corruption] = field(factory=list)
    _seen: set[tuple[int, str, int, int, int]] = field(factory=set)

    def wrong(self, rank: int, turn: Turn, group: int, position: int, index: int, block: int) -> bool:
        """Report a wrong block at this index of a table. Returns whether it is new."""
        key = (rank, turn.row.name, group, index, block)
        if key in self._seen:
            return False
        self._seen.add(key)
        self.corruptions.append(Corruption(self.step(), rank, turn.row.name, group, position, block))
        return True


class Forward:
    """The forward pass on one worker's memory."""

    def __init__(self, groups: Sequence[GroupSpec], memory: Memory, rank: int, witness: Witness) -> None:
        self._attention = [(at, group) for at, group in enumerate(groups) if group.kind not in ("mamba", "ring")]
        self._rings = [(at, group) for at, group in enumerate(groups) if group.kind == "ring"]
        self._states = [(at, group) for at, group in enumerate(groups) if group.kind == "mamba"]
        self._memory = memory
        self._rank = rank
        self._witness = witness
        self.looks_ahead = False
        """Whether what layers of a drafter keep of a token is computed from the token behind it as well, and compared so."""
        self.verified = 0
        self.corrupt = 0
        self.touched: set[int] = set()
        """The blocks that the last step has read or written."""

    def run(self, turns: Sequence[Turn]) -> None:
        """Compute one step."""
        self.touched.clear()
        for at, group in self._states:
            for turn in turns:
                self._carry_state(turn, at, group)
        for turn in turns:
            for at, group in self._rings:
                self._turn_ring(turn, at, group)
            for at, group in self._attention:
                self._write(turn, at, group)
            for at, group in self._states:
                self._write_state(turn, at, group)
        for turn in turns:
            for at, group in self._attention:
                self._read(turn, at, group)

    def _rows(self, table: list[int], group: GroupSpec, first: int, last: int) -> tuple[list[int], Words]:
        """Blocks *first* to *last* of a table, and their words, one row a token. What is missing counts as the null block."""
        ids = table[first:last]
        ids += [0] * (last - first - len(ids))
        self.touched.update(ids)
        return ids, self._memory.device[ids].reshape(len(ids) * group.block_tokens, -1)

    def _prints(self, turn: Turn, at: int, group: GroupSpec, start: int) -> Words:
        """What the places of a request's tokens hold, from *start* to the end of the step."""
        ahead = int(self.looks_ahead and group.drafter)
        return turn.row.text.prints(at, start + ahead, turn.stop + ahead) ^ self._memory.salt

    def _write(self, turn: Turn, at: int, group: GroupSpec) -> None:
        tokens = group.block_tokens
        start = turn.start if group.kind == "replay" else max(turn.start, turn.row.kept_to)
        if start >= turn.stop:
            return
        first, last = start // tokens, -(-turn.stop // tokens)
        ids, rows = self._rows(turn.row.tables[at], group, first, last)
        prints = self._prints(turn, at, group, start)
        rows[start - first * tokens : turn.stop - first * tokens] = prints[:, None]
        self._memory.device[ids] = rows.reshape(len(ids), -1)
        for index in (index for index, block in enumerate(ids) if not block):
            self._wrong(turn, at, (first + index) * tokens, first + index, 0)

    def _read(self, turn: Turn, at: int, group: GroupSpec) -> None:
        tokens = group.block_tokens
        start = 0 if group.window is None else max(0, turn.start - group.window + 1)
        if group.kind == "local" and group.window is not None:
            start = turn.start // group.window * group.window
        if group.kind == "replay":
            start = max(start, turn.row.kept_from)
        first, last = start // tokens, -(-turn.stop // tokens)
        ids, rows = self._rows(turn.row.tables[at], group, first, last)
        prints = self._prints(turn, at, group, start)
        wrong = np.zeros(len(rows), dtype=np.bool_)
        here = slice(start - first * tokens, turn.stop - first * tokens)
        wrong[here] = (rows[here] != prints[:, None]).any(axis=1)
        self._count(len(ids))
        if wrong.any():
            for index in np.flatnonzero(wrong.reshape(-1, tokens).any(axis=1)).tolist():
                token = int(np.flatnonzero(wrong[index * tokens : (index + 1) * tokens])[0])
                self._wrong(turn, at, (first + index) * tokens + token, first + index, ids[index])

    def _turn_ring(self, turn: Turn, at: int, group: GroupSpec) -> None:
        """Read the tokens of the ring that are not compressed yet, and write those of the step over the oldest ones."""
        ids, rows = self._rows(turn.row.tables[at], group, 0, 1)
        size, start = group.block_tokens, max(turn.start - turn.start % (group.window or 1), turn.row.kept_from)
        kept = turn.row.text.prints(at, start, turn.start) ^ self._memory.salt
        self._count(1)
        if not ids[0] or (rows[np.arange(start, turn.start) % size] != kept[:, None]).any():
            self._wrong(turn, at, start, 0, ids[0])
        first = max(turn.start, turn.stop - size)
        rows[np.arange(first, turn.stop) % size] = (turn.row.text.prints(at, first, turn.stop) ^ self._memory.salt)[:, None]
        self._memory.device[ids] = rows.reshape(1, -1)

    def _carry_state(self, turn: Turn, at: int, group: GroupSpec) -> None:
        """Move the state of the last step to the block that this step ends in, if that is another one, and check it."""
        if turn.state_from < 0:
            return
        table, target = turn.row.tables[at], (turn.stop - 1) // group.block_tokens
        block = table[turn.state_from] if turn.state_from < len(table) else 0
        self.touched.update((block, table[target] if target < len(table) else 0))
        state = self._memory.device[block]
        self._count(1)
        if not block or (state != turn.row.text.state(at, turn.start) ^ self._memory.salt).any():
            self._wrong(turn, at, turn.start, turn.state_from, block)
        if turn.moves and target != turn.state_from and target < len(table):
            self._memory.device[table[target]] = state

    def _write_state(self, turn: Turn, at: int, group: GroupSpec) -> None:
        """The state after the known tokens, and one after each guess; behind the first wrong one they are junk."""
        table, index = turn.row.tables[at], (turn.stop - 1) // group.block_tokens
        for number in range(turn.guesses + 1):
            tokens = turn.stop - turn.guesses + number
            block = table[index + number] if index + number < len(table) else 0
            self.touched.add(block)
            if not block:
                self._wrong(turn, at, tokens, index + number, 0)
            right = turn.row.text.state(at, tokens) ^ self._memory.salt
            self._memory.device[block] = right if number <= turn.right else JUNK

    def keep_states(self, turns: Sequence[Turn]) -> None:
        """After the step, once it is known which guesses were right: a state at the end of a block moves to that block."""
        for at, group in self._states:
            for turn in turns:
                kept = _kept(turn.stop - turn.guesses, turn.right, group.block_tokens)
                if kept is not None:
                    table, index = turn.row.tables[at], (turn.stop - 1) // group.block_tokens
                    self._memory.device[table[kept[1]]] = self._memory.device[table[index + kept[0]]]

    def _count(self, blocks: int) -> None:
        self.verified += blocks
        self._witness.verified += blocks

    def _wrong(self, turn: Turn, at: int, position: int, index: int, block: int) -> None:
        self.corrupt += self._witness.wrong(self._rank, turn, at, position, index, block)
