# Types of the parts of a scheduler's calls, where they are compiled.
cimport cython

from blocklife.core._progress cimport TokenProgress, PlanTokens
from blocklife.offload._state cimport Tracked
from blocklife.offload._stores cimport StoreLine


cdef class SchedulerSteps:
    cdef public object _state, _ledger, _rows, _geometry, _policies, planner
    cdef public TokenProgress _progress
    cdef public StoreLine _stores
    cdef public list _keeps_one
    cdef bint _drafts

    cpdef leave_windows(self, rows)
    cpdef list make_room(self, rows, order)
    cpdef plan_stores(self, rows, list spans)
    cpdef offer_filled(self, spans)
    cpdef list contents(self, list spans)
    cpdef tuple advance(self, PlanTokens turn, sampled)
    cpdef list seals(self, list spans)
    @cython.locals(keys=object, known=tuple)
    cpdef keys_of(self, Tracked tracked, Py_ssize_t group, Py_ssize_t start, Py_ssize_t stop)
