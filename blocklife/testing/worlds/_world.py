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
from itertools import chain
from math import inf

from attrs import evolve

from blocklife.errors import MisuseError
from blocklife.ledger import Direction
from blocklife.lifecycle import Row
from blocklife.offload import Demote
from blocklife.testing.exploring._model import Broken, Kind, Property
from blocklife.testing.worlds._actions import CLOSING, NEW_SPACE, SPENDS, Acts, verbs_with
from blocklife.testing.worlds._actions import Action as Action
from blocklife.testing.worlds._actions import Faults as Faults
from blocklife.testing.worlds._core_memo import CoreCall, CoreMemo, CoreStep
from blocklife.testing.worlds._cross_checks import (
    BELOW,
    KEPT,
    LAST_STEP,
    LAWFUL,
    RULES,
    TOLD,
    WAITS,
    CoreValue,
    disagreements,
    names_tail,
)
from blocklife.testing.worlds._device import Device, DeviceFault, DeviceMemo, FrozenDevice, Landing, renamed
from blocklife.testing.worlds._next_actions import FAULT_AT, STEP, Env, NextActions
from blocklife.testing.worlds._next_actions import State as State
from blocklife.testing.worlds._passes import LONG_OVER
from blocklife.testing.worlds._settings import Script as Script
from blocklife.testing.worlds._settings import WorldSettings as WorldSettings
from blocklife.testing.worlds._store_below import WorldStore

_OF_COPIES, _OF_REPORTS, _FORGETS, _FORGETS_HOST, _PASSING = map(
    verbs_with, (Acts.OF_COPY, Acts.OF_REPORT, Acts.FORGETS, Acts.FORGETS_HOST, Acts.PASSES)
)


