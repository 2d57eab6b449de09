"""What the watch over SGLang says that it does not follow: in the line at the start, in its report, and as a metric.

Goal: an operator whose model has memory that nobody watches is told so, by the name of that memory; and nothing is said where
all is followed. Method: fakes of engines that have such memory, or that lack a call which the watch would hear.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blocklife.engines.sglang.watch import LOGGER, Options, Watch, WatchMode, attach
from blocklife.engines.sglang.watch import _plugin as plugin
from blocklife.watch import Ears
from blocklife.watch import _watch as watch_module
from blocklife.watch._metrics import WatchCounts
from tests.watch.sglang_fakes import NUM_PAGES, PAGE, FakeAllocator, FakeEngine, FakeHostPool, FakeStateEngine

Make = Callable[[], Any]


class Kind(Enum):
    """Kinds of memory, as SGLang's host pools call them."""

    KV = 0
    SWA = 1
    INDEXER = 2


class HiCacheFile:
    """A store behind the host."""


def plain(**of_tree: Any) -> FakeEngine:
    """An engine with full attention, and more in its tree."""
    engine = FakeEngine()
    vars(engine.tree_cache).update(of_tree)
    return engine


def with_windows(**of_allocator: Any) -> FakeEngine:
    """A layer of full attention and one with a window, each with an allocator and a host pool."""
    engine = FakeEngine()
    pool, windows = engine.allocator.get_kvcache, FakeAllocator()
    both = SimpleNamespace(full_attn_allocator=engine.allocator, swa_attn_allocator=windows, get_kvcache=pool)
    vars(both).update(of_allocator)
    entry = SimpleNamespace(name=Kind.SWA, host_pool=FakeHostPool(), device_alloc_fn=windows.alloc, device_free_fn=windows.free)
    engine.host.entries = [SimpleNamespace(name=Kind.KV, host_pool=engine.host), entry]
    vars(engine.tree_cache).update(token_to_kv_pool_allocator=both, sliding_window_size=PAGE)
    return engine


def with_mapped_windows() -> FakeEngine:
    """The same as SGLang has it: with the slots that belong together."""
    return with_windows(full_to_swa_index_mapping=np.zeros(NUM_PAGES * PAGE + PAGE, dtype=np.int64))


def with_windows_in_rings() -> FakeEngine:
    """Windows that each request has its own ring for."""
    return with_windows(swa_req_ring=True)


def with_windows_on_the_device() -> FakeEngine:
    """The same without a host pool for the windows."""
    engine = with_mapped_windows()
    engine.host.entries = []
    return engine


def with_an_indexer(*, is_beside: bool) -> FakeEngine:
    """A further host pool; *is_beside*: its slots are those of the keys and values."""
    engine = FakeEngine()
    engine.host.entries = [SimpleNamespace(name=Kind.INDEXER, host_pool=FakeHostPool())]
    spec = SimpleNamespace(pool_name=Kind.INDEXER, indices_from_pool=Kind.KV)
    vars(engine.tree_cache)["sidecar_pool_specs"] = [spec] if is_beside else []
    return engine


def with_states(thing: str, name: str) -> Make:
    """States that cannot be followed, for something that is there beside them."""

    def made() -> FakeStateEngine:
        engine = FakeStateEngine()
        owner: Any = engine.tree_cache.req_to_token_pool if thing == "rows" else engine.state_pool
        setattr(owner, name, SimpleNamespace())
        return engine

    return made


def guessing() -> Any:
    """States, and a drafter."""
    engine: Any = FakeStateEngine()
    engine.spec_algorithm = SimpleNamespace(is_none=lambda: False)
    engine.draft_worker = object()
    engine.tree_cache.is_eagle = True
    return engine


def with_storage() -> FakeEngine:
    """Files behind the host."""
    engine = FakeEngine(storage=True)
    vars(engine.controller)["storage_backend"] = HiCacheFile()
    return engine


def without_transfers() -> FakeEngine:
    """An older controller, which does not show what it copies."""
    engine = FakeEngine()
    del engine.controller.l2_transfer_engine
    return engine


def sharded() -> FakeEngine:
    """Memory that is sharded over ranks, with numbers of its own."""
    engine = FakeEngine()
    vars(engine.controller)["is_kv_sharded"] = True
    return engine


