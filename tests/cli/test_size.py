"""`blocklife size`: what a configuration of a model says of host memory, and what it cannot say.

Goal: nobody buys memory by a wrong number. Method: models whose sizes are known from arithmetic, as options and models change;
what cannot be known is refused. `tests/vllm/test_connector_alike.py` compares the same with vLLM's own description of groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from blocklife.engines.vllm.connector._sizing import sized
from tests.cli.test_cli import Capture, call, refused

LLAMA: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
DEEPSEEK: Mapping[str, object] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
TOLD = ("rank_token_bytes", "rank_block_bytes", "ranks_alike", "token_bytes", "slots", "tokens")


def config(folder: Path, given: object) -> str:
    """A file with this configuration."""
    path = folder / "config.json"
    path.write_text(given if isinstance(given, str) else json.dumps(given), encoding="utf-8")
    return str(path)


def words(folder: Path, given: object, options: str = "") -> list[str]:
    """The words of a call, with 64 GiB unless the options say otherwise."""
    host = () if "--host-bytes" in options or "--tokens" in options else ("--host-bytes", "64GiB")
    return ["size", "--model", config(folder, given), *host, *options.split()]


@pytest.mark.parametrize(
    ("given", "options", "wanted"),
    [
        (LLAMA, "", (131_072, 2 << 20, 1, 131_072, 32_768, 524_288)),
        (LLAMA, "--tp 2", (65_536, 1 << 20, 1, 131_072, 32_768, 524_288)),
        (LLAMA, "--tp 8", (16_384, 1 << 18, 1, 131_072, 32_768, 524_288)),
        (LLAMA, "--tp 16", (16_384, 1 << 18, 2, 131_072, 32_768, 524_288)),
        (LLAMA, "--kv-cache-dtype fp8", (65_536, 1 << 20, 1, 65_536, 65_536, 1_048_576)),
        (LLAMA, "--block-size 32", (131_072, 4 << 20, 1, 131_072, 16_384, 524_288)),
        (LLAMA, "--blocks-per-chunk 4", (131_072, 2 << 20, 1, 131_072, 8_192, 524_288)),
        (LLAMA, "--host-bytes 3MiB", (131_072, 2 << 20, 1, 131_072, 1, 16)),
        ({**LLAMA, "architectures": ["OtherForCausalLM"]}, "--tp 16", (16_384, 1 << 18, 1, 262_144, 16_384, 262_144)),
        ({**LLAMA, "num_key_value_heads": None}, "", (524_288, 8 << 20, 1, 524_288, 8_192, 131_072)),
        ({**LLAMA, "head_dim": 64}, "", (65_536, 1 << 20, 1, 65_536, 65_536, 1_048_576)),
        ({"architectures": ["A"], "text_config": LLAMA}, "", (131_072, 2 << 20, 1, 131_072, 32_768, 524_288)),
        ({**LLAMA, "sliding_window": 4096, "use_sliding_window": False}, "", (131_072, 2 << 20, 1, 131_072, 32_768, 524_288)),
        ({**LLAMA, "layer_types": ["full_attention"] * 32}, "", (131_072, 2 << 20, 1, 131_072, 32_768, 524_288)),
        (DEEPSEEK, "", (70_272, 1_124_352, 1, 70_272, 61_119, 977_904)),
        (DEEPSEEK, "--tp 8", (70_272, 1_124_352, 8, 70_272, 61_119, 977_904)),
        (DEEPSEEK, "--tp 8 --kv-cache-dtype fp8_e4m3 --block-size 64", (35_136, 2_248_704, 8, 35_136, 30_559, 1_955_776)),
    ],
)
def test_size_is_what_arithmetic_says(
    given: object, options: str, wanted: tuple[int, ...], tmp_path: Path, capsys: Capture
) -> None:
    """Dense models, grouped heads, heads that ranks share, latents, and 8 bits; the lines have the same numbers."""
    status, out, _ = call(capsys, *words(tmp_path, given, options), "--json")
    found = json.loads(out)

    assert status == 0
    assert tuple(found[name] for name in TOLD) == wanted
    assert (
        found["slots"] * found["blocks_per_chunk"] * found["rank_block_bytes"] * found["tp"] // found["ranks_alike"]
        <= (found["host_bytes"])
    )
    lines = call(capsys, *words(tmp_path, given, options))[1]
    assert f"{found['slots']:,} slots" in lines
    assert f"{found['tokens']:,} tokens\n" in lines
    assert ("shared        yes: " in lines) is (found["ranks_alike"] > 1)


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        ("not json", "", "config.json: it is no JSON"),
        ("[]", "", "config.json: it is no object with names and values"),
        ({}, "", "config.json: it names no architectures"),
        ({**LLAMA, "num_hidden_layers": None}, "", "config.json: it has no num_hidden_layers"),
        ({**LLAMA, "num_attention_heads": "32"}, "", "num_attention_heads must be a whole number of at least 1, not '32'"),
        ({**LLAMA, "num_key_value_heads": [8, 4]}, "", "num_key_value_heads must be a whole number"),
        ({**LLAMA, "hidden_size": 0}, "", "hidden_size must be a whole number of at least 1, not 0"),
        ({**LLAMA, "hidden_size": 16}, "", "32 heads are more than its width"),
        ({**LLAMA, "v_head_dim": 64}, "", "its values have another size than its keys"),
        ({**LLAMA, "text_config": 5}, "", "text_config is no object"),
        ({**LLAMA, "sliding_window": 4096}, "", "it has windows (sliding_window=4096), and does not say in which layers"),
        ({**LLAMA, "layer_types": ["full_attention", "sliding_attention"]}, "", "(full_attention, sliding_attention)"),
        ({**LLAMA, "layer_types": ["linear_attention"] * 3}, "", "layers of other kinds than full attention"),
        ({**LLAMA, "mamba_d_state": 16}, "", "it has mamba_d_state=16"),
        ({**LLAMA, "attention_chunk_size": 8192}, "", "it has attention_chunk_size=8192"),
        ({**DEEPSEEK, "index_topk": 2048}, "", "it has index_topk=2048"),
        ({**DEEPSEEK, "model_type": "minicpm3"}, "", "known for deepseek_v2, deepseek_v3, kimi_k2 only, not for 'minicpm3'"),
        ({**LLAMA, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "", "its KV cache is quantized"),
        (LLAMA, "--tp 3", "--tp 3: 32 attention heads cannot be divided"),
        ({**LLAMA, "num_key_value_heads": 3}, "--tp 2", "--tp 2: 3 KV heads cannot be divided"),
        (DEEPSEEK, "--tp 3", "--tp 3: 128 attention heads cannot be divided"),
        (LLAMA, "--tp 0", "--tp must be a whole number from 1"),
        (LLAMA, "--block-size -1", "--block-size must be a whole number from 1"),
        (LLAMA, "--host-bytes 64Gb64", "--host-bytes must be a whole number of bytes, or a text like '64GiB'"),
        (LLAMA, "--host-bytes 1MiB", "holds no chunk, which takes 2097152 bytes"),
        (LLAMA, "--kv-cache-dtype nvfp4", "--kv-cache-dtype must be one of auto, bfloat16"),
        (DEEPSEEK, "--kv-cache-dtype fp8_ds_mla", "fp8_ds_mla: vLLM takes it for sparse attention only"),
        (LLAMA, "--tokens 0", "--tokens must be a whole number from 1"),
        (LLAMA, "--tokens 1000000000000", "can be"),
        (LLAMA, "--tokens 1000 --host-bytes 64GiB", "--host-bytes: not allowed with argument --tokens"),
    ],
)
def test_size_refuses_what_it_cannot_know(given: object, options: str, why: str, tmp_path: Path, capsys: Capture) -> None:
    """One line, and no number."""
    assert why in refused(capsys, *words(tmp_path, given, options))


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 1_000_000])
@pytest.mark.parametrize(
    ("given", "options", "chunk_tokens"),
    [
        (LLAMA, "--tp 16", 16),
        (LLAMA, "--blocks-per-chunk 4", 64),
        (DEEPSEEK, "--tp 8 --block-size 64 --kv-cache-dtype fp8", 64),
    ],
)
def test_size_from_tokens_is_the_least_that_holds_them(
    given: object, options: str, chunk_tokens: int, tokens: int, tmp_path: Path, capsys: Capture
) -> None:
    """The other way round says the same; with one byte less there is a chunk less, and not enough."""
    asked = json.loads(call(capsys, *words(tmp_path, given, f"--tokens {tokens} {options}"), "--json")[1])
    lines = call(capsys, *words(tmp_path, given, f"--tokens {tokens} {options}"))[1]
    exact, less = (f"--host-bytes {asked['host_bytes'] - short} {options}" for short in (0, 1))

    assert asked["tokens"] == -(-tokens // chunk_tokens) * chunk_tokens
    assert json.loads(call(capsys, *words(tmp_path, given, exact), "--json")[1]) == asked
    assert lines.endswith(f'set           "host_bytes": {asked["host_bytes"]}, which is whole chunks for {tokens:,} tokens\n')
    if tokens <= chunk_tokens:
        assert "holds no chunk" in refused(capsys, *words(tmp_path, given, less))
    else:
        assert json.loads(call(capsys, *words(tmp_path, given, less), "--json")[1])["tokens"] < tokens


def test_size_takes_a_quantized_cache_whose_kind_is_named(tmp_path: Path, capsys: Capture) -> None:
    given = {**LLAMA, "quantization_config": {"kv_cache_quant_algo": "FP8"}}

    assert call(capsys, *words(tmp_path, given, "--kv-cache-dtype fp8"))[0] == 0


def test_size_needs_a_file(tmp_path: Path, capsys: Capture) -> None:
    assert "No such file" in refused(capsys, "size", "--model", str(tmp_path / "none"), "--host-bytes", "1GiB")
    assert "required: --model" in refused(capsys, "size", "--host-bytes", "1GiB")
    assert "one of the arguments --host-bytes --tokens is required" in refused(
        capsys, "size", "--model", config(tmp_path, LLAMA)
    )


@pytest.mark.parametrize(
    ("count", "said"), [(1, "1 bytes"), (1023, "1023 bytes"), (1 << 20, "1 MiB"), (70_272, "68.6 KiB"), (5 << 39, "2.5 TiB")]
)
def test_size_is_told_in_units(count: int, said: str) -> None:
    assert sized(count) == said
