"""Do the marks on a drawing say what the run, the tests or the mutants said?

Goal: every row and state that is marked has a figure of its source beside it, what never happened can be seen, what is wrong
stands out, and a file that is something else is refused in one line. Method: a small ledger is recorded, a report of coverage
and judged mutants are made by the code that writes them for users; the marks are held against those sources, and the drawings
are read back as SVG.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from blocklife.cli import main
from blocklife.drawing import Emphasis, Theme
from blocklife.drawing._chart import POINTS_MAX, population_chart
from blocklife.drawing._overlays import marks_of_coverage, marks_of_mutants, marks_of_run, read_coverage, read_mutants
from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import Ledger
from blocklife.ledger.views import View
from blocklife.recording import Recorder, RunStatistics, count_file
from blocklife.states import MACHINES
from blocklife.testing.plugin._coverage import Coverage
from tests.proof.mutants.judging import Judgement
from tests.proof.mutants.table import TABLE, rows_of, table
from tests.recordings import step, written
from tests.worlds import in_flight, make_ledger, report

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ledger]:
    """A run of a few plans: two stores, one refused event, nothing left over; and the ledger that ran."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    ledger = make_ledger(requests=())
    now = 0
    with path.open("w") as stream:
        recorder = Recorder(stream, clock=lambda: now)
        recorder.begin(ledger)
        ledger.add_request("a")
        ledger.admit("a")
        for number in range(2):
            now += 1_000_000
            _, job = in_flight(ledger, "a", str(number), number)
            now += 5_000_000
            ledger.complete(report(job))
        with pytest.raises(RefusedError):
            ledger.evict([3])
        ledger.finish("a")
        recorder.end()
    return path, ledger


@pytest.fixture(scope="module")
def run(recorded: tuple[Path, Ledger]) -> RunStatistics:
    return count_file(str(recorded[0]))


# --- a run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_marks_of_a_run_count_every_row(recorded: tuple[Path, Ledger], run: RunStatistics, machine: str) -> None:
    """Taken rows have their number and a weight up to 1, the others stand out as unused."""
    ledger = recorded[1]
    views: dict[str, View] = {"block": ledger.blocks, "slot": ledger.slots, "job": ledger.jobs, "request": ledger.requests}
    taken = {row.index: times for row, times in views[machine].row_counts()}
    marks = marks_of_run(run, machine)

    assert marks.title == "taken in run.jsonl"
    assert marks.rows.keys() == taken.keys()
    for row, times in taken.items():
        mark = marks.rows[row]
        assert (mark.emphasis, mark.note) == ((Emphasis.USED, str(times)) if times else (Emphasis.UNUSED, "0"))
        assert 0 < mark.weight <= 1 if times else mark.weight == 0
    assert max(mark.weight for mark in marks.rows.values()) == 1


def test_marks_of_a_run_tell_where_places_were(run: RunStatistics) -> None:
    """A state has its share and how long visits took, in plans beside it and in time behind it."""
    marks = marks_of_run(run, "block")

    assert marks.states["IN_FLIGHT"].note.endswith("· 0 plans")
    assert re.search(r"that is (4\.9\d|5) ms to (4\.9\d|5) ms", marks.states["IN_FLIGHT"].about)
    assert (marks.states["STALE"].emphasis, marks.states["STALE"].note) == (Emphasis.UNUSED, "0")
    assert marks_of_run(run, "job").states["DONE"].note == "2"
    assert marks_of_run(run, "request").states["WAITING"].about == "no line tells when a place came there"


def test_marks_of_a_run_sound_the_alarm_where_something_was_refused(run: RunStatistics) -> None:
    """The state has it, and a sentence below names event, state and number."""
    marks = marks_of_run(run, "slot")

    assert marks.states["EMPTY"].emphasis is Emphasis.ALARM
    assert "refused: evict once" in marks.states["EMPTY"].about
    assert "slot: evict was refused once while EMPTY." in marks.notes
    assert not any("refused" in note for note in marks_of_run(run, "block").notes)


# --- coverage ----------------------------------------------------------------------------------------------------------


def covered(path: Path, ledger: Ledger) -> str:
    """A report as the plugin writes it."""
    coverage = Coverage()
    coverage.note(ledger._state)
    coverage.count()
    path.write_text(json.dumps(coverage.record(), indent=1) + "\n")
    return str(path)


