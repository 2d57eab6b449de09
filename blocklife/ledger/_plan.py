"""Records of a plan, for the workers, made of the rows of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from blocklife.core import _plans as plans
from blocklife.core._columns import zeros
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import JobView
from blocklife.ledger.records import Direction, Plan, TierTransfer, Transfer, Transfers


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
        transfers(data, Direction.LOAD, loads),
        transfers(data, Direction.STORE, stores),
        flushes,
        tuple([tier_transfer(data, data.job(row)) for row in promotes]),
        tuple([tier_transfer(data, data.job(row)) for row in demotes]),
    )


def transfers(data: LedgerData, direction: Direction, rows: Sequence[int]) -> Sequence[Transfer]:
    """The transfers of jobs of one direction: two arrays, in which each job has a part."""
    if not rows:
        return ()
    jobs = data.core.jobs
    cuts = [0, *accumulate([jobs.num_blocks[row] for row in rows])]
    near, far, groups = zeros("q", cuts[-1]), zeros("q", cuts[-1]), bytearray(cuts[-1])
    plans.moved_by(data.core, rows, near, far, groups)
    source, target = (near, far) if direction is Direction.STORE else (far, near)
    return Transfers(
        data.incarnation, direction, [jobs.number[row] for row in rows], source, target, cuts, bytes(groups),
        data.core.num_groups,
    )  # fmt: skip


def tier_transfer(data: LedgerData, job: JobView) -> TierTransfer:
    """What the workers move for one job between slots and the store below."""
    slots = np.array(job.slots, dtype=np.int64)
    return TierTransfer(data.id_of(job.row), job.direction, slots, job.slot_groups, tuple(job.keys), job.space)
