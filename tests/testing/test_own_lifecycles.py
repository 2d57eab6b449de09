"""Lifecycles of one's own: every state of some places, the rows that no payload takes, and what a test run has covered."""

from __future__ import annotations

import enum
import sys
from pathlib import Path

import pytest

from blocklife.cli import main
from blocklife.lifecycle import Lifecycle, MisuseError, edge, guard
from blocklife.states import Block, BlockLife
from blocklife.testing import Verdict, explore_lifecycle
from tests.project.pages import ROOT, blocks_of
from tests.testing.test_plugin import run


class Fetch(enum.Enum):
    IDLE = "nothing was asked for"
    BUSY = "bytes are on their way"
    DONE = "all bytes are there"


@guard
def whole(ok: bool) -> bool:
    return ok


class FetchLife(Lifecycle[Fetch], initial=Fetch.IDLE):
    @edge(Fetch.IDLE, to=Fetch.BUSY)
    def start(self, url: str) -> None: ...

    @edge(Fetch.BUSY, to=Fetch.DONE, when=whole)
    @edge(Fetch.BUSY, to=Fetch.IDLE)
    def land(self, ok: bool) -> None: ...

    @edge(Fetch.DONE, to=Fetch.IDLE)
    def drop(self) -> None: ...


BOTH = [{"ok": True}, {"ok": False}]


def test_every_state_of_the_places_is_visited() -> None:
    """Each place on its own: the states are all combinations, and each row is taken in every state of the others."""
    found = explore_lifecycle(FetchLife, {FetchLife.land: BOTH}, places=3)

    assert found.search.states == 3**3
    assert found.search.complete
    assert set(found.rows.values()) == {3 * 3**2}
    assert found.never == ()


def test_row_that_no_payload_takes_is_named() -> None:
    """Here nothing ever fails."""
    found = explore_lifecycle(FetchLife, {FetchLife.land: BOTH[:1]})

    assert [str(row) for row in found.never] == ["BUSY --land--> IDLE"]
    assert str(found) == "FetchLife: 3 states, 3 steps\n  never taken: BUSY --land--> IDLE"


def test_state_that_must_not_be_comes_with_the_shortest_way_there() -> None:
    """What holds says so, too."""
    found = explore_lifecycle(
        FetchLife,
        {FetchLife.land: BOTH},
        places=2,
        always={
            "one at a time": lambda states: list(states).count(Fetch.BUSY) < 2,
            "not all at rest": lambda states: len(states) == 2,
        },
    )
    (against,) = found.search.counterexamples

    assert found.search.verdicts == {"one at a time": Verdict.VIOLATED, "not all at rest": Verdict.HOLDS}
    assert [(each.event, each.place) for each in against.actions] == [("start", 0), ("start", 1)]
    assert "  one at a time: it does not hold in BUSY, BUSY (after start 0, start 1)" in str(found).splitlines()


def test_what_cannot_be_explored_is_refused() -> None:
    """With the event and what it lacks."""
    with pytest.raises(MisuseError, match=r"FetchLife\.land: its guards read ok \(give payloads: "):
        explore_lifecycle(FetchLife)
    with pytest.raises(MisuseError, match=r"FetchLife\.land: a payload lacks ok, which its guards read"):
        explore_lifecycle(FetchLife, {FetchLife.land: [{"fine": True}]})
    with pytest.raises(MisuseError, match=r"^BlockLife\.acquire is not an event of FetchLife$"):
        explore_lifecycle(FetchLife, {BlockLife.acquire: []})
    with pytest.raises(MisuseError, match="places must be at least 1, not 0"):
        explore_lifecycle(FetchLife, {FetchLife.land: BOTH}, places=0)


def test_event_may_be_named_itself() -> None:
    """By the event or by its name; another lifecycle's is refused, and said by its name."""
    fetch = FetchLife()

    assert fetch.can(FetchLife.start)
    assert fetch.can("start")
    assert not fetch.can(FetchLife.land)
    for wrong, said in ((BlockLife.acquire, r"BlockLife\.acquire"), (Block.FREED, "<Block.FREED")):
        with pytest.raises(MisuseError, match=f"^{said}.* is not an event of FetchLife$"):
            fetch.can(wrong)  # type: ignore[arg-type]


