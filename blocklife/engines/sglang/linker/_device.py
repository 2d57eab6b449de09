"""SGLang's device memory as blocks: a page of tokens in all layers is one block, and so is the state behind a token.

A model has one memory for each kind of its layers: pages of full attention, pages of windows, states. An allocator of SGLang
hands out each of them, and whatever lies beside it under the same numbers belongs to its blocks: scales, index keys, the memory
of a drafter, the side states of a state (sglang#39830).

Rules of this file:

* Everything that is not known to work is refused here, when the engine starts. Each refusal says what to do.
* Kinds of memory are compared by exact type: in a subclass, a row may hold something else.
* Which tensors a memory of a known kind consists of, SGLang says itself (`get_device_pool_infos`).

SGLang's own description for linkers (`DevicePoolGroup`) has no form for plain memory of keys and values, nor for most memory
that is in several parts; for DeepSeek V4 it is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from attrs import frozen
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool import (
    DSATokenToKVPool,
    HybridLinearKVPool,
    MambaPool,
    MHATokenToKVPool,
    MHATokenToKVPoolFP4,
    MLATokenToKVPool,
    MLATokenToKVPoolFP4,
)
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from blocklife.copiers.torch import KvCache
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import KVCache
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

_ATTENTION = (
    MHATokenToKVPool, MHATokenToKVPoolFP4, MLATokenToKVPool, MLATokenToKVPoolFP4, DSATokenToKVPool,
)  # fmt: skip
"""Memory of attention whose tensors are known: keys and values, latents, latents with index keys; with scales or without."""
_COMPONENTS = {"FULL": PoolName.KV, "SWA": PoolName.SWA, "MAMBA": PoolName.MAMBA}
"""The parts of SGLang's tree, and what it calls their memory."""


def _refuse(what: str, remedy: str) -> MisuseError:
    return MisuseError(f"blocklife linker: {what} ({remedy})")


@frozen
class _LayerBuffer:
    """A tensor of a memory, and the first layer of this rank's forward pass that reads it."""

    layer: int
    tensor: torch.Tensor


class DevicePages:
    """The pages of one memory of a rank, or its slots of states, and what SGLang calls them."""

    def __init__(self, page_size: int, num_pages: int, buffers: Iterable[_LayerBuffer]) -> None:
        self.page_size = page_size
        """In numbers of SGLang: tokens, or 1 for a state."""
        self.num_pages = num_pages
        """With page 0, which SGLang's allocators never hand out."""
        ordered = sorted(buffers, key=lambda buffer: buffer.layer)
        if not ordered:
            raise _refuse("memory without a layer is not offered", "leave the linker out")
        self.cache = KvCache([[self._pages(buffer.tensor) for buffer in ordered]])
        self._layers = [buffer.layer for buffer in ordered]
        self._offsets = np.arange(page_size)

    @property
    def num_layers(self) -> int:
        """Layers of the forward pass, up to the last that reads it."""
        return self._layers[-1] + 1

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers."""
        return sum(map(sum, self.cache.page_bytes))

    def last_buffer(self, layer: int) -> int:
        """The number of the last tensor that the forward pass reads up to a layer, as the copier counts them; -1 if none."""
        return bisect_right(self._layers, layer) - 1

    def blocks(self, indices: Sequence[torch.Tensor]) -> list[list[int]]:
        """The blocks that some slots of SGLang are, for each tensor of them. Waits for the device once, if they are there.

        Refuses: slots that are not whole pages, each in its order.
        """
        flat = (indices[0] if len(indices) == 1 else torch.cat([*indices])).detach().to(device="cpu", dtype=torch.int64)
        slots, size = flat.numpy(), self.page_size
        if all(len(each) % size == 0 for each in indices):
            pages = slots.reshape(-1, size)
            numbers = pages[:, 0] // size
            if (pages == numbers[:, None] * size + self._offsets).all():
                ends = accumulate((len(each) // size for each in indices), initial=0)
                return [numbers[start:end].tolist() for start, end in pairwise(ends)]
        raise MisuseError(f"blocklife linker: {len(slots)} slots are not whole pages of {self.page_size} tokens")

    def _pages(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with a page as its first axis. A row of it is a token, or a page."""
        rows = len(tensor)
        if rows // self.page_size >= self.num_pages:
            pages: torch.Tensor = tensor[: self.num_pages * self.page_size].unflatten(0, (self.num_pages, self.page_size))
            return pages
        if rows >= self.num_pages:
            return tensor[: self.num_pages]
        what = f"memory of {rows} rows for {self.num_pages} pages of {self.page_size} tokens"
        raise _refuse(f"{what} is not offered", "leave the linker out")


