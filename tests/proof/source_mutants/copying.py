"""A copy of the project in which mutants are planted: the working tree is read once, and never written to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from compile_core import copy_project, project_files

PROJECT = Path(__file__).parents[3]
CACHE = PROJECT / ".source-mutants"
"""Git ignores it. What is in there may be deleted at any time."""


def digest(paths: Iterable[Path]) -> str:
    """A short name for the contents of files, in their order."""
    found = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        found.update(b"%s %d\n" % (path.name.encode(), len(data)) + data)
    return found.hexdigest()[:16]


class Copy:
    """The project as it was when the copy was made."""

    def __init__(self, root: Path = CACHE / "copy") -> None:
        self.root = root

    def refresh(self, source: Path = PROJECT) -> None:
        """Make the copy what the working tree is. Files that did not change keep their compiled form."""
        copy_project(self.root, {path: source / path for path in project_files(source)})

    @property
    def path(self) -> str:
        """Where what runs in the copy looks for modules: here first, then wherever this process does."""
        return os.pathsep.join([str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])])

    @contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """Another text stands in one file of the copy; with the old one its old time comes back: the compiled form fits."""
        file = self.root / path
        before, stamp = file.read_bytes(), file.stat()
        try:
            file.write_text(text, encoding="utf-8")
            # a second that no file of the project has: a compiled form is told by second and size
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 7_000_000_000))
            yield
        finally:
            file.write_bytes(before)
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
