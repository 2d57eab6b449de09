"""Which releases of vLLM are known, where they lie once fetched, and how a whole copy is told from a half-made one.

Rules of this file:

* The standard library only: this runs before anything is installed.
* A release's folder gets its name when everything is in it, never before. The environment is whole when its stamps say so; a
  stamp is written last and removed first.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"

CHECKSUMS = {
    "0.33.0": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
    "0.32.0": "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
    "0.31.0": "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380",
    "0.30.0": "5f8f4e890c042ffa1c3e103f81c35e2d96f60a0a175ac43a4adbae7006bef62b",
    "0.23.0": "760269db3d9611e12e524681df1bca0977d5d2f5fcb4481cc34d33efc4ae7ff5",
    "0.22.1": "cd34902729f3767e3dfbb391956b2986bc638a54be9893e78bda9cc55669f15c",
    "0.21.0": "05ff89c3e926b88b77d7878e317a659ffba678afc21c1d48952037aa5457f058",
}
"""SHA-256 of the source packages that our tests were run with; another release can be fetched, unchecked."""
DEFAULT = "0.33.0"

MODEL = "facebook/opt-125m"
"""The model that vLLM's tests name. A folder of that name under the working directory is read instead of a download."""

_VERSION = re.compile(r"\d+\.\d+\.\d+(\.post\d+|rc\d+)?")


def version(text: str) -> str:
    """*text*, if it can be a version of vLLM: it becomes the name of a folder and a part of pip's command."""
    if not _VERSION.fullmatch(text):
        raise ValueError(text)
    return text


def digest(*texts: str) -> str:
    """One short text that stands for these."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def entry_points() -> str:
    """A digest of what pyproject.toml announces to pytest and to vLLM."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return digest(json.dumps(project.get("entry-points", {}), sort_keys=True))


def text_of(path: Path) -> str | None:
    """What a file says, if it is there."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Shelf:
    """The ignored folder in which everything fetched lies."""

    root: Path = PROJECT / ".vllm"

    @property
    def environment(self) -> Path:
        """The virtual environment; it serves all releases, for it holds none."""
        return self.root / "env"

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.environment / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """What tells that the environment is whole, and for which requirements and which folder."""
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
        """Where vLLM and its libraries may write, instead of the home of whoever runs them."""
        return self.root / "cache"

    def source(self, release: str) -> Path:
        """The folder of a release: ``vllm``, its own ``tests``, and the two stand-ins."""
        return self.root / "src" / release

    def fingerprint(self) -> str:
        """What the stamp must say. A virtual environment knows its own place, so a copy of one is not whole."""
        return digest(REQUIREMENTS.read_text(encoding="utf-8"), str(self.root.resolve()), str(PROJECT))

    def has_environment(self) -> bool:
        """Whether the environment is whole and up to date, but for blocklife."""
        return text_of(self.stamp) == self.fingerprint()

    def has_blocklife(self) -> bool:
        """Whether blocklife is in the environment as it would be installed now; its code is always that of the working tree."""
        return text_of(self.stamp_of_blocklife) == entry_points()

    def is_ready(self) -> bool:
        """Whether tests can be run."""
        return self.has_environment() and self.has_blocklife()

    def has(self, release: str) -> bool:
        """Whether a release is here."""
        return self.source(release).is_dir()
