"""Where vLLM cannot be imported, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NoReturn

import pytest

from blocklife.engines.vllm._versions import SUPPORTED, is_supported
from tests.vllm.releases import MODEL

NEED_NO_VLLM = {"test_tools.py"}
NEED_ONE_RELEASE = (
    "test_connector",
    "test_behaviour",
    "test_peers",
    "test_planted",
    "test_programs",
    "test_reports",
    "test_tiers",
)


class Absent(pytest.Module):
    """A test module that is not imported, for what it imports is not here."""

    why = "vLLM is not here (make vllm test-vllm)"

    def collect(self) -> NoReturn:
        """No test: a reason."""
        pytest.skip(self.why, allow_module_level=True)


class Other(Absent):
    """A test module of what is made for the connector's release, under another one."""

    why = f"the connector, and what is planted, is for vLLM {SUPPORTED}.x"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need vLLM from being imported without it, and those that need one release under another."""
    if module_path.name in NEED_NO_VLLM:
        return None
    if importlib.util.find_spec("vllm") is None:
        absent: pytest.Module = Absent.from_parent(parent, path=module_path)
        return absent
    if module_path.name.startswith(NEED_ONE_RELEASE):
        from tests.vllm.engine import RELEASE

        if not is_supported(RELEASE):
            other: pytest.Module = Other.from_parent(parent, path=module_path)
            return other
    return None


@pytest.fixture
def opt_125m() -> str:
    """A model for vLLM's configuration: it has a shape and no weights."""
    import vllm

    return str(Path(vllm.__file__).parents[1] / MODEL)
