"""What any memory has that is followed by content: blocks and slots that are handed out, and the copies between them.

*Rules of this file.* It knows no engine, and not what a step computes: what it reads and writes is for the books that are built
on this one (`_pages`, `_states`). Blocks and their copies are the mirror's; what is here is told to it. A violation is noted in
the mirror's story, and the book then believes the engine.

*Theory: content by name.* What a block holds is set when a step that computes it is launched: a part of a text (`HeldContent`).
A store carries it to a slot, where it is when the store has landed; a load carries it back.

*Theory: order.* A step is in flight from its launch until the engine has its result. A copy that is launched meanwhile must be
ordered behind it if it reads what the step writes, or writes what the step uses. A load may be read before it has landed, by
a step that waits for it layer by layer, and by all later ones.

*Theory: two records of a copy.* This book judges a copy when the engine does something about it, from its queueing until the
engine takes note of its end. The mirror judges it in the device's order, from its launch on: it hears of that later, and takes
a copy that breaks a rule for over, so that it is told once. So the two may stand differently in the same life (`CopyLife`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from attrs import define, field

from blocklife.watch._mirror import Mirror
from blocklife.watch._records import AtPlace, CopyPiece, EngineCopy, Occupant
from blocklife.watch._texts import UNSEEN, HeldContent, KeyedContents, SlotContents, name_behind
from blocklife.watch_states import BEFORE_LANDING, CopyLife, CopyState

PATIENCE = 3
"""So many looks at an engine at rest must find the same before it is a violation: what has just ended settles by the next."""
STILL = 64
"""The same for what threads of the engine may be about, and for an engine that does nothing although requests wait."""
OVERDUE = 32
"""Steps after which a landed copy must have been taken note of."""
OVERDUE_AMONG_RANKS = 256
"""The same where the ranks of an engine wait for the slowest of them."""


@define(eq=False)
class ContentJob(Occupant):
    """A copy, from the moment it is queued until it has landed."""

    number: int
    is_store: bool
    blocks: Sequence[int]
    slots: Sequence[int]
    held: list[HeldContent | None]
    """What is copied, as it was when the job was queued."""
    life: CopyLife = field(factory=CopyLife)
    """It may have LANDED, for the mirror too, before the engine takes note: when all that comes for its blocks waits for it."""
    is_waited_for: bool = False
    """A load: whether a step was launched that waits for it, so that all later ones come behind it, too."""

    def __attrs_post_init__(self) -> None:
        self.appear()

    @property
    def is_launched(self) -> bool:
        """Whether it is past its launch."""
        return self.life.state is not CopyState.QUEUED


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

    def lasts(self, what: str, still: bool, patience: int = PATIENCE) -> bool:
        """Whether this has been so for that many looks, and was not told yet."""
        count = self.seen[what] = self.seen.get(what, 0) + 1 if still else 0
        if not still:
            self.told.discard(what)
        if count < patience or what in self.told:
            return False
        self.told.add(what)
        return True


class RestCounts(Protocol):
    """What an engine at rest says of one memory, in the unit of its book; None where it does not say."""

    def locked(self) -> int:
        """What it could not evict."""

    def kept(self) -> int | None:
        """What is in its cache on the device."""

    def free(self) -> int | None:
        """What it could hand out."""

    def host_free(self) -> int | None:
        """The same of the host."""

    @property
    def host_locked(self) -> Callable[[], int]:
        """Locks on its slots."""

    @property
    def slots_rest(self) -> Callable[[], bool]:
        """Whether nothing but the cache and copies has any slots in hand."""


class ContentBook:
    """The book of one device memory and the host memory behind it.

    *size*: what the engine counts as one block, in its own *unit*. *sees_steps*: whether the steps are reported, too; without
    them content is believed.
    """

    unit = "tokens"
    """What the engine counts its memory in."""

    def __init__(self, mirror: Mirror, size: int, num_slots: int, *, sees_steps: bool) -> None:
        self._mirror = mirror
        self._violate = mirror.story.violate
        self._size = size
        self._num_slots = num_slots
        self._sees_steps = sees_steps
        self._blocks: dict[int, HeldContent | None] = {}
        """What each block holds that is handed out; None: nothing yet."""
        self._slots = SlotContents()
        self._jobs: dict[int, ContentJob] = {}
        self._using = AtPlace[ContentJob]()
        """Slot to the jobs that read or write it, queued or launched."""
        self._loading: dict[int, ContentJob] = {}
        """Block to the load that fills it, queued or launched."""
        self._storing = AtPlace[ContentJob]()
        self._launches: deque[Launch] = deque()
        self._given_up: dict[str, set[int]] = {"block": set(), "slot": set()}
        """What the engine's cache has evicted, until it is freed."""
        self._number = 0
        self._rest = AtRest()
        self._counted = AtRest()
        self._loose: set[int] = set()
        """Slots that are handed out, and that neither a store nor the engine's cache has taken."""
        self._read: dict[int, HeldContent] = {}
        """Slots that were filled from below the host, until the engine's cache has taken them."""
        self.sees_reads = False
        """Whether the ears report every slot that is filled from below the host."""
        self.unseen_slots = False
        """Whether slots are filled by others than these jobs, from a storage, say."""
        self.sees_takers = True
        """Whether it is told of all slots that the engine's cache takes, so that one that nobody has taken is lost."""

    # --- reading ------------------------------------------------------------------------------------------------------------

    @property
    def num_in_flight(self) -> int:
        """How many steps are in flight."""
        return len(self._launches)

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
        self._changed(good)

    def given_back(self, blocks: Sequence[int]) -> dict[int, HeldContent | None]:
        """The engine frees these blocks. Returns what they held, for `kept_after_all`."""
        held: dict[int, HeldContent | None] = {}
        for block in blocks:
            if block in self._blocks:
                held[block] = self._blocks.pop(block)
            else:
                self._violate("I4", f"block {block} is freed, and nobody holds it", block=block)
            self._loading.pop(block, None)
        self._given_up["block"].difference_update(blocks)
        self._changed(blocks)
        self._mirror.given_back(blocks)
        return held

    def kept_after_all(self, held: Mapping[int, HeldContent | None]) -> None:
        """The call that was to free these blocks has failed."""
        blocks = [block for block in held if block not in self._storing]  # the mirror need not know of one that is stored
        self._mirror.handed_out(f"step {self._mirror.steps + 1}", 0, blocks, [None] * len(blocks))
        self._blocks.update(held)
        self._changed(list(held))

    def all_given_back(self, left: Sequence[int] = ()) -> None:
        """Every block is free: the engine begins anew. *left*: blocks that are not, after all."""
        if left:
            self._violate("I13", f"all blocks are given back, and {len(left)} of them are not free", block=left[0])
        self._mirror.given_back(list(self._blocks))
        self._given_up["block"].clear()
        self._blocks.clear()

    def _changed(self, blocks: Sequence[int]) -> None:
        """Something has become of these blocks."""

    # --- slots --------------------------------------------------------------------------------------------------------------

    def slots_handed_out(self, slots: Sequence[int]) -> None:
        """The engine hands these slots out."""
        for slot in slots:
            if not 0 <= slot < self._num_slots:
                self._violate("I4", f"slot {slot} is handed out, and the host has {self._num_slots}")
            elif slot in self._slots:
                self._violate("I4", f"slot {slot} is handed out, and is not free")
        self._slots.hand_out(slots, UNSEEN if self.unseen_slots else None)
        for slot in slots:
            self._read.pop(slot, None)
        if self.sees_takers:
            self._loose.update(slots)

    def slots_given_back(self, slots: Sequence[int]) -> dict[int, HeldContent | None]:
        """The engine frees these slots: no copy may read or write them. Returns what they held, for `slots_kept_after_all`."""
        held: dict[int, HeldContent | None] = {}
        for slot in slots:
            if slot in self._slots:
                held[slot] = self._slots.get(slot)
            else:
                self._violate("I4", f"slot {slot} is freed, and nobody holds it")
            for job in self._using.get(slot, ()):
                rule, does = ("I1", "writes") if job.is_store else ("I7", "loads from")
                self._violate(rule, f"slot {slot} is freed while job {job.number} {does} it", job=job.number)
            self._slots.drop(slot)
            self._read.pop(slot, None)
        self._given_up["slot"].difference_update(slots)
        self._loose.difference_update(slots)
        return held

    def slots_kept_after_all(self, held: Mapping[int, HeldContent | None]) -> None:
        """The call that was to free these slots has failed."""
        for slot, content in held.items():
            self._slots.fill(slot, content)

    def all_slots_given_back(self, left: Sequence[int] = ()) -> None:
        """Every slot is free. *left*: slots that are not, after all."""
        if left:
            self._violate("I13", f"all slots are given back, and {len(left)} of them are not free")
        self._slots.clear()
        self._read.clear()
        self._given_up["slot"].clear()
        self._loose.clear()

    def given_up(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """The engine's cache has evicted these blocks and slots; it must free them ahead of its next step."""
        self._given_up["block"].update(block for block in blocks if block in self._blocks)
        self._given_up["slot"].update(slot for slot in slots if slot in self._slots)

    def reloaded(self, blocks: Sequence[int]) -> None:
        """The engine's cache has these blocks again, which a load fills. Of no interest where content alone is followed."""

    # --- below --------------------------------------------------------------------------------------------------------------

    def kept_below(
        self, keys: Sequence[str], slots: Sequence[int], known: KeyedContents, chain: Sequence[Sequence[int]] = ()
    ) -> None:
        """The engine has these slots written below its host, each under its key.

        *chain*: the tokens of each, where each stands behind the one before it.
        """
        before: HeldContent | None = None
        for at, (key, slot) in enumerate(zip(keys, slots, strict=False)):
            held, rule, what = self._slots.get(slot), "", ""
            if slot not in self._slots or held is None:
                rule, what = "I6", "is free" if slot not in self._slots else "nothing was stored in it"
            elif not held.is_same(known[key]):
                rule, what = "I8", "the key stands for other content"
            elif at < len(chain) and before is not None and None not in (before.name, held.name):
                is_next = held.name == name_behind(before.name or 0, chain[at])
                rule, what = "I8", "" if is_next else "it holds other tokens"
            if what:
                self._violate(rule, f"slot {slot} is written below the host under the key {key}, and {what}")
                return  # the ones behind it are wrong in the same way
            if held is not None:
                known.learn(key, held)
            before = held

    def read_below(self, keys: Sequence[str], slots: Sequence[int], known: KeyedContents) -> None:
        """What is kept below under these keys was read into these slots."""
        self._read.update((slot, known[key]) for key, slot in zip(keys, slots, strict=False) if slot in self._slots)
        if not self.sees_takers:  # it is the cache's from here on, for all that is heard
            for key, slot in zip(keys, slots, strict=False):
                if slot in self._slots:
                    self._slots.fill(slot, known[key])

    def _ask_given_up(self) -> None:
        for name, places in self._given_up.items():
            if places:
                self._violate("I13", f"{name} {min(places)} was evicted and not freed: no call can hand it out again")
                places.clear()

    # --- copies -------------------------------------------------------------------------------------------------------------

    def queued(self, blocks: Sequence[int], slots: Sequence[int], *, is_store: bool) -> int:
        """The engine wants a copy between these blocks and slots. Returns its number."""
        self._number += 1
        found = map(self._blocks.get, blocks) if is_store else map(self._slots.get, slots)
        held = [None if each is None else each.without_text() for each in found]
        job = ContentJob(self._number, is_store, blocks, slots, held)
        self._jobs[job.number] = job
        if is_store:
            self._loose.difference_update(slots)
            self._ask_stored(job)
        else:
            self._ask_loaded(job)
        self._using.add(slots, job)
        return job.number

    def _ask_stored(self, job: ContentJob) -> None:
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
            self._storing.add((block,), job)

    def _ask_loaded(self, job: ContentJob) -> None:
        for block, slot, held in zip(job.blocks, job.slots, job.held, strict=False):
            if slot not in self._slots:
                self._violate("I7", f"job {job.number} loads from slot {slot}, which is free", block=block, job=job.number)
            elif held is None:
                writer = next((each for each in self._using.get(slot, ()) if each.is_store), None)
                why = "which nothing was stored in" if writer is None else f"while job {writer.number} still writes it"
                self._violate("I6", f"job {job.number} loads from slot {slot}, {why}", block=block, job=job.number)
            self._loading[block] = job
        self._changed(job.blocks)

    def launched_copies(self, numbers: Sequence[int], *, is_ordered: bool) -> None:
        """The engine launches these copies together; *is_ordered*: behind the steps in flight."""
        for number in numbers:
            if (job := self._jobs.get(number)) is None:
                continue
            if not job.is_launched:
                job.life.launch()
            if not is_ordered:
                self._ask_order(job)
            places, now = (job.blocks, self._blocks.get) if job.is_store else (job.slots, self._slots.get)
            for place, held in zip(places, job.held, strict=False):
                self._ask_same(job, place, held, now(place))
            if not job.is_store:
                self._changed(job.blocks)
                self._blocks.update(
                    (block, held or UNSEEN) for block, held in zip(job.blocks, job.held, strict=False) if block in self._blocks
                )
            moved = zip(job.blocks, job.slots, strict=False)  # but for the null block, which was named when queued
            pieces = [CopyPiece(0, block, None, slot) for block, slot in moved if 0 < block < self._mirror.num_blocks]
            (self._mirror.stored if job.is_store else self._mirror.loaded)([EngineCopy(number, None, pieces)])

    def moved(self, numbers: Sequence[int], pairs: Collection[tuple[int, int]]) -> None:
        """The copies of these jobs, which are launched now, move these pairs of a block and a slot whole, and no others."""
        for job in [job for number in numbers if (job := self._jobs.get(number)) is not None]:
            for block, slot in zip(job.blocks, job.slots, strict=False):
                if (block, slot) not in pairs:
                    rule, does = ("I8", "stores block {} in slot {}") if job.is_store else ("I7", "loads block {} from slot {}")
                    why = "its copy moves other places, or not in each layer"
                    self._violate(rule, f"job {job.number} {does.format(block, slot)}, and {why}", block=block, job=job.number)
                    break

    def misfits(self, what: str) -> None:
        """What a copy names of the device is not as much as what it names of the host."""
        self._violate("I15", what)

    def torn(self, what: str, number: int, *, is_store: bool) -> None:
        """A copy names parts of blocks, or of slots, or mixes them up."""
        self._violate("I8" if is_store else "I7", what, job=number)

    def _ask_same(self, job: ContentJob, place: int, was: HeldContent | None, now: HeldContent | None) -> None:
        if was is None or (now is not None and was.is_same(now)):
            return
        name, does, block = ("block", "stores", place) if job.is_store else ("slot", "loads from", None)
        what = f"job {job.number} {does} {name} {place}, which was given away since the job was queued"
        self._violate("I7", what, block=block, job=job.number)

    def _ask_order(self, job: ContentJob) -> None:
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
        self._land(job)
        job.life.end()

    def overdue(self, numbers: Sequence[int], *, among_ranks: bool) -> None:
        """The device has ended these copies long ago, and the engine has not taken note of it."""
        for number in [each for each in numbers if each in self._jobs][:1]:
            ago = OVERDUE_AMONG_RANKS if among_ranks else OVERDUE
            why = "other ranks have not counted so many" if among_ranks else "the engine does not take note of it"
            self._violate("I9" if among_ranks else "I5", f"job {number} has landed {ago} steps ago, and {why}", job=number)

    def made_alone(self, number: int) -> None:
        """A load has landed on all ranks that have made it, and not all of them count it."""
        if number in self._jobs:
            what = "a step whose result is here has waited for it, and not all ranks count it: another has not made it"
            self._violate("I9", f"job {number} is a load that ranks part in: {what}", job=number)

    def _land(self, job: ContentJob) -> None:
        """Nothing that comes for its blocks can meet it any more."""
        if job.life.state in BEFORE_LANDING:
            job.life.land()
            self._mirror.reported(job.number, 1)

    def _end(self, job: ContentJob) -> None:
        self._using.remove(job.slots, job)
        self._storing.remove(job.blocks, job)
        job.disappear()
        for block in job.blocks:
            if self._loading.get(block) is job:
                del self._loading[block]

    # --- steps --------------------------------------------------------------------------------------------------------------

    def _begins(self, waits: Collection[int]) -> None:
        """A step is launched that waits for these loads."""
        self._rest = AtRest()
        self._ask_given_up()
        self._wait(waits)

    def _wait(self, numbers: Collection[int]) -> None:
        """What comes next waits for these loads."""
        for number in numbers:
            if (job := self._jobs.get(number)) is not None:
                job.is_waited_for = True

    def _why_unready(self, block: int) -> str:
        """Why a block cannot be read now, whatever is expected there; empty if it can."""
        if block not in self._blocks:
            return "which is free"
        job = self._loading.get(block)
        if job is not None and not (job.is_launched and job.is_waited_for):
            if not job.is_launched:
                return f"whose load, job {job.number}, is not launched"
            return f"while its load, job {job.number}, is out, and the step does not wait for it"
        return "which nothing was computed into" if self._blocks[block] is None else ""

    def _why_unwritable(self, block: int) -> str:
        """Why a block may not be written now; empty if it may."""
        if block not in self._blocks:
            return "which is free"
        if (job := self._loading.get(block)) is not None and not job.is_waited_for:
            return f"while job {job.number} loads into it"
        return f"while job {jobs[0].number} stores it" if (jobs := self._storing.get(block)) else ""

    def unwaited(self, numbers: Sequence[int], layer: int | None = None) -> None:
        """The step that was to wait for these loads is launched without, or this *layer* of it reads and has not waited."""
        for number in numbers:
            if number in self._jobs:
                what = f"a step was launched that does not wait for its load, job {number}"
                if layer is not None:
                    what = f"layer {layer} of a step reads, and has not waited for its part of the load, job {number}"
                self._violate("I6", what, job=number)

    def computed(self) -> None:
        """The engine has the result of the oldest step in flight."""
        if self._launches:
            self._launches.popleft()

    # --- the whole ----------------------------------------------------------------------------------------------------------

    def unlocked_too_often(self, node: object) -> None:
        """A lock in the engine's cache is released that nothing holds any more."""
        self._violate("I4", f"a lock on node {node} is released more often than it was taken")

    def reset(self) -> None:
        """The engine forgets all that is cached, and all copies."""
        if self._launches:
            self._violate("I10", "the cache is reset while a step is in flight")
        for job in self._jobs.values():
            job.life.abandon()
        for jobs in (self._jobs, self._using, self._loading, self._storing):
            jobs.clear()
        if self._slots:
            self._violate("I13", f"the cache is reset, and {len(self._slots)} slots are still handed out")
        self._mirror.reset()

    def rests(self, counts: RestCounts) -> None:
        """The engine has no request, and no step in flight."""
        rest, violate, memory = self._rest, self._violate, f"{self.unit} of device memory"
        self._ask_given_up()
        queued = [job.number for job in self._jobs.values() if not job.is_launched]
        if rest.lasts("queued", bool(queued)):
            what = "is queued, is not launched, and there is no request that would have it launched"
            violate("I5", f"job {queued[0]} {what}", job=queued[0])
        if self._jobs or self._launches:
            return
        if rest.lasts("locked", (locked := counts.locked()) > 0):
            violate("I12", f"{locked} {memory} are locked, and nothing uses them")
        if rest.lasts("host locked", (host_locked := counts.host_locked()) > 0):
            violate("I12", f"host memory is locked {host_locked} times, and nothing uses it")
        if rest.lasts("loose", bool(self._loose) and counts.slots_rest(), STILL):
            what = f"{len(self._loose)} slots, {min(self._loose)} among them, are handed out, and neither the cache nor a copy"
            violate("I13", f"{what} has them: nothing will give them back")
        count = counts.kept()
        if count is not None and rest.lasts("kept", count != len(self._blocks) * self._size):
            out = len(self._blocks) * self._size
            violate("I13", f"{out} {memory} are handed out, and the cache has {count}")
        can, size = counts.host_free(), (self._num_slots - len(self._slots)) * self._size
        if can is not None and rest.lasts("host free", can != size):
            violate("I13", f"{size} {self.unit} of host memory are not handed out, and the engine can hand out {can}")

    def counted(self, counts: RestCounts) -> None:
        """The engine plans a step, or finds nothing to do: what it can hand out is all that is not handed out."""
        can, size = counts.free(), (self._mirror.num_blocks - 1 - len(self._blocks)) * self._size
        if can is not None and self._counted.lasts("free", can != size):
            what = f"{size} {self.unit} of device memory are not handed out, and the engine can hand out {can}"
            self._violate("I13", what)