def without_events() -> FakeEngine:
    """A counter of layers that has no events."""
    engine = FakeEngine()
    vars(engine.controller.layer_done_counter)["events"] = []
    return engine


COUNT = "count of pages at rest"
ENGINES: dict[str, tuple[Make, set[str], str]] = {
    "full attention": (FakeEngine, set(), ""),
    "no counts": (lambda: plain(evictable_size=None), {COUNT}, COUNT),
    "states": (FakeStateEngine, set(), ""),
    "windows": (with_mapped_windows, set(), ""),
    "windows in unified pools": (with_windows, {"SWA"}, "SWA (layers with sliding windows, in unified pools"),
    "windows in rings": (with_windows_in_rings, {"SWA"}, "SWA (layers with sliding windows, in a ring of each request)"),
    "windows on the device": (with_windows_on_the_device, {"SWA"}, "SWA (layers with sliding windows, which have no host"),
    "indexer": (lambda: with_an_indexer(is_beside=False), {"INDEXER"}, "INDEXER (indices of sparse attention)"),
    "indexer beside the pages": (lambda: with_an_indexer(is_beside=True), set(), ""),
    "unified pools": (with_states("rows", "mamba_v2p_table"), {"MAMBA"}, "MAMBA (states, in unified pools"),
    "8 bits": (with_states("rows", "mamba_ckpt_pool"), {"MAMBA", "MAMBA_CKPT"}, "MAMBA (states, cached in 8 bits)"),
    "ring": (
        with_states("pool", "replayssm_write_pos"),
        {"MAMBA"},
        "(states, partly in a ring beside them (ReplaySSM))",
    ),
    "drafts": (guessing, {"MAMBA", "DRAFT", "keys of pairs of tokens"}, "MAMBA (states, with speculative decoding)"),
    "storage": (with_storage, {"content of HiCacheFile"}, "content of HiCacheFile"),
    "no core": (
        lambda: plain(tree_core=None),
        {"evictions", "locks on the device", "locks on the host"},
        "evictions, locks on",
    ),
    "no transfers": (without_transfers, {"what a launch copies"}, "what a launch copies"),
    "sharded": (sharded, {"what a launch copies"}, "what a launch copies"),
    "no events": (without_events, {"waits of layers for their loads"}, "waits of layers for their loads"),
    "tree alone": (lambda: FakeEngine().tree_cache, {"steps"}, "NOT followed: steps"),
}
"""What is made, the names of what is not followed, and a part of the line."""


@pytest.mark.parametrize("name", ENGINES)
def test_line_at_the_start_says_what_is_not_followed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """By its name, in one line; nothing is said where all is followed."""
    make, names, words = ENGINES[name]
    engine = make()
    with caplog.at_level(logging.WARNING, LOGGER.name):
        plugin.come(engine, Options(mode=WatchMode.LOG))
    (line,) = [record.message for record in caplog.records]
    watch = attach(engine)

    assert set(watch.left_out) == names
    assert words in line
    assert ("NOT followed" in line) == bool(names)
    assert all(each in line for each in names)
    assert watch.report()["not_followed"] == watch.left_out


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_is_not_followed_is_a_metric(is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its name as a label, for a watch that counts, whether its counts are shared by processes or not."""
    kept = WatchCounts(tmp_path, "") if is_shared else WatchCounts(None, "")
    monkeypatch.setattr(watch_module, "of_process", lambda engine: kept)
    for make in (with_windows, with_windows, with_storage):
        attach(make(), Options(mode=WatchMode.COUNT))

    assert kept.left_out() == {"SWA": 2, "content of HiCacheFile": 1}


def test_memory_is_followed_only_if_all_that_hands_it_out_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by asking the ears: where one does not reach the host pool of the states, they are not followed."""
    hear = Ears.hear

    def deaf(self: Ears, thing: object, name: str, **more: Any) -> None:
        if thing is not engine.host_states:
            hear(self, thing, name, **more)

    engine = FakeStateEngine()
    assert "MAMBA" not in attach(FakeStateEngine(), Options(mode=WatchMode.LOG)).left_out
    monkeypatch.setattr(Ears, "hear", deaf)
    watch: Watch = attach(engine, Options(mode=WatchMode.LOG))

    assert watch.left_out["MAMBA"] == "states"
