# Types of the questions of a scheduler, where they are compiled.
cimport cython

from blocklife.core._progress cimport TokenProgress
from blocklife.ledger._journal cimport Journal
from blocklife.offload._state cimport SchedulerState, Tracked


cdef class Asking:
    cdef SchedulerState _state
    cdef object _geometry
    cdef TokenProgress _progress
    cdef dict _requests, _names
    cdef list _keeps_one
    cdef long long _call
    cdef public dict keys_given, tails_given
    cdef public object known_of
    cdef Journal _journal

    cdef Asking _present(self)
    @cython.locals(wrong=bint)
    cpdef asked(self, Tracked tracked, Py_ssize_t group, Py_ssize_t start, Py_ssize_t stop)
    @cython.locals(known=tuple)
    cpdef keys_of(self, Tracked tracked, Py_ssize_t group, Py_ssize_t start, Py_ssize_t stop)
    cpdef tuple ask_load(self, Tracked tracked, hit, list starts)
    cpdef list load_starts(self, hit)
    cpdef ask_keys(self, Tracked tracked, Py_ssize_t group, Py_ssize_t start, Py_ssize_t stop)
    @cython.locals(tracked=Tracked)
    cpdef ask_span(self, Py_ssize_t group, Py_ssize_t row, Py_ssize_t start, Py_ssize_t stop)
