"""The watch over newer releases of SGLang, which show what their copies move and what their tree core decides.

Goal: what is copied is what was queued; what the core gives up is freed; locks are released as often as they were taken; a
copy waits for the stream of the steps. Each is broken once and named, and its lawful twin is silent. Method: fakes.
"""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach
from tests.watch.sglang_fakes import PAGE, FakeEngine, FakeHostPool, slots_of

TEXT = [*range(100, 116)]


class Kind(Enum):
    """Kinds of memory of a core."""

    FULL = 0
    SWA = 1


def watched() -> tuple[FakeEngine, Watch]:
    """An engine, and a watch over it."""
    engine = FakeEngine()
    return engine, attach(engine, Options(mode=WatchMode.LOG))


def kept(engine: FakeEngine) -> None:
    """A text is computed and kept in pages 1 to 4."""
    engine.take(1, 2, 3, 4)
    engine.compute("a", TEXT, [1, 2, 3, 4])
    engine.keep(TEXT, [1, 2, 3, 4])


def cut(transfer: SimpleNamespace) -> SimpleNamespace:
    """The copy without its last page."""
    host, device = transfer.host_indices[:-PAGE], transfer.device_indices[:-PAGE]
    return SimpleNamespace(**{**vars(transfer), "host_indices": host, "device_indices": device})


def turned(transfer: SimpleNamespace) -> SimpleNamespace:
    """The copy with its device pages one off."""
    return SimpleNamespace(**{**vars(transfer), "device_indices": np.roll(transfer.device_indices, PAGE)})


# --- what is copied -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bent", [cut, turned])
def test_store_that_moves_other_pages_is_i8(bent: object) -> None:
    """A page that is left out, or that goes to another's place, is named when the copy is launched."""
    engine, watch = watched()
    kept(engine)
    engine.controller.bent = bent  # type: ignore[assignment]
    engine.store([1, 2, 3, 4], [0, 1, 2, 3])

    assert watch.counts == {"I8": 1}
    assert "moves other places" in watch.violations[0].what


@pytest.mark.parametrize("bent", [cut, turned])
def test_load_that_moves_other_pages_is_i7(bent: object) -> None:
    """The same for loads."""
    engine, watch = watched()
    kept(engine)
    engine.store([1, 2, 3, 4], [0, 1, 2, 3])
    engine.land()
    engine.controller.bent = bent  # type: ignore[assignment]
    engine.load([0, 1, 2, 3], [5, 6, 7, 8])

    assert watch.counts == {"I7": 1}


class OnHost(np.ndarray):
    """Indices that say where they lie, as those of a tensor do."""

    is_cuda = False


def test_engine_that_moves_other_pages_than_it_is_told_is_i8() -> None:
    """Where the indices lie in the memory of the host, what the host pool is told is compared, too."""
    engine = FakeEngine()

    def submit(transfers: list[SimpleNamespace]) -> None:
        pages = (transfers[0].host_indices[:-PAGE].view(OnHost), transfers[0].device_indices[:-PAGE].view(OnHost))
        engine.host.backup_from_device_all_layer_physical(None, *pages, "direct")

    engine.controller.l2_transfer_engine.submit_device_to_host = submit  # type: ignore[method-assign]
    watch = attach(engine, Options(mode=WatchMode.LOG))
    kept(engine)
    engine.store([1, 2, 3, 4], [0, 1, 2, 3])

    assert watch.counts == {"I8": 1}


def test_copies_in_another_order_are_lawful() -> None:
    """Several operations are launched as one copy, sorted by host page; other pools go along, and nobody minds them."""
    engine, watch = watched()
    kept(engine)
    engine.host.next = [9, 8]
    engine.controller.write(slots_of([1, 2]))
    engine.host.next = [3, 5]
    engine.controller.write(slots_of([3, 4]))
    engine.controller.start_writing()
    other = SimpleNamespace(host_pool=FakeHostPool(), is_draft=False, host_indices=slots_of([0]), device_indices=slots_of([1]))
    engine.controller.l2_transfer_engine.submit_device_to_host([other])

    assert watch.counts == {}


# --- what the core decides ------------------------------------------------------------------------------------------------


