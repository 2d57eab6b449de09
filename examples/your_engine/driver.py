"""The engine as scenarios see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import engine
from engine import BLOCK, Engine

from blocklife.testing import CopyOrder, Driver, EngineSetup, EngineStep, Landing, Orders, Pass, SettledPlan, Unsupported


class YourDriver(Driver):
    hasty = False
    """Set by ``pytest --hasty``."""

    def start(self, world: EngineSetup) -> None:
        needed = {"groups": f"full:{BLOCK}", "blocks_per_chunk": 1, "workers": 1, "contract": "hold", "scheduling": "sync"}
        for name, value in needed.items():
            if getattr(world, name) != value:
                raise Unsupported(f"{name} is always {value} here")
        self.engine = Engine(world.blocks, world.slots, hasty=self.hasty)
        self.plans = 0

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        if tokens is not None or reply:
            raise Unsupported("no token is sampled here")
        self.engine.arrive(request, prompt)

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        if preempt or compute or let_in:
            raise Unsupported("the engine decides who runs, and computes prompts only")
        self.plans += 1
        did = self.engine.step() if let_in is None else engine.Step({}, [], [])
        return EngineStep(
            orders=Orders(self.plans, (), (), tuple(map(_order, did.copies)), Pass(writes=tuple(self._writes(did.placed)))),
            handed_out=tuple(block for blocks in did.placed.values() for block in blocks),
            owners={each.number: each.owner for each in did.copies},
            no_room=tuple(did.no_room),
        )

    def _writes(self, placed: Mapping[str, list[int]]) -> list[tuple[int, str]]:
        return [
            (block, f"0:{self.engine.texts[name][: (position + 1) * BLOCK]}")
            for name, blocks in placed.items()
            for position, block in enumerate(blocks)
        ]

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        for each in reports:
            self.engine.land(each.job)
        return SettledPlan()

    def finish(self, request: str) -> None:
        self.engine.finish(request)

    def table(self, request: str, group: int) -> list[int]:
        return self.engine.tables.get(request, [])

    def pending(self) -> bool:
        return bool(self.engine.copies)

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        coming = {each.slot for each in self.engine.copies.values()}
        return {}, {slot: f"0:{text}" for text, slot in self.engine.host.items() if slot not in coming}


def _order(copy: engine.Copy) -> CopyOrder:
    return CopyOrder(copy.number, True, (copy.block,), (copy.slot,), (1,))
