"""`blocklife replay`: a workload through explicit lifecycles, with every byte verified."""

from __future__ import annotations

import argparse
import contextlib
import enum
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from blocklife.cli._common import (
    INTERRUPTED,
    OK,
    WRONG,
    Parser,
    complain,
    file,
    names_of,
    number,
    refuse_overwriting,
    stopping,
    telling,
    whole,
)
from blocklife.cli._workload import DEFAULT_REQUESTS
from blocklife.errors import MisuseError
from blocklife.knobs import Knob, knobs, written

if TYPE_CHECKING:
    from blocklife.copiers._faults import FaultRates
    from blocklife.engines.toy._options import BelowOptions, ReplayOptions
    from blocklife.engines.toy._replay import Replay, ReplayReport
    from blocklife.engines.toy._workload import WorkloadRequest
    from blocklife.tiers import StoreFaultRates

BELOW_FAULT = "below_"
"""What names of faults of the store below begin with."""
SLOTS_MAX = (1 << 31) - 1
"""The most slots that may be copied at once."""

_REPLAY_EXAMPLES = """\
examples:
  blocklife replay                                  generate a workload and replay it
  blocklife replay workload.jsonl --requests 300    the first 300 requests of a workload
  blocklife replay --faults --seed 7                copies that fail, or report late, twice, out of order or never
  blocklife replay --faults fail=0.1,never=0.05     the same, with your own rates
  blocklife replay --workers 2 --contract hold      two ranks; a busy block waits for its copy
  blocklife replay --groups full:16,swa:16:1024 --blocks-per-chunk 4
                                                    a hybrid model; slots of 4 blocks of one group
  blocklife replay --groups full:64,mamba:512 --async --mode lazy --policy arc
                                                    plan ahead; store before eviction; evict by ARC
  blocklife replay --below fs:/data/kv:8G           content below host memory outlives the run: call it twice
  blocklife replay --copier cuda                    blocks on a GPU, verified there; torch: the same on CPU tensors
  blocklife replay --json | jq .tokens_hit_host     one JSON report
  blocklife workload generate | blocklife replay -  read the workload from standard input
  blocklife replay --record - | blocklife recording check -
                                                    is every step of it legal?
"""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Replay a workload through a paged KV cache with host offload, in which every block, slot, job and request "
        "is an explicit state machine. Every block that a step reads is verified.",
        _REPLAY_EXAMPLES,
    )
    add = parser.add_argument
    add("workload", nargs="?", type=file, metavar="WORKLOAD", help="JSON lines; - is standard input (default: generate one)")
    add("--requests", type=whole, metavar="N", help=f"stop after N requests (generated: {DEFAULT_REQUESTS})")
    for each in _declared():
        _add(parser, each)
        if each.name == "below":
            for flag, one in _below_flags().items():
                shown = f"{one.default:g}" if isinstance(one.default, float) else written(one.default)
                number_of = {"type": whole, "metavar": "STEPS" if one.kind is float else "N"}
                kind = {"choices": one.choices} if one.choices else number_of
                parser.add_argument(flag, help=f"with --below: {one.says} (default {shown})", **kind)
    add(
        "--record",
        type=file,
        metavar="FILE",
        help="write every committed transition as a JSON line to FILE, which no other run may be writing to; - is standard "
        "output, and the report then goes to standard error",
    )
    add("--times", action="store_true", help="with --record: also write times, measured from the start of the run")
    add("--json", action="store_true", help="print one JSON report instead of tables")
    parser.set_defaults(run=_replay)


def _declared() -> list[attrs.Attribute[object]]:
    """The options that are declared with their words."""
    from blocklife.engines.toy._options import ReplayOptions

    return [each for each in attrs.fields(ReplayOptions) if "words" in each.metadata]


def _below_flags() -> dict[str, Knob]:
    """The options of a tier below, each with the policy that it chooses."""
    from blocklife.offload import BelowPolicies

    chosen = {each.name: each for each in knobs(BelowPolicies)}
    return {"--demote": chosen["demote"], "--below-wait": chosen["max_wait"], "--below-slots": chosen["max_slots"]}


