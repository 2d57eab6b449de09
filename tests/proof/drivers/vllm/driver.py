"""vLLM as scenarios see it: its own scheduler and offloading connectors, driven step by step.

``python -m tests.vllm.run --python 0.33.0 -m blocklife scenario run FILE --driver tests.proof.drivers.vllm:VllmDriver`` runs
a file.
The contract chooses the connector: `OffloadingConnector` hands blocks out and lets the step wait (*fence*), and
`SimpleCPUOffloadConnector` holds them back (*hold*). The watch is attached; what it finds is a broken rule of the run.
`BlocklifeDriver` has our own connector instead, which is not watched: its ledger is asked, and checked.

Rules of this file:

* vLLM decides. A scenario controls only its inputs: requests, the token budget of a step, whether it is paused, and the reports
  of the workers. If vLLM then does something other than the scenario says, the run ends as *not expressible*, naming both.
* No state is made up: that of blocks is read from the watch's mirror, everything else from vLLM.
* vLLM is imported when a driver is made. Without it, one line says so.

Theory: a step of a scenario in vLLM. A request is handed to vLLM when a step admits it. A *tick* computes nothing: the token
budget is zero, as in an engine that is paused and still has metadata for its workers. As in vLLM's loop, an engine without work
takes no step at all, and reports that come meanwhile are processed with the next step.
"""

from __future__ import annotations

import importlib.util
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from attrs import define, evolve, field

from blocklife.engines.vllm import watch
from blocklife.errors import CapacityError, MisuseError
from blocklife.knobs import Plain
from blocklife.ledger.invariants import check
from blocklife.offload import Geometry, LastStep, Mode
from blocklife.testing import (
    Device,
    DeviceFault,
    EngineSetup,
    EngineStep,
    Landing,
    LookedUp,
    Orders,
    Problem,
    RequestProgress,
    SettledPlan,
    Unsupported,
)
from blocklife.testing.scenarios import _driver as driver
from blocklife.testing.scenarios._embedded_driver import touched_wrongly
from tests.proof.drivers.theirs import RaisedInside, error_told, is_theirs
from tests.proof.drivers.vllm import lending
from tests.proof.drivers.vllm.batch import Output, PoolBlock, RequestTurn, SchedulerRequest, WorkerBatch

if TYPE_CHECKING:
    from tests.proof.drivers.vllm.copies import OffloadingCopies, SimpleCopies, WorkerOrders
    from tests.proof.drivers.vllm.host import OffloadingHost, SimpleHost
    from tests.proof.drivers.vllm.ours import OurCopies, OurHost

RELEASES = ("0.21", "0.22", "0.23", "0.30", "0.33")
"""Minor releases of vLLM that the driver was written for."""
_SURROUNDINGS = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
"""The environment of a scheduler without a device, without telemetry and without a network."""
_SAID_MAX = 512
"""Tokens that a request samples if no end is given."""
OFFLOADING, SIMPLE, OURS = "OffloadingConnector", "SimpleCPUOffloadConnector", "BlocklifeConnector"
_IDLE_MAX = 32
"""Steps without activity after which waiting ends."""
_LETTERS = 26
_NEVER_SAID = 0x100
"""The first code point of letters that no scenario uses."""
ResultT = TypeVar("ResultT")

