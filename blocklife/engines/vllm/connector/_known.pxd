# Types of the requests that are known, where it is compiled.
from blocklife.offload._engine_pool cimport EnginePool as Pool


cdef class KnownRequests:
    cdef dict __dict__
    cdef object __weakref__
    cdef public Pool pool
    cdef public object shape, config, offload, ledger, beside, requests, describer
    cdef public dict admissions
    cdef public bint looking
    cdef public long long _most_looked_up, _serial
