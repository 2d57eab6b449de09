"""Find the first call after which two traces differ, and the columns that do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def trace(walk: str, seed: int, *options: str) -> list[str]:
    """The trace of one walk, made by a process of its own; the first line says how the core ran."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.both_ways.trace", walk, str(seed), *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(f"{walk}, seed {seed}, {options}: the walk itself fails\n{ran.stderr[-4000:]}")
    return ran.stdout.splitlines()


def first_difference(one: Sequence[str], other: Sequence[str]) -> str | None:
    """Where two traces part, in words; None where they never do."""
    for mine, yours in zip_longest(one, other):
        if mine == yours:
            continue
        if mine is None or yours is None:
            left = json.loads(yours if mine is None else mine)
            return f"{left['walk']}: one trace ends before call {left['number']}, {left['call']}"
        first, second = json.loads(mine), json.loads(yours)
        at = f"{first['walk']}, call {first['number']}: {first['call']}"
        if any(first[name] != second[name] for name in ("walk", "number", "call")):
            return f"{at}\nthe other trace has {second['walk']}, call {second['number']}: {second['call']}"
        names = [*first["columns"], *(name for name in second["columns"] if name not in first["columns"])]
        parted = [name for name in names if first["columns"].get(name) != second["columns"].get(name)]
        shown = [f"  {name}: {first['columns'].get(name)}\n  {name}: {second['columns'].get(name)}" for name in parted]
        return "\n".join([at, *shown])
    return None
