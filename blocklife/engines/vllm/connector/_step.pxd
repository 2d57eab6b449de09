# Types of a scheduled step, where it is compiled.
cimport cython

from blocklife.engines.vllm.connector._known cimport KnownRequests as Known
from blocklife.offload._engine_pool cimport EnginePool as Pool


cdef class ScheduledStep:
    cdef dict __dict__
    cdef object __weakref__
    cdef public Known _known
    cdef public Pool _pool
    cdef public object _doubts, _shape, _offload, _requests, _ledger, _beside, _groups
    cdef public bint has_states
    cdef public list _copied, _unnamed

    @cython.locals(at=cython.Py_ssize_t)
    cpdef _extend(self, output, going_on)
    @cython.locals(group=cython.Py_ssize_t)
    cpdef _grow(self, str name, tables)
    @cython.locals(found=dict)
    cpdef dict _uneven(self, dict scheduled, list coming)
    cpdef _let_in(self, list coming, scheduled)
    cpdef _record_placed(self, list placed, scheduled)
