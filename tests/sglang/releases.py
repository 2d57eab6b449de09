"""Which releases of SGLang are known, where they lie once fetched, and what each needs beside the environment.

Rules of this file:

* The standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.behind import shelf
from tests.behind.shelf import PROJECT

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"

CHECKSUMS = {
    "0.5.23": "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    "0.5.20": "1573527042f4f6b4ead838302818595fc77fdc611dbcc2e40cd150fbc8f8513c",
    "0.5.17": "575e38f5683624ded3b4bb267f637a098e5ed37d13a1d1ff5ea09bd781a04d16",
    "0.5.16": "d5f345a18953dd35df568ac56bdcb7f5ee910ab39efea4469b714556d1070713",
    "0.5.15.post1": "8e182e1c449197cb6f98716a7cf432a3ea7af78c172f9b840ab28ad9e6cda9b4",
    "0.5.14": "4fe16056b45c8aca00f5f90ceb174dc3a62a3f5dccf159c791370795cd00fc99",
    "0.5.13.post1": "1c1653ecf2893c7d7b1cf0c3e1cc9b7550ebad95c809de2f44bcc91b7a1e1fe3",
}
"""SHA-256 of the wheels for Python 3.11 on x86-64 that our tests were run with; others can be fetched, unchecked."""
DEFAULT = "0.5.23"


@dataclass(frozen=True)
class Shelf(shelf.Shelf):
    """The ignored folder in which everything fetched for SGLang lies."""

    root: Path = PROJECT / ".sglang"
    requirements: Path = REQUIREMENTS

    def transformers(self, version: str) -> Path:
        """The folder of a release of transformers that goes ahead of the environment's."""
        return self.root / "transformers" / version

    @property
    def sources(self) -> Path:
        """SGLang's own tests, and the code they belong to, from a checkout."""
        return self.root / "sources"

    def metadata(self, release: str) -> str:
        """What the wheel says of itself."""
        return (self.source(release) / f"sglang-{release}.dist-info" / "METADATA").read_text(encoding="utf-8")


def transformers_of(metadata: str) -> str | None:
    """The version of transformers that a release wants, where the environment has another one."""
    wanted = re.search(r"^Requires-Dist: transformers==(\S+)$", metadata, re.MULTILINE)
    installed = re.search(r"^transformers==(\S+)$", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    if wanted is None or installed is None or wanted[1] == installed[1]:
        return None
    return wanted[1]
