"""Typed state machines for the life of every KV-cache block.

The names that most programs need can be imported from here: ``from blocklife import Ledger, Limits, OffloadScheduler``. They
are loaded on first use, so `import blocklife` itself imports nothing else. Copiers (`blocklife.copiers`), drawings
(`blocklife.drawing`) and engine integrations (`blocklife.engines`) are imported from their own packages.
"""

import sys
from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.errors import (
        BlocklifeError,
        CapacityError,
        DefinitionError,
        InterruptedCallError,
        InvariantError,
        LateError,
        MisuseError,
        RefusedError,
    )
    from blocklife.ledger import (
        Batch,
        Checking,
        Completion,
        Contract,
        Direction,
        GroupTransfer,
        JobId,
        Launched,
        Ledger,
        Limits,
        Placement,
        Plan,
        Result,
        Seal,
        Store,
        Transfer,
        Worker,
        block_of,
    )
    from blocklife.lifecycle import (
        Lifecycle,
        Pool,
        edge,
        guard,
    )
    from blocklife.offload import (
        Geometry,
        Hit,
        HostTier,
        LastStep,
        Mode,
        OffloadScheduler,
        Placed,
        Policies,
        Settled,
    )
    from blocklife.states import (
        Block,
        Job,
        Request,
        Slot,
    )

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Block",
    "BlocklifeError",
    "CapacityError",
    "Checking",
    "Completion",
    "Contract",
    "DefinitionError",
    "Direction",
    "Geometry",
    "GroupTransfer",
    "Hit",
    "HostTier",
    "InterruptedCallError",
    "InvariantError",
    "Job",
    "JobId",
    "LastStep",
    "LateError",
    "Launched",
    "Ledger",
    "Lifecycle",
    "Limits",
    "MisuseError",
    "Mode",
    "OffloadScheduler",
    "Placed",
    "Placement",
    "Plan",
    "Policies",
    "Pool",
    "RefusedError",
    "Request",
    "Result",
    "Seal",
    "Settled",
    "Slot",
    "Store",
    "Transfer",
    "Worker",
    "__version__",
    "block_of",
    "edge",
    "guard",
]


if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "errors": (
                "BlocklifeError CapacityError DefinitionError InterruptedCallError InvariantError LateError MisuseError "
                "RefusedError"
            ),
            "lifecycle": "Lifecycle Pool edge guard",
            "states": "Block Job Request Slot",
            "ledger": (
                "Batch Checking Completion Contract Direction GroupTransfer JobId Launched Ledger Limits Placement Plan Result "
                "Seal Store Transfer Worker block_of"
            ),
            "offload": "Geometry Hit HostTier LastStep Mode OffloadScheduler Placed Policies Settled",
        },
    )

_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
if _shell is not None:  # in a notebook, register the display hooks; elsewhere nothing is imported here
    from blocklife.drawing._notebook import enable

    enable(_shell)
