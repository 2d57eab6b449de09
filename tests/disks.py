"""Small disks for tests: a file system in memory that is full after a few bytes, or that has become read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Callable[[str], None]]:
    """A disk of so many bytes at a folder, and what changes its options; where none may be mounted, the test is skipped."""

    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)

    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        pytest.skip(f"no disk can be mounted: {problem}")
    if ran.returncode:
        pytest.skip(f"no disk can be mounted: {ran.stderr.strip()}")
    try:
        yield remount
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
