"""Ask, then write: the two halves of every step of places, jobs and requests, and the journal that notes it.

Rules of this file:

* `ask` finds the row of each place and changes nothing; `write` takes these rows and cannot fail. Both work on the scratch
  columns of the kernel: ``ids`` with ``rows`` and ``own`` for blocks, ``slot_ids``, ``slot_rows`` and ``unwanted`` for slots.
* The ids of one call are distinct, and exist.
"""

from __future__ import annotations

from blocklife.core._columns import Core
from blocklife.core._refused import KernelRefusal, Why
from blocklife.core._rules import PlaceMove
from blocklife.core._tables import (
    ENDS,
    ENTERS,
    JOB_MACHINE,
    KEPT,
    LAST_EPOCH,
    LEAVES,
    PUBLISHES,
    READABLE,
    REQUEST_MACHINE,
)

# --- blocks ------------------------------------------------------------------------------------------------------------


def ask(core: Core, move: PlaceMove, count: int, owned: bool) -> int:
    """Find the row of each of ``ids[:count]``; *owned*: those marked in ``own`` are in the life that the caller means.

    Raises `KernelRefusal` for the first place that has no row, or whose counts do not allow the move.
    """
    blocks, looks = core.blocks, move.looks
    ids, rows, state, table = core.ids, core.rows, blocks.state, move.table
    if looks == 0 and not owned:
        for at in range(count):
            row = table[state[ids[at]] << 4]
            if row == 0:
                raise KernelRefusal(Why.NO_ROW, ids[at], 0, move)
            rows[at] = row
        return 0
    ours, own = move.ours, core.own
    for at in range(count):
        place = ids[at]
        bits = state[place] << 4
        if looks & 1:
            seen = blocks.refs[place] + move.seen_refs
            if seen < 0 or seen > 65535:
                refuse_count(move, place, seen, 1)
            if seen:
                bits |= 1
        if looks & 2:
            seen = blocks.pins[place] + move.pins
            if seen < 0 or seen > 255:
                refuse_count(move, place, seen, 2)
            if seen:
                bits |= 2
        if looks & 4:
            seen = blocks.writes[place] + move.writes
            if seen < 0 or seen > 255:
                refuse_count(move, place, seen, 4)
            if seen:
                bits |= 4
        if looks & 8:
            seen = blocks.overdue[place] + move.overdue
            if seen < 0 or seen > 255:
                refuse_count(move, place, seen, 8)
            if seen:
                bits |= 8
        row = ours[bits] if owned and own[at] else table[bits]
        if row == 0:
            raise KernelRefusal(Why.NO_ROW, place, 0, move)
        rows[at] = row
    return 0


def refuse_count(move: PlaceMove, place: int, seen: int, bit: int) -> int:
    """A count would leave its column."""
    raise KernelRefusal(Why.BELOW_ZERO if seen < 0 else Why.TOO_MANY, place, bit, move)


def write(core: Core, move: PlaceMove, count: int) -> int:
    """Take the rows that were found. ``orphans`` gets the rows of the jobs whose source life ended."""
    blocks, rules = core.blocks, core.rules
    ids, rows, state, taken = core.ids, core.rows, blocks.state, blocks.taken
    target, meaning = rules.block_target, rules.block_meaning
    refs, pins = move.refs, move.pins
    # refs belong to the life: those of an ended one are gone, and the change below must find what it takes away
    left = -refs if refs < 0 else 0
    entering = 0
    for at in range(count):
        place, row = ids[at], rows[at]
        state[place] = target[row]
        taken[row] += 1
        means = meaning[row]
        if means:
            if means & ENDS:
                end_life(core, place, left)
            if means & ENTERS:
                core.entering[entering] = place
                entering += 1
            elif means & LEAVES:
                blocks.free -= 1
                if blocks.indexed:
                    blocks.unlink(place)
        if refs:
            blocks.refs[place] += refs
        if pins:
            blocks.pins[place] += pins
    if move.writes:
        for at in range(count):
            blocks.writes[ids[at]] += move.writes
    if move.overdue:
        for at in range(count):
            blocks.overdue[ids[at]] += move.overdue
    if entering:
        free_up(core, entering)
    return 0


