"""What can happen next in a world: the actions that are offered in a state.

Rules of this file:

* Everything but the engine's own steps is offered wherever it is possible.
* What depends on few parts of a state is found once for each of their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from blocklife.states import ADMITTED, Request
from blocklife.testing.worlds._actions import FAULT_DOCS, Action
from blocklife.testing.worlds._core_memo import CoreCall, CoreMemo
from blocklife.testing.worlds._cross_checks import CoreValue
from blocklife.testing.worlds._device import DeviceMemo, Landing
from blocklife.testing.worlds._settings import WorldSettings
from blocklife.testing.worlds._store_below import WorldStore

FAULT_AT = {name: number for number, name in enumerate(FAULT_DOCS)}
"""The place of each fault in `Env.left`."""
_FAIL, _HANG, _REFUSE = FAULT_AT["fail"], FAULT_AT["hang"], FAULT_AT["refuse"]
STEP, STEP_FAILING, _SETTLE, _SETTLE_LATE = map(Action, ("step", "step_failing", "settle", "settle_late"))


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

    def kept(self) -> tuple[int, ...]:
        """Jobs of which reports are still to come."""
        return tuple(sorted({each.job for each in (*self.inbox, *self.echoes)})) if self.inbox or self.echoes else ()


class State(NamedTuple):
    """A state of the world; ``core`` and ``device`` are numbers of values that the world keeps."""

    core: int
    device: int
    env: Env


class NextActions:
    """The actions of one world. *below*: the store below, if there is one."""

    def __init__(self, settings: WorldSettings, cores: CoreMemo, devices: DeviceMemo, below: WorldStore | None) -> None:
        self._settings = settings
        self._cores = cores
        self._devices = devices
        self._below = below
        self._arriving: dict[int, tuple[Action, ...]] = {}
        self._anytimes: dict[tuple[int, tuple[int, ...]], tuple[Action, ...]] = {}
        self._copies: dict[tuple[int, bool, bool, bool], tuple[Action, ...]] = {}

    def __len__(self) -> int:
        return len(self._anytimes)

    def actions(self, state: State) -> Sequence[Action]:
        """What can happen next."""
        core, env = self._cores.values[state.core], state.env
        offered = list(self._arrivals(env.arrived)) if self._has_room(core) else []
        if core.plans_out <= int(self._settings.engine.asynchronous) and core.busy:
            offered.append(STEP)
            if env.left[_FAIL] and self._waits_for(state):
                offered.append(STEP_FAILING)
        if core.plans_out:
            offered.append(_SETTLE)
            if (self._settings.timed and core.live) or core.waits:
                offered.append(_SETTLE_LATE)
        if self._below is not None:
            offered += self._of_below(core, state.device, env.left)
        offered += self._of_copies(state.device, env.left)
        if env.inbox or env.echoes:
            offered += self._of_reports(env)
        offered += self._anytime(state.core, env.left)
        return offered

    def _twin_waits(self, number: int, arrived: int) -> bool:
        """Requests with the same text arrive in order: their names make no difference."""
        mine = self._settings.requests[number]
        return any(
            (other.text, other.prompt) == (mine.text, mine.prompt) and not arrived >> earlier & 1
            for earlier, other in enumerate(self._settings.requests[:number])
        )

    def _waits_for(self, state: State) -> bool:
        """Whether the next plan would wait for a running copy."""
        device = self._devices.values[state.device]
        step = self._cores.step(CoreCall(state.core, STEP), state.env.kept())
        runs = {job for job, _, hung in device.running() if not hung}
        runs |= {order.job for worker in device.workers for order in worker.held_back}
        runs |= {order.job for order in step.orders.loads} if step.orders is not None else set()
        return step.orders is not None and not runs.isdisjoint(step.orders.flushes)

    def _arrivals(self, arrived: int) -> tuple[Action, ...]:
        """Requests that can arrive if there is room."""
        found = self._arriving.get(arrived)
        if found is None:
            scripts = enumerate(self._settings.requests)
            coming = [each.name for at, each in scripts if not arrived >> at & 1 and not self._twin_waits(at, arrived)]
            found = self._arriving[arrived] = tuple([Action("arrive", name) for name in coming])
        return found

    def _of_copies(self, device: int, left: tuple[int, ...]) -> tuple[Action, ...]:
        """What can happen to running copies."""
        key = device, left[_FAIL] > 0, left[_HANG] > 0, left[_REFUSE] > 0
        found = self._copies.get(key)
        if found is None:
            verbs = ("land", *(["fail"] if key[1] else []), *(["hang"] if key[2] else []))
            running = self._devices.values[device].running()
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
        elif left[FAULT_AT["down"]]:
            yield Action("down")
        value = self._devices.values[device]
        for entry in core.asked:
            number = below.entries[entry]
            yield Action("answer_hit" if below.has(value, number) else "answer_miss", job=number)
        if left[FAULT_AT["vanish"]]:
            for number in range(len(below.entries)):
                yield from [Action("vanish", job=number, worker=rank) for rank in below.parts(value, number)]

    def _of_reports(self, env: Env) -> Iterator[Action]:
        """What can happen to reports in the inbox."""
        for landing in dict.fromkeys(env.inbox):
            if env.left[FAULT_AT["lose"]]:
                yield Action("lose", job=landing.job, worker=landing.worker)
            if env.left[FAULT_AT["repeat"]] and landing not in env.echoes:
                yield Action("repeat", job=landing.job, worker=landing.worker)
        for landing in env.echoes:
            yield Action("echo", job=landing.job, worker=landing.worker)

    def _has_room(self, core: CoreValue) -> bool:
        """Whether the ledger can take one more request; a second owner is one, too."""
        return len(core.saved.ledger.requests) < self._settings.engine.max_requests

    def _anytime(self, number: int, left: tuple[int, ...]) -> tuple[Action, ...]:
        """Faults that can happen whatever the copies do."""
        found = self._anytimes.get((number, left))
        if found is None:
            core = self._cores.values[number]
            nothing = not (any(left) or core.asleep or core.lost or core.quarantined or core.hosts)
            found = () if nothing else (*self._client_actions(core, left), *self._upheavals(core, left))
            self._anytimes[number, left] = found
        return found

    def _client_actions(self, core: CoreValue, left: tuple[int, ...]) -> Iterator[Action]:
        for name, at in core.requests:
            if left[FAULT_AT["abort"]]:
                yield Action("abort", name)
            if left[FAULT_AT["preempt"]] and at in ADMITTED:
                yield Action("preempt", name)
            if left[FAULT_AT["lend"]] and at is Request.RUNNING and name not in core.hosts and self._has_room(core):
                yield Action("lend", name)
        yield from [Action("give_back", name) for name in core.hosts]

    def _upheavals(self, core: CoreValue, left: tuple[int, ...]) -> Iterator[Action]:
        yield from [Action(verb) for verb in ("reset", "drain", "renew") if left[FAULT_AT[verb]]]
        if left[FAULT_AT["sleep"]] and not core.asleep:
            yield Action("sleep")
        if core.asleep and not (core.plans_out or core.demotes or core.has_jobs):
            yield Action("wake")
        for worker in range(self._settings.engine.num_workers) if left[FAULT_AT["lose_worker"]] and not core.lost else ():
            yield Action("lose_worker", worker=worker)
        for worker in core.lost:
            yield Action("regain_worker", worker=worker)
        if core.quarantined:
            yield Action("prove")