@pytest.mark.parametrize("machine", MACHINES)
def test_marks_of_coverage_tell_what_tests_take(
    recorded: tuple[Path, Ledger], run: RunStatistics, machine: str, tmp_path: Path
) -> None:
    """A report of one ledger covers what its recording took."""
    found = read_coverage(covered(tmp_path / "cov.json", recorded[1]))
    marks = marks_of_coverage(found, machine, MACHINES[machine])
    wanted = marks_of_run(run, machine)

    assert {row: (mark.emphasis, mark.note) for row, mark in marks.rows.items()} == {
        row: (mark.emphasis, mark.note) for row, mark in wanted.rows.items()
    }
    assert marks.states.keys() == {state.name for state in MACHINES[machine].states}
    assert (
        f"{machine}: {sum(mark.note != '0' for mark in marks.rows.values())} of {len(marks.rows)} rows are covered."
        in marks.notes
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([], "it is no coverage report"),
        ({"blocklife": "recording"}, "it is no coverage report"),
        ({"blocklife": "coverage", "ledgers": 1}, "it names no ledgers or no machines"),
        ({"blocklife": "coverage", "ledgers": 1, "machines": {"block": []}}, "the rows of block are not counted"),
        (
            {"blocklife": "coverage", "ledgers": 1, "machines": {"block": {"rows": {"x": -1}}}},
            "the rows of block are not counted",
        ),
        ({"blocklife": "coverage", "ledgers": 1, "machines": {}}, "it does not count block, only nothing .run tests"),
        (
            {"blocklife": "coverage", "ledgers": 1, "machines": {"block": {"rows": {"A --b--> C": 1}, "states": {}}}},
            "it is of another version of block",
        ),
    ],
)
def test_coverage_of_something_else_is_refused(said: object, message: str, tmp_path: Path) -> None:
    """What is no report, or one of other tables, is refused with its file and a remedy."""
    path = tmp_path / "cov.json"
    path.write_text(json.dumps(said))
    with pytest.raises(MisuseError, match=message) as raised:
        marks_of_coverage(read_coverage(str(path)), "block", MACHINES["block"])

    assert str(raised.value).startswith(f"{path}: ")


# --- mutants -----------------------------------------------------------------------------------------------------------

JUDGED = (
    Judgement("job.finish from IN_FLIGHT to DONE without all_ok", "guard", "calm", "I9", "told", ("a",) * 9),
    Judgement("job.finish from IN_FLIGHT to IN_FLIGHT without more", "guard", "calm", "I9", "told", ("a",) * 3),
    Judgement("job.finish from AWAITED to DONE without all_ok", "guard"),
    Judgement("job.finish from AWAITED to AWAITED without more", "guard"),
    Judgement("job.finish from UNWANTED to UNWANTED without more", "guard"),
    Judgement("life-ends: no job.cancel", "effect", "calm", "I1", "told", ("a",) * 2),
    Judgement("hand-out-flushes: no job.flush", "effect"),
    Judgement("block.release from SEALED to SEALED without held", "guard", "calm", "I1", "told", ("a",)),
)


def as_page(path: Path, tests: Mapping[str, str] = MappingProxyType({})) -> str:
    """As `make mutants` writes it."""
    path.write_text(table(rows_of(JUDGED, tests)))
    return str(path)


def row_of(source: str, event: str, target: str) -> int:
    """The number of a guarded row of the job."""
    rows = MACHINES["job"].rows
    found = [row for row in rows if (row.source.name, row.event, row.target.name) == (source, event, target) and row.guard]
    return found[0].index


def test_marks_of_mutants_tell_how_soon_each_guard_is_missed(tmp_path: Path) -> None:
    """A found mutant has its steps, the soonest the most weight; those that nothing finds sound the alarm."""
    marks = marks_of_mutants(read_mutants(as_page(tmp_path / "mutants.csv")), "job")
    done, again = marks.rows[row_of("IN_FLIGHT", "finish", "DONE")], marks.rows[row_of("IN_FLIGHT", "finish", "IN_FLIGHT")]
    alarmed = {row for row, mark in marks.rows.items() if mark.emphasis is Emphasis.ALARM}

    assert (done.note, done.about) == ("9 steps", "without the guard, calm (I9) breaks after 9 steps")
    assert done.weight == pytest.approx(1 / 3)
    assert again.weight == 1
    assert alarmed == {
        row_of("AWAITED", "finish", "DONE"),
        row_of("AWAITED", "finish", "AWAITED"),
        row_of("UNWANTED", "finish", "UNWANTED"),
    }
    assert len(marks.rows) == 5
    assert "job: 5 of 6 guards were switched off in turn; 2 are noticed." in marks.notes
    assert "Nothing notices 'hand-out-flushes: no job.flush'." in marks.notes
    assert not any("life-ends" in note for note in marks.notes)