def end_life(core: Core, place: int, left: int) -> int:
    """The life of a place is over: every older reference is stale from here on."""
    blocks, contents = core.blocks, core.contents
    blocks.epoch[place] = blocks.epoch[place] % LAST_EPOCH + 1
    blocks.refs[place] = left
    key = blocks.key[place]
    if key:
        blocks.key[place] = 0
        if contents.block[key] == place:
            contents.block[key] = -1
        contents.let_go(key)
    if blocks.job[place]:
        core.orphans.append(blocks.job[place])
        blocks.job[place] = 0
    return 0


def free_up(core: Core, count: int) -> int:
    """``entering[:count]`` are free from here on: those without content are handed out before all others."""
    blocks, entering, traits = core.blocks, core.entering, core.rules.block_trait
    blocks.free += count
    if not blocks.indexed:
        return 0
    for at in range(count):
        if traits[blocks.state[entering[at]]] & KEPT:
            blocks.push_back(entering[at])
    for back in range(count):
        place = entering[count - 1 - back]
        if not traits[blocks.state[place]] & KEPT:
            blocks.push_front(place)
    return 0


def move_blocks(core: Core, move: PlaceMove, count: int, job: int) -> int:
    """Ask and write ``ids[:count]``, and note the step."""
    if count:
        ask(core, move, count, False)
        write(core, move, count)
        note(core, move, count, job)
    return 0


# --- slots -------------------------------------------------------------------------------------------------------------


def ask_slots(core: Core, move: PlaceMove, count: int, doubles: bool) -> int:
    """As `ask`, of ``slot_ids[:count]``; with *doubles*, nothing is OK for those marked in ``unwanted``."""
    slots, looks, pins = core.slots, move.looks, move.pins
    ids, rows, state, table = core.slot_ids, core.slot_rows, slots.state, move.table
    for at in range(count):
        place = ids[at]
        bits = state[place] << 4
        if looks & 2:
            seen = slots.pins[place] + pins
            if seen < 0 or seen > 65535:
                refuse_count(move, place, seen, 2)
            if seen:
                bits |= 2
        row = move.ours[bits] if doubles and core.unwanted[at] else table[bits]
        if row == 0:
            raise KernelRefusal(Why.NO_ROW, place, 0, move)
        rows[at] = row
    return 0


def write_slots(core: Core, move: PlaceMove, count: int) -> int:
    """As `write`, of slots. No job loses its source with a slot."""
    slots, contents, rules, pins = core.slots, core.contents, core.rules, move.pins
    ids, rows, state, taken = core.slot_ids, core.slot_rows, slots.state, slots.taken
    target, meaning, traits = rules.slot_target, rules.slot_meaning, rules.slot_trait
    for at in range(count):
        place, row = ids[at], rows[at]
        if traits[state[place]] & READABLE and slots.pins[place]:
            slots.held -= 1
        slots.in_state[state[place]] -= 1
        state[place] = target[row]
        slots.in_state[state[place]] += 1
        if traits[state[place]] & READABLE and slots.pins[place] + pins:
            slots.held += 1
        taken[row] += 1
        means = meaning[row]
        if means:
            key = slots.key[place]
            if means & PUBLISHES and key:
                contents.slot[key] = place
            if means & core.watched:
                core.changes.append((means & PUBLISHES != 0, place, slots.group[place], contents.key[key]))
            if means & ENDS and key:
                slots.key[place] = 0
                if contents.slot[key] == place:
                    contents.slot[key] = -1
                contents.let_go(key)
            if means & ENTERS:
                slots.free += 1
                slots.push_front(place)
                if slots.newer[place] >= 0:
                    leave_use(core, place)
            elif means & LEAVES:
                slots.free -= 1
                slots.unlink(place)
        if pins:
            slots.pins[place] += pins
    return 0


def leave_use(core: Core, place: int) -> int:
    """The slot is in no order of use any more."""
    slots = core.slots
    older, newer = slots.older[place], slots.newer[place]
    slots.newer[older] = newer
    slots.older[newer] = older
    slots.newer[place] = -1
    return 0


def use(core: Core, place: int) -> int:
    """The slot is the most recently used one."""
    slots, end = core.slots, core.slots.size
    if slots.newer[place] >= 0:
        leave_use(core, place)
    last = slots.older[end]
    slots.older[place] = last
    slots.newer[place] = end
    slots.newer[last] = place
    slots.older[end] = place
    return 0


