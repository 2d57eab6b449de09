"""The metrics of the connector, with Prometheus names that follow vLLM's.

Rules of this file:

* Metrics that vLLM's OffloadingConnector also has keep its names, so that dashboards work for both.
* Counters are sent as increments since the last step, gauges as current values, histograms as the values observed.
* A payload is a plain dictionary of texts, numbers and lists: it crosses processes, and the side that shows it has only the
  table below.
* Every series exists, at zero, before its first event: otherwise Prometheus would not see the first increase.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from blocklife.engines.vllm.connector._lookups import ConnectorCounts
from blocklife.engines.vllm.connector._messages import MovedBelow
from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler
from blocklife.errors import MisuseError
from blocklife.offload import TierStatistics

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT

Value = int | float | list[int | float]
Payload = dict[str, dict[str, Value]]
"""By name of the metric, then by the value of its label (empty if it has none)."""


class MetricKind(enum.Enum):
    """How values of one metric are merged."""

    COUNTER = "added up"
    GAUGE = "the latest counts"
    HISTOGRAM = "all are kept"


@frozen
class Metric:
    """One metric, with at most one label."""

    name: str
    kind: MetricKind
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    """All values of the label; for groups, whose number only the scheduler side knows, the one that every model has."""
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[tuple[str, ...], ...]:
        """The label values, after vLLM's own labels, of each series that exists from the start."""
        return tuple((value,) for value in self.values) if self.label else ((),)


