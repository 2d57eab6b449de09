# Written by `make spec`, from the table in __init__.py.

__version__: str
from blocklife.errors import (BlocklifeError as BlocklifeError, CapacityError as CapacityError, DefinitionError as
    DefinitionError, InterruptedCallError as InterruptedCallError, InvariantError as InvariantError, LateError as
    LateError, MisuseError as MisuseError, RefusedError as RefusedError)
from blocklife.lifecycle import (Lifecycle as Lifecycle, Pool as Pool, edge as edge, guard as guard)
from blocklife.states import (Block as Block, Job as Job, Request as Request, Slot as Slot)
from blocklife.ledger import (Batch as Batch, Checking as Checking, Completion as Completion, Contract as Contract,
    Direction as Direction, GroupTransfer as GroupTransfer, JobId as JobId, Launched as Launched, Ledger as Ledger,
    Limits as Limits, Placement as Placement, Plan as Plan, Result as Result, Seal as Seal, Store as Store, Transfer as
    Transfer, Worker as Worker, block_of as block_of)
from blocklife.offload import (Geometry as Geometry, Hit as Hit, HostTier as HostTier, LastStep as LastStep, Mode as
    Mode, OffloadScheduler as OffloadScheduler, Placed as Placed, Policies as Policies, Settled as Settled)

__all__: list[str]
