"""LMCache as scenarios see it: the example engine in front, whose host memory is LMCache's L1.

In an environment that has LMCache, ``blocklife scenario run --driver tests.proof.drivers.lmcache:LMCacheDriver`` runs the
scenarios. Requests, blocks and copies are those of `examples/your_engine`; what it knows of its host is LMCache's: which text
has a place, which place is reserved, what is locked, and for how long. A slot is a place of LMCache's memory.

Rules of this file:

* LMCache decides. A place is reserved, published, locked and given back by its L1 manager, as its own connector has that done.
* Time is that of the rig: it passes where a scenario lets it pass without a step; the deadline of copies is LMCache's lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from driver import YourDriver
from engine import BLOCK, Copy, Engine, Step

from blocklife.testing import EngineSetup, LookedUp
from tests.lmcache import engine as rig
from tests.lmcache import turns
from tests.lmcache.content import PLACE, Witness
from tests.lmcache.worlds import WorldSpec

TAG = "storage_manager"
"""The tag under which LMCache's storage manager reserves for workers."""
NEVER = 1000
"""The deadline of a world that has none."""


class Host(MutableMapping[str, int]):
    """The slot of each text that can be read: what is resident in LMCache. What was used last is last."""

    def __init__(self, l1: Any, base: int, layout: Any) -> None:
        self.l1, self.base, self.layout = l1, base, layout
        self.generation = ""
        self.staged: dict[int, str] = {}
        """The text of each slot that is reserved."""
        self._order: dict[str, None] = {}

    def key(self, text: str) -> Any:
        """LMCache's key."""
        from lmcache.v1.distributed.api import ObjectKey

        return ObjectKey(text.encode(), f"model{self.generation}", 0)

    def state(self, text: str) -> Any:
        """What LMCache has under a text; None: nothing that can be read."""
        return self.l1.get_object_state(self.key(text))

    def slot(self, memory: Any) -> int:
        """The slot of one of its objects."""
        return int(memory.data_ptr - self.base) // PLACE

    def free(self) -> int:
        """How many places are free."""
        used, total = self.l1.get_memory_usage()
        return int(total - used) // PLACE

    def reserve(self, text: str) -> int:
        """A place for a text. Raises ValueError where LMCache gives none."""
        _, memory = self.l1.reserve_write([self.key(text)], [False], self.layout, tag=TAG)[self.key(text)]
        if memory is None:
            raise ValueError(f"LMCache has no place for {text}")
        self.staged[self.slot(memory)] = text
        self._order[text] = None
        return self.slot(memory)

    def give_back(self, slot: int) -> None:
        """What was to come has not: the place is discarded, if it is still reserved."""
        if (text := self.staged.pop(slot, None)) is not None:
            self.l1.finish_write_and_delete([self.key(text)], tag=TAG)

    def lock(self, text: str) -> None:
        """Somebody counts on a text. Raises ValueError where it is not there."""
        if self.l1.reserve_read([self.key(text)])[self.key(text)][1] is None:
            raise ValueError(f"{text} is not there")

    def unlock(self, text: str) -> bool:
        """Somebody does no more; LMCache does not ask who. Returns whether there was a lock."""
        return str(self.l1.finish_read([self.key(text)])[self.key(text)]).endswith("SUCCESS")

    def __getitem__(self, text: str) -> int:
        if (state := self.state(text)) is None:
            raise KeyError(text)
        return self.slot(state.memory_obj)

    def __setitem__(self, text: str, slot: int) -> None:
        if self.staged.pop(slot, None) is not None:
            self.l1.finish_write([self.key(text)], tag=TAG)
        self._order.pop(text, None)
        self._order[text] = None

    def __delitem__(self, text: str) -> None:
        """Raises ValueError where LMCache keeps it, for it is locked."""
        if self.state(text) is None:
            raise KeyError(text)
        self.l1.delete([self.key(text)])
        if self.state(text) is not None:
            raise ValueError(f"{text} is locked")

    def pop(self, text: str, *_: object) -> int:
        """Used by whoever looks a text up, to make it the last: LMCache keeps it."""
        slot = self[text]
        self._order.pop(text, None)
        return slot

    def __iter__(self) -> Iterator[str]:
        return iter([text for text in self._order if self.state(text) is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))


