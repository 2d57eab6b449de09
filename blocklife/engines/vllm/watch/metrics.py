"""Counters for Prometheus, named as vLLM names its own, where the client library is there; else nothing.

They live in the process that watches. vLLM's own server shows them where that is its process, or where
``PROMETHEUS_MULTIPROC_DIR`` names a folder that all of its processes write to.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

PREFIX = "vllm:blocklife_watch_"
COUNTED = {
    "steps": "Steps of a connector that blocklife has watched.",
    "jobs": "Jobs that the watch has seen end.",
    "blocks_believed": "Blocks whose content the watch did not see come.",
    "copies_not_followed": "Blocks of copies that the watch could only wait for.",
}
"""Beside the violations: name to what is counted."""


class Counter(Protocol):
    """A counter of Prometheus."""

    def inc(self, amount: float = 1) -> None:
        """Count."""

    def labels(self, **labels: str) -> Counter:
        """The one with these labels."""


class Metrics:
    """The counters of one process. Without the client library every call does nothing."""

    def __init__(self, registry: object | None = None) -> None:
        self._violations: Counter | None = None
        self._others: dict[str, Counter] = {}
        self._told: dict[str, int] = {}
        try:
            client = importlib.import_module("prometheus_client")
        except ImportError:
            return
        where = {} if registry is None else {"registry": registry}
        self._violations = client.Counter(
            PREFIX + "violations", "Illegal steps of vLLM that blocklife has seen, by rule.", ["rule"], **where
        )
        self._others = {name: client.Counter(PREFIX + name, about, **where) for name, about in COUNTED.items()}

    def violated(self, rule: str) -> None:
        """One more violation."""
        if self._violations is not None:
            self._violations.labels(rule=rule).inc()

    def tell(self, watch: int, now: Mapping[str, int]) -> None:
        """Bring the other counters to where a watch is now."""
        for name, counter in self._others.items():
            told = self._told.get(f"{watch} {name}", 0)
            if now[name] > told:
                counter.inc(now[name] - told)
                self._told[f"{watch} {name}"] = now[name]

    def forget(self, watch: int) -> None:
        """A watch is over; what it counted stays counted."""
        for name in self._others:
            self._told.pop(f"{watch} {name}", None)


_all: list[Metrics] = []


def of_process() -> Metrics:
    """Those of this process, in the registry that everybody uses: one set, however many watches there are."""
    if not _all:
        _all.append(Metrics())
    return _all[0]
