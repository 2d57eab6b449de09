# Types of the verbs of many requests, where they are compiled.
from blocklife.core._columns cimport Core
from blocklife.core._progress cimport TokenProgress
from blocklife.core._steps cimport StepGrowth, StoreTurn
from blocklife.ledger._journal cimport Journal, end


cdef class RowVerbs:
    cdef public Core _core
    cdef public Journal _calls
    cdef public object _check, _incarnation, _refusals, _planning

    cpdef leave_spans(self, TokenProgress progress, spans)
    cpdef grow(self, TokenProgress progress, spans)
    cpdef place(self, TokenProgress progress, StepGrowth grown)
    cpdef list seals_of(self, TokenProgress progress, spans, keys)
    cpdef list promise(self, TokenProgress progress, spans, keys, StoreTurn turn)
    cpdef list slots_behind(self, TokenProgress progress, int group, int row, int start, int stop, int size)
    cpdef begin_tables(self, TokenProgress progress, int row, long long tokens)
    cpdef list names_left(self, TokenProgress progress, StoreTurn turn)
    cpdef end_turn(self, StoreTurn turn)
    cpdef settle(self, long long plan, double now, launched, completions, seals)
    cpdef launch(self, record, double now)
    cpdef list plan_turn(self, TokenProgress progress, StoreTurn turn, slots, int most)
