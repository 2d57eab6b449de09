# Types of the journal, where it is compiled.


cdef class Journal:
    cdef public Py_ssize_t most, size
    cdef public object entries, hooks, refusals
    cdef public long long plan
    cdef public bint inside, telling
    cdef public str request
    cdef long long _sequence, _incarnation
    cdef list _untold
    cdef object _blocks, _slots, _jobs

    cpdef note(self, str machine, str event, ids, rows, long long job=*, jobs=*, str name=*)
