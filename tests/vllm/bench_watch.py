"""``make bench-vllm``: what the watch costs, beside what vLLM's OffloadingConnector costs on the same steps.

One engine: vLLM's real scheduler, one full-attention group and one sliding window, blocks of 16 tokens, no model and no bytes.
Jobs land a few steps after they were made, or when a flush asks for it. After a warm-up the same run goes on under one watch
after another, each with its own sample, round after round. What is timed is each call that goes through the watch, less what
the original method took, less what the timing itself takes, which calls of nothing between the steps tell; and beside it each
hook of the connector, less what the watch took inside. Both figures of a round come from the same steps, and their ratio is
what counts: the median of the rounds, with the lowest and the highest. Beside it stands what the watch is of a whole step of
the scheduler, as the steps of the same round without a watch tell: ``schedule`` and ``update_from_output``, no model.

What the garbage collector takes is told apart, for its pauses fall
on whoever asks for memory next; each round has some steps without a watch, which tell what it takes then. As in vLLM's own
engine, what was there before the first request is out of its sight.

With ``--before`` each round is a process of its own, here and in a copy of an earlier commit, in turns: what is told is the
share here, of the share there.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import asdict, frozen

from tests.bench import RUNNING
from tests.bench.before import COMMIT, copy_of, in_turns, middle
from tests.bench.targets import NO_MORE
from tests.programs import importing, natural, positive, refused, stoppable, table
from tests.vllm.stopwatch import Stopwatch

with importing("tests.vllm.bench_watch", __name__):
    from blocklife.engines.vllm.watch import Options, Watch, WatchMode, attach, detach
    from tests.vllm.engine import RELEASE
    from tests.vllm.population import HOOKS, Population

SAMPLES = (1, 4, 16, 64)
CLOCKS = {"wall": time.perf_counter_ns, "processor": time.thread_time_ns}
"""Nothing here waits. On a machine that does something else, too, the time on a processor says more, although to ask for it
takes as long as much of what is timed."""
NONE = 0
"""The sample of no watch."""
CONNECTORS = ("_jobs", "prepare_load", "submit_load")
"""What parts of the connector have: its scheduler, its managers of the host, its tiers below."""
MODES = {mode.name.lower(): mode for mode in WatchMode}
NUM_DUMMIES = 20
NUM_FIRST = 24
"""Steps of a new watch that are not timed."""


@frozen
class Cost:
    """Mean microseconds a step, of the median round."""

    release: str
    running: int
    mode: str
    sample: int
    steps: int
    """In each round."""
    watch_us: float
    connector_us: float
    collector_us: float
    """The garbage collector, whoever called for it."""
    schedule_us: float
    """The whole of ``schedule`` and ``update_from_output``, the watch included."""
    shares: list[float]
    """What the watch adds to the connector's own time, in each round."""
    of_steps: list[float]
    """What it adds to the whole time of ``schedule`` and ``update_from_output``, as that is without a watch, in each round."""

    @property
    def share(self) -> float:
        """The median of all rounds."""
        return statistics.median(self.shares)

    @property
    def of_step(self) -> float:
        """The same of the whole."""
        return statistics.median(self.of_steps)

    @classmethod
    def of(cls, running: int, watched: Watched, steps: int, rounds: Sequence[Times], plain: Sequence[Times]) -> Cost:
        """From the times of each round, and those of its steps without a watch."""
        watch, connector, collector, schedule = (round(statistics.median(each), 1) for each in zip(*rounds, strict=True))
        shares = [round(each.watch / each.connector, 4) for each in rounds]
        of_steps = [round(each.watch / without.schedule, 4) for each, without in zip(rounds, plain, strict=True)]
        return cls(RELEASE, running, *watched, steps, watch, connector, collector, schedule, shares, of_steps)


class Watched(NamedTuple):
    """How a watch is set; a sample of `NONE`: there is none."""

    mode: str
    sample: int


class Times(NamedTuple):
    """Microseconds a step, in one round."""

    watch: float
    connector: float
    collector: float
    schedule: float


