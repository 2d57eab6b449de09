"""What a world of the rig is made of, and the worlds that have a name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attrs import field, frozen, validators

from tests.behind.worlds import read

Policy = Literal["write_through", "write_through_selective", "write_back"]
Tree = Literal["unified", "hiradix"]
Kind = Literal["full", "latents", "indexed", "swa", "mamba"]
States = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]


@frozen
class Lag:
    """How late the device is: at each step a stream runs up to *most* of its operations with this chance, or none."""

    chance: float = field(default=1.0, validator=[validators.ge(0.0), validators.le(1.0)])
    most: int = field(default=1_000_000, validator=validators.ge(1))


@frozen
class WorldSpec:
    """All that decides how the engine of a rig is built. Two rigs of one spec and one seed do the same."""

    kind: Kind = "full"
    """What layers there are: full attention only (over keys and values, over latents, over latents with index keys beside them,
    the two for a linker only), full attention and windows, full attention and states."""
    layers: int = field(default=2, validator=validators.ge(1))
    """Of those with full attention only."""
    page_tokens: int = field(default=1, validator=validators.ge(1))
    device_pages: int = 24
    host_pages: int = 48
    max_num_seqs: int = 6
    prefill_tokens: int = 64
    """Tokens that one step computes of prompts, at most."""
    chunk_tokens: int | None = 16
    """Tokens that one step computes of one prompt, at most."""
    policy: Policy = "write_through"
    overlap: bool = False
    """Whether a step is scheduled while the forward pass of the one before is under way."""
    window: int = 8
    """Tokens that a layer with a window sees, the query's own included."""
    window_pages: int = 16
    """Device memory of the layers with windows."""
    slide: int | None = None
    """The tokens by which the window of a running request moves on at once; None: SGLang's own choice, more than texts have."""
    states: States = "no_buffer"
    """What SGLang keeps of a running request's states: the latest only, or beside it one or two that are to be cached."""
    state_slots: int = 18
    """Device memory of the layers with states: so many states; SGLang wants three to five for each request."""
    state_tokens: int = 4
    """The model's chunk: a prompt leaves a state for the cache behind a whole number of these (or of pages)."""
    track_tokens: int = 8
    """An answer leaves one behind each multiple of so many."""
    world_size: int = 1
    host_skew: int = 0
    """Pages that each further rank has less in host memory, so that ranks have to do different things."""
    storage: bool = False
    core: str | None = None
    """The tree core of newer releases; None: the release's default."""
    tree: Tree | None = None
    """None: what the release has live behind its hierarchical cache."""
    lag: Lag = Lag()
    linker: str | None = None
    """The class of a linker (``module:Class``) that keeps host memory instead of SGLang itself; None: there is none."""


@frozen
class World:
    """A spec with a name, and what it is for."""

    about: str
    spec: WorldSpec
    flushes: bool = False
    """Whether the traffic of every seed makes the engine forget all now and then, and asks for the same prompts again."""
    busy: bool = False
    """Whether the traffic of every seed keeps the engine full and asks for the same prompts again."""


LATE = Lag(0.5, 6)
SETS = read(Path(__file__).with_name("worlds.toml"), World, WorldSpec, {"lag": lambda late: Lag(*late)})
WORLDS, PLANTED = SETS["worlds"], SETS["planted"]
"""Those of most tests, and those in which bugs are planted beside them."""