class Empty:
    """In the place of the list of empty slots: LMCache knows which they are."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def __len__(self) -> int:
        return self._host.free()

    def popleft(self) -> int:
        """None in particular: the place comes with its text."""
        return -1

    def append(self, slot: int) -> None:
        """Nobody wants what was to come into it."""
        self._host.give_back(slot)


class LMEngine(Engine):
    """The example engine with LMCache's L1 for its host."""

    def __init__(self, world: EngineSetup) -> None:
        super().__init__(world.blocks, world.slots, world.workers, deadline=world.deadline)
        lease = 600 if world.deadline >= NEVER else int(world.deadline)
        spec = WorldSpec(places=world.slots, adapters=(), write_lease=lease, read_lease=lease)
        self.turns = turns.begin()
        made = rig.Engine.of(spec, Witness())
        self.lmcache = made
        layout = made.context.layout_desc_registry.find(rig.MODEL, spec.workers)
        self.places = Host(made.l1, made.base, layout)
        self.host = self.places  # type: ignore[assignment]
        self.empty = Empty(self.places)  # type: ignore[assignment]
        self.fillers: list[str] = []
        """Texts of nobody, with which the host is full."""

    def pin(self, holder: str, text: str) -> None:
        """Raises ValueError where it is not there."""
        self.places.lock(text)
        self.pins.append((holder, text))

    def unpin(self, holder: str, *texts: str) -> None:
        """LMCache has no holders: it is asked, and nothing else."""
        for text in texts:
            if not self.places.unlock(text):
                raise ValueError(f"nobody holds {text}")
            if (holder, text) in self.pins:
                self.pins.remove((holder, text))

    def busy(self, text: str) -> bool:
        """Whether LMCache says that somebody counts on it."""
        state = self.places.state(text)
        return state is not None and bool(state.read_lock.is_locked())

    def forget(self, text: str) -> None:
        """Nobody finds it any more. Raises ValueError where LMCache says that somebody counts on it."""
        del self.host[text]

    def evict(self, *texts: str) -> None:
        """LMCache says whether somebody counts on one of them."""
        for text in texts:
            self.forget(text)

    def step(
        self, compute: Mapping[str, int] | None = None, let_in: Mapping[str, int] | None = None, preempt: Collection[str] = ()
    ) -> Step:
        """As the example's; what lookups have locked is let go of."""
        for holder, text in self.pins:
            if holder == "lookup":
                self.places.unlock(text)
        return super().step(compute, let_in, preempt)

    def reset(self, *, drain: bool = False) -> None:
        """All content is forgotten, and what is on its way as well, by LMCache's forced clear."""
        if drain and self.copies:
            raise ValueError(f"{len(self.copies)} copies are out")
        for name in self.requests:
            self.start_again(name, gave_way=True)
        for copy in self.copies.values():
            copy.wanted = False
        self.places.l1.clear(force=True)

    def fill(self) -> None:
        """Every place has a text of nobody, and somebody reads it."""
        self.make_room(self.num_slots)
        while self.places.free():
            self.fillers.append(text := f"nobody's {len(self.fillers)}")
            self.host[text] = self.places.reserve(text)
            self.places.lock(text)

    def _copy(self, name: str, loads: bool, position: int, slot: int, text: str) -> Copy:
        if loads:
            self.places.lock(text)
        else:
            slot = self.places.reserve(text)
        return super()._copy(name, loads, position, slot, text)

    def land(self, number: int, worker: int = 0, ok: bool = True, ended: Any = None) -> None:
        """As the example's: a load that has landed, or that nobody counts on any more, lets go of its lock."""
        copy = self.copies.get(number)
        if copy is not None and copy.loads and copy.left == {worker}:
            self.places.unlock(copy.text)
        super().land(number, worker, ok, ended)


class LMCacheDriver(YourDriver):
    """The driver. `engine` is made anew for each world."""

    def start(self, world: EngineSetup) -> None:
        self.only(world, groups=f"full:{BLOCK}", contract="hold", scheduling="sync", mode="eager", blocks_per_chunk=1)
        self.only(world, load_within_tokens=0, state_drafts=0)
        self.engine = self._made = LMEngine(world)
        self.plans, self.weights, self.taken = 0, "", list[int]()
        self.lives_on(self._made)

    def lives_on(self, engine: LMEngine) -> None:
        """Called with each engine before its first step: for tests that plant a fault in LMCache."""

    def lookup(self, request: str) -> LookedUp:
        found = self._made.lookup(request)
        for text in found or ():
            self._made.pin("lookup", text)
        return LookedUp(len(found or ()) * BLOCK, deferred=found is None)

    def renew(self, generation: str) -> None:
        super().renew(generation)
        self._made.places.generation = generation

    def pin(self, holder: str, contents: Sequence[str]) -> None:
        for each in contents:
            self._made.pin(holder, each.partition(":")[2])

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        blocks, slots = super().claims()
        return blocks, {slot: content for slot, content in slots.items() if "nobody's" not in content}

    def fill_host(self) -> None:
        self._made.fill()

    def free_host(self) -> None:
        for text in self._made.fillers:
            self._made.places.unlock(text)

    def advance(self, steps: int) -> None:
        super().advance(steps)
        self._made.turns.clock.now += steps
