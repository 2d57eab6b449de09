"""The table of engines says what the kept results say, and gives a thread for each failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.project.engines import HEAD, NO_FAULT, PAGE, PARTS, UNASKED, renewed, results, table, threads


@pytest.mark.parametrize(("path", "head", "lines"), PARTS, ids=lambda each: getattr(each, "__name__", None))
def test_table_is_fresh(path: Path, head: str, lines: Callable[[], Iterator[str]]) -> None:
    """Where it is not, `make spec` writes it; a changed cell is noticed."""
    page = path.read_text(encoding="utf-8")

    assert renewed(page, head, lines()) == page
    at = page.index(head) + len(head)
    assert renewed(page[:at] + page[at:].replace(" holds |", " fails |", 1).replace("vLLM", "xLLM", 1), head, lines()) == page


def test_table_has_every_result() -> None:
    """A line for each scenario of each engine, a cell for each release; what fails is in bold, and its line has a thread."""
    head, _, *lines = table()
    found = {line.split(":")[0].removeprefix("| "): line.strip("| ").split(" | ") for line in lines}
    columns = head.strip("| ").split(" | ")
    every = results()

    assert {each.engine for each in every} >= {"vllm", "sglang"}
    assert found.keys() == {case for each in every for case in each.cells}
    assert len(columns) == 2 + sum(len(each.columns) for each in every)
    for each in every:
        for case, cells in each.cells.items():
            for cell in cells.values():
                if cell not in (*NO_FAULT, UNASKED):
                    assert f"**{cell}**" in found[case]
                    assert "](" in found[case][1], f"{case} fails, and has no thread"


def test_releases_are_in_their_order() -> None:
    """The newest first, whatever the order of the results; where we are in one, all that keeps its host tier has a column."""
    assert [list(each.columns) for each in results()][:2] == [
        [
            *("0.33.0: OffloadingConnector", "0.33.0: SimpleCPUOffloadConnector", "0.33.0: blocklife"),
            *("0.30.0", "0.23.0", "0.22.1", "0.21.0"),
        ],
        ["0.5.23: HiCache", "0.5.23: linker", "0.5.20", "0.5.14", "0.5.13.post1"],
    ]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("vllm#1", "[vllm#1](https://github.com/vllm-project/vllm/issues/1)"),
        ("mini-sglang#142, ROCm/ATOM#7, trt#3", "mini-sglang#142, ROCm/ATOM#7, trt#3"),
        ("specs/vllm-findings.md", "[vllm-findings.md](vllm-findings.md)"),
    ],
)
def test_thread_of_an_engine_is_a_link(source: str, said: str) -> None:
    """Others stay as the scenario has them."""
    assert threads(source) == said


def test_page_without_its_table_is_refused() -> None:
    """It would be written nowhere."""
    with pytest.raises(ValueError, match="the page has no table that begins with"):
        renewed(PAGE.read_text(encoding="utf-8").replace(HEAD, ""), HEAD, table())
