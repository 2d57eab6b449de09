"""Reading SGLang's tensors of indices: those that lie on a device at once for a whole step, for each reading waits for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast


class OnDevice(Protocol):
    """A tensor that lies on a device."""

    def numel(self) -> int:
        """How many entries it has."""

    def reshape(self, *shape: int) -> OnDevice:
        """The same entries in another shape."""

    def clone(self) -> OnDevice:
        """A copy on the device, queued there: the call does not wait until it is made."""


def numbers(indices: object) -> list[int]:
    """The entries of one of SGLang's tensors; on a device this waits for it. Nothing for None."""
    as_list = getattr(indices, "tolist", None)
    found: list[int] = as_list() if as_list is not None else indices if isinstance(indices, list) else []
    return found


def pages(tokens: Iterable[int], size: int) -> list[int]:
    """The pages in which these slots of tokens lie, each once, in their order."""
    return list(tokens) if size == 1 else list(dict.fromkeys([token // size for token in tokens]))


class IndexReading:
    """The facts whose indices lie on a device and were not read, in their order; the next reading takes them along.

    A fact whose indices lie in the memory of the host is told at once, unless others are ahead of it. So how often the watch
    waits for the device is the same for one request and for many.
    """

    def __init__(self) -> None:
        self._ahead: list[tuple[Callable[..., None], list[OnDevice | list[int]]]] = []

    def later(self, tell: Callable[..., None], *indices: object) -> None:
        """Call *tell* with a list for each of these: at once, or ahead of the next reading."""
        known = [_known(each) for each in indices]
        if not self._ahead and all(isinstance(each, list) for each in known):
            tell(*known)
        else:  # what lies on a device may be a part of a table, and written over before it is read
            self._ahead.append((tell, [each if isinstance(each, list) else each.clone() for each in known]))

    def now(self, *indices: object) -> list[list[int]]:
        """The entries of these, behind all that is ahead of them."""
        ahead, self._ahead = self._ahead, []
        known = [_known(each) for each in indices]
        lists = iter(_read([*(each for _, own in ahead for each in own), *known]))
        for tell, own in ahead:
            tell(*[next(lists) for _ in own])
        return list(lists)

    def report(self) -> None:
        """Tell what was not told yet: ahead of what depends on it."""
        if self._ahead:
            self.now()


def _known(indices: object) -> OnDevice | list[int]:
    """These themselves if they lie on a device, else their entries."""
    where = getattr(getattr(indices, "device", None), "type", "cpu")
    return numbers(indices) if where == "cpu" else cast("OnDevice", indices).reshape(-1)


def _read(known: Sequence[OnDevice | list[int]]) -> list[list[int]]:
    """The entries of each; those on a device are made one tensor, which is read."""
    there = [each for each in known if not isinstance(each, list)]
    joined = numbers(there[0] if len(there) == 1 else _joined(there)) if there else []
    found: list[list[int]] = []
    at = 0
    for each in known:
        if isinstance(each, list):
            found.append(each)
        else:
            found.append(joined[at : at + each.numel()])
            at += each.numel()
    return found


def _joined(there: Sequence[OnDevice]) -> object:
    return vars(importlib.import_module("torch"))["cat"](there)
