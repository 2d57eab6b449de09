# Types of the columns, where they are compiled.
cimport cython

from blocklife.core._rules cimport PlaceMove, Rules

cdef int EMPTY, EPOCH_SHIFT, FINISHED, FREED, INITIAL_JOB
cdef long long ID_MASK
cdef double NEVER

cpdef zeros(str code, Py_ssize_t size)
cpdef longer(str code, column, Py_ssize_t size, fill=*)
cpdef long long life_of(long long epoch, long long place) noexcept
cpdef int log_of(long long count) noexcept
cpdef list listed(int[::1] following, int end, int most)


cdef class Marked:
    cdef public unsigned char[::1] seen
    cdef public int stamp

    cdef int mark(self) except -1


@cython.final
cdef class Blocks(Marked):
    cdef public int size, free
    cdef public bint indexed
    cdef public unsigned char[::1] state, pins, writes, overdue, group
    cdef public unsigned short[::1] refs
    cdef public int[::1] epoch, job, key, touched, following, before
    cdef public long long[::1] taken
    cdef public dict columns

    cpdef line_up(self, list order)
    cdef void push_back(self, int place) noexcept
    cdef void push_front(self, int place) noexcept
    cdef void unlink(self, int place) noexcept
    cdef long long life(self, int place) noexcept
    cdef bint is_current(self, long long life) noexcept


@cython.final
cdef class Slots(Marked):
    cdef public int size, free, held
    cdef public unsigned char[::1] state, group
    cdef public unsigned short[::1] pins
    cdef public int[::1] in_state, key, following, before, newer, older
    cdef public long long[::1] taken
    cdef public dict columns

    cpdef line_up(self, list order)
    cdef void push_front(self, int place) noexcept
    cdef void unlink(self, int place) noexcept


@cython.final
cdef class Contents(Marked):
    cdef public list known, key, spare
    cdef public int size, top
    cdef public int[::1] uses, block, slot
    cdef public unsigned char[::1] group

    @cython.locals(own=dict)
    cpdef int find(self, int group, bytes key) except -1
    @cython.locals(own=dict, found=int, new=int)
    cpdef int intern(self, int group, bytes key) except -1
    cpdef grow(self)
    cpdef int let_go(self, int content) except -1
    cpdef int tidy(self, int content) except -1
    @cython.locals(own=dict)
    cpdef int release(self, int content) except -1


@cython.final
cdef class SpanPool:
    cdef public long long top
    cdef public list spare

    cdef int claim(self, int count) except -1
    cdef int give(self, int begin, int count) except -1


@cython.final
cdef class TransferJobs:
    cdef public int max_jobs, words, live, first_spare, num_spare, size, owners_size, near
    cdef public long long last_number
    cdef public unsigned char[::1] state, direction, failed, group
    cdef public long long[::1] number, taken
    cdef public double[::1] deadline
    cdef public unsigned long long[::1] reported, expected, everybody
    cdef public int[::1] begin, num_blocks, slot_begin, num_slots, owner_begin, num_owners, following, before, spare
    cdef public int[::1] place, epoch, slot, key, owner
    cdef public dict by_number, planned, space, missing
    cdef public SpanPool spans, owner_spans

    cpdef int claim_entries(self, int count) except -1
    cpdef int claim_owners(self, int count) except -1
    cpdef int give_up_spans(self, int row) except -1
    cpdef int find(self, long long number) except -1


@cython.final
cdef class Requests(Marked):
    cdef public int num_groups, rows, live, size
    cdef public unsigned char[::1] state
    cdef public long long[::1] load, lives, taken, came
    cdef public long long num_came
    cdef public int[::1] serving, named, place, begin, length, room
    cdef public list names, spare
    cdef public object spare_places
    cdef public dict by_name
    cdef public SpanPool spans

    cpdef come(self, int row)
    cpdef int find(self, str name) except -2
    cpdef int intern(self, str name) except -1
    cpdef int tidy(self, int row) except -1
    cpdef grow(self)
    cpdef int reserve(self, int table, int more) except -1
    cpdef int clear(self, int table) except -1


@cython.final
cdef class StepRing:
    cdef public long long size, at, here, steps
    cdef public unsigned short[::1] what
    cdef public long long[::1] place, job, plan, sequence
    cdef public dict names
    cdef public unsigned char[::1] heard
    cdef public bint hears


@cython.final
cdef class Core:
    cdef public Rules rules
    cdef public int num_groups, num_workers, max_requests, room
    cdef public bint fence, rechecks
    cdef public int watched
    cdef public int num_asked
    cdef public PlaceMove block_move, slot_move
    cdef public double deadline_after
    cdef public Blocks blocks
    cdef public Slots slots
    cdef public Contents contents
    cdef public TransferJobs jobs
    cdef public Requests requests
    cdef public StepRing journal
    cdef public long long plan, verdicts, late, duplicate, unknown, stale
    cdef public dict waiting, to_flush, flushes
    cdef public list deadlines, orphans, told, changes, judged
    cdef public long long[::1] ended, moved
    cdef public int[::1] ids, slot_ids, entering
    cdef public unsigned char[::1] rows, own, slot_rows, unwanted

    cpdef empty(self)
    cpdef make_room(self, int count)
