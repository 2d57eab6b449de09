# Types of the answers that a search gets, where they are compiled.
cimport cython

from blocklife.ledger.views cimport BlocksView, SlotsView
from blocklife.offload._host cimport code_at
from blocklife.offload._lookup cimport Answers

cdef int _HIT, _MISS, _PENDING, _RETRY


cdef class DeviceAnswers(Answers):
    cdef BlocksView _blocks
    cdef list _names
    cdef object _loading

    @cython.locals(names=list)
    cpdef int ask(self, int group, long long unit, long long blocks) except -1


cdef class HostAnswers(Answers):
    cdef SlotsView _slots
    cdef list _names, _told
    cdef long long _size
    cdef object _suffix, _loading, _below
    cdef bint _asks_below, _pending
    cdef public bint in_doubt, on_below
    cdef public list coming

    @cython.locals(names=list, at=cython.longlong, slot=cython.longlong, found=int, waits=bint)
    cpdef int ask(self, int group, long long unit, long long blocks) except -1
    cpdef int held(self, int group, key, Py_ssize_t slot) except -1
    @cython.locals(found=int)
    cpdef int prove(self, int group, long long unit) except -1
    @cython.locals(told=dict)
    cpdef int told(self, int group, long long unit) except -1
