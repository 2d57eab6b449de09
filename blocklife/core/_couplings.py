"""What follows when one machine takes a step: the couplings, run from their rows.

Rules of this file:

* Effects come from the rows of `states.COUPLINGS` (`_rules.Rules`); nothing is written beside them. Those of a job's steps,
  from its plan to its end, are carried out by `ask_effects` and `write_effects`.
* Everything is asked before anything is written. What is raised before the first write is a `KernelRefusal`; after that only
  a bug can raise.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.core._columns import Core
from blocklife.core._moves import (
    ask,
    ask_job,
    ask_request,
    ask_slots,
    can_job,
    fire_job,
    fire_request,
    move_blocks,
    note,
    write,
    write_job,
    write_slots,
)
from blocklife.core._refused import BrokenPair, KernelRefusal, Why
from blocklife.core._rules import PlaceMove
from blocklife.core._tables import (
    AT_CANCEL,
    AT_FINISH,
    AT_PLAN,
    AT_SUBMIT,
    CANCEL,
    CANCEL_JOB,
    DEAD_READ,
    DONE,
    EFFECTS_A_ROW,
    END_JOB,
    EXPIRE,
    FILLED,
    FLUSH_JOB,
    ID_MASK,
    INITIAL_JOB,
    J_ABANDON,
    J_CANCEL,
    J_FLUSH,
    J_QUIESCE,
    J_SUBMIT,
    LAND,
    LAST_OF_BLOCKS,
    LAST_OF_SLOTS,
    LATE,
    LOAD,
    NEVER,
    OVER,
    PLAN_STORE,
    PLANNED,
    PROMOTE,
    PROVE_OLDER,
    R_LOAD_FAILED,
    R_LOADED,
    R_PLAN_LOAD,
    READABLE,
    RELEASE,
    RESERVE,
    STORE,
    SUBMIT,
    TELL_FAILED,
    TELL_LOADED,
    TELL_WAITS,
)

# --- handing out, and what follows -------------------------------------------------------------------------------------


def hand_out(core: Core, count: int) -> int:
    """Hand out ``ids[:count]``, all or none. Couplings *life-ends* and *hand-out-flushes*."""
    blocks, rules, ids = core.blocks, core.rules, core.ids
    move: PlaceMove = rules.hand_out[1 if core.fence else 0]
    ask(core, move, count, False)
    stale: list[int] = []
    for at in range(count):
        if rules.block_trait[blocks.state[ids[at]]] & DEAD_READ:
            stale.append(ids[at])
    write(core, move, count)
    note(core, move, count, 0)
    if core.orphans or stale:
        chosen = [ids[at] for at in range(count)]
        flushes = False
        for place in chosen:
            if rules.handed_out[blocks.state[place] * EFFECTS_A_ROW] == FLUSH_JOB:
                flushes = True
        end_orphans(core, flushes)
        if stale and flushes:
            flush_touching(core, stale)
        for at in range(count):  # a job that ended has used the scratch columns
            core.ids[at] = chosen[at]
    return 0


def flush_touching(core: Core, places: Sequence[int]) -> int:
    """The next plan waits for every submitted job that touches one of these blocks."""
    blocks, jobs, traits, row = core.blocks, core.jobs, core.rules.job_trait, core.jobs.following[0]
    mark = blocks.mark()
    for place in places:
        blocks.seen[place] = mark
    while row:
        if not traits[jobs.state[row]] & PLANNED:
            for entry in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
                if blocks.seen[jobs.place[entry]] == mark:
                    flush(core, row, "handed out")
                    break
        row = jobs.following[row]
    return 0


def end_orphans(core: Core, flushes: bool) -> int:
    """Jobs whose source is over: those that no worker has are cancelled; with *flushes*, the next plan waits for the others."""
    if not core.orphans:
        return 0
    rows = list(dict.fromkeys(core.orphans))
    core.orphans.clear()
    for row in rows:
        if core.rules.job_trait[core.jobs.state[row]] & PLANNED:
            if core.rules.life_ends[0] == CANCEL_JOB:
                step_job(core, row, J_CANCEL, AT_CANCEL, 0)
        elif flushes:
            flush(core, row, "handed out")
    return 0


def flush(core: Core, row: int, cause: str) -> int:
    """The wait for a job goes into the next plan."""
    fire_job(core, row, J_FLUSH, 0)
    number = core.jobs.number[row]
    if number not in core.to_flush:
        core.to_flush[number] = None
        core.flushes[cause] = core.flushes.get(cause, 0) + 1
    return 0


# --- letting go --------------------------------------------------------------------------------------------------------


def release_ids(core: Core, count: int) -> int:
    """Let go of one hold of each of ``ids[:count]``."""
    move_blocks(core, core.rules.release, count, 0)
    end_orphans(core, False)
    return 0


def release_all(core: Core, row: int) -> int:
    """Let go of everything that a request holds; the last block of a table is handed out again first."""
    requests = core.requests
    for table in range(row * core.num_groups, (row + 1) * core.num_groups):
        if requests.length[table]:
            release_ids(core, choose_held(core, table))
        requests.clear(table)
    return 0


def choose_held(core: Core, table: int) -> int:
    """Put the blocks that a table holds into ``ids``, the last first; returns how many."""
    blocks, requests, count = core.blocks, core.requests, 0
    last = requests.begin[table] + requests.length[table] - 1
    core.make_room(requests.length[table])
    ids = core.ids
    for back in range(requests.length[table]):
        life = requests.lives[last - back]
        if life and blocks.is_current(life):
            ids[count] = life & ID_MASK
            count += 1
    return count


def give_up(core: Core, row: int, event: int) -> int:
    """Coupling *request-gives-up*: its load first, then every block, then the event."""
    requests, effects = core.requests, core.rules.gives_up
    ask_request(core, row, event)
    for at in range(EFFECTS_A_ROW):
        if effects[at] == END_JOB and requests.load[row]:
            job = core.jobs.find(requests.load[row])
            if job:
                give_up_job(core, job)
        elif effects[at] == RELEASE:
            release_all(core, row)
    requests.load[row] = 0
    fire_request(core, row, event, 0)
    return 0


def give_up_job(core: Core, row: int) -> int:
    """Cancel a planned job, abandon a submitted one; one that is given up already stays as it is."""
    if can_job(core, row, J_CANCEL):
        step_job(core, row, J_CANCEL, AT_CANCEL, 0)
    elif can_job(core, row, J_ABANDON):
        abandon(core, row)
    return 0


# --- a job is made -----------------------------------------------------------------------------------------------------


def check_room_for_jobs(core: Core, count: int) -> int:
    """There are rows for so many more jobs."""
    if core.jobs.num_spare < count:
        raise KernelRefusal(Why.NO_ROOM_FOR_JOBS, core.jobs.num_spare, count)
    return 0


def effects_at(core: Core, cause: int, row: int, into: int) -> int:
    """Where the effects of a job's step begin."""
    return ((cause * 4 + core.jobs.direction[row]) * 16 + into) * EFFECTS_A_ROW


