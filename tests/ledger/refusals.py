"""Every refusal of the four machines as a sentence: `refusals.txt`, written anew by `make spec`."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from pathlib import Path

from blocklife.errors import RefusedError
from blocklife.ledger._refusals import Bystanders, Toucher, sentence
from blocklife.lifecycle import Table
from blocklife.states import MACHINES, Block, Request, Slot

PAGE = Path(__file__).with_name("refusals.txt")

HEAD = """\
Every refusal of the four machines, one per line: first the ledger's sentences, which name the jobs and requests at the place,
then those of the tables alone (a checked recording, a machine by itself). Written by `make spec`, and
compared by tests/ledger/test_refusals.py. Read a line that has changed as a sentence before you commit it.
"""

STORE, LOAD = Toucher("1.5", writes=False), Toucher("1.7", writes=True, load=True)
PLANNED = Toucher("1.5", writes=False, planned=True)
LATE = Toucher("1.5", writes=False, expired=True)
FILLS, FILLS_LATE = Toucher("1.5", writes=True), Toucher("1.5", writes=True, expired=True)
TAKES = Toucher("1.7", writes=False, load=True)

THERE: dict[enum.Enum, Bystanders] = {
    Block.ALLOCATED: Bystanders(requests=("a",)),
    Block.PLEDGED: Bystanders((PLANNED,), requests=("a",)),
    Block.LOADING: Bystanders((LOAD,), requests=("a",)),
    Block.SEALED: Bystanders(requests=("a", "b")),
    Block.PENDING_STORE: Bystanders((PLANNED,)),
    Block.IN_FLIGHT: Bystanders((STORE,)),
    Block.FLUSHED: Bystanders((STORE,), requests=("b",)),
    Block.STALE: Bystanders((STORE,)),
    Block.QUARANTINED: Bystanders((LATE,)),
    Slot.WRITING: Bystanders((FILLS,)),
    Slot.STALE: Bystanders((TAKES,)),
    Slot.QUARANTINED: Bystanders((FILLS_LATE,)),
    Request.LOADING: Bystanders((LOAD,)),
}
"""Who is usually at a place in each state."""

VALUES: dict[str, tuple[object, ...]] = {
    "fence": (True, False),
    "refs": (0, 2),
    "pins": (0, 1, 2),
    "writes": (0, 1),
    "overdue": (0, 1),
    "outstanding": (0, 1),
    "own": (True, False),
    "ok": (True, False),
}
"""Payloads that tell the ways of failing apart."""


def payloads(table: Table, event: str) -> Iterator[dict[str, object]]:
    """Every payload that the guards of an event tell apart."""
    names = table.events[event].parameters
    for values in itertools.product(*(VALUES[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def refused(table: Table, state: enum.Enum, event: str) -> list[dict[str, object]]:
    """The payloads with which an event is refused in a state; an empty one stands for all, where there is no row."""
    if not table.events[event].rows_of(state):
        return [{}]
    found = []
    for payload in payloads(table, event):
        facts = table.events[event].facts(payload)
        if isinstance(facts, int) and table.next_state(state, event, facts) is None:
            found.append(payload)
    return found


def at(machine: str, state: enum.Enum, payload: dict[str, object]) -> Bystanders:
    """Who is at a place of which a guard was told *payload*."""
    usual = THERE.get(state, Bystanders())
    pins, refs = payload.get("pins"), payload.get("refs")
    if machine == "slot" and isinstance(pins, int):
        return Bystanders((TAKES,), pinners=("b",) * (pins > 1))
    jobs = (*usual.jobs, LOAD) if payload.get("writes") else usual.jobs
    return Bystanders(jobs, ("a", "b")[:refs] if isinstance(refs, int) else usual.requests)


def lines() -> Iterator[str]:
    """The whole page."""
    yield from HEAD.splitlines()
    for machine, table in MACHINES.items():
        yield from ("", f"# {machine}, as the ledger says it")
        said: dict[str, None] = {}
        for event, state in itertools.product(table.events, table.states):
            for payload in refused(table, state, event):
                reason, remedy = sentence(machine, state, event, payload, at(machine, state, payload))
                said[str(RefusedError(THINGS[machine], state.name, event, remedy, reason=reason))] = None
        yield from said
        yield from ("", f"# {machine}, as its table says it")
        for event, state in itertools.product(table.events, table.states):
            if refused(table, state, event):
                yield str(table.refusal(table.name, state, event))


THINGS = {"block": "block 3", "slot": "slot 8", "job": "job 1.5", "request": "request a"}

if __name__ == "__main__":
    PAGE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
