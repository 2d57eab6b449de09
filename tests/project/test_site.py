"""The site is built without a warning, and whoever reads it needs no network.

Goal: `make docs` works, and its pages open from a folder. Method: the pages are laid out and given to the generator, as the
Makefile does; then every page is read for what a browser would fetch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.programs import HANGS_S
from tests.project.pages import ROOT, names_of

pytestmark = pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not here (make docs)")
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


class Fetched(HTMLParser):
    """What a page makes a browser fetch, and the names of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag in {"script", "img", "iframe", "source"}:
            self.fetched.append(given.get("src", ""))
        elif tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            self.fetched.append(given.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of the configuration that lies beside its own pages."""
    folder = tmp_path_factory.mktemp("built")
    config = CONFIG.replace("docs_dir: build/pages", f"docs_dir: {folder / 'pages'}").replace(
        "site_dir: build/site", f"site_dir: {folder / 'site'}"
    )
    assert config.count(str(folder)) == 2
    path = folder / "mkdocs.yml"
    path.write_text(
        config.replace("paths: [.]", f"paths: [{ROOT}]").replace("[specs/site/", f"[{ROOT}/specs/site/"), encoding="utf-8"
    )
    for words in (
        ["specs/site/stage.py", str(folder / "pages")],
        ["-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(path)],
    ):
        ran = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, "SOURCE_DATE_EPOCH": "0", "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder / "site"


def read(page: Path) -> Fetched:
    found = Fetched()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def test_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures lie in the site, and each is there."""
    pages = {page: read(page).fetched for page in site.rglob("*.html")}
    wanted = {(page, each) for page, among in pages.items() for each in among if each and not each.startswith("data:")}

    assert len(pages) > 60
    assert {each for _, each in wanted if "//" in each} == set()
    missing = {
        each for page, each in wanted if page.name != "404.html" and not (page.parent / each.partition("?")[0]).is_file()
    }
    assert missing == set()


def test_site_styles_fetch_nothing_from_elsewhere(site: Path) -> None:
    """Neither a style sheet nor a drawing names another host's file."""
    for path in (*site.rglob("*.css"), *site.rglob("*.svg")):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"""url\(\s*["']?https?:[^)]*\)|@import[^;]*https?:|xlink:href="https?:""", text) == [], path.name


def test_site_has_the_reference(site: Path) -> None:
    """Each name that a page of the reference takes has its part on that page, and says more than its name."""
    for source in (ROOT / "specs" / "reference").glob("*.md"):
        names = names_of(source.read_text(encoding="utf-8"))
        assert set(names) <= read(site / "reference" / f"{source.stem}.html").ids, source.name


def test_site_tells_how_records_are_made(site: Path) -> None:
    """A class of attrs has its constructor, with the defaults that its fields have; how they are checked is not told."""
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "offload.html").read_text(encoding="utf-8"))

    assert re.search(r"Policies\(\s+\*,\s+last_step: LastStep = LastStep.FLUSH,", text)
    assert "lazy_blocks: int = 64" in text
    assert "validator" not in text
    assert not re.search(r" = _[A-Z]", text)


def test_site_opens_from_a_folder(site: Path) -> None:
    """Links lead to files and not to folders, which only a server would answer with a page."""
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # only a server shows it
            continue
        links = set(re.findall(r'href="([^"#:]+)(?:#[^"]*)?"', page.read_text(encoding="utf-8")))

        assert len(links) > 40
        assert [link for link in links if not (page.parent / link).is_file()] == [], page.name
