"""``python -m tests.model.run [TEST ... | -m PROGRAM ...]``: tests of real models, or a program, with what `fetch` has brought.

Without arguments, all tests of this folder. What stands behind ``-m`` is a program of ours and its arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from tests.behind.running import pytest_of_ours
from tests.behind.shelf import PROJECT, Command
from tests.model.shelf import HERE, ModelShelf
from tests.programs import HANGS_S
from tests.vllm.run import NOT_OURS

IGNORED = (
    *NOT_OURS,
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::ResourceWarning",
    "ignore::UserWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)
"""A whole engine warns of much that is not ours; warnings of our own code are errors in all other tests."""


def command(shelf: ModelShelf, wanted: Sequence[str], around: Mapping[str, str]) -> Command:
    """What was asked for, as a command."""
    environ = shelf.surroundings(around)
    if wanted[:1] == ["-m"]:
        return Command([str(shelf.shelf.python), "-W", "ignore", *wanted], PROJECT, environ)
    options = ["-p", "no:asyncio", "-p", "no:cacheprovider", "--timeout", str(HANGS_S)]
    options += [word for warning in IGNORED for word in ("-W", warning)]
    return pytest_of_ours(shelf.shelf, options, wanted, (HERE,), environ)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    wanted = list(sys.argv[1:] if arguments is None else arguments)
    if wanted[:1] in (["-h"], ["--help"]):
        print(__doc__.strip())
        raise SystemExit(0)
    if wanted == ["-m"]:
        print("tests.model.run: error: name the program behind -m", file=sys.stderr)
        raise SystemExit(2)
    shelf = ModelShelf()
    if not shelf.is_ready():
        print("tests.model.run: error: models are not here, or out of date (make model)", file=sys.stderr)
        raise SystemExit(2)
    command(shelf, wanted, os.environ).become()


if __name__ == "__main__":
    main()
