"""Models with states: their memory, its copies within the device, and what a forward pass does with a state.

Two layers have one state for a whole text, and between them one has full attention. The state behind n tokens follows from all
of them; a layer keeps it in two parts, as SGLang's pool does: the recent inputs and the state proper. A step goes on from the
state behind the token before its first, and leaves the one behind its last in the same place; whatever further states the
engine asks for, it writes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field

from tests.sglang import kernels
from tests.sglang.content import RECENT, ROW, STATE, rows
from tests.sglang.copies import Copies
from tests.sglang.device import Module
from tests.sglang.engine import LONGEST_TEXT, Engine, known
from tests.sglang.worlds import WorldSpec
from tests.texts import Chain

ATTENDING = 1
"""The layer with full attention."""
RECURRENT = (0, 2)
"""The layers with states."""


def state_pools(spec: WorldSpec, copies: Copies) -> tuple[Any, Any, Any]:
    """Device memory of the layer with attention, its allocator, and the table of requests, with the memory of the states."""
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool

    kernels.no_pinned_tensors()
    half = ROW // 2
    sizes = dict.fromkeys(("intermediate_size", "conv_dim", "ssm_state_size", "head_dim", "state_size"), half)
    shape = Mamba2StateShape(conv=[(half, half)], temporal=(1, half, half), num_heads=1, conv_kernel=half + 1, **sizes)
    kept = Mamba2StateDType(conv=torch.float32, temporal=torch.float32)
    said: dict[str, object] = {
        "size": spec.max_num_seqs * 2,
        "mamba_size": spec.state_slots,
        "mamba_spec_state_size": spec.max_num_seqs,
        "max_context_len": LONGEST_TEXT,
        "device": "cpu",
        "enable_memory_saver": False,
        "cache_params": Mamba2CacheParams(shape=shape, dtype=kept, layers=list(RECURRENT)),
        "mamba_layer_ids": list(RECURRENT),
        "enable_mamba_extra_buffer": spec.states != "no_buffer",
        "enable_mamba_extra_buffer_lazy": spec.states == "extra_buffer_lazy",
        "enable_overlap_schedule": spec.overlap,
    }
    table = HybridReqToTokenPool(**known(HybridReqToTokenPool, said))
    size, page = spec.device_pages * spec.page_tokens, spec.page_tokens
    said = {
        "size": size,
        "dtype": torch.float32,
        "page_size": page,
        "head_num": 1,
        "head_dim": ROW,
        "full_attention_layer_ids": [ATTENDING],
        "enable_kvcache_transpose": False,
        "device": "cpu",
        "mamba_pool": table.mamba_pool,
    }
    pool = HybridLinearKVPool(**known(HybridLinearKVPool, said))
    copies.own(*pool.full_kv_pool.k_buffer, *pool.full_kv_pool.v_buffer)
    Slots.of(table.mamba_pool, copies)
    common = {"size": size, "dtype": torch.float32, "device": "cpu", "kvcache": pool, "need_sort": False}
    allocator = TokenToKVPoolAllocator(**common) if page == 1 else PagedTokenToKVPoolAllocator(page_size=page, **common)
    return pool, allocator, table


def chunk_of(spec: WorldSpec) -> int:
    """The multiple of tokens behind which a prompt can leave a state."""
    return max(spec.state_tokens, spec.page_tokens)


def track_of(spec: WorldSpec) -> int:
    """The multiple of tokens behind which an answer leaves one."""
    return max(chunk_of(spec), spec.track_tokens)


@define(eq=False)
class Slots:
    """Copies of states from slot to slot, and their clearing: as late as everything else on their stream."""

    copies: Copies
    buffers: Sequence[torch.Tensor]
    """For each part of a state one, all layers in it."""

    @classmethod
    def of(cls, pool: Any, copies: Copies) -> Slots:
        """Put them in the place of SGLang's kernels in a pool."""
        buffers = [*pool.mamba_cache.conv, pool.mamba_cache.temporal]
        copies.own(*buffers)
        copies.halve(*buffers)
        slots = cls(copies, buffers)
        pool.copy_from, pool.clear_slots = slots.copy, slots.clear
        return slots

    def copy(self, src_indices: torch.Tensor, dst_indices: torch.Tensor) -> None:
        """Let some slots hold what others do."""
        src, dst, copies = src_indices.reshape(-1).long().clone(), dst_indices.reshape(-1).long().clone(), self.copies
        wanted = []
        for buffer in self.buffers:
            twin = copies.twins.of(buffer)
            values = twin[:, src].clone()
            twin[:, dst] = values
            wanted.append(values)

        def run() -> None:
            for buffer, want in zip(self.buffers, wanted, strict=True):
                values = buffer[:, src].clone()
                got, due = values.movedim(0, 1), want.movedim(0, 1)
                copies.witness.compare(copies.rank, "a copy on the device", "its states", got, due)
                buffer[:, dst] = values
            copies.states["on the device"] += len(src)

        Module.current_stream().put(run)

    def clear(self, indices: torch.Tensor) -> None:
        """Let slots hold the state that is behind no token."""
        at, copies = indices.reshape(-1).long().clone(), self.copies
        for buffer in self.buffers:
            copies.twins.of(buffer)[:, at] = 0

        def run() -> None:
            for buffer in self.buffers:
                buffer[:, at] = 0

        Module.current_stream().put(run)


