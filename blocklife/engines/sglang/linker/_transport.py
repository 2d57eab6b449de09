"""Carries plans out between SGLang's pages and host memory, in the order that SGLang's streams need.

*Order.* Before anything is launched, the copier is told to wait for what the calling thread's stream and SGLang's forward
stream have been given so far: the forward pass may still write what a store reads, and may still use the pages that a load goes
to. Everything else, store after load and load after store, the copier orders itself.

*The forward pass.* It waits for its loads on its own stream, when it asks for a layer (`LoadCounter`). The copy of a request is
one job for all layers, so the first layer waits for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from blocklife.copiers import Copier
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, JobId, Launched, Limits, Plan, Result, Worker

RANK = Worker(0)
"""Each rank has a ledger of its own, and is its only worker."""


def torch_copier(cache: KvCache, memory: HostMemory, limits: Limits) -> TorchCopier:
    """A copier based on torch: on streams of a CUDA device, or synchronous between CPU tensors."""
    return TorchCopier(cache, memory, worker=RANK, limits=limits)


class Transport:
    """One rank's copier and host memory. *wrap* may put another copier around the one that knows the streams."""

    def __init__(
        self,
        cache: KvCache,
        limits: Limits,
        *,
        forward_stream: object = None,
        make_copier: Callable[[KvCache, HostMemory, Limits], TorchCopier] = torch_copier,
        wrap: Callable[[TorchCopier], Copier] | None = None,
    ) -> None:
        self.memory = HostMemory(cache.row_bytes, limits.num_slots, pinned=cache.device.type == "cuda")
        try:
            self._streams = make_copier(cache, self.memory, limits)
        except BaseException:
            self.memory.close()
            raise
        self._copier: Copier = self._streams if wrap is None else wrap(self._streams)
        self._forward_stream = forward_stream

    def execute(self, plan: Plan) -> tuple[list[Launched], list[Completion]]:
        """Launch the copies of a plan, loads first. Returns what was launched, and what has ended meanwhile.

        A launch that raises has failed. Raises: MisuseError of one that no copier could serve.
        """
        self.wait(plan.flushes)
        self._follow()
        launched, failed = [], []
        for transfer in (*plan.loads, *plan.stores):
            launched.append(Launched(transfer.job, RANK))
            try:
                self._copier.launch(transfer)
            except MisuseError:
                raise
            except Exception:
                failed.append(Completion(transfer.job, RANK, Result.FAILED))
        return launched, [*failed, *self._copier.poll()]

    def poll(self) -> list[Completion]:
        """What has ended since the last call."""
        return self._copier.poll()

    def wait(self, jobs: Collection[JobId]) -> None:
        """Block until these copies are quiet."""
        if jobs:
            self._copier.wait(jobs)

    def before_forward(self, blocks: Sequence[int]) -> None:
        """What the current stream is given from now on waits for the loads into these blocks."""
        self._streams.before_forward(blocks=blocks)

    def close(self) -> None:
        """Wait for every copy, and free the memory."""
        try:
            self._copier.close()
        finally:
            self.memory.close()

    def _follow(self) -> None:
        self._streams.computed()
        if self._forward_stream is not None:
            self._streams.computed(self._forward_stream)


class LoadCounter:
    """What SGLang's memory asks before it gives out a layer, in the stream that will read it."""

    def __init__(self, wait: Callable[[int], None]) -> None:
        self._wait = wait
        self._seen: set[int] = set()
        self.consumer_index = -1
        """The batch whose loads the forward pass reads; -1: none."""

    def set_consumer(self, index: int) -> None:
        """The forward pass that is launched next reads what this batch loads; -1: it loads nothing."""
        self.consumer_index = index
        self._seen.clear()

    def wait_until(self, threshold: int) -> None:
        """Let the current stream wait for the loads, once for each layer."""
        if self.consumer_index >= 0 and threshold not in self._seen:
            self._seen.add(threshold)
            self._wait(self.consumer_index)

    def reset(self) -> None:
        """No batch is left."""
        self.set_consumer(-1)
