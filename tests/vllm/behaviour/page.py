"""The page of specs/ about the table: how its tests are run, what was counted, and what ours does not do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.vllm.behaviour.table import VERDICTS, Table

PAGE = Path(__file__).parents[3] / "specs" / "vllm-behaviour.md"

_HEAD = Path(__file__).with_name("head.txt").read_text(encoding="utf-8")
"""What stands above the tables; in braces what is counted."""


def rendered(table: Table) -> str:
    """The whole page."""
    files = sorted({name.partition("::")[0] for entry in table.entries for name in entry.by if "/test_behaviour_" in name})
    head = _HEAD.format(
        cases=sum(entry.count for entry in table.entries),
        tests=len(table.by_test()),
        files=" ".join(files),
        **{verdict: "{} rows, {} cases".format(*table.total(verdict)) for verdict in VERDICTS},
    )
    return "\n".join([head, "## What our connector does not do\n", *_lacks(table), ""])


def _lacks(table: Table) -> Iterator[str]:
    """What is missing, each once: what an entry lacks, or why it is excluded."""
    told = (entry.lacks or (entry.why if entry.verdict == "excluded" else "") for entry in table.entries)
    yield from (f"* {lack}" for lack in dict.fromkeys(told) if lack)


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