def plan(core: Core, asked: bool) -> int:
    """Make a job of the draft, whose places were checked and names counted; returns its row. Couplings *...-planned*.

    *asked*: its effects were asked, and nothing else since.
    """
    base = effects_at(core, AT_PLAN, 0, INITIAL_JOB)
    if not asked:
        ask_effects(core, 0, base, False)
    row = new_job(core)
    write_effects(core, row, base, False)
    step_request(core, row, base)
    return row


def new_job(core: Core) -> int:
    """Give the draft a row and a number. The job that had the row before is not known any more."""
    jobs = core.jobs
    row = jobs.spare[jobs.first_spare]
    jobs.first_spare = jobs.first_spare + 1 if jobs.first_spare + 1 < jobs.max_jobs else 0
    jobs.num_spare -= 1
    if jobs.number[row]:
        release_job(core, row)
    jobs.last_number += 1
    jobs.number[row] = jobs.last_number
    jobs.by_number[jobs.last_number] = row
    jobs.state[row] = INITIAL_JOB
    jobs.direction[row] = jobs.direction[0]
    jobs.failed[row] = 0
    jobs.deadline[row] = NEVER
    for at in range(jobs.words):
        jobs.reported[row * jobs.words + at] = 0
        jobs.expected[row * jobs.words + at] = jobs.everybody[at]
    jobs.begin[row], jobs.num_blocks[row] = jobs.begin[0], jobs.num_blocks[0]
    jobs.slot_begin[row], jobs.num_slots[row] = jobs.slot_begin[0], jobs.num_slots[0]
    jobs.owner_begin[row], jobs.num_owners[row] = jobs.owner_begin[0], jobs.num_owners[0]
    last = jobs.before[0]
    jobs.before[row] = last
    jobs.following[row] = 0
    jobs.following[last] = row
    jobs.before[0] = row
    jobs.planned[row] = None
    jobs.live += 1
    return row


