# Types of what a ledger knows, where it is compiled.
from blocklife.ledger._edge cimport NotCopied
from blocklife.ledger._journal cimport Journal
from blocklife.ledger._places cimport Blocks, Slots
from blocklife.ledger.jobs cimport JobTable


cdef class RequestRow:
    cdef public Py_ssize_t row
    cdef public str name
    cdef public list tables
    cdef public long long load


cdef class LedgerData(NotCopied):
    cdef public object limits, contract, checking, deadline, incarnation, request_column, spare_requests
    cdef public bint fence, rechecks, own_pool
    cdef public Blocks blocks
    cdef public Slots slots
    cdef public JobTable jobs
    cdef public dict requests, holders, to_flush, waiting
    cdef public list deadlines
    cdef public Journal journal
    cdef public long long verdicts
    cdef public object tally, flushes, ended, moved, made_with, wide_columns, refusals
