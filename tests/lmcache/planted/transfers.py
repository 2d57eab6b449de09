"""Bugs in what workers and the scheduler ask of the server: transfers over shared memory, and locks that are given back."""

from __future__ import annotations

from typing import Any

from lmcache.v1.multiprocess.modules import lookup
from lmcache.v1.multiprocess.modules.server_transfer import ShmTransferStrategy

from tests.behind.planted import Bed, Original, planted_at
from tests.lmcache.content import PLACE


@planted_at(ShmTransferStrategy, "prepare_store", "full", "ranks")
def store_is_published_when_it_is_prepared(bed: Bed, original: Original, self: Any, **told: Any) -> object:
    """The places of a store are published before the worker has written them."""
    found: Any = original(self, **told)
    pending = self._pending_writes.get(self._transfer_key_factory(told["key"], told["instance_id"]))
    if pending and bed.strikes(0.3):
        self._storage_manager.finish_write(list(pending))
    return found


@planted_at(ShmTransferStrategy, "commit_store", "ranks")
def another_store_is_committed(bed: Bed, original: Original, self: Any, **told: Any) -> object:
    """With a store another one is committed that a worker is still at."""
    done: Any = original(self, **told)
    for pending in list(self._pending_writes.values()):
        if bed.strikes(0.5):
            self._storage_manager.finish_write(list(pending))
    return done


@planted_at(ShmTransferStrategy, "prepare_store", "full", "alone")
def worker_is_told_the_next_place(bed: Bed, original: Original, self: Any, **told: Any) -> object:
    """A worker is told to write one place too far."""
    found: Any = original(self, **told)
    size = self._storage_manager.l1_memory_desc.size
    for slot in found.context["slots"]:
        if slot["offset"] + 2 * PLACE <= size and bed.strikes(0.1):
            slot["offset"] += PLACE
    return found


@planted_at(ShmTransferStrategy, "prepare_retrieve", "full", "alone")
def read_is_released_when_it_is_prepared(bed: Bed, original: Original, self: Any, **told: Any) -> object:
    """The locks of a read are given back before the worker has read."""
    found: Any = original(self, **told)
    pending = self._pending_reads.get(self._transfer_key_factory(told["key"], told["instance_id"]))
    if pending and bed.strikes(0.3):
        self._storage_manager.finish_read_prefetched(list(pending))
    return found


@planted_at(ShmTransferStrategy, "commit_retrieve", "full", "retain", "alone")
def read_is_released_twice(bed: Bed, original: Original, self: Any, **told: Any) -> object:
    """The locks of a read are given back twice."""
    pending = list(self._pending_reads.get(self._transfer_key_factory(told["key"], told["instance_id"]), ()))
    done: Any = original(self, **told)
    if pending and bed.strikes(0.3):
        self._storage_manager.finish_read_prefetched(pending)
    return done


@planted_at(ShmTransferStrategy, "commit_retrieve", "full", "alone")
def read_is_not_released(bed: Bed, original: Original, self: Any, **told: Any) -> object:
    """A worker has read, and nobody gives its locks back."""
    key = self._transfer_key_factory(told["key"], told["instance_id"])
    if key in self._pending_reads and bed.strikes(0.2):
        del self._pending_reads[key]
    return original(self, **told)


@planted_at(lookup, "resolve_prefetched_obj_keys", "full", "alone")  # a module, as good as a class
def all_locks_are_given_back(bed: Bed, original: Original, ctx: Any, key: Any, hit_chunks: int, gids: Any) -> object:
    """A scheduler that gives some of its locks back gives all of them back."""
    size = ctx.chunk_size
    if key.end < hit_chunks * size and bed.strikes(0.5):
        key = type(key)(
            *(key.model_name, key.world_size, key.worker_id, key.token_ids, 0, hit_chunks * size),
            request_id=key.request_id,
            cache_salt=key.cache_salt,
            num_kv_readers=key.num_kv_readers,
        )
    return original(ctx, key, hit_chunks, gids)


@planted_at(lookup, "resolve_prefetched_obj_keys", "full", "alone")
def no_lock_is_given_back(bed: Bed, original: Original, ctx: Any, key: Any, hit_chunks: int, gids: Any) -> object:
    """A scheduler gives locks back, and none is."""
    return [] if bed.strikes(0.3) else original(ctx, key, hit_chunks, gids)
