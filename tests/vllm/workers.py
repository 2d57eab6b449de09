"""A worker's side of the connectors: vLLM's own, with the rig's copies in the place of the device below it.

The order of calls around a forward pass is that of vLLM's model runner, and what each call launches, holds back or waits for is
decided by the connector's own code. Only the part that talks to a device is put in place of vLLM's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Protocol
from unittest import mock

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.forward_context import ForwardContext
from vllm.model_executor.layers.attention import Attention
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput

from tests.vllm.device import Copies, Ids, Memory
from tests.vllm.engine import MINOR, Engine
from tests.vllm.worlds import WorldSpec

LOADS_AFTER_FORWARD = MINOR >= 30
"""Whether the model runner starts asynchronous loads behind the forward pass instead of ahead of it."""
SAVES_WITHOUT_FORWARD = MINOR >= 31
"""Whether a step that schedules nothing waits for saves too, which is where a connector takes in its new stores."""


class DevicePlaces(Protocol):
    """vLLM's description of the device's end of a transfer."""

    block_ids: Ids
    group_sizes: Sequence[int]
    block_indices: Sequence[int]


class HostPlaces(Protocol):
    """vLLM's description of the host's end of a transfer."""

    block_ids: Ids


class OffloadingDevice:
    """Stands below OffloadingConnector's worker: takes jobs, finds their rows, has `Copies` move them."""

    def __init__(self, copies: Copies, blocks_per_chunk: int) -> None:
        self._copies = copies
        self._blocks_per_chunk = blocks_per_chunk

    def submit_store(self, job_id: int, src_spec: DevicePlaces, dst_spec: HostPlaces) -> bool:
        """Queue a store (newer releases)."""
        self._copies.submit(job_id, True, *self._rows(src_spec, dst_spec))
        return True

    def submit_load(self, job_id: int, src_spec: HostPlaces, dst_spec: DevicePlaces, expedited: bool = False) -> bool:
        """Queue a load (newer releases); one that this step waits for does not stand behind others."""
        device, host = self._rows(dst_spec, src_spec)
        self._copies.submit(job_id, False, host, device, first=expedited)
        return True

    def wait(self, job_ids: set[int]) -> None:
        """Let these jobs land."""
        self._copies.wait(job_ids)

    def get_finished(self) -> list[SimpleNamespace]:
        """What landed since the last call."""
        nothing = {"transfer_size": None, "transfer_time": None, "transfer_type": None}
        return [SimpleNamespace(job_id=job, success=True, **nothing) for job in self._copies.poll()]

    def shutdown(self) -> None:
        """Nothing to release."""

    def _rows(self, device: DevicePlaces, host: HostPlaces) -> tuple[list[int], list[int]]:
        """Rows of a job on both sides. A group's first block may lie in the middle of its first chunk."""
        factor = self._blocks_per_chunk
        blocks, chunks = [int(each) for each in device.block_ids], [int(each) for each in host.block_ids]
        rows: list[int] = []
        for size, index in zip(device.group_sizes, device.block_indices, strict=True):
            skipped = index % factor
            taken = -(-(size + skipped) // factor) if size else 0
            if taken > len(chunks):
                raise AssertionError(f"a job has {size} blocks from block {index} on, and only {len(chunks)} chunks for them")
            places = [chunk * factor + at for chunk in chunks[:taken] for at in range(factor)]
            rows += places[skipped : skipped + size]
            del chunks[:taken]
        if chunks or len(rows) != len(blocks):
            raise AssertionError(f"a job has {len(blocks)} blocks, room for {len(rows)}, and {len(chunks)} chunks left over")
        return blocks, rows


class _OldDirection:
    """One direction of `OffloadingDevice`, in the shape that releases have which register a handler for each."""

    def __init__(self, device: OffloadingDevice, is_store: bool) -> None:
        self._device = device
        self._is_store = is_store

    def transfer_async(self, job_id: int, spec: tuple[DevicePlaces, DevicePlaces]) -> bool:
        return (self._device.submit_store if self._is_store else self._device.submit_load)(job_id, *spec)

    def wait(self, job_ids: set[int]) -> None:
        if self._is_store:
            self._device.wait(job_ids)

    def get_finished(self) -> list[SimpleNamespace]:
        return self._device.get_finished() if self._is_store else []

    def shutdown(self) -> None:
        """Nothing to release."""


class _Event:
    """An event of the device that SimpleCPUOffload's worker polls or waits for."""

    def __init__(self, copies: Copies, landed: set[int], name: int) -> None:
        self._copies = copies
        self._landed = landed
        self._name = name

    def query(self) -> bool:
        self._landed.update(self._copies.poll())
        return self._name in self._landed

    def synchronize(self) -> None:
        self._copies.wait([self._name])

    def record(self, stream: object) -> None:
        """The compute stream of a rig is done when the forward pass returns."""


class SimpleDevice:
    """Stands below SimpleCPUOffload's worker: launches at once what a thread would launch there."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._landed: set[int] = set()

    def launch_copy(
        self,
        src_blocks: list[int],
        dst_blocks: list[int],
        is_store: bool,
        event_idx: int,
        events_list: list[tuple[int, _Event]],
        wait_event: _Event | None = None,
    ) -> None:
        """Launch one copy and leave its event where the worker looks for it."""
        name = event_idx * 2 + is_store
        self._copies.submit(name, is_store, src_blocks, dst_blocks)
        events_list.append((event_idx, _Event(self._copies, self._landed, name)))

    def event(self) -> _Event:
        """An event that is recorded but never asked for."""
        return _Event(self._copies, self._landed, -1)


class Worker:
    """One worker's side of a connector."""

    def __init__(self, engine: Engine, spec: WorldSpec, copies: Copies, memory: Memory) -> None:
        config = engine.config_of(memory.rank)
        self.layers: list[str] = []
        """Those that ask before they read their blocks."""
        with set_current_vllm_config(config):
            self.connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, engine.kv_cache_config)
            if spec.connector == "offloading":
                self._put_under_offloading(OffloadingDevice(copies, spec.blocks_per_chunk))
            elif spec.connector == "simple":
                device = SimpleDevice(copies)
                self.connector.worker_handler._backend = device
                self.connector.worker_handler._store_compute_done = device.event()
            else:
                caches = _kv_caches(memory, spec)
                self.layers += [name for name, group in zip(caches, spec.groups, strict=True) if group.kind != "mamba"]
                config.compilation_config.static_forward_context |= {name: _attention() for name in self.layers}
                self.connector.register_kv_caches(caches)
        self._metadata: object = None
        self._context = ForwardContext(no_compile_layers={}, attn_metadata={}, slot_mapping={})

    def _put_under_offloading(self, device: OffloadingDevice) -> None:
        below = self.connector.connector_worker
        if below.worker is None:
            below.worker = device
            return
        from vllm.v1.kv_offload.base import GPULoadStoreSpec
        from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

        below.worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, _OldDirection(device, is_store=True))
        below.worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, _OldDirection(device, is_store=False))

    @property
    def side(self) -> object:
        """What of vLLM's own connectors is the worker's alone, and can be watched."""
        return getattr(self.connector, "connector_worker", None) or self.connector.worker_handler

    @property
    def held_back(self) -> int:
        """Stores that the worker of OffloadingConnector keeps for its next step."""
        return len(getattr(getattr(self.connector, "connector_worker", None), "_unsubmitted_store_jobs", ()))

    def _before_layers(self) -> None:
        """What vLLM says where a layer's attention begins; all layers are computed at once here."""
        for layer in self.layers:
            self.connector.wait_for_layer_load(layer)

    def settle(self, output: SchedulerOutput) -> None:
        """Take in a step's metadata; launch and wait for what must be done before this step touches a block.

        Each worker has a copy of its own, as if it came through a pipe: a connector may take jobs out of it.
        """
        self._metadata = pickle.loads(pickle.dumps(output.kv_connector_metadata))
        self.connector.handle_preemptions(self._metadata)

    def run(self, output: SchedulerOutput, forward: Callable[[], None] | None) -> KVConnectorOutput:
        """The calls of one step around the forward pass; a step that schedules nothing has none."""
        connector, result = self.connector, KVConnectorOutput()
        connector.bind_connector_metadata(self._metadata)
        late = LOADS_AFTER_FORWARD and not output.has_sync_kv_loads
        with _no_device():
            if not late:
                connector.start_load_kv(self._context)
            if forward is not None:
                self._before_layers()
                forward()
            if late:
                connector.start_load_kv(self._context)
            if forward is not None or SAVES_WITHOUT_FORWARD:
                connector.wait_for_save()
        if hasattr(connector, "get_transfer_results"):
            done = connector.get_transfer_results(output.finished_req_ids)
            result.finished_sending, result.finished_recving = done.finished_sending, done.finished_recving
            result.failed_recving = done.failed_recving
        else:
            result.finished_sending, result.finished_recving = connector.get_finished(output.finished_req_ids)
        result.invalid_block_ids = connector.get_block_ids_with_load_errors()
        result.kv_connector_stats = connector.get_kv_connector_stats()
        result.kv_cache_events = connector.get_kv_connector_kv_cache_events()
        result.kv_connector_worker_meta = connector.build_connector_worker_meta()
        connector.clear_connector_metadata()
        return result


def _attention() -> Attention:
    """A layer of attention by its class alone."""
    return Attention.__new__(Attention)


@contextmanager
def _no_device() -> Iterator[None]:
    """Let SimpleCPUOffload's worker ask for the current stream of a device that is not there."""
    with mock.patch.object(torch.cuda, "current_stream", return_value=None):
        yield


def _kv_caches(memory: Memory, spec: WorldSpec) -> dict[str, torch.Tensor]:
    """The rig's memory as the tensors of the layers. Groups overlay each other: a block belongs to one group at a time."""
    words = torch.from_numpy(memory.device.view("float32"))
    caches = {}
    for at, group in enumerate(spec.groups):
        if group.kind == "mamba":
            caches[f"layer{at}"] = words
        else:
            heads = memory.row_words // group.block_tokens
            caches[f"layer{at}"] = words.view(spec.num_gpu_blocks, 2, group.block_tokens, heads, 1)
    return caches