def _add(parser: Parser, each: attrs.Attribute[object]) -> None:
    """Give the parser an option as it is declared."""
    default, given = each.default, {"dest": each.name, "default": each.default, **each.metadata["words"]}
    if isinstance(default, bool):
        given["action"] = "store_true"
    elif isinstance(default, enum.Enum):
        given["choices"], given["default"] = names_of(type(default)), default.name.lower()
    if default is not None and default is not False and "(default" not in given["help"]:
        shown = f"{default:g}" if isinstance(default, float) else given["default"]
        given["help"] += f" (default {shown})"
    if "type" in given:
        given["type"] = {int: whole, float: number}[given["type"]]
    parser.add_argument(each.metadata["flag"] or "--" + each.name.replace("_", "-"), **given)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of each option; choices as members of their enumerations."""
    values = {each: getattr(args, each.name) for each in _declared()}
    return {
        each.name: type(each.default)[value.upper()] if value and isinstance(each.default, enum.Enum) else value
        for each, value in values.items()
    }


def _replay(args: argparse.Namespace) -> int:
    from blocklife.engines.toy._replay import Replay
    from blocklife.recording import Recorder

    if args.times and not args.record:
        raise MisuseError("--times tells a recording when things happened, and none is written (add --record FILE)")
    printed = args.record == "-"
    if printed and args.json:
        raise MisuseError("--json and --record - both take standard output (record to a file)")
    refuse_overwriting(args.record, args.workload)
    options = _options(args)
    workload = _workload(args)
    answers = sys.stdout
    try:
        # what a store prints, now or in a thread of its own, is no part of a report or a recording
        with contextlib.redirect_stdout(sys.stderr), telling("host memory") as tell:  # long, where much is pinned
            replay = Replay(
                workload,
                options,
                preparing=lambda done, all_: tell(lambda: f"{done >> 20:,} of {all_ >> 20:,} MiB", done, all_),
            )
        with contextlib.redirect_stdout(sys.stderr), contextlib.closing(replay):
            replay.check_fits()  # before the recording is opened: a refusal must not empty one
            with _record(args.record, answers) as stream:
                recorder = None if stream is None else Recorder(stream, _clock() if args.times else None)
                if recorder is not None:
                    recorder.begin(replay.ledger)
                report = _run(replay, (lambda: None) if recorder is None else recorder.check)
                if recorder is not None:
                    recorder.end()
    except OSError as problem:
        if printed:  # a reader that has gone, or a full disk, is told as ever
            raise
        raise MisuseError(f"{args.record or 'replay'}: {problem.strerror or problem}") from problem
    if replay.close_error:
        complain(f"--below: close raised {replay.close_error}")
    if args.json:
        print(json.dumps(attrs.asdict(report)))
    else:
        _print_report(report, options, sys.stderr if printed else sys.stdout)
    if report.interrupted:
        return INTERRUPTED
    return OK if report.clean else WRONG


@contextlib.contextmanager
def _record(name: str | None, answers: TextIO) -> Iterator[TextIO | None]:
    """Where the recording goes; None where none is written."""
    if name is None or name == "-":
        yield None if name is None else answers
        return
    from blocklife.recording import open_file

    with open_file(name) as stream:
        yield stream


def _clock() -> Callable[[], int]:
    """Nanoseconds from now on: where a machine's own clock began says nothing to who reads a recording."""
    began = time.monotonic_ns()
    return lambda: time.monotonic_ns() - began


def _options(args: argparse.Namespace) -> ReplayOptions:
    from blocklife.engines.toy._options import ReplayOptions

    if args.requests is not None and args.requests < 1:
        raise MisuseError(f"--requests must be at least 1, not {args.requests}")
    faults, store_faults = _faults(args.faults, below=args.below is not None)
    return ReplayOptions(**{**_given(args), "faults": faults, "below": _below(args, store_faults)})


def _faults(text: str | None, *, below: bool) -> tuple[FaultRates | None, StoreFaultRates | None]:
    """The faults of copies, and those of the store below; None where none are named."""
    from blocklife.copiers._faults import FaultRates
    from blocklife.tiers import StoreFaultRates

    if text is None:
        return None, None
    if text.strip() == "default":
        return FaultRates.default(), StoreFaultRates.default() if below else None
    parts = text.split(",")
    stores = [part for part in parts if part.strip().startswith(BELOW_FAULT)]
    copies = [part for part in parts if part not in stores]
    if stores and not below:
        raise MisuseError(f"--faults {stores[0].strip()}: there is no tier below to have faults (add --below)")
    return (
        FaultRates.parse(",".join(copies)) if copies else None,
        StoreFaultRates.parse(",".join(stores), prefix=BELOW_FAULT) if stores else None,
    )


