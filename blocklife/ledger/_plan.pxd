# Types of the records of a plan, where they are compiled.
cimport cython

cimport blocklife.core._plans as plans
from blocklife.core._columns cimport Core, TransferJobs


@cython.locals(core=Core)
cpdef plan_of(data, list rows)
@cython.locals(core=Core, row=int)
cpdef transfers(data, direction, list rows)
@cython.locals(jobs=TransferJobs, at=int)
cpdef tier_transfer(data, direction, int row)