def count_names(core: Core) -> int:
    """Count the draft among those that name its contents and requests.

    It comes before `new_job`, which may forget an older job that names the same: these names would be forgotten with it.
    """
    jobs, requests, uses = core.jobs, core.requests, core.contents.uses
    for at in range(jobs.begin[0], jobs.begin[0] + jobs.num_blocks[0]):
        uses[jobs.key[at]] += 1
    if jobs.slot_begin[0] != jobs.begin[0] or not jobs.num_blocks[0]:
        for at in range(jobs.slot_begin[0], jobs.slot_begin[0] + jobs.num_slots[0]):
            uses[jobs.key[at]] += 1
    for at in range(jobs.owner_begin[0], jobs.owner_begin[0] + jobs.num_owners[0]):
        requests.serving[jobs.owner[at]] += 1
        requests.named[jobs.owner[at]] += 1
    return 0


def release_job(core: Core, row: int) -> int:
    """A job that is over gives its row to another one."""
    jobs, contents = core.jobs, core.contents
    number = jobs.number[row]
    del jobs.by_number[number]
    jobs.space.pop(number, None)
    jobs.missing.pop(number, None)
    for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
        if jobs.key[at]:
            contents.let_go(jobs.key[at])
    if jobs.slot_begin[row] != jobs.begin[row] or not jobs.num_blocks[row]:
        for at in range(jobs.slot_begin[row], jobs.slot_begin[row] + jobs.num_slots[row]):
            contents.let_go(jobs.key[at])
    for at in range(jobs.owner_begin[row], jobs.owner_begin[row] + jobs.num_owners[row]):
        core.requests.named[jobs.owner[at]] -= 1
        core.requests.tidy(jobs.owner[at])
    jobs.give_up_spans(row)
    return 0


# --- a step of a job ---------------------------------------------------------------------------------------------------


def step_job(core: Core, row: int, event: int, cause: int, facts: int) -> int:
    """A step of a job, with all that follows from it: ask the effects, write the job and the effects, then tell its request."""
    jobs, rules = core.jobs, core.rules
    taken = ask_job(core, row, event, facts)
    into = rules.job_target[taken]
    base, done = effects_at(core, cause, row, into), rules.job_trait[into] & DONE != 0
    for each in range(base, base + EFFECTS_A_ROW):
        if rules.effects[each] == PROVE_OLDER:
            prove_older(core, row)
    ask_effects(core, row, base, done)
    if rules.job_trait[jobs.state[row]] & PLANNED:
        del jobs.planned[row]
    write_job(core, row, event, taken)
    write_effects(core, row, base, done)
    if cause != AT_SUBMIT:
        core.verdicts += 1
        if core.rechecks:
            core.judged.append(row)
    if rules.job_trait[into] & OVER:
        end_job(core, row, into, done)
    step_request(core, row, base)
    return 0


def cancel(core: Core, row: int) -> int:
    """Give up a job that no worker has."""
    return step_job(core, row, J_CANCEL, AT_CANCEL, 0)


def submit(core: Core, row: int) -> int:
    """Hand a job to the workers. Coupling *submitted*."""
    return step_job(core, row, J_SUBMIT, AT_SUBMIT, 0)