def _below(args: argparse.Namespace, faults: StoreFaultRates | None) -> BelowOptions | None:
    """The tier below; None without one."""
    from blocklife.engines.toy._options import BelowOptions
    from blocklife.offload import BelowPolicies

    named: dict[str, Any] = {}
    for flag, each in _below_flags().items():
        value = getattr(args, flag[2:].replace("-", "_"))
        if value is None:
            continue
        if args.below is None:
            raise MisuseError(f"{flag} configures the tier below host memory, and no store is named for it (add --below)")
        named[each.name] = each.read(value, flag, SLOTS_MAX)
    if args.below is None:
        return None
    chosen = BelowPolicies(**named)
    chosen = attrs.evolve(chosen, job_slots=min(chosen.job_slots, chosen.max_slots))
    return BelowOptions(store=args.below, faults=faults, policies=chosen)


def _workload(args: argparse.Namespace) -> list[WorkloadRequest]:
    from blocklife.engines.toy._workload import generate_workload, read_workload

    if args.workload is None:
        return generate_workload(requests=args.requests or DEFAULT_REQUESTS, seed=args.seed)
    return read_workload(args.workload, args.requests)


def _run(replay: Replay, check: Callable[[], None]) -> ReplayReport:
    """Run, and tell how far it is. *check* is called in every step; what it raises ends the run."""
    counts = replay.engine.counts
    with stopping() as stop, telling("replay") as tell:

        def said() -> str:
            return f"{replay.finished:,} of {replay.total:,} requests, {counts.steps:,} steps"

        def step() -> None:
            if counts.steps % 64 == 0:
                tell(said, replay.finished, replay.total)
            check()

        return replay.run(stop=stop, progress=step)


_SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("requests", ("requests", "skipped_requests", "aborted_requests", "preemptions", "deferred_lookups", "steps", "seconds",
                  "scheduler_us_per_step")),
    ("tokens", ("tokens_computed", "tokens_hit_gpu", "tokens_hit_host")),
    ("copies", ("blocks_stored", "blocks_loaded", "bytes_stored", "bytes_loaded", "already_stored", "already_in_flight",
                "partial_chunks", "refused_stores", "stale_entries", "flushes", "failed_loads", "late_completions",
                "duplicate_completions", "unknown_completions", "stale_detected")),
    ("proof", ("verified_blocks", "corrupt_blocks", "leaked_places", "violations")),
)  # fmt: skip


def _rows(report: ReplayReport) -> Iterator[tuple[str, str, str]]:
    """The report as lines: its section, where that begins, a name, a value."""
    values = attrs.asdict(report)
    yield "copier", "", report.copier
    for title, names in _SECTIONS:
        for at, name in enumerate(names):
            yield title if at == 0 else "", name.replace("_", " "), f"{values[name]:,}"
            if name == "flushes":
                yield from (("", f"flushes, {cause}", f"{count:,}") for cause, count in report.flushes_by_cause.items())
        if title == "copies":
            yield from (("", f"jobs {state}", f"{count:,}") for state, count in report.jobs.items())
        if title == "tokens":
            hits = zip(report.groups.split(","), report.blocks_hit_gpu, report.blocks_hit_host, strict=True)
            for at, (group, gpu, host) in enumerate(hits):
                yield "blocks hit" if at == 0 else "", f"{group} gpu", f"{gpu:,}"
                yield "", f"{group} host", f"{host:,}"
    below = {} if report.below is None else attrs.asdict(report.below, filter=lambda field, _: field.name != "store")
    for at, (name, count) in enumerate(below.items()):
        yield "below" if at == 0 else "", name.replace("_", " "), f"{count:,}"


def _print_report(report: ReplayReport, options: ReplayOptions, stream: TextIO | None) -> None:
    if stream is None:  # standard error may be closed, and print would take standard output for it
        return
    rows = list(_rows(report))
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    lines = [f"{section:<{widths[0]}} {name:<{widths[1]}} {value:>{widths[2]}}" for section, name, value in rows]
    if report.below is not None:
        lines += ["", f"below: {report.below.store}"]
    counts = [count for rows in report.transitions.values() for count in rows.values() if count]
    lines += ["", f"{sum(counts):,} transitions over {len(counts)} edges ({options.contract.name.lower()} contract)"]
    lines += [f"violation: {message}" for message in report.violation_messages]
    if report.interrupted:
        lines.append("interrupted: every request was aborted and every copy has landed; the figures are those so far")
    else:
        lines.append("clean: nothing corrupt, nothing leaked, no violation" if report.clean else "NOT clean")
    print("\n".join(lines), file=stream)
