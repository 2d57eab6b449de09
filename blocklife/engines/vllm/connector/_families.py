"""The metrics of the connector: what each is called, its labels, and how often it is told. Imports nothing of vLLM.

Rules of this file:

* Metrics that vLLM's OffloadingConnector also has keep its names, so that dashboards work for both.
* All values of a label are listed, so that every series exists, at zero, before its first event: otherwise Prometheus would not
  see the first increase.
* ``specs/metrics.md``, the dashboard and the alerts are made from this table, or compared with it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from itertools import product

from attrs import field, frozen

from blocklife.ledger import Direction

COUNTS_EVERY = 8
"""Steps between two payloads while requests are served: to compare all counts takes a fortieth of what the connector takes."""
GAUGES_EVERY = 64
"""Steps between two counts of the host tier: counting it takes longer still. A multiple of the other."""
SEPARATOR = "/"
"""Between the values of two labels in a payload's key."""


class MetricKind(enum.Enum):
    """How values of one metric are merged."""

    COUNTER = "added up"
    GAUGE = "the latest counts"
    HISTOGRAM = "all are kept"


@frozen
class Metric:
    """One metric."""

    name: str
    kind: MetricKind
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Each label with all its values; for groups, whose numbers only the scheduler side knows, vLLM's first one."""
    buckets: tuple[float, ...] = ()
    means: Mapping[str, str] = field(factory=dict)
    """What each value of the labels stands for."""
    every: int = COUNTS_EVERY
    """Steps between two times that it is told, while requests are served."""

    @property
    def series(self) -> Iterator[tuple[str, ...]]:
        """The label values, after vLLM's own labels, of each series that exists from the start."""
        return product(*self.labels.values())

    def labels_of(self, key: str) -> tuple[str, ...]:
        """The label values that a key of a payload stands for."""
        return tuple(key.split(SEPARATOR)) if self.labels else ()


def key_of(*values: str) -> str:
    """The key of a payload for these label values: empty without any."""
    return SEPARATOR.join(values)


