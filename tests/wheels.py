"""Build everything that is published, and try each piece where nothing else is installed: `make wheels`.

The source distribution; from it the wheel without extensions, for where nothing can be compiled; and for each supported Python
on this machine the wheel whose core is compiled. Each wheel is installed into a new environment, in which `blocklife doctor`
says how the core runs and calls a verb of the ledger; of the wheel without extensions every command is called, in an empty
folder. A supported Python that is not here is named, and is no failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from tests.commands import call_all

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


class WrongError(Exception):
    """Something that is to be published does not work."""


@frozen
class Told:
    """What a smoke test found of the core."""

    version: str
    modules: Mapping[str, str]


def supported(pyproject: str) -> list[str]:
    """The Pythons that the package says it runs on, as ``3.11``."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)


def candidates(version: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Where a Python of this version may lie: on the path, or beside others that pyenv keeps."""
    yield f"python{version}"
    home = Path(environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(home.glob(f"versions/{version}.*/bin/python"), reverse=True))


def find(version: str, environ: Mapping[str, str]) -> str | None:
    """A Python of this version that runs."""
    for candidate in candidates(version, environ):
        if not shutil.which(candidate, path=environ.get("PATH")):
            continue
        ran = subprocess.run([candidate, "-c", ASK], capture_output=True, text=True, check=False, env=dict(environ))
        if ran.stdout.strip() == version:
            return candidate
    return None


def _run(command: Sequence[str | Path], where: Path, **variables: str) -> str:
    """What a command printed. Raises WrongError, with the end of what it said, where it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pins = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    ran = subprocess.run(
        [str(each) for each in command],
        cwd=where,
        env={**kept, **pins, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise WrongError(f"{' '.join(map(str, command))} fails:\n{(ran.stdout + ran.stderr)[-3000:]}")
    return ran.stdout


def build_wheel(python: Path, source: Path, scratch: Path, compiled: str) -> Path:
    """One wheel of the sources, by that Python; it lies in `dist` afterwards."""
    made = scratch / f"wheel-{compiled}"
    _run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", made, source], scratch, BLOCKLIFE_COMPILE=compiled)
    (wheel,) = made.glob("*.whl")
    return Path(shutil.move(wheel, DIST / wheel.name))


def smoke(python: str, wheel: Path, scratch: Path, *, commands: bool = False) -> Told:
    """Install a wheel where nothing else is, and ask how its core runs; with *commands* call every one in an empty folder."""
    home = scratch / f"tried-{wheel.stem}"
    _run([python, "-m", "venv", home], scratch)
    _run([home / "bin" / "python", "-m", "pip", "install", "--quiet", wheel], scratch)
    if commands:
        empty = scratch / f"empty-{wheel.stem}"
        empty.mkdir()
        if wrong := [f"blocklife {each.words}: {said}" for each, said in call_all([home / "bin" / "blocklife"], empty)]:
            raise WrongError(f"{wheel.name}: in an empty folder\n" + "\n".join(wrong))
    version = _run([home / "bin" / "blocklife", "--version"], scratch).strip()
    found = json.loads(_run([home / "bin" / "blocklife", "doctor", "--json"], scratch))
    return Told(version=version, modules=found["core"]["modules"])


def _check(wheel: Path, told: Told, wanted: str) -> str:
    """The line that is printed of a wheel. Raises WrongError where its core does not run as it should."""
    others = [name for name, how in told.modules.items() if how != wanted]
    if others:
        raise WrongError(f"{wheel.name}: not {wanted}: {', '.join(others)}")
    return f"dist/{wheel.name}: {wheel.stat().st_size >> 10} KiB; {told.version}"


def main() -> int:
    """Build and try everything; a line of each."""
    versions = supported((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {version: find(version, os.environ) for version in versions}
    try:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", DIST], ROOT)
            source = max(DIST.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
            print(f"dist/{source.name}: {source.stat().st_size >> 10} KiB", flush=True)
            pure = build_wheel(Path(sys.executable), source, scratch, "0")
            print(_check(pure, smoke(sys.executable, pure, scratch, commands=True), "interpreted"), flush=True)
            for version, python in found.items():
                if python is None:
                    print(f"no wheel for Python {version}: it is not on this machine", flush=True)
                    continue
                home = scratch / version
                _run([python, "-m", "venv", home], scratch)
                wheel = build_wheel(home / "bin" / "python", ROOT, home, "1")
                print(_check(wheel, smoke(python, wheel, scratch), "compiled"), flush=True)
    except WrongError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
