"""Where SGLang cannot be imported, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklife.engines.sglang._versions import LINKED, numbers_of
from tests.behind.absent import absent, why_not

NEED_LINKED = {"test_linker.py", "test_planted_bugs.py"}
"""They are for the release that our linker takes, in which bugs are planted, too."""
NEED_NOTHING = {"test_linker_host.py", "test_tools.py", "test_turns.py"}


def out_of_place(name: str) -> str | None:
    """Why a test module is not for the release that is here, if it is not."""
    linked = numbers_of(importlib.metadata.version("sglang")) == numbers_of(LINKED)
    return None if linked or name not in NEED_LINKED else f"it is about SGLang {LINKED}"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need SGLang from being imported without it."""
    return absent(module_path, parent, why_not("sglang", module_path.name, NEED_NOTHING, out_of_place))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """SGLang logs whatever it meets."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
