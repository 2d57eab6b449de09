"""The host side of followed copies: ledger slots that represent the engine's slots, as far as the engine names those.

A copy whose slots are not named gets *spare* slots while it is in flight. Content that was stored before the watch began, or
unseen by it, is taken as given: an *anchor*, a block beyond the engine's own, then represents its source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from blocklife.errors import CapacityError
from blocklife.ledger import Completion, Ledger, Placement, Result, Worker
from blocklife.ledger.jobs import Allocated, Batch, GroupTransfer, Jobs, Planned, Storable, Store
from blocklife.ledger.records import JobId
from blocklife.states import Slot, SlotLife

NUM_SPARE = 4096
"""Number of slots for copies whose slots the engine does not name."""
_ANCHOR = "anchor"
_READY, _EMPTY = SlotLife.table.index[Slot.READY], SlotLife.table.index[Slot.EMPTY]


class CopyPiece(NamedTuple):  # the cheapest kind of record, since a step makes many
    """One block of a copy."""

    group: int
    block: int
    position: int | None = None
    """Its position in the request's table, from the engine; None if unknown."""
    slot: int | None = None
    """The host slot of its chunk; None if unknown."""
    key: bytes | None = None
    """The engine's key of the chunk."""
    offset: int = 0
    """Its part of the slot."""


Wanted: TypeAlias = tuple[str | None, Sequence[CopyPiece], Sequence[int]]
"""A store: its request, its pieces, and the ledger's slots for them."""


class Content(NamedTuple):
    """The content of a slot, from the engine."""

    key: bytes | None
    parts: int | None
    """A bit for each part that was written; None if unknown."""


class Host:
    """The contents of the engine's slots, from what it says of its jobs."""

    def __init__(self, num_slots: int, *, keeps: bool) -> None:
        self._num_slots = num_slots
        self._keeps = keeps
        self._content: dict[int, Content] = {}
        self.sees_all = False
        """Whether every store was seen, so that a slot without known content is empty."""

    def slot(self, piece: CopyPiece) -> int | None:
        """The slot that the engine names, if it is followed."""
        return piece.slot if piece.slot is not None and 0 <= piece.slot < self._num_slots else None

    def wrong(self, piece: CopyPiece) -> str:
        """What is wrong with a slot's content for a load; empty if it is what the load expects."""
        found = self._content.get(-1 if piece.slot is None else piece.slot)
        if found is None:
            return "nothing was stored in it" if self._keeps and self.sees_all else ""
        if found.key is not None and piece.key is not None and found.key != piece.key:
            return f"it holds {found.key.hex()[:16]}, not {piece.key.hex()[:16]}"
        if found.parts is not None and not found.parts >> piece.offset & 1:
            return f"nothing was stored in its part {piece.offset}"
        return ""

    def stored(self, pieces: Sequence[CopyPiece]) -> None:
        """Record that a store, right or wrong, has written these pieces into their slots."""
        if not self._keeps:
            return
        new: dict[int, Content] = {}
        for piece in pieces:
            if (slot := self.slot(piece)) is not None:
                parts = new[slot].parts if slot in new else 0
                new[slot] = Content(piece.key, (parts or 0) | 1 << piece.offset)
        self._content.update(new)

    def promoted(self, slot: int, key: bytes) -> None:
        """A tier below has filled a slot, all of it."""
        if self._keeps and 0 <= slot < self._num_slots:
            self._content[slot] = Content(key, None)

    def forget_content(self, slot: int) -> None:
        """The content of a slot is unknown from now on."""
        self._content[slot] = Content(None, None)

    def forget(self) -> None:
        """The engine has forgotten all host content: every slot starts anew."""
        self._content.clear()


