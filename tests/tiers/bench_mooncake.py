"""``python -m tests.tiers.bench_mooncake``: how fast content moves through `StoreCopier` to Mooncake, beside its client alone.

Both move the same bytes, in entries of one size, to a process on this machine that lends memory, over TCP: the copier with its
checks, copies and questions, the client straight from one registered area, with as many threads. They take turns; figures are
medians of the rounds, and the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from blocklife.ledger.records import Direction, JobId, Result, TierTransfer, Worker
from blocklife.tiers import Identity, MooncakeStore, StoreCopier
from blocklife.tiers._mooncake import _SETTINGS, _environment, _load
from tests.tiers.mooncake import Lender, Master

TOTAL_BYTES = 64 << 20
CLIENT_BATCH = 128
"""Pages in one call of the client alone, at most."""


class Copying:
    """Through the copier."""

    def __init__(self, master: Master, slot_bytes: int, staging_bytes: int | None, num_threads: int) -> None:
        self.count = TOTAL_BYTES // slot_bytes
        identity = Identity(model="m", dtype="d", groups="full:1", blocks_per_chunk=1, slot_bytes=slot_bytes, num_ranks=1)
        self.host = np.random.default_rng(1).integers(0, 255, (self.count, slot_bytes), np.uint8)
        self.store = MooncakeStore(master.host_and_port)
        self.identity = identity
        self.copier = StoreCopier(
            self.store, self.host, identity, worker=Worker(0), staging_bytes=staging_bytes, num_threads=num_threads
        )
        self.keys = tuple(str(slot).encode() for slot in range(self.count))
        self._jobs = 0

    def move(self, direction: Direction) -> None:
        self._jobs += 1
        job = JobId(1, self._jobs)
        self.copier.launch(TierTransfer(job, direction, np.arange(self.count), bytes(self.count), self.keys, b""))
        self.copier.wait([job])
        (completion,) = self.copier.poll()
        assert (completion.result, list(completion.missing)) == (Result.OK, [])

    def clear(self) -> None:
        self.store.remove([self.identity.name(b"", 0, 0, key) for key in self.keys])

    def close(self) -> None:
        self.copier.close()
        self.store.close()


class Alone:
    """The client alone: no header, no checksum, no copy."""

    def __init__(self, master: Master, page_bytes: int, num_threads: int) -> None:
        self.memory = np.random.default_rng(1).integers(0, 255, TOTAL_BYTES + (1 << 20), np.uint8)
        self.count = TOTAL_BYTES // page_bytes
        address = int(self.memory.ctypes.data)
        with _environment(_SETTINGS):
            self.client = _load("")()
            assert self.client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master.host_and_port) == 0
        assert self.client.register_buffer(address, len(self.memory)) == 0
        self.pool = ThreadPoolExecutor(num_threads)
        batch = min(CLIENT_BATCH, self.count // num_threads)
        names = [f"alone-{page}" for page in range(self.count)]
        self.batches = [
            (
                names[start : start + batch],
                [address + page * page_bytes for page in range(start, min(start + batch, self.count))],
                [page_bytes] * len(names[start : start + batch]),
            )
            for start in range(0, self.count, batch)
        ]

    def put(self) -> None:
        for codes in self.pool.map(lambda batch: self.client.batch_put_from(*batch), self.batches):
            assert set(codes) == {0}

    def get(self) -> None:
        for codes in self.pool.map(lambda batch: self.client.batch_get_into(*batch), self.batches):
            assert min(codes) > 0

    def clear(self) -> None:
        for names, _, _ in self.batches:
            self.client.batch_remove(names, True)


def timed(what: Callable[[], None]) -> tuple[float, float]:
    """MB a second, and milliseconds of this process's processor time for each MB, of all its threads."""
    began, used = time.perf_counter(), time.process_time()
    what()
    return TOTAL_BYTES / (time.perf_counter() - began) / 1e6, (time.process_time() - used) * 1e9 / TOTAL_BYTES


def shown(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):6.0f} ({min(figures):.0f} to {max(figures):.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tiers.bench_mooncake", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slots", type=int, nargs="*", default=[64 << 10, 256 << 10, 1 << 20], metavar="BYTES")
    parser.add_argument("--staging", type=int, metavar="BYTES", help="of the copier; its default, if not given")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    rates = f"{'copier, MB/s':>24}{'client alone, MB/s':>24}"
    print(f"slot, bytes   direction{rates}  ratio   processor, ms a MB: copier, alone")
    for slot_bytes in args.slots:
        with Master("--default_kv_lease_ttl", "5000") as master, Lender(master, 512):
            copying, alone = Copying(master, slot_bytes, args.staging, args.threads), Alone(master, slot_bytes, args.threads)
            turns: list[tuple[str, str, Callable[[], None]]] = [
                ("demote", "copier", partial(copying.move, Direction.DEMOTE)),
                ("demote", "alone", alone.put),
                ("promote", "copier", partial(copying.move, Direction.PROMOTE)),
                ("promote", "alone", alone.get),
            ]
            found: dict[tuple[str, str], list[tuple[float, float]]] = {}
            for number in range(args.rounds + 1):  # the first warms up
                for direction, who, what in turns:
                    rate = timed(what)
                    if number:
                        found.setdefault((direction, who), []).append(rate)
                copying.clear()
                alone.clear()
            for direction in ("demote", "promote"):
                ours, ours_used = zip(*found[direction, "copier"], strict=True)
                theirs, theirs_used = zip(*found[direction, "alone"], strict=True)
                ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
                used = f"{statistics.median(ours_used):16.2f}{statistics.median(theirs_used):8.2f}"
                print(f"{slot_bytes:>11,}   {direction:<9}{shown(ours):>24}{shown(theirs):>24}{ratio:7.2f}{used}", flush=True)
            copying.close()
            alone.client.close()


if __name__ == "__main__":
    main()
