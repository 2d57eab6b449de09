"""The world that is explored: the real scheduler and its ledger, the device, and what is on its way between them.

Rules of this file:

* Two truths, always: what the ledger says is compared with what the device does, in every state.
* The engine in it is the plainest one (`engine`); everything else that can happen is an action, and is offered wherever it can.
* A state is a value under canonical names: worlds that differ only in how a block, slot, job or plan is called are one.

Theory. The world is a product of parts that never see each other: the *core* (scheduler, host tier, ledger) and the *device*
only pass plain records. Each is a function of the calls made to it. So every distinct value of a part is kept once and gets a
number, and each call is made on each value of a part once, by the real code; what it did is remembered. A state of the world
is a pair of numbers and what is on its way. Most of the steps of a world are new pairs of known halves, which is what makes it
fast: how reports, faults and landings interleave multiplies states, but not calls.

What is on its way (`Env`): who has come, reports that are with the engine and not yet told (*inbox*), reports that will come
once more (*echoes*), and how many faults of each kind are left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from string import ascii_lowercase
from typing import NamedTuple

from attrs import evolve, field, fields, frozen

from blocklife.errors import BlocklifeError, MisuseError
from blocklife.ledger import Direction, JobId, Jobs
from blocklife.ledger.invariants import check
from blocklife.lifecycle import Row
from blocklife.offload import FullAttention, LastStep, Mamba
from blocklife.offload.groups import Group
from blocklife.offload.snapshot import SavedScheduler
from blocklife.states import MACHINES, Block, Job, Request, Slot
from blocklife.testing.device import Content, Device, DeviceFault, FrozenDevice, Landing, Orders, renamed
from blocklife.testing.device import Names as DeviceNames
from blocklife.testing.engine import Engine, Settings
from blocklife.testing.explore import Broken, Kind, Property

RULES = tuple(f"I{number}" for number in range(1, 16))
"""What is watched in every step, by the numbers of `specs/invariants.md`."""
LAST_STEP = "last step"
"""The rule that, with the policy `flush`, the step in which all tracked requests are over waits for every job."""
TOLD = "told"
"""The rule that listeners hear of every transition, in order, and of nothing else."""
LAWFUL = "lawful"
"""The rule that no call of an engine that keeps to the contract is refused."""


@frozen(kw_only=True)
class Faults:
    """How often each thing that is no part of a quiet life may happen; 0: never."""

    fail: int = 0
    """A copy fails on one worker."""
    hang: int = 0
    """A copy never lands; deadlines pass, and the engine may prove the device quiet."""
    lose: int = 0
    """A report is lost; deadlines pass likewise."""
    repeat: int = 0
    """A report comes once more, at any later time."""
    abort: int = 0
    """A client goes away."""
    preempt: int = 0
    """A request has to give way although there is room."""
    reset: int = 0
    """All content is forgotten at once."""
    drain: int = 0
    """All content is forgotten when no copy is out."""
    renew: int = 0
    """Other weights come."""
    sleep: int = 0
    """The device is given up for a while."""
    lose_worker: int = 0
    """A worker goes, and comes back empty."""

    def __attrs_post_init__(self) -> None:
        for name, times in self.items():
            if type(times) is not int or times < 0:
                raise MisuseError(f"faults: {name} must be a whole number of at least 0, not {times!r}")

    def items(self) -> list[tuple[str, int]]:
        """Every kind with its number."""
        return [(each.name, getattr(self, each.name)) for each in fields(Faults)]


_HARMLESS = frozenset({"abort", "repeat"})
"""Faults that never make a request compute again what it has computed."""
_FAULT = {each.name: number for number, each in enumerate(fields(Faults))}


@frozen
class Script:
    """What one request will say; its prompt is the beginning of it. Written ``prompt.output``, ``ab.c`` for example."""

    name: str
    text: str
    prompt: int

    @classmethod
    def parse(cls, name: str, written: str) -> Script:
        """Read ``prompt.output``."""
        prompt, dot, output = written.partition(".")
        if not dot or not prompt.isalnum() or not output.isalnum():
            raise MisuseError(f"request {written!r}: write its prompt and what it will say as letters, ab.c for example")
        return cls(name, prompt + output, len(prompt))

    def blocks(self, group: Group, step_tokens: int | None, *, ahead: bool, again: bool) -> int:
        """The most blocks of one group that it can hold at once; *again*: it may have to give way, and compute all it knows.

        The last token is never computed. What leaves a window goes when the step that moved it has settled.
        """
        last, size = len(self.text) - 1, group.block_tokens
        if isinstance(group, FullAttention):
            return -(-last // size)
        if isinstance(group, Mamba):
            return min(-(-last // size), 2 + ahead)
        most = 0
        for known in range(self.prompt, last + 1 if again else self.prompt + 1):
            settled = begin = 0
            while begin < last:
                end = min(begin + (step_tokens or known), max(known, begin + 1), last)
                most = max(most, -(-end // size) - max(0, settled - group.window_tokens + 1) // size)
                settled, begin = begin if ahead else end, end
        return most


def _scripts(written: Iterable[str | Script]) -> tuple[Script, ...]:
    found = list(written)
    if not 1 <= len(found) <= len(ascii_lowercase):
        raise MisuseError(f"a world has 1 to {len(ascii_lowercase)} requests, not {len(found)}")
    named = zip(found, ascii_lowercase[: len(found)], strict=True)
    return tuple(each if isinstance(each, Script) else Script.parse(name, each) for each, name in named)


@frozen(kw_only=True)
class WorldSettings:
    """A bounded world: the sizes and policies of its engine, who comes, and what goes wrong."""

    engine: Settings = field(factory=Settings)
    requests: tuple[Script, ...] = field(default=("a.bc", "a.bd"), converter=_scripts)
    faults: Faults = field(factory=Faults)

    def __attrs_post_init__(self) -> None:
        if self.faults.lose_worker and self.engine.num_workers < 2:
            raise MisuseError("faults: a worker can be lost only where there are two (num_workers)")
        geometry = self.engine.geometry
        again = len(self.requests) > 1 or any(times for name, times in self.faults.items() if name not in _HARMLESS)
        for script in self.requests:
            needed = sum(
                script.blocks(group, self.engine.step_tokens, ahead=self.engine.asynchronous, again=again)
                for group in geometry.groups
            )
            if needed > self.engine.num_blocks:
                raise MisuseError(
                    f"request {script.name}: {len(script.text)} letters need up to {needed} blocks, and there are "
                    f"{self.engine.num_blocks} (num_blocks)"
                )

    @property
    def timed(self) -> bool:
        """Whether something can be out for ever, so that deadlines have to pass."""
        return bool(self.faults.hang or self.faults.lose)


class Action(NamedTuple):
    """What happens next: a verb, and what it is about."""

    verb: str
    request: str = ""
    job: int = 0
    worker: int = 0

    def __str__(self) -> str:
        if self.request:
            return f"{self.verb} {self.request}"
        if self.job:
            return f"{self.verb} {self.job}@{self.worker}"
        return f"{self.verb} {self.worker}" if self.verb in ("lose_worker", "regain_worker") else self.verb


class Env(NamedTuple):
    """What is on its way between core and device, and what may still happen."""

    arrived: int
    """Bit per request that has come."""
    inbox: tuple[Landing, ...]
    echoes: tuple[Landing, ...]
    left: tuple[int, ...]
    """Faults of each kind that may still happen."""


class State(NamedTuple):
    """A state of the world; ``core`` and ``device`` are numbers of values that the world keeps."""

    core: int
    device: int
    env: Env


@frozen(eq=False)
class Core:
    """One value of the core, and all that is asked about it."""

    saved: SavedScheduler
    requests: tuple[tuple[str, Request], ...]
    """Requests whose end is not under way, with their states."""
    plans_out: int
    busy: bool
    """Whether a step could do something."""
    idle: bool
    """Whether nobody is there and nothing is out."""
    over: bool
    """Whether at least one request is tracked, for itself or for its jobs, and all of them are over."""
    asleep: bool
    lost: tuple[int, ...]
    live: tuple[int, ...]
    """Jobs that the workers have."""
    doubtful: tuple[int, ...]
    """Jobs past their deadline."""
    blocks: tuple[str, ...]
    """The state of each block."""
    slots: tuple[str, ...]
    readable_blocks: tuple[tuple[int, Content], ...]
    """What can be found on the device, and what it is found as."""
    readable_places: tuple[tuple[int, Content], ...]


@frozen(eq=False)
class CoreStep:
    """What one call made of a value of the core: its new value, and what the device has to know."""

    number: int
    core: int
    orders: Orders | None
    handed_out: tuple[int, ...]
    names: DeviceNames
    proven: tuple[int, ...] = ()
    """Jobs whose copies were made quiet first."""
    problem: tuple[str, str] | None = None


STORE_READS = frozenset(each.name for each in (Block.IN_FLIGHT, Block.FLUSHED, Block.LOADING, Block.STALE, Block.QUARANTINED))
"""Where a block may stand while the device reads it. Behind a fence a load may be planned already; it runs after the wait."""
LOAD_WRITES = frozenset(each.name for each in (Block.LOADING, Block.STALE, Block.QUARANTINED))
STORE_WRITES = frozenset(each.name for each in (Slot.WRITING, Slot.QUARANTINED))
LOAD_READS = frozenset(each.name for each in (Slot.READY, Slot.STALE))
_CLOSING = frozenset({"step", "settle", "settle_late", "land", "prove", "wake", "regain_worker", "echo"})
"""What brings nobody new and breaks nothing."""


class World:
    """A model for `explore.explore`: every way in which a small engine, its copies and its clients can go on."""

    def __init__(self, settings: WorldSettings) -> None:
        if settings.timed:
            settings = evolve(settings, engine=evolve(settings.engine, deadline=1.0))
        self.settings = settings
        self.engine = Engine(settings.engine)
        for script in settings.requests:
            self.engine.know(script.name, script.text)
        geometry = self.engine.geometry
        self._size = geometry.blocks_per_chunk
        self._device = Device(
            settings.engine.num_blocks + 1, settings.engine.num_slots * self._size, settings.engine.num_workers
        )
        self._fence = settings.engine.contract.name == "FENCE"
        self._timed = settings.timed
        self._cores: list[Core] = []
        self._core_numbers: dict[SavedScheduler, int] = {}
        self._problems: list[tuple[str, str] | None] = [None]
        """What the rules of the ledger say to each value of the core; nothing to the first."""
        self._steps: dict[tuple[int, Action, tuple[object, ...]], CoreStep] = {}
        self._devices: list[FrozenDevice] = []
        self._device_numbers: dict[FrozenDevice, int] = {}
        self._device_steps: dict[tuple[int, object], tuple[int, tuple[Landing, ...]] | DeviceFault] = {}
        self._judged: dict[tuple[int, int], tuple[str, str] | None] = {}
        self.core_calls = 0
        """How often the real code was run."""
        self._core_number(self.engine.freeze()[0])
        self._device_number(self._device.freeze())

    # --- the model ----------------------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """Nobody is there."""
        return State(0, 0, Env(0, (), (), tuple(times for _, times in self.settings.faults.items())))

    def rules(self) -> Sequence[str]:
        """What is watched in each step."""
        return (*RULES, LAST_STEP, TOLD, LAWFUL)

    def properties(self) -> Sequence[Property[State, Action]]:
        """Everything drains, and there is something to drain."""
        everybody = (1 << len(self.settings.requests)) - 1
        return (
            Property("drains", Kind.LEADS_TO, "everybody ends and every copy lands", goal=self._drained, closing=_closing),
            Property(
                "finishes",
                Kind.SOMETIMES,
                "all requests have come and gone",
                goal=lambda state: state.env.arrived == everybody and self._drained(state),
            ),
        )

    def actions(self, state: State) -> Iterator[Action]:
        """What can happen next."""
        core, env = self._cores[state.core], state.env
        for number, script in enumerate(self.settings.requests):
            if not env.arrived >> number & 1 and not self._twin_waits(number, env.arrived):
                yield Action("arrive", script.name)
        if core.plans_out <= int(self.settings.engine.asynchronous) and core.busy:
            yield Action("step")
            if env.left[_FAULT["fail"]] and self._waits_for(state):
                yield Action("step_failing")
        if core.plans_out:
            yield Action("settle")
            if self._timed and core.live:
                yield Action("settle_late")
        yield from self._copy_actions(state)
        yield from self._client_actions(core, env)
        yield from self._upheavals(core, env)

    def step(self, state: State, action: Action) -> State:
        """The state after an action; raises `Broken` with the rule that does not hold."""
        after = self._take(state, action)
        if (problem := self._judge(after.core, after.device)) is not None:
            raise Broken(*problem)
        return after

    def coverage(self) -> dict[str, dict[Row, int]]:
        """How often the real code took each row of each table."""
        ledger = self.engine.ledger
        columns = (ledger.blocks.column, ledger.slots.column, ledger.jobs.column, ledger.request_column)
        return {name: dict(column.row_counts()) for name, column in zip(MACHINES, columns, strict=True)}

    def core(self, state: State) -> Core:
        """The value of the core in a state, with all that is asked about it."""
        return self._cores[state.core]

    def device(self, state: State) -> FrozenDevice:
        """The value of the device in a state."""
        return self._devices[state.device]

    def running(self, state: State) -> list[tuple[int, int, bool]]:
        """Every share of a copy that runs: job, worker, and whether it hangs."""
        return self._running(state.device)

    def enter(self, saved: SavedScheduler, device: FrozenDevice, env: Env) -> State:
        """The state with these values, which another world of the same settings has found lawful."""
        core = self._core_number(saved)
        if core == len(self._problems):
            self._problems.append(None)
        return State(core, self._device_number(device), env)

    @property
    def remembered(self) -> int:
        """How many values and calls the world keeps; it forgets none."""
        return sum(map(len, (self._cores, self._steps, self._devices, self._device_steps, self._judged)))

    def digest(self) -> int:
        """A number that worlds with the same values of the core agree on, and hardly any others; of one process only."""
        return hash(frozenset(self._core_numbers))

    # --- what can happen ----------------------------------------------------------------------------------------------------

    def _twin_waits(self, number: int, arrived: int) -> bool:
        """Of requests that say the same the first comes first: who is who makes no difference."""
        mine = self.settings.requests[number]
        return any(
            (other.text, other.prompt) == (mine.text, mine.prompt) and not arrived >> earlier & 1
            for earlier, other in enumerate(self.settings.requests[:number])
        )

    def _waits_for(self, state: State) -> bool:
        """Whether the next plan would wait for a copy that runs."""
        step = self._core_step(state.core, Action("step"), _kept(state.env))
        runs = {job for job, _, hung in self._running(state.device) if not hung}
        return step.orders is not None and not runs.isdisjoint(step.orders.flushes)

    def _copy_actions(self, state: State) -> Iterator[Action]:
        left, env = state.env.left, state.env
        for job, worker, hung in self._running(state.device):
            if not hung:
                yield Action("land", job=job, worker=worker)
                if left[_FAULT["fail"]]:
                    yield Action("fail", job=job, worker=worker)
                if left[_FAULT["hang"]]:
                    yield Action("hang", job=job, worker=worker)
        for landing in env.inbox:
            if left[_FAULT["lose"]]:
                yield Action("lose", job=landing.job, worker=landing.worker)
            if left[_FAULT["repeat"]] and landing not in env.echoes:
                yield Action("repeat", job=landing.job, worker=landing.worker)
        for landing in env.echoes:
            yield Action("echo", job=landing.job, worker=landing.worker)

    def _client_actions(self, core: Core, env: Env) -> Iterator[Action]:
        for name, at in core.requests:
            if env.left[_FAULT["abort"]]:
                yield Action("abort", name)
            if env.left[_FAULT["preempt"]] and at in (Request.RUNNING, Request.LOADING):
                yield Action("preempt", name)

    def _upheavals(self, core: Core, env: Env) -> Iterator[Action]:
        left = env.left
        if left[_FAULT["reset"]]:
            yield Action("reset")
        if left[_FAULT["drain"]] and not self._live_or_planned(core):
            yield Action("drain")
        if left[_FAULT["renew"]]:
            yield Action("renew")
        if left[_FAULT["sleep"]] and not core.asleep:
            yield Action("sleep")
        if core.asleep and not core.plans_out and not self._live_or_planned(core):
            yield Action("wake")
        for worker in range(self.settings.engine.num_workers) if left[_FAULT["lose_worker"]] and not core.lost else ():
            yield Action("lose_worker", worker=worker)
        for worker in core.lost:
            yield Action("regain_worker", worker=worker)
        if core.doubtful:
            yield Action("prove")

    def _live_or_planned(self, core: Core) -> bool:
        return any(job.state not in _OVER for job in core.saved.ledger.jobs)

    # --- taking a step ------------------------------------------------------------------------------------------------------

    def _take(self, state: State, action: Action) -> State:
        env = state.env
        verb = action.verb
        if verb in ("land", "fail", "hang"):
            device, landed = self._device_step(state.device, action, lambda device: self._land(device, action))
            if verb != "land":
                env = self._spent(env, verb)
            return State(state.core, device, env._replace(inbox=tuple(sorted((*env.inbox, *landed)))))
        if verb in ("lose", "repeat", "echo"):
            return state._replace(env=self._mislay(env, action))
        if verb == "settle" or verb == "settle_late":
            return self._settle(state, action)
        step = self._core_step(state.core, _core_action(action), _kept(env))
        if verb in _FAULT:
            env = self._spent(env, verb)
        if verb == "step_failing":
            env = self._spent(env, "fail")
        if verb == "arrive":
            number = next(at for at, script in enumerate(self.settings.requests) if script.name == action.request)
            env = env._replace(arrived=env.arrived | 1 << number)
        return self._with_device(state, step, action, env)

    def _settle(self, state: State, action: Action) -> State:
        """All reports are told; with deadlines, also which copies have begun to run."""
        launched: tuple[tuple[int, int], ...] = ()
        if self._timed:
            launched = self._devices[state.device].begun
        told = (state.env.inbox, launched)
        env = state.env._replace(inbox=())
        step = self._core_step(state.core, action, _kept(env), *told)
        return self._with_device(state, step, action, env)

    def _with_device(self, state: State, step: CoreStep, action: Action, env: Env) -> State:
        """Let the device hear of what the core did, and go over to the new names."""
        if step.problem is not None:
            raise Broken(*step.problem)
        device, landed = self._device_step(
            state.device, (step.number, action.verb), lambda each: self._follow(each, step, action)
        )
        jobs = step.names.jobs
        # a job that has been over for so long that its row is another's has no name: a report of it changes nothing
        told = [landing._replace(job=jobs[landing.job]) for landing in env.inbox if landing.job in jobs]
        echoes = [landing._replace(job=jobs[landing.job]) for landing in env.echoes if landing.job in jobs]
        return State(step.core, device, env._replace(inbox=tuple(sorted((*told, *landed))), echoes=tuple(sorted(echoes))))

    def _spent(self, env: Env, fault: str) -> Env:
        at = _FAULT[fault]
        return env._replace(left=(*env.left[:at], env.left[at] - 1, *env.left[at + 1 :]))

    def _mislay(self, env: Env, action: Action) -> Env:
        """A report is lost, will come again, or comes again."""
        found = next(
            each
            for each in (env.echoes if action.verb == "echo" else env.inbox)
            if (each.job, each.worker) == (action.job, action.worker)
        )
        if action.verb == "echo":
            echoes = tuple(each for each in env.echoes if each is not found)
            return env._replace(inbox=tuple(sorted((*env.inbox, found))), echoes=echoes)
        env = self._spent(env, action.verb)
        if action.verb == "repeat":
            return env._replace(echoes=tuple(sorted((*env.echoes, found))))
        return env._replace(inbox=tuple(each for each in env.inbox if each is not found))

    # --- the device ---------------------------------------------------------------------------------------------------------

    def _device_number(self, frozen_device: FrozenDevice) -> int:
        number = self._device_numbers.get(frozen_device)
        if number is None:
            number = self._device_numbers[frozen_device] = len(self._devices)
            self._devices.append(frozen_device)
        return number

    def _device_step(
        self, number: int, what: object, act: Callable[[Device], tuple[FrozenDevice, tuple[Landing, ...]]]
    ) -> tuple[int, tuple[Landing, ...]]:
        """Do something to a value of the device, once; later it is remembered."""
        key = number, what
        found = self._device_steps.get(key)
        if found is None:
            self._device.thaw(self._devices[number])
            try:
                after, landed = act(self._device)
                found = self._device_number(after), landed
            except DeviceFault as fault:
                found = fault
            self._device_steps[key] = found
        if isinstance(found, DeviceFault):
            raise Broken(found.rule, found.message)
        return found

    @staticmethod
    def _land(device: Device, action: Action) -> tuple[FrozenDevice, tuple[Landing, ...]]:
        landed: tuple[Landing, ...] = ()
        if action.verb == "hang":
            device.hang(action.job, action.worker)
        else:
            landed = (device.land(action.job, action.worker, ok=action.verb == "land"),)
        return device.freeze(), landed

    def _follow(self, device: Device, step: CoreStep, action: Action) -> tuple[FrozenDevice, tuple[Landing, ...]]:
        """What a call to the core means for the device; the answer is under the new names."""
        landed: list[Landing] = []
        if action.verb == "prove":
            device.abort(step.proven)
        elif action.verb == "lose_worker":
            device.lose(action.worker)
        elif action.verb == "regain_worker":
            device.regain(action.worker)
        if step.orders is not None:
            device.hand_out(step.handed_out, fence=self._fence)
            failing: list[tuple[int, int]] = []
            if action.verb == "step_failing":
                failing = [(job, worker) for job in step.orders.flushes for worker in range(len(device.workers))]
            landed = device.carry_out(step.orders, failing=failing)
        elif action.verb in ("settle", "settle_late"):
            device.finish_pass(1)  # the oldest plan that is out has this name
            device.take_begun()
        if not self._timed:
            device.take_begun()  # nobody waits for a deadline
        after = renamed(device.freeze(), step.names, *_kept_content(self._cores[step.core], self._size))
        jobs = step.names.jobs
        return after, tuple(landing._replace(job=jobs[landing.job]) for landing in landed)

    def _running(self, number: int) -> list[tuple[int, int, bool]]:
        return [
            (order.job, rank, hung)
            for rank, worker in enumerate(self._devices[number].workers)
            for order, _, hung in worker.copies
        ]

    # --- the core -----------------------------------------------------------------------------------------------------------

    def _core_number(self, saved: SavedScheduler) -> int:
        number = self._core_numbers.get(saved)
        if number is None:
            number = self._core_numbers[saved] = len(self._cores)
            self._cores.append(_described(self.engine, saved))
        return number

    def _counted_again(self, core: int) -> tuple[str, str] | None:
        """What the rules of the ledger say to a value of the core; the engine stands there, under other names."""
        described = self._cores[core]
        if check(self.engine.ledger):
            self.engine.thaw(described.saved)
            found = check(self.engine.ledger)[0]
            return found.rule, found.message
        return next(_left_behind(described), None) if described.idle else None

    def _core_step(
        self,
        core: int,
        action: Action,
        kept: tuple[int, ...],
        inbox: tuple[Landing, ...] = (),
        launched: tuple[tuple[int, int], ...] = (),
    ) -> CoreStep:
        """Make a call on a value of the core, once; later it is remembered."""
        key = core, action, (kept, inbox, launched)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._call(core, action, kept, inbox, launched)
        return found

    def _call(
        self,
        number: int,
        action: Action,
        kept: tuple[int, ...],
        inbox: tuple[Landing, ...],
        launched: tuple[tuple[int, int], ...],
    ) -> CoreStep:
        self.core_calls += 1
        engine, before = self.engine, self._cores[number]
        engine.thaw(before.saved)
        here = len(self._steps)
        try:
            orders, handed_out = self._act(engine, action, before, inbox, launched)
            problem = _misplanned(engine, before, orders) or _offered_again(engine, before)
            problem = problem or _unheard(engine, before, handed_out) or _mistold(engine, before)
            saved, names = engine.freeze(kept)
            core = self._core_number(saved)
            if core == len(self._problems):
                self._problems.append(self._counted_again(core))
        except Exception as broken:
            # whatever the code under test raises is a finding: mutants raise all kinds
            nothing = DeviceNames((), (), {})
            return CoreStep(here, 0, None, (), nothing, problem=_blamed(broken))
        size = self._size
        places = [slot * size + part for slot in names.slots for part in range(size)]
        return CoreStep(
            here,
            core,
            orders,
            handed_out,
            DeviceNames(names.blocks, places, names.jobs, names.plans_before),
            before.doubtful if action.verb == "prove" else (),
            problem or self._problems[core],
        )

    def _act(
        self,
        engine: Engine,
        action: Action,
        core: Core,
        inbox: tuple[Landing, ...],
        launched: tuple[tuple[int, int], ...],
    ) -> tuple[Orders | None, tuple[int, ...]]:
        """Make one call; only a step has orders for the device."""
        scheduler = engine.scheduler
        match action.verb:
            case "step":
                stepped = engine.step()
                return stepped.orders, stepped.handed_out
            case "settle":
                engine.settle(inbox, launched=launched)
            case "settle_late":
                engine.now += self.settings.engine.deadline
                engine.settle(inbox, launched=launched)
            case "arrive":
                script = next(each for each in self.settings.requests if each.name == action.request)
                engine.add(script.name, script.text, script.prompt)
            case "abort":
                engine.abort(action.request)
            case "preempt":
                engine.preempt(action.request)
            case "reset":
                scheduler.reset()
            case "drain":
                scheduler.reset(drain=True)
            case "renew":
                scheduler.renew(scheduler.generation + "x")
            case "sleep":
                scheduler.sleep()
            case "wake":
                scheduler.wake()
            case "lose_worker":
                scheduler.lose_worker(action.worker)
            case "regain_worker":
                scheduler.regain_worker(action.worker)
            case "prove":
                engine.ledger.quiesce(Jobs(tuple(JobId(engine.ledger.incarnation, job) for job in core.doubtful)))
            case verb:
                raise MisuseError(f"action {verb}: it is unknown")
        return None, ()

    # --- both truths --------------------------------------------------------------------------------------------------------

    def _judge(self, core: int, device: int) -> tuple[str, str] | None:
        """Where the two truths differ, with the rule."""
        key = core, device
        if key not in self._judged:
            self._judged[key] = next(_disagreements(self._cores[core], self._devices[device]), None)
        return self._judged[key]

    def _drained(self, state: State) -> bool:
        """Nobody is there and no copy is out. A report that nobody waits for may never be told."""
        workers = self._devices[state.device].workers
        return self._cores[state.core].idle and not any(worker.copies or worker.held_back for worker in workers)


_READ_LATER = frozenset(each.name for each in Block if each not in (Block.FREED, Block.STALE, Block.QUARANTINED))
_OVER = frozenset(MACHINES["job"].index[state] for state in (Job.DONE, Job.FAILED, Job.CANCELLED))
_REQUEST_STATES = tuple(each for each in MACHINES["request"].states if isinstance(each, Request))
_DOUBTFUL = MACHINES["job"].index[Job.QUARANTINED]
_LOST = _OVER | {_DOUBTFUL}
_PLANNED = MACHINES["job"].index[Job.PLANNED]


def _closing(action: Action) -> bool:
    return action.verb in _CLOSING


def _core_action(action: Action) -> Action:
    """The call that an action makes: how the copies fare that a plan waits for is the device's affair."""
    return Action("step") if action.verb == "step_failing" else action


