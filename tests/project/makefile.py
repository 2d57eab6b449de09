"""The Makefile, as tests read it."""

from __future__ import annotations

import re
from pathlib import Path


def prerequisites_of(root: Path, target: str) -> list[str]:
    """What has to be made first."""
    return _rule(root, target)[0].split()


def modules_of(root: Path, target: str) -> list[list[str]]:
    """The commands of a target that run a module of Python, or blocklife: the module and its arguments."""
    lines = (line.removeprefix("\t@").replace("$(BIN)/python -m ", "$(BIN)/") for line in _rule(root, target)[1].splitlines())
    return [line.removeprefix("$(BIN)/").split() for line in lines if line.startswith("$(BIN)/")]


def _rule(root: Path, target: str) -> tuple[str, str]:
    text = (root / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}:([^#\n]*).*\n((?:\t.*\n)*)", text, flags=re.MULTILINE)
    assert found is not None, f"the Makefile has no target {target}"
    return found[1], found[2]
