# Types of the scheduler side, where it is compiled.
cimport cython

from blocklife.offload._engine_pool cimport EnginePool as Pool


cdef class ConnectorScheduler:
    cdef dict __dict__
    cdef object __weakref__
    cdef public Pool pool
    cdef public object shape, requests, offload, ledger, tier

    @cython.locals(at=cython.Py_ssize_t)
    cpdef _extend(self, output, going_on)
    @cython.locals(group=cython.Py_ssize_t)
    cpdef _grow(self, str name, tables)
    cpdef dict _uneven(self, scheduled, coming)
