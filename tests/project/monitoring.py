"""What Prometheus reads of us, and what the alerts and the dashboard ask of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache

import yaml
from attrs import frozen

from blocklife.engines.vllm._versions import ENGINE
from blocklife.engines.vllm.connector._families import METRICS, MetricKind
from blocklife.watch._metrics import COUNTED, prefix_of
from blocklife.watch._violations import RULES
from tests.project.pages import ROOT

DASHBOARD = ROOT / "examples" / "vllm_dashboard.json"
ALERTS = ROOT / "examples" / "vllm_alerts.yml"
PLAYS = ROOT / "examples" / "vllm_alerts_test.yml"
"""Traffic for which each alert fires, and traffic for which it does not, as promtool reads it."""

Labels = Mapping[str, tuple[str, ...]]
"""The labels of a series, each with its values; without values any text will do."""
SCRAPED: Labels = {"instance": (), "job": ()}
"""What Prometheus itself puts on every series."""
ENGINES: Labels = {"model_name": (), "engine": ()}
"""What vLLM puts on its series, and on those of its connector."""
ENDINGS = {MetricKind.COUNTER: ("_total",), MetricKind.GAUGE: ("",), MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count")}
VLLMS: Mapping[str, Labels] = {
    "vllm:external_prefix_cache_hits_total": {},
    "vllm:iteration_tokens_total_count": {},
    "vllm:num_requests_running": {},
    "vllm:prefix_cache_hits_total": {},
    "vllm:prefix_cache_queries_total": {},
    "vllm:prompt_tokens_cached_by_source_total": {"source": ()},
    "vllm:prompt_tokens_total": {},
    "vllm:time_to_first_token_seconds_bucket": {"le": ()},
}
"""Series of vLLM itself that are asked for, too; `tests/vllm/test_connector_metrics.py` looks for them in vLLM."""


def connectors() -> dict[str, str]:
    """Every series of the connector, with the metric that it belongs to."""
    return {name + end: name for name, metric in METRICS.items() for end in ENDINGS[metric.kind]}


def watches() -> dict[str, Labels]:
    """Every series of the watch over vLLM, with its own labels."""
    own: dict[str, Labels] = {"violations": {"rule": tuple(RULES)}, "not_followed": {"what": ()}}
    return {f"{prefix_of(ENGINE)}{name}_total": own.get(name, {}) for name in ("violations", *COUNTED, "not_followed")}


def exposed() -> dict[str, Labels]:
    """Every series of ours under the name that Prometheus reads, with all its labels; groups may have any number."""
    found: dict[str, Labels] = {}
    for name, metric in connectors().items():
        own = {label: () if label == "group" else values for label, values in METRICS[metric].labels.items()}
        found[name] = {**SCRAPED, **ENGINES, **own, **({"le": ()} if name.endswith("_bucket") else {})}
    return found | {name: {**SCRAPED, **own} for name, own in watches().items()}


def known() -> dict[str, Labels]:
    """The same, and the series of vLLM itself."""
    return exposed() | {name: {**SCRAPED, **ENGINES, **own} for name, own in VLLMS.items()}


def named_in(text: str) -> set[str]:
    """The series that a query names."""
    return {name for name in re.findall(r"vllm:\w+", text) if not name.endswith("_")}


def wrongs_of(query: str) -> list[str]:
    """What a query asks for that does not exist: series, labels, values of labels; and brackets without their other half."""
    series = known()
    found = [f"{name} does not exist" for name in sorted(named_in(query) - series.keys())]
    for name, matchers in re.findall(r"(vllm:\w+)\{([^}]*)\}", query):
        for label, _, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers):
            if label not in series.get(name, {}):
                found.append(f"{name} has no label {label}")
            elif "$" not in value and (values := series[name][label]):
                found += [f"{name}: {label} is never {each}" for each in value.split("|") if each not in values]
    for labels, inside in aggregations(query):
        for name in sorted(named_in(inside) & series.keys()):
            found += [f"{name} has no label {label}" for label in labels if label not in series[name]]
    pairs = [each for each in (("(", ")"), ("{", "}"), ("[", "]")) if query.count(each[0]) != query.count(each[1])]
    return found + [f"{left} and {right} do not match" for left, right in pairs]


def aggregations(query: str) -> Iterator[tuple[list[str], str]]:
    """Each ``sum by (labels) (inside)`` of a query, without what is only there to choose instances."""
    query = re.sub(r"\band on \([^)]*\) vllm:\w+(?:\{[^}]*\})?", "", query)
    for found in re.finditer(r"\bby\s*\(([^)]*)\)\s*\(", query):
        depth, end = 1, found.end()
        while end < len(query) and depth:
            depth += {"(": 1, ")": -1}.get(query[end], 0)
            end += 1
        yield [label.strip() for label in found[1].split(",")], query[found.end() : end - 1]


def queries_of(thing: object) -> Iterator[str]:
    """All queries of the dashboard."""
    if isinstance(thing, dict):
        for key, value in thing.items():
            if key == "expr" or (key == "query" and isinstance(value, str)):
                yield value
            else:
                yield from queries_of(value)
    elif isinstance(thing, list):
        for each in thing:
            yield from queries_of(each)


def board() -> dict[str, object]:
    """The dashboard."""
    made: dict[str, object] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return made


@frozen
class Alert:
    """One alert of the file."""

    name: str
    expr: str
    after: str
    """How long it has to be true."""
    severity: str
    summary: str
    action: str
    runbook: str


@cache
def alerts() -> tuple[Alert, ...]:
    """The alerts that are shipped, in their order. A field that one lacks is an error."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return tuple(
        Alert(
            rule["alert"],
            rule["expr"].strip(),
            rule["for"],
            rule["labels"]["severity"],
            rule["annotations"]["summary"],
            rule["annotations"]["action"],
            rule["annotations"]["runbook_url"],
        )
        for group in groups
        for rule in group["rules"]
    )


@frozen
class Play:
    """One case of the file for promtool."""

    name: str
    series: tuple[str, ...]
    """The names of the series that it has."""
    fires: frozenset[str]
    """Every alert that fires at its time."""


@cache
def plays() -> tuple[Play, ...]:
    """The cases of all alerts."""
    made = []
    for case in yaml.safe_load(PLAYS.read_text(encoding="utf-8"))["tests"]:
        samples = [sample["labels"] for query in case["promql_expr_test"] for sample in query["exp_samples"]]
        fires = frozenset(name for each in samples for name in re.findall(r'alertname="(\w+)"', each))
        made.append(Play(case["name"], tuple(each["series"] for each in case["input_series"]), fires))
    return tuple(made)
