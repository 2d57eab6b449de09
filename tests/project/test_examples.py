"""Every example runs, and prints the lines that its docstring shows, in that order."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import HANGS_S

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"embedded_driver": "tests/testing/test_driver.py"}
"""Examples that another test runs, because it asks more of the same run."""
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in ELSEWHERE]


def promised(path: Path) -> list[str]:
    """The lines that the module docstring sets off by four spaces."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return [line.removeprefix("    ") for line in doc.splitlines() if line.startswith("    ")]


def test_examples_are_found() -> None:
    """There is something to run, and what is run elsewhere is named there."""
    assert EXAMPLES
    assert [name for name, test in ELSEWHERE.items() if name not in (ROOT / test).read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_what_its_docstring_says(path: Path) -> None:
    """An example is a promise: it ends well, warns of nothing, and shows its lines in order."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=HANGS_S,
        check=False,
    )
    wanted = promised(path)
    printed = iter(ran.stdout.splitlines())
    missing = [line for line in wanted if line not in printed]

    assert ran.returncode == 0, ran.stderr
    assert wanted, "an example shows in its docstring what it prints, set off by four spaces"
    assert not missing, ran.stdout


def test_example_that_needs_torch_says_so() -> None:
    """One line with the remedy, and no traceback."""
    script = "import runpy, sys\nsys.modules['torch'] = None\nrunpy.run_path('examples/ranks.py', run_name='__main__')"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("examples/ranks.py needs torch: ")
    assert ran.stderr.endswith(" (pip install torch)\n")
    assert ran.stderr.count("\n") == 1
