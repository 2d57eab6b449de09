"""Ears on what workers and the scheduler ask of the server: transfers over shared memory, locks that are given back, ends."""

from __future__ import annotations

from functools import partial
from typing import Any

from blocklife.engines.lmcache.watch._book import WorkerTransfer
from blocklife.engines.lmcache.watch._l2 import ControllerEars
from blocklife.engines.lmcache.watch._parts import ServerParts
from blocklife.watch import Ears, HeardCall


class TransferEars:
    """Ears on the modules of one server."""

    def __init__(self, ears: Ears, parts: ServerParts, controllers: ControllerEars) -> None:
        self._parts = parts
        self._book = parts.book
        transfer, lookup = parts.module("prepare_store"), parts.module("free_lookup_locks")
        for writes, verb in ((True, "store"), (False, "retrieve")):
            prepares, commits = f"prepare_{verb}", f"commit_{verb}"
            ears.hear(
                transfer,
                prepares,
                before=self._comes,
                after=partial(self._prepared, writes),
                last=self._is_over,
                tells="transfers of workers",
            )
            ears.hear(
                transfer,
                commits,
                before=partial(self._commits, writes),
                after=partial(self._committed, writes),
                last=self._is_over,
            )
        ears.hear(transfer, "_release_entry", after=self._released)
        ears.hear(lookup, "free_lookup_locks", before=self._comes, last=self._is_over, tells="ends of requests")
        ears.hear(lookup, "end_session", before=lambda call: controllers.ended(str(call.first)))

    def _comes(self, call: HeardCall) -> None:
        self._parts.who.request = _request(call)

    def _is_over(self) -> None:
        self._parts.who.request = None

    def _prepared(self, writes: bool, call: HeardCall) -> None:
        response: Any = call.result
        slots = response.context.get("slots") or ()
        align = self._parts.align
        places = [int(each["offset"]) // align for each in slots]
        worker = int(str(call.given("key", "instance_id")[1]))
        if not writes and not response.success:
            self._book.gone(worker, _request(call))
        elif places:
            self._book.prepared(_of(writes, call), WorkerTransfer(worker, _request(call), places, writes))

    def _commits(self, writes: bool, call: HeardCall) -> None:
        self._comes(call)
        self._book.commits(_of(writes, call))

    def _committed(self, writes: bool, call: HeardCall) -> None:
        self._book.committed(_of(writes, call))

    def _released(self, call: HeardCall) -> None:
        self._book.forgets(int(str(call.first)))


def _request(call: HeardCall) -> str:
    return str(getattr(call.first, "request_id", ""))


def _of(writes: bool, call: HeardCall) -> object:
    """What LMCache's own table of transfers does not tell apart: the same text, for another request."""
    key, worker = call.given("key", "instance_id")
    return writes, worker, _request(call), key
