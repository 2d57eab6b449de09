"""A lifecycle as it was at a revision: the code of that revision is run, and prints its tables.

Rules of this file:

* The working tree is never touched. The revision's files are written to a temporary folder, which is gone when the question is
  answered, or given up.
* The code runs in a process of its own, so that two versions of one module never meet. It runs as it is: ask only for
  revisions whose code you would run.
* What the process says are names and text. It knows its tables by their attributes alone (`_ASK`), because an older
  revision has no exporter, or another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from attrs import frozen

from blocklife.drawing.picture import Arrow, Explained, Label, Node, Picture, picture
from blocklife.errors import MisuseError
from blocklife.states import MACHINES, Tone

_ASK = """
import functools, importlib, json, os, sys
tree, inside, module, attribute, key = sys.argv[1:]
out, sys.stdout = sys.stdout, sys.stderr
sys.path[:0] = [os.path.join(tree, inside), tree, os.path.join(tree, "src")]

def line(text):
    return " ".join(text.strip().split("\\n\\n")[0].split()) if isinstance(text, str) else ""

def word(each):
    return [each.name, list(each.parameters), line(each.doc)]

home = importlib.import_module(module)
if not os.path.realpath(getattr(home, "__file__", None) or "").startswith(os.path.realpath(tree) + os.sep):
    sys.exit("ELSEWHERE")
try:
    found = functools.reduce(getattr, attribute.split("."), home)
    found = found[key] if key else found
except (AttributeError, KeyError):
    sys.exit("MISSING")
