"""Are the pages of ``specs/`` true: generated parts fresh, names existing, links leading somewhere?"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklife.cli._spec import parts, tables
from blocklife.drawing import _spec as spec
from blocklife.drawing._spec import OURS
from blocklife.ledger.invariants import INVARIANTS
from blocklife.states import COUPLINGS, MACHINES
from tests.project.mistakes import MISTAKES, answer, told
from tests.project.windows import PAGE, renewed

SPECS = Path(__file__).parents[2] / "specs"
PAGES = sorted(SPECS.rglob("*.md"))

STATES = {state.name for table in OURS.values() for state in table.states}
EVENTS = {f"{machine}.{event}" for machine, table in MACHINES.items() for event in table.events}
TOLD = told()
ROWS = {machine: {str(row) for row in table.rows} for machine, table in MACHINES.items()}


def quoted(page: Path) -> Iterator[str]:
    """What the hand-written part of a page has between backticks."""
    prose = re.sub(r"(?s)<!-- generated: \S+ -->\n.*?\n<!-- end -->", "", page.read_text(encoding="utf-8"))
    yield from re.findall(r"`([^`\n]+)`", prose)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the pages that a test may spoil."""
    return Path(shutil.copytree(SPECS, tmp_path / "specs"))


def change(page: Path, old: str, new: str) -> int:
    """Replace one passage of a page; gives the line where it begins."""
    text = page.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} is in {page.name} {text.count(old)} times"
    page.write_text(text.replace(old, new), encoding="utf-8")
    return text[: text.index(old)].count("\n") + 1


# --- freshness ---------------------------------------------------------------------------------------------------------


def test_specs_are_fresh() -> None:
    """What is generated is what the tables say now."""
    assert not (stale := spec.stale(SPECS, parts(), tables())), (
        f"{len(stale)} parts are out of date (run: make spec): {', '.join(stale)}"
    )


def test_spec_table_that_is_a_file_is_checked_and_written(copied: Path) -> None:
    """As a whole, like a drawing."""
    table = copied / "scenarios" / "words.csv"
    before = table.read_bytes()
    table.write_text("kind,word\n", encoding="utf-8")

    assert spec.stale(copied, parts(), tables()) == [f"{table}: the table is out of date (run: blocklife spec --write)"]
    table.unlink()
    assert spec.stale(copied, parts(), tables()) == [f"{table}: the table is missing (run: blocklife spec --write)"]
    assert spec.write(copied, parts(), tables()) == [str(table)]
    assert table.read_bytes() == before


def test_spec_part_that_was_tampered_with_is_named_and_repaired(copied: Path) -> None:
    """One changed word is found with file and line, and writing brings back the very bytes."""
    page = copied / "block.md"
    before = page.read_text(encoding="utf-8")
    line = change(page, "<!-- generated: block.states -->\n", "<!-- generated: block.states -->\nA word too many.\n")

    assert spec.stale(copied, parts()) == [
        f"{page}:{line}: generated part block.states is out of date (run: blocklife spec --write)"
    ]
    assert spec.write(copied, parts()) == [str(page)]
    assert page.read_text(encoding="utf-8") == before
    assert spec.stale(copied, parts()) == []


def test_spec_part_that_is_empty_is_filled(copied: Path) -> None:
    """A new page needs nothing but the two markers."""
    page = copied / "new.md"
    page.write_text("# New\n\n<!-- generated: slot.events -->\n<!-- end -->\n\nProse.\n", encoding="utf-8")

    assert len(spec.stale(copied, parts())) == 1
    assert spec.write(copied, parts()) == [str(page)]
    assert spec.stale(copied, parts()) == []
    assert page.read_text(encoding="utf-8").startswith("# New\n\n<!-- generated: slot.events -->\n\n| event |")
    assert page.read_text(encoding="utf-8").endswith("|\n\n<!-- end -->\n\nProse.\n")


@pytest.mark.parametrize(
    ("new", "complaint"),
    [
        ("<!-- generated: slot.colour -->", "unknown generated part slot.colour"),
        ("<!-- generated slot.states -->", "is malformed"),
        ("<!-- generated: slot.states -->\n<!-- generated: slot.states -->", "generated part slot.states is not closed"),
        ("<!-- end -->\n<!-- generated: slot.states -->", "<!-- end --> closes nothing"),
    ],
)
def test_spec_marker_that_is_wrong_is_named_and_its_page_left_alone(copied: Path, new: str, complaint: str) -> None:
    """A page whose markers cannot be trusted is reported by line and not rewritten."""
    page = copied / "slot.md"
    line = change(page, "<!-- generated: slot.states -->", new)
    spoiled = page.read_text(encoding="utf-8")

    first = spec.stale(copied, parts())[0]
    assert first.startswith(f"{page}:{line}: ")
    assert complaint in first
    assert spec.write(copied, parts()) == []
    assert page.read_text(encoding="utf-8") == spoiled


def test_spec_part_that_is_not_closed_is_named(copied: Path) -> None:
    """The last marker of a page needs an end, too."""
    page = copied / "couplings.md"
    line = change(page, "<!-- end -->", "")

    assert spec.stale(copied, parts())[0] == f"{page}:{line_of(page, 'generated: couplings')}: " + (
        "generated part couplings is not closed (write <!-- end -->)"
    )
    assert line > line_of(page, "generated: couplings")


