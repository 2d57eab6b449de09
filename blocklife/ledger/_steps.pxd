# Types of the steps that verbs are made of, where they are compiled.
cimport cython

from blocklife.ledger._checks cimport Checks
from blocklife.ledger._journal cimport Journal
from blocklife.ledger._places cimport Blocks, Slots
from blocklife.ledger._rules cimport CountedEvent
from blocklife.ledger._state cimport LedgerData, RequestRow
from blocklife.ledger.jobs cimport JobRow, JobTable


cdef class Steps:
    cdef public LedgerData _state
    cdef public Checks _check
    cdef public Blocks _blocks
    cdef public Slots _slots
    cdef public JobTable _jobs
    cdef public Journal _journal
    cdef CountedEvent _hand_out

    cpdef list take_blocks(self, CountedEvent change, ids, rows, long long job=*, jobs=*)
    cpdef take_slots(self, CountedEvent change, ids, rows, long long job=*, jobs=*)
    cpdef list _write_jobs(self, jobs, event, list rows)
    @cython.locals(place=Py_ssize_t, group_of=bytearray)
    cpdef hand_out(self, group, ids=*, who=*, count=*)
    cpdef hand_out_each(self, groups, counts, ids=*, who=*, total=*)
    cpdef release(self, lives)
    cpdef seal(self, held, keys, group, bint known_fresh=*)
    cpdef list plan_stores(self, stores)
    @cython.locals(state=bytearray, job=JobRow, place=Py_ssize_t)
    cpdef list ripe(self)
    @cython.locals(job=JobRow)
    cpdef submit(self, jobs)
    @cython.locals(job=JobRow)
    cpdef transfers(self, direction, jobs)
    @cython.locals(job=JobRow)
    cpdef _finish_stores(self, jobs)
    @cython.locals(slot=Py_ssize_t)
    cpdef _land_slots(self, slots, bint ok)
    @cython.locals(found=JobRow)
    cpdef complete_many(self, completions)
