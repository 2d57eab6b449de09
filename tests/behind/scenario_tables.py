"""What runs of scenarios against an engine show, in a few words each, and the tables in `specs/scenarios` that say it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from blocklife.testing import Driver, Outcome, ScenarioVerdict, run_scenario
from blocklife.testing.scenarios._cases import SHIPPED
from blocklife.testing.scenarios._running import read_scenario, world_of
from tests.behind.shelf import PROJECT

_STEP = re.compile(r"(?:: step (\d+) \(\w+\)|(: at the end)): (.*)", re.DOTALL)
_RULE = re.compile(r"a rule is broken: (I\d+)")

# --- what a run says --------------------------------------------------------------------------------------------------------


def runs_of(case: Path, driver: Callable[[], Driver], contract: str = "hold") -> list[ScenarioVerdict]:
    """Every variant of a case that an engine's contract is in."""
    scenario = read_scenario(case)
    variants = list(scenario.each_variant())
    chosen = [each for each in variants if world_of(scenario, each).contract == contract] or variants[:1]
    return [run_scenario(scenario, driver, each) for each in chosen]


def said(verdict: ScenarioVerdict) -> str:
    """What one run shows, in a few words: that it holds; the rule, or what went wrong, and the step; why it cannot run."""
    if verdict.outcome is Outcome.HELD:
        return "holds"
    if verdict.outcome is Outcome.NOT_APPLICABLE:
        return verdict.reason
    found = _STEP.search(verdict.message)
    place = "" if found is None else "at the end" if found[2] else f"step {found[1]}"
    rule = _RULE.search(verdict.message)
    what = rule[1] if rule else verdict.outcome.value.lower() + ("" if found is None else f": {shortened(found[3])}")
    return ", ".join(filter(None, [what, place]))


def shortened(message: str) -> str:
    """The message of a run without what is in brackets behind it."""
    first = message.partition("; /")[0].partition(" (the step")[0].partition(" (there are")[0]
    return first.removesuffix(" (-v shows the traceback)")


def cell(found: Iterable[ScenarioVerdict]) -> str:
    """What all variants of a case show. Where they differ, those that do not hold are named."""
    runs = list(found)
    groups: dict[str, list[ScenarioVerdict]] = {}
    for each in runs:
        groups.setdefault(said(each), []).append(each)
    if len(groups) == 1:
        return next(iter(groups))
    parts = []
    for text, mine in groups.items():
        if text != "holds":
            names = sorted({", ".join(str(value) for value in each.variant.values()) for each in mine})
            parts.append(f"{text} ({'; '.join(names)})")
    return "; ".join(parts) + ("; else holds" if "holds" in groups else "")


def as_they_are(
    driver: Callable[[], Driver], cases: Iterable[str] | None = None, contract: str = "hold"
) -> Iterator[tuple[str, str]]:
    """How an engine does on each case that is written for none: what all variants show, and why the others cannot be run."""
    for case in cases_above() if cases is None else cases:
        found = runs_of(SHIPPED / f"{case}.toml", driver, contract)
        reasons = dict.fromkeys(each.reason for each in found if each.outcome is Outcome.NOT_APPLICABLE)
        rest = [each for each in found if each.outcome is not Outcome.NOT_APPLICABLE]
        told = [cell(rest)] if rest else []
        yield case, "; ".join([*told, *(reason.removeprefix("not expressible: ") for reason in reasons)])


def cases_above() -> list[str]:
    """The cases that are written for no engine."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


# --- the tables -------------------------------------------------------------------------------------------------------------


def folder_of(engine: str) -> Path:
    """Where the tables of an engine are."""
    return PROJECT / "specs" / "scenarios" / engine


def table(engine: str, name: str) -> tuple[list[str], list[list[str]]]:
    """The header and the lines of one table, cell by cell."""
    with (folder_of(engine) / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    return header, lines


def write(engine: str, name: str, header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Write a table."""
    with (folder_of(engine) / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])
