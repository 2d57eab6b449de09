# What must be there once, where it is compiled: classes with typed attributes can be made of it.


cdef class NotCopied:
    pass
