"""Every link of every page leads somewhere: in a checkout, and from the places that the pages have on the site.

Goal: nobody meets a dead link. Method: files and headings are looked up; an anchor counts only if GitHub and the generator of
the site give a heading the same name. Nothing is fetched: links to other sites are not followed.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.pages import PAGES, ROOT, anchors_of, links_of, names_of, stage

OF_OTHERS = ("CHANGELOG.md", "source-mutants.md", "vllm-behaviour.md")
"""Pages that quote what was there once, what was never there, and files of vLLM."""


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as the generator gets them."""
    folder = tmp_path_factory.mktemp("site") / "pages"
    stage().stage(folder)
    return folder


def dead(page: Path, *, is_staged: bool) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for link in links_of(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if target.is_dir() and not is_staged:  # GitHub shows a folder
            continue
        if not target.is_file() or (anchor and not has_anchor(target, anchor)):
            yield link


def has_anchor(page: Path, anchor: str) -> bool:
    """Whether a page has a heading of that name, or takes that name, or the class that has it, from a docstring."""
    text = page.read_text(encoding="utf-8")
    named = any(anchor == name or anchor.startswith(f"{name}.") for name in names_of(text))
    return anchor in anchors_of(text) or (named and is_there(anchor))


def is_there(dotted: str) -> bool:
    """Whether Python finds what a dotted name says."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        return all((found := getattr(found, part, None)) is not None for part in parts[length:])
    return False


def missing(node: str) -> bool:
    """Whether a file, or a test as ``file::function``, does not exist."""
    file, _, function = node.partition("::")
    path = ROOT / file.rstrip(".")
    return not path.exists() or bool(function and f"\ndef {function}(" not in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_leads_to_is_there(page: Path) -> None:
    """Links lead somewhere, and quoted paths are files of the project, those of tests with their function."""
    text = page.read_text(encoding="utf-8")
    quoted = re.findall(r"`((?:blocklife|tests|specs|examples)/[\w./-]+(?:::\w+)?)", text)

    assert list(dead(page, is_staged=False)) == []
    assert page.name in OF_OTHERS or [each for each in quoted if missing(each)] == []


def test_links_of_the_site_lead_somewhere(staged: Path) -> None:
    """Pages lie elsewhere there; what is not part of the site cannot be linked."""
    pages = sorted(staged.rglob("*.md"))

    assert len(pages) > len(PAGES)
    assert {str(page.relative_to(staged)): found for page in pages if (found := list(dead(page, is_staged=True)))} == {}


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT], ids=lambda page: str(page.relative_to(ROOT)))
def test_page_begins_with_its_title(page: Path) -> None:
    """It has one, which names it in the navigation of the site, and a sentence follows that says what the page is for."""
    first, _, rest = page.read_text(encoding="utf-8").partition("\n")

    assert first.startswith("# ")
    assert rest.lstrip()[0] not in "#|"  # neither a heading nor a table


def test_links_by_the_name_of_a_file_get_its_title(staged: Path) -> None:
    """On the site nobody knows files; where a link has words of its own they stay."""
    front, pages = ((staged / name).read_text(encoding="utf-8") for name in ("README.md", "pages.md"))

    assert "| [Install](install.md) |" in pages
    assert "[Install it](install.md)" in front
    assert "[What an engine does](engine-contract.md)" in (staged / "offload.md").read_text(encoding="utf-8")


def test_drawings_scroll_on_a_phone_and_open_by_themselves(staged: Path) -> None:
    """Each is a link to itself, in a box in which it is at least as wide as its text needs; none is made wider than it is."""
    block = (staged / "block.md").read_text(encoding="utf-8")
    told = {page: page.read_text(encoding="utf-8") for page in staged.rglob("*.md")}
    shown = [
        (page, line) for page, text in told.items() for line in text.splitlines() if re.search(r"!\[[^]]*\]\(\S+\.svg\)", line)
    ]
    form = re.compile(r'\[!\[[^]]+\]\((\S+\.svg)\)\{ style="--least: (\S+)px" \}\]\((\S+)\)\{ \.drawing \}')

    assert len(shown) > 15
    for page, line in shown:
        found = form.fullmatch(line)
        assert found, f"{page.name}: {line}"
        wide = re.search(r'width="([\d.]+)"', (page.parent / found[1]).read_text(encoding="utf-8"))
        assert wide
        assert (found[3], float(found[2])) == (found[1], min(760.0, float(wide[1])))
    assert "--least: 760px" in block


def test_site_lies_where_its_links_say(staged: Path) -> None:
    """Everything that the site shows of the project is there once, and a page of Markdown lies as it does in the project."""
    places = [stage().place_of(path.relative_to(ROOT).as_posix()) for path in stage().sources()]

    assert len(places) == len(set(places))
    assert all((staged / place).is_file() for place in places)
    assert "README.md" in places
    assert "examples/embed_in_an_engine.py.md" in places
    assert not [place for place in places if posixpath.normpath(place).startswith("..")]


def test_site_is_the_same_twice(staged: Path, tmp_path: Path) -> None:
    """Laid out again, every byte is the same, and what was there before is gone."""
    (tmp_path / "left.md").write_text("old", encoding="utf-8")
    stage().stage(tmp_path)
    first, second = (
        {path.relative_to(at): path.read_bytes() for path in at.rglob("*") if path.is_file()} for at in (staged, tmp_path)
    )

    assert first == second


def test_dead_links_are_found(tmp_path: Path) -> None:
    """The tests above can fail."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading\n\n[a](#a-heading) [b](#no-heading) [c](gone.md) ![d](gone.svg) `[e](code.md)`\n", encoding="utf-8"
    )

    assert list(dead(page, is_staged=False)) == ["#no-heading", "gone.md", "gone.svg"]
