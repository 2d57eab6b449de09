# Types of the journal, where it is compiled.


cdef class Journal:
    cdef public Py_ssize_t most, size
    cdef public object entries, hooks, refusals, errors, stage, untold
    cdef public list noted
    cdef public long long plan, sequence, calls
    cdef public tuple watchers
    cdef public str request
    cdef long long _incarnation
    cdef str _interrupted
    cdef object _blocks, _slots, _jobs

    cpdef note(self, str machine, str event, ids, rows, long long job=*, jobs=*, str name=*)
