"""One rank of SGLang under a scenario: its copies land when the scenario lets them, or when SGLang waits for them.

The rig's engine, streams and bytes are all here; what is added are gates. A store reads what it copies twice: at the earliest,
as soon as its stream lets it, and at the latest, when its gate opens. So it is seen if it overtakes what writes its source, and
if something writes there before it has landed. A load runs as early as its streams let it: the steps wait for it anyway.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import torch
from attrs import define, field
from sglang.srt.managers import schedule_policy

from blocklife.engines.sglang import watch
from blocklife.testing import Problem
from tests.sglang.copies import Copies, Copy, Move, Witness
from tests.sglang.device import Device, Module, Stream, StuckError
from tests.sglang.engine import RELEASE, Engine, engine_of
from tests.sglang.model import Forward, Turn, turns_of
from tests.sglang.ranks import PartedError, Team
from tests.sglang.worlds import WorldSpec
from tests.texts import Chain

__all__ = ["RELEASE", "Gate", "PartedError", "ScenarioRank", "Store", "Team", "Turn", "Witness"]


@contextmanager
def answers_not_counted() -> Iterator[None]:
    """While SGLang admits requests: it reserves one token for the answer of each, and not as many as it may have.

    It is a setting of SGLang's (``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION``); requests of scenarios have no known end.
    """
    before, schedule_policy.CLIP_MAX_NEW_TOKENS = schedule_policy.CLIP_MAX_NEW_TOKENS, 1
    try:
        yield
    finally:
        schedule_policy.CLIP_MAX_NEW_TOKENS = before


@define(eq=False)
class Gate:
    """What the operations of one launch wait for: a step, or stores that were launched together."""

    is_open: bool = False


@define(eq=False)
class GatedOperation:
    """An operation of a stream that waits for its gate."""

    gate: Gate
    work: Callable[[], None]

    def __call__(self) -> bool:
        """Run, if the gate is open. Returns whether it is."""
        if self.gate.is_open:
            self.work()
        return self.gate.is_open


@define(eq=False)
class Store:
    """One operation of the engine's queue: pages that go to places of the host. Those of one launch land together."""

    pages: list[int]
    places: list[int]
    gate: Gate
    ack: object = None
    """What the engine looks at to see that the launch has landed."""


@define(eq=False)
class Load:
    """The same in the other direction."""

    pages: list[int]
    places: list[int]