# --- what a test run has covered --------------------------------------------------------------------------------------------

LIFE = """
import enum
from blocklife.lifecycle import Lifecycle, edge

class Lamp(enum.Enum):
    OFF = "dark"
    ON = "bright"

class LampLife(Lifecycle[Lamp], initial=Lamp.OFF):
    @edge(Lamp.OFF, to=Lamp.ON)
    def light(self) -> None: ...
    @edge(Lamp.ON, to=Lamp.OFF)
    def dim(self) -> None: ...
"""
TESTS = """
from blocklife.lifecycle import Pool
from lamps import Lamp, LampLife

def test_machines():
    plain, heard = LampLife(), LampLife()
    plain.light()
    with heard.on(entered=Lamp.ON) as told:
        heard.light()
    assert len(told.heard) == 1

def test_pool():
    pool = Pool(LampLife, 5)
    pool.fire(LampLife.light, pool.handle(Lamp.OFF))
"""
INI = "[pytest]\npythonpath = .\nblocklife_lifecycles =\n    lamps:LampLife\n"


@pytest.fixture
def lamps(tmp_path: Path) -> Path:
    """A folder with a lifecycle and its tests, which never dim a lamp."""
    for name, text in (("lamps.py", LIFE), ("test_lamps.py", TESTS), ("pytest.ini", INI)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_report_counts_machines_and_pools_of_ones_own(lamps: Path) -> None:
    """Two machines and five places; where there is no ledger, the four tables are left out."""
    ran = run(lamps, "--blocklife-report=out.json", "--blocklife-require-rows")

    assert ran.code == 1
    assert "LampLife       2/2       1/2" in ran.text
    assert "--blocklife-require-rows: 1 rows were never taken" in ran.text
    assert "never taken: LampLife: ON --dim--> OFF" in ran.text
    assert "BlockLife" not in ran.text
    assert '"OFF --light--> ON": 7' in (lamps / "out.json").read_text(encoding="utf-8")


def test_report_is_laid_over_a_drawing_of_ones_own(
    lamps: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row that is taken has its number, the other stands out; a machine that no ledger moved is refused."""
    run(lamps, "--blocklife-report=out.json")
    monkeypatch.chdir(lamps)
    monkeypatch.syspath_prepend(str(lamps))
    try:
        status = main(["draw", "lamps:LampLife", "--coverage", "out.json", "--format", "table"])
        drawn = capsys.readouterr().out
        refused = main(["draw", "block", "--coverage", "out.json"])
    finally:
        sys.modules.pop("lamps", None)

    assert (status, refused) == (0, 2)
    assert "taken 7 times" in drawn
    assert "no test has taken it" in drawn
    assert "LampLife: 1 of 2 rows are covered." in drawn
    assert "The machines and pools of a test run were counted" in drawn
    assert "out.json: it does not count block, only LampLife (run tests that use a ledger)" in capsys.readouterr().err


def test_page_has_a_configuration_that_plain_pytest_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands there, beside the module, where the folder itself is not on Python's path."""
    blocks = [each.text for each in blocks_of(ROOT / "specs" / "own-lifecycles.md")]
    (tmp_path / "adapters.py").write_text(blocks[0], encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(next(each for each in blocks if each.startswith("[pytest]")), encoding="utf-8")
    (tmp_path / "test_adapters.py").write_text("def test_nothing(): ...\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    ran = run(tmp_path, "--blocklife-report")

    assert ran.code == 0, ran.text
    assert "AdapterLife" in ran.text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lamps:Lamp", "lamps:Lamp is not a Lifecycle"),
        ("lamps", "(write module:Class, one a line)"),
        ("lumps:LampLife", "No module named 'lumps' (if it lies beside pytest.ini, add the line pythonpath = . there)"),
    ],
)
def test_what_is_not_a_lifecycle_is_an_error_of_usage(lamps: Path, name: str, said: str) -> None:
    """One line, before any test runs."""
    (lamps / "pytest.ini").write_text(INI.replace("lamps:LampLife", name), encoding="utf-8")
    ran = run(lamps, "--blocklife-report")

    assert ran.code == 4
    assert said in ran.text
