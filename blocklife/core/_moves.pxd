# Types of the steps, where they are compiled.
from blocklife.core._columns cimport Blocks, Contents, Core, Requests, Slots, StepRing, TransferJobs
from blocklife.core._rules cimport PlaceMove, Rules

cdef int ENDS, ENTERS, JOB_MACHINE, KEPT, LEAVES, PUBLISHES, READABLE, REQUEST_MACHINE, WITHDRAWS
cdef long long LAST_EPOCH

cpdef int ask(Core core, PlaceMove move, int count, bint owned) except -1
cpdef int refuse_count(PlaceMove move, int place, int seen, int bit) except -1
cpdef int write(Core core, PlaceMove move, int count) except -1
cpdef int end_life(Core core, int place, int left) except -1
cpdef int free_up(Core core, int count) except -1
cpdef int move_blocks(Core core, PlaceMove move, int count, long long job) except -1
cpdef int ask_slots(Core core, PlaceMove move, int count, bint doubles) except -1
cpdef int write_slots(Core core, PlaceMove move, int count) except -1
cpdef int leave_use(Core core, int place) except -1
cpdef int use(Core core, int place) except -1
cpdef int move_slots(Core core, PlaceMove move, int count, long long job) except -1
cpdef int ask_job(Core core, int row, int event, int facts) except -1
cpdef bint can_job(Core core, int row, int event) except -1
cpdef int write_job(Core core, int row, int event, int taken) except -1
cpdef int fire_job(Core core, int row, int event, int facts) except -1
cpdef int ask_request(Core core, int row, int event) except -1
cpdef int fire_request(Core core, int row, int event, long long job) except -1
cpdef int note(Core core, PlaceMove move, int count, long long job) except -1
cpdef int hear(Core core, PlaceMove move, int count, long long job) except -1
cpdef int note_one(Core core, int code, int row, int place, long long job, str name) except -1
