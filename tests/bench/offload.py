"""What one step of the offload scheduler costs: hand-outs, windows, seals, stores, completions, with nothing left out.

The world: one full-attention and one sliding-window group of 16-token blocks; every running request grows by a token a step, so
that one in sixteen crosses a boundary in both groups; stores land three steps after they were planned. Idle requests wait.
The figure covers all that an engine calls in a step (`grow`, `build_plan`, `settle`), the ledger's own work included.

There are two peers, which end in the same tables: one looks at every request that runs, as one writes it first; the other only
at those that cross a boundary, which is as little as there is to do. Ours and both of them take turns.

The same step with a feature stands beside the step without: chunks of four blocks; a third group, of Mamba states, which the
engine hands off where they are due; a tier below, for which there is nothing to do, or to which all goes that is stored.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack, closing

from blocklife.ledger import Checking, Completion, Ledger, Limits, Plan, Result, Worker
from blocklife.offload import BelowIndex, BelowPolicies, Demote, Geometry, HostTier, OffloadScheduler
from blocklife.testing import MemoryStore
from blocklife.tiers import Identity, Presence
from tests.bench import Figure, Scale, microseconds
from tests.bench.targets import FEATURE, STEP

BLOCK = 16
WINDOW = 512
CHUNK = 4
STATE = CHUNK * BLOCK
"""Tokens between two states of a Mamba group, and of a chunk."""
PROMPT = 1_024
LAG = 3


class Names:
    """The keys of one request."""

    def __init__(self, number: int, count: int, groups: int = 2) -> None:
        self._names = [
            [bytes((group,)) + (number << 20 | at).to_bytes(7, "little") for at in range(count)] for group in range(groups)
        ]

    def __call__(self, group: int, start: int, stop: int) -> list[bytes]:
        return self._names[group][start:stop]


class World:
    """Requests that run, others that wait, and a copier that lands every store *LAG* steps later.

    There are as many *blocks* as the running requests need in so many *steps*, or as many as are asked for, if that is more.
    """

    def __init__(
        self,
        running: int,
        idle: int,
        steps: int,
        *,
        blocks: int = 0,
        spread: int = BLOCK,
        chunk: int = 1,
        states: bool = False,
        below: BelowIndex | None = None,
        below_policies: BelowPolicies | None = None,
    ) -> None:
        each, groups = (PROMPT + spread + steps) // BLOCK + 2, 2 + states
        self.ledger = Ledger(
            Limits(
                num_blocks=max(blocks, running * groups * each + 64),
                num_slots=groups * running * each,
                max_jobs=max(64, running),
                max_requests=running + idle + 1,
                num_groups=groups,
            ),
            checking=Checking.OFF,
            deadline=1e6,
        )
        geometry = Geometry.parse(f"full:{BLOCK},swa:{BLOCK}:{WINDOW}" + f",mamba:{STATE}" * states, chunk)
        self.offload = OffloadScheduler(
            self.ledger, HostTier(self.ledger), geometry, below=below, below_policies=below_policies
        )
        self.now = 0.0
        self.out: deque[tuple[float, list[Completion]]] = deque()
        self.due: list[list[tuple[str, int]]] = [[] for _ in range(STATE)]
        """By the step, modulo a state, who has one then, and its tokens before the first step."""
        for number in range(running + idle):
            name = f"r{number}"
            self.offload.add_request(name, Names(number, each, groups), prompt_tokens=PROMPT)
            if number < running:
                # staggered, so that each step has its share of boundaries, where these are *spread* tokens apart
                tokens = PROMPT + number % spread
                while (hit := self.offload.lookup(name, tokens)).deferred:  # a tier below is being asked
                    time.sleep(0.001)
                self.offload.admit(name, hit, tokens)
                if states:
                    self.due[-tokens % STATE].append((name, tokens))

    def step(self, *, scheduled: bool = True) -> Plan:
        """One engine step without a device, in which all that run are scheduled, or nobody is."""
        self.now += 1
        if scheduled:
            self.offload.grow()
            for name, tokens in self.due[int(self.now - 1) % STATE]:
                self.offload.hand_off(name, 2, tokens + int(self.now) - 1)
        plan = self.offload.build_plan(self.now)
        self.out.append((self.now + LAG, [Completion(job, Worker(0), Result.OK) for job in plan.submitted]))
        landed = self.out.popleft()[1] if self.out[0][0] <= self.now else []
        self.offload.settle(plan.number, self.now, completions=landed)
        return plan


class PlainTables:
    """What one writes first: every running request is looked at in every step, with its tables in lists and its jobs in dicts.

    No states, no epochs, no pins, no couplings, nothing is checked: the same hand-outs, releases, stores and completions only.
    """

    def __init__(self, running: int, steps: int) -> None:
        each = (PROMPT + BLOCK + steps) // BLOCK + 2
        self.free = list(range(2 * running * each))
        self.slots = list(range(2 * running * each))
        self.tokens = [PROMPT + number % BLOCK for number in range(running)]
        self.tables = [[[self.free.pop() for _ in range(tokens // BLOCK)] for _ in (0, 1)] for tokens in self.tokens]
        self.stored = [[tokens // BLOCK] * 2 for tokens in self.tokens]
        self.keys: dict[tuple[int, int, int], int] = {}
        self.jobs: dict[int, list[tuple[int, int]]] = {}
        self.busy: dict[int, int] = {}
        self.out: deque[list[int]] = deque([] for _ in range(LAG))
        self.number = 0

    def step(self) -> None:
        """One engine step."""
        made: list[int] = []
        for request, tables in enumerate(self.tables):
            tokens = self.tokens[request] = self.tokens[request] + 1
            job: list[tuple[int, int]] = []
            for group, table in enumerate(tables):
                needed = -(-tokens // BLOCK)
                while len(table) < needed:
                    table.append(self.free.pop())
                first = max(0, tokens - WINDOW + 1) // BLOCK if group else 0
                for position in range(first):
                    if table[position] >= 0 and position < self.stored[request][group]:
                        self.free.append(table[position])
                        table[position] = -1
                for chunk in range(self.stored[request][group], tokens // BLOCK):
                    if (key := (request, group, chunk)) not in self.keys and table[chunk] >= 0:
                        self.keys[key] = self.slots.pop()
                        job.append((table[chunk], self.keys[key]))
                        self.busy[table[chunk]] = self.number
                    self.stored[request][group] = chunk + 1
            if job:
                self.number += 1
                self.jobs[self.number] = job
                made.append(self.number)
        self._land(made)

    def _land(self, made: list[int]) -> None:
        """Send these jobs off, and hear of those that were sent *LAG* steps ago."""
        self.out.append(made)
        for number in self.out.popleft():
            for block, _ in self.jobs.pop(number):
                self.busy.pop(block, None)


EDGES = (0, 1, (WINDOW - 1) % BLOCK)
"""Tokens behind a full block at which something happens: a block is full, a block is needed, a block has left the window."""
AHEAD = [min((edge - tokens) % BLOCK or BLOCK for edge in EDGES) for tokens in range(BLOCK)]
"""Steps until the next of them."""


class PlainWheel(PlainTables):
    """The same, but only requests that cross a boundary are looked at: a wheel says which do in a step.

    Invariant: each request stands in ``wheel`` once, at the first step from now on in which it crosses a boundary.
    Invariant: ``tokens`` are those before the first step; ``left[request]`` of its blocks have left the window.
    """

    def __init__(self, running: int, steps: int) -> None:
        super().__init__(running, steps)
        self.now = 0
        self.left = [0] * running
        self.wheel: list[list[int]] = [[] for _ in range(BLOCK + 1)]
        for request, tokens in enumerate(self.tokens):
            self.wheel[AHEAD[tokens % BLOCK]].append(request)

    def step(self) -> None:
        """One engine step."""
        self.now += 1
        made: list[int] = []
        due = self.wheel[self.now % len(self.wheel)]
        self.wheel[self.now % len(self.wheel)] = []
        for request in due:
            tokens = self.tokens[request] + self.now
            self.wheel[(self.now + AHEAD[tokens % BLOCK]) % len(self.wheel)].append(request)
            job: list[tuple[int, int]] = []
            stored = self.stored[request]
            for group, table in enumerate(self.tables[request]):
                while len(table) * BLOCK < tokens:
                    table.append(self.free.pop())
                if group:
                    outside = min((tokens - WINDOW + 1) // BLOCK, stored[group])
                    for position in range(self.left[request], outside):
                        self.free.append(table[position])
                        table[position] = -1
                    self.left[request] = max(outside, self.left[request])
                for chunk in range(stored[group], tokens // BLOCK):
                    self.keys[request, group, chunk] = slot = self.slots.pop()
                    job.append((table[chunk], slot))
                    self.busy[table[chunk]] = self.number
                stored[group] = tokens // BLOCK
            if job:
                self.number += 1
                self.jobs[self.number] = job
                made.append(self.number)
        self._land(made)


EVERYBODY = "plain lists and dicts, nothing checked"
CHANGED = "the same, looks only at what changes"


def identity_of(slot_bytes: int) -> Identity:
    """Content of one rank."""
    return Identity(model="bench", dtype="uint8", groups="full:16", blocks_per_chunk=1, slot_bytes=slot_bytes, num_ranks=1)


def featured(running: int, steps: int) -> list[Figure]:
    """The step with each feature beside the one without."""
    with ExitStack() as stack:

        def below(demote: Demote) -> World:
            presence = stack.enter_context(closing(Presence(MemoryStore(), identity_of(64))))
            world = World(running, 0, steps, spread=STATE, below=presence, below_policies=BelowPolicies(demote=demote))
            world.step(scheduled=False)
            while world.offload.has_pending_work():  # until all that the prompts have filled is below
                world.step(scheduled=False)
            return world

        worlds = {
            "plain": World(running, 0, steps, spread=STATE),
            f"chunks of {CHUNK}": World(running, 0, steps, spread=STATE, chunk=CHUNK),
            f"a group of Mamba states, every {STATE} tokens": World(running, 0, steps, spread=STATE, states=True),
            "nothing to do below": below(Demote.NEVER),
            "all that is stored is demoted": below(Demote.EAGER),
        }
        cost = microseconds({name: world.step for name, world in worlds.items()}, steps)
    plain = cost.pop("plain")
    return [
        Figure(
            name=f"scheduler step, {running} running, {name}",
            ours=each,
            unit="us",
            peer_name="ours, without",
            peer=plain,
            target=str(FEATURE),
        )
        for name, each in cost.items()
    ]


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    figures = featured(*((256, 192) if scale.full else (4, 8)))
    for running in (64, 256, 1_024, 4_096, 16_384) if scale.full else (4,):
        steps = 8 if not scale.full else 96 if running <= 1_024 else 48
        idle = () if running > 1_024 else (1_000, 10_000) if scale.full else (8,)
        worlds = {number: World(running, number, steps) for number in (0, *idle)}
        plain = {EVERYBODY: PlainTables(running, steps).step, CHANGED: PlainWheel(running, steps).step}
        cost = microseconds({**{str(number): world.step for number, world in worlds.items()}, **plain}, steps)
        for peer in plain:
            figures.append(
                Figure(
                    name=f"scheduler step, {running} running",
                    ours=cost["0"],
                    unit="us",
                    peer_name=peer,
                    peer=cost[peer],
                    target=str(STEP[running]) if peer == CHANGED and running in STEP else "",
                )
            )
        for number in idle:
            figures.append(
                Figure(
                    name=f"scheduler step, {running} running, {number} idle",
                    ours=cost[str(number)],
                    unit="us",
                    peer_name="ours, nobody idle",
                    peer=cost["0"],
                    target="flat in the idle ones",
                )
            )
    return figures
