"""``pytest --hasty`` switches the planted bug on."""

from __future__ import annotations

import pytest
from driver import YourDriver


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hasty", action="store_true", help="hand blocks out although a copy reads them: the planted bug")


@pytest.fixture
def hasty(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--hasty"))


def pytest_configure(config: pytest.Config) -> None:
    YourDriver.hasty = bool(config.getoption("--hasty"))
