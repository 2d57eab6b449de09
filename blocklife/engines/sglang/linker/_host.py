"""Host memory behind SGLang's tree: what can be loaded, what is being stored, and in which order that is acknowledged.

SGLang's tree decides what is stored and when, and its allocator hands out the pages of the device. What is left is the ledger
itself, and the host tier on top of it: this file calls them directly, without the scheduler of offloading.

*Terms.* A page of SGLang is a block of the ledger; its hash, which depends on all tokens before it, is the key. SGLang names
the pages of a store and of a load, and no others: the ledger knows a page only while something is copied.

*A store.* SGLang locks the node whose pages it names, until it has taken the acknowledgement. So the ledger has a request for
each store, which holds these blocks as long. Stores are acknowledged in the order in which they were made, whatever order they
land in: the tree of each rank takes the oldest, and all ranks take the same number of them.

*Never a no.* A store is always accepted, and one that finds no room is acknowledged as failed. The ranks take the smaller of
two numbers, never compare which stores they are of, and would go on with different ones if one of them had declined (sglang
28429). The outcome of each is what all ranks agree on.

*A load.* Its blocks belong to a request of SGLang, and to no one else until they are in the tree. It is planned when the batch
starts, not when it is queued: until then it can be cancelled without a trace.

*Pins.* Between a lookup and the load that follows in the same step, the slots that were found are pinned. SGLang does not say
when it has given a lookup up, so all of these pins end with the step (`end_step`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from attrs import define, evolve, field, frozen

from blocklife.connector_states import KNOWN, LinkedStoreLife, LinkedStoreState
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import (
    Batch,
    Checking,
    Completion,
    Contract,
    GroupTransfer,
    JobId,
    Jobs,
    Launched,
    Ledger,
    LedgerTransition,
    Limits,
    Placement,
    Plan,
    Store,
)
from blocklife.ledger._limits import MAX_REQUESTS
from blocklife.ledger.jobs import Allocated, Planned
from blocklife.offload import HostTier
from blocklife.states import REVIVABLE, TERMINAL, Job

MAX_STORES = 1 << 14
"""The most stores that are out at once; the rest of the ledger's jobs is for loads."""

_GROUP = 0
"""There is one group: full attention."""


def limits_for(num_blocks: int, num_slots: int) -> Limits:
    """The limits of a rank with so many pages on the device, page 0 included, and in host memory."""
    return Limits(num_blocks=num_blocks, num_slots=num_slots, max_jobs=2 * MAX_STORES, max_requests=MAX_REQUESTS)


@define(eq=False)
class _LinkedStore:
    """The pages of one node, from its offer to its acknowledgement."""

    name: str
    blocks: Sequence[int]
    """The blocks that the ledger has for it; none if nothing had to be copied."""
    life: LinkedStoreLife = field(factory=LinkedStoreLife)


@define(eq=False)
class _LinkedLoad:
    """The pages that one request waits for."""

    rid: str
    name: str
    blocks: Sequence[int]
    held: Batch[Allocated]
    slots: Sequence[int]
    job: JobId | None = None
    """The copy; None until the batch starts."""


@frozen
class LinkerStatistics:
    """What a linker has done so far."""

    num_stored: int = 0
    """Pages copied to host memory; with what was lost on the way."""
    num_loaded: int = 0
    """Pages copied from it."""
    num_failed_stores: int = 0
    """Nodes whose copy failed."""
    num_cancelled_stores: int = 0
    """Nodes whose copy a flush or the end has overtaken."""
    num_failed_loads: int = 0
    """Requests whose load failed on this rank. SGLang aborts them on all ranks, and all others that load in their batch."""
    num_no_room: int = 0
    """Nodes that were not stored because all of host memory was in use."""
    num_known: int = 0
    """Pages that were in host memory already when they were offered."""


