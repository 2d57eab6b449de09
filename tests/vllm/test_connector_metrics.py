"""What the connector counts: names, how payloads are put together, and that Prometheus takes them.

Goal: a dashboard for vLLM's own offloading shows ours as well, and no number is counted twice. Method: a run in the rig, its
payloads as vLLM passes them on, and a registry of Prometheus.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from functools import partial
from typing import Any

import pytest
from attrs import evolve
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import get_connector_metric_definitions
from vllm.v1.metrics import loggers

from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._families import METRICS, MetricKind, key_of
from blocklife.engines.vllm.connector._lookups import ConnectorCounts
from blocklife.engines.vllm.connector._messages import Moved
from blocklife.engines.vllm.connector._metrics import BlocklifeStats
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import MisuseError
from blocklife.ledger import Direction
from tests.project.monitoring import VLLMS
from tests.vllm.connector_rig import ConnectorRig, walk
from tests.vllm.worlds import GroupSpec, Lag, WorldSpec

prometheus: Any = pytest.importorskip("prometheus_client")

NAMES_SESSIONS = pytest.mark.skipif(not release().names_sessions, reason="before 0.32 vLLM does not say when a session waits")
WORLD = WorldSpec((GroupSpec("full"), GroupSpec("swa", window=8)), num_gpu_blocks=24, host_blocks=64, world_size=2)


def collected(rig: ConnectorRig) -> BlocklifeStats:
    """Run two prompts twice, and gather what the scheduler's side says after each step."""
    found = BlocklifeStats(data={})
    for _ in range(2):
        for start in (100, 5000):
            rig.add(list(range(start, start + 40)), 2)
            while rig.step():
                said = rig.scheduler.connector.get_kv_connector_stats()
                found.aggregate(BlocklifeConnector.build_kv_connector_stats(said.data if said else {}))
        rig.reset_prefix_cache()
    return found


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> ConnectorRig:
    """A rig whose scheduler leaves the counts to the test."""
    made = ConnectorRig(WORLD)
    connector = made.scheduler.connector
    read, own = connector.get_kv_connector_stats, made.scheduler.update_from_output

    def update(*given: object) -> object:
        monkeypatch.setattr(connector, "get_kv_connector_stats", lambda: None)
        try:
            return own(*given)
        finally:
            monkeypatch.setattr(connector, "get_kv_connector_stats", read)

    monkeypatch.setattr(made.scheduler, "update_from_output", update)
    return made


def test_metrics_have_the_names_of_vllm_where_they_mean_the_same() -> None:
    """Copies, stores without room and times of lookups are named as in vLLM's OffloadingConnector."""
    theirs = get_connector_metric_definitions()

    assert theirs.keys() <= METRICS.keys()
    assert {name: METRICS[name].buckets for name in theirs} == {
        name: tuple(getattr(each, "buckets", ())) for name, each in theirs.items()
    }
    assert all(name.startswith("vllm:kv_offload_") for name in METRICS)


def test_metrics_add_up_to_what_happened(rig: ConnectorRig) -> None:
    """The payloads of all steps together are what the ledger counted: nothing twice, nothing left out."""
    found: dict[str, dict[str, Any]] = collected(rig).data
    ledger, page = rig.side.ledger, 4 * 8

    assert found["vllm:kv_offload_store_bytes"][""] == 2 * page * rig.stored
    assert found["vllm:kv_offload_load_bytes"][""] == 2 * page * rig.loaded
    assert found["vllm:kv_offload_jobs"] == {
        f"{each}/done": ledger.counts.ended_in(Direction[each.upper()])["DONE"] for each in ("store", "load")
    }
    assert sum(found["vllm:kv_offload_jobs"].values()) == ledger.counts.ended["DONE"]
    assert found["vllm:kv_offload_lookups"][""] >= 4
    assert sum(found["vllm:kv_offload_hit_blocks"].values()) == rig.loaded
    assert sum(found["vllm:kv_offload_host_slots"].values()) == 64
    assert "vllm:kv_offload_violations" not in found


