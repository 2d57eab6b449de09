"""The faults that `specs/lmcache-findings` shows, mended as their reports propose it: a function for each, named like it.

`tests/behind/plainly.py` runs this file by its path, where blocklife cannot be imported: it imports LMCache alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.error import L1Error
from lmcache.v1.distributed.l1_manager import L1Manager
from lmcache.v1.distributed.storage_controllers import prefetch_controller
from lmcache.v1.distributed.storage_controllers.prefetch_controller import PrefetchController
from lmcache.v1.distributed.storage_controllers.store_controller import StoreController
from lmcache.v1.multiprocess.modules.engine_driven_transfer import EngineDrivenTransferModule
from lmcache.v1.multiprocess.modules.lookup import LookupModule


def around(kind: type, name: str, new: Callable[..., Any]) -> None:
    """Put *new* around a method; it is handed the old one first."""
    setattr(kind, name, functools.partialmethod(new, getattr(kind, name)))


def writer_shares_its_place_with_the_next() -> None:
    """A request is the tag of what it reserves, so that each writer has a place of its own."""
    two_requests_with_one_text_share_an_entry()
    request = threading.local()

    def transfer(self: Any, old: Callable[..., Any], key: Any, *more: Any) -> Any:
        request.tag = key.request_id
        try:
            return old(self, key, *more)
        finally:
            del request.tag

    def tagged(self: Any, old: Callable[..., Any], *more: Any, tag: str = "", **named: Any) -> Any:
        return old(self, *more, tag=getattr(request, "tag", tag), **named)

    for name in ("prepare_store", "commit_store"):
        around(EngineDrivenTransferModule, name, transfer)
    for name in ("reserve_write", "finish_write"):
        around(L1Manager, name, tagged)


def evicted_under_a_store_to_l2() -> None:
    """What a store is reading is not deleted, whatever its lease says."""

    def delete(self: Any, old: Callable[..., Any], keys: list[Any], force: bool = False) -> Any:
        tasks = [task for each in StoreController._gauge_targets.values() for task in list(each._in_flight_tasks.values())]
        read = {key for task in tasks for key in task.read_locked_keys}
        locked = {key: L1Error.KEY_IS_LOCKED for key in keys if key in read}
        return {**old(self, [key for key in keys if key not in locked], force), **locked}

    around(L1Manager, "delete", delete)


def told_of_what_was_not_loaded() -> None:
    """A chunk counts as loaded if it is published."""

    def polled(self: Any, old: Callable[..., None], request: Any, signaled: set[int]) -> None:
        tag = prefetch_controller._get_prefetch_write_tag(request.request_id)
        asked = {}
        for number in request.inflight_load_tasks:
            adapter, l1 = self._l2_adapters[number], self._l1_managers[self._get_l2_affinity_manager(number)]
            keys = prefetch_controller._gather_keys(request.key_groups, request.key_states.l2_locked_keys[number])
            asked[number] = adapter.query_load_result

            def query(task: int, ask: Callable[[int], Any] = asked[number], keys: Any = keys, l1: Any = l1) -> Any:
                if (result := ask(task)) is None:
                    return None
                live = Bitmap(len(keys))
                for at, key in enumerate(keys):
                    staged = l1._get_staging(key, tag)
                    if result.test(at) and staged is not None and staged.write_lock.is_locked():
                        live.set(at)
                return live

            adapter.query_load_result = query
        try:
            old(self, request, signaled)
        finally:
            for number, ask in asked.items():
                self._l2_adapters[number].query_load_result = ask

    around(PrefetchController, "_poll_load_results", polled)


def refused_load_frees_places_under_another() -> None:
    """An adapter that refuses its load has loaded nothing; the others go on."""

    def submitted(self: Any, old: Callable[..., None], request: Any, objects: Any) -> None:
        states, tag = request.key_states, prefetch_controller._get_prefetch_write_tag(request.request_id)
        while True:
            out = dict(request.inflight_load_tasks)
            planned = states.l2_locked_keys
            states.l2_locked_keys = {number: cells for number, cells in planned.items() if number not in out}
            try:
                old(self, request, objects)
            except OSError:
                refused = next(number for number in states.l2_locked_keys if number not in request.inflight_load_tasks)
                cells, l1 = planned[refused], self._get_l2_affinity_manager(refused)
                del planned[refused]
                keys = prefetch_controller._gather_keys(request.key_groups, cells)
                self._l1_managers[l1].finish_write_and_delete(keys, tag=tag)
                self._l2_adapters[refused].submit_unlock(keys)
                states.l1_reserved_keys[l1] -= cells
                continue
            finally:
                states.l2_locked_keys = planned
            return

    around(PrefetchController, "_submit_load_tasks", submitted)


def reaped_worker_publishes_what_it_has_not_written() -> None:
    """What a worker had reserved is discarded with it."""

    def released(self: Any, old: Callable[..., None], *more: Any) -> None:
        storage = self._ctx.storage_manager
        finish = storage.finish_write
        storage.finish_write = storage._l1_manager.finish_write_and_delete
        try:
            old(self, *more)
        finally:
            storage.finish_write = finish

    around(EngineDrivenTransferModule, "_release_entry", released)


def reaped_reader_reads_on() -> None:
    """The locks of a worker that is reaped are left to their lease: it may read on."""

    def released(self: Any, old: Callable[..., None], instance: int, *more: Any) -> None:
        with self._pending_shm_lock:
            for key in [key for key in self._pending_shm_reads if key[0] == instance]:
                del self._pending_shm_reads[key]
        old(self, instance, *more)

    around(EngineDrivenTransferModule, "_release_entry", released)


def two_requests_with_one_text_share_an_entry() -> None:
    """The table of transfers tells requests apart."""
    EngineDrivenTransferModule._make_transfer_key = staticmethod(lambda key, instance: (instance, key, key.request_id))


def commit_publishes_what_another_request_writes() -> None:
    """The mend of the other one does."""
    two_requests_with_one_text_share_an_entry()


def client_leaves_while_its_text_is_looked_up() -> None:
    """The locks of a client that has gone are given back when its prefetch has ended."""

    def freed(self: Any, old: Callable[..., None], key: Any, size: int) -> None:
        with self._prefetch_job_lock:
            job = self._prefetch_jobs.get(key.request_id)

        def later() -> None:
            if job is None or self._ctx.storage_manager.wait_prefetch_status(job.handle, 60):
                old(self, key, size)

        threading.Thread(target=later).start()

    around(LookupModule, "free_lookup_locks", freed)


def forced_clear_takes_places_that_are_written() -> None:
    """A forced clear leaves the places of writers whose lease is not over."""
    around(L1Manager, "_reclaim_staging", lambda self, old, key, force: old(self, key, False))
