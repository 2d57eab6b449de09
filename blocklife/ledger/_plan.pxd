# Types of the records of a plan, where they are compiled.
cimport cython

cimport blocklife.core._plans as plans
from blocklife.core._columns cimport Core, TransferJobs


cpdef plan_of(data, Core core, list rows)
@cython.locals(jobs=TransferJobs, row=int)
cpdef transfers(data, Core core, direction, list rows)
@cython.locals(jobs=TransferJobs, at=int)
cpdef tier_transfer(data, direction, int row)
