"""Where the tokens of a hit come from: host memory, or the store below it.

Rules of this file, as in vLLM's own connector:

* A chunk stands for the tokens that are loaded of it; a Mamba state for the whole hit.
* Where groups overlap, the tier counts that is farther from the device.
* Tokens that no group loads, such as those before a window, are of no tier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from attrs import frozen

from blocklife.offload import Geometry, Hit, Mamba

Span = tuple[int, int]
"""Some tokens: the first one, and the one after the last."""


@frozen
class HitTokens:
    """The tokens of one hit, by where they come from."""

    host: int
    below: int
    unknown: int


def sources(geometry: Geometry, hit: Hit, tokens: int, fetched: Collection[int]) -> HitTokens:
    """Split the first *tokens* that a hit loads; *fetched* are the slots whose content came from below for it."""
    start, stop = hit.device_tokens, hit.device_tokens + tokens
    host: list[Span] = []
    below: list[Span] = []
    for group in range(len(geometry.groups)):
        for first, last, is_below in _loaded(geometry, hit, group, fetched):
            (below if is_below else host).append((max(first, start), min(last, stop)))
    farther, either = covered(below), covered([*host, *below])
    return HitTokens(host=either - farther, below=farther, unknown=tokens - either)


def _loaded(geometry: Geometry, hit: Hit, group: int, fetched: Collection[int]) -> Iterator[tuple[int, int, bool]]:
    """The tokens that one group loads, and whether they come from below: neighbours that come from the same tier at once."""
    slots = hit.slots[group]
    if isinstance(geometry.groups[group], Mamba):
        yield from ((hit.device_tokens, hit.tokens, slot in fetched) for slot in slots)
        return
    tokens, chunk = geometry.block_tokens[group], geometry.chunk_tokens[group]
    first = max(geometry.needed(group, hit.compute_from).start, hit.device_tokens // tokens) * tokens
    at = first // chunk
    for is_below, run in groupby(slots, fetched.__contains__):
        stop = at + len(list(run))
        yield max(first, at * chunk), min(hit.tokens, stop * chunk), is_below
        at = stop


def covered(spans: Iterable[Span]) -> int:
    """How many tokens lie in at least one of these."""
    total, end = 0, 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
