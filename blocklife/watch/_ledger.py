"""A ledger beside the mirror: for recordings, for queries, and for its tables, which then check the mirror, too.

*Rules of this file.* No rule of the watch needs it, and nothing is asked of it that decides anything: the mirror's parts tell
it what they have done, in the device's order. What it has no room or no row for is counted, and left out. A job of which it has
left something out is waited for by the mirror all the same.

*Slots.* A copy whose slots are not named by the engine gets *spare* slots while it is in flight. Content that was stored before
the watch began, or unseen by it, is taken as given: an *anchor*, a block beyond the engine's own, then represents its source.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from attrs import define, field

from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Completion, Contract, Ledger, Limits, Placement, Result, Worker
from blocklife.ledger._limits import MAX_REQUESTS
from blocklife.ledger.jobs import Allocated, Batch, GroupTransfer, Jobs, Planned, Storable, Store
from blocklife.ledger.records import JobId
from blocklife.states import COPYING, KEYED, Block, BlockLife, Slot, SlotLife
from blocklife.watch._records import CopyPiece, EngineCopy, Holder, MirrorSizes

NUM_SPARE = 4096
"""Number of slots for copies whose slots the engine does not name."""
_FOREVER = 1e18
_ANCHOR = "anchor"
_STORABLE = frozenset(BlockLife.table.index[state] for state in KEYED - COPYING)
_ALLOCATED = BlockLife.table.index[Block.ALLOCATED]
_READY, _EMPTY = SlotLife.table.index[Slot.READY], SlotLife.table.index[Slot.EMPTY]


@define(eq=False)
class LentRow:
    """A request of the ledger, lent to one holder while that has any block."""

    name: str
    lengths: list[int]
    """The length of its table in each group."""
    places: dict[int, int] = field(factory=dict)
    """Block to its position in the table of its group."""


@define(eq=False)
class LedgerCopy:
    """A copy as the ledger follows it."""

    ids: tuple[JobId, ...]
    spare: Sequence[int]
    told: int = 0
    """How many workers' reports the ledger has received."""


