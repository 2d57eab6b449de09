# Types of a scan, where it is compiled.
cimport cython

cdef int _HIT, _MISS, _PENDING, _RETRY


cdef class Answers:
    cpdef int ask(self, int group, long long unit, long long blocks) except -1


cdef class ToldAnswers(Answers):
    cdef object _function


cdef class _Run:
    cdef readonly long long length
    cdef readonly bint pending, retry


cdef class _Runs:
    cdef public dict by_group

    @cython.locals(run=_Run)
    cpdef bint agrees(self, int group, long long length) except -1
    cpdef bint all_agree(self, list groups, long long length) except -1


cdef class _Scan:
    cdef public tuple units
    cdef public long long start, alignment
    cdef public Answers answers
    cdef public bint hopeful

    @cython.locals(tokens=cython.longlong, size=cython.longlong)
    cpdef long long blocks_behind(self, unit) except -1
    @cython.locals(
        answers=Answers, doubtful=cython.longlong, tokens=cython.longlong, size=cython.longlong, blocks=cython.longlong,
        index=cython.longlong, answer=int,
    )
    cpdef tuple prefix(self, int group, long long length)
    @cython.locals(answer=int, tokens=cython.longlong)
    cpdef tuple proven(self, int group, long long length, long long doubtful)
    @cython.locals(
        start=cython.longlong, tokens=cython.longlong, size=cython.longlong, window=cython.longlong, tail=cython.longlong,
        first=cython.longlong, end=cython.longlong, pending=bint, retry=bint, index=cython.longlong, blocks=cython.longlong,
        answer=int, least=cython.longlong,
    )
    cpdef _Run suffix(self, int group, long long length)
