"""Where vLLM cannot be imported, the tests of this folder are skipped and say why, but for those of the tools themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from blocklife.engines.vllm._versions import SUPPORTED, is_supported, minor_of
from tests.behind.absent import absent, why_not

NEED_NOTHING = {"test_tools.py"}
NEED_CONNECTOR = ("test_connector", "test_behaviour", "test_fuzz")
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
DRIVEN = (*WATCHED, "0.30")
"""Those in which scenarios are run."""
NEED_NEWEST = ("test_figures", "test_peers", "test_planted", "test_programs", "test_tiers")
"""They are about what is in the newest release only: bugs planted or found there, tiers below the host, benches."""


def out_of_place(name: str) -> str | None:
    """Why a test module is not for the release that is here, if it is not."""
    if not name.startswith((*NEED_CONNECTOR, *NEED_WATCHED, *NEED_NEWEST)):
        return None
    from tests.vllm.engine import RELEASE

    if name.startswith(NEED_CONNECTOR) and not is_supported(RELEASE):
        return f"the connector is for vLLM {SUPPORTED[0]}.x to {SUPPORTED[-1]}.x"
    if name in SINCE and minor_of(RELEASE) < minor_of(SINCE[name]):
        return "this release has no sources of hits, tells the connector nothing of sleep mode, or has no guesses beside states"
    taken = DRIVEN if name.startswith("test_scenarios") else WATCHED
    if name.startswith(NEED_WATCHED) and minor_of(RELEASE) not in map(minor_of, taken):
        return f"scenarios, the rig and the watch are tested with vLLM {', '.join(taken)}"
    if name.startswith(NEED_NEWEST) and minor_of(RELEASE) != minor_of(SUPPORTED[-1]):
        return f"it is about vLLM {SUPPORTED[-1]}.x"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the random walks of the connector an older release plays every second one; the others are for the night."""
    walks = [item for item in items if item.path.name == "test_connector_walks.py"]
    if walks:
        from tests.vllm.engine import RELEASE

        if minor_of(RELEASE) != minor_of(SUPPORTED[-1]):
            for item in walks[1::2]:
                item.add_marker("slow")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need vLLM from being imported without it, and those that need one release under another."""
    return absent(module_path, parent, why_not("vllm", module_path.name, NEED_NOTHING, out_of_place))
