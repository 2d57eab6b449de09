"""The ledger of a pool that the engine's own allocator owns.

It has verbs that an engine like vLLM needs besides: what a step does to many requests is told at once, and the host tier can be
emptied alone. They are made of the ledger's own steps, and every table is asked as always. What only a ledger needs that hands
blocks out itself is left out: an order of the free blocks, and where content lies on the device, which the engine looks up.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from attrs import define, field

from blocklife.errors import MisuseError
from blocklife.ledger import Checking, Contract, Direction, Ledger, Limits, Seal
from blocklife.ledger.book import BLOCK, SLOT
from blocklife.ledger.core import verb
from blocklife.ledger.places import (
    EPOCH_SHIFT,
    NULL,
    Blocks,
    FreeQueue,
    Ids,
    batch,
    entries,
    ids_of,
    joined,
    listed,
)
from blocklife.states import Slot


@define(eq=False)
class Growth:
    """What the engine's allocator has put behind tables: one entry of each list for each of them."""

    names: list[str] = field(factory=list)
    """Whose table it is."""
    groups: list[int] = field(factory=list)
    taken: list[Sequence[int]] = field(factory=list)
    """Blocks of a hit, which are held from now on; they go first. `NULL` leaves a place empty, here and there."""
    fresh: list[Sequence[int]] = field(factory=list)
    """Blocks that are handed out."""

    def note(self, name: str, group: int, fresh: Sequence[int], taken: Sequence[int] = ()) -> None:
        """One more table has grown."""
        self.names.append(name)
        self.groups.append(group)
        self.taken.append(taken)
        self.fresh.append(fresh)


class EngineQueue(FreeQueue):
    """Free blocks in no order: the engine knows which comes next."""

    def push(self, ids: Ids) -> None:
        """Nothing to do: whether a block is free is in its state."""

    def order(self) -> list[int]:
        """All free blocks, by number."""
        state = self._column.view
        free = np.flatnonzero((state == self._freed) | (state == self._cached))
        return listed(free[free != NULL].astype(np.int64))