def test_marks_of_mutants_tell_which_a_test_finds(tmp_path: Path) -> None:
    """Tests that find a mutant are known too; what neither a world nor a test finds survives."""
    path = as_page(tmp_path / "mutants.csv", {JUDGED[3].mutant: "tests/test_x.py::test_y[a|b]"})
    marks = marks_of_mutants(read_mutants(path), "job")

    assert marks.rows[row_of("IN_FLIGHT", "finish", "DONE")].note == "9 steps"
    assert marks.rows[row_of("AWAITED", "finish", "AWAITED")].about == "without the guard, tests/test_x.py::test_y[a|b] fails"
    assert marks.rows[row_of("AWAITED", "finish", "AWAITED")].emphasis is Emphasis.USED
    assert marks.rows[row_of("AWAITED", "finish", "DONE")].emphasis is Emphasis.ALARM
    assert marks.rows[row_of("UNWANTED", "finish", "UNWANTED")].emphasis is Emphasis.ALARM


def test_marks_of_our_own_mutants_have_every_guard() -> None:
    """The table of this repository is read, and tells of every guarded row; none survives."""
    judged = read_mutants(str(TABLE))
    for machine, rules in MACHINES.items():
        marks = marks_of_mutants(judged, machine)
        assert marks.rows.keys() == {row.index for row in rules.rows if row.guard}
        assert not any(mark.emphasis is Emphasis.ALARM for mark in marks.rows.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# A page\n\n| a | b |\n", "it has no mutants"),
        ("mutant,world,rule,steps\njob.finish from A to B without more,calm,I9,4\n", "is no guard of job"),
    ],
)
def test_mutants_of_something_else_are_refused(text: str, message: str, tmp_path: Path) -> None:
    """What is no list of mutants, or one of other tables, is refused with its file and a remedy."""
    path = tmp_path / "mutants.csv"
    path.write_text(text)
    with pytest.raises(MisuseError, match=message) as raised:
        marks_of_mutants(read_mutants(str(path)), "job")

    assert str(raised.value).startswith(f"{path}: ")
    assert "write" in str(raised.value)


# --- the chart ---------------------------------------------------------------------------------------------------------


def areas(drawn: str) -> dict[str, list[tuple[float, float]]]:
    """The corners of each area, by the state that its tooltip names."""
    found = {}
    for path in ET.fromstring(drawn).iter(f"{SVG}path"):
        title = path.find(f"{SVG}title")
        if title is not None and title.text is not None:
            corners = path.attrib["d"].removeprefix("M").removesuffix("Z").split("L")
            found[title.text.partition(":")[0]] = [
                (float(x), float(y)) for x, _, y in (each.partition(" ") for each in corners)
            ]
    return found


def test_chart_stacks_the_states_that_had_places(run: RunStatistics) -> None:
    """Each area is as large as its state's share of the chart; terminal states and those without a place are not drawn."""
    told = run.machine("block")
    drawn = areas(population_chart(run, "block"))
    sizes = {}
    for state, corners in drawn.items():
        xs, ys = (np.array(each) for each in zip(*corners, strict=True))
        sizes[state] = abs(float(np.dot(xs, np.roll(ys, 1)) - np.dot(ys, np.roll(xs, 1)))) / 2
    whole = sum(sizes.values())

    assert set(drawn) == {state for at, state in enumerate(told.dwell) if told.population[:, at].any()}
    for state, size in sizes.items():
        assert size / whole == pytest.approx(told.shares[state], abs=0.01)
    assert "DONE" not in areas(population_chart(run, "job"))


def test_chart_is_the_same_twice_and_has_two_themes(run: RunStatistics) -> None:
    """Same run, same bytes; without a theme the reader chooses, with one there is no choice."""
    both = population_chart(run, "slot")
    dark = population_chart(run, "slot", Theme.DARK)

    assert both == population_chart(run, "slot")
    assert "prefers-color-scheme" in both
    assert "prefers-color-scheme" not in dark
    assert len(areas(dark)) == len(areas(both))


