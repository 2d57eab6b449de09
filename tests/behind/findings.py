"""``python -m tests.behind.findings [--write]``: every script of a finding in every release, and the table of which has it.

A finding is a fault of an engine itself: a script ``specs/ENGINE-findings/NAME.py``, which shows it in the plain engine, the
draft of a report beside it, a function NAME in ``tests/ENGINE/mended.py``, which mends it, and what it prints in
``tests/ENGINE/known.toml``. The scripts are run in every release of `specs/measurements/findings.csv`, and in every one that is
here. Exit status 1 if a script shows something else than the table says, or a release of the table is not here.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from attrs import asdict, fields_dict, frozen

from tests.behind.plainly import AS_IT_IS
from tests.behind.shelf import ON_PATH, PROJECT, Command, Shelf
from tests.behind.worlds import known
from tests.programs import ENGINES
from tests.project.engines import renewed

SPECS = PROJECT / "specs"
TABLE = SPECS / "measurements" / "findings.csv"
PAGES = {"vllm": SPECS / "vllm-findings.md", "sglang": SPECS / "sglang-findings.md", "lmcache": SPECS / "lmcache.md"}
HEAD = "| which release has it |"
"""How the table of a page begins."""
PLAINLY = Path(__file__).with_name("plainly.py")
SHOWS = {0: "yes", 1: "no"}
CANNOT = "cannot run"
"""The script is for newer releases."""


@frozen
class Row:
    """Whether the script of a finding shows it in a release."""

    engine: str
    finding: int
    """Its number on the page."""
    script: str
    release: str
    shows: str


@frozen
class Run:
    """One run of a script."""

    script: str
    mode: str
    status: int
    said: str

    @property
    def line(self) -> str:
        """What it says at the end; an engine may print more."""
        return (self.said.splitlines() or [""])[-1]

    @property
    def shows(self) -> str:
        """What it says of the release."""
        return SHOWS.get(self.status, CANNOT)


def names(engine: str) -> list[str]:
    """The findings of an engine, in the order of their numbers."""
    return list(known(engine)["reports"])


def folder(engine: str) -> Path:
    """Where its scripts are."""
    return SPECS / f"{engine}-findings"


def shelf_of(engine: str) -> Shelf:
    """Where its releases are."""
    shelf: Shelf = import_module(f"tests.{engine}.releases").Shelf()
    return shelf


def releases(engine: str) -> list[str]:
    """Those that are known, the newest first."""
    return list(import_module(f"tests.{engine}.releases").CHECKSUMS)


def plain(engine: str, release: str, words: Sequence[str], home: str) -> Command:
    """A command where a maintainer would run it: the release and its dependencies, and nothing of ours.

    It runs with -S, for an editable installation of ours is found by way of site-packages' own configuration files.
    """
    shelf = shelf_of(engine)
    around: Mapping[str, str] = import_module(f"tests.{engine}.run").surroundings(shelf, release, os.environ)
    path = [
        each
        for each in around["PYTHONPATH"].split(os.pathsep)
        if each not in ON_PATH and PROJECT / "examples" not in Path(each).parents
    ]
    path += map(str, shelf.environment.glob("lib/python3.*/site-packages"))
    environ = {**around, "PYTHONPATH": os.pathsep.join(path), "HOME": home, "VLLM_PLUGINS": ""}
    return Command([str(shelf.python), "-P", "-S", *words], Path(home), environ)


def ran(command: Command) -> subprocess.CompletedProcess[str]:
    """What a command has said."""
    return subprocess.run(command.words, cwd=command.folder, env=command.environ, capture_output=True, text=True, check=False)


def played(engine: str, release: str, mended: bool = False) -> list[Run]:
    """Each script of an engine in a release; if asked also with its fault mended, and asked for help."""
    words = [str(PLAINLY), *(["--mends", str(PROJECT / "tests" / engine / "mended.py")] if mended else [])]
    with tempfile.TemporaryDirectory() as home:
        done = ran(plain(engine, release, [*words, *(str(folder(engine) / f"{name}.py") for name in names(engine))], home))
    if done.returncode:
        raise RuntimeError(f"{ENGINES[engine]} {release}: the scripts were not run: {done.stderr[-2000:]}")
    return [Run(**json.loads(line)) for line in done.stdout.splitlines()]


def rows() -> list[Row]:
    """The table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Row(**{**each, "finding": int(each["finding"])}) for each in csv.DictReader(file)]  # type: ignore[arg-type]  # the numbers are


