"""The jobs of an engine: what each copies, which workers have reported, and what they leave in the slots of the host.

*Rules of this file.* Whether a copy is lawful is decided here, from the pieces that its job names and from what the other jobs
in flight touch. If there is a ledger, it is told of each job, and follows what it can of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK
from blocklife.watch._holders import ALLOCATED, FREED, Holders
from blocklife.watch._records import AtPlace, CopyPiece, EndedJobs, EngineCopy, MirrorSizes, Occupant
from blocklife.watch._story import BlockHistory
from blocklife.watch._violations import WatchViolation
from blocklife.watch_states import OUT, CopyLife, CopyState


class Content(NamedTuple):
    """The content of a slot, from the engine."""

    key: bytes | None
    parts: int | None
    """A bit for each part that was written; None if unknown."""


class Host(dict[int, Content]):
    """The contents of the engine's slots, by its keys, from what it says of its jobs; empty once the engine has forgotten all.

    `SlotContents` has them by tokens, and as soon as something is heard of them; `UsedSlots` has who reserves and holds a slot.
    """

    def __init__(self, num_slots: int, *, keeps: bool) -> None:
        super().__init__()
        self.num_slots = num_slots
        self._keeps = keeps
        self.sees_all = False
        """Whether every store was seen, so that a slot without known content is empty."""

    def wrong(self, piece: CopyPiece) -> str:
        """What is wrong with a slot's content for a load; empty if it is what the load expects."""
        found = self.get(-1 if piece.slot is None else piece.slot)
        if found is None:
            return "nothing was stored in it" if self._keeps and self.sees_all else ""
        if found.key is not None and piece.key is not None and found.key != piece.key:
            return f"it holds {found.key.hex()[:16]}, not {piece.key.hex()[:16]}"
        if found.parts is not None and not found.parts >> piece.offset & 1:
            return f"nothing was stored in its part {piece.offset}"
        return ""

    def stored(self, pieces: Sequence[CopyPiece]) -> None:
        """Record that a store, right or wrong, has written these pieces into their slots."""
        if not self._keeps:
            return
        new: dict[int, Content] = {}
        for piece in pieces:
            if (slot := piece.slot_among(self.num_slots)) is not None:
                parts = new[slot].parts if slot in new else 0
                new[slot] = Content(piece.key, (parts or 0) | 1 << piece.offset)
        self.update(new)

    def promoted(self, slot: int, key: bytes) -> None:
        """A tier below has filled a slot, all of it."""
        if self._keeps and 0 <= slot < self.num_slots:
            self[slot] = Content(key, None)


class FollowedJob(Occupant):
    """A job that is in flight, or that not every worker has reported."""

    __slots__ = ("blocks", "copy", "is_store", "life", "reports", "slots", "targets")

    def __init__(self, copy: EngineCopy, is_store: bool) -> None:
        self.appear()
        self.copy = copy
        self.is_store = is_store
        self.life = CopyLife(CopyState.LAUNCHED)
        self.blocks: Sequence[int] = ()
        """The blocks that it touches."""
        self.slots: Sequence[int] = ()
        """The slots of the engine that it touches."""
        self.targets: Sequence[int] = ()
        """The lives that it fills."""
        self.reports = 0

    @property
    def is_out(self) -> bool:
        """Whether it may still move content."""
        return self.life.state in OUT


