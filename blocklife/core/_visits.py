"""Visits: a request that comes with one copy and the blocks of it, and takes them along when it goes.

For an engine whose own cache keeps blocks: they are known here only while something is copied.

Rules of this file:

* The ledger has one group and the contract *hold*, and an allocator of the engine hands its blocks out.
* What a visit brings is asked before anything is written; what it then does to its own blocks is legal.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.core._columns import Core
from blocklife.core._couplings import (
    ask_slot_effect,
    check_room_for_jobs,
    choose_held,
    count_names,
    effects_at,
    hand_out,
    name_block,
    plan,
    release_ids,
)
from blocklife.core._drafts import check_slots, check_unstored, draft_job, tear_up
from blocklife.core._moves import ask, move_blocks, note, write
from blocklife.core._refused import KernelRefusal, Why
from blocklife.core._tables import AT_PLAN, EFFECTS_A_ROW, INITIAL_JOB, KEPT, LAST_OF_BLOCKS, LAST_OF_SLOTS, LOAD, STORE
from blocklife.core._verbs import add_request, append_fresh, choose_fresh, finish


def store(core: Core, name: str, blocks: Sequence[int], keys: Sequence[bytes], slots: Sequence[int]) -> int:
    """The content of these blocks is final and has these keys: store it. Returns the row of the job."""
    draft_visit(core, STORE, blocks, slots, keys)
    come(core, name, blocks)
    count = len(blocks)
    ask(core, core.rules.seal, count, False)
    write(core, core.rules.seal, count)
    for at in range(count):
        name_block(core, core.ids[at], core.jobs.key[core.jobs.begin[0] + at])
    note(core, core.rules.seal, count, 0)
    return stay(core)


def load(core: Core, name: str, blocks: Sequence[int], slots: Sequence[int]) -> int:
    """Fill these blocks with what slots hold. Returns the row of the job."""
    draft_visit(core, LOAD, blocks, slots, ())
    come(core, name, blocks)
    return stay(core)


def ask_to_come(core: Core, blocks: Sequence[int]) -> int:
    """Put these blocks into ``ids``, and refuse where one of them cannot be handed out; returns how many they are."""
    count = choose_fresh(core, (blocks,))
    if count < len(blocks):
        raise KernelRefusal(Why.NO_BLOCK, 0, 0)
    ask(core, core.rules.hand_out[1 if core.fence else 0], count, False)
    return count


def draft_visit(core: Core, direction: int, blocks: Sequence[int], slots: Sequence[int], keys: Sequence[bytes]) -> int:
    """Draft the job of a visit, whose blocks are in ``ids``: it, and that they come, was asked. *keys* are those of a store."""
    jobs, count = core.jobs, ask_to_come(core, blocks)
    check_room_for_jobs(core, 1)
    draft_job(core, direction, count, count, False, [0])
    try:
        for at in range(count):
            entry = jobs.begin[0] + at
            jobs.place[entry], jobs.slot[entry], jobs.group[entry] = core.ids[at], slots[at], 0
        core.slots.mark()
        check_slots(core)
        for at in range(count):
            entry = jobs.begin[0] + at
            jobs.key[entry] = core.contents.intern(0, keys[at]) if direction == STORE else core.slots.key[jobs.slot[entry]]
        if direction == STORE:
            check_unstored(core)
        base = effects_at(core, AT_PLAN, 0, INITIAL_JOB)
        for each in range(base, base + EFFECTS_A_ROW):
            if LAST_OF_BLOCKS < core.rules.effects[each] <= LAST_OF_SLOTS:
                ask_slot_effect(core, 0, core.rules.effects[each], False)
    except BaseException:
        tear_up(core)
        raise
    return 0


def come(core: Core, name: str, blocks: Sequence[int]) -> int:
    """The request of a draft comes, and is given its blocks, which are still in ``ids``."""
    row = add_request(core, name)
    core.jobs.owner[core.jobs.owner_begin[0]] = row
    count_names(core)  # before a life ends that may be the last to name the same content
    hand_out(core, len(blocks))
    return append_fresh(core, row, 0, blocks)


def stay(core: Core) -> int:
    """The draft becomes a job, of the lives that its blocks have begun; returns its row."""
    jobs, epoch = core.jobs, core.blocks.epoch
    for at in range(jobs.begin[0], jobs.begin[0] + jobs.num_blocks[0]):
        jobs.epoch[at] = epoch[jobs.place[at]]
    return plan(core, False)


def leave(core: Core, row: int) -> int:
    """A visit is over, and with it a load that is not; what its blocks keep is forgotten."""
    traits, kept = core.rules.block_trait, 0
    if not core.requests.load[row]:  # before a load is over its blocks keep nothing
        count = choose_held(core, row)
        release_ids(core, count)
        for at in range(count):
            if traits[core.blocks.state[core.ids[at]]] & KEPT:
                core.ids[kept] = core.ids[at]
                kept += 1
        move_blocks(core, core.rules.drop, kept, 0)
        core.requests.clear(row)
    return finish(core, row)
