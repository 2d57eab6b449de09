cimport cython


cdef class Ring:
    cdef Py_ssize_t _size, _capacity
    cdef int[::1] _ring
    cdef unsigned int[::1] _entry
    cdef object _ring_view, _entry_view
    cdef long long _head, _tail

    @cython.locals(tail=cython.longlong)
    cpdef push_back(self, ids)
    cpdef push_front(self, ids)
    @cython.locals(place=Py_ssize_t, entry=cython.uint[::1])
    cpdef remove(self, ids)
    @cython.locals(
        found=list, ring=cython.int[::1], entry=cython.uint[::1], capacity=Py_ssize_t, position=cython.longlong, place=Py_ssize_t,
    )
    cpdef peek(self, Py_ssize_t count)
    @cython.locals(ring=cython.int[::1], entry=cython.uint[::1], capacity=Py_ssize_t, position=cython.longlong, place=Py_ssize_t)
    cpdef _write(self, long long start, ids)
    cpdef _compact(self, coming)
