"""Argument checks of the offload scheduler for its own records, as `blocklife.ledger._edge` does for the ledger's."""

from __future__ import annotations

from collections.abc import Mapping

from blocklife.ledger import _edge as edge
from blocklife.offload.records import Placed


def tokens(values: object, name: str) -> Mapping[str, int]:
    """Check token counts by request."""
    if type(values) is not dict and not isinstance(values, Mapping):
        edge.refuse(name, "a mapping of requests to tokens", values)
    for key, value in values.items():
        if type(key) is not str or type(value) is not int or value > edge.MOST:
            edge.text(key, name)
            edge.whole(value, name)
    return values


def placed(values: object, name: str) -> list[Placed]:
    """Check what an allocator has appended to the tables of one request."""
    found = edge.members(values, Placed, name)
    for each in found:
        edge.whole(each.group, f"{name}.group")
        edge.whole(each.skipped, f"{name}.skipped")
        for kind in ("shared", "external", "fresh"):
            edge.counts(getattr(each, kind), f"{name}.{kind}")
    return found
