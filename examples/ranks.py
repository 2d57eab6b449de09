"""Replay a workload over several ranks: rank 0 schedules, every rank copies its share and checks its own bytes.

Run it as `torchrun --nproc-per-node 2 examples/ranks.py`; with plain `python` there is one rank. Rank 0 prints how many blocks
each rank has verified, how the jobs ended, and::

    every rank verified as much: True
    corrupt blocks: 0
    leaked places: 0
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import partial

import numpy as np
from attrs import frozen

from blocklife.copiers import CpuCopier, Executor
from blocklife.engines.toy import (
    EngineOptions,
    ForwardPass,
    Ids,
    Memory,
    Station,
    StepInFlight,
    ToyEngine,
    Traffic,
    Words,
    check_and_write,
    generate_workload,
)
from blocklife.ledger import Ledger, Limits, Worker
from blocklife.offload import FullAttention, Geometry, HostTier, OffloadScheduler, Policies
from blocklife.states import Slot

try:
    from blocklife.copiers import Link, LinkError, Ranks, connect, serve
except (ImportError, OSError) as problem:  # a torch that does not load raises either
    sys.exit(f"examples/ranks.py needs torch: {problem} (pip install torch)")

GPU_BLOCKS, HOST_SLOTS, BLOCK_BYTES = 512, 2048, 128
REQUESTS = 60
TIMEOUT_S = 30.0


@frozen(eq=False)
class Seen:
    """What one rank saw in a forward pass, or in the final audit."""

    verified: int
    corrupt: int
    clashes: tuple[str, ...] = ()


@frozen(eq=False)
class Audit:
    """Slots that every rank must hold, with their content."""

    slots: Ids
    expected: Words


def station_of(rank: int) -> Station:
    """The memory of one rank, and who copies there."""
    memory = Memory(GPU_BLOCKS, HOST_SLOTS, BLOCK_BYTES, rank)
    copier = CpuCopier(memory.device, memory.host, worker=Worker(rank), blocks_per_poll=24)
    traffic = Traffic(copier, GPU_BLOCKS, HOST_SLOTS)
    return Station(memory, Executor(traffic), traffic)


# --- every rank but the first ------------------------------------------------------------------------------------------


def follow(station: Station, link: Link) -> None:
    """Do what rank 0 says, until it closes."""
    memory, traffic = station.memory, station.traffic

    def forward(work: object) -> Seen:
        if not isinstance(work, ForwardPass):
            raise TypeError(work)
        traffic.compute(np.concatenate((work.read, work.tail)), work.written)
        verified, corrupt = check_and_write(work, memory, 1.0, np.random.default_rng(0))
        return Seen(verified, corrupt, tuple(traffic.take_clashes()))

    def audit(question: object) -> Seen:
        if not isinstance(question, Audit):
            raise TypeError(question)
        return Seen(len(question.slots), len(memory.corrupt_places(question.slots, question.expected)))

    serve(station.executor, link, forward, audit)


# --- rank 0 ------------------------------------------------------------------------------------------------------------


class RankedEngine(ToyEngine):
    """The reference engine over several ranks, one plan at a time. A lost rank ends every request: it needs them all."""

    def __init__(
        self, ledger: Ledger, offload: OffloadScheduler, station: Station, ranks: Ranks, options: EngineOptions
    ) -> None:
        super().__init__(ledger, offload, [Station(station.memory, ranks, station.traffic)], options)
        self.ranks = ranks
        self.seen: Counter[Worker] = Counter()

    def _run(self, step: StepInFlight) -> None:
        told = self.ranks.execute(step.plan, partial(self._forward, self.stations[0], step.forward), step.forward)
        for worker, result in told.results.items():
            self._note_seen(worker, result)
        self._note_clashes()
        self._settle(step, [told])
        for loss in self.ranks.take_losses():
            print(f"lost {loss.why}", file=sys.stderr)
            self.lose_worker(loss.worker)

    def _note_seen(self, worker: Worker, seen: object) -> None:
        if isinstance(seen, Seen):
            self.seen[worker] += seen.verified
            self.counts.corrupt_blocks += seen.corrupt
            for clash in seen.clashes:
                self._note(clash)

    def audit(self) -> int:
        """The same on every rank."""
        own_slots = self.counts.verified_slots
        leaked = super().audit()
        self.seen[Worker(0)] = self.counts.verified_blocks + self.counts.verified_slots - own_slots
        slots = np.array(self.ledger.slots.where(Slot.READY), dtype=np.int64)
        expected = self._expected([key for slot in slots.tolist() if (key := self.ledger.slots.key(slot)) is not None])
        for worker, result in self.ranks.ask(Audit(slots, expected[:, 0])).items():
            self._note_seen(worker, result)
        return leaked


def engine_of(ranks: Ranks, station: Station, num_ranks: int) -> RankedEngine:
    """An engine with a ledger for so many ranks."""
    limits = Limits(
        num_blocks=GPU_BLOCKS, num_slots=HOST_SLOTS, max_jobs=32, max_requests=1280, num_groups=1, num_workers=num_ranks
    )
    ledger = Ledger(limits, deadline=128.0)
    geometry = Geometry([FullAttention(128)])
    offload = OffloadScheduler(ledger, HostTier(ledger), geometry, Policies())
    options = EngineOptions(
        geometry=geometry,
        step_tokens=8192,
        max_running=256,
        verify=1.0,
        check_every=256,
        prove_every=32,
        ms_per_step=None,
        abort=0.0,
        seed=0,
    )
    return RankedEngine(ledger, offload, station, ranks, options)


def lead(station: Station, links: list[Link]) -> int:
    """Schedule the whole workload; the exit status."""
    ranks = Ranks(station.executor, links, timeout_s=TIMEOUT_S)
    engine = engine_of(ranks, station, 1 + len(links))
    try:
        for request in generate_workload(requests=REQUESTS, seed=1):
            engine.add(request)
        while not engine.idle:
            engine.step()
            if not engine.unfinished and engine.ledger.jobs.live and not ranks.busy():
                engine.prove_quiet()
        engine.check()
        leaked = engine.audit()
    finally:
        ranks.close()
    for rank in ranks.statistics():
        print(f"rank {rank.worker}: {engine.seen[rank.worker]} blocks verified, {rank.num_ok} shares of jobs moved")
    print("jobs:", dict(engine.ledger.counts.ended))
    print("every rank verified as much:", not ranks.lost and len(set(engine.seen.values())) == 1)
    print("corrupt blocks:", engine.counts.corrupt_blocks)
    print("leaked places:", leaked)
    return int(bool(ranks.lost or engine.counts.corrupt_blocks or leaked))


def main() -> int:
    """One rank of however many there are, as torchrun has numbered them."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return lead(station_of(0), [])
    from torch import distributed

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    distributed.init_process_group("gloo")
    rank, links = distributed.get_rank(), connect()
    try:
        status = 0 if rank else lead(station_of(0), links)
        if rank:
            follow(station_of(rank), links[0])
    except LinkError as problem:  # rank 0 is gone, or has given this rank up
        print(f"rank {rank} ends: {problem}", file=sys.stderr)
        status = 1
    distributed.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
