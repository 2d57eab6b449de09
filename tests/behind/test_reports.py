"""The scripts of the findings in the engine that is here show their fault in it as it is, and say so when it is mended.

They run where a maintainer would run them: the engine and its dependencies, and nothing of ours. `tests.behind.findings` runs
them in other releases.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from importlib import import_module

import pytest

from tests.behind import engine_here, findings
from tests.behind.findings import Run
from tests.behind.plainly import AS_IT_IS, HELP, MENDED
from tests.behind.worlds import known
from tests.programs import ENGINES

ENGINE = engine_here() or ""
RELEASE: str = import_module(f"tests.{ENGINE}.engine").RELEASE
SAID = known(ENGINE)["reports"]

pytestmark = pytest.mark.skipif(
    import_module(f"tests.{ENGINE}.releases").DEFAULT != RELEASE, reason="the mends are made for the newest release"
)
every_script = pytest.mark.parametrize("name", SAID)


@pytest.fixture(scope="module")
def runs() -> Mapping[tuple[str, str], Run]:
    """Each script as it is, mended, and asked for help."""
    return {(run.script, run.mode): run for run in findings.played(ENGINE, RELEASE, mended=True)}


def test_blocklife_cannot_be_imported_where_the_scripts_run() -> None:
    """Nothing of ours can be a part of what they show."""
    with tempfile.TemporaryDirectory() as home:
        done = findings.ran(findings.plain(ENGINE, RELEASE, ["-c", "import blocklife"], home))

    assert done.returncode == 1
    assert "No module named 'blocklife'" in done.stderr


@pytest.mark.slow
@every_script
def test_script_shows_its_fault(name: str, runs: Mapping[tuple[str, str], Run]) -> None:
    """It exits 0 and says in its last line what was seen."""
    run = runs[name, AS_IT_IS]

    assert re.fullmatch(f"{ENGINES[ENGINE]} {RELEASE}: {SAID[name]['shows']}", run.line), run.said
    assert run.status == 0


@pytest.mark.slow
@every_script
def test_script_says_when_the_fault_is_mended(name: str, runs: Mapping[tuple[str, str], Run]) -> None:
    """With what its report suggests, it exits 1."""
    run = runs[name, MENDED]

    assert re.fullmatch(f"{ENGINES[ENGINE]} {RELEASE}: {SAID[name]['mended']}", run.line), run.said
    assert run.status == 1


@pytest.mark.slow
@every_script
def test_script_says_what_it_does_when_asked(name: str, runs: Mapping[tuple[str, str], Run]) -> None:
    run = runs[name, HELP]

    assert run.status == 0
    assert "Exit status: 0" in run.said
