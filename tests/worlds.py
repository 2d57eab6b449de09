"""Small ledgers for tests, what "unchanged" means, and a record of the device that never asks the ledger.

Bookkeeping can be in perfect order while the device reads a block that belongs to somebody else. `Device` is the second truth:
it is told what the workers were told (plans) and what they did (landings), knows which bytes are where, and raises a
`DeviceFault` when two tenants meet. It takes nothing from the ledger but the records that pass between scheduler and worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import pytest
from attrs import define, field

from blocklife.hook_errors import OnError
from blocklife.ledger import (
    Batch,
    Checking,
    Completion,
    Contract,
    Direction,
    JobId,
    Jobs,
    Ledger,
    LedgerTransition,
    Limits,
    Placement,
    Plan,
    Result,
    Store,
    Transfer,
    Worker,
)
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger.jobs import Allocated, Planned, Sealed
from blocklife.states import MACHINES, Block, Slot, blocks_touched, slots_touched, states_before

BOTH = pytest.mark.parametrize("contract", list(Contract), ids=lambda each: each.name.lower())
"""The same test under both contracts."""


# --- events of a place and nothing else -----------------------------------------------------------------------------------


def places_for(ledger: Ledger, verb: str, machine: str) -> list[int]:
    """The places, by this verb of `PLAIN`, that have a row for it."""
    rows = states_before(MACHINES[machine].events[verb], Block if machine == "block" else Slot)
    if machine == "block":
        return [block for block in range(1, len(ledger.blocks)) if ledger.blocks.state(block) in rows]
    return [slot for slot in range(len(ledger.slots)) if ledger.slots.state(slot) in rows]


# --- ledgers ------------------------------------------------------------------------------------------------------------


def make_ledger(
    *,
    num_blocks: int = 6,
    num_slots: int = 4,
    contract: Contract = Contract.FENCE,
    own_pool: bool = True,
    workers: int = 1,
    groups: int = 1,
    max_jobs: int = 8,
    max_requests: int = 4,
    max_journal: int = 256,
    deadline: float = 8.0,
    incarnation: int = 1,
    checking: Checking = Checking.STRICT,
    requests: Sequence[str] = ("a",),
    errors: OnError = "raise",
) -> Ledger:
    """A small ledger with some running requests; block 0 is the null block, so that 6 blocks are 5 to hand out."""
    limits = Limits(
        num_blocks=num_blocks,
        num_slots=num_slots,
        max_jobs=max_jobs,
        max_requests=max_requests,
        num_groups=groups,
        num_workers=workers,
        max_journal=max_journal,
    )
    ledger = Ledger(
        limits,
        contract=contract,
        checking=checking,
        incarnation=incarnation,
        deadline=deadline,
        own_pool=own_pool,
        errors=errors,
    )
    for request in requests:
        ledger.add_request(request)
        ledger.admit(request)
    return ledger


def keys(*names: str | int) -> list[bytes]:
    """Readable keys."""
    return [str(name).encode() for name in names]


def held(ledger: Ledger, request: str, count: int = 1) -> Batch[Allocated]:
    """Blocks that *request* holds with open content, from whoever hands out blocks here."""
    if ledger.own_pool:
        return ledger.allocate(request, count)
    free = [place for place in range(1, len(ledger.blocks)) if ledger.blocks.state(place) is Block.FREED]
    return ledger.observe_place(request, [Placement(allocated=free[:count])])[0]


def sealed(ledger: Ledger, request: str, names: Sequence[bytes]) -> Batch[Sealed]:
    """Blocks that *request* holds with final content."""
    return ledger.seal(held(ledger, request, len(names)), names)


def store(ledger: Ledger, source: Batch[Sealed], names: Sequence[bytes], slot: int = 0, owner: str = "a") -> Jobs[Planned]:
    """Plan a store of *source* into the slots from *slot* on."""
    return ledger.plan_store(Store.of(source, list(range(slot, slot + len(names))), names, owner=owner))


def report(job: JobId, result: Result = Result.OK, worker: int = 0) -> Completion:
    """One worker's report."""
    return Completion(job, Worker(worker), result)


def in_flight(ledger: Ledger, request: str = "a", name: str = "k", slot: int = 0) -> tuple[Batch[Sealed], JobId]:
    """One block of *request* that a submitted store reads; its plan has settled."""
    source = sealed(ledger, request, keys(name))
    job = store(ledger, source, keys(name), slot, owner=request).ids[0]
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0)
    return source, job


