"""Two lifecycles compared: what is planted in one of them is found, and nothing else.

Goal: a reviewer sees each row that a change adds, removes or turns. Method: the real tables with planted changes, pairs of tiny
lifecycles, and a git repository that is made here, with one lifecycle in two commits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from blocklife.cli import main
from blocklife.drawing._diff import Difference, compare
from blocklife.drawing._picture import Arrow, Emphasis, Label, Node, Picture, picture
from blocklife.errors import DefinitionError, MisuseError
from blocklife.machines import export_markup, import_markup, stand_ins
from blocklife.states import MACHINES

ROOT = Path(__file__).parents[2]

every_machine = pytest.mark.parametrize("name", MACHINES)

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def drawn(*rows: str, initial: str = "A", finals: str = "") -> Picture:
    """A picture from rows such as ``A go[ok] B``, in the order of a table."""
    cut = [row.replace("[", " [").split() for row in rows]
    names = dict.fromkeys([*(row[0] for row in cut), *(row[-1] for row in cut)])
    nodes = tuple(Node(name, "", name == initial, name in finals) for name in sorted(names))
    grouped: dict[tuple[str, str], list[Label]] = {}
    for number, (source, event, *guard, target) in enumerate(cut, 1):
        label = Label(number, event, guard[0].strip("[]") if guard else None)
        grouped.setdefault((source, target), []).append(label)
    return Picture("door", "", nodes, tuple(Arrow(*ends, tuple(labels)) for ends, labels in grouped.items()))


def told(difference: Difference) -> list[str]:
    return [str(change) for change in (*difference.states, *difference.rows)]


# --- pictures ------------------------------------------------------------------------------------------------------------


@every_machine
def test_diff_of_a_machine_with_itself_is_empty(name: str) -> None:
    """A table is equal to itself, and the picture that comes out is the one that went in."""
    one = picture(MACHINES[name], name)
    difference = compare(one, one)

    assert difference.equal
    assert difference.picture == one
    assert (difference.marks.states, difference.marks.rows) == ({}, {})
    assert difference.summary == f"equal: {len(one.nodes)} states, {len(MACHINES[name].rows)} rows"


@every_machine
def test_diff_finds_every_row_that_is_taken_out(name: str) -> None:
    """Without one row, just this row is told, as removed or as added; where it stood below another, nothing moves."""
    whole = picture(MACHINES[name], name)
    for arrow in whole.arrows:
        for label in arrow.labels:
            left = tuple(each for each in arrow.labels if each is not label)
            cut = attrs.evolve(
                whole, arrows=tuple(attrs.evolve(each, labels=left) if each is arrow else each for each in whole.arrows)
            )
            row = f"{arrow.source} --{label}--> {arrow.target}"

            assert told(compare(whole, cut)) == [f"- {row}"]
            assert told(compare(cut, whole)) == [f"+ {row}"]
            assert compare(cut, whole).marks.rows[label.row].emphasis is Emphasis.ADDED


@every_machine
def test_diff_finds_every_row_that_is_turned(name: str) -> None:
    """A row that leads elsewhere is one change, with where it led before."""
    table = MACHINES[name]
    whole = picture(table, name)
    for row in table.rows:
        lone = [each for each in table.rows if (each.source, each.event) == (row.source, row.event)]
        target = next(state for state in table.states if all(state is not each.target for each in lone))
        rows = [
            f"{each.source.name} {each.event}{f'[{each.guard.name}]' if each.guard else ''} "
            f"{(target if each is row else each.target).name}"
            for each in table.rows
        ]
        turned = attrs.evolve(drawn(*rows), nodes=whole.nodes, guards=whole.guards)
        difference = compare(whole, turned)

        assert [change.note for change in difference.rows] == [f"led to {row.target.name}"]
        assert difference.summary == "1 row changed"
        assert difference.marks.rows[row.index].emphasis is Emphasis.CHANGED


CASES: dict[str, tuple[Sequence[str], Sequence[str], list[str]]] = {
    "a row above another": (
        ["A go B"],
        ["A go[ok] C", "A go B"],
        ["+ state C", "+ A --go [ok]--> C"],
    ),
    "a guard comes": (["A go B"], ["A go[ok] B"], ["~ A --go [ok]--> B (had no guard)"]),
    "a guard goes": (["A go[ok] B"], ["A go B"], ["~ A --go--> B (guard was ok)"]),
    "a guard is another": (["A go[ok] B"], ["A go[sure] B"], ["~ A --go [sure]--> B (guard was ok)"]),
    "all of a row at one position": (
        ["A go[ok] B", "A go A"],
        ["A go[sure] C", "A go A"],
        ["+ state C", "- state B", "~ A --go [sure]--> C (led to B, guard was ok)"],
    ),
    "order": (
        ["A go[ok] B", "A go[sure] A"],
        ["A go[sure] A", "A go[ok] B"],
        ["~ A --go [sure]--> A (is tried before [ok])"],
    ),
    "order that cannot be told": (["A go[ok] B", "A go[sure] B"], ["A go[sure] B", "A go[ok] B"], []),
    "order between events": (["A go B", "A stop A"], ["A stop A", "A go B"], []),
    "an event by another name": (["A go B"], ["A walk B"], ["+ A --walk--> B", "- A --go--> B"]),
    "two rows, one state": (
        ["A go B", "B go A"],
        ["A go B", "B go C", "C go A"],
        ["+ state C", "~ B --go--> C (led to A)", "+ C --go--> A"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_diff_tells_what_was_planted(case: str) -> None:
    """One planted change, one line that names it; what is removed comes last."""
    before, after, wanted = CASES[case]

    assert told(compare(drawn(*before), drawn(*after))) == wanted


def test_diff_tells_of_other_beginnings_and_ends() -> None:
    """Initial and final are properties of a state; each side that changes is told."""
    difference = compare(drawn("A go B", "B go A", finals="A"), drawn("A go B", "B go A", initial="B", finals="B"))

    assert told(difference) == ["~ state A (was initial, was final)", "~ state B (is initial, is final)"]
    assert [node.name for node in difference.picture.nodes if node.initial] == ["B"]


def test_diff_tells_of_a_guard_that_reads_something_else() -> None:
    """A guard with its old name and another payload is another guard."""
    block = picture(MACHINES["block"], "block")
    other = attrs.evolve(
        block, guards=tuple(attrs.evolve(each, reads=()) if each.name == "idle" else each for each in block.guards)
    )

    assert {change.note for change in compare(block, other).rows} == {"guard read refs"}
    assert len(compare(block, other).rows) == sum(
        row.guard is not None and row.guard.name == "idle" for row in MACHINES["block"].rows
    )


def test_diff_draws_what_only_one_side_has() -> None:
    """The picture holds the rows and states of both sides, each number once, and one beginning."""
    before, after = drawn("A go B", "B go C", "C go A", initial="C"), drawn("A go B", "B go A")
    difference = compare(before, after)
    numbers = sorted(label.row for arrow in difference.picture.arrows for label in arrow.labels)
    ends = [(arrow.source, arrow.target) for arrow in difference.picture.arrows]

    assert [node.name for node in difference.picture.nodes] == ["A", "B", "C"]
    assert [node.name for node in difference.picture.nodes if node.initial] == ["A"]
    assert numbers == [1, 2, 3]
    assert len(set(ends)) == len(ends) == 3
    assert difference.marks.rows[3].emphasis is difference.marks.states["C"].emphasis is Emphasis.REMOVED
    assert "removed, was initial" in difference.marks.states["C"].note


def test_diff_as_data_says_the_same() -> None:
    """The JSON holds both sides of every change."""
    found = json.loads(json.dumps(compare(drawn("A go B"), drawn("A go[ok] B", "B go A"), ("x", "y")).as_json()))
    changed, added = found["rows"]

    assert (found["before"], found["after"], found["equal"]) == ("x", "y", False)
    assert found["summary"] == "1 row added, 1 changed"
    assert changed["before"] == {"from": "A", "event": "go", "guard": None, "to": "B"}
    assert changed["after"] == {"from": "A", "event": "go", "guard": "ok", "to": "B"}
    assert (added["kind"], added["before"]) == ("added", None)


# --- files and options ---------------------------------------------------------------------------------------------------


@every_machine
def test_markup_that_is_written_by_draw_is_equal_to_its_machine(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine goes to a file and comes back without a difference."""
    file = str(tmp_path / "machine.json")

    assert main(["draw", name, "--format", "markup", "-o", file]) == 0
    assert main(["draw", "--diff", file, name]) == 0
    assert capsys.readouterr().out.startswith(f"{file} -> {name}: equal: ")