def given_up(*, device: list[int], host: list[int]) -> SimpleNamespace:
    """A core's answer: pages that are to be freed; those of another kind of memory are not followed."""
    return SimpleNamespace(
        device_frees={Kind.FULL: [slots_of(device)], Kind.SWA: [slots_of([3])]}, host_frees={Kind.FULL: [slots_of(host)]}
    )


def test_page_that_is_evicted_and_not_freed_is_i13() -> None:
    """It is named at the next step, of the device and of the host."""
    engine, watch = watched()
    kept(engine)
    engine.store([1, 2, 3, 4], [0, 1, 2, 3])
    engine.land()
    core = engine.tree_cache.tree_core
    core.given_up = given_up(device=[3, 4], host=[])
    core.demote(7)
    engine.free(3)
    core.given_up = given_up(device=[], host=[2, 3])
    core.drive_host_eviction(Kind.FULL, 8)
    engine.free_host(3)
    assert watch.counts == {}
    engine.take(9)
    engine.compute("b", [5, 6], [9])

    assert watch.counts == {"I13": 2}
    assert [violation.what.split(" was")[0] for violation in watch.violations] == ["block 4", "slot 2"]


def test_page_that_is_evicted_and_freed_is_lawful() -> None:
    """What is given up is freed ahead of the next step, or all is forgotten."""
    engine, watch = watched()
    kept(engine)
    core = engine.tree_cache.tree_core
    core.given_up = given_up(device=[3, 4], host=[])
    core.demote(7)
    engine.free(3, 4)
    core.given_up = given_up(device=[1], host=[])
    core.demote(7)
    engine.tree_cache.reset()
    engine.allocator.clear()
    engine.rest(1)

    assert watch.counts == {}


def test_lock_released_too_often_is_i4() -> None:
    """It is named ahead of what the core says to it; what was locked ahead of the watch is not counted."""
    engine, watch = watched()
    core = engine.tree_cache.tree_core
    for _ in range(2):
        core.inc_lock_ref(5)
    for _ in range(2):
        core.dec_lock_ref(5, None)
    assert watch.counts == {}
    core.dec_lock_ref(5, None)
    assert watch.counts == {"I4": 1}

    late = FakeEngine()
    late.allocator.free_pages = np.arange(2, 17)
    second = attach(late, Options(mode=WatchMode.LOG))
    late.tree_cache.tree_core.dec_lock_ref(5, None)
    assert second.counts == {}


def test_lock_of_other_memory_is_not_counted() -> None:
    """A request may give up the lock on its cached state ahead of the one on its pages, and a lock may be taken without it."""
    engine, watch = watched()
    core = engine.tree_cache.tree_core
    pages, states = (SimpleNamespace(skipped_lock_components=(kind,)) for kind in (Kind.SWA, Kind.FULL))
    core.inc_lock_ref(5)
    core.dec_lock_ref(5, states)
    core.dec_lock_ref(5, pages)
    assert watch.counts == {}

    core.receipt = states
    core.inc_lock_ref(5)
    core.dec_lock_ref(5, params=pages)
    assert watch.counts == {"I4": 1}


def test_host_lock_at_rest_is_i12() -> None:
    """With nothing to do, and nothing that is written out, no host memory is locked."""
    engine, watch = watched()
    core = engine.tree_cache.tree_core
    core.inc_host_lock_ref(3)
    engine.tree_cache.ongoing_backup[1] = object()
    engine.rest()
    assert watch.counts == {}
    engine.tree_cache.ongoing_backup.clear()
    engine.rest()
    assert watch.counts == {"I12": 1}

    core.dec_host_lock_ref(3, None)
    engine.rest()
    assert watch.counts == {"I12": 1}


def test_host_locks_from_before_the_watch_hide_none_that_leak() -> None:
    """Three were there when it came, and are released; one that is taken after that and stays is named."""
    engine = FakeEngine()
    engine.host.free_slots = engine.host.free_slots[PAGE:]
    watch = attach(engine, Options(mode=WatchMode.LOG))
    core = engine.tree_cache.tree_core
    for _ in range(3):
        core.dec_host_lock_ref(3, None)
    engine.rest()
    assert watch.counts == {}
    core.inc_host_lock_ref(4)
    engine.rest()

    assert watch.counts == {"I12": 1}
    assert watch.violations[0].what == "host memory is locked 1 times, and nothing uses it"


