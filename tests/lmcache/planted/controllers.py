"""Bugs in the controllers: what is stored and loaded when, what is told, and what is given back."""

from __future__ import annotations

from typing import Any

from lmcache.v1.distributed.storage_controllers.prefetch_controller import PrefetchController
from lmcache.v1.distributed.storage_controllers.store_controller import StoreController

from tests.behind.planted import Bed, Original, planted_at


@planted_at(StoreController, "_submit_store_for_single_shape", "full", "two")
def store_releases_its_locks_at_once(bed: Bed, original: Original, self: Any, keys: list[Any]) -> None:
    """A store to L2 gives its locks back as soon as it is submitted."""
    before = set(self._in_flight_tasks)
    original(self, keys)
    for task in set(self._in_flight_tasks) - before:
        if bed.strikes():
            self._l1_manager.finish_read(self._in_flight_tasks[task].read_locked_keys)
            self._in_flight_tasks[task].read_locked_keys = []


@planted_at(StoreController, "_finalize_store", "full", "two")
def store_keeps_its_locks(bed: Bed, original: Original, self: Any, task_key: Any, task: Any) -> None:
    """A store to L2 that is over keeps the locks of its last key."""
    if len(task.read_locked_keys) > 1 and bed.strikes(0.5):
        del task.read_locked_keys[-1]
    original(self, task_key, task)


@planted_at(StoreController, "_submit_store_for_single_shape", "full", "alone", "two")
def store_forgets_keys_that_it_has_locked(bed: Bed, original: Original, self: Any, keys: list[Any]) -> None:
    """The first of several keys is locked for a store, and not stored."""
    if len(keys) > 1 and self._l2_adapters and bed.strikes(0.3):
        self._l1_manager.reserve_read(keys[:1])
        keys = keys[1:]
    original(self, keys)


@planted_at(PrefetchController, "_submit_load_tasks", "full", "retain")
def load_counts_as_landed_early(bed: Bed, original: Original, self: Any, request: Any, reserved_objs: Any) -> None:
    """What is to be loaded is published when the load is submitted."""
    original(self, request, reserved_objs)
    if reserved_objs and bed.strikes(0.5):
        (manager,) = self._l1_managers.values()
        manager.finish_write_and_reserve_read(
            list(reserved_objs), read_locks=request.num_kv_readers, tag=f"prefetch:{request.request_id}"
        )


@planted_at(PrefetchController, "_submit_load_tasks", "full", "retain")
def load_goes_to_another_place(bed: Bed, original: Original, self: Any, request: Any, reserved_objs: Any) -> None:
    """Two places of a load are mixed up."""
    keys = list(reserved_objs)
    if len(keys) > 1 and bed.strikes(0.5):
        reserved_objs[keys[0]], reserved_objs[keys[1]] = reserved_objs[keys[1]], reserved_objs[keys[0]]
    original(self, request, reserved_objs)


@planted_at(PrefetchController, "_submit_load_tasks", "full", "two")
def prefetch_gives_up_under_its_load(bed: Bed, original: Original, self: Any, request: Any, reserved_objs: Any) -> None:
    """A prefetch fails when its loads were submitted, and is given up."""
    original(self, request, reserved_objs)
    if reserved_objs and bed.strikes(0.3):
        raise RuntimeError("planted")


@planted_at(PrefetchController, "_submit_load_tasks", "full", "retain")
def load_is_not_submitted(bed: Bed, original: Original, self: Any, request: Any, reserved_objs: Any) -> None:
    """Places are reserved for a load, and no adapter hears of it."""
    if reserved_objs and bed.strikes(0.3):
        request.key_states.l2_locked_keys = type(request.key_states.l2_locked_keys)()
    original(self, request, reserved_objs)


@planted_at(PrefetchController, "_publish_result", "full", "faulty", "alone")
def whole_text_is_told_as_a_hit(bed: Bed, original: Original, self: Any, request: Any, result: Any) -> None:
    """A lookup that has found a part of a text tells that it has found all."""
    for row, group in zip(result.hit_cells, request.key_groups, strict=True):
        if row.popcount() < len(group.keys) and bed.strikes(0.3):
            for at in range(len(group.keys)):
                row.set(at)
    original(self, request, result)


@planted_at(PrefetchController, "_finish_request", "full", "alone", "retain")
def hit_is_not_kept(bed: Bed, original: Original, self: Any, request: Any) -> None:
    """What a lookup has found is let go of before it is told."""
    for at, locked in request.key_states.l1_locked_keys.items():
        keys = [key for row, group in zip(locked, request.key_groups, strict=True) for key in row.gather(group.keys)]
        if keys and bed.strikes(0.3):
            self._l1_managers[at].finish_read(keys, request.num_kv_readers)
    original(self, request)


@planted_at(PrefetchController, "_poll_load_results", "full", "two")
def content_below_is_unlocked_twice(bed: Bed, original: Original, self: Any, request: Any, signaled: Any) -> None:
    """What was loaded is unlocked in L2 twice."""
    planned = {at: request.key_states.l2_locked_keys[at].copy() for at in request.inflight_load_tasks if at in signaled}
    original(self, request, signaled)
    for at, cells in planned.items():
        if at not in request.inflight_load_tasks and bed.strikes(0.5):
            rows = zip(cells, request.key_groups, strict=True)
            self._l2_adapters[at].submit_unlock([key for row, group in rows for key in row.gather(group.keys)])