def _kept(env: Env) -> tuple[int, ...]:
    """Jobs of which the engine will still hear."""
    return tuple(sorted({landing.job for landing in (*env.inbox, *env.echoes)}))


def _blamed(broken: Exception) -> tuple[str, str]:
    """The rule that an error speaks of, and what it says."""
    said = re.search(r"\((I\d+)\)", str(broken)) if isinstance(broken, BlocklifeError) else None
    return (said.group(1) if said else LAWFUL), f"{type(broken).__name__}: {broken}"


def _described(engine: Engine, saved: SavedScheduler) -> Core:
    """Everything that is asked about a value of the core; it is read off the value itself."""
    ledger = saved.ledger
    blocks, slots = MACHINES["block"].states, MACHINES["slot"].states
    jobs = [(job.number, job.state) for job in ledger.jobs if job.state not in _OVER]
    pending = bool(saved.plans or jobs or ledger.to_flush or ledger.waiting)
    states = {each.name: _REQUEST_STATES[each.state] for each in ledger.requests}
    return Core(
        saved=saved,
        requests=tuple((each.name, states[each.name]) for each in saved.requests if not each.ending),
        plans_out=len(saved.plans),
        busy=bool(saved.requests or pending or saved.stores.line),
        idle=not (saved.requests or pending),
        over=all(each.ending for each in saved.requests) and bool(saved.requests or saved.ended),
        asleep=saved.asleep,
        lost=saved.lost,
        live=tuple(number for number, at in jobs if at != _PLANNED),
        doubtful=tuple(number for number, at in jobs if at == _DOUBTFUL),
        blocks=tuple(blocks[each.state].name for each in ledger.blocks),
        slots=tuple(slots[each.state].name for each in ledger.slots),
        readable_blocks=tuple(
            (place, engine.content_of(each.key, saved.generation))
            for place, each in enumerate(ledger.blocks)
            if each.key is not None
        ),
        readable_places=tuple(_readable_places(engine, saved)),
    )


