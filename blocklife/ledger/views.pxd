# Types of the views, where they are compiled.
cimport cython
cimport blocklife.core._plans as plans
cimport blocklife.core._verbs as verbs
cimport blocklife.ledger._edge as edge
from blocklife.core._columns cimport Contents, Core, Requests, life_of, listed
from blocklife.ledger._checks cimport Checks

cdef int EPOCH_SHIFT, FINAL, FINISHED, OVER
cdef long long ID_MASK

cpdef long long block_of(long long life) noexcept


@cython.final
cdef class BlocksView:
    cdef Checks _check
    cdef Core _core
    cdef unsigned char[::1] _state, _pins, _writes, _overdue, _group
    cdef unsigned short[::1] _refs
    cdef int[::1] _epoch, _key, _job
    cdef unsigned short[::1] _traits
    cdef readonly object states, epochs, groups

    cpdef state(self, Py_ssize_t block)
    cpdef bint is_current(self, long long life) except -1
    @cython.locals(block=cython.longlong)
    cpdef of(self, long long life)
    @cython.locals(block=cython.longlong)
    cpdef code_of(self, long long life)
    @cython.locals(contents=Contents, own=dict, content=int)
    cpdef Py_ssize_t place_of(self, int group, key) except -2
    @cython.locals(block=cython.longlong)
    cpdef list _first_lives(self, int group, keys)
    cpdef bint is_final(self, Py_ssize_t block) except -1
    cpdef bint holds(self, Py_ssize_t block, int group, key) except -1
    cpdef Py_ssize_t refs(self, Py_ssize_t block) except -1
    cpdef Py_ssize_t job(self, Py_ssize_t block) except -1


@cython.final
cdef class SlotsView:
    cdef Checks _check
    cdef object _journal
    cdef Core _core
    cdef dict _holders
    cdef unsigned char[::1] _state, _group
    cdef unsigned short[::1] _pins
    cdef int[::1] _key
    cdef bytes _readable
    cdef readonly object states

    cpdef bint is_ready(self, Py_ssize_t slot) except -1
    cpdef bint can_evict(self, Py_ssize_t slot) except -1
    cpdef Py_ssize_t group(self, Py_ssize_t slot) except -1
    @cython.locals(slot=cython.longlong)
    cpdef find(self, int group, key)
    @cython.locals(contents=Contents, own=dict, content=int)
    cpdef Py_ssize_t place_of(self, int group, key) except -2
    cpdef list next_empty(self, int count)
    cpdef bint any_evictable(self) except -1
    @cython.locals(slot=cython.longlong)
    cpdef list found(self, int group, keys)
    @cython.locals(slot=cython.longlong)
    cpdef list _first_ready(self, int group, keys)
    @cython.locals(slot=cython.longlong)
    cpdef find_ready(self, int group, key)


@cython.final
cdef class JobsView:
    cdef Checks _check
    cdef object _data
    cdef Core _core

    cpdef get(self, long long number)
    cpdef bint is_out(self, long long number) except -1
    cpdef bint is_planned(self, long long number) except -1
    cpdef bint serve(self, str request) except -1


@cython.final
cdef class RequestsView:
    cdef Checks _check
    cdef Core _core

    cpdef state(self, request)
    @cython.locals(total=cython.longlong, row=int)
    cpdef Py_ssize_t times_left(self, state) except -1
    cpdef Py_ssize_t size(self, request, int group) except -1

    @cython.locals(requests=Requests, table=int, begin=cython.longlong, first=cython.longlong, last=cython.longlong, at=cython.longlong)
    cpdef list table(self, request, group=*, start=*, stop=*)
