"""The settings of a ledger, and its statistics."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from blocklife.errors import MisuseError

MAX_SLOTS, MAX_JOBS, MAX_REQUESTS = 1 << 31, 1 << 20, (1 << 16) - 1
"""Largest number of slots, outstanding jobs and requests of a ledger."""


class Contract(enum.Enum):
    """What may happen to a block that is given up while a store reads it."""

    FENCE = "it may be handed out in a step whose plan carries the wait for the copy"
    HOLD = "it stays until the copy has landed"


class Checking(enum.Enum):
    """What happens when a rule is broken, in addition to the tables, which are always checked."""

    STRICT = "couplings are checked again after every verb that touches a job; a violation raises, and so do calls that overlap"
    COUNT = "the same checks; a violation is counted and the run goes on"
    OFF = "couplings are not checked again"


def _positive(instance: object, attribute: object, value: int) -> None:
    name = getattr(attribute, "name", "value")
    if type(value) is not int or value < 1:
        raise MisuseError(f"{name} must be a whole number of at least 1, not {value!r}")


@frozen(kw_only=True)
class Limits:
    """The sizes of a ledger; nothing ever grows beyond them."""

    num_blocks: int = field(validator=_positive)
    """Including the null block."""
    num_slots: int = field(validator=_positive)
    max_jobs: int = field(default=256, validator=_positive)
    max_requests: int = field(default=1024, validator=_positive)
    num_groups: int = field(default=1, validator=_positive)
    num_workers: int = field(default=1, validator=_positive)
    max_plans: int = field(default=64, validator=_positive)
    """Maximum number of outstanding plans: dispatched and not settled."""
    max_journal: int = field(default=65536, validator=_positive)
    """Number of steps that the journal keeps."""

    def __attrs_post_init__(self) -> None:
        for name, value, most in (
            ("num_blocks", self.num_blocks, 1 << 31),
            ("num_slots", self.num_slots, MAX_SLOTS),
            ("max_jobs", self.max_jobs, MAX_JOBS),
            ("max_requests", self.max_requests, MAX_REQUESTS),
            ("num_groups", self.num_groups, 256),
            ("num_workers", self.num_workers, 4096),
        ):
            if value > most:
                raise MisuseError(f"{name} can be at most {most}, not {value}")
        if self.num_blocks < 2:
            raise MisuseError("num_blocks must be at least 2: block 0 is the null block and is never handed out")

    @classmethod
    def agree(cls, ranks: Sequence[Limits]) -> Limits:
        """The limits that all ranks can satisfy: the smallest number of blocks and of slots.

        Every rank that gets the same list computes the same result, or raises the same error: `MisuseError`, naming two ranks,
        if they do not describe the same engine. Ranks that decide separately drift apart (sglang 26921).
        """
        if not ranks:
            raise MisuseError("there is no rank to agree with (give the limits of every rank, in order)")
        first = ranks[0]
        for rank, limits in enumerate(ranks):
            for name in ("max_jobs", "max_requests", "num_groups", "num_workers", "max_plans", "max_journal"):
                one, other = getattr(first, name), getattr(limits, name)
                if one != other:
                    raise MisuseError(f"rank 0 has {name}={one} and rank {rank} has {name}={other} (they must be equal)")
        if first.num_workers != len(ranks):
            raise MisuseError(f"num_workers={first.num_workers} and {len(ranks)} ranks do not fit (make them equal)")
        return evolve(
            first,
            num_blocks=min(limits.num_blocks for limits in ranks),
            num_slots=min(limits.num_slots for limits in ranks),
        )


@frozen
class Statistics:
    """Counts at one moment; places are counted once each, so that they add up to the capacity."""

    blocks: Mapping[str, int]
    slots: Mapping[str, int]
    jobs_alive: int
    requests: int
    free: int
    """Blocks that can be handed out now without a wait."""
    freeing_soon: int
    """Blocks that no request holds but a copy still touches; under fence they can be handed out behind a wait."""
    quarantined: int
    late: int
    """Reports for jobs that were over or past their deadline."""
    duplicate: int
    unknown: int
    stale: int
    """References to lives that were over, detected and dropped."""
    violations: int
    hook_errors: int
    """Errors of hooks, watchers of slots and other code of the user; they changed nothing."""