def test_metrics_tell_how_much_was_moved_and_how_long_it_took(rig: ConnectorRig) -> None:
    """Of copies that have arrived the bytes, the seconds and each size; of a direction without any nothing."""
    rig.side.lookups.counts.stored += Moved(10, 0.5, (4, 6))
    said = rig.scheduler.connector.get_kv_connector_stats().data

    assert [said[f"vllm:kv_offload_store_{what}"][""] for what in ("bytes", "time", "size")] == [10, 0.5, [4, 6]]
    assert not [name for name in said if name.startswith("vllm:kv_offload_load_")]


def ticking(rig: ConnectorRig) -> None:
    """A clock that is a second later each time it is looked at."""
    seconds = itertools.count()
    rig.side._clock = lambda: float(next(seconds))


def test_metrics_tell_how_long_each_lookup_took() -> None:
    """Of each lookup in the host tier the seconds; of a request that must not look there none."""
    rig = ConnectorRig(evolve(WORLD, world_size=1))
    rig.side.lookups.counts = ConnectorCounts()
    rig.scheduler.connector.get_kv_connector_stats = lambda: None
    ticking(rig)
    for start in (100, 200):
        rig.add(list(range(start, start + 9)), 1)
    rig.wants_no_prefix(rig.add(list(range(300, 309)), 1))
    rig.drain()

    assert rig.side.lookups.counts.lookups == 3
    assert rig.side.lookups.counts.sync_delays == [1.0, 1.0]
    assert rig.side.lookups.counts.async_delays == []
    said = BlocklifeConnector.get_kv_connector_stats(rig.scheduler.connector)
    assert said is not None
    assert said.data["vllm:kv_offload_lookup_sync_delay_seconds"] == {"": [1.0, 1.0]}
    assert "vllm:kv_offload_lookup_async_delay_seconds" not in said.data


@pytest.mark.parametrize("aborted", [False, True], ids=["answered", "aborted"])
def test_metrics_tell_how_long_a_deferred_lookup_waited(aborted: bool) -> None:
    """From the first that was put off, however many there were, to the answer or to the end of the request."""
    rig = ConnectorRig(evolve(WORLD, groups=(GroupSpec("full"),), world_size=1, lag=Lag(20, 20)))
    rig.scheduler.connector.get_kv_connector_stats = lambda: None
    rig.add(list(range(100, 117)), 1)
    for _ in range(3):
        rig.step()
    rig.reset_prefix_cache()
    name = rig.add(list(range(100, 117)), 1)
    rig.side._clock = lambda: 1000.0
    rig.step()
    rig.side._clock = lambda: 1003.0
    rig.step()
    assert rig.side.lookups.counts.deferred == 2
    assert rig.side.lookups.counts.async_delays == []
    rig.side._clock = lambda: 1010.0
    if aborted:
        rig.abort(name)
    rig.drain()

    assert rig.side.lookups.counts.async_delays == [10.0]
    assert (rig.loaded > 0) is not aborted
    said = BlocklifeConnector.get_kv_connector_stats(rig.scheduler.connector)
    assert said is not None
    assert said.data["vllm:kv_offload_lookup_async_delay_seconds"] == {"": [10.0]}


def test_metrics_tell_how_many_waited_in_vain() -> None:
    """A store takes longer than a request may wait: it computes, and is counted once."""
    spec = evolve(WORLD, groups=(GroupSpec("full"),), world_size=1, lag=Lag(20, 20), extra_config={"pending_wait_s": 5})
    rig = ConnectorRig(spec)
    rig.scheduler.connector.get_kv_connector_stats = lambda: None
    rig.add(list(range(100, 117)), 1)
    for _ in range(3):
        rig.step()
    rig.reset_prefix_cache()
    rig.add(list(range(100, 117)), 1)
    for now in (1000.0, 1004.9, 1005.0):
        assert rig.side.offload.statistics().overdue_requests == 0
        rig.side._clock = partial(float, now)
        rig.step()
    rig.drain()

    assert rig.loaded == 0
    said = BlocklifeConnector.get_kv_connector_stats(rig.scheduler.connector)
    assert said is not None
    assert said.data["vllm:kv_offload_overdue_requests"] == {"": 1}


