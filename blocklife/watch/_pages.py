"""A book of blocks and slots by content, for engines whose caches are trees: no table says where a block belongs.

*Rules of this file.* It knows no engine: the ears report facts, in the order in which they happened. Blocks and their copies
are the mirror's; what is here is told to it. A violation is noted in the mirror's story, and the book then believes the engine.

*Theory: content by name.* What a block holds is set when a step that computes it is launched: the tokens of its request up to
the end of the block (`HeldContent`). A store carries it to a slot, where it is when the store has landed; a load carries it
back. A request that reads a block expects its own text there. So it does not matter by which way the block came to the request,
and nothing has to be known of the tree: what is split, moved or found twice there is the same content.

*Theory: order.* A step is in flight from its launch until the engine has its result. A copy that is launched meanwhile must be
ordered behind it if it reads what the step writes, or writes what the step uses. A load may be read before it has landed, by
a step that waits for it layer by layer, and by all later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from attrs import define, field

from blocklife.watch._host import CopyPiece
from blocklife.watch._jobs import EngineCopy
from blocklife.watch._mirror import Mirror
from blocklife.watch._slots import SlotContents
from blocklife.watch._texts import UNSEEN, HeldContent, Text

PATIENCE = 3
"""So many looks at an engine at rest must find the same before it is a violation: what has just ended settles by the next."""
OVERDUE, OVERDUE_AMONG_RANKS = 32, 256
"""Steps after which a landed copy must have been taken note of; the ranks of an engine wait for the slowest of them."""
STILL = 64
"""Looks at an engine that does nothing, with requests waiting, after which it counts as deadlocked."""
MAX_CHANGES, MAX_CHECKED = 1 << 16, 1024
"""How much is kept of what need not be checked again; then all is checked anew."""
_NAMED = 4


class PageTurn(NamedTuple):
    """What a step computes of one request: its tokens from *start* up to *stop*, all of which lie in these blocks."""

    request: str
    text: Text
    start: int
    stop: int
    blocks: list[int]
    astray: tuple[int, int] | None = None
    """A position of those computed, and its slot of a token, where that is not its place in its block."""


@define(eq=False)
class PageJob:
    """A copy, from the moment it is queued until it has landed."""

    number: int
    is_store: bool
    blocks: Sequence[int]
    slots: Sequence[int]
    held: list[HeldContent | None]
    """What is copied, as it was when the job was queued."""
    is_launched: bool = False
    is_waited_for: bool = False
    """A load: whether a step was launched that waits for it, so that all later ones come behind it, too."""
    batch: int = -1
    """Jobs of one number here were launched together, and land together."""


@define(eq=False)
class CheckedPrefix:
    """The first blocks of a request, found right by an earlier step; they need no second look until one of them changes."""

    text: Text
    blocks: list[int]
    members: set[int]
    seen: int
    """The number of changes at that time."""


@define(eq=False)
class Launch:
    """A step that computes, and whose result the engine does not have yet."""

    written: frozenset[int]
    used: frozenset[int]


@define(eq=False)
class AtRest:
    """What was seen of an engine at rest, and how often running."""

    seen: dict[str, int] = field(factory=dict)
    told: set[str] = field(factory=set)

    def lasts(self, what: str, still: bool) -> bool:
        """Whether this has been so for `PATIENCE` looks, and was not told yet."""
        count = self.seen[what] = self.seen.get(what, 0) + 1 if still else 0
        if not still:
            self.told.discard(what)
        if count < PATIENCE or what in self.told:
            return False
        self.told.add(what)
        return True


class PageBook:
    """The book of one device memory and the host memory behind it.

    *size*: tokens of a block. *sees_steps*: whether the steps are reported, too; without them content is believed.
    """

    def __init__(self, mirror: Mirror, size: int, num_slots: int, *, sees_steps: bool) -> None:
        self._mirror = mirror
        self._size = size
        self._num_slots = num_slots
        self._sees_steps = sees_steps
        self._blocks: dict[int, HeldContent | None] = {}
        """What each block holds that is handed out; None: nothing yet."""
        self._slots = SlotContents()
        self._jobs: dict[int, PageJob] = {}
        self._using: dict[int, list[PageJob]] = {}
        """Slot to the jobs that read or write it, queued or launched."""
        self._loading: dict[int, PageJob] = {}
        """Block to the load that fills it, queued or launched."""
        self._storing: dict[int, list[PageJob]] = {}
        self._launches: deque[Launch] = deque()
        self._checked: dict[str, CheckedPrefix] = {}
        self._changes: list[int] = []
        """Blocks in the order in which something became of them."""
        self._given_up: dict[str, set[int]] = {"block": set(), "slot": set()}
        """What the engine's cache has evicted, until it is freed."""
        self._number = 0
        self._rest = AtRest()
        self._num_still = 0
        self.unseen_slots = False
        """Whether slots are filled by others than these jobs, from a storage, say."""

    # --- reading ------------------------------------------------------------------------------------------------------------

    @property
    def jobs_out(self) -> list[int]:
        """The jobs that have not landed."""
        return list(self._jobs)

    @property
    def num_blocks_out(self) -> int:
        """How many blocks are handed out."""
        return len(self._blocks)

    @property
    def num_slots_out(self) -> int:
        """How many slots are handed out."""
        return len(self._slots)

    def _violate(
        self, rule: str, what: str, *, block: int | None = None, request: str | None = None, job: int | None = None
    ) -> None:
        self._mirror.story.violate(rule, what, block=block, request=request, job=job)

    # --- blocks -------------------------------------------------------------------------------------------------------------

    def adopt(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """What was handed out before the watch began: it is believed to hold what it should."""
        self.handed_out(blocks)
        self._blocks.update(dict.fromkeys(blocks, UNSEEN))
        for slot in slots:
            self._slots.fill(slot, UNSEEN)

    def handed_out(self, blocks: Sequence[int]) -> None:
        """The engine hands these blocks out."""
        good = [block for block in blocks if 0 < block < self._mirror.num_blocks]
        if len(good) < len(blocks):
            wrong = next(block for block in blocks if not 0 < block < self._mirror.num_blocks)
            self._violate("I4", f"block {wrong} is handed out, and is none of 1 to {self._mirror.num_blocks - 1}")
        self._mirror.handed_out(f"step {self._mirror.steps + 1}", 0, good, [None] * len(good))
        self._blocks.update(dict.fromkeys(good, None if self._sees_steps else UNSEEN))
        self._changes += good

    def given_back(self, blocks: Sequence[int]) -> None:
        """The engine frees these blocks."""
        for block in blocks:
            if block not in self._blocks:
                self._violate("I4", f"block {block} is freed, and nobody holds it", block=block)
            self._blocks.pop(block, None)
            self._loading.pop(block, None)
        self._given_up["block"].difference_update(blocks)
        self._changes += blocks
        self._mirror.given_back(blocks)

    def all_given_back(self, left: Sequence[int] = ()) -> None:
        """Every block is free: the engine begins anew. *left*: blocks that are not, after all."""
        if left:
            self._violate("I13", f"all blocks are given back, and {len(left)} of them are not free", block=left[0])
        self._mirror.given_back(list(self._blocks))
        self._given_up["block"].clear()
        self._blocks.clear()
        self._checked.clear()

    # --- slots --------------------------------------------------------------------------------------------------------------

    def slots_handed_out(self, slots: Sequence[int]) -> None:
        """The engine hands these slots out."""
        for slot in slots:
            if not 0 <= slot < self._num_slots:
                self._violate("I4", f"slot {slot} is handed out, and the host has {self._num_slots}")
            elif slot in self._slots:
                self._violate("I4", f"slot {slot} is handed out, and is not free")
        self._slots.hand_out(slots, UNSEEN if self.unseen_slots else None)

    def slots_given_back(self, slots: Sequence[int]) -> None:
        """The engine frees these slots: no copy may read or write them."""
        for slot in slots:
            if slot not in self._slots:
                self._violate("I4", f"slot {slot} is freed, and nobody holds it")
            for job in self._using.get(slot, ()):
                rule, does = ("I1", "writes") if job.is_store else ("I7", "loads from")
                self._violate(rule, f"slot {slot} is freed while job {job.number} {does} it", job=job.number)
            self._slots.drop(slot)
        self._given_up["slot"].difference_update(slots)

    def all_slots_given_back(self, left: Sequence[int] = ()) -> None:
        """Every slot is free. *left*: slots that are not, after all."""
        if left:
            self._violate("I13", f"all slots are given back, and {len(left)} of them are not free")
        self._slots.clear()
        self._given_up["slot"].clear()

    def given_up(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """The engine's cache has evicted these blocks and slots; it must free them ahead of its next step."""
        self._given_up["block"].update(block for block in blocks if block in self._blocks)
        self._given_up["slot"].update(slot for slot in slots if slot in self._slots)

    def _ask_given_up(self) -> None:
        for name, places in self._given_up.items():
            if places:
                self._violate("I13", f"{name} {min(places)} was evicted and not freed: no call can hand it out again")
                places.clear()

    def refilled(self, slots: Sequence[int], text: Text | None = None, first: int = 0, *, needs_parent: bool = False) -> None:
        """The engine's cache keeps these slots, which a storage has filled, as those of a text from block *first* of it on.

        Without a text they are believed. *needs_parent*: what stands ahead of them must be in a slot, too, as the engine
        gives up its blocks from the end of a text to its beginning.
        """
        if text is not None and needs_parent and first:
            name = text.name(first * self._size)
            stores = [job.held for job in self._jobs.values() if job.is_store]
            if name is not None and not self._slots.may_have(name, stores):
                what = f"slot {slots[0]} is kept for position {first} of a text, and no slot has what stands ahead of it"
                self._violate("I11", what)
        for at, slot in enumerate(slots, first):
            if slot in self._slots:
                held = UNSEEN if text is None else HeldContent(text, (at + 1) * self._size).settled()
                self._slots.fill(slot, held)

    # --- copies -------------------------------------------------------------------------------------------------------------

    def queued(self, blocks: Sequence[int], slots: Sequence[int], *, is_store: bool) -> int:
        """The engine wants a copy between these blocks and slots. Returns its number."""
        self._number += 1
        found = map(self._blocks.get, blocks) if is_store else map(self._slots.get, slots)
        held = [None if each is None else each.settled() for each in found]
        job = PageJob(self._number, is_store, blocks, slots, held)
        self._jobs[job.number] = job
        if is_store:
            self._ask_stored(job)
        else:
            self._ask_loaded(job)
        for slot in slots:
            self._using.setdefault(slot, []).append(job)
        return job.number

    def _ask_stored(self, job: PageJob) -> None:
        for block, slot, held in zip(job.blocks, job.slots, job.held, strict=False):
            what = ""
            if block not in self._blocks:
                what = "which nobody holds"
            elif held is None:
                what = "which nothing was computed into"
            elif held.length % self._size:
                what = f"of which only {held.length % self._size} tokens are computed"
            if what:
                self._violate("I6", f"job {job.number} stores block {block}, {what}", block=block, job=job.number)
            if slot not in self._slots:
                self._violate(
                    "I1", f"job {job.number} stores block {block} in slot {slot}, which is free", block=block, job=job.number
                )
            self._storing.setdefault(block, []).append(job)

    def _ask_loaded(self, job: PageJob) -> None:
        for block, slot, held in zip(job.blocks, job.slots, job.held, strict=False):
            if slot not in self._slots:
                self._violate("I7", f"job {job.number} loads from slot {slot}, which is free", block=block, job=job.number)
            elif held is None:
                writer = next((each for each in self._using.get(slot, ()) if each.is_store), None)
                why = "which nothing was stored in" if writer is None else f"while job {writer.number} still writes it"
                self._violate("I6", f"job {job.number} loads from slot {slot}, {why}", block=block, job=job.number)
            self._loading[block] = job
        self._changes += job.blocks

    def launched_copies(self, numbers: Sequence[int], *, is_ordered: bool) -> None:
        """The engine launches these copies together; *is_ordered*: behind the steps in flight."""
        copies: list[EngineCopy] = []
        for number in numbers:
            if (job := self._jobs.get(number)) is None:
                continue
            job.is_launched, job.batch = True, numbers[0]
            if not is_ordered:
                self._ask_order(job)
            places, now = (job.blocks, self._blocks.get) if job.is_store else (job.slots, self._slots.get)
            for place, held in zip(places, job.held, strict=False):
                self._ask_same(job, place, held, now(place))
            if not job.is_store:
                self._changes += job.blocks
                self._blocks.update(
                    (block, held or UNSEEN) for block, held in zip(job.blocks, job.held, strict=False) if block in self._blocks
                )
            moved = zip(job.blocks, job.slots, strict=False)  # but for the null block, which was named when queued
            pieces = [CopyPiece(0, block, None, slot) for block, slot in moved if 0 < block < self._mirror.num_blocks]
            copies.append(EngineCopy(number, None, pieces))
            (self._mirror.stored if job.is_store else self._mirror.loaded)(copies[-1:])

    def moved(self, numbers: Sequence[int], pairs: Collection[tuple[int, int]]) -> None:
        """The copies of these jobs, which are launched now, move these pairs of a block and a slot, and no others."""
        for job in [job for number in numbers if (job := self._jobs.get(number)) is not None]:
            for block, slot in zip(job.blocks, job.slots, strict=False):
                if (block, slot) not in pairs:
                    rule, does = ("I8", "stores block {} in slot {}") if job.is_store else ("I7", "loads block {} from slot {}")
                    what = f"job {job.number} {does.format(block, slot)}, and its copy moves other places"
                    self._violate(rule, what, block=block, job=job.number)
                    break

    def _ask_same(self, job: PageJob, place: int, was: HeldContent | None, now: HeldContent | None) -> None:
        if was is None or (now is not None and was.is_same(now)):
            return
        name, does, block = ("block", "stores", place) if job.is_store else ("slot", "loads from", None)
        what = f"job {job.number} {does} {name} {place}, which was given away since the job was queued"
        self._violate("I7", what, block=block, job=job.number)

    def _ask_order(self, job: PageJob) -> None:
        for launch in self._launches:
            wrong = launch.written if job.is_store else launch.used
            for block in [each for each in job.blocks if each in wrong][:1]:
                does = (
                    "reads block {} while a step in flight may still write it"
                    if job.is_store
                    else ("writes block {} while a step in flight may still use it")
                )
                self._violate("I2", f"job {job.number} {does.format(block)}: nothing orders them", block=block, job=job.number)

    def landed(self, number: int, *, is_early: bool = False) -> None:
        """The engine takes a copy for landed; *is_early*: the device says that it has not."""
        if (job := self._jobs.pop(number, None)) is None:
            self._violate("I3", f"job {number} is taken for landed, and is not in flight", job=number)
            return
        if is_early:
            self._violate("I6", f"job {number} is taken for landed while its copy is still out", job=number)
        self._end(job)
        if job.is_store:
            for slot, held in zip(job.slots, job.held, strict=False):
                if slot in self._slots:
                    self._slots.fill(slot, held)
        self._mirror.reported(number, 1)

    def overdue(self, numbers: Sequence[int], *, among_ranks: bool) -> None:
        """The device has ended these copies long ago, and the engine has not taken note of it."""
        for number in [each for each in numbers if each in self._jobs][:1]:
            ago = OVERDUE_AMONG_RANKS if among_ranks else OVERDUE
            why = "other ranks have not counted so many" if among_ranks else "the engine does not take note of it"
            self._violate("I9" if among_ranks else "I5", f"job {number} has landed {ago} steps ago, and {why}", job=number)

    def _end(self, job: PageJob) -> None:
        for slot in job.slots:
            if jobs := self._using.get(slot):
                jobs.remove(job)
                if not jobs:
                    del self._using[slot]
        for block in job.blocks:
            if self._loading.get(block) is job:
                del self._loading[block]
            if job.is_store and job in (jobs := self._storing.get(block, [])):
                jobs.remove(job)
                if not jobs:
                    del self._storing[block]

    def dropped(self, numbers: Sequence[int]) -> None:
        """These copies were queued, and never will be launched."""
        for number in numbers:
            if (job := self._jobs.pop(number, None)) is not None:
                self._end(job)

    # --- steps --------------------------------------------------------------------------------------------------------------

    def launched(self, turns: Sequence[PageTurn], waits: Collection[int]) -> None:
        """The engine launches a step that computes these turns, and waits for these loads layer by layer."""
        self._rest, self._num_still = AtRest(), 0
        self._ask_given_up()
        for number in waits:
            if (job := self._jobs.get(number)) is not None:
                job.is_waited_for = True
        written: set[int] = set()
        used: set[int] = set()
        for turn in turns:
            used.update(turn.blocks)
            first = turn.start // self._size
            self._ask_read(turn)
            if turn.astray is not None:
                where = f"{turn.request} has position {turn.astray[0]} in the slot of token {turn.astray[1]}"
                block = turn.blocks[turn.astray[0] // self._size]
                what = f"{where}, which is not its place in block {block}"
                self._violate("I6", what, block=block, request=turn.request)
            for at in range(first, len(turn.blocks)):
                written.add(turn.blocks[at])
        for turn in turns:  # what one turn writes, no other turn of the same step expects to be there
            self._write(turn)
        self._launches.append(Launch(frozenset(written), frozenset(used)))
        if len(self._changes) > MAX_CHANGES or len(self._checked) > MAX_CHECKED:
            self._changes.clear()
            self._checked.clear()

    def _ask_read(self, turn: PageTurn) -> None:
        size = self._size
        wrong: list[tuple[int, int, str]] = []
        for at in range(self._first_unchecked(turn), -(-turn.start // size)):
            block = turn.blocks[at]
            expected = HeldContent(turn.text, min((at + 1) * size, turn.start))
            if what := self._why_not(block, expected):
                wrong.append((at, block, what))
        for at, block, what in wrong[:_NAMED]:
            said = f"{turn.request} reads block {block} at position {at}, {what}"
            self._violate("I6", said, block=block, request=turn.request)
            self._blocks[block] = UNSEEN

    def _first_unchecked(self, turn: PageTurn) -> int:
        """How many blocks of a turn are known to be right; all whole ones that it reads are taken for checked from here on."""
        blocks = turn.blocks[: turn.start // self._size]
        known = self._checked.get(turn.request)
        first = 0 if known is None else len(known.blocks)
        if (
            known is not None
            and known.text is turn.text
            and first <= len(blocks)
            and known.blocks == blocks[:first]
            and known.members.isdisjoint(self._changes[known.seen :])
        ):
            known.members.update(blocks[first:])
            known.blocks, known.seen = blocks, len(self._changes)
            return first
        self._checked.pop(turn.request, None)
        self._checked[turn.request] = CheckedPrefix(turn.text, blocks, set(blocks), len(self._changes))
        return 0

    def _why_not(self, block: int, expected: HeldContent) -> str:
        if block not in self._blocks:
            return "which is free"
        held, job = self._blocks[block], self._loading.get(block)
        if job is not None and not (job.is_launched and job.is_waited_for):
            if not job.is_launched:
                return f"whose load, job {job.number}, is not launched"
            return f"while its load, job {job.number}, is out, and the step does not wait for it"
        if held is None:
            return "which nothing was computed into"
        is_ahead = held.text is expected.text and held.length > expected.length  # its last tokens are computed once more
        if not (held.is_same(expected) or is_ahead):
            return "which holds something else"
        return ""

    def _write(self, turn: PageTurn) -> None:
        size, story = self._size, self._mirror.story
        for at in range(turn.start // size, len(turn.blocks)):
            block = turn.blocks[at]
            self._blocks_written(turn, at, block)
            new = HeldContent(turn.text, min((at + 1) * size, turn.stop))
            if block in self._blocks:
                if self._blocks[block] is None:
                    story.note((block,), "filled for {}, position {}", turn.request, at)
                self._blocks[block] = new
                self._changes.append(block)

    def _blocks_written(self, turn: PageTurn, at: int, block: int) -> None:
        what = ""
        if block not in self._blocks:
            what = "which is free"
        elif (job := self._loading.get(block)) is not None and not job.is_waited_for:
            what = f"while job {job.number} loads into it"
        elif jobs := self._storing.get(block):
            what = f"while job {jobs[0].number} stores it"
        elif at * self._size >= turn.start and (held := self._blocks[block]) is not None:
            # begun anew, it holds nothing yet, or the same text, whose last tokens are computed once more
            what = "" if held.is_same(HeldContent(turn.text, held.length)) else "which holds something else"
        if what:
            said = f"{turn.request} writes block {block} at position {at}, {what}"
            self._violate("I1", said, block=block, request=turn.request)

    def unwaited(self, numbers: Sequence[int]) -> None:
        """The step that was to wait for these loads has been launched without."""
        for number in numbers:
            if number in self._jobs:
                self._violate("I6", f"a step was launched that does not wait for its load, job {number}", job=number)

    def computed(self) -> None:
        """The engine has the result of the oldest step in flight."""
        if self._launches:
            self._launches.popleft()

    # --- the cache ----------------------------------------------------------------------------------------------------------

    def cached(self, text: Text, blocks: Sequence[int], first: int = 0) -> None:
        """The engine keeps these blocks as those of a text, from its first token on; the *first* of them it had already."""
        is_told = False
        for at, block in list(enumerate(blocks))[first:]:
            if block not in self._blocks:
                self._violate("I4", f"block {block} is kept in the cache, and is free", block=block)
                return
            held, new = self._blocks[block], HeldContent(text, (at + 1) * self._size).settled()
            if not is_told and (held is None or not held.is_same(new)):
                is_told = True  # all that stand behind it hold something else, too
                what = f"block {block} is kept for position {at} of a text, and holds " + (
                    "nothing" if held is None else "something else"
                )
                self._violate("I8" if held is not None else "I6", what, block=block)
            if held is None or held is UNSEEN or is_told:
                self._changes.append(block)
            self._blocks[block] = new

    def unlocked_too_often(self, node: object) -> None:
        """A lock in the engine's cache is released that nothing holds any more."""
        self._violate("I4", f"a lock on node {node} is released more often than it was taken")

    # --- the whole ----------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """The engine forgets all that is cached, and all copies."""
        if self._launches:
            self._violate("I10", "the cache is reset while a step is in flight")
        self.dropped(list(self._jobs))
        if self._slots:
            self._violate("I13", f"the cache is reset, and {len(self._slots)} slots are still handed out")
        self._mirror.reset()

    def ended(self, request: str) -> None:
        """A request takes part in no further step."""
        self._checked.pop(request, None)

    def stands_still(self, requests: Sequence[str]) -> None:
        """The engine launches no step, although these requests wait."""
        self._num_still = 0 if self._jobs or self._launches or self.unseen_slots else self._num_still + 1
        if self._num_still == STILL:
            names = ", ".join(requests[:_NAMED]) + (" and others" if len(requests) > _NAMED else "")
            what = f"{names} wait, and for {STILL} looks no step was launched and nothing was in flight"
            self._violate("I12", what, request=requests[0] if requests else None)

    def rests(
        self,
        *,
        locked: Callable[[], int],
        kept: Callable[[], int | None],
        free: Callable[[], int | None] = lambda: None,
        host_locked: Callable[[], int] = lambda: 0,
    ) -> None:
        """The engine has no request, and no step in flight.

        *locked*: tokens that it could not evict; *kept*: tokens in its cache; *free*: tokens that it could hand out;
        *host_locked*: locks on its slots.
        """
        rest, violate = self._rest, self._violate
        self._ask_given_up()
        queued = [job.number for job in self._jobs.values() if not job.is_launched]
        if rest.lasts("queued", bool(queued)):
            what = "is queued, is not launched, and there is no request that would have it launched"
            violate("I5", f"job {queued[0]} {what}", job=queued[0])
        if self._jobs or self._launches:
            return
        if rest.lasts("locked", locked() > 0):
            violate("I12", f"{locked()} tokens of device memory are locked, and nothing uses them")
        if rest.lasts("host locked", host_locked() > 0):
            violate("I12", f"host memory is locked {host_locked()} times, and nothing uses it")
        count = kept()
        if count is not None and rest.lasts("kept", count != len(self._blocks) * self._size):
            out = len(self._blocks) * self._size
            violate("I13", f"{out} tokens of device memory are handed out, and the cache has {count}")
        can, size = free(), (self._mirror.num_blocks - 1 - len(self._blocks)) * self._size
        if can is not None and rest.lasts("free", can != size):
            violate("I13", f"{size} tokens of device memory are not handed out, and the engine can hand out {can}")
