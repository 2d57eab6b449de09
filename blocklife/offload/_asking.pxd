# Types of the questions of a scheduler, where they are compiled.
cimport cython

cimport blocklife.ledger._edge as edge
from blocklife.core._progress cimport EntrySpans, PlanTokens, TokenProgress
from blocklife.ledger._journal cimport Journal
from blocklife.offload._state cimport SchedulerState, Tracked


@cython.final
cdef class Asking:
    cdef SchedulerState _state
    cdef object _geometry
    cdef TokenProgress _progress
    cdef dict _requests, _names
    cdef list _keeps_one
    cdef long long _call
    cdef public dict keys_given, keys_planned, tails_given
    cdef public object known_of
    cdef Journal _journal

    cdef Asking _present(self)
    @cython.locals(wrong=bint)
    cpdef list given(self, Tracked tracked, Py_ssize_t group, Py_ssize_t start, Py_ssize_t stop)
    cpdef list asked(self, Tracked tracked, Py_ssize_t group, Py_ssize_t start, Py_ssize_t stop)
    @cython.locals(given=Asking, place=Py_ssize_t, known=tuple, first=Py_ssize_t)
    cpdef keys_of(self, Tracked tracked, Py_ssize_t group, Py_ssize_t start, Py_ssize_t stop)
    @cython.locals(table=TokenProgress)
    cpdef note_given(self, int row, Py_ssize_t group, Py_ssize_t start, keys)
    cpdef dict hand_over(self)
    cpdef recall(self, dict keys)
    cpdef tuple ask_load(self, Tracked tracked, hit, list starts)
    cpdef list load_starts(self, hit)
    cpdef list ask_filled(self, EntrySpans spans)
    @cython.locals(found=list, each=int, start=Py_ssize_t, stop=Py_ssize_t)
    cpdef list ask_spans(self, EntrySpans spans, Py_ssize_t size)
    cpdef ask_keys(self, Tracked tracked, Py_ssize_t group, Py_ssize_t start, Py_ssize_t stop)
    @cython.locals(tracked=Tracked)
    cpdef ask_span(self, Py_ssize_t group, Py_ssize_t row, Py_ssize_t start, Py_ssize_t stop)
