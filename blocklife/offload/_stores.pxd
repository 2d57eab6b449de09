# Types of the line of chunks, where it is compiled.
cimport cython

from blocklife.ledger.views cimport BlocksView, JobsView, SlotsView


@cython.final
cdef class Chunk:
    cdef public str owner
    cdef public Py_ssize_t group, suffix
    cdef public bytes key
    cdef public list lives
    cdef public bint tail


@cython.final
cdef class StoreLine:
    cdef public object _ledger, _tier, _policies, counts
    cdef public Py_ssize_t _size, _max_chunks, _entered
    cdef public BlocksView _blocks
    cdef public SlotsView _slots
    cdef public JobsView _jobs
    cdef public tuple required
    cdef bint _lazy, _tails
    cdef public dict _line, _candidates, _exposed, _made
    cdef public bytearray suffix

    cpdef offer(self, chunks)
    @cython.locals(chunk=Chunk)
    cpdef _enter(self, chunks)
    cpdef bint is_stored(self, Py_ssize_t group, bytes key)
    @cython.locals(orders=list, chunks=list, lives=set)
    cpdef plan(self, owners=*)
    @cython.locals(chosen=list, kept=list, names=set, chunk=Chunk)
    cpdef list _ripe(self, str owner, set lives)
    cpdef list _together(self, list orders)
    cpdef _judge(self, Chunk chunk)
    @cython.locals(chunks=list)
    cpdef bint _make(self, list jobs)
    cpdef await_submit(self, long long number, chunks)
    cpdef list chunks_of(self, long long number)
    cpdef requeue(self)
    @cython.locals(chunk=Chunk, chunks=list, slot=Py_ssize_t, size=Py_ssize_t, suffix=bytearray)
    cpdef _columns(self, list orders, list slots)
