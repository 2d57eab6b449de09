# Types of the parts of a scheduler's calls, where they are compiled.
cimport cython

from blocklife.core._progress cimport TokenProgress, PlanTokens
from blocklife.core._steps cimport StoreTurn
from blocklife.ledger._rows cimport RowVerbs
from blocklife.offload._asking cimport Asking
from blocklife.offload._state cimport SchedulerState, Tracked
from blocklife.offload._stores cimport StoreLine


cdef class SchedulerSteps:
    cdef public SchedulerState _state
    cdef public object _stays, _ledger, _geometry, _policies
    cdef public RowVerbs _rows
    cdef public TokenProgress _progress
    cdef public StoreLine _stores
    cdef public list _keeps_one
    cdef public StoreTurn turn
    cdef public Asking asking
    cdef public bint direct
    cdef bint _drafts
    cdef Py_ssize_t _most

    @cython.locals(lacking=cython.longlong, count=cython.longlong)
    cpdef take_in(self, str name, hit, list starts, long long end)
    cpdef load_hit(self, str name, hit, list spans, list keys)
    @cython.locals(own=list, loading=dict, content=tuple)
    cpdef expect(self, name, tokens, spans, keys)
    cpdef enter(self, name, Tracked tracked, hit, long long tokens)
    @cython.locals(loading=dict)
    cpdef end_load(self, name)
    cpdef unpin(self, name)
    cpdef Tracked tracked(self, name)
    cpdef check_waiting(self, name, str what)
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