def ready(ledger: Ledger, name: str = "k", slot: int = 0, request: str = "a") -> None:
    """Fill *slot* with the content *name*; the request lets go of its block, which stays CACHED."""
    _, job = in_flight(ledger, request, name, slot)
    for worker in range(ledger.limits.num_workers):
        ledger.complete(report(job, worker=worker))
    ledger.release(request, [len(ledger.requests.table(request)) - 1])


def behind_fence(ledger: Ledger) -> tuple[Batch[Allocated], JobId]:
    """In a world of one block: request *b* waits and holds it behind a wait for a store; slot 0 has content *k* to load."""
    ready(ledger, "k", 0)
    _, job = in_flight(ledger, "a", "old", 1)
    ledger.release("a", [len(ledger.requests.table("a")) - 1])
    ledger.add_request("b")
    return ledger.allocate("b", 1), job


def block_of(batch: Batch[Allocated] | Batch[Sealed]) -> int:
    """The block id of a batch of one."""
    (life,) = batch.lives
    return int(life) & ID_MASK


def hand_out_all(ledger: Ledger, request: str) -> list[int]:
    """Allocate one block at a time until there is none; the ids in order."""
    found: list[int] = []
    while True:
        try:
            found.append(block_of(ledger.allocate(request, 1)))
        except Exception as refusal:
            if type(refusal).__name__ != "CapacityError":
                raise
            return found


def slot_with(ledger: Ledger, key: bytes, group: int = 0) -> int:
    """The slot that has the content of a key, or that it is being written to."""
    slot = ledger.slots.find(group, key)
    assert slot is not None, f"no slot has {key!r} of group {group}"
    return slot


# --- unchanged ----------------------------------------------------------------------------------------------------------


def world_key(ledger: Ledger) -> tuple[object, ...]:
    """The snapshot, and all that is only counted or written down as well."""
    views = (ledger.blocks, ledger.slots, ledger.jobs, ledger.requests)
    taken = tuple(tuple(count for _, count in view.row_counts()) for view in views)
    last = ledger.journal[-1].sequence if ledger.journal else 0
    return ledger.snapshot(), taken, dict(ledger.counts.tally), len(ledger.journal), last


@contextmanager
def unchanged(ledger: Ledger) -> Iterator[None]:
    """The calls inside leave the world byte for byte as it was, and no listener hears of anything."""
    heard: list[LedgerTransition] = []
    ledger.on(hook=heard.append)
    before = world_key(ledger)
    yield
    after = world_key(ledger)

    assert after == before
    assert heard == []


@contextmanager
def refuses(ledger: Ledger, error: type[Exception], match: str) -> Iterator[None]:
    """The call inside is refused with this error, and nothing has changed."""
    with unchanged(ledger), pytest.raises(error, match=match):
        yield


# --- the device ---------------------------------------------------------------------------------------------------------

Content: TypeAlias = tuple[bytes, int]
"""A key, and the generation that was computed under it: equal keys of two lives are two contents."""


class DeviceFault(AssertionError):  # noqa: N818 - what it reports is no error of the test
    """Two tenants met on one place, or bytes are not what somebody was promised."""


@define(eq=False)
class Copy:
    """One job that the device is running, for workers who are not done with it."""

    transfer: Transfer
    reads: list[Content | None]
    pending: set[int]
    failed: bool = False

    @property
    def stores(self) -> bool:
        """Whether it reads blocks and writes slots."""
        return self.transfer.direction is Direction.STORE

    @property
    def blocks(self) -> list[int]:
        """The blocks that it touches."""
        return [int(each) for each in (self.transfer.source if self.stores else self.transfer.target)]

    @property
    def slots(self) -> list[int]:
        """The slots that it touches."""
        return [int(each) for each in (self.transfer.target if self.stores else self.transfer.source)]


