# Types of what an event asks and does, where it is compiled.


cdef class Rule:
    cdef public object event, _facts
    cdef public str name
    cdef public int looks
    cdef public tuple tables


cdef class CountedEvent:
    cdef public Rule rule
    cdef public int refs, pins, writes, overdue, seen_refs, at, changes
    cdef public bint counted
