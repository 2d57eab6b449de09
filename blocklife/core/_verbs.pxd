# Types of the verbs, where they are compiled.
cimport cython

from blocklife.core._columns cimport Blocks, Contents, Core, Requests, Slots, StepRing, TransferJobs
from blocklife.core._couplings cimport end_orphans, give_up, hand_out, name_block, release_ids
from blocklife.core._moves cimport ask, ask_slots, fire_request, move_blocks, move_slots, note, write
from blocklife.core._rules cimport PlaceMove, Rules

cdef int FINISHED, INITIAL_REQUEST, KEPT, LENT_FIRST, LENT_LATER, R_FINISH, UNSEALED
cdef long long ID_MASK

cpdef int choose(Core core, int count, rows) except -1
cpdef bint has_room(Core core, int count) except -1
cpdef int lend(Core core, int found, int count) except -1
cpdef int lend_of(Core core, int row, int found, int count, int mark, int trait) except -1
@cython.locals(total=cython.longlong, count=cython.longlong)
cpdef int allocate(Core core, rows, counts, groups, skips) except -1
cpdef int append(Core core, int table, int start, int count, int group) except -1
cpdef int append_nulls(Core core, int table, int count) except -1
@cython.locals(life=cython.longlong, place=cython.longlong)
cpdef int hand_out_first(Core core, lives) except -1
cpdef int add_request(Core core, str name) except -1
cpdef int make_way(Core core, int row) except -1
cpdef int release_request(Core core, int row) except -1
cpdef int finish(Core core, int row) except -1
@cython.locals(row=int, table=int, lives=list, more=list, life=cython.longlong, last=cython.longlong, count=int)
cpdef int finish_many(Core core, rows) except -1
@cython.locals(row=int, table=int, last=int, back=int, life=cython.longlong)
cpdef list lives_of(Core core, rows)
@cython.locals(life=cython.longlong, place=cython.longlong)
cpdef int choose_lives(Core core, lives) except -1
cpdef int check_group(Core core, int count, int group) except -1
cpdef int check_tenancy(Core core, int row, int group, int mark) except -1
@cython.locals(life=cython.longlong)
cpdef int acquire(Core core, int row, lives, int group) except -1
@cython.locals(total=cython.longlong, group=int)
cpdef int fill_tables(Core core, int row, begins, hits, skips, counts) except -1
@cython.locals(life=cython.longlong, at=cython.longlong)
cpdef int release(Core core, int row, int group, positions) except -1
@cython.locals(life=cython.longlong)
cpdef int release_lives(Core core, lives) except -1
cpdef long long reopen(Core core, int row, int group, int position, int place) except -1
@cython.locals(block=cython.longlong)
cpdef int place(Core core, rows, groups, taken, fresh) except -1
@cython.locals(block=cython.longlong)
cpdef int append_fresh(Core core, int row, int group, own) except -1
@cython.locals(place=int)
cpdef list lives_in(Core core, list places)
@cython.locals(block=cython.longlong)
cpdef int choose_fresh(Core core, fresh) except -1
cpdef int mark_block(Core core, long long block, int mark) except -1
@cython.locals(block=cython.longlong)
cpdef bint are_apart(Core core, list blocks) except -1
@cython.locals(block=cython.longlong)
cpdef int check_hits(Core core, rows, groups, taken) except -1
cpdef int hold_hits(Core core, held) except -1
cpdef int append_hits(Core core, int table, taken) except -1
@cython.locals(life=cython.longlong, place=cython.longlong)
cpdef int choose_seals(Core core, list lives, keys, int group, int start) except -1
cpdef int check_seal(Core core, int place, int mark, bytes key) except -1
cpdef int key_in(Core core, int row, int place) except -1
@cython.locals(lives=list)
cpdef int seal(Core core, seals) except -1
cpdef int drop(Core core, lives) except -1
cpdef int choose_slots(Core core, list chosen) except -1
cpdef int ask_chosen_slots(Core core, PlaceMove move, list chosen) except -1
cpdef int move_chosen_slots(Core core, PlaceMove move, list chosen) except -1
