# Types of visits, where they are compiled.
from blocklife.core._columns cimport Blocks, Contents, Core, Requests, Slots, TransferJobs
from blocklife.core._couplings cimport (
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
from blocklife.core._drafts cimport check_slots, check_unstored, draft_job, tear_up
from blocklife.core._moves cimport ask, move_blocks, note, write
from blocklife.core._rules cimport Rules
from blocklife.core._verbs cimport add_request, append_fresh, choose_fresh, finish

cdef int AT_PLAN, EFFECTS_A_ROW, INITIAL_JOB, KEPT, LAST_OF_BLOCKS, LAST_OF_SLOTS, LOAD, STORE

cpdef int store(Core core, str name, list blocks, list keys, list slots) except -1
cpdef int load(Core core, str name, list blocks, list slots) except -1
cpdef int ask_to_come(Core core, list blocks) except -1
cpdef int draft_visit(Core core, int direction, list blocks, list slots, keys) except -1
cpdef int come(Core core, str name, list blocks) except -1
cpdef int stay(Core core) except -1
cpdef int leave(Core core, int row) except -1
