"""`blocklife recording show` tells the story of one place in each of its forms, and refuses in one line what it cannot tell.

Goal: each form says the same, and a mistake costs one line. Method: a run under faults is recorded by the command itself; its
places are shown as text, JSON, Mermaid and SVG, which are held against the lives; then everything is asked for wrongly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from blocklife.cli import main
from blocklife.errors import RefusedError
from blocklife.recording import Lives, Recorder
from blocklife.recording._format import ranges
from tests.recordings import read
from tests.worlds import make_ledger

Run = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.usefixtures("no_call_is_long")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("show") / "run.jsonl"
    options = ["--requests", "24", "--gpu-blocks", "96", "--host-slots", "96", "--workers", "2", "--faults", "--seed", "3"]
    assert main(["replay", *options, "--record", str(found)]) == 0
    return found


@pytest.fixture(scope="module")
def lives(path: Path) -> Lives:
    return read(path)


@pytest.fixture
def show(path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Show something of the run: exit status, standard output, standard error."""

    def run(*options: str, file: str | None = None) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["recording", "show", str(path) if file is None else file, *options])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def busiest(lives: Lives, machine: str) -> int:
    return max((each for each in lives.places if each[0] == machine), key=lambda each: len(lives.steps_of(*each)))[1]


# --- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["block", "slot", "job", "request"])
def test_text_has_each_life_with_its_steps(show: Run, lives: Lives, machine: str) -> None:
    """A heading for each life, a line for each step that is not folded, and one for each job."""
    place = busiest(lives, machine)
    status, out, err = show(f"--{machine}", str(place))
    found = lives.place(machine, place)
    paragraphs = out.rstrip("\n").split("\n\n")

    assert (status, err) == (0, "")
    assert paragraphs[0].startswith(f"{machine} {place} in ")
    assert len(paragraphs) == len(found) + 1
    for life, paragraph in zip(found, paragraphs[1:], strict=True):
        rows = [line for line in paragraph.splitlines()[1:] if line.startswith("  plan")]
        jobs = [line for line in paragraph.splitlines()[1:] if not line.startswith("  plan")]
        assert len(rows) <= len(life.steps)
        assert "..." in paragraph or len(rows) == len(life.steps)
        assert len(jobs) == (1 if machine == "job" else len(life.jobs))
        for index in life.steps if "..." not in paragraph else ():
            assert any(lives.step(index).event in row and lives.because(index) in row for row in rows)


def test_json_has_every_step_as_it_was_written(show: Run, lives: Lives, path: Path) -> None:
    """Steps name their lines; the lines say the same."""
    block = busiest(lives, "block")
    status, out, _ = show("--block", str(block), "--json")
    record = json.loads(out)
    lines = path.read_text().splitlines()
    steps = [step for life in record["lives"] for step in life["steps"]]

    assert status == 0
    assert len(steps) == len(lives.steps_of("block", block))
    for step in steps:
        written = json.loads(lines[step["line"] - 1])
        assert {key: step[key] for key in ("n", "plan", "machine", "id", "epoch", "event", "from", "to")} == {
            key: written[key] for key in ("n", "plan", "machine", "id", "epoch", "event", "from", "to")
        }
        assert (step["job"], step["guard"]) == (written.get("job"), written.get("guard"))
    assert {job["number"] for job in record["jobs"]} == {number for life in record["lives"] for number in life["jobs"]}


def test_lives_can_be_chosen(show: Run, lives: Lives) -> None:
    """One by its number, or the latest ones."""
    block = busiest(lives, "block")
    number = len(lives.place("block", block))
    one = json.loads(show("--block", str(block), "--life", "2", "--json")[1])
    two = json.loads(show("--block", str(block), "--last", "2", "--json")[1])
    all_of_them = json.loads(show("--block", str(block), "--last", "1000", "--json")[1])

    assert [life["number"] for life in one["lives"]] == [2]
    assert [life["number"] for life in two["lives"]] == [number - 1, number]
    assert len(all_of_them["lives"]) == number


