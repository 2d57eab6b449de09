"""Loads within a step that each layer waits for by itself: where vLLM asks before a layer reads its blocks.

*Why so few.* vLLM asks (`wait_for_layer_load`) where a layer's attention begins, and only there. That is behind the update of
the cache, so no loaded block may get a new token in the same pass. A layer of any other class, as the index beside sparse
attention, reads its blocks without asking. A graph of the whole pass replays without asking. A drafter's layers run in a pass
of their own. Two halves of a batch on two threads would ask at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import ForwardContext

from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.errors import MisuseError
from blocklife.offload import FullHit


def load_parts(vllm_config: VllmConfig, config: ConnectorConfig) -> int:
    """In how many parts loads within a step go. Refuses what cannot have more than one."""
    if config.sync_load_parts == 1:
        return 1
    ours = (
        (not config.sync_load_budget_bytes, "without sync_load_budget_bytes has no effect", "give both"),
        (
            config.policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN,
            "with full_hit=recompute_last_token is not offered: the pass writes into a block that is still being loaded",
            "use drop_last_block",
        ),
        (config.host_checksums, "with host_checksums is not offered: a load is checked as a whole", "leave one of them out"),
    )
    theirs = (
        (vllm_config.speculative_config is not None, "with speculative decoding", "leave it out"),
        (vllm_config.parallel_config.use_ubatching, "with dual batch overlap", "leave it out"),
    )
    for found, what, remedy in (*ours, *((found, f"{what} is not offered", remedy) for found, what, remedy in theirs)):
        if found:
            raise _refuse(what, remedy)
    return config.sync_load_parts


def check_layers(names: Iterable[str], layers: Mapping[str, object]) -> None:
    """Refuse layers that would read their blocks without asking: a subclass may read them elsewhere, too."""
    from vllm.model_executor.layers.attention import Attention, MLAAttention  # heavy, and only needed here

    for name in names:
        if type(layers.get(name)) not in (Attention, MLAAttention):
            kind = type(layers[name]).__name__ if name in layers else "not known to vLLM"
            raise _refuse(f"is not offered: layer {name} ({kind}) does not wait before it reads its blocks", "leave it out")


def asks_before_layers(context: ForwardContext) -> bool:
    """Whether the forward pass that comes next asks before each of its layers reads."""
    metadata: object = context.attn_metadata  # None in a pass that reads nothing, whatever its type says
    whole = context.cudagraph_runtime_mode is CUDAGraphMode.FULL
    return metadata is not None and not whole and context.ubatch_slices is None


def _refuse(what: str, remedy: str) -> MisuseError:
    return MisuseError(f"blocklife connector: sync_load_parts {what} ({remedy})")