class World:
    """A model for `explore`: everything that a small engine, its copies and its clients can do."""

    def __init__(
        self, settings: WorldSettings, make_core: Callable[[WorldSettings, WorldStore | None], CoreMemo] = CoreMemo
    ) -> None:
        if settings.timed:
            settings = evolve(settings, engine=evolve(settings.engine, deadline=1.0))
        self.settings = settings
        sizes = settings.engine
        self._below = None if sizes.below is None else WorldStore(settings)
        self._cores = make_core(settings, self._below)
        self.engine = self._cores.engine
        self._size = self.engine.geometry.blocks_per_chunk
        device = Device(
            sizes.num_blocks + 1,
            sizes.num_slots * self._size,
            sizes.num_workers,
            num_entries=0 if self._below is None else len(self._below.entries) * self._size,
            agrees=self.engine.agrees,
            shared=[each.writes for each in sizes.shared],
        )
        if self._below is not None:
            self._below.fill(device)
        self._fence = sizes.contract.name == "FENCE"
        self._devices = DeviceMemo(device)
        self._next = NextActions(settings, self._cores, self._devices, self._below)
        self._judged: dict[tuple[int, int], tuple[str, str] | None] = {}

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
        has_tails = self.engine.geometry.tail_tokens is not None
        return (
            Property("drains", Kind.LEADS_TO, "everybody ends and every copy lands", goal=self._drained, closing=_closes),
            Property("stores", Kind.SOMETIMES, "something can be read in the host tier", goal=self._stored),
            Property(
                "finishes",
                Kind.SOMETIMES,
                "all requests have come and gone",
                goal=lambda state: state.env.arrived == everybody and self._drained(state),
            ),
            *([Property("tails", Kind.SOMETIMES, "a tail is loaded", goal=self._loads_tail)] if has_tails else []),
            *(() if self._below is None else self._properties_below(self._below)),
        )

    def _properties_below(self, below: WorldStore) -> Iterator[Property[State, Action]]:
        """No request needs the store below to go on; and, so that this is not vacuous, content goes there and comes back."""
        yield Property(
            "goes on",
            Kind.LEADS_TO,
            "whoever waits for the store below alone goes on, although no copy lands and no question is answered",
            goal=lambda state: not self._cores.values[state.core].waits_below_alone,
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
        return self._next.actions(state)

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
        core = self._cores.values[after.core]
        if action.verb == "drain" and core.has_jobs:
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
        return self._cores.rows.by_machine()

    def core(self, state: State) -> CoreValue:
        """The value of the core in a state."""
        return self._cores.values[state.core]

    def device(self, state: State) -> FrozenDevice:
        """The value of the device in a state."""
        return self._devices.values[state.device]

    def running(self, state: State) -> list[tuple[int, int, bool]]:
        """Every share of a copy that runs: job, worker, and whether it hangs."""
        return self.device(state).running()

    def enter(self, core: CoreValue, device: FrozenDevice, env: Env) -> State:
        """The state with these values, already checked by another world of the same settings."""
        return State(self._cores.number(core.saved, core.weights), self._devices.number(device), env)

    # --- in several processes -----------------------------------------------------------------------------------------------

    def parts(self) -> tuple[int, ...]:
        """How many values of the core, and of the device, are kept."""
        return len(self._cores.values), len(self._devices.values)

    def pack(self, kind: int, number: int) -> object:
        """A value of the core, or of the device."""
        return self._devices.values[number] if kind else self._cores.pack(number)

    def unpack(self, kind: int, value: object) -> int:
        """The number of such a value here."""
        return self._devices.number(value) if isinstance(value, FrozenDevice) else self._cores.unpack(value)

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
        return [self._cores.calls, *self._cores.rows.taken()]

    @property
    def core_calls(self) -> int:
        """How often the real code was run."""
        return self._cores.calls

    def add_tally(self, more: Sequence[int]) -> None:
        """Add what was counted elsewhere."""
        calls, *taken = more
        self._cores.calls += calls
        self._cores.rows.add(taken)

    @property
    def remembered(self) -> int:
        """How many values and calls the world keeps; it forgets none."""
        return len(self._cores) + len(self._devices) + len(self._next) + len(self._judged)

    def digest(self) -> int:
        """A hash of the set of core values, to tell worlds apart; comparable only within one process."""
        return self._cores.digest()

    # --- what can happen ----------------------------------------------------------------------------------------------------

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
        step = self._cores.step(CoreCall(core, STEP if action.verb == "step_failing" else action), env.kept())
        if verb == "arrive":
            number = next(at for at, script in enumerate(self.settings.requests) if script.name == action.request)
            env = env._replace(arrived=env.arrived | 1 << number)
        return self._with_device(state, step, action, env)

    def _settle(self, state: State, action: Action) -> State:
        """The engine passes on all reports; with deadlines, also which copies have begun to run."""
        launched: tuple[tuple[int, int], ...] = ()
        if self.settings.timed:
            launched = self._devices.values[state.device].begun
        env = state.env
        arrived, inbox, echoes, left, lost = env
        if inbox:
            env = Env(arrived, (), echoes, left, lost)
        step = self._cores.step(CoreCall(state.core, action, inbox, launched), env.kept())
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
            here = {each.name for each in self._cores.values[step.core].saved.requests}
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
        at = FAULT_AT[fault]
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
        if not self.settings.timed:
            device.take_begun()  # nobody waits for a deadline
        core = self._cores.values[step.core]
        after = renamed(device.freeze(), step.names, core.kept_blocks, core.kept_places, shared=bool(device.shared))
        jobs = step.names.jobs
        return after, tuple([landing._replace(job=jobs[landing.job]) for landing in landed]) if landed else ()

    # --- the core -----------------------------------------------------------------------------------------------------------

    # --- core against device ------------------------------------------------------------------------------------------------

    def _judge(self, core: int, device: int) -> tuple[str, str] | None:
        """The first difference between core and device, with the rule that it breaks."""
        key = self._cores.claims_of[core], device
        if key not in self._judged:
            found = disagreements(self._cores.values[core], self._devices.values[device], self.engine.agrees)
            if self._below is not None:
                found = chain(
                    found, self._below.wrong(self._cores.values[core], self._devices.values[device], self.engine.agrees)
                )
            self._judged[key] = next(found, None)
        return self._judged[key]

    def _stored(self, state: State) -> bool:
        return bool(self._cores.values[state.core].readable_places)

    def _loads_tail(self, state: State) -> bool:
        jobs = self._cores.values[state.core].saved.ledger.jobs
        return any(job.direction is Direction.LOAD and names_tail(self.engine.geometry, job.payload.keys) for job in jobs)

    def _drained(self, state: State) -> bool:
        """No request is left and no copy is out. A report that nobody waits for may stay in the inbox."""
        workers = self._devices.values[state.device].workers
        return self._cores.values[state.core].idle and not any(worker.copies or worker.held_back for worker in workers)


def _told_again(landings: tuple[Landing, ...], jobs: Mapping[int, int]) -> tuple[Landing, ...]:
    """Reports under the new names of jobs."""
    return tuple(sorted([each._replace(job=jobs.get(each.job, LONG_OVER)) for each in landings])) if landings else ()


def _closes(action: Action) -> bool:
    return action.verb in CLOSING


def _passes(action: Action) -> bool:
    return action.verb in _PASSING


def _without(landings: tuple[Landing, ...], landing: Landing) -> tuple[Landing, ...]:
    """All but one that is equal to this."""
    at = landings.index(landing)
    return (*landings[:at], *landings[at + 1 :])
