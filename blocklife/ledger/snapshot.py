"""A ledger at one moment, and the way back to it: what exploring every state is built on."""

from __future__ import annotations

from array import array
from collections import Counter, deque

from attrs import frozen

from blocklife.errors import MisuseError
from blocklife.ledger.book import RequestRow
from blocklife.ledger.core import Core
from blocklife.ledger.jobs import JobsSnapshot


@frozen(eq=False)
class Snapshot:
    """A ledger at one moment, for `Ledger.restore` on a ledger with the same limits."""

    made_with: tuple[object, ...]
    """Limits, contract, incarnation and owner of the pool of the ledger that it was taken of."""
    blocks: tuple[bytes, ...]
    block_keys: tuple[bytes | None, ...]
    slots: tuple[bytes, ...]
    slot_keys: tuple[bytes | None, ...]
    indexes: tuple[tuple[dict[bytes, int], ...], tuple[dict[bytes, int], ...]]
    queue: tuple[int, ...]
    empty: tuple[int, ...]
    jobs: JobsSnapshot
    requests: tuple[tuple[int, str, tuple[array[int], ...], int], ...]
    request_states: bytes
    spare_requests: tuple[int, ...]
    holders: tuple[tuple[str, Counter[int]], ...]
    plan: tuple[int, tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...], tuple[tuple[float, int], ...]]


def take(core: Core) -> Snapshot:
    """Everything that decides what the ledger does next. What was counted, and the journal, are not part of it."""
    blocks, slots = core.blocks, core.slots
    return Snapshot(
        made_with=_made_with(core),
        blocks=(
            blocks.column.snapshot(),
            bytes(blocks.group),
            *(bytes(each) for each in (blocks.epoch, blocks.refs, blocks.pins, blocks.writes, blocks.doubts, blocks.job)),
        ),
        block_keys=tuple(blocks.key),
        slots=(slots.column.snapshot(), bytes(slots.group), bytes(slots.pins)),
        slot_keys=tuple(slots.key),
        indexes=(tuple(each.copy() for each in blocks.index), tuple(each.copy() for each in slots.index)),
        queue=tuple(blocks.queue.order()),
        empty=tuple(slots.peek_empty(len(slots))),
        jobs=core.jobs.snapshot(),
        requests=tuple(
            (each.row, each.name, tuple(table[:] for table in each.tables), each.load) for each in core.requests.values()
        ),
        request_states=core.request_column.snapshot(),
        spare_requests=tuple(core._spare_requests),
        holders=tuple((name, held.copy()) for name, held in core.holders.items()),
        plan=(
            core.plan_number,
            tuple(core._to_flush),
            tuple(core._waiting.items()),
            tuple(sorted(each for each in core._deadlines if each[1] in core.jobs.out)),
        ),
    )


def _made_with(core: Core) -> tuple[object, ...]:
    return core.limits, core.contract, core.incarnation, core.own_pool


def put_back(core: Core, saved: Snapshot) -> None:
    """Go back to a snapshot of a ledger with the same limits."""
    blocks, slots = core.blocks, core.slots
    if saved.made_with != _made_with(core):
        raise MisuseError("the snapshot is of a ledger that was made with other limits, contract, incarnation or pool")
    blocks.column.restore(saved.blocks[0])
    blocks.group[:] = saved.blocks[1]
    columns = (blocks.epoch, blocks.refs, blocks.pins, blocks.writes, blocks.doubts, blocks.job)
    for column, content in zip(columns, saved.blocks[2:], strict=True):
        memoryview(column).cast("B")[:] = content
    blocks.key[:] = saved.block_keys
    slots.column.restore(saved.slots[0])
    slots.group[:] = saved.slots[1]
    memoryview(slots.pins).cast("B")[:] = saved.slots[2]
    slots.key[:] = saved.slot_keys
    blocks.index = [each.copy() for each in saved.indexes[0]]
    slots.index = [each.copy() for each in saved.indexes[1]]
    blocks.queue.reset(list(saved.queue))
    blocks.free = len(saved.queue)
    slots.rebuild(saved.empty)
    core.jobs.restore(saved.jobs)
    core.requests = {
        name: RequestRow(row, name, [table[:] for table in tables], load) for row, name, tables, load in saved.requests
    }
    core.request_column.restore(saved.request_states)
    core._spare_requests = deque(saved.spare_requests)
    core.holders = {name: held.copy() for name, held in saved.holders}
    number, to_flush, waiting, deadlines = saved.plan
    core.plan_number = number
    core._to_flush = dict.fromkeys(to_flush)
    core._waiting = dict(waiting)
    core._deadlines = list(deadlines)
