"""Where no real model can run, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from tests.model.shelf import MODELS

NEED_NO_MODEL = {"test_model_tools.py", "test_bench_report.py"}


class Absent(pytest.Module):
    """A test module that is not imported, for what it imports is not here."""

    def collect(self) -> NoReturn:
        """No test: a reason."""
        pytest.skip("no real model is here (make model test-model)", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need vLLM and its kernels from being imported without them."""
    if module_path.name in NEED_NO_MODEL or MODELS in os.environ:
        return None
    absent: pytest.Module = Absent.from_parent(parent, path=module_path)
    return absent
