"""A serving engine in miniature on top of the offload scheduler: which call comes when, and why.

Its groups: full attention, a window of 8 tokens, and a recurrent state. There is no model: a token leaves a word that depends
on all tokens up to it, and each step checks the words that its tokens attend to. The device is too small for four requests at
once, so that some are preempted; what is forgotten there comes back from host memory. Prints, among other lines::

    again: 16 tokens found on the device, 0 in host memory
    late: 0 tokens found on the device, 16 in host memory
    all right: True; 23 of 23 blocks free, 0 copies out
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

import numpy as np
from attrs import define

from blocklife.copiers import CpuCopier, Executor
from blocklife.errors import CapacityError
from blocklife.ledger import Ledger, Limits, Worker, block_of
from blocklife.ledger.invariants import check
from blocklife.offload import Geometry, HostTier, OffloadScheduler

BLOCK, STEP_TOKENS, NUM_BLOCKS, NUM_SLOTS = 4, 16, 24, 64  # block 0 is the null block
GEOMETRY, STATE = Geometry.parse(f"full:{BLOCK},swa:{BLOCK}:8,mamba:{BLOCK}"), 2  # the group of the recurrent state


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
    def __init__(self) -> None:
        self.ledger = Ledger(Limits(num_blocks=NUM_BLOCKS, num_slots=NUM_SLOTS, num_groups=len(GEOMETRY.groups)))
        self.offload = OffloadScheduler(self.ledger, HostTier(self.ledger), GEOMETRY)
        self.device, self.host = (np.zeros((places, BLOCK), dtype=np.uint64) for places in (NUM_BLOCKS, NUM_SLOTS))
        self.executor = Executor(
            CpuCopier(self.device, self.host, worker=Worker(0), blocks_per_poll=4, limits=self.ledger.limits)
        )
        self.requests: dict[str, Sequence] = {}
        self.waiting, self.running = deque[str](), list[str]()
        self.now = self.checked = self.wrong = 0

    def add(self, name: str, prompt: list[int], goal: int) -> None:
        self.requests[name] = Sequence(prompt, goal)
        self.offload.add_request(name, self.requests[name].keys, prompt_tokens=len(prompt))
        self.waiting.append(name)

    def step(self) -> None:
        self.now += 1
        # 1. Running requests first. Who finds no room is not scheduled: somebody gives way, and only those are asked again.
        batch = {name: self.requests[name].span(self.offload.requests.progress(name).computed) for name in self.running}
        short = self.offload.grow({name: len(tokens) for name, tokens in batch.items()})
        crowded = bool(short)
        while short:
            victim = self.running.pop()
            print(f"{victim}: preempted")
            self.offload.preempt(victim)  # its copies are waited for in this very plan
            self.waiting.appendleft(victim)
            del batch[victim]
            short = self.offload.grow({name: len(batch[name]) for name in short if name in batch})
        # 2. Waiting requests. A hit holds in its own step only; a request that loads is not in this batch.
        while self.waiting and not crowded:
            name = self.waiting[0]
            hit = self.offload.lookup(name, len(self.requests[name].tokens))
            if hit.deferred:
                break  # what it would read is being copied; look it up again
            tokens = self.requests[name].span(hit.compute_from)
            try:
                runs = self.offload.admit(name, hit, len(tokens))
            except CapacityError:
                break  # nothing has changed; a later step tries again
            print(f"{name}: {hit.device_tokens} tokens found on the device, {hit.host_tokens} in host memory")
            self.waiting.popleft()
            if runs:
                self.running.append(name)
                batch[name] = tokens
        # 3. A state is content only where the engine says so. Then the plan: also an empty one is carried out and settled.
        for name, tokens in batch.items():
            if tokens.stop % BLOCK == 0:
                self.offload.hand_off(name, STATE, tokens.stop)
        plan = self.offload.build_plan(self.now)
        # 4. The executor waits for the plan's flushes before the forward pass writes, and launches loads behind it.
        report = self.executor.execute(plan, lambda: self.forward(batch))
        # 5. Only now tokens count and blocks are sealed. Requests end behind it: what is not sealed cannot be stored.
        settled = self.offload.settle(plan.number, self.now, launched=report.launched, completions=report.completions)
        self.executor.drop(plan.flushes)  # the settle has taken them as proven quiet: a report is no longer needed
        self.running += settled.loaded
        self.waiting.extendleft(settled.failed)
        for name, tokens in batch.items():
            if tokens.stop == len(known := self.requests[name].tokens):
                known.append(sum(known) % 251)  # sampled; it has no content yet
            if len(known) == self.requests[name].goal:
                self.running.remove(name)
                self.offload.finish(name)
                del self.requests[name]

    def forward(self, batch: dict[str, range]) -> None:
        """Check what these tokens attend to, then write what they leave; of a state only the last one counts."""
        for name, tokens in batch.items():
            word = self.requests[name].word
            for group in range(len(GEOMETRY.groups)):
                table = [block_of(life) for life in self.ledger.requests.table(name, group)]
                first = max(0, tokens.start - 1) if group == STATE else GEOMETRY.needed(group, tokens.start).start * BLOCK
                for at in range(first, tokens.start):
                    self.wrong += int(self.device[table[at // BLOCK], at % BLOCK]) != word(group, at)
                    self.checked += 1
                for at in tokens[-1:] if group == STATE else tokens:
                    self.device[table[at // BLOCK], slice(None) if group == STATE else at % BLOCK] = word(group, at)

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
    engine.executor.close()
    right = engine.checked > 1000 and not engine.wrong and not check(engine.ledger)
    print(
        f"all right: {right}; {engine.ledger.blocks.free} of {NUM_BLOCKS - 1} blocks free, {engine.ledger.jobs.live} copies out"
    )


if __name__ == "__main__":
    main()
