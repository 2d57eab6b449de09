"""The lives of the blocks that a watch follows, and the states in which they are.

Two kinds that agree in every life and every state. `LedgerLives` tells a ledger of each hand-out, hold and release, so that
its tables judge them and a recording has them; `PlainLives` does the same to three columns, where nobody asks for either. No
rule of the watch needs more than they share: the state, the epoch and the group of each block.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from attrs import define, field

from blocklife.ledger import Ledger
from blocklife.ledger.jobs import Allocated, Batch
from blocklife.ledger.places import EPOCH_MASK, EPOCH_SHIFT
from blocklife.states import Block, BlockLife, Request

SHORT, _IDLE = 256, 64
"""Requests of the ledger with tables up to that length are used again; so many are kept."""

_CODE = BlockLife.table.index
FREED, ALLOCATED, SEALED, CACHED = (_CODE[state] for state in (Block.FREED, Block.ALLOCATED, Block.SEALED, Block.CACHED))


@define(eq=False)
class Holder:
    """A request, from its admission until it lets go of everything, or one hold of the connector.

    Invariant: the ledger, where there is one, knows a request called ``row``, and nobody else has it, exactly while ``held``
    has a block.
    """

    name: str
    held: dict[int, int] = field(factory=dict)
    """Block to its place in the ledger's table."""
    besides: dict[int, int] = field(factory=dict)
    """How many holds of a block the ledger does not know of; none is 0."""
    has_left: bool = False
    """Whether it has given up everything, and the engine may free it later, in nobody's name."""
    row: str = ""
    lengths: list[int] = field(factory=list)
    """How long its tables in the ledger are."""
    alone: tuple[Holder, ...] = ()
    """Who holds a block that nobody else holds; empty once it holds nothing, for a thing that names itself is freed late."""

    def __attrs_post_init__(self) -> None:
        self.alone = (self,)


class FollowedLives(Protocol):
    """What is asked of either kind. Nothing that is told here is judged by the watch any more."""

    epoch: array[int]
    state: bytearray
    """Codes of `BlockLife`."""
    group: bytearray

    def hand_out(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        """New lives, held once."""

    def take(self, holder: Holder, blocks: Sequence[int]) -> None:
        """One more hold of content that is final."""

    def release(self, holder: Holder, blocks: Sequence[int]) -> None:
        """One hold less; without content that is final the life is over then."""

    def fill(self, blocks: Sequence[int]) -> None:
        """The content of these ALLOCATED blocks is final."""


class PlainLives:
    """Columns of their own. Invariant: a block has a hold exactly while it is ALLOCATED or SEALED."""

    def __init__(self, num_blocks: int) -> None:
        self.epoch = array("I", [0]) * num_blocks
        self.state = bytearray([FREED]) * num_blocks
        self.group = bytearray(num_blocks)
        self._refs = array("I", [0]) * num_blocks

    def hand_out(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        """As `FollowedLives` says."""
        state, refs, groups = self.state, self._refs, self.group
        for block in blocks:
            if state[block] == CACHED:
                self.epoch[block] = (self.epoch[block] + 1) & EPOCH_MASK
            state[block], refs[block], groups[block] = ALLOCATED, 1, group
        holder.held.update(dict.fromkeys(blocks, 0))

    def take(self, holder: Holder, blocks: Sequence[int]) -> None:
        """As `FollowedLives` says."""
        for block in blocks:
            self._refs[block] += 1
            self.state[block] = SEALED
        holder.held.update(dict.fromkeys(blocks, 0))

    def release(self, holder: Holder, blocks: Sequence[int]) -> None:
        """As `FollowedLives` says."""
        state, refs, held = self.state, self._refs, holder.held
        for block in blocks:
            del held[block]
            if refs[block] > 1:
                refs[block] -= 1
                continue
            refs[block] = 0
            if state[block] == SEALED:
                state[block] = CACHED
            else:
                state[block] = FREED
                self.epoch[block] = (self.epoch[block] + 1) & EPOCH_MASK

    def fill(self, blocks: Sequence[int]) -> None:
        """As `FollowedLives` says."""
        for block in blocks:
            self.state[block] = SEALED


class LedgerLives:
    """Those of a ledger. Its requests are lent to whoever holds something, and are lent again: that costs less."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.epoch = ledger.blocks.epoch
        self.state = ledger.blocks.column.state
        self.group = ledger.blocks.group
        self._num_groups = ledger.limits.num_groups
        self._serial = 0
        # Requests of the ledger that hold nothing and that nobody has, with how long their tables are.
        self._idle: list[tuple[str, list[int]]] = []
        self._lent: dict[str, str] = {}

    def name_of(self, row: str) -> str:
        """Who has the request of the ledger that is called so; its own name where that is not lent."""
        return self._lent.get(row, row)

    def hand_out(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        """As `FollowedLives` says."""
        self._lend_row(holder)
        self._ledger.observe_allocate(holder.row, blocks, group)
        self._place(holder, blocks, group)

    def take(self, holder: Holder, blocks: Sequence[int]) -> None:
        """As `FollowedLives` says."""
        self._lend_row(holder)
        for group, own in self._by_group(blocks).items():
            self._ledger.observe_take(holder.row, own, group)
            self._place(holder, own, group)

    def release(self, holder: Holder, blocks: Sequence[int]) -> None:
        """As `FollowedLives` says."""
        for group, own in self._by_group(blocks).items():
            self._ledger.release(holder.row, [holder.held.pop(block) for block in own], group)
        if not holder.held:
            self._leave_row(holder)

    def fill(self, blocks: Sequence[int]) -> None:
        """As `FollowedLives` says."""
        for group, own in self._by_group(blocks).items():
            lives = [self.epoch[block] << EPOCH_SHIFT | block for block in own]
            self._ledger.seal(Batch[Allocated](lives, group), [b"life %d" % life for life in lives])

    def _by_group(self, blocks: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for block in blocks:
            found.setdefault(self.group[block], []).append(block)
        return found

    def _place(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        start = holder.lengths[group]
        holder.held.update(zip(blocks, range(start, start + len(blocks)), strict=True))
        holder.lengths[group] += len(blocks)

    def _lend_row(self, holder: Holder) -> None:
        """The holder is known to the ledger from here on: a block is given at once."""
        if holder.held:
            return
        if not self._idle:
            self._serial += 1
            self._idle.append((str(self._serial), [0] * self._num_groups))
            self._ledger.add_request(self._idle[-1][0])
        holder.row, holder.lengths = self._idle.pop()
        self._lent[holder.row] = holder.name

    def _leave_row(self, holder: Holder) -> None:
        """Let the ledger's request go, or keep it for the next one if it is as good as new."""
        as_new = max(holder.lengths) <= SHORT and self._ledger.request_state(holder.row) is Request.WAITING
        if as_new and len(self._idle) < _IDLE:
            self._idle.append((holder.row, holder.lengths))
        else:
            self._ledger.finish(holder.row)
        del self._lent[holder.row]
        holder.row, holder.lengths = "", []
