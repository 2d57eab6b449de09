# Types of jobs, where they are compiled.
cimport cython


cdef class JobRow:
    cdef public Py_ssize_t row
    cdef public long long number
    cdef public object direction, owner, lives, ids, slots, places, keys, names, reported, deadline, missing, _named
    cdef public bytes groups, slot_groups, space
    cdef public int num_groups
    cdef public bint failed, expired
    cdef public tuple sharers

    cpdef name_of(self, life)


cdef class JobTable:
    cdef public object column, _spare
    cdef public dict rows, by_number, out, planned, owned
    cdef public long long last_number
    cdef public Py_ssize_t max_jobs
    cdef int _initial
    cdef bytearray _state

    @cython.locals(job=JobRow, row=Py_ssize_t, number=cython.longlong)
    cpdef list add(self, direction, columns, ids, int num_groups)
    cpdef own(self, JobRow job)
    cpdef end(self, JobRow job)
    cpdef state(self, JobRow job)
