"""The options of the connector, from `kv_connector_extra_config`: keys, defaults and checks.

Rules of this file:

* An unknown key is an error that suggests the nearest known one. Nothing is ignored.
* Every option has a default, documented here; only the size of the host tier has none.
* Some keys of vLLM's own OffloadingConnector are accepted as aliases, so that a configuration can be reused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import cache, partial

from attrs import evolve, field, fields, frozen

from blocklife.copiers import MoverTable, read_movers
from blocklife.engines import _options as options
from blocklife.errors import MisuseError
from blocklife.groups import MAX_BLOCKS_PER_CHUNK
from blocklife.knobs import Knob, knobs
from blocklife.ledger import Checking
from blocklife.ledger._edge import MOST
from blocklife.ledger._limits import MAX_JOBS, MAX_SLOTS
from blocklife.offload import BelowPolicies, LastStep, Policies


class HitSource(enum.Enum):
    """Tiers below host memory, by the names that vLLM's metrics have for them."""

    DISK = "disk"
    P2P = "p2p"
    EXTERNAL_UNSPECIFIED = "external_unspecified"


ALIASES: Mapping[str, str] = {
    "cpu_bytes_to_use": "host_bytes",
    "offload_prompt_only": "prompt_only",
    "eviction_policy": "policy",
}
"""Aliases: keys of vLLM's OffloadingConnector that mean the same here."""

PLACE = "kv_connector_extra_config"
"""Where the options stand."""

USUAL = Policies(last_step=LastStep.DRAIN, pending_wait=5.0)
USUAL_BELOW = BelowPolicies(max_wait=5.0, max_told=1 << 18)
"""The policies of a connector that is told nothing; the unit of time is the second."""
_FOLLOW = frozenset({"plans_ahead", "load_within_tokens", "state_drafts"})
"""Policies that are no option: they follow from others and from vLLM's settings."""
_POLICIES: Mapping[str, Knob] = {
    each.name + "_s" * (each.kind is float): each for each in knobs(Policies) if each.name not in _FOLLOW
}
"""The policies that are options, by key."""


def _bytes_or_none(key: str, value: object) -> int:
    """A number of bytes, or 0."""
    return 0 if options.whole(value) == 0 else options.num_bytes(key, value)


@frozen
class Caps:
    """The limits of a single request (its ``kv_transfer_params``); None: as the engine is configured."""

    store_tokens: int | None = None
    load_tokens: int | None = None

    @classmethod
    def read(cls, given: object) -> tuple[Caps, list[str]]:
        """The caps of a request, and a message for each invalid one: a client's mistake must not stop the engine."""
        if given is not None and not isinstance(given, Mapping):
            return cls(), [f"kv_transfer_params must be an object with names and values, not {given!r} (they are left out)"]
        found: list[int | None] = []
        problems: list[str] = []
        for key in ("max_offload_tokens", "max_load_tokens"):
            value = given.get(key) if given is not None else None
            fits = type(value) is int and value >= 0
            found.append(min(value, MOST) if isinstance(value, int) and fits else None)
            if value is not None and not fits:
                problems.append(f"{key} must be a whole number of at least 0, not {value!r} (it is left out)")
        return cls(*found), problems


