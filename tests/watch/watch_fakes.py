"""A scheduler, its pool and its connectors as far as the watch looks at them: vLLM's names, and nothing behind them.

Goal: the watch is tested where vLLM is not installed. What a fake does is what a test tells it to do; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from attrs import define, field, frozen

from blocklife.engines.vllm.watch import Options, Watch, WatchMode, attach
from tests.plays import play


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
    """A request has a name; and how far it is, and the names of its content, if somebody asks."""

    request_id: str
    num_computed_tokens: int = 0
    block_hashes: Sequence[bytes] = ()


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
        self.promised: tuple[int | None, bool] = 8, True

    def know(self, request: str, keys: Sequence[bytes], blocks: Sequence[int] = ()) -> None:
        """Keep the keys of a request's chunks, and its table, in one group."""
        state = SimpleNamespace(offload_keys=list(keys), block_ids=list(blocks), next_stored_chunk_idx=0)
        self._req_status[request] = SimpleNamespace(group_states=[state], transfer_jobs=set())

    def file(self, number: int, *keys: bytes) -> None:
        """Keep the keys of a job."""
        self._jobs[number] = SimpleNamespace(keys=set(keys))

    def get_num_new_matched_tokens(self, request: object, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The lookup finds what a test says."""
        return self.promised

    def update_state_after_alloc(self, request: object, blocks: object, num_external_tokens: int) -> None:
        """A request is let in."""

    def build_connector_meta(self, output: Any) -> Any:
        """The plan of a step: what the test gives, or has put into what it gives."""
        if self.fall is not None:
            self.fall()
        return output if isinstance(output, FakeMeta) else output.plan

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


@define
class FakeNewerMeta(FakeSimpleMeta):
    """Newer releases say what is loaded, too."""

    load_gpu_blocks: list[int] = field(factory=list)
    load_cpu_blocks: list[int] = field(factory=list)


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
        self.requests: dict[str, SimpleNamespace] = {}
        self.running: list[str] = []
        self.pause_state = SimpleNamespace(name="UNPAUSED")
        self.falls = False

    def schedule(self, output: Any = None) -> Any:
        """One step is made."""
        if self.falls:
            raise KeyError("odd")
        return None

    finish_requests = reset_prefix_cache = add_request = schedule

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


@define
class FakeOutput:
    """What a scheduler has decided, and what the connector makes of it."""

    plan: FakeMeta
    num_scheduled_tokens: dict[str, int] = field(factory=dict)
    scheduled_new_reqs: list[SimpleNamespace] = field(factory=list)
    scheduled_cached_reqs: SimpleNamespace = field(factory=lambda: SimpleNamespace(req_ids=[], num_computed_tokens=[]))
    finished_req_ids: set[str] = field(factory=set)


class VllmStage:
    """A scheduler, its connector, and the watch over it. Each of its methods is an event of a script."""

    def __init__(self, connector: FakeOffloading | FakeSimple, *, num_groups: int = 1, sample: int = 1) -> None:
        self.inner: Any = connector
        side = "connector_scheduler" if isinstance(connector, FakeOffloading) else "scheduler_manager"
        self.scheduler = FakeScheduler(SimpleNamespace(**{side: connector}), 16, num_groups)
        self.manager, self.pool = self.scheduler.kv_cache_manager, self.scheduler.kv_cache_manager.block_pool
        if isinstance(connector, FakeSimple):
            connector._gpu_block_pool = self.pool
        self.options = Options(mode=WatchMode.COUNT, sample=sample)
        self.watch: Watch
        self.meta = FakeMeta()
        self.late: list[FakeBlock] = []
        self.hashes: dict[str, list[bytes]] = {}
        self.computed: dict[str, int] = {}

    def run(self, events: str) -> Watch:
        """Play a script; the watch is there from the start, unless the script says when it comes."""
        if "attach" not in events:
            self.attach()
        play(self, events)
        return self.watch

    def attach(self) -> None:
        """The watch comes."""
        self.watch = attach(self.scheduler, self.options)

    def silent(self) -> None:
        """Nothing has fallen so far."""
        assert self.watch.counts == {}

    # --- the pool

    def request(self, name: str) -> FakeRequest:
        """The request of this name, as far as it is."""
        return FakeRequest(name, self.computed.get(name, 0), self.hashes.get(name, ()))

    def asks(self, name: str, *hashes: str, computed: int = 0) -> None:
        """A request has content of these names, and is so far."""
        self.hashes[name], self.computed[name] = [each.encode() for each in hashes], computed

    def give(
        self, name: str, new: Sequence[int] = (), group: int = 0, hits: Sequence[int] = (), drops: int = 0, tokens: int = 0
    ) -> None:
        """A request gets blocks: behind those that it drops, hits, then new ones; *tokens* were found."""
        self.manager.allocate_slots(self.request(name), new, hits, group, drops, num_new_computed_tokens=tokens)

    def free(self, name: str) -> None:
        """A request lets go of everything."""
        self.manager.free(self.request(name))

    def finish(self, name: str) -> None:
        """A request is over."""
        self.inner.request_finished(self.request(name))

    def pop(self, name: str) -> None:
        """A request gives up its blocks, which are freed later."""
        self.late = self.manager.pop_blocks_for_free(self.request(name))

    def free_late(self) -> None:
        """They are freed."""
        self.pool.free_blocks(self.late)

    def touch(self, *blocks: int) -> None:
        """The pool is asked to hold these."""
        self.pool.touch([self.pool.blocks[block] for block in blocks])

    def let_go(self, *blocks: int) -> None:
        """And to let go of these."""
        self.pool.free_blocks([self.pool.blocks[block] for block in blocks])

    def count_up(self, block: int) -> None:
        """A hold is counted by hand."""
        self.pool.blocks[block].ref_cnt += 1

    def evict(self, *blocks: int) -> None:
        """Their content is found no more."""
        self.pool.evict_blocks({*blocks})

    def reset_pool(self) -> None:
        """No content is found any more."""
        self.pool.reset_prefix_cache()

    def name(self, block: int, content: str, group: int = 0) -> None:
        """A block has the name of this content."""
        self.pool.blocks[block].block_hash = content.encode() + group.to_bytes(4, "big")

    def named_blocks(self, tokens: int) -> None:
        """Blocks have names, each of so many tokens."""
        self.pool.hash_block_size = tokens
        vars(self.manager.coordinator.single_type_managers[0])["block_size"] = tokens

    def window(self, tokens: int, block: int) -> None:
        """Layers have a window."""
        vars(self.manager.coordinator.single_type_managers[0]).update(sliding_window=tokens, block_size=block)

    # --- a connector

    def know(self, name: str, keys: Sequence[str], blocks: Sequence[int] = ()) -> None:
        """Keep the keys of a request."""
        self.inner.know(name, [key.encode() for key in keys], blocks)

    def store(
        self,
        number: int,
        name: str,
        blocks: list[int],
        slots: list[int],
        keys: Sequence[str] = (),
        sizes: Sequence[int] = (),
        at: int = 0,
    ) -> None:
        """The next plan has a store; *at*: the position of its first block."""
        if keys:
            self.inner.file(number, *[key.encode() for key in keys])
        self.meta.store_jobs[number] = store(name, blocks, slots, sizes, [at] * max(1, len(sizes)))

    def load(
        self,
        number: int,
        name: str,
        blocks: list[int],
        slots: list[int],
        keys: Sequence[str] = (),
        at: int = 0,
        sync: bool = False,
    ) -> None:
        """The next plan has a load."""
        if keys:
            self.inner.file(number, *[key.encode() for key in keys])
        self.meta.load_jobs[number] = load(name, blocks, slots, at, sync=sync)

    def older_store(self, number: int, name: str, blocks: list[int], slots: list[int]) -> None:
        """The same as older releases say it."""
        self.meta.store_jobs[number] = FakeOldJob(name, (FakeSpec(blocks, [len(blocks)], [0]), FakeSpec(slots)))

    def plan(self, flush: Sequence[int] = (), computes: str = "", tokens: int = 1, new: bool = False) -> None:
        """The plan of a step; *computes*: the request that it computes so many tokens of, which may be *new*."""
        meta, self.meta = self.meta, FakeMeta()
        meta.jobs_to_flush = set(flush)
        scheduled = {computes: tokens} if computes else {}
        fresh = [SimpleNamespace(req_id=computes, num_computed_tokens=0)] if new else []
        self.inner.build_connector_meta(FakeOutput(meta, scheduled, fresh))

    def report(self, *jobs: int) -> None:
        """A worker has ended these."""
        self.inner.update_connector_output(reported(**{f"j{job}": 1 for job in jobs}))

    def reset(self) -> None:
        """The connector forgets the host's content."""
        self.inner.reset_cache() if isinstance(self.inner, FakeOffloading) else self.inner.reset()

    def counts_on(self, name: str, blocks: Sequence[int], tokens: int, computed: int = 0) -> None:
        """A lookup of a request finds so many tokens behind those computed, and it is let in with blocks for them."""
        self.inner.get_num_new_matched_tokens(self.request(name), computed)
        self.give(name, blocks)
        table = SimpleNamespace(blocks=([self.pool.blocks[block] for block in blocks],))
        self.inner.update_state_after_alloc(self.request(name), table, tokens)

    # --- SimpleCPUOffload

    def simple_plan(self, event: int = -1, blocks: Sequence[int] = (), slots: Sequence[int] = (), flush: bool = False) -> None:
        """The plan of a step with a store, or none."""
        self.inner.build_connector_meta(FakeSimpleMeta(event, [*blocks], [*slots], flush))

    def newer_plan(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """The plan of a step with a load, as newer releases say it."""
        self.inner.build_connector_meta(FakeNewerMeta(load_gpu_blocks=[*blocks], load_cpu_blocks=[*slots]))

    def loads(self, name: str, blocks: list[int], slots: list[int]) -> None:
        """A request is to load."""
        self.inner.loads(name, blocks, slots)

    def stored(self, event: int) -> None:
        """An event has ended."""
        meta = SimpleNamespace(completed_store_events={event: 1})
        self.inner.update_connector_output(SimpleNamespace(kv_connector_worker_meta=meta))

    def received(self, name: str) -> None:
        """The load of a request has ended."""
        self.inner.update_connector_output(SimpleNamespace(finished_recving={name}))

    def cannot_reset(self) -> None:
        """A reset leaves the host's content."""
        self.inner.resets = False

    # --- the engine as a whole

    def wait(self, name: str, status: str = "WAITING_FOR_REMOTE_KVS") -> None:
        """A request has this status."""
        self.scheduler.requests[name] = SimpleNamespace(status=SimpleNamespace(name=status))

    def runs(self, name: str) -> None:
        """A request runs."""
        self.scheduler.running.append(name)

    def pause(self) -> None:
        """The engine is paused."""
        self.scheduler.pause_state.name = "PAUSED_ALL"

    def stop(self) -> None:
        """No step follows."""
        self.scheduler.goes_on = False

    def no_requests(self) -> None:
        """All are gone."""
        self.scheduler.requests.clear()

    def idle(self, steps: int = 1, computed: int = 0) -> None:
        """So many steps come back, in which so many tokens were computed."""
        for _ in range(steps):
            self.scheduler.update_from_output(SimpleNamespace(total_num_scheduled_tokens=computed))

    def circle(self, *blocks: int, times: int = 1) -> None:
        """Each of these blocks is stored, one a step, and lands in the next."""
        for block in blocks * times:
            event = self.inner._store_event_counter
            self.inner._store_event_counter += 1
            self.simple_plan(event, [block], [5])
            self.idle()
            self.stored(event)

    def host_of_slots(self, **counts: Any) -> None:
        """The manager of the host's slots is one that brings nothing from below."""
        self.inner.manager = type("CPUOffloadingManager", (), {"_num_chunks": 32})()
        vars(self.inner.manager).update(counts)

    # --- what must be so

    def held(self, *blocks: int) -> None:
        """Exactly these are held."""
        assert sorted(self.watch.mirror.holders.where) == [*blocks]

    def holders(self, block: int, *names: str) -> None:
        """Exactly these hold a block."""
        assert [holder.name for holder in self.watch.mirror.holders.where[block]] == [*names]

    def stands(self, name: str, position: int, block: int | None) -> None:
        """The block that a request has at a position, as far as it is followed."""
        holders = self.watch.mirror.holders
        assert holders.stands(name, 0, position) == (None if block is None else holders.life(block))

    def moved(self, stored: int, loaded: int = 0) -> None:
        """So many blocks were moved each way."""
        wanted = {name: count for name, count in (("STORE", stored), ("LOAD", loaded)) if count}
        assert self.watch.mirror.ledger.counts.moved == wanted

    def state(self, block: int, name: str) -> None:
        """The state of a block in the ledger."""
        assert self.watch.mirror.ledger.blocks.state(block).name == name

    def story(self, block: int, ends: str, before: int = 1) -> None:
        """How an event of a block ends, the last one or one *before*; with underscores in the place of blanks."""
        assert self.watch.mirror.story.history(block)[-before].endswith(ends.replace("_", " "))

    def unknown(self, block: int) -> None:
        """Nothing was ever noted of a block."""
        assert not self.watch.mirror.story.knows(block)

    def at_rest(self) -> None:
        """No job is out."""
        assert self.watch.mirror.jobs.left_behind() == []
