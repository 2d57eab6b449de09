"""The watch over what SGLang's storage brings: whose text it is, and whether what stands ahead of it is on the host, too.

Goal: content from storage has a name like any other; what is kept on the host behind a page that is not there is I11, unless
the engine writes back. Method: fakes.
"""

from __future__ import annotations

import inspect
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach, detach
from blocklife.engines.sglang.watch._storage import NUM_ASKED, StorageEars
from blocklife.watch import HeldContent, Text
from blocklife.watch._contents import STILL
from blocklife.watch._texts import UNSEEN, SlotContents
from tests.watch.sglang_fakes import FakeController, FakeCore, FakeEngine, slots_of

TEXT = [*range(100, 116)]


def watched() -> tuple[FakeEngine, Watch]:
    """An engine with storage, and a watch over it."""
    engine = FakeEngine(storage=True)
    return engine, attach(engine, Options(mode=WatchMode.LOG))


def computed(engine: FakeEngine, num_pages: int) -> None:
    """So many pages of the text are computed and kept."""
    blocks = range(1, num_pages + 1)
    engine.take(*blocks)
    engine.compute("a", TEXT[: 4 * num_pages], [*blocks])
    engine.keep(TEXT[: 4 * num_pages], [*blocks])


def test_refill_behind_a_page_that_is_not_on_the_host_is_i11() -> None:
    """Storage was asked for all of the text; two pages of it were computed meanwhile, and only the first has a copy."""
    engine, watch = watched()
    engine.ask_storage("b", TEXT, 0)
    computed(engine, 2)
    engine.store([1], [5])
    engine.land()
    engine.refill("b", TEXT, [0, 1, 2, 3], known=2)

    assert watch.counts == {"I11": 1}
    assert "slot 2 is kept for position 2 of a text, and no slot has what stands ahead of it" in watch.violations[0].what
    assert watch.lost is None


@pytest.mark.parametrize("lands", [True, False])
def test_refill_behind_a_page_on_the_host_is_lawful(lands: bool) -> None:
    """A copy that is on its way counts: the engine takes it for made."""
    engine, watch = watched()
    engine.ask_storage("b", TEXT, 0)
    computed(engine, 2)
    engine.store([1, 2], [5, 6])
    if lands:
        engine.land()
    engine.refill("b", TEXT, [0, 1, 2, 3], known=2)

    assert watch.counts == {}


def test_refill_behind_a_refill_is_lawful_until_that_is_freed() -> None:
    """What storage has brought has a name, by which the next part finds it, whatever form the request is named in."""
    engine, watch = watched()
    engine.ask_storage("a", TEXT[:8], 0)
    engine.refill(SimpleNamespace(rid="a"), TEXT[:8], [0, 1])
    engine.ask_storage("b", TEXT, 8)
    engine.refill(SimpleNamespace(handle=SimpleNamespace(rid="b")), TEXT[8:12], [2])
    assert watch.counts == {}

    engine.free_host(1)
    engine.ask_storage("c", [*TEXT[:8], 7, 7, 7, 7], 8)
    engine.refill(SimpleNamespace(request_id="c"), [7, 7, 7, 7], [3])

    assert watch.counts == {"I11": 1}


def test_tenants_have_no_text_in_common() -> None:
    """The page ahead is there for another tenant only."""
    engine, watch = watched()
    engine.ask_storage("a", TEXT[:8], 0)
    engine.refill("a", TEXT[:8], [0, 1])
    engine.ask_storage("b", TEXT, 8, extra_key="another")
    engine.refill("b", TEXT[8:12], [2])

    assert watch.counts == {"I11": 1}


def test_refill_that_the_tree_drops_is_lawful() -> None:
    """Newer releases drop it: nothing is kept."""
    engine, watch = watched()
    engine.ask_storage("b", TEXT, 0)
    computed(engine, 2)
    engine.refill("b", TEXT, [0, 1, 2, 3], known=2, host_insert_dropped=True)

    assert watch.counts == {}


def test_engine_that_writes_back_has_gaps() -> None:
    """It evicts from the end of a text to its beginning and copies each page then."""
    engine, watch = watched()
    engine.controller.write_policy = "write_back"  # type: ignore[attr-defined]
    engine.ask_storage("b", TEXT, 0)
    computed(engine, 2)
    engine.refill("b", TEXT, [0, 1, 2, 3], known=2)

    assert watch.counts == {}


def test_refill_with_other_content_than_its_text_is_i6_when_it_is_read() -> None:
    """A page that the storage has brought is loaded, and the next request reads it as something else."""
    engine, watch = watched()
    engine.ask_storage("a", TEXT[:8], 0)
    engine.refill("a", TEXT[:8], [0, 1])
    producer = engine.load([1, 0], [1, 2])
    engine.take(3)
    engine.compute("b", TEXT[:9], [1, 2, 3], 8, waits=producer)

    assert set(watch.counts) == {"I6"}


EARS = [
    name
    for name, method in vars(StorageEars).items()
    if inspect.isfunction(method) and list(inspect.signature(method).parameters)[-2:] == ["args", "kwargs"]
]


