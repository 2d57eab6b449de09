"""Where what is fetched for tests lies, how a whole copy is told from a half-made one, and what is run there.

Rules of this file:

* The standard library only: this runs before anything is installed.
* A release's folder gets its name when everything is in it, never before. The environment is whole when its stamps say so; a
  stamp is written last and removed first.
* What is whole is never removed, for somebody may be running from it. A folder that was moved or copied is used as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.programs import ENGINES, refused

PROJECT = Path(__file__).parents[2]
ON_PATH = (str(PROJECT), str(PROJECT / "tests" / "plugins"))
"""What of ours is on the path of whatever is run, behind the engine's: the working tree, and plugins for any run of pytest."""

_PACKAGE, _PIN = re.compile(r"[A-Za-z0-9_.-]+"), re.compile(r"[\w.]+")
_VERSION = re.compile(r"\d+\.\d+\.\d+(\.post\d+|rc\d+)?")


def version(text: str) -> str:
    """*text*, if it can be a version: it becomes the name of a folder and a part of pip's command."""
    if not _VERSION.fullmatch(text):
        raise ValueError(text)
    return text


def digest(*texts: str) -> str:
    """One short text that stands for these."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def entry_points() -> str:
    """A digest of what pyproject.toml announces to pytest and to engines."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return digest(json.dumps(project.get("entry-points", {}), sort_keys=True))


def text_of(path: Path) -> str | None:
    """What a file says, if it is there."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def pins(path: Path) -> dict[str, str]:
    """The versions in a file of requirements, by the names of packages in their one normal form."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    found = {}
    for line in lines:
        name, equals, pin = line.partition("==")
        if not (equals and _PACKAGE.fullmatch(name) and _PIN.fullmatch(pin)) or normal(name) in found:
            raise ValueError(f"{path}: {line!r} is no name and version, or says again what is said above it")
        found[normal(name)] = pin
    return found


def normal(name: str) -> str:
    """The one form of a package's name."""
    return re.sub(r"[-_.]+", "-", name.lower())


@dataclass(frozen=True)
class Shelf:
    """The ignored folder in which everything fetched for one engine lies."""

    root: Path
    requirements: Path

    @property
    def environment(self) -> Path:
        """The virtual environment for these requirements; it serves all releases, for it holds none."""
        return self.root / f"env-{digest(self.requirements.read_text(encoding='utf-8'))[:12]}"

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.environment / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """What tells that the environment is whole."""
        return self.environment / "whole"

    @property
    def stamp_of_blocklife(self) -> Path:
        """What tells that blocklife is in the environment, and with which entry points: they are read at installation only."""
        return self.environment / "blocklife"

    @property
    def log(self) -> Path:
        """What pip has said in the latest run."""
        return self.root / "fetch.log"

    @property
    def cache(self) -> Path:
        """Where the engine and its libraries may write, instead of the home of whoever runs them."""
        return self.root / "cache"

    def source(self, release: str) -> Path:
        """The folder of a release."""
        return self.root / "src" / release

    def outdated(self) -> list[Path]:
        """Environments for other requirements."""
        return sorted(each for each in self.root.glob("env*") if each.is_dir() and each != self.environment)

    def has_environment(self) -> bool:
        """Whether the environment is whole, but for blocklife. Its interpreter is elsewhere, and may be gone."""
        return self.stamp.exists() and self.python.exists()

    def has_blocklife(self) -> bool:
        """Whether blocklife is in the environment as it would be installed now.

        Only its entry points count: its code is that of the working tree, which is on the path of whatever is run.
        """
        return text_of(self.stamp_of_blocklife) == entry_points()

    def is_ready(self) -> bool:
        """Whether tests can be run."""
        return self.has_environment() and self.has_blocklife()

    def has(self, release: str) -> bool:
        """Whether a release is here."""
        return self.source(release).is_dir()


AnyShelf = TypeVar("AnyShelf", bound=Shelf)


def release_asked(program: str, text: str, shelf: Shelf, default: str) -> str:
    """The release that was named for *program* (``tests.vllm.run``), if it is here; else one line says what to do."""
    engine = program.split(".")[1]
    fetch, name = f"python -m tests.{engine}.fetch", ENGINES[engine]
    try:
        release = version(text)
    except ValueError:
        refused(program, f"{text!r} is not a version of {name} (such as {default})")
    if not shelf.is_ready():
        refused(program, f"the environment is not here, or out of date ({fetch} {release})")
    if not shelf.has(release):
        refused(program, f"{name} {release} is not here ({fetch} {release})")
    return release


@dataclass(frozen=True)
class Command:
    """What is run, where, and with which environment variables."""

    words: list[str]
    folder: Path
    environ: Mapping[str, str]

    def become(self) -> None:
        """Be this command from now on: its exit status and its signals are ours."""
        os.chdir(self.folder)
        os.execve(self.words[0], self.words, self.environ)


def copied(command: Command, copy: Path) -> Command:
    """The same in a copy of the project, whose code runs instead of the project's."""
    return Command(command.words, copy, command.environ)
