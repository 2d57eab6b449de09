"""How many calls of our own functions a verb takes, and how often they change from one file of the package to another.

Both are what a reader walks through who follows one verb, and most of what the verb costs on one life: so they are counted, and
not timed. A comprehension counts as a call, as Python 3.11 makes one of it. The peer is the core as it was before: of single
verbs before its first rebuild, of whole paths before the kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from attrs import define

import blocklife
from blocklife.ledger import Completion, Ledger, Limits, Result, Store, Worker
from blocklife.offload import Geometry, HostTier, OffloadScheduler
from tests.bench import Figure, Scale

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

BEFORE = {
    "allocate": (27, 14),
    "seal": (39, 17),
    "plan_store": (90, 52),
    "dispatch": (48, 20),
    "settle": (89, 38),
    "lookup": (42, 23),
    "admit": (72, 46),
}
"""Calls, and changes of file, of each verb before."""
PATHS = {
    "build_plan that plans a store": (109, 57),
    "lookup with a host hit": (74, 50),
    "admit with a load": (150, 90),
    "build_plan that submits a load": (49, 23),
    "settle with a load": (85, 52),
}
"""The same of what a request with a prompt of two blocks takes: the first computes and stores it, the second loads it."""
_ROOM = str(Path(blocklife.__file__).parent)


@define
class Walk:
    """What one call has walked through."""

    calls: int = 0
    changes: int = 0
    _last: str = ""

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Called by the interpreter."""
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_ROOM):
            self.calls += 1
            self.changes += bool(self._last) and file != self._last
            self._last = file


def walked(walk: Walk, verb: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """Call a verb, and count what it walks through."""
    before = sys.getprofile()
    sys.setprofile(walk.note)
    try:
        return verb(*args, **kwargs)
    finally:
        sys.setprofile(before)


def walks() -> dict[str, Walk]:
    """Each verb once: one block of a request is allocated, sealed, stored and landed, and another request is let in."""
    found = {verb: Walk() for verb in BEFORE}
    limits = Limits(num_blocks=64, num_slots=64, max_requests=8)
    ledger = Ledger(limits)
    ledger.add_request("a")
    ledger.admit("a")
    opened = walked(found["allocate"], ledger.allocate, "a", 1)
    final = walked(found["seal"], ledger.seal, opened, [b"k"])
    walked(found["plan_store"], ledger.plan_store, Store.of(final, [0], [b"k"], owner="a"))
    plan = walked(found["dispatch"], ledger.dispatch, 0.0)
    landed = [Completion(job, Worker(0), Result.OK) for job in plan.submitted]
    walked(found["settle"], ledger.settle, plan.number, 0.0, completions=landed)
    other = Ledger(limits)
    offload = OffloadScheduler(other, HostTier(other), Geometry.parse("full:4"))
    offload.add_request("r", lambda _group, start, stop: [bytes([at]) for at in range(start, stop)], prompt_tokens=9)
    hit = walked(found["lookup"], offload.lookup, "r", 9)
    walked(found["admit"], offload.admit, "r", hit, 9)
    return found


def paths() -> dict[str, Walk]:
    """Each path once. The prompt is computed, stored and lost by the device; then another request loads it."""
    found = {path: Walk() for path in PATHS}
    ledger = Ledger(Limits(num_blocks=64, num_slots=64, max_requests=8))
    offload = OffloadScheduler(ledger, HostTier(ledger), Geometry.parse("full:4"))

    def add(name: str) -> None:
        offload.add_request(name, lambda _group, start, stop: [bytes([at]) for at in range(start, stop)], prompt_tokens=9)

    def step(build: Walk, settle: Walk) -> None:
        plan = walked(build, offload.build_plan, 0.0)
        landed = [Completion(job, Worker(0), Result.OK) for job in plan.submitted]
        walked(settle, offload.settle, plan.number, 0.0, completions=landed)

    add("first")
    offload.admit("first", offload.lookup("first", 9), 9)
    step(found["build_plan that plans a store"], Walk())
    step(Walk(), Walk())
    offload.finish("first")
    offload.sleep()  # the device forgets its content
    while offload.has_pending_work():
        step(Walk(), Walk())
    offload.wake()
    add("second")
    hit = walked(found["lookup with a host hit"], offload.lookup, "second", 9)
    walked(found["admit with a load"], offload.admit, "second", hit, 0)
    step(found["build_plan that submits a load"], found["settle with a load"])
    return found


def measure(_scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    figures = []
    paths()  # what is computed once in a process does not count
    for verb, walk in (walks() | paths()).items():
        calls, changes = (BEFORE | PATHS)[verb]
        for name, ours, peer in (("calls", walk.calls, calls), ("changes of file", walk.changes, changes)):
            figures.append(
                Figure(
                    name=f"{verb}, {name}",
                    ours=float(ours),
                    unit=name,
                    peer_name="the core as it was",
                    peer=float(peer),
                    target=f"at most half: {peer / 2:g}",
                )
            )
    return figures