class LinkedHost:
    """One rank's ledger and host tier. It never sees a byte: plans go out, and reports come in.

    Invariant: a block that the ledger has handed out belongs to a store that is not acknowledged or to a load that is not
    finished; all others are FREED. `_by_job` has the stores whose copies are out, by job.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        policy: str = "arc",
        checking: Checking = Checking.COUNT,
        deadline: float = 60.0,
    ) -> None:
        self.ledger = Ledger(
            limits,
            contract=Contract.HOLD,
            checking=checking,
            deadline=deadline,
            own_pool=False,
            indexed=False,
            errors="raise",  # its hooks are those below: an error in them is ours, and must not be passed over
        )
        self.tier = HostTier(self.ledger, policy, max_events=0)
        self._stores: deque[_LinkedStore] = deque()
        self._by_job: dict[int, _LinkedStore] = {}
        self._queued: dict[str, _LinkedLoad] = {}
        self._started: dict[int, list[_LinkedLoad]] = {}
        self._loaded: dict[int, bool] = {}
        """The outcome of jobs of loads that are over and not finished."""
        self._pinned: dict[str, list[int]] = {}
        self._overdue: list[JobId] = []
        self._num_names = 0
        self._batch = -1
        self._counts = LinkerStatistics()
        for state in TERMINAL:
            self.ledger.on(entered=state, hook=self._hear_end)
        self.ledger.on(entered=Job.QUARANTINED, hook=self._hear_late)

    # --- lookups ------------------------------------------------------------------------------------------------------------

    def lookup(self, rid: str, keys: Sequence[bytes]) -> int:
        """How many of these pages, from the first on, can be loaded. They stay until the step ends."""
        self._unpin(rid)
        slots = self.ledger.slots.prefix(keys)
        if slots:
            self.ledger.pin(f"lookup {rid}", slots)
            self._pinned[rid] = slots
        return len(slots)

    def end_step(self) -> None:
        """What was found in this step and not loaded is not counted on any more."""
        for rid in [*self._pinned]:
            self._unpin(rid)

    def _unpin(self, rid: str) -> None:
        if slots := self._pinned.pop(rid, None):
            self.ledger.unpin(f"lookup {rid}", slots)

    # --- stores -------------------------------------------------------------------------------------------------------------

    def store(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Plan to bring the content of these blocks to host memory, as far as it is not there. Never declined: see above.

        Refuses: a block that another copy or another store holds, which SGLang must not hand out.
        """
        _check_pages("store", keys, blocks)
        known = [self.tier.slot_of(_GROUP, key) for key in keys]
        there = [slot for slot in known if slot is not None]
        missing = [at for at, slot in enumerate(known) if slot is None]
        self.tier.touch(reversed(there))
        self._count(num_known=len(there))
        if not missing:
            store = _LinkedStore("", ())
            store.life.land()
            self._stores.append(store)
            return
        store = _LinkedStore(self._name("store"), [blocks[at] for at in missing])
        self._plan(store, [keys[at] for at in missing], there)
        self._stores.append(store)

    def _plan(self, store: _LinkedStore, keys: list[bytes], there: list[int]) -> None:
        """Plan the copy of a store, or say that there is no room for it beside the slots that its node has already."""
        ledger = self.ledger
        if ledger.jobs.live >= MAX_STORES or len(ledger.requests) >= MAX_REQUESTS - MAX_STORES:
            self._decline(store)
            return
        ledger.add_request(store.name)
        try:
            held = ledger.observe_place(store.name, [Placement(allocated=store.blocks)])[0]
            # Of a prefix the end is of no use without the beginning: the policy sees the beginning as used last.
            slots = self._reserve(store.name, keys, there)
            if slots is None:
                ledger.finish(store.name)
                self._decline(store)
                return
            jobs = ledger.plan_store(Store.of(ledger.seal(held, keys), slots[::-1], keys, owner=store.name))
        except Exception:
            ledger.finish(store.name)
            self._release_content(store.blocks)
            raise
        self._by_job[jobs.ids[0].number] = store

    def _reserve(self, name: str, keys: list[bytes], there: list[int]) -> list[int] | None:
        """Slots for the keys of a node, none of them at the expense of what its node has there; None if there is no room."""
        self.ledger.pin(name, there)
        try:
            return self.tier.reserve([(_GROUP, key) for key in reversed(keys)])
        finally:
            self.ledger.unpin(name, there)

    def _decline(self, store: _LinkedStore) -> None:
        store.name, store.blocks = "", ()
        store.life.lose()
        self._count(num_no_room=1)

    @property
    def num_acknowledged(self) -> int:
        """How many stores, from the oldest on, have an outcome."""
        count = 0
        for store in self._stores:
            if store.life.state not in KNOWN:
                break
            count += 1
        return count

    def acknowledge(self) -> bool:
        """SGLang takes the outcome of the oldest store, and gives its pages free. Refuses one that is still out."""
        if not self._stores or self._stores[0].life.state not in KNOWN:
            raise MisuseError("linker: no store is over (ask num_completed_offloads first)")
        store = self._stores.popleft()
        if store.name:
            self.ledger.finish(store.name)
            self._release_content(store.blocks)
        kept = store.life.state is LinkedStoreState.KEPT
        store.life.take()
        return kept

    # --- loads --------------------------------------------------------------------------------------------------------------

    def load(self, rid: str, keys: Sequence[bytes], blocks: Sequence[int]) -> bool:
        """Queue a load for the next batch. False if not all of it is there (any more): then nothing has changed.

        Refuses: a second load of one request, and a block that a copy still reads, which SGLang must not hand out.
        """
        _check_pages("load", keys, blocks)
        if rid in self._queued:
            raise MisuseError(f"linker: a load of request {rid} is queued already (cancel_queued_load first)")
        ledger = self.ledger
        slots = ledger.slots.prefix(keys)
        if len(slots) < len(keys):
            return False
        name = self._name("load", rid)
        ledger.add_request(name)
        try:
            held = ledger.observe_place(name, [Placement(allocated=blocks)])[0]
        except MisuseError:
            ledger.finish(name)
            raise
        ledger.pin(name, slots)
        self._unpin(rid)
        self.tier.touch(reversed(slots))
        self._queued[rid] = _LinkedLoad(rid, name, blocks, held, slots)
        return True

    def cancel(self, rid: str) -> bool:
        """Give a load up that has not started. False if there is none."""
        load = self._queued.pop(rid, None)
        if load is None:
            return False
        self.ledger.unpin(load.name, load.slots)
        self.ledger.finish(load.name)
        return True

    def start_loads(self) -> int:
        """Plan the loads that are queued, for the batch that starts now. Returns its number, -1 if there are none."""
        if not self._queued:
            return -1
        self._batch += 1
        loads = [*self._queued.values()]
        self._queued.clear()
        for load in loads:
            load.job = self.ledger.plan_load(load.name, GroupTransfer(load.held, list(load.slots))).ids[0]
            self.ledger.unpin(load.name, load.slots)
        self._started[self._batch] = loads
        return self._batch

    def loading(self, batch: int) -> list[JobId]:
        """The copies of a batch that is not finished."""
        return [load.job for load in self._started.get(batch, ()) if load.job is not None]

    def blocks_of(self, batch: int) -> list[int]:
        """The blocks that they write."""
        return [block for load in self._started.get(batch, ()) for block in load.blocks]

    def finish_loads(self, batch: int) -> bool:
        """A batch is over, and its copies are quiet: whether all of them have arrived. One without a report has failed."""
        loads = self._started.pop(batch, [])
        self.quiesce([load.job for load in loads if load.job is not None])
        whole = True
        for load in loads:
            done = load.job is not None and self._loaded.pop(load.job.number, False)
            whole = whole and done
            self._count(num_loaded=len(load.blocks) if done else 0, num_failed_loads=int(not done))
            self.ledger.finish(load.name)
            self._release_content(load.blocks)
        return whole

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
            self.ledger.quiesce(Jobs[Job](tuple(jobs)))

    def out(self) -> list[JobId]:
        """The copies that have begun and are not over."""
        return [*self.ledger.jobs.submitted().ids]

    def reset(self) -> None:
        """Forget everything. Refuses while a copy is out: its memory is not free yet."""
        if out := self.out():
            raise CapacityError(f"linker: {len(out)} copies are out (wait until all are quiet, then reset again)")
        planned = [number for number in self._by_job if self.ledger.jobs.is_planned(number)]
        self.ledger.cancel(Jobs[Planned](tuple(JobId(self.ledger.incarnation, number) for number in planned)))
        for rid in [*self._queued]:
            self.cancel(rid)
        for batch in [*self._started]:
            self.finish_loads(batch)
        self.end_step()
        for store in self._stores:
            if store.name:
                self.ledger.finish(store.name)
        self.ledger.reset(drain=True)
        self._stores.clear()
        self._by_job.clear()
        self._loaded.clear()
        self._overdue.clear()
        self._batch = -1

    def statistics(self) -> LinkerStatistics:
        """Counts since the start."""
        return self._counts

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _name(self, what: str, rid: str = "") -> str:
        self._num_names += 1
        return f"{what} {self._num_names}{' of ' * bool(rid)}{rid}"

    def _release_content(self, blocks: Sequence[int]) -> None:
        """SGLang does what it wants with these blocks: what the ledger knows of their content is over."""
        self.ledger.drop([self.ledger.blocks.life(block) for block in blocks if self.ledger.blocks.state(block) in REVIVABLE])

    def _hear_end(self, transition: LedgerTransition) -> None:
        """A job is over."""
        ends = {move.target for move in transition}
        done, cancelled = ends == {Job.DONE}, ends == {Job.CANCELLED}
        for number in map(int, transition.places):
            store = self._by_job.pop(number, None)
            if store is None:
                self._loaded[number] = done
                continue
            (store.life.land if done else store.life.lose)()
            self._count(
                num_stored=len(store.blocks) if done else 0,
                num_failed_stores=int(not done and not cancelled),
                num_cancelled_stores=int(cancelled),
            )

    def _hear_late(self, transition: LedgerTransition) -> None:
        self._overdue += [JobId(self.ledger.incarnation, int(number)) for number in transition.places]

    def _count(self, **more: int) -> None:
        added = {name: getattr(self._counts, name) + count for name, count in more.items()}
        self._counts = evolve(self._counts, **added)


def _check_pages(what: str, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
    if len(keys) != len(blocks) or not keys:
        raise MisuseError(f"linker: a {what} of {len(keys)} keys and {len(blocks)} pages (give one page for each key)")
