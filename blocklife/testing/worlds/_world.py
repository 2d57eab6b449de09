"""The world that the explorer explores: the real scheduler and its ledger, the device, and the messages between them.

Rules of this file:

* In every state, what the ledger says is compared with what the device does.
* The engine is the simplest one possible (`_engine`); everything else that can happen is an action, offered wherever possible.
* A state is a value under canonical names: states that differ only in the names of blocks, slots, jobs or plans are one state.

Theory. The world is a product of two parts, the *core* (scheduler, host tier, ledger) and the *device*, which exchange plain
records and nothing else. Each is a function of the calls made to it. So every distinct value of a part is kept once and
numbered, and each call is made once on each value of a part, by the real code; the result is memoized. A state of the world is
a pair of numbers and an environment (`Env`). Most steps of a world lead to new pairs of known values, which is what makes
exploring fast: interleavings of reports, faults and landings multiply states, but not calls.

The environment: which requests have arrived, reports that have reached the engine but not the scheduler (*inbox*), reports that
will come a second time (*echoes*), and how many faults of each kind are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import inf
from typing import Any, NamedTuple, TypeAlias

from attrs import define, evolve

from blocklife.errors import CapacityError, InvariantError, MisuseError
from blocklife.ledger import Direction, JobId, Jobs
from blocklife.ledger.invariants import check
from blocklife.lifecycle import Row
from blocklife.offload import Demote
from blocklife.offload._snapshot import SavedScheduler
from blocklife.states import ADMITTED, Request
from blocklife.testing.exploring._model import Broken, Kind, Property
from blocklife.testing.worlds._actions import CLOSING, FAULT_DOCS, NEW_SPACE, SPENDS, Acts, verbs_with
from blocklife.testing.worlds._actions import Action as Action
from blocklife.testing.worlds._actions import Faults as Faults
from blocklife.testing.worlds._cross_checks import (
    BELOW,
    KEPT,
    LAST_STEP,
    LAWFUL,
    OVER,
    RULES,
    TOLD,
    WAITS,
    CoreValue,
    blamed,
    described,
    disagreements,
    left_behind,
    loads,
    misdone,
    names_tail,
    not_kept,
    overdue_wait,
    unheeded,
)
from blocklife.testing.worlds._device import Device, DeviceFault, DeviceMemo, FrozenDevice, Landing, Orders, renamed
from blocklife.testing.worlds._device import DeviceNames as DeviceNames
from blocklife.testing.worlds._engine import LONG_OVER, Engine
from blocklife.testing.worlds._row_counts import RowCounts
from blocklife.testing.worlds._settings import Script as Script
from blocklife.testing.worlds._settings import WorldSettings as WorldSettings
from blocklife.testing.worlds._store_below import WorldStore

_FAULT = {name: number for number, name in enumerate(FAULT_DOCS)}
_FAIL, _HANG, _REFUSE = _FAULT["fail"], _FAULT["hang"], _FAULT["refuse"]
_OF_COPIES, _OF_REPORTS, _FORGETS, _FORGETS_HOST, _PASSING = map(
    verbs_with, (Acts.OF_COPY, Acts.OF_REPORT, Acts.FORGETS, Acts.FORGETS_HOST, Acts.PASSES)
)
_FOUND, _LACKING = "answer_hit", "answer_miss"
_STEP, _STEP_FAILING, _SETTLE, _SETTLE_LATE = map(Action, ("step", "step_failing", "settle", "settle_late"))


class Env(NamedTuple):
    """The messages between core and device, and what may still happen."""

    arrived: int
    """One bit for each request that has arrived."""
    inbox: tuple[Landing, ...]
    echoes: tuple[Landing, ...]
    left: tuple[int, ...]
    """Faults of each kind that may still happen."""
    lost: tuple[str, ...] = ()
    """Requests in the world, named once for each of their lost loads."""


class State(NamedTuple):
    """A state of the world; ``core`` and ``device`` are numbers of values that the world keeps."""

    core: int
    device: int
    env: Env


@define(eq=False)
class CoreStep:
    """The result of one call on a value of the core: the new value, and what the device has to know. Never changed."""

    message: int
    """The number of the message to the device: calls with equal numbers are the same to it."""
    core: int
    orders: Orders | None
    handed_out: tuple[int, ...]
    names: DeviceNames
    proven: tuple[int, ...] = ()
    """Jobs whose copies were stopped first."""
    failed: tuple[str, ...] = ()
    """Requests that lost a load."""
    loading: tuple[str, ...] = ()
    """Requests for which a load was planned."""
    problem: tuple[str, str] | None = None
    out: frozenset[int] = frozenset()
    """Jobs that are not over after the call, under the names of before."""


_CoreCall: TypeAlias = tuple[int, Action, tuple[Landing, ...], tuple[tuple[int, int], ...]]
"""A value of the core, the call, and its arguments: reports, and which copies have begun to run."""
_NOBODY: frozenset[int] = frozenset()
NO_MESSAGE = -1
"""The message number of a call that has failed, of which the device is told nothing."""


class World:
    """A model for `explore`: everything that a small engine, its copies and its clients can do."""

    def __init__(self, settings: WorldSettings) -> None:
        if settings.timed:
            settings = evolve(settings, engine=evolve(settings.engine, deadline=1.0))
        self.settings = settings
        self.engine = Engine(settings.engine)
        self._rows = RowCounts(self.engine.ledger, self.engine.scheduler)
        for script in settings.requests:
            self.engine.know(script.name, script.text, script.prompt)
        geometry = self.engine.geometry
        self._size = geometry.blocks_per_chunk
        self._tails = geometry.tail_tokens is not None
        self._below = None if settings.engine.below is None else WorldStore(settings)
        entries = 0
        if self._below is not None:
            self.engine.entries = self._below.entries
            entries = len(self._below.entries) * self._size
        self._device = Device(
            settings.engine.num_blocks + 1,
            settings.engine.num_slots * self._size,
            settings.engine.num_workers,
            num_entries=entries,
            agrees=self.engine.agrees,
        )
        if self._below is not None:
            self._below.fill(self._device)
        self._fence = settings.engine.contract.name == "FENCE"
        self._timed = settings.timed
        self._most = settings.engine.max_requests
        self._plans_ahead = int(settings.engine.asynchronous)
        self._cores: list[CoreValue] = []
        self._core_numbers: dict[tuple[SavedScheduler, str], int] = {}
        self._parts: dict[Any, Any] = {}
        """The large parts of those values, each kept once: a world has thousands of values, but only hundreds of parts."""
        self._problems: list[tuple[str, str] | None] = [None]
        """For each value of the core, the ledger rule that it breaks, or None."""
        self._steps: dict[tuple[_CoreCall, int | None], CoreStep] = {}
        self._messages: dict[tuple[object, ...], int] = {}
        """The messages to the device, numbered. There are far fewer than calls."""
        self._claims: dict[tuple[object, ...], int] = {}
        """What values of the core claim about the device, numbered likewise."""
        self._claims_of: list[int] = []
        """For each value of the core, the number of its claims."""
        self._out: dict[_CoreCall, frozenset[int]] = {}
        """The jobs that are out after each call: their names do not depend on reports still to come."""
        self._devices = DeviceMemo(self._device)
        self._arriving: dict[int, tuple[Action, ...]] = {}
        self._anytimes: dict[tuple[int, tuple[int, ...]], tuple[Action, ...]] = {}
        self._copies: dict[tuple[int, bool, bool, bool], tuple[Action, ...]] = {}
        self._judged: dict[tuple[int, int], tuple[str, str] | None] = {}
        self.core_calls = 0
        """How often the real code was run."""
        self._core_number(self.engine.freeze()[0], "")

    # --- the model ----------------------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """The empty world: no requests, no copies."""
        return State(0, 0, Env(0, (), (), tuple(times for _, times in self.settings.faults.items())))

    def rules(self) -> Sequence[str]:
        """The rules checked in each step."""
        of_tier = [] if self._below is None else [BELOW]
        if self._below is not None or self.settings.engine.policies.pending_wait < inf:
            of_tier.insert(0, WAITS)
        return (*RULES, LAST_STEP, *([KEPT] if self.settings.roomy else []), *of_tier, TOLD, LAWFUL)

    def properties(self) -> Sequence[Property[State, Action]]:
        """Everything drains; and, so that this is not vacuous, something is stored and all requests finish."""
        everybody = (1 << len(self.settings.requests)) - 1
        return (
            Property("drains", Kind.LEADS_TO, "everybody ends and every copy lands", goal=self._drained, closing=_closes),
            Property("stores", Kind.SOMETIMES, "something can be read in the host tier", goal=self._stored),
            Property(
                "finishes",
                Kind.SOMETIMES,
                "all requests have come and gone",
                goal=lambda state: state.env.arrived == everybody and self._drained(state),
            ),
            *([Property("tails", Kind.SOMETIMES, "a tail is loaded", goal=self._loads_tail)] if self._tails else []),
            *(() if self._below is None else self._properties_below(self._below)),
        )

    def _properties_below(self, below: WorldStore) -> Iterator[Property[State, Action]]:
        """No request needs the store below to go on; and, so that this is not vacuous, content goes there and comes back."""
        yield Property(
            "goes on",
            Kind.LEADS_TO,
            "whoever waits for the store below alone goes on, although no copy lands and no question is answered",
            goal=lambda state: not self._cores[state.core].waits_below_alone,
            closing=_passes,
        )
        if self.settings.engine.below is None or self.settings.engine.below.demote is not Demote.NEVER:
            yield Property(
                "demotes",
                Kind.SOMETIMES,
                "the store below has what it did not have",
                goal=lambda state: below.has_more(self._devices.values[state.device]),
            )
        if self.settings.engine.below_shared:
            yield Property(
                "promotes",
                Kind.SOMETIMES,
                "something is copied from the store below to the host tier",
                goal=lambda state: any(
                    order.below and order.stores
                    for worker in self._devices.values[state.device].workers
                    for order, _, _ in worker.copies
                ),
            )

    def actions(self, state: State) -> Sequence[Action]:
        """What can happen next."""
        core, env = self._cores[state.core], state.env
        offered = list(self._arrivals(env.arrived)) if self._has_room(core) else []
        if core.plans_out <= self._plans_ahead and core.busy:
            offered.append(_STEP)
            if env.left[_FAIL] and self._waits_for(state):
                offered.append(_STEP_FAILING)
        if core.plans_out:
            offered.append(_SETTLE)
            if (self._timed and core.live) or core.waits:
                offered.append(_SETTLE_LATE)
        if self._below is not None:
            offered += self._of_below(core, state.device, env.left)
        offered += self._of_copies(state.device, env.left)
        if env.inbox or env.echoes:
            offered += self._of_reports(env)
        offered += self._anytime(state.core, env.left)
        return offered

    def step(self, state: State, action: Action) -> State:
        """The state after an action; raises `Broken` with the rule that does not hold."""
        after = self._take(state, action)
        if action.verb in _FORGETS and (remembered := self._not_forgotten(after, action)) is not None:
            raise Broken("I10", remembered)
        if (problem := self._judge(after.core, after.device)) is not None:
            raise Broken(*problem)
        return after

    def _not_forgotten(self, after: State, action: Action) -> str | None:
        """Content that can still be found right after all of it should be forgotten."""
        core = self._cores[after.core]
        if action.verb == "drain" and self._live_or_planned(core):
            return None  # it was refused
        if core.readable_blocks:
            return f"after {action.verb} block {core.readable_blocks[0][0]} can still be found"
        if action.verb in _FORGETS_HOST and core.readable_places:
            return f"after {action.verb} host place {core.readable_places[0][0]} can still be found"
        if self._below is not None and core.saved.below is not None and action.verb in NEW_SPACE:
            found = self._below.found(self._devices.values[after.device], core.saved.below.space)
            return f"after {action.verb} {found} can still be found below" if found else None
        return None

    def coverage(self) -> dict[str, dict[Row, int]]:
        """How often the real code took each row of each table."""
        return self._rows.by_machine()

    def core(self, state: State) -> CoreValue:
        """The value of the core in a state."""
        return self._cores[state.core]

    def device(self, state: State) -> FrozenDevice:
        """The value of the device in a state."""
        return self._devices.values[state.device]

    def running(self, state: State) -> list[tuple[int, int, bool]]:
        """Every share of a copy that runs: job, worker, and whether it hangs."""
        return self._running(state.device)

    def enter(self, core: CoreValue, device: FrozenDevice, env: Env) -> State:
        """The state with these values, already checked by another world of the same settings."""
        return State(self._core_number(core.saved, core.weights), self._devices.number(device), env)

    # --- in several processes -----------------------------------------------------------------------------------------------

    def parts(self) -> tuple[int, ...]:
        """How many values of the core, and of the device, are kept."""
        return len(self._cores), len(self._devices.values)

    def pack(self, kind: int, number: int) -> object:
        """A value of the core, or of the device."""
        if kind:
            return self._devices.values[number]
        core = self._cores[number]
        # the parts that every process has are left out
        requests = tuple([each._replace(keys=_no_keys, tails=None) for each in core.saved.requests])
        ledger = core.saved.ledger._replace(made_with="")
        return core.saved._replace(ledger=ledger, requests=requests), core.weights

    def unpack(self, kind: int, value: object) -> int:
        """The number of such a value here."""
        match value:
            case FrozenDevice():
                return self._devices.number(value)
            case (SavedScheduler() as saved, str(weights)):
                keys, tails = self.engine.keys, self.engine.tails
                requests = tuple([each._replace(keys=keys(each.name), tails=tails(each.name)) for each in saved.requests])
                ledger = saved.ledger._replace(made_with=self._cores[0].saved.ledger.made_with)
                return self._core_number(saved._replace(ledger=ledger, requests=requests), weights)
        raise MisuseError(f"{value!r}: it is not part of a world")

    def divided(self, state: State) -> tuple[tuple[int, ...], object]:
        """The numbers of a state's values, and its environment."""
        return (state.core, state.device), state.env

    def joined(self, parts: tuple[int, ...], rest: object) -> State:
        """The state with these values."""
        if not isinstance(rest, Env):
            raise MisuseError(f"{rest!r}: it is not part of a world")
        core, device = parts
        return State(core, device, rest)

    def tallied(self) -> list[int]:
        """Calls of the real code, and how often each row of each table was taken."""
        return [self.core_calls, *self._rows.taken()]

    def add_tally(self, more: Sequence[int]) -> None:
        """Add what was counted elsewhere."""
        calls, *taken = more
        self.core_calls += calls
        self._rows.add(taken)

    @property
    def remembered(self) -> int:
        """How many values and calls the world keeps; it forgets none."""
        return len(self._devices) + sum(map(len, (self._cores, self._steps, self._judged, self._anytimes)))

    def digest(self) -> int:
        """A hash of the set of core values, to tell worlds apart; comparable only within one process."""
        return hash(frozenset(self._core_numbers))

    # --- what can happen ----------------------------------------------------------------------------------------------------

    def _twin_waits(self, number: int, arrived: int) -> bool:
        """Requests with the same text arrive in order: their names make no difference."""
        mine = self.settings.requests[number]
        return any(
            (other.text, other.prompt) == (mine.text, mine.prompt) and not arrived >> earlier & 1
            for earlier, other in enumerate(self.settings.requests[:number])
        )

    def _waits_for(self, state: State) -> bool:
        """Whether the next plan would wait for a running copy."""
        step = self._core_step(state.core, _STEP, _kept(state.env))
        runs = {job for job, _, hung in self._running(state.device) if not hung}
        runs |= {order.job for worker in self._devices.values[state.device].workers for order in worker.held_back}
        runs |= {order.job for order in step.orders.loads} if step.orders is not None else set()
        return step.orders is not None and not runs.isdisjoint(step.orders.flushes)

    def _arrivals(self, arrived: int) -> tuple[Action, ...]:
        """Requests that can arrive if there is room."""
        found = self._arriving.get(arrived)
        if found is None:
            scripts = enumerate(self.settings.requests)
            coming = [each.name for at, each in scripts if not arrived >> at & 1 and not self._twin_waits(at, arrived)]
            found = self._arriving[arrived] = tuple([Action("arrive", name) for name in coming])
        return found

    def _of_copies(self, device: int, left: tuple[int, ...]) -> tuple[Action, ...]:
        """What can happen to running copies."""
        key = device, left[_FAIL] > 0, left[_HANG] > 0, left[_REFUSE] > 0
        found = self._copies.get(key)
        if found is None:
            verbs = ("land", *(["fail"] if key[1] else []), *(["hang"] if key[2] else []))
            running = self._running(device)
            found = tuple([Action(verb, "", job, worker) for job, worker, hung in running if not hung for verb in verbs])
            if key[3]:
                workers = enumerate(self._devices.values[device].workers)
                demotes = [(rank, order) for rank, each in workers for order, _, hung in each.copies if not hung]
                demotes = [(rank, order) for rank, order in demotes if order.below and not order.stores]
                found += tuple([Action("refuse", "", order.job, rank) for rank, order in demotes])
            self._copies[key] = found
        return found

    def _of_below(self, core: CoreValue, device: int, left: tuple[int, ...]) -> Iterator[Action]:
        """What the store below can do, besides what happens to its copies."""
        if (below := self._below) is None:
            return
        if not core.is_up:
            yield Action("up")
        elif left[_FAULT["down"]]:
            yield Action("down")
        value = self._devices.values[device]
        for entry in core.asked:
            number = below.entries[entry]
            yield Action(_FOUND if below.has(value, number) else _LACKING, job=number)
        if left[_FAULT["vanish"]]:
            for number in range(len(below.entries)):
                yield from [Action("vanish", job=number, worker=rank) for rank in below.parts(value, number)]

    def _of_reports(self, env: Env) -> Iterator[Action]:
        """What can happen to reports in the inbox."""
        for landing in dict.fromkeys(env.inbox):
            if env.left[_FAULT["lose"]]:
                yield Action("lose", job=landing.job, worker=landing.worker)
            if env.left[_FAULT["repeat"]] and landing not in env.echoes:
                yield Action("repeat", job=landing.job, worker=landing.worker)
        for landing in env.echoes:
            yield Action("echo", job=landing.job, worker=landing.worker)

    def _has_room(self, core: CoreValue) -> bool:
        """Whether the ledger can take one more request; a second owner is one, too."""
        return len(core.saved.ledger.requests) < self._most

    def _anytime(self, number: int, left: tuple[int, ...]) -> tuple[Action, ...]:
        """Faults that can happen whatever the copies do."""
        found = self._anytimes.get((number, left))
        if found is None:
            core = self._cores[number]
            nothing = not (any(left) or core.asleep or core.lost or core.quarantined or core.hosts)
            found = () if nothing else (*self._client_actions(core, left), *self._upheavals(core, left))
            self._anytimes[number, left] = found
        return found

    def _client_actions(self, core: CoreValue, left: tuple[int, ...]) -> Iterator[Action]:
        for name, at in core.requests:
            if left[_FAULT["abort"]]:
                yield Action("abort", name)
            if left[_FAULT["preempt"]] and at in ADMITTED:
                yield Action("preempt", name)
            if left[_FAULT["lend"]] and at is Request.RUNNING and name not in core.hosts and self._has_room(core):
                yield Action("lend", name)
        yield from [Action("give_back", name) for name in core.hosts]

    def _upheavals(self, core: CoreValue, left: tuple[int, ...]) -> Iterator[Action]:
        yield from [Action(verb) for verb in ("reset", "drain", "renew") if left[_FAULT[verb]]]
        if left[_FAULT["sleep"]] and not core.asleep:
            yield Action("sleep")
        if core.asleep and not (core.plans_out or core.demotes or self._live_or_planned(core)):
            yield Action("wake")
        for worker in range(self.settings.engine.num_workers) if left[_FAULT["lose_worker"]] and not core.lost else ():
            yield Action("lose_worker", worker=worker)
        for worker in core.lost:
            yield Action("regain_worker", worker=worker)
        if core.quarantined:
            yield Action("prove")

    def _live_or_planned(self, core: CoreValue) -> bool:
        return any(job.state not in OVER for job in core.saved.ledger.jobs)

    # --- taking a step ------------------------------------------------------------------------------------------------------

    def _take(self, state: State, action: Action) -> State:
        core, device, env = state
        verb = action.verb
        if verb in SPENDS:
            env = self._spent(env, SPENDS[verb])
        if verb in _OF_COPIES:
            device, landed = self._device_step(device, action, lambda device: self._land(device, action))
            if landed:
                arrived, inbox, echoes, left, lost = env
                env = Env(arrived, tuple(sorted(inbox + landed)) if inbox else landed, echoes, left, lost)
            return State(core, device, env)
        if verb in _OF_REPORTS:
            return State(core, device, self._mislay(env, action))
        if verb == "vanish":
            device, _ = self._device_step(device, action, lambda device: self._vanish(device, action))
            return State(core, device, env)
        if verb == "settle" or verb == "settle_late":
            return self._settle(state, action)
        step = self._core_step(core, _core_action(action), _kept(env))
        if verb == "arrive":
            number = next(at for at, script in enumerate(self.settings.requests) if script.name == action.request)
            env = env._replace(arrived=env.arrived | 1 << number)
        return self._with_device(state, step, action, env)

    def _settle(self, state: State, action: Action) -> State:
        """The engine passes on all reports; with deadlines, also which copies have begun to run."""
        launched: tuple[tuple[int, int], ...] = ()
        if self._timed:
            launched = self._devices.values[state.device].begun
        env = state.env
        arrived, inbox, echoes, left, lost = env
        if inbox:
            env = Env(arrived, (), echoes, left, lost)
        step = self._core_step(state.core, action, _kept(env), inbox, launched)
        return self._with_device(state, step, action, env)

    def _with_device(self, state: State, step: CoreStep, action: Action, env: Env) -> State:
        """Tell the device what the core did, and switch to the new names."""
        if step.problem is not None:
            raise Broken(*step.problem)
        device, landed = self._device_step(
            state.device, (step.message, action.verb), lambda each: self._follow(each, step, action)
        )
        arrived, inbox, echoes, left, lost = env
        for name in step.loading:
            if lost.count(name) >= self.settings.engine.policies.max_load_failures:
                raise Broken("I7", f"request {name} has lost {lost.count(name)} loads, and another one is planned for it")
        if lost or step.failed:
            here = {each.name for each in self._cores[step.core].saved.requests}
            failed = () if action.verb == "lose_worker" else step.failed  # with it goes all content: there is nothing to load
            lost = tuple(sorted([name for name in (*lost, *failed) if name in here]))
        if inbox or echoes:
            # a job whose row was reused has no name left, but its reports can still come
            jobs = step.names.jobs
            inbox = _told_again(inbox, jobs)
            echoes = _told_again(echoes, jobs)
        if landed:
            inbox = tuple(sorted(inbox + landed))
        if inbox is not env.inbox or echoes is not env.echoes or lost is not env.lost:
            env = Env(arrived, inbox, echoes, left, lost)
        return State(step.core, device, env)

    def _spent(self, env: Env, fault: str) -> Env:
        arrived, inbox, echoes, left, lost = env
        at = _FAULT[fault]
        return Env(arrived, inbox, echoes, (*left[:at], left[at] - 1, *left[at + 1 :]), lost)

    def _mislay(self, env: Env, action: Action) -> Env:
        """A report is lost, will come again, or comes again."""
        found = next(
            each
            for each in (env.echoes if action.verb == "echo" else env.inbox)
            if (each.job, each.worker) == (action.job, action.worker)
        )
        if action.verb == "echo":
            return env._replace(inbox=tuple(sorted((*env.inbox, found))), echoes=_without(env.echoes, found))
        if action.verb == "repeat":
            return env._replace(echoes=tuple(sorted((*env.echoes, found))))
        return env._replace(inbox=_without(env.inbox, found))

    # --- the device ---------------------------------------------------------------------------------------------------------

    def _device_step(
        self, number: int, what: object, act: Callable[[Device], tuple[FrozenDevice, tuple[Landing, ...]]]
    ) -> tuple[int, tuple[Landing, ...]]:
        """Do something to a value of the device."""
        try:
            return self._devices.call(number, what, act)
        except DeviceFault as fault:
            raise Broken(fault.rule, fault.message) from fault

    @staticmethod
    def _land(device: Device, action: Action) -> tuple[FrozenDevice, tuple[Landing, ...]]:
        landed: tuple[Landing, ...] = ()
        if action.verb == "hang":
            device.hang(action.job, action.worker)
        elif action.verb == "refuse":
            landed = (device.refuse(action.job, action.worker),)
        else:
            landed = (device.land(action.job, action.worker, ok=action.verb == "land"),)
        return device.freeze(), landed

    def _vanish(self, device: Device, action: Action) -> tuple[FrozenDevice, tuple[Landing, ...]]:
        for part in range(self._size):
            device.vanish(action.job * self._size + part, action.worker)
        return device.freeze(), ()

    def _follow(self, device: Device, step: CoreStep, action: Action) -> tuple[FrozenDevice, tuple[Landing, ...]]:
        """The effect of a call to the core on the device; the answer uses the new names."""
        landed: list[Landing] = []
        if action.verb == "prove":
            device.abort(step.proven)
        elif action.verb == "lose_worker":
            device.lose(action.worker)
        elif action.verb == "regain_worker":
            device.regain(action.worker)
        elif action.verb == "wake":
            device.reset_blocks()
        device.hand_out(step.handed_out, fence=self._fence)
        if step.orders is not None:
            failing: list[tuple[int, int]] = []
            if action.verb == "step_failing":
                failing = [(job, worker) for job in step.orders.flushes for worker in range(len(device.workers))]
            landed = device.carry_out(step.orders, failing=failing)
        elif action.verb in ("settle", "settle_late"):
            device.take_begun()
        if not self._timed:
            device.take_begun()  # nobody waits for a deadline
        core = self._cores[step.core]
        after = renamed(device.freeze(), step.names, core.kept_blocks, core.kept_places)
        jobs = step.names.jobs
        return after, tuple([landing._replace(job=jobs[landing.job]) for landing in landed]) if landed else ()

    def _running(self, number: int) -> list[tuple[int, int, bool]]:
        return [
            (order.job, rank, hung)
            for rank, worker in enumerate(self._devices.values[number].workers)
            for order, _, hung in worker.copies
        ]

    # --- the core -----------------------------------------------------------------------------------------------------------

    def _core_number(self, saved: SavedScheduler, weights: str) -> int:
        number = self._core_numbers.get((saved, weights))
        if number is None:
            saved = self._shared(saved)
            number = self._core_numbers[saved, weights] = len(self._cores)
            core = described(self.engine, saved, weights)
            claims = (
                core.live, core.blocks, core.slots, core.readable_blocks, core.readable_places, weights, core.rest_below,
                core.asked if self._tails else (),
            )  # fmt: skip
            self._cores.append(core)
            self._claims_of.append(self._claims.setdefault(claims, len(self._claims)))
            self._problems.append(None)
        return number

    def _shared(self, saved: SavedScheduler) -> SavedScheduler:
        """The same value, with its parts replaced by equal parts already known: those are still in the processor's cache."""
        known, ledger = self._parts.setdefault, saved.ledger
        return saved._replace(
            requests=known(saved.requests, saved.requests),
            progress=known(saved.progress, saved.progress),
            stores=known(saved.stores, saved.stores),
            ledger=ledger._replace(
                blocks=known(ledger.blocks, ledger.blocks),
                slots=known(ledger.slots, ledger.slots),
                block_index=known(ledger.block_index, ledger.block_index),
                slot_index=known(ledger.slot_index, ledger.slot_index),
                jobs=known(ledger.jobs, ledger.jobs),
                requests=known(ledger.requests, ledger.requests),
                spare_jobs=known(ledger.spare_jobs, ledger.spare_jobs),
                spare_requests=known(ledger.spare_requests, ledger.spare_requests),
            ),
        )

    def _counted_again(self, core: int) -> tuple[str, str] | None:
        """The ledger rule broken by this value, if any. The engine is at this value now, under other names."""
        described = self._cores[core]
        if found := check(self.engine.ledger):
            self.engine.thaw(described.saved)
            first = (check(self.engine.ledger) or found)[0]  # the fault can lie in something that a snapshot leaves out
            return first.rule, first.message
        if not described.idle:
            return None
        kept = not_kept(described, self.engine.geometry) if self.settings.roomy else iter(())
        return next(chain(left_behind(described), kept), None)

    def _core_step(
        self,
        core: int,
        action: Action,
        kept: tuple[int, ...],
        inbox: tuple[Landing, ...] = (),
        launched: tuple[tuple[int, int], ...] = (),
    ) -> CoreStep:
        """Make a call on a value of the core; repeated calls are answered from memory."""
        call = core, action, inbox, launched
        found = self._steps.get((call, _oldest(kept, self._out.get(call, _NOBODY)) if kept else None))
        if found is None:
            found = self._call(core, action, kept, inbox, launched)
            self._out[call] = found.out
            self._steps[call, _oldest(kept, found.out)] = found
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
        engine.weights = before.weights
        violations = engine.ledger.counts.tally["violations"]
        try:
            orders, handed_out = self._act(engine, action, before, inbox, launched)
            problem = misdone(engine, before, orders, handed_out, action.verb, action.worker)
            if problem is None and engine.ledger.counts.tally["violations"] > violations:
                problem = LAWFUL, "the ledger counted a violation"
            failed, loading = loads(engine, before)
            saved, names = engine.freeze(kept)
            out = frozenset([job.number for job in engine.ledger.jobs.alive()])
            problem = problem or unheeded(saved, action.verb, action.request, action.worker)
            core = self._core_number(saved, engine.weights)
            self._problems[core] = self._problems[core] or self._counted_again(core)
        except Broken as broken:
            return CoreStep(NO_MESSAGE, 0, None, (), DeviceNames((), (), {}), problem=(broken.rule, str(broken)))
        except Exception as broken:
            # whatever the code under test raises is a finding: mutants raise exceptions of every kind
            return CoreStep(NO_MESSAGE, 0, None, (), DeviceNames((), (), {}), problem=blamed(broken))
        proven = before.quarantined if action.verb == "prove" else ()
        blocks, places, jobs = tuple(names.blocks), _places(tuple(names.slots), self._size), tuple(names.jobs.items())
        after = self._cores[core]
        message = (
            action.worker, orders, handed_out, blocks, places, jobs, names.plans_before, proven, after.kept_blocks,
            after.kept_places,
        )  # fmt: skip
        return CoreStep(
            self._messages.setdefault(message, len(self._messages)),
            core,
            orders,
            handed_out,
            DeviceNames(blocks, places, names.jobs, names.plans_before),
            proven,
            failed,
            loading,
            problem or self._problems[core],
            out,
        )

    def _act(
        self,
        engine: Engine,
        action: Action,
        core: CoreValue,
        inbox: tuple[Landing, ...],
        launched: tuple[tuple[int, int], ...],
    ) -> tuple[Orders | None, tuple[int, ...]]:
        """Make one call. Returns the orders for the device, which only a step has, and the blocks that were handed out."""
        scheduler = engine.scheduler
        match action.verb:
            case "step":
                stepped = engine.step()
                if (problem := overdue_wait(engine, core, stepped.deferred)) is not None:
                    raise Broken(*problem)
                return stepped.orders, stepped.handed_out
            case "settle" | "settle_late":
                if action.verb == "settle_late":
                    engine.now += self.settings.engine.deadline if self._timed else 1.0
                engine.settle(inbox, launched=launched)
                return None, engine.take_handed_out()
            case "arrive":
                script = next(each for each in self.settings.requests if each.name == action.request)
                engine.add(script.name, script.text, script.prompt)
            case "abort" | "preempt" | "lend" | "give_back":
                engine.tell(action.verb, action.request)
            case "reset" | "sleep" | "wake":
                getattr(scheduler, action.verb)()
            case "lose_worker" | "regain_worker":
                getattr(scheduler, action.verb)(action.worker)
            case "drain":
                self._drain(engine, core)
            case "renew":
                engine.renew(engine.weights + "x")
            case "down" | "up" if engine.index is not None:
                engine.index.is_up = action.verb == "up"
            case "answer_hit" | "answer_miss" if engine.index is not None and self._below is not None:
                engine.index.answer(self._below.names[action.job], action.verb == _FOUND)
            case "prove":
                engine.ledger.quiesce(Jobs(tuple(JobId(engine.ledger.incarnation, job) for job in core.quarantined)))
            case verb:
                raise MisuseError(f"action {verb}: it is unknown")
        return None, ()

    def _drain(self, engine: Engine, core: CoreValue) -> None:
        """Forget all content if no job is out; otherwise the call has to refuse and change nothing."""
        if not self._live_or_planned(core):
            engine.scheduler.reset(drain=True)
            return
        before = engine.scheduler.snapshot()
        try:
            engine.scheduler.reset(drain=True)
        except CapacityError:
            if engine.scheduler.snapshot() != before:
                raise InvariantError("a refused drain has changed something (I5)") from None
            return
        raise InvariantError("a drain was not refused although jobs are out (I10)")

    # --- core against device ------------------------------------------------------------------------------------------------

    def _judge(self, core: int, device: int) -> tuple[str, str] | None:
        """The first difference between core and device, with the rule that it breaks."""
        key = self._claims_of[core], device
        if key not in self._judged:
            found = disagreements(self._cores[core], self._devices.values[device], self.engine.agrees)
            if self._below is not None:
                found = chain(found, self._below.wrong(self._cores[core], self._devices.values[device], self.engine.agrees))
            self._judged[key] = next(found, None)
        return self._judged[key]

    def _stored(self, state: State) -> bool:
        return bool(self._cores[state.core].readable_places)

    def _loads_tail(self, state: State) -> bool:
        jobs = self._cores[state.core].saved.ledger.jobs
        return any(job.direction is Direction.LOAD and names_tail(self.engine.geometry, job.payload.keys) for job in jobs)

    def _drained(self, state: State) -> bool:
        """No request is left and no copy is out. A report that nobody waits for may stay in the inbox."""
        workers = self._devices.values[state.device].workers
        return self._cores[state.core].idle and not any(worker.copies or worker.held_back for worker in workers)


