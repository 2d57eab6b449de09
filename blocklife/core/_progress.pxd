# Types of the columns of progress, where they are compiled.
cimport cython

from blocklife.core._columns cimport longer, zeros

cdef long long ENDLESS


@cython.final
cdef class EntrySpans:
    cdef public int count, size
    cdef public unsigned char[::1] group
    cdef public int[::1] row
    cdef public long long[::1] start, stop, end

    @cython.locals(at=int, size=int)
    cpdef add(self, int group, int row, long long start, long long stop)
    @cython.locals(at=int)
    cpdef list tuples(self)


cpdef EntrySpans spans_of(ranges)


@cython.final
cdef class GroupTokens:
    cdef public long long tokens, chunk, behind, part
    cdef public bint fills, drafter


@cython.final
cdef class PlanTokens:
    cdef public list rows, tokens, serials, due
    cdef public long long clock


@cython.final
cdef class TokenProgress:
    cdef public int size, num_groups
    cdef public list groups, active, spoken, turns, due
    cdef EntrySpans _leaving, _lacking, _filling, _finishing
    cdef public dict wheel
    cdef public tuple columns
    cdef public unsigned char[::1] running, silent
    cdef public int[::1] home
    cdef public long long[::1] came
    cdef public long long[::1] serial, prompt, known, computed, in_flight, wanted, step, most_stored, most_loaded, ends
    cdef public long long[::1] since, due_at, steady, turned
    cdef public long long[::1] placed, first, sealed, offered, room_at, window_at, fill_at, final_at
    cdef public long long making, planned, settled, due_for, silent_step, silent_before
    cdef public long long last_serial, cap_stored, cap_loaded
    cdef public bint prompt_only, slides, falls_silent, all_due
    cdef public long long most_states

    cpdef long long computed_of(self, int row) noexcept
    cpdef long long known_of(self, int row) noexcept
    cpdef long long in_flight_of(self, int row) noexcept
    cpdef long long wanted_of(self, int row) noexcept
    cpdef long long begin_of(self, int row) noexcept
    cpdef long long end_of(self, int row) noexcept
    cpdef bint is_scheduled(self, int row) noexcept
    @cython.locals(row=int, end=cython.longlong, known=cython.longlong)
    cpdef find_ends(self, list rows, bint filled)
    cpdef long long bound(self, int row, long long tokens) noexcept
    cpdef look(self, int row)
    cpdef enter(self, int row, long long prompt)
    cpdef cap(self, int row, long long stored, long long loaded)
    cpdef clear(self, int row)
    cpdef leave(self, int row)
    cpdef begin(self, int row, int group, long long placed, long long first, long long offered, long long sealed)
    cpdef run(self, int row, long long computed)
    cpdef stop(self, int row)
    cpdef again(self, int row, long long known, long long prompt, long long computed)
    @cython.locals(turn=PlanTokens, at=int)
    cpdef speak_up(self, int row)
    @cython.locals(row=int)
    cpdef speak_up_all(self)
    cpdef bint may_fall_silent(self, int row)
    cpdef fall_silent(self, int row)
    @cython.locals(group=int, at=int, least=cython.longlong, ahead=cython.longlong, clock=cython.longlong, spoke=list)
    cpdef arm(self, int row)
    @cython.locals(row=int, last=int, ascend=bint, due=list)
    cpdef list due_now(self)
    @cython.locals(row=int)
    cpdef list propose(self)
    @cython.locals(row=int)
    cpdef schedule(self, rows)
    @cython.locals(row=int)
    cpdef withdraw(self, rows)
    cpdef call_off(self, int row)
    @cython.locals(row=int)
    cpdef list looked_at(self)
    @cython.locals(row=int, count=cython.longlong, other=PlanTokens)
    cpdef depart(self, doubtful)
    cpdef long long after(self, int row) noexcept
    @cython.locals(
        rows=list, known_then=list, computed_then=list, due=list, waiting=int, at=int, row=int, known=cython.longlong,
        end=cython.longlong, news=cython.longlong, most=cython.longlong,
    )
    cpdef tuple reach(self, PlanTokens turn, counts)
    cpdef reach_silent(self, int row, list rows, list known, list computed)
    @cython.locals(turn=PlanTokens, spoke=list, row=int, at=int, said=int)
    cpdef settle(self, list rows, list known, list computed)
    @cython.locals(row=int, at=int)
    cpdef restored(self, turns, scheduled)
    @cython.locals(at=int, own=GroupTokens)
    cpdef int missing(self, rows, int group, ends) except -2
    @cython.locals(own=GroupTokens)
    cpdef Py_ssize_t first_needed(self, int group, int row) except -1
    @cython.locals(own=GroupTokens)
    cpdef Py_ssize_t leaves_at(self, int group, long long block) except -1
    @cython.locals(found=EntrySpans, group=int, row=int, at=int, start=cython.longlong, stop=cython.longlong)
    cpdef EntrySpans leaving(self, list rows)
    @cython.locals(each=int, group=int, at=int, stop=cython.longlong)
    cpdef left(self, EntrySpans spans)
    @cython.locals(
        found=EntrySpans, group=int, row=int, at=int, tokens=cython.longlong, end=cython.longlong, start=cython.longlong,
        stop=cython.longlong, own=GroupTokens,
    )
    cpdef EntrySpans lacking(self, list rows)
    @cython.locals(own=GroupTokens)
    cpdef Py_ssize_t blocks_of(self, int group, long long start, long long stop) except -1
    @cython.locals(each=int, group=int, at=int, own=GroupTokens)
    cpdef extended(self, EntrySpans spans)
    @cython.locals(at=int, own=GroupTokens)
    cpdef grown(self, int group, int row, long long count)
    @cython.locals(
        found=EntrySpans, group=int, row=int, at=int, tokens=cython.longlong, size=cython.longlong, most=cython.longlong,
        start=cython.longlong, stop=cython.longlong, own=GroupTokens,
    )
    cpdef EntrySpans filling(self, list rows)
    @cython.locals(each=int)
    cpdef offered_up_to(self, EntrySpans spans)
    cpdef offer_up_to(self, int group, int row, long long chunk)
    cpdef offer_nothing(self, int row)
    cpdef close(self, int row)
    cpdef offer_from(self, int group, int row, long long chunk)
    @cython.locals(at=int, own=GroupTokens)
    cpdef set_fill_alarm(self, int group, int row)
    @cython.locals(found=EntrySpans, group=int, each=int, row=int, tokens=cython.longlong)
    cpdef EntrySpans finishing(self, list rows, list computed)
    @cython.locals(found=EntrySpans, group=int, row=int)
    cpdef EntrySpans fills(self, list rows)
    @cython.locals(start=cython.longlong, stop=cython.longlong, own=GroupTokens)
    cpdef finish(self, EntrySpans found, int group, int row, long long tokens)
    @cython.locals(each=int, group=int, row=int)
    cpdef sealed_up_to(self, EntrySpans spans)
    @cython.locals(at=int, own=GroupTokens)
    cpdef set_final_alarm(self, int group, int row)
    @cython.locals(group=int, row=int, at=int, end=cython.longlong, own=GroupTokens)
    cpdef bint promised(self, EntrySpans spans, int each, bint direct) except -1
    @cython.locals(own=GroupTokens)
    cpdef Py_ssize_t full_units(self, int group, int row, long long tokens, long long size) except? -2
    @cython.locals(own=GroupTokens, tokens=cython.longlong)
    cpdef Py_ssize_t full_at(self, int group, int row, long long count, long long size) except -1