_SLOTS = ("empty", "evictable", "pinned", "writing", "freeing_soon", "quarantined")
_SIZES = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
_SYNC_DELAYS = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0)
_ASYNC_DELAYS = (1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
_P = "vllm:kv_offload_"
_PROMOTIONS = {
    "promoted": "promoted",
    "missing": "missing",
    "failed": "failed_promotions",
    "no room": "no_room",
}
"""Outcomes, and where `BelowStatistics` has them; likewise below, and in `PresenceStatistics`."""
_DEMOTIONS = {
    "demoted": "demoted",
    "there already": "already_below",
    "refused": "refused",
    "failed": "failed_demotions",
    "lost": "lost",
}
_ANSWERS = {"hit": "hits", "miss": "misses", "retry": "retries", "refused": "refused", "given up": "given_up"}
_FAULTS = ("damaged", "foreign", "failed", "skipped", "hung")

METRICS: Mapping[str, Metric] = {
    each.name: each
    for each in (
        Metric(_P + "load_bytes", MetricKind.COUNTER, "Bytes that loads brought from host memory to the device."),
        Metric(_P + "load_time", MetricKind.COUNTER, "Seconds that the copies of loads took, by the device's clock."),
        Metric(_P + "load_size", MetricKind.HISTOGRAM, "Bytes of each load.", buckets=_SIZES),
        Metric(_P + "store_bytes", MetricKind.COUNTER, "Bytes that stores brought from the device to host memory."),
        Metric(_P + "store_time", MetricKind.COUNTER, "Seconds that the copies of stores took, by the device's clock."),
        Metric(_P + "store_size", MetricKind.HISTOGRAM, "Bytes of each store.", buckets=_SIZES),
        Metric(
            _P + "allocation_failure", MetricKind.COUNTER, "Stores for which the host tier had no room; they are tried again."
        ),
        Metric(
            _P + "failed_loads",
            MetricKind.COUNTER,
            "Loads that failed. With kv_load_failure_policy fail, vLLM's default, the request ends with an error; with "
            "recompute it is computed again.",
        ),
        Metric(
            _P + "host_damaged",
            MetricKind.COUNTER,
            "Blocks of host memory in which a load found other bytes than were stored (host_checksums).",
        ),
        Metric(_P + "lookups", MetricKind.COUNTER, "Lookups of waiting requests, including deferred ones."),
        Metric(_P + "deferred_lookups", MetricKind.COUNTER, "Lookups that were deferred until a copy has landed."),
        Metric(
            _P + "overdue_requests",
            MetricKind.COUNTER,
            "Requests that computed what others were storing or loading, after waiting for it as long as they may.",
        ),
        Metric(
            _P + "lookup_sync_delay_seconds",
            MetricKind.HISTOGRAM,
            "Seconds that each lookup of the host tier took.",
            buckets=_SYNC_DELAYS,
        ),
        Metric(
            _P + "lookup_async_delay_seconds",
            MetricKind.HISTOGRAM,
            "Seconds from a request's first deferred lookup to the one that was answered, or to its end.",
            buckets=_ASYNC_DELAYS,
        ),
        Metric(_P + "hit_blocks", MetricKind.COUNTER, "Blocks for which a load was planned, by group.", "group", ("0",)),
        Metric(
            _P + "flushes",
            MetricKind.COUNTER,
            "Copies that a step had to wait for, by cause.",
            "cause",
            ("handed out", "preempted", "last step"),
        ),
        Metric(
            _P + "jobs",
            MetricKind.COUNTER,
            "Copies that are over, by how they ended.",
            "state",
            ("done", "failed", "cancelled"),
        ),
        Metric(
            _P + "stale_blocks",
            MetricKind.COUNTER,
            "Blocks that were not stored because their content was gone when their turn came.",
        ),
        Metric(
            _P + "violations",
            MetricKind.COUNTER,
            "Violated rules of the ledger. Anything but 0 is a bug: report it.",
        ),
        Metric(
            _P + "hook_errors",
            MetricKind.COUNTER,
            "Errors of hooks and of a replacement policy of your own. They changed nothing; the log names the code.",
        ),
        Metric(
            _P + "below_bytes",
            MetricKind.COUNTER,
            "Bytes put into the store below host memory, and brought from there.",
            "direction",
            ("demoted", "promoted"),
        ),
        Metric(
            _P + "below_promotions",
            MetricKind.COUNTER,
            "Chunks that were wanted from the store below, by what became of it.",
            "outcome",
            tuple(_PROMOTIONS),
        ),
        Metric(
            _P + "below_demotions",
            MetricKind.COUNTER,
            "Chunks that were to go to the store below, by what became of it.",
            "outcome",
            tuple(_DEMOTIONS),
        ),
        Metric(
            _P + "below_lookups",
            MetricKind.COUNTER,
            "Questions of lookups and demotions whether the store below has a chunk, by answer: refused and given up are "
            "misses, too.",
            "answer",
            tuple(_ANSWERS),
        ),
        Metric(
            _P + "below_faults",
            MetricKind.COUNTER,
            "What the store below did not do, in chunks of one worker (hung: in calls).",
            "kind",
            _FAULTS,
        ),
        Metric(
            _P + "below_overdue_requests",
            MetricKind.COUNTER,
            "Requests that went on without content from below, after waiting as long as they may.",
        ),
        Metric(_P + "below_outages", MetricKind.COUNTER, "How often the scheduler has given the store below up for a while."),
        Metric(_P + "below_is_down", MetricKind.GAUGE, "1 while the scheduler leaves the store below alone."),
        Metric(_P + "jobs_out", MetricKind.GAUGE, "Copies that are planned or in flight."),
        Metric(_P + "waiting_chunks", MetricKind.GAUGE, "Chunks that wait to be stored."),
        Metric(_P + "host_slots", MetricKind.GAUGE, "Chunks of host memory, by what they hold.", "state", _SLOTS),
    )
}
_COUNTS_EVERY = 8
"""Steps between two payloads while requests are served: to compare all counts takes a fortieth of what the connector takes."""
_GAUGES_EVERY = 64
"""Steps between two counts of the host tier: counting it takes longer still. A multiple of the other."""


class BlocklifeStats(KVConnectorStats):  # type: ignore[misc]  # vLLM is not there where this is checked
    """One payload, and how two are merged."""

    data: Payload

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> BlocklifeStats:
        """Add a later payload to this one."""
        for name, values in other.data.items():
            own = self.data.setdefault(name, {})
            for label, value in values.items():
                own[label] = _joined(METRICS[name].kind, own.get(label), value)
        return self

    def reduce(self) -> dict[str, int | float]:
        """A summary for a log line."""
        found: dict[str, int | float] = {}
        for name, values in self.data.items():
            for label, value in values.items():
                short = name.removeprefix("vllm:") + (f"[{label}]" if label else "")
                if isinstance(value, list):
                    found[f"{short}_count"], found[f"{short}_sum"] = len(value), sum(value)
                else:
                    found[short] = value
        return found

    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not self.data


def _joined(kind: MetricKind, old: Value | None, new: Value) -> Value:
    if old is None or kind is MetricKind.GAUGE:
        return list(new) if isinstance(new, list) else new
    if isinstance(old, list) and isinstance(new, list):
        return [*old, *new]
    if isinstance(old, list) or isinstance(new, list):
        raise TypeError(f"{old!r} and {new!r} are not of one metric")
    return old + new


@define
class Meter:
    """Reads the counters of a scheduler, and reports the increments."""

    scheduler: ConnectorScheduler
    _told: dict[tuple[str, str], int] = field(factory=dict)
    _steps: int = 0
    _slots: TierStatistics | None = None
    """Those that were told last."""
    _is_down: bool | None = None
    """Whether the store below was last told to be down."""

    def read(self) -> BlocklifeStats | None:
        """The changes since they were last told; None if there are none, or if a later step tells them.

        While requests are served, every eighth step tells; counts add up meanwhile. Without any, no further step may come.
        """
        step, serves = self._steps, self.scheduler.is_serving
        self._steps += 1
        if serves and step % _COUNTS_EVERY:
            return None
        data: Payload = {}
        counts = self.scheduler.lookups.counts
        if is_new := counts.is_new:
            self.scheduler.lookups.counts = ConnectorCounts()
        for moved, word in ((counts.loaded, "load"), (counts.stored, "store")):
            if moved.sizes:
                data[f"{_P}{word}_bytes"] = {"": moved.num_bytes}
                data[f"{_P}{word}_time"] = {"": moved.seconds}
                data[f"{_P}{word}_size"] = {"": list(moved.sizes)}
        counted = (("failed_loads", counts.failed_loads), ("lookups", counts.lookups), ("host_damaged", counts.damaged))
        for name, value in counted:
            if value:
                data[_P + name] = {"": value}
        if counts.deferred:
            data[_P + "deferred_lookups"] = {"": counts.deferred}
        for word, delays in (("sync", counts.sync_delays), ("async", counts.async_delays)):
            if delays:
                data[f"{_P}lookup_{word}_delay_seconds"] = {"": list(delays)}
        if is_new and counts.below is not None:
            self._record_moved_below(counts.below, data)
        totals = self._totals()
        if self.scheduler.below is not None:
            totals += self._totals_below(data)
        for name, label, total in totals:
            told = self._told.get((name, label), -1 if name == "hit_blocks" else 0)  # groups are reported once even at zero
            if total > told:
                data.setdefault(_P + name, {})[label] = total - max(0, told)
                self._told[name, label] = total
        is_idle = not serves and not self.scheduler.ledger.jobs.live
        slots = self.scheduler.tier.statistics() if is_idle or step % _GAUGES_EVERY == 0 else self._slots
        if slots is not None and (step % _GAUGES_EVERY == 0 or slots != self._slots):
            self._record_gauges(data, slots)
        return BlocklifeStats(data=data) if data else None

    def _totals(self) -> list[tuple[str, str, int]]:
        ledger, counts = self.scheduler.ledger, self.scheduler.offload.statistics()
        found = [
            ("allocation_failure", "", counts.refused_stores),
            ("stale_blocks", "", counts.stale),
            ("violations", "", ledger.counts.tally.get("violations", 0)),
            ("hook_errors", "", ledger.hook_errors.count),
            ("overdue_requests", "", counts.overdue_requests),
        ]
        for cause, total in ledger.counts.flushes.items():
            found.append(("flushes", cause, total))
        for state, total in ledger.counts.ended.items():
            found.append(("jobs", state.lower(), total))
        for group, total in enumerate(counts.host_hits):
            found.append(("hit_blocks", str(group), total))
        return found

    def _record_moved_below(self, moved: MovedBelow, data: Payload) -> None:
        for name, found in (
            ("below_bytes", {"demoted": moved.demoted_bytes, "promoted": moved.promoted_bytes}),
            ("below_faults", {kind: getattr(moved, kind) for kind in _FAULTS}),
        ):
            if told := {label: value for label, value in found.items() if value}:
                data[_P + name] = told

    def _totals_below(self, data: Payload) -> list[tuple[str, str, int]]:
        below, moved = self.scheduler.below, self.scheduler.offload.statistics().below
        if below is None or moved is None:
            return []
        asked, breaker = below.presence.statistics(), below.breaker.statistics()
        found = [("below_overdue_requests", "", moved.overdue_requests), ("below_outages", "", breaker.times_down)]
        for name, labels, source in (
            ("below_promotions", _PROMOTIONS, moved),
            ("below_demotions", _DEMOTIONS, moved),
            ("below_lookups", _ANSWERS, asked),
        ):
            found += [(name, label, getattr(source, attribute)) for label, attribute in labels.items()]
        if breaker.is_down is not self._is_down:
            self._is_down = breaker.is_down
            data[_P + "below_is_down"] = {"": int(breaker.is_down)}
        return found

    def _record_gauges(self, data: Payload, slots: TierStatistics) -> None:
        self._slots = slots
        data[_P + "jobs_out"] = {"": self.scheduler.ledger.jobs.live}
        data[_P + "waiting_chunks"] = {"": self.scheduler.offload.statistics().waiting}
        data[_P + "host_slots"] = {name: getattr(slots, name) for name in _SLOTS}


class BlocklifePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # as above
    """The metrics of `METRICS` in Prometheus: one family each, with vLLM's labels and its own label, if any.

    The series of every engine exist from the start; those of further groups from the engine's first step on.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        makers: Mapping[MetricKind, Any] = {
            MetricKind.COUNTER: self._counter_cls,
            MetricKind.GAUGE: self._gauge_cls,
            MetricKind.HISTOGRAM: self._histogram_cls,
        }
        self._families: dict[str, Any] = {}
        for metric in METRICS.values():
            more: dict[str, object] = {"buckets": metric.buckets} if metric.buckets else {}
            if metric.kind is MetricKind.GAUGE:
                more["multiprocess_mode"] = "mostrecent"
            labels = labelnames + ([metric.label] if metric.label else [])
            try:
                family = makers[metric.kind](name=metric.name, documentation=metric.help, labelnames=labels, **more)
            except ValueError as problem:
                raise MisuseError(
                    f"blocklife connector: the metric {metric.name} is there already, and is not of this connector "
                    "(OffloadingConnector has metrics of the same names: give one of the two in a MultiConnector)"
                ) from problem
            self._families[metric.name] = family
            for engine in per_engine_labelvalues.values():
                for value in metric.series:
                    self._families[metric.name].labels(*engine, *value)

    def observe(self, transfer_stats_data: Payload, engine_idx: int = 0) -> None:
        """Add one payload."""
        engine = self.per_engine_labelvalues[engine_idx]
        for name, values in transfer_stats_data.items():
            for label, value in values.items():
                child = self._families[name].labels(*engine, *([label] if METRICS[name].label else []))
                if isinstance(value, list):
                    for each in value:
                        child.observe(each)
                elif METRICS[name].kind is MetricKind.GAUGE:
                    child.set(value)
                else:
                    child.inc(value)
