"""What SGLang writes to a storage and reads from it: each page under its own key, which is told without reading a byte.

Goal: content under another content's key is named where it can be seen first, and nothing is said where all is as it should be.
Method: a storage that does nothing, and a test that plays the controller's part: it gives contents out, and fills pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach
from tests.watch.sglang_fakes import PAGE, FakeEngine, slots_of

TEXT = [*range(100, 100 + 4 * PAGE)]
KEYS = ["a", "b", "c"]
"""Those of the first pages of the text."""


class FakeStorage:
    """It finds what a test says."""

    def __init__(self) -> None:
        self.found: Any = None

    def batch_set(self, keys: list[str], values: list[object]) -> None:
        """Keep these contents."""

    def batch_set_v1(self, keys: list[str], host_indices: object) -> None:
        """Keep what is in these slots."""

    def batch_set_v2(self, transfers: list[object]) -> None:
        """The same for several memories."""

    def batch_get(self, keys: list[str], target_locations: list[object]) -> Any:
        """Find these contents."""
        return self.found

    def batch_get_v1(self, keys: list[str], host_indices: object) -> Any:
        """Read into these slots."""
        return self.found

    def batch_get_v2(self, transfers: list[object]) -> Any:
        """The same for several memories."""
        return self.found


class Stage:
    """An engine with three pages of a text on the host, and a storage behind them."""

    def __init__(self, reads: str = "_generic_page_get") -> None:
        self.engine = engine = FakeEngine(storage=True)
        self.storage, host, controller = FakeStorage(), engine.host, vars(engine.controller)
        controller |= {"storage_backend": self.storage, "write_storage": lambda *_: None, reads: lambda: None}
        controller["page_get_func"] = controller[reads]
        vars(host).update(get_data_page=lambda _: object(), set_from_flat_data_page=lambda *_: None)
        self.host, self.controller = host, SimpleNamespace(**controller)
        self.watch: Watch = attach(engine, Options(mode=WatchMode.COUNT))
        self.controller.write_storage = engine.controller.write_storage  # type: ignore[attr-defined]
        engine.take(1, 2, 3)
        engine.compute("first", TEXT[: 3 * PAGE], [1, 2, 3])
        engine.store([1, 2, 3], [0, 1, 2])
        engine.controller.ack_write_queue[0].finish_event.is_reached = True
        engine.tree_cache.writing_check()

    def publish(self, keys: Sequence[str], pages: Sequence[int], tokens: Sequence[int] = TEXT) -> None:
        """The tree wants these pages written under these keys."""
        self.controller.write_storage(slots_of(pages), [*tokens[: len(keys) * PAGE]], [*keys], None)

    def give_out(self, keys: Sequence[str], pages: Sequence[int]) -> None:
        """The controller gives the contents of these pages to the storage."""
        self.storage.batch_set([*keys], [self.host.get_data_page(np.int64(page * PAGE)) for page in pages])  # type: ignore[attr-defined]

    def write(self, keys: Sequence[str], pages: Sequence[int]) -> None:
        """The storage is told to write these pages."""
        self.storage.batch_set_v1([*keys], slots_of(pages))

    def write_parts(self, keys: Sequence[str], pages: Sequence[int]) -> None:
        """The same as one part of several."""
        part = SimpleNamespace(name=SimpleNamespace(name="KV"), keys=[*keys], host_indices=slots_of(pages))
        other = SimpleNamespace(name=SimpleNamespace(name="OTHER"), keys=["x"], host_indices=slots_of([9]))
        self.storage.batch_set_v2([other, part])

    def fill(self, keys: Sequence[str], pages: Sequence[int]) -> None:
        """What the storage has under these keys goes to these pages."""
        self.storage.found = [object() for _ in keys]
        for each, page in zip(self.storage.batch_get([*keys], [None] * len(keys)), pages, strict=False):
            self.host.set_from_flat_data_page(np.int64(page * PAGE), each)  # type: ignore[attr-defined]

    def read(self, keys: Sequence[str], pages: Sequence[int], num: int | None = None) -> None:
        """The storage reads so many of these pages itself."""
        self.storage.found = [at < (len(keys) if num is None else num) for at in range(len(keys))]
        self.storage.batch_get_v1([*keys], slots_of(pages))

    def come(self, pages: Sequence[int], fill: Callable[[], None]) -> None:
        """The first pages of the text come for a request, and the tree takes them."""
        engine, core, tokens = self.engine, self.engine.tree_cache.tree_core, TEXT[: len(pages) * PAGE]
        engine.ask_storage("second", TEXT, 0)
        self.host.next = [*pages]
        value = self.host.alloc(len(pages) * PAGE)
        assert value is not None
        fill()
        comes = lambda: core.insert_host(0, SimpleNamespace(token_ids=tokens), value, KEYS[: len(pages)])  # noqa: E731
        engine.tree_cache.comes = comes  # type: ignore[method-assign, assignment]
        engine.tree_cache.check_prefetch_progress("second")


def published(stage: Stage) -> None:
    """All three pages under their keys."""
    stage.publish(KEYS, [0, 1, 2])


RIGHT: dict[str, Callable[[Stage], None]] = {
    "given out": lambda stage: stage.give_out(KEYS, [0, 1, 2]),
    "written": lambda stage: stage.write(KEYS, [0, 1, 2]),
    "written in parts": lambda stage: stage.write_parts(KEYS, [0, 1, 2]),
    "published again": published,
    "another key": lambda stage: stage.write(["d"], [2]),
    "filled": lambda stage: stage.come([5, 6], lambda: stage.fill(KEYS[:2], [5, 6])),
    "read": lambda stage: stage.come([5, 6], lambda: stage.read(KEYS[:2], [5, 6])),
    "from elsewhere": lambda stage: stage.come([5, 6], lambda: stage.read(["x", "y"], [5, 6])),
}
WRONG: dict[str, tuple[str, str, Callable[[Stage], None]]] = {
    "given out": ("I8", "stands for other content", lambda stage: stage.give_out(KEYS, [1, 2, 0])),
    "written": ("I8", "stands for other content", lambda stage: stage.write(KEYS[:2], [2, 0])),
    "written in parts": ("I8", "stands for other content", lambda stage: stage.write_parts(KEYS[:2], [2, 0])),
    "free": ("I6", "is free", lambda stage: stage.write(["d"], [9])),
    "other tokens": ("I8", "holds other tokens", lambda stage: stage.publish(["d", "e"], [1, 0], TEXT[PAGE:])),
    "filled": ("I8", "something else was read", lambda stage: stage.come([5, 6], lambda: stage.fill(KEYS[:2], [6, 5]))),
    "read": ("I8", "something else was read", lambda stage: stage.come([5, 6], lambda: stage.read(["b", "a"], [5, 6]))),
    "not filled": ("I6", "nothing was read", lambda stage: stage.come([5, 6], lambda: stage.fill(KEYS[:1], [5]))),
    "not read": ("I6", "nothing was read", lambda stage: stage.come([5, 6], lambda: stage.read(KEYS[:2], [5, 6], 1))),
}


@pytest.mark.parametrize("name", RIGHT)
def test_page_under_its_own_key_is_right(name: str) -> None:
    """However it goes there, or comes from there; a key that was never seen is believed."""
    stage = Stage()
    published(stage)
    RIGHT[name](stage)

    assert stage.watch.counts == {}
    assert stage.watch.lost is None


@pytest.mark.parametrize("name", WRONG)
def test_page_under_the_key_of_other_content_is_named(name: str) -> None:
    """Once, with the slot."""
    rule, words, goes_wrong = WRONG[name]
    stage = Stage()
    published(stage)
    goes_wrong(stage)

    assert stage.watch.counts == {rule: 1}
    assert words in stage.watch.violations[0].what
    assert stage.watch.lost is None


def test_way_to_read_that_is_not_known_is_believed() -> None:
    """Nothing is said of pages that nobody was heard to fill."""
    stage = Stage(reads="_another_way")
    published(stage)
    stage.come([5, 6], lambda: None)

    assert stage.watch.counts == {}
