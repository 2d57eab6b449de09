"""Records of a plan, for the workers, made of the rows of its jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blocklife.core import _plans as plans
from blocklife.ledger._state import LedgerData
from blocklife.ledger.records import Direction, Plan, TierTransfer, Transfer, Transfers

_STORE, _LOAD, _PROMOTE, _DEMOTE = Direction.STORE, Direction.LOAD, Direction.PROMOTE, Direction.DEMOTE


def plan_of(data: LedgerData, rows: Sequence[int]) -> Plan:
    """The plan that was dispatched last, which submits the jobs in these rows."""
    core = data.core
    flushed = core.waiting[core.plan]
    flushes = tuple([data.id_of(core.jobs.find(number)) for number in flushed]) if flushed else ()
    if not rows:
        return Plan(core.plan, (), (), flushes)
    stores, loads, demotes, promotes = plans.by_direction(core, rows)
    return Plan(
        core.plan,
        transfers(data, _LOAD, loads) if loads else (),
        transfers(data, _STORE, stores) if stores else (),
        flushes,
        tuple([tier_transfer(data, _PROMOTE, row) for row in promotes]),
        tuple([tier_transfer(data, _DEMOTE, row) for row in demotes]),
    )


def transfers(data: LedgerData, direction: Direction, rows: Sequence[int]) -> Sequence[Transfer]:
    """The transfers of jobs of one direction, at least one: two lists, in which each job has a part."""
    core = data.core
    cuts = plans.cuts_of(core, rows)
    near, far, groups = plans.moved_by(core, rows, cuts[-1])
    source, target = (near, far) if direction is _STORE else (far, near)
    return Transfers(
        data.incarnation, direction, [core.jobs.number[row] for row in rows], source, target, cuts,
        bytes(groups), core.num_groups,
    )  # fmt: skip


def tier_transfer(data: LedgerData, direction: Direction, row: int) -> TierTransfer:
    """What the workers move for one job between slots and the store below."""
    jobs, key = data.core.jobs, data.core.contents.key
    places = range(jobs.slot_begin[row], jobs.slot_begin[row] + jobs.num_slots[row])
    return TierTransfer(
        data.id_of(row),
        direction,
        np.array([jobs.slot[at] for at in places], np.int64),
        bytes([jobs.group[at] for at in places]),
        tuple([key[jobs.key[at]] for at in places]),
        jobs.space.get(jobs.number[row], b""),
    )
