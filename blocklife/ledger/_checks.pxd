# Types of the checks, where they are compiled.
cimport cython

cimport blocklife.ledger._edge as edge
from blocklife.core._columns cimport Core
from blocklife.core._couplings cimport broken_pair
from blocklife.core._verbs cimport are_apart

cdef int FINISHED


@cython.final
cdef class Checks:
    cdef object _data
    cdef Core _core
    cdef long long _incarnation

    @cython.locals(row=int)
    cpdef int request(self, request) except -1
    @cython.locals(row=int)
    cpdef newcomer(self, request)
    cpdef group(self, group)
    cpdef int job(self, name) except -1
    cpdef tuple reports(self, list completions)
    @cython.locals(row=int)
    cpdef report(self, completion)
    @cython.locals(row=int)
    cpdef judged(self)
    cpdef violate(self, str problem)
