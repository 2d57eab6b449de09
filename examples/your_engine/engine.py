"""A paged cache with an allocator and a copy queue of its own. It knows nothing of blocklife.

Blocks that are full are copied to host memory one by one while the engine goes on; a request whose prompt is found there loads
it. A request that ends or gives way gives its blocks back; those that a copy still touches come back when it has landed. With
``hasty`` that is forgotten: the planted bug.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from attrs import define, field, frozen

BLOCK = 4
"""Tokens of a block; a token is a letter."""
MADE_UP = 64
"""Tokens that a request samples at most."""


@define(eq=False)
class Request:
    said: str
    """All tokens that it has, and will have."""
    known: int
    """How many of them are known by now: the prompt, and what was sampled."""
    goal: int
    """How many it has when it is over."""
    waits: bool = True
    computed: int = 0
    ahead: int = 0
    """Tokens that the step which is out computes."""
    blocks: list[int] = field(factory=list)
    loading: set[int] = field(factory=set)
    """Its loads that are out."""
    failed: bool = False
    """One of them has failed."""
    gave_way: bool = False

    def text(self, position: int) -> str:
        """What a full block is found by: all tokens up to its end."""
        return self.said[: (position + 1) * BLOCK]


@define(eq=False)
class Copy:
    """One block on its way, to the host or from it."""

    number: int
    owner: str
    loads: bool
    block: int
    slot: int
    text: str
    left: set[int]
    """Workers that have not reported."""
    since: float = 0
    failed: bool = False
    wanted: bool = True
    late: bool = False
    """It is past its deadline: nobody counts on it any more, and what it touches is not given away."""


@frozen
class Step:
    """What one step did."""

    placed: dict[str, list[int]] = field(factory=dict)
    """Blocks that requests got."""
    computes: list[tuple[Request, int, int]] = field(factory=list)
    """Who computes, from which token to which."""
    hits: dict[str, int | None] = field(factory=dict)
    """Tokens that were found in the host; None where a load has to land first."""
    no_room: list[str] = field(factory=list)
    copies: list[Copy] = field(factory=list)
    waits_for: list[int] = field(factory=list)
    """Copies of requests that gave way: workers wait for them first."""


@frozen
class Ended:
    """Requests whose loads are over."""

    loaded: list[str] = field(factory=list)
    failed: list[str] = field(factory=list)


@define(eq=False)
class Engine:
    num_blocks: int
    num_slots: int
    num_workers: int = 1
    hasty: bool = False
    deadline: float = 1000
    """Steps after which a copy has failed."""
    now: float = 0
    free: deque[int] = field(init=False)
    empty: deque[int] = field(init=False)
    """Slots without content."""
    requests: dict[str, Request] = field(factory=dict)
    said: dict[str, str] = field(factory=dict)
    """All that requests ever said, also those that are over."""
    host: dict[str, int] = field(factory=dict)
    """The slot of each text that can be read; what was used last is last."""
    pins: list[tuple[str, str]] = field(factory=list)
    """Who counts on which text of the host; lookups do until the next step."""
    copies: dict[int, Copy] = field(factory=dict)
    """Those that are out."""
    leaving: set[int] = field(factory=set)
    """Blocks that nobody holds and a copy touches."""
    waits_for: list[int] = field(factory=list)
    waited: list[int] = field(factory=list)
    """Copies that the workers of the step which is out wait for."""
    queued: list[Copy] = field(factory=list)
    """Those that the next step has to tell its workers of."""
    made: int = 0

    def __attrs_post_init__(self) -> None:
        self.free = deque(range(1, self.num_blocks + 1))
        self.empty = deque(range(self.num_slots))

    @property
    def waiting(self) -> list[str]:
        return [name for name, each in self.requests.items() if each.waits]

    @property
    def running(self) -> list[str]:
        return [name for name, each in self.requests.items() if not each.waits]

    # --- requests -----------------------------------------------------------------------------------------------------------

    def arrive(self, name: str, prompt: str, goal: int | None = None, reply: str = "") -> None:
        """It samples this reply, or a letter of its own again and again."""
        self.said[name] = prompt + (reply or chr(ord("A") + len(self.said) % 26) * MADE_UP)
        self.requests[name] = Request(self.said[name], len(prompt), goal or len(self.said[name]))

    def finish(self, name: str) -> None:
        self.give(self.requests.pop(name).blocks)

    def give_way(self, name: str) -> None:
        """Everything that a request has computed is lost; the next step waits for its stores."""
        self.waits_for += [each.number for each in self.copies.values() if each.owner == name and not each.loads]
        self.start_again(name, gave_way=True)

    def start_again(self, name: str, *, gave_way: bool = False) -> None:
        was = self.requests[name]
        self.requests[name] = Request(was.said, was.known, was.goal, gave_way=gave_way)
        self.give(was.blocks)

    def reset(self, *, drain: bool = False) -> None:
        """All content is forgotten, and what is on its way as well; with *drain* raises `ValueError` while a copy is out."""
        if drain and self.copies:
            raise ValueError(f"{len(self.copies)} copies are out")
        for name in self.requests:
            self.start_again(name, gave_way=True)
        for copy in self.copies.values():
            copy.wanted = False
        for text in list(self.host):
            self.forget(text)

    # --- one step -----------------------------------------------------------------------------------------------------------

    def step(
        self, compute: Mapping[str, int] | None = None, let_in: Mapping[str, int] | None = None, preempt: Collection[str] = ()
    ) -> Step:
        """Copy what is full, compute what is known, and let in whoever finds room; or do what one is told."""
        for name in preempt:
            self.give_way(name)
        self.pins = [each for each in self.pins if each[0] != "lookup"]
        did = Step(waits_for=self.waits_for, copies=self.queued)
        self.waited, self.waits_for, self.queued = self.waits_for, [], []
        for copy in did.copies:
            copy.since = self.now
        for name, request in self.requests.items():
            if not request.waits and not request.loading:
                did.copies.extend(self._store(name, request))
                count = request.known - request.computed if compute is None else compute.get(name, 0)
                self._compute(name, request, count, did)
        for name in self.waiting:
            if let_in is None or name in let_in:
                self._admit(name, (let_in or {}).get(name, 0), did)
        return did

    def settle(self, sampled: Mapping[str, int] | None = None, ended: Ended | None = None) -> None:
        """The step is over: its tokens are computed, and as many were sampled; without a word, one. Late copies have failed."""
        for copy in [each for each in self.copies.values() if not each.late and self.now - each.since > self.deadline]:
            copy.late, copy.wanted = True, False
            if copy.loads and self.host.get(copy.text) == copy.slot:
                self.forget(copy.text)
            if copy.owner in self.requests and copy.number in self.requests[copy.owner].loading:
                self._loaded(copy, self.requests[copy.owner], ended or Ended(), failed=True)
        for name, request in list(self.requests.items()):
            end, request.ahead = request.computed + request.ahead, 0
            if end > request.computed and end >= request.known:
                request.known += (sampled or {}).get(name, 1)
            request.computed = min(end, max(request.computed, request.known - 1))  # what was drafted wrongly is computed again
            if request.known >= request.goal:
                self.finish(name)

    def _compute(self, name: str, request: Request, count: int, did: Step) -> bool:
        end = request.computed + count
        if not count or not self._place(name, -(-end // BLOCK) - len(request.blocks), did):
            return False
        request.ahead = count
        did.computes.append((request, request.computed, end))
        return True

    def _place(self, name: str, count: int, did: Step) -> bool:
        if count > len(self.free):
            did.no_room.append(name)
            return False
        if count > 0:
            did.placed[name] = self.take(name, count)
        return True

    def _admit(self, name: str, most: int, did: Step) -> None:
        request = self.requests[name]
        found = self.lookup(name)
        did.hits[name] = None if found is None else len(found) * BLOCK
        if found is None:
            return
        if not found:
            request.waits = not self._compute(name, request, most or request.known, did)
        elif self._place(name, len(found), did):
            loads = [self._copy(name, True, at, self.host[text], text) for at, text in enumerate(found)]
            request.waits, request.loading = False, {each.number for each in loads}
            did.copies.extend(loads)

    # --- blocks -------------------------------------------------------------------------------------------------------------

    def take(self, name: str, count: int) -> list[int]:
        """Blocks for a request."""
        taken = [self.free.popleft() for _ in range(count)]
        self.requests[name].blocks += taken
        return taken

    def take_back(self, name: str, blocks: Collection[int]) -> None:
        """Some blocks of a request. Raises `ValueError` where it does not hold them all, each once."""
        if len(set(blocks)) < len(blocks) or not set(blocks) <= set(self.requests[name].blocks):
            raise ValueError(f"{name} does not hold {blocks}")
        self.requests[name].blocks = [each for each in self.requests[name].blocks if each not in blocks]
        self.give(blocks)

    def give(self, blocks: Collection[int]) -> None:
        """Nobody holds these any more; those that a copy touches are not free yet."""
        touched = {each.block for each in self.copies.values()}
        for block in blocks:
            if block in touched and not self.hasty:
                self.leaving.add(block)
            else:
                self.free.append(block)

    # --- host ---------------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> list[str] | None:
        """The texts of a prompt that are in the host, up to its last token; None where somebody else is loading them."""
        request = self.requests[name]
        found = []
        for position in range((request.known - 1) // BLOCK):
            if request.text(position) not in self.host:
                break
            found.append(request.text(position))
        if any(each.loads and not each.late and each.text in found for each in self.copies.values()):
            return None
        for text in found:
            self.host[text] = self.host.pop(text)
        return found

    def busy(self, text: str) -> bool:
        """Whether somebody counts on it."""
        loads = (each.text for each in self.copies.values() if each.loads)
        return text in loads or any(pinned == text for _, pinned in self.pins)

    def make_room(self, count: int) -> bool:
        """As many slots without content, if need be those of what was used least recently."""
        old = [text for text in self.host if not self.busy(text)][: max(0, count - len(self.empty))]
        if len(self.empty) + len(old) < count:
            return False
        for text in old:
            self.forget(text)
        return True

    def evict(self, *texts: str) -> None:
        """Raises `ValueError` where somebody counts on one of them."""
        if any(map(self.busy, texts)):
            raise ValueError(f"somebody counts on one of {texts}")
        for text in texts:
            self.forget(text)

    def forget(self, text: str) -> None:
        """Nobody finds it any more; the slot is empty once no load reads it."""
        slot = self.host.pop(text)
        if not any(each.slot == slot for each in self.copies.values()):
            self.empty.append(slot)

    def unpin(self, holder: str, *texts: str) -> None:
        """Raises `ValueError` where one is no pin of this holder."""
        if not {(holder, text) for text in texts} <= set(self.pins):
            raise ValueError(f"{holder} does not hold all of {texts}")
        for text in texts:
            self.pins.remove((holder, text))

    # --- copies -------------------------------------------------------------------------------------------------------------

    def store(self, name: str, block: int, text: str) -> int:
        """Copy a block of a request under this text in the next step. Raises `ValueError` where there is no room."""
        if not self.make_room(1):
            raise ValueError(f"the host has no room for {text}")
        self.queued.append(self._copy(name, False, self.requests[name].blocks.index(block), self.empty.popleft(), text))
        return self.queued[-1].number

    def _store(self, name: str, request: Request) -> list[Copy]:
        """One copy for each full block that the host lacks."""
        made: list[Copy] = []
        coming = {each.text for each in self.copies.values() if not each.loads and each.wanted}
        for position in range(request.computed // BLOCK):
            text = request.text(position)
            if text not in self.host and text not in coming and self.make_room(1):
                made.append(self._copy(name, False, position, self.empty.popleft(), text))
        return made

    def _copy(self, name: str, loads: bool, position: int, slot: int, text: str) -> Copy:
        self.made += 1
        block = self.requests[name].blocks[position]
        copy = Copy(self.made, name, loads, block, slot, text, left=set(range(self.num_workers)), since=self.now)
        self.copies[copy.number] = copy
        return copy

    def land(self, number: int, worker: int = 0, ok: bool = True, ended: Ended | None = None) -> None:
        """A worker reports the end of a copy. Reports of no copy, and second ones, are nothing."""
        copy = self.copies.get(number)
        if copy is None or worker not in copy.left:
            return
        copy.left.remove(worker)
        copy.failed = copy.failed or not ok
        if copy.left:
            return
        del self.copies[number]
        if copy.block in self.leaving and all(each.block != copy.block for each in self.copies.values()):
            self.leaving.remove(copy.block)
            self.free.append(copy.block)
        if not copy.loads and copy.wanted and not copy.failed and copy.text not in self.host:
            self.host[copy.text] = copy.slot
        elif copy.loads and copy.failed and not copy.late and self.host.get(copy.text) == copy.slot:
            self.forget(copy.text)
        elif self.host.get(copy.text) != copy.slot:
            self.empty.append(copy.slot)
        request = self.requests.get(copy.owner)
        if request is not None and number in request.loading:
            self._loaded(copy, request, ended or Ended(), failed=copy.failed)

    def quiet(self, numbers: Collection[int]) -> None:
        """These copies do not run any more, whatever is reported of them."""
        for number in numbers:
            for worker in range(self.num_workers):
                self.land(number, worker, ok=False)

    def _loaded(self, copy: Copy, request: Request, ended: Ended, *, failed: bool) -> None:
        """One load of a request less; after the last one it computes the rest, or begins again."""
        request.loading.remove(copy.number)
        request.failed = request.failed or failed
        if request.loading:
            return
        if request.failed:
            self.start_again(copy.owner)
            ended.failed.append(copy.owner)
        else:
            request.computed = len(request.blocks) * BLOCK
            ended.loaded.append(copy.owner)
