"""What one step of the offload scheduler costs: hand-outs, windows, seals, stores, completions, with nothing left out.

The world: one full-attention and one sliding-window group of 16-token blocks; every running request grows by a token a step, so
that one in sixteen crosses a boundary in both groups; stores land three steps after they were planned. Idle requests wait.
The figure covers all that an engine calls in a step (`grow`, `build_plan`, `settle`), the ledger's own work included.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import deque
from collections.abc import Callable

from blocklife.ledger import Checking, Completion, Ledger, Limits, Plan, Result, Worker
from blocklife.offload import Geometry, HostTier, OffloadScheduler
from tests.bench import Figure, Scale

BLOCK = 16
WINDOW = 512
PROMPT = 1_024
LAG = 3
VLLM = "at most a tenth of vLLM 0.33.0's hooks on such steps, measured apart: {} ms"
UPSTREAM_MS = {64: 1.76, 256: 8.10, 1_024: 31.5}
"""Milliseconds a step of vLLM 0.33.0's offloading scheduler hooks (mean of two runs on another day)."""


class Names:
    """The keys of one request."""

    def __init__(self, number: int, count: int) -> None:
        self._names = [[bytes((group,)) + (number << 20 | at).to_bytes(7, "little") for at in range(count)] for group in (0, 1)]

    def __call__(self, group: int, start: int, stop: int) -> list[bytes]:
        return self._names[group][start:stop]


class World:
    """Requests that run, others that wait, and a copier that lands every store *LAG* steps later."""

    def __init__(self, running: int, idle: int, steps: int) -> None:
        each = (PROMPT + BLOCK + steps) // BLOCK + 2
        blocks = running * 2 * each + 64
        self.ledger = Ledger(
            Limits(
                num_blocks=blocks,
                num_slots=2 * running * each,
                max_jobs=max(64, running),
                max_requests=running + idle + 1,
                num_groups=2,
            ),
            checking=Checking.OFF,
            deadline=1e6,
        )
        geometry = Geometry.parse(f"full:{BLOCK},swa:{BLOCK}:{WINDOW}")
        self.offload = OffloadScheduler(self.ledger, HostTier(self.ledger), geometry)
        self.now = 0.0
        self.out: deque[tuple[float, list[Completion]]] = deque()
        for number in range(running + idle):
            name = f"r{number}"
            self.offload.add_request(name, Names(number, each), prompt_tokens=PROMPT)
            if number < running:
                # staggered, so that each step has its share of boundaries
                tokens = PROMPT + number % BLOCK
                self.offload.admit(name, self.offload.lookup(name, tokens), tokens)

    def step(self) -> Plan:
        """One engine step without a device."""
        self.now += 1
        self.offload.grow()
        plan = self.offload.build_plan(self.now)
        self.out.append((self.now + LAG, [Completion(each.job, Worker(0), Result.OK) for each in plan.stores]))
        landed = self.out.popleft()[1] if self.out[0][0] <= self.now else []
        self.offload.settle(plan.number, self.now, completions=landed)
        return plan


class PlainTables:
    """What one writes first: every running request is looked at in every step, with its tables in lists and its jobs in dicts.

    No states, no epochs, no pins, no couplings, nothing is checked: the same hand-outs, releases, stores and completions only.
    """

    def __init__(self, running: int, steps: int) -> None:
        each = (PROMPT + BLOCK + steps) // BLOCK + 2
        self.free = list(range(2 * running * each))
        self.slots = list(range(2 * running * each))
        self.tokens = [PROMPT + number % BLOCK for number in range(running)]
        self.tables = [[[self.free.pop() for _ in range(tokens // BLOCK)] for _ in (0, 1)] for tokens in self.tokens]
        self.stored = [[tokens // BLOCK] * 2 for tokens in self.tokens]
        self.keys: dict[tuple[int, int, int], int] = {}
        self.jobs: dict[int, list[tuple[int, int]]] = {}
        self.busy: dict[int, int] = {}
        self.out: deque[list[int]] = deque([] for _ in range(LAG))
        self.number = 0

    def step(self) -> None:
        """One engine step."""
        made: list[int] = []
        for request, tables in enumerate(self.tables):
            tokens = self.tokens[request] = self.tokens[request] + 1
            job: list[tuple[int, int]] = []
            for group, table in enumerate(tables):
                needed = -(-tokens // BLOCK)
                while len(table) < needed:
                    table.append(self.free.pop())
                first = max(0, tokens - WINDOW + 1) // BLOCK if group else 0
                for position in range(first):
                    if table[position] >= 0 and position < self.stored[request][group]:
                        self.free.append(table[position])
                        table[position] = -1
                for chunk in range(self.stored[request][group], tokens // BLOCK):
                    if (key := (request, group, chunk)) not in self.keys and table[chunk] >= 0:
                        self.keys[key] = self.slots.pop()
                        job.append((table[chunk], self.keys[key]))
                        self.busy[table[chunk]] = self.number
                    self.stored[request][group] = chunk + 1
            if job:
                self.number += 1
                self.jobs[self.number] = job
                made.append(self.number)
        self.out.append(made)
        for number in self.out.popleft():
            for block, _ in self.jobs.pop(number):
                self.busy.pop(block, None)


def milliseconds(step: Callable[[], object], count: int) -> float:
    """The median cost of one call, after a first third that warms up."""
    found = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(count):
            begin = time.perf_counter_ns()
            step()
            found.append((time.perf_counter_ns() - begin) / 1e6)
    finally:
        gc.enable()
    return statistics.median(found[count // 3 :])


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    full = scale.models >= 1_000
    steps = 96 if full else 8
    figures = []
    for running in (64, 256, 1_024) if full else (4,):
        plain = milliseconds(PlainTables(running, steps).step, steps)
        for idle in (0, 1_000, 10_000) if full else (0, 8):
            figures.append(
                Figure(
                    name=f"scheduler step, {running} running, {idle} idle",
                    ours=milliseconds(World(running, idle, steps).step, steps),
                    unit="ms",
                    peer_name="plain lists and dicts, nothing checked",
                    peer=plain,
                    target=VLLM.format(UPSTREAM_MS.get(running, 0)) if idle == 0 else "flat in the idle ones",
                )
            )
    return figures
