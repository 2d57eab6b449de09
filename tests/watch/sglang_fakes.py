"""A scheduler with a hierarchical cache as far as the watch looks at it: SGLang's names, and nothing behind them.

Goal: the watch is tested where SGLang is not installed. What a fake does is what a test tells it to do; it decides nothing.
Indices are arrays of numpy: they have what the watch asks of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
PAGE, NUM_PAGES, NUM_HOST_PAGES, NUM_LAYERS = 4, 16, 20, 2
NUM_STATES, NUM_HOST_STATES = 8, 10
CHUNK = 2
"""Tokens that layers with states compute at once; a page has twice as many."""


class Kind(Enum):
    """Kinds of memory, as the core and the host pools call them."""

    FULL = 0
    SWA = 1
    MAMBA = 2


def slots_of(pages: Sequence[int], size: int = PAGE) -> Indices:
    """The slots of tokens of these pages."""
    return np.array([page * size + at for page in pages for at in range(size)], dtype=np.int64)


class FakeAllocator:
    """Hands out the pages that the test has named."""

    def __init__(self, num_pages: int = NUM_PAGES) -> None:
        self.size = num_pages * PAGE
        self.free_pages = np.arange(1, num_pages + 1)
        self.release_pages: Indices = np.zeros(0, dtype=np.int64)
        self.next: list[int] = []
        self.group: list[Indices] | None = None
        self.pool: FakePool | None = None

    def get_kvcache(self) -> FakePool | None:
        """The memory that it hands out."""
        return self.pool

    def _out(self, count: int) -> list[int]:
        chosen, self.next = self.next[:count], self.next[count:]
        return chosen

    def alloc(self, need_size: int) -> Indices | None:
        """Whole pages; None if the test has named too few."""
        return slots_of(self._out(need_size // PAGE)) if len(self.next) * PAGE >= need_size else None

    def alloc_extend(self, slots: Indices) -> Indices:
        """Slots of tokens, as the test says."""
        return slots

    def free(self, free_index: Indices) -> None:
        """Nothing."""

    def free_segment(self, free_index: Indices, *, start_pos: int) -> None:
        """As newer releases have it: by way of pages."""
        self.free_page_ids(free_index[::PAGE] // PAGE)

    def free_page_ids(self, page_ids: Indices) -> None:
        """Nothing."""

    def free_group_end(self) -> None:
        """What the group had is freed now."""
        for each in self.group or ():
            self.free(each)
        self.group = None

    def clear(self) -> None:
        """All is free."""


class FakeHostPool:
    """The same for the host, of pages of so many tokens, or of states."""

    def __init__(self, num_pages: int = NUM_HOST_PAGES, page: int = PAGE) -> None:
        self.page, self.layer_num = page, NUM_LAYERS
        self.size = num_pages * page
        self.free_slots = np.arange(self.size)
        self.release_slots: list[Indices] = []
        self.next: list[int] = []
        self.entries: list[Any] = []  # host pools of other memory, behind the same controller

    def alloc(self, need_size: int) -> Indices | None:
        """The next pages that the test has named."""
        count = need_size // self.page
        chosen, self.next = self.next[:count], self.next[count:]
        return slots_of(chosen, self.page) if chosen else None

    def free(self, indices: Indices) -> int:
        """Nothing."""
        return len(indices)

    def prepare_transfer_indices(
        self, host_indices: Indices, device_indices: Indices, io_backend: str
    ) -> tuple[Indices, Indices]:
        """What is copied, in the numbers of this memory."""
        return host_indices, device_indices

    def backup_from_device_all_layer_physical(self, pool: object, host: Indices, device: Indices, backend: str) -> None:
        """Copy to the host."""

    def load_to_device_per_layer_physical(self, pool: object, host: Indices, device: Indices, *how: Any, **more: bool) -> None:
        """Copy a layer from there."""

    def clear(self) -> None:
        """All is free."""


class FakeEvent:
    """An event of the device: the test says when it is reached."""

    def __init__(self) -> None:
        self.is_reached = False

    def query(self) -> bool:
        """Whether it is."""
        return self.is_reached


class FakeLoading:
    """What the layers of a load say: one of the three loads that may be out."""

    def wait(self, layer_index: int) -> None:
        """Let the device wait for this layer."""


class FakeCounter:
    """Whom the layers of a load report to."""

    def __init__(self) -> None:
        self.events = [FakeLoading() for _ in range(3)]
        self.consumer_index = -1

    def set_consumer(self, index: int) -> None:
        """The step to come waits for this load."""
        self.consumer_index = index

    def wait_until(self, threshold: int) -> None:
        """A layer of the step waits for its part of it."""
        if self.consumer_index >= 0:
            self.events[self.consumer_index].wait(threshold)


class FakePool:
    """Device memory, where layers get their buffers; a test may bend for which layer each waits."""

    start_layer = 0

    def __init__(self, counter: FakeCounter) -> None:
        self.counter = counter
        self.waits_for: Callable[[int], int | None] = lambda layer: layer

    def get_key_buffer(self, layer_id: int) -> None:
        """A layer reads its keys."""
        self._wait(layer_id)

    def get_value_buffer(self, layer_id: int) -> None:
        """And its values."""
        self._wait(layer_id)

    def _wait(self, layer: int) -> None:
        awaited = self.waits_for(layer)
        if awaited is not None:
            self.counter.wait_until(awaited)


class FakeTransferEngine:
    """What is told to copy; a test may bend it, or leave layers of some host pools out."""

    skips: Callable[[Any, int], bool] = staticmethod(lambda each, layer: False)

    def submit_device_to_host(self, transfers: list[Any]) -> None:
        """Copy to the host."""
        for each in transfers:
            indices = each.host_pool.prepare_transfer_indices(each.host_indices, each.device_indices, "direct")
            each.host_pool.backup_from_device_all_layer_physical(None, *indices, "direct")

    def submit_host_to_device(self, transfers: list[Any], *, transfer_layer_id_max: int) -> None:
        """Copy from there."""
        for each, layer in [(each, layer) for each in transfers for layer in range(transfer_layer_id_max)]:
            indices = each.host_pool.prepare_transfer_indices(each.host_indices, each.device_indices, "direct")
            at = each.layer_mapper(layer) if hasattr(each, "layer_mapper") else layer
            if at is not None and not self.skips(each, at):
                each.host_pool.load_to_device_per_layer_physical(None, *indices, at, "direct", is_draft=each.is_draft)


class FakeController:
    """Queues, and what is launched from them."""

    def __init__(self, allocator: FakeAllocator, host: FakeHostPool) -> None:
        self.mem_pool_host = host
        self.allocator = allocator
        self.layer_done_counter = FakeCounter()
        self.write_queue: list[object] = []
        self.load_queue: list[object] = []
        self.ack_write_queue: list[SimpleNamespace] = []
        self.ack_load_queue: list[SimpleNamespace] = []
        self.write_fence_stream: object | None = object()
        self.load_fence_stream: object | None = object()
        self.producer = -1
        self.l2_transfer_engine = FakeTransferEngine()
        self.bent: Callable[[SimpleNamespace], SimpleNamespace] = lambda transfer: transfer
        """What a test makes of a copy that is launched."""

    def _transfers(self, queue: list[Any]) -> list[object]:
        """The copy that all operations of a queue are."""
        indices = {name: np.concatenate([getattr(each, name) for each in queue]) for name in ("device_indices", "host_indices")}
        order = np.argsort(indices["host_indices"])
        sorted_ = {name: each[order] for name, each in indices.items()}
        beside = [part for each in queue for part in each.pool_transfers]
        return [
            self.bent(SimpleNamespace(host_pool=self.mem_pool_host, is_draft=False, **sorted_)),
            *[self.bent(SimpleNamespace(host_pool=self.host_of(each), is_draft=False, **vars(each))) for each in beside],
        ]

    def host_of(self, part: Any) -> object:
        """The host pool of other memory that an operation copies, too."""
        return next(each.host_pool for each in self.mem_pool_host.entries if each.name is part.name)

    def write(self, device_indices: Indices, node_id: int = -1, beside: Sequence[object] = ()) -> Indices | None:
        """Queue a copy to the host; *beside*: of other memory, too."""
        host_indices = self.mem_pool_host.alloc(len(device_indices))
        if host_indices is not None or beside:
            host = slots_of([]) if host_indices is None else host_indices
            self.write_queue.append(SimpleNamespace(device_indices=device_indices, host_indices=host, pool_transfers=[*beside]))
        return host_indices

    def load(self, host_indices: Indices, node_id: int = -1, beside: Sequence[object] = ()) -> Indices | None:
        """Queue a copy from there."""
        device_indices = self.allocator.alloc(len(host_indices))
        if device_indices is not None:
            self.load_queue.append(
                SimpleNamespace(device_indices=device_indices, host_indices=host_indices, pool_transfers=[*beside])
            )
        return device_indices

    def _storage_hit_query(self, operation: object) -> None:
        """A thread of the storage asks for content."""

    def _page_transfer(self, operation: object) -> None:
        """And fills host pages with it."""

    def start_writing(self) -> None:
        """Launch what is queued."""
        if self.write_queue:
            self.l2_transfer_engine.submit_device_to_host(self._transfers(self.write_queue))
            self.write_queue.clear()
            self.ack_write_queue.append(SimpleNamespace(finish_event=FakeEvent()))

    def start_loading(self) -> int:
        """The same for loads. Returns the number under which a step waits for them."""
        if not self.load_queue:
            return -1
        self.l2_transfer_engine.submit_host_to_device(self._transfers(self.load_queue), transfer_layer_id_max=NUM_LAYERS)
        self.load_queue.clear()
        self.ack_load_queue.append(SimpleNamespace(finish_event=FakeEvent()))
        self.producer = (self.producer + 1) % 3
        return self.producer


def _bend(**change: Callable[[Indices], Indices]) -> Callable[[SimpleNamespace], SimpleNamespace]:
    """A copy with other indices."""
    return lambda each: SimpleNamespace(**{**vars(each), **{name: to(getattr(each, name)) for name, to in change.items()}})


def swapped(indices: Indices) -> Indices:
    """The second and third token of the first page change places."""
    found = indices.copy()
    found[[1, 2]] = found[[2, 1]]
    return found


BENT: dict[str, Callable[[SimpleNamespace], SimpleNamespace]] = {
    "cut": _bend(host_indices=lambda each: each[:-PAGE], device_indices=lambda each: each[:-PAGE]),
    "turned": _bend(device_indices=lambda each: np.roll(each, PAGE)),
    "torn": _bend(device_indices=swapped),
    "torn-host": _bend(host_indices=swapped),
    "longer": _bend(device_indices=lambda each: np.concatenate((each, slots_of([9])))),
    "longer-host": _bend(host_indices=lambda each: np.concatenate((each, slots_of([9])))),
    "backwards": _bend(device_indices=lambda each: each[::-1], host_indices=lambda each: each[::-1]),
    "next-host": _bend(host_indices=lambda each: each + 1),
    "one-before": _bend(device_indices=lambda each: each - 1),
}
"""What a test makes of a copy that is launched."""


def _receipt(skips: str) -> SimpleNamespace:
    """What a core says of a lock."""
    return SimpleNamespace(skipped_lock_components=(Kind[skips],) if skips else ())


class FakePrompt(SimpleNamespace):
    """A request of SGLang's scheduler."""


