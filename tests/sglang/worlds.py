"""What a world of the rig is made of, and the worlds that have a name."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen, validators

Policy = Literal["write_through", "write_through_selective", "write_back"]
Tree = Literal["unified", "hiradix"]
Kind = Literal["full", "swa", "mamba"]
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
    """What layers there are: full attention only, full attention and windows, full attention and states."""
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

WORLDS: dict[str, World] = {
    "full": World(
        "Full attention under pressure, pages of one token, written through, the plain loop.",
        WorldSpec(page_tokens=1, device_pages=72, host_pages=160, lag=LATE),
    ),
    "full-overlap": World(
        "The same with overlap: a step is scheduled while the forward pass of the one before is under way.",
        WorldSpec(page_tokens=1, device_pages=72, host_pages=160, overlap=True, lag=LATE),
    ),
    "pages": World(
        "Pages of four tokens, written through, a host that is little larger than the device.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=36, lag=LATE),
        busy=True,
    ),
    "pages-overlap": World(
        "The same with overlap.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=36, overlap=True, lag=LATE),
        busy=True,
    ),
    "back": World(
        "Pages of four tokens, written back when they are evicted, to a host that is half as large again.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=36, policy="write_back", lag=LATE),
        busy=True,
    ),
    "back-tight": World(
        "Written back to a host that is hardly larger; up to 0.5.14 a load loses its host pages to the eviction it needs.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=26, policy="write_back", lag=LATE),
        busy=True,
    ),
    "back-overlap": World(
        "The same with overlap.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=36, policy="write_back", overlap=True, lag=LATE),
        busy=True,
    ),
    "selective": World(
        "Written through only what was hit twice, with overlap.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=48, policy="write_through_selective", overlap=True, lag=LATE),
        busy=True,
    ),
    "ranks": World(
        "Two ranks that agree on what has landed, with overlap.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=36, overlap=True, world_size=2, lag=LATE),
        busy=True,
    ),
    "window": World(
        "A layer with full attention and one with a window, whose memory is smaller, written through, with overlap.",
        WorldSpec("swa", page_tokens=1, device_pages=96, window_pages=64, host_pages=200, overlap=True, lag=LATE),
        busy=True,
    ),
    "window-pages": World(
        "The same in pages of four tokens, in the plain loop.",
        WorldSpec("swa", page_tokens=4, device_pages=32, window_pages=24, host_pages=64, lag=LATE),
        busy=True,
    ),
    "states": World(
        "Two layers with states and one with full attention, pages of one token, written through, the plain loop.",
        WorldSpec("mamba", device_pages=160, host_pages=240, lag=LATE),
        busy=True,
    ),
    "states-overlap": World(
        "With overlap; a running request has two more states, which are cached in turn.",
        WorldSpec("mamba", device_pages=160, host_pages=240, overlap=True, states="extra_buffer", state_slots=30, lag=LATE),
        busy=True,
    ),
    "states-lazy": World(
        "The same, but the second of these has memory only while it is needed.",
        WorldSpec(
            "mamba", device_pages=160, host_pages=240, overlap=True, states="extra_buffer_lazy", state_slots=24, lag=LATE
        ),
        busy=True,
    ),
    "states-pages": World(
        "Pages of four tokens and a state behind each eight, in the plain loop; a running request has one more state.",
        WorldSpec(*("mamba", 4, 40, 60), states="extra_buffer", state_slots=24, state_tokens=8, track_tokens=8, lag=LATE),
        busy=True,
    ),
    "states-back": World(
        "The first of these, written back when it is evicted.",
        WorldSpec("mamba", device_pages=160, host_pages=240, policy="write_back", lag=LATE),
        busy=True,
    ),
    "storage": World(
        "Files behind the host, moved by SGLang's own threads; what is read again was forgotten by flushes.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=48, storage=True, lag=LATE),
        flushes=True,
    ),
    "storage-back": World(
        "The same, written back when it is evicted: from the device to the host, and from there to the files.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=48, policy="write_back", storage=True, lag=LATE),
        flushes=True,
    ),
    "skewed": World(
        "Two ranks of which one has less host memory; up to 0.5.13.post1 one waits in a collective that the other skips.",
        WorldSpec(page_tokens=4, device_pages=24, host_pages=36, world_size=2, host_skew=8, lag=LATE),
        busy=True,
    ),
}
