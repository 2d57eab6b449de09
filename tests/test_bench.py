"""The benchmark runs and says what it promises; what it measures is never judged here."""

from __future__ import annotations

import json

import pytest

from tests.bench import SMOKE, Figure
from tests.bench.__main__ import SUITES, main, measured


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
    """A ratio says how many times less ours costs."""
    assert Figure(name="a", ours=2.0, unit="ns", peer_name="b", peer=5.0).ratio == 2.5
    assert Figure(name="a", ours=2.0, unit="ns").ratio is None


def test_bench_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Both outputs carry the same figures."""
    main(["--smoke", "lifecycle"])
    table = capsys.readouterr().out
    main(["--smoke", "--json", "lifecycle"])
    found = json.loads(capsys.readouterr().out)["suites"]["lifecycle"]

    assert "transitions" in table
    for figure in found:
        assert figure["name"] in table
        assert set(figure) == {"name", "ours", "unit", "peer", "peer_name", "target", "ratio"}


def test_bench_refuses_an_unknown_suite(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt suite is an error that lists those there are."""
    with pytest.raises(SystemExit):
        main(["lifecycles"])

    assert "no suite is called lifecycles; there are lifecycle" in capsys.readouterr().err
