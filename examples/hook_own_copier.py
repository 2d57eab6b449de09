"""A copier of your own: thirty lines that move KV blocks between two numpy arrays, on a thread.

The executor launches each copy from its own hook on `JobLife.submit`; a second hook beside it prints what was launched::

    job 1.1 launched: 2 blocks from the device to host slots
    job 1.1: IN_FLIGHT -> DONE
    in host memory: [1.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from blocklife import Completion, Direction, JobId, Ledger, Limits, Result, Transfer, Worker
from blocklife.copiers import Executor
from blocklife.ledger import Store
from blocklife.lifecycle import Transition
from blocklife.states import Job, JobLife


class NumpyCopier:
    """What a copier promises stands in `blocklife.copiers.Copier`; one thread keeps the order of the copies."""

    worker = Worker(0)

    def __init__(self, device: NDArray[np.float64], host: NDArray[np.float64]) -> None:
        self.device, self.host = device, host
        self.thread, self.out = ThreadPoolExecutor(1), dict[JobId, Future[None]]()

    def launch(self, transfer: Transfer) -> None:
        self.out[transfer.job] = self.thread.submit(self.move, transfer)

    def move(self, transfer: Transfer) -> None:
        stores = transfer.direction is Direction.STORE
        source, target = (self.device, self.host) if stores else (self.host, self.device)
        target[transfer.target] = source[transfer.source]

    def poll(self) -> list[Completion]:
        ended = [job for job, copy in self.out.items() if copy.done()]
        results = {job: Result.FAILED if self.out.pop(job).exception() else Result.OK for job in ended}
        return [Completion(job, self.worker, result) for job, result in results.items()]

    def wait(self, jobs: Collection[JobId]) -> None:
        wait([self.out[job] for job in jobs if job in self.out])

    def busy(self) -> bool:
        return bool(self.out)

    def close(self) -> None:
        self.thread.shutdown()


def main() -> None:
    device, host = np.zeros((8, 1)), np.zeros((4, 1))
    executor = Executor(NumpyCopier(device, host))

    @executor.on(JobLife.submit)
    def told(transition: Transition) -> None:
        transfer = transition.payload["transfer"]
        if isinstance(transfer, Transfer):
            print(f"job {transfer.job} launched: {len(transfer.source)} blocks {transfer.direction.value}")

    ledger = Ledger(Limits(num_blocks=8, num_slots=4))
    ledger.add_request("a")
    held = ledger.allocate("a", 2)
    device[[1, 2], 0] = 1.0, 2.0  # the forward pass
    ledger.plan_store(Store.of(ledger.seal(held, [b"x", b"y"]), [0, 1], [b"x", b"y"]))

    with ledger.on(JobLife, entered=Job.DONE) as done:
        for now in range(3):  # a store is launched one step after its plan, so that it never delays the forward pass
            plan = ledger.dispatch(now)
            report = executor.execute(plan, lambda: None)
            ledger.settle(plan.number, now, launched=report.launched, completions=report.completions)
            executor.wait([launched.job for launched in report.launched])
    for transition in done.heard:
        for move in transition:
            print(f"job {move.job}: {move.source.name} -> {move.target.name}")
    print("in host memory:", host[:2, 0].tolist())
    executor.close()


if __name__ == "__main__":
    main()