def test_metrics_tell_the_wait_of_a_request_that_ends_without_another_lookup() -> None:
    """Nothing else has happened in that step: its payload has the wait."""
    rig = ConnectorRig(evolve(WORLD, world_size=1))
    rig.side.lookups.counts = ConnectorCounts(async_delays=[2.5])
    said = rig.scheduler.connector.get_kv_connector_stats()

    assert said.data["vllm:kv_offload_lookup_async_delay_seconds"] == {"": [2.5]}
    assert rig.side.lookups.counts.async_delays == []


def test_metrics_look_at_the_host_tier_every_so_many_steps(rig: ConnectorRig) -> None:
    """Counting all of it takes long: the first step tells it, and every 64th behind."""
    payloads = [rig.scheduler.connector.get_kv_connector_stats() for _ in range(129)]

    assert [step for step, each in enumerate(payloads) if each and "vllm:kv_offload_host_slots" in each.data] == [0, 64, 128]


def test_metrics_are_told_every_eighth_step_while_requests_are_served(rig: ConnectorRig) -> None:
    """What was counted between is told with the next; so a step is not held up by what a person reads once in a while."""
    rig.add(list(range(100, 140)), 30)
    told = [step for step in range(24) if rig.step() and rig.scheduler.connector.get_kv_connector_stats() is not None]

    assert told == [0, 8, 16]


def test_metrics_are_told_as_often_as_their_table_says(rig: ConnectorRig) -> None:
    """While requests are served no metric is told in a step that is not one of its own; all that a run has are told."""
    rig.add(list(range(100, 140)), 90)
    told: dict[str, set[int]] = {}
    for step in range(72):
        rig.step()
        said = rig.scheduler.connector.get_kv_connector_stats()
        for name in said.data if said else ():
            told.setdefault(name, set()).add(step)

    assert {METRICS[name].every for name in told} == {8, 64}
    assert {name: steps for name, steps in told.items() if any(step % METRICS[name].every for step in steps)} == {}
    assert told["vllm:kv_offload_host_slots"] == {0, 64}


@pytest.mark.parametrize("session", [False, pytest.param(True, marks=NAMES_SESSIONS)], ids=["request", "session"])
def test_metrics_are_told_before_the_engine_has_nothing_to_do(rig: ConnectorRig, session: bool) -> None:
    """A session that waits for its next part is nothing that the engine makes a step for."""
    found = BlocklifeStats(data={})
    if session:
        rig.part("s", list(range(100, 140)), 3)
    else:
        rig.add(list(range(100, 140)), 3)
    while rig.step():
        said = rig.scheduler.connector.get_kv_connector_stats()
        found.aggregate(BlocklifeConnector.build_kv_connector_stats(said.data if said else {}))

    assert found.data["vllm:kv_offload_jobs"] == {"store/done": rig.side.ledger.counts.ended["DONE"]}
    assert found.data["vllm:kv_offload_jobs_out"] == {"": 0}
    assert found.data["vllm:kv_offload_host_slots"]["empty"] == 64 - rig.stored < 64
    assert rig.scheduler.connector.get_kv_connector_stats() is None


def test_metrics_survive_a_pipe_and_a_line_of_a_log(rig: ConnectorRig) -> None:
    """A payload is plain data, and can be told in one line."""
    found = collected(rig)
    again = BlocklifeStats(data=json.loads(json.dumps(found.data)))
    line = again.reduce()
    sizes = found.data["vllm:kv_offload_store_size"][""]

    assert again.data == found.data
    assert isinstance(sizes, list)
    assert line["kv_offload_store_size_count"] == len(sizes)
    assert not again.is_empty()
    assert BlocklifeStats(data={}).is_empty()


