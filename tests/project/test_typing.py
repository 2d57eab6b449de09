"""What the types promise: `typing/accepts.py` is clean and runs, `typing/rejects.py` fails on exactly its marked lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
TYPING = ROOT / "tests" / "typing"

MARK = re.compile(r"# E: (?P<code>[\w-]+)$")
FOUND = re.compile(r"^.*rejects\.py:(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$")


def judged(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """What mypy says about one file under the project's own configuration; a file that is named is never excluded."""
    monkeypatch.chdir(ROOT)
    said, trouble, status = api.run(
        ["--config-file", "pyproject.toml", "--no-pretty", "--no-color-output", f"tests/typing/{name}"]
    )
    assert not trouble
    return said.splitlines(), status


def marked(text: str) -> set[tuple[int, str]]:
    """The lines that must fail, with the code of their error."""
    return {(number, found["code"]) for number, line in enumerate(text.splitlines(), 1) if (found := MARK.search(line))}


def test_types_accept_lawful_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lawful use is clean, and every fired handle has the type that is asserted there: nothing is Any."""
    said, status = judged("accepts.py", monkeypatch)

    assert status == 0, "\n".join(said)


def test_types_reject_exactly_the_marked_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each marked line fails with its code, and no other line does."""
    said, status = judged("rejects.py", monkeypatch)
    found = {(int(each["line"]), each["code"]) for line in said if (each := FOUND.match(line))}

    assert status == 1
    assert found == marked((TYPING / "rejects.py").read_text(encoding="utf-8"))
    assert len(found) > 40


def test_what_the_types_accept_also_runs() -> None:
    """The clean file is no fiction: it runs to its end."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.typing.accepts"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr
