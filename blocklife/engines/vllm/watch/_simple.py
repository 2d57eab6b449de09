"""Hooks on the scheduler side of vLLM's SimpleCPUOffloadConnector; they translate its jobs for the mirror."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Protocol

from blocklife.engines.vllm.watch._connector_hooks import ConnectorHooks
from blocklife.engines.vllm.watch._pool import hear_slots
from blocklife.engines.vllm.watch._reading import BlockLike, ending_of
from blocklife.watch import CopyPiece, EngineCopy, HeardCall, Mirror, TakesBack, Watch


class PlacePairs(Protocol):
    """Device blocks and host blocks, in pairs."""

    gpu_block_ids: list[int]
    cpu_block_ids: list[int]


class LoadState(Protocol):
    """What the connector keeps of a loading request."""

    load_event: int | None
    transfer_meta: PlacePairs | None


class SimpleHooks(ConnectorHooks):
    """Hooks on a SimpleCPUOffloadScheduler. It numbers stores and loads apart: stores get even numbers here, loads odd ones."""

    def __init__(self, watch: Watch, mirror: Mirror, scheduler: object) -> None:
        super().__init__(watch, mirror, scheduler)
        self._loads: dict[str, int] = {}
        self._waiting: set[str] = set()
        """The requests whose load the step that is decided may launch."""
        self._num_loads = int(getattr(scheduler, "_store_event_counter", 0))
        mirror.jobs.forgotten = 2 * self._num_loads - 1
        watch.ears.hear(scheduler, "reset", after=self._reset)
        mirror.hears_all = True
        mirror.host.sees_all = not self._num_loads
        mirror.num_held = self._num_held
        hear_slots(watch.ears, getattr(scheduler, "cpu_block_pool", None), lambda what: mirror.story.violate("I4", what))
        groups = getattr(getattr(scheduler, "cpu_kv_cache_config", None), "kv_cache_groups", ())
        found = getattr(scheduler, "group_block_sizes", None) or [each.kv_cache_spec.block_size for each in groups]
        self.block_tokens = list(found)
        self._places: dict[str, dict[int, tuple[int, int, bytes | None]]] = {}
        """Positions of a request's blocks at their allocation, with the name of the content that belongs there."""

    def _builds(self, call: HeardCall) -> TakesBack:
        self._waiting = {name for name, state in self._loading().items() if state.load_event is None}
        return super()._builds(call)

    def _built(self, call: HeardCall) -> None:
        meta = call.result
        stores, loads = [], []
        pairs = iter(list(zip(getattr(meta, "load_gpu_blocks", ()), getattr(meta, "load_cpu_blocks", ()), strict=False)))
        tells = hasattr(meta, "load_gpu_blocks")
        if (event := getattr(meta, "store_event", -1)) >= 0:
            gpu, cpu = getattr(meta, "store_gpu_blocks", ()), getattr(meta, "store_cpu_blocks", ())
            stores.append(EngineCopy(2 * event, None, self._pieces(gpu, cpu, store=True)))
        for name in [each for each in self._loading() if each in self._waiting]:  # the workers get them in this order
            transfer = getattr(self._loading().get(name), "transfer_meta", None)
            if transfer is not None:
                self._num_loads += 1
                self._loads[name] = number = 2 * self._num_loads + 1
                gpu, cpu = transfer.gpu_block_ids, transfer.cpu_block_ids
                if tells:
                    told = list(itertools.islice(pairs, len(gpu)))
                    gpu, cpu = [block for block, _ in told], [slot for _, slot in told]
                loads.append(EngineCopy(number, name, self._placed(name, self._pieces(gpu, cpu, store=False))))
        waits = set(self._mirror.jobs.left_behind()) if getattr(meta, "need_flush", False) else set()
        computes = self.computes(call.first)
        self._mirror.step(stores=stores, loads=loads, waits=waits, computes=computes, missing=self._missing(loads))
        self._places.clear()
        for copy in stores:
            for what in self._unnamed(meta, copy):
                self._mirror.story.violate("I8", f"job {copy.number} stores {what}", job=copy.number)

    def _unnamed(self, meta: object, copy: EngineCopy) -> list[str]:
        """The blocks of a store that have no name in the prefix cache: their stored content could never be found."""
        found = ["the null block"] if 0 in getattr(meta, "store_gpu_blocks", ()) else []
        unnamed = [piece.block for piece in copy.pieces if piece.key is None]
        return found + [f"block {block}, which has no name" for block in unnamed if self._names_blocks()]

    def _names_blocks(self) -> bool:
        """Whether the engine gives names to computed content: at least one of its blocks has a name."""
        blocks = getattr(getattr(self._scheduler, "_gpu_block_pool", None), "blocks", None)
        return self._mirror.computes and any(getattr(block, "block_hash", None) for block in blocks or ())

    def _placed(self, name: str, pieces: list[CopyPiece]) -> list[CopyPiece]:
        """The pieces of a load with their positions in the request's tables, and the names of what belongs there."""
        places = self._places.get(name, {})
        return [
            piece._replace(group=found[0], position=found[1], key=found[2] or piece.key)
            if (found := places.get(piece.block)) is not None
            else piece
            for piece in pieces
        ]

    def _count_on(self, name: str, request: object, tables: Sequence[Sequence[BlockLike]], tokens: int) -> None:
        names, unit = getattr(request, "block_hashes", ()), getattr(self._scheduler, "hash_block_size", 0)
        self._places[name] = {
            block.block_id: (group, at, _named(names, group, at) if size == unit else None)
            for group, (table, size) in enumerate(zip(tables, self.block_tokens, strict=False))
            for at, block in enumerate(table)
            if block.block_id
        }
        pending = getattr(self._scheduler, "_pending_cpu_hits", {}).get(name)
        start = self._computed.get(name)
        if pending is not None and start is not None:
            self._counted[name] = [
                (position, table[position].block_id, False)
                for hits, table, size in zip(pending[0], tables, self.block_tokens, strict=False)
                for position, hit in enumerate(hits[: -(-tokens // size)], start // size)
                if position < len(table) and hit.block_id and self._mirror.follows(table[position].block_id)
            ]

    def _lacks(self, name: str, request: object, start: int, end: int) -> str:
        names, unit = getattr(request, "block_hashes", ()), getattr(self._scheduler, "hash_block_size", 0)
        pending = getattr(self._scheduler, "_pending_cpu_hits", {}).get(name)
        for group, (hits, size) in enumerate(zip(pending[0] if pending else (), self.block_tokens, strict=False)):
            if hits and len(hits) < -(-(end - start) // size):
                return f"has only {len(hits)} blocks of group {group}"
            for at, hit in enumerate(hits if size == unit else (), start // size):
                if hit.block_id and hit.block_hash != _named(names, group, at):
                    return f"has other content in slot {hit.block_id} than that of position {at} of group {group}"
        return ""

    def _hear(self, output: object) -> None:
        for name in getattr(output, "finished_recving", None) or ():
            if (number := self._loads.pop(name, None)) is not None:
                self._mirror.reported(number, self._mirror.num_workers)
        meta = getattr(output, "kv_connector_worker_meta", None)
        for event, count in (getattr(meta, "completed_store_events", None) or {}).items():
            self._mirror.reported(2 * event, count)

    def _reset(self, call: HeardCall) -> None:
        self._mirror.reset(forget=bool(call.result))

    def _num_held(self) -> int | None:
        pool = getattr(self._scheduler, "cpu_block_pool", None)
        blocks, free = getattr(pool, "num_gpu_blocks", None), getattr(pool, "get_num_free_blocks", None)
        return blocks - 1 - free() if isinstance(blocks, int) and free is not None else None  # one is the null block

    def _loading(self) -> Mapping[str, LoadState]:
        found = getattr(self._scheduler, "_reqs_to_load", None)
        return found if isinstance(found, Mapping) else {}

    def _pieces(self, gpu: Sequence[int], cpu: Sequence[int], *, store: bool) -> list[CopyPiece]:
        """A piece for each pair of blocks. The group is the one that the device block was handed out for."""
        pool = getattr(self._scheduler, "_gpu_block_pool" if store else "cpu_block_pool", None)
        known = getattr(pool, "blocks", None)
        keys = [getattr(known[block], "block_hash", None) if known is not None else None for block in (gpu if store else cpu)]
        return [
            CopyPiece(0, block, None, slot, bytes(key) if isinstance(key, bytes) else None)
            for block, slot, key in zip(gpu, cpu, keys, strict=True)
            if self._mirror.follows(block)
        ]


def _named(hashes: Sequence[bytes], group: int, position: int) -> bytes | None:
    """vLLM's name of the content at a position: the hash of all tokens up to its end, and the group."""
    return bytes(hashes[position]) + ending_of(group) if position < len(hashes) else None
