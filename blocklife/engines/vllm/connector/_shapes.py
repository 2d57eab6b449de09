"""Protocols for the attributes of vLLM's objects that the scheduler side of the connector reads.

They are declared here instead of imported, so that the code can be type-checked and read without vLLM.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from attrs import frozen

from blocklife.engines._store import StoreBelow
from blocklife.offload import Geometry


class LoraAdapter(Protocol):
    """`LoRARequest`: the adapter of a request."""

    @property
    def adapter_id(self) -> int:
        """Its number."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...


class VllmRequest(Protocol):
    """A request of vLLM. It changes while it runs; the connector reads it again each time."""

    @property
    def request_id(self) -> str:
        """Its name."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of its prompt."""
        ...

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and the sampled ones."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """The token at which vLLM continues."""
        ...

    @property
    def replay_start(self) -> int:
        """Where vLLM has begun to compute the end of its hit once more, from 0.33 on; 0 if it does not."""
        ...

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Whether it must not use the prefix cache."""
        ...

    @property
    def status(self) -> enum.Enum:
        """Its status; its name is PREEMPTED if its blocks were taken."""
        ...

    @property
    def num_stale_output_tokens(self) -> int:
        """Tokens that steps compute which are out, and that do not count any more."""
        ...

    @property
    def resumable(self) -> bool:
        """Whether it is a session, which continues with another prompt after it ends."""
        ...

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Its known tokens."""
        ...

    @property
    def lora_request(self) -> LoraAdapter | None:
        """Its adapter, if it has one."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """The hashes of its full blocks, in units of the hash block size."""
        ...


class BlockTables(Protocol):
    """`KVCacheBlocks`: the block tables of one request."""

    def get_block_ids(self) -> tuple[list[int], ...]:
        """One list per group; 0 is the null block."""
        ...


class CachedRequests(Protocol):
    """`CachedRequestData`: scheduled requests that were scheduled before."""

    @property
    def req_ids(self) -> Sequence[str]:
        """Their ids."""
        ...

    @property
    def resumed_req_ids(self) -> Collection[str]:
        """Those that resume after a preemption."""
        ...

    @property
    def new_block_ids(self) -> Sequence[tuple[list[int], ...] | None]:
        """The blocks appended to their tables."""
        ...


class BlockState(Protocol):
    """`KVConnectorBlockState`: data from the allocator for the connector only."""

    @property
    def boundary_state_offloads(self) -> Mapping[str, Sequence[tuple[int, int, int]]]:
        """Mamba states to keep: group, block and boundary, by request."""
        ...


class BlockCopy(Protocol):
    """`KVCacheBlockCopy`: a copy on the device ahead of the forward pass."""

    @property
    def dst_block_id(self) -> int:
        """The block that it fills."""
        ...


class SchedulerOutput(Protocol):
    """vLLM's decisions for one step."""

    @property
    def scheduled_cached_reqs(self) -> CachedRequests:
        """Requests that were scheduled before."""
        ...

    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]:
        """Tokens of each scheduled request."""
        ...

    @property
    def preempted_req_ids(self) -> Collection[str] | None:
        """Requests preempted since the last step."""
        ...

    @property
    def new_block_ids_to_zero(self) -> Sequence[int] | None:
        """Blocks that the step zeroes first."""
        ...

    @property
    def kv_cache_block_copies(self) -> Sequence[BlockCopy] | None:
        """Blocks that the step copies first: of prefixes that end inside a block."""
        ...

    @property
    def kv_connector_block_state(self) -> BlockState | None:
        """Data that is not sent to the workers."""
        ...


@frozen
class OfferedGroups:
    """Which of vLLM's groups have a group here; groups are numbered from 0 on here, without those left out.

    The blocks of the others are memory of their request alone: they are not stored, loaded or found, but they are handed out.
    """

    numbers: tuple[int, ...]
    """vLLM's number of each group, in its order."""
    others: tuple[int, ...] = ()
    """vLLM's numbers of the groups that are left out."""

    def tables(self, given: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Of a list of blocks for each of vLLM's groups, those for the groups here."""
        return [given[number] for number in self.numbers] if self.others else given

    def unnamed(self, given: Sequence[Sequence[int]]) -> list[int]:
        """The blocks of the groups that are left out."""
        return [block for number in self.others for block in given[number] if block]


@frozen(kw_only=True)
class CacheShape:
    """What the scheduler side needs to know about the engine."""

    geometry: Geometry
    groups: OfferedGroups
    hashes_per_block: tuple[int, ...]
    """For each group, how many of a request's hashes one block spans."""
    tokens_per_hash: int
    num_blocks: int
    """Including the null block."""
    num_slots: int
    num_workers: int
    max_running: int
    max_batches: int
    """Number of steps that the workers can have at once."""
    incarnation: int
    """Identifies this start of the engine."""
    one_a_step: bool
    """Whether a step samples exactly one token for each request whose known tokens are all computed."""
    events: bool
    """Whether KV cache events are enabled."""
    self_describing: bool = False
    """Whether they describe the content that they name."""
    zeroes_first: bool = False
    """Whether workers zero new blocks before they wait for the copies that read them, as model runner V2 does."""
    names_sessions: bool = True
    """Whether a session's hashes are those of its content when it has gone on. If not, it neither stores nor loads."""
    below: StoreBelow | None = None
    """The store below host memory."""
    state_drafts: int = 0
    """How many blocks a request has in each Mamba group for the states of its guesses, behind that of its running state."""
    lands_in_step: bool = False
    """Whether no step ends before its copies, because each worker has a scheduler of its own and all must decide alike."""
    load_within_tokens: int = 0
    """How many tokens a step may load before its forward pass (`ConnectorConfig.sync_load_budget_bytes`)."""
    replay_tokens: int = 0
    """How many tokens before the end of a hit are computed once more, for groups that are left out; their content stays."""


PeekFree = Callable[[int], Iterable[int]]
"""A function that returns the next blocks that the engine's allocator will hand out, given their number."""
Evict = Callable[[set[int]], None]
"""A function that makes the engine's allocator forget the content of these blocks, whether a request holds them or not."""
