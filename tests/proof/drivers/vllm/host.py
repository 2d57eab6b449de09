"""The host tiers of vLLM's connectors: how they are searched, and how they are filled for a test.

Rules of this file:

* A tier is filled, crowded and emptied only by what its connector could do for other requests: stores that are begun but not
  ended, or begun and abandoned. Lookups use the connector's own functions.
* A key is a block hash followed by four bytes for the group; vLLM names content this way on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from vllm.v1.kv_offload.base import ReqContext

from blocklife.errors import MisuseError
from blocklife.testing import Unsupported
from tests.proof.drivers.vllm.engine import VllmEngine


class OffloadingHost:
    """The tier of `OffloadingConnector`. Slots are its chunks."""

    def __init__(self, engine: VllmEngine, num_slots: int) -> None:
        self._scheduler = engine.scheduler.connector.connector_scheduler
        self._manager = self._scheduler.manager
        self._num_slots = num_slots
        named = {"req_id": "somebody"} if "req_id" in ReqContext.__dataclass_fields__ else {}
        self._somebody = ReqContext(**named)
        self._held: list[bytes] = []
        self._serial = 0
        self.refused = 0
        """Stores that the tier had no room for."""
        self._is_ours = False
        self._manager.prepare_store = partial(self._prepare_store, self._manager.prepare_store)

    def _prepare_store(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        found = original(*args, **kwargs)
        self.refused += found is None and not self._is_ours
        return found

    def find(self, key: bytes) -> tuple[int, bool] | None:
        """The slot that holds or will hold this content, and whether it has arrived; None if there is none."""
        status = self._manager._policy.get(key)
        if status is None:
            return None
        slot = status.chunk_id if hasattr(status, "chunk_id") else status.block_id
        return int(slot), bool(status.is_ready)

    def fill(self, present: Collection[bytes]) -> None:
        """Begin stores into every slot that do not end."""
        keys = self._aliens(self._num_slots)
        if not self._begin(keys):
            raise MisuseError(f"the host cannot be filled: {len(present)} slots are in use (fill it while nothing moves)")
        self._held = keys

    @property
    def num_filled(self) -> int:
        """The number of slots in use."""
        return len(self._held)

    def free(self) -> None:
        """Abandon these stores."""
        self._end(self._held)
        self._held = []

    def crowd(self, slots: int) -> bool:
        """Make room for this many slots, if possible."""
        keys = self._aliens(slots)
        if not self._begin(keys):
            return False
        self._end(keys)
        return True

    def forget(self, keys: Collection[bytes], present: Collection[bytes]) -> None:
        """Evict these keys only: the store that needs the room wants all others that are *present*."""
        kept = [key for key in present if key not in keys]
        room = self._num_slots - len(present) - len(self._held)
        others = self._aliens(room + len(keys))
        if not self._begin([*kept, *others]):
            raise MisuseError(f"{len(keys)} contents of the host cannot be forgotten: one of them is in use")
        self._end(others)

    def refuses_reset(self) -> bool:
        """Whether it cannot be emptied."""
        return not hasattr(self._scheduler, "reset_cache")

    def windows(self) -> list[int | None]:
        """How many chunks before its end a hit needs, by group."""
        found = []
        for config in self._scheduler.config.kv_group_configs:
            old = getattr(config, "sliding_window_size_in_blocks", None)
            found.append(getattr(config, "sliding_window_size_in_chunks", old))
        return found

    def jobs(self) -> list[str]:
        """The jobs that the connector still waits for."""
        return [f"job {job}" for job in self._scheduler._jobs]

    def _begin(self, keys: Sequence[bytes]) -> bool:
        self._is_ours = True
        found = self._manager.prepare_store(keys, self._somebody)
        self._is_ours = False
        return found is not None

    def _end(self, keys: Sequence[bytes]) -> None:
        self._manager.complete_store(keys, self._somebody, success=False)

    def _aliens(self, count: int) -> list[bytes]:
        """Keys of content that no request has."""
        self._serial += count
        return [b"alien %026d" % (self._serial - at) + bytes(4) for at in range(count)]


class SimpleHost:
    """The tier of `SimpleCPUOffloadConnector`, a block pool. Slots are its blocks, except for the null block."""

    refused = 0

    def __init__(self, engine: VllmEngine, num_slots: int) -> None:
        self._scheduler = engine.scheduler.connector.scheduler_manager
        self._pool = self._scheduler.cpu_block_pool
        self._num_slots = num_slots
        self._held: list[object] = []

    def find(self, key: bytes) -> tuple[int, bool] | None:
        """The slot that holds or will hold this content, and whether it has arrived; None if there is none."""
        block = self._pool.cached_block_hash_to_block.get_one_block(key)
        if block is not None:
            return int(block.block_id) - 1, True
        device = self._scheduler._gpu_block_pool.blocks
        for transfer in self._scheduler._store_event_to_blocks.values():
            for source, target in zip(transfer.gpu_block_ids, transfer.cpu_block_ids, strict=True):
                if device[source].block_hash == key:
                    return int(target) - 1, False
        return None

    def fill(self, present: Collection[bytes]) -> None:
        """Hold every block."""
        if self._pool.get_num_free_blocks() < self._num_slots:
            raise MisuseError(f"the host cannot be filled: {len(present)} slots are in use (fill it while nothing moves)")
        self._held = self._pool.get_new_blocks(self._num_slots)

    @property
    def num_filled(self) -> int:
        """The number of slots in use."""
        return len(self._held)

    def free(self) -> None:
        """Release these blocks."""
        self._pool.free_blocks(self._held)
        self._held = []

    def crowd(self, slots: int) -> bool:
        """Make room for this many slots, if possible."""
        if self._pool.get_num_free_blocks() < slots:
            return False
        self._pool.free_blocks(self._pool.get_new_blocks(slots))
        return True

    def forget(self, keys: Collection[bytes], present: Collection[bytes]) -> None:
        """Evict single blocks with the pool's own method."""
        found = [self.find(key) for key in keys]
        self._pool.evict_blocks({each[0] + 1 for each in found if each is not None})

    def refuses_reset(self) -> bool:
        """Whether it cannot be emptied."""
        return not hasattr(self._scheduler, "reset")

    def windows(self) -> list[int | None]:
        """No windows: it uses vLLM's own lookup."""
        raise Unsupported("not expressible: windows in chunks (SimpleCPUOffloadConnector looks up as the device does)")

    def jobs(self) -> list[str]:
        """The jobs that the connector still waits for."""
        loads = [f"the load of {name}" for name in self._scheduler._reqs_to_load]
        return [*loads, *(f"store event {event}" for event in self._scheduler._store_event_to_blocks)]
