"""The ledger and the one that it replaces get the same calls; after each call every column of both is equal.

Method: a walk draws verbs and their arguments from what both ledgers say. Refused is what both refuse; nearly always with
the same kind of error. Compared are the snapshots under their own names,
how often each row of each table was taken, and what was counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import blocklife.errors as new_errors
import blocklife.ledger as new
import blocklife.ledger.jobs as new_jobs
import blocklife.ledger.records as new_records
import tests.oracle.errors as old_errors
import tests.oracle.ledger as old
import tests.oracle.ledger.jobs as old_jobs
import tests.oracle.ledger.records as old_records
from blocklife.ledger.invariants import check
from blocklife.states import MACHINES, Block, Job, Slot
from tests.oracle.ledger._steps import Steps

MASK = (1 << 32) - 1


def one_by_one(self: Any, completions: Any) -> None:
    """Jobs that end in one call end one after the other; some ended together before, and freed in another order."""
    for each in completions:
        self.complete(each)


Steps.complete_many = one_by_one  # type: ignore[method-assign]


class Side:
    """One of the ledgers, with the records that it takes."""

    def __init__(self, ledger: Any, jobs: Any, records: Any, package: Any, error: type[Exception]) -> None:
        self.ledger, self.jobs, self.records, self.package, self.error = ledger, jobs, records, package, error
        self.is_new = package is new

    def job(self, number: int) -> Any:
        return self.records.JobId(1, number)

    def handle(self, *numbers: int) -> Any:
        return self.jobs.Jobs(tuple(map(self.job, numbers)))

    def batch(self, lives: list[int], group: int) -> Any:
        return self.jobs.Batch(list(lives), group)

    # What one of them has under another name, or in another form.

    def place(self, name: str, group: int, skipped: int, taken: list[int], fresh: list[int]) -> None:
        self.ledger.observe_place(name, [self.records.Placement(group, skipped, taken, fresh)])

    def store(self, stores: list[Any]) -> None:
        self.ledger.plan_store(*stores) if self.is_new else self.ledger.plan_stores(stores)

    def load(self, name: str, transfers: list[Any], within: bool) -> None:
        if self.is_new:
            self.ledger.plan_load(name, *transfers, within=within)
        else:
            self.ledger.plan_group_load(name, transfers, within=within)

    def seal(self, group: int, lives: list[int], keys: list[bytes]) -> None:
        if self.is_new:
            self.ledger._rows.seal([(group, lives, keys)])
        else:
            self.ledger.seal_many([self.records.Seal(group, lives, keys)])

    @property
    def rows(self) -> Any:
        return self.ledger._rows if self.is_new else self.ledger

    def forget_host(self) -> None:
        self.ledger.reset(device=False) if self.is_new else self.ledger.forget_host()

    def report(self, number: int, worker: int, ok: bool, missing: tuple[int, ...] = ()) -> Any:
        result = self.records.Result.OK if ok else self.records.Result.FAILED
        return self.records.Completion(self.job(number), worker, result, missing)


class Pair:
    """Both ledgers, made alike, and a die."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.own, self.groups, self.workers = dice.random() < 0.7, dice.randint(1, 3), dice.randint(1, 3)
        self.fence = dice.random() < 0.6
        limits = {
            "num_blocks": dice.randint(4, 24), "num_slots": dice.randint(3, 16), "num_groups": self.groups,
            "num_workers": self.workers, "max_jobs": dice.choice((3, 6, 12)), "max_requests": dice.choice((3, 6)),
            "max_plans": 5,
        }  # fmt: skip
        indexed = self.own or dice.random() < 0.5
        self.sides = [
            Side(
                each.Ledger(
                    each.Limits(**limits),
                    contract=each.Contract.FENCE if self.fence else each.Contract.HOLD,
                    deadline=20.0, own_pool=self.own, indexed=indexed,
                ),
                jobs, records, each, error,
            )
            for each, jobs, records, error in (
                (new, new_jobs, new_records, new_errors.BlocklifeError),
                (old, old_jobs, old_records, old_errors.BlocklifeError),
            )
        ]  # fmt: skip
        self.ledger = self.sides[0].ledger
        self.now, self.serial, self.keys = 0.0, 0, 0
        self.done: Counter[str] = Counter()
        self.refused = self.otherwise = 0
        self.bias = {name: dice.random() for name in ("load", "store", "below")}

    # --- calls

    def both(self, what: str, call: Callable[[Side], object]) -> bool:
        """Call both; both do it, or both refuse with the same kind of error."""
        raised: list[Exception | None] = []
        for side in self.sides:
            try:
                call(side)
                raised.append(None)
            except side.error as problem:
                raised.append(problem)
        kinds = [type(each).__name__ for each in raised]
        assert (raised[0] is None) == (raised[1] is None), f"{what}: {raised}"
        self.otherwise += kinds[0] != kinds[1]  # a call in which two things are wrong: they are looked at in another order
        self.refused += raised[0] is not None
        self.done[what] += raised[0] is None
        self.compare(what)
        return raised[0] is None

    def compare(self, what: str) -> None:
        mine, theirs = (seen(side.ledger) for side in self.sides)
        for name, value in mine.items():
            assert value == theirs[name], f"{what}: {name} is {value}, and was {theirs[name]}"
        assert check(self.ledger) == [], what

    # --- drawing

    def key(self) -> bytes:
        if self.keys and self.dice.random() < 0.3:
            return self.dice.randrange(self.keys).to_bytes(4, "little")
        self.keys += 1
        return self.keys.to_bytes(4, "little")

    def some(self, values: list[Any], most: int) -> list[Any]:
        return self.dice.sample(values, min(len(values), self.dice.randint(1, most)))

    def request(self) -> str | None:
        names = list(self.ledger.requests)
        return self.dice.choice(names) if names else None

    def step(self) -> None:
        """One call, drawn."""
        name, group = self.request(), self.dice.randrange(self.groups)
        if name is None or self.dice.random() < 0.05:
            self.serial += 1
            fresh = f"r{self.serial}" if self.dice.random() < 0.9 else f"r{self.dice.randint(1, self.serial)}"
            self.both("add_request", lambda side: side.ledger.add_request(fresh))
            return
        verbs: list[tuple[float, Callable[[str, int], object]]] = [
            (14, self.hand_out), (4, self.admit), (2, self.give_up), (4, self.release), (14, self.seal), (5, self.hit),
            (1.5, self.drop), (6 + 12 * self.bias["store"], self.store), (4 + 16 * self.bias["load"], self.load),
            (2, self.end_jobs), (9, self.dispatch), (10, self.settle), (3, self.complete), (2, self.launch), (1, self.expire),
            (3, self.pin), (1, self.evict), (1 + 5 * self.bias["below"], self.below), (0.3, self.lose), (0.15, self.reset),
            (0.8, self.reopen), (0.5, self.restore), (0.6, self.first), (0.5, self.submit), (0.6, self.finish_many),
        ]  # fmt: skip
        (chosen,) = self.dice.choices([verb for _, verb in verbs], [weight for weight, _ in verbs])
        chosen(name, group)

    # --- verbs

    def hand_out(self, name: str, group: int) -> None:
        count = self.dice.randint(1, 4)
        if self.own:
            self.both("allocate", lambda side: side.ledger.allocate(name, count, group))
            return
        lendable = (Block.PENDING_STORE, Block.IN_FLIGHT, Block.STALE)
        blocks = [
            each for each in range(1, len(self.ledger.blocks))
            if self.ledger.blocks.state(each) in (Block.FREED, Block.CACHED, *(lendable if self.dice.random() < 0.4 else ()))
        ]  # fmt: skip
        if self.dice.random() < 0.05:
            blocks = list(range(1, len(self.ledger.blocks)))
        chosen = self.some(blocks, 4) if blocks else []
        taken = [block for _, _, block in self.ledger.blocks.named() if self.ledger.blocks.group(block) == group]
        hits = self.some(taken, 2) if taken and self.dice.random() < 0.5 else []
        skipped = int(self.dice.random() < 0.3)
        self.both("observe_place", lambda side: side.place(name, group, skipped, hits, chosen))

    def admit(self, name: str, group: int) -> None:
        if self.dice.random() < 0.1:
            self.both("skip", lambda side: side.ledger.skip(name, 1, group))
        else:
            self.both("admit", lambda side: side.ledger.admit(name))

    def give_up(self, name: str, group: int) -> None:
        verb = self.dice.choice(("preempt", "finish", "finish", "roll_back"))
        self.both(verb, lambda side: getattr(side.ledger, verb)(name))

    def finish_many(self, name: str, group: int) -> None:
        names = self.some(list(self.ledger.requests), 2)
        self.both("finish_many", lambda side: side.rows.finish_many(names))

    def release(self, name: str, group: int) -> None:
        table = self.ledger.requests.table(name, group)
        if table:
            positions = self.some(list(range(len(table))), 4) if self.dice.random() < 0.95 else [len(table)]
            self.both("release", lambda side: side.ledger.release(name, positions, group))

    def seal(self, name: str, group: int) -> None:
        wanted = (Block.ALLOCATED, Block.PLEDGED)
        lives = [
            life for life in self.ledger.requests.table(name, group)
            if life and (self.dice.random() < 0.1 or self.ledger.blocks.of(life) in wanted)
        ][: self.dice.randint(1, 4)]  # fmt: skip
        if lives:
            keys = self.keys_of(lives)
            if self.dice.random() < 0.5:
                self.both("seal", lambda side: side.ledger.seal(side.batch(lives, group), keys))
            else:
                self.both("seal of several", lambda side: side.seal(group, lives, keys))

    def keys_of(self, lives: list[int]) -> list[bytes]:
        """Keys that planned stores have promised, or new ones."""
        keys = []
        for life in lives:
            number = self.ledger.blocks.job(life & MASK)
            job = self.ledger.jobs.get(number) if number else None
            known = dict(zip(job.lives, job.names, strict=True)) if job is not None and job.names else {}
            keys.append(known[life] if life in known and self.dice.random() < 0.95 else self.key())
        return keys

    def hit(self, name: str, group: int) -> None:
        named = [block for of, _, block in self.ledger.blocks.named() if of == group]
        lives = [self.ledger.blocks.life(block) for block in self.some(named, 3)] if named else []
        if lives and self.dice.random() < 0.1:
            lives[0] -= 1 << 32
        if lives:
            self.both("acquire", lambda side: side.ledger.acquire(name, lives, group))

    def drop(self, name: str, group: int) -> None:
        lives = [self.ledger.blocks.life(self.dice.randrange(1, len(self.ledger.blocks)))]
        self.both("drop", lambda side: side.ledger.drop(lives))

    def first(self, name: str, group: int) -> None:
        if self.own:
            lives = [self.ledger.blocks.life(block) for block in self.some(list(range(1, len(self.ledger.blocks))), 3)]
            self.both("hand_out_first", lambda side: side.rows.hand_out_first(lives))

    def reopen(self, name: str, group: int) -> None:
        if self.own and (table := self.ledger.requests.table(name, group)):
            position = self.dice.randrange(len(table))
            self.both("reopen", lambda side: side.rows.reopen(name, position, group))

    def store(self, name: str, group: int) -> None:
        blocks = [
            block for block in range(1, len(self.ledger.blocks))
            if self.ledger.blocks.state(block) in (Block.ALLOCATED, Block.SEALED, Block.CACHED)
            and self.ledger.blocks.group(block) == group
        ]  # fmt: skip
        slots = self.ledger.slots.next_empty(8)
        self.dice.shuffle(blocks)
        if self.dice.random() < 0.05:
            slots = [self.dice.randrange(len(self.ledger.slots)) for _ in range(8)]
        parts: list[tuple[str | None, tuple[str, ...], list[int], list[int], list[bytes], list[int] | None]] = []
        for _ in range(self.dice.choice((1, 1, 1, 2))):
            count, chunk = self.dice.randint(1, 3), self.dice.choice((1, 1, 1, 2))
            own = [self.ledger.blocks.life(blocks.pop()) for _ in range(min(len(blocks), count * chunk))]
            places, slots = slots[: -(-len(own) // chunk)], slots[-(-len(own) // chunk) :]
            if not own or len(places) * chunk < len(own):
                break
            if self.dice.random() < 0.04:
                own[-1] -= 1 << 32
            if chunk == 1:
                keys = [self.ledger.blocks.key(life & MASK) or self.key() for life in own]
                where = None
            else:
                keys = [self.key() for _ in places]
                where = [places[at // chunk] * 2 + at % chunk for at in range(len(own))]
            sharers = tuple(each for each in self.some(list(self.ledger.requests), 2) if each != name)
            parts.append((self.dice.choice((name, name, None, "gone")), sharers, own, places, keys, where))
        if not parts:
            return

        def plan(side: Side) -> None:
            side.store([
                side.jobs.Store(
                    owner, [side.jobs.GroupTransfer(side.batch(own, group), places, keys, where)], sharers if owner else ()
                )
                for owner, sharers, own, places, keys, where in parts
            ])  # fmt: skip

        self.both("plan_store", plan)

    def load(self, name: str, group: int) -> None:
        parts = []
        for each in sorted(self.dice.sample(range(self.groups), self.dice.randint(1, self.groups))):
            ready = [
                slot for slot in range(len(self.ledger.slots))
                if self.ledger.slots.state(slot) is Slot.READY and self.ledger.slots.group(slot) == each
            ]  # fmt: skip
            mine = [
                life for life in self.ledger.requests.table(name, each)
                if life and self.ledger.blocks.of(life) in (Block.ALLOCATED, Block.FLUSHED)
            ]  # fmt: skip
            count = min(len(ready), len(mine), self.dice.randint(1, 3))
            if count:
                slots = self.dice.sample(ready, count)
                parts.append((each, mine[:count], slots, [self.ledger.slots.key(slot) for slot in slots]))
        within = self.dice.random() < 0.3
        if parts and self.dice.random() < 0.04:
            parts[0][2][0] = self.dice.randrange(len(self.ledger.slots))
        if parts:
            self.both(
                "plan_load",
                lambda side: side.load(
                    name,
                    [side.jobs.GroupTransfer(side.batch(lives, each), slots, keys) for each, lives, slots, keys in parts],
                    within,
                ),
            )

    def below(self, name: str, group: int) -> None:
        if self.dice.random() < 0.5:
            ready = self.ledger.slots.where(Slot.READY) if self.dice.random() < 0.9 else list(range(len(self.ledger.slots)))
            slots = self.some(ready, 3) if ready else []
            self.both("plan_demotion", lambda side: side.ledger.plan_demotion(slots, space=b"s"))
        else:
            slots = self.ledger.slots.next_empty(self.dice.randint(1, 3))
            keys = [self.key() for _ in slots]
            self.both("plan_promotion", lambda side: side.ledger.plan_promotion(slots, keys, group))

    def end_jobs(self, name: str, group: int) -> None:
        known = [job.number for job in self.ledger.jobs.known()]
        if known:
            numbers, verb = self.some(known, 2), self.dice.choice(("cancel", "abandon", "flush", "quiesce"))
            self.both(verb, lambda side: getattr(side.ledger, verb)(side.handle(*numbers)))

    def submit(self, name: str, group: int) -> None:
        planned = [job.number for job in self.ledger.jobs.alive() if job.state is Job.PLANNED]
        if planned:
            numbers = self.some(planned, 2)
            self.both("submit", lambda side: side.ledger.submit(side.handle(*numbers)))

    def dispatch(self, name: str, group: int) -> None:
        self.now += 1
        made: list[Any] = []
        if self.both("dispatch", lambda side: made.append(side.ledger.dispatch(self.now))):
            mine, theirs = (shown(plan) for plan in made)
            assert mine == theirs

    def out(self) -> list[Any]:
        return [job for job in self.ledger.jobs.alive() if job.state is not Job.PLANNED]

    def settle(self, name: str, group: int) -> None:
        if not self.ledger.plans.out:
            return
        self.now += 1
        plan = self.ledger.plans.out[0]
        reports: list[tuple[int, int, bool, tuple[int, ...]]] = []
        for job in self.out():
            for worker in range(self.workers):
                if self.dice.random() < 0.55:
                    partly = not job.direction.on_device and self.dice.random() < 0.3
                    reports.append((job.number, worker, self.dice.random() < 0.85, (0,) if partly else ()))
        if self.dice.random() < 0.2:
            number = self.dice.randint(0, self.ledger.jobs.last_number + 2)
            if (found := self.ledger.jobs.get(number)) is None or found.state is not Job.PLANNED or self.dice.random() < 0.1:
                reports.append((number, self.dice.randrange(self.workers), True, ()))
        if reports and self.dice.random() < 0.2:
            reports.append(self.dice.choice(reports))
        if self.dice.random() < 0.5:
            self.dice.shuffle(reports)
        seals = []
        for each in range(self.groups if self.dice.random() < 0.5 else 0):
            wanted = (Block.ALLOCATED, Block.PLEDGED, Block.FLUSHED)
            lives = [life for life in self.ledger.requests.table(name, each) if life and self.ledger.blocks.of(life) in wanted][
                :2
            ]
            seals.append((each, lives, self.keys_of(lives)))
        begun = [(job.number, self.dice.randrange(self.workers)) for job in self.out() if self.dice.random() < 0.2]
        self.both(
            "settle",
            lambda side: side.ledger.settle(
                plan,
                self.now,
                launched=[side.records.Launched(side.job(number), worker) for number, worker in begun],
                completions=[side.report(*each) for each in reports],
                seals=[side.records.Seal(*each) for each in seals],
            ),
        )

    def complete(self, name: str, group: int) -> None:
        known = [job.number for job in self.ledger.jobs.known()]
        if known:
            number, worker, ok = self.dice.choice(known), self.dice.randrange(self.workers), self.dice.random() < 0.85
            self.both("complete", lambda side: side.ledger.complete(side.report(number, worker, ok)))

    def launch(self, name: str, group: int) -> None:
        if out := self.out():
            number = self.dice.choice(out).number
            self.both("launched", lambda side: side.ledger.launched(side.records.Launched(side.job(number), 0), self.now))

    def expire(self, name: str, group: int) -> None:
        self.now += 15
        self.both("expire", lambda side: side.ledger.expire(self.now))

    def pin(self, name: str, group: int) -> None:
        slots = self.some(list(range(len(self.ledger.slots))), 2)
        if self.dice.random() < 0.5:
            ready = self.ledger.slots.where(Slot.READY)
            slots = self.some(ready, 2) if ready else slots
            self.both("pin", lambda side: side.ledger.pin("h", slots))
        else:
            held = list(self.ledger.slots.holders.get("h", {})) or slots
            self.both("unpin", lambda side: side.ledger.unpin("h", held[:1]))

    def evict(self, name: str, group: int) -> None:
        slots = self.some(self.ledger.slots.where(Slot.READY) or [0], 2)
        self.both("evict", lambda side: side.ledger.evict(slots))

    def lose(self, name: str, group: int) -> None:
        worker = self.dice.randrange(self.workers)
        self.both("lose", lambda side: side.ledger.lose(worker))

    def reset(self, name: str, group: int) -> None:
        kind = self.dice.random()
        if kind < 0.3:
            self.both("forget_host", lambda side: side.forget_host())
        else:
            drain, host = kind < 0.5, kind < 0.8
            self.both("reset", lambda side: side.ledger.reset(drain=drain, host=host))

    def restore(self, name: str, group: int) -> None:
        self.both("restore", lambda side: side.ledger.restore(side.ledger.snapshot(now=self.now), self.now))


def seen(ledger: Any) -> dict[str, object]:
    """Everything that can be compared; rows of jobs and requests are names without a meaning."""
    saved, counted = ledger.snapshot(), getattr(ledger, "counts", ledger)
    over = ("DONE", "FAILED", "CANCELLED")
    jobs = [
        (job.number, job.state, job.direction.name, job.owner, job.reported, job.failed, job.deadline, job.sharers, job.missing)
        + (() if MACHINES["job"].states[job.state].name in over else (tuple(job.payload), job.expired))
        for job in saved.jobs
    ]  # fmt: skip
    counts = {
        machine: [count for _, count in view.row_counts()]
        for machine, view in (
            ("block", ledger.blocks),
            ("slot", ledger.slots),
            ("job", ledger.jobs),
            ("request", ledger.requests),
        )
    }
    return {
        **{f"blocks.{name}": value for name, value in saved.blocks._asdict().items() if name != "job"},
        **{f"slots.{name}": value for name, value in saved.slots._asdict().items()},
        "stores": [ledger.blocks.job(block) for block in range(len(ledger.blocks))],
        "block_index": saved.block_index, "slot_index": saved.slot_index, "queue": saved.queue, "empty": saved.empty,
        "jobs": jobs, "last_number": saved.last_number, "room": ledger.jobs.room,
        "requests": sorted((each.name, each.state, each.tables, each.load) for each in saved.requests),
        "holders": saved.holders, "plan": saved.plan_number, "to_flush": saved.to_flush, "waiting": saved.waiting,
        "counts": counts, "tally": +Counter(counted.tally), "ended": +Counter(counted.ended), "moved": +Counter(counted.moved),
        "flushes": dict(counted.flushes), "verdicts": ledger.jobs.verdicts, "free": ledger.blocks.free,
        "serving": [ledger.jobs.serve(name) for name in ("gone", *sorted(ledger.requests))],
    }  # fmt: skip


def shown(plan: Any) -> object:
    """A plan as values."""
    moves = [
        (each.job.number, each.direction.name, each.source.tolist(), each.target.tolist(), each.group_sizes)
        for each in (*plan.loads, *plan.stores)
    ]  # fmt: skip
    below = [
        (each.job.number, each.slots.tolist(), each.groups, each.keys, each.space) for each in (*plan.promotes, *plan.demotes)
    ]
    return plan.number, moves, below, [each.number for each in plan.flushes]


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_both_ledgers_agree_after_every_call(first: int) -> None:
    """Ten walks of 150 calls each."""
    done: Counter[str] = Counter()
    refused = otherwise = 0
    for seed in range(first, first + 10):
        pair = Pair(seed)
        try:
            for _ in range(150):
                pair.step()
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}: {problem}") from problem
        done += pair.done
        refused += pair.refused
        otherwise += pair.otherwise
    print(dict(done), refused, otherwise)
    assert otherwise <= 0.05 * refused
