# Types of the steps of a scheduler, where they are compiled.
cimport cython

from blocklife.core._progress cimport PlanTokens, EntrySpans, TokenProgress, spans_of
from blocklife.ledger._journal cimport Journal
from blocklife.ledger._rows cimport RowVerbs
from blocklife.ledger.views cimport BlocksView, JobsView
from blocklife.offload._admissions cimport Admissions
from blocklife.offload._asking cimport Asking
from blocklife.offload._endings cimport Endings
from blocklife.offload._offers cimport Offers
from blocklife.offload._state cimport SchedulerState, Tracked
from blocklife.offload._stays cimport Stays


@cython.final
cdef class SchedulerSteps:
    cdef public SchedulerState _state
    cdef public object _ledger, _geometry, _policies
    cdef public TokenProgress _progress
    cdef public Asking asking
    cdef public Offers offers
    cdef public Admissions admissions
    cdef public Endings endings
    cdef RowVerbs _rows
    cdef Stays _stays
    cdef BlocksView _blocks
    cdef JobsView _jobs
    cdef Journal _calls
    cdef bint _own_pool

    @cython.locals(table=TokenProgress, rows=list, doubtful=list, spans=EntrySpans, keys=list)
    cpdef make_plan(self, double now)
    @cython.locals(
        table=TokenProgress, turn=PlanTokens, keys=dict, rows=list, known=list, computed=list,
        final=EntrySpans, seals=list, loads=bint, before=list, row=int, tokens=cython.longlong, ended=list,
    )
    cpdef settle(self, plan, double now, sampled, launched, completions)
    @cython.locals(rows=list, looked=list, short=list, row=int)
    cpdef list schedule(self, dict wanted)
    cpdef leave_windows(self, list rows)
    @cython.locals(spans=EntrySpans)
    cpdef list make_room(self, list rows, list order)
    @cython.locals(total=cython.longlong, each=int)
    cpdef Py_ssize_t _blocks_of(self, EntrySpans spans) except -1
    cpdef tuple advance(self, PlanTokens turn, sampled)
    cpdef tuple hear_of_loads(self)