def test_metrics_are_put_together_by_their_kind() -> None:
    """Counters add up, gauges are replaced, values of histograms are kept."""
    names = {kind: next(name for name, metric in METRICS.items() if metric.kind is kind) for kind in MetricKind}
    one = BlocklifeStats(
        data={names[MetricKind.COUNTER]: {"": 2}, names[MetricKind.GAUGE]: {"": 5}, names[MetricKind.HISTOGRAM]: {"": [1.0]}}
    )
    other = BlocklifeStats(
        data={names[MetricKind.COUNTER]: {"": 3}, names[MetricKind.GAUGE]: {"": 4}, names[MetricKind.HISTOGRAM]: {"": [2.0]}}
    )
    both = one.aggregate(other).data

    assert both == {
        names[MetricKind.COUNTER]: {"": 5},
        names[MetricKind.GAUGE]: {"": 4},
        names[MetricKind.HISTOGRAM]: {"": [1.0, 2.0]},
    }


def test_metrics_are_counted_once_however_many_loggers_there_are() -> None:
    """vLLM hands one payload to every logger, and each adds later ones to what it made of it."""
    name = next(name for name, metric in METRICS.items() if metric.kind is MetricKind.COUNTER)
    payloads: list[dict[str, Any]] = [{name: {"": 1}} for _ in range(3)]
    one, other = (BlocklifeConnector.build_kv_connector_stats(payloads[0]) for _ in range(2))
    for payload in payloads[1:]:
        for found in (one, other):
            found.aggregate(BlocklifeConnector.build_kv_connector_stats(payload))

    assert one.data == other.data == {name: {"": 3}}
    assert payloads[0] == {name: {"": 1}}


def test_metrics_are_shown_by_prometheus(rig: ConnectorRig) -> None:
    """Every family is registered with vLLM's labels, and holds what the payloads said."""
    registry, shown = shown_by(rig)
    found: dict[str, dict[str, Any]] = collected(rig).data
    shown.observe(found, 1)
    labels = {"model_name": "m", "engine": "1"}
    modes = {shown._families[name]._multiprocess_mode for name, metric in METRICS.items() if metric.kind is MetricKind.GAUGE}

    assert modes == {"mostrecent"}  # of several processes the one that has told it last
    assert registry.get_sample_value("vllm:kv_offload_store_bytes_total", labels) == found["vllm:kv_offload_store_bytes"][""]
    assert registry.get_sample_value("vllm:kv_offload_host_slots", {**labels, "state": "evictable"}) is not None
    assert registry.get_sample_value("vllm:kv_offload_load_size_count", labels) == len(found["vllm:kv_offload_load_size"][""])


def test_metrics_are_there_at_zero_before_anything_has_happened(rig: ConnectorRig) -> None:
    """Every family has a series for each engine and each value of its label, so that a first event is an increase."""
    registry, _ = shown_by(rig)
    suffixes = {MetricKind.COUNTER: "_total", MetricKind.GAUGE: "", MetricKind.HISTOGRAM: "_count"}
    found = {
        (engine, metric.name, values): registry.get_sample_value(
            metric.name + suffixes[metric.kind],
            {"model_name": "m", "engine": engine, **dict(zip(metric.labels, values, strict=True))},
        )
        for engine in ("0", "1")
        for metric in METRICS.values()
        for values in metric.series
    }

    assert {name for _, name, _ in found} == METRICS.keys()
    assert {each: count for each, count in found.items() if count != 0} == {}


def test_metrics_of_all_groups_are_there_with_the_first_step(rig: ConnectorRig) -> None:
    """How many groups there are only an engine knows: it tells each of them at zero, once."""
    registry, shown = shown_by(rig)
    rig.add(list(range(100, 103)), 1)
    rig.step()
    said = rig.scheduler.connector.get_kv_connector_stats()
    shown.observe(said.data, 1)
    labels = {"model_name": "m", "engine": "1"}
    found = [registry.get_sample_value("vllm:kv_offload_hit_blocks_total", {**labels, "group": group}) for group in "01"]
    rig.drain()
    again = rig.scheduler.connector.get_kv_connector_stats()

    assert found == [0, 0]
    assert again is None or "vllm:kv_offload_hit_blocks" not in again.data


