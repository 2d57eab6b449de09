"""The KV-cache groups of a model: which are offered, as what, and which are left out of keys, hits and copies.

Rules of this file:

* Kinds of groups are compared by exact type: in a subclass, a block may hold something else.
* What vLLM itself does not find again by its content is left out; the rest is offered whole, or refused.

Theory. A group that is left out is memory of its request alone: a ring of the last keys that are not compressed yet, as
GLM-5.3-Flash, Qwen4-exp, Step 5 and DeepSeek V4.1 have, or a window that vLLM computes again behind each hit (bounded replay of
DeepSeek V4.1). Its blocks come from the same pool, so the ledger hears that they are handed out: a copy that still reads one is
waited for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attrs import evolve
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.engines.vllm.connector._shapes import OfferedGroups
from blocklife.errors import MisuseError
from blocklife.groups import Group
from blocklife.offload import FullAttention, FullHit, Geometry, LocalAttention, Mamba, Mode, SlidingWindow

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


_FULL = (FullAttentionSpec, MLAAttentionSpec, HiddenStateCacheSpec)
_WINDOWS = (SlidingWindowSpec, SlidingWindowMLASpec)


def refusal(what: str, remedy: str) -> MisuseError:
    """The error that refuses a setting."""
    return MisuseError(f"blocklife connector: {what} ({remedy})")


def offered_groups(kv_cache_config: KVCacheConfig) -> tuple[OfferedGroups, KVCacheConfig]:
    """Which groups are offered, and the same configuration with these alone. Refuses a model in which none is."""
    groups = kv_cache_config.kv_cache_groups
    kept = tuple(number for number, group in enumerate(groups) if _is_found_again(group))
    if groups and not kept:
        raise refusal("no group of the model has blocks that can be cached by their content", "leave the connector out")
    others = tuple(number for number in range(len(groups)) if number not in kept)
    return OfferedGroups(kept, others), replace(kv_cache_config, kv_cache_groups=[groups[number] for number in kept])


def left_out(kv_cache_config: KVCacheConfig) -> str:
    """What is left out, as a text for the log; empty if nothing is."""
    groups = kv_cache_config.kv_cache_groups
    names = [
        f"{number} ({type(groups[number].kv_cache_spec).__name__}, {len(groups[number].layer_names)} layers)"
        for number in offered_groups(kv_cache_config)[0].others
    ]
    return f"left out, because vLLM finds its blocks not again by their content: group {', '.join(names)}" if names else ""


def _is_found_again(group: KVCacheGroupSpec) -> bool:
    return bool(not group.host_resident and group.enable_kv_transfer and group.kv_cache_spec.prefix_cacheable)


def check_ends(kv_cache_config: KVCacheConfig, geometry: Geometry, config: ConnectorConfig, context_ranks: int) -> None:
    """Refuse hits that could end inside a block of a window, a state, or a group that is left out: it lacks what is before."""
    others = offered_groups(kv_cache_config)[0].others
    is_plain = not others and all(isinstance(each, FullAttention) for each in geometry.groups)
    if config.policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN and not is_plain:
        raise refusal("full_hit=recompute_last_token needs full attention in every group", "use drop_last_block")
    for number in others:
        tokens = resolve_dcp_kv_block_size(kv_cache_config.kv_cache_groups[number].kv_cache_spec, context_ranks)
        if geometry.block_alignment % tokens:
            raise refusal(
                f"group {number} has blocks of {tokens} tokens that are not found again, and hits end at multiples of "
                f"{geometry.block_alignment}, inside one of them",
                "use larger blocks (--block-size)",
            )


def replay_tokens(kv_cache_config: KVCacheConfig) -> int:
    """How many tokens before the end of a hit vLLM computes again, for groups that are left out; 0 for none (before 0.33)."""
    return max(
        [int(getattr(each.kv_cache_spec, "prefix_replay_tokens", 0)) for each in kv_cache_config.kv_cache_groups], default=0
    )


def geometry_of(kv_cache_config: KVCacheConfig, config: ConnectorConfig, context_ranks: int = 1) -> Geometry:
    """The groups that are offered. Refuses kinds of groups that the offload scheduler does not know, by vLLM's numbers.

    With decode context parallelism each of *context_ranks* has its share of the tokens of a block, which covers as many more.
    """
    of = offered_groups(kv_cache_config)[0]
    groups = [_group(number, kv_cache_config.kv_cache_groups[number], context_ranks) for number in of.numbers]
    return Geometry(groups, config.blocks_per_chunk)


def _group(number: int, group: KVCacheGroupSpec, context_ranks: int) -> Group:
    kinds = {_kind(number, spec, context_ranks) for spec in iter_layer_specs(group.kv_cache_spec)}
    if len(kinds) != 1:
        raise refusal(f"group {number} has layers of {len(kinds)} kinds, which is not offered", "use another connector")
    kind = kinds.pop()
    if not group.is_eagle_group:
        return kind
    if isinstance(kind, Mamba | LocalAttention):
        what = "states" if isinstance(kind, Mamba) else "local attention"
        raise refusal(f"group {number} holds {what} of a drafter, which is not offered", "switch speculative decoding off")
    return evolve(kind, drafter=True)


def _kind(number: int, spec: KVCacheSpec, context_ranks: int) -> Group:
    """The kind of attention of a KV-cache spec."""
    what = f"group {number} ({type(spec).__name__})"
    tokens = resolve_dcp_kv_block_size(spec, context_ranks)
    if type(spec) is MambaSpec:
        if spec.mamba_cache_mode != "align":
            raise refusal(
                f"{what} has mamba_cache_mode={spec.mamba_cache_mode!r}",
                "use mamba_cache_mode='align', which prefix caching brings",
            )
        return Mamba(tokens)
    if isinstance(spec, SlidingWindowSpec) and type(spec) in _WINDOWS:
        return SlidingWindow(tokens, spec.sliding_window + spec.extra_retained_tokens)
    if type(spec) is ChunkedLocalAttentionSpec:
        return LocalAttention(tokens, spec.attention_chunk_size)
    if type(spec) in _FULL:
        return FullAttention(tokens)
    raise refusal(
        f"{what} is no kind of group that is offered",
        "full attention, MLA, sliding windows, chunked local attention and Mamba are",
    )


def check_states(geometry: Geometry, offered: OfferedGroups, block_tokens: int) -> None:
    """Refuse states that vLLM would take for those of another token."""
    for number, group in zip(offered.numbers, geometry.groups, strict=True):
        if isinstance(group, Mamba) and group.block_tokens != block_tokens:
            raise refusal(
                f"group {number} has states of {group.block_tokens} tokens, and vLLM cuts prompts at blocks of {block_tokens}: "
                "it would take a state that lies before the end of its block for the one at the end",
                "use one block size",
            )


def with_tails(geometry: Geometry, hash_tokens: int, config: ConnectorConfig) -> Geometry:
    """The same groups, with prefixes that end inside a block where vLLM's hashes are of fewer tokens than a block.

    That needs a Mamba group, blocks of one size, and no windows; chunks of one block; and stores that are not lazy. Elsewhere
    such prefixes are hits on the device only.
    """
    sizes, kinds = set(geometry.block_tokens), {type(group) for group in geometry.groups}
    fine = Mamba in kinds and kinds <= {Mamba, FullAttention} and len(sizes) == 1 and hash_tokens < min(sizes)
    if not fine or geometry.blocks_per_chunk > 1 or config.policies.mode is Mode.LAZY:
        return geometry
    return evolve(geometry, tail_tokens=hash_tokens)


def reports_blocks(kv_cache_config: KVCacheConfig) -> bool:
    """Whether failed loads are reported by block: with one group of full attention. With a window, vLLM would continue from
    blocks that it has freed: there it must compute from the start. A stage may have no layer of the group."""
    if len(kv_cache_config.kv_cache_groups) != 1:
        return False
    specs = iter_layer_specs(kv_cache_config.kv_cache_groups[0].kv_cache_spec)
    return all(type(spec) in _FULL for spec in specs)
