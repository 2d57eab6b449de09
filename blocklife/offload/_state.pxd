# Types of what a scheduler knows, where it is compiled.
from blocklife.ledger._edge cimport NotCopied


cdef class Tracked:
    cdef public Py_ssize_t row
    cdef public object keys, hit, asked, awaits, tails
    cdef public long long failures, tail
    cdef public list fetched


cdef class SchedulerState(NotCopied):
    cdef public object ledger, rows, tier, geometry, policies, stores, groups, attention, has_states, added, num_added
    cdef public object stays, progress, progress_bytes, loads_heard, below, search, now, given_up, asleep, generation, counts
    cdef public dict requests, names, plans, handed, states, waiting_loads, loading, bringing, within, pinned, preempted
    cdef public set outlived, lost
    cdef public list device_hits, host_hits
