"""Files that somebody has tampered with, between a demotion and a promotion: each is a counted miss, and heals by itself."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from blocklife.ledger.records import Direction, JobId, Result, TierTransfer, Worker
from blocklife.stores import FileStore, Identity, StoreCopier, StoreOutcome
from tests.stores.arena import value

SLOT_BYTES = 20_000
IDENTITY = Identity(model="m", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=SLOT_BYTES, num_ranks=1)
KEYS = tuple(b"%d" % number for number in range(6))
EMPTY = 0xEE


class Machine:
    """One process's slots, copier and store."""

    def __init__(self, path: Path, identity: Identity = IDENTITY) -> None:
        self.store = FileStore(path, 1 << 20)
        self.host = np.full((len(KEYS), identity.slot_bytes), EMPTY, np.uint8)
        self.copier = StoreCopier(self.store, self.host, identity, worker=Worker(0), staging_bytes=1 << 18)
        self._jobs = 0

    def run(self, direction: Direction) -> tuple[int, ...]:
        """Move all slots; the positions that are missing."""
        self._jobs += 1
        job = JobId(1, self._jobs)
        self.copier.launch(TierTransfer(job, direction, np.arange(len(KEYS)), bytes(len(KEYS)), KEYS, b""))
        self.copier.wait([job])
        (report,) = self.copier.poll()
        assert report.result is Result.OK
        return report.missing

    def demote(self) -> tuple[int, ...]:
        """Fill all slots and demote them; the positions that are missing."""
        for slot, key in enumerate(KEYS):
            self.host[slot] = np.frombuffer(value(key, self.host.shape[1]), np.uint8)
        return self.run(Direction.DEMOTE)

    def promote(self) -> tuple[int, ...]:
        """Those that are missing; the others are checked, and that nothing was written for those that are."""
        self.host[:] = EMPTY
        missing = self.run(Direction.PROMOTE)
        for slot, key in enumerate(KEYS):
            expected = bytes([EMPTY]) * self.host.shape[1] if slot in missing else value(key, self.host.shape[1])
            assert bytes(self.host[slot]) == expected
        return missing

    def close(self) -> None:
        self.copier.close()
        self.store.close()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(identity: Identity = IDENTITY) -> Machine:
        made.append(Machine(tmp_path, identity))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


def path_of(folder: Path, number: int) -> Path:
    name = IDENTITY.name(b"", 0, 0, KEYS[number]).hex()
    return folder / name[:2] / name


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def flip(path: Path, offset: int) -> None:
    write_at(path, offset, bytes([path.read_bytes()[offset] ^ 16]))


def old_version(path: Path) -> None:
    """A whole entry of another version: the checksum of its header is right."""
    header = bytearray(path.read_bytes()[:252])
    header[8:12] = struct.pack("<I", 9)
    write_at(path, 0, bytes(header) + struct.pack("<I", zlib.crc32(header)))


def other_entry(path: Path) -> None:
    """The entry of another key, moved here."""
    folder = path.parent.parent
    shutil.copyfile(path_of(folder, 5), path)


def link(path: Path) -> None:
    """A link to a good copy of the entry."""
    copy = path.parent.parent / "copy"
    path.rename(copy)
    path.symlink_to(copy)


TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "removed": (Path.unlink, "absent"),
    "empty": (lambda path: os.truncate(path, 0), "damaged"),
    "cut": (lambda path: os.truncate(path, 10_000), "damaged"),
    "cut to its header": (lambda path: os.truncate(path, 256), "damaged"),
    "longer": (lambda path: os.truncate(path, 30_000), "damaged"),
    "a bit of the payload": (lambda path: flip(path, 19_000), "damaged"),
    "a bit of the header": (lambda path: flip(path, 60), "damaged"),
    "a hole": (lambda path: write_at(path, 4096, bytes(8192)), "damaged"),
    "another version": (old_version, "foreign"),
    "another entry": (other_entry, "foreign"),
    "a text": (lambda path: write_at(path, 0, b"To whom it may concern"), "foreign"),
    "a link": (link, "absent"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_entry_that_was_tampered_with_is_a_counted_miss(how: str, machines: Callable[..., Machine], tmp_path: Path) -> None:
    """By a process that finds it later; the next demotion heals it, and all processes have it again."""
    tamper, count = TAMPERED[how]
    first, second = machines(), machines()
    assert first.demote() == ()
    tamper(path_of(tmp_path, 2))

    assert second.promote() == (2,)
    assert getattr(second.copier.statistics(), count) == 1
    assert second.copier.statistics().promoted == 5
    assert first.demote() == ()
    assert second.promote() == first.promote() == ()


def test_two_geometries_share_a_folder(machines: Callable[..., Machine]) -> None:
    """Neither sees the other's content, though keys are equal; both keep theirs."""
    small = Identity(model="m", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=900, num_ranks=1)
    one, two = machines(), machines(small)
    assert one.demote() == ()
    assert two.promote() == tuple(range(6))
    assert two.demote() == ()

    assert one.promote() == two.promote() == ()
    assert one.copier.statistics().foreign == two.copier.statistics().foreign == 0


def test_folder_that_goes_away_costs_content_only(machines: Callable[..., Machine], tmp_path: Path) -> None:
    """All is missing while it is gone; a new folder of its name is taken up again."""
    machine = machines()
    assert machine.demote() == ()
    shutil.rmtree(tmp_path)
    assert machine.promote() == tuple(range(6))
    assert machine.demote() == tuple(range(6))
    tmp_path.mkdir()
    machine.demote()  # finds it

    assert machine.demote() == machine.promote() == ()
    assert machine.store.exists([IDENTITY.name(b"", 0, 0, KEYS[0])]) == [StoreOutcome.OK]
