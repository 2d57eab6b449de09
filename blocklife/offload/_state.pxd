# Types of what a scheduler knows, where it is compiled.
cimport cython

from blocklife.core._progress cimport TokenProgress
from blocklife.ledger._edge cimport NotCopied
from blocklife.ledger._rows cimport RowVerbs
from blocklife.offload._stays cimport Stays
from blocklife.offload._stores cimport StoreLine


@cython.final
cdef class Tracked:
    cdef public Py_ssize_t row
    cdef public object keys, hit, asked, awaits, tails
    cdef public long long failures, tail
    cdef public list fetched


@cython.final
cdef class SchedulerState(NotCopied):
    cdef public object ledger, tier, geometry, policies, groups, attention, added, progress_bytes, below, search, generation, counts
    cdef public RowVerbs rows
    cdef public StoreLine stores
    cdef public Stays stays
    cdef public TokenProgress progress
    cdef public double now
    cdef public bint has_states, asleep
    cdef public long long num_added, loads_heard, given_up
    cdef public dict requests, names, plans, handed, states, waiting_loads, loading, bringing, within, pinned, preempted
    cdef public set outlived, lost
    cdef public list device_hits, host_hits

    cpdef unpin(self, name)
    cpdef Tracked tracked(self, name)
    cpdef check_waiting(self, name, str what)
    cpdef check_held(self, name)
    cpdef check_open(self, bint awake=*)
