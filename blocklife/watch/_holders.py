"""The lives of the followed blocks, and who holds them, also where the engine frees late and names no request.

A life counts the first reference to content that is not final, and every reference to final content. References beside these,
such as a connector's to the target of its own load, are kept here as well, so that the number of references to a block equals
the engine's.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from blocklife.ledger._ids import EPOCH_SHIFT, FIRST_EPOCH, ID_MASK, LAST_EPOCH, NULL
from blocklife.states import Block, BlockLife
from blocklife.watch._ledger import ToldLedger
from blocklife.watch._records import AtPlace, Holder
from blocklife.watch._story import BlockHistory

_CODE = BlockLife.table.index
FREED, ALLOCATED = _CODE[Block.FREED], _CODE[Block.ALLOCATED]
SEALED, CACHED = _CODE[Block.SEALED], _CODE[Block.CACHED]

CONNECTOR = "the connector"
"""The holder of blocks that are referenced or freed without naming a request."""
BEFORE = "before"
"""The holder of blocks that were handed out before the watch began."""


class FollowedLives:
    """The lives of blocks, in columns. Every call was checked before it is made; the ledger is told of it, if there is one.

    Invariant: a block has a reference exactly while it is ALLOCATED or SEALED.
    """

    def __init__(self, num_blocks: int) -> None:
        self.told: ToldLedger | None = None
        self.epoch = array("I", [FIRST_EPOCH]) * num_blocks
        self.epoch[NULL] = 0
        self.state = bytearray([FREED]) * num_blocks
        self.group = bytearray(num_blocks)
        self._refs = array("I", [0]) * num_blocks

    def hand_out(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        """Begin new lives, with one reference each."""
        state, refs, groups = self.state, self._refs, self.group
        for block in blocks:
            if state[block] == CACHED:
                self.epoch[block] = self.epoch[block] % LAST_EPOCH + 1
            state[block], refs[block], groups[block] = ALLOCATED, 1, group
        holder.held.update(blocks)
        if self.told is not None:
            self.told.hand_out(holder, blocks, group)

    def acquire(self, holder: Holder, blocks: Sequence[int]) -> None:
        """Add a reference to final content."""
        for block in blocks:
            self._refs[block] += 1
            self.state[block] = SEALED
        holder.held.update(blocks)
        if self.told is not None:
            self.told.acquire(holder, blocks)

    def release(self, holder: Holder, blocks: Sequence[int]) -> None:
        """Drop one reference; this ends the life of a block without final content."""
        state, refs = self.state, self._refs
        holder.held.difference_update(blocks)
        for block in blocks:
            if refs[block] > 1:
                refs[block] -= 1
                continue
            refs[block] = 0
            if state[block] == SEALED:
                state[block] = CACHED
            else:
                state[block] = FREED
                self.epoch[block] = self.epoch[block] % LAST_EPOCH + 1
        if self.told is not None:
            self.told.release(holder, blocks)

    def fill(self, blocks: Sequence[int]) -> None:
        """The content of these ALLOCATED blocks is final."""
        for block in blocks:
            self.state[block] = SEALED
        if self.told is not None:
            self.told.fill(blocks)

    def is_blank(self, block: int) -> bool:
        """Whether it has no life, and no content that could be found."""
        return self.state[block] == FREED


class Holders:
    """All holders.

    Invariant: ``where[block]`` has each holder of a block once for each of its references.
    """

    def __init__(self, lives: FollowedLives, story: BlockHistory, *, num_groups: int, computes: bool) -> None:
        self.lives = lives
        self._story = story
        self._computes = computes
        self._state = lives.state
        self._epoch = lives.epoch
        self._num_groups = num_groups
        self._current: dict[str, Holder] = {}
        self.where = AtPlace[Holder]()
        # Blocks that were handed out in this step and are not filled yet, with the life whose content they still have.
        self.fresh: dict[int, int] = {}
        # Blocks that were released in the step that handed them out, with the life whose content they still have.
        self._unused: dict[int, int] = {}
        # The life now, or last, at a position of a request's table.
        self._tenures: dict[str, dict[int, int]] = {}
        self._left: set[str] = set()
        self._over: dict[str, int] = {}

    # --- reading ------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many holders are remembered."""
        return len(self._current.keys() | self._tenures.keys() | self._left | self._over.keys())

    def life(self, block: int) -> int:
        """The current life of a block."""
        return self._epoch[block] << EPOCH_SHIFT | block

    def content(self, block: int) -> int:
        """The life whose content a block has: the current one, or the previous one if the current one was never computed."""
        root = self._unused.get(block)
        return self.life(block) if root is None else root

    def stands(self, request: str | None, group: int, position: int | None) -> int | None:
        """The life that a request had last at a position of its table; None if it is not known."""
        if request is None or position is None:
            return None
        return self._tenures.get(request, {}).get(position * self._num_groups + group)

    def tenure(self, request: str | None) -> dict[int, int]:
        """All that `stands` knows of a request: a map from position times number of groups plus group, to the life."""
        return self._tenures.get(request or "", {})

    def of(self, name: str | None) -> Holder | None:
        """The holder of this name, if it has any block."""
        return self._current.get(name or "")

    def is_unused(self, block: int) -> bool:
        """Whether the block's life was given up before its content was computed."""
        return block in self._unused

    def holds(self, name: str, block: int) -> bool:
        """Whether this holder has a reference to the life of a block."""
        holder = self._current.get(name)
        return holder is not None and block in holder.held

    def is_known_without(self, name: str | None, block: int) -> bool:
        """Whether this holder has references, but none to this block."""
        holder = self._current.get(name or "")
        return holder is not None and block not in holder.held and block not in holder.besides

    def left_behind(self, known: Collection[str]) -> dict[str, list[int]]:
        """The blocks held by requests other than the *known* ones, by request."""
        found: dict[str, list[int]] = {}
        for block, holders in self.where.items():
            for holder in holders:
                if holder.name != BEFORE and holder.name not in known:
                    found.setdefault(holder.name, []).append(block)
        return found

    def drop_all(self, blocks: Collection[int]) -> None:
        """Drop every reference to these blocks."""
        for block in blocks:
            if block in self.where:
                self.drop(block)

    def count(self, name: str) -> int:
        """How many blocks this holder has."""
        holder = self._current.get(name)
        return 0 if holder is None else len(holder.held) + sum(holder.besides.values())

    # --- holding ------------------------------------------------------------------------------------------------------------

    def hand_out(self, name: str, group: int, blocks: Sequence[int], positions: Sequence[int | None]) -> None:
        """Begin new lives in blocks that no copy touches, except behind a fence."""
        holder, epoch, where, unused = self._holder(name), self._epoch, self.where, self._unused
        before = [epoch[block] << EPOCH_SHIFT | block for block in blocks]
        if unused:
            before = [unused.pop(block, life) for block, life in zip(blocks, before, strict=True)]
        self.lives.hand_out(holder, blocks, group)
        self.fresh.update(zip(blocks, before, strict=True))
        where.add(blocks, holder)
        lives = [epoch[block] << EPOCH_SHIFT | block for block in blocks]
        if type(positions) is range:  # consecutive positions, the usual case
            size = self._num_groups * positions.step
            start = positions.start * self._num_groups + group
            places = zip(range(start, start + size * len(positions), size), lives, strict=True)
            if (tenure := self._tenures.get(name)) is None:
                self._tenures[name] = dict(places)
            else:
                tenure.update(places)
        else:
            self._stand(name, group, lives, positions)
        self._story.note_places(lives, positions, "handed out to {} (group {}{})", name, group)

    def acquire(self, name: str, blocks: Sequence[int], positions: Sequence[int | None]) -> None:
        """One more reference to each of these blocks, whose content is final."""
        holder = self._holder(name)
        self.lives.acquire(holder, blocks)
        self.where.add(blocks, holder)
        for block, position in zip(blocks, positions, strict=True):
            self._stand(name, self.lives.group[block], (self.life(block),), (position,))
        self._story.note(blocks, "taken by {}", name)

    def hold_beside(self, name: str, block: int) -> None:
        """One more reference to a block, beside those to its life."""
        holder = self._holder(name)
        holder.besides[block] = holder.besides.get(block, 0) + 1
        self.where.add((block,), holder)
        self._story.note((block,), "taken by {}", name)

    def free(self, name: str, blocks: Sequence[int], left: Sequence[int] | None = None, *, whole: bool = False) -> None:
        """A holder, or the engine without naming one, has released blocks; *left* are the engine's reference counts afterwards.

        A request that releases everything (*whole*) in the step that handed it out is not part of that step: nothing is
        computed for it. A release of a block that the holder does not have is a violation.
        """
        if not (whole and self._computes):
            self.fill(blocks)
        where, mine = self.where, None if name == CONNECTOR else self._current.get(name)
        chosen: dict[int, tuple[Holder, list[int]]] = {}
        told: set[int] = set()
        for at, block in enumerate(blocks):
            holders = where.get(block)
            if holders is None:
                holder = None
            elif mine is not None and holders is mine.alone:  # the usual case
                holder = mine
            else:
                holder = self._who_frees(name, holders, None if left is None else left[at])
            if holder is not None:
                where.remove((block,), holder)
                if id(holder) in chosen:
                    chosen[id(holder)][1].append(block)
                else:
                    chosen[id(holder)] = (holder, [block])
            elif name != CONNECTOR and self._story.knows(block):  # otherwise it was handed out before the watch was attached
                told.add(block)
                what = f"block {block} is freed by {name}, which does not hold it"
                self._story.violate("I4", what, block=block, request=name)
        for holder, own in chosen.values():
            self._story.note(own, "released by {}", holder.name)
            self._release(holder, own)
        for block, count in zip(blocks, left or (), strict=False):
            if count < len(holders := where.get(block, ())) and block not in told and blocks.count(block) == 1:
                who = f"{_names(holders)} hold it" if holders else "no request holds it"
                what = f"block {block} has {count} references left in the engine, but {who}"
                self._story.violate("I4", what, block=block, request=None if name == CONNECTOR else name)
                if not count:
                    self.drop(block)

    def _who_frees(self, name: str, holders: tuple[Holder, ...], left: int | None) -> Holder | None:
        """The holder of a block that releases it; None if it is none of them."""
        holder = next((each for each in holders if each.name == name), None)
        if holder is None and name == CONNECTOR and (left is None or left < len(holders)):
            holder = min(holders, key=self._tightness, default=None)
        return holder

    def drop(self, block: int) -> None:
        """Drop every reference to a block, whoever holds it."""
        for holder in self.where.pop(block):
            self._release(holder, (block,))

    def leave(self, name: str) -> None:
        """A request has given up its blocks; the engine may free them later, without naming the request."""
        if name in self._tenures:
            self._left.add(name)
        holder = self._current.pop(name, None)
        if holder is not None:
            holder.has_left = True

    def end(self, request: str) -> None:
        """A request is finished: its blocks may still be stored in the next step."""
        self._over[request] = self._story.steps

    # --- content ------------------------------------------------------------------------------------------------------------

    def fill(self, blocks: Collection[int]) -> None:
        """Those of these blocks that were handed out in this step count as filled."""
        fresh, state = self.fresh, self._state
        if not fresh or fresh.keys().isdisjoint(blocks):
            return
        own = [block for block in blocks if fresh.pop(block, None) is not None and state[block] == ALLOCATED]
        if own:
            self.lives.fill(own)

    def arrive(self, lives: Sequence[int]) -> None:
        """A load has filled blocks; lives that are over are skipped."""
        for life in lives:
            block = life & ID_MASK
            if self._state[block] == ALLOCATED and self.life(block) == life:
                self.lives.fill((block,))

    def believe(self, block: int, group: int) -> None:
        """Take as given the content of an unheld block, computed before the watch began, or unseen."""
        self._story.counts["believed"] += 1
        self.hand_out(BEFORE, group, [block], [None])
        self.fill([block])
        self.free(BEFORE, [block])

    def end_step(self) -> None:
        """End of a step: what was handed out is filled, and requests that finished before the step are forgotten."""
        self.fill(list(self.fresh))
        for request in [each for each, step in self._over.items() if step < self._story.steps - 1]:
            del self._over[request]
            self._tenures.pop(request, None)
            self._left.discard(request)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _holder(self, name: str) -> Holder:
        """The holder of this name since its latest admission. Each reference of the connector has a holder of its own."""
        holder = self._current.get(name)
        if holder is None or name == CONNECTOR:
            holder = self._current[name] = Holder(name)
            if name in self._left:
                self._left.discard(name)
                self._tenures.pop(name, None)
        return holder

    def _stand(self, name: str, group: int, lives: Sequence[int], positions: Sequence[int | None]) -> None:
        """Record these lives at these positions of a request's table."""
        for life, position in zip(lives, positions, strict=True):
            if position is not None:
                self._tenures.setdefault(name, {})[position * self._num_groups + group] = life

    def _tightness(self, holder: Holder) -> int:
        """Sort key for a release that names no request: the holder that the engine most probably means comes first."""
        return 0 if holder.has_left else 1 if holder.name in self._over else 2

    def _release(self, holder: Holder, blocks: Sequence[int]) -> None:
        if holder.besides:
            blocks = [block for block in blocks if not self._is_beside(holder, block)]
        fresh = self.fresh
        if fresh and not fresh.keys().isdisjoint(blocks):
            self._unused.update([(block, fresh.pop(block)) for block in blocks if block in fresh])
        if blocks:
            self.lives.release(holder, blocks)
        if not holder.held and not holder.besides:
            holder.disappear()
            if self._current.get(holder.name) is holder:
                del self._current[holder.name]

    def _is_beside(self, holder: Holder, block: int) -> bool:
        """Whether the released reference is one beside those to the life of the block."""
        count = holder.besides.get(block, 0)
        if count > 1:
            holder.besides[block] = count - 1
        elif count:
            del holder.besides[block]
        return count > 0


def _names(holders: Sequence[Holder]) -> str:
    return " and ".join(dict.fromkeys(holder.name for holder in holders))
