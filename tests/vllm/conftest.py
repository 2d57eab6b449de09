"""Where vLLM cannot be imported, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NoReturn

import pytest

from blocklife.engines.vllm._versions import SUPPORTED, is_supported, minor_of
from tests.vllm.releases import MODEL

NEED_NO_VLLM = {"test_tools.py"}
NEED_CONNECTOR = ("test_connector", "test_behaviour", "test_fuzz", "test_programs")
SINCE = {
    "test_behaviour_sources.py": "0.32",
    "test_behaviour_tails.py": "0.33",
    "test_connector_sources.py": "0.32",
    "test_connector_sleep.py": "0.33",
    "test_connector_guessed_states.py": "0.33",
}
"""The first release that has what a module is about."""
NEED_WATCHED = ("test_rig", "test_scenarios", "test_watch")
"""They say what is found in vLLM's own connectors in each of `WATCHED`."""
WATCHED = ("0.21", "0.22", "0.23", "0.33")
NEED_NEWEST = ("test_peers", "test_planted", "test_reports", "test_tiers")
"""They are about what is in the newest release only: bugs that are planted or were found there, tiers below the host."""


class Absent(pytest.Module):
    """A test module that is not imported, for what it imports is not here."""

    why = "vLLM is not here (make vllm test-vllm)"

    def collect(self) -> NoReturn:
        """No test: a reason."""
        pytest.skip(self.why, allow_module_level=True)


class Elsewhere(Absent):
    """A test module that needs no vLLM, and is run where there is none."""

    why = "it needs no vLLM (make unit runs it)"


class Unsupported(Absent):
    """A test module of the connector, under a release that it does not support."""

    why = f"the connector is for vLLM {SUPPORTED[0]}.x to {SUPPORTED[-1]}.x"


class TooOld(Absent):
    """A test module about what the release does not have yet."""

    why = "this release has no sources of hits, tells the connector nothing of sleep mode, or has no guesses beside states"


class Unwatched(Absent):
    """A test module about vLLM's own connectors, under a release in which nobody has looked what they do wrong."""

    why = f"scenarios, the rig and the watch are tested with vLLM {', '.join(WATCHED)}"


class Older(Absent):
    """A test module of what is in the newest release only, under an older one."""

    why = f"it is about vLLM {SUPPORTED[-1]}.x"


def _out_of_place(name: str) -> type[Absent] | None:
    """Why a test module is not for the release that is here, if it is not."""
    if not name.startswith((*NEED_CONNECTOR, *NEED_WATCHED, *NEED_NEWEST)):
        return None
    from tests.vllm.engine import RELEASE

    if name.startswith(NEED_CONNECTOR) and not is_supported(RELEASE):
        return Unsupported
    if name in SINCE and minor_of(RELEASE) < minor_of(SINCE[name]):
        return TooOld
    if name.startswith(NEED_WATCHED) and minor_of(RELEASE) not in map(minor_of, WATCHED):
        return Unwatched
    if name.startswith(NEED_NEWEST) and minor_of(RELEASE) != minor_of(SUPPORTED[-1]):
        return Older
    return None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need vLLM from being imported without it, and those that need one release under another."""
    is_here = importlib.util.find_spec("vllm") is not None
    kind: type[Absent] | None = Absent
    if module_path.name in NEED_NO_VLLM:
        kind = Elsewhere if is_here else None
    elif is_here:
        kind = _out_of_place(module_path.name)
    if kind is None:
        return None
    left_out: pytest.Module = kind.from_parent(parent, path=module_path)
    return left_out


@pytest.fixture
def opt_125m() -> str:
    """A model for vLLM's configuration: it has a shape and no weights."""
    import vllm

    return str(Path(vllm.__file__).parents[1] / MODEL)
