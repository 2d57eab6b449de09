"""The releases of vLLM that the connector is tested with; all others are refused.

vLLM calls its connector interface experimental and changes it between releases. The connector depends on what each hook
promises and on the order in which hooks are called, so the range is narrow and grows only with tests. For each supported
release `connector.releases` has a module with what is different in it.
"""

from __future__ import annotations

import re

from blocklife.errors import MisuseError

ENGINE = "vllm"
"""The name of the engine, with which its metrics begin."""

SUPPORTED = ("0.30", "0.31", "0.32", "0.33")
"""The minor releases whose patch releases are supported, oldest first."""

OLDEST_WATCHED = "0.21"
"""The oldest minor release that the watch is tested with: it depends on less of vLLM than the connector."""

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\D|$)")


def is_supported(version: str) -> bool:
    """Whether a release of vLLM (its version string) is in the connector's range."""
    return minor_of(version) in map(minor_of, SUPPORTED)


def is_watched(version: str) -> bool:
    """Whether a release is in the watch's range."""
    return minor_of(OLDEST_WATCHED) <= minor_of(version) <= minor_of(SUPPORTED[-1])


def minor_of(version: str) -> tuple[int, ...]:
    """Major and minor number; empty, which is less than any, if there are none."""
    found = _RELEASE.match(version)
    return () if found is None else tuple(map(int, found.groups()))


def check(version: str) -> None:
    """Refuse a release outside the range, naming both."""
    if not is_supported(version):
        known = ", ".join(f"{each}.x" for each in SUPPORTED)
        raise MisuseError(
            f"vLLM {version}: this connector supports vLLM {known} (install one of these, or a blocklife for yours)"
        )