def test_chart_of_a_long_run_stays_small(tmp_path: Path) -> None:
    """However many plans there are, an area has no more corners than can be seen."""
    rows = "WRITING cancel EMPTY", "EMPTY reserve WRITING"
    path = written(tmp_path / "run.jsonl", *(step(n, n - n % 3, "slot 0", rows[n % 2], job=1) for n in range(1, 4_000)))
    drawn = areas(population_chart(count_file(str(path)), "slot"))

    assert set(drawn) == {"EMPTY", "WRITING"}
    assert all(len(corners) <= 4 * POINTS_MAX + 4 for corners in drawn.values())


def test_chart_of_nothing_is_empty(tmp_path: Path) -> None:
    """No line tells of a job: there is nothing to draw."""
    run = count_file(str(written(tmp_path / "run.jsonl")))

    assert population_chart(run, "job") == ""
    assert set(areas(population_chart(run, "block"))) == {"FREED"}


# --- the command -------------------------------------------------------------------------------------------------------


def test_draw_lays_a_run_over_an_svg(recorded: tuple[Path, Ledger], tmp_path: Path) -> None:
    """What was taken stands beside the rows of the drawing."""
    path = tmp_path / "x.svg"
    status = main(["draw", "slot", "--recording", str(recorded[0]), "-o", str(path)])
    root = ET.parse(path).getroot()
    said = {text.text for text in root.iter(f"{SVG}text")}

    assert status == 0
    assert "taken in run.jsonl" in said
    assert any("evict was refused once while EMPTY" in (text or "") for text in said)


def test_draw_shows_the_chart_on_a_page(recorded: tuple[Path, Ledger], tmp_path: Path) -> None:
    """A page has the chart of each machine that is drawn; a page without a run has none."""
    with_run, without = tmp_path / "run.html", tmp_path / "plain.html"
    main(["draw", "block", "slot", "--recording", str(recorded[0]), "-o", str(with_run)])
    main(["draw", "block", "slot", "-o", str(without)])

    assert with_run.read_text().count('class="blocklife-chart"') == 2
    assert "blocklife-chart" not in without.read_text()


def test_draw_lays_coverage_and_mutants_over(
    recorded: tuple[Path, Ledger], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both give a drawing with their title."""
    cov, mutants = covered(tmp_path / "cov.json", recorded[1]), as_page(tmp_path / "mutants.csv")
    first = main(["draw", "job", "--coverage", cov, "--format", "svg"])
    second = main(["draw", "job", "--mutants", mutants, "--format", "svg"])
    told = capsys.readouterr().out

    assert (first, second) == (0, 0)
    assert "covered by cov.json" in told
    assert "mutants of mutants.csv" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["block", "--recording", "{bad}"], "not the head of a recording"),
        (["block", "--coverage", "{bad}"], "it is no coverage report"),
        (["block", "--mutants", "{bad}"], "it has no mutants"),
        (
            ["tests.drawing.test_notebook:DoorLife", "--recording", "{run}"],
            "DoorLife: a recording tells of block, slot, job, request only",
        ),
        (
            ["tests.drawing.test_notebook:DoorLife", "--coverage", "{cov}"],
            "cov: it does not count DoorLife, only block, slot, job, request (name your own in pytest.ini",
        ),
        (["tests.drawing.test_notebook:DoorLife", "--mutants", "{mutants}"], "DoorLife: a list of mutants tells of block"),
        (["job", "--mutants", "{mutants}", "--coverage", "{cov}"], "not allowed with"),
    ],
)
def test_draw_refuses_wrong_files_in_one_line(
    arguments: list[str],
    message: str,
    recorded: tuple[Path, Ledger],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2, one line, and no drawing."""
    (tmp_path / "bad").write_text("{}")
    files = {
        "bad": str(tmp_path / "bad"),
        "run": str(recorded[0]),
        "cov": covered(tmp_path / "cov", recorded[1]),
        "mutants": as_page(tmp_path / "mutants"),
    }
    given = [each.format_map(files) for each in arguments]
    target = tmp_path / "x.svg"
    try:
        status = main(["draw", *given, "-o", str(target)])
    except SystemExit as left:  # what the parser itself refuses
        status = int(left.code or 0)
    said = capsys.readouterr()

    assert status == 2
    assert message in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
    assert not target.exists()
