# Types of the edge, where it is compiled.
cimport cython

cdef long long _LIFE


cdef class NotCopied:
    pass


cpdef bint _are_whole(list values) except -1
@cython.locals(value=cython.longlong)
cpdef bint _are_near(list values) except -1
cpdef bint _are_keys(values) except -1
