"""The table of findings, and what runs their scripts: no engine is needed, scripts and releases are made up.

Method: a script of this folder stands for one of a finding; for the table, what scripts show in a release is said by the test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.behind import findings
from tests.behind.findings import CANNOT, Row
from tests.behind.plainly import AS_IT_IS, FELL, HELP, MENDED
from tests.behind.tools import shelf_with
from tests.programs import ENGINES, HANGS_S
from tests.vllm.releases import Shelf

SCRIPT = """
import argparse, sys
import no_such_engine.that_is_known_first
argparse.ArgumentParser(description="Exit status: 0 if the fault shows.").parse_args()
print("engine 1: the fault", "shows" if no_such_engine.faulty else "is mended")
sys.exit(not no_such_engine.faulty)
"""
ENGINE = {"no_such_engine/__init__.py": "faulty = True\n", "no_such_engine/that_is_known_first.py": ""}


def played(folder: Path, script: str, *words: str, engine: Mapping[str, str] = ENGINE) -> list[dict[str, object]]:
    """What is printed of a script, where only the standard library and a made-up engine are."""
    for name, text in {**engine, "a_fault.py": script}.items():
        folder.joinpath(name).parent.mkdir(exist_ok=True)
        folder.joinpath(name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-P", "-S", str(findings.PLAINLY), *words, str(folder / "a_fault.py")]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_script_is_played_as_it_is_mended_and_asked_for_help(tmp_path: Path) -> None:
    """The mend of one run is not there in the next."""
    mends = tmp_path / "mends.py"
    mends.write_text("import no_such_engine\ndef a_fault():\n    no_such_engine.faulty = False\n", encoding="utf-8")
    runs = played(tmp_path, SCRIPT, "--mends", str(mends))

    assert [(run["mode"], run["status"]) for run in runs] == [(AS_IT_IS, 0), (MENDED, 1), (HELP, 0)]
    assert [run["said"] for run in runs[:2]] == ["engine 1: the fault shows\n", "engine 1: the fault is mended\n"]
    assert "Exit status: 0" in str(runs[2]["said"])


def test_script_that_falls_says_by_what(tmp_path: Path) -> None:
    """As one does in a release that has not what it imports."""
    (run,) = played(tmp_path, SCRIPT, engine={"no_such_engine/__init__.py": ""})

    assert run["status"] == FELL
    assert run["said"] == "ModuleNotFoundError: No module named 'no_such_engine.that_is_known_first'\n"
    assert findings.Run(script="", mode="", status=FELL, said="").shows == CANNOT


def test_nothing_is_played_where_blocklife_can_be_imported(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="blocklife can be imported here"):
        played(tmp_path, SCRIPT, engine={**ENGINE, "blocklife.py": ""})


@pytest.fixture
def shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let vLLM's 0.33.0 alone be here, and its scripts show what is said; the table is one of this test."""
    shelves = {engine: shelf_with(Shelf, tmp_path / engine, "") for engine in ENGINES}
    shelves["vllm"].source("0.33.0").mkdir(parents=True)
    monkeypatch.setattr(findings, "TABLE", tmp_path / "findings.csv")
    monkeypatch.setattr(findings, "PAGES", {"vllm": tmp_path / "page.md"})
    monkeypatch.setattr(findings, "shelf_of", shelves.__getitem__)
    (tmp_path / "page.md").write_text(f"# A page\n\n{findings.HEAD}\n| --- |\n\nMore.\n", encoding="utf-8")

    def say(cell: str) -> None:
        rows = [Row("vllm", at, name, "0.33.0", cell) for at, name in enumerate(findings.names("vllm"), 1)]
        monkeypatch.setattr(findings, "seen", lambda engine, release: rows)

    return say


def test_table_is_written_with_its_page_and_then_holds(
    shows: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shows("yes")
    number = len(findings.names("vllm"))

    assert findings.main(["--write"]) == 0
    assert f"vLLM 0.33.0: {number} scripts, {number} show something else than the table says\n" in capsys.readouterr().out
    assert f"{findings.HEAD} 0.33.0 |\n| --- | --- |\n| 1: `{findings.names('vllm')[0]}` " in (tmp_path / "page.md").read_text()
    assert findings.main([]) == 0
    assert capsys.readouterr().out == f"vLLM 0.33.0: {number} scripts, 0 show something else than the table says\n"


def test_release_that_has_mended_a_fault_is_named(shows: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is written."""
    shows("yes")
    findings.main(["--write"])
    kept = findings.rows()
    shows("no")

    assert findings.main([]) == 1
    assert f"  {findings.names('vllm')[0]}: no\n" in capsys.readouterr().out
    assert findings.rows() == kept


def test_release_that_is_not_here_is_refused_with_the_remedy(
    shows: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is kept of it stays in the table."""
    shows("yes")
    findings.main(["--write"])
    older = [Row("vllm", row.finding, row.script, "0.30.0", "no") for row in findings.rows()]
    findings.write([*findings.rows(), *older])

    assert findings.main(["--write"]) == 1
    assert "vLLM 0.30.0: not here (python -m tests.vllm.fetch 0.30.0)\n" in capsys.readouterr().out
    assert [row for row in findings.rows() if row.release == "0.30.0"] == older