_ONLY = {
    "pool": "vLLM's allocator hands out blocks",
    "jobs": "vLLM has no limit on copies in flight",
    "deadline": "vLLM has no deadline for copies",
    "lazy_blocks": "vLLM decides itself how far ahead it stores",
    "full_hit": "vLLM drops the last block of a hit on the device, and computes the last token of one in the host",
    "partial_chunks": "each release of vLLM has its own way with holes",
    "max_load_failures": "vLLM's workers assume that no copy fails",
    "load_within_tokens": "vLLM's own connectors load between two steps",
    "state_drafts": "the driver guesses no tokens",
    "events": "vLLM's workers are not asked how they wait",
}
"""Settings that cannot be changed here, and why."""
_TAKEN = (
    "groups", "blocks_per_chunk", "blocks", "slots", "workers", "contract",
    "scheduling", "mode", "replacement", "last_step", "prompt_only", "step_tokens", "seed",
)  # fmt: skip
"""Settings that the driver takes."""
_FOREVER = 1e9
_OPTIONS = (
    "blocks_per_chunk", "full_hit", "partial_chunks", "mode", "max_load_tokens", "max_store_tokens", "last_step",
    "prompt_only", "max_load_failures", "max_job_blocks", "max_store_blocks_beside", "lazy_blocks",
)  # fmt: skip
"""Settings that are options of our connector, under the same names."""
_SINGLE = "vLLM's scheduler alone decides about single blocks and copies"
_WHY = {
    "renew": "vLLM has no name for its weights; changing them takes a reset",
    "lose_worker": "vLLM ends when a worker does",
    "regain_worker": "vLLM ends when a worker does",
    "prove_quiet": "vLLM accepts no proof other than the workers' reports",
    "agree": "vLLM's ranks have one scheduler",
    "swap": "vLLM's copies leave their source as it is",
    "split": "vLLM has no tree of blocks",
    "publish": "vLLM has no tree of blocks",
    "attach": "one connector is driven",
}
_STATES = {"WAITING_FOR_REMOTE_KVS": "LOADING", "RUNNING": "RUNNING", "PREEMPTED": "PREEMPTED"}
"""Statuses of vLLM's requests, as states of `specs/request.md`; all others that are not over are waiting."""


@define(eq=False)
class _StepOut:
    """One step that is being executed. A step that the engine did not take has no output."""

    number: int
    told: WorkerOrders | None = None
    output: Output | None = None
    turns: Sequence[RequestTurn] = ()


@define(eq=False)
class _SeenInStep:
    """What the hooks have seen while a step was scheduled."""

    handed_out: list[int] = field(factory=list)
    hits: dict[str, LookedUp] = field(factory=dict)
    no_room: list[str] = field(factory=list)