DIRECTIONS = tuple(each.name.lower() for each in Direction)
SLOTS = {
    "empty": "nothing is in it",
    "evictable": "content that can be loaded, or makes room for a store",
    "pinned": "content that a load, a lookup or a demotion needs now",
    "writing": "a store or a promotion fills it",
    "freeing_soon": "forgotten content that a copy or a lookup still needs; empty after that",
    "quarantined": "unusable: a copy past its deadline may still write it. A rise is bad",
}
"""The states of a slot, as `TierStatistics` has them, and what each means."""
_SIZES = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
_SYNC_DELAYS = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0)
_ASYNC_DELAYS = (1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
PREFIX = "vllm:kv_offload_"
PROMOTIONS = {
    "promoted": "promoted",
    "missing": "missing",
    "failed": "failed_promotions",
    "no room": "no_room",
}
"""Outcomes, and where `BelowStatistics` has them; likewise below, and in `PresenceStatistics`."""
DEMOTIONS = {
    "demoted": "demoted",
    "there already": "already_below",
    "refused": "refused",
    "failed": "failed_demotions",
    "lost": "lost",
}
ANSWERS = {"hit": "hits", "miss": "misses", "retry": "retries", "refused": "refused", "given up": "given_up"}
FAULTS = {
    "damaged": "what the store brought was cut or changed",
    "foreign": "what it brought was made for something else",
    "failed": "it could not do it, or not in time",
    "skipped": "not tried, because the store was down",
    "hung": "a call did not come back in time",
}
"""Kinds of faults, as `MovedBelow` has them, and what each means."""

METRICS: Mapping[str, Metric] = {
    each.name: each
    for each in (
        Metric(PREFIX + "load_bytes", MetricKind.COUNTER, "Bytes that loads brought from host memory to the device."),
        Metric(PREFIX + "load_time", MetricKind.COUNTER, "Seconds that the copies of loads took, by the device's clock."),
        Metric(PREFIX + "load_size", MetricKind.HISTOGRAM, "Bytes of each load.", buckets=_SIZES),
        Metric(PREFIX + "store_bytes", MetricKind.COUNTER, "Bytes that stores brought from the device to host memory."),
        Metric(PREFIX + "store_time", MetricKind.COUNTER, "Seconds that the copies of stores took, by the device's clock."),
        Metric(PREFIX + "store_size", MetricKind.HISTOGRAM, "Bytes of each store.", buckets=_SIZES),
        Metric(
            PREFIX + "allocation_failure",
            MetricKind.COUNTER,
            "Stores for which the host tier had no room; they are tried again.",
        ),
        Metric(
            PREFIX + "failed_loads",
            MetricKind.COUNTER,
            "Loads that failed: the request ends with an error, or is computed again (kv_load_failure_policy).",
        ),
        Metric(
            PREFIX + "host_damaged",
            MetricKind.COUNTER,
            "Blocks of host memory in which a load found other bytes than were stored (host_checksums).",
        ),
        Metric(PREFIX + "lookups", MetricKind.COUNTER, "Lookups of waiting requests, including deferred ones."),
        Metric(
            PREFIX + "deferred_lookups", MetricKind.COUNTER, "Lookups that were deferred until a copy has landed. No error."
        ),
        Metric(
            PREFIX + "overdue_requests",
            MetricKind.COUNTER,
            "Requests that have waited as long as they may for what others store or load, and compute it.",
        ),
        Metric(
            PREFIX + "lookup_sync_delay_seconds",
            MetricKind.HISTOGRAM,
            "Seconds that each lookup of the host tier took.",
            buckets=_SYNC_DELAYS,
        ),
        Metric(
            PREFIX + "lookup_async_delay_seconds",
            MetricKind.HISTOGRAM,
            "Seconds from a request's first deferred lookup to the one that was answered, or to its end.",
            buckets=_ASYNC_DELAYS,
        ),
        Metric(PREFIX + "hit_blocks", MetricKind.COUNTER, "Blocks for which a load was planned, by group.", {"group": ("0",)}),
        Metric(
            PREFIX + "flushes",
            MetricKind.COUNTER,
            "Copies that a step had to wait for, by cause.",
            {"cause": ("handed out", "preempted", "last step", "within the step", "sleep")},
            means={
                "handed out": "its block goes to another request. Often: the cache of the device is small for this traffic",
                "preempted": "its request was preempted",
                "last step": "the engine has nothing left to do, so nothing is held up",
                "within the step": "a load that the same step reads",
                "sleep": "the engine goes to sleep",
            },
        ),
        Metric(
            PREFIX + "jobs",
            MetricKind.COUNTER,
            "Copies that are over, by direction and how they ended.",
            {"direction": DIRECTIONS, "state": ("done", "failed", "cancelled")},
            means={
                "store": "from the device to host memory",
                "load": "from host memory to the device",
                "demote": "from host memory to the store below",
                "promote": "from the store below to host memory",
                "done": "every worker moved every byte",
                "failed": "a worker failed, or reported too late. A rise is bad",
                "cancelled": "given up; nothing was used",
            },
        ),
        Metric(
            PREFIX + "stale_blocks",
            MetricKind.COUNTER,
            "Blocks whose content was gone when they were to be stored. No error: a later hit is lost.",
        ),
        Metric(
            PREFIX + "violations",
            MetricKind.COUNTER,
            "Violated rules of the ledger. Anything but 0 is a bug: report it.",
        ),
        Metric(
            PREFIX + "hook_errors",
            MetricKind.COUNTER,
            "Errors of your hooks and replacement policy. They changed nothing; the log names the code.",
        ),
        Metric(
            PREFIX + "below_bytes",
            MetricKind.COUNTER,
            "Bytes put into the store below host memory, and brought from there.",
            {"direction": ("demoted", "promoted")},
            means={"demoted": "put there", "promoted": "brought from there"},
        ),
        Metric(
            PREFIX + "below_promotions",
            MetricKind.COUNTER,
            "Chunks that were wanted from the store below, by what became of it.",
            {"outcome": tuple(PROMOTIONS)},
            means={
                "promoted": "brought into host memory",
                "missing": "not there whole when it was fetched",
                "failed": "the copy failed. A rise is bad",
                "no room": "host memory had no slot for it",
            },
        ),
        Metric(
            PREFIX + "below_demotions",
            MetricKind.COUNTER,
            "Chunks that were to go to the store below, by what became of it.",
            {"outcome": tuple(DEMOTIONS)},
            means={
                "demoted": "put there",
                "there already": "the store had it",
                "refused": "the store did not take it, for lack of room, say",
                "failed": "the copy failed. A rise is bad",
                "lost": "evicted from host memory, or forgotten, before its turn. A rise: the store is too slow",
            },
        ),
        Metric(
            PREFIX + "below_lookups",
            MetricKind.COUNTER,
            "Questions whether the store below has a chunk, by answer; refused and given up are misses, too.",
            {"answer": tuple(ANSWERS)},
            means={
                "hit": "every rank's part is there",
                "miss": "it is not",
                "retry": "it is being found out; asked again",
                "refused": "not asked: the store was down, or too many questions waited. A rise is bad",
                "given up": "the store has not answered in time. A rise is bad",
            },
        ),
        Metric(
            PREFIX + "below_faults",
            MetricKind.COUNTER,
            "What the store below did not do, in chunks of one worker (hung: in calls).",
            {"kind": tuple(FAULTS)},
            means=FAULTS,
        ),
        Metric(
            PREFIX + "below_overdue_requests",
            MetricKind.COUNTER,
            "Requests that have waited as long as they may for content from below, and go on without.",
        ),
        Metric(
            PREFIX + "below_outages", MetricKind.COUNTER, "How often the scheduler has given the store below up for a while."
        ),
        Metric(PREFIX + "below_is_down", MetricKind.GAUGE, "1 while the scheduler leaves the store below alone."),
        Metric(PREFIX + "jobs_out", MetricKind.GAUGE, "Copies that are planned or in flight.", every=GAUGES_EVERY),
        Metric(PREFIX + "waiting_chunks", MetricKind.GAUGE, "Chunks that wait to be stored.", every=GAUGES_EVERY),
        Metric(
            PREFIX + "host_slots",
            MetricKind.GAUGE,
            "Chunks of host memory, by what they hold.",
            {"state": tuple(SLOTS)},
            means=SLOTS,
            every=GAUGES_EVERY,
        ),
    )
}


def metrics_table() -> Iterator[str]:
    """The metrics as `specs/metrics.md` prints them, line by line."""
    yield from ("| metric, type | meaning, and labels |", "| --- | --- |")
    for metric in METRICS.values():
        kind = metric.kind.name.lower() + (f", every {metric.every} steps" if metric.every != COUNTS_EVERY else "")
        labels = []
        for label, values in metric.labels.items():
            told = [f"*{value}*: {metric.means[value]}." for value in values] if metric.means else [", ".join(values)]
            labels.append(f"`{label}`: {told[0]}" if len(told) == 1 else "<br>".join([f"`{label}`:", *told]))
        yield f"| `{metric.name.removeprefix(PREFIX)}`<br>{kind} | {'<br>'.join([metric.help, *labels])} |"
