"""Argument checks of the offload scheduler for its own records, as `tests.oracle.ledger._edge` does for the ledger's."""

from __future__ import annotations

from collections.abc import Mapping

from tests.oracle.ledger import _edge as edge
from tests.oracle.offload.records import Freed, HandedOff, Placed, Step


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


def step(value: object, name: str) -> Step:
    """Check all parts of a step."""
    found = edge.member(value, Step, name)
    edge.moment(found.now, f"{name}.now")
    for kind in ("finished", "aborted", "preempted"):
        edge.texts(getattr(found, kind), f"{name}.{kind}")
    for freed in edge.members(found.freed, Freed, f"{name}.freed"):
        edge.text(freed.request, f"{name}.freed.request")
        edge.whole(freed.group, f"{name}.freed.group")
        edge.counts(freed.blocks, f"{name}.freed.blocks")
    behind: object = found.placed
    if not isinstance(behind, Mapping):
        edge.refuse(f"{name}.placed", "a mapping of requests to what was placed for them", behind)
    for own in behind.values():
        placed(own, f"{name}.placed")
    tokens(found.admitted, f"{name}.admitted")
    tokens(found.tokens, f"{name}.tokens")
    for handed in edge.members(found.handed_off, HandedOff, f"{name}.handed_off"):
        edge.text(handed.request, f"{name}.handed_off.request")
        edge.whole(handed.group, f"{name}.handed_off.group")
        edge.whole(handed.boundary, f"{name}.handed_off.boundary")
    edge.counts(found.going, f"{name}.going")
    return found