def test_guard_that_is_known_by_name_alone_does_not_answer() -> None:
    """A lifecycle that was read without its code can be drawn and compared; a step that asks a guard says what is missing."""
    markup = export_markup(MACHINES["slot"])
    guards = stand_ins(markup)
    table = import_markup(markup, guards)

    assert told(compare(picture(table, "slot"), picture(MACHINES["slot"], "slot"))) == []
    with pytest.raises(MisuseError, match="guard published was read from markup, by its name alone"):
        table.events["land"].facts({"ok": True})


@pytest.mark.parametrize("guards", ["words", {"class": []}, {"ok": ["x", "x"]}, {"ok": ["1"]}])
def test_guards_that_are_none_are_refused(guards: object) -> None:
    """Names become parameters, so that nothing but a name may pass."""
    with pytest.raises(DefinitionError, match="markup: guards"):
        stand_ins({**export_markup(MACHINES["slot"]), "guards": guards})


def test_draw_diff_says_and_draws_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, JSON and Mermaid tell of the same change, and the status is that of diff."""
    file = tmp_path / "slot.json"
    main(["draw", "slot", "--format", "markup", "-o", str(file)])
    main(["draw", "--diff", str(file), "request", "--json"])
    said = json.loads(capsys.readouterr().out)
    drawing = tmp_path / "diff.mmd"

    assert main(["draw", "--diff", str(file), "request", "-o", str(drawing)]) == 1
    assert len(said["states"]) == len(MACHINES["slot"].states) + len(MACHINES["request"].states)
    assert {change["kind"] for change in said["states"]} == {"added", "removed"}
    assert "QUARANTINED" in drawing.read_text(encoding="utf-8")
    assert main(["draw", "--diff", "slot", "slot"]) == 0


BAD = {
    "a third": (["--diff", "block", "slot", "job"], "--diff compares two, and job is one more"),
    "an unknown machine": (["--diff", "blok", "block"], "no machine 'blok' (did you mean block?"),
    "no file": (["--diff", "gone.json", "block"], "gone.json: No such file"),
    "a file of something else": (["--diff", "notes.json", "block"], "notes.json: it is no markup"),
    "markup that was changed": (["--diff", "forged.json", "block"], "forged.json: markup: the digest does not fit"),
    "a format that holds no comparison": (["--diff", "block", "slot", "--format", "markup"], "markup holds one lifecycle"),
    "JSON and a drawing": (["--diff", "block", "slot", "--json", "-o", "x.svg"], "--json is printed, not drawn"),
    "JSON of nothing": (["block", "--json"], "--json goes with --diff"),
    "nothing": ([], "no machine is named"),
    "several as markup": (["all", "--format", "markup"], "markup holds one lifecycle"),
}


@pytest.mark.parametrize("case", BAD)
def test_draw_refuses_what_cannot_be_compared(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input is one line on standard error and status 2."""
    monkeypatch.chdir(tmp_path)
    main(["draw", "block", "--format", "markup", "-o", "forged.json"])
    (tmp_path / "forged.json").write_text((tmp_path / "forged.json").read_text().replace("STALE", "STALLED"))
    (tmp_path / "notes.json").write_text("[1, 2]")
    options, message = BAD[case]

    assert main(["draw", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
