"""Carries plans out between SGLang's pages and host memory, in the order that SGLang's streams need.

*Order.* Before anything is launched, the copier is told to wait for what the calling thread's stream and SGLang's forward
stream have been given so far: the forward pass may still write what a store reads, and may still use the pages that a load goes
to. Everything else, store after load and load after store, the copier orders itself.

*The forward pass.* The streams that a forward pass may run on wait for its loads ahead of it (`before_forward`). With
`load_parts` each layer waits for its own part instead, where SGLang's memory gives it out (`LoadCounter`). Passes for
embeddings name no batch, so the counter does not ask for one: it waits for what was launched last. Every load is launched as
one that is needed now: on a stream of large loads it would be held back in parts, and the thread of the pass with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from blocklife.copiers import Copier, MoverTable
from blocklife.copiers._protocol import TierCopier
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, JobId, Launched, Limits, Plan, Result, TierTransfer, Transfer, Worker

RANK = Worker(0)
"""Each rank has a ledger of its own, and is its only worker."""


def torch_copier(cache: KvCache, memory: HostMemory, limits: Limits, movers: MoverTable | None = None) -> TorchCopier:
    """A copier based on torch: on streams of a CUDA device, or synchronous between CPU tensors."""
    return TorchCopier(cache, memory, worker=RANK, limits=limits, movers=movers)


class Transport:
    """One rank's copier and host memory. *wrap* may put another copier around the one that knows the streams."""

    def __init__(
        self,
        cache: KvCache,
        limits: Limits,
        *,
        sharers: int = 1,
        beside: int = 0,
        forward_stream: object = None,
        make_copier: Callable[[KvCache, HostMemory, Limits], TorchCopier] = torch_copier,
        wrap: Callable[[TorchCopier], Copier] | None = None,
        load_parts: int = 1,
    ) -> None:
        """*sharers*: ranks of this machine, each of which asks for as much host memory, and for *beside* bytes behind it.

        With more *load_parts* than one, loads go in so many, and each layer waits for its own (`before_layer`).
        """
        self.memory = HostMemory(
            cache.row_bytes,
            limits.num_slots,
            pinned=cache.device.type == "cuda",
            near=cache.device,
            sharers=sharers,
            beside=beside,
        )
        try:
            self._streams = make_copier(cache, self.memory, limits)
        except BaseException:
            self.memory.close()
            raise
        self._copier: Copier = self._streams if wrap is None else wrap(self._streams)
        self._engines = (None,) if forward_stream is None else (None, forward_stream)
        """Streams that SGLang computes on; None is that of the calling thread."""
        self._load_parts = load_parts
        self._launch_error = ""
        self.below: TierCopier | None = None
        """What moves content between host memory and a store below, if there is one."""

    @property
    def is_certain(self) -> bool:
        """Whether a copy that was launched arrives, unless the device is lost.

        So it is where nothing is put around the copier that knows the streams: what comes behind the copy on them waits for it.
        """
        return self._copier is self._streams

    @property
    def last_error(self) -> str:
        """Why the last copy that failed did so; "" where neither its launch nor the copier gave a reason."""
        return self._launch_error or self._streams.statistics().last_error

    def execute(self, plan: Plan) -> tuple[list[Launched], list[Completion]]:
        """Launch the copies of a plan, what comes from a store below first. Returns what was launched, and what has ended.

        A launch that raises has failed, and so has one of which the device took a part only, which is waited for. Raises:
        MisuseError of one that no copier could serve.
        """
        self.wait(plan.flushes)
        if plan.loads or plan.stores:
            self._streams.computed(self._engines)
        self._launch_error = ""
        launched, failed = [], []
        transfers: list[Transfer | TierTransfer] = [*plan.promotes, *plan.demotes, *plan.loads, *plan.stores]
        for transfer in transfers:
            launched.append(Launched(transfer.job, RANK))
            try:
                self._begin(transfer)
            except MisuseError:
                raise
            except Exception as error:
                self._launch_error = f"job {transfer.job}: {error!r}"
                failed.append(Completion(transfer.job, RANK, Result.FAILED))
        begun = {each.job for each in launched}
        self.wait([suspect.job for suspect in self._streams.suspect() if suspect.job in begun])
        return launched, [*failed, *self.poll()]

    def _begin(self, transfer: Transfer | TierTransfer) -> None:
        if isinstance(transfer, Transfer):
            with self._streams.needed_now(self._load_parts):
                self._copier.launch(transfer)
        elif self.below is not None:
            self.below.launch(transfer)

    def poll(self) -> list[Completion]:
        """What has ended since the last call."""
        return [*self._copier.poll(), *(self.below.poll() if self.below is not None else ())]

    def wait(self, jobs: Collection[JobId]) -> None:
        """Block until these copies are quiet."""
        if jobs:
            self._copier.wait(jobs)
            if self.below is not None:
                self.below.wait(jobs)

    def before_forward(self, blocks: Sequence[int]) -> None:
        """What the forward pass's stream and the current one are given from now on waits for the loads into these blocks.

        In parts they are left to `before_layer`.
        """
        self._streams.before_forward(self._engines, blocks if self._load_parts == 1 else ())

    def before_layer(self, number: int) -> None:
        """What the current stream is given from now on waits for what loads in parts bring to this tensor of the cache."""
        self._streams.before_layer(number)

    def close(self) -> None:
        """Wait for every copy, and free the memory."""
        try:
            try:
                self._copier.close()
            finally:
                if self.below is not None:
                    self.below.close()
        finally:
            self.memory.close()


class LoadCounter:
    """What SGLang's memory asks before it gives out a layer, whose part of the loads it then waits for.

    *before_layer*: None where loads have all layers at once; see *the forward pass*.
    """

    def __init__(self, num_layers: int = 1, before_layer: Callable[[int], None] | None = None) -> None:
        self.num_layers = num_layers
        """Where a graph of many layers begins, SGLang waits for the last of these."""
        self._before_layer = before_layer
        self.consumer_index = -1
        """The batch whose loads the forward pass reads; -1: none. SGLang looks here before it runs a graph of all layers."""

    def set_consumer(self, index: int) -> None:
        """The forward pass that is launched next reads what this batch loads; -1: it loads nothing."""
        self.consumer_index = index

    def wait_until(self, threshold: int) -> None:
        """The stream waits for this layer, counted from the first of this rank, unless it has been told to wait already."""
        if self._before_layer is not None:
            self._before_layer(threshold)
