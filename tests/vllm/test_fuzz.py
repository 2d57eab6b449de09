"""The fuzz: random traffic with every feature switched at random (`fuzz`).

Goal: combinations that no other test names are run, and whatever is wrong in them shows. A thousand runs are for the night;
here are a few seeds, what they draw, and controls.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest
from attrs import evolve

from blocklife.ledger import Result
from tests.proof.drivers.vllm import making
from tests.vllm.engine import MINOR
from tests.vllm.fuzz import Tally, Verdict, drawn, main, run
from tests.vllm.lag_copier import LagCopier

SEEDS = range(40)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("first", SEEDS[::8])
def test_random_runs_with_random_features_are_clean(first: int) -> None:
    for seed in range(first, first + 8):
        verdict = run(seed)

        assert not verdict.wrong, str(verdict)


def test_seed_says_what_is_run() -> None:
    """Where no store below has its own time, a second run of a seed does the same."""
    seed = next(seed for seed in SEEDS if drawn(seed).below is None and drawn(seed).fails)

    assert drawn(seed) == drawn(seed)
    assert run(seed, 20) == run(seed, 20)


def test_every_feature_is_drawn_in_some_cases_and_left_out_in_others() -> None:
    """And many of them together."""
    cases = [frozenset(drawn(seed).features) for seed in range(1000)]
    counts = Counter(name for case in cases for name in case)

    assert all(10 < count < 990 for count in counts.values()), counts
    assert max(len(case) for case in cases) > 15
    if MINOR >= 33:
        assert counts.keys() >= {"sleep", "sessions", "second runner", "drafter", "second connector", "store below"}


def _nobody_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LagCopier, "wait", lambda *_: None)


def _failures_are_called_success(patch: pytest.MonkeyPatch) -> None:
    poll = LagCopier.poll
    patch.setattr(LagCopier, "poll", lambda self: [evolve(each, result=Result.OK) for each in poll(self)])


def _salts_are_left_out(patch: pytest.MonkeyPatch) -> None:
    make = making.request_of
    patch.setattr(making, "request_of", lambda *given, **more: make(*given[:-1], **more))


@pytest.mark.parametrize("fault", [_nobody_waits, _failures_are_called_success, _salts_are_left_out])
def test_fuzz_finds_a_fault(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls: what is read or written too early, what a failed copy left, and what is another tenant's."""
    fault(monkeypatch)

    assert any("reads wrong bytes" in run(seed).wrong for seed in SEEDS)


def test_tally_tells_what_was_idle_refused_and_wrong() -> None:
    """A feature with which nothing was loaded is named, unless its runs were refused or wrong."""
    tally = Tally()
    for verdict in (
        Verdict(1, ("a", "b"), steps=5, verified=7, stored=3, loaded=2),
        Verdict(2, ("a", "c"), steps=5, verified=7, stored=3),
        Verdict(3, ("d",), refused="because"),
        Verdict(4, ("e",), steps=1, wrong="a stack"),
    ):
        tally.add(verdict)

    assert tally.idle == ["c"]
    assert (tally.runs, tally.verified, tally.refused, tally.wrong) == (4, 14, {"because": 1}, [4])
    assert list(tally.lines())[-1] == "4 runs, 14 blocks compared, 1 wrong [4]"


def test_command_tells_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object a line; the first seed is chosen; the exit status says whether all were clean."""
    status = main(["--runs", "2", "--first", "7", "--requests", "5", "--processes", "1", "--json"])
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert status == 0
    assert [each["seed"] for each in told] == [7, 8]
    assert all(each["wrong"] == "" and each["verified"] > 0 for each in told)


def test_command_fails_where_a_run_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which seed, and the stack."""
    _nobody_waits(monkeypatch)
    status, told = 0, ""
    for seed in SEEDS:
        status = main(["--runs", "1", "--first", str(seed), "--processes", "1"])
        told = capsys.readouterr().out
        if "reads wrong bytes" in told:
            break

    assert status == 1
    assert "reads wrong bytes" in told
    assert "Traceback" in told
