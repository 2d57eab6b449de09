"""What travels between the scheduler's side of the connector and its workers: plain records, all of which can be pickled.

Nothing here knows vLLM: `connector` wraps them in what vLLM's own bases ask for.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field, frozen

from blocklife.ledger import Completion, JobId, Launched, Plan


@frozen(eq=False)
class StepPlan:
    """What every worker does in one step of vLLM, also in one that computes nothing."""

    plans: tuple[Plan, ...]
    """In order. Those before the last are of stores that were made between two steps; they know no forward pass."""
    loads: Mapping[JobId, str]
    """For which request of vLLM each load of the last plan is."""

    @property
    def number(self) -> int:
        """The last plan's number: whoever has carried it out has carried out all before it."""
        return self.plans[-1].number


@frozen
class Moved:
    """Copies of one direction that have arrived on one worker, or on several."""

    num_bytes: int = 0
    seconds: float = 0.0
    """That the copies took by their copier's clock, added up; a wait for their turn does not count."""
    sizes: tuple[int, ...] = ()
    """Bytes of each copy."""

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.num_bytes + other.num_bytes, self.seconds + other.seconds, self.sizes + other.sizes)


@frozen(eq=False)
class WorkerReport:
    """What one worker says after a step, or several of them together."""

    number: int
    """The last plan that every one of them has carried out."""
    launched: tuple[Launched, ...] = ()
    completions: tuple[Completion, ...] = ()
    stored: Moved = field(factory=Moved)
    loaded: Moved = field(factory=Moved)

    def __add__(self, other: WorkerReport) -> WorkerReport:
        """Both together."""
        return evolve(
            self,
            number=min(self.number, other.number),
            launched=self.launched + other.launched,
            completions=self.completions + other.completions,
            stored=self.stored + other.stored,
            loaded=self.loaded + other.loaded,
        )
