"""What the connector takes, by model family: the table of specs/models.md.

``python -m tests.vllm.run --python 0.33.0 -m tests.vllm.families --write`` writes it; a test fails when it is out of date.

Method: the KV-cache specs of a few layers of each family, as its code in vLLM 0.33.0 declares them, are grouped by vLLM's own
planner; then the connector is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from vllm.config import KVTransferConfig, VllmConfig, set_current_vllm_config
from vllm.v1.core.kv_cache_planning import get_kv_cache_groups
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from blocklife.engines.vllm.connector._cache import shape_of
from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.engines.vllm.connector._shapes import CacheShape
from blocklife.errors import MisuseError
from blocklife.offload import FullAttention
from tests.proof.drivers.vllm import making

PAGE = Path(__file__).resolve().parents[2] / "specs" / "models.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
Layers = Mapping[str, KVCacheSpec]


@frozen(kw_only=True)
class Family:
    """Models whose layers have the same kinds of KV cache."""

    name: str
    layers: Layers
    block_tokens: int = 16
    drafters: Sequence[str] = ()
    """Layers of a drafter."""
    bytes_seen: str = ""
    """The walks in which its groups were compared byte by byte, by the beginning of their names."""
    models_seen: Sequence[str] = ()
    """The tiny models with which it has run in vLLM on a CPU."""
    unseen: str = ""
    """What keeps it from running on a CPU, where that has been tried."""
    why: str = ""
    """What of vLLM forbids it, if it is refused."""


HALF, BYTES, WHOLE = torch.bfloat16, torch.uint8, torch.float32
_keys: Callable[..., Any] = partial(dict, num_kv_heads=8, head_size=128, dtype=HALF)


def _layers(count: int, kind: str, spec: KVCacheSpec, start: int = 0, step: int = 1) -> dict[str, KVCacheSpec]:
    return {f"layers.{start + step * at}.{kind}": spec for at in range(count)}


def _latents(tokens: int = 64, size: int = 576, states: int = 1, **more: Any) -> MLAAttentionSpec:
    return MLAAttentionSpec(block_size=tokens, num_kv_heads=1, head_size=size, dtype=HALF, tokens_per_state=states, **more)


def _recent(tokens: int, window: int, size: int, dtype: torch.dtype = HALF, **more: Any) -> SlidingWindowMLASpec:
    return SlidingWindowMLASpec(
        block_size=tokens, num_kv_heads=1, head_size=size, dtype=dtype, sliding_window=window, alignment=512, **more
    )


def _state(tokens: int, size: int, **more: Any) -> MambaSpec:
    return MambaSpec(block_size=tokens, shapes=((size,),), dtypes=(WHOLE,), mamba_cache_mode="align", **more)


def _ring(tokens: int, heads: int, size: int, dtype: torch.dtype = HALF) -> CircularBufferSpec:
    return CircularBufferSpec(block_size=tokens, num_kv_heads=heads, head_size=size, head_size_v=0, dtype=dtype)


FULL = FullAttentionSpec(block_size=16, **_keys())
V4: dict[str, Any] = {"model_version": "deepseek_v4", "max_tp_shards": 1}
_COMPRESSED = {
    **_layers(2, "latents", _latents(256, 512, 4, alignment=512, **V4), 2, 2),
    **_layers(2, "latents", _latents(256, 512, 128, alignment=512, **V4), 3, 2),
    **_layers(2, "indexer", _latents(256, 128, 4, alignment=512, max_tp_shards=1), 2, 2),
}
FAMILIES: Sequence[Family] = (
    Family(
        name="full attention: Llama, Qwen3, MiniMax-M2",
        layers=_layers(4, "attn", FULL),
        bytes_seen="plain",
        models_seen=("full",),
    ),
    Family(
        name="full attention with scales in its pages: fp8 or int8 per token and head",
        layers=_layers(
            4, "attn", FullAttentionSpec(block_size=16, **_keys(dtype=BYTES), kv_quant_mode=KVQuantMode.FP8_PER_TOKEN_HEAD)
        ),
        bytes_seen="plain",
        unseen="`CPUAttentionBackend.supported_kv_cache_dtypes` lacks them",
    ),
    Family(
        name="latents (MLA): DeepSeek V3, Kimi K2",
        layers=_layers(4, "latents", _latents()),
        bytes_seen="latents",
        models_seen=("mla",),
    ),
    Family(
        name="latents with an indexer: DeepSeek V3.2, GLM-5",
        layers={**_layers(4, "latents", _latents()), **_layers(4, "indexer", _latents(64, 132))},
        block_tokens=64,
        bytes_seen="latents",
        unseen="`CpuPlatform.get_attn_backend_cls` refuses sparse attention",
    ),
    Family(
        name="windows alone: Mistral 7B v0.1",
        layers=_layers(4, "attn", SlidingWindowSpec(block_size=16, sliding_window=4096, **_keys())),
        bytes_seen="plain",
        models_seen=("windows",),
    ),
    Family(
        name="windows and full attention: Gemma 3, gpt-oss",
        layers={
            **_layers(4, "window", SlidingWindowSpec(block_size=16, sliding_window=1024, **_keys())),
            **_layers(2, "attn", FULL, 4),
        },
        bytes_seen="plain",
        models_seen=("both",),
    ),
    Family(
        name="chunked local and full attention: Llama 4",
        layers={
            **_layers(3, "local", ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=8192, **_keys())),
            **_layers(3, "attn", FULL, 3),
        },
        bytes_seen="within-steps",
    ),
    Family(
        name="states and full attention: Granite 4, Nemotron-H, Qwen3-Next, Qwen3.5",
        layers={**_layers(3, "state", _state(16, 16384)), **_layers(3, "attn", FULL, 3)},
        bytes_seen="plain",
        models_seen=("states", "gdn"),
    ),
    Family(
        name="states and latents: Kimi Linear",
        layers={**_layers(3, "state", _state(64, 18432)), **_layers(3, "latents", _latents(), 3)},
        block_tokens=64,
        bytes_seen="latents",
        models_seen=("kda",),
    ),
    Family(
        name="a drafter with full attention: EAGLE, MTP",
        layers={**_layers(4, "attn", FULL), **_layers(1, "drafter", FULL)},
        drafters=("layers.0.drafter",),
        bytes_seen="drafter",
        models_seen=("eagle",),
    ),
    Family(
        name="compressed latents, windows of latents: DeepSeek V4",
        layers={
            **_COMPRESSED,
            **_layers(6, "window", _recent(64, 128, 512, **V4)),
            **_layers(2, "compressor", _recent(4, 8, 2048, WHOLE, max_tp_shards=1), 2, 2),
            **_layers(2, "compressor", _recent(8, 128, 1024, WHOLE, max_tp_shards=1), 3, 2),
        },
        block_tokens=256,
        bytes_seen="latents",
    ),
    Family(
        name="the same with rings, and windows that are computed again: DeepSeek V4.1",
        layers={
            **_COMPRESSED,
            **_layers(6, "window", _recent(64, 128, 512, bounded_replay=True, **V4)),
            **_layers(4, "compressor", _ring(8, 1, 2048, WHOLE), 2),
        },
        block_tokens=256,
        bytes_seen="replays",
    ),
    Family(
        name="latents with a pooled indexer and its ring: GLM-5.3-Flash",
        layers={
            **_layers(4, "latents", _latents()),
            **_layers(4, "indexer", _latents(64, 132, 4)),
            **_layers(4, "tail", _ring(8, 2, 128)),
        },
        block_tokens=64,
        bytes_seen="rings",
    ),
    Family(
        name="states, sparse attention and the ring of its indexer: Qwen4-exp",
        layers={
            **_layers(3, "state", _state(64, 65536)),
            **_layers(1, "attn", FullAttentionSpec(block_size=64, **_keys()), 3),
            **_layers(1, "indexer", _latents(64, 128, 4), 3),
            **_layers(1, "tail", _ring(8, 1, 128), 3),
        },
        block_tokens=64,
        bytes_seen="rings",
    ),
    Family(
        name="windows, compressed attention and its ring: Step 5",
        layers={
            **_layers(3, "window", SlidingWindowSpec(block_size=64, sliding_window=512, **_keys())),
            **_layers(1, "attn", FullAttentionSpec(block_size=64, **_keys()), 3),
            **_layers(1, "indexer", _latents(64, 256, 4), 3),
            **_layers(1, "tail", _ring(8, 1, 512), 3),
        },
        block_tokens=64,
        bytes_seen="rings",
    ),
    Family(
        name="states beside a drafter's window with smaller blocks",
        layers={
            **_layers(3, "state", _state(64, 65536)),
            **_layers(3, "attn", FullAttentionSpec(block_size=64, **_keys()), 3),
            **_layers(1, "drafter", SlidingWindowSpec(block_size=32, sliding_window=512, **_keys(num_kv_heads=16))),
        },
        block_tokens=32,
        drafters=("layers.0.drafter",),
        why="vllm#54076: `Scheduler._mamba_block_aligned_split` cuts prompts at the smallest block",
    ),
    Family(
        name="static sinks: openPangu",
        layers=_layers(4, "attn", SinkFullAttentionSpec(block_size=16, sink_len=128, **_keys())),
        why="0.33.0 does not start them: `SinkFullAttentionManager` lacks an argument that all managers get",
    ),
    Family(
        name="reference sliding windows (R-SWA)",
        layers=_layers(4, "attn", RSWASpec(block_size=16, rswa_window=256, **_keys())),
        why="`RSWAManager` names answers like prompts, though their tokens see less, and frees blocks inside tables",
    ),
    Family(
        name="encoder and decoder: Whisper",
        layers={**_layers(2, "attn", FULL), **_layers(2, "cross", CrossAttentionSpec(block_size=16, **_keys()))},
        why="`CrossAttentionManager` keeps nothing that is found again, and says so in no property",
    ),
    Family(
        name="states in every block (mamba_cache_mode=all)",
        layers={
            **_layers(3, "state", MambaSpec(16, ((16384,),), (WHOLE,), mamba_cache_mode="all")),
            **_layers(3, "attn", FULL, 3),
        },
        why="`MambaManager` of 0.33 asserts *align* where prefixes are cached",
    ),
)


def config_of(family: Family) -> VllmConfig:
    """vLLM's configuration of an engine with such a model."""
    config = making.config_of(
        making.Shape(
            groups=(FullAttention(family.block_tokens),),
            num_blocks=64,
            max_num_seqs=8,
            max_num_batched_tokens=512,
            asynchronous=False,
            num_workers=1,
            transfer=KVTransferConfig(
                kv_connector="BlocklifeConnector",
                kv_role="kv_both",
                kv_connector_module_path="blocklife.engines.vllm",
                kv_connector_extra_config={"host_blocks": 64},
                engine_id="families",
            ),
        )
    )
    config.cache_config.kv_cache_layout = "BLNHC"  # as vLLM chooses where pages differ in size
    return config


