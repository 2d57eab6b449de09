"""A pytest plugin for SGLang's own tests: a watch over every tree with host memory that a test makes.

``python -m tests.sglang.run --theirs VERSION -p watched``. It counts unless another mode is asked for as of SGLang itself
(``BLOCKLIFE_WATCH``). Lines at the end say how much was watched, and which tests broke which rule.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from blocklife.engines.sglang import watch
from blocklife.errors import MisuseError

MADE = (
    ("sglang.srt.mem_cache.unified_radix_cache", "UnifiedRadixCache", "init_hicache"),
    ("sglang.srt.mem_cache.hiradix_cache", "HiRadixCache", "__init__"),
)
"""Where a tree has got its host memory."""
_WATCHES = pytest.StashKey[list[tuple[str, watch.Watch]]]()
_NOW: list[str] = [""]


def _watching(made: Callable[..., None], options: watch.Options, watches: list[tuple[str, watch.Watch]]) -> Callable[..., None]:
    @functools.wraps(made)
    def through(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        with contextlib.suppress(MisuseError):  # a part that a test has made of fakes has nothing to watch
            watches.append((_NOW[0], watch.attach(self, options)))

    return through


def pytest_configure(config: pytest.Config) -> None:
    """Watch whatever is made from now on."""
    watches: list[tuple[str, watch.Watch]] = []
    config.stash[_WATCHES] = watches
    options = watch.Options.from_environment() or watch.Options(mode=watch.WatchMode.COUNT)
    for module, kind, name in MADE:
        try:
            owner = getattr(importlib.import_module(module), kind)
        except (ImportError, AttributeError):
            continue
        setattr(owner, name, _watching(getattr(owner, name), options, watches))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember which test makes what."""
    _NOW[0] = item.nodeid


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how much was watched, and what was named."""
    watches = config.stash[_WATCHES]
    jobs = sum(each.mirror.counts["jobs"] for _, each in watches)
    lost = Counter(repr(each.lost) for _, each in watches if each.lost is not None)
    tests = len({test for test, _ in watches})
    terminalreporter.write_line(f"watched: {len(watches)} trees of {tests} tests, {jobs} copies; lost {dict(lost)}")
    for test, each in watches:
        if each.counts:
            first = next(iter(each.violations), None)
            terminalreporter.write_line(
                f"named in {test}: {dict(each.counts)}: {first.what if first is not None else ''}"[:300]
            )
