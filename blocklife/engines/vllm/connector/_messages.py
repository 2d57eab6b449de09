"""The messages between the scheduler side of the connector and its workers: plain records that can be pickled.

Nothing here depends on vLLM; `_connector` wraps them in vLLM's base classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field, frozen

from blocklife.ledger import Completion, JobId, Launched, Plan


@frozen(eq=False)
class StepPlan:
    """What every worker does in one vLLM step, including steps that compute nothing."""

    plans: tuple[Plan, ...]
    """In order. Plans before the last one hold stores that were planned between two steps; they have no forward pass."""
    loads: Mapping[JobId, str]
    """The vLLM request of each load in the last plan."""

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


@frozen(eq=False)
class WorkerReport:
    """The report of one worker after a step, or of several merged."""

    number: int
    """The last plan that all of them have executed."""
    launched: tuple[Launched, ...] = ()
    completions: tuple[Completion, ...] = ()
    stored: Moved = field(factory=Moved)
    loaded: Moved = field(factory=Moved)

    def __add__(self, other: WorkerReport) -> WorkerReport:
        """Merge two reports."""
        return evolve(
            self,
            number=min(self.number, other.number),
            launched=self.launched + other.launched,
            completions=self.completions + other.completions,
            stored=self.stored + other.stored,
            loaded=self.loaded + other.loaded,
        )
