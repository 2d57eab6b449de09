"""The KV cache of a worker as pages: each layer of each group is one row of bytes per block, whatever its attention backend.

Rules of this file:

* The content of a block is opaque. A layer is `(num_blocks, page bytes)` of its own storage, with heads and K/V halves inside.
* Layers of different groups may share the same bytes: a block belongs to one group at a time.
* If the pages of all layers of a block lie side by side, the whole block is one page, and a copy moves it in as few runs as
  possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen

from blocklife.copiers.torch import KvCache
from blocklife.errors import MisuseError


@frozen
class Layer:
    """Position of the pages of one layer in its storage, in bytes."""

    storage: torch.UntypedStorage
    device: torch.device
    offset: int
    stride: int
    page: int


def layer_of(name: str, cache: torch.Tensor | Sequence[torch.Tensor], num_blocks: int, page_bytes: int) -> Layer:
    """A layer as vLLM passes it: a tensor whose first axis counts blocks, or equal parts of blocks; or several such tensors.

    If there are several (the states of a Mamba layer), the first one starts where the page starts.
    """
    tensor = cache if isinstance(cache, torch.Tensor) else cache[0]
    parts, rest = divmod(len(tensor), num_blocks)
    size = tensor.element_size()
    stride = tensor.stride(0) * parts * size
    if not parts or rest or stride < page_bytes:
        raise MisuseError(
            f"layer {name}: a tensor of shape {tuple(tensor.shape)} and stride {tuple(tensor.stride())} does not hold "
            f"{num_blocks} blocks of {page_bytes} bytes one after another (its first axis must be the block: set "
            "VLLM_KV_CACHE_LAYOUT=LBNHC)"
        )
    return Layer(tensor.untyped_storage(), tensor.device, int(tensor.storage_offset()) * size, stride, page_bytes)


def _rows(layer: Layer, offset: int, num_blocks: int, page: int) -> torch.Tensor:
    """The bytes of some pages as a tensor on the layer's own storage."""
    end = offset + (num_blocks - 1) * layer.stride + page
    if end > layer.storage.nbytes():
        raise MisuseError(f"{num_blocks} blocks of {page} bytes from {offset} on do not fit {layer.storage.nbytes()} bytes")
    empty = torch.empty(0, dtype=torch.uint8, device=layer.device)
    return empty.set_(layer.storage, offset, (num_blocks, page), (layer.stride, 1))


def pages_of(groups: Sequence[Sequence[Layer]], num_blocks: int) -> KvCache:
    """The cache in the form that the copier takes. Refuses layers that interleave in more than one way."""
    layers = [layer for group in groups for layer in group]
    if all(layer.stride == layer.page for layer in layers):
        return KvCache([[_rows(layer, layer.offset, num_blocks, layer.page) for layer in group] for group in groups])
    # blocks outermost: a block of one layer begins inside a block of all of them
    places = {(layer.storage.data_ptr(), layer.stride) for layer in layers}
    first = layers[0]
    if len(places) > 1:
        raise MisuseError(
            f"{len(layers)} layers interleave in {len(places)} different ways: only layers of one storage and one stride "
            "between blocks can be copied (set VLLM_KV_CACHE_LAYOUT=LBNHC)"
        )
    start = min(layer.offset for layer in layers) // first.stride * first.stride
    if max(layer.offset + layer.page for layer in layers) > start + first.stride:
        raise MisuseError(
            f"{len(layers)} layers lie apart, and their pages of {first.page} bytes are {first.stride} bytes apart: pages with "
            "gaps between them cannot be copied (use another attention backend)"
        )
    return KvCache([[_rows(first, start, num_blocks, first.stride)] for _ in groups])


def cache_of(
    groups: Sequence[Mapping[str, int]], caches: Mapping[str, torch.Tensor | Sequence[torch.Tensor]], num_blocks: int
) -> KvCache:
    """The cache of a worker; *groups* give, for each group, the bytes of a page of each of its layers, by name."""
    return pages_of(
        [[layer_of(name, caches[name], num_blocks, page) for name, page in group.items()] for group in groups], num_blocks
    )
