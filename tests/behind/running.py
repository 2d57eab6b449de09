"""What the programs that run a fetched release have in common: ``python -m tests.vllm.run``, say."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tests.behind.shelf import PROJECT, AnyShelf, Command

Make: TypeAlias = Callable[[AnyShelf, str, Sequence[str], Mapping[str, str]], Command]
"""A command of a shelf, a release, what stands behind it and the surroundings. Its name is the option that asks for it."""
SHARED = Path(__file__).parent
"""Tests of ours that run with every engine."""


def around_without(around: Mapping[str, str]) -> dict[str, str]:
    """The environment variables around, without those that would lead to another Python."""
    return {name: value for name, value in around.items() if name not in {"PYTHONHOME", "VIRTUAL_ENV"}}


def pytest_of_ours(
    shelf: AnyShelf, options: Sequence[str], wanted: Sequence[str], folders: Sequence[Path], environ: Mapping[str, str]
) -> Command:
    """Tests of ours, with the project's settings: those of the *folders* if none is named."""
    named = any(not each.startswith("-") and (PROJECT / each.partition("::")[0]).exists() for each in wanted)
    words = [str(shelf.python), "-m", "pytest", *options, *wanted, *([] if named else map(str, folders))]
    return Command(words, PROJECT, environ)


def parser(
    program: str, about: str, usage: str, default: Make[AnyShelf], makes: Mapping[Make[AnyShelf], str]
) -> argparse.ArgumentParser:
    """The options of a program: which of the *makes* is asked for, a version, and what goes to it."""
    found = argparse.ArgumentParser(
        prog=f"python -m {program}",
        usage=f"%(prog)s [-h] {usage} VERSION [TEST ...] [pytest options]",
        description=about.partition("\n")[2].strip(),
    )
    what = found.add_mutually_exclusive_group()
    for make, told in makes.items():
        option = f"--{getattr(make, '__name__', '')}"
        what.add_argument(option, dest="make", action="store_const", const=make, default=default, help=told)
    found.add_argument("version", metavar="VERSION", help="a release that was fetched")
    found.add_argument("wanted", nargs=argparse.REMAINDER, metavar="TEST", help="tests, and options for pytest")
    return found
