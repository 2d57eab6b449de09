"""The releases of SGLang that the watch and the linker are tested with.

In others the watch watches nothing, and the linker is refused.

SGLang changes the classes of its cache from release to release, so the range is narrow and grows only with tests.
"""

from __future__ import annotations

import re

from blocklife.errors import MisuseError

ENGINE = "sglang"
"""The name of the engine, with which its metrics begin."""

OLDEST_WATCHED = "0.5.13"
NEWEST_WATCHED = "0.5.23"
"""The range of releases, without ``.post1`` and the like."""

LINKED = "0.5.23"
"""The release that the linker is tested with."""

_TAKEN = re.compile(rf"{re.escape(LINKED)}(\.post\d+)?(\+.*)?")
_RELEASE = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:\D|$)")


def is_watched(version: str) -> bool:
    """Whether a release (its version string) is in the watch's range."""
    return numbers_of(OLDEST_WATCHED) <= numbers_of(version) <= numbers_of(NEWEST_WATCHED)


def numbers_of(version: str) -> tuple[int, ...]:
    """The three numbers of a release; empty, which is less than any, if there are none."""
    found = _RELEASE.match(version)
    return () if found is None else tuple(map(int, found.groups()))


def check_linked(version: str) -> None:
    """Refuse a release that the linker is not tested with, naming both; a post-release or a build of it is taken."""
    if _TAKEN.fullmatch(version.removeprefix("v")) is None:
        raise MisuseError(f"SGLang {version}: this linker supports SGLang {LINKED} (install it, or a blocklife for yours)")
