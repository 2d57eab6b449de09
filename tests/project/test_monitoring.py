"""The alerts and the dashboard that are shipped ask for what exists, and each alert fires when it should and not else.

Goal: nobody is woken for nothing, and nobody sleeps through a stuck replica. Method: series and labels are compared with the
tables from which they are made; promtool, where it is there, plays traffic of two replicas for every alert, and has to notice
when a rule is spoiled; Grafana's own schema, where it is there, has to know every field of the dashboard.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from blocklife.engines.vllm.connector._families import METRICS, MetricKind
from tests.programs import HANGS_S
from tests.project.alerts import PAGE, SEVERITIES, renewed
from tests.project.monitoring import (
    ALERTS,
    DASHBOARD,
    PLAYS,
    VLLMS,
    Alert,
    alerts,
    board,
    connectors,
    exposed,
    named_in,
    plays,
    queries_of,
    watches,
    wrongs_of,
)
from tests.project.pages import anchors_of

TEXT = PAGE.read_text(encoding="utf-8")
PROMTOOL = shutil.which("promtool")
NEEDS_PROMTOOL = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here (on Debian: apt install prometheus)")


# --- series ------------------------------------------------------------------------------------------------------------


def test_metrics_are_of_three_kinds() -> None:
    assert len(METRICS) >= 25
    assert {each.kind for each in METRICS.values()} == set(MetricKind)


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("vllm:kv_offload_lookup_total", "vllm:kv_offload_lookup_total does not exist"),
        ('vllm:kv_offload_jobs_total{way="store"}', "vllm:kv_offload_jobs_total has no label way"),
        ('vllm:kv_offload_jobs_total{direction="stores"}', "vllm:kv_offload_jobs_total: direction is never stores"),
        ('vllm:kv_offload_below_faults_total{kind=~"damaged|lost"}', "vllm:kv_offload_below_faults_total: kind is never lost"),
        ("sum by (rule) (vllm:kv_offload_lookups_total)", "vllm:kv_offload_lookups_total has no label rule"),
        ("sum by (engine) (vllm:blocklife_watch_steps_total)", "vllm:blocklife_watch_steps_total has no label engine"),
        ("sum(vllm:kv_offload_lookups_total", "( and ) do not match"),
    ],
)
def test_query_that_asks_for_what_does_not_exist_is_found(query: str, wrong: str) -> None:
    assert wrongs_of(query) == [wrong]


def test_page_names_series_that_exist() -> None:
    """Each query of the page is about series that are there, as Prometheus reads them."""
    named = {name for quoted in re.findall(r"`([^`\n]+)`", TEXT) for name in named_in(quoted)}

    assert len(named) >= 2
    assert named - exposed().keys() == set()


# --- alerts ------------------------------------------------------------------------------------------------------------


def test_alerts_have_all_fields() -> None:
    """Each has a severity, a time, words, and a link to the part of the page that is about it."""
    anchors, found = anchors_of(TEXT), alerts()

    assert len(found) >= 15
    assert len({each.name for each in found}) == len(found)
    assert {each.severity for each in found} == SEVERITIES.keys()
    for alert in found:
        page, _, anchor = alert.runbook.partition("#")
        assert re.fullmatch(r"\d+[mh]", alert.after), alert
        assert alert.summary.endswith("."), alert
        assert alert.action.endswith("."), alert
        assert (page, anchor) == (PAGE.name, alert.name.lower())
        assert anchor in anchors


@pytest.mark.parametrize("alert", alerts(), ids=lambda each: each.name)
def test_alert_asks_for_what_exists_of_one_replica(alert: Alert) -> None:
    """No sum is over replicas: one of them would hide another."""
    assert wrongs_of(alert.expr) == []
    assert not re.search(r"\b(sum|max|min|avg|count)\s*\(", alert.expr)
    assert all("instance" in labels for labels in re.findall(r"\bby \(([^)]*)\)", alert.expr))


@pytest.mark.parametrize("alert", alerts(), ids=lambda each: each.name)
def test_alert_is_played_firing_and_silent(alert: Alert) -> None:
    """Both ways with its own series; where it fires there is a second replica, or engine, for which it does not."""
    own = {play for play in plays() if play.name.startswith(f"{alert.name} ")}
    firing = {play for play in own if play.name.startswith(f"{alert.name} fires: ")}
    silent = {play for play in own if play.name.startswith(f"{alert.name} is silent: ")}

    assert firing | silent == own
    assert firing
    assert silent
    assert all(play.fires == {alert.name} for play in firing)
    assert all(play.fires == set() for play in silent)
    assert all(named_in(" ".join(play.series)) & named_in(alert.expr) for play in own)
    assert any(len(set(re.findall(r'instance="\w+"', " ".join(play.series)))) > 1 for play in firing)


def test_plays_have_series_that_exist() -> None:
    assert [wrong for play in plays() for series in play.series for wrong in wrongs_of(series)] == []
    assert {play.name.split()[0] for play in plays()} == {alert.name for alert in alerts()}


def test_page_has_the_alerts_of_the_file() -> None:
    assert renewed(TEXT) == TEXT, "run: make spec"


def promtool(*words: object) -> subprocess.CompletedProcess[str]:
    """What promtool says."""
    return subprocess.run([str(PROMTOOL), *map(str, words)], capture_output=True, text=True, check=False, timeout=HANGS_S)


@NEEDS_PROMTOOL
def test_promtool_takes_the_alerts_and_finds_each_play_as_it_is_written() -> None:
    checked, played = promtool("check", "rules", ALERTS), promtool("test", "rules", PLAYS)

    assert checked.returncode == 0, checked.stderr
    assert f"{len(alerts())} rules found" in checked.stdout
    assert played.returncode == 0, played.stdout + played.stderr


SPOILS: Mapping[str, Callable[[Alert], str]] = {
    "never": lambda _: "vector(1) > 1",
    "always": lambda _: 'label_replace(vector(1), "instance", "a", "", "")',
    "over all replicas": lambda alert: re.sub(r"by \((instance, )?", "by (", alert.expr.replace("by (instance)", "")),
}
"""Ways to write an alert wrongly."""


@cache
def cases_of_all() -> dict[str, Any]:
    """The file of the plays, not to be touched."""
    cases: dict[str, Any] = yaml.safe_load(PLAYS.read_text(encoding="utf-8"))
    return cases


@NEEDS_PROMTOOL
@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("alert", alerts(), ids=lambda each: each.name)
def test_plays_notice_an_alert_that_is_spoiled(alert: Alert, spoil: str, tmp_path: Path) -> None:
    """A rule that never fires, always fires, or forgets which replica it is about."""
    if (written := SPOILS[spoil](alert)) == alert.expr:
        pytest.skip("it has no sum")
    rule = {"alert": alert.name, "expr": written, "for": alert.after}
    cases = cases_of_all()
    own = [each for each in cases["tests"] if each["name"].startswith(f"{alert.name} ")]
    for name, made in ((ALERTS.name, {"groups": [{"name": "one", "rules": [rule]}]}), (PLAYS.name, cases | {"tests": own})):
        (tmp_path / name).write_text(yaml.safe_dump(made), encoding="utf-8")

    assert promtool("check", "rules", tmp_path / ALERTS.name).returncode == 0
    assert promtool("test", "rules", tmp_path / PLAYS.name).returncode == 1


# --- the dashboard -----------------------------------------------------------------------------------------------------


def test_dashboard_shows_every_metric_and_no_other() -> None:
    """What it asks for exists, and what exists it shows."""
    queries = list(queries_of(board()))
    series = set.union(*map(named_in, queries))
    metrics = connectors()

    assert [wrong for query in queries for wrong in wrongs_of(query)] == []
    assert {metrics[name] for name in series & metrics.keys()} == METRICS.keys()
    assert watches().keys() <= series
    assert series - exposed().keys() <= VLLMS.keys()


def test_dashboard_is_one() -> None:
    """Panels have numbers of their own, say what they show, and do not lie upon each other."""
    text, panels = DASHBOARD.read_text(encoding="utf-8"), list(all_panels())
    shown = [panel for panel in panels if panel["type"] != "row"]
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    variables = set(re.findall(r'(?m)^    "name": "(\w+)"', text))
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval"}

    assert len(shown) >= 12
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in shown)
    assert used == variables == {"datasource", "model", "instance"}


def test_dashboard_shows_the_chosen_model_and_instance_only() -> None:
    """Each query of each panel has both; the watch knows no model, so it takes the instances that serve it."""
    for panel in all_panels():
        for query in queries_of(panel.get("targets", [])):
            selectors = re.findall(r"vllm:\w+(\{[^}]*\})?", query)
            assert all('model_name=~"$model"' in each or 'instance=~"$instance"' in each for each in selectors), query
            assert 'model_name=~"$model"' in query, query
            assert 'instance=~"$instance"' in query, query


def test_dashboard_shows_what_counters_gain() -> None:
    """A total since the start says how long a server has run. What a watch leaves out is counted once, at its start."""
    for query in (query for panel in all_panels() for query in queries_of(panel.get("targets", []))):
        for name in named_in(query) - {"vllm:blocklife_watch_not_followed_total"}:
            if name.endswith(("_total", "_bucket", "_count", "_sum")):
                assert re.search(rf"(rate|increase)\({name}\{{[^}}]*\}}\[", query), query


def all_panels() -> list[dict[str, Any]]:
    """The panels of the dashboard, rows among them."""
    panels = board()["panels"]
    assert isinstance(panels, list)
    return panels


def test_dashboard_has_only_fields_that_grafana_knows() -> None:
    """Grafana's published types read it and write all of it again: they know each field and its kind."""
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason="pip install grafana-foundation-sdk")
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins.register_default_plugins()

    def lost(given: dict[str, object]) -> list[str]:
        read = dashboard.Dashboard.from_json(given)
        return list(not_in(given, json.loads(json.dumps(read, cls=encoder.JSONEncoder)), "dashboard"))

    assert lost(board()) == []
    spoiled = board() | {"tittle": "blocklife"}
    assert lost(spoiled) == ["dashboard.tittle"]


def not_in(given: object, read: object, at: str) -> Iterator[str]:
    """The places of what was given that are not in what was read."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            yield from not_in(value, read.get(key), f"{at}.{key}")
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for number, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from not_in(one, other, f"{at}[{number}]")
    elif given != read:
        yield at
