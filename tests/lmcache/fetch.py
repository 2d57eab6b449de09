"""``python -m tests.lmcache.fetch [VERSION ...]``: an environment for LMCache on the CPU, and releases' wheels.

Rules of this file are those of `tests.behind.fetching`: the standard library only, pip does all the talking, and a run that was
interrupted at any point is gone on with by the next one.

A wheel is unpacked and never installed, for it asks for packages that only a GPU needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.behind import fetching
from tests.behind.fetching import CPU_TORCH, carry_out, downloaded, install_blocklife, making, say, unpacked, with_releases
from tests.lmcache.releases import CHECKSUMS, DEFAULT, Shelf

WHAT = "Fetch an environment for LMCache's multi-process mode on the CPU, and the wheels of releases, into .lmcache."
SIZE = "0.4 GB to fetch and 1.4 GB on disk"
ASKED = ((CPU_TORCH, "torch is not the CPU build (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS can name where a CPU build is)"),)
"""What is asked of the environment when it is made."""


def make_environment(shelf: Shelf) -> None:
    """The environment, from nothing unless it is whole."""
    fetching.make_environment(shelf, SIZE, ASKED)


def make_release(shelf: Shelf, release: str) -> None:
    """One release; the last thing done is to give the folder its name."""
    what = f"LMCache {release}"
    if shelf.has(release):
        say(f"{what}: here")
        return
    with making(shelf.source(release)) as tree:
        unpacked(what, _wheel(shelf, release, tree), tree)


def _wheel(shelf: Shelf, release: str, tree: Path) -> Path:
    checksum = CHECKSUMS.get(release) if sys.version_info[:2] == (3, 11) else None
    what, size, pin = f"LMCache {release}", "the wheel, 18 MB", f"lmcache=={release}"
    return downloaded(shelf, what, size, pin, checksum, tree, "--only-binary", ":all:")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.lmcache.fetch", description=WHAT)
    return with_releases(parser, arguments, "LMCache", CHECKSUMS, DEFAULT)


def fetch(shelf: Shelf, releases: Sequence[str]) -> int:
    """Fetch what is missing; the status of `carry_out`."""

    def work() -> None:
        make_environment(shelf)
        install_blocklife(shelf)
        for release in dict.fromkeys(releases):
            make_release(shelf, release)

    return carry_out("tests.lmcache.fetch", shelf, work)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what was asked for into the folder that git ignores."""
    return fetch(Shelf(), parsed(arguments).versions or [DEFAULT])


if __name__ == "__main__":
    sys.exit(main())
