"""The ledger, with verbs that an engine like vLLM needs besides: many hand-outs at once, and a host tier that is emptied alone.

They are made of the ledger's own steps, and every table is asked as always.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.errors import MisuseError
from blocklife.ledger import Direction, Ledger
from blocklife.ledger.book import SLOT
from blocklife.ledger.core import verb
from blocklife.ledger.places import NULL, batch, listed
from blocklife.states import Slot


class EngineLedger(Ledger):
    """A ledger of a pool that the engine's own allocator owns."""

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
