"""The scripts of `specs/vllm-findings` show their fault in vLLM as it is, and say so when it is mended.

They run where a maintainer would run them: vLLM and its dependencies, and nothing of ours.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
import vllm

from tests.vllm import figures

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE.parents[1] / "specs" / "vllm-findings").glob("*.py"))
MENDED = HERE / "mended.py"

WRONG, RIGHT = r"[1-9]\d* reads of wrong KV, first: request \w+ reads .+", r"0 reads of wrong KV"
SAID = {
    "preempted_before_it_was_computed": (WRONG, RIGHT),
    "partial_chunk": (WRONG, RIGHT),
    "hole_in_chunk": (WRONG, RIGHT),
    "reset_of_window": (WRONG, RIGHT),
    "loads_that_wait_for_each_other": (
        r"100 steps have scheduled nothing; 1 blocks are free; waiting: \[c WAITING, d WAITING_FOR_REMOTE_KVS\]",
        r".* waiting: \[\]",
    ),
    "state_that_is_not_counted": (
        r"schedule\(\) raises ValueError\('Cannot get 1 free blocks from the pool'\)",
        r"every request has ended",
    ),
    "lazy_store_without_end": (
        r"10000 steps without a request store [1-9]\d* blocks, and go on",
        r"0 steps without a request store 0 blocks",
    ),
    "text_longer_than_the_host": (
        r"5 chunks in files, 4 slots; 200 steps schedule nothing; waiting: \['b WAITING'\]",
        r"5 chunks in files, 4 slots; \d steps schedule nothing; waiting: \[\]",
    ),
    "error_inside_a_prompt": (WRONG, RIGHT),
    "ring_behind_a_full_hit": (WRONG, RIGHT),
    "request_behind_lazy_stores": (r"waiting \['big'\], while .* store [1-9]\d* blocks", r"waiting \[\], .*"),
}
"""What each script prints behind the release, in vLLM as it is and mended."""


def plain(folder: Path) -> dict[str, str]:
    """The environment variables of a Python that has the release's source and its dependencies; it is to run with -S, for an
    editable installation of ours is found by way of site-packages' own configuration files."""
    around = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    source = str(Path(vllm.__file__).parents[1])
    path = os.pathsep.join([source, sysconfig.get_path("purelib")])
    return {**around, "HOME": str(folder), "PYTHONPATH": path, "VLLM_PLUGINS": "", "VLLM_NO_USAGE_STATS": "1"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], tuple[int, str]]:
    """Exit status and output of each script, as it is, mended, and asked for help."""
    folder = tmp_path_factory.mktemp("plain")
    words = [sys.executable, "-P", "-S", str(MENDED), *map(str, SCRIPTS)]
    ran = subprocess.run(words, cwd=folder, env=plain(folder), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    runs = [json.loads(line) for line in ran.stdout.splitlines()]
    return {(run["script"], run["mode"]): (run["status"], run["said"]) for run in runs}


def test_blocklife_cannot_be_imported_where_the_scripts_run(tmp_path: Path) -> None:
    """Nothing of ours can be a part of what they show."""
    words = [sys.executable, "-P", "-S", "-c", "import blocklife"]
    ran = subprocess.run(words, cwd=tmp_path, env=plain(tmp_path), capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert "No module named 'blocklife'" in ran.stderr


def test_every_script_is_expected_to_say_something() -> None:
    assert {script.stem for script in SCRIPTS} == set(SAID)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_script_shows_its_fault(name: str, played: Mapping[tuple[str, str], tuple[int, str]]) -> None:
    """It exits 0 and prints one line that says what was seen."""
    status, said = played[name, "as it is"]

    assert re.fullmatch(rf"vLLM {vllm.__version__}: {SAID[name][0]}\n", said), said
    assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_script_says_when_the_fault_is_mended(name: str, played: Mapping[tuple[str, str], tuple[int, str]]) -> None:
    """With what its report suggests in vLLM, it exits 1."""
    status, said = played[name, "mended"]

    assert re.fullmatch(rf"vLLM {vllm.__version__}: {SAID[name][1]}\n", said), said
    assert status == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_script_says_what_it_does_when_asked(name: str, played: Mapping[tuple[str, str], tuple[int, str]]) -> None:
    status, said = played[name, "help"]

    assert status == 0
    assert "Exit status: 0" in said


@pytest.mark.slow
def test_faults_of_chunks_show_in_the_cells_that_the_page_names_and_in_no_other() -> None:
    """A corner of the tables, with cells of both kinds; `figures` plays all of them."""
    rows = list(figures.rows(False, windows=(1, 3), chunks=(2, 3, 5)))

    assert len(rows) == 12
    assert any(each.split("[")[-1].startswith("1, 0, 0]") for each in rows)
    assert [each for each in rows if "NOT AS SAID" in each] == []


@pytest.mark.slow
def test_random_resets_spoil_answers() -> None:
    """What finding 4 does to users, under default settings."""
    wrong, answers = figures.wrong_answers(0)

    assert 0 < wrong < answers
