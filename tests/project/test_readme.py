"""The README keeps its word: its example runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_example_runs() -> None:
    """Every Python block of the README runs, in order, in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)

    assert len(blocks) == 1
    assert len(blocks[0].strip().splitlines()) <= 24


def test_readme_commands_are_make_targets() -> None:
    """The two commands of the README are targets of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    commands = re.findall(r"^\$ make ([a-z]+)", README, flags=re.MULTILINE)

    assert commands == ["run", "test"]
    assert set(commands) <= targets


def test_readme_links_lead_somewhere() -> None:
    """Every relative link and every path in backticks that names a file exists."""
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    paths = re.findall(r"`(blocklife/[\w/.]+)`", README)

    assert links
    assert [each for each in (*links, *paths) if not (ROOT / each).exists()] == []
