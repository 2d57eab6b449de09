"""What the user's code beside a ledger raises: hooks, watchers, replacement policies, indexes. It is kept, counted and logged.

Rules of this file:

* An error of such code changes nothing, and is never lost: the first of each piece of code is kept and logged with its name.
* Every room may use this one. It is the only thing in the core that reaches the outside world, and only to write to the log.
"""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias

from attrs import evolve, frozen

from tests.oracle.errors import MisuseError

OnError: TypeAlias = Literal["keep", "raise"]
"""What becomes of an error of a user's code: it is kept and the call goes on, or the call raises it when all else is done."""
INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends a program or a generator, and is not an error of the code in which it arrives."""
_KEPT_MAX = 64
"""Errors of more pieces of code than this are only counted."""
_LOGGER = logging.getLogger("blocklife.hooks")


@frozen
class HookError:
    """What one hook, or other code of a user, has raised so far."""

    who: str
    """Its qualified name."""
    first: BaseException
    count: int


class HookErrors:
    """Errors of the user's code beside a ledger, a scheduler or an executor: hooks, watchers, replacement policies.

    None of them changes what a call does or returns. The first error of each piece of code is kept and logged with its name,
    further ones are counted. With *raises*, for tests, a call raises the first of its errors when it has done everything else.
    An interrupt (`INTERRUPTS`) is no such error: in a hook it is raised when all hooks have run, elsewhere at once.
    """

    __slots__ = ("_failed", "_first", "_interrupt", "count", "pending", "raises")

    def __init__(self, *, raises: bool) -> None:
        self.raises = raises
        self.count = 0
        """The number of errors so far."""
        self.pending = False
        """Whether something was raised since the last `end`."""
        self._failed: dict[str, HookError] = {}
        self._first: BaseException | None = None
        self._interrupt: BaseException | None = None

    @property
    def failed(self) -> tuple[HookError, ...]:
        """What was raised, by the code that raised it, in the order of the first errors; at most 64 entries."""
        return tuple(self._failed.values())

    def keep(self, code: object, problem: BaseException) -> None:
        """Keep what was raised by a function, or by a method of an object. An interrupt is raised again."""
        if isinstance(problem, INTERRUPTS):
            raise problem
        self.pending = True
        self._first = self._first or problem
        self.count += 1
        who = _name_of(code)
        known = self._failed.get(who)
        if known is not None:
            self._failed[who] = evolve(known, count=known.count + 1)
        elif len(self._failed) < _KEPT_MAX:
            self._failed[who] = HookError(who, problem, 1)
            if not self.raises:
                _LOGGER.error("%s has raised %r; the call went on (further errors of it are only counted)", who, problem)

    def hold(self, code: object, problem: BaseException) -> None:
        """The same where everything is done but for other hooks: an interrupt is raised at the end of the call."""
        if isinstance(problem, INTERRUPTS):
            self.pending = True
            self._interrupt = self._interrupt or problem
        else:
            self.keep(code, problem)

    def end(self, note: str = "") -> None:
        """The end of a call: raise an interrupt, or with ``raises`` the first error since the last end. It gets the *note*."""
        found = self._interrupt or (self._first if self.raises else None)
        self._interrupt = self._first = None
        self.pending = False
        if found is not None:
            if note:
                found.add_note(note)
            raise found


def errors_of(choice: OnError) -> HookErrors:
    """Where errors go that are dealt with in this way; refuses any other word."""
    if choice not in ("keep", "raise"):
        raise MisuseError(f'errors must be "keep" or "raise", not {choice!r}')
    return HookErrors(raises=choice == "raise")


def _name_of(code: object) -> str:
    """The qualified name of a function, or of the class of an object."""
    named = code if hasattr(code, "__qualname__") else type(code)
    module = getattr(named, "__module__", None)
    return f"{module}.{named.__qualname__}" if module else str(named.__qualname__)