def memories_of(params: CacheInitParams, components: Set[ComponentType]) -> dict[PoolName, DevicePages]:
    """The memories of a rank by SGLang's name, pages of full attention first."""
    names = sorted((each.name for each in components), key=[*_COMPONENTS].index) if _known(components) else []
    if "FULL" not in names:
        others = " and ".join(sorted(each.name for each in components)) or "no parts"
        raise _refuse(f"a tree of {others} is not offered", "use --enable-hierarchical-cache instead")
    if getattr(params, "mtp_draft_mamba_pools", ()):
        raise _refuse("a drafter with states of its own is not offered", "switch speculative decoding off")
    pool, page = params.token_to_kv_pool_allocator.get_kvcache(), params.page_size
    for what, size in (("the allocator", params.token_to_kv_pool_allocator.page_size), ("the memory", pool.page_size)):
        if size != page:
            raise _refuse(f"the tree has pages of {page} tokens, and {what} has pages of {size}", "give all one --page-size")
    if type(pool) is DeepSeekV4TokenToKVPool:
        return _described(params, components, pool)
    found = {PoolName.KV: _full(params, pool, page)}
    if "SWA" in names:
        if type(pool) is not SWAKVPool:
            raise _refuse(f"windows in memory of the kind {type(pool).__name__} are not offered", "leave the linker out")
        found[PoolName.SWA] = _paged(pool.swa_kv_pool, page, _layers(pool, windows=True))
    if "MAMBA" in names:
        found[PoolName.MAMBA] = _states(params.req_to_token_pool, getattr(pool, "start_layer", 0))
    return found


def _known(components: Set[ComponentType]) -> bool:
    return all(each.name in _COMPONENTS for each in components)


def _full(params: CacheInitParams, pool: KVCache, page: int) -> DevicePages:
    """Pages of full attention, with what drafters keep under the same numbers."""
    drafts = [*getattr(params, "mtp_draft_device_pools", ()), *getattr(params, "sidecar_draft_device_pools", ())]
    beside = [buffer for depth, draft in enumerate(drafts) for buffer in _buffers(draft, range(depth, depth + draft.layer_num))]
    if type(pool) is SWAKVPool:
        return _paged(pool.full_kv_pool, page, _layers(pool, windows=False), beside)
    if type(pool) is HybridLinearKVPool:
        layers = [layer - pool.start_layer for layer in pool.full_attention_layer_id_mapping]
        return _paged(pool.full_kv_pool, page, layers, beside)
    return _paged(pool, page, range(pool.layer_num) if hasattr(pool, "layer_num") else (), beside)


def _layers(pool: SWAKVPool, *, windows: bool) -> list[int]:
    """The layers of this rank that are in one half of a memory with windows, in the order of its tensors."""
    found = {index: layer - pool.start_layer for layer, (index, near) in pool.layers_mapping.items() if near is windows}
    return [found[index] for index in sorted(found)]


