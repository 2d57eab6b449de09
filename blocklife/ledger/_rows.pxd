# Types of the verbs of many requests, where they are compiled.
cimport cython

cimport blocklife.core._plans as plans
cimport blocklife.core._steps as steps
cimport blocklife.core._verbs as verbs
cimport blocklife.core._visits as visits
cimport blocklife.ledger._edge as edge
from blocklife.core._columns cimport Core
from blocklife.core._progress cimport EntrySpans, TokenProgress
from blocklife.core._steps cimport StepGrowth, StoreTurn
from blocklife.ledger._checks cimport Checks
from blocklife.ledger._journal cimport Journal, end
from blocklife.ledger._plan cimport plan_of


@cython.final
cdef class RowVerbs:
    cdef public Core _core
    cdef public Journal _calls
    cdef public Checks _check
    cdef public object data, _incarnation, _refusals, _planning

    cpdef leave_spans(self, TokenProgress progress, EntrySpans spans)
    cpdef grow(self, TokenProgress progress, EntrySpans spans)
    cpdef place(self, TokenProgress progress, StepGrowth grown)
    cpdef list seals_of(self, TokenProgress progress, EntrySpans spans, list keys)
    cpdef list promise(self, TokenProgress progress, EntrySpans spans, list keys, StoreTurn turn)
    cpdef list slots_behind(self, TokenProgress progress, int group, int row, int start, int stop, int size)
    cpdef bint offer_spans(self, TokenProgress progress, EntrySpans spans, list keys, StoreTurn turn, bint early) except -1
    cpdef bint offer_life(self, int group, int row, long long life, bytes key, StoreTurn turn, bint early) except -1
    cpdef begin_tables(self, TokenProgress progress, int row, long long tokens)
    cpdef list names_left(self, TokenProgress progress, StoreTurn turn)
    cpdef end_turn(self, StoreTurn turn)
    cpdef dispatch(self, double now)
    cpdef settle(self, long long plan, double now, launched, completions, seals)
    cpdef launch(self, record, double now)
    cpdef list plan_turn(self, TokenProgress progress, StoreTurn turn, slots, int most)
