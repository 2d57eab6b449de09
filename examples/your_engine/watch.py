"""The engine with a ledger beside it: whatever the engine does, the ledger is told, and refuses what must not be."""

from __future__ import annotations

from attrs import define, field
from engine import BLOCK, Copy, Engine

from blocklife.ledger import Batch, Completion, JobId, Ledger, Placement, Result, Store, Worker
from blocklife.ledger.jobs import Sealed


@define(eq=False)
class Watch:
    engine: Engine
    ledger: Ledger
    """One whose blocks the engine hands out: ``own_pool=False``."""
    jobs: dict[int, JobId] = field(factory=dict)
    sealed: dict[str, int] = field(factory=dict)
    """How many blocks of each request are full."""
    now: float = 0.0

    def step(self) -> None:
        self.now += 1
        did = self.engine.step()
        for copy in did.copies:
            if copy.loads:
                raise NotImplementedError("this watch is told of stores only")
            self._store(copy)
        for name, blocks in did.placed.items():
            if name not in self.sealed:
                self.ledger.add_request(name)
                self.ledger.admit(name)
                self.sealed[name] = 0
            self.ledger.observe_place(name, [Placement(allocated=blocks)])
        self.engine.settle()
        for name, start in self.sealed.items():
            request = self.engine.requests[name]
            self.sealed[name] = full = request.computed // BLOCK
            lives = [self.ledger.blocks.life(block) for block in request.blocks[start:full]]
            self.ledger.seal(Batch(lives), [request.text(at).encode() for at in range(start, full)])
        plan = self.ledger.dispatch(self.now)
        self.ledger.settle(plan.number, self.now)

    def _store(self, copy: Copy) -> None:
        source: Batch[Sealed] = Batch([self.ledger.blocks.life(copy.block)])
        [self.jobs[copy.number]] = self.ledger.plan_store(
            Store.of(source, [copy.slot], [copy.text.encode()], owner=copy.owner)
        ).ids

    def land(self, number: int) -> None:
        self.engine.land(number)
        self.ledger.complete(Completion(self.jobs.pop(number), Worker(0), Result.OK))

    def finish(self, name: str) -> None:
        self.engine.finish(name)
        self.ledger.finish(name)
        del self.sealed[name]
