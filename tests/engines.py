"""A scripted engine over the offload scheduler: a test says who runs, who ends, and which copies land when.

Every plan is carried out on a `Device` that never asks the ledger. A block's bytes there are the tokens that were computed up
to its end, and its key spells the same tokens, so that content under a wrong name is seen wherever it turns up. After every
step the rules of the ledger are counted again, its claims are compared with the device, and all that can be found is read.

With ``ahead`` 0 a plan settles before the next one is made; with 1 it is carried out, and settles after the next one is made.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import pytest
from attrs import evolve, frozen

from blocklife.errors import CapacityError
from blocklife.ledger import (
    Completion,
    Contract,
    JobId,
    Jobs,
    Launched,
    Ledger,
    LedgerTransition,
    Limits,
    Plan,
    Result,
    Store,
    Transfer,
    Worker,
)
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger.invariants import check
from blocklife.offload import Geometry, Hit, HostTier, Mamba, OffloadScheduler, Policies, Settled
from blocklife.offload.records import Keys
from blocklife.states import SLOTS_AT_REST, Block, Request, Slot, Trait, states_with
from tests.worlds import Content, Device, DeviceFault, compare, slot_with

AHEAD = pytest.mark.parametrize("ahead", [0, 1], ids=["sync", "async"])
"""The same test with synchronous and with asynchronous scheduling."""


def text(group: int, tokens: Iterable[int]) -> bytes:
    """Content, and the key of a block that is full with it: all tokens up to its end."""
    return f"{group}:{'.'.join(map(str, tokens))}".encode()


def shorter(key: bytes, tokens: int) -> bytes:
    """The key of the block that ends so many tokens earlier."""
    group, _, prefix = key.decode().partition(":")
    return text(int(group), map(int, prefix.split(".")[: len(prefix.split(".")) - tokens]))


@frozen
class Step:
    """What one step of the engine was."""

    plan: Plan
    hits: Mapping[str, Hit]
    settled: tuple[Settled, ...]
    short: tuple[str, ...]
    """Running requests that found no room, and were not scheduled."""
    refused: tuple[str, ...]
    """Waiting requests that found no room."""

    @property
    def stored(self) -> list[list[int]]:
        """The blocks that each store of the plan reads."""
        return [each.source.tolist() for each in self.plan.stores]


class Engine:
    """One scheduler, its workers' device, and the tokens that its requests will turn out to have."""

    def __init__(
        self,
        groups: str = "full:4",
        *,
        blocks: int = 16,
        slots: int = 8,
        chunk: int = 1,
        contract: Contract = Contract.FENCE,
        ahead: int = 0,
        workers: int = 1,
        deadline: float = 1000.0,
        max_jobs: int = 16,
        replacement: str = "lru",
        policies: Policies | None = None,
    ) -> None:
        self.geometry = Geometry.parse(groups, chunk)
        limits = Limits(
            num_blocks=blocks,
            num_slots=slots,
            max_jobs=max_jobs,
            max_requests=128,
            num_groups=len(self.geometry.groups),
            num_workers=workers,
        )
        self.ledger = Ledger(limits, contract=contract, deadline=deadline)
        self.tier = HostTier(self.ledger, replacement)
        self.scheduler = OffloadScheduler(
            self.ledger, self.tier, self.geometry, evolve(policies or Policies(), plans_ahead=ahead)
        )
        self.device = Device(blocks, slots * chunk, workers, contract)
        self.ahead = ahead
        self.now = 0.0
        self.running: list[str] = []
        self.plans: deque[tuple[Plan, list[Completion]]] = deque()
        self.reports: list[Completion] = []
        self.silent: set[JobId] = set()
        """Jobs whose reports get lost."""
        self.transfers: dict[JobId, Transfer] = {}
        """Every copy that was ever planned."""
        self.seen: dict[tuple[str, int], list[int]] = {}
        """By request and group, the block that each position of its table had last, be it released by now."""
        self._tokens: dict[str, tuple[int, ...]] = {}
        self.ledger.on(hook=self._hear)

    def _hear(self, told: LedgerTransition) -> None:
        if told.event == "allocate":
            self.device.handed_out([int(each) for each in told.places])

    # --- requests -------------------------------------------------------------------------------------------------------

    def keys_of(self, name: str) -> Keys:
        """The key function of one request."""

        def keys(group: int, start: int, stop: int) -> list[bytes]:
            size = self.geometry.block_tokens[group]
            return [text(group, self._tokens[name][: (position + 1) * size]) for position in range(start, stop)]

        return keys

    def add(self, name: str, prompt: int | Sequence[int]) -> None:
        """A request with this prompt; a number stands for that many of the tokens 0, 1, 2, ... that all such requests share."""
        tokens = tuple(range(prompt)) if isinstance(prompt, int) else tuple(prompt)
        # what it will sample is nobody else's
        self._tokens[name] = tokens + tuple(1000 * (len(self._tokens) + 1) + number for number in range(200))
        self.scheduler.add_request(name, self.keys_of(name), prompt_tokens=len(tokens))

    def finish(self, name: str) -> None:
        """The engine has seen enough of a request."""
        self._stop(name)
        self.scheduler.finish(name)

    def abort(self, name: str) -> None:
        """The client has gone."""
        self._stop(name)
        self.scheduler.abort(name)

    def _stop(self, name: str) -> None:
        if name in self.running:
            self.running.remove(name)

    def blocks(self, name: str, group: int = 0) -> list[int]:
        """The blocks in a request's table; 0 where there is none."""
        return [life & ID_MASK for life in self.ledger.requests.table(name, group)]

    # --- the step -------------------------------------------------------------------------------------------------------

    def step(
        self,
        tokens: Mapping[str, int] | None = None,
        *,
        admit: Collection[str] | Mapping[str, int] = (),
        preempt: Collection[str] = (),
        sampled: Mapping[str, int] | None = None,
    ) -> Step:
        """One step: schedule, let in, plan, carry out, and settle the plan whose turn it is.

        *tokens*: how many each running request computes, 0 for those not named; None: what is left, or one. *admit*: who is
        looked up and let in; a number says how many tokens it computes at once. *sampled* goes to the plan that settles.
        """
        self.now += 1
        for name in preempt:
            self.scheduler.preempt(name)
            self._stop(name)
        begin = {name: self._end(name) for name in self.running}
        wants = {name: self._want(name) if tokens is None else tokens.get(name, 0) for name in self.running}
        short = self.scheduler.grow(wants)
        for name in short:
            wants[name] = 0
        hits, refused = self._let_in(admit, begin, wants)
        self._hand_off(begin, wants)
        plan = self.scheduler.build_plan(self.now)
        self._see()
        self._carry_out(plan, begin, wants)
        self.check()
        settled = []
        while len(self.plans) > self.ahead:
            settled.append(self.settle(sampled or {}))
        return Step(plan, hits, tuple(settled), tuple(short), tuple(refused))

    def _see(self) -> None:
        for name in self.ledger.requests:
            for group in range(len(self.geometry.groups)):
                seen = self.seen.setdefault((name, group), [])
                now = self.blocks(name, group)
                seen[:] = [new or old for new, old in zip_longest(now, seen, fillvalue=0)]

    def _end(self, name: str) -> int:
        found = self.scheduler.requests.progress(name)
        return found.computed + found.in_flight

    def _want(self, name: str) -> int:
        left = self.scheduler.requests.progress(name).known - self._end(name)
        return max(left, 1 if self.ahead else 0)

    def _let_in(
        self, admit: Collection[str] | Mapping[str, int], begin: dict[str, int], wants: dict[str, int]
    ) -> tuple[dict[str, Hit], list[str]]:
        hits: dict[str, Hit] = {}
        refused = []
        for name in admit:
            known = self.scheduler.requests.progress(name).known
            hits[name] = hit = self.scheduler.lookup(name, known)
            if hit.deferred:
                continue
            count = admit[name] if isinstance(admit, Mapping) else known - hit.compute_from
            try:
                if self.scheduler.admit(name, hit, count):
                    self.running.append(name)
                    begin[name], wants[name] = hit.compute_from, count
            except CapacityError:
                refused.append(name)
        return hits, refused

    def _hand_off(self, begin: Mapping[str, int], wants: Mapping[str, int]) -> None:
        for group, each in enumerate(self.geometry.groups):
            for name, count in wants.items():
                end = begin[name] + count
                if isinstance(each, Mamba) and count and not end % each.block_tokens:
                    self.scheduler.hand_off(name, group, end)

    def _carry_out(self, plan: Plan, begin: Mapping[str, int], wants: Mapping[str, int]) -> None:
        writes: dict[int, Content] = {}
        for group, each in enumerate(self.geometry.groups):
            size = each.block_tokens
            for name, count in wants.items():
                table, end = self.ledger.requests.table(name, group), begin[name] + count
                first = (end - 1) // size if isinstance(each, Mamba) else begin[name] // size
                for position in range(first, -(-end // size)) if count else ():
                    life = table[position]
                    content = text(
                        group, self._tokens[name][: end if isinstance(each, Mamba) else min(end, (position + 1) * size)]
                    )
                    before = self.device.blocks[life & ID_MASK]
                    if life == NULL:
                        raise DeviceFault(f"request {name} computes token {end - 1} into the null block")
                    # a final block that is written once more gets the bytes that it has
                    if before is None or before[0] != content:
                        writes[life & ID_MASK] = content, life
        jobs = {each.job: each for each in (*plan.loads, *plan.stores)}
        self.transfers.update(jobs)
        landed = self.device.run(plan, writes, lambda job: True)
        found = [Completion(job, Worker(worker), Result.OK) for job, worker, _ in landed if job not in self.silent]
        self.plans.append((plan, found))

    def settle(self, sampled: Mapping[str, int] | None = None) -> Settled:
        """The oldest plan settles, with all reports that are there."""
        plan, flushed = self.plans.popleft()
        launched = [
            Launched(each.job, Worker(worker))
            for each in (*plan.loads, *plan.stores)
            for worker in range(self.ledger.limits.num_workers)
        ]
        reports = [*flushed, *self.reports]
        self.reports = []
        settled = self.scheduler.settle(plan.number, self.now, sampled=sampled or {}, launched=launched, completions=reports)
        self.running += settled.loaded
        self.check()
        return settled

    # --- copies ---------------------------------------------------------------------------------------------------------

    def out(self) -> list[JobId]:
        """The copies that run on the device, oldest first."""
        return list(self.device.copies)

    def land(self, *jobs: JobId, ok: bool = True, worker: int | None = None) -> None:
        """These copies arrive, all that run if none is named; the reports come with the next plan that settles."""
        for job in jobs or self.out():
            pending = self.device.copies[job].pending
            for each in sorted(pending) if worker is None else [worker]:
                self.device.land(job, each, ok)
                if job not in self.silent:
                    self.reports.append(Completion(job, Worker(each), Result.OK if ok else Result.FAILED))

    def prove(self, *jobs: JobId) -> None:
        """The device is synchronised with these copies, and the engine says so."""
        for job in jobs:
            self.device.quiet(job)
        proven: Jobs[Any] = Jobs(jobs)
        self.ledger.quiesce(proven)

    # --- what must hold -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The ledger's rules hold, its claims fit the device, and whatever can be found is what its key says."""
        assert check(self.ledger) == []
        compare(self.device, self)
        for _, key, place in self.ledger.blocks.named():
            self._read(f"block {place}", self.device.blocks[place], key)
        for group, key, slot in self.ledger.slots.named():
            if self.ledger.slots.state(slot) is Slot.READY and not key.startswith(b"alien"):
                self._read_slot(slot, key, self.geometry.block_tokens[group])

    def _read_slot(self, slot: int, key: bytes, block_tokens: int) -> None:
        size = self.geometry.blocks_per_chunk
        for back in range(self.scheduler._stores.suffix[slot]):
            content = self.device.slots[slot * size + size - 1 - back]
            self._read(f"slot {slot}", content, shorter(key, back * block_tokens))

    @staticmethod
    def _read(what: str, content: Content | None, key: bytes) -> None:
        if content is None or content[0] != key:
            raise DeviceFault(f"{what} is found as {key.decode()}, and holds {content[0].decode() if content else 'garbage'}")

    def block_state(self, block: int) -> str:
        """What the ledger says of a block."""
        return self.ledger.blocks.state(block).name

    def slot_state(self, place: int) -> str:
        """What the ledger says of the slot that a host place is in."""
        return self.ledger.slots.state(place // self.geometry.blocks_per_chunk).name

    # --- scenes ---------------------------------------------------------------------------------------------------------

    def fill_host(self) -> None:
        """Every slot holds content of no request, on which somebody counts: the tier refuses all stores until `free_host`."""
        ledger = self.ledger
        ledger.add_request("alien")
        ledger.admit("alien")
        for number in range(len(ledger.slots)):
            key = f"alien {number}".encode()
            found = self.tier.reserve([(0, key)])
            assert found is not None
            (slot,) = found
            source = ledger.seal(ledger.allocate("alien", 1), [key])
            (job,) = ledger.plan_store(Store.of(source, [slot], [key], places=[slot * self.geometry.blocks_per_chunk])).ids
            plan = ledger.dispatch(0.0)
            ledger.settle(plan.number, 0.0, completions=[Completion(job, Worker(each), Result.OK) for each in self._workers])
            ledger.release("alien", [number])
            ledger.drop(source.lives)
        ledger.finish("alien")
        ledger.pin("somebody", range(len(ledger.slots)))

    def free_host(self) -> None:
        """Nobody counts on the aliens any more."""
        self.ledger.unpin("somebody", range(len(self.ledger.slots)))

    @property
    def _workers(self) -> range:
        return range(self.ledger.limits.num_workers)

    def prepare(self, name: str, prompt: int | Sequence[int], stride: int | None = None) -> None:
        """Put the content of a prompt into the host tier, and empty the device; needs nobody else.

        *stride*: tokens computed in a step, so that states are handed off at each multiple of it.
        """
        self.add(name, prompt)
        known = self.scheduler.requests.progress(name).known
        self.step(admit={name: min(stride or known, known)})
        while (left := known - self._end(name)) > 0:
            self.land()
            self.step({name: min(stride or left, left)})
        self.finish(name)
        self.drain()
        self.empty_device()

    def empty_device(self) -> None:
        """The device loses all content, the host tier none."""
        self.scheduler.sleep()
        self.drain()
        self.scheduler.wake()

    def drain(self) -> int:
        """Tick without new work until nothing is out; all copies land. Gives the number of ticks."""
        for tick in range(16):
            if not self.scheduler.has_pending_work():
                return tick
            self.land()
            self.step({})
            while self.plans:  # nobody plans ahead when nobody runs
                self.settle()
        raise AssertionError(f"still out after 16 ticks: {self.out()}, {self.ledger.jobs.alive()}")

    def drain_stores(self) -> None:
        """Step without new tokens until the line has had its turn, and all copies have landed."""
        for _ in range(6):
            self.step({})
            self.land()

    def left_behind(self) -> list[str]:
        """Whatever is not as it was at the start, content apart."""
        ledger = self.ledger
        found = [f"block {each} {ledger.blocks.state(each).name}" for each in range(1, len(ledger.blocks))
                 if ledger.blocks.state(each) not in states_with(Trait.FREE, Block)]  # fmt: skip
        found += [f"slot {each} {ledger.slots.state(each).name}" for each in range(len(ledger.slots))
                  if ledger.slots.state(each) not in SLOTS_AT_REST or ledger.slots.pins(each)]  # fmt: skip
        return [*found, *ledger.requests, *map(str, self.out()), *ledger.slots.holders]

    def state(self, name: str) -> Request:
        """The state of a request that is not over."""
        return self.ledger.requests.state(name)

    def has(self, name: str, group: int, positions: Iterable[int]) -> set[int]:
        """Which of these blocks of a request's prefix can be read in the host tier, where a chunk is one block."""
        keys = self.keys_of(name)
        return {each for each in positions if keys(group, each, each + 1)[0] in self.host_keys(group)}

    def forget(self, name: str, group: int, positions: Iterable[int]) -> None:
        """The host tier loses these blocks of a request's prefix, where a chunk is one block."""
        keys = self.keys_of(name)
        self.ledger.evict([slot_with(self.ledger, keys(group, each, each + 1)[0], group) for each in positions])

    def host_keys(self, group: int = 0) -> set[bytes]:
        """The keys of one group that can be read in the host tier."""
        return {key for own, key, _ in self.ledger.slots.named() if own == group and self.tier.slot_of(group, key) is not None}


def stored_until(engine: Engine, limit: int = 3) -> Step:
    """Step without new tokens until a plan submits a store."""
    for _ in range(limit):
        step = engine.step({})
        if step.plan.stores:
            return step
    raise AssertionError(f"no store within {limit} steps")


def computed(engine: Engine, name: str, tokens: int) -> None:
    """Step, this request alone, until so many of its tokens are settled and none is in flight."""
    for _ in range(64):
        found = engine.scheduler.requests.progress(name)
        if found.computed == tokens and not found.in_flight:
            return
        end = found.computed + found.in_flight
        engine.step({name: min(tokens - end, max(1, found.known - end))} if end < tokens else {})
    raise AssertionError(f"{name} stands at {engine.scheduler.requests.progress(name)}")


def without(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, lines: Mapping[str, str]) -> None:
    """Plant a bug: in the source of one function of *owner* (a class or a module) other text stands in place of some lines."""
    raw = inspect.getattr_static(owner, name)
    function: Callable[..., Any] = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
    source = textwrap.dedent(inspect.getsource(function))
    for line, instead in lines.items():
        assert source.count(line) == 1, f"{name} no longer has the text {line!r} once: plant this bug another way"
        source = source.replace(line, instead)
    module = inspect.getmodule(function)
    assert module is not None
    scope: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source, module.__dict__, scope)
    if inspect.ismodule(owner):
        planted(monkeypatch, function, scope[name])
    else:  # a static or class method keeps its decorator, which stands in its source
        monkeypatch.setattr(owner, name, scope[name])


def planted(monkeypatch: pytest.MonkeyPatch, right: Callable[..., Any], wrong: Callable[..., Any]) -> None:
    """Plant a bug: one function stands in place of another of a module, wherever that was imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("blocklife.") and vars(module).get(right.__name__) is right:
            monkeypatch.setattr(module, right.__name__, wrong)
