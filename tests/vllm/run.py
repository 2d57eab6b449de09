"""``python -m tests.vllm.run VERSION TEST ... [pytest options]``: tests under a fetched release of vLLM, on the CPU.

Without an option they are the release's own tests, named as in its source package (``tests/v1/simple_kv_offload``). Whatever
stands behind the version goes to pytest, or to what the option names, as it is: ``-n 2``, ``-k name``, ``-p a.plugin``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.behind.running import SHARED, Make, around_without, parser, pytest_of_ours
from tests.behind.shelf import ON_PATH, PROJECT, Command, copied, release_asked
from tests.programs import HANGS_S, refused
from tests.vllm.releases import DEFAULT, HERE, Shelf

PROGRAM = "tests.vllm.run"
PLUGINS = HERE / "plugins"
NOT_OURS = ("ignore:`torch.jit.script_method`:DeprecationWarning",)
"""Warnings that come with importing vLLM; all others are errors, as in the project's other tests."""
OURS = ("-p", "no:asyncio", "--timeout", str(HANGS_S), *(word for warning in NOT_OURS for word in ("-W", warning)))
"""The options of pytest that our tests are run with."""
UNSTEADY = {
    "0.33.0": (
        "tests/v1/kv_offload/tiering/p2p/test_manager.py::TestBidirectionalManager::test_lookup_expiry_allows_zmq_reconnect",
    )
}
"""A release's own tests that fail now and then without anything of ours. They are left out, for their failure tells nothing.
This one gives a new connection over real sockets five seconds, and 2 of 100 runs on an idle machine did not get it in time."""
TOUCHING = "blocklife/engines/vllm"
"""The package's code that touches vLLM. What the tests of several releases share cannot fit the types of each."""


def surroundings(shelf: Shelf, release: str, around: Mapping[str, str]) -> dict[str, str]:
    """The environment variables under which a release runs, given those *around*."""
    fixed = {
        "PYTHONPATH": os.pathsep.join([str(shelf.source(release)), str(PLUGINS), *ON_PATH]),
        "VLLM_TARGET_DEVICE": "cpu",  # else no platform is found, and the clean-up after each test fails
        "HF_HUB_OFFLINE": "1",  # else the name of a model is looked up, although a folder of that name is there
        "HF_HOME": str(shelf.cache / "huggingface"),
        "VLLM_CACHE_ROOT": str(shelf.cache / "vllm"),
        "VLLM_NO_USAGE_STATS": "1",
    }
    # vLLM walks through sets of names: without a fixed order of them a seed would not say what a run does
    return {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONHASHSEED": "0", **around_without(around), **fixed}


def theirs(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """The release's own tests; its folder is the working directory, for the stand-in of the model lies there."""
    words = [str(shelf.python), "-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider", "-p", "fast_teardown"]
    words += ["--timeout", str(HANGS_S), "-o", "asyncio_default_fixture_loop_scope=function"]
    words += [f"--deselect={each}" for each in UNSTEADY.get(release, ())]
    return Command([*words, *wanted], shelf.source(release), surroundings(shelf, release, around))


def ours(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """Tests of this folder, with the project's settings."""
    return pytest_of_ours(shelf, OURS, wanted, (HERE, SHARED), surroundings(shelf, release, around))


def python(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """A program of ours."""
    return Command([str(shelf.python), *wanted], PROJECT, surroundings(shelf, release, around))


def types(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """The running interpreter's mypy; it reads the release's own types, which it has not where it checks everything else."""
    words = [sys.executable, "-m", "mypy", "--python-executable", str(shelf.python)]
    words += ["--cache-dir", str(shelf.cache / f"mypy-{release}")]
    words += ["--follow-imports", "silent"]  # vLLM's own mistakes are not ours
    words += ["--exclude", rf"/releases/_vllm_(?!{'_'.join(release.split('.')[:2])}\.py)"]  # other releases' own adapters
    words += ["--no-warn-unused-ignores"]  # where vLLM is not, a subclass of one of its classes must be excused
    words += wanted or [TOUCHING]
    return Command(words, PROJECT, {**around, "MYPYPATH": str(shelf.source(release))})


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    makes: Mapping[Make[Shelf], str] = {
        ours: "our tests in tests/vllm and those that all engines share, all of them if none is named",
        python: "no tests: the environment's Python, with what follows (-m tests.vllm.something, say)",
        types: "no tests: check our code against the release's types with mypy",
    }
    options = parser(PROGRAM, __doc__, "[--ours | --python [--copy FOLDER] | --types]", theirs, makes)
    copy = "with --python: a copy of the project to run in (build/shipped, say)"
    options.add_argument("--copy", metavar="FOLDER", type=Path, help=copy)
    return options.parse_args(arguments)


def chosen_command(arguments: Sequence[str] | None, shelf: Shelf, around: Mapping[str, str]) -> Command:
    """The command that was asked for, if it can be run."""
    chosen = parsed(arguments)
    release = release_asked(PROGRAM, chosen.version, shelf, DEFAULT)
    if chosen.make is theirs and not chosen.wanted:
        refused(PROGRAM, "name the tests to run (a release has thousands, and most need a GPU or a model)")
    if chosen.make is types and importlib.util.find_spec("mypy") is None:
        refused(PROGRAM, "this Python has no mypy (use that of the project's test environment)")
    command: Command = chosen.make(shelf, release, chosen.wanted, around)
    if chosen.copy is None:
        return command
    if chosen.make is not python:
        refused(PROGRAM, "--copy goes with --python: tests run in the project itself")
    if not (copy := chosen.copy.absolute()).joinpath("blocklife").is_dir():
        refused(PROGRAM, f"{chosen.copy} is no copy of the project (python compile_core.py {chosen.copy} --as shipped)")
    return copied(command, copy)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    chosen_command(arguments, Shelf(), os.environ).become()


if __name__ == "__main__":
    main()
