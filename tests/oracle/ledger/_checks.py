"""All checks that run before a verb writes.

Rules of this file:

* Nothing here changes anything: a check reads, and refuses with the thing, its state and the remedy.
* A batch is checked as a whole, so that a refusal leaves everything unchanged.
* The common case is verified in one fast pass; only if that fails do single checks find the error and report it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from tests.oracle.errors import InvariantError, LateError, MisuseError
from tests.oracle.ledger import _edge as edge
from tests.oracle.ledger._ids import EPOCH_SHIFT, ID_MASK, NULL, Ids, Lives, batch, entries, every, ids_of, listed, select
from tests.oracle.ledger._limits import Checking
from tests.oracle.ledger._rules import ACQUIRE, COUNTS, HAND_OUT, SEAL
from tests.oracle.ledger._state import LedgerData, RequestRow
from tests.oracle.ledger.jobs import Allocated, Batch, GroupTransfer, JobColumns, JobRow
from tests.oracle.ledger.records import Completion, JobId, Placement, Seal
from tests.oracle.states import COPYING, KEYED, TERMINAL, Block, BlockLife, Job, JobLife, RequestLife, Slot, SlotLife

JOB, REQUEST = JobLife.table.events, RequestLife.table.events
PLEDGED = BlockLife.table.index[Block.PLEDGED]
READY = SlotLife.table.index[Slot.READY]
_FLUSHED = BlockLife.table.index[Block.FLUSHED]
_INT = frozenset({int})
_SPARSE = 4096
"""Below this many ids, sorting is cheaper than a scratch column for the whole pool, which is allocated at every call."""


def _are_counts(values: list[int]) -> bool:
    return _INT.issuperset(map(type, values)) and min(values, default=0) >= 0


def _no_lives(values: list[int], verb: str, num_blocks: int) -> MisuseError:
    """The error for values of which at least one is no life."""
    bare = [value for value in values if NULL < value < num_blocks]
    if bare:  # lives begin above every number of a block
        return MisuseError(
            f"{verb}: {bare[0]} is the number of a block, not a life (use what allocate returned, or ledger.life({bare[0]}))"
        )
    return MisuseError(f"{verb}: {values[:4]} are no lives of blocks, which are 1 to {num_blocks - 1}")


class Checks:
    """The checks of one ledger. A method is named after what it checks."""

    def __init__(self, state: LedgerData) -> None:
        self._state = state
        self._blocks = state.blocks
        self._slots = state.slots
        self._jobs = state.jobs

    def request(self, request: str) -> RequestRow:
        try:
            found = self._state.requests.get(request)
        except TypeError:  # not even hashable
            found = None
        if found is None:
            edge.text(request, "request")
            raise edge.unknown(request)
        return found

    def groups(self, groups: int | Sequence[int], count: int) -> list[int]:
        """One group for each of several things; a single group applies to all."""
        if type(groups) is int or not isinstance(groups, Sequence | np.ndarray):
            found = [edge.whole(groups, "groups")] * count
        else:
            found = edge.counts(groups, "groups")
            if len(found) != count:
                raise MisuseError(f"{len(found)} groups and {count} requests do not agree")
        for group in set(found):
            self.group(group)
        return found

    def table(self, request: str, group: int, own: bool) -> array[int]:
        """The table of a request in one group; checks that the ledger owns the pool (*own*), or that it does not."""
        found = self.request(request)
        if own is not self._state.own_pool:
            self.pool(own)
        if type(group) is not int or not 0 <= group < self._state.limits.num_groups:
            self.group(group)
        return found.tables[group]

    def tables(self, requests: Sequence[str], groups: int | Sequence[int]) -> tuple[list[int], list[array[int]]]:
        """The group and the table of each of several requests; a single group applies to all."""
        known = self._state.requests
        if type(requests) is list and type(groups) is list and len(requests) == len(groups) and _are_counts(groups):
            try:
                return groups, [known[request].tables[group] for request, group in zip(requests, groups, strict=True)]
            except (LookupError, TypeError):  # one of them does not exist; the loop below says which
                pass
        requests = edge.texts(requests, "requests")
        own = self.groups(groups, len(requests))
        return own, [self.request(request).tables[group] for request, group in zip(requests, own, strict=True)]

    def group(self, group: int) -> None:
        if type(group) is not int:
            edge.whole(group, "group")
        if not 0 <= group < self._state.limits.num_groups:
            raise MisuseError(f"group {group}: groups are 0 to {self._state.limits.num_groups - 1}")

    def slots(self, slots: Ids) -> None:
        if len(slots) == 0:
            return
        low, high = (min(slots), max(slots)) if type(slots) is list else (np.min(slots), np.max(slots))
        for slot in (low, high):
            if not 0 <= slot < len(self._slots):
                raise MisuseError(f"slot {slot}: slots are 0 to {len(self._slots) - 1}")
        if not self.are_distinct(slots, len(self._slots)):
            raise MisuseError(f"slot {Counter(listed(slots)).most_common(1)[0][0]}: it is named twice in one call")

    def tenancy(self, table: array[int], lives: Lives, request: str) -> None:
        """A table holds a life once, so that each of its holds has one release (I4)."""
        for life in set(table).intersection(lives) if table and len(lives) else ():
            raise MisuseError(f"block {life & ID_MASK}: request {request} holds it already (a table names a life once)")

    def positions(self, request: RequestRow, blocks: Sequence[int], group: int) -> list[int]:
        """Where these blocks are in the table of a request (I4)."""
        blocks = self.blocks(blocks)
        held = entries(request.tables[group], slice(None)) & ID_MASK
        where = {int(held[position]): position for position in np.isin(held, blocks).nonzero()[0].tolist()}
        for block in blocks:
            if block not in where:
                raise MisuseError(f"block {block}: request {request.name} does not hold it (only its holder may free it)")
        return [where[block] for block in blocks]

    def reopened(self, request: RequestRow, position: int, group: int) -> int:
        """The block of final content that this request may write on: it alone holds it, and no store reads it under hold."""
        table, blocks = request.tables[group], self._blocks
        if not 0 <= position < len(table) or table[position] == NULL:
            raise MisuseError(f"request {request.name}: there is no block at position {position} (its table has {len(table)})")
        (place,) = self.fresh([table[position]], "reopen")
        state, refs = blocks.at(place), blocks.refs_view[place]
        if state not in KEYED:
            raise MisuseError(f"block {place}: it is {state.name}, and has no final content to write on (write, and seal it)")
        if refs > 1:
            raise MisuseError(f"block {place}: {refs} requests hold its content (copy it to another block, and write there)")
        if state in COPYING and not self._state.fence:
            raise MisuseError(f"block {place}: a store reads it, and the contract is hold (wait until it has landed)")
        return int(place)

    def job_rows(self, jobs: Sequence[JobId]) -> list[JobRow]:
        rows = [self.job(job) for job in jobs]
        if len(set(jobs)) != len(jobs):
            raise MisuseError(f"job {Counter(jobs).most_common(1)[0][0]}: it is named twice in one call")
        return rows

    def job(self, name: JobId) -> JobRow:
        found = self._jobs.by_number.get(name.number) if name.incarnation == self._state.incarnation else None
        if found is None and name.incarnation == self._state.incarnation and 0 < name.number <= self._jobs.last_number:
            raise LateError(f"job {name}: it ended so long ago that it is not known any more (ask sooner, or raise max_jobs)")
        if found is None:
            raise MisuseError(f"job {name}: it was never made here (it may be of another incarnation)")
        return found

    def waited_for(self, load: JobRow, older: JobRow) -> None:
        """Copies that still touch the target of a load are waited for in a plan before the load is submitted."""
        if older.number in self._state.to_flush:
            name, other = self._state.id_of(load), self._state.id_of(older)
            raise MisuseError(f"job {name}: no plan waits yet for job {other}, which still touches its target (use dispatch)")

    def pool(self, own: bool) -> None:
        if own is not self._state.own_pool:
            verb, other = ("allocate", "observe_allocate") if own else ("observe_*", "allocate")
            raise MisuseError(f"{verb}: this ledger's blocks are handed out through {other} (own_pool={self._state.own_pool})")

    def blocks(self, blocks: Sequence[int], name: str = "blocks") -> list[int]:
        found = blocks if type(blocks) is list and _INT.issuperset(map(type, blocks)) else edge.counts(blocks, name)
        size = len(self._blocks.state)
        if found and not 0 < min(found) <= max(found) < size:
            block = next(each for each in found if not 0 < each < size)
            raise MisuseError(f"block {block}: blocks are 1 to {size - 1} (0 is the null block)")
        if len(set(found)) != len(found):
            twice = next(block for block, count in Counter(found).items() if count > 1)
            raise MisuseError(f"block {twice}: it is named twice in one call")
        return found

    def fresh(self, lives: Lives, verb: str) -> Ids:
        """The block ids of lives, which must be current and distinct; an error names the first that is not."""
        ids = self.distinct(lives, verb)
        fresh = self._blocks.fresh(lives)
        if not every(fresh):
            life = int(next(life for life, keep in zip(lives, fresh, strict=True) if not keep))
            place, epoch = life & ID_MASK, life >> EPOCH_SHIFT
            raise MisuseError(
                f"block {place}: cannot {verb} its life {epoch}, which is over; it is {self._blocks.at(place).name} in life "
                f"{self._blocks.epoch[place]} (look it up again)"
            )
        return ids

    def _lives(self, lives: Lives, verb: str) -> Ids:
        """The block ids of lives. Refuses what is none: a bare or negative number, the null block, an unknown block."""
        ids = ids_of(lives)
        if len(ids) == 0:
            return ids
        if type(lives) is list and type(ids) is list:
            low, high, lowest, highest = min(ids), max(ids), min(lives), max(lives)
        else:
            low, high, lowest, highest = int(np.min(ids)), int(np.max(ids)), int(np.min(lives)), 0
        if lowest <= ID_MASK or highest >> 63 or low == NULL or high >= len(self._blocks):
            raise _no_lives(listed(lives), verb, len(self._blocks))
        return ids

    def distinct(self, lives: Lives, verb: str) -> Ids:
        ids = self._lives(lives, verb)
        if len(ids) > 1 and not self.are_distinct(ids, len(self._blocks)):
            raise MisuseError(f"{verb}: a block is named twice in one call")
        return ids

    def report(self, completion: Completion) -> None:
        worker = completion.worker
        if not 0 <= worker < self._state.limits.num_workers:
            raise MisuseError(f"worker {worker}: there are {self._state.limits.num_workers} (ranks count from 0)")
        job = self._jobs.by_number.get(completion.job.number) if completion.job.incarnation == self._state.incarnation else None
        if job is not None and job.number in self._jobs.planned:
            self.ask_job(job, "finish")
        if job is not None and completion.missing:
            if job.direction.on_device:
                raise MisuseError(
                    f"job {completion.job}: a {job.direction.name} cannot miss a part of its content (report Result.FAILED)"
                )
            if not 0 <= min(completion.missing) <= max(completion.missing) < len(job.slots):
                raise MisuseError(f"job {completion.job}: missing {completion.missing[:8]} of {len(job.slots)} slots")

    def content(self, ids: Ids, lives: Lives, keys: Sequence[bytes], group: int) -> None:
        """Content is sealed in the group it was handed out for, and under the key that a planned store will publish."""
        self.handed_out(ids, group)
        if type(ids) is list:
            pledged = [position for position, place in enumerate(ids) if self._blocks.state[place] == PLEDGED]
        else:
            pledged = (self._blocks.column.view[ids] == PLEDGED).nonzero()[0].tolist()
        for position in pledged:
            life, key = int(lives[position]), keys[position]
            job = self._jobs.rows[self._blocks.job[ids[position]]]
            promised = job.name_of(life)  # a key of a chunk of several blocks is not the key of any of them
            if promised is not None and promised != key:
                raise MisuseError(
                    f"block {life & ID_MASK}: cannot SEAL it as {key.hex()}, its store {self._state.id_of(job)} will publish "
                    f"{promised.hex()} (one content has one key)"
                )

    def still_fresh(self, lives: Lives, keys: Sequence[bytes]) -> tuple[Lives, Sequence[bytes]]:
        """The lives that are still current, with their keys."""
        fresh = self._blocks.fresh(lives)
        if every(fresh):
            return lives, keys
        return select(lives, fresh), [key for key, keep in zip(keys, fresh, strict=True) if keep]

    def handed_out(self, ids: Ids, group: int) -> None:
        """Blocks hold content of the group they were handed out for, because groups have different layouts."""
        if type(ids) is list:
            others = [place for place in ids if self._blocks.group[place] != group]
        else:
            others = listed(select(ids, self._blocks.group_view[ids] != group))
        if others:
            raise MisuseError(f"block {others[0]}: it was handed out for group {self._blocks.group[others[0]]}, not {group}")

    def reports(self, waited: Iterable[int], completions: Sequence[Completion], seals: Sequence[Seal]) -> None:
        """Refuse reports that `settle` could not apply, before it applies anything."""
        planned, workers = self._jobs.planned, self._state.limits.num_workers
        for completion in completions:
            if not 0 <= completion.worker < workers or completion.job.number in planned or completion.missing:
                self.report(completion)
        if not seals or self.are_sealable(seals):
            return
        for seal in seals:
            self.group(seal.group)
            if len(seal.keys) != len(seal.lives):
                raise MisuseError(f"{len(seal.lives)} blocks to seal and {len(seal.keys)} keys do not agree")
        lives = batch([life for seal in seals for life in listed(seal.lives)])
        self.distinct(lives, "seal")
        fresh = self._blocks.fresh(lives)
        for seal in seals:
            sealed, named = self.still_fresh(batch(seal.lives), seal.keys)
            self.content(ids_of(sealed), sealed, named, seal.group)
        places = ids_of(select(lives, fresh))
        behind = {place for place in listed(places) if self._blocks.state[place] == _FLUSHED}
        if behind:
            proven = self._proven(waited, completions)
            touched = {place for job in self._jobs.alive() if job.number not in proven for place in listed(job.ids)}
            places = batch([place for place in listed(places) if place not in behind or place in touched])
        self._blocks.ask(SEAL, places)

    def are_sealable(self, seals: Sequence[Seal]) -> bool:
        """Fast check of a few seals: whether they are all valid, with current lives only.

        If not, the single checks find out whether something is wrong, and what.
        """
        blocks, table = self._blocks, SEAL.rule.tables[SEAL.at]
        epoch, group_of, state, size = blocks._epoch, blocks.group, blocks.state, len(blocks.state)
        seen: list[int] = []
        for seal in seals:
            lives, keys, group = seal.lives, seal.keys, seal.group
            if type(lives) is not list or len(lives) != len(keys) or not 0 <= group < self._state.limits.num_groups:
                return False
            for life, key in zip(lives, keys, strict=True):
                place = life & ID_MASK
                if place >= size or place == NULL or epoch[place] != life >> EPOCH_SHIFT or group_of[place] != group:
                    return False
                at = state[place]
                if not table[at << COUNTS] or (at == PLEDGED and not self._is_promised(place, life, key)):
                    return False
            seen += lives
        return len(set(seen)) == len(seen)

    def _is_promised(self, place: int, life: int, key: bytes) -> bool:
        """Whether the planned store of a block will publish it under this key, as far as its key is known."""
        promised = self._jobs.rows[self._blocks.job[place]].name_of(life)
        return promised is None or promised == key

    def _proven(self, waited: Iterable[int], completions: Iterable[Completion]) -> set[int]:
        """The jobs that are over once these completions have been applied."""
        found = set(waited)
        missing = {job.number: (1 << self._state.limits.num_workers) - 1 & ~job.reported for job in self._jobs.alive()}
        for completion in completions:
            number = completion.job.number
            if completion.job.incarnation == self._state.incarnation and number in missing:
                missing[number] &= ~(1 << completion.worker)
                if not missing[number]:
                    found.add(number)
        return found

    @staticmethod
    def are_distinct(ids: Ids, limit: int) -> bool:
        """Whether no id occurs twice; all are below *limit*."""
        if type(ids) is list:
            return len(ids) < 2 or len(set(ids)) == len(ids)
        if len(ids) < _SPARSE:
            ordered = np.sort(ids)
            return b"\1" not in (ordered[1:] == ordered[:-1]).tobytes()
        # Each id writes its position at its place; an overwritten one had a duplicate. Cheaper than sorting, without clearing.
        positions = np.arange(len(ids), dtype=np.int32)
        scratch = np.empty(limit, dtype=np.int32)
        scratch[ids] = positions
        return bool((scratch[ids] == positions).all())

    def columns(self, jobs: JobColumns, ids: Ids) -> None:
        """Host places are distinct, and blocks were handed out for the named group, because groups have different layouts.

        *ids* are the blocks of all jobs, in order.
        """
        places = jobs.places
        if places is not jobs.slots and not self._are_host_places(places):  # slots were looked at
            raise MisuseError("the host places of a job are distinct and not negative")
        handed = self._blocks.group
        own = bytes([handed[place] for place in ids]) if type(ids) is list else self._blocks.group_view[ids].tobytes()
        if own != jobs.groups:
            place, was, group = next(each for each in zip(listed(ids), own, jobs.groups, strict=True) if each[1] != each[2])
            raise MisuseError(f"block {place}: it was handed out for group {was}, not {group}")

    def stores(self, stores: JobColumns) -> tuple[Ids, bool]:
        """The blocks of stores, after all checks that do not depend on states.

        Also returns whether `names` was checked: if something is wrong, a refusal by the tables has the better message.
        """
        lives, slots = stores.lives, stores.slots
        if type(lives) is list and type(slots) is list:
            ids = [life & ID_MASK for life in lives]
            if self._are_storable(stores, ids, lives, slots):
                return ids, True
        self.slots(slots)
        found = self.fresh(lives, "plan_store")
        self.columns(stores, found)
        self._unstored(stores)
        return found, False

    def _are_storable(self, stores: JobColumns, ids: list[int], lives: list[int], slots: list[int]) -> bool:
        """Fast check of a few blocks: whether they are all valid. If not, the single checks find and report the error."""
        blocks, count = self._blocks, len(ids)
        if min(ids) == NULL or max(ids) >= len(blocks.state) or min(slots) < 0 or max(slots) >= len(self._slots.state):
            return False
        if len(set(ids)) != count or len(set(slots)) != len(slots):
            return False
        epoch, group_of, held = blocks._epoch, blocks.group, blocks.key
        for place, life, group, key in zip(ids, lives, stores.groups, stores.names, strict=True):
            if epoch[place] != life >> EPOCH_SHIFT or group_of[place] != group:
                return False
            if (own := held[place]) is not None and own != key and key is not None:
                return False
        if stores.places is not slots and not self._are_host_places(stores.places):
            return False
        contents = list(zip(stores.slot_groups, stores.keys, strict=True))
        if len(set(contents)) != len(contents):
            return False
        state, indexes = self._slots.state, self._slots.index
        known = [indexes[group].get(key) for group, key in contents]
        return READY not in [state[slot] for slot in known if slot is not None]

    @staticmethod
    def _are_host_places(places: Ids) -> bool:
        found = listed(places)
        return len(set(found)) == len(found) and min(found) >= 0

    def _unstored(self, jobs: JobColumns) -> None:
        """Content that is stored is not stored again; a store in flight does not count, because it may fail (I14)."""
        state, indexes = self._slots.state, self._slots.index
        contents = list(zip(jobs.slot_groups, jobs.keys, strict=True))
        if len(set(contents)) != len(contents):  # two jobs may store the same content
            for start, stop in pairwise(jobs.slot_cuts):
                (_, key), times = Counter(contents[start:stop]).most_common(1)[0]
                if times > 1:
                    raise MisuseError(f"key {key.hex()}: it is named twice in one job (I14)")
        slots = [indexes[group].get(key) for group, key in contents]
        if READY in [state[slot] for slot in slots if slot is not None]:
            key = next(key for slot, (_, key) in zip(slots, contents, strict=True) if slot is not None and state[slot] == READY)
            raise MisuseError(f"key {key.hex()}: it is stored already (look it up first)")

    def demotion(self, slots: Ids, space: bytes) -> JobColumns:
        """The columns of a demotion of these slots."""
        self.slots(slots)
        if not len(slots):
            raise MisuseError("a job with nothing to copy cannot be built")
        chosen, group, key = listed(slots), self._slots.group, self._slots.key
        return JobColumns.of_slots(slots, bytes([group[slot] for slot in chosen]), [key[slot] or b"" for slot in chosen], space)

    def promotion(self, slots: Ids, keys: Sequence[bytes], groups: int | Sequence[int], space: bytes) -> JobColumns:
        """The columns of a promotion: groups exist, and none of the content is stored or on its way already (I14)."""
        self.slots(slots)
        if not len(slots):
            raise MisuseError("a job with nothing to copy cannot be built")
        if len(keys) != len(slots):
            raise MisuseError(f"{len(slots)} slots and {len(keys)} keys do not agree")
        own = bytes(self.groups(groups, len(keys)))
        contents = list(zip(own, keys, strict=True))
        if len(set(contents)) != len(contents):
            (_, key), _ = Counter(contents).most_common(1)[0]
            raise MisuseError(f"key {key.hex()}: it is named twice in one job (I14)")
        indexes, state = self._slots.index, self._slots.state
        for group, key in contents:
            if (slot := indexes[group].get(key)) is not None:
                coming = "stored already" if state[slot] == READY else "on its way already"
                raise MisuseError(f"key {key.hex()}: it is {coming}, in slot {slot} (look it up first)")
        return JobColumns.of_slots(slots, own, list(keys), space)

    def load(self, found: RequestRow, transfers: Sequence[GroupTransfer[Allocated]], columns: JobColumns) -> Ids:
        """The blocks of a load, after all checks that do not depend on states."""
        if None in columns.names:
            raise MisuseError(
                f"request {found.name}: {len(columns.lives)} blocks to load and {len(columns.keys)} keys do not agree"
            )
        self.slots(columns.slots)
        ids = self.fresh(columns.lives, "plan_load")
        self.columns(columns, ids)
        for transfer in transfers:
            self.held(found, transfer.blocks)
            for slot, key in zip(transfer.slots, transfer.keys, strict=True):
                if self._slots.key[slot] is not None and self._slots.key[slot] != key:
                    raise MisuseError(f"slot {slot}: it does not hold {key.hex()} (look it up again)")
                if self._slots.key[slot] is not None and (own := self._slots.group[slot]) != transfer.blocks.group:
                    raise MisuseError(
                        f"slot {slot}: it holds content of group {own}, not {transfer.blocks.group} (look it up again)"
                    )
        return ids

    def placements(self, found: RequestRow, placements: Sequence[Placement]) -> None:
        """What an engine's own allocator has put into the tables of one request: each block is named once, and may go there."""
        taken = self.blocks([block for each in placements for block in each.taken])
        allocated = self.blocks([block for each in placements for block in each.allocated])
        self.blocks([*taken, *allocated])
        for each in placements:
            self.group(each.group)
            if each.skipped < 0:
                raise MisuseError(f"request {found.name}: cannot skip {each.skipped} blocks")
            lives = self._blocks.lives(batch(each.taken))
            self.handed_out(ids_of(lives), each.group)
            self.tenancy(found.tables[each.group], lives, found.name)
        self._blocks.ask(ACQUIRE, batch(taken))
        self._blocks.ask(HAND_OUT[self._state.fence], batch(allocated))

    def held(self, request: RequestRow, blocks: Batch[Allocated]) -> None:
        holds = set(request.tables[blocks.group])
        for life in listed(blocks.lives):
            if life not in holds:
                raise MisuseError(
                    f"block {life & ID_MASK}: request {request.name} does not hold it (load only into its own blocks)"
                )

    def names(self, jobs: JobColumns, ids: Ids) -> None:
        """Content that has a key is stored under it; *ids* as in `columns`."""
        held = self._blocks.key
        for place, key in zip(listed(ids), jobs.names, strict=True):
            own = held[place]
            if own is not None and key is not None and own != key:
                raise MisuseError(
                    f"block {place}: it holds {own.hex()}, which cannot be stored as {key.hex()} (one content, one key)"
                )

    def couplings(self, job: JobRow) -> None:
        """Check the couplings again from the other side, at the places of one job (a pair assertion)."""
        state, ids = self._jobs.state(job), job.ids
        over = state in TERMINAL
        column, view = (self._blocks.job, self._blocks.job_view) if over else (self._blocks.pins, self._blocks.pins_view)
        wrong = job.row if over else 0
        if any(column[place] == wrong for place in ids) if type(ids) is list else bool((view[ids] == wrong).any()):
            problem = "a block still names it" if over else "a block has no pin of it (I1)"
            self.violate(f"job {self._state.id_of(job)} is {state.name}, and {problem}")
        if over and state is not Job.DONE and job.direction.fills_slots:
            for slot in job.slots:
                if self._slots.at(slot) is Slot.READY and self._slots.key[slot] in job.keys:
                    self.violate(f"slot {slot} is READY although job {self._state.id_of(job)} is {state.name} (I6)")

    def violate(self, problem: str) -> None:
        """Handle a broken rule according to the level of checking: raise, or count it and go on."""
        self._state.tally["violations"] += 1
        if self._state.checking is Checking.STRICT:
            raise InvariantError(problem)

    def ask_job(self, job: JobRow, event: str, facts: int = 0) -> int:
        compiled = JOB[event]
        row = compiled.lut[self._jobs.column.state[job.row] << len(compiled.guards) | facts]
        if row == 0:
            raise self._state.refusals.of_job(job, event)
        return row

    def ask_request(self, request: RequestRow, event: str) -> int:
        row = REQUEST[event].lut[self._state.request_column.state[request.row]]
        if row == 0:
            raise self._state.refusals.of_request(request, self._state.request_column.at(request.row), event)
        return row
