"""The edge: what callers may do to a ledger or a scheduler from outside, before any verb has begun.

Rules of this file:

* It knows no place, no state and no table; it looks at what was handed in, and refuses it by name.
"""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from blocklife.errors import MisuseError


class NotCopied:
    """What must be there once: a copy would share its state, or speak of places that no worker knows."""

    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn:
        """Asked by `copy` and `pickle` alike."""
        raise MisuseError(
            f"{type(self).__name__}: it cannot be copied or pickled (take a snapshot, which is a value, and restore it on one "
            "that was made alike)"
        )
