"""Are the pages of ``specs/`` true: generated parts fresh, names existing, links leading somewhere?"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklife.drawing import spec
from blocklife.ledger.invariants import INVARIANTS
from blocklife.states import COUPLINGS, MACHINES

SPECS = Path(__file__).parent.parent / "specs"
PAGES = sorted(SPECS.rglob("*.md"))

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)

STATES = {state.name for table in MACHINES.values() for state in table.states}
EVENTS = {f"{machine}.{event}" for machine, table in MACHINES.items() for event in table.events}
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
    assert spec.stale(SPECS) == []


def test_spec_part_that_was_tampered_with_is_named_and_repaired(copied: Path) -> None:
    """One changed word is found with file and line, and writing brings back the very bytes."""
    page = copied / "block.md"
    before = page.read_text(encoding="utf-8")
    line = change(page, "<!-- generated: block.states -->\n", "<!-- generated: block.states -->\nA word too many.\n")

    assert spec.stale(copied) == [f"{page}:{line}: generated part block.states is out of date (run: blocklife spec --write)"]
    assert spec.write(copied) == [str(page)]
    assert page.read_text(encoding="utf-8") == before
    assert spec.stale(copied) == []


def test_spec_part_that_is_empty_is_filled(copied: Path) -> None:
    """A new page needs nothing but the two markers."""
    page = copied / "new.md"
    page.write_text("# New\n\n<!-- generated: slot.rows -->\n<!-- end -->\n\nProse.\n", encoding="utf-8")

    assert len(spec.stale(copied)) == 1
    assert spec.write(copied) == [str(page)]
    assert spec.stale(copied) == []
    assert page.read_text(encoding="utf-8").startswith("# New\n\n<!-- generated: slot.rows -->\n\n| row |")
    assert page.read_text(encoding="utf-8").endswith("|\n\n<!-- end -->\n\nProse.\n")


def test_spec_write_leaves_fresh_pages_alone(copied: Path) -> None:
    """Nothing is written where nothing is stale, and nothing is left beside the pages."""
    assert spec.write(copied) == []
    assert sorted(path.name for path in copied.rglob("*")) == sorted(path.name for path in SPECS.rglob("*"))


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

    first = spec.stale(copied)[0]
    assert first.startswith(f"{page}:{line}: ")
    assert complaint in first
    assert spec.write(copied) == []
    assert page.read_text(encoding="utf-8") == spoiled


def test_spec_part_that_is_not_closed_is_named(copied: Path) -> None:
    """The last marker of a page needs an end, too."""
    page = copied / "couplings.md"
    line = change(page, "<!-- end -->", "")

    assert spec.stale(copied)[0] == f"{page}:{line_of(page, 'generated: couplings')}: " + (
        "generated part couplings is not closed (write <!-- end -->)"
    )
    assert line > line_of(page, "generated: couplings")


def line_of(page: Path, text: str) -> int:
    """The line of a page in which some text stands."""
    return next(number for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1) if text in line)


@pytest.mark.parametrize("name", list(spec.generated()))
def test_spec_part_that_no_page_has_is_missed(tmp_path: Path, name: str) -> None:
    """Each part of each machine must be printed somewhere."""
    page = tmp_path / "only.md"
    others = [f"<!-- generated: {other} -->\n<!-- end -->\n" for other in spec.generated() if other != name]
    page.write_text("".join(others), encoding="utf-8")
    spec.write(tmp_path)

    assert spec.stale(tmp_path) == [f"{tmp_path}: no file has the generated part {name}"]


def test_spec_write_that_fails_leaves_the_old_page(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is replaced as a whole or not at all."""
    page = copied / "block.md"
    change(page, "<!-- generated: block.states -->\n", "<!-- generated: block.states -->\nA word too many.\n")
    spoiled = page.read_text(encoding="utf-8")

    def fail(source: object, target: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        spec.write(copied)
    assert page.read_text(encoding="utf-8") == spoiled
    assert sorted(path.name for path in copied.rglob("*")) == sorted(path.name for path in SPECS.rglob("*"))


# --- prose -------------------------------------------------------------------------------------------------------------


@every_page
def test_spec_names_only_states_and_events_that_exist(page: Path) -> None:
    """A state is written in capitals, an event with its machine."""
    machines = "|".join(MACHINES)
    for text in quoted(page):
        if re.fullmatch(r"[A-Z][A-Z_]{2,}", text) and text != "NAME":
            assert text in STATES, f"{page.name}: no machine has a state {text}"
        if found := re.match(rf"((?:{machines})\.\w+)(?!\.md)", text):
            assert found[1] in EVENTS, f"{page.name}: no event {text}"


@every_page
def test_spec_draws_only_arrows_that_exist(page: Path) -> None:
    """An arrow in the prose of a machine's page is a row of that machine, guard included."""
    rows = ROWS.get(page.stem, set.union(*ROWS.values()))
    for text in quoted(page):
        if "-->" in text and not text.startswith("<!--"):
            assert text in rows, f"{page.name}: no row {text}"


@every_page
def test_spec_names_only_couplings_that_exist(page: Path) -> None:
    """A name with a hyphen is a coupling."""
    names = {each.name for each in COUPLINGS}
    for text in quoted(page):
        if re.fullmatch(r"[a-z]+(-[a-z]+)+", text):
            assert text in names, f"{page.name}: no coupling {text}"


@pytest.mark.parametrize("machine", list(MACHINES))
def test_spec_of_a_machine_speaks_its_own_states(machine: str) -> None:
    """On the page of a machine, a state means one of that machine, and every state is in its story or its arrows."""
    own = {state.name for state in MACHINES[machine].states}
    words = {word for text in quoted(SPECS / f"{machine}.md") for word in re.findall(r"\b[A-Z][A-Z_]{2,}\b", text)}

    assert words == own


@every_page
def test_spec_links_lead_somewhere(page: Path) -> None:
    """A link to another page names a file that is there."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).is_file(), f"{page.name}: {target}"


def test_spec_index_links_every_page() -> None:
    """No page is without a way to it."""
    linked = set(re.findall(r"\]\(([^)]+\.md)\)", (SPECS / "README.md").read_text(encoding="utf-8")))

    assert linked == {page.relative_to(SPECS).as_posix() for page in PAGES} - {"README.md"}


def test_spec_lists_every_invariant_once() -> None:
    """They are numbered from I1 without a gap."""
    found = re.findall(r"(?m)^\| (I\d+) \|", (SPECS / "invariants.md").read_text(encoding="utf-8"))

    assert found == [f"I{number}" for number in range(1, 16)]


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
        if f"def {name}(" not in (SPECS.parent / "tests" / file).read_text(encoding="utf-8")
    ]

    assert [rule for rule, _ in rows] == [f"I{number}" for number in range(1, 16)]
    assert missing == []
    assert {rule for rule, names in pinned.items() if not names} == {"I11"}
    assert {rule for rule, names in pinned.items() if names} == {*INVARIANTS, "I2"}  # I2 is about the device, not the ledger