table = getattr(found, "table", found)
states = [[s.name, line(s.value), s is table.initial, s in table.finals] for s in table.states]
rows = [[r.index, r.event, r.source.name, r.target.name, None if r.guard is None else r.guard.name] for r in table.rows]
guards = dict.fromkeys(r.guard for r in table.rows if r.guard is not None)
json.dump({
    "name": table.name, "doc": line(table.doc), "states": states, "rows": rows,
    "events": [word(e) for e in table.events.values()], "guards": [word(g) for g in guards],
}, out)
"""
"""What the process runs; its arguments are the folder, where in it the user stands, a module, an attribute of it, a key where
that is a mapping."""


def picture_at(revision: str, machine: str, folder: Path | None = None) -> Picture:
    """The picture of *machine*, one of the four or ``module:Class``, as it was at *revision* of the repository of *folder*.

    Raises `MisuseError` where there is no git, no such revision, or no such machine in it.
    """
    name = f"{revision}:{machine}"
    root, inside = (_git(["rev-parse", "--show-toplevel", "--show-prefix"], folder, name) + "\n").split("\n")[:2]
    commit = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"], Path(root), name).strip()
    with tempfile.TemporaryDirectory(prefix="blocklife-") as tree:
        _unpack(Path(root), commit, Path(tree), name)
        said = _ask(Path(tree), inside, machine, name)
    return _drawn(said, machine, name)


def _git(args: Sequence[str], folder: Path | None, name: str) -> str:
    """The output of git; an error becomes one line."""
    try:
        ran = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise MisuseError(f"{name}: git is not installed (without it only files and machines can be compared)") from None
    if ran.returncode:
        told = " ".join(ran.stderr.split()) or f"no revision {name.split(':')[0]!r} in this repository (git log shows them)"
        raise MisuseError(f"{name}: {told.removeprefix('fatal: ')}")
    return ran.stdout


def _unpack(root: Path, commit: str, tree: Path, name: str) -> None:
    """Write the files of a commit to a folder."""
    with tempfile.TemporaryFile() as said:
        command = ["git", "archive", "--format=tar", commit]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=said) as ran:
            try:
                _extract(ran.stdout, tree)
                problem = ""
            except (tarfile.TarError, OSError) as trouble:
                problem = str(trouble)
            if ran.stdout is not None:
                ran.stdout.close()
        said.seek(0)
        if ran.returncode or problem:
            raise MisuseError(f"{name}: its files cannot be read ({' '.join(said.read().decode().split()) or problem})")


def _extract(stream: IO[bytes] | None, tree: Path) -> None:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        if hasattr(tarfile, "tar_filter"):
            archive.extractall(tree, filter="tar")
        else:  # Python 3.11.0 to 3.11.3; a commit is trusted as much as its code, which is run next
            archive.extractall(tree)


def _ask(tree: Path, inside: str, machine: str, name: str) -> object:
    """Run the code of the revision, and read what it says about a machine."""
    module, _, attribute = machine.partition(":")
    known = not attribute
    asked = ["blocklife.states", "MACHINES", machine] if known else [module, attribute, ""]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", _ASK, str(tree), inside, *asked],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode == 0:
        try:
            said: object = json.loads(ran.stdout)
        except ValueError:
            raise MisuseError(f"{name}: its code wrote what is no table") from None
        return said
    last = (ran.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    if last == "ELSEWHERE" or (last.startswith("ModuleNotFoundError") and f"'{asked[0].split('.')[0]}'" in last):
        raise MisuseError(f"{name}: this revision has no {asked[0]}")
    if last == "MISSING":
        raise MisuseError(f"{name}: this revision has no {machine if known else attribute} in {asked[0]}")
    raise MisuseError(f"{name}: the code of this revision cannot be run ({last})")


# --- the answer of the other process ---------------------------------------------------------------------------------------


@frozen
class _ForeignTable:
    """Names and text from another process, validated when they are read."""

    name: str
    said: Mapping[str, object]

    def listed(self, key: str) -> list[list[object]]:
        """A list of lists."""
        value = self.said.get(key)
        if not isinstance(value, list) or not all(isinstance(each, list) for each in value):
            raise MisuseError(f"{self.name}: its code wrote what is no table")
        return value

    def word(self, key: str) -> str:
        """A text."""
        return str(self.said.get(key, ""))


def _drawn(said: object, machine: str, name: str) -> Picture:
    """The picture made from the answer of a revision."""
    if not isinstance(said, dict):
        raise MisuseError(f"{name}: its code wrote what is no table")
    table = _ForeignTable(name, said)
    try:
        today = {node.name: node.tone for node in picture(MACHINES[machine]).nodes} if machine in MACHINES else {}
        nodes = [_node(today, *each) for each in table.listed("states")]
        grouped: dict[tuple[str, str], list[Label]] = {}
        rows = [
            (str(source), str(target), _label(index, event, guard))
            for index, event, source, target, guard in table.listed("rows")
        ]
        for node in nodes:
            for source, target, label in rows:
                if source == node.name:
                    grouped.setdefault((source, target), []).append(label)
        events, guards = ([_word(*each) for each in table.listed(key)] for key in ("events", "guards"))
    except (TypeError, ValueError):
        raise MisuseError(f"{name}: its code wrote what is no table") from None
    return Picture(
        name=machine if machine in MACHINES else table.word("name"),
        about=table.word("doc"),
        nodes=tuple(nodes),
        arrows=tuple(Arrow(source, target, tuple(labels)) for (source, target), labels in grouped.items()),
        events=tuple(events),
        guards=tuple(guards),
    )


def _node(today: Mapping[str, Tone], name: object, about: object, initial: object, final: object) -> Node:
    """A state, with the tone that a state of this name has *today*."""
    tone = today.get(str(name), Tone.OVER if final else Tone.REST if initial else Tone.USE)
    return Node(str(name), str(about), bool(initial), bool(final), tone)


def _label(index: object, event: object, guard: object) -> Label:
    if not isinstance(index, int):
        raise TypeError(index)
    return Label(index, str(event), None if guard is None else str(guard))


def _word(name: object, reads: object, about: object) -> Explained:
    if not isinstance(reads, list):
        raise TypeError(reads)
    return Explained(str(name), tuple(map(str, reads)), str(about))
