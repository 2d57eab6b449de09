"""How the watch hears a call of SGLang: without ever being in its way, and from whatever thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

from blocklife.engines.sglang.watch._reading import IndexReading
from blocklife.watch._calls import CallsThrough, Original
from blocklife.watch._mirror import Mirror
from blocklife.watch._watch import Watch

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
                self._watch.settled()
