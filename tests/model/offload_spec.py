"""A host tier for vLLM's own OffloadingConnector on a CPU build, with copies that take steps, or a thread.

vLLM takes it as any other (`spec_name`, `spec_module_path`). Its scheduler's side is vLLM's own; only the copies, which there
need a GPU, are done here. Rules of this file:

* Each direction is a link: its copies go one after another. In tests each takes as many steps of the engine as its bytes need
  (`SteppedLink`), however fast the machine is; for figures they are done by a thread as fast as memory is (`ThreadLink`).
* The first half of every page moves when a copy begins, and the other when it ends. So whoever touches a place in between,
  or reads one too early, gets wrong bytes.
* A thread that has failed says so at the next call, and leaves no caller waiting.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

Pages = NDArray[np.int8]
"""One row a page, of all the bytes that a place has in one tensor."""
Ids = NDArray[np.int64]


class HostPlaces(Protocol):
    """vLLM's description of the host's end of a copy."""

    block_ids: Ids


@frozen(eq=False)
class Part:
    """What a copy moves from one tensor into another."""

    source: Pages
    source_ids: Ids
    target: Pages
    target_ids: Ids
    page_bytes: int

    @property
    def num_bytes(self) -> int:
        """Of all its pages."""
        return self.page_bytes * len(self.source_ids)

    def move(self, begin: int, end: int) -> None:
        """These bytes of each page."""
        self.target[self.target_ids, begin:end] = self.source[self.source_ids, begin:end]


@frozen(eq=False)
class Copy:
    """One job."""

    job: int
    parts: Sequence[Part]

    @property
    def num_bytes(self) -> int:
        """Of all its parts."""
        return sum(part.num_bytes for part in self.parts)

    def begin(self) -> None:
        """Move the first half of every page."""
        for part in self.parts:
            part.move(0, part.page_bytes // 2)

    def end(self) -> None:
        """Move the rest."""
        for part in self.parts:
            part.move(part.page_bytes // 2, part.page_bytes)


class Link(Protocol):
    """One direction."""

    queue: deque[Copy]
    """The first is under way."""
    landed: list[TransferResult]

    def submit(self, copy: Copy) -> None:
        """Behind those that are there."""

    def wait(self, jobs: Collection[int]) -> int:
        """Until those of these jobs that are here have landed; how many they were."""

    def poll(self) -> list[TransferResult]:
        """What has landed since the last call, in order."""

    def step(self) -> None:
        """The engine has taken a step."""

    def close(self) -> None:
        """Let what is here land, at once."""


@define(eq=False)
class SteppedLink:
    """One direction, whose copies take steps of the engine."""

    bytes_per_step: float
    queue: deque[Copy] = field(factory=deque)
    landed: list[TransferResult] = field(factory=list)
    _num_bytes: float = 0.0
    """How many of the first copy are paid for by steps."""

    def submit(self, copy: Copy) -> None:
        """Behind those that are there."""
        self.queue.append(copy)
        if len(self.queue) == 1:
            copy.begin()

    def wait(self, jobs: Collection[int]) -> int:
        """Until those of these jobs that are here have landed; how many they were."""
        found = sum(copy.job in jobs for copy in self.queue)
        while any(copy.job in jobs for copy in self.queue):
            self._land()
        return found

    def poll(self) -> list[TransferResult]:
        """What has landed since the last call, in order."""
        landed, self.landed = self.landed, []
        return landed

    def step(self) -> None:
        """The engine has taken a step: so many bytes more."""
        self._num_bytes += self.bytes_per_step
        while self.queue and self._num_bytes >= self.queue[0].num_bytes:
            left = self._num_bytes - self.queue[0].num_bytes
            self._land()
            self._num_bytes = left
        if not self.queue:
            self._num_bytes = 0.0

    def close(self) -> None:
        """Let what is here land, at once."""
        while self.queue:
            self._land()

    def _land(self) -> None:
        copy = self.queue.popleft()
        copy.end()
        self.landed.append(TransferResult(copy.job, True, copy.num_bytes, copy.num_bytes / self.bytes_per_step))
        self._num_bytes = 0.0
        if self.queue:
            self.queue[0].begin()


@define(eq=False)
class ThreadLink:
    """One direction, whose copies are done by a thread as fast as memory is."""

    _changed: threading.Condition
    """Held by whoever reads or changes the rest; both directions share it."""
    failure: BaseException | None = None
    queue: deque[Copy] = field(factory=deque)
    landed: list[TransferResult] = field(factory=list)
    _is_closed: bool = False
    _thread: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def submit(self, copy: Copy) -> None:
        """Behind those that are there."""
        with self._changed:
            self._check()
            self.queue.append(copy)
            self._changed.notify_all()

    def wait(self, jobs: Collection[int]) -> int:
        """Until those of these jobs that are here have landed; how many they were."""
        with self._changed:
            found = sum(copy.job in jobs for copy in self.queue)
            self._changed.wait_for(lambda: not any(copy.job in jobs for copy in self.queue))
            self._check()
            return found

    def poll(self) -> list[TransferResult]:
        """What has landed since the last call, in order."""
        with self._changed:
            self._check()
            landed, self.landed = self.landed, []
            return landed

    def step(self) -> None:
        """Nothing depends on steps."""

    def close(self) -> None:
        """Let what is here land, at once; the thread is gone then."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _check(self) -> None:
        if self.failure is not None:
            raise RuntimeError("a copy has failed") from self.failure

    def _run(self) -> None:
        try:
            for copy in self._copies():
                begun = time.monotonic()
                copy.begin()
                copy.end()
                with self._changed:
                    self.queue.popleft()
                    self.landed.append(TransferResult(copy.job, True, copy.num_bytes, time.monotonic() - begun))
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self.failure = error
                self.queue.clear()  # none of them will land
                self._changed.notify_all()

    def _copies(self) -> Iterator[Copy]:
        """The next, each time; the end when the link is closed and empty."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or bool(self.queue))
                if not self.queue:
                    return
                copy = self.queue[0]
            yield copy


@define
class Moved:
    """How many blocks copies were asked to move."""

    loaded: int = 0
    stored: int = 0
    displaced: int = 0
    """Slots that were written again."""
    waited: int = 0
    """Copies that were out when a step waited for them."""


class LinkWorker(OffloadingWorker):  # type: ignore[misc]  # vLLM has no types
    """Two links, and the host's memory at their end. One block a chunk.

    *bytes_per_step*: of stores and of loads; None for threads.
    """

    def __init__(self, caches: CanonicalKVCaches, num_slots: int, bytes_per_step: Sequence[float] | None) -> None:
        self._refs = caches.group_data_refs
        self._device: list[Pages] = [each.tensor.numpy() for each in caches.tensors]
        self._host: list[Pages] = [np.zeros((num_slots, each.shape[1]), dtype=np.int8) for each in self._device]
        self._written = np.zeros(num_slots, dtype=np.bool_)
        self._changed = threading.Condition()
        self._stores: Link
        self._loads: Link
        if bytes_per_step is None:
            self._stores, self._loads = ThreadLink(self._changed), ThreadLink(self._changed)
        else:
            self._stores, self._loads = map(SteppedLink, bytes_per_step)
        self._has_told = True
        self.moved = Moved()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: HostPlaces) -> bool:
        """Queue a store. What it reads is computed, for a CPU computes before it returns."""
        slots = dst_spec.block_ids
        self.moved.stored += len(slots)
        self.moved.displaced += int(np.count_nonzero(self._written[slots]))
        self._written[slots] = True
        self._stores.submit(Copy(job_id, list(self._parts(src_spec, slots, stores=True))))
        return True

    def submit_load(self, job_id: int, src_spec: HostPlaces, dst_spec: GPULoadStoreSpec, expedited: bool = False) -> bool:
        """Queue a load."""
        self.moved.loaded += len(src_spec.block_ids)
        self._loads.submit(Copy(job_id, list(self._parts(dst_spec, src_spec.block_ids, stores=False))))
        return True

    def get_finished(self) -> list[TransferResult]:
        """What has landed since the last call; vLLM asks once in each step."""
        for link in (self._stores, self._loads):
            link.step()
        landed = self._stores.poll() + self._loads.poll()
        self._has_told = bool(landed)
        return landed

    def wait(self, job_ids: Collection[int]) -> None:
        """Until those of these jobs that were submitted have landed."""
        self.moved.waited += self._stores.wait(job_ids) + self._loads.wait(job_ids)

    def wait_for_one(self) -> None:
        """Until there is something to tell, unless something was told just now or nothing is out."""
        links = (self._stores, self._loads)
        if self._has_told:
            return
        if isinstance(self._stores, SteppedLink):
            while any(each.queue for each in links) and not any(each.landed for each in links):
                for link in links:
                    link.step()
            return
        with self._changed:
            self._changed.wait_for(lambda: any(each.landed for each in links) or not any(each.queue for each in links))

    def shutdown(self) -> None:
        """Both threads are gone then. A second call does nothing."""
        self._stores.close()
        self._loads.close()

    def _parts(self, device: GPULoadStoreSpec, slots: Ids, *, stores: bool) -> Iterator[Part]:
        start = 0
        for size, refs in zip(device.group_sizes, self._refs, strict=True):
            here, there = device.block_ids[start : start + size].copy(), slots[start : start + size].copy()
            start += size
            for ref in refs:
                blocks, pages = self._device[ref.tensor_idx], self._host[ref.tensor_idx]
                size_bytes = ref.page_size_bytes
                yield Part(blocks, here, pages, there, size_bytes) if stores else Part(pages, there, blocks, here, size_bytes)


class LinkSpec(CPUOffloadingSpec):  # type: ignore[misc]  # vLLM has no types
    """vLLM's host tier, with links in the place of a GPU's streams."""

    _links: LinkWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> LinkWorker:
        """The worker, made once."""
        if self.blocks_per_chunk != 1:
            raise ValueError(f"chunks of {self.blocks_per_chunk} blocks: links move chunks of one (leave block_size away)")
        if self._links is None:
            rates = self.extra_config["bytes_per_step"]
            self._links = LinkWorker(kv_caches, self.num_chunks, rates)
        return self._links


def connector(host_bytes: int, bytes_per_step: tuple[float, float] | None = None, **more: object) -> dict[str, Any]:
    """OffloadingConnector with this host tier, as `KVTransferConfig` takes it; without *bytes_per_step* threads copy."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": LinkSpec.__name__,
            "spec_module_path": __name__,
            "cpu_bytes_to_use": host_bytes,
            "bytes_per_step": bytes_per_step,
            **more,
        },
    }
