"""The engine as scenarios see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine import BLOCK, Copy, Ended, Engine, Request

from blocklife.testing import (
    CopyOrder,
    Driver,
    EngineSetup,
    EngineStep,
    Landing,
    LookedUp,
    Orders,
    RequestProgress,
    SettledPlan,
    Unsupported,
    forward_pass,
)


class YourDriver(Driver):
    block_tokens = BLOCK
    refusals = (ValueError,)
    hasty = False
    """Set by ``pytest --hasty``."""

    def start(self, world: EngineSetup) -> None:
        self.only(world, groups=f"full:{BLOCK}", contract="hold", scheduling="sync", mode="eager", blocks_per_chunk=1)
        self.only(world, load_within_tokens=0, state_drafts=0)
        self.engine = Engine(world.blocks, world.slots, world.workers, self.hasty, world.deadline)
        self.plans, self.weights, self.taken = 0, "", list[int]()

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        self.engine.arrive(request, prompt, tokens, reply)

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        did = self.engine.step(compute, let_in, preempt)
        loads, stores = (tuple(_order(each) for each in did.copies if each.loads is kind) for kind in (True, False))
        computes = [(each.blocks, each.said, start, stop) for each, start, stop in did.computes]
        self.plans, taken, self.taken = self.plans + 1, self.taken, []
        return EngineStep(
            orders=Orders(self.plans, tuple(did.waits_for), loads, stores, forward_pass(computes, BLOCK, weights=self.weights)),
            handed_out=(*taken, *(block for blocks in did.placed.values() for block in blocks)),
            owners={each.number: each.owner for each in did.copies},
            hits={name: LookedUp(tokens or 0, deferred=tokens is None) for name, tokens in did.hits.items()},
            no_room=tuple(did.no_room),
        )

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        ended = Ended()
        self.engine.settle(sampled, ended)
        for each in reports:
            self.engine.land(each.job, each.worker, each.ok, ended)
        self.engine.quiet(self.engine.waited)
        return SettledPlan(loaded=tuple(ended.loaded), failed=tuple(ended.failed))

    def table(self, request: str, group: int) -> list[int]:
        return list(self.engine.requests[request].blocks) if request in self.engine.requests else []

    def finish(self, request: str) -> None:
        self.engine.finish(request)

    abort = finish

    def preempt(self, request: str) -> None:
        self.engine.give_way(request)

    def lookup(self, request: str) -> LookedUp:
        found = self.engine.lookup(request)
        self.engine.pins += [("lookup", text) for text in found or ()]
        return LookedUp(len(found or ()) * BLOCK, deferred=found is None)

    def reset(self, *, drain: bool) -> None:
        self.engine.reset(drain=drain)

    def renew(self, generation: str) -> None:
        self.engine.reset()
        self.weights = f"@{generation}"

    def sleep(self) -> None:
        """Nothing is found on the device, so there is nothing to forget; the next step waits for all copies."""
        for name in self.engine.running:
            self.engine.give_way(name)
        self.engine.waits_for = list(self.engine.copies)

    def wake(self) -> None:
        """There is nothing to bring back."""

    def forget_on_device(self, contents: Sequence[str]) -> None:
        """Nothing is found there."""

    def crowd_host(self, slots: int) -> bool:
        return self.engine.make_room(slots)

    def advance(self, steps: int) -> None:
        self.engine.now += steps

    def prove_quiet(self, jobs: Sequence[int]) -> None:
        self.engine.quiet(jobs)

    def pin(self, holder: str, contents: Sequence[str]) -> None:
        self.engine.pins += [(holder, _text(each)) for each in contents]

    def unpin(self, holder: str, contents: Sequence[str]) -> None:
        self.engine.unpin(holder, *map(_text, contents))

    def evict(self, contents: Sequence[str]) -> None:
        self.engine.evict(*map(_text, contents))

    def enter(self, request: str, *, waiting: bool = False) -> None:
        self.engine.requests[request] = Request("", 0, 1, waits=waiting)

    def allocate(self, request: str, count: int, group: int = 0) -> list[int]:
        self.taken += (taken := self.engine.take(request, count))
        return taken

    def free(self, request: str, blocks: Sequence[int]) -> None:
        self.engine.take_back(request, blocks)

    def seal(self, blocks: Sequence[int], contents: Sequence[str]) -> None:
        """A text is all that this engine knows of content, and `plan_store` brings it."""

    def plan_store(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        if len(blocks) != 1:
            raise Unsupported("a copy has one block here")
        return self.engine.store(request, blocks[0], _text(contents[0]))

    def request_state(self, request: str) -> str:
        found = self.engine.requests.get(request)
        if found is None or not found.waits:
            return "FINISHED" if found is None else "LOADING" if found.loading else "RUNNING"
        return "PREEMPTED" if found.gave_way else "WAITING"

    def tokens(self, request: str) -> str:
        return self.engine.said[request]

    def progress(self, request: str) -> RequestProgress:
        found = self.engine.requests[request]
        return RequestProgress(found.known, found.computed, found.ahead)

    def pending(self) -> bool:
        return bool(self.engine.copies)

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        return {}, {slot: f"0:{text}{self.weights}" for text, slot in self.engine.host.items()}

    def slot_of(self, content: str) -> int | None:
        coming = {each.text: each.slot for each in self.engine.copies.values() if not each.loads}
        return {**coming, **self.engine.host}.get(_text(content))

    def count(self, what: str) -> int:
        return len(self.engine.free) if what == "free" else super().count(what)

    def left_behind(self) -> list[str]:
        return [*self.engine.requests, *map(str, self.engine.leaving), *map(str, self.engine.pins)]


def _text(content: str) -> str:
    return content.partition(":")[2]


def _order(copy: Copy) -> CopyOrder:
    sides = ((copy.slot,), (copy.block,)) if copy.loads else ((copy.block,), (copy.slot,))
    return CopyOrder(copy.number, not copy.loads, *sides, sizes=(1,))
