"""blocklife as the host tier of SGLang: a linker that SGLang's own tree of prefixes stores to and loads from.

`_linker` has the class that SGLang makes, once on each rank; it translates calls. `_host` decides what is legal, and in which
order stores are acknowledged; `_memory` has the ledger and the slots of one memory of the device. `_transport` carries plans
out with a copier, `_below` opens a store below host memory, `_device` describes SGLang's memories as blocks, `_config` reads
the options. `_starting` refuses what SGLang's arguments say, before the weights are loaded where `_plugin` is heard. `_host`,
`_memory` and `_config` import neither sglang nor torch.

Importing this package imports neither. SGLang finds the linker by `linker_module_path`, the name of this package, and `linker`,
the name of the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklife.engines.sglang.linker._linker import BlocklifeLinker as BlocklifeLinker

__all__ = ["BlocklifeLinker"]


def __getattr__(name: str) -> object:
    """Import the linker on first use. Unsupported releases of SGLang are refused before an import from them can fail."""
    if name != "BlocklifeLinker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sglang

    from blocklife.engines.sglang import _versions as versions

    versions.check_linked(sglang.__version__)
    from blocklife.engines.sglang.linker._linker import BlocklifeLinker

    return BlocklifeLinker
