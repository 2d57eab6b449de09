"""Where LMCache cannot be imported, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behind.absent import absent, why_not

NEED_NOTHING = {"test_turns.py"}


def out_of_place(name: str) -> str | None:
    """Why a test module is not for the release that is here, if it is not."""
    return "no scenario is made up for LMCache alone" if name == "test_scenarios.py" else None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need LMCache from being imported without it."""
    return absent(module_path, parent, why_not("lmcache", module_path.name, NEED_NOTHING, out_of_place))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """LMCache logs whatever it meets."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
