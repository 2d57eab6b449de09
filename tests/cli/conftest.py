"""What all tests of the commands share."""

from __future__ import annotations

import pytest

from blocklife.cli import _common as common


@pytest.fixture
def no_call_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of progress comes, however slow the machine is: these runs write nothing to standard error."""
    monkeypatch.setattr(common, "EVERY", float("inf"))
