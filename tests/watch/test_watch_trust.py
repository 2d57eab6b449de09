"""What the watch does not take an engine's word for: its pool's own book, names, keys, tables, and what counts as computed.

Goal: each thing that is checked falls by its rule when it is wrong, and is silent when it is right. Method: fakes of vLLM's
objects, each a little wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, frozen

from blocklife.engines.vllm.watch import Options, Watch, WatchMode, attach, detach
from blocklife.engines.vllm.watch._reading import ending_of
from tests.watch.watch_fakes import (
    FakeBlock,
    FakeMeta,
    FakeOffloading,
    FakePool,
    FakeRequest,
    FakeScheduler,
    FakeSimple,
    FakeTables,
    load,
    reported,
    store,
)

COUNT = Options(mode=WatchMode.COUNT)
SIZE = 4


@define(eq=False)
class Block(FakeBlock):
    """A block that says where it stands in the queue of free ones."""

    prev_free_block: object = None


class Pool(FakePool):
    """A pool whose blocks are in the queue while nobody holds them."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.hash_block_size = SIZE
        self.blocks = [Block(number, prev_free_block=self if number else None) for number in range(num_blocks)]
        self.more_free = 0

    def settle(self) -> None:
        """Each block is in the queue, or not, as it should be."""
        for block in self.blocks[1:]:
            vars_of(block).prev_free_block = None if block.ref_cnt else self

    def get_new_blocks(self, count: int) -> list[FakeBlock]:
        """As a pool does."""
        given = super().get_new_blocks(count)
        self.settle()
        return given

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        """As a pool does."""
        super().touch(blocks)
        self.settle()

    def free_blocks(self, ordered: object) -> None:
        """As a pool does."""
        super().free_blocks(ordered)  # type: ignore[arg-type]  # what a test gives
        self.settle()

    def get_num_free_blocks(self) -> int:
        """How many are in the queue, or what a test says."""
        return sum(not block.ref_cnt for block in self.blocks[1:]) + self.more_free

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[FakeBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
    ) -> None:
        """Give names."""
        for position in range(num_cached_blocks, num_full_blocks):
            blocks[position].block_hash = request.block_hashes[position] + ending_of(kv_cache_group_id)


def vars_of(block: FakeBlock) -> Block:
    """A block with its place in the queue."""
    assert isinstance(block, Block)
    return block


class FullAttentionManager(FakeTables):
    """A manager of vLLM, by its name."""

    block_size = SIZE
    kv_cache_group_id = 0


@frozen
class Request(FakeRequest):
    """A request with the hashes of its blocks, and how far it is."""

    num_computed_tokens: int = 0
    block_hashes: tuple[bytes, ...] = tuple(b"hash %d" % at for at in range(8))


class Engine(FakeScheduler):
    """A scheduler whose steps say what a test wants."""

    def __init__(self) -> None:
        self.inner = FakeOffloading()
        super().__init__(SimpleNamespace(connector_scheduler=self.inner))
        self.pool = Pool(16)
        self.kv_cache_manager.block_pool = self.pool
        self.kv_cache_manager.coordinator.single_type_managers[0] = FullAttentionManager()
        self.acts: Callable[[], None] = lambda: None

    def schedule(self, output: Any = None) -> Any:
        """One step is made: what happens in it, then the connector's plan."""
        self.acts()
        self.acts = lambda: None
        self.inner.build_connector_meta(FakeMeta())
        return output


def step(
    scheduled: dict[str, int],
    new: dict[str, tuple[int, list[int]]] | None = None,
    running: dict[str, tuple[int, list[int] | None]] | None = None,
    resumed: Sequence[str] = (),
) -> SimpleNamespace:
    """What a scheduler says of a step: tokens to compute, and of each request how far it is and which blocks it has got."""
    rows = running or {}
    cached = SimpleNamespace(
        req_ids=list(rows),
        resumed_req_ids=set(resumed),
        num_computed_tokens=[computed for computed, _ in rows.values()],
        new_block_ids=[None if row is None else (row,) for _, row in rows.values()],
    )
    fresh = [
        SimpleNamespace(req_id=name, num_computed_tokens=computed, block_ids=(row,))
        for name, (computed, row) in (new or {}).items()
    ]
    return SimpleNamespace(
        num_scheduled_tokens=scheduled, scheduled_new_reqs=fresh, scheduled_cached_reqs=cached, finished_req_ids=()
    )


