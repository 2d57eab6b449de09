# Types of the view of a job, where it is compiled.
cimport cython

from blocklife.core._columns cimport Core, TransferJobs, life_of

cdef double NEVER


cdef class JobView:
    cdef Core _core
    cdef readonly long long number
    cdef readonly int row

    cdef TransferJobs _jobs(self)
    cdef int _code(self) except -1
    cdef int _way(self) except -1
    @cython.locals(jobs=TransferJobs, at=int, begin=int)
    cdef list _blocks(self, int[::1] column)
    @cython.locals(jobs=TransferJobs, at=int, begin=int)
    cdef list _slots(self, int[::1] column)
    @cython.locals(jobs=TransferJobs, at=int, begin=int)
    cdef list _owners(self)
    @cython.locals(jobs=TransferJobs, at=int, begin=int)
    cdef list _lives(self)
    @cython.locals(jobs=TransferJobs, at=int)
    cdef bytes _groups(self, int begin, int count)
