"""Ears on SGLang's cache controller: which copies are queued, launched together, and taken for landed.

Jobs are numbered here: SGLang's own number is that of a node of its tree, and the same node can be written again. The
operations of a queue are launched together and have one acknowledgement; each is a job here for each memory that it copies, and
all of them land with it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

from attrs import define, field

from blocklife.engines.sglang.watch._memory import AnyMemory, Pairs
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.engines.sglang.watch._reading import numbers
from blocklife.watch import OVERDUE, OVERDUE_AMONG_RANKS, ContentBook, Ears, HeardCall, TakesBack

ASKED_TWICE = 3
"""`Acknowledged.num_used` when two checks of all ranks in a row have left a load uncounted."""
Job = tuple[AnyMemory, int]
"""The memory, and the number in its book."""
Part: TypeAlias = tuple[AnyMemory, int, bool]
"""A memory, its host pool or one beside that, and whether it is of a drafter's layers."""


class CopyWay(NamedTuple):
    """What the controller has for copies of one direction."""

    queue: str
    queues: str
    """The method that fills its queue."""
    launches: str
    acks: str
    fence: str
    """The stream that orders its copies."""


WRITES = CopyWay("write_queue", "write", "start_writing", "ack_write_queue", "write_fence_stream")
LOADS = CopyWay("load_queue", "load", "start_loading", "ack_load_queue", "load_fence_stream")


@define(eq=False)
class Acknowledged:
    """Copies that were launched together, until the engine has taken note of their end."""

    ack: object
    jobs: Sequence[Job]
    producer: int = -1
    """The number under which a step waits for a load."""
    num_landed: int = 0
    """Steps since the device has ended them."""
    num_used: int = 0
    """Loads: checks that have left them uncounted since the engine has the result of a step that waited for them; 0 before."""


@define(eq=False)
class Moving:
    """A launch under way."""

    told: dict[Part, Pairs] = field(factory=dict)
    """What it was told to copy, in all layers."""
    due: set[tuple[Part, object]] = field(factory=set)
    """Each layer that a host pool must be told to copy."""
    copied: dict[tuple[Part, bool, object], Pairs] = field(factory=dict)
    """What it was told, by the method that it was told by; one launch may copy a layer in several parts.

    Nothing where that lies on the device.
    """
    parsed: dict[tuple[int, int], tuple[object, object, Pairs]] = field(factory=dict)
    """What was read of the tensors, which are the same for each layer."""

    def whole(self, memory: AnyMemory, inner: Collection[tuple[Part, bool]], *, is_store: bool) -> Pairs:
        """The blocks and slots that are copied whole: in each layer, and in all that is kept beside them.

        *inner*: parts that are copied by the inner one of two methods.
        """
        copied = {(part, layer): pairs for (part, by, layer), pairs in self.copied.items() if by is ((part, is_store) in inner)}
        if any(each not in copied for each in self.due if each[0][0] is memory):
            return set()
        told = [pairs for part, pairs in self.told.items() if part[0] is memory]
        told += [pairs for (part, _), pairs in copied.items() if part[0] is memory and pairs]
        return set.intersection(*map(memory.whole, told)) if told else set()


