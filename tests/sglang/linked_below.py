"""A store below the linker's host memory, in the rig: its copies land when the rig's random numbers say so, with their twins.

What it holds is kept by name, each entry with its twin, so that a page that comes back with other bytes than those of its text
shows like every other copy.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import torch
from attrs import define, field

from blocklife.copiers._protocol import TierCopier
from blocklife.copiers.torch import HostMemory
from blocklife.engines.sglang.linker._below import RankStores
from blocklife.engines.sglang.linker._transport import RANK
from blocklife.ledger import Completion, Direction, JobId, Result, TierTransfer, Worker
from blocklife.offload import BelowIndex
from blocklife.offload._lookup import Answer
from tests.sglang.copies import Copies
from tests.sglang.device import current
from tests.sglang.linked import ROW_BYTES, LateLinker

Entry = tuple[bytes, bytes]
"""Space and key."""


@define(eq=False)
class Shelf:
    """What the store has of one memory: bytes, and what they must be. It loses an entry now and then."""

    rng: Random
    most: int = 200
    entries: dict[Entry, tuple[torch.Tensor, torch.Tensor]] = field(factory=dict)
    asked: set[Entry] = field(factory=set)
    spaces: int = 0
    is_up: bool = True

    def ask(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
        """It knows at the second question."""
        found = []
        for _, key in contents:
            name = space, key
            known = name in self.asked or self.rng.random() < 0.5
            self.asked.add(name)
            found.append(Answer.RETRY if not known else Answer.HIT if name in self.entries else Answer.MISS)
        return found

    def discard(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        """They were not there."""
        for _, key in contents:
            self.entries.pop((space, key), None)

    def note_put(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        """They are there."""

    def new_space(self) -> bytes:
        """One after the other."""
        self.spaces += 1
        return b"%d" % self.spaces

    def put(self, name: Entry, rows: torch.Tensor, twin: torch.Tensor) -> None:
        """Keep an entry, and forget the oldest ones beyond the most."""
        self.entries[name] = rows.clone(), twin.clone()
        while len(self.entries) > self.most:
            del self.entries[next(iter(self.entries))]


@define(eq=False, slots=False)  # faults are planted in it
class ShelfCopier:
    """Moves entries between a shelf and host memory, at a later poll."""

    shelf: Shelf
    rows: torch.Tensor
    copies: Copies
    rng: Random
    out: dict[JobId, TierTransfer] = field(factory=dict)
    landed: list[Completion] = field(factory=list)

    @property
    def worker(self) -> Worker:
        """A rank is its only worker."""
        return RANK

    def launch(self, transfer: TierTransfer) -> None:
        """Not yet."""
        self.out[transfer.job] = transfer

    def poll(self) -> list[Completion]:
        """Some land."""
        self.wait([job for job in self.out if self.rng.random() < 0.4])
        landed, self.landed = self.landed, []
        return landed

    def wait(self, jobs: Collection[JobId]) -> None:
        """These land now."""
        for job in jobs:
            if (transfer := self.out.pop(job, None)) is not None:
                put = transfer.direction is Direction.DEMOTE
                missing = self._put(transfer) if put else self._get(transfer)
                self.landed.append(Completion(job, RANK, Result.OK, missing))

    def busy(self) -> bool:
        """Whether anything is out."""
        return bool(self.out or self.landed)

    def close(self) -> None:
        """All land."""
        self.wait([*self.out])

    def _put(self, transfer: TierTransfer) -> tuple[int, ...]:
        for slot, key in zip(transfer.slots.tolist(), transfer.keys, strict=True):
            row, twin = self.rows[slot], self.copies.twins.of(self.rows)[slot]
            self.copies.witness.compare(self.copies.rank, "a copy below", "its rows", *self._by_row(row, twin))
            self.shelf.put((transfer.space, key), row, twin)
        return ()

    def _get(self, transfer: TierTransfer) -> tuple[int, ...]:
        missing = []
        for at, (slot, key) in enumerate(zip(transfer.slots.tolist(), transfer.keys, strict=True)):
            found = self.shelf.entries.get((transfer.space, key))
            if found is None or self.rng.random() < 0.05:
                missing.append(at)
                continue
            self.rows[slot], self.copies.twins.of(self.rows)[slot] = found
        return tuple(missing)

    def _by_row(self, *both: torch.Tensor) -> list[torch.Tensor]:
        return [each.reshape(-1, ROW_BYTES) for each in both]


class ShelfStores(RankStores):
    """The shelves of one rank."""

    def __init__(self, count: int, copies: Copies) -> None:
        self._copies = copies
        self.shelves = [Shelf(Random(f"shelf {copies.rank} {number}")) for number in range(count)]

    @property
    def presences(self) -> Sequence[BelowIndex]:
        """The shelves themselves."""
        return self.shelves

    def copier(self, number: int, host: HostMemory) -> TierCopier:
        """One that lands late."""
        return ShelfCopier(self.shelves[number], host.rows, self._copies, Random(f"copier {self._copies.rank} {number}"))

    def look(self) -> None:
        """Nothing fails here."""

    def close(self) -> None:
        """Nothing to close."""


class BelowLinker(LateLinker):
    """The linker over such a store; a lookup may look five times whether something has come."""

    def open_below(self, arguments: object) -> RankStores:
        """Shelves."""
        copies = current().copies
        assert isinstance(copies, Copies)
        return ShelfStores(len(self.pools), copies)

    def pause(self) -> float:
        """A hundredth of a second, by this clock."""
        return 0.01


class FolderLinker(LateLinker):
    """The linker over real files: a page that came from there is taken to be what it must be, and texts say whether it is."""

    said: ClassVar[dict[str, object]] = {}

    def __init__(self, *args: Any, extra_config: Mapping[str, object], **kwargs: Any) -> None:
        super().__init__(*args, extra_config={**extra_config, **self.said}, **kwargs)
        copies = current().copies
        assert isinstance(copies, Copies)
        for transport in self.transports:
            below = transport.below
            assert below is not None
            transport.below = Trusting(below, transport.memory.rows, copies)


@define(eq=False)
class Trusting:
    """A copier whose promotions are copied to the twins as they have come."""

    inner: TierCopier
    rows: torch.Tensor
    copies: Copies
    out: dict[Hashable, TierTransfer] = field(factory=dict)

    @property
    def worker(self) -> Worker:
        """That of the copier."""
        return self.inner.worker

    def launch(self, transfer: TierTransfer) -> None:
        """Note what comes."""
        self.out[transfer.job] = transfer
        self.inner.launch(transfer)

    def poll(self) -> list[Completion]:
        """Copy what has come."""
        landed = self.inner.poll()
        for each in landed:
            transfer = self.out.pop(each.job)
            if transfer.direction is Direction.PROMOTE:
                twin = self.copies.twins.of(self.rows)
                for slot in transfer.slots.tolist():
                    twin[slot] = self.rows[slot]
        return landed

    def wait(self, jobs: Collection[JobId]) -> None:
        """As the copier."""
        self.inner.wait(jobs)

    def busy(self) -> bool:
        """As the copier."""
        return self.inner.busy()

    def close(self) -> None:
        """As the copier."""
        self.inner.close()


def folder(path: Path, **more: object) -> dict[str, object]:
    """Options for a folder, whose answers a lookup waits for."""
    return {"below": f"fs:{path}:64M", "below_wait_s": 30, **more}
