# Types of what is recounted, where it is compiled.
cimport cython

from blocklife.core._columns cimport Blocks, Contents, Core, Requests, TransferJobs
from blocklife.ledger.jobs cimport JobView

cdef int EPOCH_SHIFT, FINISHED, NULL
cdef long long ID_MASK


cdef class Look:
    cdef public object data
    cdef public Core core
    cdef public dict blocks, slots, reserved
    cdef public bytes block_states, slot_states
    cdef public list jobs, alive, refs, pins, writes, overdue, slot_pins, sources, over, named
    cdef public bint blocks_fit, slots_fit

    @cython.locals(blocks=Blocks, requests=Requests, groups=int, table=int, at=int, life=cython.longlong)
    cdef _count_tables(self, name, int row)
    @cython.locals(jobs=TransferJobs, row=int, begin=int, slot_begin=int)
    cdef list _count_names(self)
    cdef _count_job(self, JobView job, state)


cpdef busy_blocks_are_pinned(Look look, say)
@cython.locals(jobs=TransferJobs, row=int)
cpdef jobs_have_one_identity(Look look, say)
cpdef counts_match_holders(Look look, say)
@cython.locals(jobs=TransferJobs, requests=Requests, job=JobView, row=int)
cpdef jobs_end_once(Look look, say)
@cython.locals(contents=Contents, content=int, place=int)
cpdef only_success_is_readable(Look look, say)
@cython.locals(contents=Contents, content=int, place=int)
cdef _slots_are_found(Look look, say)
cpdef slots_are_pinned_by_readers(Look look, say)
cpdef only_sealed_content_is_submitted(Look look, say)
@cython.locals(job=JobView)
cpdef every_worker_counts_once(Look look, say)
@cython.locals(requests=Requests, jobs=TransferJobs, job=JobView, row=int)
cpdef requests_match_their_loads(Look look, say)
@cython.locals(core=Core)
cpdef waits_can_end(Look look, say)
@cython.locals(core=Core, requests=Requests, contents=Contents, number=int)
cpdef places_are_conserved(Look look, say)
@cython.locals(job=JobView)
cpdef a_life_is_stored_once(Look look, say)
@cython.locals(job=JobView)
cpdef sizes_add_up(Look look, say)
