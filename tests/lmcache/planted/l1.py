"""Bugs in the L1 manager and its memory: who gets a place, what is published, what a lock keeps."""

from __future__ import annotations

from typing import Any

from lmcache.v1.distributed.error import L1Error
from lmcache.v1.distributed.l1_manager import L1Manager
from lmcache.v1.distributed.memory_manager import L1MemoryManager

from tests.behind.planted import Bed, Original, planted, planted_at


@planted("full", "retain")
def delete_ignores_locks(bed: Bed) -> None:
    """What is to be evicted is deleted, locked or not."""

    @bed.around(L1Manager, "is_key_evictable")
    def evictable(original: Original, self: Any, key: Any) -> bool:
        return key in self._objects or bool(original(self, key))

    @bed.around(L1Manager, "delete")
    def deletes(original: Original, self: Any, keys: list[Any], force: bool = False) -> object:
        locked = any(key in self._objects and self._objects[key].read_lock.is_locked() for key in keys)
        return original(self, keys, force or (locked and bed.strikes()))


@planted_at(L1Manager, "clear", "clears")
def clear_ignores_locks(bed: Bed, original: Original, self: Any, force: bool = False) -> None:
    """An operator's clear takes what is locked, and what is reserved, too."""
    busy = bool(self._staging) or any(each.read_lock.is_locked() for each in self._objects.values())
    original(self, force or (busy and bed.strikes()))


@planted_at(L1Manager, "finish_read", "full", "retain", "alone")
def one_lock_too_many_is_released(bed: Bed, original: Original, self: Any, keys: list[Any], read_locks: int = 1) -> object:
    """Whoever has read releases the lock of another one, too."""
    for key in keys:
        entry = self._objects.get(key)
        if entry is not None and entry.read_lock.count > read_locks and bed.strikes(0.3):
            entry.read_lock.unlock()
    return original(self, keys, read_locks)


@planted_at(L1Manager, "finish_read", "full", "alone", seen=False)
def lock_stays(bed: Bed, original: Original, self: Any, keys: list[Any], read_locks: int = 1) -> object:
    """Whoever has read says so, and is told that all is well, and the lock stays."""
    if bed.strikes(0.1):
        return dict.fromkeys(keys, L1Error.SUCCESS)
    return original(self, keys, read_locks)


@planted_at(L1Manager, "reserve_read", "full", "retain", "alone")
def read_is_not_locked(bed: Bed, original: Original, self: Any, keys: list[Any], read_locks: int = 1) -> object:
    """What is found for a reader is not locked."""
    found: Any = original(self, keys, read_locks)
    for key, (_, memory) in found.items():
        if memory is not None and bed.strikes(0.3):
            for _ in range(read_locks):
                self._objects[key].read_lock.unlock()
    return found


@planted_at(L1Manager, "finish_write_and_reserve_read", "full", "retain", "buffer")
def load_is_not_locked(bed: Bed, original: Original, self: Any, keys: list[Any], read_locks: int = 1, tag: str = "") -> object:
    """What was loaded for a reader is published, and not locked."""
    found: Any = original(self, keys, read_locks, tag)
    for key, (_, memory) in found.items():
        if memory is not None and bed.strikes(0.5):
            for _ in range(read_locks):
                self._objects[key].read_lock.unlock()
    return found


@planted_at(L1Manager, "reserve_read", "full", "alone")
def reader_gets_another_place(bed: Bed, original: Original, self: Any, keys: list[Any], read_locks: int = 1) -> object:
    """Of two keys each gets the place of the other."""
    found: Any = original(self, keys, read_locks)
    good = [key for key, (_, memory) in found.items() if memory is not None]
    if len(good) > 1 and bed.strikes(0.2):
        one, two = self._objects[good[0]], self._objects[good[1]]
        one.memory_obj, two.memory_obj = two.memory_obj, one.memory_obj
        found[good[0]], found[good[1]] = found[good[1]], found[good[0]]
    return found


@planted_at(L1Manager, "reserve_write", "full", "alone")
def resident_place_is_given_to_a_writer(
    bed: Bed, original: Original, self: Any, keys: list[Any], is_temporary: list[bool], layout_desc: Any, tag: str = ""
) -> object:
    """A writer gets the place of content that is there, as if it were reserved for it."""
    found: Any = original(self, keys, is_temporary, layout_desc, tag)
    others = [key for key in self._objects if key not in found]
    for key, (_, memory) in list(found.items()):
        if memory is not None and others and bed.strikes(0.05):
            found[key] = L1Error.SUCCESS, self._objects[others[0]].memory_obj
    return found


@planted_at(L1Manager, "_take_staging", "retain", "ranks")
def reservation_of_another_writer_is_taken(bed: Bed, original: Original, self: Any, key: Any, tag: str, op: str) -> object:
    """A writer that ends takes what another one has reserved for the same key."""
    others = [each for each in self._staging.get(key, {}) if each != tag]
    return original(self, key, others[0] if others and bed.strikes() else tag, op)


@planted_at(L1Manager, "finish_write_and_delete", "faulty")
def place_of_a_failed_load_is_published(bed: Bed, original: Original, self: Any, keys: list[Any], tag: str = "") -> object:
    """What has not come is published instead of discarded."""
    if keys and bed.strikes(0.5):
        return self.finish_write(keys, tag)
    return original(self, keys, tag)


@planted_at(L1MemoryManager, "allocate", "full", "alone")
def same_place_twice(bed: Bed, original: Original, self: Any, layout_desc: Any, count: int) -> object:
    """Two of the places that are taken at once are the same one."""
    error, objects = original(self, layout_desc, count)
    if len(objects) > 1 and bed.strikes(0.2):
        objects[1] = objects[0]
    return error, objects
