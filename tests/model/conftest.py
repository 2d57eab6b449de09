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

    why = "no real model is here (make model test-model)"

    def collect(self) -> NoReturn:
        """No test: a reason."""
        pytest.skip(self.why, allow_module_level=True)


class Elsewhere(Absent):
    """A test module that needs no real model, and is run where there is none."""

    why = "it needs no real model (make unit runs it)"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need vLLM and its kernels from being imported without them."""
    needs, is_here = module_path.name not in NEED_NO_MODEL, MODELS in os.environ
    if needs is is_here:
        return None
    kind = Absent if needs else Elsewhere
    left_out: pytest.Module = kind.from_parent(parent, path=module_path)
    return left_out