class GatedDevice(Device):
    """Streams that run as far as they can, but for steps and stores whose gates are closed."""

    def __init__(self) -> None:
        super().__init__(rng=Random(0))
        self.steps: list[Gate] = []
        """Gates of steps that are closed, in the order of their launches."""
        self.stores: list[Gate] = []
        """Those of stores."""
        self.on_wait: Callable[[Gate], None] = lambda gate: None
        """Called with stores that the engine waits for."""

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Run what can run; where nothing can, open the gate that stands in the way."""
        event = getattr(reached, "__self__", None)
        stream = getattr(event, "stream", None)
        while not reached():
            if self._run_some():
                continue
            gate = self._in_the_way(stream)
            if gate in self.stores:
                self.on_wait(gate)
            self.open(gate)

    def _in_the_way(self, stream: Stream | None) -> Gate:
        head = stream.queue[0] if stream is not None and stream.queue else None
        if isinstance(head, GatedOperation):
            return head.gate
        for gate in (*self.steps, *self.stores):
            return gate
        raise StuckError("the engine waits for an event that no stream will record")

    def creep(self) -> None:
        """Run what can run."""
        while self._run_some():
            pass

    def _run_some(self) -> bool:
        """Run one operation of each stream. Returns whether there was any that could run."""
        return sum(stream.advance(1) for stream in self.streams) > 0

    def open(self, gate: Gate) -> None:
        """Let a launch run, and all of its kind before it."""
        for gates in (self.steps, self.stores):
            while gate in gates:
                gates.pop(0).is_open = True


class GatedCopies(Copies):
    """Copies that read at the earliest and at the latest."""

    gate: Gate | None = None
    """That of the launch under way."""

    def launch(self, direction: str, moves: list[Move], sources: list[int], targets: list[int]) -> None:
        """Queue a copy: a look at all that it will read, and the copy."""
        copy = Copy(direction, moves, len(sources), Module.current_stream(), sources, targets)
        every, wanted = torch.ones(copy.rows, dtype=torch.bool), []
        for move in moves:
            values = move.read(self.twins.of(move.source)).clone()
            move.write(self.twins.of(move.target), every, values)
            wanted.append(values)
        stream = Module.current_stream()
        stream.put(lambda: self._look(copy, wanted))
        work = lambda: self._move(copy, every, wanted)  # noqa: E731
        if self.gate is None:
            stream.put(work)
        else:
            stream.put_operation(GatedOperation(self.gate, work))

    def _look(self, copy: Copy, wanted: Sequence[torch.Tensor]) -> None:
        for move, want in zip(copy.moves, wanted, strict=True):
            self.witness.compare(self.rank, f"a copy {copy.direction}", "its rows", move.read(move.source), want)


@define(eq=False)
class Launched:
    """A step whose result SGLang does not have yet."""

    plan: int
    batch: Any
    turns: list[Turn]
    said: list[int]
    done: object


@define(eq=False)
class Facts:
    """What one step of a rank has done, in the order in which it did."""

    handed_out: list[int] = field(factory=list)
    events: list[Store | Gate] = field(factory=list)
    """Stores that were launched, and launches that the engine has waited for."""
    loads: list[Load] = field(factory=list)


class ScenarioRank:
    """SGLang's scheduler on one rank, step by step."""

    def __init__(self, spec: WorldSpec, team: Team, number: int, witness: Witness, num_places: int) -> None:
        self.spec = spec
        self.number = number
        self.device = GatedDevice()
        self.copies = GatedCopies(self.device, witness, number, Random(0))
        self.num_places = num_places
        with self.device.active():
            self.engine: Engine = engine_of(spec, team, number, self.copies)
            self.forward = Forward(self.engine, self.copies)
        self.place_of: dict[int, int] = {}
        """By page of the host: its number among those that the world has."""
        self.queue: list[Launched] = []
        self.last: Any = None
        """The batch of the step before."""
        self.facts = Facts()
        self.stores: list[Store] = []
        """Those that the engine has not seen land."""
        self.in_tree: set[int] = set()
        """Pages of the device that the tree has."""
        self.in_host: set[int] = set()
        """Places of the host that are handed out."""
        self.filled: torch.Tensor | None = None
        """Places that are held for other content."""
        self._num_told = 0
        self._listen()
        self._begin()

    def _begin(self) -> None:
        """SGLang keeps the host itself: hook what it calls there, and attach the watch."""
        self._restrict()
        host = self.host
        _after(host, "alloc", lambda slots: self.in_host.update([] if slots is None else self.places(slots)))
        _before(host, "free", lambda slots, *_: self.in_host.difference_update(self.places(slots)))
        _before(host, "clear", lambda *_: self.in_host.clear())
        self._hook_launches(self.engine.controller)
        self.watch = watch.attach(self.scheduler, watch.Options(mode=watch.WatchMode.COUNT))

    def problems(self) -> Iterator[Problem]:
        """What the watch has found since the last call."""
        self.watch.mirror.catch_up()
        found, self._num_told = self.watch.violations[self._num_told :], len(self.watch.violations)
        for violation in found:
            yield Problem(violation.rule, violation.what)

    def block_state(self, page: int) -> str:
        """The state in the watch's mirror."""
        return str(self.watch.mirror.ledger.blocks.state(page).name)

    @property
    def scheduler(self) -> Any:
        """SGLang's own."""
        return self.engine.scheduler

    @property
    def tree(self) -> Any:
        """SGLang's own."""
        return self.engine.tree

    @property
    def host(self) -> Any:
        """SGLang's own host memory."""
        return self.engine.controller.mem_pool_host

    @property
    def free(self) -> int:
        """Tokens of device memory that are in no use."""
        return int(self.engine.allocator.available_size())

    def _restrict(self) -> None:
        """SGLang has more memory in the host than on the device: what the world has not is in use for good."""
        size, page = self.host.available_size(), self.spec.page_tokens
        spare = size - self.num_places * page
        taken = set(self.host.alloc(spare).tolist()) if spare else set()
        free = sorted({slot // page for slot in range(size)} - {slot // page for slot in taken})
        self.place_of = {page: place for place, page in enumerate(free[: self.num_places])}

    def places(self, slots: torch.Tensor) -> list[int]:
        """The places of these slots of host memory."""
        pages = [slot // self.spec.page_tokens for slot in slots.tolist()[:: self.spec.page_tokens]]
        return [self.place_of[page] for page in pages if self.place_of]

    def pages(self, slots: torch.Tensor) -> list[int]:
        """The pages of these slots of device memory."""
        return [slot // self.spec.page_tokens for slot in slots.tolist()[:: self.spec.page_tokens]]

    # --- hooks --------------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        allocator = self.engine.allocator
        for name in ("alloc", "alloc_extend", "alloc_decode"):
            _after(allocator, name, self._handed_out)
        for name in ("free", "free_segment"):
            _before(allocator, name, lambda slots, *_: self.in_tree.difference_update(self._all_pages(slots)))
        _before(allocator, "clear", lambda *_: self.in_tree.clear())
        _before(self.tree, "insert", self._inserts)
        self.device.on_wait = self.facts_of_wait

    def _all_pages(self, slots: torch.Tensor) -> set[int]:
        return {slot // self.spec.page_tokens for slot in slots.tolist()}

    def _handed_out(self, slots: torch.Tensor | None) -> None:
        size = self.spec.page_tokens
        self.facts.handed_out += [] if slots is None else [slot // size for slot in slots.tolist() if not slot % size]

    def _inserts(self, params: Any, *_: object) -> None:
        value = getattr(params, "value", None)
        if value is not None:
            self.in_tree.update(self.pages(value[: len(value) // self.spec.page_tokens * self.spec.page_tokens]))

    def facts_of_wait(self, gate: Gate) -> None:
        """The engine waits for a launch."""
        self.facts.events.append(gate)

    def _hook_launches(self, controller: Any) -> None:
        write, load = controller.start_writing, controller.start_loading

        def start_writing(*args: object, **kwargs: object) -> object:
            gate = Gate()
            stores = [
                Store(self.pages(each.device_indices), self.places(each.host_indices), gate) for each in controller.write_queue
            ]
            if not stores:
                return write(*args, **kwargs)
            self.copies.gate = gate
            self.device.stores.append(gate)
            self.facts.events += stores
            self.stores += stores
            try:
                return write(*args, **kwargs)
            finally:
                self.copies.gate = None
                for each in stores:
                    each.ack = controller.ack_write_queue[-1]

        def start_loading(*args: object, **kwargs: object) -> object:
            loads = [Load(self.pages(each.device_indices), self.places(each.host_indices)) for each in controller.load_queue]
            self.facts.loads += loads
            for each in loads:
                self.in_tree.update(each.pages)
            return load(*args, **kwargs)

        controller.start_writing, controller.start_loading = start_writing, start_loading

    # --- the loop -----------------------------------------------------------------------------------------------------------

    def plan(self, plan: int, texts: dict[str, Chain], chunk: int) -> list[Turn]:
        """One round of the engine's loop without the results that it ends with. Returns what the step computes."""
        scheduler, engine = self.scheduler, self.engine
        scheduler.last_batch = self.last
        scheduler.chunked_prefill_size = chunk
        batch = engine.plan()
        scheduler.cur_batch = self.last = batch
        if self.spec.overlap and self.queue and engine.must_not_overlap(batch):
            self.process(self.queue[0].plan)
        turns = self._launch(plan, batch, texts) if batch else []
        if self.spec.overlap and len(self.queue) < 2:
            scheduler.last_batch = batch  # with no result to process, this ends the round
        self.device.creep()
        return turns

    def _launch(self, plan: int, batch: Any, texts: dict[str, Chain]) -> list[Turn]:
        scheduler, stream = self.scheduler, self.engine.forward_stream
        scheduler.forward_ct += 1
        batch.forward_iter = scheduler.forward_ct
        stream.wait_stream(self.device.default)
        turns = turns_of(self.engine, batch, texts)
        rows = batch.req_pool_indices.tolist()
        if self.spec.overlap:
            gate = Gate()
            self.device.steps.append(gate)
            stream.put_operation(GatedOperation(gate, lambda: None))
        done = self.forward.launch(batch, turns)
        self.engine.launched(batch)
        said = [turn.text.token(turn.stop) for turn in turns]
        self.rows = dict(zip([turn.name for turn in turns], rows, strict=True))
        self.queue.append(Launched(plan, batch.copy() if self.spec.overlap else batch, turns, said, done))
        scheduler.result_queue.append((batch, None))
        return turns

    def process(self, plan: int) -> list[Turn]:
        """Hand SGLang the result of a plan, unless it has it. Returns what was computed."""
        if not self.queue or self.queue[0].plan != plan:
            return []
        launched = self.queue.pop(0)
        self.scheduler.result_queue.popleft()
        self.engine.process(launched.batch, launched.said, launched.done)
        self.scheduler.last_batch = self.last
        self.device.creep()
        return launched.turns

    def look(self) -> None:
        """SGLang looks for what has landed, as it does once a round."""
        self.device.creep()
        self.tree.check_hicache_events()
        self.device.creep()

    def take_facts(self) -> Facts:
        """What it has done since the last call."""
        found, self.facts = self.facts, Facts()
        return found

    def seen(self) -> list[Store]:
        """The stores that SGLang has seen land since the last call."""
        left = {id(ack) for ack in self.engine.controller.ack_write_queue}
        over = [each for each in self.stores if each.ack is not None and id(each.ack) not in left]
        self.stores = [each for each in self.stores if each not in over]
        return over

    @property
    def is_idle(self) -> bool:
        """Whether the scheduler has nothing to compute."""
        scheduler = self.scheduler
        waits = scheduler.waiting_queue or scheduler.chunked_req is not None or self.queue
        return not waits and not self.is_running(scheduler.running_batch) and not self.is_running(self.last)

    def rest(self) -> bool:
        """Let the loop go round until it has noted that nothing is left. Returns whether nothing is."""
        for _ in range(3):
            if not self.is_idle:
                return False
            self.plan(0, {}, 1)
        return not self.engine.busy

    def flush(self) -> bool:
        """Forget all that is cached. Returns whether SGLang does."""
        done = self.rest() and self.engine.flush()
        if done and self.place_of and self.host.available_size() == self.host.size:
            self.place_of = {}
            self._restrict()
        return done

    @staticmethod
    def is_running(batch: Any) -> bool:
        """Whether a batch has requests that have not ended."""
        return batch is not None and any(not each.finished() for each in batch.reqs)

    # --- the host -----------------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Hold every place for other content."""
        self.tree.evict_host(self.num_places * self.spec.page_tokens)
        room = self.host.available_size()
        self.filled = self.host.alloc(room) if room else None

    def free_filled(self) -> None:
        """Free these places."""
        if self.filled is not None:
            self.host.free(self.filled)
        self.filled = None

    def crowd(self, places: int) -> bool:
        """Make room for other content, as a store does."""
        need = places * self.spec.page_tokens - self.host.available_size()
        if need > 0:
            self.tree.evict_host(need)
        return bool(self.host.available_size() >= places * self.spec.page_tokens)

    # --- requests -----------------------------------------------------------------------------------------------------------

    def table(self, row: int, tokens: int) -> list[int]:
        """The pages in a row of SGLang's table."""
        size = self.spec.page_tokens
        return [slot // size for slot in self.engine.rows.req_to_token[row, :tokens:size].tolist()]

    def finish(self, request: Any) -> None:
        """End a running request by the token that it has said last, with SGLang's own functions."""
        from sglang.srt.mem_cache import common

        said = request.output_ids[-1]
        request.sampling_params.ignore_eos = False
        request.sampling_params.stop_token_ids = {said}
        request.update_finish_state()
        processor = self.scheduler.batch_result_processor
        if hasattr(processor, "_prepare_kv_cache_release"):
            processor._prepare_kv_cache_release(request)
        takes = inspect.signature(common.release_kv_cache).parameters
        common.release_kv_cache(request, self.tree, **({"checkpoint": True} if "checkpoint" in takes else {}))
        self.device.creep()

    def evict(self, pages: int) -> None:
        """Make SGLang evict so many pages of the device."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.tree.evict(EvictParams(num_tokens=pages * self.spec.page_tokens))


def _before(thing: Any, name: str, heard: Callable[..., None]) -> None:
    original = getattr(thing, name, None)
    if original is None:
        return

    def called(*args: Any, **kwargs: Any) -> Any:
        heard(*args, *kwargs.values())
        return original(*args, **kwargs)

    setattr(thing, name, called)


def _after(thing: Any, name: str, heard: Callable[[Any], None]) -> None:
    original = getattr(thing, name, None)
    if original is None:
        return

    def called(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        heard(result)
        return result

    setattr(thing, name, called)