class FollowedJobs:
    """All jobs in flight.

    Invariant: an entry of ``touching`` and ``_using`` has exactly the jobs of its place that may move content.
    """

    def __init__(self, story: BlockHistory, holders: Holders, host: Host, sizes: MirrorSizes) -> None:
        self._story = story
        self._holders = holders
        self._host = host
        self._lives = holders.lives
        self._state = holders.lives.state
        self._num_groups = sizes.num_groups
        self._num_workers = sizes.num_workers
        self._told = holders.lives.told
        self._known: dict[int, FollowedJob] = {}
        self.touching = AtPlace[FollowedJob]()
        """Block to the jobs that read or write it."""
        self._using = AtPlace[FollowedJob]()
        """The same for slots."""
        self._landing: dict[int, FollowedJob] = {}
        """The jobs that were reported since `land` was last called."""
        self.has_landed = False
        """Whether there are any such."""
        self.gave_up = False
        """Whether any job was given up before its end was reported."""
        self._ended = EndedJobs()
        self.forgotten = -1
        """The latest job from before the watch, or a reset: late and repeated reports of it and of older ones are lawful."""
        self._unflushed: dict[int, WatchViolation] = {}

    def __len__(self) -> int:
        """How many jobs are kept."""
        return len(self._known)

    def left_behind(self) -> list[int]:
        """The jobs that may still move content."""
        return [number for number, job in self._known.items() if job.is_out]

    def stores_out(self) -> list[EngineCopy]:
        """The stores that may still read their blocks."""
        return [job.copy for job in self._known.values() if job.is_store and job.blocks and job.is_out]

    def has_loads_out(self) -> bool:
        """Whether any of them is a load."""
        return any(not job.is_store and job.is_out for job in self._known.values())

    # --- stores -------------------------------------------------------------------------------------------------------------

    def store(self, copies: Iterable[EngineCopy]) -> None:
        """Check each piece of these stores; the ledger is told of those that break no rule."""
        begun, state, holders = [], self._state, self._holders
        for copy in copies:
            lawful = self._stored(self._add(copy, is_store=True))
            for piece in lawful:
                if state[piece.block] == FREED and not holders.is_unused(piece.block):
                    holders.believe(piece.block, piece.group)
            begun.append((copy, holders.of(copy.request), lawful))
        if self._told is not None:
            self._told.store(begun)

    def _stored(self, job: FollowedJob) -> list[CopyPiece]:
        """The pieces of a store that break no rule."""
        copy, touching, holders = job.copy, self.touching, self._holders
        if not copy.pieces:
            return []
        self._claim_slots(job)
        tenure, epoch, size = holders.tenure(copy.request), self._lives.epoch, self._num_groups
        job.blocks = [piece.block for piece in copy.pieces]
        lawful: list[CopyPiece] = []
        untold: list[int] = []
        for piece in copy.pieces:
            block, position = piece.block, piece.position
            life = epoch[block] << EPOCH_SHIFT | block
            wanted = life if position is None else tenure.get(position * size + piece.group, life)
            if wanted == life and block not in touching:  # the usual case
                touching[block] = job.alone
                untold.append(block)
                lawful.append(piece)
                continue
            self._report_stored(job, untold)
            untold = []
            rule, what = self._unlawful_store(copy, piece)
            self._touch(job, block)
            if rule:
                self._story.violate(rule, what, block=block, request=copy.request, job=copy.number)
            else:
                untold.append(block)
                lawful.append(piece)
        self._report_stored(job, untold)
        self._host.stored(copy.pieces)
        return lawful

    def _report_stored(self, job: FollowedJob, blocks: list[int]) -> None:
        if blocks:
            self._story.note(blocks, "job {} stores it{}", job.copy.number, of(job.copy.request))

    def _unlawful_store(self, copy: EngineCopy, piece: CopyPiece) -> tuple[str, str]:
        """The rule that storing a piece breaks, and how; empty if it breaks none."""
        block = piece.block
        if wrong := self.not_its_place(copy.request, piece.group, piece.position, block):
            return "I8", f"job {copy.number} stores block {block} for {wrong}"
        for other in self.touching.get(block, ()):
            if other.is_store and other.life.state is CopyState.LAUNCHED and self._same_content(other, piece):
                if other.copy is copy:
                    return "I14", f"job {copy.number} stores block {block} twice"
                return "I14", f"job {copy.number} stores block {block} while job {other.copy.number} stores the same life of it"
        if self.is_loading(block):
            return "I6", f"job {copy.number} stores block {block} while its load is out"
        return "", ""

    def is_loading(self, block: int) -> bool:
        """Whether a load in flight fills a block."""
        touching = self.touching.get(block)
        return touching is not None and any(not job.is_store for job in touching)

    def not_its_place(self, request: str | None, group: int, position: int | None, block: int) -> str:
        """The position, and what is wrong, if the block is not the one that the request had there; otherwise empty."""
        wanted = self._holders.stands(request, group, position)
        if wanted is None or wanted in (self._holders.life(block), self._holders.content(block)):
            return ""
        where = f"group {group}, position {position}"
        if wanted & ID_MASK != block:
            return f"{where}, where block {wanted & ID_MASK} stands"
        return f"{where}, but that life of it is over: the block was handed out again since"

    def _same_content(self, other: FollowedJob, piece: CopyPiece) -> bool:
        """Whether a store in flight has this block under the same key; chunks with a common prefix share blocks, not keys."""
        keys = [each.key for each in other.copy.pieces if each.block == piece.block]
        return piece.key is None or None in keys or piece.key in keys

    def _claim_slots(self, job: FollowedJob) -> None:
        """Check that no other job writes or reads the slots that a store overwrites."""
        using, end = self._using, self._host.num_slots
        parts = [(slot, piece.offset) for piece in job.copy.pieces if (slot := piece.slot_among(end)) is not None]
        if len(set(parts)) < len(parts):
            slot = next(slot for at, (slot, offset) in enumerate(parts) if (slot, offset) in parts[:at])
            what = f"job {job.copy.number} writes slot {slot} twice"
            self._story.violate("I1", what, request=job.copy.request, job=job.copy.number)
        job.slots = slots = list(dict.fromkeys([slot for slot, _ in parts]))
        for slot in () if using.keys().isdisjoint(slots) else slots:
            for other in using.get(slot, ()):
                does, rule = ("writes", "I1") if other.is_store else ("loads from", "I7")
                number = job.copy.number
                what = f"job {number} overwrites slot {slot} while job {other.copy.number} {does} it"
                self._story.violate(rule, what, request=job.copy.request, job=number)
                self.finish(other)
        using.add(slots, job)

    # --- tiers below the host -----------------------------------------------------------------------------------------------

    def published(self, slots: Sequence[int]) -> None:
        """The connector lets these slots be read: every store into them must be over."""
        self._must_be_stored(slots, "is published")

    def lend(self, holder: str, slots: Sequence[int]) -> None:
        """A job of a tier reads these slots."""
        self._must_be_stored(slots, f"is read by {holder}")
        if self._told is not None:
            self._told.demote(holder, slots)

    def bring_up(self, content: Sequence[tuple[bytes, int]]) -> None:
        """A tier has filled these slots, each with the content of its key: no other job may touch them."""
        for key, slot in content:
            for other in self._using.get(slot, ()):
                does = "writes" if other.is_store else "reads"
                self._break("I1", f"slot {slot} is promoted into while job {other.copy.number} {does} it", other)
            self._host.promoted(slot, key)
            if self._told is not None:
                self._told.bring_up(slot, key)

    def _must_be_stored(self, slots: Sequence[int], what: str) -> None:
        if self._using.keys().isdisjoint(slots):
            return
        for slot in slots:
            for other in self._using.get(slot, ()):
                if other.is_store and other.life.state is CopyState.LAUNCHED:
                    self._break("I6", f"slot {slot} {what} while job {other.copy.number} still writes it", other)

    # --- loads --------------------------------------------------------------------------------------------------------------

    def load(self, copy: EngineCopy) -> None:
        """Check whether the source of each piece has been stored; follow those whose target was handed out for it."""
        job = self._add(copy, is_store=False)
        job.blocks = [piece.block for piece in copy.pieces]
        fresh, where = self._holders.fresh, self._holders.where
        good: list[CopyPiece] = []
        filled: set[int] = set()
        for piece in copy.pieces:
            self._check_source(job, piece)
            self._check_target(job, piece)
            is_first = piece.block not in filled
            filled.add(piece.block)
            self._touch(job, piece.block)
            self._story.note((piece.block,), "job {} loads it{}", copy.number, of(copy.request))
            if is_first and piece.block in fresh and self._state[piece.block] == ALLOCATED:
                good.append(piece)
            else:
                self._story.counts["not followed"] += 1
        targets = {each for piece in good for each in where.get(piece.block, ()) if piece.block in each.held}
        if len(targets) == 1:
            for piece in good:
                del fresh[piece.block]
            job.targets = [self._holders.life(piece.block) for piece in good]
            if self._told is not None:
                self._told.load(copy, targets.pop(), good)
        if copy.sync:
            self.finish(job)

    def _check_source(self, job: FollowedJob, piece: CopyPiece) -> None:
        """Check that a load reads slots whose store is complete, with the content that its lookup found."""
        slot = piece.slot_among(self._host.num_slots)
        if slot is None:
            return
        number = job.copy.number
        what = ""
        for other in self._using.get(slot, ()):
            if other.is_store:
                what = f"job {number} loads slot {slot} while job {other.copy.number} still writes it"
                self.finish(other)
        if not what and (wrong := self._host.wrong(piece)):
            what = f"job {number} loads from slot {slot}, but {wrong}"
            self._host[slot] = Content(None, None)  # unknown from now on
        if what:
            self._story.violate("I6", what, block=piece.block, request=job.copy.request, job=number)
        if slot not in job.slots:
            job.slots = [*job.slots, slot]
            self._using.add((slot,), job)

    def _check_target(self, job: FollowedJob, piece: CopyPiece) -> None:
        """Check that a load fills the block of its request, at the position of its lookup, and no other."""
        copy, block = job.copy, piece.block
        for other in self.touching.get(block, ()):
            does = "reads it" if other.is_store else "writes it"
            what = f"job {copy.number} loads into block {block} " + (
                "twice" if other is job else f"while job {other.copy.number} {does}"
            )
            self._story.violate("I1", what, block=block, request=copy.request, job=copy.number)
            if other is not job:
                self.finish(other)
        what = self.not_its_place(copy.request, piece.group, piece.position, block)
        if not what and self._holders.is_known_without(copy.request, block):
            what = f"request {copy.request}, which does not hold it"
        if what:
            what = f"job {copy.number} loads into block {block} for {what}"
            self._story.violate("I7", what, block=block, request=copy.request, job=copy.number)

    def compute(self, requests: Collection[str]) -> None:
        """The step computes for these requests: their loads must have landed."""
        for number, job in self._known.items():
            if not (job.is_store or job.copy.sync) and job.is_out and job.copy.request in requests:
                self._break("I6", f"the step computes for {job.copy.request} while its load, job {number}, is out", job)

    # --- the end of jobs ----------------------------------------------------------------------------------------------------

    def must_flush(self, block: int, name: str) -> None:
        """A block is handed out while jobs touch it: the step must flush those that read it."""
        for job in self.touching.get(block, ()):
            number, owner = job.copy.number, of(job.copy.request)
            if job.is_store:
                what = f"block {block} is handed out to {name} while job {number}{owner} reads it, unwaited"
                self._unflushed[number] = self._story.violation("I1", what, block=block, request=name, job=number)
            else:
                what = f"block {block} is handed out to {name} while job {number}{owner} writes it"
                self._story.violate("I1", what, block=block, request=name, job=number)
                self.finish(job)

    def wait(self, waits: Collection[int]) -> None:
        """The step waits for these jobs before it computes: they are over. A missing flush is a violation."""
        unflushed, self._unflushed = self._unflushed, {}
        for number in waits:
            if (job := self._known.get(number)) is not None:
                self.finish(job)
        for number, violation in unflushed.items():
            if number not in waits:
                self._story.add(violation)

    def report(self, number: int, count: int) -> None:
        """This many more workers report the end of their share of a job. What follows from it is done by `land`."""
        job = self._known.get(number)
        if job is None or number in self._landing:
            self._unknown(number)
            return
        job.reports += count
        self.has_landed = True
        if self._told is not None:
            self._told.report(number, job.reports)
        if job.reports >= self._num_workers:
            self._landing[number] = job
            if job.reports > self._num_workers and job.life.state in (CopyState.LAUNCHED, CopyState.LANDED):
                what = f"job {number} is reported {job.reports} times, but there are only {self._num_workers} workers"
                self._story.violate("I9", what, request=job.copy.request, job=number)

    def land(self, *, begins: bool = False) -> None:
        """End the jobs reported since the last call. *begins*: at the beginning of a step."""
        landing, self._landing = self._landing, {}
        self.has_landed = False
        if self._told is not None and (begins or self._told.has_arrived):
            self._told.settle(self._story.steps)
        for job in landing.values():
            self._end(job, may_come=False)

    def _unknown(self, number: int) -> None:
        if number <= self.forgotten or self._ended.get(number):
            self._story.counts["late"] += 1
        elif number in self._ended or number in self._landing:
            what = f"job {number} is reported more often than there are workers ({self._num_workers})"
            self._story.violate("I9", what, job=number)
        else:
            self._story.violate("I3", f"job {number} is reported, but was never made", job=number)

    def reset(self, *, forget: bool) -> None:
        """Everything in flight is abandoned, and late reports of it are lawful; *forget* the host content, too."""
        for number, job in self._known.items():
            if job.life.state is not CopyState.OVER:
                job.life.abandon()
            self.forgotten = max(self.forgotten, number)
        self.forgotten = max(self.forgotten, *self._ended, -1)
        if forget:
            self._host.clear()

    def give_up(self, numbers: Iterable[int]) -> None:
        """Stop following these jobs: their end may never be reported."""
        self.gave_up = True
        self.land()
        for number in numbers:
            if (job := self._known.get(number)) is not None:
                self._end(job, may_come=True)

    def finish(self, job: FollowedJob) -> None:
        """A job is over, whatever was reported of it."""
        if not job.is_out:
            return
        job.life.land()
        if self._told is not None:
            self._told.over(job.copy.number, self._story.steps)
        if job.targets:
            self._holders.arrive(job.targets)
        if job.blocks:
            self.touching.remove(job.blocks, job)
            self._using.remove(job.slots, job)
        job.disappear()

    def finish_all(self, block: int) -> None:
        """All jobs that touch a block are over."""
        for job in self.touching.get(block, ()):
            self.finish(job)

    def _end(self, job: FollowedJob, *, may_come: bool) -> None:
        self.finish(job)
        if job.life.state is CopyState.LANDED:
            job.life.end()
        self._story.counts["jobs"] += 1
        del self._known[job.copy.number]
        self._ended.keep(job.copy.number, may_come=may_come)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _add(self, copy: EngineCopy, *, is_store: bool) -> FollowedJob:
        if older := self._known.get(copy.number):
            what = f"job {copy.number} is made a second time"
            self._story.violate("I3", what, request=copy.request, job=copy.number)
            self.finish(older)
        self._ended.pop(copy.number, None)
        job = self._known[copy.number] = FollowedJob(copy, is_store)
        if not is_store and not copy.sync and copy.request is not None:
            for number, each in self._known.items():
                if each.is_store and each.life.state is CopyState.LAUNCHED and each.copy.request == copy.request:
                    what = f"job {copy.number} loads for request {copy.request} while its own store, job {number}, is out"
                    self._story.violate("I10", what, request=copy.request, job=copy.number)
                    break
        return job

    def _break(self, rule: str, what: str, job: FollowedJob) -> None:
        """A job is met while it is out, which it should not be: it is taken for over."""
        self._story.violate(rule, what, request=job.copy.request, job=job.copy.number)
        self.finish(job)

    def _touch(self, job: FollowedJob, block: int) -> None:
        if job not in self.touching.get(block, ()):
            self.touching.add((block,), job)


def of(request: str | None) -> str:
    """The words " of request NAME" for a message; no words if *request* is None."""
    return "" if request is None else f" of request {request}"
