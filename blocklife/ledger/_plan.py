"""Records of a plan, for the workers, made of the rows of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

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
    jobs = [data.job(row) for row in rows]
    loads, stores, promotes, demotes = (
        [job for job in jobs if job.direction is each]
        for each in (Direction.LOAD, Direction.STORE, Direction.PROMOTE, Direction.DEMOTE)
    )
    return Plan(
        core.plan,
        transfers(data, Direction.LOAD, loads),
        transfers(data, Direction.STORE, stores),
        flushes,
        tuple([tier_transfer(data, job) for job in promotes]),
        tuple([tier_transfer(data, job) for job in demotes]),
    )


def transfers(data: LedgerData, direction: Direction, jobs: Sequence[JobView]) -> Sequence[Transfer]:
    """The transfers of jobs of one direction: two arrays, in which each job has a part."""
    if not jobs:
        return ()
    ids, places = [job.ids for job in jobs], [job.places for job in jobs]
    near, far = (np.array([each for part in parts for each in part], dtype=np.int64) for parts in (ids, places))
    source, target = (near, far) if direction is Direction.STORE else (far, near)
    return Transfers(
        data.incarnation, direction, [job.number for job in jobs], source, target,
        [0, *accumulate(map(len, ids))], [job.groups for job in jobs], data.core.num_groups,
    )  # fmt: skip


def tier_transfer(data: LedgerData, job: JobView) -> TierTransfer:
    """What the workers move for one job between slots and the store below."""
    slots = np.array(job.slots, dtype=np.int64)
    return TierTransfer(data.id_of(job.row), job.direction, slots, job.slot_groups, tuple(job.keys), job.space)