def _left_behind(core: Core) -> Iterator[tuple[str, str]]:
    """Nobody is there and nothing is out: then every place is free, or has content that nobody holds."""
    for place, at in enumerate(core.blocks):
        if at not in (Block.FREED.name, Block.CACHED.name):
            yield "I13", f"block {place} is {at} although nobody is there and nothing is out"
    for place, slot in enumerate(core.saved.ledger.slots):
        if core.slots[place] not in (Slot.EMPTY.name, Slot.READY.name) or slot.pins:
            yield "I13", f"slot {place} is {core.slots[place]} with {slot.pins} pins although nothing is out"


def _readable_places(engine: Engine, saved: SavedScheduler) -> Iterator[tuple[int, Content]]:
    """The host places that a load may read, and what has to be there."""
    size, ready = engine.geometry.blocks_per_chunk, MACHINES["slot"].index[Slot.READY]
    for place, slot in enumerate(saved.ledger.slots):
        if slot.state != ready or slot.key is None:
            continue
        for back in range(saved.stores.suffix[place]):
            shorter = slot.key[: len(slot.key) - back * engine.geometry.block_tokens[slot.group]]
            yield place * size + size - 1 - back, engine.content_of(shorter, saved.generation)


def _kept_content(core: Core, size: int) -> tuple[frozenset[int], frozenset[int]]:
    """Blocks and host places whose content may be read by somebody later."""
    blocks = frozenset(place for place, at in enumerate(core.blocks) if at in _READ_LATER)
    slots = [slot for slot, at in enumerate(core.slots) if at != Slot.EMPTY.name]
    return blocks, frozenset(slot * size + part for slot in slots for part in range(size))


