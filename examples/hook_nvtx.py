"""A range for each copy in a profile of the GPU: two hooks on the executor.

With a CUDA device the ranges are NVTX ranges, which Nsight Systems shows beside the kernels; without one they are printed::

    begin store 1.1
    end store 1.1
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from blocklife import Ledger, Limits, Transfer, Worker
from blocklife.copiers import CpuCopier, Executor
from blocklife.ledger import Store
from blocklife.lifecycle import Transition
from blocklife.states import JobLife


class Ranges(Protocol):
    """The part of `torch.cuda.nvtx` that is used here."""

    def range_start(self, message: str) -> int: ...
    def range_end(self, number: int) -> None: ...


class PrintedRanges:
    """What takes the place of NVTX where there is no CUDA device."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def range_start(self, message: str) -> int:
        print("begin", message)
        self.names.append(message)
        return len(self.names) - 1

    def range_end(self, number: int) -> None:
        print("end", self.names[number])


def nvtx() -> Ranges:
    try:
        import torch
    except ImportError:
        return PrintedRanges()
    return torch.cuda.nvtx if torch.cuda.is_available() else PrintedRanges()


def show_copies(executor: Executor, ranges: Ranges) -> None:
    """Open a range when a copy is launched, and close it when its end is reported."""
    open_ranges: dict[int, int] = {}

    @executor.on(JobLife.submit)
    def begin(transition: Transition) -> None:
        transfer = transition.payload["transfer"]
        if isinstance(transfer, Transfer):
            name = f"{transfer.direction.name.lower()} {transfer.job}"
            open_ranges[transition.places[0]] = ranges.range_start(name)

    @executor.on(JobLife.finish)
    def end(transition: Transition) -> None:
        ranges.range_end(open_ranges.pop(transition.places[0]))


def main() -> None:
    executor = Executor(CpuCopier(*(np.zeros((places, 16), np.uint64) for places in (8, 4)), worker=Worker(0)))
    show_copies(executor, nvtx())
    ledger = Ledger(Limits(num_blocks=8, num_slots=4))
    ledger.add_request("a")
    ledger.plan_store(Store.of(ledger.seal(ledger.allocate("a", 1), [b"x"]), [0], [b"x"]))
    for now in range(3):
        plan = ledger.dispatch(now)
        report = executor.execute(plan, lambda: None)
        ledger.settle(plan.number, now, launched=report.launched, completions=report.completions)
        executor.wait([launched.job for launched in report.launched])
    executor.close()


if __name__ == "__main__":
    main()
