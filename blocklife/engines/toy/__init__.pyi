# Written by `make spec`, from the table in __init__.py.

from blocklife.engines.toy._below import (BelowReport as BelowReport)
from blocklife.engines.toy._engine import (EngineCounts as EngineCounts, EngineOptions as EngineOptions, Ordering as
    Ordering, Station as Station, StepInFlight as StepInFlight, ToyEngine as ToyEngine)
from blocklife.engines.toy._forward import (ForwardPass as ForwardPass, check_and_write as check_and_write)
from blocklife.engines.toy._memory import (Bytes as Bytes, Ids as Ids, Memory as Memory, Words as Words, WorkerMemory as
    WorkerMemory)
from blocklife.engines.toy._options import (BelowOptions as BelowOptions, ReplayOptions as ReplayOptions)
from blocklife.engines.toy._replay import (Replay as Replay, ReplayReport as ReplayReport)
from blocklife.engines.toy._traffic import (TierTraffic as TierTraffic, Traffic as Traffic)
from blocklife.engines.toy._workload import (WorkloadError as WorkloadError, WorkloadRequest as WorkloadRequest,
    generate_workload as generate_workload, read_workload as read_workload, write_workload as write_workload)

__all__: list[str]
