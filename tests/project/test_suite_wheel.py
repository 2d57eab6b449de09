"""The distribution `blocklife-suite`, built and installed where nothing else is, tests an engine that knows nothing of ours.

Method: the engine and the driver of `examples/your_engine`, which import the driver's interface under the name that the
distribution has; a new environment without blocklife, numpy, rich and torch; the command as the CI of an engine calls it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import pytest

from tests.programs import HANGS_S

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "examples" / "your_engine"
NAMED = '    engine_name = "your engine"\n    version = "1.2"\n'
LOADED = """
import atexit, sys
def tell():
    print("loaded", *sys.modules, file=sys.stderr)
atexit.register(tell)
"""
LEAST = {"A01", "B24", "B25", "B27"}
"""Scenarios that this engine holds."""


def call(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without what leads to the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [str(each) for each in command],
        cwd=cwd, env=kept, capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made by the build backend."""
    into = tmp_path_factory.mktemp("wheel")
    made = call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into, cwd=ROOT / "suite")
    (wheel,) = into.glob("*.whl")

    assert made.returncode == 0, made.stderr
    return wheel


def test_wheel_has_one_package_and_no_ledger(wheel: Path) -> None:
    """So that it overwrites nothing of blocklife where both are installed; a checker of types finds the names of a driver."""
    names = zipfile.ZipFile(wheel).namelist()
    python = [zipfile.ZipFile(wheel).read(name).decode() for name in names if name.endswith(".py")]

    assert {name.split("/")[0] for name in names} == {"blocklife_suite", wheel.name.replace("-py3-none-any.whl", ".dist-info")}
    assert "blocklife_suite/testing/scenarios/cases/B24.toml" in names
    assert "blocklife_suite/py.typed" in names
    assert "blocklife_suite/LICENSE" in names
    assert not [name for name in names if re.search(r"ledger|core|offload|_our_driver|_embedded|pycache", name)]
    assert not [line for text in python for line in text.splitlines() if re.match(r"\s*(from|import) blocklife\b", line)]


@pytest.mark.slow
def test_engine_elsewhere_is_tested_with_nothing_else_installed(wheel: Path, tmp_path: Path) -> None:
    """The command runs all scenarios, writes both reports, and never has a ledger; with the planted bug it is red."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    for words in (("--no-deps", str(wheel)), ("attrs",)):
        done = call(python, "-m", "pip", "install", "--quiet", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    for name in ("driver", "engine"):
        text = (ENGINE / f"{name}.py").read_text(encoding="utf-8").replace("blocklife.testing", "blocklife_suite")
        (tmp_path / f"{name}.py").write_text(re.sub(r"(class YourDriver\(Driver\):\n(?:    \"\"\".*\n)?)", rf"\1{NAMED}", text))
    (tmp_path / "telling.py").write_text(LOADED + "from driver import YourDriver\n")
    (tmp_path / "hasty.py").write_text("from driver import YourDriver\nclass Hasty(YourDriver):\n    hasty = True\n")
    (tmp_path / "known.toml").write_text('other_policy = ["A32", "A45", "B16", "B17", "S5"]\n')
    command = (tmp_path / "env" / "bin" / "blocklife-suite", "run")
    ran = call(
        *command, "--driver", "telling:YourDriver", "--expect", "known.toml", "--junit", "runs.xml", "--badge", "badge.svg",
        cwd=tmp_path,
    )  # fmt: skip
    print(ran.stdout, ran.stderr)
    loaded = {name for line in ran.stderr.splitlines() if line.startswith("loaded ") for name in line.split()[1:]}
    (suite,) = ET.parse(tmp_path / "runs.xml").getroot()
    held = {case.get("name", "").partition(":")[0] for case in suite if len(case) == 1}
    badge = ET.parse(tmp_path / "badge.svg").getroot()
    packages = {name.partition(".")[0] for name in loaded}

    assert ran.returncode == 0
    assert "blocklife_suite" in packages
    assert not packages & {"blocklife", "numpy", "rich", "torch"}
    assert not [name for name in loaded if re.search(r"blocklife_suite\.(ledger|core|offload)", name)]
    assert held >= LEAST
    assert suite.get("name") == "your engine 1.2"
    assert suite.get("failures") == suite.get("errors") == "0"
    assert re.fullmatch(r"\d+ of \d+ safety scenarios hold · your engine 1\.2", badge.get("aria-label") or "")
    red = call(*command, "A01", "--driver", "hasty:Hasty", cwd=tmp_path)
    assert red.returncode == 1
    assert "a rule is broken: I1" in red.stdout
