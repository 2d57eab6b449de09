"""blocklife in vLLM: a connector that offloads with it, and a watch over the one that vLLM has.

Importing this package imports neither vllm nor torch. vLLM finds the connector by `kv_connector_module_path`, which names this
package, and `kv_connector`, which names the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklife.engines.vllm.connector._connector import BlocklifeConnector as BlocklifeConnector

__all__ = ["BlocklifeConnector"]


def __getattr__(name: str) -> object:
    """The connector, once somebody asks for it. Another release of vLLM is refused before a name can be missing in it."""
    if name != "BlocklifeConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    from blocklife.engines.vllm import _versions as versions

    versions.check(vllm.__version__)
    from blocklife.engines.vllm.connector._connector import BlocklifeConnector

    return BlocklifeConnector
