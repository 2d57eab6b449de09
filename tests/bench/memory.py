"""What host memory costs where no device is needed: taking it, the runs of a copy, and a slot on its way to a store below.

Each peer does the same as it is done without what makes ours cheap: memory shared and written by one thread, runs made for
each layer, and a slot gathered from a region for each layer. Taking memory is in wall-clock time, for several threads do it.
"""

from __future__ import annotations

import mmap
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import torch

from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._checked import PlaceSums
from blocklife.copiers.torch._launching import LaunchingDevice
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.ledger import Direction, JobId, Transfer, Worker
from tests.bench import Figure, Scale, microseconds
from tests.gpu.movers import ForcedHost

LAYERS, JOB_BLOCKS = 160, 256
"""Keys and values of eighty layers, and what the offload scheduler puts into one job: 40,960 runs."""
PAGE_BYTES = 16 << 10
TAKEN_BYTES = 2 << 30


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    return [taking(scale), runs(scale), launching(scale), behind(scale), slots(scale), sums(scale)]


def taking(scale: Scale) -> Figure:
    """Seconds until memory is there, of what one thread needs that writes a byte of each page of shared memory."""
    nbytes = TAKEN_BYTES if scale.full else 1 << 20

    def ours() -> None:
        HostMemory(1 << 20, nbytes >> 20, pinned=False).close()

    def peer() -> None:
        mapping = mmap.mmap(-1, nbytes)
        content = np.frombuffer(mapping, np.uint8)
        content[:: mmap.PAGESIZE] = 0
        del content
        mapping.close()

    seconds: dict[Callable[[], None], list[float]] = {ours: [], peer: []}
    for turn in range(scale.repetitions):
        for take in (ours, peer) if turn % 2 else (peer, ours):
            begin = time.perf_counter()
            take()
            seconds[take].append(time.perf_counter() - begin)
    return Figure(
        name=f"taking {nbytes >> 20:,} MiB of host memory",
        ours=statistics.median(seconds[ours]),
        unit="s",
        peer_name="one thread, shared memory",
        peer=statistics.median(seconds[peer]),
        target="at most 0.59",
    )


def runs(scale: Scale) -> Figure:
    """Microseconds for the runs of one job, of what they take if they are made for each layer."""
    layers, blocks = (LAYERS, JOB_BLOCKS) if scale.full else (4, 8)
    cache = KvCache([[torch.zeros(4 * blocks, 64, dtype=torch.uint8) for _ in range(layers)]])
    dice = np.random.default_rng(0)
    source, target = (dice.permutation(4 * blocks)[:blocks] for _ in range(2))
    asked = Transfer(JobId(1, 1), Direction.STORE, source, target, (blocks,))
    bases = [tensor.data_ptr() for tensor in cache.layers]
    with HostMemory(cache.row_bytes, 4 * blocks, pinned=False) as host:
        layout = CopyLayout(cache, host)

        def each_layer() -> object:
            order = np.argsort(target)
            parts = []
            for layer, base in enumerate(bases):
                device, place = base + source[order] * 64, layout.rows.data_ptr() + target[order] * cache.row_bytes + layer * 64
                joins = (device[1:] == device[:-1] + 64) & (place[1:] == place[:-1] + 64)
                firsts = np.flatnonzero(np.concatenate(([True], ~joins)))
                parts.append((device[firsts], place[firsts], np.diff(np.append(firsts, blocks)) * 64))
            return [np.concatenate(column) for column in zip(*parts, strict=True)]

        steps = {"ours": lambda: layout.pages(asked, *layout.ends(asked)), "peer": each_layer}
        found = microseconds(steps, 60 if scale.full else 6)
    return Figure(
        name=f"runs of {blocks} blocks in {layers} layers",
        ours=found["ours"],
        unit="us",
        peer_name="made for each layer",
        peer=found["peer"],
        target="at most 0.2",
    )


class Idle:
    """A mover that moves nothing: what it takes to move is not what is measured."""

    def move(self, pages: Pages, direction: Direction) -> None:
        """Nothing."""


def launching(scale: Scale) -> Figure:
    """Microseconds of the engine's thread for launching one job, and reporting it when it is over."""
    layers, blocks = (LAYERS, JOB_BLOCKS) if scale.full else (4, 8)
    cache = KvCache([[torch.zeros(4 * blocks, 64, dtype=torch.uint8) for _ in range(layers)]])
    dice = np.random.default_rng(0)
    source, target = (dice.permutation(4 * blocks)[:blocks] for _ in range(2))
    with HostMemory(cache.row_bytes, 4 * blocks, pinned=False) as host:
        device = LaunchingDevice(ForcedHost(CopyLayout(cache, host), Idle()))
        copier = TorchCopier(cache, host, worker=Worker(0), device=device)
        copier.computed()
        numbers = count(1)

        def launch() -> None:
            job = JobId(1, next(numbers))
            copier.launch(Transfer(job, Direction.STORE, source, target, (blocks,)))
            copier.wait([job])
            copier.poll()

        found = microseconds({"launch": launch}, 60 if scale.full else 6)
        copier.close()
    return Figure(
        name=f"launching and reporting {blocks * layers:,} runs, on the engine's thread",
        ours=found["launch"],
        unit="us",
        target="at most 1,000",
    )


