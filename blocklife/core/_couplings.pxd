# Types of the couplings, where they are compiled.
from blocklife.core._columns cimport Blocks, Contents, Core, Requests, Slots, StepRing, TransferJobs
from blocklife.core._moves cimport (
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
from blocklife.core._rules cimport PlaceMove, Rules

cdef int AT_CANCEL, AT_FINISH, AT_PLAN, AT_SUBMIT, CANCEL, CANCEL_JOB, DEAD_READ, DONE, EFFECTS_A_ROW, END_JOB, EXPIRE, FILLED
cdef int FLUSH_JOB, INITIAL_JOB, J_ABANDON, J_CANCEL, J_FLUSH, J_QUIESCE, J_SUBMIT, LAND, LAST_OF_BLOCKS
cdef int LAST_OF_SLOTS, LATE, LOAD, OVER, PLAN_STORE, PLANNED, PROMOTE, PROVE_OLDER, R_LOAD_FAILED
cdef int R_LOADED, R_PLAN_LOAD, READABLE, RELEASE, RESERVE, STORE, SUBMIT, TELL_FAILED, TELL_LOADED, TELL_WAITS
cdef long long ID_MASK
cdef double NEVER

cpdef int hand_out(Core core, int count) except -1
@cython.locals(place=int)
cpdef int flush_touching(Core core, list places) except -1
cpdef int end_orphans(Core core, bint flushes) except -1
cpdef int flush(Core core, int row, str cause) except -1
cpdef int release_ids(Core core, int count) except -1
cpdef int release_all(Core core, int row) except -1
cpdef int choose_held(Core core, int table) except -1
cpdef int give_up(Core core, int row, int event) except -1
cpdef int give_up_job(Core core, int row) except -1
cpdef int check_room_for_jobs(Core core, int count) except -1
cpdef int effects_at(Core core, int cause, int row, int into) except -1
cpdef int plan(Core core, bint asked) except -1
cpdef int new_job(Core core) except -1
cpdef int count_names(Core core) except -1
cpdef int release_job(Core core, int row) except -1
cpdef int step_job(Core core, int row, int event, int cause, int facts) except -1
cpdef int cancel(Core core, int row) except -1
cpdef int submit(Core core, int row) except -1
cpdef int ask_submit(Core core, int row) except -1
cpdef int abandon(Core core, int row) except -1
cpdef bint fills_slots(Core core, int row) except -1
cpdef int end_job(Core core, int row, int into, bint done) except -1
cpdef int step_request(Core core, int row, int base) except -1
cpdef tuple broken_pair(Core core, int row)
cpdef int prove_older(Core core, int row) except -1
cpdef list older_of(Core core, int row)
cpdef int ask_effects(Core core, int row, int base, bint done) except -1
cpdef PlaceMove block_move(Core core, int row, int effect, bint done)
cpdef int choose_blocks_of(Core core, int row, int effect) except -1
cpdef int ask_slot_effect(Core core, int row, int effect, bint done) except -1
cpdef int write_effects(Core core, int row, int base, bint done) except -1
cpdef int unpin_others(Core core, int row) except -1
cpdef int bind_blocks(Core core, int row, int effect) except -1
cpdef int name_slots(Core core, int row) except -1
cpdef int name_block(Core core, int place, int content) except -1
cpdef int fill_in_part(Core core, int row) except -1
cpdef bint are_doubles(Core core, int count) except -1