def line_of(page: Path, text: str) -> int:
    """The line of a page in which some text stands."""
    return next(number for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1) if text in line)


def test_spec_part_that_no_page_has_is_missed(tmp_path: Path) -> None:
    """Each part of each machine must be printed somewhere."""
    page, made = tmp_path / "only.md", parts()
    for name in made:
        others = [f"<!-- generated: {other} -->\n<!-- end -->\n" for other in made if other != name]
        page.write_text("".join(others), encoding="utf-8")
        spec.write(tmp_path, made)

        assert spec.stale(tmp_path, made) == [f"{tmp_path}: no file has the generated part {name}"]


def test_spec_write_that_fails_leaves_the_old_page(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is replaced as a whole or not at all."""
    page = copied / "block.md"
    change(page, "<!-- generated: block.states -->\n", "<!-- generated: block.states -->\nA word too many.\n")
    spoiled = page.read_text(encoding="utf-8")

    def fail(source: object, target: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        spec.write(copied, parts())
    assert page.read_text(encoding="utf-8") == spoiled
    assert sorted(path.name for path in copied.rglob("*")) == sorted(path.name for path in SPECS.rglob("*"))


# --- prose -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_spec_names_only_what_exists(page: Path) -> None:
    """States are in capitals, events have their machine, couplings a hyphen; an arrow is a row of the page's machine."""
    machines, couplings = "|".join(MACHINES), {each.name for each in COUPLINGS}
    rows = ROWS.get(page.stem, set.union(*ROWS.values()))
    for text in quoted(page):
        if re.fullmatch(r"[A-Z][A-Z_]{2,}", text) and text != "NAME":
            assert text in STATES, f"{page.name}: no machine has a state {text}"
        if found := re.match(rf"((?:{machines})\.\w+)(?!\.md)", text):
            assert found[1] in EVENTS, f"{page.name}: no event {text}"
        if "-->" in text and not text.startswith("<!--"):
            assert text in rows, f"{page.name}: no row {text}"
        if re.fullmatch(r"[a-z]+(-[a-z]+)+", text):
            assert text in couplings, f"{page.name}: no coupling {text}"


@pytest.mark.parametrize("machine", list(MACHINES))
def test_spec_of_a_machine_speaks_its_own_states(machine: str) -> None:
    """On the page of a machine, a state means one of that machine, and every state is in its story or its arrows."""
    own = {state.name for state in MACHINES[machine].states}
    words = {word for text in quoted(SPECS / f"{machine}.md") for word in re.findall(r"\b[A-Z][A-Z_]{2,}\b", text)}

    assert not own - words, f"specs/{machine}.md: no line of prose names {', '.join(sorted(own - words))}"
    assert words <= own


def test_spec_index_links_every_page() -> None:
    """No page is without a way to it: the list of all links it, or the page that its folder is named after does."""
    linked = set[str]()
    for page in SPECS.glob("*.md"):
        links = set(re.findall(r"\]\(([^)]+\.md)\)", page.read_text(encoding="utf-8")))
        linked |= {
            link for link in links if page.name == "pages.md" or link.startswith((f"{page.stem}/", f"{page.stem}-findings/"))
        }

    linked = {link for link in linked if not link.startswith("../")}
    assert linked == {page.relative_to(SPECS).as_posix() for page in PAGES} - {"README.md", "pages.md"}
    assert "](pages.md)" in (SPECS / "README.md").read_text(encoding="utf-8")


def test_invariants_are_numbered_and_pinned_by_tests_that_exist() -> None:
    """Each of the fifteen rules has its row, and every test that a row names is defined in that file."""
    rows = re.findall(
        r"^\| (I\d+) \|.*\| ([^|]*) \|$", (SPECS / "invariants.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    pinned = {rule: re.findall(r"`([\w.]+)::(\w+)`", names) for rule, names in rows}
    missing = [
        f"{file}::{name}"
        for names in pinned.values()
        for file, name in names
        if not any(f"def {name}(" in found.read_text(encoding="utf-8") for found in (SPECS.parent / "tests").rglob(file))
    ]

    assert [rule for rule, _ in rows] == [f"I{number}" for number in range(1, 16)]
    assert missing == []
    assert {rule for rule, names in pinned.items() if not names} == {"I11"}
    assert {rule for rule, names in pinned.items() if names} == {*INVARIANTS, "I2"}  # I2 is about the device, not the ledger


# --- the scheduler -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mistake", MISTAKES)
def test_contract_tells_what_is_really_said(mistake: str) -> None:
    """Each mistake is made, and answered as the table says."""
    assert TOLD.get(mistake) == answer(mistake), "run: make spec"


def test_contract_tells_every_mistake() -> None:
    """The table has those that are made here and no other; what the page quotes is one of them."""
    page = (SPECS / "engine-contract.md").read_text(encoding="utf-8")

    assert list(TOLD) == list(MISTAKES), "run: make spec"
    assert any(f"`{message}`" in page for message in TOLD.values())


def test_offload_counts_windows_as_the_geometry_does() -> None:
    """The numbers of the page are those of the code."""
    page = PAGE.read_text(encoding="utf-8")

    assert renewed(page) == page, "run: make spec"
