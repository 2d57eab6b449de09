"""Who holds which block: requests, the connector, and what an engine lets go of late, in nobody's name.

The ledger knows the first hold of content that is not final, and every hold of content that is. What it cannot know, such as a
connector that holds the target of its own load, is kept beside it, so that a block has as many holds here as in the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import define, field

from blocklife.engines.vllm.watch.story import Story
from blocklife.ledger import Ledger
from blocklife.ledger.jobs import Allocated, Batch
from blocklife.ledger.places import EPOCH_SHIFT, ID_MASK
from blocklife.states import Block, BlockLife, Request

CONNECTOR = "the connector"
"""Who holds and frees blocks on nobody's behalf."""
BEFORE = "before"
"""Who held what the watch did not see handed out."""

SHORT, _IDLE = 256, 64
"""Requests of the ledger with tables up to that length are used again; so many are kept."""
_ALLOCATED = BlockLife.table.index[Block.ALLOCATED]


@define(eq=False)
class Holder:
    """A request, from its admission until it lets go of everything, or one hold of the connector.

    Invariant: the ledger knows a request called ``row``, and nobody else has it, exactly while ``held`` has a block.
    """

    name: str
    row: str = ""
    lengths: list[int] = field(factory=list)
    """How long its tables in the ledger are."""
    held: dict[int, tuple[int, int]] = field(factory=dict)
    """Block to group, and place in the ledger's table."""
    besides: Counter[int] = field(factory=Counter)
    """Holds that the ledger does not know of."""
    has_left: bool = False
    """Whether it has given up everything, and the engine may free it later, in nobody's name."""


