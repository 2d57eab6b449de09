"""A bridge to asyncio: a hook puts what it hears into a queue, and a task reads it.

A hook is a plain function: it runs inside the scheduler's step and must not wait. What has to wait, a log on another machine
say, waits in the task. The scheduler may run on another thread than the event loop, as it does here. Once the loop is closed
the hook raises; the ledger counts that in `hook_errors` and goes on::

    job 1.1 is DONE
    job 1.2 is FAILED
"""

from __future__ import annotations

import asyncio

from blocklife import Completion, JobId, Ledger, Limits, Result, Worker
from blocklife.ledger import LedgerTransition, Store
from blocklife.states import JobLife


def bridge(ledger: Ledger, loop: asyncio.AbstractEventLoop) -> asyncio.Queue[tuple[JobId, str]]:
    """A queue of how jobs end, filled from the thread that calls the ledger."""
    queue: asyncio.Queue[tuple[JobId, str]] = asyncio.Queue()

    @ledger.on(JobLife.finish)
    def tell(transition: LedgerTransition) -> None:
        for move in transition:
            if move.job is not None:
                loop.call_soon_threadsafe(queue.put_nowait, (move.job, move.target.name))

    return queue


def schedule(ledger: Ledger) -> None:
    """The part of an engine: two stores, one of which fails."""
    ledger.add_request("a")
    for slot, result in enumerate((Result.OK, Result.FAILED)):
        key = bytes([slot])
        (job,) = ledger.submit(ledger.plan_store(Store.of(ledger.seal(ledger.allocate("a", 1), [key]), [slot], [key]))).ids
        ledger.complete(Completion(job, Worker(0), result))


async def main() -> None:
    ledger = Ledger(Limits(num_blocks=8, num_slots=4))
    queue = bridge(ledger, asyncio.get_running_loop())
    work = asyncio.create_task(asyncio.to_thread(schedule, ledger))
    for _ in range(2):
        job, state = await queue.get()
        print(f"job {job} is {state}")
    await work


if __name__ == "__main__":
    asyncio.run(main())
