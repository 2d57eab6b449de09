# Types of what is copied out of the columns and back, where it is compiled.
cimport cython

from blocklife.core._columns cimport Blocks, Contents, Core, Requests, Slots, TransferJobs
from blocklife.ledger.jobs cimport JobView

cdef int FINISHED, NULL
cdef long long ID_MASK
cdef double NEVER

cdef tuple _keys(Core core, contents)
@cython.locals(job=JobView)
cdef tuple _save_jobs(data, names)
@cython.locals(content=int)
cdef tuple _save_index(Core core, int[::1] places, names)
@cython.locals(row=int)
cdef list _requests(Core core)
@cython.locals(requests=Requests, table=int, begin=int, at=int)
cdef list _tables(Core core, int row)
@cython.locals(requests=Requests, row=int)
cdef tuple _save_requests(Core core, names)
cdef tuple _spare_rows(TransferJobs jobs)
@cython.locals(blocks=Blocks, slots=Slots, contents=Contents, place=int, slot=int, group=int, state=int)
cdef _put_back_places(Core core, saved)
@cython.locals(requests=Requests, row=int, group=int, table=int, at=int)
cdef _put_back_requests(Core core, saved, spare)
@cython.locals(jobs=TransferJobs, contents=Contents, requests=Requests, row=int, at=int, blocks=int, entry=int, group=int)
cdef _put_back_jobs(Core core, saved, double now)
@cython.locals(jobs=TransferJobs, last=int)
cdef _put_back_live(Core core, int row, owners)
