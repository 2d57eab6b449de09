"""An L2 adapter whose copies land when the rig says so, over LMCache's public interface for adapters.

It is registered as the type ``blocklife``. As native adapters do, it takes the addresses of objects when a task is submitted,
and reads and writes there later, in two halves: what was given to somebody else meanwhile is read or overwritten all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase, register_l2_adapter_type
from lmcache.v1.distributed.l2_adapters.factory import register_l2_adapter_factory
from lmcache.v1.platform import create_event_notifier

from tests.lmcache.content import PLACE, Bytes, Witness, at

HALF = PLACE // 2


@define(eq=False)
class Task:
    """Something that was asked of an adapter and has not landed."""

    kind: str
    """``store``, ``lookup`` or ``load``."""
    number: int
    keys: Sequence[Any]
    addresses: Sequence[int] = ()
    read: list[Bytes] = field(factory=list)
    """What the first half of a store has read."""
    begun: bool = False
    """Whether its first half has landed."""
    not_before: float = 0.0
    """When the rig lets it go on."""


class LateAdapter(L2AdapterInterface):  # type: ignore[misc]  # LMCache is not here where types are checked
    """Keeps content in this process; everything waits in a queue until `land`."""

    def __init__(self, config: LateConfig, witness: Witness | None = None) -> None:
        super().__init__(max_capacity_bytes=config.places * PLACE)
        self.places = config.places
        self.witness = witness or Witness()
        self.name = config.name
        self.tasks: list[Task] = []
        self.content: dict[Any, Bytes] = {}
        self.locked: Counter[Any] = Counter()
        self.fails: set[int] = set()
        """Tasks that are to fail."""
        self.refuses = ""
        """A kind of task whose next submission raises."""
        self._fds = {kind: create_event_notifier() for kind in ("store", "lookup", "load")}
        self._done: dict[str, dict[int, Any]] = {kind: {} for kind in self._fds}
        self._made = 0
        self.moved: Counter[str] = Counter()

    # --- what LMCache asks --------------------------------------------------------------------------------------------------

    def get_store_event_fd(self) -> int:
        return int(self._fds["store"].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._fds["lookup"].fileno())

    def get_load_event_fd(self) -> int:
        return int(self._fds["load"].fileno())

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        return self._submit("store", keys, objects)

    def pop_completed_store_tasks(self) -> Mapping[int, Any]:
        done, self._done["store"] = self._done["store"], {}
        return done

    def submit_lookup_and_lock_task(self, keys: Sequence[Any], group_layout_descs: object) -> int:
        return self._submit("lookup", keys)

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._done["lookup"].pop(task_id, None)

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        for key in keys:
            self.locked[key] -= 1
        self.locked += Counter()  # drops what is not positive

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        return self._submit("load", keys, objects)

    def query_load_result(self, task_id: int) -> Any:
        return self._done["load"].pop(task_id, None)

    def delete(self, keys: Sequence[Any]) -> None:
        gone = [key for key in keys if key in self.content and not self.locked[key]]
        for key in gone:
            del self.content[key]
        if gone:
            self._notify_keys_deleted(gone, [PLACE] * len(gone))

    def report_status(self) -> dict[str, object]:
        return {"is_healthy": True, "type": "blocklife", "stored_object_count": len(self.content)}

    def close(self) -> None:
        for each in self._fds.values():
            each.close()

    def _submit(self, kind: str, keys: Sequence[Any], objects: Sequence[Any] = ()) -> int:
        if self.refuses == kind:
            self.refuses = ""
            raise OSError(f"{self.name} takes no {kind}")
        self._made += 1
        self.tasks.append(Task(kind, self._made, list(keys), [each.data_ptr for each in objects]))
        return self._made

    # --- what the rig says --------------------------------------------------------------------------------------------------

    def land(self, task: Task) -> None:
        """Let a task go on: a copy to its middle, and then to its end."""
        if task.kind != "lookup" and not task.begun:
            task.begun = True
            self._move(task, 0)
            return
        self.tasks.remove(task)
        ok = task.number not in self.fails
        result = getattr(self, f"_end_{task.kind}")(task, ok)
        self._done[task.kind][task.number] = result
        self._fds[task.kind].notify()

    def _move(self, task: Task, start: int) -> None:
        for key, address in zip(task.keys, task.addresses, strict=True):
            if task.kind == "store":
                got = at(address + start, HALF).copy()
                self.witness.compare(f"a store to {self.name}", key, got, start)
                task.read.append(got)
            elif key in self.content:
                at(address + start, HALF)[:] = self.content[key][start : start + HALF]

    def _end_store(self, task: Task, ok: bool) -> Any:
        self._move(task, HALF)
        stored = []
        for number, key in enumerate(task.keys):
            if ok and key not in self.content and len(self.content) < self.places:
                self.content[key] = np.concatenate((task.read[number], task.read[number + len(task.keys)]))
                stored.append(key)
        self.moved["store"] += len(stored)
        if stored:
            self._notify_keys_stored(stored, [PLACE] * len(stored))
        return L2StoreResult(ok, len(stored) * PLACE)

    def _end_lookup(self, task: Task, ok: bool) -> Any:
        found = Bitmap(len(task.keys))
        for number, key in enumerate(task.keys):
            if ok and key in self.content:
                found.set(number)
                self.locked[key] += 1
        return found

    def _end_load(self, task: Task, ok: bool) -> Any:
        self._move(task, HALF)
        found = Bitmap(len(task.keys))
        for number, key in enumerate(task.keys):
            if ok and key in self.content:
                found.set(number)
                self.moved["load"] += 1
        return found


class LateConfig(L2AdapterConfigBase):  # type: ignore[misc]
    """How large it is, and what it is called."""

    def __init__(self, places: int, name: str) -> None:
        self.places = places
        self.name = name

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> LateConfig:
        return cls(said["places"], said["name"])

    @classmethod
    def help(cls) -> str:
        return "places (int): objects that it keeps; name (str): what it is called"


register_l2_adapter_type("blocklife", LateConfig)
register_l2_adapter_factory("blocklife", lambda config, _memory: LateAdapter(config))
