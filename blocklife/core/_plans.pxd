# Types of the step, where they are compiled.
cimport cython

from blocklife.core._columns cimport Blocks, Contents, Core, Requests, Slots, StepRing, TransferJobs, zeros
from blocklife.core._couplings cimport (
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
from blocklife.core._moves cimport ask, can_job, fire_job, move_blocks, move_slots
from blocklife.core._verbs cimport choose_seals, seal

cdef int ABANDON_JOB, ADMITTED_, ALL_OK, AT_EXPIRE, AT_FINISH, AT_WORKERS, BEHIND, CANCEL_JOB, COPIED, DROP, EFFECTS_A_ROW
cdef int EXPIRES, FINISHED, FORGET, J_ABANDON, J_CANCEL, J_EXPIRE, J_FINISH, J_FLUSH, J_QUIESCE, KEPT, LOAD, MORE
cdef int OVER, PLANNED, PREEMPT, R_PREEMPT, READABLE, UNSEALED, WANTED
cdef double NEVER

@cython.locals(row=int, entry=int)
cpdef list ripe_jobs(Core core)
cpdef list dispatch(Core core, double now)
@cython.locals(row=int)
cpdef list by_direction(Core core, rows)
@cython.locals(total=int, row=int)
cpdef list cuts_of(Core core, rows)
@cython.locals(row=int, at=int, end=int, near="int[::1]", far="int[::1]", groups="unsigned char[::1]")
cpdef tuple moved_by(Core core, rows, int total)
cpdef int arm(Core core, int row, double now) except -1
cpdef bint is_out(Core core, int row) except -1
cpdef int launched(Core core, long long number, double now) except -1
cpdef int report(Core core, long long number, int worker, bint ok, positions) except -1
cpdef bint is_missing(Core core, int row) except -1
cpdef bint has_reported(Core core, int row, int worker) except -1
cpdef int note_missing(Core core, long long number, int worker, positions) except -1
cpdef int prove_waited(Core core, dict waited) except -1
cpdef int settle(Core core, long long plan, double now, numbers, workers, oks, missing, seals) except -1
cpdef int check_settle(Core core, long long plan, numbers, workers, seals) except -1
cpdef int add_unproven(Core core, int count, set waited, numbers, workers) except -1
cpdef list serving(Core core, requests)
cpdef list expire(Core core, double now)
cpdef int quiesce(Core core, int row) except -1
cpdef int lose(Core core, int worker) except -1
cpdef int reset(Core core, bint host) except -1
cpdef int empty_requests(Core core) except -1
cpdef int end_all_jobs(Core core, bint planned, bint host) except -1
cpdef int drop_all_content(Core core) except -1
cpdef int reset_slots(Core core) except -1
cpdef int reset_host(Core core) except -1
