"""Are the pages of ``specs/`` true: generated parts fresh, names existing, links leading somewhere?"""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blocklife.cli._spec import parts, tables
from blocklife.drawing import _spec as spec
from blocklife.drawing._spec import OURS
from blocklife.errors import BlocklifeError
from blocklife.ledger import Ledger, Limits
from blocklife.ledger.invariants import INVARIANTS
from blocklife.offload import Geometry, HostTier, OffloadScheduler
from blocklife.offload._search import unit_of
from blocklife.states import COUPLINGS, MACHINES

SPECS = Path(__file__).parents[2] / "specs"
PAGES = sorted(SPECS.rglob("*.md"))

STATES = {state.name for table in OURS.values() for state in table.states}
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
        linked |= {link for link in links if page.name == "pages.md" or link.startswith(f"{page.stem}/")}

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


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading (or a line that begins like it), without its head."""
    lines = iter((SPECS / page).read_text(encoding="utf-8").splitlines())
    next(line for line in lines if line.startswith(heading))
    next(line for line in lines if line.startswith("| ---"))
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def make(groups: str = "full:4", *, own_pool: bool = True) -> OffloadScheduler:
    """A scheduler with 15 blocks and 8 slots, and a request *a* with a prompt of 5 tokens."""
    geometry = Geometry.parse(groups)
    ledger = Ledger(Limits(num_blocks=16, num_slots=8, num_groups=len(geometry.groups)), own_pool=own_pool)
    scheduler = OffloadScheduler(ledger, HostTier(ledger), geometry)
    add(scheduler, "a", 5)
    return scheduler


def add(scheduler: OffloadScheduler, name: str, tokens: int) -> None:
    """All requests have the same tokens."""
    scheduler.add_request(name, lambda _group, start, stop: [b"%d" % at for at in range(start, stop)], prompt_tokens=tokens)


def let_in(scheduler: OffloadScheduler, name: str = "a", tokens: int = 5) -> OffloadScheduler:
    scheduler.admit(name, scheduler.lookup(name, tokens), tokens)
    return scheduler


def tick(scheduler: OffloadScheduler, times: int = 1) -> OffloadScheduler:
    """Steps in which nothing lands."""
    for _ in range(times):
        scheduler.settle(scheduler.build_plan(1.0).number, 1.0)
    return scheduler


def planned(scheduler: OffloadScheduler) -> OffloadScheduler:
    """A plan is out."""
    scheduler.build_plan(1.0)
    return scheduler


def lost() -> None:
    scheduler = make()
    scheduler.abort("a")
    scheduler.lookup("a", 5)


def old_hit() -> None:
    scheduler = make()
    hit = scheduler.lookup("a", 5)
    tick(scheduler).admit("a", hit, 5)


def deferred_hit() -> None:
    """Only a store that is out brings the content of *b*."""
    scheduler = tick(let_in(make()), 2)
    scheduler.finish("a")
    scheduler.ledger.drop(scheduler.ledger.blocks.prefix([b"0"]))
    add(scheduler, "b", 5)
    let_in(scheduler, "b")


def no_room() -> None:
    let_in(make(), "a", 80)


def again(scheduler: OffloadScheduler) -> None:
    hit = scheduler.lookup("a", 5)
    for _ in range(2):
        scheduler.admit("a", hit, 5)


def ended() -> None:
    scheduler = planned(let_in(make()))
    scheduler.finish("a")
    scheduler.preempt("a")


def twice() -> None:
    scheduler = tick(make())
    scheduler.settle(1, 1.0)


def unplaced() -> None:
    scheduler = make(own_pool=False)
    scheduler.admit("a", scheduler.lookup("a", 5, 0), 5)


def asleep() -> None:
    scheduler = make()
    scheduler.sleep()
    scheduler.lookup("a", 5)


def woken() -> None:
    scheduler = tick(let_in(make()), 2)
    scheduler.sleep()
    scheduler.wake()


MISTAKES: dict[str, Callable[[], object]] = {
    "a request that was never added, or is over": lost,
    "adding it twice": lambda: add(make(), "a", 5),
    "growing a waiting request": lambda: make().grow({"a": 1}),
    "growing twice in a step": lambda: let_in(make()).grow({"a": 1}),
    "looking up a running request": lambda: let_in(make()).lookup("a", 5),
    "admitting twice": lambda: again(make()),
    "a hit of an earlier step": old_hit,
    "a hit that is deferred": deferred_hit,
    "no room, ever": no_room,
    "preempting a waiting request": lambda: make().preempt("a"),
    "preempting a request that has ended": ended,
    "a state of another kind of group": lambda: let_in(make()).hand_off("a", 0, 4),
    "a state where the step does not end": lambda: let_in(make("full:4,mamba:4")).hand_off("a", 1, 8),
    "the next step before `settle`": lambda: planned(make()).lookup("a", 5),
    "settling out of order": lambda: planned(make()).settle(2, 1.0),
    "settling twice": twice,
    "own pool, but a hit is given": lambda: make().lookup("a", 5, 0),
    "own pool, but blocks are placed": lambda: make().place("a", []),
    "foreign pool, but no hit is given": lambda: make(own_pool=False).lookup("a", 5),
    "foreign pool, but nothing was placed": unplaced,
    "foreign pool, freeing what it does not hold": lambda: make(own_pool=False).free("a", 0, [9]),
    "a drain that comes too early": lambda: tick(let_in(make()), 2).reset(drain=True),
    "a step while it sleeps": asleep,
    "waking too early": woken,
    "a generation that is the present one": lambda: make().reset(generation=""),
    "regaining a worker that is there": lambda: make().regain_worker(0),
}


def refusals() -> list[list[str]]:
    """The mistakes that the contract lists, each with the message."""
    with (SPECS / "refusals.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


@pytest.mark.parametrize(("mistake", "message"), refusals(), ids=lambda cell: cell)
def test_contract_quotes_what_is_really_said(mistake: str, message: str) -> None:
    """Each mistake of the table is made, and answered as it says; the page quotes one of them."""
    with pytest.raises(BlocklifeError) as raised:
        MISTAKES[mistake]()

    assert str(raised.value) == message


def test_contract_tells_every_mistake() -> None:
    """None that is made here is left out there, and what the page quotes is one of them."""
    page = (SPECS / "engine-contract.md").read_text(encoding="utf-8")

    assert [mistake for mistake, _ in refusals()] == list(MISTAKES)
    assert any(f"`{message}`" in page for _, message in refusals())


@pytest.mark.parametrize("row", rows_of("offload.md", "A hit has one length"), ids=lambda row: f"{row[0]} by {row[1]}")
def test_offload_counts_windows_as_the_geometry_does(row: list[str]) -> None:
    """The numbers of the page are those of the code."""
    geometry = Geometry.parse(row[0].strip("`"), int(row[1]))
    windows = [
        ", ".join("all" if each is None else str(each) for each in window)
        for window in (geometry.window_blocks, geometry.window_chunks)
    ]
    size = geometry.blocks_per_chunk
    tails = ", ".join(str(unit_of(geometry, group, size).tail) for group in range(len(geometry.groups)))

    assert row[2:] == [*windows, tails, str(geometry.block_alignment), str(geometry.chunk_alignment)]
