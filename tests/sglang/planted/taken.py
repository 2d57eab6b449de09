"""Faults that are planted in SGLang one at a time: a lock, a wait or a fence is taken out, and the rig must see it.

Each is done to the objects of one rank, from outside, before its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen

from tests.sglang.rig import Rank


@frozen
class Fault:
    """What is taken out, and a world in which that matters."""

    world: str
    plant: Callable[[Rank], None]
    shows: frozenset[str] = frozenset({"corrupt"})


def prefix_unlocked(rank: Rank) -> None:
    """A request takes no lock on the prefix that it reads: an eviction may hand its pages out."""
    rank.tree.lock = lambda *_, **__: None
    rank.tree.unlock = lambda *_, **__: None


def write_unlocked(rank: Rank) -> None:
    """What is being written through is unlocked as soon as its copy is queued."""
    tree, controller = rank.tree, rank.engine.controller
    submit = controller.start_writing

    def start_writing() -> None:
        submit()
        for name, entry in list(tree.ongoing_write_through.items()):
            if entry.lock_params is not None:
                tree.dec_lock_ref(entry.node_id, entry.lock_params)
                tree.ongoing_write_through[name] = entry._replace(lock_params=None)

    controller.start_writing = start_writing


def acknowledged_early(rank: Rank) -> None:
    """A copy to the host counts as landed as soon as it is launched."""
    engine = rank.engine.controller.l2_transfer_engine
    submit = engine.submit_device_to_host

    def early(*args: object, **kwargs: object) -> Any:
        completion = submit(*args, **kwargs)
        completion.finish_event.query = lambda: True
        completion.finish_event.synchronize = lambda: None
        return completion

    engine.submit_device_to_host = early


def host_page_freed(rank: Rank) -> None:
    """The host pages of a load are given back when it is queued, and may be written before they are read."""
    controller = rank.engine.controller
    host = controller.mem_pool_host
    load, free = controller.load, host.free
    gone: set[int] = set()

    def loaded(host_indices: torch.Tensor, *args: object, **kwargs: object) -> Any:
        slots = load(host_indices, *args, **kwargs)
        if slots is not None:
            gone.update(host_indices.tolist())
            free(host_indices)
        return slots

    def freed(indices: torch.Tensor, **kwargs: object) -> int:
        rest = [slot for slot in indices.tolist() if slot not in gone]
        gone.difference_update(indices.tolist())
        return int(free(torch.tensor(rest, dtype=indices.dtype), **kwargs)) if rest else 0

    controller.load, host.free = loaded, freed


def load_not_waited_for(rank: Rank) -> None:
    """The forward pass does not wait for the layers of the load that it needs."""
    rank.engine.worker.counter = None


def no_write_fence(rank: Rank) -> None:
    """A copy to the host does not wait for the forward pass that still writes what it reads."""
    rank.engine.controller.write_fence_stream = None


def no_load_fence(rank: Rank) -> None:
    """A load does not wait for the forward pass that still uses the pages it goes to."""
    rank.engine.controller.load_fence_stream = None


def page_freed_twice(rank: Rank) -> None:
    """One page of each finished request goes back to the allocator although the tree has it."""
    tree, allocator = rank.tree, rank.engine.allocator
    insert = tree.insert

    def inserted(params: Any) -> Any:
        result = insert(params)
        if params.value is not None and len(params.value) >= allocator.page_size:
            allocator.free(params.value[: allocator.page_size])
        return result

    tree.insert = inserted


FAULTS: dict[str, Fault] = {
    "prefix_unlocked": Fault("pages", prefix_unlocked),
    "write_unlocked": Fault("pages", write_unlocked),
    "acknowledged_early": Fault("pages", acknowledged_early),
    "written_back_early": Fault("back", acknowledged_early),
    "host_page_freed": Fault("back-tight", host_page_freed, frozenset({"corrupt", "AssertionError"})),
    "load_not_waited_for": Fault("pages", load_not_waited_for),
    "no_write_fence": Fault("pages-overlap", no_write_fence),
    "no_load_fence": Fault("back-overlap", no_load_fence),
    "page_freed_twice": Fault("pages", page_freed_twice),
}
