"""Which tests execute which line of a module, and what they cost: asked once with `coverage`, and kept until a file changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import coverage
from attrs import frozen

from tests.proof.source_mutants import recorder
from tests.proof.source_mutants.copying import CACHE, Copy, digest

RECORDS = CACHE / "lines"

_SETTINGS = """\
[run]
parallel = True
data_file = {parts}/part
include = {include}
context = ${{{test}-}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse
"""


@frozen
class Record:
    """What one file of tests executes: coverage's data, and the processor time of each test that passes, in seconds."""

    data: Path
    costs: dict[str, float]
    unfit: tuple[str, ...]
    """Tests that do not pass as things are, skipped ones included."""
    rest_s: float
    """What it costs to run the file besides its tests: to import it, and what it imports."""


def record(copy: Copy, file: str, rooms: Sequence[str], stamp: str, options: Sequence[str] = ()) -> Record:
    """What a file of tests executes of some *rooms*. Kept under the file's contents and *stamp*, the sources' digest."""
    stem = ".".join(Path(file).with_suffix("").parts)
    name = f"{stem}.{digest([copy.root / file])}.{stamp}"
    data, told = RECORDS / f"{name}.coverage", RECORDS / f"{name}.json"
    if not told.exists():
        for old in RECORDS.glob(f"{stem}.*.*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        _run(copy, file, rooms, data, told, options)
    found = json.loads(told.read_text(encoding="utf-8"))
    return Record(data, found["fit"], tuple(found["unfit"]), max(0.0, found["whole"] - sum(found["fit"].values())))


def _run(copy: Copy, file: str, rooms: Sequence[str], data: Path, told: Path, options: Sequence[str]) -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)
    parts, draft = data.with_suffix(".parts"), told.with_suffix(".draft")
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    include = ", ".join(f"{copy.root / room}{'' if room.endswith('.py') else '/*'}" for room in rooms)
    settings = parts / "settings"
    settings.write_text(_SETTINGS.format(parts=parts, include=include, test=recorder.TEST), encoding="utf-8")
    environ = {
        **os.environ,
        "PYTHONPATH": copy.path,
        "COVERAGE_PROCESS_START": str(settings),
        recorder.TEST: "",
        recorder.COSTS: str(draft),
    }
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.proof.source_mutants.recorder",
        *options,
    ]
    done = subprocess.run([*words, file], cwd=copy.root, env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 5) or not draft.exists():
        raise SystemExit(f"source_mutants: {file} cannot be run (pytest {done.returncode}):\n{done.stdout}{done.stderr}")
    data.unlink(missing_ok=True)
    joined = coverage.Coverage(data_file=str(data), config_file=False)
    joined.combine([str(part) for part in sorted(parts.glob("part.*"))], strict=True)
    joined.save()
    shutil.rmtree(parts)
    draft.rename(told)  # last: what has this file is whole


@frozen
class Lines:
    """Who executes which line."""

    records: dict[str, Record]

    def of(self, path: Path) -> dict[int, list[str]]:
        """The tests that execute each line of a module; an empty name stands for the imports of their files."""
        found: dict[int, list[str]] = {}
        for each in self.records.values():
            data = coverage.CoverageData(basename=str(each.data))
            data.read()
            for line, names in data.contexts_by_lineno(str(path)).items():
                found.setdefault(line, []).extend(name for name in names if name in each.costs or not name)
            data.close()
        return found


def gather(copy: Copy, files: Iterable[str], rooms: Sequence[str], options: Sequence[str], say: Callable[[str], None]) -> Lines:
    """The records of all *files* of tests; those that are kept are not made again."""
    sources = [path for room in rooms for path in sorted((copy.root / room).rglob("*.py")) or [copy.root / room]]
    stamp, records = digest(sources), {}
    for file in files:
        say(f"lines: {file}")
        records[file] = found = record(copy, file, rooms, stamp, options)
        if found.unfit:
            say(f"  {len(found.unfit)} of its tests do not pass here, and are not asked: {', '.join(found.unfit[:3])} ...")
    return Lines(records)
