"""The lives of the followed blocks, and their states.

There are two implementations, which agree in every life and every state. `LedgerLives` calls a ledger for each hand-out,
acquisition and release, so that its tables check them and a recording contains them; `PlainLives` keeps just three columns, if
neither is wanted. The rules of the watch need only what both have: the state, the epoch and the group of each block.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from attrs import define, field

from blocklife.ledger import Ledger, Placement
from blocklife.ledger._ids import EPOCH_SHIFT, FIRST_EPOCH, LAST_EPOCH, NULL
from blocklife.ledger.jobs import Allocated, Batch
from blocklife.states import BLANK, Block, BlockLife, Request

SHORT, _IDLE = 256, 64
"""Idle ledger requests with tables up to this length are reused; at most this many are kept."""

_CODE = BlockLife.table.index
BLANK_BLOCKS = frozenset(_CODE[each] for each in BLANK)
FREED, ALLOCATED = _CODE[Block.FREED], _CODE[Block.ALLOCATED]
SEALED, CACHED = _CODE[Block.SEALED], _CODE[Block.CACHED]


@define(eq=False)
class Holder:
    """A request from its admission until it has released everything, or one reference of the connector.

    Invariant: while ``held`` has a block, and only then, the ledger (if there is one) has a request called ``row`` for this
    holder alone.
    """

    name: str
    held: dict[int, int] = field(factory=dict)
    """Block to its position in the ledger's table."""
    besides: dict[int, int] = field(factory=dict)
    """Block to the number of references that the ledger does not know of; never 0."""
    has_left: bool = False
    """Whether it has given up its blocks, which the engine may free later, without naming the request."""
    row: str = ""
    lengths: list[int] = field(factory=list)
    """The length of its tables in the ledger."""
    alone: tuple[Holder, ...] = ()
    """The entry for blocks that only this holder has; emptied when it holds nothing, to leave no reference cycle."""

    def __attrs_post_init__(self) -> None:
        self.alone = (self,)


class FollowedLives(Protocol):
    """What both implementations offer. The watch has checked every call before it is made."""

    @property
    def epoch(self) -> Sequence[int]:
        """The epoch of each block."""

    @property
    def state(self) -> Sequence[int]:
        """The state of each block, as a code of `BlockLife`."""

    @property
    def group(self) -> Sequence[int]:
        """The group of each block."""

    def hand_out(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        """Begin new lives, with one reference each."""

    def take(self, holder: Holder, blocks: Sequence[int]) -> None:
        """Add a reference to final content."""

    def release(self, holder: Holder, blocks: Sequence[int]) -> None:
        """Drop one reference; this ends the life of a block without final content."""

    def fill(self, blocks: Sequence[int]) -> None:
        """The content of these ALLOCATED blocks is final."""


class PlainLives:
    """Lives in columns, without a ledger. Invariant: a block has a reference exactly while it is ALLOCATED or SEALED."""

    def __init__(self, num_blocks: int) -> None:
        self.epoch = array("I", [FIRST_EPOCH]) * num_blocks
        self.epoch[NULL] = 0
        self.state = bytearray([FREED]) * num_blocks
        self.group = bytearray(num_blocks)
        self._refs = array("I", [0]) * num_blocks

    def hand_out(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        """As `FollowedLives` says."""
        state, refs, groups = self.state, self._refs, self.group
        for block in blocks:
            if state[block] == CACHED:
                self.epoch[block] = self.epoch[block] % LAST_EPOCH + 1
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
                self.epoch[block] = self.epoch[block] % LAST_EPOCH + 1

    def fill(self, blocks: Sequence[int]) -> None:
        """As `FollowedLives` says."""
        for block in blocks:
            self.state[block] = SEALED


class LedgerLives:
    """Lives in a ledger. Its requests are lent to holders and reused, which is cheaper than adding a new one each time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.epoch = ledger.blocks.epochs
        self.state = ledger.blocks.states
        self.group = ledger.blocks.groups
        self._num_groups = ledger.limits.num_groups
        self._serial = 0
        # Idle requests of the ledger, with the length of their tables.
        self._idle: list[tuple[str, list[int]]] = []
        self._lent: dict[str, str] = {}

    def name_of(self, row: str) -> str:
        """The holder to which a request of the ledger is lent; the request's own name if it is not lent."""
        return self._lent.get(row, row)

    def hand_out(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        """As `FollowedLives` says."""
        self._lend_row(holder)
        self._ledger.observe_place(holder.row, [Placement(group, allocated=blocks)])
        self._place(holder, blocks, group)

    def take(self, holder: Holder, blocks: Sequence[int]) -> None:
        """As `FollowedLives` says."""
        self._lend_row(holder)
        for group, own in self._by_group(blocks).items():
            self._ledger.observe_place(holder.row, [Placement(group, taken=own)])
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
        """Lend the holder a request of the ledger; the caller gives it a block right away."""
        if holder.held:
            return
        if not self._idle:
            self._serial += 1
            self._idle.append((str(self._serial), [0] * self._num_groups))
            self._ledger.add_request(self._idle[-1][0])
        holder.row, holder.lengths = self._idle.pop()
        self._lent[holder.row] = holder.name

    def _leave_row(self, holder: Holder) -> None:
        """Finish the ledger's request, or keep it for the next holder if it can be reused."""
        as_new = max(holder.lengths) <= SHORT and self._ledger.requests.state(holder.row) is Request.WAITING
        if as_new and len(self._idle) < _IDLE:
            self._idle.append((holder.row, holder.lengths))
        else:
            self._ledger.finish(holder.row)
        del self._lent[holder.row]
        holder.row, holder.lengths = "", []