class VllmDriver(driver.Driver):
    """vLLM, in the release that can be imported."""

    engine_name = "vLLM"
    taken: tuple[str, ...] = _TAKEN
    reasons: Mapping[str, str] = _ONLY

    def __init__(self) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise MisuseError("vLLM cannot be imported here (run this in an environment that has it, for example vLLM 0.33)")
        for name, value in _SURROUNDINGS.items():
            os.environ.setdefault(name, value)
        from tests.proof.drivers.vllm import copies, engine, host

        self.version = engine.RELEASE
        if not self.version.startswith(tuple(f"{each}." for each in RELEASES)):
            raise MisuseError(f"vLLM {self.version}: scenarios run against {', '.join(f'{each}.x' for each in RELEASES)} only")
        self._make_engine = engine.VllmEngine
        self._makes: dict[
            str, tuple[type[OffloadingCopies | SimpleCopies | OurCopies], type[OffloadingHost | SimpleHost | OurHost]]
        ] = {
            OFFLOADING: (copies.OffloadingCopies, host.OffloadingHost),
            SIMPLE: (copies.SimpleCopies, host.SimpleHost),
        }

    def connector_of(self, world: EngineSetup) -> str:
        """The name of the connector that a world is run with. Refuses settings that it does not have."""
        name = SIMPLE if world.contract == "hold" else OFFLOADING
        simple = name == SIMPLE
        lacks = {
            "mode": world.policies.mode is Mode.LAZY and not simple,
            "blocks_per_chunk": world.blocks_per_chunk > 1 and simple,
            "replacement": world.replacement != "lru" and simple,
            "prompt_only": world.policies.prompt_only and (simple or self.version.startswith(RELEASES[:2])),
        }
        for setting, is_lacking in lacks.items():
            if is_lacking:
                raise Unsupported(f"not expressible: {setting} = {world.words()[setting]} ({name} has no such setting)")
        if simple and "full" not in world.groups:
            raise Unsupported(f"not expressible: contract = hold, groups = {world.groups} ({name} needs a full group)")
        return name

    def options_of(self, world: EngineSetup) -> Mapping[str, Plain]:
        """The options of a connector that takes them as a world has them."""
        return {}

    def start(self, world: EngineSetup) -> None:
        """Make a new engine with its connector."""
        connector = self._check(world)
        try:
            self.engine = self._make_engine(world, connector, self.options_of(world))
        except Exception as error:
            raise MisuseError(f"vLLM {self.version} refuses this world: {error_told(error)}") from error
        self.world = world
        self.scheduler = self.engine.scheduler
        self._pool = self.scheduler.kv_cache_manager.block_pool
        if world.policies.last_step is LastStep.DRAIN and not self._drains():
            raise Unsupported(f"not expressible: last_step = drain (vLLM {self.version} goes to sleep while copies are out)")
        make_copies, make_host = self._makes[connector]
        self._copies = make_copies(self.engine, world.workers)
        self._host = make_host(self.engine, world.slots)
        self._texts: dict[str, str] = {}
        self._requests: dict[str, SchedulerRequest] = {}
        self._door: dict[str, None] = {}
        """Requests that were not handed to vLLM yet."""
        self._contents: dict[bytes, str] = {}
        """By the hash of a block: all text up to its end."""
        self._hashed: dict[str, int] = {}
        self._batch = WorkerBatch(self.engine.geometry, self._texts)
        self._plans: deque[_StepOut] = deque()
        self._num_plans = self._num_copies = self._num_told = self._num_idle = 0
        self._unheard: list[tuple[int, Landing]] = []
        """Reports not in any output yet, with the first plan whose output can have them."""
        self._waited: dict[int, int] = {}
        """Copies with the first plan that waits for them."""
        self._out: dict[int, set[int]] = {}
        """Copies that the workers have received, with the workers that have not reported to vLLM yet."""
        self._loaded: set[str] = set()
        self._is_looked_up = False
        """Whether a lookup was made since the last step."""
        self._seen = _SeenInStep()
        self._listen()
        self._lending = lending.Lending(self.scheduler)
        self._attach()

    def _attach(self) -> None:
        """Attach the watch."""
        self._watch = watch.attach(self.scheduler, watch.Options(mode=watch.WatchMode.COUNT))
        for mirror in self._watch.mirrors:  # blocks that are held outside of requests are not lost
            mirror.num_held = partial(self._num_lost, mirror.num_held)

    def _catch_up(self) -> None:
        """The watch hears what has happened."""
        self._watch.mirror.catch_up()

    def _found(self) -> Iterator[Problem]:
        """New violations found by the watch."""
        self._catch_up()
        found, self._num_told = self._watch.violations[self._num_told :], len(self._watch.violations)
        for violation in found:
            yield Problem(violation.rule, violation.what)

    def _check(self, world: EngineSetup) -> str:
        """The connector of a world. Refuses settings that vLLM does not have."""
        for name, value in world.changed().items():
            if name not in self.taken:
                raise Unsupported(f"not expressible: {name} = {value} ({self.reasons.get(name, 'vLLM has no such setting')})")
        connector = self.connector_of(world)
        if "mamba" in world.groups and self.version.startswith(RELEASES[:2]):
            raise Unsupported(
                f"not expressible: groups = {world.groups} (vLLM {self.version} asserts that there is no connector then)"
            )
        if Geometry.parse(world.groups).tail_tokens is not None:
            raise Unsupported(f"not expressible: groups = {world.groups} (the driver reads names of whole blocks only)")
        if len(set(Geometry.parse(world.groups).block_tokens)) > 1:
            raise Unsupported(f"not expressible: groups = {world.groups} (the driver reads names of blocks of one size only)")
        return connector

    def _num_lost(self, num_held: Callable[[], int | None]) -> int | None:
        held = num_held()
        return None if held is None else held - self._host.num_filled

    def _drains(self) -> bool:
        """Whether this engine keeps stepping while only copies are in flight."""
        return hasattr(self.scheduler.connector, "has_pending_push_work")

    # --- hooks --------------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Hook vLLM's scheduling calls."""
        manager, connector = self.scheduler.kv_cache_manager, self.scheduler.connector
        self._pool.get_new_blocks = partial(self._handed_out, self._pool.get_new_blocks)
        manager.allocate_slots = partial(self._allocated, manager.allocate_slots)
        connector.get_num_new_matched_tokens = partial(self._looked_up, connector.get_num_new_matched_tokens)

    def _handed_out(self, original: Callable[..., list[PoolBlock]], *args: object, **kwargs: object) -> list[PoolBlock]:
        blocks = original(*args, **kwargs)
        self._seen.handed_out += [block.block_id for block in blocks]
        return blocks

    def _allocated(
        self, original: Callable[..., ResultT], request: SchedulerRequest, *args: object, **kwargs: object
    ) -> ResultT:
        found = original(request, *args, **kwargs)
        if found is None:
            self._seen.no_room.append(request.request_id)
        return found

    def _looked_up(
        self,
        original: Callable[..., tuple[int | None, bool]],
        request: SchedulerRequest,
        local: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[int | None, bool]:
        found = original(request, local, *args, **kwargs)
        self._seen.hits[request.request_id] = LookedUp(local + (found[0] or 0), local, deferred=found[0] is None)
        return found

    def _asked(self, act: Callable[[], ResultT]) -> ResultT:
        """Call vLLM. An error ends the run, reported under the rule that the watch found broken before it, if any."""
        try:
            return act()
        except Exception as error:
            if not is_theirs(error):
                raise
            for problem in self._found():
                raise DeviceFault(problem.rule, f"{problem.message}; then vLLM raised {error_told(error)}") from error
            raise RaisedInside(error_told(error)) from error

    # --- verbs --------------------------------------------------------------------------------------------------------------

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """Add a request, which is handed to vLLM when a step admits it. Without a reply it samples unique letters."""
        number = len(self._texts)
        own = chr(ord("A") + number) if number < _LETTERS else chr(_NEVER_SAID + number)
        num_said = len(reply) or (_SAID_MAX if tokens is None else tokens - len(prompt))
        text = prompt + (reply or own * num_said)
        self._texts[request] = text
        self._requests[request] = self.engine.request(request, [ord(letter) for letter in prompt], num_said)
        self._hashed[request] = 0
        self._door[request] = None

    def _enter(self, names: Sequence[str]) -> None:
        """Hand these requests to vLLM, if that was not done yet."""
        for name in names:
            if name in self._door:
                del self._door[name]
                self._asked(partial(self.scheduler.add_request, self._requests[name]))

    def finish(self, request: str) -> None:
        """End a request as the engine does at a stop."""
        self._end(request, "STOPPED")

    def abort(self, request: str) -> None:
        """End a request as the engine does when its client disconnects."""
        self._end(request, "ABORTED")

    def end_in_error(self, request: str) -> None:
        """End a request as the engine does when its load has failed, or it cannot be computed."""
        self._end(request, "ERROR")

    def _end(self, request: str, status: str) -> None:
        self._enter([request])
        if request not in self.scheduler.requests:
            raise MisuseError(f"request {request}: it is over, or was never added (end one that exists)")
        self._asked(lambda: self.engine.end(request, status))
        self._catch_up()

    def preempt(self, request: str) -> None:
        """Preempt a running request between two steps, with the scheduler's own function."""
        if not self.engine.tells_preempted:
            raise Unsupported(f"not expressible: preempt (vLLM {self.version} tells its workers of none between two steps)")
        if self._state(request) != "RUNNING":
            raise MisuseError(f"request {request}: it does not run (preempt one that does)")
        if self._lending.is_lent(request):
            raise Unsupported("not expressible: a request that is lent and preempted (vLLM lends when a request is over)")
        self._asked(lambda: self.engine.preempt(self._requests[request]))
        self._catch_up()

    def lend(self, request: str) -> Mapping[int, str]:
        """Let the free of a running request's blocks wait, once it is over, until `give_back`; as connectors that send do."""
        return self._lend(request, inf)

    def lease(self, request: str, steps: int) -> Mapping[int, str]:
        """The same for so many steps at most."""
        return self._lend(request, steps)

    def _lend(self, request: str, steps: float) -> Mapping[int, str]:
        if not self._lending.is_lent(request) and self._state(request) != "RUNNING":
            raise MisuseError(f"request {request}: it does not run (lend of one that does)")
        self._lending.lend(request, steps)
        text, computed = self._texts[request], self.progress(request).computed
        found: dict[int, str] = {}
        for group, size in enumerate(self.engine.geometry.block_tokens):
            for position, block in enumerate(self.table(request, group)[: computed // size]):
                if block:
                    found[block] = f"{group}:{text[: (position + 1) * size]}"
        return found

    def give_back(self, request: str) -> None:
        """The workers report that the request was sent; of one whose lease has ended they have."""
        self._lending.give_back(request)

    def lookup(self, request: str) -> LookedUp:
        """Ask vLLM's cache and its connector, as a step does for a request that waits."""
        self._enter([request])
        if request in self._loaded:
            raise Unsupported(f"not expressible: a lookup of {request}, whose load is over (vLLM makes it with its next step)")
        if self._state(request) not in ("WAITING", "PREEMPTED"):
            raise MisuseError(f"request {request}: it does not wait (look up before it is admitted)")
        self._asked(lambda: self.engine.look_up(self._requests[request]))
        self._is_looked_up = True
        return self._seen.hits[request]

    def _changes(self) -> None:
        """Something happens to content: never between a lookup and what follows from it, which are one call of vLLM."""
        if self._is_looked_up:
            raise Unsupported("not expressible: what comes between a lookup and its step (both are one call of vLLM)")

    def reset(self, *, drain: bool) -> None:
        """vLLM's own reset. Without *drain* running requests are preempted; with it, there must be none."""
        if self._host.refuses_reset():
            raise Unsupported(f"not expressible: reset (the connector of vLLM {self.version} cannot forget its host tier)")
        try:
            done = self.scheduler.reset_prefix_cache(not drain, True)
        except RuntimeError as error:
            raise CapacityError(f"vLLM does not reset: {error}") from error
        self._catch_up()
        if not done:
            raise CapacityError("vLLM does not reset while blocks are in use (drain first)")

    def sleep(self) -> None:
        """Let vLLM give up the device when no request is left; its prefix cache forgets everything."""
        if self.scheduler.requests or not self.scheduler.reset_prefix_cache():
            raise Unsupported("not expressible: sleep while there are requests or copies (vLLM ends or waits for them first)")
        self._catch_up()

    def wake(self) -> None:
        """Forget everything from before."""

    def advance(self, steps: int) -> None:
        """Leases end; vLLM has no clock for copies."""
        self._lending.advance(steps)

    # --- the host -----------------------------------------------------------------------------------------------------------

    def fill_host(self) -> None:
        """Begin stores of other requests that do not end."""
        self._changes()
        self._host.fill(self._present())

    def free_host(self) -> None:
        """Abandon these stores."""
        self._host.free()

    def crowd_host(self, slots: int) -> bool:
        """Begin such a store, and abandon it."""
        self._changes()
        return self._host.crowd(slots)

    def forget(self, contents: Sequence[str]) -> None:
        """Make room in the host by evicting exactly these."""
        self._changes()
        self._host.forget([self._key(each) for each in contents], self._present())

    def forget_on_device(self, contents: Sequence[str]) -> None:
        """Evict single blocks with the pool's own method."""
        self._changes()
        found = [self._pool.cached_block_hash_to_block.get_one_block(self._key(each)) for each in contents]
        blocks = [block for block in found if block is not None]
        for block in blocks:
            if block.ref_cnt:
                raise MisuseError(f"block {block.block_id}: it is held (forget only blocks without a holder)")
        self._pool.evict_blocks({block.block_id for block in blocks})

    # --- the step -----------------------------------------------------------------------------------------------------------

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        """One `schedule()`, if vLLM's loop would call it."""
        for name in preempt:
            self.preempt(name)
        self._is_looked_up = False
        self._enter(list(self._door if let_in is None else let_in))
        self._num_plans += 1
        plan = _StepOut(self._num_plans)
        self._plans.append(plan)
        if not self.scheduler.has_requests():
            return EngineStep(orders=Orders(plan.number, (), (), ()))
        self._waits(compute, let_in)
        before = self._going()
        self._seen = seen = _SeenInStep()
        plan.output = output = self._scheduled(compute, let_in)
        self._compare(before, compute, let_in, output)
        plan.turns = self._batch.turns(output)
        plan.told = told = self._copies.told(output.kv_connector_metadata)
        forward = self._batch.forward(output, plan.turns)
        self._waited = dict.fromkeys(told.flushes, plan.number) | self._waited
        ahead = tuple(early._replace(plan=plan.number) for early in told.ahead)
        copies = [each for orders in ahead for each in orders.stores] + [*told.loads, *told.stores]
        self._num_copies += len(copies)
        self._out.update({each.job: set(range(self.world.workers)) for each in copies})
        self._learn()
        return EngineStep(
            orders=Orders(
                plan.number, told.flushes, told.loads, told.stores, forward, block_copies=self._batch.block_copies(output)
            ),
            ahead=ahead,
            handed_out=tuple(seen.handed_out),
            owners=told.owners,
            sharers=told.sharers,
            sizes={each.job: each.sizes for each in copies},
            hits=seen.hits,
            no_room=tuple(dict.fromkeys(seen.no_room)),
        )

    def _waits(self, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None) -> None:
        """Whether a scenario waits for copies that this connector plans only for requests that compute."""
        is_idle = compute == {} and let_in == {} and not self._out
        self._num_idle = self._num_idle + 1 if is_idle else 0
        if self._num_idle > _IDLE_MAX and self._going():
            raise Unsupported("not expressible: a copy that is planned while no request computes (vLLM plans none then)")

    def _going(self) -> set[str]:
        """Requests that compute in a step without being admitted in it."""
        names = {name for name, each in self.scheduler.requests.items() if each.status.name == "RUNNING"}
        return names | {name for name in self._loaded if name in self.scheduler.requests}

    def _scheduled(self, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None) -> Output:
        """Schedule with the requested token budget, if it is known, and without new requests if none are to be admitted."""
        wanted: int | None = None
        if compute is not None and let_in is not None and all(let_in.values()):
            wanted = sum(compute.values()) + sum(let_in.values())
        elif let_in == {} and not self._going():
            wanted = 0
        elif let_in and all(let_in.values()) and not self._going():
            wanted = sum(let_in.values())
        newcomers = let_in != {} or self.scheduler.requests.keys() == self._going()
        output: Output = self._asked(lambda: self.engine.schedule(wanted, newcomers=newcomers))
        return output

    def _compare(
        self, before: set[str], compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, output: Output
    ) -> None:
        """Whether vLLM has scheduled what the scenario says."""
        got = output.num_scheduled_tokens
        gone = set(output.preempted_req_ids or ())
        for name in sorted(before - gone):
            wanted = got.get(name, 0) if compute is None else compute.get(name, 0)
            if got.get(name, 0) != wanted:
                raise Unsupported(
                    f"not expressible: a step in which {name} computes {wanted} tokens"
                    f" (vLLM schedules {got.get(name, 0)} for it)"
                )
        if let_in is None:
            return
        loading = {name for name in self._seen.hits if self._state(name) == "WAITING_FOR_REMOTE_KVS"}
        for name in sorted((self._going() | loading) - before):
            if name not in let_in:
                raise Unsupported(f"not expressible: a step in which {name} is not admitted (vLLM admits it)")
            if let_in[name] and got.get(name, let_in[name]) != let_in[name]:
                raise Unsupported(
                    f"not expressible: a step in which {name} enters with {let_in[name]} tokens (vLLM schedules {got[name]})"
                )

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        """One `update_from_output()` with the reports of every worker."""
        plan = self._plans.popleft()
        heard = self._hear(plan, reports)
        if plan.output is None or plan.told is None:
            return SettledPlan()
        said = {turn.row.name: turn for turn in plan.turns if turn.says}
        for name, count in (sampled or {}).items():
            if count != (name in said):
                raise Unsupported(f"not expressible: {name} gets {count} tokens at once (vLLM without speculation samples one)")
        answers = self._copies.answers(heard, plan.told)
        tokens = {
            turn.row.name: [ord(self._texts[turn.row.name][turn.stop])] if turn.says else list[int]() for turn in plan.turns
        }
        for answer, sent in zip(answers, [self._lending.take_sent()] * len(answers), strict=True):
            answer.finished_sending = sent
        loaded = self._asked(lambda: self.engine.update(plan.output, tokens, answers))
        for each in heard:
            self._out.get(each.job, set()).discard(each.worker)
        self._out = {job: workers for job, workers in self._out.items() if workers}
        self._catch_up()
        self._learn()
        self._loaded = {name for name in {*self._loaded, *loaded} if self._state(name) == "WAITING_FOR_REMOTE_KVS"}
        return SettledPlan(loaded=tuple(sorted(name for name in loaded if name in self.scheduler.requests)))

    def _hear(self, plan: _StepOut, reports: Sequence[Landing]) -> list[Landing]:
        """The reports that workers can send with this plan: none of copies that only a later plan has waited for."""
        self._unheard += [(self._waited.get(each.job, 0), each) for each in reports]
        if plan.told is None:
            return []
        heard = [each for since, each in self._unheard if since <= plan.number]
        self._unheard = [(since, each) for since, each in self._unheard if since > plan.number]
        return heard

    # --- queries ------------------------------------------------------------------------------------------------------------

    def table(self, request: str, group: int) -> list[int]:
        """The table in the group's manager."""
        manager = self.scheduler.kv_cache_manager.coordinator.single_type_managers[group]
        return [int(block.block_id) for block in manager.req_to_blocks.get(request, ())]

    def worker_table(self, request: str, group: int) -> list[int]:
        """The table in the batch of a worker, built from what the scheduler has sent."""
        return self._batch.table(request, group)

    def block_state(self, block: int) -> str:
        """The state in the watch's mirror."""
        return str(self._watch.mirror.ledger.blocks.state(block).name)

    def slot_state(self, slot: int) -> str:
        """The state in the host tier."""
        found = dict(each for each in map(self._host.find, self._keys()) if each is not None)
        return "EMPTY" if slot not in found else "READY" if found[slot] else "WRITING"

    def request_state(self, request: str) -> str:
        """vLLM's status, translated into a state of `specs/request.md`."""
        if request in self._door:
            return "WAITING"
        state = self._state(request) or "FINISHED"
        return "FINISHED" if state.startswith("FINISHED") else _STATES.get(state, "WAITING")

    def _state(self, request: str) -> str | None:
        found = self.scheduler.requests.get(request)
        return None if found is None else str(found.status.name)

    def slot_of(self, content: str) -> int | None:
        """The slot that the host tier finds."""
        found = self._host.find(self._key(content))
        return None if found is None else found[0]

    def claims(self) -> tuple[Mapping[int, str], Mapping[int, str]]:
        """What a lookup would find, on the device and in the host."""
        size = self.world.blocks_per_chunk
        blocks: dict[int, str] = {}
        places: dict[int, str] = {}
        for key, (group, text) in self._keys().items():
            block = self._pool.cached_block_hash_to_block.get_one_block(key)
            if block is not None:
                blocks[block.block_id] = f"{group}:{text}"
            found = self._host.find(key)
            if found is not None and found[1]:
                written = self._copies.written.get(found[0], ())
                for at in written:
                    end = len(text) - (size - 1 - at) * self.engine.geometry.block_tokens[group]
                    places[found[0] * size + at] = f"{group}:{text[:end]}"
        return blocks, places

    def tokens(self, request: str) -> str:
        """All tokens that the request will have."""
        return self._texts[request]

    def progress(self, request: str) -> RequestProgress:
        """The progress of vLLM's request, not counting tokens still with the workers."""
        found = self._requests[request]
        in_flight = sum(plan.output.num_scheduled_tokens.get(request, 0) for plan in self._plans if plan.output is not None)
        in_flight = min(in_flight, found.num_computed_tokens)
        return RequestProgress(found.num_tokens, found.num_computed_tokens - in_flight, in_flight)

    def pending(self) -> bool:
        """Whether vLLM's loop would go on, apart from the requests that only run."""
        if not self.scheduler.has_unfinished_requests():
            return bool(self.scheduler.has_requests())
        return bool(self._out or self.scheduler.has_finished_requests())

    def count(self, what: str) -> int:
        """A count that vLLM keeps, or the driver."""
        counts = {
            "free": self._pool.get_num_free_blocks,
            "jobs_made": lambda: self._num_copies,
            "jobs_out": lambda: len(self._host.jobs()),
            "ready": lambda: sum(found[1] for found in map(self._host.find, self._keys()) if found is not None),
            "refused_stores": lambda: self._host.refused,
            "requests": lambda: len(self.scheduler.requests) + len(self._door),
        }
        if what not in counts:
            raise Unsupported(f"not expressible: the count {what!r} (vLLM does not count it)")
        return int(counts[what]())

    def windows(self) -> list[int | None]:
        """The windows of the connector."""
        return self._host.windows()

    def left_behind(self) -> list[str]:
        """Held blocks, requests, and jobs that the connector waits for."""
        held = [f"block {block.block_id}, which is held" for block in self._pool.blocks[1:] if block.ref_cnt]
        return [*held, *(f"request {name}" for name in self.scheduler.requests), *self._host.jobs()]

    def problems(self, device: Device) -> Iterator[Problem]:
        """What was found since the last call."""
        return self._found()

    # --- names --------------------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Record the text of each new block hash."""
        size = self.engine.hash_tokens
        for name, request in self._requests.items():
            hashes, known = request.block_hashes, self._hashed[name]
            for at in range(known, len(hashes)):
                self._contents[bytes(hashes[at])] = self._texts[name][: (at + 1) * size]
            self._hashed[name] = len(hashes)

    def _keys(self) -> dict[bytes, tuple[int, str]]:
        """Every name that content can have so far, with its group and text."""
        groups = range(len(self.engine.geometry.groups))
        return {value + group.to_bytes(4, "big"): (group, text) for value, text in self._contents.items() for group in groups}

    def _key(self, content: str) -> bytes:
        group, _, text = content.partition(":")
        found = [value for value, known in self._contents.items() if known == text]
        if not found:
            raise MisuseError(f"{content}: no request of vLLM has had it so far")
        return found[0] + int(group).to_bytes(4, "big")

    def _present(self) -> list[bytes]:
        """The keys of content that the host holds or will hold."""
        return [key for key in self._keys() if self._host.find(key) is not None]

    def _not(self, method: str) -> NoReturn:
        raise Unsupported(f"not expressible: {method} ({_WHY.get(method, _SINGLE)})")


class BlocklifeDriver(VllmDriver):
    """The same with our own connector, which always hands blocks out and lets the step wait."""

    engine_name = "vLLM with blocklife"
    taken = (*_TAKEN, "jobs", *_OPTIONS)
    reasons: Mapping[str, str] = {
        **_ONLY,
        "deadline": f"{OURS} gives no copy up",
        "load_within_tokens": "the driver lets all loads run between two steps",
        "below": "the driver has no store below the host memory",
    }

    def __init__(self) -> None:
        super().__init__()
        from tests.proof.drivers.vllm import ours

        self._makes[OURS] = ours.OurCopies, ours.OurHost
        self._now = 0

    def connector_of(self, world: EngineSetup) -> str:
        """Ours."""
        if world.contract == "hold":
            raise Unsupported(f"not expressible: contract = hold ({OURS} hands blocks out, and lets the step wait)")
        return OURS

    def options_of(self, world: EngineSetup) -> Mapping[str, Plain]:
        """The settings of the world; a request waits for what is on its way for good, and broken rules of the ledger raise."""
        same = {name: value for name, value in world.words().items() if name in _OPTIONS and value is not None}
        size = {"host_blocks": world.slots * world.blocks_per_chunk, "max_jobs": world.jobs}
        return {**same, **size, "policy": world.replacement, "pending_wait_s": _FOREVER, "checking": "strict"}

    def _attach(self) -> None:
        """The connector has a ledger, which is asked; its clock counts steps."""
        self._side = self.scheduler.connector.scheduler
        self._side._clock = lambda: float(self._now)

    def _catch_up(self) -> None:
        """Nothing is behind."""

    def _found(self) -> Iterator[Problem]:
        """Broken rules of the ledger."""
        for each in check(self._side.ledger):
            yield Problem(each.rule, each.message)

    def problems(self, device: Device) -> Iterator[Problem]:
        """The same, and what the ledger says of places that a copy touches."""
        yield from self._found()
        yield from touched_wrongly(self._side.ledger, device, self.world.blocks_per_chunk)

    def advance(self, steps: int) -> None:
        """Time passes."""
        super().advance(steps)
        self._now += steps

    def block_state(self, block: int) -> str:
        """The state in the ledger."""
        return str(self._side.ledger.blocks.state(block).name)

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        """The same; workers also report which copies they have launched, and which have failed."""
        copies = cast("OurCopies", self._copies)
        copies.launched = (*copies.launched, *launched)
        found = super().settle(reports, launched=launched, sampled=sampled)
        failed, copies.failed = copies.failed, set()
        loaded = tuple([name for name in found.loaded if name not in failed])
        return evolve(found, loaded=loaded, failed=tuple(sorted(failed & self.scheduler.requests.keys())))
