"""`blocklife workload`: request workloads as JSON lines."""

from __future__ import annotations

import argparse
import io
import sys

from blocklife.cli._common import OK, Parser, file, whole, write_whole

DEFAULT_REQUESTS = 600

_WORKLOAD_EXAMPLES = """\
examples:
  blocklife workload generate --requests 1000 > workload.jsonl
  blocklife workload generate --seed 3 --output workload.jsonl
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    generate = parser.commands("Request workloads as JSON lines.")("generate", "generate multi-turn conversations")
    generate.describe(
        "Generate multi-turn conversations: one JSON object a line with timestamp (ms), input_length, output_length and "
        "hash_ids of the prompt's 512-token blocks. The same seed gives the same bytes.",
        _WORKLOAD_EXAMPLES,
    )
    generate.add_argument("--requests", type=whole, default=DEFAULT_REQUESTS, metavar="N", help="(default %(default)s)")
    generate.add_argument("--seed", type=whole, default=0, metavar="N", help="(default 0)")
    generate.add_argument("--output", type=file, metavar="FILE", default="-", help="(default - is standard output)")
    generate.set_defaults(run=_generate)


def _generate(args: argparse.Namespace) -> int:
    from blocklife.engines.toy._workload import generate_workload, write_workload

    requests = generate_workload(requests=args.requests, seed=args.seed)
    if args.output == "-":
        write_workload(requests, sys.stdout)
        return OK
    text = io.StringIO()
    write_workload(requests, text)
    write_whole(args.output, text.getvalue())
    return OK
