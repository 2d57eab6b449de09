"""Files that somebody has tampered with, between a demotion and a promotion: each is a counted miss, and heals by itself."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blocklife.tiers import FileStore
from tests.tiers.rig import DEMOTE, EMPTY, IDENTITY, PROMOTE, Rig, name

KEYS = range(6)
SIZE = IDENTITY.entry_bytes


class Machine(Rig):
    """One process's store of files, with its slots and copier."""

    def __init__(self, path: Path) -> None:
        self.files = FileStore(path, 1 << 20)
        super().__init__(self.files)

    def demote(self) -> tuple[int, ...]:
        """Fill slots and demote them; the positions that are missing."""
        self.fill(KEYS, KEYS)
        return self.run(DEMOTE, KEYS, KEYS).missing

    def promote(self) -> tuple[int, ...]:
        """Those that are missing; the others are checked, and that nothing was written for those that are."""
        self.host[:] = EMPTY
        missing = self.run(PROMOTE, KEYS, KEYS).missing
        assert all(self.is_empty(slot) if slot in missing else self.holds(slot, slot) for slot in KEYS)
        return missing

    def close(self) -> None:
        super().close()
        self.files.close()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    made = Machine(tmp_path), Machine(tmp_path)
    yield made
    for machine in made:
        machine.close()


def path_of(folder: Path, number: int) -> Path:
    entry = name(number).hex()
    return folder / entry[:2] / entry


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
    "cut": (lambda path: os.truncate(path, SIZE - 1), "damaged"),
    "cut to its header": (lambda path: os.truncate(path, 256), "damaged"),
    "longer": (lambda path: os.truncate(path, 2 * SIZE), "damaged"),
    "a bit of the payload": (lambda path: flip(path, 300), "damaged"),
    "the last bit": (lambda path: flip(path, SIZE - 1), "damaged"),
    "a bit of the header": (lambda path: flip(path, 60), "damaged"),
    "a hole": (lambda path: write_at(path, 1024, bytes(2048)), "damaged"),
    "the magic": (lambda path: flip(path, 0), "foreign"),
    "another version": (old_version, "foreign"),
    "another entry": (other_entry, "foreign"),
    "zeros": (lambda path: write_at(path, 0, bytes(SIZE)), "foreign"),
    "a text": (lambda path: write_at(path, 0, b"To whom it may concern"), "foreign"),
    "a link": (link, "absent"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_entry_that_was_tampered_with_is_a_counted_miss(how: str, machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    """By a process that finds it later; the next demotion heals it, and all processes have it again."""
    tamper, count = TAMPERED[how]
    first, second = machines
    assert first.demote() == ()
    tamper(path_of(tmp_path, 2))

    assert second.promote() == (2,)
    assert getattr(second.copier.statistics(), count) == 1
    assert second.copier.statistics().promoted == 5
    assert first.demote() == ()
    assert second.promote() == first.promote() == ()
