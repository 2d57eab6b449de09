"""The faults that `specs/vllm-findings` shows, mended as their reports propose it: a function for each, by the script's name.

`tests/behind/plainly.py` runs this file by its path, where blocklife cannot be imported: it imports vLLM and nothing of ours.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import MambaManager, SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler


def around(kind: type, name: str, new: Callable[..., Any]) -> None:
    """Put *new* around a method; it is handed the old one first."""
    setattr(kind, name, functools.partialmethod(new, getattr(kind, name)))


def preempted_before_it_was_computed() -> None:
    """A request that is preempted loses the names of the blocks that it has not computed."""

    def preempt(self: Any, old: Callable[..., None], request: Any, *more: Any, **named: Any) -> None:
        for manager in self.kv_cache_manager.coordinator.single_type_managers:
            table = manager.req_to_blocks[request.request_id]
            self.kv_cache_manager.evict_blocks(
                {each.block_id for each in table[request.num_computed_tokens // manager.block_size :]}
            )
        old(self, request, *more, **named)

    around(Scheduler, "_preempt_request", preempt)


def partial_chunk() -> None:
    """A chunk with a null block is not stored, wherever the null is."""
    around(OffloadingConnectorScheduler, "_reachable_store_block_mask", lambda *_, **__: None)


def hole_in_chunk() -> None:
    """The mend of the other one does."""
    partial_chunk()


def reset_of_window() -> None:
    """A reset clears what is in front of the window."""

    def reset(self: Any, old: Callable[..., None]) -> None:
        old(self)
        for status in self._req_status.values():
            for group, state in zip(self.config.kv_group_configs, status.group_states, strict=True):
                if isinstance(group.kv_cache_spec, SlidingWindowSpec):
                    seen_from = status.req.num_computed_tokens - group.kv_cache_spec.sliding_window + 1
                    left = min(max(0, seen_from) // group.tokens_per_block, len(state.block_ids))
                    state.block_ids[:left] = [0] * left

    around(OffloadingConnectorScheduler, "_reset_cache", reset)


def loads_that_wait_for_each_other() -> None:
    """Null blocks do not count as held where the most that a window can hold is what is needed."""

    def needed(self: Any, old: Callable[..., int], request_id: str, num_tokens: int, *more: Any, **named: Any) -> int:
        most = self.max_admission_blocks_per_request
        if not named.get("apply_admission_cap") or most is None or request_id not in self.num_cached_block:
            return int(old(self, request_id, num_tokens, *more, **named))
        held = sum(not block.is_null for block in self.req_to_blocks[request_id])
        return int(max(0, min(-(-num_tokens // self.block_size), most) - held))

    around(SingleTypeKVCacheManager, "get_num_blocks_to_allocate", needed)


def state_that_is_not_counted() -> None:
    """A state that the connector brings counts beside the one at the end of the step."""

    def needed(self: Any, old: Callable[..., int], *more: Any, **named: Any) -> int:
        asked = inspect.signature(old).bind(self, *more, **named).arguments
        return int(old(self, *more, **named) + (asked["total_computed_tokens"] > asked["num_local_computed_tokens"]))

    around(MambaManager, "get_num_blocks_to_allocate", needed)


def lazy_store_without_end() -> None:
    """No lazy store is planned in a step that schedules nothing."""

    def planned(self: Any, old: Callable[..., Any], output: Any) -> Any:
        return old(self, output) if output.total_num_scheduled_tokens else ([], [], [], None)

    around(SimpleCPUOffloadScheduler, "prepare_store_specs", planned)


def request_behind_lazy_stores() -> None:
    """The mend of the other one does."""
    lazy_store_without_end()


def text_longer_than_the_host() -> None:
    """A promotion takes no slot of a chunk that the same request has found in the host."""

    def lookup(self: Any, old: Callable[..., Any], key: bytes, context: Any, **named: Any) -> Any:
        result = old(self, key, context, **named)
        if result in (LookupResult.HIT, LookupResult.HIT_PENDING):
            vars(context).setdefault("_found", set()).add(key)
        return result

    def initiate(self: Any, old: Callable[..., bool], tier: int, key: bytes, context: Any) -> bool:
        policy, found = self.primary_tier._policy, vars(context).get("_found", set())
        evict = policy.evict
        policy.evict = lambda count, protected: evict(count, protected | found)
        try:
            return bool(old(self, tier, key, context))
        finally:
            del policy.evict

    around(TieringOffloadingManager, "lookup", lookup)
    around(TieringOffloadingManager, "_initiate_promotion", initiate)


def error_inside_a_prompt() -> None:
    """Of a request that is over no more is stored than is computed, whatever has ended it."""

    def offloadable(self: Any, old: Callable[..., int], status: Any, tokens: int) -> int:
        computed = status.req.num_computed_tokens if status.req.is_finished() else tokens
        return int(old(self, status, min(tokens, computed)))

    around(OffloadingConnectorScheduler, "_calc_num_offloadable_tokens", offloadable)


def ring_behind_a_full_hit() -> None:
    """Behind a load of a whole prompt a request goes back to the last boundary of a block."""

    def arrived(self: Any, old: Callable[..., None], request: Any) -> None:
        old(self, request)
        if request.num_computed_tokens == request.num_tokens - 1:
            request.num_computed_tokens -= request.num_computed_tokens % self.block_size

    around(Scheduler, "_update_waiting_for_remote_kv", arrived)
