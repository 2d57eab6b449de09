"""``python -m tests.lmcache.run VERSION [TEST ...] [pytest options]``: our tests under a fetched LMCache.

Whatever stands behind the version goes to pytest, or to what the option names, as it is: ``-n 2``, ``-k name``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

from tests.behind.running import SHARED, Make, around_without, parser, pytest_of_ours
from tests.behind.shelf import ON_PATH, PROJECT, Command, release_asked
from tests.lmcache.releases import DEFAULT, HERE, Shelf
from tests.programs import HANGS_S

PROGRAM = "tests.lmcache.run"
EXAMPLE = PROJECT / "examples" / "your_engine"
"""The engine in front of LMCache, where scenarios are run (`tests.proof.drivers.lmcache`)."""
NOT_OURS = ("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
"""Warnings that come with importing LMCache and what it imports; all others are errors, as in the project's other tests."""
OURS = ("--timeout", str(HANGS_S), *(word for warning in NOT_OURS for word in ("-W", warning)))
"""The options of pytest that our tests are run with."""


def surroundings(shelf: Shelf, release: str, around: Mapping[str, str]) -> dict[str, str]:
    """The environment variables under which a release runs, given those *around*."""
    fixed = {
        "PYTHONPATH": os.pathsep.join([str(shelf.source(release)), str(EXAMPLE), *ON_PATH]),
        "CUDA_VISIBLE_DEVICES": "",
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_LOG_LEVEL": "CRITICAL",
        "OMP_NUM_THREADS": "1",  # what is computed here is tiny: threads cost more than they bring
    }
    return {"PYTHONHASHSEED": "0", **around_without(around), **fixed}


def ours(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """Tests of this folder, with the project's settings."""
    return pytest_of_ours(shelf, OURS, wanted, (HERE, SHARED), surroundings(shelf, release, around))


def python(shelf: Shelf, release: str, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """A program of ours."""
    return Command([str(shelf.python), *wanted], PROJECT, surroundings(shelf, release, around))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    makes: Mapping[Make[Shelf], str] = {
        python: "no tests: the environment's Python, with what follows (-m tests.lmcache.drive, say)",
    }
    return parser(PROGRAM, __doc__, "[--python]", ours, makes).parse_args(arguments)


def chosen_command(arguments: Sequence[str] | None, shelf: Shelf, around: Mapping[str, str]) -> Command:
    """The command that was asked for, if it can be run."""
    chosen = parsed(arguments)
    release = release_asked(PROGRAM, chosen.version, shelf, DEFAULT)
    command: Command = chosen.make(shelf, release, chosen.wanted, around)
    return command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    chosen_command(arguments, Shelf(), os.environ).become()


if __name__ == "__main__":
    main()
