"""The offload scheduler: what is loaded and stored, once per engine step.

Rules of this file:

* It chooses; the ledger decides what is legal. Every change goes through a verb.
* A wish to store names lives, not ids: staleness is one comparison, when the wish comes up, whoever held the block meanwhile.
* A refusal changes nothing: the wish stays at the head of the line, and no later one overtakes it.

One full-attention group is handled here; a chunk is one block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, frozen

from blocklife.ledger import Batch, Ledger, Plan
from blocklife.ledger.jobs import Allocated, Storable
from blocklife.ledger.places import EPOCH_SHIFT, ID_MASK
from blocklife.offload.host import HostTier
from blocklife.states import Block, BlockLife

_INDEX = BlockLife.table.index
_STORABLE = frozenset(_INDEX[row.source] for row in BlockLife.table.events["plan_store"].rows)
"""States from which a store can be planned now."""
_LATER = frozenset({_INDEX[Block.FLUSHED]})
"""States from which it can be once a wait is proven."""


@frozen
class OffloadStatistics:
    """What the policy has counted."""

    refused_stores: int
    """Jobs that could not be planned for lack of a job or of slots; the wish stays."""
    already_stored: int
    """Blocks whose content is in the host tier, or on its way, when their turn came."""
    stale: int
    """Blocks whose life was over when their turn came."""
    waiting: int
    """Blocks whose turn has not come."""


@define(eq=False)
class _Wish:
    """Blocks that one request would like stored, in order: each life with its key."""

    owner: str
    keys: dict[int, bytes]


class OffloadScheduler:
    """Loads on a hit, stores as blocks fill (eager), flushes where a step must not go on without a copy's end.

    Invariant: ``_wished`` names, by block, the life of it that waits in a wish, and that wish. A block has one at most, so that
    no more than the device has ever wait, however long stores are refused.
    """

    def __init__(self, ledger: Ledger, tier: HostTier, *, max_job_blocks: int = 256) -> None:
        self.ledger = ledger
        self.tier = tier
        # A job larger than the tier would be refused for ever, and one that the link cannot move in time would expire.
        self.max_job_blocks = min(max_job_blocks, len(ledger.slots))
        self._wishes: dict[str, _Wish] = {}
        self._wished: dict[int, tuple[int, _Wish]] = {}
        self._refused = 0
        self._already_stored = 0
        self._stale = 0

    def lookup(self, keys: Sequence[bytes]) -> list[int]:
        """Slots that hold the longest prefix of *keys*. The answer holds until the next call that may store or evict."""
        return self.ledger.find_slots(keys)

    def load(self, request: str, target: Batch[Allocated], slots: Sequence[int]) -> None:
        """Fill *target*, which the request holds, from slots that `lookup` gave; the request is LOADING from now on."""
        self.ledger.plan_load(request, target, slots)
        self.tier.touch(slots)

    def store(self, request: str, lives: Iterable[int], keys: Iterable[bytes]) -> None:
        """Wish for content to be stored: final, or final at the end of the coming step."""
        epoch, wished = self.ledger.blocks.epoch, self._wished
        for life, key in zip(lives, keys, strict=True):
            place = life & ID_MASK
            if epoch[place] != life >> EPOCH_SHIFT:
                self._stale += 1
                continue
            if (found := wished.get(place)) is not None:
                former, its = found
                if former == life:
                    self._already_stored += 1
                    continue
                self._stale += 1
                self._strike(its, former)
            wish = self._wishes.setdefault(request, _Wish(request, {}))
            wish.keys[life] = key
            wished[place] = life, wish

    def build_plan(self, now: float, *, preempted: Iterable[str] = (), last: bool = False) -> Plan:
        """The plan of this step: flushes for requests that were preempted, stores for what is wished, everything submitted.

        With ``last``, no request is left that could run: every job that is out is waited for.
        """
        for request in preempted:
            if (jobs := self.ledger.jobs_of(request)).ids:
                self.ledger.flush(jobs)
        self._plan_stores()
        if last and (jobs := self.ledger.submitted()).ids:
            self.ledger.flush(jobs)
        return self.ledger.dispatch(now)

    def has_pending_work(self) -> bool:
        """Whether ticking must go on although no request is left."""
        return self.ledger.has_pending_work()

    def forget_wishes(self) -> None:
        """Drop what is still wished for: the run is over, or its content is."""
        self._wishes.clear()
        self._wished.clear()

    def statistics(self) -> OffloadStatistics:
        """Counts so far."""
        return OffloadStatistics(self._refused, self._already_stored, self._stale, len(self._wished))

    def _plan_stores(self) -> None:
        """One job a request, in the order in which the wishes came up, until one is refused."""
        for wish in list(self._wishes.values()):
            ripe, names = self._ripe(wish)
            lives, keys = ripe[: self.max_job_blocks], names[: self.max_job_blocks]
            if lives:
                slots = self.tier.reserve(len(lives)) if self.ledger.jobs.room else []
                if not slots:
                    self._refused += 1
                    return
                source: Batch[Storable] = Batch(lives)
                self.ledger.plan_store(source, slots, keys, owner=wish.owner)
                for life in lives:
                    self._strike(wish, life)

    def _strike(self, wish: _Wish, life: int) -> None:
        """Take a life out of a wish; a wish for nothing is none."""
        del wish.keys[life]
        del self._wished[life & ID_MASK]
        if not wish.keys:
            del self._wishes[wish.owner]

    def _ripe(self, wish: _Wish) -> tuple[list[int], list[bytes]]:
        """What of a wish can be stored now; what never can be is struck from it, what has to wait stays in it."""
        blocks, stored = self.ledger.blocks, self.ledger.slots.index[0]
        ripe: tuple[list[int], list[bytes]] = ([], [])
        chosen: set[bytes] = set()
        for life, key in list(wish.keys.items()):
            place = life & ID_MASK
            state = blocks.column.state[place]
            if blocks.epoch[place] != life >> EPOCH_SHIFT:
                self._stale += 1
                self._strike(wish, life)
            elif key in stored or key in chosen:
                self._already_stored += 1
                self._strike(wish, life)
            elif state in _STORABLE:
                chosen.add(key)
                ripe[0].append(life)
                ripe[1].append(key)
            elif state not in _LATER:
                self._strike(wish, life)
        return ripe