def test_file_has_the_form_of_its_ending(show: Run, tmp_path: Path) -> None:
    """The same bytes as on standard output, where nothing is said then."""
    for ending, form in ((".txt", "text"), (".mmd", "mermaid"), (".mermaid", "mermaid"), (".svg", "svg"), (".SVG", "svg")):
        out = tmp_path / f"story{ending}"
        status, printed, _ = show("--block", "17", "-o", str(out))
        assert (status, printed) == (0, "")
        assert out.read_text() == show("--block", "17", "--format", form)[1]
    show("--block", "17", "-o", str(tmp_path / "story.json"))
    show("--block", "17", "-o", str(tmp_path / "story"), "--format", "svg")

    assert json.loads((tmp_path / "story.json").read_text())["id"] == 17
    assert ET.parse(tmp_path / "story").getroot().tag.endswith("svg")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        ["story.txt", "story.mmd", "story.mermaid", "story.svg", "story.SVG", "story.json", "story"]
    )


def test_theme_is_that_of_the_option(show: Run) -> None:
    """A fixed theme asks nothing of the reader's system."""
    auto, dark = (show("--block", "17", "--format", "svg", "--theme", theme)[1] for theme in ("auto", "dark"))

    assert "prefers-color-scheme" in auto
    assert "prefers-color-scheme" not in dark
    assert "#0d1117" in dark


def test_times_and_refusals_are_told(show: Run, tmp_path: Path) -> None:
    """With a clock every line has its time; a refusal stands where it came, in every form."""
    file = tmp_path / "timed.jsonl"
    ticks = iter([1_000_000, 3_500_000, 4_000_000])
    ledger = make_ledger(requests=())
    with file.open("w") as stream:
        Recorder(stream, lambda: next(ticks)).begin(ledger)
        ledger.add_request("a")
        ledger.admit("a")
        with pytest.raises(RefusedError):
            ledger.admit("a")
        ledger.preempt("a")
    text = show("--request", "0", file=str(file))[1].splitlines()
    mermaid = show("--request", "0", "--format", "mermaid", file=str(file))[1]
    record = json.loads(show("--request", "0", "--json", file=str(file))[1])

    assert [line.split("  ")[1:4] for line in text[3:6]] == [
        ["plan 0", "+0.000 ms", "admit"],
        ["plan 0", "+2.500 ms", "REFUSED: admit while RUNNING"],
        ["plan 0", "+3.000 ms", "preempt"],
    ]
    assert text[-1] == "note: the recording does not say that it is whole"
    assert "refused#58; it is RUNNING" in mermaid
    assert [(each["event"], each["ns"]) for each in record["lives"][0]["refused"]] == [("admit", 3_500_000)]


def test_requests_are_told_by_their_names(show: Run, lives: Lives, path: Path) -> None:
    """In stories of their own, and where they are named in those of others; a row is found as well."""
    name = next(iter(lives.names.values()))
    life = lives.called(name)[0]
    forms = ["text", "mermaid", "svg"]
    by_name = [show("--request", name, "--format", form)[1] for form in forms]
    by_row = show("--request", str(life.id))[1]
    record = json.loads(show("--request", name, "--json")[1])
    load, request = next((job, job.request) for job in lives.jobs() if job.request is not None)
    lead = next(lives.step(index) for index in range(len(lives)) if "right before request" in lives.because(index))

    assert by_name[0].startswith(f"request {name} (row {life.id}) in {path}: 1 life, ")
    assert f", {name} (row {life.id}): plan " in by_row
    assert all(f"request {name}" in each for each in by_name)
    assert (record["id"], record["name"], record["lives"][0]["name"]) == (life.id, name, name)
    assert {step["name"] for step in record["lives"][0]["steps"]} == {name}
    assert f", for request {request.name};" in show("--job", str(load.id))[1]
    assert lives.because(lead.index) in show(f"--{lead.machine}", str(lead.id))[1]
    refused(show("--request", "nobody"), "tells of no request of that name")


