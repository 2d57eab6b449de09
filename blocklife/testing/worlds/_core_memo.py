"""The core of a world, that is scheduler, host tier and ledger: each value is kept once, and each call made once on each value.

Rules of this file:

* Calls are made by the real code, and what it does is compared with what a call of that kind may do.
* A value is under canonical names; a call on it returns the names under which the next value knows its parts.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from attrs import define

from blocklife.errors import CapacityError, InvariantError, MisuseError
from blocklife.ledger import JobId, Jobs
from blocklife.ledger.invariants import check
from blocklife.offload._snapshot import SavedScheduler
from blocklife.testing.exploring._model import Broken
from blocklife.testing.worlds._actions import Action
from blocklife.testing.worlds._cross_checks import (
    LAWFUL,
    CoreValue,
    blamed,
    described,
    left_behind,
    loads,
    misdone,
    not_kept,
    overdue_wait,
    unheeded,
)
from blocklife.testing.worlds._device import DeviceNames, Landing, Orders
from blocklife.testing.worlds._engine import Engine
from blocklife.testing.worlds._row_counts import RowCounts
from blocklife.testing.worlds._settings import WorldSettings
from blocklife.testing.worlds._store_below import WorldStore


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


class CoreCall(NamedTuple):
    """A call on a value of the core."""

    core: int
    action: Action
    inbox: tuple[Landing, ...] = ()
    """Reports that the engine passes on."""
    launched: tuple[tuple[int, int], ...] = ()
    """Shares (job, worker) that have begun to run."""


_NOBODY: frozenset[int] = frozenset()
NO_MESSAGE = -1
"""The message number of a call that has failed, of which the device is told nothing."""


class CoreMemo:
    """The core as a part of a world. *below*: the store below, if there is one."""

    def __init__(self, settings: WorldSettings, below: WorldStore | None) -> None:
        self.engine = engine = Engine(settings.engine)
        self.rows = RowCounts(engine.ledger, engine.scheduler)
        self.values: list[CoreValue] = []
        """By number; the first is the initial core."""
        self.claims_of: list[int] = []
        """For each value, the number of what it claims about the device."""
        self.calls = 0
        """How often the real code was run."""
        self._settings = settings
        self._below = below
        self._size = engine.geometry.blocks_per_chunk
        self._tails = engine.geometry.tail_tokens is not None
        self._numbers: dict[tuple[SavedScheduler, str], int] = {}
        self._parts: dict[Any, Any] = {}
        """The large parts of the values, each kept once: a world has thousands of values, but only hundreds of parts."""
        self._problems: list[tuple[str, str] | None] = [None]
        """For each value, the ledger rule that it breaks, or None."""
        self._known: dict[tuple[CoreCall, int | None], CoreStep] = {}
        self._messages: dict[tuple[object, ...], int] = {}
        """The messages to the device, numbered. There are far fewer than calls."""
        self._claims: dict[tuple[object, ...], int] = {}
        self._out: dict[CoreCall, frozenset[int]] = {}
        """The jobs that are out after each call: their names do not depend on reports still to come."""
        for script in settings.requests:
            engine.know(script.name, script.text, script.prompt)
        if below is not None:
            engine.entries = below.entries
        self.number(engine.freeze()[0], "")

    def __len__(self) -> int:
        return len(self.values) + len(self._known)

    def digest(self) -> int:
        """A hash of the set of values, comparable only within one process."""
        return hash(frozenset(self._numbers))

    def step(self, call: CoreCall, kept: tuple[int, ...]) -> CoreStep:
        """Make a call on a value of the core; repeated calls are answered from memory."""
        found = self._known.get((call, _oldest(kept, self._out.get(call, _NOBODY)) if kept else None))
        if found is None:
            found = self._call(call, kept)
            self._out[call] = found.out
            self._known[call, _oldest(kept, found.out)] = found
        return found

    def number(self, saved: SavedScheduler, weights: str) -> int:
        """The number of a value."""
        number = self._numbers.get((saved, weights))
        if number is None:
            saved = self._shared(saved)
            number = self._numbers[saved, weights] = len(self.values)
            core = described(self.engine, saved, weights)
            claims = (
                core.live, core.blocks, core.slots, core.readable_blocks, core.readable_places, weights, core.rest_below,
                core.asked if self._tails else (),
            )  # fmt: skip
            self.values.append(core)
            self.claims_of.append(self._claims.setdefault(claims, len(self._claims)))
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

    def _call(self, call: CoreCall, kept: tuple[int, ...]) -> CoreStep:
        self.calls += 1
        engine, before, action = self.engine, self.values[call.core], call.action
        engine.thaw(before.saved)
        engine.weights = before.weights
        violations = engine.ledger.counts.tally["violations"]
        try:
            orders, handed_out = self._act(call)
            problem = misdone(engine, before, orders, handed_out, action.verb, action.worker)
            if problem is None and engine.ledger.counts.tally["violations"] > violations:
                problem = LAWFUL, "the ledger counted a violation"
            failed, loading = loads(engine, before)
            saved, names = engine.freeze(kept)
            out = frozenset([job.number for job in engine.ledger.jobs.alive()])
            problem = problem or unheeded(saved, action.verb, action.request, action.worker)
            core = self.number(saved, engine.weights)
            self._problems[core] = self._problems[core] or self._counted_again(core)
        except Broken as broken:
            return CoreStep(NO_MESSAGE, 0, None, (), DeviceNames((), (), {}), problem=(broken.rule, str(broken)))
        except Exception as broken:
            # whatever the code under test raises is a finding: mutants raise exceptions of every kind
            return CoreStep(NO_MESSAGE, 0, None, (), DeviceNames((), (), {}), problem=blamed(broken))
        proven = before.quarantined if action.verb == "prove" else ()
        blocks, places, jobs = tuple(names.blocks), _places(tuple(names.slots), self._size), tuple(names.jobs.items())
        after = self.values[core]
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

    def _act(self, call: CoreCall) -> tuple[Orders | None, tuple[int, ...]]:
        """Make one call. Returns the orders for the device, which only a step has, and the blocks that were handed out."""
        engine, core, action = self.engine, self.values[call.core], call.action
        scheduler = engine.scheduler
        match action.verb:
            case "step":
                stepped = engine.step()
                if (problem := overdue_wait(engine, core, stepped.deferred)) is not None:
                    raise Broken(*problem)
                return stepped.orders, stepped.handed_out
            case "settle" | "settle_late":
                if action.verb == "settle_late":
                    engine.now += self._settings.engine.deadline if self._settings.timed else 1.0
                engine.settle(call.inbox, launched=call.launched)
                return None, engine.take_handed_out()
            case "arrive":
                script = next(each for each in self._settings.requests if each.name == action.request)
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
                engine.index.answer(self._below.names[action.job], action.verb == "answer_hit")
            case "prove":
                engine.ledger.quiesce(Jobs(tuple(JobId(engine.ledger.incarnation, job) for job in core.quarantined)))
            case verb:
                raise MisuseError(f"action {verb}: it is unknown")
        return None, ()

    def _drain(self, engine: Engine, core: CoreValue) -> None:
        """Forget all content if no job is out; otherwise the call has to refuse and change nothing."""
        if not core.has_jobs:
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

    def _counted_again(self, core: int) -> tuple[str, str] | None:
        """The ledger rule broken by this value, if any. The engine is at this value now, under other names."""
        described = self.values[core]
        if found := check(self.engine.ledger):
            self.engine.thaw(described.saved)
            first = (check(self.engine.ledger) or found)[0]  # the fault can lie in something that a snapshot leaves out
            return first.rule, first.message
        if not described.idle:
            return None
        kept = not_kept(described, self.engine.geometry) if self._settings.roomy else iter(())
        return next(chain(left_behind(described), kept), None)

    def pack(self, number: int) -> object:
        """A value, without the parts that every process has."""
        core = self.values[number]
        requests = tuple([each._replace(keys=_no_keys, tails=None) for each in core.saved.requests])
        ledger = core.saved.ledger._replace(made_with="")
        return core.saved._replace(ledger=ledger, requests=requests), core.weights

    def unpack(self, value: object) -> int:
        """The number of such a value here."""
        match value:
            case (SavedScheduler() as saved, str(weights)):
                keys, tails = self.engine.keys, self.engine.tails
                requests = tuple([each._replace(keys=keys(each.name), tails=tails(each.name)) for each in saved.requests])
                ledger = saved.ledger._replace(made_with=self.values[0].saved.ledger.made_with)
                return self.number(saved._replace(ledger=ledger, requests=requests), weights)
        raise MisuseError(f"{value!r}: it is not part of a world")


@lru_cache(4096)
def _places(slots: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The new names of the host places, from those of the slots."""
    return tuple([slot * size + part for slot in slots for part in range(size)])


def _no_keys(group: int, start: int, stop: int) -> list[bytes]:
    raise MisuseError("a value from another process has no keys of its own")


def _oldest(kept: tuple[int, ...], out: frozenset[int]) -> int | None:
    """All that names depend on besides the ledger itself: the oldest finished job of which a report is still to come."""
    return min([job for job in kept if job not in out], default=None) if kept else None
