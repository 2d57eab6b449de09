"""Bugs that are planted in an engine, one at a time and for one run each, to see whether the watch names them.

A bug is a function with a docstring that says what is wrong. It gets a `Bed`, and puts code of its own around methods of
the engine's classes; all of it is gone when the run is over. The folder ``planted`` in the tests of an engine has them in
rooms, which are modules, and a program that runs them. Rules of the rooms:

* A bug does little: it forgets a line, counts one off, mixes two things up. What the engine asserts may hold or fall, as it
  comes.
* Wherever it makes a difference it asks `Bed.strikes`, so that a run in which it slept is told from one in which it was missed.
* It does not know of the watch, and nothing is planted for the watch's sake: what is not seen stays here, marked so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from random import Random
from typing import Any, Generic, TypeAlias, TypeVar
from unittest import mock

from attrs import define, frozen

NOBODY = "(none)"
"""In the place of a bug's name where none is planted."""

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

    def behind(self, owner: type, name: str, change: Callable[[Any, Any], None]) -> None:
        """Let a function change what a method has returned; it gets the object, and that."""

        @self.around(owner, name)
        def changed(original: Original, self: object, *args: object) -> object:
            returned = original(self, *args)
            change(self, returned)
            return returned


B = TypeVar("B", bound=Bed)
BedOf = TypeVar("BedOf", bound=Bed, contravariant=True)


@frozen
class Planted(Generic[BedOf]):
    """A bug, and the worlds in which its runs are."""

    name: str
    about: str
    worlds: tuple[str, ...]
    plant: Callable[[BedOf], None]
    seen: bool
    """Whether the watch names it in time in every run in which it does harm."""


def said_of(plant: Callable[..., None]) -> str:
    """The docstring of a bug, in one line."""
    return " ".join((plant.__doc__ or "").split())


Hook: TypeAlias = Callable[..., Any]
"""What has the calls of a method, or is given what it changes; a bed comes first."""


def planted(*worlds: str, seen: bool = True) -> Callable[[Callable[[B], None]], Planted[B]]:
    """Make a bug of a function; its docstring is what is said of it."""

    def made(plant: Callable[[B], None]) -> Planted[B]:
        return Planted(plant.__name__, said_of(plant), worlds, plant, seen)

    return made


def planted_by(way: Callable[[B, Hook], object], *worlds: str, seen: bool = True) -> Callable[[Hook], Planted[B]]:
    """Make a bug of a function that a *way* puts in its place."""

    def made(hook: Hook) -> Planted[B]:
        def plant(bed: B) -> None:
            way(bed, partial(hook, bed))

        return Planted(hook.__name__, said_of(hook), worlds, plant, seen)

    return made


def planted_at(
    owner: type, name: str, *worlds: str, seen: bool = True, first: Callable[[Bed], None] | None = None
) -> Callable[[Hook], Planted[Bed]]:
    """Make a bug of a function that has the calls of a method, as with `Bed.around`; *first* is planted before it."""

    def way(bed: Bed, hook: Hook) -> None:
        if first is not None:
            first(bed)
        bed.around(owner, name)(hook)

    return planted_by(way, *worlds, seen=seen)


def without(bugs: Sequence[Planted[B]]) -> Planted[Bed]:
    """No bug, in all the worlds of these."""

    def plant(bed: Bed) -> None:
        """Change nothing."""

    worlds = tuple(dict.fromkeys(world for bug in bugs for world in bug.worlds))
    return Planted(NOBODY, "nothing is planted", worlds, plant, seen=True)


def planted_in(package: str, rooms: Iterable[str]) -> dict[str, Planted[B]]:
    """Every bug of these rooms of a package by its name, room by room."""
    found = [each for room in rooms for each in vars(import_module(f"{package}.{room}")).values()]
    return {each.name: each for each in found if isinstance(each, Planted)}
