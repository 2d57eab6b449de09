"""Policies of the offload scheduler: where engines differ there is a named one with all choices and a documented default.

Rules of this file:

* It says what there is to choose from, for schedulers, worlds and scenarios; how a choice is carried out is in `offload`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from attrs import frozen

from blocklife.knobs import knob


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


REPLACEMENTS: Mapping[str, str] = {
    "lru": "the least recently used",
    "arc": (
        "adaptive: one list of what was used once, one of what was used again; keys that come back after eviction show which "
        "list was too short (Megiddo and Modha, 2003). A scan cannot evict everything that is used repeatedly."
    ),
}
"""The built-in eviction policies of the host tier by name, with what each evicts first."""
BUILT_IN = tuple(REPLACEMENTS)
"""The names of the built-in policies, for options and scenarios."""
