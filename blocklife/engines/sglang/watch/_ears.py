"""How the watch hears a call of SGLang: without ever being in its way, and from whatever thread.

The engine's tensors of indices that lie on a device are read at once for a whole step, for each reading waits for the device.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

from blocklife.watch import CallsThrough, Mirror, Original, Watch

TakesBack = Callable[[], None]
"""Takes back what was believed of a call that has raised."""
Heard = Callable[[tuple[object, ...], dict[str, object]], TakesBack | None]
"""Takes what a call was given; what it believes of the call ahead of its end is taken back by what it returns."""
Answered = Callable[[object, tuple[object, ...], dict[str, object]], None]
"""Takes what it returned, and what it was given."""


class Ears:
    """Wraps calls. What is done about one is done under a lock, for storage runs on threads.

    An error of the watch itself ends the watch; the call goes on. In a call that was heard no other of the same *scope* is:
    what a method of SGLang does by calling another one is one event. A call that raises has not happened: what was believed
    of it when it began is taken back, and its error goes on.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._mirrors: Sequence[Mirror] = watch.mirrors
        self._lock = threading.RLock()
        self._within = threading.local()
        self.calls = CallsThrough()
        self.reading = IndexReading()
        self.told: dict[str, bool] = {}
        """Kinds of events, and whether any call that tells of them was found."""

    def hear(
        self,
        thing: object,
        name: str,
        *,
        before: Heard | None = None,
        after: Answered | None = None,
        scope: str = "",
        is_step: Callable[[object], bool] | None = None,
        while_: Callable[[], bool] | None = None,
        tells: str = "",
    ) -> None:
        """Call *before* and *after* around a method of an object, if it has it.

        *is_step*: whether its result begins a step. *while_*: whether it is to be heard now, for a method that is called often.
        *tells*: the kind of event that is not followed where neither this call nor another one that tells of it is there.
        """
        if tells:
            self.told[tells] = self.told.get(tells, False) or getattr(thing, name, None) is not None

        def made(original: Original) -> Original:
            @functools.wraps(original)
            def through(*args: object, **kwargs: object) -> object:
                is_deaf = (scope and getattr(self._within, scope, False)) or (while_ is not None and not while_())
                if is_deaf or self._watch.lost is not None:
                    return original(*args, **kwargs)
                takes_back = None if before is None else self._begin(before, args, kwargs)
                if scope:
                    setattr(self._within, scope, True)
                try:
                    result = original(*args, **kwargs)
                except BaseException:
                    if takes_back is not None and self._watch.lost is None:
                        self._do(takes_back)
                    raise
                finally:
                    if scope:
                        setattr(self._within, scope, False)
                if after is not None and self._watch.lost is None:
                    self._do(functools.partial(after, result, args, kwargs), is_step is not None and is_step(result))
                return result

            return through

        self.calls.around(thing, name, made)

    def hears(self, thing: object) -> bool:
        """Whether any method of this object is heard."""
        return self.calls.wraps(thing)

    def _begin(self, before: Heard, args: tuple[object, ...], kwargs: dict[str, object]) -> TakesBack | None:
        found: list[TakesBack | None] = []
        self._do(lambda: found.append(before(args, kwargs)))
        return found[0] if found else None

    def _do(self, what: Callable[[], None], is_step: bool = False) -> None:
        with self._lock:
            self._mirrors[0].minded(what)
            for mirror in self._mirrors:
                if self._watch.lost is not None:
                    return
                if is_step:
                    mirror.step()
                elif mirror.is_behind or mirror.story.found:
                    mirror.catch_up()
            if is_step:
                self._watch.end_step()


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
