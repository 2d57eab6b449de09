"""``make bench-model``: time to the first token, and tokens a second, of conversations behind long system prompts.

Several sessions share three system prompts and ask one after another, turn by turn, one request at a time. The same requests
are asked of four engines of vLLM, each in a process of its own, which take turns: one that computes everything, two whose
device is so small that each prefix has to come back from host memory (with our connector, and with vLLM's own), and one whose
device holds everything. All must give the same tokens, and prefixes must come from where the row says; a row of which that is
not true does not count, and the status is 1.

With --from nothing is measured: what --json printed before is printed as a table, or drawn with --chart.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO

from attrs import asdict, define, evolve
from rich.console import Console
from rich.table import Table

from blocklife import __version__
from blocklife.errors import BlocklifeError
from blocklife.files import read_text
from tests.behind.fetching import INTERRUPTS, interrupt
from tests.model.bench.chart import chart
from tests.model.bench.records import APART, COMPUTED, VARIANTS, Report, Round, Spread, Variant, Wish, from_json, to_json
from tests.model.shelf import MODELS, RELEASE
from tests.programs import natural, positive, target

PROGRAM = "tests.model.bench"
DOES_NOT_COUNT, BAD, STOPPED = 1, 2, 130
MAX_PREFIX = 8000
GIB_BYTES = 1 << 30


class BenchError(BlocklifeError):
    """It cannot be measured."""


@define(eq=False)
class Competitor:
    """The process of a variant."""

    variant: Variant
    process: subprocess.Popen[str]
    log: IO[str]

    def play(self, number: int) -> Round:
        """A round. Refuses where the process is gone, with what it said last."""
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise BenchError(f"{self.variant.name}: started without pipes")
        with contextlib.suppress(BrokenPipeError):
            print(number, file=stdin, flush=True)
        if not (line := stdout.readline()):
            status = self.process.wait()
            self.log.seek(0)
            last = [said.strip() for said in self.log if said.strip()] or ["it said nothing"]
            raise BenchError(f"{self.variant.name}: its engine has ended with status {status}: {last[-1][:300]}")
        return Round.read(json.loads(line))

    def stop(self) -> None:
        """End it, whatever it does."""
        self.process.terminate()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()
        self.log.close()


@contextlib.contextmanager
def competitor(variant: Variant, wish: Wish) -> Iterator[Competitor]:
    """A process for the time of the context. It is in a group of its own: Ctrl-C is for this process alone."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(wish.threads), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "ignore", "-m", f"{PROGRAM}.engine", variant.name, json.dumps(asdict(wish))]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            process_group=0,
        )
        made = Competitor(variant, process, log)
        stack.callback(made.stop)
        yield made


def measure(wish: Wish, variants: Sequence[Variant], say: Callable[[str], None]) -> Report:
    """All rounds of all variants, in turns whose order rotates."""
    rounds: dict[str, list[Round]] = {each.name: [] for each in variants}
    begun = time.perf_counter()
    load = _load()
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(competitor(each, wish)) for each in variants]
        for number in range(wish.rounds + 1):
            first = number % len(running)
            for each in (*running[first:], *running[:first]):
                played = each.play(number)
                what = f"round {number} of {wish.rounds}" if number else "warm-up"
                say(f"{time.perf_counter() - begun:6.0f} s  {what}: {each.variant.name}, {played.took_s:.1f} s")
                if number:
                    rounds[each.variant.name].append(played)
    facts = {**_machine(), "load": f"{load} before, {_load()} after", "took": f"{time.perf_counter() - begun:.0f} s"}
    return Report(facts, wish, {name: tuple(each) for name, each in rounds.items()})


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _machine() -> dict[str, str]:
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "vllm": RELEASE,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "blocklife": __version__,
    }


