"""What the tests of all engines share: where they are fetched and run, random traffic, planted bugs, findings, and the tools.

`tests.vllm`, `tests.sglang`, `tests.lmcache` and `tests.model` have what is one engine's own.
"""

from __future__ import annotations

import importlib.util

from tests.programs import ENGINES


def engine_here() -> str | None:
    """The engine in whose environment this process runs, by its package; None in that of the project."""
    return next((each for each in ENGINES if importlib.util.find_spec(each) is not None), None)
