"""Programs that a test starts and interrupts: they hear SIGINT also where the test run itself was told to ignore it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Programs that are started within hear SIGINT.

    A job in the background of a shell, as in ``make test &``, ignores it, and so does what it starts: a Python that begins so
    raises no KeyboardInterrupt.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
