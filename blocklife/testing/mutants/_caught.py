"""The tests that find what no world does: a file that says which test of a suite fails under which mutant.

Rules of this file:

* A row is ``"mutant" = "tests/test_x.py::test_y"``, in TOML: the name of the mutant, and the test as pytest takes it.
* The package names no tests: each test suite has such a file, and a test that plants each mutant in turn.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from blocklife.errors import MisuseError
from blocklife.files import parse_toml, read_text
from blocklife.testing.mutants._planting import no_mutant

_TEST = re.compile(r"\S+\.py(::\w+)*::\w+(\[.+\])?")
"""A test by its file, the classes around it, its name and, in brackets, its variant."""


def read_caught(path: str, mutants: Collection[str]) -> dict[str, str]:
    """The test that fails under a mutant, by mutant. Refuses a row for what is none of the *mutants*."""
    text = read_text(path)
    found: dict[str, str] = {}
    for name, test in parse_toml(text, path).items():
        where = f"{path}:{_line_of(name, text)}"
        if name not in mutants:
            raise MisuseError(f"{where}: {no_mutant(name, mutants)}")
        if not isinstance(test, str) or not _TEST.fullmatch(test):
            raise MisuseError(f"{where}: {test!r} is no test (say file.py::test_name, in quotes)")
        found[name] = test
    return found


def _line_of(name: str, text: str) -> int:
    """Where a row begins; the first line where it is written in another way than it reads."""
    return next((number for number, line in enumerate(text.splitlines(), 1) if name in line), 1)
