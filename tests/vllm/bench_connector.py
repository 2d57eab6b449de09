"""``make bench-vllm``: what our connector's hooks cost in a step of vLLM's scheduler, beside those of its own two connectors.

Three engines in one process, alike but for the connector: vLLM's real scheduler, one full-attention group and one sliding
window, no model and no bytes. All get the same requests and make the same steps, some of one engine and then as many of the
next, over and over, so that whatever slows the machine slows all. Copies land a few steps after they were made, or at once when
a step waits for them.

What counts is the time inside the connector's hooks, a step, without the pauses of the garbage collector, which are told apart.
Steps in which requests are let in are also counted apart from those that only decode. The bars beside our ratios are those of
`tests.bench.targets`, for the core as it is interpreted and compiled; nobody is failed by them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from attrs import asdict, define, evolve, frozen

from tests.bench import RUNNING
from tests.bench.targets import TO_OFFLOADING, TO_SIMPLE, Bar
from tests.programs import importing, natural, positive
from tests.vllm.stopwatch import Stopwatch
from tests.vllm.worlds import Connector

with importing("tests.vllm.bench_connector", __name__):
    from tests.vllm.engine import RELEASE
    from tests.vllm.population import BLOCK, HOOKS, Population

TURN = 10
"""Steps of one engine before the next has its turn."""
CONNECTORS: tuple[Connector, ...] = ("offloading", "simple", "blocklife")


@frozen
class Cost:
    """Microseconds in the hooks of one connector, a step."""

    release: str
    connector: Connector
    running: int
    steps: int
    mean_us: float
    median_us: float
    decode_us: float
    """The mean of the steps in which no request was let in."""
    collector_us: float
    """The mean of what the garbage collector took, whoever called for it."""
    schedule_us: float
    """The mean of all that the scheduler took, the hooks included."""
    hooks_us: Mapping[str, float]
    """The mean of each hook."""
    core: str = ""
    """Which core of ours ran; empty for theirs, as are the bars, and where there is none for that size."""
    bar_to_offloading: str = ""
    bar_to_simple: str = ""


@define(eq=False)
class Sample:
    """One step."""

    hooks: Mapping[str, int]
    collector: int
    schedule: int
    lets_in: bool


class Bench:
    """A population, and what the hooks of its connector take."""

    def __init__(self, connector: Connector, running: int, seed: int, stopwatch: Stopwatch, block_tokens: int = BLOCK) -> None:
        self.population = Population(connector, running, seed, block_tokens=block_tokens)
        self._stopwatch = stopwatch
        for name in HOOKS:
            if (hook := getattr(self.population.scheduler.connector, name, None)) is not None:
                setattr(self.population.scheduler.connector, name, self._stopwatch.around(name, hook))

    def step(self) -> Sample:
        """One step of the engine, and its question whether it may go to sleep, if nobody wants to stop."""
        self._stopwatch.go_on()
        self._stopwatch.clear()
        took = self.population.step()
        self.population.scheduler.connector.has_pending_push_work()
        return Sample(dict(self._stopwatch.own), self._stopwatch.collector, took, self.population.let_in)


def measure(running: int, steps: int, warm_up: int, seed: int, block_tokens: int = BLOCK) -> list[Cost]:
    """All connectors at one size, in turns."""
    stopwatch = Stopwatch(time.thread_time_ns)
    benches = {connector: Bench(connector, running, seed, stopwatch, block_tokens) for connector in CONNECTORS}
    samples: dict[Connector, list[Sample]] = {connector: [] for connector in CONNECTORS}
    with stopwatch.listening():
        for bench in benches.values():
            for _ in range(warm_up):
                bench.step()
        for turn in range(-(-steps // TURN)):
            for connector in CONNECTORS if turn % 2 else reversed(CONNECTORS):
                samples[connector] += [benches[connector].step() for _ in range(TURN)]
    costs = [_cost(connector, benches[connector].population, samples[connector]) for connector in CONNECTORS]
    # a bar is one of the blocks that it was set for
    bars = [_bar(goal, running if block_tokens == BLOCK else 0) for goal in (TO_OFFLOADING, TO_SIMPLE)]
    return [*costs[:-1], evolve(costs[-1], core=RUNNING, bar_to_offloading=bars[0], bar_to_simple=bars[1])]


def _bar(goal: Mapping[int, Bar], running: int) -> str:
    return str(goal[running]) if running in goal else ""


def _cost(connector: Connector, population: Population, samples: Sequence[Sample]) -> Cost:
    totals = [sum(sample.hooks.values()) for sample in samples]
    decode = [total for total, sample in zip(totals, samples, strict=True) if not sample.lets_in]
    hooks = sorted({hook for sample in samples for hook in sample.hooks})
    return Cost(
        RELEASE,
        connector,
        len(population.scheduler.running),
        len(samples),
        mean_us=round(statistics.mean(totals) / 1e3, 1),
        median_us=round(statistics.median(totals) / 1e3, 1),
        decode_us=round(statistics.mean(decode) / 1e3, 1) if decode else 0.0,
        collector_us=round(statistics.mean(sample.collector for sample in samples) / 1e3, 1),
        schedule_us=round(statistics.mean(sample.schedule for sample in samples) / 1e3, 1),
        hooks_us={hook: round(statistics.mean(each.hooks.get(hook, 0) for each in samples) / 1e3, 1) for hook in hooks},
    )


def markdown(costs: Sequence[Cost]) -> str:
    """A table with all connectors of a size in one row: microseconds a step, our ratio to either of theirs, and its bar."""
    lines = [
        "| running | OffloadingConnector | SimpleCPUOffload | BlocklifeConnector | to Offloading | the bar "
        "| to Simple | the bar | decode only |",
        "| ---: | ---: | ---: | ---: | ---: | --- | ---: | --- | ---: |",
    ]
    for theirs, simple, ours in _by_size(costs):
        decode = _ratio(ours.decode_us, theirs.decode_us) if theirs.decode_us and ours.decode_us else "-"
        cells = [str(ours.running), *(f"{each.mean_us:.0f}" for each in (theirs, simple, ours))]
        cells += [_ratio(ours.mean_us, theirs.mean_us), ours.bar_to_offloading or "-"]
        cells += [_ratio(ours.mean_us, simple.mean_us), ours.bar_to_simple or "-", decode]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_size(costs: Sequence[Cost]) -> Iterator[tuple[Cost, ...]]:
    return zip(*(costs[at :: len(CONNECTORS)] for at in range(len(CONNECTORS))), strict=True)


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.bench_connector", description=__doc__)
    parser.add_argument("--running", nargs="+", type=positive, default=[64, 256, 1024])
    parser.add_argument("--steps", type=positive, default=200, help="of each engine")
    parser.add_argument("--warm-up", type=natural, default=300)
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--block-tokens", type=int, choices=[16, 32, 64, 128], default=BLOCK, help="of both groups")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    costs: list[Cost] = []
    try:
        for running in chosen.running:
            costs += measure(running, chosen.steps, chosen.warm_up, chosen.seed, chosen.block_tokens)
            theirs, simple, ours = costs[-3:]
            ratios = f"{_ratio(ours.mean_us, theirs.mean_us)} of offloading, {_ratio(ours.mean_us, simple.mean_us)} of simple"
            print(f"{running} requests: {ratios}", file=sys.stderr, flush=True)
            for cost in (theirs, simple, ours):
                print(f"  {cost.connector}: {dict(cost.hooks_us)}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(json.dumps([asdict(cost) for cost in costs], indent=1) if chosen.json else markdown(costs), end="")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
