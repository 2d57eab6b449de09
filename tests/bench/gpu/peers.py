"""Who moves pages elsewhere: vLLM, SGLang and LMCache by the calls that they make themselves, on the same arena.

A package that cannot be imported, or whose call is another one in the release that is installed, is named with its reason and
has no figures. Each is spared what does not belong to the copy: its ids are on the device before it begins, and it orders
nothing.

* vLLM (0.33): addresses in three pinned tensors, one call. Its connector takes the kernel for loads of pages below 28 KiB, and
  the driver's batch for all else; here each moves everything.
* SGLang (0.5.23): its calls for memory of latents that lies page-first on the host. A block is what a token is there.
* LMCache (as of 2026): its call for memory of latents. Its chunk lies by layer and in a row, so all its places on the host are
  in a row.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from blocklife.ledger.records import ON_DEVICE, Direction
from tests.bench.gpu.arena import STORE, Arena
from tests.bench.gpu.competitors import Competitor, Gather
from tests.bench.gpu.records import LMCACHE, SGLANG, VLLM_BATCH, VLLM_KERNEL

_VLLM_CHUNK_MAX = 8_192
"""Bytes that a program of vLLM's kernel copies at once, at most, as its connector calls it."""

_VLLM_MLA = 3
"""LMCache's number for vLLM's memory of latents: blocks, tokens, width."""


class _Addresses(Competitor):
    """Moves runs by their addresses, which it computes for each job."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        layers = arena.cache.layers
        self._device = np.array([layer.data_ptr() for layer in layers], np.int64)[:, None]
        self._host = arena.rows.rows.data_ptr() + np.arange(len(layers), dtype=np.int64)[:, None] * arena.page
        room = arena.job_blocks * len(layers)
        # One set for each job: nothing may write them while a copy still reads them.
        self._given = {
            direction: [torch.empty((3, room), dtype=torch.int64, pin_memory=arena.buffers.cuda) for _ in self.jobs[direction]]
            for direction in ON_DEVICE
        }

    def queue(self, direction: Direction, number: int) -> None:
        blocks, places = self.jobs[direction][number]
        device, host = (self._device + blocks * self.arena.page).ravel(), (self._host + places * self.arena.block).ravel()
        given = self._given[direction][number][:, : len(device)]
        numbers = given.numpy()
        numbers[0], numbers[1] = (device, host) if direction is STORE else (host, device)
        numbers[2] = self.arena.page
        with self.on(direction):
            self.call(given[0], given[1], given[2], is_load=direction is not STORE)

    def call(self, source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, *, is_load: bool) -> None:
        """Queue so many runs on the current stream."""
        raise NotImplementedError


class VllmBatch(_Addresses):
    """vLLM's call of the driver's batch."""

    name = VLLM_BATCH

    def __init__(self, arena: Arena) -> None:
        self._ops: Any = importlib.import_module("vllm._custom_ops")
        super().__init__(arena)

    def call(self, source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, *, is_load: bool) -> None:
        self._ops.swap_blocks_batch(source, target, sizes, is_src_access_order_any=is_load)


class VllmKernel(_Addresses):
    """vLLM's kernel, for pages of any size and in both directions."""

    name = VLLM_KERNEL

    def __init__(self, arena: Arena) -> None:
        self._swap: Any = importlib.import_module("vllm.v1.kv_offload.cpu.swap_blocks_triton")
        super().__init__(arena)

    def call(self, source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, *, is_load: bool) -> None:
        self._swap.swap_blocks_batch(source, target, sizes, bytes_per_chunk=min(self.arena.page, _VLLM_CHUNK_MAX))


class Sglang(Competitor):
    """SGLang's kernels: stores of all layers in one call, loads in one for each layer, as its engine makes them."""

    name = SGLANG

    def __init__(self, arena: Arena) -> None:
        self._io: Any = importlib.import_module("sgl_kernel.kvcacheio")
        super().__init__(arena)
        where = arena.buffers.where
        addresses = [layer.data_ptr() for layer in arena.cache.layers]
        self._layers = torch.tensor(addresses, dtype=torch.uint64, device=where)
        self._ids = {
            direction: [tuple(torch.from_numpy(ids).to(where) for ids in job) for job in jobs]
            for direction, jobs in self.jobs.items()
        }

    def queue(self, direction: Direction, number: int) -> None:
        blocks, places = self._ids[direction][number]
        page, block, layers = self.arena.page, self.arena.block, self.arena.cache.layers
        rows = self.arena.rows.rows
        with self.on(direction):
            if direction is STORE:
                self._io.transfer_kv_all_layer_mla_lf_pf(
                    src_layers=self._layers,
                    dst=rows,
                    src_indices=blocks,
                    dst_indices=places,
                    item_size=page,
                    dst_layout_dim=block,
                    num_layers=len(layers),
                )
                return
            for number_of_layer, layer in enumerate(layers):
                self._io.transfer_kv_per_layer_mla_pf_lf(
                    src=rows,
                    dst=layer,
                    src_indices=places,
                    dst_indices=blocks,
                    layer_id=number_of_layer,
                    item_size=page,
                    src_layout_dim=block,
                )


class Lmcache(Gather):
    """LMCache's kernel, between the layers and a chunk in page-locked memory."""

    name = LMCACHE

    def __init__(self, arena: Arena) -> None:
        try:
            self._ops: Any = importlib.import_module("lmcache.cuda_ops")
            named: Any = importlib.import_module("lmcache.lmcache_native")
        except ImportError:  # before it was split in two
            named = self._ops = importlib.import_module("lmcache.c_ops")
        super().__init__(arena)
        addresses = [layer.data_ptr() for layer in arena.cache.layers]
        self._layers = torch.tensor(addresses, dtype=torch.int64, device=arena.buffers.where)
        self._ways = {way: named.TransferDirection.D2H if way is STORE else named.TransferDirection.H2D for way in ON_DEVICE}
        formats = getattr(named, "EngineKVFormat", None) or named.GPUKVFormat
        self._format = formats(_VLLM_MLA)

    def queue(self, direction: Direction, number: int) -> None:
        ids = self._ids[direction][number]
        chunk = self._there(self.arena.buffers.host, direction, number).view(torch.int64)
        with self.on(direction):
            self._ops.multi_layer_kv_transfer(
                chunk.view(1, len(self._layers), len(ids), -1),
                self._layers,
                ids,
                self.arena.buffers.where,
                self.arena.num_blocks,
                self._ways[direction],
                self._format,
                block_size=1,
            )


FOREIGN: tuple[type[Competitor], ...] = (VllmBatch, VllmKernel, Sglang, Lmcache)


def tried(kind: type[Competitor], arena: Arena) -> Competitor:
    """A competitor that has moved one job in each direction. Raises whatever its package does."""
    made = kind(arena)
    try:
        for direction in ON_DEVICE:
            made.queue(direction, 0)
    finally:
        arena.buffers.settle()
    return made
