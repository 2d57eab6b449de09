"""``pytest -p tests.proof.plugin --mutant NAME``: tests while one rule is switched off, in all workers of xdist too."""

from __future__ import annotations

import pytest

from blocklife.errors import MisuseError
from tests.proof.mutants.planting import mutant_named


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one option."""
    parser.addoption("--mutant", metavar="NAME", help="run all tests while one rule of blocklife is switched off")


def pytest_configure(config: pytest.Config) -> None:
    """Switch the rule off until pytest ends, in whatever way."""
    if (name := config.getoption("--mutant")) is not None:
        try:
            config.add_cleanup(mutant_named(name).plant())
        except MisuseError as problem:
            raise pytest.UsageError(f"--mutant: {problem}") from problem