def ask_submit(core: Core, row: int) -> int:
    """Refuse if `submit` would; several jobs are asked before the first of them is submitted."""
    taken = ask_job(core, row, J_SUBMIT, 0)
    return ask_effects(core, row, effects_at(core, AT_SUBMIT, row, core.rules.job_target[taken]), False)


def abandon(core: Core, row: int) -> int:
    """The result is not wanted: content that a store or promotion brings is no longer found as being on its way."""
    jobs, slots, contents = core.jobs, core.slots, core.contents
    fire_job(core, row, J_ABANDON, 0)
    if fills_slots(core, row):
        for at in range(jobs.slot_begin[row], jobs.slot_begin[row] + jobs.num_slots[row]):
            slot = jobs.slot[at]
            if slots.key[slot] and contents.slot[slots.key[slot]] == slot:
                contents.slot[slots.key[slot]] = -1
    return 0


def fills_slots(core: Core, row: int) -> bool:
    """Whether a job brings content to slots, instead of reading it there."""
    return core.jobs.direction[row] == STORE or core.jobs.direction[row] == PROMOTE


def end_job(core: Core, row: int, into: int, done: bool) -> int:
    """A job is over: detach it from its lives, and let its requests go. It stays known until its row is used again."""
    jobs, blocks, requests = core.jobs, core.blocks, core.requests
    number, direction = jobs.number[row], jobs.direction[row]
    jobs.following[jobs.before[row]] = jobs.following[row]
    jobs.before[jobs.following[row]] = jobs.before[row]
    last = jobs.first_spare + jobs.num_spare
    jobs.spare[last if last < jobs.max_jobs else last - jobs.max_jobs] = row
    jobs.num_spare += 1
    jobs.live -= 1
    core.ended[into * 4 + direction] += 1
    if core.to_flush:
        core.to_flush.pop(number, None)
    if done:
        core.moved[direction] += jobs.num_blocks[row] or jobs.num_slots[row] - len(jobs.missing.get(number, ()))
    if direction == STORE or (direction == LOAD and done):
        for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
            place = jobs.place[at]
            if blocks.epoch[place] == jobs.epoch[at]:
                if direction == STORE:
                    blocks.job[place] = 0
                elif jobs.key[at]:
                    name_block(core, place, jobs.key[at])
    for at in range(jobs.owner_begin[row], jobs.owner_begin[row] + jobs.num_owners[row]):
        requests.serving[jobs.owner[at]] -= 1
    return 0


def step_request(core: Core, row: int, base: int) -> int:
    """The step of the request whose load this is; it may have another load by now."""
    jobs, requests, effects = core.jobs, core.requests, core.rules.effects
    number, begin, count = jobs.number[row], jobs.owner_begin[row], jobs.num_owners[row]
    for each in range(base, base + EFFECTS_A_ROW):
        effect = effects[each]
        if effect == 0:
            break
        if effect < TELL_WAITS or effect > TELL_FAILED or not count:
            continue
        owner = jobs.owner[begin]
        if effect == TELL_WAITS:
            requests.load[owner] = number
            fire_request(core, owner, R_PLAN_LOAD, number)
        elif requests.load[owner] == number:
            if effect == TELL_LOADED:
                requests.load[owner] = 0
                fire_request(core, owner, R_LOADED, number)
            else:
                give_up(core, owner, R_LOAD_FAILED)
    return 0


def broken_pair(core: Core, row: int) -> tuple[int, int]:
    """Look at the couplings of a job from the other side: what is wrong (`BrokenPair`; 0: nothing), and the place."""
    jobs, blocks, slots, rules = core.jobs, core.blocks, core.slots, core.rules
    trait = rules.job_trait[jobs.state[row]]
    over = trait & OVER != 0
    for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
        place = jobs.place[at]
        if over and blocks.job[place] == row:
            return BrokenPair.NAMED, place
        if not over and not blocks.pins[place]:
            return BrokenPair.UNPINNED, place
    if over and not trait & DONE and fills_slots(core, row):
        for at in range(jobs.slot_begin[row], jobs.slot_begin[row] + jobs.num_slots[row]):
            slot = jobs.slot[at]
            if rules.slot_trait[slots.state[slot]] & READABLE and slots.key[slot] == jobs.key[at]:
                return BrokenPair.PUBLISHED, slot
    return 0, 0


