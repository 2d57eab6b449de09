"""Which ranks of tensor parallelism hold the same heads of a model, by its name and numbers alone. Imports nothing of vLLM.

Theory. Of heads there are fewer than ranks, where neighbouring ranks have the same one: rank ``r`` has head
``r // (ranks / heads)``. How many heads a layer has the configuration of a model need not say: some have other numbers in their
windows. So this counts for the models below only, whose code was read: all their layers have the same number of KV heads.
"""

from __future__ import annotations

from collections.abc import Iterable

ONE_NUMBER_OF_HEADS = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Glm4MoeForCausalLM"}
    | {"Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}
)
"""Models, by architecture, whose layers all have the same number of KV heads."""


def ranks_with_heads_alike(ranks: int, heads: int, architectures: Iterable[str]) -> int:
    """How many neighbouring ranks hold the same heads of a layer; 1: each has its own, or it is not known."""
    if ONE_NUMBER_OF_HEADS.isdisjoint(architectures):
        return 1
    return ranks // heads if heads and ranks % heads == 0 else 1
