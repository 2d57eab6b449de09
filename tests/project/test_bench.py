"""The benchmark runs and says what it promises; what it measures is never judged here."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from blocklife.errors import MisuseError
from tests.bench import RUNNING, SMOKE, TURN, Figure, before, microseconds
from tests.bench.__main__ import SUITES, main, measured, show
from tests.bench.before import middle
from tests.bench.gpu.__main__ import main as gpu_main
from tests.bench.gpu.arena import FULL
from tests.bench.gpu.records import COPIER, EACH, KIB, LIMIT, Beside, Case, Report, Timed, from_json, to_json
from tests.bench.offload import BLOCK, CHUNK, PROMPT, STATE, PlainTables, PlainWheel, World
from tests.bench.targets import STEP_BEFORE


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("suite", SUITES)
def test_bench_suite_measures_something(suite: str) -> None:
    """Every suite gives named figures with a unit, and a ratio where there is a peer."""
    figures = measured([suite], SMOKE)[suite]

    assert figures
    for figure in figures:
        assert figure.name
        assert figure.unit
        assert figure.ours >= 0
        assert (figure.ratio is None) == (figure.peer is None)
        assert bool(figure.peer_name) == (figure.peer is not None)


def test_bench_derives_the_ratio() -> None:
    """A ratio says how much ours is of the peer's, be it a cost or a rate."""
    assert Figure(name="a", ours=2.0, unit="ns", peer_name="b", peer=5.0).ratio == 0.4
    assert Figure(name="a", ours=2.0, unit="ns").ratio is None


def test_bench_tells_the_median_of_the_ratios() -> None:
    """Beside an earlier commit: one round in which the machine was slow changes neither the ratio nor ours."""
    ours, beside = middle([2.0, 40.0, 3.0], [4.0, 100.0, 5.0])

    assert ours == 3.0
    assert ours / beside == pytest.approx(0.5)


def test_bench_without_the_earlier_commit_tells_ours_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where git has not got it, or where there is no git: no peer, and no bar without one."""
    monkeypatch.setattr(before, "asked", lambda tree, words: {"64": 7.0})

    assert before.copy_of("no-such-commit") is None
    assert list(before.figures_of("steps", None, SMOKE)) == [Figure(name="scheduler step, 64 running", ours=7.0, unit="us")]

    monkeypatch.setattr(before, "asked", lambda tree, words: {"64": 1.0 if tree == tmp_path else 2.0})
    (figure,) = before.figures_of("steps", tmp_path, SMOKE)

    assert (figure.ratio, figure.target) == (2.0, str(STEP_BEFORE[64]))


@pytest.mark.slow
def test_bench_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Both outputs carry the same figures."""
    main(["--smoke", "lifecycle"])
    table = capsys.readouterr().out
    main(["--smoke", "--json", "lifecycle"])
    found = json.loads(capsys.readouterr().out)["suites"]["lifecycle"]

    assert "transitions" in table
    for figure in found:
        assert figure["name"] in table
        assert set(figure) == {"name", "ours", "unit", "peer", "peer_name", "target", "core", "ratio"}
        assert figure["core"] == RUNNING


def test_bench_shows_each_core_in_a_column_of_its_own() -> None:
    """One row for one thing, whichever cores did it, with the bars of both."""
    both = [
        Figure(name="a step", ours=ours, unit="us", peer_name="plain", peer=50.0, target=str(STEP_BEFORE[64]), core=core)
        for core, ours in (("interpreted", 100.0), ("compiled", 10.0))
    ]
    only = Figure(name="another", ours=7.0, unit="us", core="compiled")
    told = io.StringIO()
    show({"offload": [*both, only]}, Console(width=160, file=told))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.getvalue().splitlines() if "│" in line]

    assert lines == [
        ["a step", "100.00", "10.00", "50.00", "2.00 x", "0.20 x", "us", "plain", "at most 1.0; compiled: at most 0.11"],
        ["another", "", "7.00", "", "", "", "us", "", ""],
    ]


def test_bench_takes_turns() -> None:
    """Each step as often as was asked for, some of one and then as many of the next, and not always in one order."""
    made: list[str] = []
    found = microseconds({name: lambda name=name: made.append(name) for name in "ab"}, 2 * TURN + 1)  # type: ignore[misc]

    assert "".join(made) == "a" * TURN + "b" * 2 * TURN + "a" * (TURN + 1) + "b"
    assert set(found) == {"a", "b"}


def test_bench_peers_do_the_same_work() -> None:
    """Who looks at everybody and who looks at what changes have the same tables in the end, and store what we store."""
    running, steps = 5, 91  # no request is near the end of a block then, so that nothing is left to be stored
    everybody, changed, ours = PlainTables(running, steps), PlainWheel(running, steps), World(running, 0, steps)
    stored = 0
    for _ in range(steps):
        everybody.step()
        changed.step()
        stored += sum(len(each.source) for each in ours.step().stores)
    whole, wheel = (
        (
            each.keys.keys(),
            each.stored,
            each.busy.keys(),
            [[[block < 0 for block in table] for table in own] for own in each.tables],
        )
        for each in (everybody, changed)
    )

    assert whole == wheel
    assert len(changed.keys) == stored - running * 2 * PROMPT // BLOCK > 0


@pytest.mark.parametrize(
    ("feature", "chunks"), [({"chunk": CHUNK}, 2 * CHUNK), ({"states": True}, 2 * CHUNK + 1), ({}, 2 * CHUNK)]
)
def test_bench_of_a_feature_stores_what_its_groups_have(feature: Mapping[str, Any], chunks: int) -> None:
    """In as many tokens as a state has: all blocks of two groups, whatever a chunk is, and the state of a third."""
    world = World(3, 0, 3 * STATE, spread=STATE, **feature)
    stored = [sum(len(each.source) for each in world.step().stores) for _ in range(3 * STATE)]

    assert sum(stored[-STATE:]) == 3 * chunks


