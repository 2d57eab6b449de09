"""Random engines over the real offload scheduler, beside workers whose memory never asks the ledger.

Goal: what no story thought of. Method: an engine with a seed lets requests in, runs, preempts, aborts and ends them, rolls
draft tokens back, and changes the world (reset, sleep, other weights, a worker lost). Each worker has memory of its own: every
place on the device and in the host tier holds, token by token, the prefix that was computed there, and the weights it was
computed with. A copy moves its blocks one by one, at any moment between its launch and its landing, so that whoever writes too
early is seen. A forward pass reads exactly what each kind of attention needs. After every call the rules of the ledger are
counted again; after every step what it calls readable is compared with the bytes. At the end everything has to drain by ticks.

The last part plants bugs and demands that the walks find them.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, ParamSpec, TypeVar

import pytest
from attrs import define, field, frozen

from blocklife.core._progress import EntrySpans, PlanTokens, TokenProgress
from blocklife.errors import BlocklifeError, CapacityError
from blocklife.ledger import (
    Completion,
    Contract,
    Direction,
    JobId,
    Jobs,
    Launched,
    Ledger,
    Limits,
    Plan,
    Result,
    Transfer,
    Worker,
)
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger._rows import RowVerbs
from blocklife.ledger.invariants import check
from blocklife.offload import (
    FullHit,
    Geometry,
    Hit,
    HostTier,
    LastStep,
    LocalAttention,
    Mamba,
    Mode,
    OffloadScheduler,
    Policies,
    SlidingWindow,
)
from blocklife.offload import _search as search_module
from blocklife.offload import _stores as stores_module
from blocklife.offload._endings import Endings
from blocklife.offload._lookup import Found, common_length
from blocklife.offload._search import Search
from blocklife.offload._steps import SchedulerSteps
from blocklife.offload._stores import StoreLine
from blocklife.states import KEYED, Block, Job, Request, Slot, Trait, states_with
from tests.worlds import LOAD_READS, LOAD_WRITES, STORE_READS, STORE_WRITES

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")

NUM_STEPS = 70
MAX_DRAIN = 600
LONGEST = 30
"""Tokens of a request at its end."""
AHEAD_OF_END = 8
"""Tokens that a step may compute behind the end: those that are scheduled before the end is known, and drafts."""


class Finding(AssertionError):  # noqa: N818 - what it reports is no error of the test
    """Something that must hold does not."""


# --- tokens and content -------------------------------------------------------------------------------------------------


class Prefixes:
    """Every prefix of tokens that was ever asked for gets a number; keys and content are made of it.

    Content also names the weights it was computed with (`epoch`). Keys do not: what was there before other weights came must
    be forgotten by whoever is told of them, not by luck.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.contents: dict[tuple[int, bytes], list[int]] = {}
        """The cells of a block that a key of a group names, under weights 0."""

    def of(self, tokens: Sequence[int]) -> list[int]:
        """The number of each prefix; the empty one is 0."""
        found = [0]
        for token in tokens:
            found.append(self._numbers.setdefault((found[-1], token), len(self._numbers) + 1))
        return found

    def key(self, group: int, cells: list[int]) -> bytes:
        """The key of a block with these cells."""
        key = f"{group}.{cells[-1]}".encode()
        self.contents[group, key] = cells
        return key


def with_weights(cells: Sequence[int], epoch: int) -> list[int]:
    """Cells as they are under other weights."""
    return [cell << 8 | epoch for cell in cells]


# --- workers ------------------------------------------------------------------------------------------------------------


@define(eq=False)
class Copy:
    """One worker's share of a job that runs, with the steps that are still to be done."""

    transfer: Transfer
    moves: list[tuple[int, int]]
    """Source and target of what has not moved yet."""
    ok: bool
    lands: float
    """When it lands by itself."""

    @property
    def stores(self) -> bool:
        """Whether it reads blocks and writes the host's places."""
        return self.transfer.direction is Direction.STORE

    @property
    def blocks(self) -> list[int]:
        """Every block that it touches until it has landed."""
        found: list[int] = (self.transfer.source if self.stores else self.transfer.target).tolist()
        return found

    @property
    def places(self) -> list[int]:
        """Every place of the host that it touches until it has landed."""
        found: list[int] = (self.transfer.target if self.stores else self.transfer.source).tolist()
        return found


@define(eq=False)
class Station:
    """One worker: its memory, the copies that run on it, and those that it holds back until the next step begins."""

    rank: int
    rnd: random.Random
    blocks: dict[int, list[int]] = field(factory=dict)
    host: dict[int, list[int]] = field(factory=dict)
    copies: dict[JobId, Copy] = field(factory=dict)
    held_back: list[Copy] = field(factory=list)

    def clash(self, block: int, *, writes: bool) -> str:
        """Why a forward pass must not read (or write) a block now; empty where it may."""
        for job, copy in self.copies.items():
            if block in copy.blocks and (writes or not copy.stores):
                return f"block {block} while copy {job} {'reads' if copy.stores else 'writes'} it"
        return ""

    def launch(self, copy: Copy) -> None:
        """A copy begins; nothing else may touch what it writes, and nothing may write what it reads."""
        job = copy.transfer.job
        if job in self.copies:
            raise Finding(f"worker {self.rank}: copy {job} is launched twice")
        for other, running in self.copies.items():
            both = set(copy.blocks) & set(running.blocks)
            if both and not (copy.stores and running.stores):
                raise Finding(f"worker {self.rank}: copies {job} and {other} meet on blocks {sorted(both)}")
            both = set(copy.places) & set(running.places)
            if both and (copy.stores or running.stores):
                raise Finding(f"worker {self.rank}: copies {job} and {other} meet on host places {sorted(both)}")
        self.copies[job] = copy

    def move(self, copy: Copy) -> None:
        """One block moves; whatever is in the source now arrives."""
        source, target = copy.moves.pop(self.rnd.randrange(len(copy.moves)))
        a, b = (self.blocks, self.host) if copy.stores else (self.host, self.blocks)
        b[target] = list(a.get(source, [])) if copy.ok or self.rnd.random() < 0.5 else [-1]

    def land(self, job: JobId) -> bool:
        """All that is left moves, and the copy is over."""
        copy = self.copies[job]
        while copy.moves:
            self.move(copy)
        del self.copies[job]
        return copy.ok