def move_slots(core: Core, move: PlaceMove, count: int, job: int) -> int:
    """Ask and write ``slot_ids[:count]``, and note the step."""
    if count:
        ask_slots(core, move, count, False)
        write_slots(core, move, count)
        note(core, move, count, job)
    return 0


# --- jobs and requests -------------------------------------------------------------------------------------------------


def ask_job(core: Core, row: int, event: int, facts: int) -> int:
    """The row that a job takes."""
    found = core.rules.job_rows[event << 6 | core.jobs.state[row] << 2 | facts]
    if found == 0:
        raise KernelRefusal(Why.NO_JOB_ROW, row, event)
    return found


def can_job(core: Core, row: int, event: int) -> bool:
    """Whether a job has a row for an event without facts."""
    return core.rules.job_rows[event << 6 | core.jobs.state[row] << 2] != 0


def write_job(core: Core, row: int, event: int, taken: int) -> int:
    """A job takes a row that was found."""
    jobs = core.jobs
    jobs.state[row] = core.rules.job_target[taken]
    jobs.taken[taken] += 1
    number = jobs.number[row]
    note_one(core, JOB_MACHINE | event, taken, number, number, "")
    return 0


def fire_job(core: Core, row: int, event: int, facts: int) -> int:
    """One step of a job that has no coupling."""
    write_job(core, row, event, ask_job(core, row, event, facts))
    return 0


def ask_request(core: Core, row: int, event: int) -> int:
    """The row that a request takes."""
    found = core.rules.request_rows[event << 6 | core.requests.state[row] << 2]
    if found == 0:
        raise KernelRefusal(Why.NO_REQUEST_ROW, row, event)
    return found


def fire_request(core: Core, row: int, event: int, job: int) -> int:
    """One step of a request, without what it causes."""
    requests = core.requests
    taken = ask_request(core, row, event)
    requests.state[row] = core.rules.request_target[taken]
    requests.taken[taken] += 1
    note_one(core, REQUEST_MACHINE | event, taken, requests.place[row], job, requests.names[row])
    return 0


# --- the journal -------------------------------------------------------------------------------------------------------


def note(core: Core, move: PlaceMove, count: int, job: int) -> int:
    """Note the step of ``ids[:count]``, or ``slot_ids[:count]``, that was written."""
    journal, here, plan = core.journal, core.journal.here, core.plan
    what, places, jobs, plans, sequences = journal.what, journal.place, journal.job, journal.plan, journal.sequence
    ids = core.slot_ids if move.of_slots else core.ids
    rows = core.slot_rows if move.of_slots else core.rows
    code, size = move.code << 8, journal.size
    journal.steps += 1
    step = journal.steps
    for at in range(count):
        what[here] = code | rows[at]
        places[here] = ids[at]
        jobs[here] = job
        plans[here] = plan
        sequences[here] = step
        here += 1
        if here == size:
            here = 0
    journal.here = here
    journal.at += count
    if journal.hears:
        hear(core, move, count, job)
    return 0


def hear(core: Core, move: PlaceMove, count: int, job: int) -> int:
    """Keep what hooks will be told, if any wants it, with what may change before they are: the epochs."""
    journal, heard, code = core.journal, core.journal.heard, move.code << 8
    ids = core.slot_ids if move.of_slots else core.ids
    taken = core.slot_rows if move.of_slots else core.rows
    if not heard[code]:
        return 0
    for at in range(count):
        if heard[code | taken[at]]:
            break
    else:
        return 0
    places: list[int] = []
    rows: list[int] = []
    epochs: list[int] = []
    for at in range(count):
        rows.append(taken[at])
        places.append(ids[at])
        if not move.of_slots:
            epochs.append(core.blocks.epoch[ids[at]])
    core.told.append((journal.steps, core.plan, move.code, places, rows, epochs, job, ""))
    return 0


def note_one(core: Core, code: int, row: int, place: int, job: int, name: str) -> int:
    """Note the step of a job or request that was written."""
    journal, here = core.journal, core.journal.here
    journal.steps += 1
    journal.what[here] = code << 8 | row
    journal.place[here] = place
    journal.job[here] = job
    journal.plan[here] = core.plan
    journal.sequence[here] = journal.steps
    if name:
        journal.names[here] = name
    journal.here = here + 1 if here + 1 < journal.size else 0
    journal.at += 1
    if journal.hears and journal.heard[code << 8 | row]:
        core.told.append((journal.steps, core.plan, code, [place], [row], [], job, name))
    return 0
