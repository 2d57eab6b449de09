# Types of the stays of requests, where they are compiled.
cimport cython

cdef int _RESTED, _WAITING, _SPENT, _FOUND, _DEFERRED, _LOADING, _UNASKED, _ABORTING


@cython.final
cdef class Waits:
    cdef readonly object column
    cdef public double[::1] until
    cdef unsigned char[::1] _state
    cdef object _wait, _answer, _give_up, _renew

    cpdef bint lasts(self, Py_ssize_t row, double now) except -1
    cpdef bint is_spent(self, Py_ssize_t row) except -1
    cpdef begin(self, Py_ssize_t row, double until)
    cpdef answered(self, Py_ssize_t row)
    cpdef bint give_up(self, Py_ssize_t row) except -1
    cpdef renew(self, Py_ssize_t row)


@cython.final
cdef class Stays:
    cdef readonly object lookups, ends
    cdef readonly Waits waits, waits_below
    cdef readonly set ending
    cdef unsigned char[::1] _lookup, _end
    cdef object _at_first

    cpdef looked_up(self, Py_ssize_t row, bint deferred)
    cpdef admitted(self, Py_ssize_t row, bint loads)
    cpdef landed(self, Py_ssize_t row)
    cpdef emptied(self, Py_ssize_t row)
    cpdef bint is_found(self, Py_ssize_t row) except -1
    cpdef bint is_loading(self, Py_ssize_t row) except -1
    cpdef bint is_deferred(self, Py_ssize_t row) except -1
    cpdef bint is_ending(self, Py_ssize_t row) except -1
    cpdef bint is_aborted(self, Py_ssize_t row) except -1
