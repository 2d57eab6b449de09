"""How a run of all tests stays short: of what is repeated a sample is run, and what many tests ask for is made once.

A test with many parameters is marked `sampled`. So many of their combinations are run that each value of each parameter is
there, or each pair of values; the others are `slow`, for the nightly run. Who names one by its whole name runs it.
"""

from __future__ import annotations

import fcntl
import itertools
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import pytest

T = TypeVar("T")


Combination: TypeAlias = tuple[int, ...]
"""The place of each value among those of its parameter."""


def sample(combinations: Sequence[Combination], *, pairs: bool = False, every: int = 0, first: int = 0) -> set[Combination]:
    """Few of the combinations, in which every value is, or every pair of values; the one that brings most is the next.

    With *every* it is just each so many-th one, from the *first* on, for a list of one parameter.
    """
    if every:
        return set(combinations[first::every])
    left = set().union(*map(_values, combinations), *map(_pairs, combinations) if pairs else ())
    taken, seen = set[Combination](), set[object]()
    while left:
        best = max(combinations, key=lambda each: (len(_values(each) - seen), len(_pairs(each) - seen)))
        seen |= _values(best) | _pairs(best)
        left -= seen
        taken.add(best)
    return taken


def _values(combination: Combination) -> set[object]:
    return set(enumerate(combination))


def _pairs(combination: Combination) -> set[object]:
    return set(itertools.combinations(enumerate(combination), 2))


def places(combinations: Sequence[Mapping[str, object]]) -> list[Combination]:
    """The place of each value among those of its parameter; a value is the same object in all combinations."""
    seen: dict[str, dict[int, int]] = {}
    return [
        tuple(seen.setdefault(name, {}).setdefault(id(value), len(seen[name])) for name, value in each.items())
        for each in combinations
    ]


def mark_the_rest(items: Iterable[pytest.Item], named: Sequence[str]) -> None:
    """Mark as slow what is not in the sample of a test that is `sampled`, unless it is *named* on the command line."""
    repeated: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled"):
            repeated.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in repeated.values():
        marker = group[0].get_closest_marker("sampled")
        indices = dict(zip([item.nodeid for item in group], places([item.callspec.params for item in group]), strict=True))
        taken = sample(list(indices.values()), **(marker.kwargs if marker else {}))
        for item in group:
            if indices[item.nodeid] not in taken and not any(each.endswith(item.nodeid) for each in named):
                item.add_marker(pytest.mark.slow)


def once(name: str, make: Callable[[], T]) -> T:
    """What *make* gives, made by one of the workers of a run (`tests.again`); the others wait for it, and read it.

    It must be the same in every process, whatever a test has changed there.
    """
    folder = getattr(sys.modules.get("again_notes"), "shared", None)
    if folder is None:
        return make()
    place = Path(folder, f"{name}.pickle")
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            place.write_bytes(pickle.dumps(make()))
        found: T = pickle.loads(place.read_bytes())
        return found
