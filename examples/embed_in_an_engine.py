"""A serving engine in miniature on top of the offload scheduler: which call comes when, and why.

Its groups: full attention, a window of 8 tokens, and a recurrent state. There is no model: a token leaves a word that depends
on all tokens up to it, and each step checks the words that its tokens attend to. The device is too small for four requests at
once, so that some are preempted; what is forgotten there comes back from host memory.

Its scheduling can be steered: `schedule` makes the plan of one step by itself, or with what a test wants computed and let in.
So `embedded_driver.py` beside it can run scenarios against it. Prints, among other lines::

    again: 16 tokens found on the device, 0 in host memory
    late: 0 tokens found on the device, 16 in host memory
    all right: True; 23 of 23 blocks free, 0 copies out
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from attrs import define

from blocklife.copiers import CpuCopier, Executor
from blocklife.errors import CapacityError
from blocklife.ledger import Completion, Contract, Launched, Ledger, Limits, Plan, Worker, block_of
from blocklife.ledger.invariants import check
from blocklife.offload import Geometry, Hit, HostTier, Mamba, OffloadScheduler, Policies, Settled

BLOCK, STEP_TOKENS, NUM_BLOCKS, NUM_SLOTS = 4, 16, 24, 64  # block 0 is the null block
GEOMETRY = Geometry.parse(f"full:{BLOCK},swa:{BLOCK}:8,mamba:{BLOCK}")
LIMITS = Limits(num_blocks=NUM_BLOCKS, num_slots=NUM_SLOTS, num_groups=len(GEOMETRY.groups))
Batch: TypeAlias = dict[str, range]  # the tokens that each request computes in a step
Counts: TypeAlias = Mapping[str, int]  # numbers of tokens, by request


@define(eq=False)
class Sequence:
    """A request, and how many tokens it shall have in the end."""

    tokens: list[int]
    goal: int

    def word(self, group: int, at: int) -> int:
        """What the token at a position leaves."""
        return int.from_bytes(blake2b(bytes([group, *self.tokens[: at + 1]]), digest_size=8).digest(), "big")

    def keys(self, group: int, start: int, stop: int) -> list[bytes]:
        """The names of some blocks: they depend on all tokens up to the block's end, and never on who computed them."""
        return [self.word(group, (position + 1) * BLOCK - 1).to_bytes(8, "big") for position in range(start, stop)]

    def span(self, start: int) -> range:
        """The tokens of one step. Many end where a block ends, so that the state there can be kept."""
        stop = min(len(self.tokens), start + STEP_TOKENS)
        return range(start, stop // BLOCK * BLOCK if stop // BLOCK * BLOCK > start else stop)


class Engine:
    def __init__(
        self,
        geometry: Geometry = GEOMETRY,
        limits: Limits = LIMITS,
        contract: Contract = Contract.FENCE,
        deadline: float = 60.0,
        policies: Policies | None = None,
    ) -> None:
        self.geometry = geometry
        self.ledger = Ledger(limits, contract=contract, deadline=deadline)
        self.offload = OffloadScheduler(self.ledger, HostTier(self.ledger), geometry, policies)
        self.states = [group for group, each in enumerate(geometry.groups) if isinstance(each, Mamba)]
        self.device, self.host = (
            np.zeros((places, BLOCK), dtype=np.uint64) for places in (limits.num_blocks, limits.num_slots)
        )
        self.executor = Executor(CpuCopier(self.device, self.host, worker=Worker(0), blocks_per_poll=4, limits=limits))
        self.requests: dict[str, Sequence] = {}
        self.waiting, self.running = deque[str](), list[str]()
        self.batch: Batch = {}
        self.hits: dict[str, Hit] = {}
        self.no_room: list[str] = []
        self.log: list[str] = []
        self.now = self.checked = self.wrong = 0

    def add(self, name: str, prompt: list[int], goal: int) -> None:
        self.requests[name] = Sequence(prompt, goal)
        self.offload.add_request(name, self.requests[name].keys, prompt_tokens=len(prompt))
        self.waiting.append(name)

    def step(self) -> None:
        self.now += 1
        plan, batch = self.schedule(self.now)
        # 4. The executor waits for the plan's flushes before the forward pass writes, and launches loads behind it.
        report = self.executor.execute(plan, lambda: self.forward(batch))
        self.settle(plan.number, self.now, report.launched, report.completions)
        self.executor.drop(plan.flushes)  # the settle has taken them as proven quiet: a report is no longer needed

    def schedule(
        self, now: float, compute: Counts | None = None, let_in: Counts | None = None, preempt: Collection[str] = ()
    ) -> tuple[Plan, Batch]:
        """The plan of one step, and the tokens that each request computes in it. A test may choose who computes how much."""
        for name in preempt:
            self.give_way(name)
        # 1. Running requests first. Who finds no room is not scheduled: somebody gives way, and only those are asked again.
        batch = {name: self.span(name, compute) for name in self.running}
        short = self.offload.grow({name: len(tokens) for name, tokens in batch.items()})
        self.no_room, self.hits = list(short), {}
        while short and compute is None and len(batch) > 1:
            victim = self.running[-1]
            self.log.append(f"{victim}: preempted")
            self.give_way(victim)  # its copies are waited for in this very plan
            del batch[victim]
            short = self.offload.grow({name: len(batch[name]) for name in short if name in batch})
        for name in short:
            del batch[name]
        # 2. Waiting requests. A hit holds in its own step only; a request that loads is not in this batch.
        for name in list(self.waiting) if let_in is None else let_in:
            if let_in is None and self.no_room:
                break
            self.let_in(name, None if let_in is None else let_in[name], batch)
        # 3. A state is content only where the engine says so. Then the plan: also an empty one is carried out and settled.
        for name, tokens in batch.items():
            for group in self.states if tokens and tokens.stop % BLOCK == 0 else ():
                self.offload.hand_off(name, group, tokens.stop)
        self.batch = batch = {name: tokens for name, tokens in batch.items() if tokens}
        return self.offload.build_plan(now), batch

    def span(self, name: str, compute: Counts | None) -> range:
        """What a running request computes."""
        start = self.offload.requests.progress(name).computed
        return self.requests[name].span(start) if compute is None else range(start, start + compute.get(name, 0))

    def let_in(self, name: str, count: int | None, batch: Batch) -> None:
        """Admit a request that waits, if that is possible now: with so many tokens, 0 for all, None for what it likes."""
        hit = self.hits[name] = self.offload.lookup(name, len(self.requests[name].tokens))
        if hit.deferred:
            return  # what it would read is being copied; look it up again
        rest = range(hit.compute_from, len(self.requests[name].tokens))
        tokens = self.requests[name].span(rest.start) if count is None else rest[: count or None]
        try:
            runs = self.offload.admit(name, hit, len(tokens))
        except CapacityError:
            self.no_room.append(name)
            return  # nothing has changed; a later step tries again
        self.log.append(f"{name}: {hit.device_tokens} tokens found on the device, {hit.host_tokens} in host memory")
        self.waiting.remove(name)
        if runs:
            self.running.append(name)
            batch[name] = tokens

    def settle(
        self,
        plan: int,
        now: float,
        launched: Iterable[Launched],
        completions: Iterable[Completion],
        sampled: Counts | None = None,
    ) -> Settled:
        # 5. Only now tokens count and blocks are sealed. Requests end behind it: what is not sealed cannot be stored.
        batch, self.batch, sampled = self.batch, {}, sampled or {}
        settled = self.offload.settle(plan, now, sampled=sampled, launched=launched, completions=completions)
        self.running += [name for name in settled.loaded if name not in self.running]  # some run in the step of their load
        self.wait(settled.failed)
        for name, tokens in batch.items():
            if name not in self.requests or name in settled.failed or tokens.stop != len(known := self.requests[name].tokens):
                continue
            for _ in range(sampled.get(name, 1)):
                known.append(sum(known) % 251)  # sampled; it has no content yet
            if len(known) >= self.requests[name].goal:
                self.end(name)
        return settled

    def give_way(self, name: str) -> None:
        """It has to give all its blocks back, and comes again."""
        self.offload.preempt(name)
        self.wait([name])

    def wait(self, names: Iterable[str]) -> None:
        """These hold nothing any more, and wait."""
        for name in names:
            self.gone(name)
            self.waiting.appendleft(name)

    def end(self, name: str, *, aborted: bool = False) -> None:
        """It is over, or its client is gone."""
        (self.offload.abort if aborted else self.offload.finish)(name)
        self.gone(name)
        del self.requests[name]

    def gone(self, name: str) -> None:
        for names in (self.running, self.waiting):
            if name in names:
                names.remove(name)
        self.batch.pop(name, None)

    def forward(self, batch: dict[str, range]) -> None:
        """Check what these tokens attend to, then write what they leave; of a state only the last one counts."""
        for name, tokens in batch.items():
            word = self.requests[name].word
            for group in range(len(self.geometry.groups)):
                table = [block_of(life) for life in self.ledger.requests.table(name, group)]
                first = (
                    max(0, tokens.start - 1)
                    if group in self.states
                    else self.geometry.needed(group, tokens.start).start * BLOCK
                )
                for at in range(first, tokens.start):
                    self.wrong += int(self.device[table[at // BLOCK], at % BLOCK]) != word(group, at)
                    self.checked += 1
                for at in tokens[-1:] if group in self.states else tokens:
                    self.device[table[at // BLOCK], slice(None) if group in self.states else at % BLOCK] = word(group, at)

    def run(self) -> None:
        """Tick until nobody is left and nothing is out: a request's last stores outlive it."""
        while self.requests or self.offload.has_pending_work():
            self.step()


def main() -> None:
    engine, system = Engine(), list(range(16))
    others = {f"other {number}": [200 + number] * 14 for number in range(4)}
    for prompts in ({"first": [*system, 101]}, {"again": [*system, 102, 103]}, others, {"late": [*system, 104]}):
        for name, prompt in prompts.items():
            engine.add(name, prompt, goal=len(prompt) + 8)
        engine.run()
    print(*engine.log, sep="\n")
    engine.executor.close()
    right = engine.checked > 1000 and not engine.wrong and not check(engine.ledger)
    print(
        f"all right: {right}; {engine.ledger.blocks.free} of {NUM_BLOCKS - 1} blocks free, {engine.ledger.jobs.live} copies out"
    )


if __name__ == "__main__":
    main()