@pytest.mark.parametrize("seed", range(3))
def test_metrics_have_no_series_that_was_not_there_from_the_start(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random traffic with resets and losses counts under no value of a label that its metric does not list."""
    spec = evolve(WORLD, host_blocks=24, lag=Lag(0, 4), extra_config={"last_step": "flush"})
    rig = ConnectorRig(spec, seed, fails={Direction.LOAD: 0.2, Direction.STORE: 0.2})
    found = BlocklifeStats(data={})
    said = rig.scheduler.connector.get_kv_connector_stats

    def heard() -> None:
        found.aggregate(said() or BlocklifeStats(data={}))

    monkeypatch.setattr(rig.scheduler.connector, "get_kv_connector_stats", heard)
    walk(rig, seed)
    values = {name: {key_of(*each) for each in METRICS[name].series} for name in found.data}
    values["vllm:kv_offload_hit_blocks"].add("1")

    assert found.data["vllm:kv_offload_flushes"]
    assert {name: own.keys() - values[name] for name, own in found.data.items() if own.keys() - values[name]} == {}


def shown_by(rig: ConnectorRig, registry: Any = None) -> tuple[Any, Any]:
    """A registry of Prometheus, and our metrics of two engines in it."""
    registry = prometheus.CollectorRegistry() if registry is None else registry
    kinds = {
        kind: type(kind.__name__, (kind,), {"__init__": _registered(kind, registry)})
        for kind in (prometheus.Counter, prometheus.Gauge, prometheus.Histogram)
    }
    engines: dict[int, list[object]] = {0: ["m", "0"], 1: ["m", "1"]}
    return registry, BlocklifeConnector.build_prom_metrics(rig.engine.config, kinds, ["model_name", "engine"], engines)


def _registered(kind: Any, registry: object) -> object:
    def init(self: object, *args: object, **kwargs: object) -> None:
        kind.__init__(self, *args, **kwargs, registry=registry)

    return init


def test_metrics_show_an_idle_engine_as_idle(rig: ConnectorRig) -> None:
    """An engine without work makes no step: its last one tells that no copy is out, and what is in the host tier."""
    shown = collected(rig).data
    tier = rig.side.tier.statistics()

    assert shown["vllm:kv_offload_jobs_out"] == shown["vllm:kv_offload_waiting_chunks"] == {"": 0}
    assert shown["vllm:kv_offload_host_slots"]["evictable"] == tier.evictable > 0
    assert shown["vllm:kv_offload_host_slots"]["writing"] == 0


def test_metrics_show_what_has_changed_while_the_engine_idles(rig: ConnectorRig) -> None:
    """A reset takes no step; the next one tells it, although it serves nobody either."""
    shown = collected(rig)
    rig.side.reset()
    said = rig.scheduler.connector.get_kv_connector_stats()
    shown.aggregate(said)

    assert shown.data["vllm:kv_offload_host_slots"]["evictable"] == 0
    assert rig.scheduler.connector.get_kv_connector_stats() is None


def test_metrics_of_the_same_names_are_refused_with_the_reason(rig: ConnectorRig) -> None:
    """OffloadingConnector beside ours in one MultiConnector has them."""
    registry, _ = shown_by(rig)
    with pytest.raises(MisuseError, match=r"vllm:kv_offload_load_bytes is there already.*OffloadingConnector"):
        shown_by(rig, registry)


def test_metrics_of_vllm_that_alerts_and_dashboard_ask_for_exist() -> None:
    """By their names in its source; one of them came with 0.32."""
    source = inspect.getsource(loggers)
    wanted = {re.sub("_(total|bucket|count)$", "", name) for name in VLLMS}
    if not release().names_sessions:
        wanted.remove("vllm:prompt_tokens_cached_by_source")

    assert {name for name in wanted if f'name="{name}"' not in source} == set()


def test_metrics_cost_nothing_where_nothing_happens() -> None:
    """A step in which nothing changed has no payload."""
    rig = ConnectorRig(evolve(WORLD, world_size=1))
    connector = rig.scheduler.connector
    rig.add(list(range(100, 103)), 1)
    rig.drain()
    for _ in range(3):
        connector.get_kv_connector_stats()

    assert connector.get_kv_connector_stats() is None
