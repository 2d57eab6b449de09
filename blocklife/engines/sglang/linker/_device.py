"""SGLang's device memory as blocks: one page of tokens, in all layers, is one block.

Rules of this file:

* Everything that is not known to work is refused here, when the engine starts. Each refusal says what to do.
* Kinds of memory are compared by exact type: in a subclass, a row may hold something else.

SGLang's own description of memory for linkers (`DevicePoolGroup`) has no form for plain memory of keys and values, so the
buffers are read here.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

from blocklife.copiers.torch import KvCache
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import KVCache
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

_SCALED = ("k_scale_buffer", "native_k_scale_buffer", "dq_k_buffer")
"""Where memory of keys and values keeps what a quantised row needs besides itself."""


def _refuse(what: str, remedy: str) -> MisuseError:
    return MisuseError(f"blocklife linker: {what} ({remedy})")


class DevicePages:
    """The pages of one rank, and what SGLang calls them."""

    def __init__(self, params: CacheInitParams, components: Set[ComponentType]) -> None:
        kinds = sorted(each.name for each in components)
        if kinds != ["FULL"]:
            others = " and ".join(name for name in kinds if name != "FULL") or "no full attention"
            raise _refuse(
                f"a model with {others} is not offered: a hit needs content of each kind that ends at the same token",
                "use --enable-hierarchical-cache instead",
            )
        if params.pp_size != 1:
            raise _refuse(
                "pipeline parallelism is not offered: its stages do not agree on what a linker has found and stored",
                "use --pp-size 1",
            )
        pool = params.token_to_kv_pool_allocator.get_kvcache()
        self.page_size: int = params.page_size
        for what, page in (("the allocator", params.token_to_kv_pool_allocator.page_size), ("the memory", pool.page_size)):
            if page != self.page_size:
                raise _refuse(
                    f"the tree has pages of {self.page_size} tokens, and {what} has pages of {page}", "give all one --page-size"
                )
        if getattr(params, "mtp_draft_device_pools", ()) or getattr(params, "sidecar_draft_device_pools", ()):
            raise _refuse("a drafter with memory of its own is not offered", "switch speculative decoding off")
        self.num_pages: int = pool.size // self.page_size + 1
        """With page 0, which SGLang's allocator never hands out."""
        self.cache = KvCache([[self._pages(buffer) for buffer in _buffers(pool)]])
        self.num_layers: int = pool.layer_num

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers."""
        return sum(map(sum, self.cache.page_bytes))

    def last_buffer(self, layer: int) -> int:
        """The number of the last buffer of a layer, as the copier counts them: one for each layer, or two."""
        return (layer + 1) * len(self.cache.layers) // self.num_layers - 1

    def blocks(self, indices: torch.Tensor) -> list[int]:
        """The blocks that some slots of tokens are. Waits for the device if they are there.

        Refuses: slots that are not whole pages, each in its order.
        """
        slots = indices.detach().to(device="cpu", dtype=torch.int64)
        if len(slots) % self.page_size == 0:
            pages = slots.view(-1, self.page_size)
            if torch.equal(pages, pages[:, :1] // self.page_size * self.page_size + torch.arange(self.page_size)):
                found: list[int] = (pages[:, 0] // self.page_size).tolist()
                return found
        raise MisuseError(f"blocklife linker: {len(slots)} slots are not whole pages of {self.page_size} tokens")

    def _pages(self, buffer: torch.Tensor) -> torch.Tensor:
        """A buffer with a page as its first axis. A row of it is a token, or a page."""
        rows = len(buffer)
        if rows // self.page_size >= self.num_pages:
            pages: torch.Tensor = buffer[: self.num_pages * self.page_size].unflatten(0, (self.num_pages, self.page_size))
            return pages
        if rows == self.num_pages:
            return buffer
        what = f"memory of {rows} rows for {self.num_pages} pages of {self.page_size} tokens"
        raise _refuse(f"{what} is not offered", "leave the linker out")


def _buffers(pool: KVCache) -> Sequence[torch.Tensor]:
    """What a page consists of, layer after layer: one tensor for each, or two."""
    if type(pool) is MHATokenToKVPool:
        if any(getattr(pool, name, None) is not None for name in _SCALED):
            raise _refuse("memory with scales beside it is not offered", "use --kv-cache-dtype auto, or leave the linker out")
        return [each for pair in zip(pool.k_buffer, pool.v_buffer, strict=True) for each in pair]
    if type(pool) is MLATokenToKVPool:
        return [*pool.kv_buffer]
    raise _refuse(f"memory of the kind {type(pool).__name__} is not offered", "leave the linker out")