# --- requests and plans -------------------------------------------------------------------------------------------------


@define(eq=False)
class Tenure:
    """One stay of a request in the batch, as the workers see it: how far they are, plans that have not settled included."""

    position: int
    known: int


@define(eq=False)
class Client:
    """One request: all tokens that it will ever have, and how many of them are known."""

    name: str
    tokens: list[int]
    ids: list[int]
    prompt: int
    goal: int
    known: int
    tenure: Tenure | None = None
    hit: Hit | None = None
    over: bool = False


@frozen
class Share:
    """What one request does in one plan."""

    sequence: Client
    tenure: Tenure
    tokens: int
    tables: tuple[tuple[int, ...], ...]
    handed: frozenset[tuple[int, int]]


@define(eq=False)
class Sent:
    """A plan on its way, with the weights it was made for."""

    plan: Plan
    shares: list[Share]
    epoch: int
    ranks: set[int]
    sampled: dict[str, int] = field(factory=dict)
    launched: list[Launched] = field(factory=list)
    executed: bool = False


@frozen(kw_only=True)
class World:
    """The choices of one walk that its name tells; the seed draws the rest."""

    groups: str
    chunk: int
    mode: Mode
    ahead: int
    contract: Contract

    def __str__(self) -> str:
        how = f"{self.mode.name}-{'async' if self.ahead else 'sync'}-{self.contract.name}".lower()
        return f"{self.groups.replace(',', '+').replace(':', '_')}-c{self.chunk}-{how}"


GROUPS = (
    "full:4",
    "swa:4:8",
    "full:4,swa:2:5",
    "full:4,swa:2:6,mamba:8",
    "full:3,swa:4:6",
    "swa:6:7,full:4",
    "full:4,local:4:8",
    "local:2:6",
)
WORLDS = [
    World(groups=groups, chunk=chunk, mode=mode, ahead=ahead, contract=contract)
    for groups, chunk, mode, ahead, contract in product(GROUPS, (1, 2, 3), Mode, (0, 1), Contract)
]
SEEDED = [pytest.param(world, seed, id=f"{world}-{seed}") for seed, world in enumerate(WORLDS)]