def prove_older(core: Core, row: int) -> int:
    """Every worker waited for the older copies of a load's targets before it launched the load: they are quiet."""
    for other in older_of(core, row):
        step_job(core, other, J_QUIESCE, AT_FINISH, 0)
    return 0


def older_of(core: Core, row: int) -> list[int]:
    """The rows of the other jobs that touch blocks of this one, the oldest first."""
    jobs, blocks = core.jobs, core.blocks
    found: list[int] = []
    mark, shared = blocks.mark(), False
    for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
        if blocks.pins[jobs.place[at]] > 1:
            blocks.seen[jobs.place[at]] = mark
            shared = True
    if not shared:
        return found
    other = jobs.following[0]
    while other:
        if other != row:
            for at in range(jobs.begin[other], jobs.begin[other] + jobs.num_blocks[other]):
                if blocks.seen[jobs.place[at]] == mark:
                    found.append(other)
                    break
        other = jobs.following[other]
    return found


# --- effects -----------------------------------------------------------------------------------------------------------


def ask_effects(core: Core, row: int, base: int, done: bool) -> int:
    """Ask the effects on blocks, the first on slots, and on who is to wait; `write_effects` takes what was found."""
    rules, jobs, asked = core.rules, core.jobs, False
    for each in range(base, base + EFFECTS_A_ROW):
        effect = rules.effects[each]
        if effect == 0:
            break
        if effect <= LAST_OF_BLOCKS:
            core.block_move = block_move(core, row, effect, done)
            core.num_asked = choose_blocks_of(core, row, effect)
            owned = effect in (LAND, EXPIRE)
            ask(core, core.block_move, core.num_asked, owned and jobs.direction[row] == LOAD)
        elif effect <= LAST_OF_SLOTS:
            if not asked:
                ask_slot_effect(core, row, effect, done)
            asked = True
        elif effect == TELL_WAITS:
            ask_request(core, jobs.owner[jobs.owner_begin[row]], R_PLAN_LOAD)
    return 0


def block_move(core: Core, row: int, effect: int, done: bool) -> PlaceMove:
    """What an effect does to the blocks of a job."""
    rules, jobs = core.rules, core.jobs
    if effect == LAND:
        late = rules.job_trait[jobs.state[row]] & LATE != 0
        return rules.land[(4 if jobs.direction[row] == LOAD else 0) + (2 if late else 0) + (1 if done else 0)]
    return rules.moves[effect]


def choose_blocks_of(core: Core, row: int, effect: int) -> int:
    """Put the blocks of a job into ``ids``, and into ``own`` whether they are in the life that it means; returns how many.

    What is submitted or cancelled concerns only these lives; a copy that ends or is late concerns the places.
    """
    jobs, epoch, count = core.jobs, core.blocks.epoch, 0
    core.make_room(jobs.num_blocks[row])
    ids, own = core.ids, core.own
    for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
        place = jobs.place[at]
        current = epoch[place] == jobs.epoch[at]
        if current or (effect != CANCEL and effect != SUBMIT):
            ids[count] = place
            own[count] = 1 if current else 0
            count += 1
    return count


def ask_slot_effect(core: Core, row: int, effect: int, done: bool) -> int:
    """Put the slots of a job into ``slot_ids``, and ask what an effect does to them."""
    jobs = core.jobs
    begin, count = jobs.slot_begin[row], jobs.num_slots[row]
    core.make_room(count)
    ids = core.slot_ids
    for at in range(count):
        ids[at] = jobs.slot[begin + at]
    if effect == FILLED:
        core.slot_move = core.rules.filled[1 if done else 0]
        ask_slots(core, core.slot_move, count, done and are_doubles(core, count))
    else:
        core.slot_move = core.rules.moves[effect]
        ask_slots(core, core.slot_move, count, False)
    return 0


