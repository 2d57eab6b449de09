# Types of the scheduler side, where it is compiled.
cimport cython

from blocklife.offload._engine_pool cimport EnginePool as Pool


cdef class ConnectorScheduler:
    cdef dict __dict__
    cdef object __weakref__
    cdef public Pool pool
    cdef public object ledger, tier, offload, shape, config, requests, below, beside, counts, describer, _clock, _doubts, _peek_free, _evict
    cdef public dict _admissions, _last_windows
    cdef public list _copied, _early
    cdef public bint _has_states, _begun, _built, _may_sleep, _looking
    cdef public long long _most_looked_up, _loads, _num_sleeps, _serial
    cdef public bytes _introduction

    @cython.locals(at=cython.Py_ssize_t)
    cpdef _extend(self, output, going_on)
    @cython.locals(group=cython.Py_ssize_t)
    cpdef _grow(self, str name, tables)
    @cython.locals(found=dict)
    cpdef dict _uneven(self, dict scheduled, list coming)
    cpdef _let_in(self, list coming, scheduled)
    cpdef _record_placed(self, list placed, scheduled)
    cpdef _begin(self)
