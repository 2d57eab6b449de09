"""What things cost beside the same in an earlier commit: by default the last one whose core was not the kernel.

The probes (`tests.bench.probes`) run here and in a copy of that commit, in processes of their own and in turns, compiled both
or interpreted both. Each round has one of either, and a figure is the median of the rounds' ratios: other work on the machine
comes and goes, and mostly slows both of a round. The copy is made once, in ``build``, from git; to compile it takes some
minutes. Where git has not got the commit, as in an archive of the sources, ours are told alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.behind.shelf import PROJECT
from tests.bench import RUNNING, Figure, Scale
from tests.bench.targets import EXPLORING_BEFORE, NO_MORE, STEP_BEFORE

COMMIT = "88658f9"
"""The last commit whose ledger and scheduler were not the kernel."""
ROUNDS = 3
PROBES = Path(__file__).with_name("probes.py")

WORDS = {
    "steps": ("scheduler step, {} running", "us"),
    "exploring": ("exploring the README's world", "states a second"),
    "toy": ("the toy engine's scheduling, {}", "us a step"),
    "own_pool": ("a step of examples/your_engine, {}", "us"),
    "linker": ("SGLang's linker: {}", "us"),
}
"""Of each probe, what its figures are called, and in what they are."""
ALONE = "alone"
"""What a probe calls an engine without us; it is no figure of ours."""


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, check=True).stdout


def copy_of(commit: str) -> Path | None:
    """A copy of the commit, with its core compiled where ours is; None where there can be none, as a line has told."""
    try:
        name = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()[:12]
        root = Path(_git("rev-parse", "--show-toplevel").decode().strip())
    except (OSError, subprocess.CalledProcessError):
        print(f"git has no commit {commit}: ours alone", file=sys.stderr)
        return None
    sources = root / "build" / f"before-{name}"
    if not sources.is_dir():
        sources.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=sources.parent) as half_made:
            archive = subprocess.run(["git", "archive", name], cwd=root, capture_output=True, check=True).stdout
            with tarfile.open(fileobj=BytesIO(archive)) as files:
                files.extractall(Path(half_made) / "all", filter="data")
            (Path(half_made) / "all").rename(sources)
    if RUNNING != "compiled":
        return sources
    print(f"compiling the core of {commit}", file=sys.stderr, flush=True)
    made = root / ".venv" / "bin" / "python"  # an engine's environment has no compiler of ours
    words = [str(made if made.exists() else sys.executable), "compile_core.py", "build/shipped", "--as", "shipped"]
    return sources / "build" / "shipped" if subprocess.run(words, cwd=sources).returncode == 0 else None


def asked(tree: Path, words: Sequence[str]) -> object:
    """What a program says, in JSON, whose code is that of a tree."""
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run([sys.executable, *words], cwd=tree, env=around, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def in_turns(what: str, words: Sequence[str], earlier: Path | None, rounds: int) -> list[tuple[Any, Any]]:
    """What a program says here and in the earlier tree, in each round; None for a tree that is not there."""
    found = []
    for number in range(rounds):
        print(f"{what}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        said: dict[Path, Any] = {}
        for tree in (PROJECT, earlier) if number % 2 else (earlier, PROJECT):
            if tree is not None:
                said[tree] = asked(tree, words)
        found.append((said[PROJECT], said.get(earlier) if earlier else None))
    return found


def middle(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Ours in the middle, and what it stands beside so that their ratio is the median of the rounds' ratios."""
    own = statistics.median(ours)
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    return own, own / ratio


def figures_of(probe: str, earlier: Path | None, scale: Scale) -> Iterator[Figure]:
    """Each of a probe's figures, beside the same in the earlier tree, and beside an engine without us."""
    words = ["-P", str(PROBES), probe, *([] if scale.full else ["--smoke"])]
    rounds = in_turns(probe, words, earlier, ROUNDS if scale.full else 1)
    said, unit = WORDS[probe]
    for name in [each for each in rounds[0][0] if each != ALONE]:
        ours = [mine[name] for mine, _ in rounds]
        bar = STEP_BEFORE.get(int(name)) if probe == "steps" else EXPLORING_BEFORE if probe == "exploring" else NO_MORE
        if earlier is None:
            yield Figure(name=said.format(name), ours=statistics.median(ours), unit=unit)
        else:
            own, peer = middle(ours, [other[name] for _, other in rounds])
            target = "" if bar is None else str(bar)
            yield Figure(
                name=said.format(name), ours=own, unit=unit, peer_name=f"the same at {COMMIT}", peer=peer, target=target
            )
        if ALONE in rounds[0][0]:
            own, peer = middle(ours, [mine[ALONE] for mine, _ in rounds])
            yield Figure(name=said.format(name), ours=own, unit=unit, peer_name="the engine alone", peer=peer)


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    earlier = copy_of(COMMIT)
    return [figure for probe in WORDS for figure in figures_of(probe, earlier, scale)]
