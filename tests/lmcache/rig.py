"""LMCache's real core, and in the place of an engine's workers activities that write and read its shared memory, and check it.

What is real: the storage manager with L1, its memory, the controllers and their policies, the sessions, and the modules for
lookups and transfers. What is not: when its threads work and what time it is (`tests.lmcache.turns`), where L2 keeps content
(`tests.lmcache.adapter`), and the socket between a worker and the server.

An activity is what one client, with its workers, does: a generator that goes on from one ``yield`` to the next when its turn
comes. Everything that is as late as it likes to be is so in the same way: activities, copies of L2, and the threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, TypeAlias

from attrs import define, field

from tests.lmcache import turns
from tests.lmcache.content import PLACE, Witness, at, stamp
from tests.lmcache.engine import Engine, key_of, object_keys, registration, teach
from tests.lmcache.worlds import WorldSpec

Activity: TypeAlias = Iterator[None]
HALF = PLACE // 2


@define(eq=False)
class Request:
    """What a client asks for, and what of it has been so far."""

    name: str
    tokens: Sequence[int]
    salt: str
    hit: int = 0
    """Chunks that were found."""
    ended: bool = False


@define(eq=False)
class Rig:
    """One LMCache with its workers. The same spec, seed and calls give the same run."""

    spec: WorldSpec
    seed: int = 0
    on_engine: Callable[[Engine], object] | None = None
    """Called before the first step."""
    witness: Witness = field(factory=Witness)
    turns: turns.Turns = field(factory=turns.begin)
    engine: Engine = field(init=False)
    requests: dict[str, Request] = field(factory=dict)
    activities: dict[str, Activity] = field(factory=dict)
    after_step: list[Callable[[Rig], object]] = field(factory=list)
    counts: Counter[str] = field(factory=Counter)
    rng: Random = field(init=False)
    _busy: set[int] = field(factory=set)
    """Workers with a transfer under way."""
    slow: float = 0.0
    """The chance of each half of a transfer that it takes longer than any lease."""

    def __attrs_post_init__(self) -> None:
        self.rng = Random(f"{self.seed}/rig")
        self.engine = Engine.of(self.spec, self.witness)
        if self.on_engine is not None:
            self.on_engine(self.engine)

    # --- what clients and operators do -------------------------------------------------------------------------------------

    def add(self, tokens: Sequence[int], salt: str = "", *, leaves: bool = False) -> str:
        """A request with this text; one that *leaves* is given up by its client once it was looked up."""
        name = f"r{len(self.requests):06}"
        request = self.requests[name] = Request(name, list(tokens), salt)
        teach(self.engine, self.witness, request.tokens, self.spec, salt)
        self.activities[name] = self._served(request, leaves)
        return name

    def clear(self) -> None:
        """An operator forgets what is not locked."""
        self.engine.storage.clear()

    def crash(self, worker: int) -> None:
        """A worker dies in the midst of what it does, is reaped, and comes back."""
        self.counts["crashes"] += 1
        for name in [name for name in self.activities if not self.requests[name].ended]:
            self.activities.pop(name).close()  # type: ignore[attr-defined]  # a generator
            self.requests[name].ended = True
        self._busy.clear()
        self.turns.clock.now += 1.0
        self.engine.transfer.reap_stale_instances(0.5, 0.5)
        for each in range(self.spec.workers):
            self.engine.transfer.register_kv_cache_engine_driven_context(registration(each, self.spec))

    # --- one request -------------------------------------------------------------------------------------------------------

    def _key(self, request: Request, start: int, end: int, worker: int | None) -> Any:
        size = self.spec.chunk_tokens
        told = {"request": request.name, "worker": worker, "workers": self.spec.workers, "salt": request.salt}
        return key_of(request.tokens, start * size, end * size, **told)  # type: ignore[arg-type]

    def _served(self, request: Request, leaves: bool) -> Activity:
        lookup, chunks = self.engine.lookup, len(request.tokens) // self.spec.chunk_tokens
        lookup.lookup(self._key(request, 0, chunks, None), 1)
        yield
        while (found := lookup.query_prefetch_status(request.name)) is None:
            yield
        request.hit = found
        self.counts["hits"] += found
        kept = self.rng.randint(0, found) if found and self.rng.random() < 0.3 else 0
        if leaves:
            kept = found
        if kept:  # the engine has so much on the device
            lookup.free_lookup_locks(self._key(request, 0, kept, None), 1)
            yield
        workers = range(self.spec.workers)
        if kept < found:
            yield from self._together(self._reads(request, kept, found, each) for each in workers)
        if found < chunks and not leaves:
            yield from self._together(self._writes(request, found, chunks, each) for each in workers)
        request.ended = True
        lookup.end_session(request.name)

    def _together(self, parts: Iterable[Activity]) -> Activity:
        alive = list(parts)
        while alive:
            part = self.rng.choice(alive)
            if next(part, alive) is alive:
                alive.remove(part)
            yield

    def _alone(self, worker: int) -> Activity:
        """A worker has one transfer at a time, unless it may have more."""
        while worker in self._busy and not self.spec.parallel:
            yield
        self._busy.add(worker)

    def _waits(self) -> Activity:
        ends = self._late()
        while self.turns.clock.now < ends:
            yield

    def _late(self) -> float:
        """When half of a transfer may go on: at once, or when every lease is over."""
        is_slow = self.rng.random() < self.slow
        return self.turns.clock.now + is_slow * 1.5 * max(self.spec.write_lease, self.spec.read_lease)

    def _reads(self, request: Request, start: int, end: int, worker: int) -> Activity:
        yield from self._alone(worker)
        key = self._key(request, start, end, worker)
        told = self.engine.transfer.prepare_retrieve(key, worker)
        if not told.success:
            self.counts["hits that were gone"] += 1
            self._busy.discard(worker)
            return
        slots = told.context["slots"]
        for half in (0, HALF):
            yield
            yield from self._waits()
            for number, slot in enumerate(slots):
                got = at(self.engine.base + slot["offset"] + half, HALF)
                self.witness.compare(
                    f"{request.name} on worker {worker}", self._named(request, start + number, worker), got, half
                )
        self.counts["read"] += len(slots)
        yield
        self.engine.transfer.commit_retrieve(key, worker)
        self._busy.discard(worker)

    def _writes(self, request: Request, start: int, end: int, worker: int) -> Activity:
        yield from self._alone(worker)
        key = self._key(request, start, end, worker)
        context = self.engine.transfer.prepare_store(key, worker).context
        slots = dict(zip(context["chunk_indices"], context["slots"], strict=True))
        for slot in slots.values():
            at(self.engine.base + slot["offset"])[:] = 0xEE  # whoever reads too early reads this
        for half in (0, HALF):
            yield
            yield from self._waits()
            for number, slot in slots.items():
                text = request.tokens[: (start + number + 1) * self.spec.chunk_tokens]
                content = stamp(text, worker, request.salt)[half : half + HALF]
                at(self.engine.base + slot["offset"] + half, HALF)[:] = content
        yield
        if slots:
            self.engine.transfer.commit_store(key, worker, b"")
        self.counts["written"] += len(slots)
        self._busy.discard(worker)

    def _named(self, request: Request, chunk: int, worker: int) -> Any:
        tokens = list(request.tokens)
        hashes = self.engine.context.token_hasher.compute_chunk_hashes(tokens, end=(chunk + 1) * self.spec.chunk_tokens)
        return object_keys(self._key(request, chunk, chunk + 1, worker), hashes[chunk:])[0]

    # --- what time does ----------------------------------------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """How many steps there were."""
        return self.witness.step

    @property
    def idle(self) -> bool:
        """Whether no request is left, and nothing of LMCache is under way."""
        storage = self.engine.storage
        store = storage._store_controller.report_status()
        prefetch = storage._prefetch_controller.report_status()
        busy = [store["pending_keys_count"], store["in_flight_task_count"], prefetch["in_flight_request_count"]]
        busy += [prefetch["submission_queue_size"], prefetch["pending_queue_size"]]
        return not self.activities and not any(busy) and not any(each.tasks for each in self.engine.adapters)

    @property
    def places(self) -> int:
        """Places that were written, read, stored and loaded."""
        moved = sum(sum(each.moved.values()) for each in self.engine.adapters)
        return self.counts["written"] + self.counts["read"] + moved

    def step(self) -> None:
        """Whatever could go on does so with its chance, in an order that is drawn; then the clock goes on."""
        self.witness.step += 1
        could: list[Callable[[], object]] = [thread.turn for thread in self.turns.threads]
        could += [lambda name=name: self._go_on(name) for name in self.activities]  # type: ignore[misc]
        for adapter in self.engine.adapters:
            could += [lambda one=adapter, task=task: self._land(one, task) for task in adapter.tasks]  # type: ignore[misc]
        self.rng.shuffle(could)
        for each in could:
            if self.rng.random() < self.spec.lag:
                each()
        self.turns.clock.now += self.spec.step_seconds
        for hook in self.after_step:
            hook(self)

    def _land(self, adapter: Any, task: Any) -> None:
        if task not in adapter.tasks or self.turns.clock.now < task.not_before:
            return
        if not task.begun and self.rng.random() < self.spec.fails:
            adapter.fails.add(task.number)
        adapter.land(task)
        if task.kind != "lookup":
            task.not_before = self._late()

    def _go_on(self, name: str) -> None:
        if name in self.activities and next(self.activities[name], self) is self:
            self.activities.pop(name, None)

    def drain(self, most: int = 2000) -> None:
        """Step until all is at rest. Raises TimeoutError if *most* steps do not do."""
        for _ in range(most):
            if self.idle:
                return
            self.step()
        raise TimeoutError(f"{sorted(self.activities)} and the tasks of L2 are under way after {most} steps")

    # --- the end -----------------------------------------------------------------------------------------------------------

    def missing(self) -> str:
        """What is missing at rest, when all that is not locked is forgotten: "" if nothing is."""
        engine, storage = self.engine, self.engine.storage
        status = engine.l1.report_status()
        left = {what: status[what] for what in ("read_locked_count", "staging_object_count") if status[what]}
        left |= {each.name: sum(each.locked.values()) for each in engine.adapters if each.locked}
        if jobs := engine.lookup.report_status()["active_prefetch_jobs"]:
            left["active_prefetch_jobs"] = jobs
        storage.clear()
        used, _ = storage.get_l1_usage()
        if used and not left:
            left["used"] = used // PLACE
        return ", ".join(f"{what}: {count}" for what, count in left.items())

    def close(self) -> None:
        """End LMCache."""
        self.engine.close()