def engine() -> tuple[Engine, Watch]:
    """An engine under a watch."""
    scheduler = Engine()
    return scheduler, attach(scheduler, COUNT)


def rules(watch: Watch) -> list[str]:
    """The rules that fell."""
    watch.mirror.catch_up()
    return [violation.rule for violation in watch.violations]


A, B = Request("a"), Request("b")
PLAIN, OTHER = FakeRequest("a"), FakeRequest("b")
"""Requests whose names nobody asks for."""


# --- the pool's own book ------------------------------------------------------------------------------------------------------


def test_a_pool_whose_book_is_right_breaks_no_rule() -> None:
    """Handed out, hit by another, let go of by one and by both."""
    scheduler, watch = engine()
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(PLAIN, [1, 2])
    manager.allocate_slots(OTHER, [3], hits=[1])
    manager.free(PLAIN)
    manager.free(OTHER)

    assert rules(watch) == []


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        ("hit", "block 1 is held, but still in the free queue"),
        ("given", "block 2 is held, but still in the free queue"),
        ("named", "block 2 still has the name of its former content"),
        ("counted", "block 2 has 2 references in the engine when it is handed out, instead of 1"),
        ("shared", "block 1 has 1 references left in the engine, but is in the free queue"),
        ("lost", "block 1 is released by all, but not in the free queue"),
    ],
)
def test_i4_falls_where_the_book_of_a_pool_contradicts_itself(what: str, ends: str) -> None:
    """A block in the queue that is held, one that is held by nobody and not in it, and one that is handed out as it was."""
    scheduler, watch = engine()
    manager, pool = scheduler.kv_cache_manager, scheduler.pool
    manager.allocate_slots(PLAIN, [1])
    first, second = vars_of(pool.blocks[1]), vars_of(pool.blocks[2])
    if what == "shared":
        manager.allocate_slots(OTHER, hits=[1])

    def wrong() -> None:
        if what in ("hit", "shared"):
            first.prev_free_block = pool
        elif what == "lost":
            first.prev_free_block = None
        elif what == "given":
            second.prev_free_block = pool
        elif what == "named":
            second.prev_free_block, second.block_hash = None, b"old"
        else:
            second.prev_free_block, second.ref_cnt = None, 2

    pool.settle = wrong  # type: ignore[method-assign]  # the book goes wrong with the next call
    if what == "hit":
        manager.allocate_slots(OTHER, hits=[1])
    elif what in ("shared", "lost"):
        manager.free(PLAIN)
    else:
        manager.allocate_slots(PLAIN, [2])

    assert rules(watch) == ["I4"]
    assert watch.violations[0].what.endswith(ends)


@pytest.mark.parametrize("block", [-1, 0])
def test_a_block_that_there_is_not_is_told_of_and_the_watch_goes_on(block: int) -> None:
    """The end of an empty queue, or the null block, handed out: the engine's fault, and not the watch's."""
    scheduler, watch = engine()
    scheduler.pool.blocks.append(Block(block))
    scheduler.kv_cache_manager.allocate_slots(A, [len(scheduler.pool.blocks) - 1])
    scheduler.schedule(step({}))

    assert rules(watch) == ["I4"]
    assert watch.violations[0].what == f"block {block} is not a block of the pool"
    assert watch.lost is None


def test_i4_falls_once_where_more_blocks_count_as_free_than_nobody_holds() -> None:
    """Two too many, then as many as there are, then two too many again."""
    scheduler, watch = engine()
    scheduler.acts = lambda: scheduler.kv_cache_manager.allocate_slots(A, [1, 2])
    for more in (0, 2, 2, 0, 2):
        scheduler.pool.more_free = more
        scheduler.schedule(step({}))

    assert rules(watch) == ["I4", "I4"]
    assert watch.violations[0].what == "15 blocks count as free, although 2 of 15 are held: 2 too many"


