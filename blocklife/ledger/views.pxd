# Types of what everybody may read, where it is compiled.
cimport cython

from blocklife.ledger._places cimport Blocks, Slots
from blocklife.ledger._state cimport LedgerData, RequestRow
from blocklife.ledger.jobs cimport JobTable


cdef class BlocksView:
    cdef public Blocks _blocks
    cdef public JobTable _jobs
    cdef public object states, epochs, groups

    cpdef bint is_current(self, long long life)
    cpdef of(self, long long life)
    cpdef code_of(self, long long life)
    cpdef find(self, Py_ssize_t group, key)


cdef class RequestsView:
    cdef public dict _requests
    cdef public object _column, states

    cpdef list held(self, name, Py_ssize_t group, Py_ssize_t start=*, stop=*)


cdef class SlotsView:
    cdef public Slots _slots
    cdef public object _journal
    cdef public object states

    cpdef find(self, Py_ssize_t group, key)
    cpdef find_ready(self, Py_ssize_t group, key)


cdef class JobsView:
    cdef public JobTable _jobs
    cdef public LedgerData _state
