"""The releases of LMCache that the watch is tested with.

In others it watches nothing. LMCache changes the calls of its storage from release to release, so the range is narrow and grows
only with tests.
"""

from __future__ import annotations

ENGINE = "lmcache"
"""The name of the engine, with which its metrics begin."""

WATCHED = ("0.5.6",)
"""The releases."""


def is_watched(version: str) -> bool:
    """Whether a release (its version string) is one of them; a build of it is."""
    return version.removeprefix("v").partition("+")[0] in WATCHED
