"""Pieces for tests of what fetches and runs a release: no network and no engine.

In the place of the environment's Python stands a shell script that plays pip, or that hands on to the Python of the tests; what
it brings is made here.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.behind.shelf import PROJECT, AnyShelf, Command, Shelf, entry_points
from tests.programs import ENGINES, HANGS_S

RELEASE = "9.9.9"
INSIDE = ("vllm/__init__.py", "tests/a.py", "pyproject.toml", "LICENSE", "csrc/b.cu")


def source_package(path: Path, names: Iterable[str] = INSIDE) -> Path:
    """A source package of vLLM, with these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"vllm-{RELEASE}/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def wheel(path: Path, files: Mapping[str, str] | None = None, transformers: str = "", package: str = "sglang") -> Path:
    """A wheel of a *package* that has these files and wants this version of transformers."""
    wants = f"Requires-Dist: torch==1.2.3\nRequires-Dist: transformers=={transformers}\n" if transformers else ""
    inside = {f"{package}/__init__.py": "pass\n" * 99} if files is None else files
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**inside, f"{package}-{RELEASE}.dist-info/METADATA": f"Name: {package}\n{wants}"}.items():
            archive.writestr(name, text)
    return path


def play(shelf: Shelf, script: str) -> None:
    """Put a shell script in the place of the environment's Python; $last is its last word."""
    shelf.python.parent.mkdir(parents=True, exist_ok=True)
    shelf.python.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n", encoding="utf-8")
    shelf.python.chmod(0o755)


def shelf_with(kind: type[AnyShelf], folder: Path, script: str) -> AnyShelf:
    """A shelf whose environment is whole, and whose Python is a shell script."""
    shelf: AnyShelf = kind(folder / "shelf")  # type: ignore[call-arg]  # each kind knows its requirements
    play(shelf, script)
    shelf.stamp.touch()
    shelf.stamp_of_blocklife.write_text(entry_points(), encoding="utf-8")
    return shelf


def bringing(brought: Path) -> str:
    """A pip that brings this package, installs an empty one, and writes down what it was told; a program is really run."""
    package, _, kind = brought.name.partition(".")
    name = f"{package}-{RELEASE}" + ("-py3-none-any.whl" if kind == "wheel" else ".tar.gz")
    return f"""
echo "$*" >>"{brought}.calls"
case "$3" in
  download)
    for word; do test "$before" = --requirement && cp "$word" "{brought}.wanted"; before=$word; done
    mkdir -p "$last"; cp "{brought}" "$last/{name}";;
  install) for word; do test "$before" = --target && mkdir -p "$word"; before=$word; done;;
  *) exec "{sys.executable}" "$@";;
esac"""


def calls(brought: Path) -> list[str]:
    """What this pip was told to do."""
    words = [line.split() for line in Path(f"{brought}.calls").read_text(encoding="utf-8").splitlines()]
    return [each[2] for each in words if each[:2] == ["-m", "pip"]]


def files_of(folder: Path) -> set[str]:
    """All files of a folder, by their paths in it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@frozen
class Tools:
    """What fetches and runs one engine."""

    package: str

    @property
    def name(self) -> str:
        """What the engine is called."""
        return ENGINES[self.package]

    def of(self, module: str) -> Any:
        """A module of its tests: ``fetch``, ``run`` or ``releases``."""
        return import_module(f"tests.{self.package}.{module}")

    def shelf(self, folder: Path, script: str = "", *, whole: bool = False) -> Shelf:
        """A shelf; where it is *whole*, a release is there that wants nothing."""
        kind: type[Shelf] = self.of("releases").Shelf
        shelf = shelf_with(kind, folder, script)
        if whole:
            metadata = shelf.source(RELEASE) / f"{self.package}-{RELEASE}.dist-info" / "METADATA"
            metadata.parent.mkdir(parents=True)
            metadata.write_text(f"Name: {self.package}\n", encoding="utf-8")
        return shelf

    def brought(self, folder: Path) -> Path:
        """A package of a release, as an index would have it."""
        if self.package == "vllm":
            return source_package(folder / "vllm.package")
        return wheel(folder / f"{self.package}.wheel", package=self.package)

    def fetched(self, shelf: Shelf) -> subprocess.CompletedProcess[str]:
        """A run of the whole program that fetches, in a process of its own."""
        program = f"import sys, pathlib; from tests.{self.package} import fetch, releases; "
        program += f"sys.exit(fetch.fetch(releases.Shelf(pathlib.Path(sys.argv[1])), ['{RELEASE}']))"
        command = [sys.executable, "-c", program, str(shelf.root)]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANGS_S, check=False)

    def command(self, shelf: Shelf, *words: str, around: Mapping[str, str] | None = None) -> Command:
        """What the program that runs a release would run."""
        found: Command = self.of("run").chosen_command(words, shelf, around or {})
        return found

    def ours(self, *words: str) -> list[str]:
        """The words that ask for tests of ours."""
        return [*(["--ours"] if self.package == "vllm" else []), RELEASE, *words]
