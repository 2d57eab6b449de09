"""Wrapping calls of an engine's objects: how every hook of a watch hears."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Original: TypeAlias = Callable[..., object]


class CallsThrough:
    """Methods of single objects whose calls go through a wrapper."""

    def __init__(self) -> None:
        self._made: list[tuple[object, str, Original, Callable[[Original], Original], bool]] = []
        """What is wrapped, how, and whether the object itself had it, instead of its class."""

    def add(self, thing: object, name: str, wrapper: Original) -> None:
        """Wrap a method of one object, if it has it; *wrapper* gets the original method as its first argument."""
        self.around(thing, name, functools.partial(functools.partial, wrapper))

    def around(self, thing: object, name: str, make: Callable[[Original], Original]) -> None:
        """Replace the method by what *make* returns for the original; cheaper for frequent calls."""
        method = getattr(thing, name, None)
        if method is not None:
            self._made.append((thing, name, method, make, name in vars(thing)))
            setattr(thing, name, make(method))

    def __bool__(self) -> bool:
        """Whether any method is wrapped."""
        return bool(self._made)

    def wraps(self, thing: object) -> bool:
        """Whether any method of this object is wrapped."""
        return any(each is thing for each, *_ in self._made)

    def undo(self) -> None:
        """Restore the original methods. What was wrapped over them later has to be undone before."""
        for thing, name, method, _, is_own in reversed(self._made):
            vars(thing).pop(name, None)
            if is_own:
                setattr(thing, name, method)
        self._made = []


def given(args: Sequence[object], kwargs: Mapping[str, object], *names: str) -> list[object]:
    """The leading arguments, by position or by these names; None for one that is not given."""
    return [args[at] if at < len(args) else kwargs.get(name) for at, name in enumerate(names)]
