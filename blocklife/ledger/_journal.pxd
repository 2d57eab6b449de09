# Types of the journal, where it is compiled.


cdef class Journal:
    cdef public Py_ssize_t most, size
    cdef public object entries
    cdef public long long plan
    cdef public list listeners, refusal_listeners
    cdef public bint inside, telling
    cdef long long _sequence
    cdef object _untold, _epochs

    cpdef note(self, str machine, str event, ids, rows, long long job=*, jobs=*, str name=*)