@define(eq=False)
class Kept:
    """A further state that a step leaves behind, in this slot: behind so many tokens, for each of its parts."""

    slot: int
    recent: int
    proper: int


@define(eq=False)
class StateTurn:
    """What a step does with the states of one request."""

    slot: int
    kept: list[Kept] = field(factory=list)


def state_turns_of(engine: Engine, batch: Any, starts: Sequence[int], stops: Sequence[int]) -> list[StateTurn]:
    """Those of a batch, from what the scheduler has put into its tables."""
    slots = engine.rows.get_mamba_indices(batch.req_pool_indices).tolist()
    turns = [StateTurn(slot) for slot in slots]
    mask = getattr(batch, "mamba_track_mask", None)
    if engine.spec.states == "no_buffer" or mask is None:
        return turns
    small, large, extends = engine.spec.state_tokens, chunk_of(engine.spec), batch.forward_mode.is_extend()
    for at, turn in enumerate(turns):
        if not mask[at]:
            continue
        slot, start, stop = int(batch.mamba_track_indices[at]), starts[at], stops[at]
        if not extends:
            turn.kept.append(Kept(slot, stop, stop))
            continue
        # as the layers do: whole chunks from the first token of the step on, but for a state proper that is the last one
        length = int(batch.mamba_track_seqlens[at]) - start
        proper = stop if length % small == 0 else start + length // small * small
        turn.kept.append(Kept(slot, start + length // large * large, proper))
    return turns


def begin(engine: Engine, batch: Any) -> None:
    """What a forward pass does with slots ahead of its layers: new ones are cleared, or filled from cached states."""
    if not batch.forward_mode.is_extend():
        return
    table = engine.rows
    clear, source = batch.mamba_clear_indices, batch.mamba_cow_src_indices
    if clear is not None and len(clear):
        table.mamba_pool.clear_slots(clear)
    if source is not None and len(source):
        copy = getattr(table, "copy_mamba_state", table.mamba_pool.copy_from)  # the older one waits for no load
        copy(source, batch.mamba_cow_dst_indices)


def behind(text: Chain, tokens: int, layer: int, kind: int, rank: int) -> torch.Tensor:
    """A part of the state behind so many tokens, in one row; nothing is behind none."""
    if tokens == 0:
        return torch.zeros((1, ROW))
    return rows(text.upto(tokens)[tokens - 1 :], layer, kind, rank)


def put_state(copies: Copies, name: str, text: Chain, start: int, stop: int, turn: StateTurn, layer: int, cache: Any) -> None:
    """Let a layer go on from the state of a request."""
    kinds = (("recent inputs", RECENT, cache.conv[0]), ("state", STATE, cache.temporal))
    work: list[tuple[str, torch.Tensor, torch.Tensor, list[tuple[int, torch.Tensor]]]] = []
    for what, kind, buffer in kinds:

        def at(tokens: int, kind: int = kind, buffer: torch.Tensor = buffer) -> torch.Tensor:
            return behind(text, tokens, layer, kind, copies.rank).reshape(buffer.shape[1:])

        left = [(turn.slot, at(stop))]
        left += [(kept.slot, at(kept.recent if kind == RECENT else kept.proper)) for kept in turn.kept]
        work.append((f"{what} of layer {layer} behind {start} tokens", buffer, at(start), left))
        twin = copies.twins.of(buffer)
        for slot, value in left:
            twin[slot] = value

    def run() -> None:
        for what, buffer, before, left in work:
            copies.witness.compare(copies.rank, name, what, buffer[turn.slot][None], before[None])
            for slot, value in left:
                buffer[slot] = value

    Module.current_stream().put(run)


def states_missing(engine: Engine) -> str:
    """Evict all states, from the device and the host. Returns what is missing then, "" if nothing is."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams
    from sglang.srt.mem_cache.hicache_storage import PoolName

    everything = 1 << 30
    tree, table, size = engine.tree, engine.rows, engine.spec.state_slots
    if held := tree.mamba_protected_size():
        return f"{held} states of the device are locked, and no request runs"
    tree.evict(EvictParams(num_tokens=0, mamba_num=everything))
    free = sorted(getattr(table, "mamba_allocator", table.mamba_pool).free_slots.tolist())
    if free != list(range(1, size + 1)):
        return f"{size - len(set(free))} states of the device of {size}, and {len(free) - len(set(free))} are free twice"
    if engine.spec.linker is not None:
        return ""
    (kind,) = (kind for kind in tree.tree_components if kind.name == "MAMBA")
    tree.evict_host(everything, kind)
    host = engine.controller.mem_pool_host.get_pool(PoolName.MAMBA)
    if host.available_size() != host.size:
        return f"{host.size - host.available_size()} states of the host of {host.size}"
    return ""
