"""What a check of a file store leaves of its folder: what was there before, and nothing else."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from blocklife.tiers._folder import LOCK, MARKER, PARTS


@contextlib.contextmanager
def left_as_found(folder: str) -> Iterator[None]:
    """Inside, *folder* may become a file store; after that it is none, and is not there if it was not.

    A folder that is a store already is left alone, since others may use it; so is one in which something is kept at the end.
    """
    path = os.path.realpath(folder)
    made = list(_missing(path))
    try:
        before, mode = ([], None) if made else (os.listdir(path), stat.S_IMODE(os.stat(path).st_mode))
    except OSError:  # a file, or a folder that may not be read: it becomes no store
        before, mode = [MARKER], None
    try:
        yield
    finally:
        if MARKER not in before:
            with contextlib.suppress(OSError):
                _clear(path, before, mode)
                for each in made:
                    os.rmdir(each)


def _missing(path: str) -> Iterator[str]:
    """The folder and those around it that are not there, from within."""
    while not os.path.lexists(path):
        yield path
        path = os.path.dirname(path)


def _clear(path: str, before: list[str], mode: int | None) -> None:
    """Remove what makes a folder a store, if no entry is left. Raises OSError where something is."""
    ours = set(os.listdir(path)).difference(before)
    for part in ours.intersection(PARTS):
        os.rmdir(os.path.join(path, part))
    for name in sorted(ours.intersection((LOCK, MARKER)), reverse=True):  # the marker last: until then it is a store
        os.unlink(os.path.join(path, name))
    if mode is not None:
        os.chmod(path, mode)