class Dummy:
    """An object with a method that goes through a watch that does nothing: what is measured of it is the measuring."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._clock = stopwatch.clock
        self.plain = functools.partial(self._through, self.nothing)
        self.timed = stopwatch.around("dummy", functools.partial(self._through, stopwatch.around("nothing", self.nothing)))

    def nothing(self, *args: object, **kwargs: object) -> None:
        """Nothing."""

    def _through(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        return original(*args, **kwargs)

    def forward_ns(self) -> float:
        """What calling through takes without any measuring: that much of it is the watch's."""
        took = []
        for method in (self.plain, self.nothing):
            began = self._clock()
            for _ in range(50_000):
                method(self, 1, key=2)
            took.append((self._clock() - began) / 50_000)
        return max(0.0, took[0] - took[1])


def time_hooks(stopwatch: Stopwatch, connector: object) -> None:
    """Time the hooks of a connector, from here on."""
    for name in HOOKS:
        if (hook := getattr(connector, name, None)) is not None:
            setattr(connector, name, stopwatch.around("connector", hook))


def time_watch(stopwatch: Stopwatch, watch: Watch) -> None:
    """Time each call that goes through a watch as its own, but for what the original method takes."""
    for thing, name, original, make, _ in [each for ears in watch.all_ears for each in ears._made]:
        kind = "connector" if any(hasattr(thing, name) for name in CONNECTORS) else "scheduler"
        setattr(thing, name, stopwatch.around("watch", make(stopwatch.around(kind, original))))


class Bench:
    """One engine with its traffic, and who times it."""

    def __init__(self, running: int, seed: int, clock: Callable[[], int], *, below: bool = False) -> None:
        self._population = Population("offloading", running, seed, clock, below=below)
        self.stopwatch = Stopwatch(clock)
        self._dummy = Dummy(self.stopwatch)
        self._forward_ns = self._dummy.forward_ns()
        time_hooks(self.stopwatch, self._population.scheduler.connector)

    def step(self) -> int:
        """One step of the engine, if nobody wants to stop. Returns what the scheduler took of it, in nanoseconds."""
        self.stopwatch.go_on()
        return self._population.step()

    @property
    def running(self) -> int:
        """How many requests run now."""
        return len(self._population.scheduler.running)

    @property
    def tier_jobs(self) -> tuple[int, int]:
        """Jobs of a tier below that are over: stores and loads."""
        files = self._population.files
        return (0, 0) if files is None else (files.stores, files.loads)

    def round(self, watched: Watched, steps: int) -> Times:
        """What each of some steps takes under a watch, or under none."""
        population, stopwatch, dummy = self._population, self.stopwatch, self._dummy
        watch = None
        if watched.sample != NONE:
            mode = MODES[watched.mode]
            options = Options(mode=mode, sample=watched.sample, jobs=mode is WatchMode.STRICT)  # as from the environment
            watch = attach(population.scheduler, options)
            time_watch(stopwatch, watch)
            for _ in range(NUM_FIRST):
                self.step()
        stopwatch.clear()
        took, measuring = 0, list[float]()
        for _ in range(steps):
            took += self.step()
            before = stopwatch.own["dummy"]
            for _ in range(NUM_DUMMIES):
                dummy.timed(population, 1, key=2)
            measuring.append((stopwatch.own["dummy"] - before) / NUM_DUMMIES)
        wasted = statistics.median(measuring) - self._forward_ns  # the median: one of them may have lost its processor
        own = stopwatch.own["watch"] - stopwatch.calls["watch"] * max(0.0, wasted)
        if watch is not None:
            if watch.counts or watch.lost:
                raise RuntimeError(f"the watch was not silent: {dict(watch.counts)} {watch.lost}")
            detach(population.scheduler)
        return Times(*(each / steps / 1e3 for each in (own, stopwatch.own["connector"], stopwatch.collector, took)))


def measure(bench: Bench, running: int, warm_up: int, rounds: int, steps: int, settings: Sequence[Watched]) -> list[Cost]:
    """The costs at one size: in each round one setting after the other, all of one run."""
    plain = Watched("none", NONE)
    times: dict[Watched, list[Times]] = {watched: [] for watched in (plain, *settings)}
    with bench.stopwatch.listening():
        for _ in range(warm_up):
            bench.step()
        for number in range(rounds):
            for watched, found in times.items():
                found.append(bench.round(watched, steps))
                told = f"{running} requests, round {number + 1} of {rounds}, {watched.mode}, sample {watched.sample or 'none'}"
                print(f"{told}: {found[-1].watch / found[-1].connector:.1%}", file=sys.stderr, flush=True)
    return [Cost.of(bench.running, watched, steps, found, times[plain]) for watched, found in times.items()]


