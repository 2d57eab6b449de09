"""Listens to the scheduler side of vLLM's SimpleCPUOffloadConnector, and says what its jobs are in the words of the mirror."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from blocklife.engines.vllm.watch.ear import ConnectorEar, Original
from blocklife.engines.vllm.watch.host import Piece
from blocklife.engines.vllm.watch.jobs import Copy
from blocklife.engines.vllm.watch.mirror import Mirror


class Transfer(Protocol):
    """Blocks of the device and of the host, in pairs."""

    gpu_block_ids: list[int]
    cpu_block_ids: list[int]


class LoadState(Protocol):
    """What the connector keeps of a request that loads."""

    load_event: int | None
    transfer_meta: Transfer | None


class SimpleEar(ConnectorEar):
    """Listens to a SimpleCPUOffloadScheduler. It counts its stores and its loads apart: stores are even here, loads odd."""

    def __init__(self, mirror: Mirror, scheduler: object) -> None:
        super().__init__(mirror, scheduler)
        self._loads: dict[str, int] = {}
        self._num_loads = int(getattr(scheduler, "_store_event_counter", 0))
        mirror.jobs.forgotten = 2 * self._num_loads - 1
        self.calls.add(scheduler, "reset", self._reset)

    def _build(self, original: Original, *args: object, **kwargs: object) -> object:
        before = {name for name, state in self._loading().items() if state.load_event is None}
        try:
            meta = original(*args, **kwargs)
        except Exception:
            self._mirror.catch_up()
            raise
        stores, loads = [], []
        if (event := getattr(meta, "store_event", -1)) >= 0:
            gpu, cpu = getattr(meta, "store_gpu_blocks", ()), getattr(meta, "store_cpu_blocks", ())
            stores.append(Copy(2 * event, None, self._pieces(gpu, cpu, store=True)))
        for name in sorted(before):
            transfer = getattr(self._loading().get(name), "transfer_meta", None)
            if transfer is not None:
                self._num_loads += 1
                self._loads[name] = number = 2 * self._num_loads + 1
                pieces = self._pieces(transfer.gpu_block_ids, transfer.cpu_block_ids, store=False)
                loads.append(Copy(number, name, pieces))
        waits = set(self._mirror.jobs.left_behind()) if getattr(meta, "need_flush", False) else set()
        self._mirror.step(stores=stores, loads=loads, waits=waits)
        return meta

    def _hear(self, output: object) -> None:
        for name in getattr(output, "finished_recving", None) or ():
            if (number := self._loads.pop(name, None)) is not None:
                self._mirror.reported(number, self._mirror.num_workers)
        meta = getattr(output, "kv_connector_worker_meta", None)
        for event, count in (getattr(meta, "completed_store_events", None) or {}).items():
            self._mirror.reported(2 * event, count)

    def _reset(self, original: Original, *args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        self._mirror.reset(forget=bool(result))
        return result

    def _loading(self) -> Mapping[str, LoadState]:
        found = getattr(self._scheduler, "_reqs_to_load", None)
        return found if isinstance(found, Mapping) else {}

    def _pieces(self, gpu: Sequence[int], cpu: Sequence[int], *, store: bool) -> list[Piece]:
        """A block of the host for each of the device. Their groups are those that they were handed out for."""
        pool = getattr(self._scheduler, "_gpu_block_pool" if store else "cpu_block_pool", None)
        known = getattr(pool, "blocks", None)
        keys = [getattr(known[block], "block_hash", None) if known is not None else None for block in (gpu if store else cpu)]
        return [
            Piece(0, block, None, slot, bytes(key) if isinstance(key, bytes) else None)
            for block, slot, key in zip(gpu, cpu, keys, strict=True)
            if self._mirror.follows(block)
        ]