class FakeCore:
    """The part of a tree that decides: its answers are what a test says."""

    def __init__(self) -> None:
        self.given_up = SimpleNamespace()
        self.receipt = SimpleNamespace()
        self.taken = SimpleNamespace(prefix_len=0)

    def insert_host(self, node_id: int, key: object, host_value: Indices, hash_value: list[str]) -> object:
        """Keep what has come from storage."""
        return self.taken

    def inc_lock_ref(self, node_id: int) -> object:
        """Lock a node."""
        return self.receipt

    def dec_lock_ref(self, node_id: int, params: object = None) -> None:
        """Release it."""

    def inc_host_lock_ref(self, node_id: int) -> None:
        """Lock its host memory."""

    def dec_host_lock_ref(self, node_id: int, params: object = None) -> None:
        """Release that."""

    def demote(self, node_id: int) -> object:
        """Evict a node from the device."""
        return self.given_up

    def drive_host_eviction(self, kind: object, num_tokens: int) -> object:
        """Evict from the host."""
        return self.given_up

    def reset(self) -> None:
        """Forget all."""


class FakeTree:
    """The prefix tree: verbs without nodes."""

    def __init__(self, ranks: int = 1, storage: bool = False) -> None:
        self.page_size = PAGE
        self.tp_world_size = ranks
        self.token_to_kv_pool_allocator = FakeAllocator()
        self.cache_controller: FakeController | None = FakeController(self.token_to_kv_pool_allocator, FakeHostPool())
        self.token_to_kv_pool_allocator.pool = FakePool(self.cache_controller.layer_done_counter)
        self.req_to_token_pool = SimpleNamespace(req_to_token=np.zeros((8, 64), dtype=np.int64))
        self.tree_core = FakeCore()
        self.ongoing_backup: dict[int, object] = {}
        self.enable_storage = storage
        self.asks = True
        self.kept, self.locked = 0, 0

    def match_prefix(self, params: object) -> None:
        """The watch does not ask."""

    def insert(self, params: object) -> None:
        """Nothing."""

    def prefetch_from_storage(self, request: object, tokens: Sequence[int]) -> None:
        """Nothing comes by itself."""

    def check_prefetch_progress(self, request: object) -> bool:
        """What has come is put into the tree."""
        self.comes()
        return True

    def comes(self) -> None:
        """As the test says."""

    def reset(self) -> None:
        """Forget what the core has."""
        self.tree_core.reset()

    def writing_check(self, write_back: bool = False) -> None:
        """Take what has landed for landed."""
        self._agree()
        controller = self.cache_controller
        assert controller is not None
        controller.ack_write_queue[:] = [ack for ack in controller.ack_write_queue if not ack.finish_event.query()]

    def loading_check(self) -> None:
        """The same for loads."""
        self._agree()
        controller = self.cache_controller
        assert controller is not None
        controller.ack_load_queue[:] = [ack for ack in controller.ack_load_queue if not ack.finish_event.query()]

    def _agree(self) -> None:
        if self.asks:
            self._all_reduce(None, None)

    def _all_reduce(self, data: object, operation: object) -> None:
        """Ask the other ranks."""

    def evictable_size(self) -> int:
        """Tokens that nothing locks."""
        return self.kept

    def protected_size(self) -> int:
        """Tokens that are locked."""
        return self.locked

    full_evictable_size, full_protected_size = evictable_size, protected_size


