"""A pytest plugin for a release's own tests: none of them cleans up an accelerator that is not there.

vLLM's tests collect garbage and empty the accelerator's cache after each test, about 0.4 s a time, unless a test carries vLLM's
own mark for tests that have nothing to clean up. On the scheduler's side that is true of all and few carry it, so all get it.
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test gets the mark."""
    for item in items:
        item.add_marker(pytest.mark.skip_global_cleanup)
