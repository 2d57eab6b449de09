"""What it costs to let a request in whose prompt lies in the host tier: lookup, load, and what comes of it.

The world: one full-attention and one sliding-window group of 16-token blocks. One request at a time is added, looked up and let
in, its load lands in the same step, and the request ends. All of its prompt is in the host tier, and nothing on the device.

The peer does the same with lists and dictionaries: keys are looked up one by one up to the first gap, blocks are taken, pairs
are made, and everything is given back at the end. Nothing is checked, pinned or counted there.
"""

from __future__ import annotations

from blocklife.ledger import Checking, Completion, Ledger, Limits, Result, Worker
from blocklife.offload import Geometry, HostTier, OffloadScheduler
from blocklife.states import Block
from tests.bench import Figure, Scale, microseconds
from tests.bench.offload import BLOCK, WINDOW, Names
from tests.bench.targets import LOAD


class LoadingWorld:
    """A scheduler over a host tier that has one prompt, and a device that has nothing."""

    def __init__(self, blocks: int) -> None:
        self.tokens = blocks * BLOCK + 1
        limits = Limits(num_blocks=2 * blocks + 64, num_slots=2 * blocks + 8, max_jobs=64, max_requests=4, num_groups=2)
        self.ledger = Ledger(limits, checking=Checking.OFF, deadline=1e6)
        self.offload = OffloadScheduler(
            self.ledger, HostTier(self.ledger), Geometry.parse(f"full:{BLOCK},swa:{BLOCK}:{WINDOW}")
        )
        self.keys = Names(0, blocks + 1)
        self.offload.add_request("first", self.keys, prompt_tokens=self.tokens)
        self.offload.admit("first", self.offload.lookup("first", self.tokens), self.tokens)
        for _ in range(4):  # planned, sent off, landed; what is left behind is there already
            self.tick()
        self.leave("first")

    def tick(self) -> None:
        """A step whose copies have all landed when it settles."""
        plan = self.offload.build_plan(0.0)
        landed = [Completion(job, Worker(0), Result.OK) for job in plan.submitted]
        self.offload.settle(plan.number, 0.0, completions=landed)

    def leave(self, name: str) -> None:
        """A request ends, and what it leaves on the device is forgotten."""
        lives = [life for group in (0, 1) for life in self.ledger.requests.table(name, group) if life]
        self.offload.finish(name)
        self.ledger.drop([life for life in lives if self.ledger.blocks.of(life) is Block.CACHED])

    def step(self) -> None:
        """One request comes, loads, and goes."""
        self.offload.add_request("r", self.keys, prompt_tokens=self.tokens)
        self.offload.admit("r", self.offload.lookup("r", self.tokens), 0)
        self.tick()
        self.leave("r")


class PlainLoads:
    """The same with lists and dictionaries."""

    def __init__(self, blocks: int) -> None:
        self.keys = Names(0, blocks + 1)
        self.blocks = blocks
        self.slots = {key: number for group in (0, 1) for number, key in enumerate(self.keys(group, 0, blocks))}
        self.free = list(range(4 * blocks))
        self.loading: dict[int, list[tuple[int, int]]] = {}
        self.number = 0

    def step(self) -> None:
        """One request comes, loads, and goes."""
        found: list[list[int]] = []
        for group in (0, 1):
            own: list[int] = []
            for key in self.keys(group, 0, self.blocks):
                if (slot := self.slots.get(key)) is None:
                    break
                own.append(slot)
            found.append(own)
        length = min(map(len, found))
        first = max(0, length * BLOCK - WINDOW + 1) // BLOCK
        pairs = [(self.free.pop(), slot) for own, start in zip(found, (0, first), strict=True) for slot in own[start:length]]
        self.number += 1
        self.loading[self.number] = pairs
        self.free += [block for block, _ in self.loading.pop(self.number)]


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    figures = []
    for blocks in (4, 64, 512) if scale.full else (4,):
        ours, plain = LoadingWorld(blocks), PlainLoads(blocks)
        cost = microseconds({"ours": ours.step, "plain": plain.step}, 96 if scale.full else 6)
        figures.append(
            Figure(
                name=f"a load, a prompt of {blocks} blocks a group",
                ours=cost["ours"],
                unit="us a request",
                peer_name="plain lists and dicts, nothing checked",
                peer=cost["plain"],
                target=str(LOAD[blocks]),
            )
        )
    return figures
