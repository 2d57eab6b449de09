# Types of the questions that are asked first, where they are compiled.
cimport cython

from blocklife.ledger._places cimport Blocks, Slots
from blocklife.ledger._state cimport LedgerData, RequestRow
from blocklife.ledger.jobs cimport JobRow, JobTable


cdef class Checks:
    cdef LedgerData _state
    cdef Blocks _blocks
    cdef Slots _slots
    cdef JobTable _jobs

    cpdef request(self, request)
    cpdef tables(self, requests, groups)
    cpdef ask_job(self, JobRow job, str event, int facts=*)
    @cython.locals(
        table=bytes, epoch=cython.uint[::1], group_of=bytearray, state=bytearray, size=Py_ssize_t, seen=list, lives=object,
        group=cython.longlong, life=cython.longlong, place=cython.longlong, at=cython.int,
    )
    cpdef bint are_sealable(self, seals)
    @cython.locals(
        epoch=cython.uint[::1], group_of=bytearray, held=list, place=cython.longlong, life=cython.longlong, group=cython.int,
        state=bytearray, count=Py_ssize_t,
    )
    cpdef bint _are_storable(self, stores, list ids, list lives, list slots)
    cpdef bint _is_promised(self, Py_ssize_t place, long long life, key)