class FakeEngine:
    """A scheduler: what it plans is what the test has laid out."""

    def __init__(self, ranks: int = 1, storage: bool = False) -> None:
        self.tree_cache = FakeTree(ranks, storage)
        self.running_batch = SimpleNamespace(is_empty=lambda: True)
        self.waiting_queue: list[object] = []
        self.chunked_req = None
        self.last_batch = None
        self.batch: object | None = None
        self.requests: dict[str, Any] = {}
        self.tp_worker: object = None

    @property
    def controller(self) -> FakeController:
        """The controller of its cache."""
        assert self.tree_cache.cache_controller is not None
        return self.tree_cache.cache_controller

    @property
    def allocator(self) -> FakeAllocator:
        """The allocator of device memory."""
        return self.tree_cache.token_to_kv_pool_allocator

    @property
    def pool(self) -> FakePool:
        """Device memory."""
        assert self.allocator.pool is not None
        return self.allocator.pool

    @property
    def host(self) -> FakeHostPool:
        """The host pool."""
        return self.controller.mem_pool_host

    def get_next_batch_to_run(self) -> object | None:
        """The batch that the test has laid out."""
        batch, self.batch = self.batch, None
        return batch

    def process_batch_result(self, batch: object, result: object) -> None:
        """Nothing."""

    def _prefetch_kvcache(self, req: FakePrompt) -> None:
        """Ask storage for what the tree has not of a request's text."""
        matched = len(req.prefix_indices) + req.host_hit_length
        self.tree_cache.prefetch_from_storage(req.rid, req.origin_input_ids[matched:])

    # What a test does with it.

    def take(self, *pages: int) -> None:
        """Hand these pages out."""
        self.allocator.next = [*pages]
        self.allocator.alloc(len(pages) * PAGE)

    def asks(self, name: str, tokens: Sequence[int]) -> tuple[FakePrompt, int]:
        """The request of this name, whose text goes as far, and its row of the tables."""
        request = self.requests.setdefault(name, FakePrompt(rid=name, origin_input_ids=[*tokens], output_ids=[]))
        request.output_ids = [*tokens[len(request.origin_input_ids) :]]
        return request, list(self.requests).index(name)

    def step(self, name: str, tokens: Sequence[int], pages: Sequence[int], start: int = 0, *, waits: int = -1) -> None:
        """Launch a step that computes a request's tokens from *start* on; all of them lie in these pages."""
        rows = self.tree_cache.req_to_token_pool.req_to_token
        request, row = self.asks(name, tokens)
        request.req_pool_idx = row
        rows[row, : len(tokens)] = slots_of(pages)[: len(tokens)]
        self.batch = SimpleNamespace(
            reqs=[request],
            forward_mode=SimpleNamespace(is_extend=lambda: True),
            prefix_lens=[start],
            req_pool_indices=np.array([row]),
            seq_lens_cpu=np.array([len(tokens)]),
            hicache_consumer_index=waits,
        )
        self.get_next_batch_to_run()
        self.forward(waits)

    def forward(self, waits: int = -1, layers: int = NUM_LAYERS) -> None:
        """The forward pass of a step: it waits for a load, and each layer gets its buffers."""
        self.controller.layer_done_counter.set_consumer(waits)
        for layer in range(layers):
            self.pool.get_key_buffer(layer)
            self.pool.get_value_buffer(layer)

    def result(self) -> None:
        """The engine has the result of the oldest step in flight."""
        self.process_batch_result(None, None)

    def compute(self, name: str, tokens: Sequence[int], pages: Sequence[int], start: int = 0, *, waits: int = -1) -> None:
        """A step and its result."""
        self.step(name, tokens, pages, start, waits=waits)
        self.result()

    def keep(self, tokens: Sequence[int], pages: Sequence[int], known: int = 0, **more: object) -> None:
        """Keep these pages in the tree, which has the first tokens already, as far as they are *known*."""
        key = SimpleNamespace(token_ids=[*tokens], **more)
        self.tree_cache.insert(SimpleNamespace(key=key, value=slots_of(pages), prev_prefix_len=known))

    def store(self, pages: Sequence[int], host: Sequence[int]) -> None:
        """Queue and launch a copy to the host."""
        self.queue_store(pages, host)
        self.launch_stores()

    def load(self, host: Sequence[int], pages: Sequence[int]) -> int:
        """Queue and launch a copy from there."""
        self.queue_load(host, pages)
        return self.controller.start_loading()

    def ask_storage(self, name: str, tokens: Sequence[int], matched: int, **more: object) -> None:
        """A request comes, of whose text the tree has so many tokens, and storage is asked for the others."""
        prompt = FakePrompt(rid=name, origin_input_ids=[*tokens], output_ids=[], prefix_indices=range(matched), **more)
        prompt.host_hit_length = 0
        self._prefetch_kvcache(prompt)

    def refill(
        self,
        name: str,
        tokens: Sequence[int],
        host: Sequence[int],
        known: int = 0,
        form: str = "",
        pairs: bool = False,
        **more: object,
    ) -> None:
        """These tokens have come for a request into host pages, which the tree takes, but for the *known* ones.

        *form*: what has the name of the request. *pairs*: the key is one of pairs of tokens.
        """
        owner: object = name
        for each in filter(None, reversed(form.split("."))):
            owner = SimpleNamespace(**{each: owner})
        self.host.next = [*host]
        value, core = self.host.alloc(len(host) * PAGE), self.tree_cache.tree_core
        self.controller._storage_hit_query(owner)
        self.controller._page_transfer(owner)
        core.taken = SimpleNamespace(prefix_len=known * PAGE, **more)
        key = SimpleNamespace(token_ids=[*tokens], is_bigram=pairs)
        self.tree_cache.comes = lambda: core.insert_host(0, key, value, [])  # type: ignore[method-assign, arg-type, assignment]
        self.tree_cache.check_prefetch_progress(owner)
        self.free_host(*host[:known])

    def take_from_storage(self, tokens: Sequence[int], host: Sequence[int]) -> None:
        """The tree takes these pages, for nobody who has asked."""
        self.tree_cache.tree_core.insert_host(0, SimpleNamespace(token_ids=tokens), slots_of(host), [])

    def ask_for_many(self, count: int, tokens: Sequence[int], matched: int) -> None:
        """So many other requests ask storage."""
        for number in range(count):
            self.ask_storage(f"another {number}", tokens, matched)

    def write_back(self) -> None:
        """The engine copies to the host when it evicts."""
        vars(self.controller)["write_policy"] = "write_back"

    def reads(self) -> None:
        """The engine waits for a read of storage."""
        vars(self.tree_cache)["ongoing_prefetch"] = {"a": None}

    def backs_up(self, is_out: bool) -> None:
        """Something is written out to storage."""
        self.tree_cache.ongoing_backup = {1: None} if is_out else {}

    def queue_release(self, *pages: int) -> None:
        """These host pages wait to be freed."""
        vars(self.controller)["host_mem_release_queue"] = waiting = Queue[object]()
        for page in pages:
            waiting.put(page)

    def store_to(self, pages: Sequence[int], host: Sequence[int]) -> None:
        """Copy to host pages that are handed out already."""
        copy = SimpleNamespace(device_indices=slots_of(pages), host_indices=slots_of(host), pool_transfers=[])
        self.controller.write_queue.append(copy)
        self.controller.start_writing()

    def queue_store(self, pages: Sequence[int], host: Sequence[int]) -> None:
        """Queue a copy to the host."""
        self.host.next = [*host]
        self.controller.write(slots_of(pages))

    def launch_stores(self) -> None:
        """Launch what is queued."""
        self.controller.start_writing()

    def queue_load(self, host: Sequence[int], pages: Sequence[int]) -> None:
        """Queue a copy from there."""
        self.allocator.next = [*pages]
        self.controller.load(slots_of(host))

    def reach(self) -> None:
        """The device has ended all copies, and the engine takes no note of it."""
        for ack in [*self.controller.ack_write_queue, *self.controller.ack_load_queue]:
            ack.finish_event.is_reached = True

    def check(self) -> None:
        """The engine takes note of what has landed."""
        self.tree_cache.writing_check()
        self.tree_cache.loading_check()

    def land(self) -> None:
        """All copies land, and the engine takes note."""
        self.reach()
        self.check()

    def take_for_landed(self) -> None:
        """The engine takes stores for landed that the device has not ended."""
        self.controller.ack_write_queue.clear()
        self.check()

    def unorder(self, name: str) -> None:
        """Nothing orders copies to the host (`write`), or from there (`load`), behind the steps."""
        setattr(self.controller, f"{name}_fence_stream", None)

    def fence(self, is_of_steps: bool) -> None:
        """The stream on which steps run is seen; copies to the host wait for it, or for another one."""
        stream = object()
        self.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(forward_stream=stream))
        self.controller.write_fence_stream = stream if is_of_steps else object()

    def take_host(self, *pages: int) -> None:
        """Hand these pages of the host out."""
        self.host.next = [*pages]
        self.host.alloc(len(pages) * PAGE)

    def reset(self) -> None:
        """The tree forgets all."""
        self.tree_cache.reset()

    def clear(self) -> None:
        """All of the device is free."""
        self.allocator.clear()

    def at_rest(self, kept: int, locked: int = 0) -> None:
        """The tree counts so many tokens."""
        self.tree_cache.kept, self.tree_cache.locked = kept, locked

    def wait(self, name: str) -> None:
        """A request waits for its turn."""
        self.waiting_queue.append(SimpleNamespace(rid=name))

    def says(self, name: str, *tokens: int) -> None:
        """The answer of a request grows."""
        self.requests[name].output_ids.extend(tokens)

    def lock(self, node: int, skips: str = "") -> None:
        """The core locks a node, but for the memory that it skips."""
        self.tree_cache.tree_core.receipt = _receipt(skips)
        self.tree_cache.tree_core.inc_lock_ref(node)

    def unlock(self, node: int, skips: str = "") -> None:
        """It releases it."""
        self.tree_cache.tree_core.dec_lock_ref(node, params=_receipt(skips))

    def lock_host(self, node: int) -> None:
        """It locks the host memory of a node."""
        self.tree_cache.tree_core.inc_host_lock_ref(node)

    def unlock_host(self, node: int) -> None:
        """It releases that."""
        self.tree_cache.tree_core.dec_host_lock_ref(node)

    def give_up(self, device: Sequence[int] = (), host: Sequence[int] = (), kind: str = "FULL") -> None:
        """The core evicts these pages, or slots, and some of another kind, which the engine is to free."""
        slots = slots_of if kind == "FULL" else np.array
        beside = {} if kind != "FULL" else {Kind.SWA: [slots_of([3])]}
        self.tree_cache.tree_core.given_up = SimpleNamespace(
            device_frees={Kind[kind]: [slots(device)], **beside}, host_frees={Kind[kind]: [slots(host)]}
        )
        (self.tree_cache.tree_core.demote(7) if device else self.tree_cache.tree_core.drive_host_eviction(Kind.FULL, 8))

    def bend(self, how: str) -> None:
        """What is launched from here on is another copy than was queued."""
        self.controller.bent = BENT[how]

    def free(self, *pages: int) -> None:
        """Free these pages."""
        self.allocator.free(slots_of(pages))

    def free_host(self, *pages: int) -> None:
        """Free these pages of the host."""
        self.host.free(slots_of(pages))

    def rest(self, times: int = 4) -> None:
        """Nothing to do, so often."""
        for _ in range(times):
            self.get_next_batch_to_run()


