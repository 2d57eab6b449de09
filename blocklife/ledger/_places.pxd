# Types of the columns, where they are compiled. A column that others read stays an array; its typed twin has the same memory.
cimport cython

from blocklife.ledger._ring cimport Ring
from blocklife.ledger._rules cimport CountedEvent, Rule


cdef class Places:
    cdef public object column, machine, pins, pins_view, group_view
    cdef public bytearray state, group
    cdef public list taken, key, index
    cdef public Py_ssize_t free
    cdef public bint indexed
    cdef public object refusals
    cdef bytes _meaning, _targets
    cdef object _meaning_view


cdef class Blocks(Places):
    cdef public object epoch, epoch_view, refs, refs_view, overdue, overdue_view, writes, writes_view, job, job_view
    cdef public Ring queue
    cdef int _cached
    cdef unsigned int[::1] _epoch
    cdef unsigned short[::1] _refs
    cdef unsigned char[::1] _pins, _writes, _overdue
    cdef int[::1] _job

    @cython.locals(epoch=cython.uint[::1], found=list, life=cython.longlong, place=cython.longlong)
    cpdef lives(self, ids)
    @cython.locals(epoch=cython.uint[::1], life=cython.longlong)
    cpdef fresh(self, lives)
    @cython.locals(job=cython.int[::1], place=Py_ssize_t)
    cpdef name_job(self, ids, Py_ssize_t row)
    @cython.locals(
        rule=Rule, state=bytearray, table=bytes, ours=bytes, looks=cython.int, rows=list, at=cython.int, place=Py_ssize_t,
        refs=cython.longlong, pins=cython.longlong, writes=cython.longlong, overdue=cython.longlong, count=cython.longlong,
        all_refs=cython.ushort[::1], all_pins=cython.uchar[::1], all_writes=cython.uchar[::1], all_overdue=cython.uchar[::1],
        position=Py_ssize_t, fits=cython.bint,
    )
    cpdef ask(self, CountedEvent change, ids, own=*)
    @cython.locals(
        state=bytearray, targets=bytes, meanings=bytes, taken=list, place=Py_ssize_t, row=cython.int, meaning=cython.int,
        entering=list, leaving=list, refs=cython.int, pins=cython.int, first=cython.int, target=cython.int, left=cython.int,
        all_refs=cython.ushort[::1], all_pins=cython.uchar[::1],
    )
    cpdef list write(self, CountedEvent change, ids, rows)
    cpdef _leave_free(self, ids)
    @cython.locals(state=bytearray, cached=cython.int, place=Py_ssize_t)
    cpdef _enter_free(self, ids)
    cpdef _end_life(self, Py_ssize_t place, int refs, list orphaned)


cdef class Slots(Places):
    cdef public list listeners
    cdef public Ring queue
    cdef unsigned short[::1] _slot_pins

    @cython.locals(
        rule=Rule, state=bytearray, table=bytes, refused=bytes, looks=cython.int, pins=cython.int, rows=list, at=cython.int,
        place=Py_ssize_t, all_pins=cython.ushort[::1],
    )
    cpdef ask(self, CountedEvent change, ids, unwanted=*)
    @cython.locals(state=bytearray, targets=bytes, taken=list, place=Py_ssize_t, row=cython.int)
    cpdef list write(self, CountedEvent change, ids, rows)
