# Types of the columns of requests, where they are compiled.
cimport cython


cdef class ProgressTable:
    cdef public object running, serial, prompt, known, computed, in_flight, wanted, step, placed, first, sealed, offered
    cdef public object room_at, window_at, fill_at, final_at, most_stored, most_loaded, _block_tokens
    cdef public tuple _sizes, _chunk_sizes, _behind, _parts
    cdef public bint _slides
    cdef public list _fills, _drafters, _plain
    cdef public long long _serial, _max_stored, _max_loaded
    cdef bint _prompt_only
    cdef unsigned char[::1] _running
    cdef long long[::1] _prompt, _known, _computed, _in_flight, _wanted, _most_stored
    cdef long long[:, ::1] _placed, _first, _sealed, _offered, _room_at, _window_at, _fill_at, _final_at

    cpdef ends(self, rows)
    @cython.locals(part=cython.longlong)
    cpdef long long first_needed(self, Py_ssize_t group, Py_ssize_t row)
    @cython.locals(part=cython.longlong)
    cpdef long long _leaves_at(self, Py_ssize_t group, long long block)
    @cython.locals(found=list, group=Py_ssize_t, row=Py_ssize_t, start=cython.longlong, stop=cython.longlong)
    cpdef list leaving(self, rows)
    @cython.locals(group=Py_ssize_t, row=Py_ssize_t, stop=cython.longlong)
    cpdef left(self, list spans)
    @cython.locals(
        found=list, group=Py_ssize_t, row=Py_ssize_t, tokens=cython.longlong, end=cython.longlong, start=cython.longlong,
        stop=cython.longlong,
    )
    cpdef list lacking(self, rows)
    @cython.locals(group=Py_ssize_t, row=Py_ssize_t, stop=cython.longlong)
    cpdef extended(self, list spans)
    @cython.locals(stop=cython.longlong)
    cpdef grown(self, Py_ssize_t group, Py_ssize_t row, long long count)
    cpdef long long bound(self, Py_ssize_t row, long long tokens)
    cpdef filled(self, rows)
    @cython.locals(
        found=list, group=Py_ssize_t, row=Py_ssize_t, bound=cython.longlong, start=cython.longlong, stop=cython.longlong,
        size=cython.longlong,
    )
    cpdef list filling(self, rows, filled=*)
    @cython.locals(group=Py_ssize_t, row=Py_ssize_t, stop=cython.longlong)
    cpdef offered_up_to(self, list spans)
    @cython.locals(at=cython.longlong)
    cpdef _set_fill_alarm(self, Py_ssize_t group, Py_ssize_t row)
    @cython.locals(
        found=list, group=Py_ssize_t, row=Py_ssize_t, end=cython.longlong, start=cython.longlong, stop=cython.longlong,
        size=cython.longlong,
    )
    cpdef list finishing(self, rows, computed)
    @cython.locals(group=Py_ssize_t, row=Py_ssize_t, stop=cython.longlong)
    cpdef sealed_up_to(self, list spans)
    @cython.locals(
        found=list, group=Py_ssize_t, row=Py_ssize_t, start=cython.longlong, stop=cython.longlong, end=cython.longlong,
        most=cython.longlong, size=cython.longlong, ready=cython.bint,
    )
    cpdef list promised(self, list spans, list ends, bint direct)
    cpdef _set_final_alarm(self, Py_ssize_t group, Py_ssize_t row)
    cpdef long long full_units(self, Py_ssize_t group, Py_ssize_t row, long long tokens, long long size)
    @cython.locals(tokens=cython.longlong)
    cpdef long long _full_at(self, Py_ssize_t group, Py_ssize_t row, long long count, long long size)
