"""The pages that people read, and what they consist of: blocks of code, commands, headings, links."""

from __future__ import annotations

import importlib
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from attrs import frozen

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    path
    for pattern in ("*.md", "specs/**/*.md", "examples/**/*.md")
    for path in sorted(ROOT.glob(pattern))
    if not path.parent.name.endswith("-findings")  # drafts of reports for another project, as its tracker wants them
)
"""Every page of the repository that is for readers of this project."""
_FENCE = re.compile(r"(?ms)^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>\S*)\n(?P<text>.*?)^```$")


@frozen
class Block:
    """One block of a page."""

    page: Path
    line: int
    """The page's line on which the text begins."""
    language: str
    text: str
    reason: str
    """Why it cannot be run; empty where it can."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(page, line, found["language"], found["text"], found["reason"] or "")


def prose_of(text: str) -> str:
    """A page without its blocks."""
    return re.sub(r"(?ms)^( *)```.*?^\1```$", "", text)


def headings_of(text: str) -> list[str]:
    """The headings of a page as people read them, without marks."""
    found = re.findall(r"(?m)^#+ +(.+?) *$", prose_of(text))
    return [re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading) for heading in found]


def anchors_of(text: str) -> set[str]:
    """What a link to a part of the page may say: what GitHub and the site's generator both call it."""
    return {_of_github(heading) for heading in headings_of(text)} & {_of_the_site(heading) for heading in headings_of(text)}


def _of_github(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _of_the_site(heading: str) -> str:
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def links_of(text: str) -> list[str]:
    """Where the links and pictures of a page lead that stay in the project."""
    prose = re.sub(r"`[^`\n]+`", "", prose_of(text))
    found = [*re.findall(r"\]\(([^)\s]+)\)", prose), *re.findall(r'(?:src|href)="([^"]+)"', prose)]
    return [link for link in found if "://" not in link and not link.startswith("mailto:")]


def names_of(text: str) -> list[str]:
    """What a page of the reference takes from docstrings."""
    return re.findall(r"(?m)^::: (\S+)$", text)


def stage() -> ModuleType:
    """The module that lays out the site."""
    folder = str(ROOT / "specs" / "site")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("stage")
    finally:
        sys.path.remove(folder)