def _misplanned(engine: Engine, before: Core, orders: Orders | None) -> tuple[str, str] | None:
    """What is wrong with jobs that were just made (I14), or with what the workers are told (I15, S5)."""
    ledger = engine.ledger
    if orders is not None and engine.settings.last_step is LastStep.FLUSH and before.over:
        missed = [job for job in before.live if job not in orders.flushes and job in ledger.jobs.out]
        if missed:
            return LAST_STEP, f"all requests are over, and plan {orders.plan} does not wait for job {missed[0]}"
    last = before.saved.ledger.last_number
    for number, job in ledger.jobs.by_number.items():
        if number > last and job.direction is Direction.STORE:
            for group, _, keys in job.cargo.contents:
                for key in keys:
                    slot = next((at for at, each in enumerate(ledger.slots.key) if each == key), None)
                    if slot is not None and before.slots[slot] == ledger.slots.at(slot).name == Slot.READY.name:
                        return "I14", f"job {number} stores {key.decode()} of group {group}, which is stored already"
    for order in (*orders.loads, *orders.stores) if orders is not None else ():
        found = [0] * len(order.sizes)
        for block in order.blocks:
            found[ledger.blocks.group[block]] += 1
        if tuple(found) != order.sizes:
            return "I15", f"job {order.job} has group sizes {order.sizes}, and moves {tuple(found)}"
    return None


