"""What the scheduler's side of the connector looks at in vLLM's objects, and nothing else.

They are described here instead of imported, so that the translation can be type-checked, and read, without vLLM.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from attrs import frozen

from blocklife.offload import Geometry


class VllmRequest(Protocol):
    """A request of vLLM. It grows while it runs; the connector reads it anew each time."""

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
        """Tokens that are known: the prompt, and what was sampled."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Where vLLM goes on with it."""
        ...

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Whether it wants nothing that was computed before."""
        ...

    @property
    def status(self) -> enum.Enum:
        """Where it stands: PREEMPTED by name, if its blocks were taken."""
        ...

    @property
    def resumable(self) -> bool:
        """Whether it is a session, which goes on with another prompt when it has ended."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """The names of its full blocks, in units of the hash."""
        ...


class BlockTables(Protocol):
    """`KVCacheBlocks`: the block tables of one request."""

    def get_block_ids(self) -> tuple[list[int], ...]:
        """One list a group; 0 is the null block."""
        ...


class CachedRequests(Protocol):
    """`CachedRequestData`: who is scheduled and was scheduled before."""

    @property
    def req_ids(self) -> Sequence[str]:
        """Their names."""
        ...

    @property
    def resumed_req_ids(self) -> Collection[str]:
        """Those of them that come back from a preemption."""
        ...

    @property
    def new_block_ids(self) -> Sequence[tuple[list[int], ...] | None]:
        """What was put behind their tables."""
        ...


class BlockState(Protocol):
    """`KVConnectorBlockState`: what the allocator hands to the connector alone."""

    @property
    def boundary_state_offloads(self) -> Mapping[str, Sequence[tuple[int, int, int]]]:
        """States of Mamba groups: group, block and boundary, by request."""
        ...


class SchedulerOutput(Protocol):
    """What vLLM decided in one step."""

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
        """Who was preempted since the last step."""
        ...

    @property
    def new_block_ids_to_zero(self) -> Sequence[int] | None:
        """Blocks that the step zeroes before anything else."""
        ...

    @property
    def kv_connector_block_state(self) -> BlockState | None:
        """What is not for the workers."""
        ...


@frozen(kw_only=True)
class CacheShape:
    """What the scheduler's side has to know of the engine."""

    geometry: Geometry
    hashes_per_block: tuple[int, ...]
    """Of each group: how many of a request's hashes one block spans."""
    num_blocks: int
    """The null block included."""
    num_slots: int
    num_workers: int
    max_running: int
    max_batches: int
    """Steps that can be with the workers at once."""
    incarnation: int
    """Which start of the engine this is."""
    one_a_step: bool
    """Whether a step samples one token of a request whose known tokens it has computed, and never more or none."""
    events: bool
    """Whether somebody wants to hear what changes in the host tier."""


PeekFree = Callable[[int], Iterable[int]]
"""The blocks that the engine's allocator hands out next, so many of them."""