def test_bench_refuses_an_unknown_suite(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt suite is an error that lists those there are."""
    with pytest.raises(SystemExit):
        main(["lifecycles"])

    assert "no suite is called lifecycles; there are calls, lifecycle" in capsys.readouterr().err


# --- copies on a GPU: what is made of the times -----------------------------------------------------------------------------


def timed(name: str, *seconds: float, trouble: str = "") -> Timed:
    return Timed(name=name, nbytes=10**9, seconds=seconds, held_us=tuple(1e6 * each for each in seconds), trouble=trouble)


def gpu_report() -> Report:
    """Two cases that meet their bars, one that misses, and one in which somebody moved wrong bytes."""
    limit, each = timed(LIMIT, 0.02, 0.02, 0.02), timed(EACH, 0.2, 0.2, 0.2)
    return Report(
        facts={"device": "A GPU", "driver": "1.2", "date": "2001-02-03"},
        cases=(
            Case(page=4 * KIB, direction="store", timed=(limit, each, timed(COPIER, 0.05, 0.04, 0.1)), chosen="kernel"),
            Case(page=64 * KIB, direction="store", timed=(limit, each, timed(COPIER, 0.022)), chosen="batch"),
            Case(page=64 * KIB, direction="load", timed=(limit, each, timed(COPIER, 0.023)), chosen="batch"),
            Case(page=64 * KIB, direction="both", timed=(limit, each, timed(COPIER, trouble="wrong bytes"))),
        ),
        beside=(
            Beside(
                page=16 * KIB,
                direction="load",
                mover="kernel",
                alone_ms=(2.0, 2.0, 9.0),
                beside_ms=(2.1, 2.2, 2.2),
                copied_rate=31.4,
            ),
        ),
        absent={"batch": "no driver"},
        left_out=("load, pages of 1 MiB",),
    )


def test_gpu_figures_are_medians_and_ratios_of_them() -> None:
    """A rate is that of the median; the bar is a share of the limit for large pages, and a ratio to a peer for small ones."""
    small, met, missed, wrong = gpu_report().cases
    ours = small.of(COPIER)
    (beside,) = gpu_report().beside

    assert ours is not None
    assert (ours.rate, ours.slowest, ours.quickest, ours.launch_us) == (20.0, 10.0, 25.0, 50_000.0)
    assert small.ratio(COPIER, EACH) == 4.0
    assert (small.bar, met.bar) == ("3 x copy_: met", "90% of the limit: met")
    assert (missed.bar, wrong.bar) == ("90% of the limit: MISSED", "90% of the limit: not measured")
    assert wrong.ratio(COPIER, LIMIT) is None
    assert small.best == ""
    assert Case(page=1, direction="load", timed=(timed("batch", 0.1), timed("kernel", 0.2))).best == "batch"
    assert beside.slowdown == pytest.approx(0.1)


def test_gpu_report_survives_json() -> None:
    """What is printed again is what was measured; what is no report is refused."""
    report = gpu_report()

    assert from_json(to_json(report)) == report
    for text in ("", "{}", '{"facts": 7}', to_json(report).replace('"seconds"', '"minutes"')):
        with pytest.raises(MisuseError, match="no report of this benchmark"):
            from_json(text)


def test_gpu_tables_say_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, targets, what is wrong, absent or left out. A wrong byte is exit status 1."""
    source = tmp_path / "report.json"
    source.write_text(to_json(gpu_report()), encoding="utf-8")
    status = gpu_main(["--from", str(source)])
    page = capsys.readouterr().out
    gpu_main(["--from", str(source), "--json"])
    again = capsys.readouterr().out

    assert status == 1
    assert from_json(again) == gpu_report()
    for told in ("A GPU", "1.2", "20.0 (10.0 to 25.0)", "40%", "3 x copy_: met", "limit: MISSED", "+10.0%", "31.4"):
        assert told in page
    for told in ("WRONG: both, pages of 64 KiB, copier: wrong bytes", "not here: batch: no driver", "left out: load, pages"):
        assert told in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows[:6]}) == 1


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_gpu_bench_without_a_gpu_says_so_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is printed that could be taken for figures."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status = gpu_main(arguments)
    out, err = capsys.readouterr()

    assert (status, out) == (2, "")
    assert err.startswith("bench gpu: needs a CUDA device")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--pages", "3K"], "'3K' is none of 4 KiB, 8 KiB"),
        (["--pages", ""], "'' is none of"),
        (["--seconds", "0"], "'0' is no time"),
        (["--seconds", "soon"], "'soon' is no time"),
    ],
)
def test_gpu_bench_refuses_what_it_cannot_do(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_main(arguments)

    assert complaint in capsys.readouterr().err


def test_gpu_bench_refuses_a_file_that_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.json").write_text("[]", encoding="utf-8")

    assert gpu_main(["--from", str(tmp_path / "no.json")]) == 2
    assert gpu_main(["--from", str(tmp_path / "missing.json")]) == 2
    assert capsys.readouterr().err.count("bench gpu: ") == 2


def test_gpu_bench_takes_less_where_there_is_less_memory() -> None:
    """A quarter of the buffer is moved at most, and the buffer fits with all that it is compared with."""
    small = FULL.within(5 << 30)

    assert FULL.within(1 << 40) == FULL
    assert (small.buffer, small.small_pages, small.large_pages) == (1 << 29, 1 << 27, 1 << 27)
    assert FULL.within(0).buffer == 1 << 28