class FakeStateAllocator:
    """Hands out the slots that the test has named."""

    def __init__(self) -> None:
        self.size = NUM_STATES
        self.free_slots = np.arange(1, NUM_STATES + 1)
        self.next: list[int] = []
        self.group: list[int] = []
        self.left: int | None = None

    def alloc(self, need_size: int) -> Indices | None:
        """None if the test has named too few."""
        chosen, self.next = self.next[:need_size], self.next[need_size:]
        return np.array(chosen) if len(chosen) == need_size else None

    def free(self, free_index: Indices) -> None:
        """Nothing."""

    def alloc_group_end(self) -> None:
        """Free what was set aside."""
        self.free(np.array(self.group))

    def available_size(self) -> int | None:
        """As the test says; None where it says nothing."""
        return self.left

    def clear(self) -> None:
        """All is free."""


class FakeStatePool:
    """Where the states are."""

    def clear_slots(self, indices: Indices) -> None:
        """Nothing."""

    def copy_from(self, src_indices: Indices, dst_indices: Indices) -> None:
        """Nothing."""


class FakeStateEngine(FakeEngine):
    """A scheduler of a model whose layers 0 and 2 keep states."""

    def __init__(self, ranks: int = 1, storage: bool = False) -> None:
        super().__init__(ranks, storage)
        self.states, self.state_pool, self.host_states = FakeStateAllocator(), FakeStatePool(), FakeHostPool(NUM_HOST_STATES, 1)
        rows: Any = self.tree_cache.req_to_token_pool
        rows.mamba_allocator, rows.mamba_pool = self.states, self.state_pool
        rows.mamba_map, rows.start_layer = {0: 0, 2: 1}, 0
        rows.req_index_to_mamba_index_mapping = np.zeros(8, dtype=np.int64)
        self.entry = SimpleNamespace(
            name=Kind.MAMBA,
            host_pool=self.host_states,
            device_alloc_fn=self.states.alloc,
            device_free_fn=self.states.free,
        )
        self.host.entries = [self.entry]
        self.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(mamba_chunk_size=CHUNK))
        self.is_hybrid_ssm = True
        self.kept_states, self.locked_states = 0, 0
        tree: Any = self.tree_cache
        tree.mamba_evictable_size = lambda: self.kept_states
        tree.mamba_protected_size = lambda: self.locked_states
        self.had = False
        """Whether the tree has the next state already."""
        tree.insert = lambda params: SimpleNamespace(mamba_exist=self.had)

    # What a test does with it.

    def free_host_states(self, *slots: int) -> None:
        """Free these slots of the host."""
        self.host_states.free(np.array(slots))

    def clear_memory_of_states(self) -> None:
        """All of it is free, on both sides."""
        self.states.clear()
        self.host_states.clear()

    def states_at_rest(self, kept: int, left: int, locked: int = 0) -> None:
        """What the tree counts, and the allocator."""
        self.kept_states, self.states.left, self.locked_states = kept, left, locked

    def consume(self, load: int) -> None:
        """The forward pass begins, and is told to wait for this load."""
        self.controller.layer_done_counter.set_consumer(load)

    def wait_until(self, layer: int) -> None:
        """It waits for this layer."""
        self.controller.layer_done_counter.wait_until(layer)

    def other_names(self, take: int, give: int) -> None:
        """The controller has the allocator's methods from before."""
        self.states.next = [take]
        self.entry.device_alloc_fn(1)
        self.entry.device_free_fn(np.array([give]))

    def set_aside(self, *slots: int) -> None:
        """What was set aside for a batch was never handed out."""
        self.states.group = [*slots]
        self.states.alloc_group_end()

    def result_of(self, name: str) -> None:
        """The engine has the result of a step that ends this request."""
        request = self.requests[name]
        request.finished = lambda: True
        self.process_batch_result(SimpleNamespace(reqs=[request]), None)

    def take_states(self, *slots: int) -> None:
        """Hand these slots out."""
        self.states.next = [*slots]
        self.states.alloc(len(slots))

    def free_states(self, *slots: int) -> None:
        """Free these slots."""
        self.states.free(np.array(slots))

    def clear_states(self, *slots: int) -> None:
        """Clear these slots."""
        self.state_pool.clear_slots(np.array(slots))

    def copy_state(self, source: int, target: int) -> None:
        """Copy a state from slot to slot."""
        self.state_pool.copy_from(np.array([source]), np.array([target]))

    def plan_state(
        self,
        name: str,
        tokens: Sequence[int],
        slot: int,
        start: int = 0,
        *,
        extends: bool = True,
        kept: int = 0,
        reached: int = -1,
        waits: int = -1,
    ) -> None:
        """Plan a step of one request whose pages are of no interest, with the slot of its state.

        *kept*: a slot for the cache; *reached*: what the engine tells the layers about where that state is.
        """
        request, row = self.asks(name, tokens)
        rows: Any = self.tree_cache.req_to_token_pool
        rows.req_index_to_mamba_index_mapping[row] = slot
        self.batch = SimpleNamespace(
            reqs=[request],
            forward_mode=SimpleNamespace(is_extend=lambda: extends),
            prefix_lens=[start] if extends else None,
            req_pool_indices=np.array([row]),
            seq_lens_cpu=np.array([len(tokens)]),
            hicache_consumer_index=waits,
            mamba_track_mask=np.array([bool(kept)]),
            mamba_track_indices=np.array([kept]),
            mamba_track_seqlens=np.array([reached]),
        )
        rows.req_to_token[row, : len(tokens)] = slots_of([1, 2, 3, 4])[: len(tokens)]
        self.get_next_batch_to_run()

    def launch(self, waits: int = -1, layers: Sequence[int] = (0, 1, 2)) -> None:
        """Launch what was planned: its layers wait for their parts of a load."""
        self.controller.layer_done_counter.set_consumer(waits)
        for layer in layers:
            self.controller.layer_done_counter.wait_until(layer)

    def go_on(self, name: str, tokens: Sequence[int], slot: int, start: int = 0, **more: Any) -> None:
        """A step and its result."""
        self.plan_state(name, tokens, slot, start, **more)
        self.launch(more.get("waits", -1))
        self.result()

    def keep_state(self, tokens: Sequence[int], slot: int, *, had: bool = False) -> None:
        """Keep this state in the tree, if it has it not."""
        self.had = had
        key = SimpleNamespace(token_ids=[*tokens])
        self.tree_cache.insert(
            SimpleNamespace(key=key, value=slots_of([1, 2, 3, 4])[: len(tokens)], mamba_value=np.array([slot]))
        )

    def store_state(self, slot: int, host: int) -> None:
        """Queue and launch a copy of a state to the host."""
        self.queue_store_of_state(slot, host)
        self.controller.start_writing()

    def queue_store_of_state(self, slot: int, host: int) -> None:
        """Queue it."""
        self.host_states.next = [host]
        beside = SimpleNamespace(name=Kind.MAMBA, device_indices=np.array([slot]), host_indices=self.host_states.alloc(1))
        self.controller.write(slots_of([]), beside=[beside])

    def load_state(self, host: int, *slots: int) -> int:
        """Queue and launch loads of a state; the first of these slots is the tree's, the others are those of requests."""
        nodes: list[list[int] | None] = [[1], *[None for _ in slots[1:]]]
        parts = [
            SimpleNamespace(name=Kind.MAMBA, device_indices=np.array([slot]), host_indices=np.array([host]), nodes_to_load=node)
            for slot, node in zip(slots, nodes, strict=True)
        ]
        self.controller.load(slots_of([]), beside=parts)
        return self.controller.start_loading()
