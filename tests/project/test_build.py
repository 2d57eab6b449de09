"""What a build makes where it can compile, where it cannot, and where it must not; and which Pythons wheels are made for.

Method: the real build backend makes wheels of this very project. That a compiler is missing is played by naming one that does
not exist. What is compiled runs in `tests/both_ways`; each kind of wheel is installed and tried by `make wheels`.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

from blocklife.cli import _built as built
from compile_core import CORE, FLAVOURS, CannotCompileError, compile_core, copy_project, show_progress, types_read
from hatch_build import CompiledCore
from tests.behind.shelf import normal, pins
from tests.wheels import candidates, find, supported

ROOT = Path(__file__).parents[2]
NO_COMPILER = {"CC": "no-such-compiler"}
STAYS = "the core stays interpreted: no C compiler that makes extensions of this Python: "


def build(into: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)],
        cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_everything_that_is_installed_is_pinned() -> None:
    """Else a release of others can change what is tested. What came with Python, and the project itself, are no choice."""
    no_choice = {"pip", "blocklife"}
    pinned = pins(ROOT / "constraints.txt")
    installed = {normal(each.name): each for each in distributions()}
    exact = {  # torch says so of its own parts, which are others on each platform
        normal(found[1]): found[2]
        for each in installed.values()
        for line in each.requires or ()
        if (found := re.match(r"([\w.-]+) *\(?==([\w.]+)\)?", line))
    }
    others = {
        name: each.version
        for name, each in installed.items()
        if name not in no_choice and each.version.partition("+")[0] != pinned.get(name, exact.get(name))
    }

    assert others == {}, "constraints.txt has another version of these, or none (pip list)"
    assert {"pytest", "numpy"} <= installed.keys() & pinned.keys()


def test_what_is_built_is_built_with_what_is_pinned() -> None:
    """In an environment of its own: pip reads where that is said, which it does not from its command."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert {normal(re.split("[<>=]", each)[0]) for each in needed} <= pins(ROOT / "constraints.txt").keys()
    assert makefile.count(" -m pip ") == makefile.count("$(PINNED) ") == 2
    assert "PINNED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt\n" in makefile


def contents(into: Path, tag: str) -> list[str]:
    """What the one wheel that was made holds."""
    (wheel,) = into.glob("*.whl")

    assert wheel.name.endswith(f"-{tag}.whl")
    return zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize("wanted", [{"BLOCKLIFE_COMPILE": "0"}, {"BLOCKLIFE_COMPILE": "auto", **NO_COMPILER}])
def test_build_without_a_compiler_makes_a_wheel_of_sources(wanted: dict[str, str], tmp_path: Path) -> None:
    """Nothing in it is compiled, and every Python may have it; where compiling was tried, a line says why it failed."""
    ran = build(tmp_path, **wanted)
    names = contents(tmp_path, "py3-none-any")

    assert ran.returncode == 0
    assert (STAYS in ran.stdout + ran.stderr) == (wanted["BLOCKLIFE_COMPILE"] == "auto")
    assert not [name for name in names if name.endswith((".so", ".pyd", built.RECORD))]
    assert {f"blocklife/{name.replace('.', '/')}.py" for name in CORE} <= set(names)


def test_build_that_must_compile_fails_without_a_compiler(tmp_path: Path) -> None:
    """There is no wheel, and the last line says what is missing."""
    ran = build(tmp_path, BLOCKLIFE_COMPILE="1", **NO_COMPILER)

    assert ran.returncode != 0
    assert "BLOCKLIFE_COMPILE=1, and the core cannot be compiled: no C compiler" in ran.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("*.whl"))


def test_source_distribution_has_what_compiling_needs(tmp_path: Path) -> None:
    """Sources, types, the hook and what it calls: who has no wheel for their Python compiles from these."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = [built.source_of(name).relative_to(ROOT) for name in CORE]
    types = [path.relative_to(ROOT) for path in built.PACKAGE.rglob("*.pxd")]

    assert {"pyproject.toml", "hatch_build.py", "compile_core.py", *(path.as_posix() for path in (*sources, *types))} <= names
    assert not [name for name in names if name.endswith((".so", ".c", built.RECORD))]


def test_build_refuses_a_wish_that_it_does_not_know(tmp_path: Path) -> None:
    """A typing error is not taken for a no."""
    ran = build(tmp_path, BLOCKLIFE_COMPILE="yes")

    assert ran.returncode != 0
    assert "BLOCKLIFE_COMPILE is 0, 1 or auto, not 'yes'" in ran.stderr


def test_editable_install_runs_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, so that what one edits is what runs; who asks for the contrary is told."""
    hook, data = hook_for(tmp_path), dict[str, Any]()
    hook.initialize("editable", data)
    monkeypatch.setenv("BLOCKLIFE_COMPILE", "1")
    with pytest.raises(ValueError, match="BLOCKLIFE_COMPILE=1: an editable install runs the source"):
        hook.initialize("editable", data)

    assert data == {}


