"""Ears on SGLang's cache controller: which copies are queued, launched together, and taken for landed.

Jobs are numbered here: SGLang's own number is that of a node of its tree, and the same node can be written again. The
operations of a queue are launched together and have one acknowledgement; each is a job here for each memory that it copies, and
all of them land with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from attrs import define, frozen

from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts, numbers
from blocklife.watch._calls import given
from blocklife.watch._contents import OVERDUE, OVERDUE_AMONG_RANKS, ContentBook
from blocklife.watch._pages import PageBook


@frozen(eq=False)
class CopiedMemory:
    """A memory of the device whose copies are followed, with the host memory behind it."""

    book: ContentBook
    host: object
    """Its host pool."""
    page: int
    pool: str = ""
    """How SGLang calls it beside the pages, which have no name in an operation."""

    def copied_by(self, operation: object) -> Iterator[tuple[object, list[int], list[int]]]:
        """What an operation copies of this memory: what says so, blocks and slots."""
        said: Sequence[object] = [operation]
        if self.pool:
            named: Sequence[object] = getattr(operation, "pool_transfers", None) or ()
            said = [each for each in named if getattr(getattr(each, "name", None), "name", "") == self.pool]
        for each in said:
            yield each, self._places(getattr(each, "device_indices", None)), self._places(getattr(each, "host_indices", None))

    def _places(self, indices: object) -> list[int]:
        tokens, size = numbers(indices), self.page
        return [token // size for token in tokens[::size]]

    def pairs(self, device: object, host: object) -> set[tuple[int, int]]:
        """The blocks and slots of these tokens, in pairs."""
        size = self.page
        found = zip(numbers(device), numbers(host), strict=False)
        return {(block // size, slot // size) for block, slot in found if not slot % size}


Job = tuple[CopiedMemory, int]
"""The memory, and the number in its book."""


@define(eq=False)
class Acknowledged:
    """Copies that were launched together, until the engine has taken note of their end."""

    ack: object
    jobs: Sequence[Job]
    producer: int = -1
    """The number under which a step waits for a load."""
    num_landed: int = 0
    """Steps since the device has ended them."""


class CopyEars:
    """Ears on one controller, and on the checks of its acknowledgements."""

    def __init__(self, ears: Ears, parts: CacheParts, book: PageBook, states: CopiedMemory | None = None) -> None:
        """*states*: that memory beside the pages, where there is one."""
        self._controller = parts.controller
        self._memories = [CopiedMemory(book, parts.host, parts.page), *([] if states is None else [states])]
        self._queued: dict[int, tuple[object, list[Job]]] = {}
        """The operations in a queue, by identity, and their jobs."""
        self._writes: list[Acknowledged] = []
        self._loads: list[Acknowledged] = []
        self._due: list[Job] = []
        self._moved: dict[CopiedMemory, set[tuple[int, int]]] | None = None
        """What the launch under way copies of each memory; None where the release does not show it."""
        self._layers: dict[tuple[CopiedMemory, object], set[tuple[int, int]]] = {}
        """The same of each layer, as far as a host pool was told; one launch may copy a layer in several parts."""
        self._has_ranks = parts.num_ranks > 1
        self._steps_stream = parts.steps_stream
        controller, tree = parts.controller, parts.tree
        ears.hear(controller, "write", after=self._look_at_writes)
        ears.hear(controller, "load", after=self._look_at_loads)
        ears.hear(controller, "start_writing", before=self._writing, after=self._written)
        ears.hear(controller, "start_loading", before=self._loading, after=self._loaded)
        if parts.is_copied_page_by_page:
            for name in ("submit_device_to_host", "submit_host_to_device"):
                ears.hear(getattr(controller, "l2_transfer_engine", None), name, before=self._moves)
            for name in ("backup_from_device_all_layer_physical", "load_to_device_per_layer_physical"):
                for memory in self._memories:
                    ears.hear(memory.host, name, before=functools.partial(self._copies, memory), scope="copy")
        for name in ("writing_check", "loading_check"):
            ears.hear(tree, name, after=self._checked)

    # --- queues -------------------------------------------------------------------------------------------------------------

    def _look_at_writes(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._look("write_queue", is_store=True)

    def _look_at_loads(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._look("load_queue", is_store=False)

    def _look(self, queue: str, *, is_store: bool) -> list[Job]:
        """Number the operations of a queue that are new. Returns the jobs of all that are in it."""
        jobs: list[Job] = []
        for operation in getattr(self._controller, queue):
            if id(operation) not in self._queued:
                self._queued[id(operation)] = operation, list(self._jobs_of(operation, is_store=is_store))
            jobs += self._queued[id(operation)][1]
        return jobs

    def _jobs_of(self, operation: object, *, is_store: bool) -> Iterator[Job]:
        for memory in self._memories:
            for said, blocks, slots in memory.copied_by(operation):
                yield memory, memory.book.queued(blocks, slots, is_store=is_store)
                if getattr(said, "nodes_to_load", None):
                    memory.book.reloaded(blocks)

    def _moves(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """What the device is told to copy, of the memory that is followed."""
        self._moved, self._layers = {memory: set() for memory in self._memories}, {}
        transfers = given(args, kwargs, "transfers")[0]
        for transfer in transfers if isinstance(transfers, list) else ():
            for memory, moved in self._moved.items():
                if getattr(transfer, "host_pool", None) is memory.host and not getattr(transfer, "is_draft", False):
                    moved |= memory.pairs(transfer.device_indices, transfer.host_indices)

    def _copies(self, memory: CopiedMemory, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """What a host pool is told to copy, layer by layer. Indices on the device are not read: that would wait for it."""
        _, host, device, layer = given(args, kwargs, "device_pool", "host_indices", "device_indices", "layer_id")
        if self._moved is not None and not any(getattr(each, "is_cuda", True) for each in (host, device)):
            self._layers.setdefault((memory, layer), set()).update(memory.pairs(device, host))

    def _writing(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._due = self._look("write_queue", is_store=True)

    def _loading(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._due = self._look("load_queue", is_store=False)

    def _written(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._launched("ack_write_queue", "write_fence_stream", self._writes, -1)

    def _loaded(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._launched("ack_load_queue", "load_fence_stream", self._loads, result if isinstance(result, int) else -1)

    def _launched(self, queue: str, fence: str, out: list[Acknowledged], producer: int) -> None:
        jobs, self._due = self._due, []
        moved, self._moved = self._moved, None
        if moved is not None:
            for (memory, _), copied in self._layers.items():
                moved[memory] &= copied
        if not jobs:
            return
        due = set(jobs)
        self._queued = {key: each for key, each in self._queued.items() if due.isdisjoint(each[1])}
        is_ordered = self._is_ordered(fence)
        for memory in self._memories:
            own = [number for of, number in jobs if of is memory]
            if moved is not None:
                memory.book.moved(own, moved[memory])
            memory.book.launched_copies(own, is_ordered=is_ordered)
        out.append(Acknowledged(getattr(self._controller, queue)[-1], jobs, producer))

    def _is_ordered(self, fence: str) -> bool:
        """Whether the copies wait for the stream on which steps run, or for some other one if that is not known."""
        found, steps = getattr(self._controller, fence, None), self._steps_stream()
        return found is not None and (steps is None or found is steps or bool(found == steps))

    # --- acknowledgements ---------------------------------------------------------------------------------------------------

    def _checked(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for queue, out in (("ack_write_queue", self._writes), ("ack_load_queue", self._loads)):
            left = {id(ack) for ack in getattr(self._controller, queue)}
            for each in [each for each in out if id(each.ack) not in left]:
                out.remove(each)
                is_early = not _has_landed(each.ack)
                for memory, job in each.jobs:
                    memory.book.landed(job, is_early=is_early)

    def look(self) -> None:
        """At a step: what has landed must be taken note of some time."""
        late = OVERDUE_AMONG_RANKS if self._has_ranks else OVERDUE
        for each in (*self._writes, *self._loads):
            each.num_landed = each.num_landed + 1 if _has_landed(each.ack) else 0
            if each.num_landed == late:
                memory = self._memories[0]  # all have landed together, and one violation says it
                memory.book.overdue([job for of, job in each.jobs if of is memory], among_ranks=self._has_ranks)

    def waited_for(self, producer: int, book: ContentBook) -> list[int]:
        """The jobs of a book that a step waits for which consumes this producer."""
        acks = [each for each in self._loads if each.producer == producer >= 0]
        return [job for each in acks for memory, job in each.jobs if memory.book is book]

    def forget(self) -> None:
        """The engine has forgotten all copies."""
        self._queued, self._writes, self._loads = {}, [], []


def _has_landed(ack: object) -> bool:
    """Whether the device says so: asked through the class of the event, which nothing of the engine's has changed."""
    event = getattr(ack, "finish_event", None)
    query = getattr(type(event), "query", None)
    return query is None or bool(query(event))
