"""The stage of scenes under vLLM's real scheduler with our connector: what happens in a line, and what can be asked.

Settings of a scene (`tests.behind.scenes`): a *model* of a set (*of*), or its *groups*, as in ``full:8/swa:4:9``; a *world*;
*ahead*; *lag*, as in ``3`` or ``0-3``, and *late_fences*; any other field of `WorldSpec`; what a rig is told; *guesses*; how
long vLLM keeps what is cached (*retention*); the first release that has what it is about (*since*), and the last one (*till*);
all others are options of the connector. With *beside* another connector is there, too: what it does (`HABITS`), the steps that
its copies take, and its other habits, as in ``between:5,fails:1``.

A text is so many tokens, from a start: ``16``, ``16@5000``; parts are joined: ``12+8@900``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve, fields_dict
from vllm.config import VllmConfig
from vllm.v1.core.sched.interface import PauseState

from blocklife.engines.vllm.connector._messages import StepPlan
from blocklife.engines.vllm.connector._shapes import VllmRequest
from blocklife.ledger import Direction, Transfer
from blocklife.offload._lookup import Answer
from blocklife.offload._search import HostAnswers
from blocklife.states import JobLife, Slot
from tests.behind import scenes as tables
from tests.plays import read
from tests.vllm.below_rig import BelowRig
from tests.vllm.beside_rig import BesideRig
from tests.vllm.connector_rig import ConnectorRig, configured, walk, with_guesses
from tests.vllm.connector_worlds import MODELS, ROOMY, SETS, WORLDS, prompt
from tests.vllm.engine import MINOR
from tests.vllm.failing_rig import FailingRig
from tests.vllm.lag_copier import LagCopier
from tests.vllm.mend_copies import mend_copies
from tests.vllm.naps import core_of, nap
from tests.vllm.parallel_rig import Parallel, ParallelRig
from tests.vllm.second import Habits
from tests.vllm.worlds import Lag, WorldSpec, group

EVERY = {"ahead": ("no", "yes"), "model": tuple(name.replace(" ", "_") for name in MODELS)}
OF_RIG = ("spare_requests", "depth", "recompute", "second_runner", "seed")
OF_WORLD = fields_dict(WorldSpec).keys() - {"below"}


HABITS: Mapping[str, Mapping[str, Any]] = {
    "between": {"brings": 1, "within": 0, "sends": 0},
    "within": {"brings": 1, "within": 1, "sends": 0},
    "any": {},
    "nothing": {"brings": 0, "within": 0, "sends": 0},
    "sends": {"brings": 0, "sends": 1},
}
"""What another connector does: it brings content between steps or within them, anything, nothing, or sends it."""


def scenes(table: str, common: Mapping[str, str] = {}) -> list[Any]:
    """The scenes of a table; what is *common* to them is set in each that says nothing else."""
    return tables.scenes(table, EVERY, common)


def text(words: str | int) -> list[int]:
    """The tokens of a text."""
    parts = [part.partition("@") for part in str(words).split("+")]
    return [token for count, _, start in parts for token in prompt(int(count), int(start or 100))]


def pairs(words: str) -> dict[str, Any]:
    """What ``brings:1,within:0.5`` says."""
    told = dict(each.split(":") for each in words.split(",") if each)
    return {key: float(value) if "." in value else read(value) for key, value in told.items()}


class Stage:
    """A rig with our connector, every plan that it has made, and the load that each request was promised."""

    def __init__(self, make: Callable[[Mapping[str, str]], ConnectorRig]) -> None:
        self._make = make
        self.rigs: list[ConnectorRig] = []
        self.patch = pytest.MonkeyPatch()
        self.over = False
        """Whether the engine has stopped."""
        self.another()

    def another(self, **changed: object) -> None:
        """Another engine, with other settings; it is the one from now on."""
        said = {True: "yes", False: "no", None: "none"}
        self.rig = self._make({key: said.get(each, str(each)) for key, each in changed.items()})  # type: ignore[call-overload]
        self.rigs.append(self.rig)
        self.steps: list[StepPlan] = []
        self.promised: list[int | None] = []
        self.handed: list[tuple[int, int, int]] = []
        """Group, block and boundary of each state that vLLM has handed over."""
        self.copies = 0
        """Blocks that vLLM has let copy on the device."""
        self.hashes: list[bytes] = []
        """The names of the blocks of the prompt that was asked for last."""
        self.done: bool | None = None
        """Whether the last reset was one."""
        self.heard: list[object] = []
        connector, side = self.rig.scheduler.connector, self.rig.side
        build, ask = connector.build_connector_meta, side.look_up

        def built(output: Any) -> Any:
            state = getattr(output, "kv_connector_block_state", None)
            self.handed += [] if state is None else [each for own in state.boundary_state_offloads.values() for each in own]
            self.copies += len(getattr(output, "kv_cache_block_copies", None) or ())
            metadata = build(output)
            if step := getattr(metadata, "step", None):
                self.steps.append(step)
            return metadata

        def asked(request: VllmRequest, device_tokens: int) -> int | None:
            self.promised.append(found := ask(request, device_tokens))
            return found

        connector.build_connector_meta = built
        side.look_up = asked  # type: ignore[method-assign]  # to listen

    def close(self) -> None:
        """All engines end, and what was put in the place of methods is gone."""
        self.patch.undo()
        for rig in self.rigs:
            rig.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rig, name)

    text = staticmethod(text)

    # --- what can be asked

    @property
    def ledger(self) -> Any:
        """The connector's ledger."""
        return self.rig.side.ledger

    @property
    def statistics(self) -> Any:
        """What the connector's scheduler has counted."""
        return self.rig.side.offload.statistics()

    @property
    def shares(self) -> int:
        """How many ranks have the host memory of the first one together."""
        worker = self.rig.ranks[0].worker
        shared = None if worker is None else worker.connector.worker.shape.shared
        return 1 if shared is None else shared.num_ranks

    @property
    def flushes(self) -> Mapping[str, int]:
        """Waits by their reason."""
        found: Mapping[str, int] = self.ledger.counts.flushes
        return found

    @property
    def ended(self) -> Mapping[str, int]:
        """Jobs that are over, by how they ended."""
        found: Mapping[str, int] = self.ledger.counts.ended
        return found

    @property
    def ready(self) -> int:
        """Slots of the host tier that can be read."""
        return self.slots.get("READY", 0)

    @property
    def slots(self) -> dict[str, int]:
        """Slots of the host tier that are in use, by their state."""
        count = self.ledger.slots.count()
        return {state.name: count[state] for state in Slot if state is not Slot.EMPTY and count[state]}

    @property
    def jobs(self) -> list[Any]:
        """Copies that are out or planned."""
        return list(self.ledger.jobs.alive())

    @property
    def groups(self) -> int:
        """How many the model has."""
        return len(self.rig.side.offload.geometry.groups)

    @property
    def requests(self) -> Any:
        """vLLM's own."""
        return self.rig.scheduler.requests

    def transfers(self, direction: Direction) -> list[Transfer]:
        """All copies that were planned, in order."""
        plans = [plan for step in self.steps for plan in step.plans]
        return [each for plan in plans for each in (plan.loads if direction is Direction.LOAD else plan.stores)]

    @property
    def loads(self) -> list[Transfer]:
        """All loads."""
        return self.transfers(Direction.LOAD)

    @property
    def stores(self) -> list[Transfer]:
        """All stores."""
        return self.transfers(Direction.STORE)

    def sizes(self, direction: Direction) -> tuple[int, ...]:
        """Blocks that were copied, by group."""
        return tuple(sum(each.group_sizes[group] for each in self.transfers(direction)) for group in range(self.groups))

    @property
    def read(self) -> set[tuple[int, bytes]]:
        """What all loads read, by group and name; to be asked before it has landed."""
        slots = self.ledger.slots
        return {
            (group, slots.key(int(slot)) or b"")
            for each in self.loads
            for group, slot in zip(np.repeat(range(self.groups), each.group_sizes).tolist(), each.source, strict=True)
        }

    @property
    def hits(self) -> list[int]:
        """The loads that were promised."""
        return [each for each in self.promised if each]

    @property
    def load_sizes(self) -> tuple[int, ...]:
        """Blocks that were loaded, by group."""
        return self.sizes(Direction.LOAD)

    @property
    def store_sizes(self) -> tuple[int, ...]:
        """Blocks that were stored, by group."""
        return self.sizes(Direction.STORE)

    @property
    def waited(self) -> set[int]:
        """Jobs that some step had to wait for."""
        return {job.number for step in self.steps for plan in step.plans for job in plan.flushes}

    def table(self, name: str, group: int = 0) -> list[int]:
        """The blocks that vLLM has given to a request."""
        found: list[int] = self.rig.scheduler.kv_cache_manager.get_block_ids(name)[group]
        return found

    def has(self, names: Sequence[bytes] | None = None, group: int = 0) -> list[int]:
        """Which of these, or of the prompt that was asked for last, can be read from the host tier, by their positions."""
        tier = self.rig.side.tier
        return [at for at, name in enumerate(self.hashes if names is None else names) if tier.answer(group, name) is Answer.HIT]

    # --- what happens

    def add(self, tokens: str | int | Sequence[int], answer: int = 1, **more: Any) -> str:
        """Send a request."""
        name = self.rig.add(text(tokens) if isinstance(tokens, str | int) else tokens, answer, **more)
        self.hashes = list(self.requests[name].block_hashes)
        return name

    def ask(self, tokens: str | int | Sequence[int], answer: int = 1, **more: Any) -> list[bytes]:
        """One request from its beginning to the end of its last copy. Returns the names of its prompt's blocks."""
        self.add(tokens, answer, **more)
        self.drain()
        return self.hashes

    def ask_each(self, count: int, tokens: int) -> None:
        """So many requests, one after the other, with texts of their own."""
        for number in range(1, count + 1):
            self.ask(f"{tokens}@{100 * number}", 2)

    def crowd(self, count: int, tokens: str | int, answer: int = 1, apart: int = 100, own: int = 0, **more: Any) -> None:
        """So many requests, whose texts begin so far apart; or all with one text, and a token of their *own* behind it."""
        for number in range(count):
            self.add([*text(tokens), own + number] if own else f"{tokens}@{apart * number}", answer, **more)

    def step(self, times: int = 1) -> None:
        """So many steps; all is checked after each."""
        for _ in range(times):
            self.rig.step()
            self.rig.check()

    def launch(self) -> None:
        """A step is made and sent to the workers, and its output is not taken in."""
        self.rig._queue.append(self.rig._launch())

    def drain(self, most: int = 40_000, forgets: bool = False) -> None:
        """Step until the engine is idle: nothing is wrong or left. With *forgets* the device is emptied in each step."""
        while forgets and self.rig.step():
            self.rig.reset_prefix_cache()
        self.rig.drain(most)
        self.rig.check_empty()

    def idle(self, most: int = 2000) -> None:
        """Step until the engine is idle, although somebody is there."""
        self.rig.drain(most)
        self.rig.check()

    def reset(self, *what: str) -> None:
        """Empty the device's prefix cache; also of *running* requests, and of the *connector*. Plans are noted anew."""
        self.done = self.rig.reset_prefix_cache(reset_running="running" in what, reset_connector="connector" in what)
        self.anew()

    def reset_device(self) -> None:
        """The same, which must be done."""
        self.reset()
        assert self.done, "the prefix cache could not be reset"

    def anew(self) -> None:
        """Plans and promises are noted anew."""
        self.steps.clear()
        self.promised.clear()

    def reset_host(self) -> None:
        """The host tier forgets all."""
        self.rig.side.reset()

    def forget(self, names: str | Sequence[bytes], group: int = 0) -> None:
        """Let content go from the host tier as if it had been evicted: names, or positions in the last prompt, as ``3,7``."""
        if isinstance(names, str | int):
            names = [self.hashes[int(at)] for at in str(names).split(",")]
        slots = [self.rig.side.tier.slot_of(group, name) for name in names]
        self.ledger.evict([slot for slot in slots if slot is not None])

    def lose(self, how: str, at: int, group: int) -> None:
        """A block of the last prompt is *gone* from the host tier, is *there*, or *comes*: a store brings it."""
        if how == "gone":
            self.forget([self.hashes[at]], group)
        elif how == "comes":
            content, held = (group, self.hashes[at]), HostAnswers.held

            def scanned(answers: HostAnswers, group: int, key: bytes, slot: int) -> int:
                return Answer.PENDING.code if (group, key) == content else held(answers, group, key, slot)

            self.patch.setattr(HostAnswers, "held", scanned)

    def arrive(self) -> None:
        """It has come."""
        self.patch.undo()

    def pause(self, what: str = "all") -> None:
        """The engine computes nothing, or nobody *new*, until it goes on."""
        self.rig.scheduler.set_pause_state(PauseState.PAUSED_NEW if what == "new" else PauseState.PAUSED_ALL)

    def go_on(self) -> None:
        """The end of a pause."""
        self.rig.scheduler.set_pause_state(PauseState.UNPAUSED)

    def part(self, name: str, tokens: str | int, answer: int) -> None:
        """The next part of a session."""
        self.rig.part(name, text(tokens), answer)

    def end(self, name: str) -> None:
        """The engine ends a session."""
        self.rig.engine.abort([name])

    def hurried(self, tokens: str | int, answer: int = 1, **more: Any) -> None:
        """A request that wants no prefix."""
        self.rig.wants_no_prefix(self.add(tokens, answer, **more))

    def sleep(self, renew: bool = False, mode: str = "abort") -> None:
        """The engine sleeps, and wakes up at once."""
        nap(self.rig, renew=renew, mode=mode)

    def stop(self, wakes: bool = False) -> None:
        """The engine is paused, the model has other weights when it goes on, or *wakes* up, although nobody has slept."""
        core = core_of(self.rig)
        core.pause_scheduler("abort")
        self.rig.renew_weights()
        core.wake_up() if wakes else core.resume_scheduler()

    def walk(self, requests: int = 30, resets: bool = True, stops: bool = False, differs: bool = False) -> None:
        """Random traffic, to the end; the engine may *stop*, for a load has failed that its step was to read."""
        named = tuple(each.drafter for each in self.rig.spec.groups if each.is_found_again)
        assert self.rig.side.offload.geometry.drafters == named
        try:
            walk(self.rig, self.rig.seed, requests, resets=resets, differs=differs)
        except RuntimeError as error:
            if not stops or "a load failed that its step was to read" not in str(error):
                raise
            self.over = True

    def stops(self, *message: str) -> None:
        """The engine stops, and says so."""
        with pytest.raises(RuntimeError, match=" ".join(map(str, message))):
            self.rig.drain()
        self.over = True

    def listen(self, event: str) -> None:
        """Keep what jobs take of such an event."""
        self.ledger.on(getattr(JobLife, event), hook=self.heard.append)

    def lose_loads(self) -> None:
        """From now on all loads fail on the last worker."""
        self.rig.copiers[-1].fails[Direction.LOAD] = 1.0

    def fail(self, **chances: float) -> None:
        """From now on copies fail with these chances, by their direction."""
        for copier in self.rig.copiers:
            copier.fails.clear()
            copier.fails.update({Direction[name.upper()]: float(chance) for name, chance in chances.items()})

    def habits(self, **changed: Any) -> None:
        """The other connector does something else from now on."""
        rig = self.rig
        assert isinstance(rig, BesideRig)
        rig.second.habits = evolve(rig.second.habits, **changed)

    # --- copies and clocks

    def lose_first_load(self) -> None:
        """The first load that is launched from now on fails, and no other."""
        lost: list[Transfer] = []

        def instead(copier: LagCopier, launch: Callable[[Transfer], object], transfer: Transfer) -> None:
            fails = dict(copier.fails)
            if transfer.direction is Direction.LOAD and not lost:
                lost.append(transfer)
                copier.fails[Direction.LOAD] = 1.0
            launch(transfer)
            copier.fails.clear()
            copier.fails.update(fails)

        self._launch_by(instead)

    def silence(self, *directions: str) -> None:
        """From now on nothing is heard of copies in these directions, unless a step waits for them."""
        silent = [Direction[each.upper()] for each in directions]

        def instead(copier: LagCopier, launch: Callable[[Transfer], object], transfer: Transfer) -> None:
            lag, copier._lag = copier._lag, Lag(1 << 30, 1 << 30) if transfer.direction in silent else copier._lag
            launch(transfer)
            copier._lag = lag

        self._launch_by(instead)

    def _launch_by(self, instead: Callable[..., None]) -> None:
        for copier in self.rig.copiers:
            self.patch.setattr(copier, "launch", partial(instead, copier, copier.launch))

    def count_seconds(self) -> None:
        """The connector's clock goes on by a second with each step."""
        begun = self.rig.step_number
        self.rig.side._clock = lambda: 1000.0 + self.rig.step_number - begun

    def land(self) -> None:
        """Everything lands after all, and is heard of."""
        for copier in self.rig.copiers:
            copier.close()
        self.drain()