@frozen(kw_only=True)
class ConnectorConfig:
    """The options of one engine. Give exactly one of ``host_bytes`` and ``host_blocks``."""

    host_bytes: int | None = field(default=None, metadata={"read": options.num_bytes})
    """Host memory for all workers of one engine together, in bytes or as a text like 64GiB. Content that several ranks of a
    machine hold alike, as those of MLA, is kept once. With data parallelism there are several engines, and each has as much."""
    host_blocks: int | None = field(default=None, metadata={"read": options.count})
    """Host memory of each worker, in device blocks."""
    blocks_per_chunk: int = field(default=1, metadata={"read": partial(options.count, most=MAX_BLOCKS_PER_CHUNK)})
    """Number of neighbouring blocks of a group that are stored and hit as one chunk."""
    policy: str = field(default="arc", metadata={"read": options.replacement})
    """The eviction policy of the host tier, by its name in `blocklife.offload.replacement` or one that was registered there.

    arc is the default because it had more hits in conversations at all host-tier sizes measured (`tests.vllm.hits`).
    """
    policies: Policies = USUAL
    """The policies of the scheduler, each under its own name, and a time in seconds: ``pending_wait_s``. How far plans run
    ahead and how many drafts have states are vLLM's own settings, and a budget of bytes says how many tokens load within a
    step."""
    sync_load_budget_bytes: int = field(default=0, metadata={"read": _bytes_or_none})
    """How many bytes a step may load on each worker before its forward pass, for all requests together, as a number or a text
    like 8MiB. A hit that still fits costs its request no step; the others load between two steps. 0: all of them do.

    As in vLLM's own connector, a hit counts with the bytes of all its tokens in all groups. With Mamba states all loads take
    two steps."""
    sync_load_parts: int = field(default=1, metadata={"read": partial(options.count, most=options.MAX_PARTS)})
    """In how many parts of neighbouring layers the loads of that budget go. With more than one, each layer of the forward pass
    waits only for its own part, and the rest is loaded behind the layers before. It has an effect where vLLM runs attention
    outside CUDA graphs, in prefills with *piecewise* graphs or none; elsewhere the pass waits for whole loads."""
    max_jobs: int = field(default=4096, metadata={"read": partial(options.count, most=MAX_JOBS)})
    """Maximum number of outstanding copies."""
    below: str | None = field(default=None, metadata={"read": options.address})
    """The address of a store below host memory, in a form that `blocklife.tiers.open_store` takes; default: none."""
    policies_below: BelowPolicies = USUAL_BELOW
    """The policies of the tier below, each under its own name behind ``below_``, a time in seconds: ``below_wait_s``."""
    below_source: HitSource | None = field(default=None, metadata={"read": options.one_of(HitSource)})
    """What vLLM's metrics call the store below; default: disk for files, external_unspecified for others."""
    below_generation: str = field(default="", metadata={"read": options.text})
    """Any text; only engines with the same one share content. Change it when other weights get the name of a model."""
    self_describing_kv_events: bool = field(default=False, metadata={"read": options.flag})
    """Whether KV cache events of stored content have its tokens, the hashes of its blocks and the parent of the first."""
    sleep_keeps_host: bool = field(default=False, metadata={"read": options.flag})
    """Whether the host tier keeps its content while the engine sleeps. vLLM resets it then as for new weights, and does not say
    which it is: set this only if the engine wakes up with its old weights, or if its caches are reset for new ones."""
    movers: MoverTable | None = field(default=None, metadata={"read": read_movers})
    """Which method of copying takes which copy on a CUDA device: the path of what `blocklife doctor --movers FILE` wrote, or
    what is in it. Default: each worker probes its own device when it starts."""
    host_checksums: bool = field(default=False, metadata={"read": options.flag})
    """Whether host memory is checked: each block is summed when it was stored, and compared before it is loaded. One with other
    bytes fails its load, is counted (``host_damaged``) and logged. It costs the host two reads of each byte."""
    checking: Checking = field(default=Checking.COUNT, metadata={"read": options.one_of(Checking)})
    """What happens when a rule of the ledger is broken: strict raises, count counts it and goes on, off does not check."""

    def __attrs_post_init__(self) -> None:
        if (self.host_bytes is None) is (self.host_blocks is None):
            given = "neither" if self.host_bytes is None else "both"
            raise MisuseError(f"{PLACE}: {given} of host_bytes and host_blocks given (say how much host memory there is, once)")

    @classmethod
    def read(cls, extra: Mapping[str, object]) -> ConnectorConfig:
        """Read the options from a dictionary. Refuses: an unknown key, an option given twice, an invalid value."""
        readers = _readers()
        found: dict[str, object] = {}
        for key, value in extra.items():
            name = options.known_key(PLACE, key, readers, "connector", ALIASES)
            if name in found:
                raise MisuseError(f"{PLACE}: {key!r} says {name!r} once more (leave one of them out)")
            found[name] = readers[name](f"{PLACE}: {key}", value)
        options.check_below(PLACE, found)
        own, below = options.policies(found, _POLICIES), options.policies(found, options.BELOW)
        make: Callable[..., ConnectorConfig] = cls  # the readers have made them what they are
        return make(policies=_told(**own), policies_below=_told_below(**below), **found)

    @property
    def source_below(self) -> HitSource:
        """What a hit from the store below is counted as."""
        if self.below_source is not None:
            return self.below_source
        return HitSource.DISK if (self.below or "").startswith("fs:") else HitSource.EXTERNAL_UNSPECIFIED

    def num_slots(self, block_bytes: int, num_parts: int) -> int:
        """The number of chunks that the host tier holds, of which the workers hold so many different parts.

        Refuses less than one, with the numbers.
        """
        if self.host_blocks is not None:
            slots, given = self.host_blocks // self.blocks_per_chunk, f"host_blocks={self.host_blocks}"
            need = f"{self.blocks_per_chunk} blocks"
        else:
            chunk = block_bytes * self.blocks_per_chunk * num_parts
            slots, given = (self.host_bytes or 0) // chunk, f"host_bytes={self.host_bytes}"
            need = f"{chunk} bytes in {num_parts} parts"
        if slots < 1:
            raise MisuseError(f"{PLACE}: {given} holds no chunk, which takes {need} (give more)")
        if slots > MAX_SLOTS:
            raise MisuseError(
                f"{PLACE}: {given} holds {slots} chunks, of which there can be {MAX_SLOTS} at most "
                "(give less, or more blocks_per_chunk)"
            )
        return slots


_told: Callable[..., Policies] = partial(evolve, USUAL)
_told_below: Callable[..., BelowPolicies] = partial(evolve, USUAL_BELOW)


@cache
def _readers() -> Mapping[str, Callable[[str, object], object]]:
    """How the value of each key is read."""
    own = {each.name: each.metadata["read"] for each in fields(ConnectorConfig) if "read" in each.metadata}
    return own | {key: options.knob(each) for key, each in {**_POLICIES, **options.BELOW}.items()}


def keys() -> tuple[str, ...]:
    """Every key, without aliases."""
    return tuple(_readers())
