"""How the watch hears a call of SGLang: without ever being in its way, and from whatever thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

from blocklife.watch._calls import CallsThrough, Original
from blocklife.watch._mirror import Mirror
from blocklife.watch._watch import Watch

Heard = Callable[[tuple[object, ...], dict[str, object]], None]
"""Takes what a call was given."""
Answered = Callable[[object, tuple[object, ...], dict[str, object]], None]
"""Takes what it returned, and what it was given."""


class Ears:
    """Wraps calls. What is done about one is done under a lock, for storage runs on threads.

    An error of the watch itself ends the watch; the call goes on. In a call that was heard no other of the same *scope* is:
    what a method of SGLang does by calling another one is one event.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._mirrors: Sequence[Mirror] = watch.mirrors
        self._lock = threading.RLock()
        self._within = threading.local()
        self.calls = CallsThrough()

    def hear(
        self,
        thing: object,
        name: str,
        *,
        before: Heard | None = None,
        after: Answered | None = None,
        scope: str = "",
        is_step: Callable[[object], bool] | None = None,
    ) -> None:
        """Call *before* and *after* around a method of an object, if it has it. *is_step*: whether its result begins a step."""

        def made(original: Original) -> Original:
            @functools.wraps(original)
            def through(*args: object, **kwargs: object) -> object:
                if self._watch.lost is not None or (scope and getattr(self._within, scope, False)):
                    return original(*args, **kwargs)
                if before is not None:
                    self._do(functools.partial(before, args, kwargs))
                if scope:
                    setattr(self._within, scope, True)
                try:
                    result = original(*args, **kwargs)
                finally:
                    if scope:
                        setattr(self._within, scope, False)
                if after is not None and self._watch.lost is None:
                    self._do(functools.partial(after, result, args, kwargs), is_step is not None and is_step(result))
                return result

            return through

        self.calls.around(thing, name, made)

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
