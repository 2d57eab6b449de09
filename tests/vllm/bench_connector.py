"""``make bench-vllm``: what our connector's hooks cost in a step of vLLM's scheduler, beside those of its OffloadingConnector.

Two engines in one process, alike but for the connector: vLLM's real scheduler, one full-attention group and one sliding window,
blocks of 16 tokens, no model and no bytes. Both get the same requests and make the same steps, some of one engine and then as
many of the other, over and over, so that whatever slows the machine slows both. Copies land a few steps after they were made,
or at once when a step waits for them.

What counts is the time inside the connector's hooks, a step. Steps in which requests are let in are also counted apart from
those that only decode.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import asdict, define, field, frozen
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from blocklife.engines.vllm.connector.connector import WorkerMetadata
from blocklife.engines.vllm.connector.messages import WorkerReport
from blocklife.ledger import Completion, JobId, Launched, Result, Worker
from tests.vllm.engine import MAX_MODEL_LEN, RELEASE, Engine
from tests.vllm.worlds import Connector, GroupSpec, WorldSpec

HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "get_external_cache_hit_sources",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "take_events",
    "has_pending_push_work",
    "get_kv_connector_stats",
)
BLOCK, WINDOW, LAG = 16, 512, 3
TURN = 10
"""Steps of one engine before the other has its turn."""
RANK = Worker(0)


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
    schedule_us: float
    """The mean of all that the scheduler took, the hooks included."""
    hooks_us: Mapping[str, float]
    """The mean of each hook."""


class Workers(Protocol):
    """Stands for the workers: takes what a step's metadata says, and answers for them."""

    def run(self, output: SchedulerOutput) -> KVConnectorOutput:
        """What they report of one step."""
        ...


class TheirWorkers:
    """Those of the OffloadingConnector."""

    def __init__(self) -> None:
        self._step = 0
        self._out: OrderedDict[int, tuple[int, str]] = OrderedDict()

    def run(self, output: SchedulerOutput) -> KVConnectorOutput:
        """What they report of one step."""
        self._step += 1
        meta = output.kv_connector_metadata
        done = [(job, self._out.pop(job)[1]) for job in meta.jobs_to_flush or () if job in self._out]
        for job, load in meta.load_jobs.items():
            self._out[job] = (self._step + LAG, load.req_id)
        for job in meta.store_jobs:
            self._out[job] = (self._step + LAG, "")
        ready = [job for job, (due, _) in self._out.items() if due <= self._step]
        done += [(job, self._out.pop(job)[1]) for job in ready]
        told = OffloadingWorkerMetadata()
        for job, _ in done:
            told.mark_completed(job)
        loaded = {request for _, request in done if request}
        return KVConnectorOutput(finished_sending=set(), finished_recving=loaded, kv_connector_worker_meta=told)


class OurWorkers:
    """Those of blocklife: stores are launched a step later, or by the flush that waits for them."""

    def __init__(self) -> None:
        self._step = 0
        self._held: list[JobId] = []
        self._out: OrderedDict[JobId, tuple[int, str]] = OrderedDict()

    def run(self, output: SchedulerOutput) -> KVConnectorOutput:
        """What they report of one step."""
        self._step += 1
        step = output.kv_connector_metadata.step
        launched: list[JobId] = []
        done: list[tuple[JobId, str]] = []
        for plan in step.plans:
            for job in self._held:
                self._launch(job, "", launched)
            self._held = [transfer.job for transfer in plan.stores]
            done += [(job, self._out.pop(job)[1]) for job in plan.flushes if job in self._out]
            for transfer in plan.loads:
                self._launch(transfer.job, step.loads.get(transfer.job, ""), launched)
        ready = [job for job, (due, _) in self._out.items() if due <= self._step]
        done += [(job, self._out.pop(job)[1]) for job in ready]
        report = WorkerReport(
            step.number,
            tuple(Launched(job, RANK) for job in launched),
            tuple(Completion(job, RANK, Result.OK) for job, _ in done),
        )
        return KVConnectorOutput(
            finished_sending=set(),
            finished_recving={request for _, request in done if request},
            kv_connector_worker_meta=WorkerMetadata(report),
        )

    def _launch(self, job: JobId, request: str, launched: list[JobId]) -> None:
        launched.append(job)
        self._out[job] = (self._step + LAG, request)


@define(eq=False)
class Stopwatch:
    """Time inside the hooks of one connector, by hook; a hook that another calls belongs to it."""

    took: dict[str, int] = field(factory=dict)
    _inside: bool = False

    def around(self, hook: str, method: Callable[..., object]) -> Callable[..., object]:
        """The method, timed."""

        def timed(*args: object, **kwargs: object) -> object:
            if self._inside:
                return method(*args, **kwargs)
            self._inside = True
            began = time.thread_time_ns()
            try:
                return method(*args, **kwargs)
            finally:
                self.took[hook] = self.took.get(hook, 0) + time.thread_time_ns() - began
                self._inside = False

        return timed


