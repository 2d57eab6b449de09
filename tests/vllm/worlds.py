"""What a world of the rig is made of, and the worlds that have a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import field, frozen, validators

Kind = Literal["full", "swa", "local", "mamba"]
Connector = Literal["offloading", "simple", "blocklife"]
Extra = Mapping[str, object]


@frozen
class Beside:
    """What the content of a request depends on beside its tokens."""

    salt: str | None = None
    adapter: str | None = None
    images: Sequence[tuple[str, int, int]] = ()
    """Of each its id, the token at which it begins, and its tokens."""


TEXT_ALONE = Beside()


@frozen
class GroupSpec:
    """One KV-cache group: layers that share a block layout and an attention kind."""

    kind: Kind = field(validator=validators.in_(("full", "swa", "local", "mamba")))
    block_tokens: int = field(default=4, validator=validators.ge(1))
    window: int | None = field(default=None)
    """Tokens that a sliding window sees, the query's own included, or of a part of local attention; None for other kinds."""
    drafter: bool = field(default=False)
    """Whether layers of a drafter are among those of the group."""

    @window.validator
    def _window_belongs_to_swa(self, attribute: object, value: int | None) -> None:
        if (value is None) is (self.kind in ("swa", "local")):
            raise ValueError(f"a group of kind {self.kind} with window {value} (only swa and local have one, and need it)")


@frozen
class Lag:
    """How many steps a copy takes, drawn for each job and worker, both ends included; 0 lands in the step of its launch.

    Of the bytes of a job about half move when the copy starts and the rest when it lands, place by place, so that what is
    read too early and what is overwritten too early both show.
    """

    shortest: int = field(default=0, validator=validators.ge(0))
    longest: int = field(default=0, validator=validators.ge(0))