def groups_of(family: Family, config: VllmConfig) -> list[KVCacheGroupSpec]:
    """Its groups, made by vLLM."""
    with set_current_vllm_config(config):
        groups: list[KVCacheGroupSpec] = get_kv_cache_groups(config, dict(family.layers))
    for group in groups:
        group.is_eagle_group = bool({*family.drafters} & {*group.layer_names})
    return groups


def taken(family: Family) -> CacheShape | MisuseError:
    """As what the connector takes such a model, or the error with which it refuses it."""
    config = config_of(family)
    cache = KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=groups_of(family, config))
    try:
        return shape_of(config, generate_scheduler_kv_cache_config([cache]), ConnectorConfig.read({"host_blocks": 64}))
    except MisuseError as refused:
        return refused


def table() -> str:
    """The table, as the page has it."""
    lines = [
        "| models | taken | as | bytes compared | tiny model on a CPU | on a GPU |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for family in FAMILIES:
        found = taken(family)
        if isinstance(found, MisuseError):
            lines.append(f"| {family.name} | no | {family.why} | | | |")
            continue
        more = f"; left out: {len(found.groups.others)}" if found.groups.others else ""
        model = ", ".join(f"`{each}`" for each in family.models_seen) or f"no{family.unseen and ': '}{family.unseen}"
        lines.append(f"| {family.name} | yes | `{found.geometry}`{more} | walks *{family.bytes_seen}* | {model} | no |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Print the table; with ``--write``, into the page."""
    if arguments != ["--write"]:
        print(table())
        return 0
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
