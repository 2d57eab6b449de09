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
HOLDS, UNASKED = "holds", "not expressible"
HEAD, FRONT_HEAD = "| scenario | thread |", "| engine | release |"
"""How the two tables begin."""
_NUMBER = re.compile(r"[0-9]+|[a-z]+")


@frozen
class Results:
    """What one engine shows."""

    engine: str
    releases: tuple[str, ...]
    """The newest first."""
    cells: Mapping[str, Mapping[str, str]]
    """By scenario, then by release."""


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
            releases = sorted((each for each in rows[0] if each not in ("case", "contract")), key=_age, reverse=True)
            among: dict[str, list[Mapping[str, str]]] = {}
            for row in rows:
                among.setdefault(row["case"].partition(",")[0], []).append(row)
            cells = {case: {release: _cell(release, mine) for release in releases} for case, mine in among.items()}
            found.append(Results(engine, tuple(releases), cells))
    return found


def _cell(release: str, rows: Sequence[Mapping[str, str]]) -> str:
    """What all rows of a scenario show: where they differ, how those that fail are run."""
    shown = {row[release] for row in rows}
    if len(shown) == 1:
        return shown.pop()
    failing = [f"{row[release]} [{_how(row)}]".removesuffix(" []") for row in rows if row[release] not in (HOLDS, UNASKED)]
    return "; ".join(failing) or HOLDS


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
    columns = [(each, release) for each in every for release in each.releases]
    yield f"{HEAD} {' | '.join(f'{NAMES[each.engine]} {release}' for each, release in columns)} |"
    yield "|" + " --- |" * (len(columns) + 2)
    for case in dict.fromkeys(case for each in every for case in sorted(each.cells)):
        files = [SHIPPED / each.engine / f"{case}.toml" for each in every if case in each.cells]
        sources = ", ".join(dict.fromkeys(one for path in files for one in read_scenario(path).source.split(", ")))
        cells = [each.cells.get(case, {}).get(release, "") for each, release in columns]
        said = ["" if cell == UNASKED else cell if cell in ("", HOLDS) else f"**{cell}**" for cell in cells]
        yield f"| {case}: {_title(files[0])} | {threads(sources)} | {' | '.join(said)} |"


def _title(path: Path) -> str:
    return read_scenario(path).title.partition(", as ")[0]


def counts() -> Iterator[str]:
    """A line for each release of each engine."""
    yield f"{FRONT_HEAD} scenarios that hold | that fail |"
    yield "| --- | --- | --- | --- |"
    for each in results():
        for release in each.releases:
            shown = {case: cells[release] for case, cells in each.cells.items() if cells[release] != UNASKED}
            failing = [case for case, cell in shown.items() if cell != HOLDS]
            held = f"{len(shown) - len(failing)} of {len(shown)}"
            yield f"| {NAMES[each.engine]} | {release} | {held} | {', '.join(sorted(failing))} |"


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