class Filing:
    """The jobs and the slots of a ledger. Invariant: a spare slot that no copy uses is in ``_spare``, and EMPTY."""

    def __init__(self, ledger: Ledger, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        self._ledger = ledger
        self._state = ledger.slots.states
        self._num_workers = ledger.limits.num_workers
        self._size = blocks_per_slot
        self._spare = deque(range(num_slots, num_slots + NUM_SPARE))
        self._serial = 0
        self._anchors = range(num_blocks, num_blocks + ledger.limits.num_groups)
        self._num_slots = num_slots
        self._tier_jobs: dict[str, tuple[tuple[JobId, ...], tuple[int, ...]]] = {}
        """The jobs of tiers by name: their numbers in the ledger, and the slots that they fill."""

    def settle(self, step: int, arrived: Sequence[Completion]) -> None:
        """One step of the ledger: settle a plan with these reports."""
        plan = self._ledger.dispatch(step).number
        self._ledger.settle(plan, step, completions=arrived)

    # --- spare slots --------------------------------------------------------------------------------------------------------

    def take_spare(self, count: int) -> list[int]:
        """Take spare slots. Raises CapacityError when there are not enough."""
        if len(self._spare) < count:
            raise CapacityError("watch: no spare slot is left (copies are followed again when some have landed)")
        return [self._spare.popleft() for _ in range(count)]

    def give_back(self, spare: Sequence[int]) -> None:
        """Return spare slots whose copies are over."""
        if ready := [slot for slot in spare if self._state[slot] == _READY]:
            self._ledger.evict(ready)
        self._spare.extend(spare)

    # --- tiers below the host ----------------------------------------------------------------------------------------------

    def demote(self, name: str, slots: Sequence[int]) -> None:
        """A job of a tier reads slots. One that is EMPTY is taken as given; one that is being written is left out."""
        known = self._known(slots)
        for slot in known:
            if self._state[slot] == _EMPTY:
                self._believe(slot, 0)
        if ready := [slot for slot in known if self._state[slot] == _READY]:
            self._tier_jobs[name] = self._submitted(self._ledger.plan_demotion(ready)), ()

    def promote(self, name: str, content: Sequence[tuple[bytes, int]]) -> None:
        """A job of a tier fills slots. One that is READY is evicted first; one that another job touches is left out."""
        groups = {slot: self._group_of(key) for key, slot in content}
        known = self._known(groups)
        self._ledger.evict([slot for slot in known if self._state[slot] == _READY and not self._ledger.slots.pins(slot)])
        if empty := [slot for slot in known if self._state[slot] == _EMPTY]:
            jobs = self._ledger.plan_promotion(empty, [self._name() for _ in empty], [groups[slot] for slot in empty])
            self._tier_jobs[name] = self._submitted(jobs), tuple(empty)

    def end_tier_job(self, name: str, good: Collection[int]) -> None:
        """A job of a tier is over; of the slots that it fills, these are *good*."""
        ids, filled = self._tier_jobs.pop(name, ((), ()))
        missing = tuple(at for at, slot in enumerate(filled) if slot not in good)
        for job in ids:
            for worker in range(self._num_workers):
                self._ledger.complete(Completion(job, Worker(worker), Result.OK, missing))

    def fill(self, slot: int, key: bytes) -> None:
        """Give a slot content whose promotion was not followed. Raises CapacityError where a job still touches the slot."""
        if self._state[slot] == _READY:
            return
        if self._state[slot] != _EMPTY:
            raise CapacityError(f"watch: slot {slot} is written (what comes into it is followed again when that is over)")
        self._believe(slot, self._group_of(key))

    def _known(self, slots: Iterable[int]) -> list[int]:
        return [slot for slot in dict.fromkeys(slots) if 0 <= slot < self._num_slots]

    def _group_of(self, key: bytes) -> int:
        group = int.from_bytes(key[-4:], "big")
        return group if group < len(self._anchors) else 0

    # --- jobs of the ledger -------------------------------------------------------------------------------------------------

    def store(self, wanted: Sequence[Wanted]) -> tuple[JobId, ...]:
        """Plan and submit stores of sealed blocks. A slot is EMPTY, or READY and not being loaded: then it is evicted first."""
        blocks, stores = self._ledger.blocks, list[Store]()
        for owner, pieces, slots in wanted:
            transfers: list[GroupTransfer[Storable]] = []
            for group, own, places in self._by_group(pieces, slots):
                order = list(dict.fromkeys(slot for _, slot in own))
                self._evict([slot for slot in order if self._state[slot] == _READY])
                lives = [blocks.life(piece.block) for piece, _ in own]
                if len(order) == len(own):  # the ledger takes the slot's key as that of its only block
                    keys = [blocks.key(piece.block) or b"" for piece, _ in own]
                    self._evict([slot for key in keys for slot in self._ledger.slots.prefix([key], group)])  # older ones
                else:
                    keys = [self._name() for _ in order]
                transfers.append(GroupTransfer[Storable](Batch(lives, group), order, keys, places))
            stores.append(Store(owner, transfers))
        return self._submitted(self._ledger.plan_store(*stores))

    def load(self, request: str, pieces: Sequence[CopyPiece], slots: Sequence[int]) -> tuple[JobId, ...]:
        """Plan and submit a load into allocated blocks. A slot is READY, or EMPTY: then its content is taken as given."""
        blocks, transfers = self._ledger.blocks, list[GroupTransfer[Allocated]]()
        for group, own, places in self._by_group(pieces, slots):
            order = list(dict.fromkeys(slot for _, slot in own))
            others = [slot for slot in order if self._ledger.slots.group(slot) != group]
            self._evict([slot for slot in others if self._state[slot] == _READY])
            for slot in order:
                if self._state[slot] == _EMPTY:
                    self._believe(slot, group)
            keys = [self._ledger.slots.key(slot) or b"" for slot in order]
            named = dict(zip(order, keys, strict=True))
            names = [named[slot] if self._size == 1 else named[slot] + b".%d" % piece.offset for piece, slot in own]
            lives = [blocks.life(piece.block) for piece, _ in own]
            transfers.append(GroupTransfer[Allocated](Batch(lives, group), order, keys, places, names))
        return self._submitted(self._ledger.plan_load(request, *transfers))

    def _submitted(self, jobs: Jobs[Planned]) -> tuple[JobId, ...]:
        self._ledger.submit(jobs)
        return jobs.ids

    def complete(self, job: JobId, worker: int) -> None:
        """One worker's share of a job has arrived."""
        self._ledger.complete(Completion(job, Worker(worker), Result.OK))

    def _evict(self, slots: Sequence[int]) -> None:
        """Evict READY slots. Raises CapacityError where a load reads one: that case cannot be followed."""
        if not slots:
            return
        if busy := [slot for slot in slots if self._ledger.slots.pins(slot)]:
            raise CapacityError(f"watch: slot {busy[0]} is read (what comes into it is followed again when that is over)")
        self._ledger.evict(slots)

    def _believe(self, slot: int, group: int) -> None:
        """Give a slot content whose store was unseen."""
        ledger, name = self._ledger, f"{_ANCHOR} {group}"
        if name in ledger.requests:
            ledger.finish(name)
        ledger.add_request(name)
        key = self._name()
        source: Batch[Storable] = ledger.seal(
            ledger.observe_place(name, [Placement(group, allocated=[self._anchors[group]])])[0], [key]
        )
        jobs = ledger.plan_store(Store(None, [GroupTransfer(source, [slot], [key], [slot * self._size])]))
        ledger.submit(jobs)
        for worker in range(self._num_workers):
            self.complete(jobs.ids[0], worker)

    def _by_group(
        self, pieces: Sequence[CopyPiece], slots: Sequence[int]
    ) -> list[tuple[int, list[tuple[CopyPiece, int]], list[int]]]:
        groups: dict[int, list[tuple[CopyPiece, int]]] = {}
        for piece, slot in zip(pieces, slots, strict=True):
            groups.setdefault(piece.group, []).append((piece, slot))
        return [
            (group, own, [slot * self._size + piece.offset for piece, slot in own]) for group, own in sorted(groups.items())
        ]

    def _name(self) -> bytes:
        self._serial += 1
        return b"chunk %d" % self._serial