class ToldLedger:
    """The ledger of one mirror. Its first slots are the engine's, by the same numbers; all others are spare.

    Invariants: a holder has a row exactly while it has a block; a spare slot that no copy uses is in ``_spare``, and EMPTY.
    """

    def __init__(self, sizes: MirrorSizes, counts: Counter[str]) -> None:
        num_blocks, num_groups, num_slots = sizes.num_blocks, sizes.num_groups, sizes.num_slots
        self.ledger = ledger = Ledger(
            Limits(
                num_blocks=num_blocks + num_groups,
                num_slots=num_slots + NUM_SPARE,
                max_jobs=sizes.max_jobs,
                max_requests=min(num_blocks + 2 * num_groups + 1, MAX_REQUESTS),
                num_groups=num_groups,
                num_workers=sizes.num_workers,
                max_journal=1,
            ),
            contract=Contract.FENCE,
            deadline=_FOREVER,
            own_pool=False,
        )
        self._counts = counts
        self._num_slots = num_slots
        self._num_workers = sizes.num_workers
        self._size = sizes.blocks_per_slot
        self._state, self._group, self._slots = ledger.blocks.states, ledger.blocks.groups, ledger.slots.states
        self._num_rows = 0
        self._rows: dict[Holder, LentRow] = {}
        self._lent: dict[str, str] = {}
        self._copies: dict[int, LedgerCopy] = {}
        self._arrived: list[Completion] = []
        """Reports not passed on yet."""
        self._spare = deque(range(num_slots, num_slots + NUM_SPARE))
        self._num_names = 0
        self._anchors = range(num_blocks, num_blocks + num_groups)
        self._tier_jobs: dict[str, tuple[tuple[JobId, ...], tuple[int, ...]]] = {}
        """The jobs of tiers by name: their numbers in the ledger, and the slots that they fill."""

    # --- blocks -------------------------------------------------------------------------------------------------------------

    def name_of(self, row: str) -> str:
        """The holder to which a request of the ledger is lent; the request's own name if it is not lent."""
        return self._lent.get(row, row)

    def hand_out(self, holder: Holder, blocks: Sequence[int], group: int) -> None:
        """New lives have begun."""
        row = self._row(holder)
        self.ledger.observe_place(row.name, [Placement(group, allocated=blocks)])
        self._place(row, blocks, group)

    def acquire(self, holder: Holder, blocks: Sequence[int]) -> None:
        """A holder has got one more reference to each of these."""
        row = self._row(holder)
        for group, own in self._grouped(blocks).items():
            self.ledger.observe_place(row.name, [Placement(group, taken=own)])
            self._place(row, own, group)

    def release(self, holder: Holder, blocks: Sequence[int]) -> None:
        """A holder has dropped its reference to each of these."""
        row = self._rows[holder]
        for group, own in self._grouped(blocks).items():
            self.ledger.release(row.name, [row.places.pop(block) for block in own], group)
        if not row.places:
            self.ledger.finish(row.name)
            del self._rows[holder], self._lent[row.name]

    def fill(self, blocks: Iterable[int]) -> None:
        """The content of these blocks is final; of those that a followed load has filled, the ledger knows."""
        for group, own in self._grouped([block for block in blocks if self._state[block] == _ALLOCATED]).items():
            lives = [self.ledger.blocks.life(block) for block in own]
            self.ledger.seal(Batch[Allocated](lives, group), [b"life %d" % life for life in lives])

    def _grouped(self, blocks: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for block in blocks:
            found.setdefault(self._group[block], []).append(block)
        return found

    def _row(self, holder: Holder) -> LentRow:
        """The request of a holder; one that has none is lent one, and gets a block right away."""
        if (row := self._rows.get(holder)) is None:
            self._num_rows += 1
            row = self._rows[holder] = LentRow(str(self._num_rows), [0] * len(self._anchors))
            self.ledger.add_request(row.name)
            self._lent[row.name] = holder.name
        return row

    @staticmethod
    def _place(row: LentRow, blocks: Sequence[int], group: int) -> None:
        start = row.lengths[group]
        row.places.update(zip(blocks, range(start, start + len(blocks)), strict=True))
        row.lengths[group] += len(blocks)

    # --- copies between device and host -------------------------------------------------------------------------------------

    def store(self, stores: Sequence[tuple[EngineCopy, Holder | None, Sequence[CopyPiece]]]) -> None:
        """These stores have begun, of these pieces: followed all in one call, or else one by one."""
        wanted = [(copy, holder, good) for copy, holder, pieces in stores if (good := self._storable(pieces))]
        if not wanted or self._may(lambda: self._store(wanted)):
            return
        for each in wanted:
            if len(wanted) == 1 or not self._may(partial(self._store, [each])):
                self._counts["not followed"] += len(each[2])

    def _storable(self, pieces: Sequence[CopyPiece]) -> list[CopyPiece]:
        good = [self._in_own_group(piece) for piece in pieces if self._state[piece.block] in _STORABLE]
        if len(good) < len(pieces):  # a count of zero would be shown
            self._counts["not followed"] += len(pieces) - len(good)
        return good

    def _store(self, wanted: Sequence[tuple[EngineCopy, Holder | None, Sequence[CopyPiece]]]) -> None:
        """Plan and submit stores, all or none. A slot is EMPTY, or READY and not being loaded: then it is evicted first."""
        blocks, stores, spare = self.ledger.blocks, list[Store](), list[list[int]]()
        try:
            for _, holder, pieces in wanted:
                spare.append([])
                transfers: list[GroupTransfer[Storable]] = []
                for group, own, places in self._by_group(pieces, spare[-1]):
                    order = list(dict.fromkeys(slot for _, slot in own))
                    self._evict([slot for slot in order if self._slots[slot] == _READY])
                    lives = [blocks.life(piece.block) for piece, _ in own]
                    if len(order) == len(own):  # the ledger takes the slot's key as that of its only block
                        keys = [blocks.key(piece.block) or b"" for piece, _ in own]
                        self._evict([slot for key in keys for slot in self.ledger.slots.prefix([key], group)])  # older ones
                    else:
                        keys = [self._name() for _ in order]
                    transfers.append(GroupTransfer[Storable](Batch(lives, group), order, keys, places))
                row = None if holder is None else self._rows.get(holder)
                stores.append(Store(None if row is None else row.name, transfers))
            ids = self._submitted(self.ledger.plan_store(*stores))
        except BaseException:
            for each in spare:
                self._give_back(each)
            raise
        for (copy, _, _), number, own_spare in zip(wanted, ids, spare, strict=True):
            self._copies[copy.number] = LedgerCopy((number,), own_spare)

    def load(self, copy: EngineCopy, holder: Holder, pieces: Sequence[CopyPiece]) -> None:
        """A load has begun into these blocks, all of one holder, which were handed out for it."""
        own = [self._in_own_group(piece) for piece in pieces]
        if not self._may(lambda: self._load(copy, self._rows[holder].name, own)):
            self._counts["not followed"] += len(pieces)

    def _load(self, copy: EngineCopy, row: str, pieces: Sequence[CopyPiece]) -> None:
        """Plan and submit a load. A slot is READY, or EMPTY: then its content is taken as given."""
        blocks, transfers, spare = self.ledger.blocks, list[GroupTransfer[Allocated]](), list[int]()
        try:
            for group, own, places in self._by_group(pieces, spare):
                order = list(dict.fromkeys(slot for _, slot in own))
                others = [slot for slot in order if self.ledger.slots.group(slot) != group]
                self._evict([slot for slot in others if self._slots[slot] == _READY])
                for slot in order:
                    if self._slots[slot] == _EMPTY:
                        self._believe(slot, group)
                keys = {slot: self.ledger.slots.key(slot) or b"" for slot in order}
                names = [keys[slot] if self._size == 1 else keys[slot] + b".%d" % piece.offset for piece, slot in own]
                lives = [blocks.life(piece.block) for piece, _ in own]
                transfers.append(GroupTransfer[Allocated](Batch(lives, group), order, list(keys.values()), places, names))
            ids = self._submitted(self.ledger.plan_load(row, *transfers))
        except BaseException:
            self._give_back(spare)
            raise
        self._copies[copy.number] = LedgerCopy(ids, spare)

    def report(self, number: int, reports: int) -> None:
        """So many workers have reported the end of their share of a copy by now; passed on by `settle`."""
        copy = self._copies.get(number)
        while copy is not None and copy.told < min(reports, self._num_workers):
            self._arrived += [Completion(each, Worker(copy.told), Result.OK) for each in copy.ids]
            copy.told += 1

    def settle(self, step: int) -> None:
        """One step of the ledger: settle a plan with what was reported."""
        arrived, self._arrived = self._arrived, []
        self.ledger.settle(self.ledger.dispatch(step).number, step, completions=arrived)

    def over(self, number: int, step: int) -> None:
        """A copy is over, whatever was reported of it."""
        if self._arrived:
            self.settle(step)
        if (copy := self._copies.pop(number, None)) is not None:
            for worker in range(copy.told, self._num_workers):
                self._complete(copy.ids, worker)
            self._give_back(copy.spare)

    @property
    def has_arrived(self) -> bool:
        """Whether there are reports not passed on yet."""
        return bool(self._arrived)

    # --- tiers below the host -----------------------------------------------------------------------------------------------

    def demote(self, name: str, slots: Sequence[int]) -> None:
        """A job of a tier reads slots. One that is EMPTY is taken as given; one that is being written is left out."""

        def plan() -> None:
            known = self._known(slots)
            for slot in known:
                if self._slots[slot] == _EMPTY:
                    self._believe(slot, 0)
            if ready := [slot for slot in known if self._slots[slot] == _READY]:
                self._tier_jobs[name] = self._submitted(self.ledger.plan_demotion(ready)), ()

        self._follow(plan)

    def promote(self, name: str, content: Sequence[tuple[bytes, int]]) -> None:
        """A job of a tier fills slots. One that is READY is evicted first; one that another job touches is left out."""

        def plan() -> None:
            groups = {slot: self._group_of(key) for key, slot in content}
            known = self._known(groups)
            self.ledger.evict([slot for slot in known if self._slots[slot] == _READY and not self.ledger.slots.pins(slot)])
            if empty := [slot for slot in known if self._slots[slot] == _EMPTY]:
                jobs = self.ledger.plan_promotion(empty, [self._name() for _ in empty], [groups[slot] for slot in empty])
                self._tier_jobs[name] = self._submitted(jobs), tuple(empty)

        self._follow(plan)

    def end_tier_job(self, name: str, good: Collection[int]) -> None:
        """A job of a tier is over; of the slots that it fills, these are *good*."""
        ids, filled = self._tier_jobs.pop(name, ((), ()))
        missing = tuple(at for at, slot in enumerate(filled) if slot not in good)
        for worker in range(self._num_workers):
            self._follow(partial(self._complete, ids, worker, missing))

    def bring_up(self, slot: int, key: bytes) -> None:
        """A slot has its content. One whose promotion was not followed takes it as given, unless a job still touches it."""
        if self._slots[slot] == _EMPTY:
            self._follow(lambda: self._believe(slot, self._group_of(key)))
        elif self._slots[slot] != _READY:
            self._counts["not followed"] += 1

    def _known(self, slots: Iterable[int]) -> list[int]:
        return [slot for slot in dict.fromkeys(slots) if 0 <= slot < self._num_slots]

    def _group_of(self, key: bytes) -> int:
        group = int.from_bytes(key[-4:], "big")
        return group if group < len(self._anchors) else 0

    # --- inside -------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _may(what: Callable[[], object]) -> bool:
        """Do it; whether the ledger has room, and rows, for it."""
        try:
            what()
        except (CapacityError, MisuseError):
            return False
        return True

    def _follow(self, what: Callable[[], object]) -> None:
        if not self._may(what):
            self._counts["not followed"] += 1

    def _in_own_group(self, piece: CopyPiece) -> CopyPiece:
        """A piece in the group that its block was handed out for."""
        group = self._group[piece.block]
        return piece if piece.group == group else piece._replace(group=group)

    def _by_group(
        self, pieces: Sequence[CopyPiece], spare: list[int]
    ) -> list[tuple[int, list[tuple[CopyPiece, int]], list[int]]]:
        """The pieces of each group with their slots, and the places in these; slots that are not named go to *spare*, too."""
        named = [piece.slot_among(self._num_slots) for piece in pieces]
        if len(self._spare) < named.count(None):
            raise CapacityError("watch: no spare slot is left (copies are followed again when some have landed)")
        groups: dict[int, list[tuple[CopyPiece, int]]] = {}
        for piece, slot in zip(pieces, named, strict=True):
            if slot is None:
                slot = self._spare.popleft()
                spare.append(slot)
            groups.setdefault(piece.group, []).append((piece, slot))
        return [
            (group, own, [slot * self._size + piece.offset for piece, slot in own]) for group, own in sorted(groups.items())
        ]

    def _give_back(self, spare: Sequence[int]) -> None:
        if ready := [slot for slot in spare if self._slots[slot] == _READY]:
            self.ledger.evict(ready)
        self._spare.extend(spare)

    def _submitted(self, jobs: Jobs[Planned]) -> tuple[JobId, ...]:
        self.ledger.submit(jobs)
        return jobs.ids

    def _complete(self, ids: Iterable[JobId], worker: int, missing: tuple[int, ...] = ()) -> None:
        for job in ids:
            self.ledger.complete(Completion(job, Worker(worker), Result.OK, missing))

    def _evict(self, slots: Sequence[int]) -> None:
        """Evict READY slots. Raises CapacityError where a load reads one: that case cannot be followed."""
        if busy := [slot for slot in slots if self.ledger.slots.pins(slot)]:
            raise CapacityError(f"watch: slot {busy[0]} is read (what comes into it is followed again when that is over)")
        if slots:
            self.ledger.evict(slots)

    def _believe(self, slot: int, group: int) -> None:
        """Give a slot content whose store was unseen."""
        ledger, name = self.ledger, f"{_ANCHOR} {group}"
        if name in ledger.requests:
            ledger.finish(name)
        ledger.add_request(name)
        key = self._name()
        source: Batch[Storable] = ledger.seal(
            ledger.observe_place(name, [Placement(group, allocated=[self._anchors[group]])])[0], [key]
        )
        ids = self._submitted(ledger.plan_store(Store(None, [GroupTransfer(source, [slot], [key], [slot * self._size])])))
        for worker in range(self._num_workers):
            self._complete(ids, worker)

    def _name(self) -> bytes:
        self._num_names += 1
        return b"chunk %d" % self._num_names
