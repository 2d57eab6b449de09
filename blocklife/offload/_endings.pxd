# Types of ending requests, where it is compiled.
cimport cython

from blocklife.core._progress cimport EntrySpans, TokenProgress
from blocklife.ledger._journal cimport Journal
from blocklife.ledger._rows cimport RowVerbs
from blocklife.ledger.views cimport JobsView
from blocklife.offload._admissions cimport Admissions
from blocklife.offload._asking cimport Asking
from blocklife.offload._offers cimport Offers
from blocklife.offload._state cimport SchedulerState, Tracked
from blocklife.offload._stays cimport Stays
from blocklife.offload._stores cimport StoreLine


@cython.final
cdef class Endings:
    cdef SchedulerState _state
    cdef object _ledger, _geometry, _policies
    cdef RowVerbs _rows
    cdef Asking _asking
    cdef Offers _offers
    cdef Admissions _admissions
    cdef JobsView _jobs
    cdef TokenProgress _progress
    cdef Stays _stays
    cdef StoreLine _stores
    cdef Journal _calls
    cdef bint _drafts, _own_pool

    cpdef list over(self)
    cpdef stop_drafting(self, Py_ssize_t row)
    cpdef drop(self, name, Tracked tracked)
    cpdef bint is_last_step(self) except -1
