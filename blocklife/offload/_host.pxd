# Types of the host tier, where it is compiled.
cimport blocklife.ledger._edge as edge
from blocklife.ledger.views cimport SlotsView

cdef int _HIT, _MISS, _PENDING


cpdef int code_at(SlotsView slots, Py_ssize_t slot) except -1
