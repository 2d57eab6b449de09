"""A copy of the project in which mutants are planted: the working tree is read once, and never written to."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).parents[3]
CACHE = PROJECT / ".source-mutants"
"""Git ignores it. What is in there may be deleted at any time."""
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "build", "dist"})


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name in _LEFT_OUT or name.endswith((".pyc", ".egg-info"))


def _files(root: Path) -> Iterator[Path]:
    """The project's files below a folder, as paths relative to it, in a fixed order."""
    for folder, inside, names in os.walk(root):
        inside[:] = sorted(name for name in inside if not _is_left_out(name))
        yield from (Path(folder, name).relative_to(root) for name in sorted(names) if not _is_left_out(name))


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
        wanted = set(_files(source))
        for path in wanted:
            here, there = self.root / path, source / path
            if not here.exists() or _stamp(here) != _stamp(there):
                here.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(there, here)
        if self.root.exists():
            for path in set(_files(self.root)) - wanted:
                (self.root / path).unlink()

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


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
