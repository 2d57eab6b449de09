"""One offload scheduler with requests whose tokens are letters, so that a test can be read: a rig.

A key spells its group and all text up to the end of its block. A rig has no device: a copy lands when a test says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from blocklife.ledger import Completion, Contract, JobId, Ledger, Limits, Plan, Result, Worker
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger.invariants import check
from blocklife.offload import (
    BelowIndex,
    BelowPolicies,
    Geometry,
    Hit,
    HostTier,
    OffloadScheduler,
    Policies,
    Replacement,
    Settled,
)
from tests.worlds import unchanged


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
