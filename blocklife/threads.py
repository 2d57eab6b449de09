"""Which thread makes a call. Nothing here starts a thread, or waits for one."""

from __future__ import annotations

import threading

this_thread = threading.get_ident
"""The number of the thread that asks."""


def thread_name(number: int) -> str:
    """What a message calls a thread."""
    return next((each.name for each in threading.enumerate() if each.ident == number), str(number))