@pytest.mark.parametrize("name", EARS)
def test_broken_ear_never_reaches_the_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree takes the pages as it does without a watch; the watch logs that it has failed, and detaches."""

    def broken(*_: object) -> None:
        raise RuntimeError("an ear is broken")

    monkeypatch.setattr(StorageEars, name, broken)
    taken: list[object] = []

    def insert_host(core: FakeCore, *args: object) -> object:
        taken.append(args)
        return core.taken

    monkeypatch.setattr(FakeCore, "insert_host", insert_host)
    engine, watch = watched()
    engine.ask_storage("a", TEXT[:8], 0)
    engine.refill("a", TEXT[:8], [0, 1])

    assert len(taken) == 1
    assert isinstance(watch.lost, RuntimeError)
    assert "check_prefetch_progress" not in vars(engine.tree_cache)


def at_rest_with_a_lost_page(engine: FakeEngine) -> None:
    """A read is given up when half of it has come: its last page is neither kept nor freed."""
    engine.ask_storage("a", TEXT, 0)
    engine.refill("a", TEXT[:8], [0, 1])
    engine.host.next = [2, 3]
    engine.host.alloc(8)
    engine.free_host(3)


def test_host_page_that_nobody_has_taken_is_i13() -> None:
    """It is named once, when nothing is under way that could still give it back."""
    engine, watch = watched()
    at_rest_with_a_lost_page(engine)
    engine.rest(STILL - 1)
    assert watch.counts == {}
    engine.rest(STILL)

    assert watch.counts == {"I13": 1}
    assert watch.violations[0].what.startswith(
        "1 slots, 2 among them, are handed out, and neither the cache nor a copy has them"
    )


@pytest.mark.parametrize(
    "what", ["read", "query", "thread", "backup", "queue", "taken later", "freed later", "stored", "late storage"]
)
def test_host_page_that_somebody_may_have_in_hand_is_lawful(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that the engine waits for, or that a thread works on; what waits in a queue to be freed."""
    engine, watch = watched() if what != "late storage" else (FakeEngine(), None)
    if watch is None:
        watch = attach(engine, Options(mode=WatchMode.LOG))
        vars(engine.tree_cache)["enable_storage"] = True
    tree: Any = engine.tree_cache
    at_rest_with_a_lost_page(engine)
    if what == "read":
        tree.ongoing_prefetch = {"a": None}
    elif what == "backup":
        tree.ongoing_backup[1] = None
    elif what == "queue":
        vars(engine.controller)["host_mem_release_queue"] = queue = Queue[object]()
        queue.put(2)
    elif what == "taken later":
        engine.tree_cache.tree_core.insert_host(0, SimpleNamespace(token_ids=[7] * 4), slots_of([2]), [])
    elif what == "freed later":
        engine.free_host(2)
    elif what == "stored":
        engine.take(9)
        engine.compute("b", TEXT[:4], [9])
        engine.controller.write_queue.append(
            SimpleNamespace(device_indices=slots_of([9]), host_indices=slots_of([2]), pool_transfers=[])
        )
        engine.controller.start_writing()
        engine.land()
        engine.free(9)
    if what in ("query", "thread"):
        name = "_storage_hit_query" if what == "query" else "_page_transfer"
        with monkeypatch.context() as patch:
            detach(engine)
            patch.setattr(FakeController, name, lambda *_: engine.rest(2 * STILL))
            watch = attach(engine, Options(mode=WatchMode.LOG))
            at_rest_with_a_lost_page(engine)
            assert "I13" not in watch.counts
    engine.rest(2 * STILL if what not in ("query", "thread") else 1)

    assert watch.counts == {}
    assert watch.lost is None


@pytest.mark.parametrize("how", ["not asked for", "other tokens", "pairs", "dropped"])
def test_refill_of_which_nothing_is_known_is_believed(how: str) -> None:
    """So is all that comes behind it."""
    engine, watch = watched()
    if how != "not asked for":
        engine.ask_storage("a", TEXT, 8)
    for number in range(NUM_ASKED if how == "dropped" else 0):
        engine.ask_storage(f"another {number}", TEXT, 8)
    tokens = TEXT[4:12] if how == "other tokens" else TEXT[8:16]
    if how == "pairs":
        key = SimpleNamespace(token_ids=tokens, is_bigram=True)
        engine.host.next = [0, 1]
        value = engine.host.alloc(8)
        core = engine.tree_cache.tree_core
        engine.tree_cache.comes = lambda: core.insert_host(0, key, value, [])  # type: ignore[method-assign, arg-type, assignment]
        engine.tree_cache.check_prefetch_progress("a")
    else:
        engine.refill("a", tokens, [0, 1])
    engine.ask_storage("b", TEXT, 8)
    engine.refill("b", TEXT[8:12], [4])

    assert watch.counts == {}
    assert watch.lost is None


def test_slots_know_what_content_is_in_any_of_them() -> None:
    """Two slots have the same; a name that comes late counts as soon as it is known; what is believed may be anything."""
    tokens = [1, 2]
    late = Text(2, more=lambda length: tokens[length:])
    text = Text(2, tokens=[1, 2, 3, 4])
    first, whole = text.name(2), text.name(4)
    assert first is not None
    assert whole is not None
    slots = SlotContents()
    slots.hand_out([0, 1, 2], None)
    slots.fill(0, HeldContent(text, 2))
    slots.fill(1, HeldContent(text, 2))
    slots.fill(2, HeldContent(late, 4))
    assert slots.may_have(first)
    assert not slots.may_have(whole)

    slots.drop(0)
    assert slots.may_have(first)
    slots.drop(1)
    assert not slots.may_have(first)
    tokens += [3, 4]
    assert slots.may_have(whole)
    slots.drop(2)
    assert not slots.may_have(whole)
    assert slots.may_have(whole, [[None, HeldContent(text, 4)]])

    slots.fill(3, UNSEEN)
    assert slots.may_have(first)
    slots.clear()
    assert not slots.may_have(first)
    assert len(slots) == 0
