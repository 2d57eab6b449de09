"""Ears on SGLang's cache controller: which copies are queued, launched together, and taken for landed.

Jobs are numbered here: SGLang's own number is that of a node of its tree, and the same node can be written again. The
operations of a queue are launched together and have one acknowledgement; each is a job here, and all of them land with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts, numbers
from blocklife.watch._calls import given
from blocklife.watch._contents import OVERDUE, OVERDUE_AMONG_RANKS
from blocklife.watch._pages import PageBook


@define(eq=False)
class Acknowledged:
    """Copies that were launched together, until the engine has taken note of their end."""

    ack: object
    jobs: Sequence[int]
    producer: int = -1
    """The number under which a step waits for a load."""
    num_landed: int = 0
    """Steps since the device has ended them."""


class CopyEars:
    """Ears on one controller, and on the checks of its acknowledgements."""

    def __init__(self, ears: Ears, parts: CacheParts, book: PageBook) -> None:
        self._book = book
        self._controller = parts.controller
        self._page = parts.page
        self._queued: dict[int, tuple[object, int]] = {}
        """The operations in a queue, by identity, and their jobs."""
        self._writes: list[Acknowledged] = []
        self._loads: list[Acknowledged] = []
        self._due: list[int] = []
        self._moved: set[tuple[int, int]] | None = None
        """The pages of device and host that the launch under way copies; None where the release does not show them."""
        self._host = parts.host
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
                ears.hear(parts.host, name, before=self._copies, scope="copy")
        for name in ("writing_check", "loading_check"):
            ears.hear(tree, name, after=self._checked)

    # --- queues -------------------------------------------------------------------------------------------------------------

    def _look_at_writes(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._look("write_queue", is_store=True)

    def _look_at_loads(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._look("load_queue", is_store=False)

    def _look(self, queue: str, *, is_store: bool) -> list[int]:
        """Number the operations of a queue that are new. Returns the jobs of all that are in it."""
        jobs = []
        for operation in getattr(self._controller, queue):
            if id(operation) not in self._queued:
                blocks, slots = (self._places(operation, name) for name in ("device_indices", "host_indices"))
                self._queued[id(operation)] = operation, self._book.queued(blocks, slots, is_store=is_store)
            jobs.append(self._queued[id(operation)][1])
        return jobs

    def _places(self, operation: object, name: str) -> list[int]:
        tokens, size = numbers(getattr(operation, name)), self._page
        return [token // size for token in tokens[::size]]

    def _moves(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """What the device is told to copy, of the memory that is followed."""
        self._moved, size = set(), self._page
        transfers = given(args, kwargs, "transfers")[0]
        for transfer in transfers if isinstance(transfers, list) else ():
            if getattr(transfer, "host_pool", None) is self._host and not getattr(transfer, "is_draft", False):
                pairs = zip(numbers(transfer.device_indices), numbers(transfer.host_indices), strict=False)
                self._moved.update((block // size, slot // size) for block, slot in pairs if not slot % size)

    def _copies(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """What the host pool is told to copy, layer by layer. Indices on the device are not read: that would wait for it."""
        host, device = given(args, kwargs, "device_pool", "host_indices", "device_indices")[1:]
        size, on_device = self._page, [getattr(each, "is_cuda", True) for each in (host, device)]
        if self._moved is None or any(on_device):
            return
        pairs = zip(numbers(device), numbers(host), strict=False)
        self._moved &= {(block // size, slot // size) for block, slot in pairs if not slot % size}

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
        if not jobs:
            return
        self._queued = {key: each for key, each in self._queued.items() if each[1] not in jobs}
        if moved is not None:
            self._book.moved(jobs, moved)
        self._book.launched_copies(jobs, is_ordered=self._is_ordered(fence))
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
                for job in each.jobs:
                    self._book.landed(job, is_early=is_early)

    def look(self) -> None:
        """At a step: what has landed must be taken note of some time."""
        late = OVERDUE_AMONG_RANKS if self._has_ranks else OVERDUE
        for each in (*self._writes, *self._loads):
            each.num_landed = each.num_landed + 1 if _has_landed(each.ack) else 0
            if each.num_landed == late:
                self._book.overdue(each.jobs, among_ranks=self._has_ranks)

    def waited_for(self, producer: int) -> list[int]:
        """The jobs that a step waits for which consumes this producer."""
        return [job for each in self._loads if each.producer == producer >= 0 for job in each.jobs]

    def forget(self) -> None:
        """The engine has forgotten all copies."""
        self._queued, self._writes, self._loads = {}, [], []


def _has_landed(ack: object) -> bool:
    """Whether the device says so: asked through the class of the event, which nothing of the engine's has changed."""
    event = getattr(ack, "finish_event", None)
    query = getattr(type(event), "query", None)
    return query is None or bool(query(event))
