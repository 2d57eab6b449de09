"""What one engine step of the replay spends on scheduling, and how much of a run that is."""

from __future__ import annotations

from typing import Any

from blocklife.engines.toy import Replay, ReplayOptions, generate_workload
from blocklife.ledger import Checking
from tests.bench import Figure, Scale

HYBRID: dict[str, Any] = {"groups": "full:128,swa:128:1024,mamba:512", "gpu_blocks": 3072}
RUNS: dict[str, dict[str, Any]] = {
    "checking strict": {"checking": Checking.STRICT},
    "checking off": {"checking": Checking.OFF},
    "hybrid": HYBRID,
    "hybrid, chunks of 4, async": {**HYBRID, "blocks_per_chunk": 4, "asynchronous": True},
}


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite: the default run with and without the second look at the couplings, and hybrid models."""
    workload = generate_workload(requests=600 if scale.full else 5, seed=0)
    figures = []
    for name, options in RUNS.items():
        report = Replay(workload, ReplayOptions(**options)).run()
        figures.append(
            Figure(
                name=f"scheduling, {name}",
                ours=report.scheduler_us_per_step,
                unit="us a step",
                peer_name="the whole step",
                peer=report.seconds / max(1, report.steps) * 1e6,
            )
        )
    return figures
