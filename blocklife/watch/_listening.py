"""What an engine's part of the watch is made with: wrapped calls, which watch an object has, and what a plug-in says of it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from blocklife.errors import MisuseError, one_line
from blocklife.watch._metrics import of_process
from blocklife.watch._options import Options, WatchMode
from blocklife.watch._violations import LOGGER

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


_ATTRIBUTE = "_blocklife_watch"


class AnyWatch(Protocol):
    """A watch of any kind."""

    options: Options

    def close(self) -> None:
        """Stop watching."""


W = TypeVar("W", bound=AnyWatch)


def attached(watched: object, options: Options | None, kind: type[W], make: Callable[[Options], W]) -> W:
    """The watch of this *kind* over *watched*, made with *options* if there is none.

    Raises MisuseError for options that are none, and for options other than those in force: a caller that asks for a strict
    watch must not get one that only counts.
    """
    if options is not None and not isinstance(options, Options):
        raise MisuseError(
            f"watch: options must be made with Options, not {options!r} (pass Options(mode=WatchMode.STRICT), or nothing)"
        )
    found = attached_to(watched, kind)
    if found is None:
        found = make(options or Options())
        setattr(watched, _ATTRIBUTE, found)
    elif options is not None and options != found.options:
        raise MisuseError(f"watch: this {type(watched).__name__} is watched with other options already (detach it first)")
    return found


def attached_to(watched: object, kind: type[W]) -> W | None:
    """The watch of this *kind* over *watched*, if there is one."""
    # not getattr: an object that answers for another one would show the other's watch
    found = getattr(watched, "__dict__", {}).get(_ATTRIBUTE)
    return found if isinstance(found, kind) else None


def detach(watched: object) -> None:
    """Stop watching, if it is watched."""
    found: AnyWatch | None = getattr(watched, "__dict__", {}).get(_ATTRIBUTE)
    if found is not None:
        found.close()
        delattr(watched, _ATTRIBUTE)


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