def test_name_that_is_used_again_is_one_story_and_comes_before_a_row(show: Run, tmp_path: Path) -> None:
    """Two requests of one name have two lives, whatever rows they had; one that is called as a row is, hides it."""
    file = tmp_path / "again.jsonl"
    ledger = make_ledger(requests=())
    with file.open("w") as stream:
        Recorder(stream).begin(ledger)
        for name in ("a", "b", "1", "a", "a"):
            ledger.add_request(name)
            ledger.admit(name)
            if name != "b":
                ledger.finish(name)
        with pytest.raises(RefusedError):
            ledger.admit("b")
    plain = tmp_path / "plain.jsonl"
    plain.write_text(re.sub(r',"name":"[^"]*"', "", file.read_text()))
    record = json.loads(show("--request", "a", "--json", file=str(file))[1])
    one = json.loads(show("--request", "1", "--json", file=str(file))[1])
    row = json.loads(show("--request", "1", "--json", file=str(plain))[1])

    assert [life["name"] for life in record["lives"]] == ["a", "a", "a"]
    assert len({life["id"] for life in record["lives"]}) > 1
    assert [step["event"] for life in record["lives"] for step in life["steps"]] == ["admit", "finish"] * 3
    assert [(life["name"], life["id"]) for life in one["lives"]] == [("1", 2)]
    assert (row["id"], row["name"], row["lives"][0]["steps"][0]["name"]) == (1, None, None)
    assert [each["event"] for each in row["refused"]] == ["admit"]
    assert "REFUSED: admit while RUNNING" in show("--request", "b", file=str(file))[1]
    assert show("--request", "1", file=str(plain))[1].startswith("request 1 in ")


def test_names_of_clients_do_nothing_to_a_terminal_or_a_drawing(show: Run, tmp_path: Path) -> None:
    """Signs that steer a terminal, markup, and a name without an end."""
    file = tmp_path / "nasty.jsonl"
    nasty = "\x1b[2J\u202e<b>&'\"\n" + "x" * 1_000
    ledger = make_ledger(requests=())
    with file.open("w") as stream:
        Recorder(stream).begin(ledger)
        ledger.add_request(nasty)
        ledger.admit(nasty)
        ledger.allocate(nasty, 1)
        ledger.finish(nasty)
    for options in (["--request", "0"], ["--block", "1"]):
        text = show(*options, file=str(file))[1]
        assert all(each.isprintable() for each in text.replace("\n", ""))
        assert "x" * 49 not in text
        assert "?[2J?<b>" in text
        svg = ET.fromstring(show(*options, "--format", "svg", file=str(file))[1])
        assert "?[2J?<b>&'" in "".join(svg.itertext())
        assert not [each for each in svg.iter() if each.tag.endswith("}b")]
        assert show(*options, "--format", "mermaid", file=str(file))[1].isascii()
    refused(show("--request", nasty, file=str(file)), "request ?[2J?<b>")


def test_refusals_alone_are_told_as_text(show: Run, tmp_path: Path) -> None:
    """A place that never moved, though somebody wanted it to: text tells that, and a diagram has nothing to draw."""
    file = tmp_path / "refused.jsonl"
    ledger = make_ledger(requests=())
    with file.open("w") as stream:
        Recorder(stream).begin(ledger)
        ledger.add_request("a")
        with pytest.raises(RefusedError):
            ledger.preempt("a")
    status, out, _ = show("--request", "0", file=str(file))
    drawn = show("--request", "0", "--format", "svg", file=str(file))

    assert status == 0
    assert "REFUSED: preempt while WAITING" in out
    assert (drawn[0], drawn[1]) == (2, "")
    assert "told as text" in drawn[2]