def _offered_again(engine: Engine, before: Core) -> tuple[str, str] | None:
    """Content whose load was just lost and that can still be found: the same hit would come back (I7)."""
    ledger = engine.ledger
    for saved in before.saved.ledger.jobs:
        job = ledger.jobs.by_number.get(saved.number)
        if saved.direction is Direction.STORE or saved.state in _LOST or job is None:
            continue
        if ledger.jobs.state(job) in (Job.FAILED, Job.QUARANTINED):
            for slot, key in zip(job.slots, job.keys, strict=True):
                if ledger.slots.at(slot) is Slot.READY and ledger.slots.key[slot] == key:
                    return "I7", f"the load {job.number} is lost, and slot {slot} can still be found as {key.decode()}"
    return None


def _unheard(engine: Engine, before: Core, handed_out: Sequence[int]) -> tuple[str, str] | None:
    """A block with a new tenant of which nobody was told: who waits for its copies would never know (I1)."""
    blocks = engine.ledger.blocks
    for place, saved in enumerate(before.saved.ledger.blocks):
        if blocks.refs[place] and blocks.epoch[place] != saved.epoch and place not in handed_out:
            return "I1", f"block {place} has a new tenant, and no listener heard of it"
    return None


def _mistold(engine: Engine, before: Core) -> tuple[str, str] | None:
    """Who applies what listeners hear, row by row, ends where the ledger does: nothing moves without a row, or in silence."""
    ledger, saved = engine.ledger, before.saved.ledger
    columns = {"block": ledger.blocks.column, "slot": ledger.slots.column, "request": ledger.request_column}
    at: dict[str, dict[int, int]] = {
        "block": {place: each.state for place, each in enumerate(saved.blocks)},
        "slot": {place: each.state for place, each in enumerate(saved.slots)},
        "job": {each.number: each.state for each in saved.jobs},
        "request": {each.row: each.state for each in saved.requests},
    }
    for told in engine.told:
        table, states = MACHINES[told.machine], at[told.machine]
        for place, number in told.steps():
            row, stood = table.row(number), states.get(place, table.index[table.initial])
            if table.index[row.source] != stood:
                return TOLD, f"{told.machine} {place}: {row} is told while it is {table.states[stood].name}"
            states[place] = table.index[row.target]
    for machine, column in columns.items():
        for place, stands in at[machine].items():
            if column.state[place] != stands and (machine != "request" or place not in ledger._spare_requests):
                told_of = column.table.states[stands].name
                return TOLD, f"{machine} {place} is {column.at(place).name}, and listeners heard that it is {told_of}"
    for number, stands in at["job"].items():
        job = ledger.jobs.by_number.get(number)
        if job is not None and ledger.jobs.column.state[job.row] != stands:
            return TOLD, f"job {number} is {ledger.jobs.state(job).name}, and listeners heard something else"
    return None


