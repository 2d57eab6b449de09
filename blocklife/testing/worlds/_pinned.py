"""The pinned worlds, with their exact numbers of states.

Rules of this file:

* A world is data, in `pinned.toml`: the words of a world's file, a sentence, and its counts. `_world` decides what can happen
  in it and what must hold.
* Counts are exact: a changed rule changes a number there, and shows which worlds it affects.

Theory. A world is bounded in four ways: places, requests, faults, and policies. Each world is small in all but one of them, so
that combinations of two dangers are covered as well as each alone: *loads* needs requests whose content has left the device,
*overdue* a copy that never lands while its places are wanted, *windows* blocks that leave a running request.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attrs import field, frozen

from blocklife.errors import MisuseError
from blocklife.files import parse_toml, read_text
from blocklife.testing.worlds._format import make_world
from blocklife.testing.worlds._world import WorldSettings


class Counts(NamedTuple):
    """What an exploration of a whole world counts: states, steps between them, and the longest shortest path to a state."""

    states: int
    edges: int
    depth: int


@frozen
class Pinned:
    """A world with a name."""

    name: str
    about: str
    """One sentence: what can happen there that cannot happen in the others."""
    settings: WorldSettings
    counts: Counts
    large: bool = field(default=False, kw_only=True)
    """Whether mutants are not judged in it, for each of them explores every world."""


def _read() -> Iterator[Pinned]:
    path = str(Path(__file__).with_name("pinned.toml"))
    for name, said in parse_toml(read_text(path), path).items():
        words: dict[str, Any] = dict(said)  # type: ignore[call-overload]
        about, counts, large = words.pop("about"), Counts(*words.pop("counts")), words.pop("large", False)
        yield Pinned(name, about, make_world(words, name), counts, large=large)


WORLDS = tuple(_read())
"""All pinned worlds, from the calmest to the largest."""


def pinned_world(name: str) -> Pinned:
    """The world of that name. Raises `MisuseError`, which names the known ones."""
    for each in WORLDS:
        if each.name == name:
            return each
    raise MisuseError(f"world {name!r}: there is none (there are {', '.join(each.name for each in WORLDS)})")