def _processor() -> str:
    """Its name, where the system says it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


HEADINGS = ("prefix", "first token, ms", "x", "tokens/s", "x", "hit on host", "hit on device", "")


def cells(report: Report) -> Iterator[tuple[str, ...]]:
    """The table, row by row."""
    for row in report.rows():
        yield (
            row.variant.what,
            spread(row.first_s, 1e3),
            f"{row.sooner:.1f}",
            spread(row.tokens_per_s),
            f"{row.faster:.1f}",
            f"{row.on_host / row.prompts:.0%}",
            f"{row.on_device / row.prompts:.0%}",
            "does not count: " + "; ".join(row.troubles) if row.troubles else "same tokens",
        )


def spread(of: Spread, unit: float = 1.0) -> str:
    """A median, with the lowest and the highest in brackets."""
    digits = 0 if of.median * unit >= 100 else 1
    return f"{of.median * unit:,.{digits}f} ({of.low * unit:,.{digits}f} to {of.high * unit:,.{digits}f})"


def note(report: Report) -> str:
    """What was run, and on what."""
    wish, facts = report.wish, report.facts
    return (
        f"Model {wish.model}; {wish.sessions} sessions of {wish.turns} turns behind system prompts of {wish.prefix:,} tokens, "
        f"{wish.words} tokens more in each turn, answers of {wish.answer}; {wish.rounds} rounds, seed {wish.seed}. Medians, "
        f"with the lowest and the highest. x: against computed. Hits: of all tokens of prompts.\n"
        f"{facts.get('processor', '')}, {facts.get('cores', '?')} cores, {wish.threads} threads an engine; load "
        f"{facts.get('load', '?')}; vLLM {facts.get('vllm', '?')}, torch {facts.get('torch', '?')}; {facts.get('date', '')}."
    )


def show(report: Report, console: Console) -> None:
    """The table for a terminal."""
    table = Table(caption=note(report), caption_justify="left")
    for at, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if 0 < at < len(HEADINGS) - 1 else "left")
    for each in cells(report):
        table.add_row(*each)
    console.print(table)


def markdown(report: Report) -> str:
    """The table for a page."""
    lines = [HEADINGS, ["---", *["---:"] * (len(HEADINGS) - 2), "---"], *cells(report)]
    return "".join(f"| {' | '.join(each)} |\n" for each in lines) + f"\n{note(report)}\n"


def _prefix(text: str) -> int:
    number = positive(text)
    if not 64 <= number <= MAX_PREFIX:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 64 to {MAX_PREFIX:,} tokens")
    return number


def _sessions(text: str) -> int:
    number = positive(text)
    if number < APART:
        raise argparse.ArgumentTypeError(f"{text!r} is less than {APART}: a small device would keep what comes next")
    return number


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
    default = Wish()
    made = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    output = made.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON instead of a table: every request of every round")
    output.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    made.add_argument("--rounds", type=positive, default=default.rounds, help="%(default)s; one more warms up")
    made.add_argument("--prefix", type=_prefix, default=default.prefix, help="tokens of a system prompt (%(default)s)")
    made.add_argument("--sessions", type=_sessions, default=default.sessions, help="in a round, new in each (%(default)s)")
    made.add_argument("--turns", type=positive, default=default.turns, help="of a session (%(default)s)")
    made.add_argument("--seed", type=natural, default=default.seed, help="of all texts (%(default)s)")
    made.add_argument("--model", default=default.model, help="one that tests.model.fetch has made (%(default)s)")
    made.add_argument("--threads", type=positive, default=os.cpu_count(), help="of each engine (as many as there are cores)")
    made.add_argument(
        "--variants",
        nargs="+",
        choices=list(VARIANTS),
        default=list(VARIANTS),
        metavar="NAME",
        help=f"of {', '.join(VARIANTS)}; {COMPUTED.name} always runs",
    )
    made.add_argument(
        "--device-blocks", type=positive, help="of the small device (as many as its longest request needs, and two more)"
    )
    made.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: print this JSON again")
    made.add_argument("--chart", type=target, metavar="FILE.svg", help="draw the report, too")
    return made


def _report(chosen: argparse.Namespace) -> Report:
    if chosen.source is not None:
        return from_json(read_text(chosen.source))
    wish = Wish(
        model=chosen.model,
        prefix=chosen.prefix,
        sessions=chosen.sessions,
        turns=chosen.turns,
        rounds=chosen.rounds,
        seed=chosen.seed,
        threads=chosen.threads,
        small=chosen.device_blocks,
    )
    if MODELS not in os.environ:
        raise BenchError(f"vLLM is not here (python -m tests.model.run -m {PROGRAM} ...)")
    if not (Path(os.environ[MODELS]) / wish.model).is_dir():
        raise BenchError(f"there is no model {wish.model!r} (python -m tests.model.fetch {wish.model})")
    least = evolve(wish, small=None).small_blocks
    if wish.small_blocks < least:
        raise BenchError(f"--device-blocks {wish.small_blocks} cannot hold a request (give {least} or more)")
    variants = [each for each in VARIANTS.values() if each is COMPUTED or each.name in chosen.variants]
    return measure(wish, variants, lambda line: print(line, file=sys.stderr, flush=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read a report, and print it. 1: a row does not count; 2: it cannot be measured; 130: stopped."""
    chosen = parser().parse_args(arguments)
    try:
        report = _report(chosen)
        if chosen.chart is not None:
            chosen.chart.write_text(chart(report), encoding="utf-8", newline="\n")
    except (BlocklifeError, OSError) as problem:
        print(f"{PROGRAM}: error: {problem}", file=sys.stderr)
        return BAD
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    if chosen.json:
        print(to_json(report), end="")
    elif chosen.markdown:
        print(markdown(report), end="")
    else:
        console = Console()
        show(report, console if console.is_terminal else Console(width=200))
    wrong = [row for row in report.rows() if row.troubles]
    for row in wrong:
        print(f"{PROGRAM}: {row.variant.name} does not count: {'; '.join(row.troubles)}", file=sys.stderr)
    return DOES_NOT_COUNT if wrong else 0


if __name__ == "__main__":
    for each in INTERRUPTS:
        signal.signal(each, interrupt)
    sys.exit(main())
