"""The command line: `blocklife replay`, `workload` and `spec`.

Exit status: 0 all is well, 1 the run found something wrong (or a page is stale), 2 bad input or options, 130 after Ctrl-C.
Errors go to standard error, in one line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

import attrs

from blocklife import __version__
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from blocklife.engines.toy.replay import Replay, ReplayOptions, ReplayReport
    from blocklife.engines.toy.workload import WorkloadRequest

OK, WRONG, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
DEFAULT_REQUESTS = 600

_REPLAY_EXAMPLES = """\
examples:
  blocklife replay                                  generate a workload and replay it
  blocklife replay workload.jsonl --requests 300    the first 300 requests of a workload
  blocklife replay --faults --seed 7                copies that fail, come late, twice, out of order or never
  blocklife replay --faults fail=0.1,never=0.05     the same, with rates of your own
  blocklife replay --workers 2 --contract hold      two ranks; a busy block waits for its copy
  blocklife replay --groups full:16,swa:16:1024 --blocks-per-chunk 4
                                                    a hybrid model; slots of 4 blocks of one group
  blocklife replay --groups full:64,mamba:512 --async --mode lazy --policy arc
                                                    plan ahead; store what is about to go; forget by ARC
  blocklife replay --json | jq .tokens_hit_host     one report for machines
  blocklife workload generate | blocklife replay -  read the workload from standard input
"""

_WORKLOAD_EXAMPLES = """\
examples:
  blocklife workload generate --requests 1000 > workload.jsonl
  blocklife workload generate --seed 3 --output workload.jsonl
"""

_SPEC_EXAMPLES = """\
examples:
  blocklife spec --check            is every generated part of specs/ fresh?
  blocklife spec --write            write them anew
