"""What a world of the rig is made of, and the worlds that have a name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attrs import field, frozen, validators

from tests.behind.worlds import read


@frozen
class WorldSpec:
    """All that decides how LMCache is built. Two rigs of one spec and one seed do the same."""

    chunk_tokens: int = 4
    places: int = field(default=24, validator=validators.ge(1))
    """Of L1, one for each chunk and worker."""
    workers: int = field(default=1, validator=validators.ge(1))
    adapters: tuple[int, ...] = (64,)
    """The places of each L2 adapter."""
    l2_evicts: bool = False
    policy: Literal["LRU", "ARC"] = "LRU"
    watermark: float = 0.6
    ratio: float = 0.3
    prefetch: Literal["default", "retain"] = "default"
    """Whether L1 keeps what was loaded from L2 once it is read."""
    store: Literal["default", "skip_l1"] = "default"
    """Whether L1 keeps what was stored to L2."""
    max_prefetches: int = 8
    write_lease: int = 600
    """Seconds that a writer may take."""
    read_lease: int = 300
    """Seconds that readers may take."""
    step_seconds: float = 0.25
    """How far the clock goes on in a step."""
    lag: float = field(default=0.5, validator=[validators.gt(0.0), validators.le(1.0)])
    """The chance that what could go on in a step does."""
    parallel: bool = False
    """Whether a worker has several transfers at a time."""
    fails: float = 0.0
    """The share of L2 tasks that fail."""


@frozen
class World:
    """A spec with a name, and what it is for."""

    about: str
    spec: WorldSpec
    crashes: float = 0.0
    """The chance at each step that a worker dies, and is reaped."""
    slow: float = 0.0
    """The chance of each half of a transfer that it takes longer than any lease."""
    clears: float = 0.0
    """The chance at each step that an operator clears what is not locked."""


SETS = read(Path(__file__).with_name("worlds.toml"), World, WorldSpec, {"adapters": tuple})
WORLDS, UNKIND = SETS["worlds"], SETS["unkind"]
"""Those in which nothing may go wrong, and those whose timing breaks LMCache's own rules."""
