# Types of what a scheduler knows of a request, where it is compiled.


cdef class Tracked:
    cdef public Py_ssize_t row
    cdef public object keys, hit, asked, awaits, tails
    cdef public long long failures, tail
    cdef public list fetched
