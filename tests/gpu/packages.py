"""Other packages as the benchmark calls them, on the memory of the host: what their calls mean, moved byte by byte.

By their signatures in vLLM 0.33, SGLang 0.5.23 and a LMCache of 2026. No real package has run here: that needs a GPU.
"""

from __future__ import annotations

import ctypes
import enum

import torch


def swap(source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, **given: object) -> None:
    """vLLM: runs by their addresses."""
    for source_at, target_at, nbytes in zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target_at, source_at, nbytes)


def store(
    *,
    src_layers: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
) -> None:
    """SGLang: items of all layers to rows in which a token has them one after the other."""
    for layer, base in zip(range(num_layers), src_layers.tolist(), strict=True):
        for source, target in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
            at = dst.data_ptr() + target * dst_layout_dim + layer * item_size
            ctypes.memmove(at, base + source * item_size, item_size)


def load(
    *,
    src: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
) -> None:
    """SGLang: one layer back."""
    for source, target in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
        at = src.data_ptr() + source * src_layout_dim + layer_id * item_size
        ctypes.memmove(dst.data_ptr() + target * item_size, at, item_size)


class Way(enum.Enum):
    """LMCache's directions."""

    H2D = 0
    D2H = 1


class EngineFormat(enum.Enum):
    """LMCache's kinds of memory, one of them."""

    NL_X_NB_BS_HS = 3


def transfer(
    chunk: torch.Tensor,
    layers: torch.Tensor,
    slots: torch.Tensor,
    where: torch.device,
    num_slots: int,
    way: Way,
    kind: EngineFormat,
    *,
    block_size: int,
) -> None:
    """LMCache: tokens of each layer to or from a chunk, ``(1, layers, tokens, width)``."""
    _, num_layers, num_tokens, width = chunk.shape
    nbytes = width * chunk.element_size()
    if (kind, block_size, num_layers, num_tokens) != (EngineFormat.NL_X_NB_BS_HS, 1, len(layers), len(slots)):
        raise ValueError(f"{kind}, {block_size}, {tuple(chunk.shape)}")
    for layer, base in enumerate(layers.tolist()):
        for number, slot in enumerate(slots.tolist()):
            if not 0 <= slot < num_slots:
                raise ValueError(f"slot {slot} of {num_slots}")
            paged, packed = base + slot * nbytes, chunk.data_ptr() + (layer * num_tokens + number) * nbytes
            source, target = (paged, packed) if way is Way.D2H else (packed, paged)
            ctypes.memmove(target, source, nbytes)


FAKES: dict[str, dict[str, object]] = {
    "vllm._custom_ops": {"swap_blocks_batch": swap},
    "vllm.v1.kv_offload.cpu.swap_blocks_triton": {"swap_blocks_batch": swap},
    "sgl_kernel.kvcacheio": {"transfer_kv_all_layer_mla_lf_pf": store, "transfer_kv_per_layer_mla_pf_lf": load},
    "lmcache.cuda_ops": {"multi_layer_kv_transfer": transfer},
    "lmcache.lmcache_native": {"TransferDirection": Way, "EngineKVFormat": EngineFormat},
}
"""Their modules, with the calls that the benchmark makes."""

OLDER_LMCACHE = {"multi_layer_kv_transfer": transfer, "TransferDirection": Way, "GPUKVFormat": EngineFormat}
"""Its one module ``lmcache.c_ops``, in releases before it was split in two."""
