"""Where SGLang cannot be imported, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from blocklife.engines.sglang._versions import LINKED, numbers_of

NEED_LINKED = {"test_linker.py"}
"""They are for the release that our linker takes."""
NEED_NO_SGLANG = {"test_linker_host.py", "test_tools.py", "test_turns.py"}


class Absent(pytest.Module):
    """A test module that is not imported, for what it imports is not here."""

    why = "SGLang is not here (make sglang test-sglang)"

    def collect(self) -> NoReturn:
        """No test: a reason."""
        pytest.skip(self.why, allow_module_level=True)


class Elsewhere(Absent):
    """A test module that needs no SGLang, and is run where there is none."""

    why = "it needs no SGLang (make unit runs it)"


class Unlinked(Absent):
    """A test module of the linker, under a release that it does not support."""

    why = f"the linker is for SGLang {LINKED}"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need SGLang from being imported without it."""
    is_here = importlib.util.find_spec("sglang") is not None
    kind: type[Absent] | None = Absent
    if module_path.name in NEED_NO_SGLANG:
        kind = Elsewhere if is_here else None
    elif is_here:
        linked = numbers_of(importlib.metadata.version("sglang")) == numbers_of(LINKED)
        kind = None if linked or module_path.name not in NEED_LINKED else Unlinked
    if kind is None:
        return None
    left_out: pytest.Module = kind.from_parent(parent, path=module_path)
    return left_out


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """SGLang logs whatever it meets."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
