"""What is printed of scenarios: results of runs, lists of scenarios, the methods that they need, the tables of the page."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from blocklife.knobs import usual
from blocklife.testing.scenarios._cases import chosen, worlds
from blocklife.testing.scenarios._driver import SETTINGS, EngineSetup
from blocklife.testing.scenarios._format import ALL_GROUPS, COMMON, GROUPS, TESTS, TOP, VERBS, Scenario
from blocklife.testing.scenarios._kinds import COUNTS, plain
from blocklife.testing.scenarios._running import METHODS, WRONG, Outcome, ScenarioVerdict, needs
from blocklife.testing.scenarios._words import EXPECTATIONS, REQUIRED

_NAMED = 8
"""The most scenarios that a line names; the others are counted."""
_COUNTED: Mapping[Outcome, str] = {
    Outcome.HELD: "hold",
    Outcome.UNSAFE: "unsafe",
    Outcome.FAILED: "fail",
    Outcome.OTHER_POLICY: "of another policy",
    Outcome.NOT_APPLICABLE: "not applicable",
}
_WORST_FIRST = (Outcome.UNSAFE, Outcome.FAILED, Outcome.OTHER_POLICY, Outcome.HELD)


# --- runs -------------------------------------------------------------------------------------------------------------------


def told(verdicts: Iterable[ScenarioVerdict], *, log: bool = False, as_json: bool = False) -> Iterator[str]:
    """The output of ``scenario run``: runs that did not hold, each reason once; with *log* all runs; and a summary."""
    found, reasons = [], set[tuple[Outcome, str]]()
    for each in verdicts:
        found.append(each)
        if as_json:
            yield json.dumps(each.record())
        elif log:
            yield from (f"{each.scenario}: {each.title}", *(f"  {line}" for line in each.log), str(each), "")
        elif each.outcome in WRONG and (each.outcome, each.reason) not in reasons:
            reasons.add((each.outcome, each.reason))
            yield str(each)
    if not as_json:
        yield from summary(found)


def summary(verdicts: Sequence[ScenarioVerdict]) -> Iterator[str]:
    """Each reason of several runs that did not hold, or of runs that were not applicable; the number of each outcome; which
    methods would open more scenarios; how many scenarios hold, by what they test.
    """
    reasons = Counter((each.outcome, each.reason) for each in verdicts if each.outcome is not Outcome.HELD)
    for (outcome, reason), count in sorted(reasons.most_common(), key=lambda each: each[0][0] is Outcome.NOT_APPLICABLE):
        if count > 1 or outcome is Outcome.NOT_APPLICABLE:
            names = dict.fromkeys(each.scenario for each in verdicts if (each.outcome, each.reason) == (outcome, reason))
            yield f"{outcome.value}: {_runs(count)}: {reason} ({_names(list(names))})"
    counts = Counter(each.outcome for each in verdicts)
    yield f"{_runs(len(verdicts))}: {', '.join(f'{counts[outcome]} {said}' for outcome, said in _COUNTED.items())}"
    lacks = {each.scenario: frozenset(each.lacks) for each in verdicts if each.lacks}
    for name in {each.scenario for each in verdicts if each.outcome in WRONG or each.outcome is Outcome.HELD}:
        lacks.pop(name, None)
    for methods, opened in islice(_openings(lacks), _NAMED):
        yield f"add {', '.join(methods)}: {len(opened)} more scenario{'s' * (len(opened) != 1)} ({_names(opened)})"
    for tests in TESTS:
        among = [each for each in verdicts if each.tests == tests]
        if among:
            yield f"{tests}: {_scenarios(among, lacks)}"


def by_scenario(verdicts: Iterable[ScenarioVerdict]) -> dict[str, list[ScenarioVerdict]]:
    """The runs of each scenario."""
    found: dict[str, list[ScenarioVerdict]] = {}
    for each in verdicts:
        found.setdefault(each.scenario, []).append(each)
    return found


def ending(verdicts: Iterable[ScenarioVerdict]) -> Outcome:
    """How a scenario ends, of whose runs these are: the worst of them; runs that are not applicable do not count."""
    found = {each.outcome for each in verdicts}
    return next((each for each in _WORST_FIRST if each in found), Outcome.NOT_APPLICABLE)


def _scenarios(verdicts: Sequence[ScenarioVerdict], lacks: Collection[str]) -> str:
    """Counts of scenarios, by how they end."""
    endings = {name: ending(among) for name, among in by_scenario(verdicts).items()}
    wrong = [name for name, end in endings.items() if end in WRONG - {Outcome.OTHER_POLICY}]
    other = [name for name, end in endings.items() if end is Outcome.OTHER_POLICY]
    held = sum(end is Outcome.HELD for end in endings.values())
    methods = sum(name in lacks for name in endings)
    rest = len(endings) - len(wrong) - len(other) - held - methods
    said = f"{held} of {len(endings)} scenarios hold"
    said += f", {len(wrong)} {'does' if len(wrong) == 1 else 'do'} not ({_names(wrong)})" if wrong else ""
    said += f", {len(other)} show{'s' * (len(other) == 1)} another policy ({_names(other)})" if other else ""
    said += f", {methods} need{'s' * (methods == 1)} a method that the driver lacks" if methods else ""
    return said + (f", {rest} need{'s' * (rest == 1)} what the engine cannot have" if rest else "")


def _openings(lacks: Mapping[str, frozenset[str]]) -> Iterator[tuple[list[str], list[str]]]:
    """An order in which few methods open many scenarios, by what each lacks: methods, and the scenarios that lack no more.

    Each time those that open the most scenarios for each of them; the first opens what lacks nothing.
    """
    left, have, row = dict(lacks), frozenset[str](), frozenset[str]()

    def opened(methods: frozenset[str]) -> list[str]:
        return sorted(name for name, needed in left.items() if needed <= have | methods)

    while left:
        if found := opened(row):
            yield [name for name in METHODS if name in row], found
        have |= row
        left = {name: needed for name, needed in left.items() if name not in found}
        missing = sorted({needed - have for needed in left.values()}, key=sorted)
        row = max(missing, key=lambda methods: len(opened(methods)) / len(methods), default=row)


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


# --- lists --------------------------------------------------------------------------------------------------------------------


def list_groups(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """Two lines per group of scenarios: what it is about; which of them are in it."""
    for group, said in ALL_GROUPS.items():
        yield f"{group}: {said}"
        yield f"    {' '.join(each.id for each in scenarios if each.is_in(group)) or 'none'}"


def list_files(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """Two lines per scenario: its title and what it tests; the worlds and the methods that it needs."""
    for each in scenarios:
        runs = sum(1 for _ in each.each_variant())
        source = f" ({each.source})" if each.source else ""
        kinds = ", ".join((each.tests, *each.groups))
        yield f"{each.id} ({kinds}): {each.title}{source}; {', '.join(each.invariants)}; {runs} variant{'s' * (runs != 1)}"
        settings = [f"{key}={'|'.join(map(plain, values))}" for key, values in worlds(each).items()]
        asked = [f"worlds {', '.join(settings)}"] if settings else []
        asked += [f"methods {', '.join(needs(each))}"] if needs(each) else []
        yield f"    needs {'; '.join(asked) or 'nothing that a driver may lack'}"


def list_methods(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """One line per method of a driver: how many scenarios need it, and which."""
    using = {method: [each.id for each in scenarios if method in needs(each)] for method in METHODS if method not in REQUIRED}
    width = max(map(len, METHODS))
    yield f"{', '.join(REQUIRED)}: all {len(scenarios)}"
    for method, names in sorted(using.items(), key=lambda each: -len(each[1])):
        yield f"{method:{width}} {len(names):3} {' '.join(names)}".rstrip()


def record(scenario: Scenario) -> dict[str, object]:
    """A scenario as data for JSON."""
    return {
        "scenario": scenario.id,
        "title": scenario.title,
        "tests": scenario.tests,
        "source": scenario.source,
        "invariants": list(scenario.invariants),
        "groups": list(scenario.groups),
        "variants": sum(1 for _ in scenario.each_variant()),
        "worlds": {key: list(values) for key, values in worlds(scenario).items()},
        "methods": list(needs(scenario)),
    }


def list_records(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """One line of JSON per scenario."""
    yield from (json.dumps(record(each)) for each in scenarios)


# --- the pages ----------------------------------------------------------------------------------------------------------------


def groups_table() -> Iterator[str]:
    """The groups that scenario files name, as `specs/suite.md` has them, line by line."""
    scenarios = chosen()
    yield from ("| group | is about | scenarios |", "| --- | --- | --- |")
    yield from (f"| `{name}` | {said} | {sum(each.is_in(name) for each in scenarios)} |" for name, said in GROUPS.items())


def words_as_csv() -> str:
    """All words of the format, as `specs/scenarios/words.csv` has them: kind, word, what it takes or its default, meaning."""
    text = io.StringIO()
    to = csv.writer(text, lineterminator="\n")
    to.writerow(("kind", "word", "takes", "means"))
    for section in ("the engine", "scenes", "single blocks", "of other engines"):
        for verb in (each for each in VERBS.values() if each.section == section):
            given = [each.name + "?" * (not each.needed) for each in verb.parameters] + ["as"] * bool(verb.binds)
            to.writerow((f"verb: {section}", verb.name, ", ".join(given), verb.doc))
    for about in dict.fromkeys(each.about for each in EXPECTATIONS.values()):
        for key in (each for each in EXPECTATIONS.values() if each.about == about):
            to.writerow((f"expectation: {about}", key.name, key.kind.said, key.doc))
    for kind, words in (
        ("count", COUNTS),
        ("key of a file", TOP),
        ("key of every step", COMMON),
        ("tests", TESTS),
        ("group", GROUPS),
    ):
        to.writerows((kind, name, "", doc) for name, doc in words.items())
    to.writerows(
        ("setting of a world", name, f"default: {usual(default)}", SETTINGS[name].told)
        for name, default in EngineSetup().words().items()
    )
    return text.getvalue()


def methods_as_csv() -> str:
    """An order in which few methods open many scenarios: `specs/scenarios/methods.csv`."""
    text = io.StringIO()
    to = csv.writer(text, lineterminator="\n")
    to.writerow(("methods", "open"))
    for methods, names in _openings({each.id: frozenset(needs(each)) for each in chosen()}):
        to.writerow((" ".join(methods or REQUIRED), " ".join(names)))
    return text.getvalue()
