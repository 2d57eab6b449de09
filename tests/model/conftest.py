"""Where no real model can run, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.behind.absent import absent
from tests.model.shelf import MODELS

NEED_NO_MODEL = {"test_model_tools.py", "test_bench_report.py"}


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need vLLM and its kernels from being imported without them."""
    needs, is_here = module_path.name not in NEED_NO_MODEL, MODELS in os.environ
    why = "no real model is here (make model test-model)" if needs else "it needs no real model (make unit runs it)"
    return absent(module_path, parent, why if needs is not is_here else None)
