"""Which releases of LMCache are known, and where they lie once fetched.

Rules of this file:

* The standard library only: this runs before anything is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.behind import shelf
from tests.behind.shelf import PROJECT

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"

CHECKSUMS = {"0.5.6": "14530ff72b96056e894c9b8dc70c10d019e7802799bbfde9cec298700b799194"}
"""SHA-256 of the wheels for Python 3.11 on x86-64 that our tests were run with; others can be fetched, unchecked."""
DEFAULT = "0.5.6"


@dataclass(frozen=True)
class Shelf(shelf.Shelf):
    """The ignored folder in which everything fetched for LMCache lies."""

    root: Path = PROJECT / ".lmcache"
    requirements: Path = REQUIREMENTS
