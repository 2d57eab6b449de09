"""The forward pass of one step, without a model: it checks what it reads, and writes the expected content.

What is read depends on each group's kind. Full attention: all blocks before the step's first token. A sliding window: those in
the window of that token. Mamba: the state at that token, one block. Attention writes the places of the step's tokens; Mamba
writes the whole block of the state at the step's end.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from collections.abc import Sequence as Items

import numpy as np
from attrs import define, field

from blocklife.engines.toy._memory import Ids, Words, WorkerMemory
from blocklife.engines.toy._sequences import RequestSequence, state_fingerprints
from blocklife.errors import InvariantError
from blocklife.groups import FullAttention, Geometry, Mamba
from blocklife.ledger import Ledger
from blocklife.ledger._ids import ID_MASK


@define(eq=False)
class _Gathered:
    """Blocks of many requests and groups, one after another; states between boundaries come last."""

    lives: array[int] = field(factory=lambda: array("q"))
    prints: array[int] = field(factory=lambda: array("Q"))
    states: list[tuple[int, int, int, int]] = field(factory=list)
    """Life, number of the request, token, group."""

    def joined(self) -> tuple[Ids, Words]:
        """All blocks, with their contents."""
        lives, prints = np.array(self.lives, dtype=np.int64), np.array(self.prints, dtype=np.uint64)
        if self.states:
            held, numbers, ends, groups = zip(*self.states, strict=True)
            lives = np.concatenate((lives, np.array(held, dtype=np.int64)))
            prints = np.concatenate((prints, state_fingerprints(numbers, ends, groups)))
        return lives & ID_MASK, prints


class ForwardPass:
    """What one step reads and writes, gathered when its plan is made, once for all workers. Lengths are in words.

    ``read`` blocks are read as a whole; of each ``tail`` block only the first ``tail_words`` are written so far. In each
    ``written`` block the step writes the words from ``starts`` to ``stops``. The contents of each are in ``*_prints``.
    Raises InvariantError if a block table lacks a block that the step needs.
    """

    def __init__(self, batch: Items[RequestSequence], ledger: Ledger, geometry: Geometry, words: int) -> None:
        self._geometry = geometry
        self._words = words
        self._read, self._tail, self._written = _Gathered(), _Gathered(), _Gathered()
        self._tail_words: list[int] = []
        self._starts: list[int] = []
        self._stops: list[int] = []
        # Mamba groups come last: `joined` moves states to the end, and all states have the same start and stop.
        for group in sorted(range(len(geometry.groups)), key=lambda each: isinstance(geometry.groups[each], Mamba)):
            gather = self._step_state if isinstance(geometry.groups[group], Mamba) else self._attend
            for sequence in batch:
                gather(sequence, ledger.requests.table(sequence.name, group), group)
        self.read, self.read_prints = self._read.joined()
        self.tail, self.tail_prints = self._tail.joined()
        self.tail_words = np.array(self._tail_words, dtype=np.int64)
        self.written, self.written_prints = self._written.joined()
        self.starts = np.array(self._starts, dtype=np.int64)
        self.stops = np.array(self._stops, dtype=np.int64)
        if not self.written.all():
            raise InvariantError("a step of the engine writes the null block (a table has no block for a token of the step)")

    def _attend(self, sequence: RequestSequence, table: Sequence[int], group: int) -> None:
        start, words, prints = sequence.position, self._words, sequence.prints[group]
        end, tokens = start + sequence.scheduled, self._geometry.block_tokens[group]
        full, rest = divmod(start, tokens)
        last = -(-end // tokens)
        if len(table) < last:
            raise _too_short(sequence, table, group, last)
        first = 0 if isinstance(self._geometry.groups[group], FullAttention) else self._geometry.needed(group, start).start
        if full > first:
            self._read.lives.extend(table[first:full])
            self._read.prints += prints[first:full]
        if rest:
            self._tail.lives.append(table[full])
            self._tail.prints.append(prints[full])
            self._tail_words.append(rest * words // tokens)
        self._starts.append(rest * words // tokens)
        if more := last - full - 1:
            self._written.lives.extend(table[full:last])
            self._written.prints += prints[full:last]
            self._starts += [0] * more
            self._stops += [words] * more
        else:
            self._written.lives.append(table[full])
            self._written.prints.append(prints[full])
        self._stops.append((end - (last - 1) * tokens) * words // tokens)

    def _step_state(self, sequence: RequestSequence, table: Sequence[int], group: int) -> None:
        if sequence.position:
            self._add_state(self._read, sequence, table, group, sequence.position)
        self._add_state(self._written, sequence, table, group, sequence.position + sequence.scheduled)
        self._starts.append(0)
        self._stops.append(self._words)

    def _add_state(self, where: _Gathered, sequence: RequestSequence, table: Sequence[int], group: int, token: int) -> None:
        """Add the block of the state after so many tokens; at a block boundary its content is that of the block's key."""
        tokens = self._geometry.block_tokens[group]
        position = (token - 1) // tokens
        if len(table) <= position:
            raise _too_short(sequence, table, group, position + 1)
        if token % tokens:
            where.states.append((table[position], sequence.number, token, group))
        else:
            where.lives.append(table[position])
            where.prints.append(sequence.prints[group][position])


def _too_short(sequence: RequestSequence, table: Sequence[int], group: int, needed: int) -> InvariantError:
    return InvariantError(f"request {sequence.name}: group {group} has {len(table)} blocks, and its step needs {needed}")


def check_and_write(step: ForwardPass, memory: WorkerMemory, verify: float, rng: np.random.Generator) -> tuple[int, int]:
    """Run a step on one worker's memory. Returns how many blocks were verified, and how many of them were corrupt.

    *verify* is the share of ``read`` blocks that are checked. A block without a single complete word does not count.
    """
    ids, prints = step.read, step.read_prints
    if verify < 1.0:
        chosen = rng.random(len(ids)) < verify
        ids, prints = ids[chosen], prints[chosen]
    verified, corrupt = len(ids), 0
    if len(ids):
        corrupt += len(memory.corrupt(ids, prints))
    if len(step.tail) and verify > 0:
        corrupt += len(memory.corrupt(step.tail, step.tail_prints, step.tail_words))
        verified += int(np.count_nonzero(step.tail_words))
    if len(step.written):
        memory.write(step.written, step.written_prints, step.starts, step.stops)
    return verified, corrupt
