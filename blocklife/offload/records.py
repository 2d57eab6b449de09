"""Policies of the offload scheduler, and the plain records that it exchanges with an engine in a step.

Rules of this file:

* Where engines differ there is a named policy with all choices and a documented default.
* Records hold names, ids and counts only; all can be pickled.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from attrs import field, frozen

from blocklife.offload._fields import knob

Keys: TypeAlias = Callable[[int, int, int], Sequence[bytes]]
"""The keys of the blocks ``start`` to ``stop`` of one group: ``keys(group, start, stop)``.

Called when a prefix is looked up and when blocks fill, never earlier. The key of a chunk is that of its last block.
"""

TailKeys: TypeAlias = Callable[[int, int], bytes | None]
"""The key of a tail: ``tails(group, tokens)`` names what a block of the group holds if the prefix ends inside it, at *tokens*.

None if there is none: the request has fewer tokens. Called when a prefix is looked up, and when a tail is stored. In a group
with layers of a drafter it is called with the end of the proof, one boundary behind the tail; at the end of a block `Keys` is.
"""


class LastStep(enum.Enum):
    """What happens to outstanding copies when the last request ends."""

    FLUSH = "that step's plan waits for all of them, loads too"
    DRAIN = "ticking goes on until every job has reported"


class FullHit(enum.Enum):
    """What happens to a hit on the whole prompt: at least one token must be computed to sample the next."""

    DROP_LAST_BLOCK = "the hit is cut so that the last block is computed again"
    RECOMPUTE_LAST_TOKEN = "everything is taken, and the last token is computed once more into a block that is final already"


class Mode(enum.Enum):
    """When content goes to the host tier."""

    EAGER = "as its chunk fills"
    LAZY = "when its block is about to be handed out again"


@frozen(kw_only=True)
class Policies:
    """The choices of one scheduler. The contract and who owns the pool are choices of the ledger."""

    last_step: LastStep = knob(LastStep.FLUSH, "what happens to copies in flight when the last request ends")
    full_hit: FullHit = knob(FullHit.DROP_LAST_BLOCK, "what happens to a hit on the whole prompt")
    """Not `FullHit.RECOMPUTE_LAST_TOKEN` with Mamba groups: a state cannot be rolled back."""
    partial_chunks: bool = knob(
        False, "whether a chunk that lacks a block that a hit could need is stored without it, or not at all"
    )
    mode: Mode = knob(Mode.EAGER, "when content goes to the host tier")
    plans_ahead: int = knob(
        0, "plans that may be outstanding when the next one is made: 0 for synchronous scheduling, 1 for asynchronous"
    )
    max_load_tokens: int | None = knob(None, "maximum number of tokens loaded for one request")
    max_store_tokens: int | None = knob(None, "maximum number of tokens of one request, from its start, that are stored")
    prompt_only: bool = knob(False, "whether only tokens of prompts are stored, and no sampled ones")
    max_load_failures: int = knob(2, "failed loads after which a request no longer looks in the host tier")
    pending_wait: float = knob(
        64.0, "how long a request waits for content that is on its way, before it computes it, in the engine's unit of time"
    )
    """The wait begins with the first of its lookups in a row that are deferred. Content from the tier below has a bound of its
    own (`BelowPolicies.max_wait`). ``math.inf``: no bound; then a copy of which nothing is ever heard holds up, for good,
    everybody who wants its content, unless it has a deadline (``Ledger(deadline=)``).
    """
    max_job_blocks: int = knob(256, "maximum number of blocks in one store, rounded up to a chunk", least=1)
    max_store_blocks_beside: int | None = knob(
        None, "maximum number of blocks in stores that are out while a load is out; what is over waits to be stored"
    )
    """A store moves content that nobody waits for, over the same memory as the loads that requests wait for. What waits may be
    gone from the device before its turn comes, and is not stored then (vllm-project/vllm#50045)."""
    lazy_blocks: int = knob(64, "in lazy mode, how many of the blocks that will be handed out next are kept stored", least=1)
    load_within_tokens: int = knob(
        0, "how many tokens the loads of one step may bring together for which its plan waits before the forward pass"
    )
    """A request whose hit still fits runs in the same step; the others load between two steps. 0: all of them do."""
    state_drafts: int = knob(
        0, "how many drafts a step may compute beside a Mamba group: the state after each lies in a block of its own"
    )
    """Then a request can step back to a state before the first wrong draft. 0: a state cannot be taken back."""


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
