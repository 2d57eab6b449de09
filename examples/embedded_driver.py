"""Runs the scenarios that come with blocklife against the engine of `embed_in_an_engine.py`, with a driver of some 40 lines.

`EmbeddedDriver` knows the ledger and the scheduler; what is written here is how this engine is made and steered. Copies and
forward passes are simulated: a copy lands when a scenario says so, and what each place holds is compared. Prints::

    0 of 487 runs are unsafe

`blocklife scenario run --driver embedded_driver:MiniDriver`, in this folder, says the same in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embed_in_an_engine import BLOCK, Engine

from blocklife.ledger import Completion, Contract, Launched, Limits
from blocklife.offload import Geometry, Settled
from blocklife.testing import EmbeddedDriver, EngineSetup, Outcome, Scheduled, Unsupported, run_files


class MiniDriver(EmbeddedDriver):
    block_tokens = BLOCK

    def start(self, world: EngineSetup) -> None:
        self.only(world, scheduling="sync", pool="own", state_drafts=0)
        geometry = Geometry.parse(world.groups, world.blocks_per_chunk)
        if geometry.tail_tokens is not None:
            raise Unsupported("prefixes end with a block here")
        if set(geometry.block_tokens) != {BLOCK}:
            raise Unsupported(f"the blocks of every group have {BLOCK} tokens here")
        limits = Limits(
            num_blocks=world.blocks + 1,
            num_slots=world.slots,
            num_groups=len(geometry.groups),
            num_workers=world.workers,
            max_jobs=world.jobs,
        )
        self.engine = Engine(geometry, limits, Contract[world.contract.upper()], world.deadline, world.policies)
        self.engine.executor.close()  # scenarios make many engines, and their copies are simulated: no thread stays
        self.embed(world, self.engine.offload)

    def add(self, request: str, prompt: Sequence[int], goal: int) -> None:
        self.engine.add(request, list(prompt), goal)

    def schedule(
        self, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str]
    ) -> Scheduled:
        for name, count in (compute or {}).items():
            progress = self.scheduler.requests.progress(name)
            if progress.computed + count > progress.known:
                raise Unsupported("no token is computed before it is known")
        plan, batch = self.engine.schedule(self.now, compute, let_in, preempt)
        return Scheduled(plan=plan, computes=batch, hits=self.engine.hits, no_room=self.engine.no_room)

    def settled(
        self,
        plan: int,
        *,
        launched: Sequence[Launched],
        completions: Sequence[Completion],
        sampled: Mapping[str, int] | None,
    ) -> Settled:
        return self.engine.settle(plan, self.now, launched, completions, sampled)

    def said(self, request: str) -> Sequence[int]:
        return self.engine.requests[request].tokens

    def end(self, request: str, *, aborted: bool) -> None:
        self.engine.end(request, aborted=aborted)

    def give_way(self, request: str) -> None:
        self.engine.give_way(request)

    def sent_back(self, requests: Sequence[str]) -> None:
        self.engine.wait(requests)


def main() -> None:
    verdicts = list(run_files(driver=MiniDriver))
    unsafe = [each for each in verdicts if each.outcome in (Outcome.UNSAFE, Outcome.FAILED)]
    print(*unsafe, f"{len(unsafe)} of {len(verdicts)} runs are unsafe", sep="\n")


if __name__ == "__main__":
    main()
