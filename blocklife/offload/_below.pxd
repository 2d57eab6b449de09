# Types of the tier below, where it is compiled.
cimport cython

cimport blocklife.ledger._edge as edge

cdef int _MISS, _RETRY


@cython.final
cdef class TierBelow:
    cdef public object _ledger, index, policies, _errors, _tier, _suffix, _required, _out, _queue, _counts
    cdef public object _events, _ask_again
    cdef public bytes space
    cdef public dict _coming, _jobs, _filled
    cdef public set _below

    cpdef list ask(self, contents)
    cpdef list _ask(self, ask, contents)
    cpdef bint brings(self, content) except -1
    @cython.locals(chosen=dict, asked=Py_ssize_t)
    cpdef dict _lacking(self, Py_ssize_t room)
    cpdef bint _is_whole(self, slot, group) except -1
    cpdef bint _is_up(self) except -1
    cpdef _notify(self, method, space, contents)
    cpdef Py_ssize_t _room(self, direction) except? -7777
    cpdef _note(self, number, direction, slots, contents)
