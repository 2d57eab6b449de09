"""How much of a model's KV cache fits into host memory, from its ``config.json`` alone. Imports nothing of vLLM.

Rules of this file:

* What the configuration does not say for certain is refused: a number that is wrong is worse than none. The log of an engine
  says at its start what it has.
* The arithmetic of slots is `ConnectorConfig.num_slots`; which ranks share is `_ranks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.engines.vllm.connector._ranks import ranks_with_heads_alike
from blocklife.errors import MisuseError
from blocklife.files import parse_json, read_text

NUMBER_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of a number of the KV cache, by vLLM's ``kv_cache_dtype``. Unless it is told otherwise it loads float32 as 16 bits."""
SPARSE_LAYOUTS = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})
"""Of those, the ones that only backends of sparse attention take: latent, scales and positions of a token are one record."""
LATENT_MODELS = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})
"""Models, by ``model_type``, whose layers keep one latent of ``kv_lora_rank + qk_rope_head_dim`` numbers for a token."""
_PLAIN = frozenset({"full_attention", "attention"})
_OTHER_LAYERS = (
    "attention_chunk_size", "attention_k_eq_v", "attn_config", "attn_layer_period", "attn_type_list", "block_configs",
    "compress_ratios", "cross_attention_layers", "full_attention_interval", "global_head_dim", "hidden_size_per_head",
    "hybrid_override_pattern", "index_topk", "is_encoder_decoder", "layer_group_size", "layers_block_type",
    "linear_attn_config", "linear_num_value_heads", "mamba_d_state", "mb_per_layer", "multi_query", "num_attention_groups",
    "num_kv_shared_layers", "ssm_cfg", "ssm_state_size", "state_size", "swa_head_dim",
)  # fmt: skip
"""Keys of models whose layers are not all alike, or keep something else: states, indices, other heads, a neighbour's cache."""


@frozen
class ModelCache:
    """What a model keeps of a token, in all its layers, without tensor parallelism."""

    name: str
    """Its architecture."""
    layers: int
    kv_heads: int
    """1 for latents."""
    attention_heads: int
    head_numbers: int
    """Numbers of one KV head: keys and values, or the latent."""
    is_latent: bool
    is_quantized: bool
    """Whether the checkpoint says how its KV cache is quantized, which vLLM follows unless it is told a ``kv_cache_dtype``."""

    @classmethod
    def read(cls, path: str) -> ModelCache:
        """Read a ``config.json``. Refuses what is no such file, and models whose layers are not all alike."""
        try:
            given = parse_json(read_text(path))
        except ValueError as problem:
            raise MisuseError(f"{path}: it is no JSON: {problem} (give the config.json of a model)") from None
        if not isinstance(given, dict):
            raise MisuseError(f"{path}: it is no object with names and values (give the config.json of a model)")
        text = given.get("text_config", given)
        if not isinstance(text, dict):
            raise MisuseError(f"{path}: text_config is no object with names and values (give the config.json of a model)")
        names = given.get("architectures") or text.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise MisuseError(f"{path}: it names no architectures (give the config.json of a model)")
        return _ConfigFile(path, text, given.get("quantization_config")).cache_of(names[0])


@frozen
class _ConfigFile:
    """The part of a configuration that is about layers of attention."""

    path: str
    text: Mapping[str, object]
    quantization: object

    def cache_of(self, name: str) -> ModelCache:
        """What such a model keeps."""
        self._check_alike()
        layers, heads = self._whole("num_hidden_layers", "n_layer"), self._whole("num_attention_heads", "n_head")
        if is_latent := self._has("kv_lora_rank"):
            kind = self.text.get("model_type")
            if kind not in LATENT_MODELS:
                known = ", ".join(sorted(LATENT_MODELS))
                raise self._refused(f"it has kv_lora_rank, and what vLLM keeps is known for {known} only, not for {kind!r}")
            kv_heads, numbers = 1, self._whole("kv_lora_rank") + self._whole("qk_rope_head_dim")
        else:
            keys = ("num_key_value_heads", "num_kv_heads")
            kv_heads = self._whole(*keys) if self._has(*keys) else heads
            size = self._whole("head_dim") if self._has("head_dim") else self._whole("hidden_size", "n_embd") // heads
            if self.text.get("v_head_dim", size) != size:
                raise self._refused("its values have another size than its keys (v_head_dim)")
            numbers = 2 * size
        if not numbers:
            raise self._refused(f"{heads} heads are more than its width")
        quantized = isinstance(self.quantization, dict) and any(
            self.quantization.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo")
        )
        return ModelCache(name, layers, kv_heads, heads, numbers, is_latent, quantized)

    def _check_alike(self) -> None:
        """Refuse layers of several kinds, and windows of which it is not said where they are."""
        for key in _OTHER_LAYERS:
            if value := self.text.get(key):
                raise self._refused(f"what its layers keep is not known here: it has {key}={str(value)[:40]}")
        kinds = self.text.get("layer_types")
        if isinstance(kinds, list) and set(map(str, kinds)) - _PLAIN:
            raise self._refused(f"it has layers of other kinds than full attention ({', '.join(sorted(set(map(str, kinds))))})")
        window = self.text.get("sliding_window")
        if window and not isinstance(kinds, list) and self.text.get("use_sliding_window") is not False:
            raise self._refused(f"it has windows (sliding_window={window}), and does not say in which layers")

    def _has(self, *keys: str) -> bool:
        return any(self.text.get(key) is not None for key in keys)

    def _whole(self, *keys: str) -> int:
        """The first of these keys that is there."""
        for key in keys:
            if (found := self.text.get(key)) is not None:
                if type(found) is not int or found < 1:
                    raise MisuseError(f"{self.path}: {key} must be a whole number of at least 1, not {found!r}")
                return found
        raise MisuseError(f"{self.path}: it has no {keys[0]} (give the config.json of a model)")

    def _refused(self, why: str) -> MisuseError:
        return MisuseError(f"{self.path}: {why} (start an engine: its log says how many chunks host_bytes holds)")


