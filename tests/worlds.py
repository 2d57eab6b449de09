"""Small ledgers for tests, and what "unchanged" means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from blocklife.hook_errors import OnError
from blocklife.ledger import (
    Batch,
    Checking,
    Completion,
    Contract,
    JobId,
    Jobs,
    Ledger,
    LedgerTransition,
    Limits,
    Placement,
    Result,
    Store,
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


STORE_READS, LOAD_WRITES = ({each.name for each in blocks_touched(stores=stores)} for stores in (True, False))
STORE_WRITES, LOAD_READS = ({each.name for each in slots_touched(stores=stores)} for stores in (True, False))
