# Types of what requests leave behind, where it is compiled.
cimport cython

from blocklife.core._progress cimport EntrySpans, TokenProgress
from blocklife.core._steps cimport StoreTurn
from blocklife.ledger._rows cimport RowVerbs
from blocklife.ledger.views cimport BlocksView, JobsView
from blocklife.offload._asking cimport Asking
from blocklife.offload._state cimport SchedulerState, Tracked
from blocklife.offload._stores cimport StoreLine


@cython.final
cdef class Offers:
    cdef SchedulerState _state
    cdef object _ledger, _geometry, _policies
    cdef RowVerbs _rows
    cdef Asking _asking
    cdef BlocksView _blocks
    cdef JobsView _jobs
    cdef TokenProgress _progress
    cdef StoreLine _stores
    cdef list _keeps_one
    cdef public StoreTurn turn
    cdef public bint direct
    cdef Py_ssize_t _most

    @cython.locals(
        table=TokenProgress, row=int, start=cython.longlong, end=cython.longlong, known=cython.longlong, scheduled=bint, ahead=bint,
        position=Py_ssize_t, lives=list,
    )
    cpdef hand_off(self, name, Tracked tracked, Py_ssize_t group, long long boundary)
    @cython.locals(turn=StoreTurn, line=StoreLine)
    cpdef plan_stores(self, EntrySpans spans, list keys, list handed)
    cpdef bint collect_ready(self, EntrySpans spans, list keys) except -1
    @cython.locals(suffix=bytearray, slot=Py_ssize_t, most=Py_ssize_t, at=Py_ssize_t)
    cpdef bint _store(self, list names) except -1
    cpdef list _chunks(self, names)
    @cython.locals(each=int, group=int, row=int, stop=cython.longlong)
    cpdef offer_filled(self, EntrySpans spans)
    @cython.locals(keys=list, each=int, tracked=Tracked)
    cpdef list seals(self, EntrySpans spans)
