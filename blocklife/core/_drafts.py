"""Jobs that are being made: row 0 has what the job will move, until it is checked and becomes a job, or is torn up.

Rules of this file:

* A draft changes nothing that anybody can see. Its entries are filled in, and `check_job` checks it; then `make_jobs` makes a
  job of it or, if something is refused, `tear_up_all` gives back what it has taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.core._columns import Core, life_of
from blocklife.core._couplings import ask_effects, check_room_for_jobs, count_names, effects_at, plan
from blocklife.core._refused import KernelRefusal, Why
from blocklife.core._tables import (
    AT_PLAN,
    DEMOTE,
    EPOCH_SHIFT,
    ID_MASK,
    INITIAL_JOB,
    LOAD,
    MOST_PLACE,
    PROMOTE,
    READABLE,
    STORE,
)


def draft(core: Core, direction: int, num_blocks: int, num_slots: int, apart: bool, num_owners: int) -> int:
    """Begin a job in row 0: spans for blocks, slots and owners, to be filled in; *apart*: slots have entries of their own."""
    jobs = core.jobs
    jobs.direction[0], jobs.num_blocks[0], jobs.num_slots[0], jobs.num_owners[0] = direction, num_blocks, num_slots, num_owners
    if num_blocks:
        jobs.begin[0] = jobs.claim_entries(num_blocks)
    if apart:
        jobs.slot_begin[0] = jobs.claim_entries(num_slots)
        if not num_blocks:
            jobs.begin[0] = jobs.slot_begin[0]
    else:
        jobs.slot_begin[0] = jobs.begin[0]
    if num_owners:
        jobs.owner_begin[0] = jobs.claim_owners(num_owners)
    return 0


def keep_draft(core: Core) -> tuple[int, ...]:
    """Put the draft aside, to be taken up again: several jobs are drafted before the first is made."""
    jobs = core.jobs
    return (
        jobs.direction[0], jobs.begin[0], jobs.num_blocks[0], jobs.slot_begin[0], jobs.num_slots[0], jobs.owner_begin[0],
        jobs.num_owners[0],
    )  # fmt: skip


def resume(core: Core, kept: tuple[int, ...]) -> int:
    """Take up a draft again."""
    jobs = core.jobs
    (
        jobs.direction[0], jobs.begin[0], jobs.num_blocks[0], jobs.slot_begin[0], jobs.num_slots[0], jobs.owner_begin[0],
        jobs.num_owners[0],
    ) = kept  # fmt: skip
    return 0


def tear_up(core: Core) -> int:
    """The draft is refused: forget what only it names, and give its spans back."""
    jobs, contents = core.jobs, core.contents
    for at in range(jobs.begin[0], jobs.begin[0] + jobs.num_blocks[0]):
        contents.tidy(jobs.key[at])
    for at in range(jobs.slot_begin[0], jobs.slot_begin[0] + jobs.num_slots[0]):
        contents.tidy(jobs.key[at])
    jobs.give_up_spans(0)
    return 0


def fill_blocks(
    core: Core,
    lives: Sequence[int],
    places: Sequence[int],
    groups: bytes,
    names: Sequence[bytes | None],
    start: int,
) -> int:
    """Fill in the blocks of the draft from columns, from *start* on. Nothing is filled in if one of them cannot be."""
    jobs, contents = core.jobs, core.contents
    begin, count = jobs.begin[0], jobs.num_blocks[0]
    for at in range(start, start + count):
        life, place = lives[at], places[at]
        if life <= ID_MASK or life & ID_MASK == 0 or life & ID_MASK >= core.blocks.size:
            raise KernelRefusal(Why.NO_LIFE, at, life)
        if place < 0 or place > MOST_PLACE:
            raise KernelRefusal(Why.NO_SLOT, place)
    for at in range(count):
        life, name = lives[start + at], names[start + at]
        jobs.place[begin + at] = life & ID_MASK
        jobs.epoch[begin + at] = life >> EPOCH_SHIFT
        jobs.slot[begin + at] = places[start + at]
        jobs.group[begin + at] = groups[start + at]
        jobs.key[begin + at] = 0 if name is None else contents.intern(groups[start + at], name)
    return 0


def fill_slots(core: Core, slots: Sequence[int], groups: bytes, keys: Sequence[bytes], start: int) -> int:
    """Fill in its slots likewise."""
    jobs, contents = core.jobs, core.contents
    begin, count = jobs.slot_begin[0], jobs.num_slots[0]
    for at in range(start, start + count):
        if slots[at] < 0 or slots[at] >= core.slots.size:
            raise KernelRefusal(Why.NO_SLOT, slots[at])
    for at in range(count):
        slot = slots[start + at]
        jobs.slot[begin + at] = slot
        if jobs.direction[0] == DEMOTE:  # it takes what is there
            jobs.group[begin + at] = core.slots.group[slot]
            jobs.key[begin + at] = core.slots.key[slot]
        else:
            jobs.group[begin + at] = groups[start + at]
            jobs.key[begin + at] = contents.intern(groups[start + at], keys[start + at])
    return 0


def clear_keys(core: Core) -> int:
    """Set the contents of the draft's entries to none: `tear_up` would take those of an earlier job for the draft's own."""
    jobs = core.jobs
    for at in range(jobs.begin[0], jobs.begin[0] + jobs.num_blocks[0]):
        jobs.key[at] = 0
    for at in range(jobs.slot_begin[0], jobs.slot_begin[0] + jobs.num_slots[0]):
        jobs.key[at] = 0
    return 0


def plan_jobs(
    core: Core,
    direction: int,
    cuts: Sequence[int],
    lives: Sequence[int],
    groups: bytes,
    places: Sequence[int],
    names: Sequence[bytes | None],
    slot_cuts: Sequence[int],
    slots: Sequence[int],
    slot_groups: bytes,
    keys: Sequence[bytes],
    owners: Sequence[Sequence[int]],
) -> list[int]:
    """Make jobs of columns, all or none; returns their rows. The columns are those of `ledger.jobs.JobColumns`."""
    count = len(cuts) - 1
    drafted: list[tuple[int, ...]] = []
    apart = slots is not places or keys is not names
    core.blocks.mark()
    core.slots.mark()
    try:
        check_room_for_jobs(core, count)
        for at in range(count):
            num_blocks, num_slots = cuts[at + 1] - cuts[at], slot_cuts[at + 1] - slot_cuts[at]
            drafted.append(draft_job(core, direction, num_blocks, num_slots, apart, owners[at]))
            if num_blocks:
                fill_blocks(core, lives, places, groups, names, cuts[at])
            if apart:
                fill_slots(core, slots, slot_groups, keys, slot_cuts[at])
            check_job(core)
    except BaseException:
        tear_up_all(core, drafted)
        for own in owners:
            for owner in own:
                core.requests.tidy(owner)
        raise
    return make_jobs(core, drafted)


def draft_job(
    core: Core, direction: int, num_blocks: int, num_slots: int, apart: bool, owners: Sequence[int]
) -> tuple[int, ...]:
    """Begin a draft for these requests, whose places are to be filled in; returns it as `keep_draft` does."""
    draft(core, direction, num_blocks, num_slots, apart, len(owners))
    clear_keys(core)
    for at in range(len(owners)):
        core.jobs.owner[core.jobs.owner_begin[0] + at] = owners[at]
    return keep_draft(core)


def check_job(core: Core) -> int:
    """The draft, which was filled in, can become a job besides those drafted since `Blocks.mark` and `Slots.mark`."""
    jobs, direction = core.jobs, core.jobs.direction[0]
    check_draft(core)
    if direction == LOAD:
        check_load(core, jobs.owner[jobs.owner_begin[0]])
    elif direction != DEMOTE:
        check_unstored(core)
    ask_effects(core, 0, effects_at(core, AT_PLAN, 0, INITIAL_JOB), False)
    if direction == STORE:
        check_names(core)
    return 0


def tear_up_all(core: Core, drafted: Sequence[tuple[int, ...]]) -> int:
    """One of these drafts is refused: none becomes a job."""
    for each in drafted:
        resume(core, each)
        tear_up(core)
    return 0


def make_jobs(core: Core, drafted: Sequence[tuple[int, ...]]) -> list[int]:
    """Make jobs of these drafts, for which there is room; the last was checked right now. Returns their rows."""
    rows: list[int] = []
    for each in drafted:
        resume(core, each)
        count_names(core)
    for each in drafted:
        resume(core, each)
        rows.append(plan(core, len(drafted) == 1))
    return rows


def check_draft(core: Core) -> int:
    """The lives of the draft are current, of their groups, and not marked yet; its slots exist, and neither are they."""
    jobs, blocks = core.jobs, core.blocks
    mark = blocks.stamp
    check_slots(core)
    for at in range(jobs.begin[0], jobs.begin[0] + jobs.num_blocks[0]):
        place = jobs.place[at]
        if place <= 0 or place >= blocks.size:
            raise KernelRefusal(Why.NO_LIFE, at, place)
        if blocks.seen[place] == mark:
            raise KernelRefusal(Why.TWICE, place)
        blocks.seen[place] = mark
        if blocks.epoch[place] != jobs.epoch[at]:
            raise KernelRefusal(Why.LIFE_IS_OVER, place, life_of(jobs.epoch[at], place))
        if blocks.group[place] != jobs.group[at]:
            raise KernelRefusal(Why.OTHER_GROUP, place, jobs.group[at])
    return 0


def check_slots(core: Core) -> int:
    """The slots of the draft exist, and are not marked yet."""
    jobs, slots = core.jobs, core.slots
    mark = slots.stamp
    for at in range(jobs.slot_begin[0], jobs.slot_begin[0] + jobs.num_slots[0]):
        slot = jobs.slot[at]
        if slot < 0 or slot >= slots.size:
            raise KernelRefusal(Why.NO_SLOT, slot)
        if slots.seen[slot] == mark:
            raise KernelRefusal(Why.TWICE, slot, 1)
        slots.seen[slot] = mark
    return 0


def check_unstored(core: Core) -> int:
    """What the draft stores is not stored already; a store in flight does not count, because it may fail (I14)."""
    jobs, contents, slots, traits = core.jobs, core.contents, core.slots, core.rules.slot_trait
    mark = contents.mark()
    for at in range(jobs.slot_begin[0], jobs.slot_begin[0] + jobs.num_slots[0]):
        content = jobs.key[at]
        if contents.seen[content] == mark:
            raise KernelRefusal(Why.NAMED_TWICE, content, 0, None, contents.key[content])
        contents.seen[content] = mark
        slot = contents.slot[content]
        if slot >= 0 and (traits[slots.state[slot]] & READABLE or jobs.direction[0] == PROMOTE):
            why = Why.STORED if traits[slots.state[slot]] & READABLE else Why.COMING
            raise KernelRefusal(why, content, slot, None, contents.key[content])
    return 0


def check_names(core: Core) -> int:
    """Content that has a key is stored under it."""
    jobs, blocks = core.jobs, core.blocks
    for at in range(jobs.begin[0], jobs.begin[0] + jobs.num_blocks[0]):
        held = blocks.key[jobs.place[at]]
        if held and jobs.key[at] and held != jobs.key[at]:
            raise KernelRefusal(Why.OTHER_KEY, jobs.place[at], jobs.key[at], None, core.contents.key[jobs.key[at]])
    return 0


def check_load(core: Core, row: int) -> int:
    """The request holds the blocks of the draft, and the slots have the content that it is to bring.

    Marks what the request holds: of several drafts, the one of a load is the only one.
    """
    jobs, blocks, slots, requests = core.jobs, core.blocks, core.slots, core.requests
    held = blocks.mark()
    for table in range(row * core.num_groups, (row + 1) * core.num_groups):
        for at in range(requests.begin[table], requests.begin[table] + requests.length[table]):
            life = requests.lives[at]
            if life and blocks.is_current(life):
                blocks.seen[life & ID_MASK] = held
    for at in range(jobs.begin[0], jobs.begin[0] + jobs.num_blocks[0]):
        if blocks.seen[jobs.place[at]] != held:
            raise KernelRefusal(Why.NOT_HELD, jobs.place[at], row)
    for at in range(jobs.slot_begin[0], jobs.slot_begin[0] + jobs.num_slots[0]):
        key = slots.key[jobs.slot[at]]
        if key and key != jobs.key[at]:
            raise KernelRefusal(Why.SLOT_OF_OTHER, jobs.slot[at], jobs.group[at], None, core.contents.key[jobs.key[at]])
    return 0
