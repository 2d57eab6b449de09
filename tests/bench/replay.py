"""What one engine step of the replay spends on scheduling, and how much of a run that is."""

from __future__ import annotations

from blocklife.engines.toy.replay import Replay, ReplayOptions
from blocklife.engines.toy.workload import generate_workload
from blocklife.ledger import Checking
from tests.bench import Figure, Scale


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite: one default run with, and one without the second look at the couplings."""
    workload = generate_workload(requests=600 if scale.models >= 1_000 else 5, seed=0)
    figures = []
    for checking in (Checking.STRICT, Checking.OFF):
        report = Replay(workload, ReplayOptions(checking=checking)).run()
        figures.append(
            Figure(
                name=f"scheduling, checking {checking.name.lower()}",
                ours=report.scheduler_us_per_step,
                unit="us a step",
                peer_name="the whole step",
                peer=report.seconds / max(1, report.steps) * 1e6,
            )
        )
    return figures
