"""The releases of vLLM that the connector is tested with; all others are refused.

vLLM calls its connector interface experimental and changes it between releases. The connector depends on what each hook
promises and on the order in which hooks are called, so the range is narrow and grows only with tests.
"""

from __future__ import annotations

import re

from blocklife.errors import MisuseError

SUPPORTED = "0.33"
"""The minor release whose patch releases are supported."""

OLDEST_WATCHED = "0.21"
"""The oldest minor release that the watch is tested with: it depends on less of vLLM than the connector."""

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\D|$)")


def is_supported(version: str) -> bool:
    """Whether a release of vLLM (its version string) is in the connector's range."""
    return _minor(version) == _minor(SUPPORTED)


def is_watched(version: str) -> bool:
    """Whether a release is in the watch's range."""
    return _minor(OLDEST_WATCHED) <= _minor(version) <= _minor(SUPPORTED)


def _minor(version: str) -> tuple[int, ...]:
    """Major and minor number; empty, which is less than any, if there are none."""
    found = _RELEASE.match(version)
    return () if found is None else tuple(map(int, found.groups()))


def check(version: str) -> None:
    """Refuse a release outside the range, naming both."""
    if not is_supported(version):
        raise MisuseError(
            f"vLLM {version}: this connector supports vLLM {SUPPORTED}.x (install that release, or a blocklife for yours)"
        )
