"""The page of specs/ about the table: how its tests are run, what was counted, and what ours does not do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.vllm.behaviour.table import VERDICTS, Table

PAGE = Path(__file__).parents[3] / "specs" / "vllm-behaviour.md"

_HEAD = Path(__file__).with_name("head.txt").read_text(encoding="utf-8")
"""What stands above the tables; in braces what is counted."""

_LACKS = """\
## What our connector does not do

| what | tests |
| --- | --- |
"""


def rendered(table: Table) -> str:
    """The whole page."""
    files = sorted({name.partition("::")[0] for entry in table.entries for name in entry.by if "/test_behaviour_" in name})
    head = _HEAD.format(
        cases=sum(entry.count for entry in table.entries),
        tests=len(table.by_test()),
        counts="\n".join(_counts(table)),
        files=" ".join(files),
    )
    return "\n".join([head, *_lacks(table)])


def _counts(table: Table) -> Iterator[str]:
    """Rows and cases, by theme and verdict."""
    yield "| about | " + " | ".join(f"{verdict}: rows (cases)" for verdict in VERDICTS) + " |"
    yield "| --- |" + " ---: |" * len(VERDICTS)
    for theme in table.themes:
        yield f"| {theme.title} | " + " | ".join(_count(table.total(verdict, theme.name)) for verdict in VERDICTS) + " |"
    yield "| **all** | " + " | ".join(f"**{_count(table.total(verdict))}**" for verdict in VERDICTS) + " |"


def _count(total: tuple[int, int]) -> str:
    return f"{total[0]} ({total[1]})" if total[0] else ""


def _lacks(table: Table) -> Iterator[str]:
    """What is missing, with the tests that ask for it: what an entry lacks, or why it is excluded."""
    yield _LACKS.rstrip()
    missing: dict[str, dict[str, None]] = {}
    for entry in table.entries:
        if lack := entry.lacks or (entry.why if entry.verdict == "excluded" else ""):
            missing.setdefault(lack, {})[entry.test] = None
    for lack, tests in missing.items():
        yield f"| {lack} | {', '.join(f'`{_short(test)}`' for test in tests)} |"
    yield ""


def _short(name: str) -> str:
    """A test without its folder."""
    return name.rpartition("/")[2]


def main(arguments: Sequence[str]) -> int:
    """Print the page, or write it."""
    if list(arguments) == ["--write"]:
        PAGE.write_text(rendered(Table.read()), encoding="utf-8")
        return 0
    if list(arguments) == ["--markdown"]:
        print(rendered(Table.read()), end="")
        return 0
    print("usage: python -m tests.vllm.behaviour (--markdown | --write)")
    return 2