def test_compiling_says_how_far_it_is() -> None:
    """At first, with what skips it, some times between, and at the end; nothing where nothing is to be done."""
    stream = io.StringIO()
    progress = show_progress(stream, hint=" (hint)")
    for count in (0, 3, 31):
        for done in range(count + 1):
            progress(done, count)
    lines = stream.getvalue().splitlines()

    assert lines[:4] == [
        "compiling the core: 0 of 3 modules (hint)", *(f"compiling the core: {done} of 3 modules" for done in (1, 2, 3))
    ]  # fmt: skip
    assert lines[4] == "compiling the core: 0 of 31 modules (hint)"
    assert lines[-1] == "compiling the core: 31 of 31 modules"
    assert 8 <= len(lines[4:]) <= 13


def hook_for(into: Path) -> CompiledCore:
    """The hook as the backend makes it."""
    builder = WheelBuilder(str(ROOT))
    return CompiledCore(str(ROOT), {}, builder.config, builder.metadata, str(into), "wheel")


def test_compiling_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is compiled."""
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CannotCompileError, match="no-such-compiler"):
        compile_core(FLAVOURS["checked"])


def test_a_copy_holds_what_it_should_and_nothing_else(tmp_path: Path) -> None:
    """What is the same is left alone, what changed is replaced, what is gone goes."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    for name in ("blocklife/a.py", "blocklife/b.py", "tests/c.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name, encoding="utf-8")
    files = {Path(name): source / name for name in ("blocklife/a.py", "blocklife/b.py", "tests/c.py")}
    copy_project(copy, files)
    same = os.stat(copy / "blocklife/a.py")[stat.ST_MTIME], (copy / "blocklife/a.py").stat().st_ino
    (source / "blocklife/b.py").write_text("another", encoding="utf-8")
    copy_project(copy, {path: files[path] for path in list(files)[:2]})

    assert sorted(path.name for path in copy.rglob("*.py")) == ["a.py", "b.py"]
    assert (copy / "blocklife/b.py").read_text(encoding="utf-8") == "another"
    assert (os.stat(copy / "blocklife/a.py")[stat.ST_MTIME], (copy / "blocklife/a.py").stat().st_ino) == same


def test_a_module_is_compiled_again_when_types_change_that_it_reads(tmp_path: Path) -> None:
    """Its own, and those of whom they name; nobody else's."""
    for name, text in {
        "a": "from blocklife.b cimport Ring\n",
        "b": "cimport cython\ncimport blocklife.c\n",
        "c": "from blocklife.a cimport Places\n",
        "d": "cimport cython\n",
    }.items():
        (tmp_path / f"{name}.pxd").write_text(text, encoding="utf-8")

    assert {path.stem for path in types_read("a", tmp_path)} == {"a", "b", "c"}
    assert [path.stem for path in types_read("d", tmp_path)] == ["d"]
    assert list(types_read("e", tmp_path)) == []


def test_the_list_of_the_core_is_of_modules_that_there_are() -> None:
    """And it is the one list: what is compiled is what the doctor tells."""
    assert CORE == built.CORE
    assert [name for name in CORE if not built.source_of(name).exists()] == []
    assert len(set(CORE)) == len(CORE)


# --- wheels ------------------------------------------------------------------------------------------------------------


def test_wheels_are_for_the_pythons_that_the_package_names() -> None:
    assert supported((ROOT / "pyproject.toml").read_text(encoding="utf-8")) == ["3.11", "3.12", "3.13"]


def test_wheels_find_a_python_that_runs(tmp_path: Path) -> None:
    """One on the path that cannot run is passed over for one that pyenv keeps; one that is of another version is none."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    broken, kept = tmp_path / "bin" / f"python{version}", tmp_path / "pyenv" / "versions" / f"{version}.9" / "bin" / "python"
    for path, script in ((broken, "exit 127"), (kept, f'exec {sys.executable} "$@"')):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
    environ = {"PATH": f"{broken.parent}:/usr/bin:/bin", "PYENV_ROOT": str(tmp_path / "pyenv")}

    assert list(candidates(version, environ)) == [f"python{version}", str(kept)]
    assert find(version, environ) in (f"/usr/bin/python{version}", str(kept))
    assert find("3.99", environ) is None


def test_record_of_a_compiled_core_names_each_source(tmp_path: Path) -> None:
    """Digests are of the very bytes that were compiled, so that the doctor can compare them."""
    core = built.examine()
    if not core.compiled:
        pytest.skip("the core is interpreted (make test-compiled)")
    told = json.loads((built.PACKAGE / built.RECORD).read_text(encoding="utf-8"))

    assert {name: built.digest(built.source_of(name)) for name in built.CORE} == told["sources"]
