"""The driver of an engine that is built on `blocklife.offload.OffloadScheduler`: a base class that knows ledger and scheduler.

Rules of this file:

* It only translates calls. What no engine does (single blocks, a full host) goes directly to the ledger.
* Refusals have the package's own messages.
* It makes no decision of an engine: what a step computes, and who is let in, says the engine (`Scheduled`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from attrs import asdict, field, frozen

from blocklife.errors import CapacityError, MisuseError
from blocklife.knobs import written
from blocklife.ledger import (
    Batch,
    Completion,
    Direction,
    GroupTransfer,
    JobId,
    Jobs,
    Launched,
    Ledger,
    LedgerTransition,
    Limits,
    Placement,
    Plan,
    Result,
    Store,
    Transfer,
)
from blocklife.ledger import Worker as Rank
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger.invariants import check
from blocklife.offload import Geometry, OffloadScheduler, Settled
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
    POLICIES,
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
from blocklife.testing.worlds._device import Device, Landing, Orders
from blocklife.testing.worlds._passes import Passes
from blocklife.testing.worlds._tier import Entry, TierIndex

SAID = 200
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
_OTHERS = 0x40000
"""Letters from here on stand for tokens that are no letters themselves."""


@frozen(kw_only=True)
class Scheduled:
    """One step, as an engine has scheduled it."""

    plan: Plan
    """What `OffloadScheduler.build_plan` returned."""
    computes: Mapping[str, range]
    """The tokens that each request computes in it."""
    hits: Mapping[str, Hit] = field(factory=dict)
    """What the lookups of the step found, by request."""
    no_room: Collection[str] = ()
    """Running and waiting requests for which there was no room."""


@frozen
class _HeldCopy:
    """A copy from block to block, and the request of the ledger that holds its source."""

    source: int
    target: int
    holder: str


class _Entries(dict[Entry, int]):
    """The number of each content of the store below: the next that is free, when it is first put there."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def __missing__(self, entry: Entry) -> int:
        if len(self) == self._room:
            raise CapacityError(f"the store below has room for {self._room} contents (a world says how many: below)")
        number = self[entry] = len(self)
        return number


