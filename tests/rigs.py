"""Rigs around the offload scheduler: one that a test drives step by step, and an engine that a seed decides.

The tokens of `Rig` are letters, so that a test can be read.

A key spells its group and all text up to the end of its block. A rig has no device: a copy lands when a test says so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

import pytest
from attrs import evolve

from blocklife.errors import CapacityError
from blocklife.hook_errors import OnError
from blocklife.ledger import Completion, Contract, JobId, Ledger, Limits, Plan, Result, Worker
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger.invariants import check
from blocklife.offload import (
    BelowIndex,
    BelowPolicies,
    EnginePool,
    Geometry,
    Hit,
    HostTier,
    Mamba,
    Mode,
    OffloadScheduler,
    Policies,
    Replacement,
    Settled,
)
from blocklife.offload._snapshot import SavedScheduler
from tests.worlds import unchanged

P = ParamSpec("P")
T = TypeVar("T")
Call = Callable[[], T]


def key(group: int, text: str) -> bytes:
    """The key of the block that ends with the last letter of *text*."""
    return f"{group}:{text}".encode()


class Rig:
    """A ledger, its host tier, a scheduler, and what the requests will say."""

    def __init__(
        self,
        groups: str = "full:4",
        chunk: int = 1,
        *,
        blocks: int = 17,
        slots: int = 8,
        contract: Contract = Contract.FENCE,
        own_pool: bool = True,
        workers: int = 1,
        max_jobs: int = 8,
        max_requests: int = 16,
        deadline: float = 1000.0,
        policies: Policies | None = None,
        below: BelowIndex | None = None,
        below_policies: BelowPolicies | None = None,
        replacement: str | Replacement = "lru",
    ) -> None:
        self.geometry = Geometry.parse(groups, chunk)
        limits = Limits(
            num_blocks=blocks,
            num_slots=slots,
            max_jobs=max_jobs,
            max_requests=max_requests,
            num_groups=len(self.geometry.groups),
            num_workers=workers,
        )
        self.ledger = Ledger(limits, contract=contract, own_pool=own_pool, deadline=deadline)
        self.tier = HostTier(self.ledger, replacement)
        self.scheduler = OffloadScheduler(
            self.ledger, self.tier, self.geometry, policies or Policies(), below=below, below_policies=below_policies
        )
        self.texts: dict[str, str] = {}
        self.prompts: dict[str, int] = {}
        self.out: list[JobId] = []
        """Jobs that the workers have and have not landed."""
        self.plans: list[Plan] = []
        self.now = 0.0
        self.settled = Settled((), (), ())

    def add(self, name: str, text: str, prompt: int | None = None) -> None:
        """A request that will say *text*; its first *prompt* letters are there already (all, unless told)."""
        self.texts[name], self.prompts[name] = text, prompt or len(text)

        def keys(group: int, start: int, stop: int) -> list[bytes]:
            size = self.geometry.block_tokens[group]
            return [key(group, text[: (block + 1) * size]) for block in range(start, stop)]

        def tails(group: int, end: int) -> bytes | None:
            return key(group, text[:end])

        self.scheduler.add_request(name, keys, prompt_tokens=self.prompts[name], tails=tails)

    def hit(self, name: str) -> Hit:
        """Look a request up."""
        return self.scheduler.lookup(name, self.scheduler.requests.progress(name).known)

    def let_in(self, name: str, tokens: int | None = None) -> bool:
        """Look a request up and admit it, with all of its known tokens unless told."""
        hit = self.hit(name)
        known = self.scheduler.requests.progress(name).known
        return self.scheduler.admit(name, hit, known - hit.compute_from if tokens is None else tokens)

    def plan(self) -> Plan:
        """Make the plan of this step."""
        self.now += 1.0
        plan = self.scheduler.build_plan(self.now)
        self.plans.append(plan)
        self.out += [each.job for each in (*plan.loads, *plan.stores)]
        return plan

    def settle(self, *, land: bool = True, ok: bool = True, sampled: Mapping[str, int] | None = None) -> Settled:
        """Settle the oldest plan; where told, every copy that is out has landed, well or not."""
        plan = self.plans.pop(0)
        self.out = [job for job in self.out if job not in plan.flushes or land]
        reports = self.reports(ok=ok) if land else []
        self.settled = self.scheduler.settle(plan.number, self.now, sampled=sampled or {}, completions=reports)
        assert check(self.ledger) == []
        return self.settled

    def reports(self, *, ok: bool = True) -> list[Completion]:
        """What the workers say of all that is out."""
        result = Result.OK if ok else Result.FAILED
        found = [Completion(job, Worker(rank), result) for job in self.out for rank in range(self.ledger.limits.num_workers)]
        self.out = []
        return found

    def tick(self, *, land: bool = True, ok: bool = True, sampled: Mapping[str, int] | None = None) -> Plan:
        """One step that makes a plan and settles it."""
        plan = self.plan()
        self.settle(land=land, ok=ok, sampled=sampled)
        return plan

    def drain(self) -> int:
        """Tick until nothing is out and nothing waits to be stored; returns how many ticks that took."""
        for ticks in range(40):
            if not self.plans and not self.scheduler.has_pending_work() and not self.scheduler.statistics().waiting:
                return ticks
            if self.plans:
                self.settle()
            else:
                self.tick()
        raise AssertionError(f"40 ticks do not drain {self.ledger}")

    def fill(self, name: str, text: str) -> None:
        """A request says *text* and is over; all of it that can be stored is stored."""
        self.add(name, text)
        self.let_in(name)
        self.tick()
        self.tick()
        self.scheduler.finish(name)
        self.drain()

    def reset_device(self) -> None:
        """Others have used the whole device since."""
        self.scheduler.ledger.add_request("flood")
        self.ledger.allocate("flood", self.ledger.blocks.free)
        self.ledger.finish("flood")

    def blocks(self, name: str, group: int = 0) -> list[int]:
        """The blocks that a request holds in one group; 0 is the null block."""
        return [life & ID_MASK for life in self.ledger.requests.table(name, group)]

    def stored(self, group: int = 0) -> list[str]:
        """The texts that the host tier can read, in any order."""
        found = [name.decode().partition(":")[2] for own, name, _ in self.ledger.slots.named() if own == group]
        return sorted(each for each in found if self.tier.slot_of(group, key(group, each)) is not None)

    def cached(self, group: int = 0) -> list[str]:
        """The texts that the device can be asked for."""
        return sorted(name.decode().partition(":")[2] for own, name, _ in self.ledger.blocks.named() if own == group)


def scheduler_key(scheduler: OffloadScheduler) -> tuple[object, ...]:
    """All that decides what a scheduler does next, beside its ledger, as a value that can be compared."""
    state = scheduler._state
    table, stays = state.progress, state.stays
    columns = (table.running, table.prompt, table.placed, table.first, table.sealed, table.offered)
    requests = tuple(
        (
            name,
            each.row,
            each.hit,
            each.failures,
            stays.at(each.row),
            stays.waits.moment(each.row),
            scheduler.requests.progress(name),
        )
        for name, each in state.requests.items()
    )
    chunks = tuple(
        (owner, [(chunk.key, list(chunk.lives)) for chunk in line]) for owner, line in scheduler._stores._line.items()
    )
    rows = [scheduler.ledger.requests.row(name) for name in state.requests]
    return (
        *(tuple(bytes(column) for column in columns), requests, chunks, table.making),
        *(
            tuple(state.plans),
            tuple(state.handed),
            {name: list(states) for name, states in state.states.items()},
            dict(state.waiting_loads),
            dict(state.loading),
        ),
        *(
            dict(state.pinned),
            tuple(state.preempted),
            set(state.lost),
            state.asleep,
        ),
        tuple((table.wanted_of(row), table.is_scheduled(row)) for row in rows),
    )


@contextmanager
def scheduler_refuses(rig: Rig, error: type[Exception], match: str) -> Iterator[None]:
    """The call inside is refused with this error; neither the ledger nor the scheduler has changed."""
    before = scheduler_key(rig.scheduler)
    with unchanged(rig.ledger), pytest.raises(error, match=match):
        yield
    assert scheduler_key(rig.scheduler) == before


def letters(count: int, first: str = "a") -> str:
    """So many letters in order."""
    return "".join(chr(ord(first) + each % 26) for each in range(count))


def sources(plan: Plan) -> list[list[int]]:
    """The blocks that each store of a plan reads."""
    return [each.source.tolist() for each in plan.stores]


def targets(plan: Plan) -> list[list[int]]:
    """The blocks that each load of a plan fills."""
    return [each.target.tolist() for each in plan.loads]


def slots_of(plan: Plan, size: int = 1) -> Sequence[int]:
    """The slots that the stores of a plan fill."""
    return sorted({int(place) // size for each in plan.stores for place in each.target})


# --- an engine that owns the pool -------------------------------------------------------------------------------------------


class PoolRig:
    """An engine that owns the pool and decides a step before it reports it; keys are positions, so that texts are alike."""

    def __init__(self, groups: str, known: int, *, ahead: int = 1, state_drafts: int = 0, one_a_step: bool = False) -> None:
        geometry = Geometry.parse(groups)
        limits = Limits(num_blocks=12, num_slots=8, max_requests=4, num_groups=len(geometry.groups))
        self.ledger = Ledger(limits, contract=Contract.FENCE, own_pool=False, indexed=False)
        policies = Policies(plans_ahead=ahead, state_drafts=state_drafts)
        self.scheduler = OffloadScheduler(self.ledger, HostTier(self.ledger), geometry, policies)
        self.known = known
        self.pool = EnginePool(self.scheduler, lambda name: self.known, one_a_step=one_a_step)

    def name(self, name: str) -> None:
        """A request that waits."""
        self.scheduler.add_request(
            name, lambda _group, start, stop: [b"%d" % at for at in range(start, stop)], prompt_tokens=self.known
        )

    def add(self, name: str, tables: Sequence[Sequence[int]], tokens: int, device_tokens: int = 0) -> None:
        """A request that begins, in these blocks, of which the first *device_tokens* are a hit."""
        self.name(name)
        hit = self.pool.device_hit(name, self.known, device_tokens)
        self.pool.place_table(name, tables, device_tokens)
        self.pool.record_growth()
        self.scheduler.admit(name, hit, tokens)
        self.pool.promise()

    def plan(self, tokens: Mapping[str, int]) -> Plan:
        """The next step: so many tokens of some requests, one of all others that run."""
        self.pool.schedule(tokens)
        self.pool.record_growth()
        self.pool.promise()
        return self.scheduler.build_plan(0)

    def settle(self, plan: Plan) -> None:
        """It was carried out, and so was all that is out."""
        out = [self.ledger.jobs.transfer(job.number).job for job in self.ledger.jobs.alive()]
        self.pool.settle_known(plan.number, 0, completions=[Completion(job, Worker(0), Result.OK) for job in out])

    def held(self, name: str = "a", group: int = 0) -> list[int]:
        """The blocks that the ledger says a request holds, 0 for none."""
        return [life & ID_MASK for life in self.ledger.requests.table(name, group)]


# --- an engine that a seed decides -----------------------------------------------------------------------------------------

ENGINE_GROUPS = ("full:4", "full:4,swa:4:8", "full:4,mamba:4", "swa:4:8", "full:4,local:4:8")


class KeysOf:
    """The keys of one request: all its letters up to the end of a block. Equal for equal requests, as snapshots want it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeysOf) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __call__(self, group: int, start: int, stop: int) -> list[bytes]:
        self.engine.ask()
        size, text = self.engine.geometry.block_tokens[group], self.engine.texts[self.name]
        return [f"{group}:{text[: (block + 1) * size]}".encode() for block in range(start, stop)]


