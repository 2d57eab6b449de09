"""The windows of groups on the page of the scheduler: ``python -m tests.project.windows`` writes what follows from each row."""

from __future__ import annotations

from collections.abc import Iterator

from blocklife.offload import Geometry
from blocklife.offload._search import unit_of
from tests.project.pages import ROOT

PAGE = ROOT / "specs" / "offload.md"
HEAD = "| groups | blocks per chunk | window in blocks |"
"""How the table begins. Its first two columns are written by hand, one row a geometry; the others are counted."""


def counted(groups: str, blocks_per_chunk: int) -> Iterator[str]:
    """The cells that follow from a geometry."""
    geometry = Geometry.parse(groups, blocks_per_chunk)
    for window in (geometry.window_blocks, geometry.window_chunks):
        yield ", ".join("all" if each is None else str(each) for each in window)
    yield ", ".join(str(unit_of(geometry, group, geometry.blocks_per_chunk).tail) for group in range(len(geometry.groups)))
    yield str(geometry.block_alignment)
    yield str(geometry.chunk_alignment)


def renewed(page: str) -> str:
    """A page with the cells as they should be."""
    before, head, table = page.partition(HEAD)
    rows, end, behind = table.partition("\n\n")
    first, rule, *lines = rows.split("\n")
    for at, line in enumerate(lines):
        groups, size = line.strip("| ").split(" | ")[:2]
        lines[at] = f"| {' | '.join([groups, size, *counted(groups.strip('`'), int(size))])} |"
    return before + head + "\n".join([first, rule, *lines]) + end + behind


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
