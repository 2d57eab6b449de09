"""Stories of faults that an engine has: a program that tells each in a line."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence


def tell(
    program: str, engine: str, about: str | None, told: Mapping[str, Callable[[], str]], argv: Sequence[str] | None
) -> int:
    """Print a line for each story of an *engine* (``SGLang 0.5.23``) that was asked for.

    One that shows nothing returns a text that begins with "no ".

    Exit status 0 if all show something.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("names", nargs="*", metavar="NAME", help="instead of all: " + ", ".join(told))
    chosen = parser.parse_args(argv).names
    if unknown := [name for name in chosen if name not in told]:
        parser.error(f"no story is called {unknown[0]!r} (one is {next(iter(told))})")
    logging.disable(logging.CRITICAL)
    status = 0
    for name in chosen or told:
        said = told[name]()
        print(f"{engine}: {name}: {said}", flush=True)
        status |= said.startswith("no ")
    return int(status)
