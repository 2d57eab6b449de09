"""An engine that keeps the contracts and otherwise does what the dice say: stores, loads, kernels, polls and waits.

*Theory.* What is stored or loaded next may touch what is on its way: the copier orders that, and the shadow does it in the
order of the launches. Only a kernel must not write what a store still reads: for that the engine looks at reports and waits, as
the ledger makes it do. A copier with faults cuts some jobs short; its statistics say so at the launch, and the shadow is told.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

import numpy as np
import torch

from blocklife.copiers import FaultRates, FaultyCopier
from blocklife.ledger.records import JobId, Result
from tests.gpu.movers import ForcedCuda, is_cuda
from tests.gpu.rigs import LOAD, STORE, Rig, job, settle, transfer
from tests.gpu.shadow import Bytes, pages_of
from tests.gpu.stages import nap

FAULTS = FaultRates(fail=0.1, late=0.1, twice=0.1, reorder=0.1, never=0.06)


class Traffic:
    """A rig under traffic. ``said`` is what the copier reported of each job; ``wrong`` what somebody has read in vain."""

    def __init__(self, rig: Rig, seed: int, rates: FaultRates) -> None:
        self.rig = rig
        self.copier = FaultyCopier(rig.copier, rates, np.random.default_rng(seed))
        self.cut: set[JobId] = set()
        self.said: dict[JobId, list[Result]] = {}
        self.num_reads = 0
        self._dice = random.Random(seed)
        self._where = rig.cache.device
        self._streams = [stream.inner for stream in rig.device.named.values()] if isinstance(rig.device, ForcedCuda) else []
        self._engines: list[torch.cuda.Stream] = []
        if is_cuda(self._where):
            self._engines = [torch.cuda.Stream(device=self._where) for _ in range(2)]
        self._reading: dict[JobId, set[int]] = {}
        self._read: list[tuple[torch.Tensor, Bytes]] = []

    def step(self) -> None:
        """One thing, whatever the dice say."""
        dice = self._dice
        match dice.choices(["store", "load", "forward", "poll", "wait", "nap"], [5, 5, 4, 4, 0.5, 2])[0]:
            case "store":
                self.copy(store=True)
            case "load":
                self.copy(store=False)
            case "forward":
                self.forward()
            case "poll":
                self.hear()
            case "wait":
                self.wait([job(dice.randint(1, self.rig.num_jobs + 1)) for _ in range(2)])
            case _:
                self._nap()

    def copy(self, *, store: bool) -> None:
        """Move a few blocks of some groups; targets never twice in one job."""
        rig, dice = self.rig, self._dice
        blocks, places, count = rig.cache.num_blocks, rig.host.num_places, dice.randint(1, 6)
        sizes = [0] * rig.cache.num_groups
        for _ in range(count):
            sizes[dice.randrange(len(sizes))] += 1
        sources = dice.choices(range(blocks if store else places), k=count)
        targets = dice.sample(range(places if store else blocks), k=count)
        rig.num_jobs += 1
        asked = transfer(rig.num_jobs, STORE if store else LOAD, sources, targets, tuple(sizes))
        before = self.copier.statistics()
        self.copier.launch(asked)
        after = self.copier.statistics()
        cut = after.num_failed + after.num_never > before.num_failed + before.num_never
        rig.shadow.move(asked, count // 2 if cut else None)
        if cut:
            self.cut.add(asked.job)
        if store:
            self._reading[asked.job] = set(sources)

    def forward(self) -> None:
        """A forward pass that reads some blocks, and writes some that no store reads."""
        rig, dice = self.rig, self._dice
        free = [block for block in range(rig.cache.num_blocks) if not any(block in busy for busy in self._reading.values())]
        writes = dice.sample(free, k=min(len(free), dice.randint(0, 3)))
        reads = dice.sample(range(rig.cache.num_blocks), k=2)
        engine = self._engine()
        rig.copier.before_forward(engine, None if dice.random() < 0.3 else writes + reads)
        with torch.cuda.stream(engine):  # None: no stream is changed
            self._read_and_write(reads, writes)
        if engine is not None and dice.random() < 0.5:
            rig.copier.computed(engine.record_event())
        else:
            rig.copier.computed(engine)

    def hear(self) -> None:
        """What was reported is over, and lies still."""
        for completion in self.copier.poll():
            self.said.setdefault(completion.job, []).append(completion.result)
            self._reading.pop(completion.job, None)

    def wait(self, jobs: Collection[JobId]) -> None:
        """What was waited for lies still, whether it is ever reported or not."""
        self.copier.wait(jobs)
        for each in jobs:
            self._reading.pop(each, None)

    def wrong(self) -> list[str]:
        """Wait for all, hear all that is left, and compare every byte and everything that was read."""
        self.wait([job(number) for number in range(1, self.rig.num_jobs + 1)])
        settle(self._where)
        while self.copier.busy():
            self.hear()
        self.hear()
        found = self.rig.shadow.wrong()
        found += [
            f"read {number}: not what was there"
            for number, (seen, wanted) in enumerate(self._read)
            if not np.array_equal(seen.cpu().numpy(), wanted)
        ]
        return found + self._wrong_reports()

    def _wrong_reports(self) -> list[str]:
        """A cut job was reported FAILED or never, the others OK; how often each fault struck is what was heard of it."""
        found = [f"job {each}: {told}, cut: {each in self.cut}" for each, told in self.said.items() if self._lies(each, told)]
        statistics = self.copier.statistics()
        heard = Counter(len(told) for told in self.said.values())
        wanted = {
            "silent": (self.rig.num_jobs - len(self.said), statistics.num_never),
            "twice": (heard[2], statistics.num_twice),
            "oftener": (sum(heard.values()) - heard[1] - heard[2], 0),
        }
        return found + [f"{what}: {have} jobs, and should be {want}" for what, (have, want) in wanted.items() if have != want]

    def _lies(self, each: JobId, told: list[Result]) -> bool:
        return {*told} != {Result.FAILED if each in self.cut else Result.OK}

    def _engine(self) -> torch.cuda.Stream | None:
        """The engine's next stream; what it computes comes after what the other one has computed."""
        if not self._engines:
            return None
        self._engines.reverse()
        self._engines[0].wait_stream(self._engines[1])
        return self._engines[0]

    def _read_and_write(self, reads: list[int], writes: list[int]) -> None:
        group = self._dice.randrange(len(self.rig.cache.groups))
        layers, pages = self.rig.cache.groups[group], self.rig.shadow.device[group]
        for layer, known in zip(layers, pages, strict=True):
            there = pages_of(layer)
            for block in reads:
                self._read.append((there[block].clone(), known[block].copy()))
                self.num_reads += 1
            for block in writes:
                byte = self._dice.randrange(256)
                there[block].fill_(byte)
                known[block] = byte

    def _nap(self) -> None:
        """Some stream is slow for a while: one of the engine's, or one of the copier's."""
        if streams := [*self._engines, *self._streams]:
            with torch.cuda.stream(self._dice.choice(streams)):
                nap(3 * self._dice.random())
