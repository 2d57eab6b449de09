"""The faults that `specs/sglang-findings` shows, mended as their reports propose it: a function for each, by the script's name.

`tests/behind/plainly.py` runs this file by its path, where blocklife cannot be imported: it imports SGLang and nothing of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def around(kind: type, name: str, new: Callable[..., Any]) -> None:
    """Put *new* around a method; it is handed the old one first."""
    setattr(kind, name, functools.partialmethod(new, getattr(kind, name)))


def aborted_while_a_copy_holds_its_memory() -> None:
    """Before the last request is given up, stores that are out are waited for."""

    def retract(self: Any, old: Callable[..., Any]) -> Any:
        if len(self.reqs) == 1:
            self.tree_cache.writing_check(write_back=True)
            if self.check_decode_mem():
                return [], 1.0, []
        return old(self)

    around(schedule_batch.ScheduleBatch, "retract_decode", retract)


def window_budget_counts_what_the_load_locks() -> None:
    """A request that loads is charged the whole window: what is on the device of it will not be evictable then either."""

    def fits(self: Any, old: Callable[..., Any], *, swa_host_hit_length: int, **named: Any) -> Any:
        charged = max(swa_host_hit_length, self.tree_cache.sliding_window_size) if swa_host_hit_length else 0
        return old(self, swa_host_hit_length=charged, **named)

    around(SWAPrefillBudget, "check_prefill", fits)


def ranks_store_different_nodes() -> None:
    """A node is stored where every rank has host memory for it, or nowhere."""

    def stored(self: Any, old: Callable[..., Any], node: Any, indices: Any, *more: Any) -> Any:
        host = self.cache_controller.mem_pool_host
        if (missing := len(indices) - host.available_size()) > 0:
            self.evict_host(missing)
        fits = torch.tensor(int(host.available_size() >= len(indices)))
        self._all_reduce(fits, torch.distributed.ReduceOp.MIN)
        return old(self, node, indices, *more) if fits.item() else None

    around(UnifiedRadixCache, "_execute_kv_backup", stored)


def request_goes_on_without_its_state() -> None:
    """Where a load is refused, the state is copied that the device has at the end of the prefix that is left."""

    def loaded(self: Any, old: Callable[..., bool], *more: Any, req: Any, **named: Any) -> bool:
        if old(self, *more, req=req, **named):
            return True
        left = SimpleNamespace(best_match_node=req.last_node)
        self.components[ComponentType.MAMBA].finalize_match_result_in_cache(
            MatchPrefixParams(key=None, cow_mamba=True, req=req), left
        )
        return False

    around(UnifiedRadixCache, "load_back", loaded)


def no_memory_for_a_state_of_a_prompt() -> None:
    """A prompt is not cached where its state cannot be."""

    def prepared(self: Any, old: Callable[..., Any], *more: Any, is_finished: bool, **named: Any) -> Any:
        try:
            return old(self, *more, is_finished=is_finished, **named)
        except AssertionError:
            if is_finished:
                raise
            return 0

    around(MambaComponent, "prepare_for_caching_req", prepared)


def state_is_kept_under_a_shorter_text() -> None:
    """The step that is planned writes into the slot that does not hold the latest state, whoever has been told of it."""
    old = schedule_batch.set_mamba_track_indices_from_reqs

    def chosen(batch: Any, track_positions: list[int] | None = None) -> None:
        if track_positions is None:
            other = batch.req_to_token_pool.get_mamba_ping_pong_other_idx
            known = [(request.kv.mamba_last_track_idx, request.kv.mamba_next_track_idx or 0) for request in batch.reqs]
            track_positions = [next_ if last is None else other(last) for last, next_ in known]
        old(batch, track_positions)

    schedule_batch.set_mamba_track_indices_from_reqs = chosen
