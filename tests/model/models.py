"""``python -m tests.model.models FOLDER NAME ...``: tiny models with random weights, made without a download.

Weights are drawn widely, so that what a model says depends on every block of its prompt. Were they drawn as for training,
tokens would be nearly the same whatever lies in the cache, and equal tokens would prove nothing; `test_controls` shows that
they do prove something.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import transformers
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

VOCABULARY = 512
"""Ids 0 to 2 are special; all others are words."""
SEED = 7
REPETITION = 50.0
"""How much larger embeddings are than other weights where words are repeated."""
_SIZES: Mapping[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
}
WINDOW = 64
"""Tokens that a sliding window sees."""


def full() -> transformers.PreTrainedModel:
    """Full attention in every layer."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES))


def windows() -> transformers.PreTrainedModel:
    """A sliding window in every layer."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(**_SIZES, sliding_window=WINDOW))


def both() -> transformers.PreTrainedModel:
    """Sliding windows and full attention, layer by layer."""
    layers = ["sliding_attention", "full_attention"] * 2
    sizes = {**_SIZES, "initializer_range": 0.1, "query_pre_attn_scalar": 32}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes, sliding_window=WINDOW, layer_types=layers))


def states() -> transformers.PreTrainedModel:
    """States of Mamba 2 and full attention, layer by layer."""
    sizes = {name: size for name, size in _SIZES.items() if name != "head_dim"}
    mamba = {
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 64,
    }
    experts = {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 256}
    layers = {"layer_types": ["mamba", "attention"] * 2, "position_embedding_type": "rope"}
    sizes |= {**mamba, **experts, **layers, "initializer_range": 0.2}
    return transformers.GraniteMoeHybridForCausalLM(transformers.GraniteMoeHybridConfig(**sizes))


def gdn() -> transformers.PreTrainedModel:
    """States of a gated delta net (Qwen3-Next) and full attention, layer by layer, of the sizes that the kernels take."""
    heads = {"linear_num_key_heads": 1, "linear_num_value_heads": 1, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
    layers = {"layer_types": ["linear_attention", "full_attention"] * 2, "head_dim": 256}
    model = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**{**_SIZES, **heads, **experts, **layers}))
    return _remembering(model)


def _remembering(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """A model whose states forget so slowly that they tell of a whole prompt."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith("A_log"):
                weights.fill_(math.log(0.01))
    return model


def repeats() -> transformers.PreTrainedModel:
    """Full attention, and embeddings so large that the last word is often said once more: guesses are right and wrong."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**_SIZES, "tie_word_embeddings": True}))
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(REPETITION)
    return model


def one_head() -> transformers.PreTrainedModel:
    """Full attention with one head of keys and values: two ranks hold the same."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**_SIZES, "num_key_value_heads": 1}))


def mla() -> transformers.PreTrainedModel:
    """Latents instead of heads (DeepSeek V3), of the one size for which vLLM has a kernel on a CPU: all ranks hold the same.

    Its positions are those of YaRN, as DeepSeek's are: the CPU kernel of plain ones turns queries wrongly whose heads are a
    dimension of their own.
    """
    sizes = {name: size for name, size in _SIZES.items() if name not in {"head_dim", "num_key_value_heads"}}
    latent = {"kv_lora_rank": 512, "q_lora_rank": 64, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32}
    dense = {"first_k_dense_replace": 4, "n_routed_experts": 4, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "rope_theta": 10000.0}
    yarn |= {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
    config = transformers.DeepseekV3Config(**sizes, **latent, **dense, rope_parameters=yarn)
    return transformers.DeepseekV3ForCausalLM(config)


def kda() -> transformers.PreTrainedModel:
    """States of Kimi's delta attention, with a gate for each channel, and latents, layer by layer (Kimi Linear)."""
    sizes = {name: size for name, size in _SIZES.items() if name not in {"head_dim", "num_key_value_heads"}}
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "num_key_value_heads": 4}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    layers = {"layer_types": ["linear_attention", "full_attention"] * 2, "mlp_layer_types": ["sparse"] * 4}
    # vLLM reads it from the fields of the published checkpoints
    heads = {"head_dim": 32, "num_heads": 4, "short_conv_kernel_size": 4, "kda_layers": [1, 3], "full_attn_layers": [2, 4]}
    config = transformers.KimiLinearConfig(**sizes, **latent, **experts, **layers, linear_attn_config=heads, mla_use_nope=True)
    return _remembering(transformers.KimiLinearForCausalLM(config))


def experts() -> transformers.PreTrainedModel:
    """Full attention, and in each layer four experts of which two compute a token."""
    sizes = {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))


class EagleLlamaForCausalLM(transformers.LlamaModel):  # type: ignore[misc]  # transformers comes without types
    """A drafter as vLLM reads it: it takes the embedding of a token and what the model had before it, side by side."""

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([torch.eye(size), config.initializer_range * torch.randn(size, size)], dim=1))
        self.embed_tokens = self.norm = self.layers[0].input_layernorm = torch.nn.Identity()  # it has none of its own


def eagle() -> transformers.PreTrainedModel:
    """A drafter for `repeats`: one layer of its own, with keys and values of its own."""
    return EagleLlamaForCausalLM(transformers.LlamaConfig(**{**_SIZES, "num_hidden_layers": 1, "initializer_range": 0.15}))


class MiMoForCausalLM(transformers.Qwen2ForCausalLM):  # type: ignore[misc]  # as above
    """A model with a drafter in its own checkpoint, as vLLM reads it: one layer more, behind a projection of its own."""

    def __init__(self, config: transformers.Qwen2Config) -> None:
        super().__init__(config)
        layer = Qwen2DecoderLayer(config, 0)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            layer.add_module(name, Qwen2RMSNorm(config.hidden_size))
        layer.input_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        layer.apply(self._init_weights)
        self.model.mtp_layers = torch.nn.ModuleList([layer])


def mtp() -> transformers.PreTrainedModel:
    """Full attention, and a layer that predicts the token after the next one."""
    sizes = {name: size for name, size in _SIZES.items() if name != "head_dim"}
    return MiMoForCausalLM(transformers.Qwen2Config(**sizes, num_nextn_predict_layers=1))


def big() -> transformers.PreTrainedModel:
    """Full attention and 91 M parameters: so slow on a CPU that a hit can be timed."""
    larger = {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 16384,
        "initializer_range": 0.05,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**_SIZES, **larger}))


MAKERS: Mapping[str, Callable[[], transformers.PreTrainedModel]] = {
    each.__name__: each for each in (full, windows, both, states, gdn, mla, kda, repeats, one_head, experts, eagle, mtp, big)
}


def save_tokenizer(folder: Path) -> None:
    """Words w3, w4, ... with spaces between them: servers want a tokenizer, tests give ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, VOCABULARY)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    made.save_pretrained(folder)


def make(name: str, target: Path) -> None:
    """One model, into a folder that gets its name when everything is in it."""
    partial = target.with_name(f".part-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    torch.manual_seed(SEED)
    model = MAKERS[name]().float()
    model.save_pretrained(partial)
    save_tokenizer(partial)
    partial.rename(target)
    print(f"{name}: {sum(each.numel() for each in model.parameters()) / 1e6:.1f} M parameters", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make those that are not there."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.models", description="Make tiny random models.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=sorted(MAKERS), metavar="NAME", help=", ".join(MAKERS))
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(chosen.names):
        if not (chosen.folder / name).is_dir():
            make(name, chosen.folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
