"""An engine step of the kernel: the plan that goes out, the reports that come back, deadlines, and what forgets everything.

Rules of this file:

* A plan is a number; what it waits for is a list of numbers of jobs. Records are made by whoever calls.
* Reports were checked before the first is applied: workers exist, and their jobs were submitted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from blocklife.core._columns import Core, Ints, zeros
from blocklife.core._couplings import (
    abandon,
    ask_submit,
    cancel,
    end_orphans,
    give_up,
    give_up_job,
    release_all,
    step_job,
    submit,
)
from blocklife.core._moves import ask, can_job, fire_job, move_blocks, move_slots
from blocklife.core._refused import KernelRefusal, Why
from blocklife.core._tables import (
    ABANDON_JOB,
    ADMITTED_,
    ALL_OK,
    AT_EXPIRE,
    AT_FINISH,
    AT_WORKERS,
    BEHIND,
    CANCEL_JOB,
    COPIED,
    DROP,
    EFFECTS_A_ROW,
    EXPIRES,
    FINISHED,
    FORGET,
    J_ABANDON,
    J_CANCEL,
    J_EXPIRE,
    J_FINISH,
    J_FLUSH,
    J_QUIESCE,
    KEPT,
    LOAD,
    MORE,
    NEVER,
    OVER,
    PLANNED,
    PREEMPT,
    R_PREEMPT,
    READABLE,
    UNSEALED,
    WANTED,
)
from blocklife.core._verbs import choose_seals, seal

# --- the plan ----------------------------------------------------------------------------------------------------------


def ripe_jobs(core: Core) -> list[int]:
    """The rows of the planned jobs whose content is final, the oldest first."""
    jobs, state, traits = core.jobs, core.blocks.state, core.rules.block_trait
    found: list[int] = []
    for row in jobs.planned:
        for entry in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
            if traits[state[jobs.place[entry]]] & UNSEALED:
                break
        else:
            found.append(row)
    return found


def dispatch(core: Core, now: float) -> list[int]:
    """Submit every planned job whose content is final, and begin a plan that waits for what is to be waited for.

    Returns the rows of the jobs; `Core.plan` is the number of the plan, and `Core.waiting` has what it waits for.
    """
    jobs, traits = core.jobs, core.rules.job_trait
    core.plan += 1
    ripe = ripe_jobs(core)
    if len(ripe) > 1:
        for row in ripe:
            ask_submit(core, row)
    for row in ripe:
        submit(core, row)
    flushed: list[int] = []
    if core.to_flush:
        for row in ripe:
            if jobs.number[row] in core.to_flush:  # a load that this very plan waits for
                fire_job(core, row, J_FLUSH, 0)
        for number in core.to_flush:
            row = jobs.find(number)
            if row and not traits[jobs.state[row]] & OVER:
                arm(core, row, now)
                flushed.append(number)
        core.to_flush.clear()
    core.waiting[core.plan] = flushed
    return ripe


def by_direction(core: Core, rows: Sequence[int]) -> list[list[int]]:
    """The rows of jobs, those of each direction apart."""
    found: list[list[int]] = [[] for _ in range(4)]
    for row in rows:
        found[core.jobs.direction[row]].append(row)
    return found


def cuts_of(core: Core, rows: Sequence[int]) -> list[int]:
    """Where the blocks of each of these jobs begin if they stand one behind the other, and how many they are together."""
    found, total = [0], 0
    for row in rows:
        total += core.jobs.num_blocks[row]
        found.append(total)
    return found


def moved_by(core: Core, rows: Sequence[int], total: int) -> tuple[Ints, Ints, bytearray]:
    """What jobs move, one after the other: blocks, host places and groups, *total* of each."""
    jobs = core.jobs
    made = zeros("i", total), zeros("i", total), bytearray(total)
    near, far, groups = made  # as columns, which cost nothing to fill
    end = 0
    for row in rows:
        for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
            near[end] = jobs.place[at]
            far[end] = jobs.slot[at]
            groups[end] = jobs.group[at]
            end += 1
    return made


def arm(core: Core, row: int, now: float) -> int:
    """Start the deadline of a job, if it has not started."""
    jobs = core.jobs
    if jobs.deadline[row] == NEVER:
        jobs.deadline[row] = now + core.deadline_after
        heapq.heappush(core.deadlines, (jobs.deadline[row], jobs.number[row]))
        if len(core.deadlines) > 2 * jobs.max_jobs:
            core.deadlines[:] = [each for each in core.deadlines if is_out(core, jobs.find(each[1]))]
            heapq.heapify(core.deadlines)
    return 0


def is_out(core: Core, row: int) -> bool:
    """Whether the job in a row is not over; row 0 is no job."""
    return row != 0 and not core.rules.job_trait[core.jobs.state[row]] & OVER


def launched(core: Core, number: int, now: float) -> int:
    """A worker has launched its share of a job: the deadline starts."""
    row = core.jobs.find(number)
    if row and core.rules.job_trait[core.jobs.state[row]] & AT_WORKERS:
        arm(core, row, now)
    return 0


# --- reports -----------------------------------------------------------------------------------------------------------


def report(core: Core, number: int, worker: int, ok: bool, positions: Sequence[int]) -> int:
    """Apply one worker's report. Late, repeated and unknown ones are counted, and change nothing.

    *positions*: what it did not move (`note_missing`).
    """
    jobs, traits = core.jobs, core.rules.job_trait
    note_missing(core, number, worker, positions)
    if number <= 0 or number > jobs.last_number:
        core.unknown += 1
        return 0
    row = jobs.find(number)
    if row == 0:  # over for so long that its row was used again
        core.late += 1
        return 0
    trait, word = traits[jobs.state[row]], row * jobs.words + (worker >> 6)
    bit = jobs.everybody[worker >> 6] & (1 << (worker & 63))
    again, over = jobs.reported[word] & bit != 0, trait & OVER != 0
    if again:
        core.duplicate += 1
    elif over or not trait & WANTED:
        core.late += 1
    if again and not over:
        return 0
    failed = jobs.failed[row] != 0 or not ok
    jobs.reported[word] |= bit
    facts = 0 if failed else ALL_OK
    if over:
        fire_job(core, row, J_FINISH, facts | (MORE if is_missing(core, row) else 0))
        return 0
    jobs.failed[row] = 1 if failed else 0
    if is_missing(core, row):
        fire_job(core, row, J_FINISH, facts | MORE)
    else:
        step_job(core, row, J_FINISH, AT_FINISH, facts)
    return 0


def is_missing(core: Core, row: int) -> bool:
    """Whether a worker that has to report for a job has not."""
    jobs = core.jobs
    for at in range(row * jobs.words, (row + 1) * jobs.words):  # noqa: SIM110 - no generator in the kernel
        if jobs.expected[at] & ~jobs.reported[at]:
            return True
    return False


def has_reported(core: Core, row: int, worker: int) -> bool:
    """Whether a worker has reported for a job."""
    return core.jobs.reported[row * core.jobs.words + (worker >> 6)] >> (worker & 63) & 1 != 0


def note_missing(core: Core, number: int, worker: int, positions: Sequence[int]) -> int:
    """Of a promotion or demotion that is not over, a worker that has not reported did not move what is at these positions."""
    jobs = core.jobs
    row = jobs.find(number)
    if positions and is_out(core, row) and not has_reported(core, row, worker):
        slots = [jobs.slot[jobs.slot_begin[row] + at] for at in positions]
        jobs.missing[number] = jobs.missing.get(number, frozenset()).union(slots)
    return 0


def prove_waited(core: Core, waited: dict[int, None]) -> int:
    """Every worker has waited for these jobs: those that have not reported are quiet all the same."""
    jobs = core.jobs
    for number in waited:
        row = jobs.find(number)
        if is_out(core, row):
            step_job(core, row, J_QUIESCE, AT_FINISH, 0)
    return 0


def settle(
    core: Core,
    plan: int,
    now: float,
    numbers: Sequence[int],
    workers: Sequence[int],
    oks: Sequence[bool],
    missing: Sequence[Sequence[int]],
    seals: Sequence[tuple[int, Sequence[int], Sequence[bytes]]],
) -> int:
    """Apply what the workers reported, one entry a report, after every worker has executed a plan.

    ``missing`` has what each report says that it did not move (`note_missing`); it is empty where all moved everything.

    First reports of jobs that the plan waited for, then the proof that these are quiet, then other reports, seals, deadlines.
    """
    waited = dict.fromkeys(core.waiting.pop(plan))
    if waited:
        for at in range(len(numbers)):
            if numbers[at] in waited:
                report(core, numbers[at], workers[at], oks[at], missing[at] if missing else ())
        prove_waited(core, waited)
    for at in range(len(numbers)):
        if not waited or numbers[at] not in waited:
            report(core, numbers[at], workers[at], oks[at], missing[at] if missing else ())
    if seals:
        seal(core, seals)
    if core.deadlines and core.deadlines[0][0] <= now:
        expire(core, now)
    return 0


def check_settle(
    core: Core,
    plan: int,
    numbers: Sequence[int],
    workers: Sequence[int],
    seals: Sequence[tuple[int, Sequence[int], Sequence[bytes]]],
) -> int:
    """Refuse what `settle` could not apply, before it applies anything: reports of planned jobs, seals of what is not open."""
    jobs, traits = core.jobs, core.rules.job_trait
    for number in numbers:
        row = jobs.find(number)
        if row and traits[jobs.state[row]] & PLANNED:
            raise KernelRefusal(Why.NO_JOB_ROW, row, J_FINISH)
    if not seals:
        return 0
    blocks, kinds, total = core.blocks, core.rules.block_trait, 0
    for _, lives, _ in seals:
        total += len(lives)
    core.make_room(total)
    blocks.mark()
    total = 0
    for group, lives, keys in seals:
        total += choose_seals(core, lives, keys, group, total)
    kept, behind = 0, False
    for at in range(total):
        place = core.ids[at]
        if kinds[blocks.state[place]] & BEHIND:
            behind = True
        else:
            core.ids[kept] = place
            kept += 1
    if behind:  # a block whose copy this very call proves quiet can be sealed in it
        kept = add_unproven(core, kept, set(core.waiting[plan]), numbers, workers)
    ask(core, core.rules.seal, kept, False)
    return 0


def add_unproven(core: Core, count: int, waited: set[int], numbers: Sequence[int], workers: Sequence[int]) -> int:
    """Add marked blocks to ``ids`` that an old copy touches, and will still touch when these reports are applied.

    Each once, so that there is room for all of them: its mark is taken away.
    """
    jobs, blocks, kinds, row = core.jobs, core.blocks, core.rules.block_trait, core.jobs.following[0]
    told_of: dict[int, list[int]] = {}
    for at in range(len(numbers)):
        told_of.setdefault(numbers[at], []).append(workers[at])
    while row:
        number, missing = jobs.number[row], False
        if number not in waited:
            told = told_of.get(number, [])
            for worker in range(core.num_workers):
                if worker not in told and not has_reported(core, row, worker):
                    missing = True
        if missing:
            for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
                place = jobs.place[at]
                if blocks.seen[place] == blocks.stamp and kinds[blocks.state[place]] & BEHIND:
                    core.ids[count] = place
                    count += 1
                    blocks.seen[place] = 0
        row = jobs.following[row]
    return count


def serving(core: Core, requests: set[int]) -> list[int]:
    """The rows of the jobs that are not over and for one of these requests, the oldest first."""
    jobs, row = core.jobs, core.jobs.following[0]
    found: list[int] = []
    wanted = 0
    for request in requests:
        wanted += core.requests.serving[request]
    while row and wanted:
        for at in range(jobs.owner_begin[row], jobs.owner_begin[row] + jobs.num_owners[row]):
            if jobs.owner[at] in requests:
                found.append(row)
                break
        row = jobs.following[row]
    return found


def expire(core: Core, now: float) -> list[int]:
    """Quarantine every job whose deadline has passed; returns their numbers."""
    found: list[int] = []
    while core.deadlines and core.deadlines[0][0] <= now:
        number = heapq.heappop(core.deadlines)[1]
        row = core.jobs.find(number)
        if row and core.rules.job_trait[core.jobs.state[row]] & EXPIRES:
            found.append(number)
            step_job(core, row, J_EXPIRE, AT_EXPIRE, 0)
    return found


def quiesce(core: Core, row: int) -> int:
    """Accept the proof that the device no longer touches the places of a job; one in flight is given up first."""
    if not can_job(core, row, J_QUIESCE):
        step_job(core, row, J_EXPIRE, AT_EXPIRE, 0)
    step_job(core, row, J_QUIESCE, AT_FINISH, 0)
    return 0


def lose(core: Core, worker: int) -> int:
    """A worker is lost: what it has not reported counts as failed. A failed load also ends planned stores."""
    jobs, traits, row = core.jobs, core.rules.job_trait, core.jobs.following[0]
    owed: list[int] = []
    while row:
        if not traits[jobs.state[row]] & PLANNED and not has_reported(core, row, worker):
            owed.append(jobs.number[row])
        row = jobs.following[row]
    for number in owed:
        report(core, number, worker, False, ())
    return 0


# --- forgetting everything ---------------------------------------------------------------------------------------------


def reset(core: Core, host: bool) -> int:
    """Coupling *reset-now*: forget all content, that of the lower tier, too, with *host*."""
    effects = core.rules.resets
    for at in range(EFFECTS_A_ROW):
        effect = effects[at]
        if effect == PREEMPT:
            empty_requests(core)
        elif effect == CANCEL_JOB:
            end_all_jobs(core, True, host)
        elif effect == ABANDON_JOB:
            end_all_jobs(core, False, host)
        elif effect == DROP:
            drop_all_content(core)
        elif effect == FORGET and host:
            reset_slots(core)
    return 0


def empty_requests(core: Core) -> int:
    """Every request gives back what it holds; one that runs or loads is preempted."""
    requests, traits = core.requests, core.rules.request_trait
    for row in list(requests.by_name.values()):
        if traits[requests.state[row]] & ADMITTED_:
            give_up(core, row, R_PREEMPT)
        elif requests.state[row] != FINISHED:
            release_all(core, row)
    return 0


def end_all_jobs(core: Core, planned: bool, host: bool) -> int:
    """Cancel what is planned, or abandon what is submitted; without *host* only stores and loads that are planned."""
    jobs, row = core.jobs, core.jobs.following[0]
    found: list[int] = []
    while row:
        if host or jobs.num_blocks[row]:
            found.append(row)
        row = jobs.following[row]
    for row in found:
        if planned and can_job(core, row, J_CANCEL):
            cancel(core, row)
        elif not planned and host and can_job(core, row, J_ABANDON):
            abandon(core, row)
    return 0


def drop_all_content(core: Core) -> int:
    """Forget what free blocks keep, in the order in which they are handed out, and then what copies read."""
    blocks, traits, count = core.blocks, core.rules.block_trait, 0
    core.make_room(blocks.size)
    place = blocks.following[blocks.size] if blocks.indexed else 1
    while place != blocks.size:
        if traits[blocks.state[place]] & KEPT:
            core.ids[count] = place
            count += 1
        place = blocks.following[place] if blocks.indexed else place + 1
    move_blocks(core, core.rules.drop, count, 0)
    count = 0
    for place in range(1, blocks.size):
        if traits[blocks.state[place]] & COPIED and not blocks.refs[place]:
            core.ids[count] = place
            count += 1
    move_blocks(core, core.rules.drop, count, 0)
    end_orphans(core, False)
    return 0


def reset_slots(core: Core) -> int:
    """Forget the content of every slot, by group and key: places are used again in this order."""
    slots, contents, traits, count = core.slots, core.contents, core.rules.slot_trait, 0
    core.make_room(slots.size)
    for known in contents.known:
        for key in sorted(known):
            slot = contents.slot[known[key]]
            if slot >= 0 and traits[slots.state[slot]] & READABLE:
                core.slot_ids[count] = slot
                count += 1
    move_slots(core, core.rules.forget, count, 0)
    return 0


def reset_host(core: Core) -> int:
    """Forget the content of the lower tier only: loads go on, and all other jobs are given up."""
    jobs, slots, traits = core.jobs, core.slots, core.rules.slot_trait
    found: list[int] = []
    row = jobs.following[0]
    while row:
        if jobs.direction[row] != LOAD:
            found.append(row)
        row = jobs.following[row]
    for row in found:
        give_up_job(core, row)
    count = 0
    core.make_room(slots.size)
    for slot in range(slots.size):
        if traits[slots.state[slot]] & READABLE:
            core.slot_ids[count] = slot
            count += 1
    move_slots(core, core.rules.forget, count, 0)
    return 0