@lru_cache(4096)
def _places(slots: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The new names of the host places, from those of the slots."""
    return tuple([slot * size + part for slot in slots for part in range(size)])


def _no_keys(group: int, start: int, stop: int) -> list[bytes]:
    raise MisuseError("a value from another process has no keys of its own")


def _told_again(landings: tuple[Landing, ...], jobs: Mapping[int, int]) -> tuple[Landing, ...]:
    """Reports under the new names of jobs."""
    return tuple(sorted([each._replace(job=jobs.get(each.job, LONG_OVER)) for each in landings])) if landings else ()


def _closes(action: Action) -> bool:
    return action.verb in CLOSING


def _passes(action: Action) -> bool:
    return action.verb in _PASSING


def _core_action(action: Action) -> Action:
    """The call that an action makes: whether awaited copies fail concerns only the device."""
    return _STEP if action.verb == "step_failing" else action


def _without(landings: tuple[Landing, ...], landing: Landing) -> tuple[Landing, ...]:
    """All but one that is equal to this."""
    at = landings.index(landing)
    return (*landings[:at], *landings[at + 1 :])


def _kept(env: Env) -> tuple[int, ...]:
    """Jobs of which reports are still to come."""
    return tuple(sorted({landing.job for landing in (*env.inbox, *env.echoes)})) if env.inbox or env.echoes else ()


def _oldest(kept: tuple[int, ...], out: frozenset[int]) -> int | None:
    """All that names depend on besides the ledger itself: the oldest finished job of which a report is still to come."""
    return min([job for job in kept if job not in out], default=None) if kept else None
