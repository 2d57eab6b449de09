"""What an engine's part of the watch is made with: calls that are heard, and what a plug-in says of a watch."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import ParamSpec, Protocol, TypeAlias, TypeVar

from blocklife.errors import MisuseError, one_line
from blocklife.watch._metrics import of_process
from blocklife.watch._options import Options, WatchMode
from blocklife.watch._violations import LOGGER

P = ParamSpec("P")
R = TypeVar("R")
Original: TypeAlias = Callable[..., object]
Wrapped: TypeAlias = tuple[object, str, Original, Callable[[Original], Original], bool]
"""A method of an object that is wrapped, how, and whether the object itself had it, instead of its class."""


class HeardCall:
    """A call of an engine. Before it is made its arguments may be replaced, and behind it its result."""

    __slots__ = ("args", "kwargs", "result")

    def __init__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.result: object = None
        """What it has returned, once it has."""

    def given(self, *names: str) -> list[object]:
        """The leading arguments, by position or by these names; None for one that is not given."""
        return [self.args[at] if at < len(self.args) else self.kwargs.get(name) for at, name in enumerate(names)]

    @property
    def first(self) -> object:
        """The first argument, by position or by name; None if the call has no arguments."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()), None)

    def keep_first(self) -> None:
        """Make a list of the first argument, if what it has can be read only once."""
        if isinstance(self.first, Iterable) and not isinstance(self.first, Collection):
            found = list(self.first)
            if self.args:
                self.args = (found, *self.args[1:])
            else:
                self.kwargs[next(iter(self.kwargs))] = found


TakesBack: TypeAlias = Callable[[], object]
"""Called if the call raises: takes back what was believed of it, or looks at what has led to it."""
Before: TypeAlias = Callable[[HeardCall], TakesBack | None]
After: TypeAlias = Callable[[HeardCall], object]


class Hears(Protocol):
    """Who is told what was heard: a watch."""

    @property
    def is_lost(self) -> bool:
        """Whether an error of its own has stopped it."""

    def minded(self, what: Callable[[], object]) -> None:
        """Do it; an error of the watch itself ends the watch, and goes no further."""

    def settle(self, *, is_over: bool) -> None:
        """Tell what was found. *is_over*: no heard call is under way in this thread, otherwise something was done about one."""