def test_text_shows_no_control_characters(show: Run, path: Path, tmp_path: Path) -> None:
    """Whatever the words of a recording hold, a terminal is not told to do anything."""
    file = tmp_path / "odd.jsonl"
    step = {"n": 1, "plan": 0, "machine": "block", "id": 1, "epoch": 0, "event": "\x1b[2J", "from": "\ud800", "to": "\x07"}
    file.write_text(path.read_text().splitlines()[0] + "\n" + json.dumps(step) + "\n")
    status, out, _ = show("--block", "1", file=str(file))

    assert status == 0
    assert "?[2J" in out
    assert all(each.isprintable() for each in out.replace("\n", ""))


def test_ranges_take_neighbours_together() -> None:
    """Numbers are sorted; many are counted."""
    assert ranges([3, 1, 2, 9]) == "1-3, 9"
    assert ranges([]) == ""
    assert ranges(range(0, 60, 2), 12) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 18 more"


# --- what is refused ---------------------------------------------------------------------------------------------------


def refused(said: tuple[int, str, str], *words: str) -> None:
    """One line on standard error, exit status 2, and nothing else."""
    status, out, err = said

    assert (status, out) == (2, "")
    assert err.startswith("blocklife: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_place_that_the_recording_does_not_have_is_refused(show: Run, lives: Lives) -> None:
    """The message says which there are."""
    refused(show("--block", "0"), "block 0: ", "its blocks are 1 to 95")
    refused(show("--block", "96"), "its blocks are 1 to 95")
    refused(show("--slot", "96"), "its slots are 0 to 95")
    refused(show("--slot", "-1"), "its slots are 0 to 95")
    refused(show("--request", "100000"), "its requests are 0 to ")
    refused(show("--job", "0"), "jobs count from 1")
    refused(show("--job", "100000"), f"tells of no such job (its jobs are 1 to {lives.last_job})")


def test_place_that_never_moved_is_refused(show: Run) -> None:
    """It is there, and there is nothing to tell."""
    refused(show("--request", "1000"), "request 1000: it never moves in ", "stays WAITING")
    refused(show("--request", "-1"), "no request of that name", "rows are 0 to ")


def test_lives_that_are_not_there_are_refused(show: Run, lives: Lives) -> None:
    """The message says how many there are."""
    block = busiest(lives, "block")
    number = len(lives.place("block", block))

    refused(show("--block", str(block), "--life", str(number + 1)), f"it has lives 1 to {number}, and no life {number + 1}")
    refused(show("--block", str(block), "--life", "0"), "no life 0")
    refused(show("--block", str(block), "--last", "0"), "--last 0")
    refused(show("--job", "1", "--life", "2"), "it has one life, and no life 2")


def test_output_that_cannot_be_written_is_refused(show: Run, tmp_path: Path) -> None:
    """No half file is left, and what was there before stays."""
    old = tmp_path / "old.svg"
    old.write_text("old")
    refused(show("--block", "0", "-o", str(old)), "no such block")
    refused(show("--block", "17", "-o", str(tmp_path / "x.gif")), "the ending .gif names no format", ".svg")
    refused(show("--block", "17", "-o", str(tmp_path / "x")), "no ending names no format")
    refused(show("--block", "17", "-o", str(old), "--format", "text"), "the ending says svg, the options text")

    assert [each.name for each in tmp_path.iterdir()] == ["old.svg"]
    assert old.read_text() == "old"


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--block", "17", "--slot", "3"],
        ["--block", "x"],
        ["--block", "17", "--life", "1", "--last", "1"],
        ["--block", "17", "--json", "--format", "svg"],
        ["--block", "17", "--format", "gif"],
        ["--block", "17", "-o", ""],
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exactly one place, one choice of lives, one form."""
    with pytest.raises(SystemExit) as left:
        main(["recording", "show", str(path), *options])

    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