def write_effects(core: Core, row: int, base: int, done: bool) -> int:
    """Write the effects that were asked. One place can take two steps of a coupling (drop, then unpin): slots take turns."""
    rules, jobs, asked = core.rules, core.jobs, False
    number = jobs.number[row]
    for each in range(base, base + EFFECTS_A_ROW):
        effect = rules.effects[each]
        if effect == 0:
            break
        if effect <= LAST_OF_BLOCKS:
            if effect == CANCEL:
                unpin_others(core, row)
            if core.num_asked:
                write(core, core.block_move, core.num_asked)
                core.orphans.clear()  # the job that such a life was the source of is this one, which ends anyway
                note(core, core.block_move, core.num_asked, number)
            bind_blocks(core, row, effect)
        elif effect <= LAST_OF_SLOTS:
            if effect == FILLED and done and number in jobs.missing:
                fill_in_part(core, row)
            else:
                if asked:
                    ask_slot_effect(core, row, effect, done)
                write_slots(core, core.slot_move, jobs.num_slots[row])
                note(core, core.slot_move, jobs.num_slots[row], number)
            if effect == RESERVE:
                name_slots(core, row)
            asked = True
    return 0


def unpin_others(core: Core, row: int) -> int:
    """A planned job is cancelled: places whose life is over lose its pin without an event."""
    jobs, blocks = core.jobs, core.blocks
    for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
        if blocks.epoch[jobs.place[at]] != jobs.epoch[at]:
            blocks.pins[jobs.place[at]] -= 1
    return 0


def bind_blocks(core: Core, row: int, effect: int) -> int:
    """Note at the blocks of a job what their life is a source of, and in which plan a copy of them was submitted."""
    jobs, blocks = core.jobs, core.blocks
    for at in range(jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]):
        place = jobs.place[at]
        if effect == PLAN_STORE:
            blocks.job[place] = row
        elif effect == SUBMIT:
            blocks.touched[place] = core.plan
    return 0


def name_slots(core: Core, row: int) -> int:
    """The slots of a job will have its contents, and are found as being filled."""
    jobs, slots, contents = core.jobs, core.slots, core.contents
    for at in range(jobs.slot_begin[row], jobs.slot_begin[row] + jobs.num_slots[row]):
        slot, content = jobs.slot[at], jobs.key[at]
        slots.key[slot] = content
        slots.group[slot] = jobs.group[at]
        contents.uses[content] += 1
        if contents.slot[content] < 0:
            contents.slot[content] = slot
    return 0


def name_block(core: Core, place: int, content: int) -> int:
    """A block has a content from here on; the first with it is found under its key."""
    contents = core.contents
    core.blocks.key[place] = content
    contents.uses[content] += 1
    if core.blocks.indexed and contents.block[content] < 0:
        contents.block[content] = place
    return 0


def fill_in_part(core: Core, row: int) -> int:
    """A promotion that did not bring everything: what is missing on a worker is not published."""
    jobs = core.jobs
    number, begin = jobs.number[row], jobs.slot_begin[row]
    missing = jobs.missing[number]
    core.make_room(jobs.num_slots[row])
    for came in (True, False):
        count = 0
        for at in range(begin, begin + jobs.num_slots[row]):
            if (jobs.slot[at] not in missing) is came:
                core.slot_ids[count] = jobs.slot[at]
                count += 1
        if count:
            move: PlaceMove = core.rules.filled[1 if came else 0]
            ask_slots(core, move, count, came and are_doubles(core, count))
            write_slots(core, move, count)
            note(core, move, count, number)
    return 0


def are_doubles(core: Core, count: int) -> bool:
    """Mark in ``unwanted`` which of ``slot_ids[:count]`` have content that is READY elsewhere, or earlier among these."""
    slots, contents, traits, ids = core.slots, core.contents, core.rules.slot_trait, core.slot_ids
    some = False
    for at in range(count):
        key = slots.key[ids[at]]
        if key and contents.slot[key] != ids[at]:
            some = True
            break
    if not some:
        return False
    mark = contents.mark()
    for at in range(count):
        key = slots.key[ids[at]]
        core.unwanted[at] = 0
        if key:
            slot = contents.slot[key]
            if contents.seen[key] == mark or (slot >= 0 and traits[slots.state[slot]] & READABLE):
                core.unwanted[at] = 1
            contents.seen[key] = mark
    return True