"""


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in one line and the way to more."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="blocklife", description="Typed state machines for the life of every KV-cache block.")
    parser.add_argument("--version", action="version", version=f"blocklife {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    parser.set_defaults(run=lambda _: _print_help(parser))
    _add_replay(commands)
    _add_workload(commands)
    _add_spec(commands)
    return parser


def _print_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return OK


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number") from None


def _file(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("'' is not the name of a file")
    return text


def _add_replay(commands: argparse._SubParsersAction[_Parser]) -> None:
    from blocklife.engines.toy.replay import ReplayOptions

    parser = commands.add_parser(
        "replay",
        help="replay a workload through explicit block lifecycles, and verify every byte",
        description="Replay a workload through a paged KV cache with host offload, in which every block, slot, job and request "
        "is an explicit state machine. Every block that a step reads is verified.",
        epilog=_REPLAY_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = ReplayOptions()
    add = parser.add_argument
    add("workload", nargs="?", type=_file, metavar="WORKLOAD", help="JSON lines; - is standard input; none: generate one")
    add("--requests", type=_whole, metavar="N", help=f"stop after N requests (generated: {DEFAULT_REQUESTS})")
    sizes: tuple[tuple[str, str], ...] = (
        ("gpu-blocks", "blocks on the device, the null block included"),
        ("host-slots", "slots in host memory; a slot holds one chunk"),
        ("block-bytes", "bytes of a block"),
        ("workers", "ranks; each has its own memory and copies its share of every job"),
        ("step-tokens", "tokens that a step computes at most"),
        ("max-running", "requests that run or load at the same time"),
        ("link-blocks", "blocks that the link moves in a step, per direction"),
        ("max-jobs", "jobs that can be out at the same time"),
        ("deadline", "steps that a job may run"),
    )
    for name, meaning in sizes:
        default = getattr(defaults, name.replace("-", "_"))
        add(f"--{name}", type=_whole, metavar="N", default=default, help=f"{meaning} (default {default})")
    _add_groups(parser)
    add(
        "--contract",
        choices=("fence", "hold"),
        default="fence",
        help="what may happen to a block that a copy reads (default fence)",
    )
    add(
        "--checking",
        choices=("strict", "count", "off"),
        default="strict",
        help="what a broken rule does (default strict: stop)",
    )
    add(
        "--faults",
        nargs="?",
        const="default",
        metavar="RATES",
        help="misbehaving copies: fail, late, twice, reorder, never=SHARE",
    )
    add(
        "--abort",
        type=_number,
        metavar="SHARE",
        help="share of requests whose client goes away (default 0; 0.02 with --faults)",
    )
    add(
        "--seed", type=_whole, default=0, metavar="N", help="of faults, aborts, sampling and the generated workload (default 0)"
    )
    add(
        "--speed",
        type=_number,
        metavar="MS",
        help="milliseconds of the workload that pass in a step (default: all have arrived)",
    )
    add("--verify", type=_number, default=1.0, metavar="SHARE", help="share of the blocks read that are verified (default 1)")
    add("--record", type=_file, metavar="FILE", help="write every committed transition as a JSON line")
    add("--json", action="store_true", help="print one JSON report instead of tables")
    parser.set_defaults(run=_replay)


def _add_groups(parser: argparse.ArgumentParser) -> None:
    """What the model is like, and how it is offloaded."""
    from blocklife.engines.toy.replay import DEFAULT_BLOCK_TOKENS

    add = parser.add_argument
    add(
        "--groups",
        metavar="GROUPS",
        help="full:BLOCK, swa:BLOCK:WINDOW or mamba:BLOCK, in tokens, with commas between; blocks divide 512",
    )
    add(
        "--block-tokens",
        type=_whole,
        metavar="N",
        help=f"short for --groups full:N (default {DEFAULT_BLOCK_TOKENS}; not together with --groups)",
    )
    add("--blocks-per-chunk", type=_whole, default=1, metavar="N", help="blocks that are offloaded as one (default 1)")
    add(
        "--mode",
        choices=("eager", "lazy"),
        default="eager",
        help="store content as it fills, or when it is about to go (default eager)",
    )
    add("--async", dest="asynchronous", action="store_true", help="plan each step while the one before it runs")
    add("--policy", choices=("lru", "arc"), default="lru", help="what the host tier forgets first (default lru)")


def _add_workload(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("workload", help="generate request workloads", description="Request workloads as JSON lines.")
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    parser.set_defaults(run=lambda _: _print_help(parser))
    generate = actions.add_parser(
        "generate",
        help="generate multi-turn conversations",
        description="Generate multi-turn conversations: one JSON object a line with timestamp (ms), input_length, "
        "output_length and hash_ids of the prompt's 512-token blocks. The same seed gives the same bytes.",
        epilog=_WORKLOAD_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    generate.add_argument("--requests", type=_whole, default=DEFAULT_REQUESTS, metavar="N", help="(default %(default)s)")
    generate.add_argument("--seed", type=_whole, default=0, metavar="N", help="(default 0)")
    generate.add_argument("--output", type=_file, metavar="FILE", default="-", help="(default - is standard output)")
    generate.set_defaults(run=_generate)


def _add_spec(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "spec",
        help="check or write the generated parts of specs/",
        description="The tables and drawings in specs/ are generated from the machines; Python is the source.",
        epilog=_SPEC_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="exit 1 and name what is stale")
    what.add_argument("--write", action="store_true", help="write what is stale")
    parser.add_argument("--root", default="specs", metavar="DIR", help="(default specs)")
    parser.set_defaults(run=_spec)


# --- replay ------------------------------------------------------------------------------------------------------------


def _replay(args: argparse.Namespace) -> int:
    from blocklife.engines.toy.replay import Replay
    from blocklife.recording import Recorder

    options = _options(args)
    workload = _workload(args)
    if args.record and args.workload and os.path.realpath(args.record) == os.path.realpath(args.workload):
        raise MisuseError(f"{args.record}: it is the workload itself (record to another file)")
    try:
        with open(args.record, "w", encoding="utf-8") if args.record else contextlib.nullcontext() as stream:
            replay = Replay(workload, options)  # has threads, so that from here on it must run to its end
            if stream is not None:
                Recorder(stream).begin(replay.ledger)
            report = _run(replay)
    except OSError as problem:
        raise MisuseError(f"{args.record or 'replay'}: {problem.strerror or problem}") from problem
    if args.json:
        print(json.dumps(attrs.asdict(report)))
    else:
        _print_report(report, options)
    if report.interrupted:
        return INTERRUPTED
    return OK if report.clean else WRONG


def _options(args: argparse.Namespace) -> ReplayOptions:
    from blocklife.copiers.faults import FaultRates
    from blocklife.engines.toy.replay import ReplayOptions
    from blocklife.ledger import Checking, Contract
    from blocklife.offload import Mode

    if args.requests is not None and args.requests < 1:
        raise MisuseError(f"--requests must be at least 1, not {args.requests}")
    return ReplayOptions(
        gpu_blocks=args.gpu_blocks,
        host_slots=args.host_slots,
        block_bytes=args.block_bytes,
        block_tokens=args.block_tokens,
        groups=args.groups,
        blocks_per_chunk=args.blocks_per_chunk,
        mode=Mode[args.mode.upper()],
        asynchronous=args.asynchronous,
        policy=args.policy,
        workers=args.workers,
        step_tokens=args.step_tokens,
        max_running=args.max_running,
        link_blocks=args.link_blocks,
        max_jobs=args.max_jobs,
        deadline=args.deadline,
        contract=Contract[args.contract.upper()],
        checking=Checking[args.checking.upper()],
        faults=None if args.faults is None else FaultRates.parse(args.faults),
        abort=args.abort,
        seed=args.seed,
        speed=args.speed,
        verify=args.verify,
    )


def _workload(args: argparse.Namespace) -> list[WorkloadRequest]:
    from blocklife.engines.toy.workload import generate_workload, read_workload

    if args.workload is None:
        return generate_workload(requests=args.requests or DEFAULT_REQUESTS, seed=args.seed)
    return read_workload(args.workload, args.requests)


def _run(replay: Replay) -> ReplayReport:
    """Run with a progress bar on a terminal; the first Ctrl-C ends the run between two steps, a second one at once."""
    stopped = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        with _progress(replay) as progress:
            return replay.run(stop=lambda: stopped, progress=progress)
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def _progress(replay: Replay) -> Iterator[Callable[[], None]]:
    if not getattr(sys.stderr, "isatty", bool)():  # stderr may be None
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[steps]} steps"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=replay.total, steps=0)

        def update() -> None:
            steps = replay.engine.counts.steps
            if steps % 64 == 0:
                bar.update(task, completed=replay.finished, steps=steps)

        yield update


_SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("requests", ("requests", "skipped_requests", "aborted_requests", "preemptions", "deferred_lookups", "steps", "seconds",
                  "scheduler_us_per_step")),
    ("tokens", ("tokens_computed", "tokens_hit_gpu", "tokens_hit_host")),
    ("copies", ("blocks_stored", "blocks_loaded", "bytes_stored", "bytes_loaded", "already_stored", "already_in_flight",
                "partial_chunks", "refused_stores", "stale_entries", "flushes", "failed_loads", "late_completions",
                "duplicate_completions", "unknown_completions", "stale_detected")),
    ("proof", ("verified_blocks", "corrupt_blocks", "leaked_places", "violations")),
)  # fmt: skip


def _print_report(report: ReplayReport, options: ReplayOptions) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    console.begin_capture()  # so that print meets a reader that has gone, or a full disk, and not rich
    values = attrs.asdict(report)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(justify="right")
    for title, names in _SECTIONS:
        for number, name in enumerate(names):
            table.add_row(title if number == 0 else "", name.replace("_", " "), f"{values[name]:,}")
            if name == "flushes":
                for cause, count in report.flushes_by_cause.items():
                    table.add_row("", f"flushes, {cause}", f"{count:,}")
        if title == "copies":
            for state, count in report.jobs.items():
                table.add_row("", f"jobs {state}", f"{count:,}")
        if title == "tokens":
            hits = zip(report.groups.split(","), report.blocks_hit_gpu, report.blocks_hit_host, strict=True)
            for number, (group, gpu, host) in enumerate(hits):
                table.add_row("blocks hit" if number == 0 else "", f"{group} gpu", f"{gpu:,}")
                table.add_row("", f"{group} host", f"{host:,}")
    console.print(table)
    counts = [count for rows in report.transitions.values() for count in rows.values() if count]
    console.print(f"\n{sum(counts):,} transitions over {len(counts)} edges ({options.contract.name.lower()} contract)")
    for message in report.violation_messages:
        console.print(f"violation: {message}", markup=False)
    if report.interrupted:
        console.print("interrupted: every request was aborted and every copy has landed; the figures are those so far")
    elif report.clean:
        console.print("clean: nothing corrupt, nothing leaked, no violation")
        if report.requests and report.skipped_requests == report.requests:
            console.print("but nothing ran: no request fits into the device (raise --gpu-blocks)")
    else:
        console.print("NOT clean")
    print(console.end_capture(), end="")


# --- workload and spec -------------------------------------------------------------------------------------------------


def _generate(args: argparse.Namespace) -> int:
    from blocklife.engines.toy.workload import generate_workload, write_workload

    requests = generate_workload(requests=args.requests, seed=args.seed)
    if args.output == "-":
        stdout: TextIO | None = sys.stdout  # None where the process was started without one
        if stdout is None:
            raise MisuseError("standard output is closed (name a file with --output)")
        write_workload(requests, stdout)
        return OK
    try:
        with open(args.output, "w", encoding="utf-8") as stream:
            write_workload(requests, stream)
    except OSError as problem:
        raise MisuseError(f"{args.output}: {problem.strerror or problem}") from problem
    return OK


def _spec(args: argparse.Namespace) -> int:
    from blocklife.drawing.spec import stale, write

    root = Path(args.root)
    if not root.is_dir():
        raise MisuseError(f"{root}: no such folder (name it with --root)")
    if args.write:
        for name in write(root):
            print(f"wrote {name}")
    problems = stale(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    return WRONG if problems else OK


def _leave_stdout() -> None:
    """Keep the interpreter from failing at its exit with what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        args = _parser().parse_args(argv)
        status: int = args.run(args)
        print(end="", flush=True)
    except MisuseError as problem:
        print(f"blocklife: {problem}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader has gone (head, say): nobody is left to be told
        _leave_stdout()
        return OK
    except OSError as problem:
        _leave_stdout()
        print(f"blocklife: standard output: {problem.strerror or problem}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("blocklife: interrupted", file=sys.stderr)
        return INTERRUPTED
    return status
