"""The messages between the scheduler side of the connector and its workers: plain records that can be pickled.

Nothing here depends on vLLM; `_connector` wraps them in vLLM's base classes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

from attrs import astuple, evolve, field, frozen

from blocklife.ledger import Completion, JobId, Launched, Plan


@frozen(eq=False)
class StepPlan:
    """What every worker does in one vLLM step, including steps that compute nothing."""

    plans: tuple[Plan, ...]
    """In order. Plans before the last one hold stores that were planned between two steps; they have no forward pass."""
    loads: Mapping[JobId, str]
    """The vLLM request of each load in the last plan."""
    identity: bytes = b""
    """In the first step with a store below: for which content the scheduler side asks it (`Identity.fingerprint`)."""
    loads_beside: bool = False
    """Whether loads between steps run beside the forward pass: the step neither zeroes nor copies into their blocks first."""

    @property
    def number(self) -> int:
        """The number of the last plan: a worker that has executed it has executed all earlier ones."""
        return self.plans[-1].number


@frozen
class Moved:
    """Copies of one direction that have landed, on one worker or on several."""

    num_bytes: int = 0
    seconds: float = 0.0
    """Total duration of the copies by the copier's clock, without time spent queued."""
    sizes: tuple[int, ...] = ()
    """Bytes of each copy."""

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.num_bytes + other.num_bytes, self.seconds + other.seconds, self.sizes + other.sizes)


@frozen
class MovedBelow:
    """What workers have moved between host memory and the store below; apart from bytes in slots of one worker."""

    promoted_bytes: int = 0
    """Brought from the store."""
    demoted_bytes: int = 0
    """Put into the store."""
    damaged: int = 0
    """What the store brought was cut or changed."""
    foreign: int = 0
    """What the store brought was made for something else."""
    failed: int = 0
    """The store could not do it, or not in time."""
    skipped: int = 0
    """Not tried, because the store was down."""
    hung: int = 0
    """Calls of the store that did not come back in time."""

    def __add__(self, other: MovedBelow) -> MovedBelow:
        return MovedBelow(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: MovedBelow) -> MovedBelow:
        return MovedBelow(*map(operator.sub, astuple(self), astuple(other)))


def moved_together(one: MovedBelow | None, other: MovedBelow | None) -> MovedBelow | None:
    """Both together."""
    return one + other if one is not None and other is not None else one or other


@frozen(eq=False)
class WorkerReport:
    """The report of one worker after a step, or of several merged."""

    number: int
    """The last plan that all of them have executed."""
    launched: tuple[Launched, ...] = ()
    completions: tuple[Completion, ...] = ()
    stored: Moved = field(factory=Moved)
    loaded: Moved = field(factory=Moved)
    below: MovedBelow | None = None
    """None: nothing was moved there, as without a store below."""
    damaged: int = 0
    """Blocks of host memory in which loads found other bytes than were stored, since the last report."""

    def __add__(self, other: WorkerReport) -> WorkerReport:
        """Merge two reports."""
        return evolve(
            self,
            number=min(self.number, other.number),
            launched=self.launched + other.launched,
            completions=self.completions + other.completions,
            stored=self.stored + other.stored,
            loaded=self.loaded + other.loaded,
            below=moved_together(self.below, other.below),
            damaged=self.damaged + other.damaged,
        )
