"""Where tests that need a GPU are skipped without one, and where it is said that they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

REASON = "needs a CUDA device, and torch sees none"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture asks the device for something."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip(REASON)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Copies as small as these wait longer for other threads of torch than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A warning of a driver or of its bindings is shown, but takes no run on a GPU away."""
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.filterwarnings("default"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """A run that asked for nothing but tests of a GPU says on what it ran, or that it showed nothing."""
    if config.option.markexpr != "gpu":
        return
    terminalreporter.section("gpu")
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        terminalreporter.write_line(f"ran on {name}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    else:
        terminalreporter.write_line(f"NOTHING WAS TESTED: every test of this run {REASON}", red=True, bold=True)
