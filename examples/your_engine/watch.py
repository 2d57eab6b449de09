"""The engine with a ledger beside it: whatever the engine does, the ledger is told, and refuses what must not be."""

from __future__ import annotations

from attrs import define, field
from engine import BLOCK, Engine

from blocklife.ledger import Batch, Completion, JobId, Ledger, Result, Worker
from blocklife.ledger.jobs import Sealed


@define(eq=False)
class Watch:
    engine: Engine
    ledger: Ledger
    """One whose blocks the engine hands out: ``own_pool=False``."""
    jobs: dict[int, JobId] = field(factory=dict)
    now: float = 0.0

    def step(self) -> None:
        self.now += 1
        did = self.engine.step()
        for name, blocks in did.placed.items():
            self.ledger.add_request(name)
            self.ledger.admit(name)
            text = self.engine.texts[name]
            full = len(text) // BLOCK
            lives = self.ledger.observe_allocate(name, blocks).lives
            self.ledger.seal(Batch(lives[:full]), [text[: (at + 1) * BLOCK].encode() for at in range(full)])
        for copy in did.copies:
            source: Batch[Sealed] = Batch([self.ledger.life(copy.block)])
            jobs = self.ledger.plan_store(source, [copy.slot], [copy.text.encode()], owner=copy.owner)
            [self.jobs[copy.number]] = jobs.ids
        plan = self.ledger.dispatch(self.now)
        self.ledger.settle(plan.number, self.now)

    def land(self, number: int) -> None:
        self.engine.land(number)
        self.ledger.complete(Completion(self.jobs.pop(number), Worker(0), Result.OK))

    def finish(self, name: str) -> None:
        self.engine.finish(name)
        self.ledger.finish(name)