class EngineBlocks(Blocks):
    """Blocks whose content is not looked up here."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        super().__init__(num_blocks, num_groups)
        self.queue = EngineQueue(self.column)

    def name(self, places: Iterable[int], keys: Iterable[bytes], group: int) -> None:
        """Give content its key."""
        own, groups = self.key, self.group
        for place, key in zip(places, keys, strict=True):
            own[place] = key
            groups[place] = group

    def forget(self, place: int) -> None:
        """Take the key away from a place."""
        self.key[place] = None

    def _forget_many(self, places: Iterable[int]) -> None:
        own = self.key
        for place in places:
            own[place] = None


class EngineLedger(Ledger):
    """A ledger of a pool that the engine's own allocator owns."""

    def __init__(self, limits: Limits, *, contract: Contract, checking: Checking, incarnation: int, deadline: float) -> None:
        super().__init__(
            limits, contract=contract, checking=checking, incarnation=incarnation, deadline=deadline, own_pool=False
        )
        self.blocks = EngineBlocks(limits.num_blocks, limits.num_groups)

    @verb
    def observe_tables(self, growth: Growth) -> None:
        """The engine's allocator has put blocks behind many tables: `skip`, `observe_take`, `observe_allocate`; all or none.

        Edges, couplings, refusals: as those have; and a block that is a hit and handed out in one call.
        """
        self._check_pool(own=False)
        for group in set(growth.groups):
            self._check_group(group)
        tables = [self._request(name).tables[group] for name, group in zip(growth.names, growth.groups, strict=True)]
        fresh = batch(self._check_blocks([block for own in growth.fresh for block in own if block != NULL]))
        if any(growth.taken):
            self._take_many(growth, tables, fresh)
        lives = iter(self._hand_out_many(growth, fresh) if len(fresh) else ())
        for table, own in zip(tables, growth.fresh, strict=True):
            table.extend([next(lives) if block != NULL else NULL for block in own] if NULL in own else islice(lives, len(own)))

    def _take_many(self, growth: Growth, tables: Sequence[array[int]], fresh: Ids) -> None:
        """The hits of all tables; several of them may name one block, which each of them holds from now on."""
        held = [block for taken in growth.taken for block in taken if block != NULL]
        if twice := set(listed(fresh)).intersection(held):
            raise MisuseError(f"block {min(twice)}: it is a hit, and handed out in the same call")
        epoch = self.blocks.epoch
        hits: list[tuple[array[int], list[int]]] = []
        for name, group, table, taken in zip(growth.names, growth.groups, tables, growth.taken, strict=True):
            if taken:
                ids = batch(self._check_blocks([block for block in taken if block != NULL]))
                self._check_handed_out(ids, group)
                self._check_tenancy(table, self.blocks.lives(ids), name)
                hits.append((table, [epoch[block] << EPOCH_SHIFT | block if block != NULL else NULL for block in taken]))
        if len(fresh):  # refused before the first write
            self.blocks.ask(BLOCK["allocate"], fresh, constant=self._fence)
        times: dict[int, int] = Counter(held)
        while times:
            self._commit(self.blocks.ask(BLOCK["acquire"], batch(times), refs=+1))
            times = {block: count - 1 for block, count in times.items() if count > 1}
        for table, lives in hits:
            table.extend(lives)

    def _hand_out_many(self, growth: Growth, fresh: Ids) -> list[int]:
        """Each block to the group that it is for."""
        lives = listed(self._hand_out(fresh, growth.groups[0]))
        if len(set(growth.groups)) > 1:
            sizes = [len(own) - own.count(NULL) for own in growth.fresh]
            self.blocks.group_view[fresh] = np.repeat(np.array(growth.groups, dtype=np.uint8), sizes)
        return lives

    @verb
    def seal_many(self, seals: Sequence[Seal]) -> None:
        """`seal` in several groups at once, all or none. Edges, refusals: as `seal`."""
        for each in seals:
            self._check_group(each.group)
            if len(each.keys) != len(each.lives):
                raise MisuseError(f"{len(each.lives)} blocks to seal and {len(each.keys)} keys do not agree")
        if not seals:
            return
        given = [batch(each.lives) for each in seals]
        self._check_distinct(joined(given), "seal")
        fresh = [self._still_fresh(lives, each.keys) for each, lives in zip(seals, given, strict=True)]
        for each, (lives, keys) in zip(seals, fresh, strict=True):
            self._check_content(ids_of(lives), lives, keys, each.group)
        self._commit(self.blocks.ask(BLOCK["seal"], ids_of(joined([lives for lives, _ in fresh]))))
        for each, (lives, keys) in zip(seals, fresh, strict=True):
            self.blocks.name(listed(ids_of(lives)), keys, each.group)
            self.tally["stale"] += len(each.lives) - len(lives)

    @verb
    def finish_many(self, requests: Sequence[str]) -> None:
        """`finish` of several requests at once; what several of them hold is let go of by each. Edges: as `finish`."""
        rows = [self._request(request) for request in requests]
        if len(set(requests)) != len(rows):
            raise MisuseError(f"{len(rows)} requests cannot be finished at once, for one of them is named twice")
        for row in rows:
            if row.load:  # it is given up before its blocks
                self.finish(row.name)
        rows = [row for row in rows if row.name in self.requests]
        held = [entries(table, slice(None)) for row in rows for table in row.tables if table]
        lives, times = np.unique(np.concatenate(held) if held else np.zeros(0, dtype=np.int64), return_counts=True)
        for more in range(int(times[lives != NULL].max(initial=0))):
            self._release(batch(lives[(times > more) & (lives != NULL)]))
        for row in rows:
            self._fire_request(row, "finish")
            del self.requests[row.name]
            self._spare_requests.append(row.row)

    @verb
    def forget_host(self) -> None:
        """Forget the content of the host tier, and of nothing else.

        Stores that are planned are cancelled, those that are submitted are abandoned; loads go on, and their slots stay held
        until they land. Edges: slot READY → EMPTY, or STALE where a load reads it.
        """
        for job in self.jobs.alive():
            if job.direction is Direction.STORE:
                self._give_up_job(job)
        self._commit(self.slots.ask(SLOT["drop"], batch(self.slots.column.where(Slot.READY))))