class Hurried(ConnectorRig):
    """A rig in which each fifth request is let in whatever its lookup says."""

    def add(self, *given: Any, **more: Any) -> str:
        """Send a request to the engine."""
        name = super().add(*given, **more)
        if int(name[1:]) % 5 == 0:
            self.wants_no_prefix(name)
        return name


def _below(spec: WorldSpec, **more: Any) -> BelowRig:
    return BelowRig(spec, str(spec.extra_config["below"]), **more)


class StagesBelowRig(BelowRig, ParallelRig):
    """A rig whose workers are stages of a pipeline, over a store below."""


def _stages_below(spec: WorldSpec, **more: Any) -> BelowRig:
    return StagesBelowRig(spec, str(spec.extra_config["below"]), **more)


KINDS: Mapping[str, Callable[..., ConnectorRig]] = {
    "plain": ConnectorRig,
    "hurried": Hurried,
    "failing": FailingRig,
    "below": _below,
    "stages_below": _stages_below,
    "beside": BesideRig,
    "parallel": ParallelRig,
}


def _made_by(own: dict[str, str]) -> tuple[Callable[..., ConnectorRig], dict[str, Any]]:
    """The kind of rig that these settings ask for, and what it is told; they are taken out."""
    kind = own.pop("kind", "plain")
    more: dict[str, Any] = {key: read(own.pop(key)) for key in OF_RIG if key in own}
    if "fails" in own:
        more["fails"] = {Direction[name.upper()]: chance for name, chance in pairs(own.pop("fails")).items()}
    if "beside" in own:
        what, *told = own.pop("beside").split(",")
        what, _, steps = what.partition(":")
        takes: dict[str, Any] = {"shortest": int(steps), "longest": int(steps)} if steps else {}
        habits = Habits(**{**HABITS[what], **takes, **pairs(",".join(told))})
        kind, more = "beside", {**more, "habits": habits, "first": read(own.pop("first", "no"))}
    if "parallel" in own or "lacks" in own:
        ranks = (each.split(":") for each in own.pop("lacks", "").split("/") if each)
        lacking = {int(rank): tuple(map(int, groups.split("+"))) for rank, groups in ranks}
        kind = "stages_below" if kind == "below" else "parallel"
        more = {**more, "parallel": Parallel(**pairs(own.pop("parallel", "")), lacking=lacking)}
    return KINDS[kind], more


