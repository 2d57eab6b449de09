# Types of lookups, where it is compiled.
from blocklife.engines.vllm.connector._known cimport KnownRequests as Known
from blocklife.offload._engine_pool cimport EnginePool as Pool


cdef class HostLookups:
    cdef dict __dict__
    cdef object __weakref__
    cdef public Known _known
    cdef public Pool _pool
    cdef public object counts, _doubts, _clock, _shape, _offload, _requests
    cdef public long long promised
