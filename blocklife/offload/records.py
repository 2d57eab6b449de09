"""What passes between an engine and the offload scheduler: policies to choose from, and plain records of one step.

Rules of this file:

* Where engines differ there is a named policy with both choices, and a default that is said.
* Records hold names, ids and counts only; all can be pickled.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from attrs import field, frozen

from blocklife.errors import MisuseError
from blocklife.ledger._limits import check_member

Keys: TypeAlias = Callable[[int, int, int], Sequence[bytes]]
"""The keys of the blocks ``start`` to ``stop`` of one group: ``keys(group, start, stop)``.

Asked for when a prefix is looked up and when blocks fill, never ahead. The key of a chunk is that of its last block.
"""


class LastStep(enum.Enum):
    """What happens to copies that are out when the last request ends."""

    FLUSH = "that step's plan waits for all of them, loads too"
    DRAIN = "ticking goes on until every job has reported"


class FullHit(enum.Enum):
    """What happens to a hit on the whole prompt: the next token needs one computed token at least."""

    DROP_LAST_BLOCK = "the hit is cut so that the last block is computed again"
    RECOMPUTE_LAST_TOKEN = "everything is taken, and the last token is computed once more into a block that is final already"


class Mode(enum.Enum):
    """When content goes to the host tier."""

    EAGER = "as its chunk fills"
    LAZY = "when its block is about to be handed out again"


def _none_or_at_least(least: int) -> Callable[[object, object, int | None], None]:
    def check(_instance: object, attribute: object, value: int | None) -> None:
        if value is not None and (type(value) is not int or value < least):
            name = getattr(attribute, "name", "value")
            raise MisuseError(f"{name} must be a whole number of at least {least}, not {value!r}")

    return check


def _member(kind: type[enum.Enum]) -> Callable[[object, object, object], None]:
    def check(_instance: object, attribute: object, value: object) -> None:
        check_member(getattr(attribute, "name", "value"), value, kind)

    return check


def _flag(_instance: object, attribute: object, value: object) -> None:
    if type(value) is not bool:
        raise MisuseError(f"{getattr(attribute, 'name', 'value')} must be True or False, not {value!r}")


@frozen(kw_only=True)
class Policies:
    """The choices of one scheduler. The contract and who owns the pool are choices of the ledger."""

    last_step: LastStep = field(default=LastStep.FLUSH, validator=_member(LastStep))
    full_hit: FullHit = field(default=FullHit.DROP_LAST_BLOCK, validator=_member(FullHit))
    partial_chunks: bool = field(default=False, validator=_flag)
    """Whether a chunk with a hole that a hit could need is stored as what it is, or not at all."""
    mode: Mode = field(default=Mode.EAGER, validator=_member(Mode))
    plans_ahead: int = field(default=0, validator=_none_or_at_least(0))
    """Plans that may be out when the next one is made: 0 is synchronous scheduling, 1 asynchronous."""
    max_load_tokens: int | None = field(default=None, validator=_none_or_at_least(0))
    """Tokens that are loaded for one request at most; None: as many as there are."""
    max_store_tokens: int | None = field(default=None, validator=_none_or_at_least(0))
    """Tokens of one request, from its start, that are stored at most; None: all."""
    prompt_only: bool = field(default=False, validator=_flag)
    """Whether only tokens of prompts are stored."""
    max_load_failures: int = field(default=2, validator=_none_or_at_least(0))
    """Failed loads after which a request looks no further than the device."""
    max_job_blocks: int = field(default=256, validator=_none_or_at_least(1))
    """Blocks that one store moves at most, rounded up to a chunk."""
    lazy_blocks: int = field(default=64, validator=_none_or_at_least(1))
    """How many of the blocks that are handed out next are kept stored, in lazy mode."""


@frozen
class Hit:
    """What `lookup` found for one request; it holds until the plan of its step is built.

    ``device_tokens`` of the ``tokens`` lie on the device, the others in the host tier. ``compute_from`` is the first token
    that is to be computed. ``deferred``: the answer is not known before a copy that is out has landed; look it up again then.
    """

    request: str
    tokens: int
    device_tokens: int
    compute_from: int
    deferred: bool
    step: int
    """In which step it was found."""
    lives: tuple[tuple[int, ...], ...] = ()
    """The lives of the device's part, by group; of groups with a window only those inside it."""
    slots: tuple[tuple[int, ...], ...] = ()
    """The slots of the host's part, by group; they are pinned."""

    @property
    def host_tokens(self) -> int:
        """Tokens that a load would bring."""
        return self.tokens - self.device_tokens