class Walker:
    """One engine, its workers, and everything that can go wrong; a function of the world and the seed."""

    def __init__(self, world: World, seed: int, *, steps: int = NUM_STEPS) -> None:
        self.world = world
        self.rnd = rnd = random.Random(f"{world}/{seed}")
        self.steps = steps
        self.geometry = geometry = Geometry.parse(world.groups, world.chunk)
        self.groups = range(len(geometry.groups))
        self.states = [group for group in self.groups if isinstance(geometry.groups[group], Mamba)]
        self.workers = rnd.choice((1, 2))
        self.policies = Policies(
            mode=world.mode,
            plans_ahead=world.ahead,
            last_step=rnd.choice(list(LastStep)),
            full_hit=FullHit.DROP_LAST_BLOCK if self.states else rnd.choice(list(FullHit)),
            partial_chunks=rnd.random() < 0.5,
            max_load_tokens=rnd.choice((None, None, 8, 16)),
            max_store_tokens=rnd.choice((None, None, None, 16)),
            prompt_only=rnd.random() < 0.15,
            max_load_failures=rnd.choice((1, 2, 5)),
            max_job_blocks=rnd.choice((1, 4, 256)),
            lazy_blocks=rnd.choice((1, 4, 64)),
        )
        self.num_blocks = 1 + self.most_blocks() + rnd.choice((0, 2, 6, 14))
        self.num_slots = rnd.choice((2, 6, 12, 24, 48))
        self.deadline = rnd.choice((6.0, 12.0, 40.0))
        limits = Limits(
            num_blocks=self.num_blocks,
            num_slots=self.num_slots,
            max_jobs=rnd.choice((2, 6, 24)),
            max_requests=8,
            num_groups=len(geometry.groups),
            num_workers=self.workers,
            max_journal=64,
        )
        self.ledger = Ledger(limits, contract=world.contract, deadline=self.deadline)
        self.tier = HostTier(self.ledger, rnd.choice(("lru", "arc")))
        self.scheduler = OffloadScheduler(self.ledger, self.tier, geometry, self.policies)
        self.stations = [Station(rank, random.Random(f"{seed}/{rank}")) for rank in range(self.workers)]
        self.lost: set[int] = set()
        self.asleep = False
        self.faults = rnd.choice((0.0, 0.1, 0.3))
        self.upheavals = rnd.choice((0.0, 0.0, 0.04))
        self.speed = rnd.choice((1, 4, 9))
        self.prefixes = Prefixes()
        self.epoch = 0
        self.now = 0.0
        self.count = 0
        self.waiting: list[Client] = []
        self.running: list[Client] = []
        self.loading: dict[str, Client] = {}
        self.ending: dict[str, Client] = {}
        self.out: list[Sent] = []
        self.inbox: list[tuple[float, Completion]] = []
        self.seen: Counter[str] = Counter()
        self.calm = False
        self.log: list[str] = []

    def most_blocks(self) -> int:
        """The most blocks that one request can need at once."""
        most = 0
        for kind, tokens in zip(self.geometry.groups, self.geometry.block_tokens, strict=True):
            blocks = -(-(LONGEST + AHEAD_OF_END) // tokens)
            most += min(blocks, 2 + self.world.ahead) if isinstance(kind, Mamba) else blocks
        return most

    # --- calling ------------------------------------------------------------------------------------------------------------

    def call(self, method: Callable[P, ReturnT], *args: P.args, **named: P.kwargs) -> ReturnT:
        """Call the scheduler, and count the rules of the ledger again, whatever came of it."""
        name = getattr(method.func if isinstance(method, partial) else method, "__name__", "?")
        self.log.append(f"{self.now:g}: {name}{args} {method.keywords if isinstance(method, partial) else ''}")
        try:
            return method(*args, **named)
        finally:
            if broken := check(self.ledger):
                raise Finding(f"{broken[0]}")

    def run(self) -> Walker:
        """Walk, then drain; a finding carries the last calls."""
        try:
            for _ in range(self.steps):
                self.step()
            self.drain()
        except (BlocklifeError, Finding, LookupError, ValueError, TypeError) as problem:
            about = f"{self.world}, {self.policies}, {self.ledger.limits}"
            text = "\n".join([f"{type(problem).__name__}: {problem}", about, *self.log[-40:]])
            raise Finding(text) from problem
        return self

    def drain(self) -> None:
        """Nobody new comes and nothing breaks; every request ends, and ticks alone bring everything home."""
        self.calm = True
        for rank in sorted(self.lost):
            self.regain(rank)
        for _ in range(MAX_DRAIN):
            self.step()
            if not self.everybody():
                break
        else:
            raise Finding(f"after {MAX_DRAIN} calm steps there are {[each.name for each in self.everybody()]}")
        for _ in range(MAX_DRAIN):
            if not self.scheduler.has_pending_work() and not self.out and not self.scheduler._stores.waiting:
                break
            self.step()
        else:
            raise Finding(f"ticks alone do not drain {self.ledger}, {self.scheduler.statistics()}")
        self.at_home()

    def at_home(self) -> None:
        """Nothing is alive, held or pinned, and every place is accounted for."""
        ledger, now = self.ledger, self.ledger.statistics()
        blocks, slots = ledger.blocks, ledger.slots
        columns = (blocks.pins, blocks.refs, blocks.writes, blocks.overdue, blocks.job)
        held = any(count(block) for count in columns for block in range(len(blocks)))
        held |= any(map(slots.pins, range(len(slots))))
        if held or now.jobs_alive or now.requests or ledger.slots.holders or self.scheduler.has_pending_work():
            raise Finding(f"something is still held: {now}, holders {dict(ledger.slots.holders)}")
        idle = sum(now.blocks[state.name] for state in states_with(Trait.FREE, Block))
        if idle != self.num_blocks - 1 or now.free != idle:
            raise Finding(f"blocks have not come home: {now.blocks}")
        if now.slots["EMPTY"] + now.slots["READY"] != self.num_slots:
            raise Finding(f"slots have not come home: {now.slots}")
        scheduler = self.scheduler
        if scheduler._state.loading or scheduler._state.pinned or scheduler._state.waiting_loads or scheduler._state.requests:
            raise Finding("the scheduler remembers who is gone")

    def everybody(self) -> list[Client]:
        return [*self.waiting, *self.running, *self.loading.values(), *self.ending.values()]

    # --- one step -----------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One step of the engine."""
        self.now += 1.0
        if not self.calm:
            self.arrive()
            if self.rnd.random() < self.upheavals:
                self.upheaval()
            if self.rnd.random() < 0.04:
                self.abort()
        if self.asleep and not self.scheduler.has_pending_work() and (self.calm or self.rnd.random() < 0.5):
            self.wake()
        if not self.asleep:
            self.grow()
            self.admit()
        if self.lost and self.rnd.random() < 0.1:
            self.regain(min(self.lost))
        self.plan()
        first = len(self.out) == 1 or self.rnd.random() < 0.5
        if first and self.world.ahead:
            self.execute(self.out[0])
        for station in self.stations:
            self.work(station)
        # with nobody left, or asleep, no further plan has to be made before the last one settles
        idle = (not self.everybody() or self.asleep) and self.rnd.random() < 0.5
        while self.out and (len(self.out) > self.world.ahead or idle):
            self.settle()
        self.prove()
        self.judge()

    def arrive(self) -> None:
        if len(self.everybody()) >= 7 or self.rnd.random() < 0.5:
            return
        rnd = self.rnd
        common = rnd.choice(([1] * LONGEST, [2] * LONGEST, [1] * 9 + [3] * LONGEST, [4] * LONGEST, [5] * LONGEST))
        base = common if rnd.random() < 0.9 else [6 + rnd.randrange(100)] * LONGEST
        prompt = rnd.randrange(1, LONGEST - 4)
        goal = min(LONGEST, prompt + rnd.randrange(1, 12))
        name = f"r{self.count}"
        self.count += 1
        # what is sampled is often what others have sampled, too
        answer = rnd.choice((7, 8, 100 + self.count))
        tokens = [*base[:prompt], *[answer] * (LONGEST + AHEAD_OF_END - prompt)]
        sequence = Client(name, tokens, self.prefixes.of(tokens), prompt, goal, prompt)
        self.waiting.append(sequence)
        self.call(self.scheduler.add_request, name, partial(self.keys, sequence), prompt_tokens=prompt)

    def keys(self, sequence: Client, group: int, start: int, stop: int) -> list[bytes]:
        """The keys of blocks; nobody may ask for what is not known."""
        size = self.geometry.block_tokens[group]
        known = max(sequence.known, sequence.tenure.known if sequence.tenure else 0)
        if not 0 <= start <= stop or stop * size > known:
            raise Finding(f"request {sequence.name}: asked for keys {start} to {stop}, and {known} tokens are known")
        found = []
        for block in range(start, stop):
            found.append(self.prefixes.key(group, self.cells(sequence, group, block)))
        return found

    def cells(self, sequence: Client, group: int, block: int) -> list[int]:
        """What a full block holds."""
        size = self.geometry.block_tokens[group]
        if group in self.states:
            return [sequence.ids[(block + 1) * size] << 3 | group]
        return [each << 3 | group for each in sequence.ids[block * size + 1 : (block + 1) * size + 1]]

    def grow(self) -> None:
        """Schedule the running ones; where there is no room the youngest goes."""
        if self.running and self.rnd.random() < (0.0 if self.calm else 0.06):
            self.preempt(self.rnd.choice(self.running))
        tokens: dict[str, int] = {}
        for sequence in self.running:
            progress = self.scheduler.requests.progress(sequence.name)
            left = progress.known - progress.computed - progress.in_flight
            count = 0 if self.rnd.random() < 0.1 and not self.calm else self.some(left)
            if count != 1 or self.rnd.random() < 0.3:
                tokens[sequence.name] = count
        short = self.call(self.scheduler.grow, tokens)
        while short:
            self.seen["short"] += 1
            self.preempt(self.running[-1])
            left_over = [each for each in short if each in {sequence.name for sequence in self.running}]
            short = self.call(self.scheduler.grow, {name: tokens.get(name, 1) for name in left_over}) if left_over else []

    def some(self, left: int) -> int:
        """How many tokens to schedule where so many known ones are left; a few drafts where all of them go."""
        count = self.rnd.randrange(1, max(1, left) + 1) if self.rnd.random() < 0.6 else max(1, left)
        if count >= left and not self.states and not self.calm and self.rnd.random() < 0.3:
            count += self.rnd.randrange(1, 3)
            self.seen["drafts"] += 1
        return count

    def preempt(self, sequence: Client) -> None:
        self.call(self.scheduler.preempt, sequence.name)
        self.seen["preempted"] += 1
        self.evicted(sequence)

    def evicted(self, sequence: Client) -> None:
        """The request holds nothing any more, and waits."""
        if sequence in self.running:
            self.running.remove(sequence)
        self.loading.pop(sequence.name, None)
        sequence.tenure = None
        self.waiting.insert(0, sequence)

    def admit(self) -> None:
        """Look waiting requests up, and let some in."""
        for sequence in self.waiting[:4]:
            hit = self.call(self.scheduler.lookup, sequence.name, sequence.known)
            if hit.deferred:
                self.seen["deferred"] += 1
                continue
            if len(self.running) + len(self.loading) > 4 or (self.rnd.random() < 0.1 and not self.calm):
                continue
            if not hit.device_tokens <= hit.tokens <= sequence.known or hit.compute_from >= sequence.known:
                raise Finding(f"request {sequence.name}: {hit} does not fit {sequence.known} known tokens")
            try:
                runs = self.call(self.scheduler.admit, sequence.name, hit, self.some(sequence.known - hit.compute_from))
            except CapacityError:
                self.seen["no room"] += 1
                if any(self.ledger.requests.table(sequence.name, group) for group in self.groups):
                    raise Finding(f"request {sequence.name}: refused, and it holds blocks") from None
                if self.rnd.random() < 0.8:
                    break
                continue
            self.waiting.remove(sequence)
            sequence.hit = hit
            self.seen["device hit"] += hit.device_tokens > 0
            if runs:
                sequence.tenure = Tenure(hit.compute_from, sequence.known)
                self.running.append(sequence)
            else:
                self.loading[sequence.name] = sequence
                self.seen["load"] += 1

    def plan(self) -> None:
        """Hand states off, and make the plan of this step."""
        table, scheduler = self.scheduler._state.progress, self.scheduler
        scheduled = []
        for sequence in self.running:
            row = self.ledger.requests.row(sequence.name)
            count = table.wanted_of(row) if table.is_scheduled(row) else 0
            if count:
                scheduled.append((sequence, count))
        handed: dict[str, set[tuple[int, int]]] = {}
        for sequence, count in scheduled:
            progress = scheduler.requests.progress(sequence.name)
            end = progress.computed + progress.in_flight + count
            for group in self.states:
                if end % self.geometry.block_tokens[group] == 0 and self.rnd.random() < 0.8:
                    self.call(scheduler.hand_off, sequence.name, group, end)
                    handed.setdefault(sequence.name, set()).add((group, end))
        shares = []
        for sequence, count in scheduled:
            assert sequence.tenure is not None
            tables = tuple(
                tuple(life & ID_MASK for life in self.ledger.requests.table(sequence.name, group)) for group in self.groups
            )
            shares.append(Share(sequence, sequence.tenure, count, tables, frozenset(handed.get(sequence.name, ()))))
        plan = self.call(scheduler.build_plan, self.now)
        if self.ledger.slots.holders:
            raise Finding(f"pins outlive their step: {dict(self.ledger.slots.holders)}")
        ranks = {station.rank for station in self.stations} - self.lost
        self.out.append(Sent(plan, shares, self.epoch, ranks))
        self.seen["stores"] += len(plan.stores)
        self.seen["loads"] += len(plan.loads)
        self.seen["flushes"] += len(plan.flushes)

    # --- workers ------------------------------------------------------------------------------------------------------------

    def execute(self, sent: Sent) -> None:
        """Every worker carries the plan out: what was held back, waits, loads, the forward pass, stores."""
        if sent.executed:
            return
        sent.executed = True
        for station in self.stations:
            if station.rank not in sent.ranks:
                continue
            for copy in station.held_back:
                self.launch(station, copy, sent)
            station.held_back = []
            for job in sent.plan.flushes:
                if job in station.copies:
                    self.land(station, job)
            loads_first = self.rnd.random() < 0.5
            for transfer in sent.plan.loads if loads_first else ():
                self.launch(station, self.copy(transfer), sent)
            for share in sent.shares:
                self.forward(station, share, sent.epoch)
            for transfer in () if loads_first else sent.plan.loads:
                self.launch(station, self.copy(transfer), sent)
            for transfer in sent.plan.stores:
                if self.rnd.random() < 0.5:
                    self.launch(station, self.copy(transfer), sent)
                else:
                    station.held_back.append(self.copy(transfer))
        for share in sent.shares:
            self.sample(share, sent)

    def copy(self, transfer: Transfer) -> Copy:
        """A share of a job; how it ends is drawn now."""
        draw = self.rnd.random()
        lasts = self.rnd.randrange(self.speed)
        if not self.calm and draw < self.faults * 0.3:
            lasts = 1000 if draw < self.faults * 0.15 else int(self.deadline) + 5  # never by itself, or late
        ok = self.calm or self.rnd.random() >= self.faults
        return Copy(transfer, list(zip(transfer.source.tolist(), transfer.target.tolist(), strict=True)), ok, self.now + lasts)

    def launch(self, station: Station, copy: Copy, sent: Sent) -> None:
        station.launch(copy)
        sent.launched.append(Launched(copy.transfer.job, Worker(station.rank)))

    def land(self, station: Station, job: JobId) -> None:
        """A copy is over; its report may be lost, delayed, or sent twice."""
        result = Result.OK if station.land(job) else Result.FAILED
        record = Completion(job, Worker(station.rank), result)
        draw = 1.0 if self.calm else self.rnd.random()
        if draw < self.faults * 0.2:
            self.seen["lost reports"] += 1
            return
        self.inbox.append((self.now + self.rnd.choice((0, 0, 0, 2)), record))
        if draw > 1 - self.faults * 0.2:
            self.inbox.append((self.now + self.rnd.randrange(20), record))

    def work(self, station: Station) -> None:
        """Copies move a little; those whose time has come land."""
        for job, copy in list(station.copies.items()):
            while copy.moves and self.rnd.random() < 0.5:
                station.move(copy)
            if copy.lands <= self.now:
                self.land(station, job)

    def forward(self, station: Station, share: Share, epoch: int) -> None:
        """Read what the tokens attend to, and write what they leave."""
        start = share.tenure.position
        end = start + share.tokens
        for group in self.groups:
            reads, writes = (
                self.state_step(share, group, start, end) if group in self.states else self.attend(share, group, start, end)
            )
            for block, offset, cells in reads:
                self.look(station, share, group, block, offset, with_weights(cells, epoch), end)
            for block, offset, cells in writes:
                if block == 0:
                    raise Finding(f"request {share.sequence.name} writes the null block of group {group} at {start}..{end}")
                held = station.blocks.get(block, [])
                wanted = with_weights(cells, epoch)
                if held[offset : offset + len(cells)] == wanted and self.policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN:
                    continue  # the one rewrite that changes nothing
                if problem := station.clash(block, writes=True):
                    raise Finding(f"worker {station.rank}: request {share.sequence.name} writes {problem}")
                station.blocks[block] = [*(held + [-1] * offset)[:offset], *wanted]

    def attend(self, share: Share, group: int, start: int, end: int) -> tuple[list[Any], list[Any]]:
        """Blocks with the offset and the cells that tokens from *start* to *end* read and write."""
        kind, size, ids = self.geometry.groups[group], self.geometry.block_tokens[group], share.sequence.ids
        low = max(0, start - kind.window_tokens + 1) if isinstance(kind, SlidingWindow) else 0
        if isinstance(kind, LocalAttention):
            low = start // kind.part_tokens * kind.part_tokens
        parts: tuple[list[Any], list[Any]] = ([], [])
        for found, first, last in ((parts[0], low, start), (parts[1], start, end)):
            while first < last:
                block, stop = first // size, min(last, (first // size + 1) * size)
                if block >= len(share.tables[group]):
                    raise Finding(f"request {share.sequence.name}: no block for token {first} of group {group}")
                found.append(
                    (share.tables[group][block], first % size, [each << 3 | group for each in ids[first + 1 : stop + 1]])
                )
                first = stop
        return parts

    def state_step(self, share: Share, group: int, start: int, end: int) -> tuple[list[Any], list[Any]]:
        """The same for a state: it is read at *start* and written at *end*."""
        size, ids, table = self.geometry.block_tokens[group], share.sequence.ids, share.tables[group]
        reads = [(table[(start - 1) // size], 0, [ids[start] << 3 | group])] if start else []
        return reads, [(table[(end - 1) // size], 0, [ids[end] << 3 | group])]

    def look(self, station: Station, share: Share, group: int, block: int, at: int, cells: list[int], end: int) -> None:
        who = f"worker {station.rank}: request {share.sequence.name}, group {group}, step to {end},"
        if block == 0:
            raise Finding(f"{who} reads the null block")
        if problem := station.clash(block, writes=False):
            raise Finding(f"{who} reads {problem}")
        held = station.blocks.get(block, [])[at : at + len(cells)]
        if held != cells:
            raise Finding(f"{who} reads block {block}: wants {cells}, finds {held}")

    def sample(self, share: Share, sent: Sent) -> None:
        """What the step makes known: one token, and as many drafts as are accepted."""
        tenure = share.tenure
        end = tenure.position + share.tokens
        if end < tenure.known:
            tenure.position = end
            return
        drafts = end - tenure.known
        count = 1 + self.rnd.randrange(drafts + 1)
        if count != 1 or self.rnd.random() < 0.2:
            sent.sampled[share.sequence.name] = count
        self.seen["rollbacks"] += count <= drafts
        tenure.position = min(end, tenure.known + count - 1)
        tenure.known += count

    # --- settling -----------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """The oldest plan has been carried out, and its reports are in."""
        sent = self.out[0]
        self.execute(sent)
        if not self.calm and self.rnd.random() < 0.05:
            self.abort()
        self.rnd.shuffle(self.inbox)
        due = [record for at, record in self.inbox if at <= self.now]
        self.inbox = [(at, record) for at, record in self.inbox if at > self.now]
        sampled = {name: count for name, count in sent.sampled.items() if name in self.ledger.requests}
        settled = self.call(
            partial(self.scheduler.settle, sampled=sampled, launched=sent.launched, completions=due), sent.plan.number, self.now
        )
        self.out.pop(0)
        for share in sent.shares:
            sequence = share.sequence
            if sequence.tenure is share.tenure and not sequence.over:
                self.follow(sequence, share)
        for name in settled.loaded:
            sequence = self.loading.pop(name)
            assert sequence.hit is not None
            sequence.tenure = Tenure(sequence.hit.compute_from, sequence.known)
            self.running.append(sequence)
            self.seen["loaded"] += 1
        for name in settled.failed:
            self.seen["failed loads"] += 1
            self.evicted(self.loading[name])
        for name in settled.ended:
            del self.ending[name]
        for sequence in list(self.running):
            if sequence.known >= sequence.goal:
                self.end(sequence, "finish")

    def follow(self, sequence: Client, share: Share) -> None:
        """The engine's own count of what is computed and known, against the scheduler's."""
        if sequence.name not in self.ledger.requests:
            return
        tenure, progress = share.tenure, self.scheduler.requests.progress(sequence.name)
        sequence.known = progress.known
        # the workers may be one plan further
        settled = not self.out or not self.out[0].executed
        if (
            settled
            and sequence.name not in self.ending
            and (progress.computed, progress.known) != (tenure.position, tenure.known)
        ):
            raise Finding(f"request {sequence.name}: {progress}, and the workers are at {tenure}")

    def end(self, sequence: Client, how: str) -> None:
        """Finish or abort; a plan that is out may put it off."""
        self.call(getattr(self.scheduler, how), sequence.name)
        self.seen[how] += 1
        if sequence.name in self.ledger.requests:
            self.ending[sequence.name] = sequence
            self.seen["late ends"] += 1
        else:
            sequence.over = True
        for group in (self.waiting, self.running):
            if sequence in group:
                group.remove(sequence)
        self.loading.pop(sequence.name, None)

    def abort(self) -> None:
        candidates = [*self.waiting, *self.running, *self.loading.values()]
        if candidates:
            self.end(self.rnd.choice(candidates), "abort")

    # --- upheavals ----------------------------------------------------------------------------------------------------------

    def upheaval(self) -> None:
        """Something happens to everybody at once."""
        scheduler = self.scheduler
        what = self.rnd.choice(("reset", "drain", "sleep", "renew", "lose"))
        self.seen[what] += 1
        if what == "sleep":
            if not self.asleep:
                self.forgotten(self.call(scheduler.sleep))
                self.asleep = True
        elif what == "drain":
            before = len(self.ledger.requests), self.ledger.blocks.free
            try:
                self.forgotten(self.call(partial(scheduler.reset, drain=True)))
            except CapacityError:
                if not self.ledger.jobs.live or (len(self.ledger.requests), self.ledger.blocks.free) != before:
                    raise Finding("a reset that must wait has changed something, or has nothing to wait for") from None
                return
            self.epoch += 1
        elif what == "lose":
            rank = self.rnd.randrange(self.workers)
            self.lost.add(rank)
            self.stations[rank] = Station(rank, self.rnd)
            for sent in self.out:
                sent.ranks.discard(rank)
            self.forgotten(self.call(scheduler.lose_worker, rank))
            self.epoch += 1
        else:
            other = partial(scheduler.reset, generation=f"w{self.epoch + 1}")
            self.forgotten(self.call(scheduler.reset if what == "reset" else other))
            self.epoch += 1
        if self.ledger.blocks.count()[Block.SEALED]:
            raise Finding(f"content is still held after {what}")

    def forgotten(self, names: list[str]) -> None:
        """Who ran or loaded waits again; who was over has ended."""
        mine = {each.name: each for each in [*self.running, *self.loading.values()]}
        if set(names) != set(mine):
            raise Finding(f"preempted are {sorted(names)}, and not {sorted(mine)}")
        for name in names:
            self.evicted(mine[name])
        for name, sequence in list(self.ending.items()):
            if name in self.ledger.requests:
                raise Finding(f"request {name} was over, and is still known after an upheaval")
            sequence.over = True
        self.ending.clear()

    def wake(self) -> None:
        self.call(self.scheduler.wake)
        self.asleep = False
        for station in self.stations:
            if station.copies or station.held_back:
                raise Finding("the device was given up while a copy runs")
            station.blocks.clear()

    def regain(self, rank: int) -> None:
        self.forgotten(self.call(self.scheduler.regain_worker, rank))
        self.lost.discard(rank)

    def prove(self) -> None:
        """Now and then the device is synchronised with copies past their deadline."""
        if not self.faults or int(self.now) % 9:
            return
        jobs = self.ledger.jobs.submitted()
        quarantined = [job for job in jobs.ids if self.ledger.jobs.state(job) is Job.QUARANTINED]
        if quarantined:
            self.seen["proofs"] += 1
            for station, job in product(self.stations, quarantined):
                station.held_back = [copy for copy in station.held_back if copy.transfer.job != job]
                if job in station.copies:
                    station.land(job)
            self.call(self.ledger.quiesce, Jobs(tuple(quarantined)))

    # --- judging ------------------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Compare what the ledger claims with what the workers do and hold."""
        blocks, slots, size = self.ledger.blocks, self.ledger.slots, self.world.chunk
        for station in self.stations:
            for job, copy in station.copies.items():
                for block in copy.blocks:
                    if (claim := blocks.state(block).name) not in (STORE_READS if copy.stores else LOAD_WRITES):
                        raise Finding(f"copy {job} touches block {block}, which is {claim} in the ledger")
                for place in copy.places:
                    if (claim := slots.state(place // size).name) not in (STORE_WRITES if copy.stores else LOAD_READS):
                        raise Finding(f"copy {job} touches slot {place // size}, which is {claim} in the ledger")
            if station.rank in self.lost:
                continue
            for block in range(1, self.num_blocks):
                key = blocks.key(block)
                if key is not None and blocks.state(block) in KEYED:
                    self.compare(f"block {block}", station.blocks.get(block), blocks.group(block), key)
            for slot in range(self.num_slots):
                key = slots.key(slot)
                if key is not None and slots.state(slot) is Slot.READY:
                    self.compare(f"slot {slot}", station.host.get((slot + 1) * size - 1), slots.group(slot), key)
        self.reads_of_hits()

    def compare(self, what: str, held: list[int] | None, group: int, key: bytes) -> None:
        promised = with_weights(self.prefixes.contents[group, key], self.epoch)
        if held != promised:
            raise Finding(f"{what} promises {key.decode()} and holds {held}, not {promised}")

    def reads_of_hits(self) -> None:
        """Who is known to the engine is known to the ledger, and in that state."""
        for sequence in self.running:
            if self.ledger.requests.state(sequence.name) is not Request.RUNNING:
                raise Finding(f"request {sequence.name} does not run")
        for name in self.loading:
            if self.ledger.requests.state(name) is not Request.LOADING:
                raise Finding(f"request {name} does not load")


# --- the walks ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("world", "seed"), SEEDED)
def test_walks_find_nothing_and_drain(world: World, seed: int) -> None:
    """No call breaks a rule, no forward pass reads what is not its own, and everything comes home."""
    Walker(world, seed).run()


MUST_HAPPEN = (
    *("abort", "deferred", "device hit", "drafts", "drain", "failed loads", "finish", "flushes", "late ends", "load", "loaded"),
    *("lose", "lost reports", "no room", "preempted", "proofs", "renew", "reset", "rollbacks", "short", "sleep", "stores"),
)


def test_walks_meet_everything_that_can_happen() -> None:
    """A walk that never preempts, loads or fails proves nothing about it."""
    seen: Counter[str] = Counter()
    for seed, world in enumerate(WORLDS[::5]):
        seen.update(Walker(world, 500 + seed).run().seen)

    assert [each for each in MUST_HAPPEN if not seen[each]] == []


# --- planted bugs -------------------------------------------------------------------------------------------------------


def plant_window_of_unsettled_tokens(patch: pytest.MonkeyPatch) -> None:
    """Blocks leave a window when tokens are scheduled, not when they are settled."""
    right = TokenProgress.first_needed

    def wrong(table: TokenProgress, group: int, row: int) -> int:
        ahead = table.end_of(row) - table.computed_of(row)
        table.computed[row] += ahead
        found = right(table, group, row)
        table.computed[row] -= ahead
        return found

    patch.setattr(TokenProgress, "first_needed", wrong)


def plant_store_of_unknown_tokens(patch: pytest.MonkeyPatch) -> None:
    """Placeholders and drafts are stored as if they were known."""
    right = TokenProgress.filling

    def wrong(table: TokenProgress, rows: list[int]) -> EntrySpans:
        for row in rows:
            table.known[row] += 8
        try:
            return right(table, rows)
        finally:
            for row in rows:
                table.known[row] -= 8

    patch.setattr(TokenProgress, "filling", wrong)


def plant_forgotten_epochs(patch: pytest.MonkeyPatch) -> None:
    """A chunk is taken for fresh because its blocks exist."""
    right = StoreLine._judge

    def wrong(line: StoreLine, chunk: stores_module.Chunk) -> Any:
        epoch = line._ledger.blocks.epochs
        chunk.lives = [life and epoch[life & ID_MASK] << 32 | life & ID_MASK for life in chunk.lives]
        return right(line, chunk)

    patch.setattr(StoreLine, "_judge", wrong)


def plant_parts_taken_for_wholes(patch: pytest.MonkeyPatch) -> None:
    """A slot with holes is a hit for whatever its chunk would hold."""
    right = Search.run

    def wrong(search: Search, *args: Any, **named: Any) -> Hit:
        search._suffix = [search._geometry.blocks_per_chunk] * len(search._suffix)
        return right(search, *args, **named)

    patch.setattr(Search, "run", wrong)


def plant_loads_from_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    """The blocks of a chunk come back in the wrong order."""
    right = RowVerbs.plan_load

    def wrong(rows: RowVerbs, *given: Any, within: bool) -> None:
        right(rows, *given, within=within)
        jobs = rows._core.jobs
        row = jobs.by_number[jobs.last_number]
        begin, end = jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]
        jobs.slot[begin:end] = jobs.slot[begin:end][::-1]

    patch.setattr(RowVerbs, "plan_load", wrong)


def plant_holes_closed_up(patch: pytest.MonkeyPatch) -> None:
    """What follows a hole in a chunk moves to the hole's place in the host tier."""
    right = StoreLine._columns

    def wrong(line: StoreLine, orders: Sequence[Sequence[stores_module.Chunk]], slots: list[int]) -> Any:
        for chunks in orders:
            for chunk in chunks:
                chunk.lives = sorted(chunk.lives, key=lambda life: life == 0)
        return right(line, orders, slots)

    patch.setattr(StoreLine, "_columns", wrong)


def plant_old_weights(patch: pytest.MonkeyPatch) -> None:
    """Other weights come, and the host tier keeps what the former ones made."""
    right = Endings.reset

    def wrong(core: Endings, *, drain: bool, host: bool) -> list[str]:
        return right(core, drain=drain, host=False)

    patch.setattr(Endings, "reset", wrong)


def plant_drafts_taken_for_granted(patch: pytest.MonkeyPatch) -> None:
    """Tokens that were refused count as computed."""
    right = SchedulerSteps.advance

    def wrong(core: SchedulerSteps, turn: PlanTokens, sampled: Mapping[str, int]) -> Any:
        rows, known, _ = right(core, turn, sampled)
        ends = [core._progress.computed_of(row) + dict(zip(turn.rows, turn.tokens, strict=True)).get(row, 1) for row in rows]
        return rows, known, list(map(min, ends, known))

    patch.setattr(SchedulerSteps, "advance", wrong)


def plant_no_flush_for_hand_outs(patch: pytest.MonkeyPatch) -> None:
    """A block is handed out under a copy, and the plan does not say that it has to be waited for."""
    right = RowVerbs.dispatch

    def wrong(rows: RowVerbs, now: float) -> Plan:
        plan = right(rows, now)
        return Plan(plan.number, plan.loads, plan.stores, ())

    patch.setattr(RowVerbs, "dispatch", wrong)


def plant_one_stay_taken_for_another(patch: pytest.MonkeyPatch) -> None:
    """What a plan computed before a preemption counts for the stay after it."""
    right = TokenProgress.clear

    def wrong(table: TokenProgress, row: int) -> None:
        serial = table.serial[row]
        right(table, row)
        table.serial[row] = serial

    patch.setattr(TokenProgress, "clear", wrong)


def plant_pending_taken_for_there(patch: pytest.MonkeyPatch) -> None:
    """Content on its way is counted, and not waited for."""
    right: Callable[..., Found] = common_length

    def wrong(*args: Any, **named: Any) -> Found:
        found = right(*args, **named)
        return Found(found.length, False, found.rounds)

    patch.setattr(search_module, "common_length", wrong)


def plant_state_before_its_time(patch: pytest.MonkeyPatch) -> None:
    """A state is sealed although it was not handed off: the block holds whatever the last step left there."""
    right = OffloadScheduler.build_plan

    def wrong(scheduler: OffloadScheduler, now: float) -> Plan:
        table, size = scheduler._state.progress, scheduler.geometry.block_tokens
        for name, tracked in scheduler._state.requests.items():
            row = tracked.row
            end = table.end_of(row)
            if table.running[row] and table.is_scheduled(row) and table.wanted_of(row):
                for group, kind in enumerate(scheduler.geometry.groups):
                    if isinstance(kind, Mamba) and (boundary := end // size[group] * size[group]):
                        key = (name, table.serial[row], group, boundary)
                        scheduler._state.handed[key] = None
        return right(scheduler, now)

    patch.setattr(OffloadScheduler, "build_plan", wrong)


PLANTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, str]] = {
    plant_window_of_unsettled_tokens: ("swa_4_8-c1-eager", "reads the null block"),
    plant_store_of_unknown_tokens: ("full_4-c1-eager-async", "asked for keys|cannot SEAL|DeviceFault|promises"),
    plant_forgotten_epochs: ("full_4-c1-eager", ""),
    plant_parts_taken_for_wholes: ("swa_4_8-c3", "reads block|promises"),
    plant_loads_from_the_wrong_place: ("full_4-c2-eager", "promises|reads block"),
    plant_holes_closed_up: ("swa_4_8-c3", "promises|reads block"),
    plant_old_weights: ("full_4-c1-eager-sync", "promises|reads block"),
    plant_drafts_taken_for_granted: ("full_4-c1-eager-sync", "promises|the workers are at"),
    plant_no_flush_for_hand_outs: ("full_4-c1-eager-sync-fence", "while copy .* reads it|meet on"),
    plant_one_stay_taken_for_another: ("full_4-c1-eager-async", ""),
    plant_pending_taken_for_there: ("full_4-c1-eager", ""),
    plant_state_before_its_time: ("full_4+swa_2_6+mamba_8-c1-eager", "promises|cannot SEAL|is no life of a block"),
}


def findings(worlds: str, most: int = 60) -> str:
    """What the first walks in some worlds find; empty if nothing."""
    chosen = [world for world in WORLDS if str(world).startswith(worlds)]
    for number in range(most):
        try:
            Walker(chosen[number % len(chosen)], 9000 + number).run()
        except Finding as finding:
            return str(finding)
    return ""


@pytest.mark.interpreted
@pytest.mark.parametrize("plant", list(PLANTS), ids=lambda plant: plant.__name__.removeprefix("plant_"))
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of them ends a walk, and the first line says what went wrong."""
    worlds, problem = PLANTS[plant]
    plant(monkeypatch)
    found = findings(worlds).split("\n")[0]

    assert found
    assert re.search(problem, found), found