def _disagreements(core: Core, device: FrozenDevice) -> Iterator[tuple[str, str]]:
    """Where the two truths differ."""
    for rank, worker in enumerate(device.workers):
        for order in (*(order for order, _, _ in worker.copies), *worker.held_back):
            blocks, places = (STORE_READS, STORE_WRITES) if order.stores else (LOAD_WRITES, LOAD_READS)
            for block in order.blocks:
                if core.blocks[block] not in blocks:
                    yield (
                        "I1",
                        f"worker {rank}: copy {order.job} touches block {block}, which is said to be {core.blocks[block]}",
                    )
            size = len(worker.places) // len(core.slots)
            for slot in {place // size for place in order.places}:
                if core.slots[slot] not in places:
                    yield "I1", f"worker {rank}: copy {order.job} touches slot {slot}, which is said to be {core.slots[slot]}"
        if worker.lost:
            continue
        for block, content in core.readable_blocks:
            if worker.blocks[block] != content:
                yield "I6", f"worker {rank}: block {block} is found as {content}, and holds {_said(worker.blocks[block])}"
        for place, content in core.readable_places:
            if worker.places[place] != content:
                yield (
                    "I6",
                    f"worker {rank}: host place {place} is found as {content}, and holds {_said(worker.places[place])}",
                )


def _said(content: Content) -> str:
    return "garbage" if content is None else str(content)
