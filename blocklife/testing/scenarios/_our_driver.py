"""The driver of blocklife itself: the real ledger, host tier and scheduler behind the interface `driver.Driver`.

Rules of this file:

* It only translates calls. What the engine of the worlds lacks (single blocks, a full host) goes directly to the ledger.
* Its refusals have the package's own messages.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from attrs import asdict

from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import (
    Batch,
    Completion,
    Contract,
    Direction,
    GroupTransfer,
    JobId,
    Jobs,
    LedgerTransition,
    Limits,
    Placement,
    Result,
    Store,
    Transfer,
)
from blocklife.ledger import Worker as Rank
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger.invariants import check
from blocklife.offload import Settled
from blocklife.offload.records import Hit
from blocklife.states import (
    BLANK,
    MACHINES,
    SLOTS_AT_REST,
    TERMINAL,
    Block,
    JobLife,
    Slot,
    Trait,
    blocks_touched,
    slots_touched,
    states_with,
)
from blocklife.testing.scenarios._driver import (
    Driver,
    EngineSetup,
    EngineStep,
    LookedUp,
    Problem,
    RequestProgress,
    SettledPlan,
    Unsupported,
)
from blocklife.testing.worlds import _second_owner as second
from blocklife.testing.worlds._device import Device, Landing
from blocklife.testing.worlds._engine import Engine, Settings, Stepped

_SAID = 200
"""Tokens that a request samples if no end is given."""
_ALIEN = "alien"
_WHY = {
    "swap": "places are never swapped between tiers: a job copies, and both ends stay pinned until it is over",
    "split": "there are no nodes to split: keys name single blocks or chunks, and each place is pinned by itself",
    "publish": "there are no parents: content is indexed by key alone, and a lookup asks for every key of the prefix, so that "
    "a child without its parent is never a hit",
    "attach": "there is one ledger and it has hooks; a second connector would be a second ledger",
}
"""What there is no method for, and why."""
_FREE = states_with(Trait.FREE, Block)
_OVER = frozenset(JobLife.table.index[state] for state in TERMINAL)


class _ScenarioEngine(Engine):
    """The engine of the worlds, with the settings that it lacks, and a drafter."""

    def __init__(self, world: EngineSetup) -> None:
        super().__init__(
            Settings(
                groups=world.groups,
                blocks_per_chunk=world.blocks_per_chunk,
                num_blocks=world.blocks,
                num_slots=world.slots,
                max_jobs=world.jobs,
                num_workers=world.workers,
                max_requests=128,
                contract=Contract[world.contract.upper()],
                asynchronous=world.scheduling == "async",
                deadline=float(world.deadline),
                replacement=world.replacement,
                step_tokens=world.step_tokens or None,
                policies=world.policies,
            ),
            own_pool=world.pool == "own",
            state_drafts=world.policies.state_drafts,
        )
        self._ahead = [False for _ in self._ahead]  # a stage compares what stands in a place, and nothing behind it
        self._guesses: dict[str, str] = {}
        """What is guessed for the next step, by request."""
        self._accepted: dict[int, dict[str, int]] = {}
        """What plans that are out will sample for requests with guesses, by plan."""

    def guess(self, name: str, guess: str) -> None:
        """The next step computes these letters behind the known ones of a running request."""
        found = self.scheduler.requests.progress(name)
        if name not in self.running() or found.in_flight:
            raise MisuseError(f"request {name}: it has a plan out, or does not run (guess when its step has settled)")
        self._guesses[name] = guess

    def step(
        self,
        tokens: Mapping[str, int] | None = None,
        *,
        admit: Collection[str] | Mapping[str, int] | None = None,
        preempt: Collection[str] = (),
    ) -> Stepped:
        """A step; what it samples behind guesses is known when its forward pass is."""
        known = {name: self.scheduler.requests.progress(name).known for name in self._guesses}
        found = super().step(tokens, admit=admit, preempt=preempt)
        self._accepted[found.orders.plan] = {
            name: 1 + self._right_of(name, count)
            for name, count in known.items()
            if name in self.texts and name in self.running() and self._end(name) >= count
        }
        self._guesses.clear()
        return found

    def settle(
        self,
        reports: Iterable[Landing] = (),
        *,
        launched: Iterable[tuple[int, int]] = (),
        sampled: Mapping[str, int] | None = None,
    ) -> Settled:
        """Settle the oldest plan; a request with guesses gets those that are right, and one letter more."""
        accepted = self._accepted.pop(self.scheduler.plans_out[0], {})
        running = {name: count for name, count in accepted.items() if name in self.running()}
        return super().settle(reports, launched=launched, sampled={**running, **(sampled or {})})

    def _right_of(self, name: str, known: int) -> int:
        """How many of the guesses that the step computes are right."""
        guess, text = self._guesses[name][: self._end(name) - known], self.texts[name][known:]
        return next((at for at, (one, other) in enumerate(zip(guess, text, strict=False)) if one != other), len(guess))

    def _want(self, name: str, begin: int) -> int:
        if name not in self._guesses:
            return super()._want(name, begin)
        return self.scheduler.requests.progress(name).known + len(self._guesses[name]) - begin

    def _guessed(self, name: str, end: int) -> str:
        if name not in self._guesses:
            return super()._guessed(name, end)
        return (self.texts[name][: self.scheduler.requests.progress(name).known] + self._guesses[name])[:end]

    def hears_of(self) -> list[int]:
        """Blocks that were handed out and not reported yet."""
        return self._handed_out


def _key(content: str) -> bytes:
    return content.encode()


def _group(content: str) -> int:
    return int(content.partition(":")[0])


class OurDriver(Driver):
    """blocklife itself."""

    own_words = True

    def start(self, world: EngineSetup) -> None:
        self.world = world
        self.engine = _ScenarioEngine(world)
        self.ledger = self.engine.ledger
        self.scheduler = self.engine.scheduler
        self._sayers: dict[str, int] = {}
        self._crowd = 0
        self._heard: list[str] = []
        self.ledger.on(hook=self._hear)

    def _hear(self, told: LedgerTransition) -> None:
        table = MACHINES[told.machine]
        for place, row in told.steps():
            self._heard.append(f"{told.machine} {place}: {table.row(row)}")

    # --- the engine ---------------------------------------------------------------------------------------------------------

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """Add a request. Without a reply it samples letters of its own."""
        number = self._sayers.setdefault(request, len(self._sayers))
        own = chr(ord("A") + number) if number < 26 else chr(0x100 + number)
        text = (prompt + (reply or own * _SAID))[:tokens]
        self.engine.add(request, text, len(prompt))

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        if let_in is not None and any(let_in.values()):
            let_in = {name: count or self._all_of(name) for name, count in let_in.items()}
            found = self.engine.step(compute, admit=let_in, preempt=preempt)
        else:
            found = self.engine.step(compute, admit=None if let_in is None else list(let_in), preempt=preempt)
        numbers = [order.job for order in (*found.orders.loads, *found.orders.stores)]
        jobs = [job for number in numbers if (job := self.ledger.jobs.get(number)) is not None]
        return EngineStep(
            orders=found.orders,
            handed_out=found.handed_out,
            owners={job.number: job.owner or "" for job in jobs},
            sharers={job.number: job.sharers for job in jobs},
            sizes={job.number: job.group_sizes for job in jobs},
            hits={name: _found(hit) for name, hit in found.hits.items()},
            no_room=(*found.short, *found.refused),
        )

    def _all_of(self, request: str) -> int:
        known = self.scheduler.requests.progress(request).known
        return known - self.scheduler.lookup(request, known).compute_from

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        found = self.engine.settle(reports, launched=launched, sampled=sampled)
        return SettledPlan(loaded=found.loaded, failed=found.failed, ended=found.ended)

    def table(self, request: str, group: int) -> list[int]:
        """The blocks of a request; none if it is unknown."""
        if request not in self.ledger.requests:
            return []
        return [life & ID_MASK for life in self.ledger.requests.table(request, group)]

    def finish(self, request: str) -> None:
        (self.ledger if self._is_entered(request) else self.engine.scheduler).finish(request)

    def abort(self, request: str) -> None:
        (self.ledger.finish if self._is_entered(request) else self.engine.scheduler.abort)(request)

    def preempt(self, request: str) -> None:
        (self.ledger if self._is_entered(request) else self.engine.scheduler).preempt(request)

    def _is_entered(self, request: str) -> bool:
        """Whether only the ledger knows it, and not the scheduler."""
        return request in self.ledger.requests and request not in self.engine.texts

    def draft(self, request: str, guess: str) -> None:
        self.engine.guess(request, guess)

    def lend(self, request: str) -> Mapping[int, str]:
        """A guest of the ledger holds what is final."""
        self.engine.lend(request)
        found = second.read(self.ledger, self.engine.geometry)
        texts, content = self.engine.texts, self.engine.content
        return {block: str(content(group, texts[host][:end])) for host, group, end, block in found if host == request}

    def give_back(self, request: str) -> None:
        self.engine.give_back(request)

    def lookup(self, request: str) -> LookedUp:
        """Look all known tokens of a request up."""
        return _found(self.scheduler.lookup(request, self.scheduler.requests.progress(request).known))

    def reset(self, *, drain: bool) -> None:
        self.scheduler.reset(drain=drain)

    def renew(self, generation: str) -> None:
        self.engine.renew(generation)

    def sleep(self) -> None:
        self.scheduler.sleep()

    def wake(self) -> None:
        self.scheduler.wake()

    def lose_worker(self, worker: int) -> None:
        self.scheduler.lose_worker(worker)

    def regain_worker(self, worker: int) -> None:
        self.scheduler.regain_worker(worker)

    def advance(self, steps: int) -> None:
        self.engine.now += steps

    def prove_quiet(self, jobs: Sequence[int]) -> None:
        """Quiesce these jobs, without those that are over already."""
        self.ledger.quiesce(self._jobs(*(job for job in jobs if self.ledger.jobs.is_out(job))))

    # --- scenes -------------------------------------------------------------------------------------------------------------

    def fill_host(self) -> None:
        """Fill every slot with pinned content, in the ledger directly: all of them, or none."""
        before, now = self.scheduler.snapshot(now=self.engine.now), self.engine.now
        told, heard = len(self.engine.hears_of()), len(self._heard)
        try:
            self._fill_host()
        except (MisuseError, CapacityError):
            self.scheduler.restore(before, now)
            del self._heard[heard:]
            raise
        finally:
            del self.engine.hears_of()[told:]

    def _fill_host(self) -> None:
        ledger = self.ledger
        ledger.add_request(_ALIEN)
        ledger.admit(_ALIEN)
        for slot in range(len(ledger.slots)):
            if ledger.slots.state(slot) is not Slot.EMPTY:
                raise MisuseError(f"slot {slot}: it is {ledger.slots.state(slot).name} (fill the host while it is empty)")
            name = f"0:{_ALIEN}{slot}"
            (own,) = self.engine.tier.reserve([(0, _key(name))]) or [slot]
            source = ledger.seal(ledger.allocate(_ALIEN, 1), [_key(name)])
            place = own * self.world.blocks_per_chunk
            jobs = ledger.plan_store(Store.of(source, [own], [_key(name)], places=[place]))
            ledger.submit(jobs)
            for rank in range(self.world.workers):
                ledger.complete(Completion(jobs.ids[0], Rank(rank), Result.OK))
            ledger.release(_ALIEN, [slot])
            ledger.drop(source.lives)
        ledger.finish(_ALIEN)
        ledger.pin("somebody", range(len(ledger.slots)))

    def free_host(self) -> None:
        """Undo `fill_host`; the content stays until its slots are evicted."""
        self.ledger.unpin("somebody", range(len(self.ledger.slots)))

    def crowd_host(self, slots: int) -> bool:
        """Make room in the tier, as for a store."""
        self._crowd += 1
        wanted = [(0, _key(f"0:{_ALIEN}-{self._crowd}-{number}")) for number in range(slots)]
        return self.engine.tier.reserve(wanted) is not None

    def forget(self, contents: Sequence[str]) -> None:
        self.ledger.evict(self._slots(contents))

    def forget_on_device(self, contents: Sequence[str]) -> None:
        self.ledger.drop([self._life_of(each) for each in contents])

    # --- single blocks ------------------------------------------------------------------------------------------------------

    def enter(self, request: str, *, waiting: bool = False) -> None:
        self.ledger.add_request(request)
        if not waiting:
            self.ledger.admit(request)

    def allocate(self, request: str, count: int, group: int = 0) -> list[int]:
        """Hand out blocks of the ledger's pool, or the first free ones of the engine's."""
        if self.ledger.own_pool:
            return _blocks(self.ledger.allocate(request, count, group).lives)
        free = [each for each in range(1, len(self.ledger.blocks)) if self.ledger.blocks.state(each) in BLANK]
        return _blocks(self.ledger.observe_place(request, [Placement(group, allocated=free[:count])])[0].lives)

    def acquire(self, request: str, contents: Sequence[str]) -> list[int]:
        lives = [self._life_of(each) for each in contents]
        return _blocks(self.ledger.acquire(request, lives, _group(contents[0]) if contents else 0).lives)

    def release(self, request: str, blocks: Sequence[int]) -> None:
        """Release by block, not by position."""
        table = self.table(request, 0)
        for block in blocks:
            if block not in table:
                raise MisuseError(f"block {block}: request {request} does not hold it (only its holder may release it)")
        self.ledger.release(request, [table.index(block) for block in blocks])

    def seal(self, blocks: Sequence[int], contents: Sequence[str]) -> None:
        self.ledger.seal(self._batch(blocks, contents), [_key(each) for each in contents])

    def plan_store(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        """Plan a store into empty slots."""
        slots = self.ledger.slots.next_empty(len(contents))
        if len(slots) < len(contents):
            raise CapacityError(f"{len(contents)} slots wanted, {len(slots)} are empty (evict some)")
        keys = [_key(each) for each in contents]
        return self.ledger.plan_store(Store.of(self._batch(blocks, contents), slots, keys, owner=request)).ids[0].number

    def plan_load(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        return self.ledger.plan_load(request, GroupTransfer(self._batch(blocks, contents), self._slots(contents))).ids[0].number

    def cancel(self, job: int) -> None:
        self.ledger.cancel(self._jobs(job))

    def abandon(self, job: int) -> None:
        self.ledger.abandon(self._jobs(job))

    def submit(self, job: int) -> None:
        """Submit a job without a plan. The device does not carry it out, so only its refusal can be tested."""
        self.ledger.submit(self._jobs(job))

    def flush(self, jobs: Sequence[int]) -> None:
        self.ledger.flush(self._jobs(*jobs))

    def free(self, request: str, blocks: Sequence[int]) -> None:
        self.ledger.observe_free(request, blocks)

    def pin(self, holder: str, contents: Sequence[str]) -> None:
        self.ledger.pin(holder, self._slots(contents))

    def unpin(self, holder: str, contents: Sequence[str]) -> None:
        self.ledger.unpin(holder, self._slots(contents))

    def evict(self, contents: Sequence[str]) -> None:
        self.ledger.evict(self._slots(contents))

    def build_job(self, blocks: Sequence[int], sizes: Sequence[int]) -> None:
        """Build the transfer record that a copier gets."""
        places = np.array(blocks, dtype=np.int64)
        Transfer(JobId(1, 1), Direction.STORE, places, places, tuple(sizes))

    def agree(self, ranks: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
        """Agree on limits. The numbers here are without the null block, which `Limits` includes."""
        offered = [
            Limits(
                num_blocks=rank.get("blocks", self.world.blocks) + 1,
                num_slots=rank.get("slots", self.world.slots),
                num_workers=rank.get("workers", len(ranks)),
                max_jobs=rank.get("jobs", self.world.jobs),
            )
            for rank in ranks
        ]
        agreed = Limits.agree(offered)
        return {
            "blocks": agreed.num_blocks - 1,
            "slots": agreed.num_slots,
            "workers": agreed.num_workers,
            "jobs": agreed.max_jobs,
        }

    # --- queries ------------------------------------------------------------------------------------------------------------

    def block_state(self, block: int) -> str:
        return self.ledger.blocks.state(block).name

    def slot_state(self, slot: int) -> str:
        return self.ledger.slots.state(slot).name

    def job_state(self, job: int) -> str:
        return self.ledger.jobs.state(self._id(job)).name

    def request_state(self, request: str) -> str:
        return self.ledger.requests.state(request).name if request in self.ledger.requests else "FINISHED"

    def slot_of(self, content: str) -> int | None:
        """The slot of this content, readable or still being written."""
        return self.ledger.slots.find(_group(content), _key(content))

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """What the indexes find; for a slot as many blocks as a load would read."""
        ledger, size = self.ledger, self.world.blocks_per_chunk
        blocks = {place: self._content(key) for _, key, place in ledger.blocks.named()}
        places: dict[int, str] = {}
        for group, key, slot in ledger.slots.named():
            if ledger.slots.is_ready(slot) and not key.decode().partition(":")[2].startswith(_ALIEN):
                for back in range(self.scheduler._stores.suffix[slot] if size > 1 else 1):
                    tokens = back * self.engine.geometry.block_tokens[group]
                    shorter = key.decode()[: len(key.decode()) - tokens]
                    places[slot * size + size - 1 - back] = self._content(_key(shorter))
        return blocks, places

    def _content(self, key: bytes) -> str:
        group, _, text = key.decode().partition(":")
        return str(self.engine.content(int(group), text))

    def tokens(self, request: str) -> str:
        return self.engine.texts[request]

    def progress(self, request: str) -> RequestProgress:
        found = self.scheduler.requests.progress(request)
        return RequestProgress(found.known, found.computed, found.in_flight)

    def pending(self) -> bool:
        """Whether a plan or a job is in flight, or a wait is pending."""
        return self.scheduler.has_pending_work()

    def count(self, what: str) -> int:
        ledger, offload, tier = self.ledger.statistics(), self.scheduler.statistics(), self.engine.tier.statistics()
        counts = {
            **asdict(tier),
            **asdict(ledger),
            **asdict(offload),
            "jobs_made": self.ledger.jobs.last_number,
            "jobs_out": ledger.jobs_alive,
        }
        return int(counts[what])

    def windows(self) -> list[int | None]:
        return list(self.engine.geometry.window_chunks)

    def left_behind(self) -> list[str]:
        """Places that are not at rest, requests, and holders of pins."""
        ledger = self.ledger
        found = [
            f"block {each} {ledger.blocks.state(each).name}"
            for each in range(1, len(ledger.blocks))
            if ledger.blocks.state(each) not in _FREE
        ]
        found += [
            f"slot {each} {ledger.slots.state(each).name}"
            for each in range(len(ledger.slots))
            if ledger.slots.state(each) not in SLOTS_AT_REST or ledger.slots.pins(each)
        ]
        return [*found, *(f"request {name}" for name in ledger.requests), *(f"pins of {name}" for name in ledger.slots.holders)]

    def picture(self) -> Hashable:
        """The snapshot without mere counters, and without jobs that are over."""
        saved = self.scheduler.snapshot()
        alive = tuple(job for job in saved.ledger.jobs if job.state not in _OVER)
        ledger = saved.ledger._replace(jobs=alive, last_number=0, spare_jobs=(), plan_number=0)
        return saved._replace(ledger=ledger, requests=tuple(each._replace(asked=None) for each in saved.requests))

    def problems(self, device: Device) -> Iterator[Problem]:
        """Violations of the ledger's invariants, and wrong claims about places that a copy touches."""
        for each in check(self.ledger):
            yield Problem(each.rule, each.message)
        size = self.world.blocks_per_chunk
        for _, order in device.copies():
            for block in order.blocks:
                state = self.ledger.blocks.state(block)
                if state not in blocks_touched(stores=order.stores):
                    yield Problem("I1", f"copy {order.job} touches block {block}, which is {state.name} in the ledger")
            for slot in {place // size for place in order.places}:
                now = self.ledger.slots.state(slot)
                if now not in slots_touched(stores=order.stores):
                    yield Problem("I1", f"copy {order.job} touches slot {slot}, which is {now.name} in the ledger")

    def transitions(self) -> list[str]:
        found, self._heard = self._heard, []
        return found

    def _not(self, method: str) -> NoReturn:
        if method in _WHY:
            raise Unsupported(_WHY[method])
        super()._not(method)

    # --- names --------------------------------------------------------------------------------------------------------------

    def _id(self, job: int) -> JobId:
        return JobId(self.ledger.incarnation, job)

    def _jobs(self, *jobs: int) -> Jobs[Any]:
        return Jobs(tuple(map(self._id, jobs)))

    def _batch(self, blocks: Sequence[int], contents: Sequence[str]) -> Batch[Any]:
        """A handle on the current lives of these blocks."""
        return Batch([self.ledger.blocks.life(block) for block in blocks], _group(contents[0]) if contents else 0)

    def _life_of(self, content: str) -> int:
        found = self.ledger.blocks.prefix([_key(content)], _group(content))
        if not found:
            raise MisuseError(f"{content}: it is not on the device")
        return found[0]

    def _slots(self, contents: Iterable[str]) -> list[int]:
        found = []
        for each in contents:
            slot = self.slot_of(each)
            if slot is None:
                raise MisuseError(f"{each}: it is not in the host")
            found.append(slot)
        return found


def _found(hit: Hit) -> LookedUp:
    return LookedUp(hit.tokens, hit.device_tokens, hit.deferred)


def _blocks(lives: Iterable[int]) -> list[int]:
    return [int(life) & ID_MASK for life in lives]
