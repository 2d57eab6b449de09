# Types of the rules, where they are compiled.


cdef class PlaceMove:
    cdef public object machine, event
    cdef public bint of_slots
    cdef public int code, looks, refs, seen_refs, pins, writes, overdue, situation
    cdef public unsigned char[::1] table, ours


cdef class Rules:
    cdef public unsigned char[::1] block_target, block_meaning, slot_target, slot_meaning
    cdef public unsigned char[::1] job_target, job_rows, request_target, request_rows
    cdef public unsigned short[::1] block_trait, slot_trait, job_trait, request_trait
    cdef public unsigned char[::1] effects, life_ends, handed_out, gives_up, resets
    cdef public list moves, land, filled, hand_out
    cdef public PlaceMove acquire, release, seal, drop, evict, pin, unpin, forget
