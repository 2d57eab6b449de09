"""Compile the core with Cython: one source, interpreted or compiled. `blocklife/cli/_built.py` says which modules that are.

    python compile_core.py build/compiled               a copy of the project whose core runs compiled, for tests
    python compile_core.py build/shipped --as shipped   the same as wheels have it

The source stays plain typed Python. What a compiler needs to know besides stands in a ``.pxd`` beside the module, if
there is one. Annotations are not read: ``int`` is Python's integer, compiled as interpreted, until a ``.pxd`` says otherwise.

Exit status: 0 built, 1 the source does not compile, 3 there is nothing here to compile with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent
BUILT = runpy.run_path(str(ROOT / "blocklife" / "cli" / "_built.py"))
CORE: tuple[str, ...] = BUILT["CORE"]
UNCHECKED: frozenset[str] = BUILT["UNCHECKED"]
KERNEL: frozenset[str] = frozenset(BUILT["KERNEL"])
RECORD: str = BUILT["RECORD"]

COPIED = (
    "blocklife",
    "tests",
    "examples",
    "specs",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "constraints.txt",
)
"""What tests look at. The settings of the tools, which a copy needs as well, are copied last: they say that it is whole."""
SETTINGS = ("pyproject.toml", "hatch_build.py", "compile_core.py")
LEFT_OUT = ("__pycache__", "node_modules")

DIRECTIVES = {"language_level": 3, "annotation_typing": False, "binding": True, "emit_code_comments": False}
"""For all modules. No module has directives in its own text, for those could not be taken back for tests."""
_NO_CHECKS = {"boundscheck": False, "wraparound": False, "initializedcheck": False}
"""For those that do without."""
_C_NUMBERS = {"infer_types": True}
"""For the kernel: a name that is given a C number is one."""
_CHECKS = {"boundscheck": True, "initializedcheck": True, "nonecheck": True, "overflowcheck": True}
"""For tests: an index out of bounds, a column or an object that is not there, and a sum that does not fit raise."""
_NAMES_TYPES = re.compile(r"^\s*(?:from|cimport)\s+blocklife\.([\w.]+)", re.MULTILINE)
_TRIAL = "#include <Python.h>\nPyMODINIT_FUNC PyInit_trial(void) { return NULL; }\n"


@dataclass(frozen=True)
class Flavour:
    """A way to compile."""

    name: str
    compiler: tuple[str, ...]
    linker: tuple[str, ...] = ()
    directives: Mapping[str, bool] = field(default_factory=dict)


_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        Flavour("shipped", ("-O2", "-g0")),
        Flavour("checked", ("-O0", "-g0"), directives=_CHECKS),  # what is tested once is compiled faster than it runs faster
        # the checks are off where they are off in what is shipped, so that the sanitizers see what those would have hidden
        Flavour("sanitized", ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", *_SANITIZERS), _SANITIZERS),
    )
}


class CannotCompileError(Exception):
    """There is nothing here to compile with: what is missing."""


class BrokenSourceError(Exception):
    """There is a compiler, and it refuses the source."""


# --- one module, in a process of its own -------------------------------------------------------------------------------


def build_extension(
    name: str, source: Path, flavour: Flavour, into: Path, *, checked: bool = True, c_numbers: bool = False
) -> Path:
    """Make an extension of a source, a path below the current directory; C is taken as it is."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    # the options are those of gcc and clang; another compiler has its own defaults
    compiler, linker = ([], []) if os.name == "nt" else (list(flavour.compiler), list(flavour.linker))
    extension = Extension(name, [str(source)], extra_compile_args=compiler, extra_link_args=linker)
    extensions = [extension]
    if source.suffix == ".py":
        from Cython.Build.Dependencies import cythonize

        directives = {
            **DIRECTIVES, **({} if checked else _NO_CHECKS), **(_C_NUMBERS if c_numbers else {}), **flavour.directives
        }  # fmt: skip
        options = {"build_dir": str(into), "compiler_directives": directives, "force": True, "quiet": True}
        extensions = cythonize(extensions, **options)  # type: ignore[no-untyped-call]
    command = build_ext(Distribution({"name": "core", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(into / "lib"), str(into / "temp")
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(name))


def _build_one(name: str, flavour: Flavour, target: Path) -> None:
    """Compile one module of the core; the place of the outcome is taken at once, or not at all."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path("blocklife", *name.split(".")).with_suffix(".py")
        made = build_extension(
            f"blocklife.{name}", source, flavour, Path(scratch), checked=name not in UNCHECKED, c_numbers=name in KERNEL
        )
        shutil.move(made, target.with_suffix(".new"))
        os.replace(target.with_suffix(".new"), target)


# --- all modules -------------------------------------------------------------------------------------------------------


def _check_tools(flavour: Flavour) -> str:
    """What compiles here, in words: Cython and a C compiler that has been tried. Raises CannotCompileError."""
    try:
        from Cython.Shadow import __version__ as cython
    except ImportError as problem:
        raise CannotCompileError("Cython is not installed") from problem
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "trial.c").write_text(_TRIAL, encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, str(ROOT / "compile_core.py"), scratch, "--as", flavour.name, "--trial"],
            cwd=scratch, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if ran.returncode:
        said = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise CannotCompileError(f"no C compiler that makes extensions of this Python: {said}")
    return f"Cython {cython}"


def types_read(name: str, package: Path) -> Iterator[Path]:
    """The files with types that the compiler reads for a module: its own, and those of the modules that these name."""
    waiting, seen = [BUILT["source_of"](name, package).with_suffix(".pxd")], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        yield path
        for module in _NAMES_TYPES.findall(path.read_text(encoding="utf-8")):
            waiting.append(BUILT["source_of"](module, package).with_suffix(".pxd"))


def _digest(name: str, flavour: Flavour, by: str, root: Path) -> str:
    """Changes with whatever the outcome depends on."""
    told = {variable: os.environ.get(variable) for variable in ("CC", "CFLAGS", "LDFLAGS")}
    found = hashlib.sha256(repr((sys.version, by, flavour, name in UNCHECKED, name in KERNEL, told)).encode())
    package = root / "blocklife"
    for path in (ROOT / "compile_core.py", BUILT["source_of"](name, package), *types_read(name, package)):
        found.update(path.read_bytes())
    return found.hexdigest()


Progress = Callable[[int, int], None]
"""Called with the number of modules that are compiled, and of those that have to be."""


def compile_core(flavour: Flavour, root: Path = ROOT, progress: Progress = lambda _done, _all: None) -> dict[str, Path]:
    """Compile what has changed since it was compiled last; all files of the core by the place in the package where they belong.

    Raises CannotCompileError, and BrokenSourceError.
    """
    by = _check_tools(flavour)
    kept = root / "build" / "objects" / f"{flavour.name}-{sys.implementation.cache_tag}"
    kept.mkdir(parents=True, exist_ok=True)
    suffix = BUILT["EXTENSION_SUFFIXES"][0]
    digests = {name: _digest(name, flavour, by, root) for name in CORE}
    notes = {name: kept / f"{name}.digest" for name in CORE}
    objects = {name: kept / f"{name}{suffix}" for name in CORE}

    def build(name: str) -> str:
        notes[name].unlink(missing_ok=True)
        ran = subprocess.run(
            [sys.executable, str(ROOT / "compile_core.py"), str(objects[name]), "--as", flavour.name, "--module", name],
            cwd=root, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ran.returncode:
            return f"{name}:\n{ran.stdout}{ran.stderr}"
        notes[name].write_text(digests[name], encoding="utf-8")
        return ""

    changed = [
        name
        for name in CORE
        if not (notes[name].exists() and objects[name].exists() and notes[name].read_text(encoding="utf-8") == digests[name])
    ]
    progress(0, len(changed))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        building = [pool.submit(build, name) for name in changed]
        for done, _ in enumerate(as_completed(building), 1):
            progress(done, len(changed))
    wrong = [said for each in building if (said := each.result())]
    if wrong:
        raise BrokenSourceError("\n".join(wrong))
    record = kept / RECORD
    sources = {name: BUILT["digest"](BUILT["source_of"](name, root / "blocklife")) for name in CORE}
    record.write_text(json.dumps({"by": by, "flavour": flavour.name, "sources": sources}, indent=1) + "\n", encoding="utf-8")
    placed = {f"{name.replace('.', '/')}{suffix}": path for name, path in objects.items()}
    return {**placed, RECORD: record}


def show_progress(*streams: TextIO, hint: str = "") -> Progress:
    """Says in lines how many modules are compiled: at first, after each eighth, and at the end. Nothing if there are none."""

    def progress(done: int, count: int) -> None:
        if count and (done in (0, count) or done % max(1, count // 8) == 0):
            for stream in streams:
                print(f"compiling the core: {done} of {count} modules{hint if not done else ''}", file=stream, flush=True)

    return progress


# --- a copy of the project ---------------------------------------------------------------------------------------------


def project_files(root: Path) -> Iterator[Path]:
    """What belongs into a copy, relative to the root."""
    for name in (*COPIED, *SETTINGS):
        if (root / name).is_file():
            yield Path(name)
        for path in sorted((root / name).rglob("*")):
            if path.is_file() and not any(part in LEFT_OUT for part in path.parts):
                yield path.relative_to(root)


def copy_project(into: Path, files: Mapping[Path, Path]) -> None:
    """Make a folder hold exactly these files; those that it has already, with the same bytes, are not touched."""
    for target, source in files.items():
        place = into / target
        content = source.read_bytes()
        if not place.exists() or place.read_bytes() != content:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)  # an extension that somebody runs is not written over
            place.write_bytes(content)
            shutil.copymode(source, place)
    for name in COPIED:
        for path in sorted((into / name).rglob("*")):
            where = path.relative_to(into)
            if path.is_file() and where not in files and not any(part in LEFT_OUT for part in where.parts):
                path.unlink()


def main() -> int:
    """Compile, and say in a line what came of it."""
    parser = argparse.ArgumentParser(description="Make a copy of the project whose core runs compiled.")
    parser.add_argument("into", type=Path, help="the folder of the copy")
    parser.add_argument("--as", dest="flavour", choices=FLAVOURS, default="checked", help="how to compile (%(default)s)")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    parser.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trial:
        build_extension("trial", Path("trial.c"), FLAVOURS[args.flavour], args.into)
        return 0
    if args.module:
        _build_one(args.module, FLAVOURS[args.flavour], args.into)
        return 0
    try:
        made = compile_core(FLAVOURS[args.flavour], progress=show_progress(sys.stderr))
    except CannotCompileError as problem:
        print(f"the core is not compiled: {problem}", file=sys.stderr)
        return 3
    except BrokenSourceError as problem:
        print(f"the core does not compile: {problem}", file=sys.stderr)
        return 1
    placed = {Path("blocklife", where): path for where, path in made.items()}
    copy_project(args.into, {path: ROOT / path for path in project_files(ROOT)} | placed)
    print(f"{args.into}: {len(made) - 1} modules of the core, compiled ({args.flavour})", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
