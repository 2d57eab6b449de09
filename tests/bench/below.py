"""What a tier below costs: slots to and from files, beside plain files of the same sizes.

Bandwidth is in wall-clock time, since it waits for the system, in turns with a peer that does what cannot be left out: as many
threads write the same bytes into as many new files of one folder, or read them into memory. No checksum, no header, no lock, no
bound, no rename there; each thread has its share of the slots from the start. Every turn has new names, and no file is removed
before the end: a file system may be slow to make files where others were removed just now. What has just been written is read
from the page cache, which is a copy within memory, and once more from the disk. The processor's time, of all threads and with
the system's, is what is left to compare where other work keeps the processors busy.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from blocklife.ledger import Direction, JobId, TierTransfer, Worker
from blocklife.tiers import FileStore, StoreCopier
from tests.bench import Figure, Scale
from tests.bench.offload import identity_of

THREADS = 2
TOTAL = 64 << 20
"""Bytes of one turn."""
SIZES = {"64 KiB": 64 << 10, "512 KiB": 512 << 10, "4 MiB": 4 << 20}
SHARE = "at least 0.9"


class Files:
    """Slots, a store of files, and plain files beside it."""

    def __init__(self, folder: Path, slot_bytes: int, slots: int) -> None:
        self.host = np.random.default_rng(0).integers(0, 256, (slots, slot_bytes), dtype=np.uint8)
        identity = identity_of(slot_bytes)
        self._store = FileStore(folder / "store")
        self._copier = StoreCopier(self._store, self.host, identity, worker=Worker(0), num_threads=THREADS)
        self._pool = ThreadPoolExecutor(THREADS)
        self._folder, self._plain = folder, folder / "plain"
        self._plain.mkdir()
        self._numbers = count(1)

    def demote(self, turn: int) -> None:
        """All slots to the store."""
        self._move(Direction.DEMOTE, turn)

    def promote(self, turn: int) -> None:
        """All slots from the store."""
        self._move(Direction.PROMOTE, turn)

    def promote_beside(self, turn: int) -> None:
        """All slots from the store while all slots go there under other names, which is not waited for."""
        self._launch(Direction.DEMOTE, 1_000 + turn)
        self.promote(turn)

    def settle(self) -> None:
        """Wait for whatever is out."""
        self._copier.wait([JobId(number, 1) for number in range(1, next(self._numbers))])
        self._copier.poll()

    def write(self, turn: int) -> None:
        """All slots to plain files."""
        self._share_out(turn, self._write)

    def read(self, turn: int) -> None:
        """All slots from plain files."""
        self._share_out(turn, self._read)

    def forget(self) -> None:
        """Write everything to the disk, and take it out of the page cache."""
        for path in self._folder.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

    def close(self) -> None:
        """End the threads."""
        self._copier.close()
        self._store.close()
        self._pool.shutdown()

    def _move(self, direction: Direction, turn: int) -> None:
        job = self._launch(direction, turn)
        self._copier.wait([job])
        (missing,) = [landed.missing for landed in self._copier.poll() if landed.job == job]
        if missing:
            raise RuntimeError(f"{len(missing)} of {len(self.host)} slots did not move")

    def _launch(self, direction: Direction, turn: int) -> JobId:
        slots = np.arange(len(self.host))
        keys = tuple(b"%d %d" % (turn, slot) for slot in slots)
        job = JobId(next(self._numbers), 1)
        self._copier.launch(TierTransfer(job, direction, slots, bytes(len(slots)), keys))
        return job

    def _share_out(self, turn: int, move: Callable[[int, int], None]) -> None:
        def share(thread: int) -> None:
            for slot in range(thread, len(self.host), THREADS):
                move(turn, slot)

        list(self._pool.map(share, range(THREADS)))

    def _write(self, turn: int, slot: int) -> None:
        descriptor = os.open(self._plain / f"{turn}-{slot}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, self.host[slot].data)
        finally:
            os.close(descriptor)

    def _read(self, turn: int, slot: int) -> None:
        descriptor = os.open(self._plain / f"{turn}-{slot}", os.O_RDONLY)
        try:
            os.preadv(descriptor, [self.host[slot].data], 0)
        finally:
            os.close(descriptor)


@contextmanager
def files(root: Path, slot_bytes: int, slots: int) -> Iterator[Files]:
    """Files in a folder of their own."""
    folder = root / str(slot_bytes)
    folder.mkdir()
    found = Files(folder, slot_bytes, slots)
    try:
        yield found
    finally:
        found.close()


def bandwidth(scale: Scale) -> Iterator[Figure]:
    """Megabytes a second in each direction, by the size of a slot; reads from the page cache, and from the disk."""
    root = Path(tempfile.mkdtemp(prefix="blocklife-bench-"))
    try:
        yield from _bandwidth(root, scale)
    finally:
        shutil.rmtree(root)


def _bandwidth(root: Path, scale: Scale) -> Iterator[Figure]:
    pairs = (("demote", "write", ""), ("promote", "read", ", cached"), ("promote", "read", ", from the disk"))
    for size, slot_bytes in SIZES.items():
        slots = max(1, TOTAL // slot_bytes) if scale.full else 2
        seconds: dict[str, list[float]] = {}
        used: dict[str, list[float]] = {}
        with files(root, slot_bytes, slots) as made:
            for turn in range(scale.repetitions):
                for ours, peer, how in pairs:
                    if "disk" in how:
                        made.forget()
                    for name in (ours, peer) if turn % 2 else (peer, ours):
                        move: Callable[[int], object] = getattr(made, name)
                        begin, begin_used = time.perf_counter(), time.process_time()
                        move(turn)
                        seconds.setdefault(name + how, []).append(time.perf_counter() - begin)
                        used.setdefault(name + how, []).append(time.process_time() - begin_used)
        megabytes = slots * slot_bytes / 1e6
        for ours, peer, how in pairs:
            what = f"{ours}, slots of {size}{how}"
            yield Figure(
                name=what,
                ours=megabytes / statistics.median(seconds[ours + how]),
                unit="MB a second",
                peer_name=f"{peer} plain files",
                peer=megabytes / statistics.median(seconds[peer + how]),
                target=SHARE,
            )
            yield Figure(
                name=f"{what}, processor",
                ours=statistics.median(used[ours + how]) * 1e3 / megabytes,
                unit="ms a MB",
                peer_name=f"{peer} plain files",
                peer=statistics.median(used[peer + how]) * 1e3 / megabytes,
            )


def yielding(scale: Scale) -> Figure:
    """Megabytes a second that come while as much goes down, of what comes alone (`BelowPolicies.max_demoted_beside`)."""
    slot_bytes, root = SIZES["512 KiB"], Path(tempfile.mkdtemp(prefix="blocklife-bench-"))
    slots = max(1, TOTAL // slot_bytes) if scale.full else 2
    seconds: dict[str, list[float]] = {"promote": [], "promote_beside": []}
    try:
        with files(root, slot_bytes, slots) as made:
            for turn in range(scale.repetitions):
                made.demote(turn)
                for name, taken in seconds.items():
                    begin = time.perf_counter()
                    getattr(made, name)(turn)
                    taken.append(time.perf_counter() - begin)
                    made.settle()
    finally:
        shutil.rmtree(root)
    megabytes = slots * slot_bytes / 1e6
    return Figure(
        name="promote, slots of 512 KiB, while as many are demoted",
        ours=megabytes / statistics.median(seconds["promote_beside"]),
        unit="MB a second",
        peer_name="while none is",
        peer=megabytes / statistics.median(seconds["promote"]),
    )


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    return [*bandwidth(scale), yielding(scale)]
