# Written by `make spec`, from the table in __init__.py.

from blocklife.copiers._cpu import (CpuCopier as CpuCopier, CpuStatistics as CpuStatistics)
from blocklife.copiers._distributed import (ForwardError as ForwardError, JointReport as JointReport, Link as Link,
    LinkError as LinkError, Loss as Loss, RankStatistics as RankStatistics, Ranks as Ranks, connect as connect, serve as
    serve)
from blocklife.copiers._executor import (Executor as Executor, Report as Report)
from blocklife.copiers._faults import (FaultRates as FaultRates, FaultStatistics as FaultStatistics, FaultyCopier as
    FaultyCopier)
from blocklife.copiers._movers import (MoverTable as MoverTable, read_movers as read_movers)
from blocklife.copiers._protocol import (Copier as Copier, TierCopier as TierCopier)
from blocklife.copiers._sharing import (Sharing as Sharing)

__all__: list[str]
