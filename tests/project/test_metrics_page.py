"""The page of metrics and loggers names all of them. `test_specs.py` compares what is generated on it with the code."""

from __future__ import annotations

import ast
import json
import logging.config
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from blocklife.engines.vllm.connector._families import METRICS
from tests.project.doors import DOORS
from tests.project.monitoring import watches
from tests.project.pages import ROOT, blocks_of

PAGE = ROOT / "specs" / "metrics.md"
TEXT = PAGE.read_text(encoding="utf-8")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
MAKERS = {"logging.getLogger", "getLogger", "init_logger"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def made_in(tree: ast.Module, module: str) -> dict[str, str]:
    """The loggers that a module makes: variables with the names of the loggers."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in MAKERS:
            name = node.value.args[0]
            found[ast.unparse(node.targets[0])] = module if ast.unparse(name) == "__name__" else ast.literal_eval(name)
    return found


def home_of(module: str, name: str) -> str:
    """The module that has a name which is imported from one, or from a door."""
    return next((f"{module}.{own}" for own, names in DOORS.get(module, {}).items() if name in names.split()), module)


def loggers_of(folder: Path) -> Mapping[str, set[str]]:
    """Every logger of the files below a folder, with the levels at which something is logged."""
    trees = {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}
    made = {module: made_in(tree, module) for module, tree in trees.items()}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        nodes = list(ast.walk(tree))
        known = dict(made[module])
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    theirs = made.get(home_of(node.module or "", each.name), {})
                    if each.name in theirs:
                        known[each.asname or each.name] = theirs[each.name]
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                if (variable := ast.unparse(node.func.value)) in known:
                    found[known[variable]].add(node.func.attr)
                else:
                    assert "logger" not in variable.lower(), f"{module}: whose logger is {variable}?"
    return found


def test_page_has_every_logger_with_its_levels() -> None:
    """Neither more nor less than the package logs."""
    table = TEXT[TEXT.index("| logger | levels | says |") :].split("\n\n")[0]
    told = {name: set(levels.split(", ")) for name, levels in re.findall(r"(?m)^\| `([\w.]+)` \| ([a-z, ]+) \|", table)}

    assert told == loggers_of(ROOT / "blocklife")


def test_page_has_a_configuration_that_logging_takes() -> None:
    """It is read as vLLM reads it, from a file of JSON, and has what the text says."""
    block = next(each for each in blocks_of(PAGE) if each.text.startswith("{"))
    config = json.loads(block.text)

    handler = logging.config.dictConfigClass(config).configure_handler(dict(config["handlers"]["all"], formatter=None))
    assert isinstance(handler, logging.StreamHandler)
    assert set(config["loggers"]) == {"vllm", "blocklife"}
    assert {handler for each in config["loggers"].values() for handler in each["handlers"]} == set(config["handlers"])


def test_page_names_metrics_that_exist() -> None:
    """Outside of what is generated, too."""
    names = {name.removeprefix("vllm:kv_offload_") for name in METRICS} | {name.rpartition("watch_")[2] for name in watches()}
    prose = re.sub(r"(?s)<!-- generated: \S+ -->\n.*?\n<!-- end -->", "", TEXT[: TEXT.index("## Loggers")])
    quoted = {re.sub(r"\{.*", "", each).removesuffix("_total") for each in re.findall(r"`([a-z_]+(?:\{[^`]*)?)`", prose)}
    words = {"increase", "model_name", "engine", "pending_wait_s", "_bucket", "_sum", "_count", "", "not_followed"}

    assert len(quoted - words) >= 7
    assert quoted - words <= names


def test_page_has_every_metric() -> None:
    assert re.findall(r"(?m)^\| `(\w+)`<br>(?:counter|gauge|histogram)(?:, every \d+ steps)? \|", TEXT) == [
        name.removeprefix("vllm:kv_offload_") for name in METRICS
    ]
    assert {f"vllm:blocklife_watch_{name}_total" for name in re.findall(r"(?m)^\| `(\w+)` \| [A-Z]", TEXT)} >= set(watches())


def test_page_says_what_each_value_of_a_label_stands_for() -> None:
    """All but the numbers of groups; no meaning belongs to a value that is not there."""
    for name, metric in METRICS.items():
        values = {value for label, values in metric.labels.items() if label != "group" for value in values}
        assert metric.means.keys() == values, name
        (row,) = re.findall(rf"(?m)^\| `{name.removeprefix('vllm:kv_offload_')}`<br>.*$", TEXT)
        assert [value for value, meaning in metric.means.items() if f"<br>*{value}*: {meaning}." not in row] == []


def test_every_cause_of_a_flush_is_a_series_from_the_start() -> None:
    """What the scheduler and the ledger count is what the label lists; *asked* is the default, for engines' own calls."""
    found = {"within the step"}
    for room in ("core", "offload", "ledger"):
        for path in sorted((ROOT / "blocklife" / room).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "flush":
                    found |= {
                        each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    }

    assert found == set(METRICS["vllm:kv_offload_flushes"].labels["cause"])