def write(every: Sequence[Row]) -> None:
    """Keep a table: engines in their order, the newest release first."""
    order = {(engine, release): at for at, (engine, release) in enumerate((e, r) for e in ENGINES for r in releases(e))}
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields_dict(Row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(each) for each in sorted(every, key=lambda row: (order[row.engine, row.release], row.finding)))


def seen(engine: str, release: str) -> list[Row]:
    """What the scripts show in a release."""
    number = {name: at for at, name in enumerate(names(engine), 1)}
    shown = {run.script: run.shows for run in played(engine, release) if run.mode == AS_IT_IS}
    return [Row(engine, number[name], name, release, shown[name]) for name in number]


def lines(engine: str) -> Iterator[str]:
    """The table of a page."""
    mine = {(row.finding, row.release): row for row in rows() if row.engine == engine}
    columns = list(dict.fromkeys(release for (_, release), row in mine.items() if row.shows != CANNOT))
    yield f"{HEAD} {' | '.join(columns)} |"
    yield "|" + " --- |" * (len(columns) + 1)
    for number, name in enumerate(names(engine), 1):
        where = f"[script]({folder(engine).name}/{name}.py), [draft]({folder(engine).name}/{name}.md)"
        cells = [mine[number, release].shows for release in columns]
        yield f"| {number}: `{name}` ({where}) | {' | '.join(cells)} |"


def page(engine: str) -> str:
    """The page of an engine, with the table as it should be."""
    return renewed(PAGES[engine].read_text(encoding="utf-8"), HEAD, lines(engine))


def absent(kept: Sequence[Row]) -> Iterator[str]:
    """A line for each release of the table that is not here."""
    for engine, release in dict.fromkeys((row.engine, row.release) for row in kept):
        if not (shelf_of(engine).is_ready() and shelf_of(engine).has(release)):
            yield f"{ENGINES[engine]} {release}: not here (python -m tests.{engine}.fetch {release})"


def every(kept: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Each release, the newest of an engine first, and what its scripts show; what is kept, where it is not here."""
    for engine, name in ENGINES.items():
        for release in releases(engine):
            known_of = [row for row in kept if (row.engine, row.release) == (engine, release)]
            if shelf_of(engine).is_ready() and shelf_of(engine).has(release):
                yield name, release, seen(engine, release)
            elif known_of:
                yield name, release, known_of


def main(argv: Sequence[str] | None = None) -> int:
    """Verify the table, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tests.behind.findings", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write what is seen into the table, and the table into the pages")
    parser.add_argument("--pages", action="store_true", help="run nothing: write the table into the pages")
    chosen = parser.parse_args(argv)
    status = 0
    if not chosen.pages:
        kept, found = rows() if TABLE.exists() else [], list[Row]()
        for line in absent(kept):
            print(line, flush=True)
            status = 1
        for name, release, shown in every(kept):
            new = [row for row in shown if row not in kept]
            print(f"{name} {release}: {len(shown)} scripts, {len(new)} show something else than the table says", flush=True)
            print(*(f"  {row.script}: {row.shows}" for row in new), sep="\n", end="\n" * bool(new), flush=True)
            status |= bool(new) and not chosen.write
            found += shown
        if chosen.write:
            write(found)
    if chosen.write or chosen.pages:
        for engine, path in PAGES.items():
            path.write_text(page(engine), encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
