"""Typed state machines for the life of every KV-cache block.

The names that most programs need can be imported from here: ``from blocklife import Ledger, Limits, OffloadScheduler``. They
are loaded on first use, so `import blocklife` itself imports nothing else. Copiers (`blocklife.copiers`), drawings
(`blocklife.drawing`) and engine integrations (`blocklife.engines`) are imported from their own packages.
"""

import sys

from blocklife._doors import door

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "": "__version__",
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
