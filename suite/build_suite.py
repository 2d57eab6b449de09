"""The build hook of `blocklife-suite`: the files of `blocklife/` that scenarios need, in a package of another name.

Another name, because two distributions must not own the same files: with it both can be in one environment, in different
versions, and either can be removed.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "blocklife_suite"
_OURS = re.compile(r"\bblocklife(?=[./]\w)|(?<=\bfrom )blocklife(?= import\b)")


def renamed(text: str) -> str:
    """The text of a file, with modules of the package under its other name."""
    return _OURS.sub(PACKAGE, text)


def chosen(source: Path, files: list[str], without: list[str]) -> list[str]:
    """The files that the patterns mean, relative to the package. Refuses a pattern that means none."""
    found = {pattern: [path for path in source.glob(pattern) if path.is_file()] for pattern in (*files, *without)}
    if empty := [pattern for pattern, paths in found.items() if not paths]:
        raise ValueError(f"suite/pyproject.toml: {empty[0]} is not in {source} (build the suite in a checkout)")
    left_out = {path for pattern in without for path in found[pattern]}
    among = {path for pattern in files for path in found[pattern] if "__pycache__" not in path.parts} - left_out
    return sorted(path.relative_to(source).as_posix() for path in among)


class SuiteFiles(BuildHookInterface):  # type: ignore[type-arg]  # its parameter is of use to plugins with settings
    """Puts the files into the wheel; `pyproject.toml` beside it names them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is put together; *version* says which kind of it."""
        if version == "editable":
            raise ValueError("blocklife-suite has no editable install: edit blocklife itself, which has the same command")
        suite = Path(self.root)
        source = suite.parent / "blocklife"
        self.scratch = TemporaryDirectory()
        into = Path(self.scratch.name)
        front = f'{(suite / "front.py").read_text(encoding="utf-8")}\n__version__ = "{self.metadata.version}"\n'
        texts = {"__init__.py": front} | {
            name: (source / name).read_text(encoding="utf-8")
            for name in chosen(source, self.config["files"], self.config["without"])
        }
        for name, text in texts.items():
            path = into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(renamed(text), encoding="utf-8")
            build_data["force_include"][str(path)] = f"{PACKAGE}/{name}"
        build_data["force_include"][str(suite.parent / "LICENSE")] = f"{PACKAGE}/LICENSE"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is there."""
        self.scratch.cleanup()