def _paged(pool: KVCache, page: int, layers: Sequence[int], beside: Sequence[_LayerBuffer] = ()) -> DevicePages:
    buffers = [*_buffers(pool, layers), *beside]
    return DevicePages(page, pool.size // page + 1, buffers)


def _buffers(pool: KVCache, layers: Sequence[int]) -> Iterator[_LayerBuffer]:
    """The tensors of one memory of attention; *layers*: the layer of each part of its list."""
    if type(pool) not in _ATTENTION:
        raise _refuse(f"memory of the kind {type(pool).__name__} is not offered", "leave the linker out")
    if getattr(pool, "native_k_scale_buffer", None) is not None or getattr(pool, "layer_shard_enabled", False):
        raise _refuse(
            "memory with scales in a kernel's own order, or with its layers on several ranks, is not offered",
            "use --kv-cache-dtype auto, or leave the linker out",
        )
    (info,) = (each.buffer_info for each in pool.get_device_pool_infos())
    if isinstance(info, MHABufferInfo):
        lists = [info.buffers.k, info.buffers.v]
        lists += [] if info.scales is None else [info.scales.k, info.scales.v]
    else:
        lists = [info.buffers, *([pool.kv_scale_buffer] if pool.kv_scale_buffer is not None else [])]
        lists += [pool.index_k_with_scale_buffer] if isinstance(pool, DSATokenToKVPool) else []
    for tensors in lists:
        for layer, tensor in zip(layers, tensors, strict=True):
            if len(tensor):  # a layer that takes the index of the one before has none of its own
                yield _LayerBuffer(layer, tensor)


def _states(table: object, start_layer: int) -> DevicePages:
    """States, each with what lies beside its slot."""
    pool: object = getattr(table, "mamba_pool", None)
    if not isinstance(pool, MambaPool) or type(pool) is not MambaPool or getattr(table, "mamba_ckpt_pool", None) is not None:
        raise _refuse(
            f"states in memory of the kind {type(pool).__name__}, or cached in 8 bits, are not offered",
            "cache them as they are, or use --enable-hierarchical-cache instead",
        )
    if getattr(pool, "replayssm_write_pos", None) is not None:
        raise _refuse(
            "states that are partly in a ring beside them (ReplaySSM) are not offered: that was never tried",
            "switch ReplaySSM off",
        )
    (described,) = pool.get_device_pool_infos()
    info: MambaStateBufferInfo = described.buffer_info
    layers = [layer - start_layer for layer in described.layer_ids]
    parts = [part for part in (info.temporal, *info.conv) if part.numel()]
    buffers = [_LayerBuffer(layer, part[at]) for part in parts for at, layer in enumerate(layers)]
    buffers += [_LayerBuffer(0, beside) for beside in info.extra_checkpoint_buffers]
    return DevicePages(1, info.temporal.shape[1], buffers)


def _described(
    params: CacheInitParams, components: Set[ComponentType], pool: DeepSeekV4TokenToKVPool
) -> dict[PoolName, DevicePages]:
    """The memories of DeepSeek V4, as SGLang describes them to linkers."""
    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group

    group = resolve_hybrid_device_pool_group(kvcache=pool, page_size=params.page_size, params=params, components={*components})
    found: dict[PoolName, list[_LayerBuffer]] = {}
    rows: dict[PoolName, int] = {}
    for entry in group.entries:
        first = _first_layers(entry.layer_mapping)
        tensors = [(at, tensor) for part in entry.components for at, tensor in enumerate(part)]
        found.setdefault(entry.indices_from_pool, []).extend(_LayerBuffer(first.get(at, 0), tensor) for at, tensor in tensors)
        per_page = 1 if entry.rows_are_pages else entry.page_size
        fewest = min(len(tensor) for _, tensor in tensors) // per_page
        rows[entry.indices_from_pool] = min(fewest, rows.get(entry.indices_from_pool, fewest))
    return {
        name: DevicePages(params.page_size, rows[name], found[name]) for name in (PoolName.KV, PoolName.SWA) if name in found
    }


def _first_layers(mapping: Mapping[int, int | Sequence[int]]) -> dict[int, int]:
    """For each tensor of an entry the first layer that reads it."""
    found: dict[int, int] = {}
    for layer, at in sorted(mapping.items()):
        for each in [at] if isinstance(at, int) else at:
            found.setdefault(each, layer)
    return found
