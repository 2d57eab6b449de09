"""The tier below host memory: which content is fetched from it, and which is put there.

Rules of this file:

* The store below is asked through a `BelowIndex`, which answers at once; no call here waits.
* Every copy is a job of the ledger. What is planned here touches slots only, and never holds up a step.
* What the store says may be wrong by the time it is used: a promotion that comes back without its content is a miss.
* What is heard of the store is told as events (`_tier_events`), here and nowhere else.
* What an index raises is kept (`Ledger.hook_errors`), and so is an answer that is none: its store counts as one without it.

Theory. A request never loads from below directly. Its lookup finds content there, a promotion brings it into slots, and once
that has landed the lookup hits the host tier as ever. While it waits, its lookup is deferred, but only until
`BelowPolicies.max_wait` has passed; then it goes on with what the host tier has. Both directions are bounded in slots, and
thereby in bytes. A store that is down answers MISS and takes no demotions, so it costs hits and no steps.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, MutableSequence, Sequence
from itertools import islice
from typing import Protocol, TypeAlias, TypeGuard

from attrs import frozen

from blocklife.core._columns import Change
from blocklife.errors import CapacityError, MisuseError
from blocklife.knobs import knob
from blocklife.ledger import Direction, Ledger
from blocklife.ledger import _edge as edge
from blocklife.offload._host import HostTier
from blocklife.offload._lookup import Answer
from blocklife.offload.records import BelowStatistics
from blocklife.states import Job, Trait, states_with

Content: TypeAlias = tuple[int, bytes]
"""Group and key."""
AskBelow: TypeAlias = Callable[[bytes, Sequence[Content]], Sequence[Answer]]
"""A question: what the store has of these contents of a space."""
_MISS, _RETRY = Answer.MISS.code, Answer.RETRY.code
_CODES = {each: _MISS if each is Answer.UNKNOWN else each.code for each in Answer}
_ASKED_AGAIN = 16
"""Of how many contents that were told the store is asked again in a step."""
_WANTED = states_with(Trait.WANTED, Job)


class BelowIndex(Protocol):
    """What a scheduler asks about the store below; `stores.Presence` is one. No method may block.

    It may have an attribute ``news`` as well: a number that changes whenever a question that was answered RETRY has another
    answer, or None if the index cannot tell. Requests that wait for answers are looked up again when the number has changed.

    It may have a method ``ask_again`` as well: the same as `ask`, for content that events have told. In each step some of it is
    asked for again, so that what the store has lost is told as removed. Without it, that is told when a lookup asks for it.
    """

    @property
    def is_up(self) -> bool:
        """Whether the store is believed to take what is put there."""
        ...

    def ask(self, space: bytes, contents: Sequence[Content]) -> Sequence[Answer]:
        """Of each: HIT if the store has every rank's part, MISS if not, RETRY while that is being found out.

        UNKNOWN counts as MISS: the store is down, or has not answered in time. Only MISS says that content is gone.

        A lookup asks ahead, so that it makes few calls: not all answers are used.
        """
        ...

    def discard(self, space: bytes, contents: Sequence[Content]) -> None:
        """These were not there when they were wanted, or were damaged."""
        ...

    def note_put(self, space: bytes, contents: Sequence[Content]) -> None:
        """Every rank has put its part of these."""
        ...

    def new_space(self) -> bytes:
        """A space that nobody has used, for content that is computed after all of it was forgotten."""
        ...


class SaveableIndex(BelowIndex, Protocol):
    """A `BelowIndex` whose scheduler can be saved: all that its answers depend on is a value."""

    def snapshot(self) -> Hashable:
        """The complete state."""
        ...

    def restore(self, saved: Hashable) -> None:
        """Go back to a snapshot."""
        ...


def saveable(index: BelowIndex) -> SaveableIndex:
    """The index, if it can be saved. `MisuseError` if not."""
    if not _can_be_saved(index):
        raise MisuseError(f"{index!r}: a scheduler with a tier below cannot be saved without its `snapshot` and `restore`")
    return index


def _can_be_saved(index: BelowIndex) -> TypeGuard[SaveableIndex]:
    return hasattr(index, "snapshot") and hasattr(index, "restore")


def check_index(index: object) -> None:
    """Refuse what cannot be asked for content below."""
    lacking = [name for name in ("ask", "discard", "note_put", "new_space") if not callable(getattr(index, name, None))]
    if lacking or not hasattr(index, "is_up"):
        raise MisuseError(f"below must be a BelowIndex, as stores.Presence is, not {index!r}")


class Demote(enum.Enum):
    """When content of the host tier is copied to the store below."""

    EAGER = "as soon as it is stored in the host tier"
    LAZY = "when it is among the next to be evicted from the host tier"
    NEVER = "not at all: the store below is only read"


@frozen(kw_only=True)
class BelowPolicies:
    """The choices of one scheduler about the tier below its host memory."""

    demote: Demote = knob(Demote.EAGER, "when content of the host tier goes to the store below")
    max_wait: float = knob(
        32.0,
        "how long a request waits for content from below before it continues without, in the engine's unit of time",
        endless=False,
    )
    max_slots: int = knob(256, "maximum number of slots being copied in each direction", least=1)
    job_slots: int = knob(32, "maximum number of slots of one job, there or back", least=1)
    max_demoted_beside: int | None = knob(
        None, "maximum number of slots on their way to the store below while others come from there; the others wait"
    )
    lazy_slots: int = knob(64, "in lazy mode, how many of the slots that will be evicted next are kept below", least=1)
    max_told: int = knob(
        0, "how many contents of the store below events report at a time; 0: only host memory is reported", endless=False
    )

    @property
    def max_jobs(self) -> int:
        """Maximum number of jobs in each direction: the ledger needs room for these besides those of its device."""
        return -(-self.max_slots // self.job_slots)


class TierBelow:
    """The tier below one scheduler's host tier.

    Invariant: ``_coming`` maps the content of live promotions to their job; ``_jobs`` has the live jobs, with their slots.
    Invariant: a slot is in ``_below`` if its content is known to be in the store, in ``_queue``, with its content, if that is
    to be demoted, and in neither once its content is gone, so that all of them are READY. ``_filled`` has the promotion that
    brought a slot's content. Initially all are empty.
    ``_suffix`` is the number of trailing blocks that each slot holds. Chunks with fewer than ``_required`` of their group, what
    any hit can read, stay in the host tier.
    """

    def __init__(
        self,
        ledger: Ledger,
        tier: HostTier,
        index: BelowIndex,
        policies: BelowPolicies,
        suffix: MutableSequence[int],
        required: Sequence[int],
    ) -> None:
        self.index = index
        self.policies = policies
        self.space = b""
        """Separates content that must not be mixed although its keys are equal; see `TierTransfer`."""
        self._ledger = ledger
        self._errors = ledger.hook_errors
        self._tier = tier
        self._suffix, self._required = suffix, required
        self._coming: dict[tuple[bytes, int, bytes], int] = {}
        self._jobs: dict[int, tuple[Direction, bytes, list[int], list[Content]]] = {}
        self._out: Counter[Direction] = Counter()
        self._queue: OrderedDict[int, Content] = OrderedDict()  # a dictionary is slow to begin where entries left its front
        self._below: set[int] = set()
        self._filled: dict[int, int] = {}
        self._counts: Counter[str] = Counter()
        self._events = tier.events
        self._events.follow(policies.max_told)
        self._ask_again: AskBelow | None = getattr(index, "ask_again", None)
        if policies.demote is Demote.LAZY:
            tier.check_foresight()
        ledger.slots.note(self._hear)

    # --- lookups ------------------------------------------------------------------------------------------------------------

    def ask(self, contents: Sequence[Content]) -> list[int]:
        """Whether the store has each of these contents, by `Answer.code`; MISS of all if the index fails."""
        return self._ask(self.index.ask, contents)

    def _ask(self, ask: AskBelow, contents: Sequence[Content]) -> list[int]:
        try:
            found = ask(self.space, contents)
            if len(found) != len(contents):
                raise MisuseError(f"{self.index!r} gave {len(found)} answers where {len(contents)} were asked for")
            answers = [edge.member(each, Answer, "the answer of an index") for each in found]
        except BaseException as problem:
            self._errors.keep(self.index, problem)
            return [_MISS] * len(contents)
        self._events.hear(contents, answers)
        return [_CODES[each] for each in answers]

    @property
    def news(self) -> int | None:
        """The number that the index calls ``news``; None if it has none, or cannot tell."""
        try:
            found = getattr(self.index, "news", None)
            return None if found is None else edge.whole(found, "the news of an index")
        except BaseException as problem:
            self._errors.keep(self.index, problem)
            return None

    def brings(self, content: Content) -> bool:
        """Whether a promotion is bringing this content."""
        return (self.space, *content) in self._coming

    def promote(self, wanted: Sequence[Content], present: Sequence[int], fetched: list[int], promised: int = 0) -> bool:
        """Plan promotions of content that the store has, as far as it may be in flight; False if the host tier has no room.

        *present* are the slots of a hit's other content, which is not evicted for what is to come. The numbers of the
        promotions are added to *fetched*. *promised*: loads that were found in this step and are not planned yet; a job is
        left for each.
        """
        if len(wanted) + len(present) > len(self._ledger.slots):  # each chunk that comes would evict another
            self._counts["no_room"] += len(wanted)
            return False
        if present:
            self._tier.touch(present)
        find = self._ledger.slots.find
        absent = [content for content in dict.fromkeys(wanted) if find(*content) is None and not self._will_bring(content)]
        while absent and (room := self._room(Direction.PROMOTE)) > 0 and self._ledger.jobs.room > promised:
            part = absent[: min(room, self.policies.job_slots)]
            slots = self._tier.reserve(part)
            if slots is None:
                self._counts["no_room"] += len(part)
                return False
            for slot, (group, _) in zip(slots, part, strict=True):
                self._suffix[slot] = self._required[group]
            keys, groups = [key for _, key in part], [group for group, _ in part]
            (job,) = self._ledger.plan_promotion(slots, keys, groups, space=self.space).ids
            self._note(job.number, Direction.PROMOTE, slots, part)
            fetched.append(job.number)
            self._coming.update({(self.space, *content): job.number for content in part})
            del absent[: len(part)]
        return True

    def _will_bring(self, content: Content) -> bool:
        """Whether content is on its way: the index does not say so if another slot with it was evicted meanwhile."""
        number = self._coming.get((self.space, *content))
        job = None if number is None else self._ledger.jobs.get(number)
        return job is not None and job.state in _WANTED

    def filled_by(self, promotions: Sequence[int], slots: Iterable[int]) -> set[int]:
        """Those of *slots* whose content one of these promotions has brought."""
        filled, wanted = self._filled, set(promotions)
        return {slot for slot in slots if slot in filled and filled[slot] in wanted}

    @property
    def has_work(self) -> bool:
        """Whether further steps would demote something, even without requests."""
        return bool(self._queue) and self.policies.demote is Demote.EAGER and self._is_up()

    def gave_up(self) -> None:
        """A request goes on without the tier below, after waiting for as long as it may."""
        self._counts["overdue"] += 1

    # --- steps --------------------------------------------------------------------------------------------------------------

    def ask_again(self) -> None:
        """Ask for some of the content that events have told: a store loses content without a word."""
        if self._ask_again is not None and (told := self._events.heard_longest_ago(_ASKED_AGAIN)) and self._is_up():
            self._ask(self._ask_again, told)

    def plan_demotions(self) -> None:
        """Plan demotions of slots that wait for it, as far as they may be in flight."""
        if self.policies.demote is Demote.NEVER or not self._is_up():
            return
        if self.policies.demote is Demote.LAZY:
            self._queue = self._coldest()
        chosen = self._lacking(self._room(Direction.DEMOTE))
        size, slots = self.policies.job_slots, list(chosen)
        for start in range(0, len(slots), size):
            part = slots[start : start + size]
            try:
                (job,) = self._ledger.plan_demotion(part, space=self.space).ids
            except CapacityError:  # all jobs are out: they are demoted later
                self._queue.update({slot: chosen[slot] for slot in slots[start:]})
                return
            self._note(job.number, Direction.DEMOTE, part, [chosen[slot] for slot in part])

    def _lacking(self, room: int) -> dict[int, Content]:
        """Take at most so many slots from the queue whose content the store lacks, and those whose content it has."""
        chosen: dict[int, Content] = {}
        asked, queue = 0, self._queue  # of those at the front, so many are being looked for
        while len(chosen) < room and (part := list(islice(queue, asked, asked + room - len(chosen)))):
            for slot, found in zip(part, self.ask([queue[slot] for slot in part]), strict=True):
                if found == _RETRY:
                    asked += 1
                elif found == _MISS:
                    chosen[slot] = queue.pop(slot)
                else:
                    del queue[slot]
                    self._below.add(slot)
                    self._counts["already_below"] += 1
        return chosen

    def _coldest(self) -> OrderedDict[int, Content]:
        """What is to be demoted because it is evicted next."""
        out = {slot for direction, _, held, _ in self._jobs.values() if direction is Direction.DEMOTE for slot in held}
        coldest = self._tier.coldest(self.policies.lazy_slots)
        return self.contents_of([slot for slot in coldest if slot not in self._below and slot not in out])

    def contents_of(self, slots: Iterable[int]) -> OrderedDict[int, Content]:
        """Those of these slots that have content which is put below, with it."""
        known = self._ledger.slots
        named = [(slot, (known.group(slot), key)) for slot in slots if (key := known.key(slot)) is not None]
        return OrderedDict([(slot, content) for slot, content in named if self._is_whole(slot, content[0])])

    def _is_whole(self, slot: int, group: int) -> bool:
        """Whether a slot has all of a chunk that a hit can read."""
        return self._suffix[slot] >= self._required[group]

    def land(self) -> None:
        """Note what has become of the jobs that are over since the last call."""
        jobs, find = self._ledger.jobs, self._ledger.slots.find_ready
        for number in [number for number in self._jobs if not jobs.is_out(number)]:
            direction, space, slots, contents = self._jobs.pop(number)
            self._out[direction] -= len(slots)
            job = jobs.get(number)
            done = job is not None and job.state is Job.DONE
            missing = job.missing if job is not None and done else frozenset(slots)
            came, lost = contents, list[Content]()
            if missing:
                came = [content for slot, content in zip(slots, contents, strict=True) if slot not in missing]
                lost = [content for slot, content in zip(slots, contents, strict=True) if slot in missing]
            if direction is Direction.DEMOTE:
                self._counts["demoted"] += len(came)
                self._counts["refused" if done else "failed_demotions"] += len(lost)
                self._notify(self.index.note_put, space, came)
                if space == self.space:
                    self._events.found(came)
                # what the store did not take is not offered again: it may have no room for as long as this content lives
                self._below.update([slot for slot, content in zip(slots, contents, strict=True) if find(*content) == slot])
                continue
            for content in contents:
                if self._coming.get((space, *content)) == number:  # it may be wanted again, in a space that came back
                    del self._coming[space, *content]
            self._counts["promoted"] += len(came)
            self._counts["missing" if done else "failed_promotions"] += len(lost)
            self._notify(self.index.discard, space, lost)
            if space == self.space:
                self._events.lacking(lost)

    def new_space(self) -> bytes:
        """A space that nobody has used."""
        return edge.member(self.index.new_space(), bytes, "the new space that an index names")

    def reset(self, space: bytes) -> None:
        """All content is void: what is below, or on its way there, is found only in its old space; *space* is the new one."""
        self.space = space
        self._events.forget()

    def statistics(self) -> BelowStatistics:
        """Counts so far."""
        counts = self._counts
        return BelowStatistics(
            promoted=counts["promoted"],
            missing=counts["missing"],
            failed_promotions=counts["failed_promotions"],
            demoted=counts["demoted"],
            refused=counts["refused"],
            failed_demotions=counts["failed_demotions"],
            already_below=counts["already_below"],
            lost=counts["lost"],
            overdue_requests=counts["overdue"],
            no_room=counts["no_room"],
        )

    # --- the index, which may be a user's code ------------------------------------------------------------------------------

    def _is_up(self) -> bool:
        try:
            return bool(self.index.is_up)
        except BaseException as problem:
            self._errors.keep(self.index, problem)
            return False

    def _notify(self, method: Callable[[bytes, Sequence[Content]], None], space: bytes, contents: Sequence[Content]) -> None:
        try:
            if contents:
                method(space, contents)
        except BaseException as problem:
            self._errors.keep(self.index, problem)

    def _room(self, direction: Direction) -> int:
        """How many more slots may be copied in a direction now: jobs are bounded, too, so that small ones do not pile up."""
        policies = self.policies
        jobs = len([job for job in self._jobs.values() if job[0] is direction])
        most = policies.max_slots
        if direction is Direction.DEMOTE and policies.max_demoted_beside is not None and self._out[Direction.PROMOTE]:
            most = min(most, policies.max_demoted_beside)
        return min(most - self._out[direction], (policies.max_jobs - jobs) * policies.job_slots)

    def _note(self, number: int, direction: Direction, slots: Sequence[int], contents: Sequence[Content]) -> None:
        self._jobs[number] = direction, self.space, list(slots), list(contents)
        self._out[direction] += len(slots)

    def _hear(self, changes: Sequence[Change]) -> None:
        """Called after a verb of the ledger."""
        queue, eager = self._queue, self.policies.demote is Demote.EAGER
        for stored, slot, group, key in changes:
            if not stored:
                self._counts["lost"] += queue.pop(slot, None) is not None
                self._below.discard(slot)
                self._filled.pop(slot, None)
            elif self._coming and (job := self._coming.get((self.space, group, key))) is not None:
                self._below.add(slot)
                self._filled[slot] = job
            elif eager and self._is_whole(slot, group):
                queue[slot] = group, key
