"""How the slots of an engine's host are used: by the device, and by tiers below the host; and what was illegal in that.

*Rules of this file.* It knows no engine. Jobs of the device are followed by the mirror; here they appear only as a reservation
of slots (a store) or as holds on them (a load). A job of a tier either reads slots (the tier stores what they hold) or fills
them (the tier promotes what it has). After a violation the slots are taken for what the engine says, and things go on.

*Theory: the life of a slot.* A slot is reserved for a store of the device or for a promotion, and then written. Nobody reads it
until it is published. What a promotion brings is published only if its job reports it as arrived. A published slot has a hold
for each load and for each job of a tier that reads it; it is given away only when it has none.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, field

from blocklife.watch_states import BEFORE_LANDING, WRITTEN, CopyLife, SlotUse, UseLife

HISTORY = 8
"""How many events are kept of each slot."""
AS_WRITTEN = -1
"""The holds of a slot while it is written, as vLLM counts them."""
NUM_AGAIN = 3
"""How often the same content is promoted, while nothing is computed, before that counts as a circle."""
_MAX_COUNTED = 1 << 16

Tell = Callable[[str, str, str | None, tuple[str, ...]], None]
"""Takes a rule, what was wrong, the request if there is one, and the last events of the slot."""


@define(eq=False)
class TierJob:
    """A job of a tier that is not known to be over."""

    number: int
    tier: int
    request: str | None
    keys: Sequence[bytes]
    slots: Sequence[int]
    promotes: bool
    """Whether it fills slots; else it reads them."""
    life: CopyLife = field(factory=CopyLife)
    """LAUNCHED once it is handed over to its tier, LANDED once that has reported it."""
    is_believed: bool = False
    """Whether it counts as handed over when it is made, because the watch may not hear of it."""
    good: frozenset[bytes] = frozenset()
    """Once it has LANDED: the content that has arrived where it should."""
    open: set[int] = field(factory=set)
    """The slots that the engine has not settled: those not released, or neither published nor given back."""

    @property
    def name(self) -> str:
        """How messages call it; the jobs of the device have numbers of their own."""
        return f"tier job {self.number}"

    @property
    def is_out(self) -> bool:
        """Whether its tier has not reported it."""
        return self.life.state in BEFORE_LANDING


@define(eq=False)
class UsedSlot:
    """A slot that is reserved or holds content."""

    key: bytes
    life: UseLife = field(factory=UseLife)
    job: TierJob | None = None
    """The job that promotes it, once that is made."""
    loads: int = 0
    loose: int = 0
    """Holds for a job of a tier that is not made yet."""
    readers: list[TierJob] = field(factory=list)
    is_disputed: bool = False
    """Whether the engine counts its holds otherwise, or whose they are is not known: they are not compared any more."""
    events: deque[tuple[int, str, str]] = field(factory=lambda: deque(maxlen=HISTORY))

    @property
    def is_written(self) -> bool:
        """Whether content comes, which nobody may read yet."""
        return self.life.state in WRITTEN

    @property
    def holds(self) -> int:
        """How many holds it has."""
        return self.loads + self.loose + len(self.readers)

    @property
    def counted(self) -> int:
        """The same as vLLM counts: -1 while it is written."""
        return AS_WRITTEN if self.is_written else self.holds

    @property
    def writer(self) -> str:
        """What writes it, in words."""
        if self.life.state is SlotUse.STORING:
            return "a store of the device"
        return "a promotion" if self.job is None else self.job.name

    def bring(self, job: TierJob) -> None:
        """This job promotes it."""
        self.life.bring()
        self.job = job

    @property
    def reader(self) -> str:
        """What reads it, in words; empty if nothing does."""
        if self.readers:
            return self.readers[0].name
        return "a load" if self.loads else "a job to come" if self.loose else ""


class UsedSlots:
    """The used slots of one host tier.

    Invariant: ``_where`` maps the key of each used slot to it, and has no other keys. ``_pending`` has the RESERVED slots,
    ``_loose`` those that are held for a job that is not made yet.
    """

    def __init__(self, num_slots: int, tell: Tell, *, sees_all: bool) -> None:
        self._num_slots = num_slots
        self._tell = tell
        self.sees_all = sees_all
        """Whether they were followed from the start: then content that is not known of does not exist."""
        self.step = 0
        self._used: dict[int, UsedSlot] = {}
        self._where: dict[bytes, int] = {}
        self._pending: set[int] = set()
        self._loose: set[int] = set()
        self._promoted: Counter[bytes] = Counter()

    # --- reading ------------------------------------------------------------------------------------------------------------

    def holds(self, key: bytes) -> tuple[int, int] | None:
        """The slot of a key, and how many holds it has (-1 while it is written); None where the key has no slot."""
        slot = self._where.get(key)
        return None if slot is None else (slot, self._used[slot].counted)

    def history(self, slot: int) -> tuple[str, ...]:
        """The last events of a slot, oldest first."""
        used = self._used.get(slot)
        return () if used is None else tuple(f"step {step}, slot {slot}: {what}{who}" for step, what, who in used.events)

    # --- slots --------------------------------------------------------------------------------------------------------------

    def adopt(self, key: bytes, slot: int, holds: int) -> None:
        """Content from before the book: it is believed."""
        used = self._use(key, slot)
        if holds == AS_WRITTEN:
            used.life.reserve(promotes=False)
        else:
            used.life.publish()
        used.loads = max(holds, 0)
        used.is_disputed = holds > 0

    def evicted(self, keys: Iterable[bytes]) -> None:
        """The engine gives up this content for the sake of other content."""
        for slot, _ in self._known(keys):
            self._ask_free(slot, "is given away")
            self._empty(slot)

    def _ask_free(self, slot: int, does: str) -> None:
        used = self._used[slot]
        if used.is_written:
            self.odd("I1", f"slot {slot} {does} while {used.writer} writes it", used.job, slot)
        elif reader := used.reader:
            self.odd("I7", f"slot {slot} {does} while {reader} reads it", used.readers[0] if used.readers else None, slot)

    def reserved(self, keys: Sequence[bytes], slots: Sequence[int], *, promotes: bool, request: str | None) -> None:
        """Slots are reserved for content that comes: from the device, or from a tier (*promotes*)."""
        what = "promotion" if promotes else "store"
        if len(keys) != len(slots):
            self.odd("I15", f"{len(slots)} slots are reserved for {len(keys)} keys of a {what}", request)
        for key, slot in zip(keys, slots, strict=False):
            if not 0 <= slot < self._num_slots:
                self.odd("I4", f"slot {slot} is handed out, and the host has {self._num_slots} slots", request)
                continue
            if (older := self._where.get(key)) is not None:
                brought = self._used[older]
                there = f"{brought.writer} brings already" if brought.is_written else "is there already"
                self.odd("I14", f"slot {slot} is reserved for content that {there}, in slot {older}", request, older)
                self._empty(older)
            if (used := self._used.get(slot)) is not None:
                if not (used.is_written or used.holds):
                    self.odd("I4", f"slot {slot} is handed out, and still holds other content", request, slot)
                else:
                    self._ask_free(slot, "is handed out")
                self._empty(slot)
            used = self._use(key, slot)
            used.life.reserve(promotes=promotes)
            if promotes:
                self._pending.add(slot)
                self._count(key)
            self._note(used, "reserved for a " + what, "" if request is None else f" of request {request}")

    def published(self, keys: Iterable[bytes], *, promoted: bool) -> list[tuple[bytes, int]]:
        """The engine publishes what was written; *promoted*: as promoted. Returns what is readable from now on."""
        found: list[tuple[bytes, int]] = []
        for slot, used in self._known(keys):
            if not used.is_written:
                continue
            if used.life.state is not SlotUse.STORING:
                self._ask_arrived(slot, used)
            elif promoted:
                what = f"slot {slot} is published as promoted while {used.writer} writes it"
                self.odd("I6", what, slot=slot)
            self._make_ready(slot, used, "published")
            found.append((used.key, slot))
        return found

    def _ask_arrived(self, slot: int, used: UsedSlot) -> None:
        job = used.job
        if job is None:
            self.odd("I6", f"slot {slot} is published before its promotion has begun", slot=slot)
        elif job.is_out:
            self.odd("I6", f"slot {slot} is published while {job.name} still promotes into it", job, slot)
        elif used.key not in job.good:
            self.odd("I6", f"slot {slot} is published, although {job.name} has failed to promote into it", job, slot)

    def renamed(self, key: bytes, new: bytes) -> None:
        """Content that came under one key is found under another, which has no slot, from now on."""
        if (slot := self._where.pop(key, None)) is not None:
            self._where[new] = slot
            self._used[slot].key = new

    def dropped(self, keys: Iterable[bytes]) -> None:
        """The engine gives slots back whose content did not arrive."""
        for slot, used in self._known(keys):
            if used.is_written:
                if used.job is not None and used.job.is_out:
                    what = f"slot {slot} is given back while {used.job.name} still promotes into it"
                    self.odd("I1", what, used.job, slot)
                self._empty(slot)

    def hit(self, key: bytes, slot: int, holds: int) -> None:
        """A lookup says that the host has this content, ready, in this slot and with so many holds."""
        if (known := self._where.get(key)) is None:
            if self.sees_all:
                self.odd("I6", f"slot {slot} is a hit, and nothing was stored in it")
            if slot in self._used:
                self._empty(slot)
            self.adopt(key, slot, holds)
            return
        used = self._used[known]
        if used.is_written:
            self.odd("I6", f"slot {known} is a hit while {used.writer} still writes it", used.job, known)
            self._make_ready(known, used, "taken for ready")

    # --- holds --------------------------------------------------------------------------------------------------------------

    def held(self, keys: Sequence[bytes], slots: Sequence[int], *, by_tier: bool, request: str | None) -> None:
        """Content is held: for a load, or for a job of a tier that comes."""
        reads = "a tier" if by_tier else "a load"
        for key, slot in zip(keys, slots, strict=False):
            known = self._where.get(key)
            if known is None:
                if self.sees_all:
                    self.odd("I6", f"slot {slot} is held for {reads}, and nothing was stored in it", request)
                if slot in self._used:
                    self._empty(slot)
                self.adopt(key, slot, 0)
            elif known != slot:
                self.odd("I8", f"{reads} is to read slot {slot} for content that is in slot {known}", request, known)
            used = self._used[self._where[key]]
            if used.is_written:
                what = f"slot {slot} is held for {reads} while {used.writer} still writes it"
                self.odd("I6", what, request, slot)
                self._make_ready(self._where[key], used, "taken for ready")
            if by_tier:
                used.loose += 1
                self._loose.add(self._where[key])
            else:
                used.loads += 1
                self._note(used, "held for a load", "" if request is None else f" of request {request}")

    def released(self, keys: Iterable[bytes], *, by_tier: bool) -> None:
        """One hold on each is given up: by a load, or by a job of a tier."""
        for slot, used in self._known(keys):
            if not by_tier:
                if used.loads:
                    used.loads -= 1
                elif not used.is_disputed:
                    self.odd("I4", f"slot {slot} is let go of by a load, and no load holds it", slot=slot)
                continue
            job = next((each for each in used.readers if not each.is_out), None)
            if job is None and used.loose:
                self._tighten(slot, used)
            elif job is None and not used.readers:
                self.odd("I4", f"slot {slot} is let go of by a job of a tier, and none holds it", slot=slot)
            elif job is None:
                job = used.readers[0]
                self.odd("I7", f"slot {slot} is let go of while {job.name} still reads it", job, slot)
            if job is not None:
                used.readers.remove(job)
                job.open.discard(slot)
                self._note(used, "read by ", job.name)

    def counted(self, key: bytes, holds: int) -> None:
        """The engine counts so many holds of this content (-1: it is written)."""
        slot = self._where.get(key)
        if slot is None or (used := self._used[slot]).is_disputed or used.counted == holds:
            return
        used.is_disputed = True
        written = " (-1: it is written)" if AS_WRITTEN in (holds, used.counted) else ""
        what = f"the engine counts {holds} holds of slot {slot}, and there are {used.counted}{written}"
        self.odd("I4", what, slot=slot)

    # --- jobs of the tiers --------------------------------------------------------------------------------------------------

    def adopt_job(self, job: TierJob, holds: Sequence[int]) -> None:
        """A job from before the book: it is believed. *holds* are those of its slots, as the engine counts them."""
        for key, slot, count in zip(job.keys, job.slots, holds, strict=False):
            if (used := self._used.get(slot)) is None:
                used = self._use(key, slot)
                if job.promotes:
                    used.life.reserve(promotes=True)
                else:
                    used.life.publish()
                used.loads = max(count, 0)
            if job.promotes and used.life.state is SlotUse.RESERVED:
                used.bring(job)
            elif job.promotes:
                used.job = job
            else:
                used.readers.append(job)
                used.loads = max(used.loads - 1, 0)  # what is left when all jobs are adopted are holds of loads
            job.open.add(slot)

    def enter(self, job: TierJob) -> None:
        """A job begins to read its slots, or to fill them."""
        does = "promotes into" if job.promotes else "reads"
        for key, slot in zip(job.keys, job.slots, strict=False):
            if (known := self._where.get(key)) != slot:
                where = "nowhere" if known is None else f"in slot {known}"
                self.odd("I8", f"{job.name} {does} slot {slot} for content whose place is {where}", job, slot)
            if (used := self._used.get(slot)) is None:
                self.odd("I1" if job.promotes else "I6", f"{job.name} {does} slot {slot}, which nobody has reserved", job)
            elif self._takes_part(job, slot, used):
                job.open.add(slot)
                self._note(used, "being promoted by " if job.promotes else "being read by ", job.name)

    def _takes_part(self, job: TierJob, slot: int, used: UsedSlot) -> bool:
        """Check that a job may touch a slot. Returns whether it is filed there."""
        if job.promotes:
            if used.life.state is not SlotUse.RESERVED:
                now = f"which {used.writer} writes" if used.is_written else "which holds content"
                self.odd("I1", f"{job.name} promotes into slot {slot}, {now}", job, slot)
                return False
            used.bring(job)
            self._pending.discard(slot)
            return True
        if used.is_written:
            self.odd("I6", f"{job.name} reads slot {slot} while {used.writer} still writes it", job, slot)
            return False
        if used.loose:
            self._tighten(slot, used)
        else:
            self.odd("I7", f"{job.name} reads slot {slot}, and does not hold it", job, slot)
        used.readers.append(job)
        return True

    def leave(self, job: TierJob) -> None:
        """A job is over, and the engine has acted on its report: no slot has anything to do with it any more."""
        for slot in sorted(job.open):
            if job.promotes:
                left = "its content is neither published nor given up"
            else:
                left = "is still held for it"
                if job in (readers := self._used[slot].readers):
                    readers.remove(job)
                    self._used[slot].is_disputed = True
            self.odd("I5", f"{job.name} is over, and slot {slot}: {left}", job, slot)

    # --- steps, resets ------------------------------------------------------------------------------------------------------

    def ends_step(self, kept_back: Iterable[TierJob]) -> None:
        """The engine has ended a step. What was reserved for these jobs was told of already."""
        for job in kept_back:
            self._pending.difference_update(job.slots)
        self.ask_pending()
        self.ask_loose()

    def ask_pending(self) -> None:
        """What is reserved for promotions must have its jobs now."""
        for slot in sorted(self._pending):
            self.odd("I5", f"slot {slot} is reserved for a promotion, and no job brings it", slot=slot)
        self._pending.clear()

    def ask_loose(self) -> None:
        """What is held for jobs of tiers must have its jobs now."""
        for slot in sorted(self._loose):
            used = self._used[slot]
            self.odd("I4", f"slot {slot} is held for a job of a tier, and there is none", slot=slot)
            used.loose, used.is_disputed = 0, True
        self._loose.clear()

    def reset(self) -> None:
        """The engine forgets the content of the host."""
        for slot in list(self._used):
            self._empty(slot)
        self.sees_all = True

    def progressed(self) -> None:
        """Something was computed."""
        self._promoted.clear()

    def circles(self) -> str:
        """How often content was promoted since something was computed, if that leads nowhere; else empty."""
        found = self._promoted.most_common(1)
        if not found or found[0][1] < NUM_AGAIN:
            return ""
        self._promoted.clear()
        return f"{found[0][0].hex()[:16]} was promoted {found[0][1]} times, and given away each time before it was read"

    # --- inside -------------------------------------------------------------------------------------------------------------

    def odd(self, rule: str, what: str, of: TierJob | str | None = None, slot: int | None = None) -> None:
        """Something was illegal: of a job or of a request, and with the last events of a slot."""
        request = of.request if isinstance(of, TierJob) else of
        self._tell(rule, what, request, () if slot is None else self.history(slot))

    def _known(self, keys: Iterable[bytes]) -> Iterator[tuple[int, UsedSlot]]:
        """The slots of those of these keys that have one now."""
        for key in keys:
            if (slot := self._where.get(key)) is not None:
                yield slot, self._used[slot]

    def _count(self, key: bytes) -> None:
        if len(self._promoted) >= _MAX_COUNTED:
            self._promoted.clear()
        self._promoted[key] += 1

    def _use(self, key: bytes, slot: int) -> UsedSlot:
        """A slot that is free is used for this content."""
        self._where[key] = slot
        used = self._used[slot] = UsedSlot(key)
        return used

    def _make_ready(self, slot: int, used: UsedSlot, what: str) -> None:
        used.life.publish()
        self._pending.discard(slot)
        if used.job is not None:
            used.job.open.discard(slot)
        self._note(used, what)

    def _tighten(self, slot: int, used: UsedSlot) -> None:
        used.loose -= 1
        if not used.loose:
            self._loose.discard(slot)

    def _empty(self, slot: int) -> None:
        used = self._used.pop(slot)
        used.life.let_go()
        if self._where.get(used.key) == slot:
            del self._where[used.key]
        self._pending.discard(slot)
        self._loose.discard(slot)
        for job in _jobs_of(used):
            job.open.discard(slot)

    def _note(self, used: UsedSlot, what: str, who: str = "") -> None:
        used.events.append((self.step, what, who))


def _jobs_of(used: UsedSlot) -> Iterator[TierJob]:
    yield from used.readers
    if used.job is not None:
        yield used.job