def test_host_lock_released_too_often_is_i4() -> None:
    """As on the device: a lock that leaks somewhere else does not make up for it."""
    engine, watch = watched()
    core = engine.tree_cache.tree_core
    core.inc_host_lock_ref(3)
    core.dec_host_lock_ref(4, None)
    assert watch.counts == {"I4": 1}
    engine.rest()

    assert watch.counts == {"I4": 1, "I12": 1}


def test_host_memory_behind_a_reset_is_i13() -> None:
    """A reset gives all of it back."""
    engine, watch = watched()
    kept(engine)
    engine.store([1, 2], [0, 1])
    engine.land()
    engine.tree_cache.reset()

    assert watch.counts == {"I13": 1}
    assert "2 slots" in watch.violations[0].what


# --- order and places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_other", "counts"), [(True, {"I2": 1}), (False, {})])
def test_fence_on_another_stream_orders_nothing(is_other: bool, counts: dict[str, int]) -> None:
    """A store that may overtake the step in flight is named unless the fence is the stream of the steps."""
    engine, watch = watched()
    stream = object()
    engine.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(forward_stream=stream))
    engine.controller.write_fence_stream = object() if is_other else stream
    engine.take(1, 2, 3, 4)
    engine.step("a", TEXT, [1, 2, 3, 4])
    engine.store([1, 2, 3, 4], [0, 1, 2, 3])

    assert watch.counts == counts


def test_position_outside_its_page_is_i6() -> None:
    """A row whose slot of a token is not in its place is named when the step is launched that computes the token."""
    engine, watch = watched()
    engine.take(1, 2, 3, 4)
    engine.compute("a", TEXT[:14], [1, 2, 3, 4])
    rows = engine.tree_cache.req_to_token_pool.req_to_token
    right = slots_of([1, 2, 3, 4])
    engine.step("a", TEXT[:15], [1, 2, 3, 4], 14)
    assert watch.counts == {}
    rows[0, 15] = right[14]
    engine.batch = SimpleNamespace(
        reqs=[engine.requests["a"]],
        forward_mode=SimpleNamespace(is_extend=lambda: False),
        req_pool_indices=np.array([0]),
        seq_lens_cpu=np.array([16]),
        hicache_consumer_index=-1,
    )
    engine.get_next_batch_to_run()

    assert watch.counts == {"I6": 1}
    assert "position 15" in watch.violations[0].what


def test_block_of_another_text_is_not_written_over() -> None:
    """A request that begins a page which holds something else writes into another's memory; the same text may come again."""
    engine, watch = watched()
    kept(engine)
    engine.compute("a", TEXT, [1, 2, 3, 4], 12)
    assert watch.counts == {}
    engine.take(5)
    engine.compute("b", [7, 8, 9, 10, 11], [5, 2], 0)

    assert watch.counts == {"I1": 1}
    assert "writes block 2" in watch.violations[0].what


def test_allocator_that_cannot_hand_out_what_is_free_is_i13() -> None:
    """At rest its own count must be what is not handed out."""
    engine, watch = watched()
    engine.allocator.available_size = lambda: 16 * PAGE  # type: ignore[attr-defined]
    engine.rest()
    assert watch.counts == {}
    engine.allocator.available_size = lambda: 15 * PAGE  # type: ignore[attr-defined]
    engine.rest()

    assert watch.counts == {"I13": 1}


@pytest.mark.parametrize("jobs", [False, True], ids=["plain", "ledger"])
def test_store_of_the_null_block_does_not_lose_the_watch(jobs: bool) -> None:
    """It is named, and the watch goes on."""
    engine = FakeEngine()
    watch = attach(engine, Options(mode=WatchMode.LOG, jobs=jobs))
    kept(engine)
    engine.store([0, 2], [0, 1])
    engine.land()

    assert watch.counts["I6"] == 1
    assert watch.lost is None


def test_free_that_a_part_of_the_tree_has_taken_ahead_is_heard() -> None:
    """A component may have kept the allocator's method from before the watch came."""
    engine = FakeEngine()
    component = SimpleNamespace(_free_full=engine.allocator.free)
    engine.tree_cache.components = {Kind.FULL: component}  # type: ignore[attr-defined]
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.take(1, 2)
    component._free_full(slots_of([1, 2]))
    engine.take(1, 2)

    assert watch.counts == {}
