"""A pytest plugin: vLLM's own tests of its offloading scheduler, run against blocklife's connector and checked by the table.

``python -m tests.vllm.run 0.33.0 -p behaviour tests/v1/kv_connector/unit/offloading_connector/test_scheduler.py``

Rules of this file:

* Nothing of theirs is copied: their runner makes vLLM's real scheduler, in which ours is put in the place of their connector.
* What the table says passes is run, and has to pass; it has to have met ours as well. The rest is left out, with its verdict.
* With ``--behaviour-all`` the rest is run too, to see what has come to pass; it cannot make the run red.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import vllm
from vllm.v1.kv_cache_interface import FullAttentionSpec

from blocklife.engines.vllm._versions import SUPPORTED, minor_of

from . import connector
from .scan import Scan
from .stats import AdaptedStats
from .transfers import THEIRS, PlanMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.vllm.behaviour.table import Table

SUBJECT = "test_scheduler.py"
_NOT_OURS = ("spec_name", "spec_module_path", "block_size")
"""Keys of their configuration that say which mocks to take, and which say the same as the runner's own arguments."""
_TABLE = pytest.StashKey["Table"]()
_IS_TABLES = minor_of(vllm.__version__) == minor_of(SUPPORTED[-1])
"""Whether this is the release that the table is about: only there every case must be in it, and every case of it be there."""
_OTHERWISE = {("0.30.0", "test_two_groups_full_and_sliding_window")}
"""Tests that pass in the table's release, and ask for calls of ``touch`` in this one: such calls are not translated."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--behaviour-all", action="store_true", help="run what the table leaves out as well")


def _table() -> Table:
    """The table of the project: here, ``tests`` is another package."""
    path = Path(__file__).parents[2] / "behaviour" / "table.py"
    spec = importlib.util.spec_from_file_location("behaviour_table", path)
    if spec is None or spec.loader is None:
        raise pytest.UsageError(f"behaviour: {path} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    table: Table = module.Table.read()
    return table


def _adapted(theirs: ModuleType) -> type[Any]:
    """Their runner, which makes vLLM's real scheduler, with our connector in it."""
    make_config = theirs.KVTransferConfig
    base: type[Any] = theirs.RequestRunner

    class AdaptedRunner(base):  # type: ignore[misc]  # it is found when the tests are
        """The runner of theirs."""

        def __init__(self, block_size: int, num_gpu_blocks: int, blocks_per_chunk: int = 1, **kwargs: Any) -> None:
            def configured(**given: Any) -> Any:
                extra = {key: value for key, value in given["kv_connector_extra_config"].items() if key not in _NOT_OURS}
                if all(type(group.kv_cache_spec) is FullAttentionSpec for group in kwargs.get("kv_cache_groups") or ()):
                    extra["full_hit"] = "recompute_last_token"  # as theirs, which has no choice
                extra |= {"host_blocks": 1024 * blocks_per_chunk, "blocks_per_chunk": blocks_per_chunk, "checking": "strict"}
                return make_config(
                    kv_connector="AdaptedConnector",
                    kv_connector_module_path="behaviour.connector",
                    kv_role="kv_both",
                    kv_connector_extra_config=extra,
                    engine_id="adapted",
                )

            with mock.patch.object(theirs, "KVTransferConfig", configured):
                super().__init__(block_size, num_gpu_blocks, blocks_per_chunk, **kwargs)

    return AdaptedRunner


def _replace(modules: set[ModuleType]) -> None:
    """Put ours in the place of theirs."""
    theirs = importlib.import_module(THEIRS)
    names = {
        "OffloadingConnector": connector.AdaptedConnector,
        "OffloadingConnectorMetadata": PlanMetadata,
        "OffloadingConnectorScheduler": Scan,
        "OffloadingConnectorStats": AdaptedStats,
        "RequestRunner": _adapted(theirs),
    }
    for module in (theirs, *modules):
        for name, ours in names.items():
            if hasattr(module, name):
                setattr(module, name, ours)


def _named(item: pytest.Item) -> tuple[str, str]:
    """The function of an item, with its class, and the id of its case."""
    name, _, case = item.nodeid.partition("::")[2].partition("[")
    return name, case.removesuffix("]")


@pytest.hookimpl(tryfirst=True)  # before what runs failed tests again leaves all others out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Ask the table about every case, and leave out what is not to be run."""
    others = sorted({item.path.name for item in items} - {SUBJECT})
    if others:
        raise pytest.UsageError(f"behaviour: only {SUBJECT} can be run against our connector, not {', '.join(others)}")
    table = _table()
    named = {item: _named(item) for item in items}
    if _IS_TABLES and not config.option.keyword and not any("::" in argument for argument in config.args):
        problems = table.problems(named.values())
        if problems:
            raise pytest.UsageError("behaviour: the table and the tests do not agree:\n" + "\n".join(problems))
    _replace({item.module for item in items if isinstance(item, pytest.Function)})
    left_out = []
    for item, (test, case) in named.items():
        entry = table.entry_of(test, case)
        if entry is None and _IS_TABLES:
            raise pytest.UsageError(f"behaviour: {test} is not in the table")
        if entry is None or (vllm.__version__, test) in _OTHERWISE:
            left_out.append(item)
            item.add_marker(pytest.mark.xfail(reason="another test in this release", strict=False))
        elif entry.verdict != "passes":
            left_out.append(item)
            item.add_marker(pytest.mark.xfail(reason=f"{entry.verdict}: {entry.why or ', '.join(entry.by)}", strict=False))
    if not config.getoption("--behaviour-all"):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    config.stash[_TABLE] = table


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that passes without having met ours says nothing about it."""
    met = connector.AdaptedConnector.steps + Scan.calls
    yield
    if connector.AdaptedConnector.steps + Scan.calls == met:
        pytest.fail("this test has met nothing of ours (it cannot be one that passes)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the table says."""
    if (table := config.stash.get(_TABLE, None)) is not None:
        said = ", ".join(f"{verdict}: {table.total(verdict)[1]}" for verdict in ("passes", "same", "excluded"))
        terminalreporter.write_line(f"behaviour: cases by verdict: {said}; {connector.AdaptedConnector.steps} steps of ours")