class Holders:
    """All of them. Invariant: ``where[block]`` has each holder of a block as often as it holds it."""

    def __init__(self, ledger: Ledger, story: Story, *, computes: bool) -> None:
        self._ledger = ledger
        self._story = story
        self._computes = computes
        self._state = ledger.blocks.column.state
        self._epoch = ledger.blocks.epoch
        self._num_groups = ledger.limits.num_groups
        self._serial = 0
        self._current: dict[str, Holder] = {}
        self.where: dict[int, list[Holder]] = {}
        # Blocks that were handed out in this step and do not count as filled yet: life, group, and whose content is in it yet.
        self.fresh: dict[int, tuple[int, int, int]] = {}
        # Blocks that were let go of in the step that handed them out, and the life whose content is still there.
        self._unused: dict[int, int] = {}
        # The life that stands, or stood last, at a place of a request's own table.
        self._tenures: dict[str, dict[int, int]] = {}
        self._left: set[str] = set()
        self._over: dict[str, int] = {}
        # Requests of the ledger that hold nothing and that nobody has, with how long their tables are.
        self._idle: list[tuple[str, list[int]]] = []

    # --- reading ------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many names are kept."""
        return len(self._current.keys() | self._tenures.keys() | self._left | self._over.keys())

    def life(self, block: int) -> int:
        """The current life of a block."""
        return self._epoch[block] << EPOCH_SHIFT | block

    def content(self, block: int) -> int:
        """The life whose content a block has: its own, or the one before, where its own was given up before it was computed."""
        root = self._unused.get(block)
        return self.life(block) if root is None else root

    def stands(self, request: str | None, group: int, position: int | None) -> int | None:
        """The life that a request had last at a position of its table; None where that is not known."""
        if request is None or position is None:
            return None
        return self._tenures.get(request, {}).get(position * self._num_groups + group)

    def row_of(self, name: str | None) -> str | None:
        """What the ledger calls a request, if it knows it now."""
        holder = self._current.get(name or "")
        return holder.row if holder is not None and holder.held else None

    def is_unused(self, block: int) -> bool:
        """Whether its life was given up before its content was computed."""
        return block in self._unused

    def holds(self, name: str, block: int) -> bool:
        """Whether somebody of this name holds a block now, in the ledger's eyes too."""
        holder = self._current.get(name)
        return holder is not None and block in holder.held

    # --- holding ------------------------------------------------------------------------------------------------------------

    def hand_out(self, name: str, group: int, blocks: Sequence[int], positions: Sequence[int | None]) -> None:
        """New lives for blocks that nobody holds and no copy touches, except behind a fence."""
        holder = self._known(name)
        before = [self.content(block) for block in blocks]
        self._ledger.observe_allocate(holder.row, blocks, group)
        for block, position, root in zip(blocks, positions, before, strict=True):
            self._unused.pop(block, None)
            self.fresh[block] = (self.life(block), group, root)
            self._hold(holder, group, block, position)
            where = "" if position is None else f", position {position}"
            self._story.note((block,), "handed out to {} (group {}{})", name, group, where)

    def take(self, name: str, blocks: Sequence[int], positions: Sequence[int | None]) -> None:
        """One more hold of each of these blocks, whose content is final."""
        holder = self._known(name)
        groups: dict[int, list[int]] = {}
        for block in blocks:
            groups.setdefault(self._ledger.blocks.group[block], []).append(block)
        for group, own in groups.items():
            self._ledger.observe_take(holder.row, own, group)
        for block, position in zip(blocks, positions, strict=True):
            self._hold(holder, self._ledger.blocks.group[block], block, position)
        self._story.note(blocks, "taken by {}", name)

    def hold_beside(self, name: str, block: int) -> None:
        """One more hold of a block, of which the ledger is not told."""
        holder = self._holder(name)
        holder.besides[block] += 1
        self.where.setdefault(block, []).append(holder)
        self._story.note((block,), "taken by {}", name)

    def free(self, name: str, blocks: Sequence[int], left: Sequence[int] | None = None, *, whole: bool = False) -> None:
        """A holder has let go of these blocks, or somebody in nobody's name; *left* says how many holds the engine counts then.

        Who lets go of all he holds (*whole*) in the step that handed it out is not in that step: nothing is computed for him.
        Tells of those who do not hold what they let go of.
        """
        if not (whole and self._computes):
            self.fill(blocks)
        chosen: dict[int, tuple[Holder, list[int]]] = {}
        for at, block in enumerate(blocks):
            holders = self.where.get(block, [])
            holder = next((each for each in holders if each.name == name), None)
            if holder is None and name == CONNECTOR and (left is None or left[at] < len(holders)):
                holder = min(holders, key=self._tightness, default=None)
            if holder is not None:
                holders.remove(holder)
                if not holders:
                    del self.where[block]
                chosen.setdefault(id(holder), (holder, []))[1].append(block)
            elif name != CONNECTOR and self._story.knows(block):  # else it was handed out before the watch came
                what = f"block {block} is freed by {name}, who does not hold it"
                self._story.violate("I4", what, block=block, request=name)
        for holder, own in chosen.values():
            self._story.note(own, "let go by {}", holder.name)
            self._release(holder, own)

    def drop(self, block: int) -> None:
        """Nobody holds a block any more, whatever they say."""
        for holder in self.where.pop(block):
            self._release(holder, [block])

    def leave(self, name: str) -> None:
        """A request has given up what it holds, and the engine may free it later, in nobody's name."""
        if name in self._tenures:
            self._left.add(name)
        holder = self._current.pop(name, None)
        if holder is not None:
            holder.has_left = True

    def end(self, request: str) -> None:
        """A request is over: what it held may be stored once more, in the next step."""
        self._over[request] = self._story.steps

    # --- content ------------------------------------------------------------------------------------------------------------

    def fill(self, blocks: Iterable[int]) -> None:
        """What was handed out in this step counts as filled."""
        lives: dict[int, list[int]] = {}
        for block in blocks:
            life, group, _ = self.fresh.pop(block, (0, 0, 0))
            if life and self._state[block] == _ALLOCATED and self.life(block) == life:
                lives.setdefault(group, []).append(life)
        for group, own in lives.items():
            self._ledger.seal(Batch[Allocated](own, group), [b"life %d" % life for life in own])

    def arrive(self, lives: Sequence[int]) -> None:
        """A load has filled blocks, as far as their lives are not over."""
        for life in lives:
            block = life & ID_MASK
            if self._state[block] == _ALLOCATED and self.life(block) == life:
                self._ledger.seal(Batch[Allocated]([life], self._ledger.blocks.group[block]), [b"life %d" % life])

    def believe(self, block: int, group: int) -> None:
        """A block that is nobody's has content that the watch did not see come."""
        self._story.counts["believed"] += 1
        self.hand_out(BEFORE, group, [block], [None])
        self.fill([block])
        self.free(BEFORE, [block])

    def settle(self) -> None:
        """A step is made: what was handed out is filled, and requests that are over for a whole step are forgotten."""
        self.fill(list(self.fresh))
        for request in [each for each, step in self._over.items() if step < self._story.steps - 1]:
            del self._over[request]
            self._tenures.pop(request, None)
            self._left.discard(request)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _holder(self, name: str) -> Holder:
        """Whoever is called so, from this admission on. Each hold of the connector is one of its own."""
        holder = self._current.get(name)
        if holder is None or name == CONNECTOR:
            holder = self._current[name] = Holder(name)
            if name in self._left:
                self._left.discard(name)
                self._tenures.pop(name, None)
        return holder

    def _known(self, name: str) -> Holder:
        """The same, known to the ledger from here on: a block is given at once."""
        holder = self._holder(name)
        if not holder.held:
            if not self._idle:
                self._serial += 1
                self._idle.append((str(self._serial), [0] * self._num_groups))
                self._ledger.add_request(self._idle[-1][0])
            holder.row, holder.lengths = self._idle.pop()
        return holder

    def _hold(self, holder: Holder, group: int, block: int, position: int | None) -> None:
        holder.held[block] = (group, holder.lengths[group])
        holder.lengths[group] += 1
        self.where.setdefault(block, []).append(holder)
        if position is not None:
            tenure = self._tenures.setdefault(holder.name, {})
            tenure[position * self._num_groups + group] = self.life(block)

    def _tightness(self, holder: Holder) -> int:
        """The looser a hold, the likelier it is the one that the engine lets go of in nobody's name."""
        return 0 if holder.has_left else 1 if holder.name in self._over else 2

    def _release(self, holder: Holder, blocks: Sequence[int]) -> None:
        places: dict[int, list[int]] = {}
        for block in blocks:
            if holder.besides[block]:
                holder.besides[block] -= 1
                continue
            group, place = holder.held.pop(block)
            places.setdefault(group, []).append(place)
            if block in self.fresh:
                self._unused[block] = self.fresh.pop(block)[2]
        for group, own in places.items():
            self._ledger.release(holder.row, own, group)
        if places and not holder.held:
            self._leave_row(holder)
        if not holder.held and not +holder.besides and self._current.get(holder.name) is holder:
            del self._current[holder.name]

    def _leave_row(self, holder: Holder) -> None:
        """Let the ledger's request go, or keep it for the next one if it is as good as new: that costs less."""
        as_new = max(holder.lengths) <= SHORT and self._ledger.request_state(holder.row) is Request.WAITING
        if as_new and len(self._idle) < _IDLE:
            self._idle.append((holder.row, holder.lengths))
        else:
            self._ledger.finish(holder.row)
        holder.row, holder.lengths = "", []
