# Types of the checks, where they are compiled.
cimport cython

from blocklife.core._columns cimport Core

cdef int FINISHED


cdef class Checks:
    cdef object _data
    cdef Core _core

    @cython.locals(row=int)
    cpdef int request(self, request) except -1
    cpdef group(self, group)
