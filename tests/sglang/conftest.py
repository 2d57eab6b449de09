"""Where SGLang cannot be imported, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

NEED_NO_SGLANG = {"test_linker_host.py", "test_tools.py"}


class Absent(pytest.Module):
    """A test module that is not imported, for what it imports is not here."""

    def collect(self) -> NoReturn:
        """No test: a reason."""
        pytest.skip("SGLang is not here (make sglang test-sglang)", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need SGLang from being imported without it."""
    if module_path.name in NEED_NO_SGLANG or importlib.util.find_spec("sglang") is not None:
        return None
    absent: pytest.Module = Absent.from_parent(parent, path=module_path)
    return absent


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """SGLang logs whatever it meets."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
