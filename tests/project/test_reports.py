"""The scripts of findings: each stands alone, is short, and has its report beside it. `tests/behind` has what runs them."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.behind import findings
from tests.behind.shelf import PROJECT
from tests.behind.worlds import known
from tests.programs import ENGINES

PARTS = ("**What is seen.**", "**Reproduce.**", "**Cause.**", "**Suggested fix.**", "**Versions.**", "**Related.**")
LONGEST = {"vllm": 100, "sglang": 165, "lmcache": 220}
"""Lines of a script. For LMCache an adapter of its L2 is imitated, too."""
SCRIPTS = [(engine, findings.folder(engine) / f"{name}.py") for engine in ENGINES for name in findings.names(engine)]

every_engine = pytest.mark.parametrize("engine", ENGINES)
every_script = pytest.mark.parametrize(("engine", "script"), SCRIPTS, ids=[script.stem for _, script in SCRIPTS])


def imported(script: Path) -> set[str]:
    """The packages that a script imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or "").partition(".")[0])
    return found


@every_engine
def test_each_finding_has_a_script_a_report_a_mend_and_what_it_says(engine: str) -> None:
    """Named alike, and nothing else is there."""
    names, here = set(findings.names(engine)), findings.folder(engine)
    mended = ast.parse((PROJECT / "tests" / engine / "mended.py").read_text(encoding="utf-8"))

    assert {each.stem for each in here.glob("*.py")} == {each.stem for each in here.glob("*.md")} == names
    assert names <= {node.name for node in mended.body if isinstance(node, ast.FunctionDef)}


@every_engine
def test_table_has_every_finding_in_every_release_and_the_newest_shows_all(engine: str) -> None:
    """`tests.behind.findings` writes and verifies it."""
    mine = [row for row in findings.rows() if row.engine == engine]
    by_release = {
        release: {row.script: row for row in mine if row.release == release} for release in {row.release for row in mine}
    }

    assert all(list(found) == findings.names(engine) for found in by_release.values())
    assert {row.shows for row in by_release[findings.releases(engine)[0]].values()} == {"yes"}


@every_engine
def test_page_has_the_table(engine: str) -> None:
    """As it was written last (python -m tests.behind.findings --pages)."""
    assert findings.page(engine) == findings.PAGES[engine].read_text(encoding="utf-8")


@every_script
def test_script_needs_its_engine_and_nothing_of_ours(engine: str, script: Path) -> None:
    """A maintainer can take one file: it imports the engine, torch and the standard library."""
    assert engine in imported(script)
    assert imported(script) - set(sys.stdlib_module_names) <= {engine, "torch"}


@every_script
def test_script_is_short(engine: str, script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < LONGEST[engine]


@every_script
def test_report_says_how_to_run_the_script_and_has_the_parts_of_one(engine: str, script: Path) -> None:
    """And it shows the line that the script prints."""
    report = script.with_suffix(".md").read_text(encoding="utf-8")
    shown = known(engine)["reports"][script.stem]["shows"]

    assert report.startswith("# ")
    assert f"python {script.name}\n{ENGINES[engine]} {findings.releases(engine)[0]}: " in report
    assert re.search(f"(?m)^{ENGINES[engine]} {re.escape(findings.releases(engine)[0])}: {shown}$", report)
    assert [part for part in PARTS if part not in report] == []