def test_i4_falls_where_the_book_of_the_hosts_slots_contradicts_itself() -> None:
    """The slots of SimpleCPUOffloadConnector are a pool of the same kind."""
    inner = FakeSimple()
    inner.cpu_block_pool = slots = Pool(8)
    scheduler = FakeScheduler(SimpleNamespace(scheduler_manager=inner))
    watch = attach(scheduler, COUNT)
    slots.next = [1]
    given = slots.get_new_blocks(1)
    slots.free_blocks(given)
    silent = rules(watch)
    slots.free_blocks(given)

    assert silent == []
    assert rules(watch) == ["I4"]
    assert watch.violations[0].what == "slot 1 of the host has -1 references left in the engine"


# --- names --------------------------------------------------------------------------------------------------------------------


def name(scheduler: Engine, request: Request, end: int, blocks: Sequence[int] = (1, 2)) -> None:
    """Blocks get the names of a request's first places."""
    table = [scheduler.pool.blocks[number] for number in blocks]
    scheduler.pool.cache_full_blocks(
        request=request, blocks=table, num_cached_blocks=0, num_full_blocks=end, block_size=SIZE, kv_cache_group_id=0
    )


@pytest.mark.parametrize(("tokens", "fell"), [(2 * SIZE, []), (2 * SIZE - 1, ["I6"])])
def test_i6_falls_where_a_block_is_named_before_its_tokens_are_computed(tokens: int, fell: list[str]) -> None:
    """Within a step: what the step computes counts. Between two: what the request says that it has."""
    scheduler, watch = engine()
    manager = scheduler.kv_cache_manager

    def act() -> None:
        manager.allocate_slots(A, [1, 2])
        name(scheduler, A, 2)

    scheduler.acts = act
    scheduler.schedule(step({"a": tokens}, new={"a": (0, [1, 2])}))
    within = rules(watch)
    name(scheduler, Request("a", tokens), 2)

    assert within == fell
    assert rules(watch) == fell + fell


def test_i8_falls_where_a_block_gets_another_name_than_that_of_its_place() -> None:
    """Two blocks change places."""
    scheduler, watch = engine()
    scheduler.kv_cache_manager.allocate_slots(A, [1, 2])
    name(scheduler, Request("a", 8), 2)
    silent = rules(watch)
    name(scheduler, Request("a", 8), 2, blocks=[2, 1])
    assert silent == []
    assert rules(watch) == ["I8", "I8"]
    assert watch.violations[0].what == "block 2 gets the name of position 0 of a, where block 1 stands"


# --- keys ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "fell"), [(b"hash 0" + ending_of(0), []), (b"hash 1" + ending_of(0), ["I8", "I6"])])
@pytest.mark.parametrize("group", [0, 1])
def test_i8_falls_where_a_key_is_not_the_hash_of_its_place(key: bytes, group: int, fell: list[str]) -> None:
    """Of a store; and I6 of a load. A key of another group is one of them."""
    inner = FakeOffloading()
    vars(inner.config.kv_group_configs[0]).update(hashes_per_chunk=1, group_idx=group)
    scheduler = FakeScheduler(SimpleNamespace(connector_scheduler=inner), num_groups=2)
    watch = attach(scheduler, COUNT)
    inner.know("a", [key])
    vars(inner._req_status["a"])["req"] = A
    scheduler.kv_cache_manager.allocate_slots(A, [1], group=group)
    inner.file(0, key)
    inner.build_connector_meta(FakeMeta({0: store("a", [1], [7])}))
    inner.file(1, key)
    inner.build_connector_meta(FakeMeta(load_jobs={1: load("a", [1], [7])}, jobs_to_flush={0}))
    found = [violation.rule for violation in watch.violations if "not that of its position" in violation.what]

    assert found == (["I8", "I6"] if group else fell)


