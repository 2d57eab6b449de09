"""blocklife for vLLM: an offloading connector, and a watch over vLLM's own offloading.

Importing this package imports neither vllm nor torch. vLLM finds the connector by `kv_connector_module_path`, the name of this
package, and `kv_connector`, the name of the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklife.engines.vllm.connector._connector import BlocklifeConnector as BlocklifeConnector

__all__ = ["BlocklifeConnector"]


def __getattr__(name: str) -> object:
    """Import the connector on first use. Unsupported releases of vLLM are refused before an import from them can fail."""
    if name != "BlocklifeConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    from blocklife.engines.vllm import _versions as versions

    versions.check(vllm.__version__)
    from blocklife.engines.vllm.connector._connector import BlocklifeConnector

    return BlocklifeConnector
