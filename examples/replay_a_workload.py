"""Replay thirty conversations with misbehaving copies, and look at what the lifecycles say.

Prints::

    clean: True
    jobs ended: True
"""

from __future__ import annotations

from blocklife.copiers import FaultRates
from blocklife.engines.toy import Replay, ReplayOptions, generate_workload


def main() -> None:
    workload = generate_workload(requests=30, seed=1)
    options = ReplayOptions(gpu_blocks=512, host_slots=1024, faults=FaultRates(fail=0.1, never=0.05), seed=1)
    report = Replay(workload, options).run()
    print("clean:", report.clean)
    print("jobs ended:", all(report.jobs[state] > 0 for state in ("DONE", "FAILED")))


if __name__ == "__main__":
    main()
