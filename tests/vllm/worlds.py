"""What a world of the rig is made of, and the worlds that have a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from attrs import field, frozen, validators

from tests.behind.worlds import read

Kind = Literal["full", "latents", "swa", "recent", "local", "mamba", "ring", "replay"]
"""The kind of attention of a group. *latents* is *full*, and *recent* is *swa*, of latents instead of keys and values. *ring*
is one block for each request, with its last tokens; *replay* is *recent*, and computed once more behind each hit. Of these two
nothing is found again."""
WITH_WINDOW: tuple[Kind, ...] = ("swa", "recent", "local", "ring", "replay")
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

    kind: Kind = field(validator=validators.in_(get_args(Kind)))
    block_tokens: int = field(default=4, validator=validators.ge(1))
    window: int | None = field(default=None)
    """Tokens that a sliding window sees, the query's own included; of a part of local attention; that are compressed together
    out of a ring; None for other kinds."""
    drafter: bool = field(default=False)
    """Whether layers of a drafter are among those of the group."""

    @window.validator
    def _window_belongs_to_swa(self, attribute: object, value: int | None) -> None:
        if (value is None) is (self.kind in WITH_WINDOW):
            raise ValueError(f"a group of kind {self.kind} with window {value} (only {', '.join(WITH_WINDOW)} need one)")

    @property
    def is_found_again(self) -> bool:
        """Whether its content has keys."""
        return self.kind not in ("ring", "replay")


@frozen
class Lag:
    """How many steps a copy takes, drawn for each job and worker, both ends included; 0 lands in the step of its launch.

    Of the bytes of a job about half move when the copy starts and the rest when it lands, place by place, so that what is
    read too early and what is overwritten too early both show.
    """

    shortest: int = field(default=0, validator=validators.ge(0))
    longest: int = field(default=0, validator=validators.ge(0))
    late_fences: bool = False
    """Whether a copy that a step was to wait for is reported late, too, as where the device waits and the host goes on."""


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
    alike: int = 1
    """How many neighbouring workers hold the same content, as where a model has fewer heads than there are workers."""
    blocks_per_chunk: int = 1
    prefix_caching: bool = True
    dense_retention: bool = False
    """Whether newer releases keep every block of a window and every state in the prefix cache, and not only where a prompt
    ends, which is their default; older releases always do."""
    connector: Connector | None = "offloading"
    role: str = "kv_both"
    """What vLLM is told that the engine does with content, beside others that make or use it (``kv_role``)."""
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

    about: str = ""
    spec: WorldSpec = WorldSpec()
    connector_resets: bool = False
    """Whether resets of the prefix cache may reach the host tier too, with copies out."""
    busy: bool = False
    """Whether the traffic of every seed keeps the engine full and asks for the same prompts again."""
    differs: bool = False
    """Whether requests with the same tokens differ in their salt, their adapter, or an image."""


def group(text: str) -> GroupSpec:
    """A group as a file spells it: its kind, the tokens of a block, and a window, as in ``swa:4:8+drafter``."""
    whole, plus, _ = text.partition("+drafter")
    kind, *sizes = whole.split(":")
    tokens, window = int(sizes[0]) if sizes else 4, int(sizes[1]) if len(sizes) > 1 else None
    return GroupSpec(kind, tokens, window, drafter=bool(plus))  # type: ignore[arg-type]  # it is checked


_LAG = lambda ends: Lag(*ends)  # noqa: E731
SETS = read(
    Path(__file__).with_name("worlds.toml"),
    World,
    WorldSpec,
    {"groups": lambda texts: tuple(map(group, texts)), "lag": _LAG, "below": _LAG},
)
WORLDS, TIERED, LONG, PLANTED = SETS["worlds"], SETS["tiered"], SETS["long"], SETS["planted"]
"""Those of most tests; of 0.33.0 with its file-system tier below the host; of the long run; those in which bugs are planted."""