class CopyEars:
    """Ears on one controller, and on the checks of its acknowledgements."""

    def __init__(self, ears: Ears, parts: CacheParts) -> None:
        self._reading = parts.reading
        self._controller = parts.controller
        self._memories = parts.memories
        self._queued: dict[int, tuple[object, list[Job]]] = {}
        """The operations in a queue, by identity, and their jobs."""
        self._out: dict[CopyWay, list[Acknowledged]] = {WRITES: [], LOADS: []}
        self._due: list[list[Job]] = []
        self._moving: Moving | None = None
        """The launch under way; None where the release does not show it."""
        self._inner: set[tuple[Part, bool]] = set()
        """Parts of which a host pool copies by a further method of its own, and whether to the host."""
        self._translated: set[AnyMemory] = set()
        """Those whose host pool is told other numbers than the launch, as in the unified pools: they are not compared."""
        self._has_ranks = parts.num_ranks > 1
        self._compute_together = self._has_ranks and getattr(parts.tree, "pp_size", 1) in (None, 1)
        """Whether the ranks compute each step at one time, which the stages of a pipeline do not."""
        self._steps_stream = parts.steps_stream
        controller, tree = parts.controller, parts.tree
        for way in (WRITES, LOADS):
            ears.hear(controller, way.queues, after=functools.partial(self._look_at, way))
            ears.hear(
                controller,
                way.launches,
                before=functools.partial(self._launches, way),
                after=functools.partial(self._launched, way),
            )
        transfers = getattr(controller, "l2_transfer_engine", None) if parts.pages.has_pages else None
        for name, is_store in (("submit_device_to_host", True), ("submit_host_to_device", False)):
            ears.hear(transfers, name, before=functools.partial(self._moves, is_store), tells="what a launch copies")
        for memory in self._memories if transfers is not None else ():
            for host in (memory.host, *memory.beside):
                ears.hear(host, "prepare_transfer_indices", after=functools.partial(self._prepared, memory))
                for name, is_store in (("backup_from_device_all_layer", True), ("load_to_device_per_layer", False)):
                    for end in ("_physical", ""):  # a pool's own, and the one within, if it leaves the work to that
                        heard = functools.partial(self._copies, memory, host, is_store, not end)
                        ears.hear(host, name + end, before=heard)
        for name in ("writing_check", "loading_check"):
            ears.hear(tree, name, after=functools.partial(self._checked, name == "loading_check"))

    # --- queues -------------------------------------------------------------------------------------------------------------

    def _look_at(self, way: CopyWay, call: HeardCall) -> None:
        self._look(way)

    def _look(self, way: CopyWay) -> list[list[Job]]:
        """Number the operations of a queue that are new. Returns the jobs of each that is in it, as soon as they are read."""
        jobs: list[list[Job]] = []
        for operation in getattr(self._controller, way.queue):
            if id(operation) not in self._queued:
                self._queued[id(operation)] = operation, []
                self._take(operation, self._queued[id(operation)][1], is_store=way is WRITES)
            jobs.append(self._queued[id(operation)][1])
        return jobs

    def _take(self, operation: object, jobs: list[Job], *, is_store: bool) -> None:
        def told(memory: AnyMemory, is_reload: bool, device: list[int], host: list[int]) -> None:
            jobs.append((memory, memory.queued(device, host, is_store=is_store, is_reload=is_reload)))

        for memory in self._memories:
            for said in memory.said_of(operation):
                tell = functools.partial(told, memory, bool(getattr(said, "nodes_to_load", None)))
                self._reading.later(tell, getattr(said, "device_indices", None), getattr(said, "host_indices", None))

    # --- launches -----------------------------------------------------------------------------------------------------------

    def _moves(self, is_store: bool, call: HeardCall) -> None:
        """What the device is told to copy, of the memory that is followed."""
        self._moving = moving = Moving()

        def told(part: Part, device: list[int], host: list[int]) -> None:
            moving.told.setdefault(part, set()).update(zip(device, host, strict=False))
            part[0].fit("a launch is", device, host)

        transfers, last = call.given("transfers")[0], call.kwargs.get("transfer_layer_id_max")
        for at, transfer in enumerate(transfers if isinstance(transfers, list) else ()):
            host, is_draft = getattr(transfer, "host_pool", None), bool(getattr(transfer, "is_draft", False))
            for memory in self._memories:
                if any(each is host for each in (memory.host, *memory.beside)):
                    part = memory, id(host), is_draft
                    self._reading.later(functools.partial(told, part), transfer.device_indices, transfer.host_indices)
                    layers = {None} if is_store else _layers_of(transfer, last, is_first=not at)
                    moving.due.update((part, layer) for layer in layers)

    def _prepared(self, memory: AnyMemory, call: HeardCall) -> None:
        host, device = call.given("host_indices", "device_indices")
        if not (isinstance(call.result, tuple) and call.result[0] is host and call.result[1] is device):
            self._translated.add(memory)

    def _copies(self, memory: AnyMemory, host: object, is_store: bool, is_inner: bool, call: HeardCall) -> None:
        """What a host pool is told to copy, layer by layer. Indices on the device are not read: that would wait for it."""
        pool, slots, places, layer = call.given("device_pool", "host_indices", "device_indices", "layer_id")
        moving, part = self._moving, (memory, id(host), bool(call.kwargs.get("is_draft", False)))
        if moving is None:
            return
        if is_inner:
            self._inner.add((part, is_store))
        copied = moving.copied.setdefault((part, is_inner, None if is_store else layer), set())
        is_other = memory in self._translated or getattr(pool, "host_transfer_translate", None) is not None
        if is_other or any(getattr(each, "is_cuda", True) for each in (slots, places)):
            return
        key = id(slots), id(places)
        if key not in moving.parsed:
            device, others = numbers(places), numbers(slots)
            memory.fit("a launch is", device, others)
            moving.parsed[key] = slots, places, set(zip(device, others, strict=False))
        copied.update(moving.parsed[key][2])

    def _launches(self, way: CopyWay, call: HeardCall) -> TakesBack:
        self._due = self._look(way)
        return self._not_launched

    def _not_launched(self) -> None:
        """The call that was to launch copies has failed: they are queued still, as far as anybody knows."""
        self._due, self._moving = [], None

    def _launched(self, way: CopyWay, call: HeardCall) -> None:
        due, moving = self._due, self._moving
        self._not_launched()
        if not due:
            return
        launched = {*map(id, due)}
        self._queued = {key: each for key, each in self._queued.items() if id(each[1]) not in launched}
        is_ordered, ack = self._is_ordered(way.fence), getattr(self._controller, way.acks)[-1]
        producer = call.result if way is LOADS and isinstance(call.result, int) else -1

        def told() -> None:
            jobs = [job for each in due for job in each]
            for memory in self._memories:
                own = [number for of, number in jobs if of is memory]
                if moving is not None:
                    memory.book.moved(own, moving.whole(memory, self._inner, is_store=way is WRITES))
                memory.book.launched_copies(own, is_ordered=is_ordered)
            self._out[way].append(Acknowledged(ack, jobs, producer))

        self._reading.later(told)

    def _is_ordered(self, fence: str) -> bool:
        """Whether the copies wait for the stream on which steps run, or for some other one if that is not known."""
        found, steps = getattr(self._controller, fence, None), self._steps_stream()
        return found is not None and (steps is None or found is steps or bool(found == steps))

    # --- acknowledgements ---------------------------------------------------------------------------------------------------

    def _checked(self, is_of_loads: bool, call: HeardCall) -> None:
        self._reading.report()
        for way, out in self._out.items():
            left = {id(ack) for ack in getattr(self._controller, way.acks)}
            for each in [each for each in out if id(each.ack) not in left]:
                out.remove(each)
                is_early = not _has_landed(each.ack)
                for memory, job in each.jobs:
                    memory.book.landed(job, is_early=is_early)
        if is_of_loads and self._compute_together:
            self._ask_ranks()

    def used(self, load: int) -> list[Acknowledged]:
        """What a step that is launched waits for: when the engine has its result, that has been used (`has_result`)."""
        return [each for each in self._out[LOADS] if each.producer == load >= 0]

    def has_result(self, waited: Sequence[Acknowledged]) -> None:
        """The engine has the result of a step that has waited for these.

        Ranks compute a step together, layer by layer, so it has waited for them on all ranks: they have landed on each that has
        made them, and the next check of all ranks must count them.
        """
        for each in waited:
            each.num_used = max(each.num_used, 1)

    def _ask_ranks(self) -> None:
        for each in self._out[LOADS]:
            each.num_used += each.num_used > 0 and _has_landed(each.ack)
            if each.num_used == ASKED_TWICE:
                for memory, job in each.jobs[:1]:
                    memory.book.made_alone(job)

    def look(self) -> None:
        """At a step: what has landed must be taken note of some time."""
        late = OVERDUE_AMONG_RANKS if self._has_ranks else OVERDUE
        for each in (*self._out[WRITES], *self._out[LOADS]):
            each.num_landed = each.num_landed + 1 if _has_landed(each.ack) else 0
            if each.num_landed == late:
                memory = self._memories[0]  # all have landed together, and one violation says it
                memory.book.overdue([job for of, job in each.jobs if of is memory], among_ranks=self._has_ranks)

    def waited_for(self, producer: int, book: ContentBook) -> list[int]:
        """The jobs of a book that a step waits for which consumes this producer."""
        acks = [each for each in self._out[LOADS] if each.producer == producer >= 0]
        return [job for each in acks for memory, job in each.jobs if memory.book is book]

    def reset(self) -> None:
        """The engine has forgotten all copies."""
        self._queued, self._out = {}, {WRITES: [], LOADS: []}


def _layers_of(transfer: object, last: object, *, is_first: bool) -> set[object]:
    """The layers of a host pool that a load copies, as it counts them; nothing where that is not said."""
    mapper = getattr(transfer, "layer_mapper", None)
    if not isinstance(last, int):
        return set()
    if mapper is not None:
        return {mapper(layer) for layer in range(last)} - {None}
    num: int = last if is_first else getattr(getattr(transfer, "host_pool", None), "layer_num", 0)
    return {*range(min(num, last))}


def _has_landed(ack: object) -> bool:
    """Whether the device says so: asked through the class of the event, which nothing of the engine's has changed."""
    event = getattr(ack, "finish_event", None)
    query = getattr(type(event), "query", None)
    return query is None or bool(query(event))
