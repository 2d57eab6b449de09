"""``python -m tests.vllm.fetch [VERSION ...]``: an environment for vLLM's scheduler side on the CPU, and releases' sources.

Rules of this file:

* The standard library only: this runs before anything is installed.
* pip does all the talking to the outside, by package names; where from is the business of its configuration.
* A run that was interrupted, at any point, is gone on with by the next one; what pip has downloaded comes from its cache then.

Why source packages: they hold the tests of exactly that release; a wheel does not, and is eight times as large. pip insists on
a package's metadata, for which vLLM's ``setup.py`` imports torch; it compiles nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tests.behind import fetching
from tests.behind.fetching import FetchError, carry_out, downloaded, install_blocklife, making, say, with_releases
from tests.vllm.releases import CHECKSUMS, DEFAULT, MODEL, Shelf

WHAT = "Fetch an environment for vLLM's scheduler side on the CPU, and the source packages of releases, into .vllm."
KEPT = ("vllm", "tests", "pyproject.toml", "LICENSE")
"""What is unpacked of a source package."""
ASKED = (
    (
        "import torch",
        "torch does not start (without its CUDA packages only a CPU build does; PIP_EXTRA_INDEX_URL can name where those are)",
    ),
)
"""What is asked of the environment when it is made."""
CONFIG = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "torch_dtype": "float16"}
"""A model without weights: all that is not said here has the default of its type, which is this very model."""


def make_environment(shelf: Shelf) -> None:
    """The environment, from nothing unless it is whole."""
    fetching.make_environment(shelf, "about 1.3 GB", ASKED)


def download(shelf: Shelf, release: str, tree: Path) -> Path:
    """The source package of a release."""
    return downloaded(
        *(shelf, f"vLLM {release}", "the source package, 35 to 50 MB", f"vllm=={release}", CHECKSUMS.get(release), tree),
        *("--no-binary", "vllm", "--no-build-isolation"),
        # Without the first, vLLM adds to its version what the second says, and pip refuses a package that changes its version.
        environ={"VLLM_VERSION_OVERRIDE": release, "VLLM_TARGET_DEVICE": "empty"},
    )


def unpack(archive: Path, target: Path, release: str) -> None:
    """The kept parts of a source package."""
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                top, *rest = PurePosixPath(member.name).parts
                if top != f"vllm-{release}" or not rest or rest[0] not in KEPT:
                    continue
                if ".." in rest or not (member.isfile() or member.isdir()):
                    raise tarfile.TarError(f"{member.name}: it is no file of the package's own folder")
                member.name = "/".join(rest)
                if hasattr(tarfile, "data_filter"):
                    opened.extract(member, target, filter="data")
                else:  # Python 3.11.0 to 3.11.3: what the filter refuses is looked at above
                    opened.extract(member, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FetchError(f"vLLM {release}: the source package cannot be unpacked: {error}") from error
    if missing := [name for name in KEPT if not (target / name).exists()]:
        raise FetchError(f"vLLM {release}: the source package has no {', '.join(missing)}")


def add_stand_ins(target: Path, release: str) -> None:
    """Metadata, from whose version older releases learn that the platform is a CPU, and the configuration of a model."""
    metadata = target / f"vllm-{release}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}+cpu\n", encoding="utf-8")
    config = target / MODEL / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")


def make_release(shelf: Shelf, release: str) -> None:
    """The sources of one release; the last thing done is to give the folder its name."""
    if shelf.has(release):
        say(f"vLLM {release}: here")
        return
    with making(shelf.source(release)) as tree:
        unpack(download(shelf, release, tree), tree, release)
        add_stand_ins(tree, release)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.fetch", description=WHAT)
    return with_releases(parser, arguments, "vLLM", CHECKSUMS, DEFAULT)


def make_releases(shelf: Shelf, releases: Sequence[str]) -> None:
    """The environment, blocklife in it, and the sources of these releases: what of it is missing."""
    make_environment(shelf)
    install_blocklife(shelf)
    for release in dict.fromkeys(releases):
        make_release(shelf, release)


def fetch(shelf: Shelf, releases: Sequence[str]) -> int:
    """Fetch what is missing; the status of `carry_out`."""
    return carry_out("tests.vllm.fetch", shelf, lambda: make_releases(shelf, releases))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what was asked for into the folder that git ignores."""
    chosen = parsed(arguments)
    return fetch(Shelf(), chosen.versions or [DEFAULT])


if __name__ == "__main__":
    sys.exit(main())
