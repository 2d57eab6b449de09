"""Two engines that walk over the offload scheduler at random: one lets the ledger have the pool, one has a pool of its own.

The engine of `tests/rigs.py` makes no mistake. `Pestered` asks twice, ends requests that have ended, and makes calls that are
refused, between any two of its calls. `PoolEngine` has an allocator of its own,
reports after it has decided, and names content before it is computed; what it gets wrong is refused.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Completion, Contract, JobId, Launched, Ledger, Limits, Plan, Result, Worker
from blocklife.ledger._ids import NULL
from blocklife.ledger.invariants import check
from blocklife.offload import EnginePool, Geometry, Hit, HostTier, OffloadScheduler, Placed, Policies
from blocklife.states import ADMISSIBLE, KEYED, LENT, Block, Trait, states_with
from tests.rigs import Engine, key, scheduler_key
from tests.worlds import world_key

Said = Callable[[str, OffloadScheduler], object]
"""Hears of each call, with what came of it."""


def everything(scheduler: OffloadScheduler) -> object:
    """All that a refused call must leave alone."""
    return world_key(scheduler.ledger), scheduler_key(scheduler)


class Refusals:
    """Makes calls, and looks at those that are refused: they change nothing."""

    def __init__(self, name: str, scheduler: OffloadScheduler, said: Said, *, judged: bool) -> None:
        self.name, self.scheduler, self.said, self.judged = name, scheduler, said, judged
        self.refused: Counter[str] = Counter()

    def call(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """One call; what it raises, it raises."""
        what = f"{getattr(method, '__name__', 'a call')} {args} {named or ''}"
        before, came = everything(self.scheduler) if self.judged else None, ""
        try:
            found = method(*args, **named)
            came = f"-> {found}"
        except (MisuseError, CapacityError) as refusal:
            self.refused[type(refusal).__name__] += 1
            came = f"refused: {type(refusal).__name__}: {refusal}"
            given_back = isinstance(refusal, CapacityError) and not self.scheduler.ledger.own_pool  # what was placed before
            kept = given_back or not self.judged or everything(self.scheduler) == before
            assert kept, f"{self.name}: {what} is {came}, and something has changed"
            raise
        finally:
            self.said(f"{what} {came}", self.scheduler)
        assert not self.judged or check(self.scheduler.ledger) == [], f"{self.name}: {what}"
        return found

    def attempt(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """One call, which may be refused."""
        try:
            return self.call(method, *args, **named)
        except (MisuseError, CapacityError):
            return None


class Pestered(Engine):
    """The engine of `tests/rigs.py`, which also makes calls that the scheduler has to refuse, or to take twice."""

    def __init__(self, seed: int, groups: str, said: Said, *, judged: bool = True) -> None:
        super().__init__(seed, groups=groups, errors="raise", rough=True)
        self.pest = random.Random(f"pest/{seed}")
        self.made = Refusals(f"{groups}, seed {seed}", self.scheduler, said, judged=judged)
        self.old: list[Hit] = []
        self.wrap = self.around

    def around(self, name: str, call: partial[Any]) -> Any:
        """One call of the engine, and what is wrong before it."""
        self.bother()
        if name == "lookup" and self.pest.random() < 0.3:
            self.made.call(call.func, *call.args, **call.keywords)
        found = self.made.call(call.func, *call.args, **call.keywords)
        if isinstance(found, Hit):
            self.old = [*self.old, found][-4:]
        return found

    def bother(self) -> None:
        """A call that is refused, or that ends once more what has ended."""
        scheduler, pest, attempt = self.scheduler, self.pest, self.made.attempt
        act = pest.randrange(40)
        name = pest.choice([*self.ledger.requests, "nobody"])
        waits = name in self.ledger.requests and self.ledger.requests.state(name) in ADMISSIBLE
        if (ending := sorted(self.over.intersection(scheduler.requests))) and act < 8:
            attempt(pest.choice((scheduler.finish, scheduler.abort)), pest.choice(ending))
        elif act == 8:
            attempt(scheduler.add_request, name, lambda *_: [], prompt_tokens=0)
        elif act == 9 and (others := [hit for hit in self.old if hit.request != name]):
            attempt(scheduler.admit, name, pest.choice(others), pest.randrange(2))
        elif act == 10 and not waits:
            attempt(scheduler.lookup, name, pest.randrange(1, 9))
        elif act == 11:
            attempt(scheduler.grow, {name: -1})
        elif act == 12 and (waits or name == "nobody"):
            attempt(scheduler.preempt, name)
        elif act == 13:
            attempt(scheduler.hand_off, name, len(self.geometry.groups), 4)
        elif act == 14:
            attempt(scheduler.settle, self.ledger.plans.number + 1, self.now)
        elif act == 15:
            attempt(scheduler.place, name, [Placed(0, fresh=(1,))])
        elif act == 16 and not scheduler.asleep:
            attempt(scheduler.wake)
        elif act == 17:
            attempt(scheduler.lose_worker, self.num_workers)
        elif act == 18:
            attempt(scheduler.lookup, name, 0)


POOL_GROUPS = ("full:2", "full:2,swa:2:4", "swa:2:5", "full:2+drafter,swa:2:4", "full:2,mamba:2", "local:2:4")
PROMPTS = ("abcdefghijklmnop", "abcdefghxyzuvwmn", "qrstuvwxyzabcdef")
GOAL = 14
"""Letters of a request at its end."""


class PoolEngine:
    """An engine whose allocator hands out blocks as it likes, and reports each step after it was decided."""

    def __init__(self, groups: str, seed: int, said: Said, *, judged: bool = True) -> None:
        self.dice = dice = random.Random(f"pool/{groups}/{seed}")
        self.ahead, self.bulk = dice.randrange(2), dice.random() < 0.6
        self.workers = dice.randint(1, 3)
        contract = dice.choice(list(Contract))
        self.name = f"an engine's own pool, {groups}, {contract.name.lower()}, seed {seed}"
        self.geometry = Geometry.parse(groups, dice.choice((1, 1, 2)))
        self.groups = range(len(self.geometry.groups))
        limits = Limits(
            num_blocks=dice.choice((20, 40, 60)), num_slots=dice.choice((6, 16)), num_groups=len(self.groups),
            num_workers=self.workers, max_jobs=dice.choice((3, 12)), max_requests=6, max_journal=16,
        )  # fmt: skip
        self.ledger = Ledger(
            limits, contract=contract, deadline=dice.choice((9.0, 30.0)), own_pool=False, indexed=False, errors="raise"
        )
        policies = Policies(plans_ahead=self.ahead, pending_wait=dice.choice((2.0, 50.0)), max_load_failures=2)
        self.scheduler = OffloadScheduler(self.ledger, HostTier(self.ledger), self.geometry, policies)
        self.pool = EnginePool(self.scheduler, self.known_of, one_a_step=False)
        self.made = Refusals(self.name, self.scheduler, said, judged=judged)
        self.texts: dict[str, str] = {}
        self.known: dict[str, int] = {}
        self.out: list[Plan] = []
        self.jobs: list[JobId] = []
        self.now, self.serial = 0.0, 0

    def known_of(self, name: str) -> int:
        """How many letters a request has by now."""
        return self.known[name]

    def run(self, steps: int) -> PoolEngine:
        """Walk."""
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        """One step of the engine: it ends, preempts, grows and admits, and then it reports."""
        dice, scheduler, attempt = self.dice, self.scheduler, self.made.attempt
        self.now += 1
        self.leave()
        if len(self.texts) < 5 and dice.random() < 0.6:
            self.arrive()
        if self.bulk:
            attempt(self.pool.leave_windows)
        self.grow()
        for name in [each for each in self.texts if self.waits(each)]:
            if dice.random() < 0.7:
                self.admit(name)
        if self.bulk:
            attempt(self.pool.promise)
        if dice.random() < 0.1:
            attempt(scheduler.about_to_go, dice.sample(range(len(self.ledger.blocks)), 3))
        if (plan := attempt(scheduler.build_plan, self.now)) is not None:
            self.out.append(plan)
            self.jobs += [each.job for each in (*plan.loads, *plan.stores)]
        while len(self.out) > self.ahead:
            self.settle()

    def waits(self, name: str) -> bool:
        """Whether a request can be let in."""
        return name in self.ledger.requests and self.ledger.requests.state(name) in ADMISSIBLE

    def arrive(self) -> None:
        """A request comes, with a prompt that others have, too."""
        self.serial += 1
        name, text = f"r{self.serial}", self.dice.choice(PROMPTS)
        prompt = self.dice.randint(1, GOAL - 2)

        def keys(group: int, start: int, stop: int) -> list[bytes]:
            size = self.geometry.block_tokens[group]
            return [key(group, text[: (block + 1) * size]) for block in range(start, stop)]

        self.texts[name], self.known[name] = text, prompt
        self.made.attempt(self.scheduler.add_request, name, keys, prompt_tokens=prompt)

    def leave(self) -> None:
        """Requests end or are preempted; now and then everything is forgotten."""
        dice, scheduler, attempt = self.dice, self.scheduler, self.made.attempt
        for name in list(self.texts):
            if name not in self.ledger.requests:
                del self.texts[name], self.known[name]
            elif self.known[name] >= GOAL or dice.random() < 0.03:
                for _ in range(dice.choice((1, 1, 2, 3))):
                    if name in self.ledger.requests:  # a plan that is out computes it
                        attempt(dice.choice((scheduler.finish, scheduler.finish, scheduler.abort)), name)
            elif dice.random() < 0.05:
                attempt(scheduler.preempt, name)
        act = dice.randrange(60)
        if act == 0:
            attempt(scheduler.reset, drain=dice.random() < 0.3)
        elif act == 1 and self.bulk:
            attempt(dice.choice((self.pool.reset_host, self.pool.reset_device)))
        elif act == 2:
            attempt(self.pool.release_waiting, [])
        elif act == 3:
            attempt(scheduler.lose_worker, 0)
            attempt(scheduler.regain_worker, 0)

    # --- blocks

    def take(self, count: int, avoid: set[int]) -> list[int]:
        """Blocks that the allocator hands out, in any order."""
        blocks = self.ledger.blocks
        fit = states_with(Trait.FREE, Block) | (LENT if self.dice.random() < 0.3 else set())
        free = [each for each in range(1, len(blocks)) if blocks.state(each) in fit and not blocks.refs(each)]
        free = [each for each in free if each not in avoid]
        return self.dice.sample(free, count) if len(free) >= count else []

    def missing(self, name: str, end: int, have: list[int], avoid: set[int]) -> list[list[int]] | None:
        """For each group the fresh blocks that it needs up to token *end*; None where there is no room."""
        found = []
        for group in self.groups:
            count = -(-end // self.geometry.block_tokens[group]) - have[group]
            fresh = self.take(count, avoid) if count > 0 else []
            if len(fresh) < count:
                return None
            avoid.update(fresh)
            found.append(fresh)
        return found

    def grow(self) -> None:
        """Running requests get blocks, and are scheduled for some letters."""
        scheduler, attempt, avoid = self.scheduler, self.made.attempt, set[int]()
        tokens: dict[str, int] = {}
        for name in scheduler.requests.running():
            if name not in self.texts:
                continue
            progress = scheduler.requests.progress(name)
            end = progress.computed + progress.in_flight
            count = self.dice.choice((1, 1, max(1, progress.known - end)))
            fresh = self.missing(name, end + count, [self.ledger.requests.size(name, group) for group in self.groups], avoid)
            if fresh is None or self.dice.random() < 0.1:
                count = 0
            elif self.bulk:
                attempt(self.pool.extend, name, fresh)
            elif any(fresh):
                attempt(scheduler.place, name, [Placed(group, fresh=tuple(own)) for group, own in enumerate(fresh) if own])
            tokens[name] = count
        if self.bulk:
            attempt(self.pool.schedule, tokens)
            attempt(self.pool.record_growth)
        else:
            attempt(scheduler.grow, tokens)

    def hit_of(self, name: str) -> tuple[int, list[list[int]]]:
        """How much of a prompt the allocator finds on the device, and where."""
        text, size = self.texts[name], self.geometry.block_alignment
        blocks, found, most = self.ledger.blocks, 0, self.known[name] - 1
        named = {(group, name): block for group, name, block in blocks.named()}
        tables: list[list[int]] = [[] for _ in self.groups]
        while found + size <= most and self.dice.random() < 0.9:
            parts = []
            for group in self.groups:
                ends = range(found + self.geometry.block_tokens[group], found + size + 1, self.geometry.block_tokens[group])
                parts.append([named.get((group, key(group, text[:end])), NULL) for end in ends])
            if any(NULL in part or any(blocks.state(each) not in KEYED for each in part) for part in parts):
                break
            found += size
            tables = [[*own, *part] for own, part in zip(tables, parts, strict=True)]
        return found, tables

    def admit(self, name: str) -> None:
        """A waiting request is looked up, gets a table, and runs or loads."""
        scheduler, attempt, known = self.scheduler, self.made.attempt, self.known[name]
        device, tables = self.hit_of(name)
        if self.bulk and self.dice.random() < 0.2:
            hit = attempt(self.pool.device_hit, name, known, device)
        else:
            hit = attempt(scheduler.lookup, name, known, device)
        if hit is None or hit.deferred:
            return
        if self.bulk and self.dice.random() < 0.1 and attempt(self.pool.put_off, name):
            return
        loads = hit.tokens > hit.device_tokens
        end = hit.tokens if loads else max(hit.compute_from + 1, known)
        held = {block for table in tables for block in table}
        fresh = self.missing(name, end, [len(table) for table in tables], held)
        if fresh is None:
            return
        whole = [[*own, *more] for own, more in zip(tables, fresh, strict=True)]
        if self.bulk:
            attempt(self.pool.place_table, name, whole, device)
            attempt(self.pool.record_growth)
            if loads:
                attempt(self.pool.expect_load, name)
        else:
            parts = zip(self.groups, tables, fresh, strict=True)
            attempt(scheduler.place, name, [Placed(group, shared=tuple(own), fresh=tuple(more)) for group, own, more in parts])
        if attempt(scheduler.admit, name, hit, max(1, end - hit.compute_from)) is None and self.waits(name):
            attempt(self.ledger.roll_back, name)
            attempt(scheduler.abort, name)

    # --- plans

    def settle(self) -> None:
        """The oldest plan is over; some copies have landed, well or not, and all that it waits for."""
        dice, plan = self.dice, self.out.pop(0)
        landed = [each for each in self.jobs if each in plan.flushes or dice.random() < 0.4]
        self.jobs = [each for each in self.jobs if each not in landed]
        result = Result.OK if dice.random() < 0.85 else Result.FAILED
        reports = [Completion(each, Worker(rank), result) for each in landed for rank in range(self.workers)]
        begun = [Launched(each, Worker(0)) for each in self.jobs if dice.random() < 0.5]
        sampled: dict[str, int] = {}
        for name in self.texts:
            if name in self.ledger.requests and name in self.scheduler.requests:
                progress = self.scheduler.requests.progress(name)
                if progress.in_flight and progress.computed + progress.in_flight >= self.known[name]:
                    self.known[name] += 1
                    sampled[name] = 1
        if self.bulk:
            self.made.attempt(self.pool.settle_known, plan.number, self.now, launched=begun, completions=reports)
            if self.pool.is_late:
                self.made.attempt(self.pool.catch_up)
        else:
            self.made.attempt(self.scheduler.settle, plan.number, self.now, launched=begun, completions=reports)
