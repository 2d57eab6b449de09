# Types of admitting requests, where it is compiled.
cimport cython

from blocklife.core._progress cimport TokenProgress
from blocklife.ledger._rows cimport RowVerbs
from blocklife.ledger.views cimport BlocksView
from blocklife.offload._state cimport SchedulerState, Tracked
from blocklife.offload._stays cimport Stays


@cython.final
cdef class Admissions:
    cdef SchedulerState _state
    cdef object _ledger, _geometry, _policies
    cdef RowVerbs _rows
    cdef BlocksView _blocks
    cdef TokenProgress _progress
    cdef Stays _stays

    @cython.locals(lacking=cython.longlong, count=cython.longlong)
    cpdef fill_tables(self, str name, hit, list starts, long long end)
    cpdef note_placed(self, name, Py_ssize_t row)
    cpdef check_placed(self, rows, ends)
    cpdef load_hit(self, str name, hit, list spans, list keys)
    @cython.locals(own=list, loading=dict, content=tuple)
    cpdef expect(self, name, tokens, spans, keys)
    @cython.locals(loading=dict)
    cpdef end_load(self, name)
    cpdef enter(self, name, Tracked tracked, hit, tokens)
    cpdef list in_doubt(self)
    cpdef bint waits_on(self, Tracked tracked) except -1
    cpdef bint may_wait(self, Py_ssize_t row) except -1
    cpdef bint may_wait_below(self, Py_ssize_t row) except -1
