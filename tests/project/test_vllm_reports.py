"""The scripts of `specs/vllm-findings`: each stands alone, is short, and has its report beside it. `tests/vllm` runs them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "specs" / "vllm-findings.md"
SCRIPTS = sorted(PAGE.with_suffix("").glob("*.py"))
PARTS = ("**What is seen.**", "**Reproduce.**", "**Cause.**", "**Suggested fix.**", "**Versions.**", "**Related.**")

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def imported(script: Path) -> set[str]:
    """The packages that a script imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or "").partition(".")[0])
    return names


def test_each_finding_has_a_script_and_a_report() -> None:
    """Ten of each, named alike."""
    assert len(SCRIPTS) == 11
    assert {each.stem for each in PAGE.with_suffix("").glob("*.md")} == {each.stem for each in SCRIPTS}


@every_script
def test_script_needs_vllm_and_nothing_of_ours(script: Path) -> None:
    """A maintainer can take one file: it imports vLLM, torch and the standard library."""
    assert "vllm" in imported(script)
    assert imported(script) - set(sys.stdlib_module_names) <= {"vllm", "torch"}


@every_script
def test_script_is_short(script: Path) -> None:
    """Under 100 lines."""
    assert len(script.read_text(encoding="utf-8").splitlines()) < 100


@every_script
def test_script_is_named_on_the_page_and_in_its_report(script: Path) -> None:
    """The page links the report; the report says how to run the script, and has the parts of one."""
    report = script.with_suffix(".md").read_text(encoding="utf-8")

    assert f"(vllm-findings/{script.stem}.md)" in PAGE.read_text(encoding="utf-8")
    assert f"python {script.name}" in report
    assert report.startswith("# ")
    assert [part for part in PARTS if part not in report] == []