@frozen
class HostSize:
    """What a host tier holds of a model."""

    model: ModelCache
    ranks: int
    block_tokens: int
    number_bytes: int
    host_bytes: int
    alike: int
    """How many neighbouring ranks hold the same, and share one copy."""
    slots: int
    """Chunks in host memory: each rank has a place for its part of each."""
    blocks_per_chunk: int

    @classmethod
    def of(cls, model: ModelCache, config: ConnectorConfig, *, ranks: int, block_tokens: int, number_bytes: int) -> HostSize:
        """Compute it: of the memory that *config* gives, or of what its ``host_blocks`` take.

        Refuses: ranks among which heads cannot be divided; less memory than one chunk."""
        for heads, what in ((model.attention_heads, "attention heads"), (model.kv_heads, "KV heads")):
            if heads % ranks and (what == "attention heads" or ranks % heads):
                raise MisuseError(f"--tp {ranks}: {heads} {what} cannot be divided among so many ranks (give another number)")
        alike = ranks if model.is_latent else ranks_with_heads_alike(ranks, model.kv_heads, [model.name])
        block = _block_bytes(model, ranks, block_tokens, number_bytes)
        slots = config.num_slots(block, ranks // alike)
        given = config.host_bytes or slots * config.blocks_per_chunk * block * (ranks // alike)
        return cls(model, ranks, block_tokens, number_bytes, given, alike, slots, config.blocks_per_chunk)

    @property
    def heads_of_rank(self) -> int:
        """KV heads of one rank."""
        return max(1, self.model.kv_heads // self.ranks)

    @property
    def rank_block_bytes(self) -> int:
        """Bytes of one block, in all layers, on one rank."""
        return _block_bytes(self.model, self.ranks, self.block_tokens, self.number_bytes)

    @property
    def rank_token_bytes(self) -> int:
        """Bytes of one token, in all layers, on one rank."""
        return self.rank_block_bytes // self.block_tokens

    @property
    def token_bytes(self) -> int:
        """Bytes of host memory for one token, of all ranks together."""
        return self.rank_token_bytes * self.ranks // self.alike

    @property
    def tokens(self) -> int:
        """How many tokens the host tier holds."""
        return self.slots * self.blocks_per_chunk * self.block_tokens

    def as_json(self) -> Mapping[str, object]:
        """All of it, by name."""
        return {
            "model": self.model.name,
            "layers": self.model.layers,
            "kv_heads": self.model.kv_heads,
            "latent": self.model.is_latent,
            "tp": self.ranks,
            "block_size": self.block_tokens,
            "blocks_per_chunk": self.blocks_per_chunk,
            "number_bytes": self.number_bytes,
            "rank_token_bytes": self.rank_token_bytes,
            "rank_block_bytes": self.rank_block_bytes,
            "ranks_alike": self.alike,
            "host_bytes": self.host_bytes,
            "token_bytes": self.token_bytes,
            "slots": self.slots,
            "tokens": self.tokens,
        }

    def lines(self) -> Sequence[str]:
        """All of it, for people."""
        model = self.model
        heads = f"{model.kv_heads} KV heads of {model.head_numbers // 2}"
        if model.is_latent:
            heads = f"a latent of {model.head_numbers}"
        shares = "no: each rank has its own part"
        if self.alike > 1:
            shares = f"yes: each {self.alike} neighbouring ranks keep one copy, if they are on one machine"
        own = "the latent" if model.is_latent else f"{self.heads_of_rank} of the KV heads"
        return (
            f"model         {model.name}: {model.layers} layers, {heads}, {8 * self.number_bytes}-bit numbers",
            f"each rank     {own}: {sized(self.rank_token_bytes)} per token, {sized(self.rank_block_bytes)} per block of "
            f"{self.block_tokens} tokens (tp {self.ranks})",
            f"shared        {shares}",
            f"host memory   {sized(self.host_bytes)}: {self.slots:,} slots on each rank, {sized(self.token_bytes)} per token",
            f"holds         {self.tokens:,} tokens",
        )


def _block_bytes(model: ModelCache, ranks: int, block_tokens: int, number_bytes: int) -> int:
    return model.layers * max(1, model.kv_heads // ranks) * model.head_numbers * number_bytes * block_tokens


def sized(num_bytes: int) -> str:
    """A number of bytes in the largest unit in which it is whole, or has one digit behind the point."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes >> shift:
            return f"{num_bytes / (1 << shift):.1f}".removesuffix(".0") + f" {unit}"
    return f"{num_bytes} bytes"
