"""The mutants that no small world can find, each with the argument why that is no hole in the proof."""

from __future__ import annotations

from collections.abc import Mapping

UNFOUND: Mapping[str, str] = {}
"""The argument, by mutant."""