class EmbeddedDriver(Driver):
    """An engine built on `OffloadScheduler`, as scenarios see it: subclass it, and hand over the engine.

    To write are `start`, which makes the engine as the world says and calls `embed`; `add`, `schedule`, `settled` and `said`;
    and `end`, `give_way` and `sent_back`, unless the engine has no lists of its own. All other methods of `Driver` are here,
    except `draft`. The engine's copier has nothing to do: the runner simulates copies and forward passes.
    """

    own_words = True
    _index: TierIndex | None = None
    """What the scheduler knows of the store below the host tier, if there is one."""

    # --- to write -----------------------------------------------------------------------------------------------------------

    def add(self, request: str, prompt: Sequence[int], goal: int) -> None:
        """Add a request to the engine. It ends when it has *goal* tokens in all."""
        self._not("add")

    def schedule(
        self, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str]
    ) -> Scheduled:
        """Make one plan: preempt these requests, compute so many tokens of each running one, let these waiting ones in.

        As of `Driver.step`: None leaves the choice to the engine, and 0 tokens of a waiting request are all that it has. The
        time is `now`.
        """
        self._not("schedule")

    def settled(
        self,
        plan: int,
        *,
        launched: Sequence[Launched],
        completions: Sequence[Completion],
        sampled: Mapping[str, int] | None,
    ) -> Settled:
        """Settle a plan, which every worker has carried out, at the time `now`, and do what the engine does behind it.

        *sampled*: how many tokens a request gets; one for each that is not named.
        """
        self._not("settled")

    def said(self, request: str) -> Sequence[int]:
        """All tokens that a request has: its prompt, and what was sampled."""
        self._not("said")

    def end(self, request: str, *, aborted: bool) -> None:
        """A request has finished, or its client is gone.

        Without this method of your own the scheduler is told, and the lists of your engine are not.
        """
        self._untold[request] = "end"
        (self.scheduler.abort if aborted else self.scheduler.finish)(request)

    def give_way(self, request: str) -> None:
        """A request is preempted between two steps.

        Without this method of your own the scheduler is told, and the lists of your engine are not.
        """
        self._untold[request] = "give_way"
        self.scheduler.preempt(request)

    def sent_back(self, requests: Sequence[str]) -> None:
        """These requests hold nothing any more, and wait: all content was forgotten, the engine sleeps, or a worker is lost.

        Without this method of your own the lists of your engine are not told.
        """
        self._untold.update(dict.fromkeys(requests, "sent_back"))

    # --- the engine ---------------------------------------------------------------------------------------------------------

    def embed(self, world: EngineSetup, scheduler: OffloadScheduler) -> None:
        """Take a new engine's scheduler; `start` calls it. `ledger`, `scheduler`, `tier` and `world` are there from then on.

        Raises `Unsupported` if they are not made as the world says. What evicts in the host tier may be the engine's own.
        """
        wanted, found = _wanted(world), _found_in(scheduler)
        if other := {name: each for name, each in found.items() if each != wanted[name]}:
            raise Unsupported(
                f"the world wants {', '.join(f'{name}={wanted[name]}' for name in other)}, your ledger and scheduler have "
                f"{', '.join(f'{name}={each}' for name, each in other.items())} (make them so in start, or refuse it with only)"
            )
        self._begin(world, Passes(scheduler))

    def _begin(self, world: EngineSetup, passes: Passes) -> None:
        self.world, self.passes = world, passes
        self.scheduler, self.ledger, self.tier = passes.scheduler, passes.ledger, passes.scheduler.tier
        self.now = 0.0
        """The engine's time, in steps."""
        self._num_block_copies = 0
        self._crowd = 0
        self._heard: list[str] = []
        self._untold: dict[str, str] = {}
        """The requests of which the engine may not have heard, as the driver leaves this method out."""
        self._keys: dict[str, bytes] = {}
        """The key of each content that a request has had, and back."""
        self._names: dict[tuple[int, bytes], str] = {}
        self._learned: dict[tuple[str, int], int] = {}
        """How many blocks of a request are known, by request and group."""
        self.passes.entries = self._entries = _Entries(world.below)
        self._leases: dict[str, float] = {}
        """When the lease of another owner ends, by request."""
        self._lapsed: set[str] = set()
        """Requests whose lease has ended, and whose other owner has not said yet that it is done."""
        self._block_copies: list[_HeldCopy] = []
        """Copies from block to block that no step has made yet."""
        self._copying: dict[int, list[_HeldCopy]] = {}
        """Those of each plan that has not settled."""
        self._rows: dict[str, list[list[int]]] = {}
        """What the workers were told of the tables of each request, by group."""
        self.ledger.on(hook=self._hear)

    def _hear(self, told: LedgerTransition) -> None:
        table = MACHINES[told.machine]
        for place, row in told.steps():
            self._heard.append(f"{told.machine} {place}: {table.row(row)}")

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """Add a request. A letter of a scenario is the token with its number."""
        if reply:
            raise Unsupported("the engine samples what it likes, and no reply that is given")
        self._learned = {key: count for key, count in self._learned.items() if key[0] != request}
        self._untold.pop(request, None)
        self.add(request, list(map(ord, prompt)), len(prompt) + SAID if tokens is None else tokens)
        self._learn()

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        if self.scheduler.asleep:  # there is nothing to schedule, and copies to wait for
            found = Scheduled(plan=self.scheduler.build_plan(self.now), computes={})
        else:
            with self._untold_named():
                found = self.schedule(compute, let_in, preempt)
        self._learn()
        begin = {name: tokens.start for name, tokens in found.computes.items()}
        wants = {name: len(tokens) for name, tokens in found.computes.items()}
        for name, tokens in found.computes.items():
            if tokens.stop > (known := len(self.passes.texts[name])):
                raise MisuseError(f"request {name}: tokens up to {tokens.stop} are computed, and it has {known} (see said)")
        orders = self.passes.orders(found.plan, begin, wants)
        return self._told(orders, self.passes.take_handed_out(), found.hits, found.no_room)

    @contextlib.contextmanager
    def _untold_named(self) -> Iterator[None]:
        """A refusal that names a request of which the engine was not told says which method is left out."""
        try:
            yield
        except MisuseError as problem:
            for name, method in self._untold.items():
                if f"request {name}:" in str(problem):
                    raise MisuseError(
                        f"{problem}; the driver leaves out {method}, so that the engine's own lists do not hear of it"
                    ) from problem
            raise

    def _told(self, orders: Orders, handed_out: tuple[int, ...], hits: Mapping[str, Hit], no_room: Iterable[str]) -> EngineStep:
        """The step, with what the ledger knows of its copies."""
        numbers = [order.job for order in (*orders.loads, *orders.stores, *orders.below)]
        jobs = [job for number in numbers if (job := self.ledger.jobs.get(number)) is not None]
        self._copying[orders.plan], self._block_copies = self._block_copies, []
        for each in self._copying[orders.plan]:
            orders = orders._replace(block_copies=(*orders.block_copies, (each.source, each.target)))
        self._tell_rows()
        return EngineStep(
            orders=orders,
            handed_out=handed_out,
            owners={job.number: job.owner or "" for job in jobs},
            sharers={job.number: job.sharers for job in jobs},
            sizes={job.number: job.group_sizes for job in jobs},
            contents={
                job.number: tuple(map(self._name, job.slot_groups, job.keys)) for job in jobs if not job.direction.on_device
            },
            hits={name: _found(hit) for name, hit in hits.items()},
            no_room=tuple(no_room),
        )

    def _tell_rows(self) -> None:
        """Workers are told the whole table of each request that runs, and which requests do not run any more."""
        groups = range(len(self.passes.geometry.groups))
        running = self.scheduler.requests.running()
        self._rows = {name: [self.table(name, group) for group in groups] for name in running}

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        plan = self.scheduler.plans_out[0]
        with self._untold_named():
            found = self.settled(
                plan,
                launched=self.passes.launches(launched),
                completions=[self.passes.completion(each) for each in reports],
                sampled=sampled,
            )
        self._end_copies(plan)
        self._learn()
        return SettledPlan(loaded=found.loaded, failed=found.failed, ended=found.ended)

    def _learn(self) -> None:
        """Note what each request has said, and under which keys its full blocks are found."""
        for name in self.scheduler.requests:
            text = self.passes.texts[name] = "".join(map(_letter, self.said(name)))
            keys = self.scheduler.requests.keys(name)
            for group, size in enumerate(self.passes.geometry.block_tokens):
                start, stop = self._learned.get((name, group), 0), len(text) // size
                for position, key in enumerate(keys(group, start, stop) if start < stop else (), start):
                    content = f"{group}:{text[: (position + 1) * size]}"
                    self._keys[content] = key
                    self._names[group, key] = content
                self._learned[name, group] = stop

    def table(self, request: str, group: int) -> list[int]:
        """The blocks of a request; none if it is unknown."""
        if request not in self.ledger.requests:
            return []
        return [life & ID_MASK for life in self.ledger.requests.table(request, group)]

    def worker_table(self, request: str, group: int) -> list[int]:
        return self._rows[request][group] if request in self._rows else []

    def finish(self, request: str) -> None:
        if self._is_entered(request):
            self.ledger.finish(request)
        else:
            self.end(request, aborted=False)

    def abort(self, request: str) -> None:
        if self._is_entered(request):
            self.ledger.finish(request)
        else:
            self.end(request, aborted=True)

    def end_in_error(self, request: str) -> None:
        """To the scheduler it is as if the client were gone."""
        self.abort(request)

    def preempt(self, request: str) -> None:
        if self._is_entered(request):
            self.ledger.preempt(request)
        else:
            self.give_way(request)

    def _is_entered(self, request: str) -> bool:
        """Whether only the ledger knows it, and not the scheduler."""
        return request in self.ledger.requests and request not in self.passes.texts

    def lend(self, request: str) -> Mapping[int, str]:
        """A guest of the ledger holds what is final."""
        second.lend(self.ledger, request, range(len(self.passes.geometry.groups)))
        return self._lent(request)

    def _lent(self, request: str) -> Mapping[int, str]:
        found = second.read(self.ledger, self.passes.geometry)
        texts, content = self.passes.texts, self.passes.content
        return {block: str(content(group, texts[host][:end])) for host, group, end, block in found if host == request}

    def lease(self, request: str, steps: int) -> Mapping[int, str]:
        """A guest that goes by itself when its time is over."""
        if request not in self._leases:
            self.lend(request)
        self._leases[request] = self.now + steps
        return self._lent(request)

    def give_back(self, request: str) -> None:
        """Nothing happens where the lease has ended before."""
        self._leases.pop(request, None)
        if request in self._lapsed:
            self._lapsed.remove(request)
        else:
            second.give_back(self.ledger, request)

    def answer_below(self, has: Collection[int]) -> None:
        if (index := self._index) is None:
            raise Unsupported("there is no store below the host tier")
        for entry in index.asked:
            index.answer(entry, self._entries.get(entry) in has)

    def lookup(self, request: str) -> LookedUp:
        """Look all known tokens of a request up."""
        return _found(self.scheduler.lookup(request, self.scheduler.requests.progress(request).known))

    def reset(self, *, drain: bool) -> None:
        self.sent_back(self.scheduler.reset(drain=drain))

    def renew(self, generation: str) -> None:
        """Nothing that was computed so far is found again."""
        self.passes.weights = generation
        self.sent_back(self.scheduler.reset(generation=generation))

    def sleep(self) -> None:
        self.sent_back(self.scheduler.sleep())

    def wake(self) -> None:
        self.scheduler.wake()

    def lose_worker(self, worker: int) -> None:
        self.sent_back(self.scheduler.lose_worker(worker))

    def regain_worker(self, worker: int) -> None:
        self.sent_back(self.scheduler.regain_worker(worker))

    def advance(self, steps: int) -> None:
        self.now += steps
        for request in [request for request, end in self._leases.items() if end <= self.now]:
            del self._leases[request]
            self._lapsed.add(request)
            second.give_back(self.ledger, request)

    def prove_quiet(self, jobs: Sequence[int]) -> None:
        """Quiesce these jobs, without those that are over already."""
        self.ledger.quiesce(self._jobs(*(job for job in jobs if self.ledger.jobs.is_out(job))))

    # --- scenes -------------------------------------------------------------------------------------------------------------

    def fill_host(self) -> None:
        """Fill every slot with pinned content, in the ledger directly: all of them, or none."""
        before, now = self.scheduler.snapshot(now=self.now), self.now
        told, heard = len(self.passes.hears_of()), len(self._heard)
        try:
            self._fill_host()
        except (MisuseError, CapacityError):
            self.scheduler.restore(before, now)
            del self._heard[heard:]
            raise
        finally:
            del self.passes.hears_of()[told:]

    def _fill_host(self) -> None:
        ledger = self.ledger
        ledger.add_request(_ALIEN)
        ledger.admit(_ALIEN)
        for slot in range(len(ledger.slots)):
            if ledger.slots.state(slot) is not Slot.EMPTY:
                raise MisuseError(f"slot {slot}: it is {ledger.slots.state(slot).name} (fill the host while it is empty)")
            name = f"0:{_ALIEN}{slot}"
            (own,) = self.tier.reserve([(0, self._key(name))]) or [slot]
            source = ledger.seal(ledger.allocate(_ALIEN, 1), [self._key(name)])
            place = own * self.world.blocks_per_chunk
            jobs = ledger.plan_store(Store.of(source, [own], [self._key(name)], places=[place]))
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
        wanted = [(0, self._key(f"0:{_ALIEN}-{self._crowd}-{number}")) for number in range(slots)]
        return self.tier.reserve(wanted) is not None

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
        self.ledger.seal(self._batch(blocks, contents), [self._key(each) for each in contents])

    def plan_store(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        """Plan a store into empty slots."""
        slots = self.ledger.slots.next_empty(len(contents))
        if len(slots) < len(contents):
            raise CapacityError(f"{len(contents)} slots wanted, {len(slots)} are empty (evict some)")
        keys = [self._key(each) for each in contents]
        return self.ledger.plan_store(Store.of(self._batch(blocks, contents), slots, keys, owner=request)).ids[0].number

    def plan_load(self, request: str, blocks: Sequence[int], contents: Sequence[str]) -> int:
        return self.ledger.plan_load(request, GroupTransfer(self._batch(blocks, contents), self._slots(contents))).ids[0].number

    def copy_block(self, request: str, source: int, target: int) -> None:
        """A guest of the ledger holds the source until the plan with the copy has settled."""
        if target not in self.table(request, 0):
            raise MisuseError(f"block {target}: request {request} does not hold it (a block is copied to one of its own)")
        self._num_block_copies += 1
        copy = _HeldCopy(source, target, f"copy {self._num_block_copies}")
        self.ledger.add_request(copy.holder)
        self.ledger.acquire(copy.holder, [self.ledger.blocks.life(source)])
        self.ledger.admit(copy.holder)
        self._block_copies.append(copy)

    def _end_copies(self, plan: int) -> None:
        for each in self._copying.pop(plan, ()):
            self.ledger.finish(each.holder)

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
        return self.ledger.slots.find(_group(content), self._key(content))

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """What the indexes find; for a slot as many blocks as a load would read."""
        ledger, size = self.ledger, self.world.blocks_per_chunk
        blocks = {place: self._content(self._name(group, key)) for group, key, place in ledger.blocks.named()}
        places: dict[int, str] = {}
        for group, key, slot in ledger.slots.named():
            name = self._name(group, key)
            if ledger.slots.is_ready(slot) and not name.partition(":")[2].startswith(_ALIEN):
                for back in range(self.scheduler._stores.suffix[slot] if size > 1 else 1):
                    tokens = back * self.passes.geometry.block_tokens[group]
                    places[slot * size + size - 1 - back] = self._content(name[: len(name) - tokens])
        return blocks, places

    def _content(self, name: str) -> str:
        group, _, text = name.partition(":")
        return str(self.passes.content(int(group), text))

    def tokens(self, request: str) -> str:
        return self.passes.texts[request]

    def progress(self, request: str) -> RequestProgress:
        found = self.scheduler.requests.progress(request)
        return RequestProgress(found.known, found.computed, found.in_flight)

    def pending(self) -> bool:
        """Whether a plan or a job is in flight, or a wait is pending."""
        return self.scheduler.has_pending_work()

    def count(self, what: str) -> int:
        ledger, offload, tier = self.ledger.statistics(), self.scheduler.statistics(), self.tier.statistics()
        counts = {
            **asdict(tier),
            **asdict(ledger),
            **asdict(offload),
            "jobs_made": self.ledger.jobs.last_number,
            "jobs_out": ledger.jobs_alive,
        }
        return int(counts[what])

    def windows(self) -> list[int | None]:
        return list(self.passes.geometry.window_chunks)

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
        yield from touched_wrongly(self.ledger, device, self.world.blocks_per_chunk)

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
        found = self.ledger.blocks.prefix([self._key(content)], _group(content))
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

    def _key(self, content: str) -> bytes:
        """What content is found by; of what no request has had it is the text itself."""
        return self._keys.get(content, content.encode())

    def _name(self, group: int, key: bytes) -> str:
        """The content that is found by a key, without its weights."""
        return self._names.get((group, key)) or key.decode()


def touched_wrongly(ledger: Ledger, device: Device, blocks_per_chunk: int) -> Iterator[Problem]:
    """Places that a copy touches, and of which the ledger says otherwise."""
    for _, order in device.copies():
        for block in order.blocks:
            state = ledger.blocks.state(block)
            if state not in blocks_touched(stores=order.stores):
                yield Problem("I1", f"copy {order.job} touches block {block}, which is {state.name} in the ledger")
        for slot in {place // blocks_per_chunk for place in order.places}:
            now = ledger.slots.state(slot)
            if now not in slots_touched(stores=order.stores):
                yield Problem("I1", f"copy {order.job} touches slot {slot}, which is {now.name} in the ledger")


def _wanted(world: EngineSetup) -> dict[str, object]:
    """What the ledger and the scheduler of this world have, by setting."""
    return {**world.words(), "groups": str(Geometry.parse(world.groups, world.blocks_per_chunk))}


def _found_in(scheduler: OffloadScheduler) -> dict[str, object]:
    """The same, as they were made. One who may plan ahead need not."""
    ledger, limits = scheduler.ledger, scheduler.ledger.limits
    return {
        "groups": str(scheduler.geometry),
        "blocks_per_chunk": scheduler.geometry.blocks_per_chunk,
        "blocks": limits.num_blocks - 1,
        "slots": limits.num_slots,
        "workers": limits.num_workers,
        "jobs": limits.max_jobs,
        "contract": written(ledger.contract),
        "pool": "own" if ledger.own_pool else "engine",
        "below": 0,  # only an index of the worlds (`TierIndex`) answers when a scenario says so
        "deadline": ledger._core.deadline_after,
        **{each.name: written(getattr(scheduler.policies, each.name)) for each in POLICIES},
    }


def _found(hit: Hit) -> LookedUp:
    return LookedUp(hit.tokens, hit.device_tokens, hit.deferred)


def _blocks(lives: Iterable[int]) -> list[int]:
    return [int(life) & ID_MASK for life in lives]


def _letter(token: int) -> str:
    """The letter that stands for a token in the names of content: a letter or digit itself, and others far behind them."""
    letter = chr(token)
    return letter if token < _OTHERS and letter.isalnum() else chr(_OTHERS + token)


def _group(content: str) -> int:
    return int(content.partition(":")[0])
