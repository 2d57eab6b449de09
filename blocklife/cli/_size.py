"""`blocklife size`: how many tokens host memory holds, or how much of it they need, before an engine is started."""

from __future__ import annotations

import argparse
import json

from blocklife.cli._common import OK, Parser, file, whole
from blocklife.errors import MisuseError

_EXAMPLES = """\
examples:
  blocklife size --model config.json --host-bytes 64GiB --tp 8
  blocklife size --model config.json --host-bytes 64GiB --kv-cache-dtype fp8 --json
  blocklife size --model config.json --tokens 1000000 --tp 8
exit status: 0 it is computed, 2 it cannot be known from this file, or the options are wrong
"""
_MOST = 1 << 16
"""Ranks, and tokens of a block, at most."""
_MOST_TOKENS = 1 << 48


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "From a Hugging Face config.json: bytes of a token and of a block on each rank, whether ranks share one copy, and how\n"
        "many tokens the host tier of the vLLM connector holds, or how many bytes it needs to hold so many. For models with\n"
        "full attention (MHA, GQA) or latents (MLA) in all layers; those with windows or states are refused. With pipeline\n"
        "parallelism the connector takes host_blocks.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add("--model", type=file, required=True, metavar="FILE", help="the config.json of the model")
    either = parser.add_mutually_exclusive_group(required=True).add_argument
    either("--host-bytes", metavar="BYTES", help="host memory of one engine, such as 64GiB: how many tokens it holds")
    either("--tokens", type=whole, metavar="N", help="how many bytes hold so many, rounded up to whole chunks")
    add("--tp", type=whole, default=1, metavar="N", help="tensor-parallel ranks (default 1)")
    add("--block-size", type=whole, default=16, metavar="N", help="tokens of a block (default 16; with MLA often 64 or 128)")
    add("--blocks-per-chunk", type=whole, default=1, metavar="N", help="as the connector's option (default 1)")
    add("--kv-cache-dtype", default="auto", metavar="DTYPE", help="auto, bfloat16, float16, fp8, fp8_e4m3 or fp8_e5m2")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_size)


def _size(args: argparse.Namespace) -> int:
    from blocklife.engines import _options as options
    from blocklife.engines.vllm.connector._config import ConnectorConfig
    from blocklife.engines.vllm.connector._sizing import NUMBER_BYTES, SPARSE_LAYOUTS, HostSize, ModelCache

    ranks = options.count("--tp", args.tp, most=_MOST)
    block_tokens = options.count("--block-size", args.block_size, most=_MOST)
    if args.kv_cache_dtype in SPARSE_LAYOUTS:
        raise MisuseError(
            f"--kv-cache-dtype {args.kv_cache_dtype}: vLLM takes it for sparse attention only, which keeps indices too "
            "(start an engine: its log says how many chunks host_bytes holds; a model without indices takes fp8)"
        )
    if args.kv_cache_dtype not in NUMBER_BYTES:
        raise MisuseError(f"--kv-cache-dtype must be one of {', '.join(NUMBER_BYTES)}, not {args.kv_cache_dtype!r}")
    per_chunk = options.count("--blocks-per-chunk", args.blocks_per_chunk, most=_MOST)
    if args.tokens is None:
        config = ConnectorConfig(host_bytes=options.num_bytes("--host-bytes", args.host_bytes), blocks_per_chunk=per_chunk)
    else:
        chunks = -(-options.count("--tokens", args.tokens, most=_MOST_TOKENS) // (per_chunk * block_tokens))
        config = ConnectorConfig(host_blocks=chunks * per_chunk, blocks_per_chunk=per_chunk)
    model = ModelCache.read(args.model)
    if args.kv_cache_dtype == "auto" and model.is_quantized:
        raise MisuseError(f"{args.model}: its KV cache is quantized (say how, with --kv-cache-dtype)")
    number_bytes = NUMBER_BYTES[args.kv_cache_dtype]
    size = HostSize.of(model, config, ranks=ranks, block_tokens=block_tokens, number_bytes=number_bytes)
    print(json.dumps(size.as_json()) if args.json else "\n".join(size.lines()))
    if args.tokens is not None and not args.json:
        print(f'set           "host_bytes": {size.host_bytes}, which is whole chunks for {args.tokens:,} tokens')
    return OK
