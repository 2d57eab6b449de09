"""What the connector counts, on its way from the scheduler to Prometheus; `_families` says which metrics there are.

Rules of this file:

* Counters are sent as increments since the last step, gauges as current values, histograms as the values observed.
* A payload is a plain dictionary of texts, numbers and lists: it crosses processes, and the side that shows it has only the
  table of all metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from blocklife.engines.vllm.connector._families import (
    ANSWERS,
    COUNTS_EVERY,
    DEMOTIONS,
    FAULTS,
    GAUGES_EVERY,
    METRICS,
    PREFIX,
    PROMOTIONS,
    SLOTS,
    MetricKind,
    key_of,
)
from blocklife.engines.vllm.connector._lookups import ConnectorCounts
from blocklife.engines.vllm.connector._messages import MovedBelow
from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler
from blocklife.errors import MisuseError
from blocklife.ledger import Direction
from blocklife.offload import TierStatistics

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT

Value = int | float | list[int | float]
Payload = dict[str, dict[str, Value]]
"""By name of the metric, then by the values of its labels (`key_of`)."""


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
        if serves and step % COUNTS_EVERY:
            return None
        data: Payload = {}
        counts = self.scheduler.lookups.counts
        if is_new := counts.is_new:
            self.scheduler.lookups.counts = ConnectorCounts()
        for moved, word in ((counts.loaded, "load"), (counts.stored, "store")):
            if moved.sizes:
                data[f"{PREFIX}{word}_bytes"] = {"": moved.num_bytes}
                data[f"{PREFIX}{word}_time"] = {"": moved.seconds}
                data[f"{PREFIX}{word}_size"] = {"": list(moved.sizes)}
        counted = (("failed_loads", counts.failed_loads), ("lookups", counts.lookups), ("host_damaged", counts.damaged))
        for name, value in counted:
            if value:
                data[PREFIX + name] = {"": value}
        if counts.deferred:
            data[PREFIX + "deferred_lookups"] = {"": counts.deferred}
        for word, delays in (("sync", counts.sync_delays), ("async", counts.async_delays)):
            if delays:
                data[f"{PREFIX}lookup_{word}_delay_seconds"] = {"": list(delays)}
        if is_new and counts.below is not None:
            self._record_moved_below(counts.below, data)
        totals = self._totals()
        if self.scheduler.below is not None:
            totals += self._totals_below(data)
        for name, label, total in totals:
            told = self._told.get((name, label), -1 if name == "hit_blocks" else 0)  # groups are reported once even at zero
            if total > told:
                data.setdefault(PREFIX + name, {})[label] = total - max(0, told)
                self._told[name, label] = total
        is_idle = not serves and not self.scheduler.ledger.jobs.live
        slots = self.scheduler.tier.statistics() if is_idle or step % GAUGES_EVERY == 0 else self._slots
        if slots is not None and (step % GAUGES_EVERY == 0 or slots != self._slots):
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
        for direction in Direction:
            for state, total in ledger.counts.ended_in(direction).items():
                found.append(("jobs", key_of(direction.name.lower(), state.lower()), total))
        for group, total in zip(self.scheduler.shape.groups.numbers, counts.host_hits, strict=True):
            found.append(("hit_blocks", str(group), total))
        return found

    def _record_moved_below(self, moved: MovedBelow, data: Payload) -> None:
        for name, found in (
            ("below_bytes", {"demoted": moved.demoted_bytes, "promoted": moved.promoted_bytes}),
            ("below_faults", {kind: getattr(moved, kind) for kind in FAULTS}),
        ):
            if told := {label: value for label, value in found.items() if value}:
                data[PREFIX + name] = told

    def _totals_below(self, data: Payload) -> list[tuple[str, str, int]]:
        below, moved = self.scheduler.below, self.scheduler.offload.statistics().below
        if below is None or moved is None:
            return []
        asked, breaker = below.presence.statistics(), below.breaker.statistics()
        found = [("below_overdue_requests", "", moved.overdue_requests), ("below_outages", "", breaker.times_down)]
        for name, labels, source in (
            ("below_promotions", PROMOTIONS, moved),
            ("below_demotions", DEMOTIONS, moved),
            ("below_lookups", ANSWERS, asked),
        ):
            found += [(name, label, getattr(source, attribute)) for label, attribute in labels.items()]
        if breaker.is_down is not self._is_down:
            self._is_down = breaker.is_down
            data[PREFIX + "below_is_down"] = {"": int(breaker.is_down)}
        return found

    def _record_gauges(self, data: Payload, slots: TierStatistics) -> None:
        self._slots = slots
        data[PREFIX + "jobs_out"] = {"": self.scheduler.ledger.jobs.live}
        data[PREFIX + "waiting_chunks"] = {"": self.scheduler.offload.statistics().waiting}
        data[PREFIX + "host_slots"] = {name: getattr(slots, name) for name in SLOTS}


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
            labels = [*labelnames, *metric.labels]
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
                child = self._families[name].labels(*engine, *METRICS[name].labels_of(label))
                if isinstance(value, list):
                    for each in value:
                        child.observe(each)
                elif METRICS[name].kind is MetricKind.GAUGE:
                    child.set(value)
                else:
                    child.inc(value)
