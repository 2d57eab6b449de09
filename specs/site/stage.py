"""Lay out the pages of the site, from which a generator makes it: `python specs/site/stage.py build/pages`.

Rules of this file:

* A page reads the same in a checkout and on the site. Links are written for the checkout, and led here to where a page lies
  on the site.
* No sentence is added, and nothing is fetched while a page is read.
* The same sources give the same bytes.
"""

from __future__ import annotations

import ast
import csv
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRONT = "specs/README.md"
CASES = "blocklife/testing/scenarios/cases/"
PAGES = ("specs/**/*", f"{CASES}**/*", "examples/*", "examples/*/*", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""What the site is made of. specs/ is its root, scenarios lie beside their page, and everything else keeps its folder."""
ENDINGS = (".md", ".py", ".svg", ".csv", ".json", ".yml", ".toml", ".css", ".js")
PAGED = (".py", ".toml", ".csv")
"""What becomes a page of the site."""
_LINK = re.compile(r"\[(?P<said>[^\[\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>(?:#[^)\s]*)?)\)")
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
"""A search for a word leads to pages that tell of it, and not to each program, scenario or draft of a report that has it."""
_SEARCHED_LAST = "---\nsearch:\n  boost: 0.2\n---\n\n"
RECORDS = ("mutants.md", "source-mutants.md", "vllm-behaviour.md")
"""Pages of names of tests and of counts: whoever searches for a word wants the page that explains it, before these."""
_ALONE = "---\nhide:\n  - navigation\n  - toc\n---\n\n"
"""The front page has no lists beside it: its first screen is for what this is."""
_DRAWING = re.compile(r"(?m)^!\[[^\]\n]*\]\(([^)\s]+\.svg)\)$")
LEAST = 760.0
"""Pixels: a drawing is shown at least so wide, or as wide as it is, and scrolls where there is less room."""


def place_of(path: str) -> str:
    """Where a file of the repository lies on the site. A program, a scenario or a table becomes a page, which shows it."""
    path = f"scenarios/{path.removeprefix(CASES)}" if path.startswith(CASES) else path.removeprefix("specs/")
    return path + (".md" if path.endswith(PAGED) else "")


def title_of(path: str) -> str:
    """What a page is called: its first heading."""
    return re.search(r"(?m)^# (.+)$", (ROOT / path).read_text(encoding="utf-8"))[1]  # type: ignore[index]  # a test sees to it


def with_links(text: str, path: str) -> str:
    """The text of a file, with relative links that lead from its place on the site to theirs.

    A link that has the name of a file for its text gets the title of the page.
    """
    home, here = posixpath.dirname(path), posixpath.dirname(place_of(path)) or "."

    def lead(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(home, found["path"]))
        if not (ROOT / target).is_file():
            return found[0]
        is_named_by_file = found["said"].endswith(".md") and not found["anchor"]
        said = title_of(target) if is_named_by_file else found["said"]
        return f"[{said}]({posixpath.relpath(place_of(target), here)}{found['anchor']})"

    return _LINK.sub(lead, text)


def opened(text: str, folder: Path) -> str:
    """A page whose drawings scroll where they do not fit, and open by themselves when they are clicked.

    *folder*: where the page lies in the checkout.
    """

    def open_(found: re.Match[str]) -> str:
        drawn = (folder / found[1]).read_text(encoding="utf-8")
        wide = float(re.search(r'<svg[^>]* width="([\d.]+)"', drawn)[1])  # type: ignore[index]  # each of ours says it
        return f'[{found[0]}{{ style="--least: {min(LEAST, wide):g}px" }}]({found[1]}){{ .drawing }}'

    return _DRAWING.sub(open_, text)


def as_page(path: Path) -> str:
    """A program or a scenario as a page: what its docstring says, then all of it."""
    source, language = path.read_text(encoding="utf-8"), path.suffix.removeprefix(".")
    said = ""
    if path.suffix == ".py":
        said = re.sub(r"(?m)::$", ":", ast.get_docstring(ast.parse(source)) or "") + "\n\n"
        language = "python"
    return f"{_NOT_SEARCHED}# {path.name}\n\n{said}`{path.relative_to(ROOT).as_posix()}`:\n\n```{language}\n{source}```\n"


def as_table(path: Path) -> str:
    """A table of data as a page."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = ([_cell(cell) for cell in row] for row in csv.reader(file))
    lines = [f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *rows)]
    return f"{_NOT_SEARCHED}# {path.name}\n\n`{path.relative_to(ROOT).as_posix()}`:\n\n{''.join(lines)}"


def _cell(text: str) -> str:
    """Text of a table as it stands there, but for what is between backticks, which is code."""
    plain = re.sub(r"[^\w\s`.,:;/()=+-]|_", lambda found: f"&#{ord(found[0])};", text)
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", plain)


def sources() -> Iterator[Path]:
    """Every file that the site shows, each once, in the order of their names."""
    found = {path for pattern in PAGES for path in ROOT.glob(pattern) if path.suffix in ENDINGS}
    own = {path for path in found if path.parent == Path(__file__).parent and path.suffix == ".py"}
    yield from sorted(path for path in found - own if "__pycache__" not in path.parts)


def stage(target: Path) -> None:
    """Write all of it below a folder, which is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        place = target / place_of(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = with_links(path.read_text(encoding="utf-8"), name)
            is_draft, is_record = path.parent.name.endswith("-findings"), path.name in RECORDS
            front = _NOT_SEARCHED if is_draft else _SEARCHED_LAST if is_record else _ALONE if name == FRONT else ""
            place.write_text(front + opened(text, path.parent), encoding="utf-8")
        elif path.suffix in PAGED:
            place.write_text(as_table(path) if path.suffix == ".csv" else as_page(path), encoding="utf-8")
        else:
            shutil.copyfile(path, place)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
