# Types of the parts of a scheduler's calls, where they are compiled.
cimport cython

cimport blocklife.ledger._edge as edge
from blocklife.core._progress cimport PlanTokens, EntrySpans, TokenProgress, spans_of
from blocklife.core._steps cimport StoreTurn
from blocklife.ledger._journal cimport Journal
from blocklife.ledger._rows cimport RowVerbs
from blocklife.ledger.views cimport BlocksView, JobsView
from blocklife.offload._asking cimport Asking
from blocklife.offload._state cimport SchedulerState, Tracked
from blocklife.offload._stays cimport Stays
from blocklife.offload._stores cimport StoreLine


@cython.final
cdef class SchedulerSteps:
    cdef public SchedulerState _state
    cdef public Stays _stays
    cdef public object _ledger, _geometry, _policies
    cdef public RowVerbs _rows
    cdef public TokenProgress _progress
    cdef public StoreLine _stores
    cdef public list _keeps_one
    cdef public StoreTurn turn
    cdef public Asking asking
    cdef public bint direct
    cdef BlocksView _blocks
    cdef JobsView _jobs
    cdef Journal _calls
    cdef bint _drafts, _own_pool
    cdef Py_ssize_t _most

    @cython.locals(table=TokenProgress, rows=list, doubtful=list, spans=EntrySpans, keys=list)
    cpdef make_plan(self, double now)
    @cython.locals(
        table=TokenProgress, turn=PlanTokens, keys=dict, rows=list, known=list, computed=list,
        final=EntrySpans, seals=list, loads=bint, before=list, row=int, tokens=cython.longlong, ended=list,
    )
    cpdef settle(self, plan, double now, sampled, launched, completions)
    @cython.locals(lacking=cython.longlong, count=cython.longlong)
    cpdef fill_tables(self, str name, hit, list starts, long long end)
    cpdef load_hit(self, str name, hit, list spans, list keys)
    @cython.locals(own=list, loading=dict, content=tuple)
    cpdef expect(self, name, tokens, spans, keys)
    cpdef enter(self, name, Tracked tracked, hit, long long tokens)
    @cython.locals(loading=dict)
    cpdef end_load(self, name)
    cpdef unpin(self, name)
    cpdef Tracked tracked(self, name)
    cpdef check_waiting(self, name, str what)
    cpdef note_placed(self, name, Py_ssize_t row)
    cpdef check_placed(self, rows, ends)
    cpdef list in_doubt(self)
    cpdef bint waits_on(self, Tracked tracked) except -1
    cpdef bint may_wait(self, Py_ssize_t row) except -1
    cpdef bint may_wait_below(self, Py_ssize_t row) except -1
    @cython.locals(rows=list, looked=list, short=list, row=int)
    cpdef list schedule(self, dict wanted)
    cpdef leave_windows(self, list rows)
    @cython.locals(spans=EntrySpans)
    cpdef list make_room(self, list rows, list order)
    @cython.locals(total=cython.longlong, each=int)
    cpdef Py_ssize_t _blocks_of(self, EntrySpans spans) except -1
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
    cpdef tuple advance(self, PlanTokens turn, sampled)
    @cython.locals(keys=list, each=int, tracked=Tracked)
    cpdef list seals(self, EntrySpans spans)
    cpdef tuple hear_of_loads(self)
    cpdef list over(self)
    cpdef stop_drafting(self, Py_ssize_t row)
    cpdef drop(self, name, Tracked tracked)
    cpdef bint is_last_step(self) except -1
    cpdef check_held(self, name)
    cpdef check_open(self, bint awake=*)
