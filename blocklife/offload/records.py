"""The plain records that the offload scheduler exchanges with an engine in a step.

Rules of this file:

* Records hold names, ids and counts only; all can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from attrs import field, frozen

Keys: TypeAlias = Callable[[int, int, int], Sequence[bytes]]
"""The keys of the blocks ``start`` to ``stop`` of one group: ``keys(group, start, stop)``.

Called when a prefix is looked up and when blocks fill, never earlier. The key of a chunk is that of its last block.
"""

TailKeys: TypeAlias = Callable[[int, int], bytes | None]
"""The key of a tail: ``tails(group, tokens)`` names what a block of the group holds if the prefix ends inside it, at *tokens*.

None if there is none: the request has fewer tokens. Called when a prefix is looked up, and when a tail is stored. In a group
with layers of a drafter it is called with the end of the proof, one boundary behind the tail; at the end of a block `Keys` is.
"""


@frozen
class Hit:
    """The result of `lookup` for one request; valid until the plan of its step is built.

    ``device_tokens`` of the ``tokens`` are on the device, the others in the host tier. ``compute_from`` is the first token to
    be computed. ``deferred``: the result depends on a copy that has not landed; look the request up again later.
    """

    request: str
    tokens: int
    device_tokens: int
    compute_from: int
    deferred: bool
    step: int
    """The step in which it was found."""
    lives: tuple[tuple[int, ...], ...] = ()
    """The lives of the device part, by group; for groups with a window only those inside it."""
    slots: tuple[tuple[int, ...], ...] = ()
    """The slots of the host part, by group; they are pinned. If the hit ends inside a block, the last one has its tail."""
    within: bool = False
    """Whether the plan waits for the load, so that the request runs in this step (`Policies.load_within_tokens`)."""

    @property
    def host_tokens(self) -> int:
        """Tokens that a load would bring."""
        return self.tokens - self.device_tokens


def _ids(blocks: Iterable[int]) -> tuple[int, ...]:
    return tuple(blocks)


@frozen
class Placed:
    """What an engine's own allocator has appended to one table of a request, in this order; block ids of one group."""

    group: int
    skipped: int = 0
    """Number of null blocks, for positions outside the window."""
    shared: tuple[int, ...] = field(default=(), converter=_ids)
    """Blocks of a prefix hit, which other requests may hold too."""
    external: tuple[int, ...] = field(default=(), converter=_ids)
    """Target blocks of the load."""
    fresh: tuple[int, ...] = field(default=(), converter=_ids)
    """Blocks to be computed."""


@frozen
class Settled:
    """The requests whose state changed when a plan settled, each named once: one that has ended neither loaded nor failed."""

    loaded: tuple[str, ...]
    """Their load is done; they run from the next step on, or have run in the step of the load already (`Hit.within`)."""
    failed: tuple[str, ...]
    """Their load failed; they wait, hold nothing, and must be looked up again. What they have computed behind it is void."""
    ended: tuple[str, ...]
    """Their end was delayed until this plan settled; they hold nothing any more."""


@frozen
class Progress:
    """The progress of one request, in tokens."""

    known: int
    """Tokens that exist: the prompt and the sampled tokens."""
    computed: int
    """Tokens whose content is final, in plans that have settled."""
    in_flight: int
    """Tokens of plans that have not settled."""


@frozen(kw_only=True)
class BelowStatistics:
    """Counts since the start, in slots."""

    promoted: int
    """Brought into the host tier."""
    missing: int
    """Wanted from below, and not there whole when they were fetched."""
    failed_promotions: int
    demoted: int
    refused: int
    """Not taken by the store below, for lack of room, say."""
    failed_demotions: int
    already_below: int
    """Not demoted because the store had them."""
    lost: int
    """Evicted from the host tier, or forgotten, before their turn to be demoted came."""
    overdue_requests: int
    """Requests that went on after waiting for `BelowPolicies.max_wait`."""
    no_room: int
    """Wanted from below, but the host tier had no slot to bring them to."""


@frozen
class OffloadStatistics:
    """Counts of the offload scheduler; in blocks unless noted otherwise."""

    refused_stores: int
    """Stores that could not be planned for lack of jobs or slots; they stay queued."""
    already_stored: int
    """Chunks whose content was already in the host tier when their turn came."""
    in_flight: int
    """Chunks whose lives were already being stored."""
    stale: int
    """Blocks whose life was over when their turn came."""
    partial: int
    """Chunks that were not stored because they lack a block that a hit could need."""
    waiting: int
    """Chunks that are queued."""
    deferred: int
    """Lookups that had to wait for a copy."""
    overdue_requests: int
    """Requests that went on without content that was on its way, after waiting for `Policies.pending_wait`."""
    device_hits: tuple[int, ...]
    """Blocks found on the device, by group."""
    host_hits: tuple[int, ...]
    """Blocks loaded from the host tier, by group; those of loads that failed too."""
    below: BelowStatistics | None = None
    """Counts of the tier below; None for a scheduler without one."""
