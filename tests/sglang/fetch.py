"""``python -m tests.sglang.fetch [VERSION ...]``: an environment for SGLang's cache side on the CPU, and releases' wheels.

Rules of this file are those of `tests.behind.fetching`: the standard library only, pip does all the talking, and a run that was
interrupted at any point is gone on with by the next one.

A wheel is unpacked and never installed, for it asks for seventy packages, most of them for a GPU. SGLang's own tests are in no
package: ``--sources`` takes them from a checkout.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.behind import fetching
from tests.behind.fetching import (
    CPU_TORCH,
    INSTALL,
    FetchError,
    carry_out,
    downloaded,
    install_blocklife,
    making,
    say,
    unpacked,
    watched,
    with_releases,
)
from tests.sglang.releases import CHECKSUMS, DEFAULT, Shelf, transformers_of
from tests.sglang.run import surroundings

WHAT = "Fetch an environment for SGLang's cache side on the CPU, and the wheels of releases, into .sglang."
SIZE = "0.5 GB to fetch and 2.3 GB on disk"
ASKED = (
    (
        CPU_TORCH,
        "torch is not the CPU build, without which SGLang's tree core in Rust is not loaded "
        "(PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS can name where a CPU build is)",
    ),
)
"""What is asked of the environment when it is made."""
RUST = "sglang/srt/mem_cache/rust_tree_core"
ASK_RUST = """
import sys
import sglang.srt.mem_cache.rust_tree_core.adapter
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.unified_cache import tree_core_registry as registry
if hasattr(registry, "select_tree_core_backend"):  # since it is the default
    params = CacheInitParams(disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=None, page_size=1)
    chosen = registry.select_tree_core_backend(params)
    sys.exit(None if chosen == "rust" else f"it goes on with the core in {chosen} instead")
"""
"""SGLang itself goes on with its Python core, and says so in a line of its log at most, where this fails."""
BESIDE = ("tokenizers==0.22.2", "huggingface_hub==1.31.0")
"""What an older transformers wants in other versions than the newest does."""
TAKEN = ("python", "test")
"""What is taken of a checkout."""


def make_environment(shelf: Shelf) -> None:
    """The environment, from nothing unless it is whole."""
    fetching.make_environment(shelf, SIZE, ASKED)


def download(shelf: Shelf, release: str, tree: Path) -> Path:
    """The wheel of a release."""
    checksum = CHECKSUMS.get(release) if sys.version_info[:2] == (3, 11) else None
    what, size, pin = f"SGLang {release}", "the wheel, 10 to 40 MB", f"sglang=={release}"
    return downloaded(shelf, what, size, pin, checksum, tree, "--only-binary", ":all:")


def make_release(shelf: Shelf, release: str) -> None:
    """One release; the last thing done is to give the folder its name."""
    if shelf.has(release):
        say(f"SGLang {release}: here")
    else:
        with making(shelf.source(release)) as tree:
            unpacked(f"SGLang {release}", download(shelf, release, tree), tree)
    make_transformers(shelf, release)
    ask_rust(shelf, release)


def make_transformers(shelf: Shelf, release: str) -> None:
    """The transformers that a release wants, where the environment has another."""
    wanted = transformers_of(shelf.metadata(release))
    if wanted is None or shelf.transformers(wanted).is_dir():
        return
    say(f"SGLang {release}: its transformers {wanted} and what it wants, 15 MB to fetch and 120 MB on disk")
    pip = (shelf.python, *INSTALL, "--only-binary", ":all:")
    with making(shelf.transformers(wanted)) as tree:
        watched([*pip, "--target", tree, f"transformers=={wanted}", *BESIDE], shelf, f"transformers {wanted}")


def ask_rust(shelf: Shelf, release: str) -> None:
    """Whether the tree core in Rust, where a release has one, can be loaded."""
    if not any((shelf.source(release) / RUST).glob("*.so")):
        return
    environ = surroundings(shelf, release, {})
    command = [shelf.python, "-c", ASK_RUST]
    ran = subprocess.run(list(map(str, command)), env=environ, capture_output=True, text=True, check=False)
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise FetchError(f"SGLang {release}: its tree core in Rust cannot be loaded: {last[0]}")


def make_sources(shelf: Shelf, checkout: Path) -> None:
    """SGLang's own tests and the code beside them, as the newest commit of a checkout, or of a bare repository, has them."""
    git = ["git", "-C", str(checkout)]
    asked = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise FetchError(f"{checkout}: no git repository is there")
    commit = asked.stdout.strip()
    stamp = shelf.sources / "commit"
    if shelf.sources.is_dir() and stamp.read_text(encoding="utf-8") == commit:
        say(f"SGLang's own tests: here ({commit[:9]})")
        return
    if shelf.sources.is_dir():
        raise FetchError(f"SGLang's own tests: {shelf.sources} has another commit, and somebody may run it; move or remove it")
    say(f"SGLang's own tests: from {checkout}, {commit[:9]}")
    complaint = f"{checkout}: git cannot archive {', '.join(TAKEN)} of {commit[:9]}"
    with making(shelf.sources) as tree:
        try:
            with (
                subprocess.Popen(
                    [*git, "archive", commit, *TAKEN], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                ) as process,
                tarfile.open(fileobj=process.stdout, mode="r|") as archive,
            ):
                archive.extractall(tree, filter="data")
        except tarfile.TarError as error:  # where git fails, its archive is empty or ends too early
            raise FetchError(complaint) from error
        if process.returncode:
            raise FetchError(complaint)
        (tree / "commit").write_text(commit, encoding="utf-8")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.fetch", description=WHAT)
    parser.add_argument("--sources", metavar="CHECKOUT", type=Path, help="a git checkout of SGLang, for its own tests")
    return with_releases(parser, arguments, "SGLang", CHECKSUMS, DEFAULT)


def fetch(shelf: Shelf, releases: Sequence[str], checkout: Path | None = None) -> int:
    """Fetch what is missing; the status of `carry_out`."""

    def work() -> None:
        make_environment(shelf)
        install_blocklife(shelf)
        for release in dict.fromkeys(releases):
            make_release(shelf, release)
        if checkout is not None:
            make_sources(shelf, checkout)

    return carry_out("tests.sglang.fetch", shelf, work)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what was asked for into the folder that git ignores."""
    chosen = parsed(arguments)
    return fetch(Shelf(), chosen.versions or [DEFAULT], chosen.sources)


if __name__ == "__main__":
    sys.exit(main())
