"""`blocklife workload`: request workloads as JSON lines."""

from __future__ import annotations

import argparse
import io
import sys

from blocklife.cli._common import OK, Parser, file, print_help, whole, write_whole

DEFAULT_REQUESTS = 600

_WORKLOAD_EXAMPLES = """\
examples:
  blocklife workload generate --requests 1000 > workload.jsonl
  blocklife workload generate --seed 3 --output workload.jsonl
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.description = "Request workloads as JSON lines."
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    parser.set_defaults(run=lambda _: print_help(parser))
    generate = actions.add_parser(
        "generate",
        help="generate multi-turn conversations",
        description="Generate multi-turn conversations: one JSON object a line with timestamp (ms), input_length, "
        "output_length and hash_ids of the prompt's 512-token blocks. The same seed gives the same bytes.",
        epilog=_WORKLOAD_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
