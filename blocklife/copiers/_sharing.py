"""Which rank writes a place of host memory that several ranks have together.

Rules of this file:

* Each place has one writer, and every rank can say which: nothing is agreed on while the engine runs.
* The places of a slot have the same writer, so that a chunk is filled, and sent to a store below, by one rank.

Theory. All of these ranks hold the same content, so that it does not matter whose copy of it is kept. A slot is content when
the copy into it is over, and free when all copies from it are. The ledger knows both, as without sharing: every rank reports on
every job, and one that moves nothing of a job has nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import field, frozen, validators
from numpy.typing import NDArray

from blocklife.errors import MisuseError
from blocklife.ledger.records import Ids

RANKS_MOST = 128


@frozen
class Sharing:
    """One of several ranks of a machine that hold the same content, so that host memory keeps it once.

    Each place has one rank that writes it; all of them read it.
    """

    name: str = field(validator=validators.matches_re(r"[A-Za-z0-9_.-]{1,200}"))
    """The name of the region. All ranks that share it give the same one, and no other engine on the machine does."""
    rank: int = field(validator=validators.ge(0))
    """Among those that share, from 0."""
    num_ranks: int = field(validator=[validators.ge(1), validators.le(RANKS_MOST)])
    places_per_slot: int = field(default=1, validator=validators.ge(1))
    """The blocks of a chunk."""

    def __attrs_post_init__(self) -> None:
        if self.rank >= self.num_ranks:
            raise MisuseError(f"sharing {self.name}: there is no rank {self.rank} among {self.num_ranks}")

    def writes(self, places: Ids) -> NDArray[np.bool_]:
        """Of each place, whether this rank writes it."""
        return self.writes_slots(places // self.places_per_slot)

    def sizes_of(self, places: Ids, group_sizes: Sequence[int]) -> tuple[int, ...]:
        """How many of each group's places, which follow one another, this rank writes."""
        ends = np.cumsum(group_sizes)[:-1]
        return tuple([int(part.sum()) for part in np.split(self.writes(places), ends)])

    def writes_slots(self, slots: Ids) -> NDArray[np.bool_]:
        """Of each slot, whether this rank writes it, and sends it to a store below."""
        mine: NDArray[np.bool_] = slots % self.num_ranks == self.rank
        return mine
