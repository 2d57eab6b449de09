"""Translates between vLLM's connectors and the device of a scenario: the orders to the workers, and their reports.

Rules of this file:

* Copies come from the metadata of a step, in the order in which vLLM's own workers process it. What a scenario's device cannot
  do is `Unsupported`.
* Copies have the watch's numbers plus one: 0 is a copy that does not exist.

Theory: what a worker does. `OffloadingConnector` launches a step's stores at the start of the next one, its loads at once, and
reports a copy once, by its number. `SimpleCPUOffloadConnector` has one store and one load a step, for all requests together;
they run one after the other on a stream, so the next is not reported before the one ahead of it. It launches a store at the end
of its own step; here it runs from the start of the next one, which is equivalent, since nothing that it reads is handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from attrs import define, field, frozen
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

from blocklife.testing import CopyOrder, Landing, Orders, Unsupported
from blocklife.testing.scenarios._driver import NOBODY
from tests.proof.drivers.vllm.engine import VllmEngine


class Ends(Protocol):
    """One end of a job: block ids, and on the device's side how many of each group, and the position of the first of each."""

    block_ids: Sequence[int]
    group_sizes: Sequence[int]
    block_indices: Sequence[int]


class VllmJob(Protocol):
    """A job: older releases have both its ends in one attribute, newer ones in two."""

    req_id: str
    transfer_spec: tuple[Ends, Ends]
    src_spec: Ends
    dst_spec: Ends


@frozen
class WorkerOrders:
    """The copies in the metadata of one step."""

    flushes: tuple[int, ...] = ()
    loads: tuple[CopyOrder, ...] = ()
    stores: tuple[CopyOrder, ...] = ()
    owners: Mapping[int, str] = field(factory=dict)
    load_events: Mapping[int, Sequence[str]] = field(factory=dict)
    """The requests that each load of the simple connector is for, as far as the workers know in this step."""
    ahead: tuple[Orders, ...] = ()
    """What is told ahead of the rest, without the number of the step."""
    sharers: Mapping[int, tuple[str, ...]] = field(factory=dict)
    """Other requests whose content a copy has, too."""
    number: int = 0
    """That of the plan, where reports name it."""


def _checked(landings: Iterable[Landing]) -> Iterator[Landing]:
    """The reports that a worker of vLLM can send."""
    for each in landings:
        if each.job == NOBODY:
            raise Unsupported("not expressible: a report of an unknown copy (vLLM's workers start with its scheduler)")
        if not each.ok:
            raise Unsupported("not expressible: a copy that fails (vLLM's workers assume that none does)")
        yield each


# --- OffloadingConnector ------------------------------------------------------------------------------------------------------


