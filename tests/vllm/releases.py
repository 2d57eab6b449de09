"""Which releases of vLLM are known, and where they lie once fetched.

Rules of this file:

* The standard library only: this runs before anything is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.behind import shelf
from tests.behind.shelf import PROJECT

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


@dataclass(frozen=True)
class Shelf(shelf.Shelf):
    """The ignored folder in which what is fetched for vLLM lies: of a release ``vllm``, its own ``tests``, two stand-ins."""

    root: Path = PROJECT / ".vllm"
    requirements: Path = REQUIREMENTS
