# Types of the journal and of what surrounds each call, where they are compiled.
cimport cython

from blocklife.core._columns cimport Core


@cython.final
cdef class Journal:
    cdef public Core core
    cdef public object hooks, refusals, errors, stage, recheck, untold, _incarnation, _words
    cdef public tuple watchers, listeners
    cdef public str request, _interrupted
    cdef public long long calls
    cdef public bint guarded
    cdef public dict caller

    cpdef claim(self, str name)
    cpdef let_go(self)
    cpdef writes(self)
    cpdef end_verb(self)


cpdef bint is_within(Journal journal, str name, bint writes, bint opens) except -1
cpdef long long begin(Journal journal) except -1
cpdef enter(Journal journal, stage, tuple args, dict kwargs)
cpdef recheck(Journal journal)
cpdef close(Journal journal)
cpdef end(Journal journal)
cpdef leave(Journal journal, str name)
