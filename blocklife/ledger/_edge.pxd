# Types of the edge, where it is compiled.
cimport cython

cdef long long _LIFE


cdef class NotCopied:
    pass


cpdef bint _are_whole(list values) except -1
@cython.locals(value=cython.longlong)
cpdef bint _are_near(list values) except -1
cpdef bint _are_keys(values) except -1

cpdef whole(value, str name, wanted=*, most=*)
cpdef text(value, str name)
cpdef flag(value, str name)
cpdef moment(value, str name, wanted=*)
cpdef member(value, kind, str name)
cpdef list several(values, str name, str of)
cpdef list numbers(values, str name)
cpdef list counts(values, str name)
cpdef keys(values, str name)
cpdef job_id(value, str name)
cpdef completion(record, str name)
cpdef launch(record, str name)
cpdef list completions(values, str name)
cpdef list launches(values, str name)
