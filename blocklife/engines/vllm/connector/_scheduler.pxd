# Types of the scheduler side, where it is compiled.
from blocklife.engines.vllm.connector._known cimport KnownRequests as Known
from blocklife.engines.vllm.connector._lookups cimport HostLookups as Lookups
from blocklife.engines.vllm.connector._step cimport ScheduledStep as Step
from blocklife.offload._engine_pool cimport EnginePool as Pool


cdef class ConnectorScheduler:
    cdef dict __dict__
    cdef object __weakref__
    cdef public Pool pool
    cdef public Known known
    cdef public Lookups lookups
    cdef public Step _step
    cdef public object ledger, tier, offload, shape, config, requests, below, beside, _clock, _doubts, _peek_free, _evict
    cdef public list _early
    cdef public bint _begun, _built, _may_sleep
    cdef public long long _num_sleeps
    cdef public bytes _introduction

    cpdef _begin(self)