@frozen
class WorldSpec:
    """All that decides how the engine of a rig is built. Two rigs of one spec and one seed do the same."""

    groups: tuple[GroupSpec, ...] = (GroupSpec("full"),)
    num_gpu_blocks: int = 64
    """The null block included."""
    host_blocks: int = 64
    """Host memory, in GPU blocks: a chunk takes *blocks_per_chunk* of them."""
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    async_scheduling: bool = False
    world_size: int = 1
    blocks_per_chunk: int = 1
    prefix_caching: bool = True
    dense_retention: bool = False
    """Whether newer releases keep every block of a window and every state in the prefix cache, and not only where a prompt
    ends, which is their default; older releases always do."""
    connector: Connector | None = "offloading"
    extra_config: Extra = field(factory=dict)
    priority: bool = False
    """Whether a request says how urgent it is, instead of who comes first."""
    part_tokens: int = 0
    """A step computes no more of one prompt, while there are others; 0: as many as there is room for."""
    lag: Lag = Lag()
    hash_tokens: int | None = None
    """Tokens of one hash, where that is less than a block; then a prefix can end inside a block."""
    below: Lag | None = None
    """How long files take, where OffloadingConnector's host has vLLM's file-system tier below it; None: it has none."""
    file_threads: bool = False
    """Whether the tier's own threads move these bytes, whenever they get to it; then a seed does not say what a run does."""
    file_faults: float = field(default=0.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """The share of jobs of the file-system tier that fail: a store that is not written, a file that is cut or gone."""
    encoder_tokens: int = 0
    """Room for the outputs of an encoder, in tokens, and how many a step computes at most, as a model with images has them."""
    events: bool = False
    """Whether the engine sends KV cache events."""
    refusals: float = field(default=0.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """The share of stores that the host tier refuses, over and above those it has no room for."""


@frozen
class World:
    """A spec with a name, what it is for, and what its traffic does beyond the ordinary."""

    about: str
    spec: WorldSpec
    connector_resets: bool = False
    """Whether resets of the prefix cache may reach the host tier too, with copies out."""
    busy: bool = False
    """Whether the traffic of every seed keeps the engine full and asks for the same prompts again."""
    differs: bool = False
    """Whether requests with the same tokens differ in their salt, their adapter, or an image."""


FULL = GroupSpec("full")
WINDOW = GroupSpec("swa", window=8)
STATE = GroupSpec("mamba")
_LAG = Lag(0, 4)

TIERED: dict[str, World] = {
    "below": World(
        "A host tier with files below it, which is smaller than what is asked for, and resets that include it.",
        WorldSpec((FULL,), 24, 16, max_num_batched_tokens=16, lag=_LAG, below=Lag(0, 5)),
        connector_resets=True,
        busy=True,
    ),
    "below-faults": World(
        "The same on a bad disk, with asynchronous scheduling and two workers.",
        WorldSpec((FULL,), 24, 16, 8, 16, async_scheduling=True, world_size=2, lag=_LAG, below=Lag(0, 5), file_faults=0.1),
        busy=True,
    ),
    "below-window": World(
        "Files below a host that refuses stores, and a window.",
        WorldSpec((WINDOW,), 20, 16, max_num_batched_tokens=16, lag=_LAG, below=Lag(0, 5), refusals=0.2),
        busy=True,
    ),
    "below-hybrid": World(
        "Files below the host, a full-attention group and a window.",
        WorldSpec((FULL, WINDOW), 40, 28, max_num_batched_tokens=16, lag=_LAG, below=Lag(0, 5), file_faults=0.02),
    ),
    "below-threads": World(
        "Files below a roomy host, moved by the tier's own threads: what is read again was forgotten by resets.",
        WorldSpec((FULL,), 24, 400, max_num_batched_tokens=16, lag=_LAG, below=Lag(), file_threads=True),
        connector_resets=True,
    ),
}
"""Worlds of 0.33.0 with its file-system tier below the host."""

WORLDS: dict[str, World] = {
    "full": World(
        "One full-attention group under pressure; in 0.21.0 the last step leaves copies behind.",
        WorldSpec((FULL,), num_gpu_blocks=24, host_blocks=24, max_num_batched_tokens=16, lag=_LAG),
    ),
    "full-async": World(
        "The same with asynchronous scheduling and two workers.",
        WorldSpec((FULL,), 24, 24, max_num_batched_tokens=16, async_scheduling=True, world_size=2, lag=_LAG),
    ),
    "window": World(
        "A sliding window and a host tier that refuses stores; up to 0.22.1 blocks are stored that have a new tenant.",
        WorldSpec((WINDOW,), num_gpu_blocks=20, host_blocks=24, max_num_batched_tokens=16, lag=_LAG, refusals=0.3),
        busy=True,
    ),
    "window-async": World(
        "The same with asynchronous scheduling and two workers.",
        WorldSpec((WINDOW,), 28, 24, max_num_batched_tokens=16, async_scheduling=True, world_size=2, lag=_LAG, refusals=0.3),
        busy=True,
    ),
    "chunks": World(
        "Chunks of four blocks that straddle the edge of a window; in 0.21.0 the sizes of a job count its null blocks.",
        WorldSpec((WINDOW,), 400, 400, 4, 4, blocks_per_chunk=4, dense_retention=True, lag=_LAG),
        busy=True,
    ),
    "chunks-tight": World(
        "The same in a small pool: where a block inside a chunk is handed out again, those behind it move (0.33.0 too).",
        WorldSpec((WINDOW,), 40, 64, max_num_batched_tokens=16, blocks_per_chunk=4, lag=_LAG),
        busy=True,
    ),
    "chunks-hybrid": World(
        "Chunks of two blocks, a window of three: a chunk that is stored in part counts as a hit for all of it (0.33.0 too).",
        WorldSpec((FULL, GroupSpec("swa", window=12)), 64, 64, max_num_batched_tokens=16, blocks_per_chunk=2, lag=_LAG),
        busy=True,
    ),
    "simple": World(
        "SimpleCPUOffload, eager; in 0.21.0 blocks are stored again while their store is in flight.",
        WorldSpec((FULL,), 32, 48, max_num_batched_tokens=16, connector="simple", lag=Lag(1, 4)),
        busy=True,
    ),
    "simple-hybrid": World(
        "SimpleCPUOffload with a full-attention group and a window, asynchronous scheduling and two workers.",
        WorldSpec((FULL, WINDOW), 48, 48, 8, 16, async_scheduling=True, world_size=2, connector="simple", lag=Lag(1, 4)),
    ),
    "hybrid": World(
        "A full-attention group and a window; up to 0.23.0 a loading request may get a block that it also hits.",
        WorldSpec((FULL, WINDOW), 40, 40, max_num_batched_tokens=16, lag=_LAG, refusals=0.2),
    ),
    "hybrid-roomy": World(
        "The same groups with room for all, so that loads come from resets of the device's cache only.",
        WorldSpec((FULL, WINDOW), 400, 400, max_num_batched_tokens=32, lag=_LAG),
    ),
    "states": World(
        "All three kinds of group; releases before 0.23.0 refuse it, and 0.23.0 takes a state for one that it has not.",
        WorldSpec((FULL, WINDOW, STATE), 60, 60, max_num_batched_tokens=16, lag=_LAG),
    ),
    "resets": World(
        "Resets that include the host tier while copies are out; up to 0.23.0 they forget the jobs of live requests.",
        WorldSpec((FULL, WINDOW), 40, 40, max_num_batched_tokens=16, async_scheduling=True, lag=_LAG),
        connector_resets=True,
    ),
    "resets-window": World(
        "The same with a window and dense retention: what is stored again after a reset may have a new tenant (0.33.0 too).",
        WorldSpec((WINDOW,), 24, 64, max_num_batched_tokens=16, dense_retention=True, lag=_LAG),
        connector_resets=True,
        busy=True,
    ),
}