def _ids(blocks: Iterable[int]) -> tuple[int, ...]:
    return tuple(blocks)


@frozen
class Placed:
    """What an engine's own allocator has put behind the table of one request, in this order; ids of blocks, one group."""

    group: int
    skipped: int = 0
    """Null blocks, for places outside the window."""
    shared: tuple[int, ...] = field(default=(), converter=_ids)
    """A prefix hit: content that others may hold too."""
    external: tuple[int, ...] = field(default=(), converter=_ids)
    """Targets of the load."""
    fresh: tuple[int, ...] = field(default=(), converter=_ids)
    """To be computed."""


@frozen
class Freed:
    """Blocks of one request and group that an engine's own allocator has taken back, because they have left the window."""

    request: str
    group: int
    blocks: tuple[int, ...] = field(converter=_ids)


@frozen
class HandedOff:
    """A state that a step leaves in the block before token ``boundary``."""

    request: str
    group: int
    boundary: int


@frozen(kw_only=True)
class Step:
    """Everything that an engine with an allocator of its own has decided in one step; what is not named has not changed.

    A running request that is not named gets one token more. Silence is the common case, and costs nothing.
    """

    now: float
    finished: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    freed: tuple[Freed, ...] = ()
    placed: Mapping[str, Sequence[Placed]] = field(factory=dict)
    """Behind which tables blocks were put, by request: shared, external and fresh ones told apart."""
    admitted: Mapping[str, int] = field(factory=dict)
    """Requests that were looked up in this step and let in, with the tokens that they run; any number for one that loads."""
    tokens: Mapping[str, int] = field(factory=dict)
    """Running requests that get another number of tokens than one; 0 for one that pauses."""
    handed_off: tuple[HandedOff, ...] = ()
    going: tuple[int, ...] = ()
    """Blocks that the allocator will hand out next; of use to lazy stores."""


@frozen
class Settled:
    """What changed for requests when a plan settled."""

    loaded: tuple[str, ...]
    """Their load is done; they run from the next step on."""
    failed: tuple[str, ...]
    """Their load is lost; they wait, hold nothing, and are to be looked up again."""
    ended: tuple[str, ...]
    """Their end had waited for this plan; they hold nothing any more."""


@frozen
class Progress:
    """How far one request is, in tokens."""

    known: int
    """Tokens that exist: the prompt and what was sampled."""
    computed: int
    """Tokens whose content is final, in plans that have settled."""
    in_flight: int
    """Tokens of plans that have not settled."""


@frozen
class OffloadStatistics:
    """What the policy has counted; blocks unless it says otherwise."""

    refused_stores: int
    """Jobs that could not be planned for lack of a job or of slots; the wish stays."""
    already_stored: int
    """Chunks whose content was in the host tier when their turn came."""
    in_flight: int
    """Chunks of which a store was under way already, by life."""
    stale: int
    """Blocks whose life was over when their turn came."""
    partial: int
    """Chunks that were not stored, because a hit could have needed what they lack."""
    waiting: int
    """Chunks whose turn has not come."""
    deferred: int
    """Lookups that had to wait for a copy."""
    device_hits: tuple[int, ...]
    """Blocks found on the device, by group."""
    host_hits: tuple[int, ...]
    """Blocks loaded from the host tier, by group; those of loads that failed too."""
