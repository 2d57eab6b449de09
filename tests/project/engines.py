"""The table of engines, from the kept results of each: ``python -m tests.project.engines`` writes it.

What a release shows is in `specs/scenarios/ENGINE/releases.csv`, which the tests under that engine keep true; the thread of a
scenario is in its file. An engine is in the table once its folder has such results.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from blocklife.testing.scenarios._cases import SHIPPED
from blocklife.testing.scenarios._format import read_scenario
from tests.project.pages import ROOT

PAGE = ROOT / "specs" / "engines.md"
FRONT = ROOT / "specs" / "README.md"
SCENARIOS = ROOT / "specs" / "scenarios"
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "lmcache": "LMCache"}
WHERE = {"vllm": "vllm-project/vllm", "sglang": "sgl-project/sglang", "lmcache": "LMCache/LMCache"}
"""The repositories whose threads are named in short."""
PARTS_OF = {"vllm": {"OffloadingConnector": "fence", "SimpleCPUOffloadConnector": "hold"}, "sglang": {"HiCache": ""}}
"""What of an engine keeps the host tier, each with the rows that are about it, where a release has a column of ours, too."""
HOLDS, UNASKED, OTHERWISE = "holds", "not expressible", "another policy"
NO_FAULT = (HOLDS, OTHERWISE)
HEAD, FRONT_HEAD = "| scenario | thread |", "| engine | release |"
"""How the two tables begin."""
_NUMBER = re.compile(r"[0-9]+|[a-z]+")


@frozen
class Results:
    """What one engine shows."""

    engine: str
    columns: tuple[str, ...]
    """Releases, the newest first, and what of a release keeps the host tier."""
    cells: Mapping[str, Mapping[str, str]]
    """By scenario, then by column."""


def _age(release: str) -> tuple[tuple[bool, int, str], ...]:
    """For sorting: numbers by their value."""
    return tuple((each.isdecimal(), int(each) if each.isdecimal() else 0, each) for each in _NUMBER.findall(release))


def results() -> list[Results]:
    """Those of every engine that has kept some."""
    found = []
    for engine in NAMES:
        if (path := SCENARIOS / engine / "releases.csv").exists():
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            columns = dict(_columns(engine, list(rows[0])))
            among: dict[str, list[Mapping[str, str]]] = {}
            for row in rows:
                among.setdefault(row["case"].partition(",")[0], []).append(row)
            cells = {case: {name: _cell(*column, mine) for name, column in columns.items()} for case, mine in among.items()}
            found.append(Results(engine, tuple(columns), cells))
    return found


def _columns(engine: str, heads: Sequence[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Every column of the table, with that of the results, and the contract of the rows that it is about ("" for all)."""
    kept = [each for each in heads if each not in ("case", "contract")]
    ours = {release: each for each in kept for release, _, what in [each.partition(" ")] if what}
    for release in sorted((each for each in kept if " " not in each), key=_age, reverse=True):
        if release not in ours:
            yield release, (release, "")
            continue
        for name, contract in PARTS_OF[engine].items():
            yield f"{release}: {name}", (release, contract)
        yield ours[release].replace(" ", ": ", 1), (ours[release], "")


def _cell(release: str, contract: str, among: Sequence[Mapping[str, str]]) -> str:
    """What all rows of a scenario show: where they differ, how those that fail are run."""
    rows = [row for row in among if not contract or row["contract"] == contract]
    shown = {row[release] for row in rows}
    if len(shown) < 2:
        return shown.pop() if shown else UNASKED
    failing = [f"{row[release]} [{_how(row)}]".removesuffix(" []") for row in rows if row[release] not in (*NO_FAULT, UNASKED)]
    return "; ".join(failing) or (OTHERWISE if OTHERWISE in shown else HOLDS)


def _how(row: Mapping[str, str]) -> str:
    return row.get("contract") or row["case"].partition(", ")[2]


def threads(source: str) -> str:
    """The threads of a scenario, with links."""

    def linked(found: re.Match[str]) -> str:
        return f"[{found[0]}](https://github.com/{WHERE[found[1]]}/issues/{found[2]})" if found[1] in WHERE else found[0]

    page = re.fullmatch(r"specs/([\w-]+\.md)", source)
    return f"[{page[1]}]({page[1]})" if page else re.sub(r"(?<![\w/-])([a-z]+)#([0-9]+)", linked, source)


def table() -> Iterator[str]:
    """A line for each scenario that was written for an engine."""
    every = results()
    columns = [(each, column) for each in every for column in each.columns]
    yield f"{HEAD} {' | '.join(f'{NAMES[each.engine]} {column}' for each, column in columns)} |"
    yield "|" + " --- |" * (len(columns) + 2)
    for case in dict.fromkeys(case for each in every for case in sorted(each.cells)):
        files = [SHIPPED / each.engine / f"{case}.toml" for each in every if case in each.cells]
        sources = ", ".join(dict.fromkeys(one for path in files for one in read_scenario(path).source.split(", ")))
        cells = [each.cells.get(case, {}).get(column, "") for each, column in columns]
        said = ["" if cell == UNASKED else cell if cell in ("", *NO_FAULT) else f"**{cell}**" for cell in cells]
        yield f"| {case}: {_title(files[0])} | {threads(sources)} | {' | '.join(said)} |"


def _title(path: Path) -> str:
    return read_scenario(path).title.partition(", as ")[0]


def counts() -> Iterator[str]:
    """A line for each column of each engine. What shows another policy does not count."""
    yield f"{FRONT_HEAD} scenarios that hold | that fail |"
    yield "| --- | --- | --- | --- |"
    for each in results():
        for column in each.columns:
            shown = {case: cell for case, cells in each.cells.items() if (cell := cells[column]) not in (UNASKED, OTHERWISE)}
            failing = [case for case, cell in shown.items() if cell != HOLDS]
            held = f"{len(shown) - len(failing)} of {len(shown)}"
            yield f"| {NAMES[each.engine]} | {column} | {held} | {', '.join(sorted(failing))} |"


def renewed(page: str, head: str, lines: Iterator[str]) -> str:
    """A page with the table that begins so as it should be."""
    before, found, rest = page.partition(head)
    if not found:
        raise ValueError(f"the page has no table that begins with {head}")
    return before + "\n".join(lines) + "\n\n" + rest.partition("\n\n")[2]


PARTS = ((PAGE, HEAD, table), (PAGE, FRONT_HEAD, counts), (FRONT, FRONT_HEAD, counts))
"""The pages, how their tables begin, and what makes them."""

if __name__ == "__main__":
    for path, head, lines in PARTS:
        path.write_text(renewed(path.read_text(encoding="utf-8"), head, lines()), encoding="utf-8")
