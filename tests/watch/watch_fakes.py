"""A scheduler, its pool and its connectors as far as the watch looks at them: vLLM's names, and nothing behind them.

Goal: the watch is tested where vLLM is not installed. What a fake does is what a test tells it to do; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace

from attrs import define, field, frozen


@define(eq=False)
class FakeBlock:
    """A block of the pool."""

    block_id: int
    ref_cnt: int = 0
    block_hash: bytes | None = None
    pool: object = None


class FakePool:
    """A pool that gives what it is told to give."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [FakeBlock(number) for number in range(num_blocks)]
        self.next: list[int] = []
        self.hash_block_size = 0

    def get_new_blocks(self, count: int) -> list[FakeBlock]:
        """The next blocks that the test has named."""
        chosen, self.next = self.next[:count], self.next[count:]
        for number in chosen:
            self.blocks[number].ref_cnt = 1
        return [self.blocks[number] for number in chosen]

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        """One more hold of each."""
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered: Iterable[FakeBlock]) -> None:
        """One hold of each less."""
        for block in ordered:
            block.ref_cnt -= 1

    def evict_blocks(self, ids: set[int]) -> None:
        """Their content is found no more."""

    def reset_prefix_cache(self) -> bool:
        """No content is found any more."""
        return True


class FakeTables:
    """The tables of one group."""

    def __init__(self) -> None:
        self.req_to_blocks: dict[str, list[FakeBlock]] = {}


class FakeCacheManager:
    """The manager of a KV cache with so many groups."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.block_pool = FakePool(num_blocks)
        self.coordinator = SimpleNamespace(single_type_managers=[FakeTables() for _ in range(num_groups)])

    def allocate_slots(
        self,
        request: FakeRequest,
        new: Sequence[int] = (),
        hits: Sequence[int] = (),
        group: int = 0,
        drops: int = 0,
        num_new_computed_tokens: int = 0,
    ) -> None:
        """Drop the first blocks of a table, append hits, then new blocks."""
        table = self.coordinator.single_type_managers[group].req_to_blocks.setdefault(request.request_id, [])
        null = self.block_pool.blocks[0]
        gone = [block for block in table[:drops] if block.block_id]
        if gone:
            self.block_pool.free_blocks(gone)
        table[:drops] = [null] * drops
        found = [self.block_pool.blocks[number] for number in hits]
        if found:
            self.block_pool.touch(found)
        table += found
        self.block_pool.next = list(new)
        table += self.block_pool.get_new_blocks(len(new))

    def pop_blocks_for_free(self, request: FakeRequest) -> list[FakeBlock]:
        """The blocks of a request, which somebody frees later."""
        found: list[FakeBlock] = []
        for tables in self.coordinator.single_type_managers:
            found += [block for block in tables.req_to_blocks.pop(request.request_id, []) if block.block_id]
        return found

    def free(self, request: FakeRequest) -> None:
        """A request lets go of everything."""
        blocks = self.pop_blocks_for_free(request)
        self.block_pool.free_blocks(reversed(blocks))


@frozen
class FakeRequest:
    """A request has a name."""

    request_id: str


@define
class FakeSpec:
    """One end of a job."""

    block_ids: list[int]
    group_sizes: list[int] = field(factory=list)
    block_indices: list[int] = field(factory=list)


@define
class FakeJob:
    """A job as newer releases say it."""

    req_id: str
    src_spec: FakeSpec
    dst_spec: FakeSpec
    sync: bool = False


@define
class FakeOldJob:
    """A job as older releases say it."""

    req_id: str
    transfer_spec: tuple[FakeSpec, FakeSpec]


@define
class FakeMeta:
    """What goes to the workers."""

    store_jobs: dict[int, FakeJob | FakeOldJob] = field(factory=dict)
    load_jobs: dict[int, FakeJob | FakeOldJob] = field(factory=dict)
    jobs_to_flush: set[int] | None = None


def store(
    request: str, blocks: list[int], slots: list[int], sizes: Sequence[int] = (), indices: Sequence[int] = (0,)
) -> FakeJob:
    """A store."""
    device = FakeSpec(blocks, list(sizes) or [len(blocks)], list(indices))
    return FakeJob(request, device, FakeSpec(slots))


def load(request: str, blocks: list[int], slots: list[int], index: int = 0, *, sync: bool = False) -> FakeJob:
    """A load."""
    return FakeJob(request, FakeSpec(slots), FakeSpec(blocks, [len(blocks)], [index]), sync)


class FakeOffloading:
    """The scheduler side of an OffloadingConnector."""

    def __init__(self, blocks_per_chunk: int = 1, num_groups: int = 1, num_slots: int = 32) -> None:
        groups = [SimpleNamespace(group_idx=group, tokens_per_chunk=4 * blocks_per_chunk) for group in range(num_groups)]
        self.config = SimpleNamespace(blocks_per_chunk=blocks_per_chunk, kv_group_configs=groups, num_workers=1)
        self.manager = SimpleNamespace(_num_chunks=num_slots)
        self._job_counter = 0
        self._jobs: dict[int, SimpleNamespace] = {}
        self._req_status: dict[str, SimpleNamespace] = {}
        self.fall: Callable[[], None] | None = None

    def know(self, request: str, keys: Sequence[bytes], blocks: Sequence[int] = ()) -> None:
        """Keep the keys of a request's chunks, and its table, in one group."""
        state = SimpleNamespace(offload_keys=list(keys), block_ids=list(blocks), next_stored_chunk_idx=0)
        self._req_status[request] = SimpleNamespace(group_states=[state], transfer_jobs=set())

    def file(self, number: int, *keys: bytes) -> None:
        """Keep the keys of a job."""
        self._jobs[number] = SimpleNamespace(keys=set(keys))

    def build_connector_meta(self, meta: FakeMeta) -> FakeMeta:
        """The plan of a step."""
        if self.fall is not None:
            self.fall()
        return meta

    def update_connector_output(self, output: SimpleNamespace) -> None:
        """What came back."""
        if self.fall is not None:
            self.fall()

    def request_finished(self, request: FakeRequest) -> tuple[bool, None]:
        """A request is over."""
        return False, None

    def reset_cache(self) -> None:
        """Forget the host's content."""
        self._jobs.clear()


