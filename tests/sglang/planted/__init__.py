"""Bugs that are planted in SGLang 0.5.23, one at a time and for one run each, to see whether the watch names them.

A bug is a function with a docstring that says what is wrong. It gets a `Bed`, and puts code of its own around methods of
SGLang's classes before any object of them is watched; all of it is gone when the run is over. Rules of the rooms:

* A bug does little: it forgets a line, counts one off, mixes two things up. What SGLang asserts may hold or fall, as it comes.
* Wherever it makes a difference it asks `Bed.strikes`, so that a run in which it slept is told from one in which it was missed.
* It does not know of the watch, and none is planted for the watch's sake: what is not seen stays here, marked so.

The rooms but *taken* were planned from SGLang's code alone. `tests.sglang.planted.taken` is older: a lock, a wait or a fence is
taken out of one rank's objects, and `tests/sglang/test_rig.py` runs them without a watch, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from random import Random
from typing import Any, TypeAlias
from unittest import mock

from attrs import define, field, frozen

from tests.sglang.planted.taken import FAULTS, Fault
from tests.sglang.rig import Rank

__all__ = ["FAULTS", "ROOMS", "Bed", "Fault", "Planted", "all_planted", "planted"]

ROOMS = ("taken", "tree", "core", "memory", "copies", "storage", "states")

Original: TypeAlias = Callable[..., Any]
Around: TypeAlias = Callable[..., object]


@define(eq=False)
class Bed:
    """Where one bug is planted, for one run."""

    rng: Random
    stack: ExitStack
    """What is planted goes when this is closed."""
    fired: int = 0
    """How often the bug has made a difference."""
    on_rank: list[Callable[[Rank], None]] = field(factory=list)
    """What is done to the objects of each rank ahead of its first step."""

    def strikes(self, share: float = 1.0) -> bool:
        """Whether the bug does so here, which is counted: always, or in this share of all cases."""
        struck = share == 1.0 or self.rng.random() < share
        self.fired += struck
        return struck

    def around(self, owner: type, name: str) -> Callable[[Around], Around]:
        """Let the decorated function have the calls of a method; what it gets first is the method as it was."""
        original: Original = getattr(owner, name)

        def decorated(around: Around) -> Around:
            def called(*args: object, **kwargs: object) -> object:
                return around(original, *args, **kwargs)

            self.stack.enter_context(mock.patch.object(owner, name, called))
            return around

        return decorated


@frozen
class Planted:
    """A bug, and the worlds in which its runs are."""

    name: str
    about: str
    worlds: tuple[str, ...]
    plant: Callable[[Bed], None]
    seen: bool
    """Whether the watch names it in time in every run in which it does harm."""


def planted(*worlds: str, seen: bool = True) -> Callable[[Callable[[Bed], None]], Planted]:
    """Make a bug of a function; its docstring is what is said of it."""

    def made(plant: Callable[[Bed], None]) -> Planted:
        return Planted(plant.__name__, " ".join((plant.__doc__ or "").split()), worlds, plant, seen)

    return made


def _taken() -> dict[str, Planted]:
    """The faults of `taken` in the form of the others; such a fault counts as one that has fired."""

    def planting(fault: Fault) -> Callable[[Bed], None]:
        def plant(bed: Bed) -> None:
            bed.strikes()
            bed.on_rank.append(fault.plant)

        return plant

    return {
        name: Planted(name, " ".join((fault.plant.__doc__ or "").split()), (fault.world,), planting(fault), seen=True)
        for name, fault in FAULTS.items()
    }


def all_planted(rooms: tuple[str, ...] = ROOMS) -> dict[str, Planted]:
    """Every bug of these rooms by its name, room by room."""
    found = _taken() if "taken" in rooms else {}
    for room in rooms:
        own = vars(import_module(f"{__name__}.{room}")).values()
        found |= {each.name: each for each in own if isinstance(each, Planted)}
    return found
