# Types of the eviction policies, where they are compiled.
cimport cython


@cython.final
cdef class SlotOrder:
    cdef int[::1] following, before
    cdef Py_ssize_t _size

    cpdef bint has(self, Py_ssize_t slot) except -1
    @cython.locals(node=Py_ssize_t, last=int)
    cpdef push(self, Py_ssize_t slot)
    @cython.locals(node=int, after=int, ahead=int)
    cpdef bint drop(self, Py_ssize_t slot) except -1
    cpdef list first(self, Py_ssize_t count)
    cpdef _make_room(self, Py_ssize_t slot)


cdef class Lru:
    cdef SlotOrder _order

    cpdef insert(self, slots, names)
    cpdef touch(self, slots)
    cpdef remove(self, Py_ssize_t slot)


cdef class Arc:
    cdef public Py_ssize_t num_slots
    cdef readonly SlotOrder _once, _again
    cdef readonly object _once_ghosts, _again_ghosts
    cdef readonly double _target
    cdef list _names, _leaving
    cdef set _chosen

    @cython.locals(slot=Py_ssize_t, once=SlotOrder, again=SlotOrder, may_return=bint)
    cpdef insert(self, slots, names)
    cpdef touch(self, slots)
    cpdef remove(self, Py_ssize_t slot)
    cdef int _call(self, Py_ssize_t slot, name) except -1
    cpdef _bury(self)
    cpdef _trim(self)