def markdown(costs: Sequence[Cost]) -> str:
    """A table."""
    heads = [">running", "mode", ">one of", ">connector, us a step", ">collector", ">watch", ">share: median (range)"]
    rows = []
    for cost in costs:
        cells = [
            str(cost.running),
            cost.mode,
            str(cost.sample or "none"),
            f"{cost.connector_us:.0f}",
            f"{cost.collector_us:.0f}",
        ]
        if cost.sample != NONE:
            cells.append(f"{cost.watch_us:.0f}")
            cells.append(f"{cost.share:.1%} ({min(cost.shares):.1%} to {max(cost.shares):.1%})")
            cells.append(f"{cost.of_step:.1%}")
        else:
            cells += ["", "", f"{cost.schedule_us:.0f} us"]
        rows.append(cells)
    return table([*heads, ">of a whole step"], rows)


def beside(commit: str, chosen: argparse.Namespace) -> list[dict[str, object]]:
    """What the watch is of the connector's own time, here and in an earlier commit: medians of rounds, and of their ratios."""
    if (earlier := copy_of(commit)) is None:
        refused("tests.vllm.bench_watch", f"nothing to compare with: there is no copy of {commit}")
    words = ["-m", "tests.vllm.bench_watch", "--json", "--rounds", "1", *["--below"] * chosen.below, "--clock", chosen.clock]
    for name in ("running", "samples", "modes"):
        words += [f"--{name}", *map(str, getattr(chosen, name))]
    for name in ("steps", "warm_up", "seed"):
        words += [f"--{name.replace('_', '-')}", str(getattr(chosen, name))]
    rounds = in_turns("the watch", words, earlier, chosen.rounds)
    rows: list[dict[str, object]] = []
    for at, row in enumerate(rounds[0][0]):
        if row["sample"] != NONE:
            share, before = middle([mine[at]["share"] for mine, _ in rounds], [other[at]["share"] for _, other in rounds])
            told = {name: row[name] for name in ("release", "running", "mode", "sample")}
            rows.append({**told, "core": RUNNING, "share": share, "before": before, "bar": str(NO_MORE)})
    return rows


def beside_markdown(rows: Sequence[Mapping[str, Any]], commit: str) -> str:
    """A table."""
    heads = [">running", "mode", ">one of", ">share", f">at {commit}", ">ratio", "the bar"]
    cells = []
    for row in rows:
        share, before = row["share"], row["before"]
        told = [f"{share:.1%}", f"{before:.1%}", f"{share / before:.2f}", row["bar"]]
        cells.append([row["running"], row["mode"], row["sample"], *told])
    return table(heads, cells)


@stoppable
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.bench_watch", description=__doc__)
    parser.add_argument("--running", nargs="+", type=positive, default=[64, 256, 1024])
    parser.add_argument("--samples", nargs="+", type=positive, default=list(SAMPLES))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["count"])
    parser.add_argument("--below", action="store_true", help="with vLLM's file-system tier below a host that is too small")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--steps", type=positive, default=50, help="for each sample, in each round")
    parser.add_argument("--warm-up", type=natural, default=300)
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="that of a processor where the machine is busy")
    parser.add_argument("--before", nargs="?", const=COMMIT, metavar="COMMIT", help=f"beside an earlier commit ({COMMIT})")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    costs: list[Cost] = []
    if chosen.before:
        found = beside(chosen.before, chosen)
        print(json.dumps(found, indent=1) if chosen.json else beside_markdown(found, chosen.before), end="")
        return 0
    for running in chosen.running:
        bench = Bench(running, chosen.seed, CLOCKS[chosen.clock], below=chosen.below)
        settings = [Watched(mode, sample) for mode in chosen.modes for sample in chosen.samples]
        costs += measure(bench, running, chosen.warm_up, chosen.rounds, chosen.steps, settings)
        if chosen.below:
            print(f"{running} requests: jobs of the tier: %d stores, %d loads" % bench.tier_jobs, file=sys.stderr)
    rows = [{**asdict(cost), "share": round(cost.share, 4)} for cost in costs]
    print(json.dumps(rows, indent=1) if chosen.json else markdown(costs), end="\n" if chosen.json else "")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
