"""A figure counts only with the right tokens and a prefix from where its row says, and the picture shows what was measured.

Method: reports that are made up, and the one that stands in the specification. No model is needed.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from attrs import evolve

from blocklife.errors import MisuseError
from tests.behind.shelf import PROJECT
from tests.model.bench.__main__ import BAD, DOES_NOT_COUNT, main, markdown
from tests.model.bench.chart import chart
from tests.model.bench.records import VARIANTS, Report, Round, Said, Source, Wish, from_json, to_json
from tests.model.shelf import MODELS

SPECS = PROJECT / "specs"
MEASURED = SPECS / "measurements" / "conversations.json"
WISH = Wish(prefix=100, sessions=3, turns=2, rounds=1)
HITS = {Source.NOWHERE: (0, 0), Source.HOST: (0, 96), Source.DEVICE: (96, 0)}

Capture = pytest.CaptureFixture[str]


def made_up() -> Report:
    """A report in which everything is as it should be."""

    def rounds(source: Source) -> tuple[Round, ...]:
        said = Said(0.4 if source is Source.NOWHERE else 0.1, 0.5, *HITS[source], tokens=16, answer="right")
        return (Round(1.0, (said, said)),)

    return Report({"date": "today"}, WISH, {name: rounds(variant.source) for name, variant in VARIANTS.items()})


def with_last(report: Report, name: str, **changes: object) -> Report:
    """The last request of a variant was answered otherwise."""
    (only,) = report.rounds[name]
    last = evolve(only.said[-1], **changes)  # type: ignore[arg-type]
    return evolve(report, rounds={**report.rounds, name: (evolve(only, said=(*only.said[:-1], last)),)})


def test_rows_compare_with_what_was_computed_in_the_same_run() -> None:
    rows = {row.variant.name: row for row in made_up().rows()}

    assert list(rows) == list(VARIANTS)
    assert [row.sooner for row in rows.values()] == [1.0, 4.0, 4.0, 4.0]
    assert rows["blocklife"].first_s.median == 0.1
    assert rows["blocklife"].tokens_per_s.median == 32.0
    assert (rows["blocklife"].on_host, rows["blocklife"].prompts) == (192, 3 * (2 * 100 + 3 * 80))
    assert not any(row.troubles for row in rows.values())


@pytest.mark.parametrize(
    ("name", "changes", "trouble"),
    [
        ("computed", {"on_device": 32}, "1 of 2 requests found tokens on the device"),
        ("computed", {"on_host": 32}, "1 of 2 requests found tokens on the host"),
        ("blocklife", {"on_host": 64}, "1 of 2 requests found less than 96 tokens on the host"),
        ("offloading", {"on_device": 32}, "1 of 2 requests found tokens on the device"),
        ("device", {"on_device": 0, "on_host": 96}, "1 of 2 requests found less than 96 tokens on the device"),
        ("device", {"answer": "wrong"}, "1 of 2 requests got other tokens than computed"),
    ],
)
def test_row_whose_tokens_or_hits_are_not_as_it_says_does_not_count(
    name: str, changes: dict[str, object], trouble: str, tmp_path: Path, capsys: Capture
) -> None:
    report = with_last(made_up(), name, **changes)
    path = tmp_path / "report.json"
    path.write_text(to_json(report), encoding="utf-8")
    status = main(["--from", str(path)])
    said = capsys.readouterr()

    assert [row.variant.name for row in report.rows() if row.troubles] == [name]
    assert status == DOES_NOT_COUNT
    assert trouble in said.err
    assert "does not count" in said.out
    assert VARIANTS[name].what not in chart(report)


def test_row_that_lacks_a_request_does_not_count() -> None:
    report = made_up()
    (only,) = report.rounds["device"]
    shorter = evolve(report, rounds={**report.rounds, "device": (evolve(only, said=only.said[:1]),)})

    assert [row.troubles for row in shorter.rows()][-1] == ("1 requests were answered, not 2",)


@pytest.mark.parametrize("sessions", range(3, 12))
def test_two_other_system_prompts_come_between_two_uses_of_one(sessions: int) -> None:
    """Also between the end of a turn and the beginning of the next."""
    wish = Wish(sessions=sessions)
    twice = [wish.prompt_of(session) for session in range(sessions)] * 2

    assert set(twice) == set(range(wish.prompts))
    assert all(len(set(twice[at : at + 3])) == 3 for at in range(len(twice) - 2))


def test_report_goes_to_json_and_comes_back() -> None:
    report = made_up()

    assert from_json(to_json(report)) == report
    assert [row["source"] for row in json.loads(to_json(report))["rows"]] == ["computed", "host", "host", "device"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"facts": {}, "wish": {"speed": 1}, "rounds": {}}',
        '{"facts": {}, "wish": {}, "rounds": {}}',
        '{"facts": {}, "wish": {}, "rounds": {"computed": []}}',
        '{"facts": {}, "wish": {}, "rounds": {"computed": [{"took_s": 1.0, "said": []}]}}',
        '{"facts": {}, "wish": {}, "rounds": {"computed": [{"took_s": 1.0, "said": [{}]}]}}',
        '{"facts": {}, "wish": {}, "rounds": {"computed": [7]}}',
    ],
)
def test_what_is_no_report_is_refused_in_a_line(text: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "report.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MisuseError):
        from_json(text)

    assert main(["--from", str(path)]) == BAD
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "nowhere.json"], "nowhere.json"),
        (["--model", "huge"], "there is no model 'huge' (python -m tests.model.fetch huge)"),
        (["--model", ".", "--device-blocks", "3"], "--device-blocks 3 cannot hold a request (give 70 or more)"),
        (["--rounds", "0"], "'0' is not a positive whole number"),
        (["--sessions", "2"], "'2' is less than 3: a small device would keep what comes next"),
        (["--prefix", "12"], "'12' is not from 64 to 8,000 tokens"),
        (["--chart", "/nowhere/picture.svg"], "cannot be written, for its folder is not there"),
        (["--variants", "cloud"], "invalid choice: 'cloud'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_started(
    words: list[str], told: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODELS, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    try:
        status: object = main(words)
    except SystemExit as ended:
        status = ended.code

    assert status == BAD
    assert told in capsys.readouterr().err


def test_engine_that_ends_is_told_of_with_its_last_words(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it ends because no vLLM is there, or no model in the folder."""
    monkeypatch.setenv(MODELS, str(tmp_path))
    (tmp_path / "full").mkdir()
    status = main(["--model", "full", "--variants", "computed"])
    said = capsys.readouterr().err

    assert status == BAD
    assert said.startswith("tests.model.bench: error: computed: its engine has ended with status 1: ")


def test_picture_and_table_of_the_specification_are_those_of_its_report(tmp_path: Path, capsys: Capture) -> None:
    """To refresh them: python -m tests.model.bench --from REPORT --chart PICTURE --markdown."""
    report = from_json(MEASURED.read_text(encoding="utf-8"))
    drawn = tmp_path / "drawn.svg"
    status = main(["--from", str(MEASURED), "--chart", str(drawn), "--markdown"])

    assert status == 0
    assert capsys.readouterr().out == markdown(report)
    assert drawn.read_bytes() == MEASURED.with_suffix(".svg").read_bytes()
    assert markdown(report) in (SPECS / "measurements.md").read_text(encoding="utf-8")
    assert 'src="specs/measurements/conversations.svg"' in (PROJECT / "README.md").read_text(encoding="utf-8")


def test_picture_has_both_figures_of_every_row() -> None:
    report = made_up()
    root = ET.fromstring(chart(report))
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]

    assert set(texts) >= {variant.what for variant in VARIANTS.values()}
    assert texts.count("100 ms, 4.0 x") == 3
    assert texts.count("32.0 /s, 1.0 x") == 3
    assert "400 ms" in texts
