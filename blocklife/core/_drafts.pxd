# Types of drafts, where they are compiled.
cimport cython

from blocklife.core._columns cimport Blocks, Contents, Core, Requests, Slots, StepRing, TransferJobs, life_of
from blocklife.core._couplings cimport ask_effects, check_room_for_jobs, count_names, effects_at, plan

cdef int AT_PLAN, DEMOTE, EPOCH_SHIFT, INITIAL_JOB, LOAD, PROMOTE, READABLE, STORE
cdef long long ID_MASK, MOST_PLACE

cpdef int draft(Core core, int direction, int num_blocks, int num_slots, bint apart, int num_owners) except -1
cpdef tuple keep_draft(Core core)
cpdef int resume(Core core, kept) except -1
cpdef int tear_up(Core core) except -1
@cython.locals(life=cython.longlong, place=cython.longlong)
cpdef int fill_blocks(Core core, list lives, list places, bytes groups, names, int start) except -1
cpdef int fill_slots(Core core, list slots, bytes groups, keys, int start) except -1
cpdef int clear_keys(Core core) except -1
cpdef list plan_jobs(
    Core core, int direction, cuts, lives, bytes groups, places, names, slot_cuts, slots, bytes slot_groups, keys, owners
)
cpdef tuple draft_job(Core core, int direction, int num_blocks, int num_slots, bint apart, owners)
cpdef int check_job(Core core) except -1
cpdef int tear_up_all(Core core, drafted) except -1
cpdef list make_jobs(Core core, drafted)
cpdef int check_draft(Core core) except -1
cpdef int check_slots(Core core) except -1
cpdef int check_unstored(Core core) except -1
cpdef int check_names(Core core) except -1
cpdef int check_load(Core core, int row) except -1
