"""The ledger of a pool that the engine's own allocator owns.

It has verbs that an engine like vLLM needs besides: many hand-outs at once, and a host tier that is emptied alone. They are
made of the ledger's own steps, and every table is asked as always. What only a ledger needs that hands blocks out itself is
left out: an order of the free blocks, and where content lies on the device, which the engine looks up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from blocklife.errors import MisuseError
from blocklife.ledger import Checking, Contract, Direction, Ledger, Limits
from blocklife.ledger.book import SLOT
from blocklife.ledger.core import verb
from blocklife.ledger.places import NULL, Blocks, FreeQueue, Ids, batch, listed
from blocklife.states import Slot


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
    def observe_allocate_many(
        self, requests: Sequence[str], blocks: Sequence[Sequence[int]], group: int, *, skips: Sequence[int] = ()
    ) -> None:
        """`observe_allocate` for several requests at once, all or none.

        *skips* says how many null blocks go before those of each request. Edges, couplings, refusals: as `observe_allocate`.
        """
        self._check_pool(own=False)
        self._check_group(group)
        tables = [self._request(request).tables[group] for request in requests]
        if len(blocks) != len(tables) or (skips and len(skips) != len(tables)):
            raise MisuseError(f"{len(tables)} requests, {len(blocks)} lists of blocks and {len(skips)} skips do not agree")
        ids = self._check_blocks([block for each in blocks for block in each])
        lives = listed(self._hand_out(batch(ids), group)) if ids else []
        start = 0
        for number, (table, own) in enumerate(zip(tables, blocks, strict=True)):
            if skips and skips[number]:
                table.extend([NULL] * skips[number])
            table.extend(lives[start : start + len(own)])
            start += len(own)

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