class PacedMover:
    """A mover that takes as long as a driver's batch, with the interpreter's lock free as there, and moves nothing."""

    def __init__(self, watched: int) -> None:
        self.watched = watched
        self.begun = threading.Event()
        """A copy of so many runs has begun to be launched."""

    def move(self, pages: Pages, direction: Direction) -> None:
        """Take a microsecond a run."""
        if len(pages) == self.watched:
            self.begun.set()
        time.sleep(len(pages) * 1e-6)


def behind(scale: Scale) -> Figure:
    """Milliseconds until a load of one block is launched behind one of many; of what it takes with both on one stream."""
    layers, blocks = (LAYERS, JOB_BLOCKS) if scale.full else (4, 64)
    cache = KvCache([[torch.zeros(2 * blocks, 64, dtype=torch.uint8) for _ in range(layers)]])
    mover = PacedMover(layers)
    numbers = count(1)

    def milliseconds(copier: TorchCopier) -> float:
        def load(ids: Sequence[int]) -> JobId:
            job = JobId(1, next(numbers))
            copier.launch(Transfer(job, Direction.LOAD, np.array(ids), np.array(ids), (len(ids),)))
            return job

        mover.begun.clear()
        load(range(0, 2 * blocks, 2))
        begin = time.perf_counter()
        small = load([1])
        mover.begun.wait()
        found = 1e3 * (time.perf_counter() - begin)
        copier.wait([small, JobId(1, small.number - 1)])
        copier.poll()
        return found

    found = {"ours": [0.0], "peer": [0.0]}
    with HostMemory(cache.row_bytes, 2 * blocks, pinned=False) as host:
        copiers = {}
        for which, large_bytes in (("ours", cache.row_bytes), ("peer", 1 << 60)):
            device = LaunchingDevice(ForcedHost(CopyLayout(cache, host), mover))
            copiers[which] = TorchCopier(cache, host, worker=Worker(0), device=device)
            copiers[which]._large_bytes = large_bytes
            copiers[which].computed()
        for which, copier in copiers.items():
            found[which] = [milliseconds(copier) for _ in range(20 if scale.full else 2)]
            copier.close()
    return Figure(
        name=f"until {layers} runs are launched behind {blocks * layers:,}",
        ours=statistics.median(found["ours"]),
        unit="ms",
        peer_name="on one stream",
        peer=statistics.median(found["peer"]),
        target="at most 0.3",
    )


def slots(scale: Scale) -> Figure:
    """Microseconds to get a slot into staging, of what it takes from a region for each layer."""
    layers, number = (LAYERS, 32) if scale.full else (4, 2)
    rows = np.zeros((number, layers * PAGE_BYTES), np.uint8)
    regions = [np.zeros((number, PAGE_BYTES), np.uint8) for _ in range(layers)]
    staging = np.zeros(layers * PAGE_BYTES, np.uint8)

    def ours() -> None:
        for slot in range(number):
            staging[:] = rows[slot]

    def peer() -> None:
        for slot in range(number):
            for layer, region in enumerate(regions):
                staging[layer * PAGE_BYTES : (layer + 1) * PAGE_BYTES] = region[slot]

    found = microseconds({"ours": ours, "peer": peer}, 30 if scale.full else 3)
    return Figure(
        name=f"a slot of {layers * PAGE_BYTES >> 10:,} KiB to staging",
        ours=found["ours"] / number,
        unit="us",
        peer_name="gathered from a region for each layer",
        peer=found["peer"] / number,
        target="at most 1.0",
    )


def sums(scale: Scale) -> Figure:
    """Microseconds to sum a place of host memory (`host_checksums`), of what it takes to copy it."""
    layers, number = (LAYERS, 64) if scale.full else (4, 2)
    with HostMemory(layers * PAGE_BYTES, number, pinned=False) as host, ThreadPoolExecutor(1) as pool:
        rows, target = host.rows.numpy(), np.zeros(layers * PAGE_BYTES, np.uint8)
        places, checks = np.arange(number), PlaceSums(host, pool, print)

        def copied() -> None:
            for place in places:
                target[:] = rows[place]

        found = microseconds({"ours": lambda: checks.wrong(places), "peer": copied}, 20 if scale.full else 3)
    return Figure(
        name=f"the sum of a place of {layers * PAGE_BYTES >> 10:,} KiB",
        ours=found["ours"] / number,
        unit="us",
        peer_name="its copy on the host",
        peer=found["peer"] / number,
        target="at most 2.0",
    )