class OffloadingCopies:
    """Jobs of OffloadingConnector, each with a number of its own."""

    def __init__(self, engine: VllmEngine, num_workers: int) -> None:
        self._size = engine.geometry.blocks_per_chunk
        self._num_workers = num_workers
        self._loads: dict[int, str] = {}
        self.written: dict[int, set[int]] = {}
        """By slot: the blocks of the chunk that the latest store into it writes."""

    def told(self, meta: object) -> WorkerOrders:
        """The jobs of a step."""
        stores, loads = (_jobs(meta, name) for name in ("store_jobs", "load_jobs"))
        waits = set(getattr(meta, "jobs_to_flush", None) or ())
        if waits & stores.keys():
            raise Unsupported("not expressible: a store that is launched and waited for in the step that made it")
        if any(getattr(job, "sync", False) for job in loads.values()):
            raise Unsupported("not expressible: a load that its own step waits for")
        self._loads.update({number: job.req_id for number, job in loads.items()})
        return WorkerOrders(
            tuple(sorted(number + 1 for number in waits)),
            tuple(self._order(number, job, stores=False) for number, job in loads.items()),
            tuple(self._order(number, job, stores=True) for number, job in stores.items()),
            {number + 1: job.req_id for number, job in (*stores.items(), *loads.items())},
        )

    def _order(self, number: int, job: VllmJob, *, stores: bool) -> CopyOrder:
        source, target = job.transfer_spec if hasattr(job, "transfer_spec") else (job.src_spec, job.dst_spec)
        device, host = (source, target) if stores else (target, source)
        blocks, places, sizes = self._sides(device, host)
        if stores:
            for place in places:
                self.written[place // self._size] = set()
            for place in places:
                self.written[place // self._size].add(place % self._size)
        ends = (blocks, places) if stores else (places, blocks)
        return CopyOrder(number + 1, stores, *ends, sizes)

    def _sides(self, device: Ends, host: Ends) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Blocks and host places of a job, in pairs. A group's first block may be in the middle of a chunk."""
        chunks = iter([int(each) for each in host.block_ids])
        places: list[int] = []
        for size, index in zip(device.group_sizes, device.block_indices, strict=True):
            skipped = index % self._size
            own = islice(chunks, -(-(size + skipped) // self._size) if size else 0)
            places += [chunk * self._size + at for chunk in own for at in range(self._size)][skipped : skipped + size]
        blocks = tuple(int(each) for each in device.block_ids)
        if len(places) != len(blocks):
            raise ValueError(f"a job has {len(blocks)} blocks, but {len(places)} places for them")
        return blocks, tuple(places), tuple(device.group_sizes)

    def answers(self, landings: Sequence[Landing], told: WorkerOrders) -> list[KVConnectorOutput]:
        """The reports of each worker, at most once a step, however often this is called."""
        done: list[set[int]] = [set() for _ in range(self._num_workers)]
        for each in _checked(landings):
            done[each.worker].add(each.job - 1)
        answers = []
        for jobs in done:
            answer = KVConnectorOutput(finished_recving={self._loads[job] for job in jobs if job in self._loads})
            answer.kv_connector_worker_meta = OffloadingWorkerMetadata(dict.fromkeys(sorted(jobs), 1)) if jobs else None
            answers.append(answer)
        return answers


def _jobs(meta: object, name: str) -> Mapping[int, VllmJob]:
    found: Mapping[int, VllmJob] = getattr(meta, name, None) or {}
    return found


# --- SimpleCPUOffloadConnector ------------------------------------------------------------------------------------------------


@define(eq=False)
class _CopyEvent:
    """The copies that run as one event on a worker's stream, and those of them that have not landed."""

    number: int
    missing: set[int]


class SimpleCopies:
    """At most one store and one load a step. A load is shown as one copy for each of its requests."""

    def __init__(self, engine: VllmEngine, num_workers: int) -> None:
        self._scheduler = engine.scheduler.connector.scheduler_manager
        self.written: dict[int, set[int]] = {}
        """By slot: its one block, if a store was ever made into it."""
        self._num_loads = 0
        self._out: set[int] = set()
        self._streams: list[dict[bool, list[_CopyEvent]]] = [{True: [], False: []} for _ in range(num_workers)]

    def told(self, meta: object) -> WorkerOrders:
        """The store and the load of a step."""
        event, names = getattr(meta, "store_event", -1), dict(getattr(meta, "load_event_to_reqs", {}))
        waits = tuple(sorted(self._out)) if getattr(meta, "need_flush", False) else ()
        owners: dict[int, str] = {}
        stores, loads = [], []
        if event >= 0:
            gpu, cpu = getattr(meta, "store_gpu_blocks", ()), getattr(meta, "store_cpu_blocks", ())
            stores.append(CopyOrder(2 * event + 1, True, tuple(gpu), tuple(each - 1 for each in cpu), (len(gpu),)))
            self.written |= {each - 1: {0} for each in cpu}
            owners[2 * event + 1] = next(iter(self._scheduler._store_event_to_reqs.get(event, ())), "")
            self._launch(event, [2 * event + 1], stores=True)
        if (event := getattr(meta, "load_event", -1)) >= 0:
            for name in sorted(names[event]):
                self._num_loads += 1
                own = self._scheduler._reqs_to_load[name].transfer_meta
                number, target = 2 * self._num_loads + 2, tuple(own.gpu_block_ids)
                loads.append(CopyOrder(number, False, tuple(each - 1 for each in own.cpu_block_ids), target, (len(target),)))
                owners[number] = name
            self._launch(event, [each.job for each in loads], stores=False)
        load_events = {number: tuple(requests) for number, requests in names.items()}
        return WorkerOrders(waits, tuple(loads), tuple(stores), owners, load_events)

    def _launch(self, event: int, copies: Sequence[int], *, stores: bool) -> None:
        self._out.update(copies)
        for streams in self._streams:
            streams[stores].append(_CopyEvent(event, set(copies)))

    def answers(self, landings: Sequence[Landing], told: WorkerOrders) -> list[KVConnectorOutput]:
        """The reports of each worker: the events that have ended, in order."""
        for each in _checked(landings):
            for event in (*self._streams[each.worker][True], *self._streams[each.worker][False]):
                event.missing.discard(each.job)
        answers = []
        for streams in self._streams:
            stores, loads = (_over(streams[kind]) for kind in (True, False))
            answer = KVConnectorOutput(finished_recving={name for event in loads for name in told.load_events.get(event, ())})
            answer.kv_connector_worker_meta = SimpleCPUOffloadWorkerMetadata(dict.fromkeys(stores, 1)) if stores else None
            answers.append(answer)
        running = (event.missing for streams in self._streams for events in streams.values() for event in events)
        self._out.intersection_update(set[int]().union(*running))
        return answers


def _over(stream: list[_CopyEvent]) -> list[int]:
    """Remove the ended events from the front of a stream."""
    over = []
    while stream and not stream[0].missing:
        over.append(stream.pop(0).number)
    return over