@define
class FakeSimpleMeta:
    """What goes to the workers of the simple connector."""

    store_event: int = -1
    store_gpu_blocks: list[int] = field(factory=list)
    store_cpu_blocks: list[int] = field(factory=list)
    need_flush: bool = False


class FakeSimple:
    """The scheduler side of a SimpleCPUOffloadConnector."""

    def __init__(self, num_slots: int = 32) -> None:
        self.num_cpu_blocks = num_slots
        self._store_event_counter = 0
        self._reqs_to_load: dict[str, SimpleNamespace] = {}
        self._gpu_block_pool: FakePool | None = None
        self.cpu_block_pool = FakePool(num_slots)
        self.resets = True

    def loads(self, request: str, gpu: list[int], cpu: list[int]) -> None:
        """Note that a request is to load."""
        transfer = SimpleNamespace(gpu_block_ids=gpu, cpu_block_ids=cpu)
        self._reqs_to_load[request] = SimpleNamespace(load_event=None, transfer_meta=transfer)

    def build_connector_meta(self, meta: FakeSimpleMeta) -> FakeSimpleMeta:
        """The plan of a step."""
        for state in self._reqs_to_load.values():
            state.load_event = 0
        return meta

    def update_connector_output(self, output: SimpleNamespace) -> None:
        """What came back."""
        for name in getattr(output, "finished_recving", None) or ():
            self._reqs_to_load.pop(name, None)

    def request_finished(self, request: FakeRequest) -> tuple[bool, None]:
        """A request is over."""
        return False, None

    def reset(self) -> bool:
        """Forget the host's content, if nothing is out."""
        return self.resets


class FakeScheduler:
    """vLLM's scheduler around all that."""

    def __init__(self, connector: object, num_blocks: int = 16, num_groups: int = 1, num_workers: int = 1) -> None:
        self.kv_cache_manager = FakeCacheManager(num_blocks, num_groups)
        self.connector = connector
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(world_size=num_workers))
        self.goes_on = True

    def update_from_output(self, output: object) -> None:
        """A step came back."""

    def has_requests(self) -> bool:
        """Whether there will be another step."""
        return self.goes_on


def offloading(num_groups: int = 1, blocks_per_chunk: int = 1, num_workers: int = 1) -> tuple[FakeScheduler, FakeOffloading]:
    """A scheduler with an OffloadingConnector, and that one's own scheduler."""
    inner = FakeOffloading(blocks_per_chunk, num_groups)
    return FakeScheduler(SimpleNamespace(connector_scheduler=inner), 16, num_groups, num_workers), inner


def simple() -> tuple[FakeScheduler, FakeSimple]:
    """A scheduler with a SimpleCPUOffloadConnector, and that one's own scheduler."""
    inner = FakeSimple()
    scheduler = FakeScheduler(SimpleNamespace(scheduler_manager=inner))
    inner._gpu_block_pool = scheduler.kv_cache_manager.block_pool
    return scheduler, inner


def reported(**jobs: int) -> SimpleNamespace:
    """What workers report, as ``j0=1``: job 0, one worker."""
    completed = {int(name[1:]): count for name, count in jobs.items()}
    return SimpleNamespace(kv_connector_worker_meta=SimpleNamespace(completed_jobs=completed))
