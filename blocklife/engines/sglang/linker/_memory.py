"""One memory of the device behind SGLang's tree: the ledger of its pages, and the host memory for their content.

SGLang has one memory for pages of full attention, one for those of windows, one for states; each is handed out by an allocator
of its own, and has host memory of its own here, in which a slot is as large as one of its pages.

*Terms.* A page of SGLang, or the slot of a state, is a block of the ledger; its hash, which depends on all tokens before it, is
the key. SGLang names the pages of a store and of a load, and no others: the ledger knows a page only while something is copied,
and has a request for each of these copies, which holds its blocks as long.

A copy is over when its job is, but SGLang is told in an order of its own: `take` comes then, and gives the pages back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import define, field

from blocklife.connector_states import KNOWN, LinkedCopyLife, LinkedCopyState
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import (
    Checking,
    Completion,
    Contract,
    Direction,
    JobId,
    Jobs,
    Launched,
    Ledger,
    LedgerTransition,
    Limits,
    Plan,
)
from blocklife.ledger._limits import MAX_REQUESTS
from blocklife.ledger.jobs import Planned
from blocklife.offload import BelowIndex, BelowPolicies, HostTier
from blocklife.offload._below import TierBelow
from blocklife.offload._lookup import Answer
from blocklife.states import TERMINAL, Job

MAX_STORES = 1 << 12
"""The most stores that are out at once in one memory; the rest of its jobs is for loads. A job that is over names its content
until so many others have followed, so more would cost memory."""

ASK_FIRST = 64
"""Of how many pages a store below is asked at first; it is asked of twice as many where it has all of them."""
_GROUP = 0
"""The pages of one memory are one group."""

_HERE, _LATER = Answer.HIT.code, (Answer.RETRY.code, Answer.PENDING.code)


def limits_for(num_blocks: int, num_slots: int) -> Limits:
    """The limits of a memory with so many pages on the device, page 0 included, and in host memory."""
    return Limits(num_blocks=num_blocks, num_slots=num_slots, max_jobs=2 * MAX_STORES, max_requests=MAX_REQUESTS)


@define(eq=False)
class LinkedCopy:
    """The pages of one memory that one call has named, until the engine has taken the outcome."""

    memory: LinkedMemory
    name: str = ""
    """The request that the ledger has for it; empty if nothing is copied."""
    blocks: Sequence[int] = ()
    job: JobId | None = None
    direction: Direction = Direction.STORE
    life: LinkedCopyLife = field(factory=LinkedCopyLife)

    @property
    def is_over(self) -> bool:
        """Whether its outcome is known."""
        return self.life.state in KNOWN

    @property
    def has_arrived(self) -> bool:
        """Whether all of it is at the other end."""
        return self.life.state is LinkedCopyState.ARRIVED


class LinkedMemory:
    """The ledger and the host tier of one memory. It never sees a byte: plans go out, and reports come in.

    Invariant: a block that the ledger has handed out belongs to a `LinkedCopy` that is not taken; all others are FREED.
    ``_by_job`` has those whose jobs are not over, by job.
    """

    def __init__(
        self,
        number: int,
        limits: Limits,
        *,
        policy: str,
        checking: Checking,
        deadline: float,
        count: Callable[..., None],
        index: BelowIndex | None = None,
        below: BelowPolicies | None = None,
    ) -> None:
        """*count* is called with the numbers of `LinkerStatistics` that grow. *index* knows a store below, if there is one."""
        self.number = number
        self.ledger = Ledger(
            limits,
            contract=Contract.HOLD,
            checking=checking,
            deadline=deadline,
            own_pool=False,
            indexed=False,
            errors="raise",  # its hooks are those below: an error in them is ours, and must not be passed over
        )
        self._rows = self.ledger._rows
        self.tier = HostTier(self.ledger, policy, max_events=0)
        self.below = None if index is None else TierBelow(
            self.ledger, self.tier, index, below or BelowPolicies(), bytearray(b"\1") * limits.num_slots, [1]
        )  # fmt: skip
        """The store below host memory, if there is one."""
        self._by_job: dict[int, LinkedCopy] = {}
        self._overdue: list[JobId] = []
        self._num_names = 0
        self._count = count
        for state in TERMINAL:
            self.ledger.on(entered=state, hook=self._hear_end)
        self.ledger.on(entered=Job.QUARANTINED, hook=self._hear_late)

    def num_found(self, keys: Sequence[bytes]) -> int:
        """How many of these pages, from the first on, can be loaded."""
        return len(self.ledger.slots.prefix(keys))

    def has(self, key: bytes) -> bool:
        """Whether this page can be loaded."""
        return self.tier.slot_of(_GROUP, key) is not None

    # --- the store below ----------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Note what has come from below and gone there, and plan what goes there now."""
        if self.below is not None:
            self.below.land()
            self.below.plan_demotions()

    def found_below(self, keys: Sequence[bytes]) -> tuple[list[bool], bool]:
        """Of each of these pages whether it is in host memory or below, and whether that is still being found out of any."""
        if self.below is None:
            return [self.has(key) for key in keys], False
        self.below.land()
        found = [self.has(key) for key in keys]
        absent = [at for at, here in enumerate(found) if not here]
        answers = self.below.ask([(_GROUP, keys[at]) for at in absent]) if absent else []
        for at, answer in zip(absent, answers, strict=True):
            found[at] = answer == _HERE
        return found, any(answer in _LATER for answer in answers)

    def reach(self, keys: Sequence[bytes], start: int) -> tuple[int, bool]:
        """Where the pages from *start* on that are here or below end, and whether the one behind them may be there, too."""
        end, size, unsure = start, ASK_FIRST, False
        while end < len(keys):
            there, unsure = self.found_below(keys[end : end + size])
            end += there.index(False) if False in there else len(there)
            if False in there:
                break
            size *= 2
        return end, unsure

    def gave_up(self) -> None:
        """Count a lookup that goes on without what comes from below."""
        if self.below is not None:
            self.below.gave_up()

    def promote(self, keys: Sequence[bytes], beside: Sequence[bytes] = ()) -> bool:
        """Begin to bring those of these pages from below that are not here. False if none comes.

        For the policy, pages that are here, and those *beside* them in the hit, have been used: others are evicted first.
        """
        if self.below is None:
            return False
        contents = [(_GROUP, key) for key in keys if not self.has(key)]
        if contents:
            kept = [slot for key in (*beside, *keys) if (slot := self.tier.slot_of(_GROUP, key)) is not None]
            self.below.promote(contents, kept, [])
        return any(map(self.below.brings, contents))

    # --- copies -------------------------------------------------------------------------------------------------------------

    def store(self, keys: Sequence[bytes], blocks: Sequence[int]) -> LinkedCopy:
        """Plan to bring the content of these blocks to host memory, as far as it is not there. Never declined: LOST instead.

        Refuses: a block that another copy holds, which SGLang must not hand out.
        """
        copy, view = LinkedCopy(self), self.ledger.slots
        known = [view.find_ready(_GROUP, key) for key in keys] if view.found(_GROUP, keys) else []
        there = [slot for slot in known if slot is not None]
        if there:
            self.tier.touch(reversed(there))
            self._count(num_known=len(there))
            if len(there) == len(keys):
                copy.life.land()
                return copy
            missing = [at for at, slot in enumerate(known) if slot is None]
            blocks, keys = [blocks[at] for at in missing], [keys[at] for at in missing]
        ledger, name = self.ledger, self._name("store")
        if ledger.jobs.live >= MAX_STORES or len(ledger.requests) >= MAX_REQUESTS - MAX_STORES:
            return self._declined(copy)
        own = [*blocks]
        self._rows.ask_to_come(own)  # a refused store evicts nothing
        slots = self._reserve(name, keys, there)
        if slots is None:
            return self._declined(copy)
        return self._begun(copy, name, own, self._rows.visit_to_store(name, own, [*keys], slots))

    def _reserve(self, name: str, keys: Sequence[bytes], there: list[int]) -> list[int] | None:
        """Slots for the keys of a node, none of them at the expense of what its node has there; None if there is no room."""
        # Of a prefix the end is of no use without the beginning: the policy sees the beginning as used last.
        names = [(_GROUP, key) for key in reversed(keys)]
        if there:
            self.ledger.pin(name, there)
        try:
            slots = self.tier.reserve(names)
        finally:
            if there:
                self.ledger.unpin(name, there)
        return None if slots is None else slots[::-1]

    def _begun(self, copy: LinkedCopy, name: str, blocks: Sequence[int], job: int) -> LinkedCopy:
        """A copy of these blocks is planned."""
        copy.name, copy.blocks, copy.job = name, blocks, JobId(self.ledger.incarnation, job)
        self._by_job[job] = copy
        return copy

    def _declined(self, copy: LinkedCopy) -> LinkedCopy:
        copy.life.lose()
        self._count(num_no_room=1)
        return copy

    def load(self, rid: str, keys: Sequence[bytes], blocks: Sequence[int]) -> LinkedCopy:
        """Plan to bring these pages, all of which must be there, into blocks of a request.

        Refuses: a block that another copy holds, which SGLang must not hand out.
        """
        name, slots = self._name("load", rid), self.ledger.slots.prefix(keys)
        job = self._rows.visit_to_load(name, [*blocks], slots)
        self.tier.touch(reversed(slots))
        return self._begun(LinkedCopy(self, direction=Direction.LOAD), name, blocks, job)

    def give_up(self, copy: LinkedCopy) -> None:
        """A copy is over, or is planned and then not made. Nothing is left of it. Needs: `check_idle`."""
        if copy.job is not None and not copy.is_over:
            self._cancel([copy])
        self.take(copy)

    def check_idle(self, copy: LinkedCopy) -> None:
        """Refuse a copy that is under way."""
        if copy.job is not None and not copy.is_over and not self.ledger.jobs.is_planned(copy.job.number):
            raise MisuseError(f"linker: {copy.name} is under way (wait until it is quiet)")

    def _cancel(self, copies: Sequence[LinkedCopy]) -> None:
        """Their jobs, which are planned, are CANCELLED: that of a load with its request."""
        stores = tuple(each.job for each in copies if each.direction is Direction.STORE and each.job is not None)
        planned: Jobs[Planned] = Jobs(stores)
        self.ledger.cancel(planned)
        for each in copies:
            if each.direction is Direction.LOAD:
                self.ledger.finish(each.name)

    def take(self, copy: LinkedCopy) -> None:
        """The engine takes the outcome of a copy that is over, and its pages."""
        copy.life.take()
        if copy.name in self.ledger.requests:
            self._rows.leave(copy.name)  # SGLang does what it wants with these blocks: what is known of them is over

    # --- plans and reports --------------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> Plan | None:
        """The copies that can begin; None if there are none."""
        return self.ledger.dispatch(now) if self.ledger.jobs.num_planned else None

    def settle(self, plan: Plan, now: float, launched: Sequence[Launched], completions: Sequence[Completion]) -> None:
        """A plan was carried out, and this was reported meanwhile."""
        self.ledger.settle(plan.number, now, launched=launched, completions=completions)

    def report(self, completions: Iterable[Completion]) -> None:
        """Reports without a plan."""
        for completion in completions:
            self.ledger.complete(completion)

    def expire(self, now: float) -> list[JobId]:
        """The copies that are past their deadline, each once. They are not over until they are quiet."""
        if self.ledger.jobs.live:
            self.ledger.expire(now)
        late, self._overdue = self._overdue, []
        return late

    def quiesce(self, jobs: Sequence[JobId]) -> None:
        """These copies are proven quiet; those without a report have failed."""
        if jobs:
            self.ledger.quiesce(Jobs(tuple(jobs)))

    def out(self) -> list[JobId]:
        """The copies that have begun and are not over."""
        return [*self.ledger.jobs.submitted().ids]

    def check_quiet(self) -> None:
        """Refuse while a copy is out: its memory is not free yet."""
        if out := self.out():
            raise CapacityError(f"linker: {len(out)} copies are out (wait until all are quiet, then reset again)")

    def reset(self) -> None:
        """Forget everything, and what is planned with it. Needs: no copy is out (`check_quiet`)."""
        self._cancel([copy for number, copy in self._by_job.items() if self.ledger.jobs.is_planned(number)])
        for name in [*self.ledger.requests]:
            self.ledger.finish(name)
        self.ledger.reset(drain=True)
        if self.below is not None:
            self.below.land()
            self.below.reset(self.below.new_space())
        self._by_job.clear()
        self._overdue.clear()

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _name(self, what: str, rid: str = "") -> str:
        self._num_names += 1
        return f"{what} {self._num_names}{' of ' * bool(rid)}{rid}"

    def _hear_end(self, transition: LedgerTransition) -> None:
        """Jobs are over."""
        for number, row in transition.steps():
            copy = self._by_job.pop(number, None)
            if copy is None:
                continue
            end = transition.table.row(row).target
            done, cancelled = end is Job.DONE, end is Job.CANCELLED
            (copy.life.land if done else copy.life.lose)()
            if copy.direction is Direction.LOAD:
                self._count(num_loaded=len(copy.blocks) if done else 0)
            elif done:
                self._count(num_stored=len(copy.blocks))
            else:
                self._count(num_cancelled_stores=int(cancelled), num_failed_stores=int(not cancelled))

    def _hear_late(self, transition: LedgerTransition) -> None:
        self._overdue += [JobId(self.ledger.incarnation, int(number)) for number in transition.places]
