# Types of the parts of a scheduler's calls, where they are compiled.
cimport cython

from blocklife.core._progress cimport TokenProgress, PlanTokens
from blocklife.core._steps cimport StoreTurn
from blocklife.ledger._rows cimport RowVerbs
from blocklife.offload._asking cimport Asking
from blocklife.offload._state cimport Tracked
from blocklife.offload._stores cimport StoreLine


cdef class SchedulerSteps:
    cdef public object _state, _stays, _ledger, _geometry, _policies
    cdef public RowVerbs _rows
    cdef public TokenProgress _progress
    cdef public StoreLine _stores
    cdef public list _keeps_one
    cdef public StoreTurn turn
    cdef public Asking asking
    cdef public bint direct
    cdef bint _drafts
    cdef Py_ssize_t _most

    cpdef leave_windows(self, rows)
    cpdef list make_room(self, rows, order)
    @cython.locals(turn=StoreTurn, line=StoreLine)
    cpdef plan_stores(self, spans, keys)
    cpdef take_ready(self, spans, keys)
    cpdef bint _store(self, names) except -1
    cpdef list _chunks(self, names)
    cpdef offer_filled(self, spans)
    cpdef tuple advance(self, PlanTokens turn, sampled)
    cpdef list seals(self, list spans)
