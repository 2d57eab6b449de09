# Types of the engine's pool, where they are compiled.
cimport cython

from blocklife.core._progress cimport EntrySpans, TokenProgress, spans_of
from blocklife.core._steps cimport StepGrowth
from blocklife.ledger._journal cimport Journal
from blocklife.ledger._rows cimport RowVerbs
from blocklife.ledger.views cimport BlocksView
from blocklife.offload._admissions cimport Admissions
from blocklife.offload._asking cimport Asking
from blocklife.offload._endings cimport Endings
from blocklife.offload._offers cimport Offers
from blocklife.offload._state cimport SchedulerState, Tracked
from blocklife.offload._stays cimport Stays
from blocklife.offload._steps cimport SchedulerSteps
from blocklife.offload._stores cimport StoreLine



cdef class EnginePool:
    cdef readonly object scheduler
    cdef public Journal _calls
    cdef SchedulerState _state
    cdef Stays _stays
    cdef object _ledger, _tier, _geometry, _known_of
    cdef RowVerbs _rows
    cdef SchedulerSteps _steps
    cdef Admissions _admissions
    cdef Asking _asking
    cdef Endings _endings
    cdef Offers _offers
    cdef StoreLine _stores
    cdef TokenProgress _progress
    cdef BlocksView _blocks
    cdef bint _one_a_step, _anew
    cdef list _windows
    cdef StepGrowth _grown
    cdef dict _late
    cdef set _unwanted
    cdef public long long holes

    cpdef extend(self, name, tables)
    cpdef list _without_doubt(self, list rows)
    cpdef list not_among(self, names)
    @cython.locals(fresh=set)
    cpdef bint is_new(self, blocks) except -1
    cpdef _known(self, int group, blocks, keys)
