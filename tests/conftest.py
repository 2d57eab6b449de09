"""What holds for the tests of all rooms."""

from __future__ import annotations

import pytest

from tests.sparing import mark_the_rest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Ahead of pytest's own choice by markers."""
    mark_the_rest(items, config.args)