@define(eq=False)
class Device:
    """What the workers' devices are doing: which copies run on which places, and which content is where.

    A copy runs from the plan that submits it until its last worker has landed it, whatever anybody was told in between.
    """

    num_blocks: int
    num_slots: int
    workers: int
    contract: Contract
    copies: dict[JobId, Copy] = field(factory=dict)
    blocks: list[Content | None] = field(init=False)
    slots: list[Content | None] = field(init=False)
    awaited: set[JobId] = field(factory=set)
    """Copies that touch a block which was handed out; the next plan has to wait for them."""

    def __attrs_post_init__(self) -> None:
        self.blocks = [None] * self.num_blocks
        self.slots = [None] * self.num_slots

    def touching(self, block: int) -> list[JobId]:
        """The copies that may touch a block."""
        return [job for job, copy in self.copies.items() if block in copy.blocks]

    def handed_out(self, blocks: Sequence[int]) -> None:
        """New tenants got these blocks. Under hold no copy touches them; under fence the next plan waits for those that do."""
        for block in blocks:
            for job in self.touching(block):
                if self.contract is Contract.HOLD or not self.copies[job].stores:
                    raise DeviceFault(f"block {block} was handed out while copy {job} touches it")
                self.awaited.add(job)

    def run(
        self, plan: Plan, writes: Mapping[int, Content], lands_ok: Callable[[JobId], bool]
    ) -> list[tuple[JobId, int, bool]]:
        """Every worker carries the plan out: waits, loads, the forward pass with its *writes*, stores. Gives what landed."""
        landed: list[tuple[JobId, int, bool]] = []
        for job in plan.flushes:
            for worker in sorted(self.copies[job].pending) if job in self.copies else ():
                landed.append((job, worker, lands_ok(job)))
                self.land(*landed[-1])
        if missed := [job for job in self.awaited if job in self.copies]:
            raise DeviceFault(f"plan {plan.number} does not wait for copy {missed[0]}, whose block has a new tenant")
        self.awaited.clear()
        for transfer in plan.loads:
            self._launch(transfer)
        for block, content in writes.items():
            if others := self.touching(block):
                raise DeviceFault(
                    f"the forward pass of plan {plan.number} writes block {block}, which copy {others[0]} touches"
                )
            self.blocks[block] = content
        for transfer in plan.stores:
            self._launch(transfer)
        return landed

    def _launch(self, transfer: Transfer) -> None:
        copy = Copy(transfer, [], set(range(self.workers)))
        if transfer.job in self.copies:
            raise DeviceFault(f"copy {transfer.job} is launched twice")
        for other, running in self.copies.items():
            blocks, slots = set(copy.blocks) & set(running.blocks), set(copy.slots) & set(running.slots)
            if blocks or (slots and (copy.stores or running.stores)):
                raise DeviceFault(
                    f"copy {transfer.job} meets copy {other} on blocks {sorted(blocks)} and slots {sorted(slots)}"
                )
        source, target = (self.blocks, self.slots) if copy.stores else (self.slots, self.blocks)
        copy.reads = [source[place] for place in transfer.source]
        for place in transfer.target:
            target[place] = None
        self.copies[transfer.job] = copy

    def land(self, job: JobId, worker: int, ok: bool) -> None:
        """One worker is done with its share; with the last one the bytes are there, or garbage is."""
        copy = self.copies[job]
        copy.pending.discard(worker)
        copy.failed |= not ok
        if copy.pending:
            return
        source, target = (self.blocks, self.slots) if copy.stores else (self.slots, self.blocks)
        for place, origin, read in zip(copy.transfer.target, copy.transfer.source, copy.reads, strict=True):
            if source[origin] != read:
                raise DeviceFault(f"copy {job} read place {origin} while it changed from {read} to {source[origin]}")
            target[place] = None if copy.failed else read
        del self.copies[job]

    def quiet(self, job: JobId) -> None:
        """The device was synchronised with this copy; nobody was told how it ended."""
        for worker in sorted(self.copies[job].pending) if job in self.copies else ():
            self.land(job, worker, ok=True)


class Book(Protocol):
    """What a ledger claims about its places."""

    def block_state(self, block: int) -> str:
        """The state of a block, by name."""

    def slot_state(self, slot: int) -> str:
        """The state of a slot, by name."""


@define
class Claims:
    """The claims of a real ledger."""

    ledger: Ledger

    def block_state(self, block: int) -> str:
        """The state of a block, by name."""
        return self.ledger.blocks.state(block).name

    def slot_state(self, slot: int) -> str:
        """The state of a slot, by name."""
        return self.ledger.slots.state(slot).name


STORE_READS, LOAD_WRITES = ({each.name for each in blocks_touched(stores=stores)} for stores in (True, False))
STORE_WRITES, LOAD_READS = ({each.name for each in slots_touched(stores=stores)} for stores in (True, False))


def compare(device: Device, book: Book) -> None:
    """No place that the device touches is claimed to be anything that it cannot be then."""
    for job, copy in device.copies.items():
        for block in copy.blocks:
            if (claim := book.block_state(block)) not in (STORE_READS if copy.stores else LOAD_WRITES):
                raise DeviceFault(f"copy {job} touches block {block}, which is {claim} in the ledger")
        for slot in copy.slots:
            if (claim := book.slot_state(slot)) not in (STORE_WRITES if copy.stores else LOAD_READS):
                raise DeviceFault(f"copy {job} touches slot {slot}, which is {claim} in the ledger")
