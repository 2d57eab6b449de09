"""What SGLang has for a GPU only: two small kernels of its allocators, in older releases, and pinned host memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

HOST_MEMORY = tuple(f"sglang.srt.mem_cache.{name}" for name in ("pool_host.common", "pool_host.base", "memory_pool_host"))


class Kernel:
    """What is called as ``kernel[grid](...)``."""

    def __init__(self, work: Callable[..., None]) -> None:
        self._work = work

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._work


def placed(starts: Sequence[int], stops: Sequence[int], last: Sequence[int], free: Sequence[int], page: int) -> list[int]:
    """The slots of the tokens from each start to its stop: behind the last slot while its page lasts, then in free pages."""
    pages, slots = iter(free), list[int]()
    for start, stop, slot in zip(starts, stops, last, strict=True):
        for position in range(start, stop):
            slot = next(pages) * page if position % page == 0 else slot + 1
            slots.append(slot)
    return slots


def alloc_extend(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    _batch: int,
    page_size: int,
    *_: object,
) -> None:
    """Slots for the tokens of a prefill."""
    slots = placed(prefix_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), free_pages.tolist(), page_size)
    out_indices.copy_(torch.tensor(slots, dtype=out_indices.dtype))


def alloc_decode(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    _batch: int,
    page_size: int,
    *_: object,
) -> None:
    """A slot for one more token of each request."""
    slots = placed((seq_lens - 1).tolist(), seq_lens.tolist(), last_loc.tolist(), free_pages.tolist(), page_size)
    out_indices.copy_(torch.tensor(slots, dtype=out_indices.dtype))


def installed() -> None:
    """Put them where SGLang's allocators look for them."""
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.srt.mem_cache.allocator"):
            for kernel, work in (("alloc_extend_kernel", alloc_extend), ("alloc_decode_kernel", alloc_decode)):
                if hasattr(module, kernel):
                    setattr(module, kernel, Kernel(work))


def plain_host_memory() -> None:
    """Host pools without pinned memory, and without the gigabytes that SGLang leaves free beside them."""

    def plain(dims: Sequence[int], dtype: torch.dtype = torch.float32, *_: object, **__: object) -> torch.Tensor:
        return torch.zeros(tuple(dims), dtype=dtype)

    for name in HOST_MEMORY:
        module: Any = sys.modules.get(name)
        if hasattr(module, "HICACHE_HOST_MEMORY_RESERVE_BYTES"):
            module.HICACHE_HOST_MEMORY_RESERVE_BYTES = -(1 << 40)
        table = getattr(module, "ALLOC_MEMORY_FUNCS", None)
        if table is not None:
            table.default_factory = lambda: plain
            table.clear()


def no_pinned_tensors() -> None:
    """Small tensors of the scheduler that it pins without asking whether there is a device."""
    tensor = torch.tensor
    if getattr(tensor, "plain", None) is None:

        def plain(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
            return tensor(*args, **kwargs)  # type: ignore[arg-type]

        plain.plain = True  # type: ignore[attr-defined]
        torch.tensor = plain
        torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]