@define(eq=False)
class Sample:
    """One step."""

    hooks: Mapping[str, int]
    schedule: int
    lets_in: bool


class Population:
    """As many running requests as asked for; who ends is followed by another one."""

    def __init__(self, connector: Connector, running: int, seed: int) -> None:
        blocks = int(running * ((1536 + 256) // BLOCK + WINDOW // BLOCK + 3) * 0.8) + 1
        spec = WorldSpec(
            (GroupSpec("full", BLOCK), GroupSpec("swa", BLOCK, WINDOW)),
            blocks,
            4 * blocks,
            max_num_seqs=running,
            max_num_batched_tokens=max(8192, 2 * running),
            connector=connector,
        )
        self.engine = Engine(spec)
        self.scheduler = self.engine.scheduler
        self.workers: Workers = OurWorkers() if connector == "blocklife" else TheirWorkers()
        self.stopwatch = Stopwatch()
        for name in HOOKS:
            if (hook := getattr(self.scheduler.connector, name, None)) is not None:
                setattr(self.scheduler.connector, name, self.stopwatch.around(name, hook))
        self._running = running
        self._dice = random.Random(seed)
        self._families = [[self._dice.randrange(5, 50_000) for _ in range(256)] for _ in range(8)]
        self._sent: list[list[int]] = []
        self._number = 0

    def step(self) -> Sample:
        """One step of the engine."""
        self.stopwatch.took.clear()
        while len(self.scheduler.requests) < self._running + max(4, self._running // 16):
            self._add()
        began = time.thread_time_ns()
        output = self.scheduler.schedule()
        took = time.thread_time_ns() - began
        names = list(output.num_scheduled_tokens)
        said = [[11 + len(name)] if self._speaks(name) else [] for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=said,
            kv_connector_output=self.workers.run(output),
        )
        began = time.thread_time_ns()
        self.scheduler.update_from_output(output, result)
        took += time.thread_time_ns() - began
        self.scheduler.connector.has_pending_push_work()
        lets_in = bool(output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids)
        return Sample(dict(self.stopwatch.took), took, lets_in)

    def _speaks(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def _add(self) -> None:
        dice = self._dice
        if self._sent and dice.random() < 0.2:
            prompt = dice.choice(self._sent[-4096:])
        else:
            prompt = dice.choice(self._families)[: dice.randint(64, 256)]
            prompt = prompt + [dice.randrange(5, 50_000) for _ in range(dice.randint(0, 1280))]
            self._sent.append(prompt)
        self._number += 1
        self.engine.add(f"r{self._number}", prompt, min(dice.randint(64, 512), MAX_MODEL_LEN - len(prompt)))


def measure(running: int, steps: int, warm_up: int, seed: int) -> list[Cost]:
    """Both connectors at one size, in turns."""
    connectors: tuple[Connector, ...] = ("offloading", "blocklife")
    populations = {connector: Population(connector, running, seed) for connector in connectors}
    samples: dict[Connector, list[Sample]] = {connector: [] for connector in connectors}
    gc.collect()
    gc.freeze()  # as the engine does when it is up
    for population in populations.values():
        for _ in range(warm_up):
            population.step()
    for turn in range(-(-steps // TURN)):
        for connector in connectors if turn % 2 else reversed(connectors):
            samples[connector] += [populations[connector].step() for _ in range(TURN)]
    return [_cost(connector, populations[connector], samples[connector]) for connector in connectors]


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
        schedule_us=round(statistics.mean(sample.schedule for sample in samples) / 1e3, 1),
        hooks_us={hook: round(statistics.mean(each.hooks.get(hook, 0) for each in samples) / 1e3, 1) for hook in hooks},
    )


def markdown(costs: Sequence[Cost]) -> str:
    """A table with both connectors of a size in one row."""
    lines = [
        "| running | OffloadingConnector, us a step | BlocklifeConnector | ratio | decode only | | ratio |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for theirs, ours in zip(costs[::2], costs[1::2], strict=True):
        decode = f"{ours.decode_us / theirs.decode_us:.2f}" if theirs.decode_us else "-"
        cells = [str(ours.running), f"{theirs.mean_us:.0f}", f"{ours.mean_us:.0f}", f"{ours.mean_us / theirs.mean_us:.2f}"]
        lines.append(f"| {' | '.join([*cells, f'{theirs.decode_us:.0f}', f'{ours.decode_us:.0f}', decode])} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.bench_connector", description=__doc__)
    parser.add_argument("--running", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--steps", type=int, default=200, help="of each engine")
    parser.add_argument("--warm-up", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    costs: list[Cost] = []
    try:
        for running in chosen.running:
            costs += measure(running, chosen.steps, chosen.warm_up, chosen.seed)
            theirs, ours = costs[-2:]
            print(f"{running} requests: {ours.mean_us / theirs.mean_us:.2f}", file=sys.stderr, flush=True)
            for cost in (theirs, ours):
                print(f"  {cost.connector}: {dict(cost.hooks_us)}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(json.dumps([asdict(cost) for cost in costs], indent=1) if chosen.json else markdown(costs), end="")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
