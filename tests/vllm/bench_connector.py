"""``make bench-vllm``: what our connector's hooks cost in a step of vLLM's scheduler, beside those of its own two connectors.

Three engines in one process, alike but for the connector: vLLM's real scheduler, one full-attention group and one sliding
window, no model and no bytes, events and metrics on, ours with its default policy (arc). All get the same requests and make the
same steps, some of one engine and then as many of the next, over and over, so that whatever slows the machine slows all. Copies
land a few steps after they were made, or at once when a step waits for them.

What counts is the time inside the connector's hooks, a step, without the pauses of the garbage collector, which are told apart.
Steps in which requests are let in are also counted apart from those that only decode. All is done again in further passes,
with other requests and with engines of their own, for where their objects lie in memory makes a difference, too. The program
tells the median of the passes' ratios, with the lowest and the highest.

Then ours with a feature beside ours without, in the same way: chunks of several blocks; Mamba states in place of the window; a
store below, to which everything goes that is stored.

The bars beside our ratios are those of `tests.bench.targets`; nobody is failed by them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import asdict, define, evolve, frozen

from tests.bench import RUNNING
from tests.bench.targets import FEATURE, TO_OFFLOADING, TO_SIMPLE, Bar
from tests.programs import importing, natural, positive, stoppable, table
from tests.vllm.stopwatch import Stopwatch
from tests.vllm.worlds import Connector

with importing("tests.vllm.bench_connector", __name__):
    from vllm.envs import enable_envs_cache

    from tests.vllm.engine import RELEASE
    from tests.vllm.population import BLOCK, HOOKS, Feature, Population

TURN = 10
"""Steps of one engine before the next has its turn."""
Engine = tuple[Connector, Feature | None]
CONNECTORS: tuple[Engine, ...] = (("offloading", None), ("simple", None), ("blocklife", None))
FEATURES: tuple[Engine, ...] = (("blocklife", None), ("blocklife", "chunks"), ("blocklife", "states"), ("blocklife", "below"))
CALLED = {"chunks": "chunks of 4 blocks", "states": "Mamba states", "below": "a store below"}


@frozen
class Cost:
    """Microseconds in the hooks of one connector, a step."""

    release: str
    connector: Connector
    feature: str
    """Empty for an engine without one."""
    seed: int
    """Of the requests; each pass has its own."""
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
    bar_to_plain: str = ""


@define(eq=False)
class Sample:
    """One step."""

    hooks: Mapping[str, int]
    collector: int
    schedule: int
    lets_in: bool


def drained(hook: Callable[[], Iterable[object]]) -> Callable[[], list[object]]:
    """A hook that may give a generator: what that does when the scheduler reads it counts, too."""
    return lambda: list(hook())


class Bench:
    """A population, and what the hooks of its connector take."""

    def __init__(self, engine: Engine, running: int, seed: int, stopwatch: Stopwatch, block_tokens: int = BLOCK) -> None:
        connector, feature = engine
        self.population = Population(connector, running, seed, block_tokens=block_tokens, events=True, feature=feature)
        self._stopwatch = stopwatch
        for name in HOOKS:
            if (hook := getattr(self.population.scheduler.connector, name, None)) is not None:
                whole = drained(hook) if name == "take_events" else hook
                setattr(self.population.scheduler.connector, name, self._stopwatch.around(name, whole))

    def step(self) -> Sample:
        """One step of the engine, and its question whether it may go to sleep, if nobody wants to stop."""
        self._stopwatch.go_on()
        self._stopwatch.clear()
        took = self.population.step()
        self.population.scheduler.connector.has_pending_push_work()
        return Sample(dict(self._stopwatch.own), self._stopwatch.collector, took, self.population.let_in)


def measure(
    engines: Sequence[Engine], running: int, steps: int, warm_up: int, seed: int, block_tokens: int = BLOCK
) -> list[Cost]:
    """One pass: all of these engines at one size, in turns."""
    stopwatch = Stopwatch(time.thread_time_ns)
    benches = {engine: Bench(engine, running, seed, stopwatch, block_tokens) for engine in engines}
    samples: dict[Engine, list[Sample]] = {engine: [] for engine in engines}
    with stopwatch.listening():
        for bench in benches.values():
            for _ in range(warm_up):
                bench.step()
        for turn in range(-(-steps // TURN)):
            for engine in engines if turn % 2 else reversed(engines):
                samples[engine] += [benches[engine].step() for _ in range(TURN)]
    costs = [_cost(engine, seed, benches[engine].population, samples[engine]) for engine in engines]
    # a bar is one of the blocks that it was set for
    bars = [_bar(goal, running if block_tokens == BLOCK else 0) for goal in (TO_OFFLOADING, TO_SIMPLE)]
    return [_barred(cost, *bars) if cost.connector == "blocklife" else cost for cost in costs]


def _barred(cost: Cost, offloading: str, simple: str) -> Cost:
    if cost.feature:
        return evolve(cost, core=RUNNING, bar_to_plain=str(FEATURE))
    return evolve(cost, core=RUNNING, bar_to_offloading=offloading, bar_to_simple=simple)


def _bar(goal: Mapping[int, Bar], running: int) -> str:
    return str(goal[running]) if running in goal else ""


def _cost(engine: Engine, seed: int, population: Population, samples: Sequence[Sample]) -> Cost:
    totals = [sum(sample.hooks.values()) for sample in samples]
    decode = [total for total, sample in zip(totals, samples, strict=True) if not sample.lets_in]
    hooks = sorted({hook for sample in samples for hook in sample.hooks})
    return Cost(
        RELEASE,
        engine[0],
        engine[1] or "",
        seed,
        len(population.scheduler.running),
        len(samples),
        mean_us=round(statistics.mean(totals) / 1e3, 1),
        median_us=round(statistics.median(totals) / 1e3, 1),
        decode_us=round(statistics.mean(decode) / 1e3, 1) if decode else 0.0,
        collector_us=round(statistics.mean(sample.collector for sample in samples) / 1e3, 1),
        schedule_us=round(statistics.mean(sample.schedule for sample in samples) / 1e3, 1),
        hooks_us={hook: round(statistics.mean(each.hooks.get(hook, 0) for each in samples) / 1e3, 1) for hook in hooks},
    )


Passes = Sequence[Sequence[Cost]]
"""The costs of the same engines in the same order, at one size, in each pass."""


def markdown(sizes: Sequence[Passes]) -> str:
    """A table with all connectors of a size in one row: microseconds a step, our ratio to either of theirs, and its bar."""
    heads = [">running", ">OffloadingConnector", ">SimpleCPUOffload", ">BlocklifeConnector"]
    heads += [">to Offloading", "the bar", ">to Simple", "the bar", ">decode only"]
    rows = []
    for passes in sizes:
        ours = passes[0][2]
        cells = [str(ours.running), *(_middle([each[at].mean_us for each in passes], 0) for at in range(3))]
        cells += [_ratio(passes, 2, 0), ours.bar_to_offloading or "-", _ratio(passes, 2, 1), ours.bar_to_simple or "-"]
        cells.append(_ratio([each for each in passes if each[0].decode_us and each[2].decode_us], 2, 0, "decode_us"))
        rows.append(cells)
    return table(heads, rows)


def features_markdown(sizes: Sequence[Passes]) -> str:
    """A table with a row for each feature of a size."""
    rows = []
    for passes in sizes:
        for at, cost in enumerate(passes[0][1:], 1):
            means = (_middle([each[engine].mean_us for each in passes], 0) for engine in (0, at))
            rows.append([passes[0][0].running, CALLED[cost.feature], *means, _ratio(passes, at, 0), cost.bar_to_plain])
    return table([">running", "with", ">without it", ">with it", ">ratio", "the bar"], rows)


def _ratio(passes: Passes, ours: int, theirs: int, what: str = "mean_us") -> str:
    """The median of the passes, with the lowest and the highest."""
    found = [getattr(each[ours], what) / getattr(each[theirs], what) for each in passes]
    if len(found) < 2:
        return _middle(found, 2) if found else "-"
    return f"{_middle(found, 2)} ({min(found):.2f} to {max(found):.2f})"


def _middle(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f}"


def tell(costs: Sequence[Cost], number: int, passes: int) -> None:
    """What a pass has found, for whoever waits."""
    ours = costs[-1] if costs[0].connector != "blocklife" else costs[0]
    beside = [each for each in costs if each is not ours]
    ratios = [f"{ours.mean_us / each.mean_us:.2f} of {each.connector}" for each in beside if not each.feature]
    ratios += [f"{each.mean_us / ours.mean_us:.2f} with {CALLED[each.feature]}" for each in beside if each.feature]
    print(f"{ours.running} requests, pass {number} of {passes}: {', '.join(ratios)}", file=sys.stderr, flush=True)
    for cost in costs:
        print(f"  {cost.feature or cost.connector}: {dict(cost.hooks_us)}", file=sys.stderr, flush=True)


@stoppable
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print tables or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.bench_connector", description=__doc__)
    parser.add_argument("--running", nargs="+", type=positive, default=[64, 256, 1024])
    parser.add_argument("--features", nargs="*", type=positive, default=[256], help="sizes at which features are measured")
    parser.add_argument("--passes", type=positive, default=3)
    parser.add_argument("--steps", type=positive, default=200, help="of each engine, in each pass")
    parser.add_argument("--warm-up", type=natural, default=300)
    parser.add_argument("--seed", type=natural, default=0, help="of the first pass")
    parser.add_argument("--block-tokens", type=int, choices=[16, 32, 64, 128], default=BLOCK, help="of both groups")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    enable_envs_cache()  # as vLLM's engine does once it stands: no hook of anybody reads environment variables after that
    found: dict[tuple[Engine, ...], list[Passes]] = {CONNECTORS: [], FEATURES: []}
    for engines, sizes in ((CONNECTORS, chosen.running), (FEATURES, chosen.features)):
        for running in sizes:
            passes: list[list[Cost]] = []
            found[engines].append(passes)
            for number in range(chosen.passes):
                seed = chosen.seed + number
                passes.append(measure(engines, running, chosen.steps, chosen.warm_up, seed, chosen.block_tokens))
                tell(passes[-1], number + 1, chosen.passes)
    if chosen.json:
        every = [cost for sizes in found.values() for passes in sizes for costs in passes for cost in costs]
        print(json.dumps([asdict(cost) for cost in every], indent=1), end="")
        return 0
    print(markdown(found[CONNECTORS]), end="")
    if found[FEATURES]:
        print(f"\n{features_markdown(found[FEATURES])}", end="")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
