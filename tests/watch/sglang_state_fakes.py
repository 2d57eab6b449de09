"""The fakes of `sglang_fakes` with layers that keep states: their memory, its host pool, and how a step comes by a state."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.watch.sglang_fakes import FakeEngine, FakePrompt, Indices, slots_of

NUM_STATES, NUM_HOST_STATES = 8, 10
CHUNK = 2
"""Tokens that the layers compute at once; a page has twice as many."""


class Kind(Enum):
    """Kinds of memory, as the core and the host pools call them."""

    FULL = 0
    MAMBA = 1


class FakeStateAllocator:
    """Hands out the slots that the test has named."""

    def __init__(self) -> None:
        self.size = NUM_STATES
        self.free_slots = np.arange(1, NUM_STATES + 1)
        self.next: list[int] = []
        self.group: list[int] = []
        self.left = NUM_STATES

    def alloc(self, need_size: int) -> Indices | None:
        """None if the test has named too few."""
        chosen, self.next = self.next[:need_size], self.next[need_size:]
        return np.array(chosen) if len(chosen) == need_size else None

    def free(self, free_index: Indices) -> None:
        """Nothing."""

    def alloc_group_end(self) -> None:
        """Free what was set aside."""
        self.free(np.array(self.group))

    def available_size(self) -> int:
        """As the test says."""
        return self.left

    def clear(self) -> None:
        """All is free."""


class FakeStatePool:
    """Where the states are."""

    def clear_slots(self, indices: Indices) -> None:
        """Nothing."""

    def copy_from(self, src_indices: Indices, dst_indices: Indices) -> None:
        """Nothing."""


class FakeHostStates:
    """The same on the host."""

    def __init__(self) -> None:
        self.size = NUM_HOST_STATES
        self.free_slots = np.arange(NUM_HOST_STATES)
        self.release_slots: list[Indices] = []
        self.next: list[int] = []

    def alloc(self, need_size: int) -> Indices | None:
        """The next slots that the test has named."""
        chosen, self.next = self.next[:need_size], self.next[need_size:]
        return np.array(chosen) if chosen else None

    def free(self, indices: Indices) -> int:
        """Nothing."""
        return len(indices)

    def prepare_transfer_indices(
        self, host_indices: Indices, device_indices: Indices, io_backend: str
    ) -> tuple[Indices, Indices]:
        """What is copied, in the numbers of this memory."""
        return host_indices, device_indices

    def backup_from_device_all_layer_physical(self, pool: object, host: Indices, device: Indices, backend: str) -> None:
        """Copy to the host."""

    def load_to_device_per_layer_physical(self, pool: object, host: Indices, device: Indices, layer: int, backend: str) -> None:
        """Copy a layer from there."""

    def clear(self) -> None:
        """All is free."""


class FakeStateEngine(FakeEngine):
    """A scheduler of a model whose layers 0 and 2 keep states."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__(ranks)
        self.states, self.state_pool, self.host_states = FakeStateAllocator(), FakeStatePool(), FakeHostStates()
        rows: Any = self.tree_cache.req_to_token_pool
        rows.mamba_allocator, rows.mamba_pool = self.states, self.state_pool
        rows.mamba_map, rows.start_layer = {0: 0, 2: 1}, 0
        rows.req_index_to_mamba_index_mapping = np.zeros(8, dtype=np.int64)
        self.entry = SimpleNamespace(
            name=Kind.MAMBA,
            host_pool=self.host_states,
            device_alloc_fn=self.states.alloc,
            device_free_fn=self.states.free,
        )
        self.host.entries = [self.entry]
        self.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(mamba_chunk_size=CHUNK))
        self.is_hybrid_ssm = True
        self.kept_states, self.locked_states = 0, 0
        tree: Any = self.tree_cache
        tree.mamba_evictable_size = lambda: self.kept_states
        tree.mamba_protected_size = lambda: self.locked_states
        self.had = False
        """Whether the tree has the next state already."""
        tree.insert = lambda params: SimpleNamespace(mamba_exist=self.had)

    # What a test does with it.

    def take_states(self, *slots: int) -> None:
        """Hand these slots out."""
        self.states.next = [*slots]
        self.states.alloc(len(slots))

    def free_states(self, *slots: int) -> None:
        """Free these slots."""
        self.states.free(np.array(slots))

    def clear_states(self, *slots: int) -> None:
        """Clear these slots."""
        self.state_pool.clear_slots(np.array(slots))

    def copy_state(self, source: int, target: int) -> None:
        """Copy a state from slot to slot."""
        self.state_pool.copy_from(np.array([source]), np.array([target]))

    def plan_state(
        self,
        name: str,
        tokens: Sequence[int],
        slot: int,
        start: int = 0,
        *,
        extends: bool = True,
        kept: int = 0,
        reached: int = -1,
        waits: int = -1,
    ) -> None:
        """Plan a step of one request whose pages are of no interest, with the slot of its state.

        *kept*: a slot for the cache; *reached*: what the engine tells the layers about where that state is.
        """
        request = self.requests.setdefault(name, FakePrompt(rid=name, origin_input_ids=[*tokens], output_ids=[]))
        request.output_ids = [*tokens[len(request.origin_input_ids) :]]
        row = list(self.requests).index(name)
        rows: Any = self.tree_cache.req_to_token_pool
        rows.req_index_to_mamba_index_mapping[row] = slot
        self.batch = SimpleNamespace(
            reqs=[request],
            forward_mode=SimpleNamespace(is_extend=lambda: extends),
            prefix_lens=[start] if extends else None,
            req_pool_indices=np.array([row]),
            seq_lens_cpu=np.array([len(tokens)]),
            hicache_consumer_index=waits,
            mamba_track_mask=np.array([bool(kept)]),
            mamba_track_indices=np.array([kept]),
            mamba_track_seqlens=np.array([reached]),
        )
        rows.req_to_token[row, : len(tokens)] = slots_of([1, 2, 3, 4])[: len(tokens)]
        self.get_next_batch_to_run()

    def launch(self, waits: int = -1, layers: Sequence[int] = (0, 1, 2)) -> None:
        """Launch what was planned: its layers wait for their parts of a load."""
        self.controller.layer_done_counter.set_consumer(waits)
        for layer in layers:
            self.controller.layer_done_counter.wait_until(layer)

    def go_on(self, name: str, tokens: Sequence[int], slot: int, start: int = 0, **more: Any) -> None:
        """A step and its result."""
        self.plan_state(name, tokens, slot, start, **more)
        self.launch(more.get("waits", -1))
        self.result()

    def keep_state(self, tokens: Sequence[int], slot: int, *, had: bool = False) -> None:
        """Keep this state in the tree, if it has it not."""
        self.had = had
        key = SimpleNamespace(token_ids=[*tokens])
        self.tree_cache.insert(
            SimpleNamespace(key=key, value=slots_of([1, 2, 3, 4])[: len(tokens)], mamba_value=np.array([slot]))
        )

    def store_state(self, slot: int, host: int) -> None:
        """Queue and launch a copy of a state to the host."""
        self.queue_store_of_state(slot, host)
        self.controller.start_writing()

    def queue_store_of_state(self, slot: int, host: int) -> None:
        """Queue it."""
        self.host_states.next = [host]
        beside = SimpleNamespace(name=Kind.MAMBA, device_indices=np.array([slot]), host_indices=self.host_states.alloc(1))
        self.controller.write(slots_of([]), beside=[beside])

    def load_state(self, host: int, *slots: int) -> int:
        """Queue and launch loads of a state; the first of these slots is the tree's, the others are those of requests."""
        nodes: list[list[int] | None] = [[1], *[None for _ in slots[1:]]]
        parts = [
            SimpleNamespace(name=Kind.MAMBA, device_indices=np.array([slot]), host_indices=np.array([host]), nodes_to_load=node)
            for slot, node in zip(slots, nodes, strict=True)
        ]
        self.controller.load(slots_of([]), beside=parts)
        return self.controller.start_loading()
