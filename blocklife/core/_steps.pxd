# Types of the steps of a scheduler, where they are compiled.
cimport cython

from blocklife.core._columns cimport Blocks, Contents, Core, Requests, Slots, TransferJobs, longer, zeros
from blocklife.core._couplings cimport check_room_for_jobs, name_block, release_ids
from blocklife.core._drafts cimport check_job, draft_job, make_jobs, tear_up_all
from blocklife.core._moves cimport ask, note, write
from blocklife.core._progress cimport GroupTokens, EntrySpans, TokenProgress
from blocklife.core._verbs cimport allocate, check_seal, release_lives
from blocklife.core._verbs cimport place as place_all

cdef int COPIED, EPOCH_SHIFT, FINAL, FINISHED, LOAD, OPEN, READABLE, SOURCE, STORE, UNSEALED
cdef long long ID_MASK


@cython.final
cdef class StepGrowth:
    cdef public list rows, groups, taken, fresh

    cpdef note(self, int row, int group, taken, fresh)
    @cython.locals(group=int)
    cpdef extend(self, TokenProgress progress, int row, tables)


@cython.final
cdef class StoreTurn:
    cdef public int count, size, stored, in_flight
    cdef public unsigned char[::1] group
    cdef public long long[::1] life
    cdef public int[::1] row, content
    cdef public list twins

    @cython.locals(at=int, size=int)
    cpdef add(self, int group, long long life, int row, int content)
    @cython.locals(at=int)
    cpdef list owners(self, dict names)
    @cython.locals(at=int)
    cpdef list lives(self)
    @cython.locals(at=int)
    cpdef int keep(self, Core core, int count) except -1


cpdef int clear(Core core, StoreTurn turn) except -1
cpdef int home_of(Core core, TokenProgress progress, int row) except -1
cpdef bint is_here(Core core, TokenProgress progress, int row) except -1
cpdef int held_at(Core core, TokenProgress progress, int group, int row, long long start, long long stop) except -1
@cython.locals(group=int, each=int, start=cython.longlong, stop=cython.longlong, count=cython.longlong)
cpdef int grow(Core core, TokenProgress progress, EntrySpans spans) except -1
@cython.locals(row=int)
cpdef int place(Core core, TokenProgress progress, StepGrowth grown) except -1
@cython.locals(own=GroupTokens, first=int, length=int)
cpdef int begin_tables(Core core, TokenProgress progress, int row, long long tokens) except -1
@cython.locals(
    group=int, row=int, start=int, stop=int, count=int, total=int, chunks=int, at=int, there=int, held=int, block=int,
    slot=int, home=int, life=cython.longlong,
)
cpdef int plan_load(Core core, TokenProgress progress, spans, keys, slots, int size) except -1
@cython.locals(at=int, begin=int, inside=int, stored=int, lives=list, found=list)
cpdef tuple unstored(
    Core core, TokenProgress progress, int group, int row, int start, int stop, int size, keys, bint every
)
@cython.locals(
    each=int, group=int, start=cython.longlong, stop=cython.longlong, last=int, begin=int, at=int, life=cython.longlong,
    lives=list, names=list,
)
cpdef list seals_of(Core core, TokenProgress progress, EntrySpans spans, list keys)
@cython.locals(
    each=int, start=cython.longlong, stop=cython.longlong, total=cython.longlong, count=int, begin=int, at=int,
    life=cython.longlong, place=int, twice=bint,
)
cpdef int leave_spans(Core core, TokenProgress progress, EntrySpans spans) except -1
@cython.locals(
    each=int, group=int, row=int, start=cython.longlong, total=cython.longlong, count=int, end=int, most=int, at=int,
    life=cython.longlong, place=int, joins=bint,
)
cpdef list promise(Core core, TokenProgress progress, EntrySpans spans, list keys, StoreTurn turn)
@cython.locals(begin=int, at=int, life=cython.longlong, slot=int)
cpdef list slots_behind(Core core, TokenProgress progress, int group, int row, int start, int stop, int size)
cpdef bint is_stored(Core core, int content) except -1
@cython.locals(each=int, end=cython.longlong, whole=bint, kept=int, stored=int, in_flight=int, ready=int)
cpdef bint offer_spans(Core core, TokenProgress progress, EntrySpans spans, list keys, StoreTurn turn, bint early) except -1
@cython.locals(life=cython.longlong, count=int)
cpdef int collect_ready(
    Core core, TokenProgress progress, int group, int row, int start, keys, StoreTurn turn, int ready
) except -1
@cython.locals(place=int, content=int)
cpdef bint collect_turn(Core core, int group, int row, long long life, bytes key, StoreTurn turn, int ready) except -1
@cython.locals(held=int)
cpdef bint offer_life(Core core, int group, int row, long long life, bytes key, StoreTurn turn, bint early) except -1
@cython.locals(
    at=int, group=int, life=cython.longlong, row=int, content=int, kept=int, last=int, mixed=cython.bint, unused=list
)
cpdef int leave_out(Core core, TokenProgress progress, StoreTurn turn) except -1
@cython.locals(
    groups=cython.uchar[::1], lives=cython.longlong[::1], rows=cython.int[::1], contents=cython.int[::1], group=int, at=int,
    to=int, kept=int,
)
cpdef int group_by_group(Core core, StoreTurn turn) except -1
@cython.locals(at=int)
cpdef list names_of(Core core, StoreTurn turn)
@cython.locals(start=int, stop=int, total=int, each=int, at=int, place=int, life=cython.longlong)
cpdef list plan_turn(Core core, TokenProgress progress, StoreTurn turn, slots, int most)
@cython.locals(found=list, at=int, home=int)
cpdef list owners_of(Core core, TokenProgress progress, StoreTurn turn, int start, int stop)
