"""What can be refused before the weights are loaded: all that SGLang's own arguments say.

SGLang makes a linker when the model is there, which can take minutes. As a plug-in (`_plugin`) the same is asked first.

Rules of this file:

* It asks nothing of the model; what that decides is refused in `_device`.
"""

from __future__ import annotations

from collections.abc import Mapping

import sglang

from blocklife.copiers.torch._memory import machine_bytes
from blocklife.engines.sglang import _versions as versions
from blocklife.engines.sglang.linker._config import LinkerConfig
from blocklife.errors import CapacityError, MisuseError

MODULE = __name__.rpartition(".")[0]
"""What an operator names as `linker_module_path`."""


def options_of(arguments: object) -> Mapping[str, object] | None:
    """The options that SGLang is started with for a linker of ours; None if it has none."""
    config = getattr(arguments, "unified_cache_external_linker_config", None)
    if not getattr(arguments, "enable_unified_cache_external_linker", False) or not isinstance(config, Mapping):
        return None
    if config.get("linker_module_path") != MODULE:
        return None
    options = config.get("linker_extra_config") or {}
    return options if isinstance(options, Mapping) else {}


def check(arguments: object, options: Mapping[str, object]) -> LinkerConfig:
    """Read the options. Refuses: a mistake in them, a release, a layout of ranks, and more memory than the machine has."""
    versions.check_linked(sglang.__version__)
    if getattr(arguments, "pp_size", 1) != 1:
        raise MisuseError(
            "blocklife linker: pipeline parallelism is not offered: SGLang compares what linkers have found, stored and loaded "
            "within a stage (UnifiedCacheLinkerWrapper, _all_reduce_attn_groups), and stages would go on with different "
            "answers (use --pp-size 1)"
        )
    config = LinkerConfig.read(options)
    ranks, has = ranks_here(arguments), machine_bytes()
    if config.host_bytes is not None and has is not None and config.host_bytes * ranks > has:
        raise CapacityError(
            f"blocklife linker: host_bytes={config.host_bytes:,} for each of {ranks} ranks of this machine, which has {has:,} "
            "(give less)"
        )
    return config


def ranks_here(arguments: object) -> int:
    """How many ranks this machine has; each has a linker. Ranks of several engines of one server count, too."""
    counts = [getattr(arguments, name, 1) for name in ("tp_size", "dp_size", "nnodes")]
    tensor, data, nodes = (count if isinstance(count, int) else 1 for count in counts)
    if getattr(arguments, "enable_dp_attention", False):
        data = 1  # its ranks are those of tensor parallelism
    return max(1, tensor * data // nodes)