def _world_of(own: dict[str, str]) -> WorldSpec:
    """The world that these settings ask for; they are taken out, and what is left are options of the connector."""
    sets, model = SETS[own.pop("of", "models")], own.pop("model", "").replace("_", " ")
    groups = tuple(map(group, own.pop("groups", "full").split("/")))
    world = evolve(WORLDS.get(own.pop("world", ""), ROOMY), groups=sets[model] if model else groups)
    if "lag" in own:
        shortest, _, longest = own.pop("lag").partition("-")
        world = evolve(world, lag=Lag(int(shortest), int(longest or shortest)))
    if "late_fences" in own:
        world = evolve(world, lag=evolve(world.lag, late_fences=read(own.pop("late_fences"))))
    if "ahead" in own:
        world = evolve(world, async_scheduling=read(own.pop("ahead")))
    world = evolve(world, **{key: read(own.pop(key)) for key in own.keys() & OF_WORLD})
    if "budget_tokens" in own:
        whole = ConnectorRig(evolve(world, extra_config={"sync_load_budget_bytes": "1GiB"})).side.shape.load_within_tokens
        own["sync_load_budget_bytes"] = str(int(own.pop("budget_tokens")) * ((1 << 30) // whole))
    return evolve(world, extra_config={key: read(value) for key, value in own.items()})


@contextmanager
def staged(settings: Mapping[str, str], folder: Path | None = None) -> Iterator[Stage]:
    """A stage with these settings; stores below the host are in the *folder*."""
    with pytest.MonkeyPatch.context() as patch:

        def make(changed: Mapping[str, str]) -> ConnectorRig:
            own = {key: value for key, value in {**settings, **changed}.items() if not key.startswith("$")}
            own |= dict(each.split(":") for each in own.pop("choose", "").split(",") if each)
            if own.get("kind") == "below":
                own["below"] = f"fs:{folder}:64M"
            kind, more = _made_by(own)
            looks_ahead = read(own.pop("looks_ahead", "no"))
            if own.pop("mended", "no") == "yes":
                mend_copies(patch)
            if "guesses" in own:
                with_guesses(patch, own.pop("guesses"))
                more["drafts"] = True
            if "depth" in more:
                patch.setattr(VllmConfig, "max_concurrent_batches", more["depth"])
            if "retention" in own:
                kept = read(own.pop("retention"))
                configured(patch, lambda config: setattr(config.cache_config, "prefix_cache_retention_interval", kept))
            rig = kind(_world_of(own), **more)
            for rank in rig.ranks:
                rank.forward.looks_ahead = looks_ahead
            return rig

        stage = Stage(make)
        try:
            yield stage
        finally:
            stage.close()


def made(**settings: str) -> Stage:
    """A stage for a test that is no scene. What is set in vLLM's configuration is gone when it stands."""
    with staged(settings) as stage:
        return stage


def play(scene: tables.Scene, folder: Path | None = None) -> None:
    """Play a scene; at its end nothing is wrong, and nothing is left."""
    settings = dict(scene.settings)
    since, till = int(settings.pop("since", 0)), int(settings.pop("till", 99))
    if not since <= MINOR <= till:
        pytest.skip(f"what it is about is there in 0.{since} to 0.{till}")
    with staged(settings, folder) as stage:
        scene.play(stage)
        if not stage.over:
            stage.drain()
