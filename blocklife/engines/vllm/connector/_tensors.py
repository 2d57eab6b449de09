"""The KV cache of a worker as pages: each layer of each group is one row of bytes per block, whatever its attention backend.

Rules of this file:

* The content of a block is opaque. A layer is `(num_blocks, page bytes)` of its own storage, with heads and K/V halves inside.
* Layers of different groups may share the same bytes: a block belongs to one group at a time.
* If the pages of all layers of a block lie side by side, the whole block is one page, and a copy moves it in as few runs as
  possible. Otherwise each layer is copied by itself; gaps between its pages are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen

from blocklife.copiers.torch import KvCache
from blocklife.errors import MisuseError

_BARE_BYTES = 16


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
    """The cache in the form that the copier takes. Refuses layers of one storage that interleave in more than one way."""
    layers = [layer for group in groups for layer in group]
    if not all(groups):
        return _with_bare_groups(groups, num_blocks)
    if (start := _row_start(layers)) is not None:
        first = layers[0]
        return KvCache([[_rows(first, start, num_blocks, first.stride)] for _ in groups])
    _check_apart(layers, num_blocks)
    return KvCache([[_rows(layer, layer.offset, num_blocks, layer.page) for layer in group] for group in groups])


def _row_start(layers: Sequence[Layer]) -> int | None:
    """Where the first block begins, if the pages of all layers of a block lie side by side; None if they do not."""
    first = layers[0]
    if all(layer.stride == layer.page for layer in layers):
        return None  # each layer by itself, page after page
    if len({(layer.storage.data_ptr(), layer.stride) for layer in layers}) > 1:
        return None
    start = min(layer.offset for layer in layers) // first.stride * first.stride
    return None if max(layer.offset + layer.page for layer in layers) > start + first.stride else start


def _check_apart(layers: Sequence[Layer], num_blocks: int) -> None:
    """Refuse layers that share bytes with different distances between blocks: one's block is a part of another's next one."""
    spans = sorted({(layer.storage.data_ptr(), layer.offset, layer.stride, layer.page) for layer in layers})
    ends: dict[tuple[int, int], int] = {}
    for storage, offset, stride, page in spans:
        for (other, distance), end in ends.items():
            if other == storage and distance != stride and offset < end:
                raise MisuseError(
                    f"{len(layers)} layers interleave in different ways: of layers that share their memory all must have one "
                    f"distance between blocks, not {distance} and {stride} bytes (set VLLM_KV_CACHE_LAYOUT=LBNHC)"
                )
        ends[storage, stride] = max(ends.get((storage, stride), 0), offset + (num_blocks - 1) * stride + page)


def _with_bare_groups(groups: Sequence[Sequence[Layer]], num_blocks: int) -> KvCache:
    """The cache of a pipeline stage where some groups have no layer; their blocks have a few bytes that no layer uses."""
    layered = [group for group in groups if group]
    found = iter(pages_of(layered, num_blocks).groups if layered else ())
    device = layered[0][0].device if layered else torch.device("cpu")
    bare = torch.zeros((num_blocks, _BARE_BYTES), dtype=torch.uint8, device=device)
    return KvCache([next(found) if group else [bare] for group in groups])


def layer_numbers(groups: Sequence[Mapping[str, int]], cache: KvCache) -> dict[str, int]:
    """The number of each layer by its name, counted through all groups; layers of one row of bytes have one number."""
    numbers: dict[str, int] = {}
    begin = 0
    for names, rows in zip(groups, cache.groups, strict=True):
        numbers |= {name: begin + min(at, len(rows) - 1) for at, name in enumerate(names)}
        begin += len(rows)
    return numbers


def cache_of(
    groups: Sequence[Mapping[str, int]], caches: Mapping[str, torch.Tensor | Sequence[torch.Tensor]], num_blocks: int
) -> KvCache:
    """The cache of a worker; *groups* give, for each group, the bytes of a page of each of its layers, by name."""
    return pages_of(
        [[layer_of(name, caches[name], num_blocks, page) for name, page in group.items()] for group in groups], num_blocks
    )