class _Within(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.scopes: set[str] = set()


class Ears:
    """Hears calls of single objects of an engine, without ever being in its way, and from whatever thread.

    What is done about a call is done under a lock. An error of the watch itself ends the watch; the call goes on. A call that
    raises has not happened: what was believed of it when it began is taken back, and its error goes on.
    """

    def __init__(self, watch: Hears) -> None:
        self._watch = watch
        self._lock = threading.RLock()
        self._within = _Within()
        self._made: list[Wrapped] = []
        self.told: dict[str, bool] = {}
        """Kinds of events, and whether any call that tells of them was found."""

    def hear(
        self,
        thing: object,
        name: str,
        *,
        before: Before | None = None,
        after: After | None = None,
        last: Callable[[], object] | None = None,
        scope: str = "",
        while_: Callable[[], bool] | None = None,
        tells: str = "",
    ) -> None:
        """Call *before* and *after* around a method of an object, if it has it; *last* however the call ends.

        What is called in a call of a *scope* is not heard in the same scope: what a method does by calling another one is one
        event. *while_*: whether it is to be heard now, for a method that is called often. *tells*: the kind of event that is
        not followed where neither this call nor another one that tells of it is there.
        """
        if tells:
            self.told[tells] = self.told.get(tells, False) or getattr(thing, name, None) is not None

        def made(original: Original) -> Original:
            watch, within = self._watch, self._within

            @functools.wraps(original)
            def through(*args: object, **kwargs: object) -> object:
                if watch.is_lost or scope in within.scopes or not (while_ is None or while_()):
                    return original(*args, **kwargs)
                call = HeardCall(args, kwargs)
                within.depth += 1
                try:
                    takes_back = None if before is None else self._do(before, call)
                    self._make(original, call, scope, takes_back)
                    if after is not None:
                        self._do(after, call)
                    return call.result
                finally:
                    within.depth -= 1
                    if last is not None:
                        self._do(last)
                    if not within.depth and not watch.is_lost:
                        watch.settle(is_over=True)

            return through

        self.around(thing, name, made)

    def around(self, thing: object, name: str, make: Callable[[Original], Original]) -> None:
        """Replace a method by what *make* returns for the original: for frequent calls, about which little is done."""
        method = getattr(thing, name, None)
        if method is not None:
            self._made.append((thing, name, method, make, name in vars(thing)))
            setattr(thing, name, make(method))

    def is_within(self, scope: str) -> bool:
        """Whether a call of this scope is under way in this thread."""
        return scope in self._within.scopes

    def hears(self, thing: object) -> bool:
        """Whether any method of this object is heard."""
        return any(each is thing for each, *_ in self._made)

    def undo(self) -> None:
        """Restore the original methods. What was wrapped over them later has to be undone before."""
        self._restore(self._made)
        self._made = []

    def leave(self, thing: object) -> None:
        """The same for one object."""
        self._restore([each for each in self._made if each[0] is thing])
        self._made = [each for each in self._made if each[0] is not thing]

    @staticmethod
    def _restore(made: Sequence[Wrapped]) -> None:
        for thing, name, method, _, is_own in reversed(made):
            vars(thing).pop(name, None)
            if is_own:
                setattr(thing, name, method)

    def _make(self, original: Original, call: HeardCall, scope: str, takes_back: TakesBack | None) -> None:
        if scope:
            self._within.scopes.add(scope)
        try:
            call.result = original(*call.args, **call.kwargs)
        except Exception:
            if takes_back is not None:
                self._do(takes_back)
            raise
        finally:
            self._within.scopes.discard(scope)

    def _do(self, what: Callable[P, R], *of: P.args, **more: P.kwargs) -> R | None:
        """Do something about a call, unless the watch is lost."""
        found: list[R] = []
        with self._lock:
            if not self._watch.is_lost:
                self._watch.minded(lambda: found.append(what(*of, **more)))
                self._watch.settle(is_over=False)
        return found[0] if found else None


NOTHING = "blocklife watch: watching nothing, because %s"


def said_of(watched: str, options: Options, engine: str, left_out: Mapping[str, str] | None = None) -> str:
    """One line: what is watched, how, and in which process; *left_out*: what of it is not, and why (`Watch.left_out`)."""
    process = f"process {multiprocessing.current_process().name}, {os.getpid()}"
    mode, sample = options.mode, options.sample
    how = mode.name.lower() + (f", one block of {sample}" if sample > 1 else "")
    where = f"; {of_process(engine).where}" if mode is WatchMode.COUNT else ""
    names = [f"{name} ({why})" if why else name for name, why in (left_out or {}).items()]
    not_followed = f"; NOT followed: {', '.join(names)}" if names else ""
    return f"blocklife watches {watched} in {process} ({how}){not_followed}{where}"


def asked_for(engine: str, named: str, is_known: Callable[[str], bool], known: str) -> Options | None:
    """The options that the environment asks for, in the release of the engine that is installed; None: no watch.

    Raises MisuseError for settings that mean nothing, and in a release that is none of the *known* ones.
    """
    options = Options.from_environment()
    if options is None:
        return None
    release = getattr(importlib.import_module(engine), "__version__", None) or "of an unknown release"
    if not is_known(release):
        knows = f"and the watch knows {named} {known} (install one of these, or a blocklife for yours)"
        raise MisuseError(f"this is {named} {release}, {knows}")
    if options.mode is WatchMode.COUNT:
        of_process(engine)  # done here, so that child processes count in the same place
    return options


@contextlib.contextmanager
def beside_engine() -> Iterator[None]:
    """What a plug-in does for a watch within an engine: no error of it reaches the engine, which goes on unwatched.

    One line says that nothing is watched, and why: wrong settings, nothing that could be watched, or a fault of the watch.
    """
    try:
        yield
    except MisuseError as error:
        LOGGER.warning(NOTHING, one_line(str(error)))
    except Exception as error:
        LOGGER.error(NOTHING, f"of an error of its own: {one_line(repr(error))}", exc_info=error)
