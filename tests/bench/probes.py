"""``python -P tests/bench/probes.py PROBE [--smoke]``: what `tests.bench.before` measures here and in an earlier commit.

Rules of this file:

* It is run by its path, in the working tree or in the copy of a commit: what it imports is that tree's own.
* So it names only what both have. What an engine calls may have changed between them; how it is called stands in each tree's
  worlds, engines and examples.
* A probe prints JSON: the figure of each thing it has measured, by name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import blocklife
from blocklife.engines.sglang.linker._host import LinkedHost, LinkedPages
from blocklife.engines.sglang.linker._memory import limits_for
from blocklife.engines.toy import Replay, ReplayOptions, generate_workload
from blocklife.ledger import Checking, Completion, Contract, JobId, Launched, Ledger, Limits, Result, Worker
from blocklife.testing.worlds._format import make_world
from tests.bench import microseconds
from tests.bench.exploring import README, SMALL, rate
from tests.bench.offload import World

Figures = dict[str, float]

RANK = Worker(0)
EXAMPLE = "your_engine"
RUNNING, ANSWER, LIFE = 8, 12, 32
"""Of the example's engine: requests, tokens that each samples, and steps before it begins again."""


def steps(full: bool) -> Figures:
    """Microseconds of a step of the offload scheduler, by the number of running requests."""
    count = 96 if full else 6
    return {
        str(running): microseconds({"step": World(running, 0, count).step}, count)["step"]
        for running in ((64, 256, 1_024) if full else (4,))
    }


def exploring(full: bool) -> Figures:
    """States a second of the README's world."""
    return {"states": rate(make_world(README if full else SMALL, "bench"), 1)}


def toy(full: bool) -> Figures:
    """Microseconds that the toy engine, whose pool is the ledger's, spends on scheduling in a step."""
    workload = generate_workload(requests=300 if full else 3, seed=0)
    runs: dict[str, dict[str, Any]] = {
        "one group": {"checking": Checking.OFF},
        "hybrid": {"checking": Checking.OFF, "groups": "full:128,swa:128:1024,mamba:512", "gpu_blocks": 3072},
    }
    return {name: Replay(workload, ReplayOptions(**options)).run().scheduler_us_per_step for name, options in runs.items()}


# --- an engine with a pool of its own ----------------------------------------------------------------------------------------


class Own:
    """The example's engine, with its watch or without: some requests run, each ends after its answer, and others come.

    A copy lands three steps after it was made. Every prompt begins anew, so that nothing is found in the host. The engine walks
    through all of its host to make room, and the watch is not told what is forgotten there: so it begins again with an empty
    host after `LIFE` steps, before it is full.
    """

    def __init__(self, *, watched: bool) -> None:
        self._engine, self._watch = (importlib.import_module(name) for name in ("engine", "watch"))
        self._watched, self._number = watched, 0
        self._begin()

    def _begin(self) -> None:
        blocks = 64 * RUNNING
        self.engine: Any = self._engine.Engine(num_blocks=blocks - 1, num_slots=blocks)
        limits = Limits(num_blocks=blocks, num_slots=blocks, max_jobs=blocks, max_requests=2 * RUNNING)
        ledger = Ledger(limits, contract=Contract.HOLD, own_pool=False, checking=Checking.OFF, deadline=1e6)
        self.acts: Any = self._watch.Watch(self.engine, ledger) if self._watched else self.engine
        self._out: deque[list[int]] = deque(maxlen=4)
        self._left, self._seen = LIFE, 0

    def step(self) -> None:
        """One step, and what comes before it."""
        if not self._left:
            self._begin()
        self._left -= 1
        for _ in range(min(2, RUNNING - len(self.engine.requests))):
            self._number += 1
            self.engine.arrive(f"r{self._number}", f"{self._number:04d}" * 4)
        self.acts.step()
        if not self._watched:
            self.engine.settle()
        self._out.append(list(range(self._seen + 1, self.engine.made + 1)))
        self._seen = self.engine.made
        if len(self._out) == self._out.maxlen:
            for number in self._out[0]:
                self.acts.land(number)
        for name in [name for name, each in self.engine.requests.items() if each.computed >= 16 + ANSWER]:
            self.acts.finish(name)


def own_pool(full: bool) -> Figures:
    """Microseconds of a step of the example's engine, with its watch, and last alone."""
    sys.path.insert(0, str(Path(blocklife.__file__).parents[1] / "examples" / EXAMPLE))
    kinds = {"with its watch": Own(watched=True), "alone": Own(watched=False)}
    return microseconds({name: each.step for name, each in kinds.items()}, 10 * LIFE if full else 6)


# --- SGLang's linker ---------------------------------------------------------------------------------------------------------


class Linked:
    """The linker's host, whose copies land at once."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.host = LinkedHost([limits_for(2 * pages + 1, 65_536)])

    def land(self) -> None:
        """Carry out what is planned, and report it."""
        for memory, plan in self.host.dispatch(0.0):
            jobs: Iterable[JobId] = [each.job for each in (*plan.loads, *plan.stores)]
            self.host.settle(memory, plan, 0.0, [Launched(job, RANK) for job in jobs], [])
            self.host.report(memory, [Completion(job, RANK, Result.OK) for job in jobs])

    def store(self, keys: list[bytes]) -> None:
        """From the offer to the outcome."""
        self.host.store([LinkedPages(0, keys, range(1, self.pages + 1))])
        self.land()
        self.host.acknowledge()

    def lookup(self, keys: list[bytes]) -> None:
        """One that finds all."""
        self.host.lookup([LinkedPages(0, keys)])

    def load(self, keys: list[bytes]) -> None:
        """From the queue to the end."""
        self.host.load("a", [LinkedPages(0, keys, range(self.pages + 1, 2 * self.pages + 1))])
        self.land()
        self.host.finish_loads(self.host.start_loads())

    def step(self, keys: list[bytes]) -> None:
        """With nothing to do."""
        self.land()
        self.host.expire(0.0)
        _ = self.host.num_acknowledged


def linker(full: bool) -> Figures:
    """Microseconds of what the linker does for some pages, the copies left out: the best of twelve."""
    best: Figures = {}
    for pages in (16, 256, 2_048) if full else (4,):
        linked = Linked(pages)
        for turn in range(12 if full else 1):
            keys = [b"%d/%d" % (turn, page) + b"x" * 50 for page in range(pages)]
            for what, act in (
                ("a store", linked.store),
                ("a lookup that finds all", linked.lookup),
                ("a load", linked.load),
                ("a step with nothing to do", linked.step),
            ):
                began = time.thread_time_ns()
                act(keys)
                took, name = (time.thread_time_ns() - began) / 1e3, f"{what}, {pages} pages"
                best[name] = min(took, best.get(name, took))
    return best


PROBES: dict[str, Callable[[bool], Figures]] = {
    "steps": steps,
    "exploring": exploring,
    "toy": toy,
    "own_pool": own_pool,
    "linker": linker,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -P tests/bench/probes.py", description=__doc__)
    parser.add_argument("probe", choices=PROBES)
    parser.add_argument("--smoke", action="store_true", help="see that it runs, not what it costs")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs this tells of it
    print(json.dumps(PROBES[chosen.probe](not chosen.smoke)))
