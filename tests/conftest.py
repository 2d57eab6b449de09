"""What holds for the tests of all rooms."""

from __future__ import annotations

import pytest

from blocklife.cli._built import examine
from blocklife.core._columns import Core, zeros
from tests.sparing import mark_the_rest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Ahead of pytest's own choice by markers."""
    mark_the_rest(items, config.args)


def _make_room(core: Core, count: int) -> None:
    """Room for so many places and not one more, and none before the first call that needs some.

    A function of the core that fills scratch columns without having made room writes behind their end. Where the core is
    compiled that is not noticed, and with the room that the core makes ahead, a test of a few blocks would not notice either.
    """
    if count > core.room:
        core.room = count
        core.ids, core.slot_ids, core.entering = zeros("i", count), zeros("i", count), zeros("i", count)
        core.rows, core.own = bytearray(count), bytearray(count)
        core.slot_rows, core.unwanted = bytearray(count), bytearray(count)


def pytest_configure() -> None:
    """Where the core is interpreted, it has no room to spare."""
    if not examine().compiled:
        setattr(Core, "make_room", _make_room)  # noqa: B010  # mypy lets no method be replaced otherwise
