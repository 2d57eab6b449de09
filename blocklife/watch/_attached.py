"""Which watch an object of an engine has: it is kept on the object itself, so that both end together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from blocklife.errors import MisuseError
from blocklife.watch._options import Options

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