@pytest.mark.parametrize(("held", "fell"), [({b"k0": 7, b"k1": 8}, []), ({b"k0": 9}, ["I8"]), ({b"k0": 7, b"k1": 7}, ["I6"])])
def test_what_the_manager_has_for_a_slot_is_what_is_stored_there(held: dict[bytes, int], fell: list[str]) -> None:
    """I8 where it has the key of a store for another slot; I6 where the slot's older key still finds it."""
    scheduler, watch = engine()
    inner = scheduler.inner
    chunks: dict[bytes, int] = {b"k1": 7}

    def find(key: bytes) -> SimpleNamespace | None:
        return SimpleNamespace(chunk_id=chunks[key]) if key in chunks else None

    vars(inner.manager)["_policy"] = SimpleNamespace(get=find)
    watch = attach_again(scheduler)
    scheduler.kv_cache_manager.allocate_slots(PLAIN, [1, 2])
    inner.know("a", [b"k0", b"k1"])
    inner.file(0, b"k1")
    inner.build_connector_meta(FakeMeta({0: store("a", [2], [7], indices=(1,))}))
    inner.update_connector_output(reported(j0=1))
    chunks.clear()
    chunks.update(held)
    inner.file(1, b"k0")
    inner.build_connector_meta(FakeMeta({1: store("a", [1], [7])}))

    assert rules(watch) == fell


def attach_again(scheduler: Engine) -> Watch:
    """A watch that has seen what was put in place."""
    detach(scheduler)
    return attach(scheduler, COUNT)


# --- tables and counts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "fell"), [([1, 2], []), ([2, 1], ["I8"]), ([1, 3], ["I8"]), ([1, 2, 3], ["I8"])])
def test_i8_falls_where_workers_are_told_of_other_blocks_than_the_table_has(row: list[int], fell: list[str]) -> None:
    """Of a request that comes in, and of one that grows."""
    scheduler, watch = engine()
    scheduler.acts = lambda: scheduler.kv_cache_manager.allocate_slots(A, [1, 2])
    scheduler.schedule(step({"a": 8}, new={"a": (0, row)}))
    first = rules(watch)
    scheduler.acts = lambda: scheduler.kv_cache_manager.allocate_slots(A, [4, 5])
    scheduler.schedule(step({"a": 8}, running={"a": (8, [each + 3 for each in row])}))

    assert first == fell
    assert rules(watch) == fell + fell


@pytest.mark.parametrize(("computed", "fell"), [(8, []), (7, []), (9, ["I6"])])
def test_i6_falls_where_a_request_counts_more_as_computed_than_the_steps_have(computed: int, fell: list[str]) -> None:
    """Less is lawful: guesses that were wrong are computed again."""
    scheduler, watch = engine()
    scheduler.acts = lambda: scheduler.kv_cache_manager.allocate_slots(A, [1, 2, 3])
    scheduler.schedule(step({"a": 8}, new={"a": (0, [1, 2, 3])}))
    scheduler.schedule(step({"a": 1}, running={"a": (computed, None)}))

    assert rules(watch) == fell


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize(("computed", "fell"), [(4, []), (8, ["I6"])])
def test_i6_falls_where_a_request_that_comes_in_counts_on_blocks_without_content(
    resumes: bool, computed: int, fell: list[str]
) -> None:
    """The first block is a hit, the second was handed out by this very step; for the first time, or after a preemption."""
    scheduler, watch = engine()
    manager = scheduler.kv_cache_manager
    scheduler.pool.blocks[1].block_hash = A.block_hashes[0] + ending_of(0)
    scheduler.acts = lambda: manager.allocate_slots(A, [2], hits=[1])
    row = (computed, [1, 2])
    scheduler.schedule(step({"a": 1}, running={"a": row}, resumed=["a"]) if resumes else step({"a": 1}, new={"a": row}))

    assert rules(watch) == fell


def test_i6_falls_where_a_hit_has_a_hole() -> None:
    """The null block stands where a block is read."""
    scheduler, watch = engine()
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(B, [2])
    scheduler.pool.blocks[2].block_hash = A.block_hashes[1] + ending_of(0)
    scheduler.acts = lambda: manager.allocate_slots(A, [3], hits=[2], drops=1)
    scheduler.schedule(step({"a": 1}, new={"a": (8, [0, 2, 3])}))

    assert rules(watch) == ["I6"]
    assert watch.violations[0].what == "a counts 8 tokens as computed, and at position 0 of group 0 there is no block"