class Engine:
    """A serving engine that decides by a seed alone: what requests come, who is preempted, which copies land and which fail.

    *rough*: content is forgotten, the device sleeps, workers are lost, and drafts are rejected, too.
    """

    def __init__(
        self,
        seed: int,
        *,
        replacement: str | Replacement = "lru",
        errors: OnError = "keep",
        below: BelowIndex | None = None,
        groups: str = "",
        rough: bool = False,
    ) -> None:
        self.draw = draw = random.Random(seed)
        self.rough, self.lost = rough, set[int]()
        self.geometry = Geometry.parse(groups or draw.choice(ENGINE_GROUPS), draw.choice([1, 1, 2]))
        self.ahead, self.num_workers = draw.choice([0, 1]), draw.choice([1, 2])
        limits = Limits(
            num_blocks=draw.choice([14, 24]),
            num_slots=draw.choice([4, 12]),
            max_jobs=draw.choice([4, 16]),
            num_groups=len(self.geometry.groups),
            num_workers=self.num_workers,
        )
        self.ledger = Ledger(limits, contract=draw.choice([*Contract]), deadline=20.0, errors=errors)
        self.tier = HostTier(self.ledger, replacement)
        policies = Policies(plans_ahead=self.ahead, mode=draw.choice([*Mode]))
        if rough:
            policies = evolve(policies, partial_chunks=draw.random() < 0.5, max_load_failures=draw.choice([1, 2, 5]))
        self.scheduler = OffloadScheduler(self.ledger, self.tier, self.geometry, policies, below=below)
        self.states = [at for at, group in enumerate(self.geometry.groups) if isinstance(group, Mamba)]
        self.texts: dict[str, str] = {}
        self.ends: dict[str, int] = {}
        self.over: set[str] = set()
        self.plans: list[Plan] = []
        self.drafts: dict[str, int] = {}
        """How many guessed tokens the present step computes."""
        self.flying: list[tuple[JobId, int]] = []
        self.outcomes: list[object] = []
        """What the calls have returned, in words that do not name objects."""
        self.now = 0.0
        self.wrap: Callable[[str, partial[Any]], Any] = lambda _, call: call()
        """What stands around each call of the scheduler."""
        self.ask: Callable[[], object] = lambda: None
        """Called whenever keys are asked for."""

    def call(self, method: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """One call of the scheduler."""
        found: T = self.wrap(method.__name__, partial(method, *args, **named))
        return found

    def step(self) -> None:
        """One step of the engine."""
        draw, scheduler = self.draw, self.scheduler
        self.now += 1.0
        if len(scheduler.requests) < 8 and draw.random() < 0.6:
            self._arrive()
        if self.rough and (draw.random() < 0.04 or scheduler.asleep or self.lost):
            self._upheave()
        running = scheduler.requests.running()
        if running and draw.random() < 0.15:
            victim = draw.choice(running)
            self.call(scheduler.preempt, victim)
        if not scheduler.asleep:
            self._grow()
            self._let_in()
            self._hand_off()
        plan = self.call(scheduler.build_plan, self.now)
        self.plans.append(plan)
        self.outcomes.append((plan.number, len(plan.loads), len(plan.stores), plan.flushes))
        self._launch(plan)
        if len(self.plans) > self.ahead:
            self.settle()
        for name in scheduler.requests.running():
            if scheduler.requests.progress(name).known >= self.ends[name] and name not in self.over:
                self.call(scheduler.finish if draw.random() < 0.8 else scheduler.abort, name)
                self.over.add(name)

    def _arrive(self) -> None:
        name = f"r{len(self.texts)}"
        prefix = self.draw.choice(["abcdefghijklmnop", "abcdefghABCDEFGH", "zyxwvutsrqponmlk"])[: self.draw.randrange(3, 15)]
        self.texts[name] = prefix + f"<{name}>" + letters(40)
        self.ends[name] = len(prefix) + self.draw.randrange(2, 14)
        self.call(self.scheduler.add_request, name, KeysOf(self, name), prompt_tokens=len(prefix))

    def _grow(self) -> None:
        """Schedule who runs; where there is no room the last one gives way."""
        scheduler = self.scheduler
        tokens = {name: self._wanted(name) for name in scheduler.requests.running()}
        while short := self.call(scheduler.grow, tokens):
            victim = scheduler.requests.running()[-1]
            self.drafts.pop(victim, None)
            self.call(scheduler.preempt, victim)
            tokens = {name: tokens[name] for name in short if name != victim}
            if not tokens:
                break

    def _wanted(self, name: str) -> int:
        """How many tokens a request runs in this step."""
        progress = self.scheduler.requests.progress(name)
        left = progress.known - progress.computed - progress.in_flight
        if self.rough and left == 1 and not self.ahead and not self.states and self.draw.random() < 0.3:
            self.drafts[name] = self.draw.randrange(1, 3)
            return 1 + self.drafts[name]
        if left > 0:
            return min(left, 5)
        return int(not self.ahead or (left == 0 and bool(progress.in_flight)))

    def _let_in(self) -> None:
        """Look the waiting requests up, and let in who fits."""
        scheduler = self.scheduler
        for name in list(self.texts):
            if name not in scheduler.requests or name in self.over or scheduler.requests.is_running(name):
                continue
            if self.ledger.requests.state(name).name not in ("WAITING", "PREEMPTED"):
                continue
            known = scheduler.requests.progress(name).known
            try:
                hit: Hit = self.call(scheduler.lookup, name, known)
                if hit.deferred:
                    continue
                count = 0 if hit.host_tokens else min(5, known - hit.compute_from)
                self.call(scheduler.admit, name, hit, count)
                self.outcomes.append((name, hit.tokens, hit.host_tokens))
            except CapacityError:
                continue

    def _hand_off(self) -> None:
        """States are kept at the end of each block that this step reaches."""
        table = self.scheduler._progress
        for name in self.scheduler.requests.running() if self.states else ():
            row = self.ledger.requests.row(name)
            end = int(table.computed[row] + table.in_flight[row] + table.wanted[row])
            for group in self.states:
                if table.wanted[row] and end % self.geometry.block_tokens[group] == 0:
                    self.scheduler.hand_off(name, group, end)

    def _launch(self, plan: Plan) -> None:
        """The workers have the copies of a plan."""
        copies = [each.job for each in (*plan.loads, *plan.stores)] + [each.job for each in (*plan.promotes, *plan.demotes)]
        self.flying += [(job, rank) for job in copies for rank in range(self.num_workers) if rank not in self.lost]

    def settle(self) -> None:
        """Settle the oldest plan; some copies have landed, some of them failed."""
        plan, landed, still = self.plans.pop(0), list[Completion](), list[tuple[JobId, int]]()
        for job, rank in self.flying:
            if job in plan.flushes or self.draw.random() < 0.4:
                landed.append(Completion(job, Worker(rank), Result.OK if self.draw.random() > 0.06 else Result.FAILED))
            else:
                still.append((job, rank))
        self.flying = still
        sampled = {
            name: self.draw.randint(1, count + 1) for name, count in self.drafts.items() if name in self.scheduler.requests
        }
        self.drafts.clear()
        settled: Settled = self.call(self.scheduler.settle, plan.number, self.now, sampled=sampled, completions=landed)
        self.outcomes.append((settled.loaded, settled.failed, settled.ended))

    def _upheave(self) -> None:
        """Something happens to everybody at once, or is over."""
        scheduler, draw = self.scheduler, self.draw
        if scheduler.asleep or self.lost:
            if scheduler.asleep and not scheduler.has_pending_work():
                self.call(scheduler.wake)
            if self.lost and draw.random() < 0.2:
                self.call(scheduler.regain_worker, self.lost.pop())
            return
        what = draw.choice(["reset", "drain", "renew", "sleep", "lose"])
        if what == "lose":
            rank = draw.randrange(self.num_workers)
            self.lost.add(rank)
            self.flying = [each for each in self.flying if each[1] != rank]
            self.call(scheduler.lose_worker, rank)
        elif what == "sleep":
            self.call(scheduler.sleep)
        else:
            named = {"drain": True} if what == "drain" else {"generation": f"at {self.now}"} if what == "renew" else {}
            with suppress(CapacityError):
                self.call(scheduler.reset, **named)

    def state(self) -> SavedScheduler:
        """Everything, as a value."""
        return self.scheduler.snapshot(self.scheduler.canonical_names())

    def drain(self) -> None:
        """End all requests, and step until nothing is left."""
        for rank in self.lost:
            self.scheduler.regain_worker(rank)
        self.lost.clear()
        for name in self.texts:
            if name in self.scheduler.requests and name not in self.over:
                self.scheduler.abort(name)
        for _ in range(100):
            while self.plans:
                self.settle()
            if not self.scheduler.has_pending_work():
                break
            self.now += 1.0
            self.plans.append(self.scheduler.build_plan(self.now))
            self._launch(self.plans[-1])
        assert not self.scheduler.has_pending_work()
        assert check(self.ledger) == []
        assert self.ledger.blocks.count_busy() == self.ledger.slots.count_busy() == 0
