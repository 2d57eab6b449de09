"""A path through a world as a readable story: what happened, what it changed, and which rule broke.

Rules of this file:

* The path is replayed step by step, by the same code as in an exploration, and the story is made from the replay.
* Blocks, slots, jobs and plans keep their names through the whole story. A world renames them after each step, by their role;
  every renaming is followed.
* At the end, what the ledger says of each place and what the device has there are shown side by side.

Theory. The world describes a call as a `CoreStep`, which maps the names before the call to those after it. The transitions in
between come from hooks on the ledger, under the names before the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import define, evolve, field, frozen

from blocklife.errors import MisuseError
from blocklife.ledger import Direction, LedgerTransition
from blocklife.ledger._ids import ID_MASK
from blocklife.states import MACHINES
from blocklife.testing.exploring._explore import Counterexample
from blocklife.testing.exploring._model import Broken
from blocklife.testing.worlds._actions import ACTIONS, OF_ENTRIES, Action
from blocklife.testing.worlds._core_memo import CoreCall, CoreMemo, CoreStep
from blocklife.testing.worlds._device import CopyOrder, FrozenDevice, Landing, Orders, Pass
from blocklife.testing.worlds._engine import Engine
from blocklife.testing.worlds._store_below import WorldStore
from blocklife.testing.worlds._world import State, World, WorldSettings


@frozen
class Copy:
    """A job in the names of a story."""

    job: int
    stores: bool
    owner: str
    """The request that it is for; empty if that is gone."""
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    below: bool = False
    """Whether it copies to or from the store below, not the device."""

    def __str__(self) -> str:
        """The places that it copies from and to."""
        blocks, slots = _numbered("block", self.blocks), _numbered("slot", self.slots)
        if self.below:
            return f"job {self.job} ({f'promotion to {slots}' if self.stores else f'demotion of {slots}'})"
        source, target = (blocks, slots) if self.stores else (slots, blocks)
        whose = f" of {self.owner}" if self.owner else ""
        return f"job {self.job} ({'store' if self.stores else 'load'}{whose}, {source} to {target})"


@frozen
class Change:
    """The states that one block, slot, job or request went through in a step."""

    machine: str
    thing: str
    states: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.machine} {self.thing} {' > '.join(self.states)}"


@frozen(kw_only=True)
class Happened:
    """One step of a story."""

    action: Action
    """The action under the names of the world."""
    named: Action
    """The action under the names of the story."""
    sentence: str
    changes: tuple[Change, ...] = ()
    orders: Orders | None = None
    """The orders to the workers, under the names of the story."""
    made: tuple[Copy, ...] = ()
    """Jobs created in this step."""
    launched: tuple[tuple[int, int], ...] = ()
    """Shares (job, worker) held back until this step."""
    landed: tuple[Landing, ...] = ()
    told: tuple[Landing, ...] = ()
    """Reports that reached the ledger."""
    proven: tuple[int, ...] = ()
    """Jobs whose copies were stopped for good."""


@frozen(kw_only=True)
class Place:
    """One place, in the ledger and on the device."""

    name: str
    said: str
    """What the ledger says."""
    real: tuple[str, ...]
    """What each worker has."""


@frozen(kw_only=True)
class Story:
    """A path told step by step."""

    settings: WorldSettings
    rule: str
    """The rule that broke at the end; empty if none did."""
    message: str
    """How it broke, under the names of the story."""
    breaks: bool
    """Whether the last step itself breaks it; otherwise something that should come later never does."""
    steps: tuple[Happened, ...]
    requests: tuple[tuple[str, str], ...]
    """The requests at the end, with their states."""
    copies: tuple[Copy, ...]
    """All jobs ever created."""
    places: tuple[Place, ...]
    out: tuple[int, ...]
    """Jobs that a worker runs or holds back at the end."""
    plans_out: int
    asleep: bool
    lost: tuple[int, ...]
    """Lost workers."""
    idle: bool
    """Whether there are no requests at the end, and nothing is out."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions of the path, under the names of the world."""
        return tuple(step.action for step in self.steps)

    def __str__(self) -> str:
        return "\n".join(_text(self)) + "\n"


# --- names ------------------------------------------------------------------------------------------------------------------


@define(eq=False)
class _StoryNames:
    """The story's names for the blocks, slots, jobs and plans of a state."""

    blocks: list[int]
    slots: list[int]
    size: int
    """Places of a slot."""
    jobs: dict[int, int] = field(factory=dict)
    plans: int = 0
    """Added to the number of a plan."""
    made: int = 0
    """How many jobs have a name."""

    def job(self, number: int) -> int:
        """The name of a job; a new job gets the next number."""
        if number not in self.jobs:
            self.made += 1
            self.jobs[number] = self.made
        return self.jobs[number]

    def place(self, place: int) -> int:
        """The name of a host place."""
        return self.slots[place // self.size] * self.size + place % self.size

    def go_over(self, step: CoreStep) -> None:
        """Switch to the names of the state after a call."""
        names = step.names
        blocks, slots = list(self.blocks), list(self.slots)
        for old, new in enumerate(names.blocks):
            blocks[new] = self.blocks[old]
        for old in range(len(self.slots)):
            slots[names.places[old * self.size] // self.size] = self.slots[old]
        self.blocks, self.slots = blocks, slots
        self.jobs = {new: self.job(old) for old, new in sorted(names.jobs.items())}
        self.plans += names.plans_before

    def action(self, action: Action) -> Action:
        """An action under the names of the story."""
        return action._replace(job=self.job(action.job)) if action.job and action.verb not in OF_ENTRIES else action

    def landings(self, landings: Iterable[Landing]) -> tuple[Landing, ...]:
        """Landings likewise."""
        return tuple(each._replace(job=self.job(each.job)) for each in landings)

    def orders(self, orders: Orders) -> Orders:
        """Orders likewise."""
        reads, writes = ([(self.blocks[block], content) for block, content in side] for side in orders.forward)
        return Orders(
            orders.plan + self.plans,
            tuple(map(self.job, orders.flushes)),
            tuple(map(self.order, orders.loads)),
            tuple(map(self.order, orders.stores)),
            Pass(tuple(reads), tuple(writes)),
            tuple(map(self.order, orders.below)),
        )

    def order(self, order: CopyOrder) -> CopyOrder:
        """A copy under the names of the story."""
        near, places = [self.blocks[each] for each in order.blocks], list(map(self.place, order.places))
        if order.below:
            near = list(order.source if order.stores else order.target)
        source, target = (near, places) if order.stores else (places, near)
        return order._replace(job=self.job(order.job), source=tuple(source), target=tuple(target))

    def text(self, said: str, copies: Mapping[int, Copy]) -> str:
        """A message under the names of the story: every number after the name of a kind is replaced."""

        def renamed(found: re.Match[str]) -> str:
            kind, number = found[1], int(found[2])
            name = self.named(kind, number)
            return found[0] if name is None else f"{kind} {name}"

        def read(found: re.Match[str]) -> str:
            copy = copies.get(self.jobs.get(int(found[1]), 0))
            kind = "block" if copy is None or copy.stores else "host place"
            return f"copy {found[1]} read {kind} {found[2]}"

        said = re.sub(r"copy (\d+) read place (\d+)", read, said)
        # the ledger writes the incarnation before a job's number
        return re.sub(r"\b(host place|block|slot|job|copy|plan|step) (?:\d+\.)?(\d+)\b", renamed, said)

    def named(self, kind: str, number: int) -> int | None:
        """The name of the thing with that number; None if there is none."""
        if kind in ("job", "copy"):
            return self.jobs.get(number)
        if kind in ("plan", "step"):
            return number + self.plans
        known: Mapping[str, Callable[[int], int]] = {
            "block": self.blocks.__getitem__,
            "slot": self.slots.__getitem__,
            "host place": self.place,
        }
        limit = {"block": len(self.blocks), "slot": len(self.slots), "host place": len(self.slots) * self.size}
        return known[kind](number) if number < limit[kind] else None


# --- watching ---------------------------------------------------------------------------------------------------------------


@frozen
class _Said:
    """The ledger's state after a call, or before an action without a call, under the names of that moment."""

    blocks: tuple[str, ...]
    slots: tuple[str, ...]


class _HeardCore(CoreMemo):
    """A core that remembers no calls, so that hooks hear each, and keeps what the last one did."""

    def __init__(self, settings: WorldSettings, below: WorldStore | None) -> None:
        super().__init__(settings, below)
        self.heard: list[LedgerTransition] = []
        self.holders: dict[int, str] = {}
        self.engine.ledger.on(hook=self.heard.append)
        self.forget_last()

    def forget_last(self) -> None:
        """Begin again."""
        self.heard.clear()
        self.made: list[tuple[int, Direction, str, tuple[int, ...], tuple[int, ...]]] = []
        self.seen: CoreStep | None = None
        self.told: tuple[Landing, ...] = ()
        self.said: _Said | None = None

    def step(self, call: CoreCall, kept: tuple[int, ...]) -> CoreStep:
        """Make a call on a value."""
        self.heard.clear()
        self.told = call.inbox
        self.seen = self._call(call, kept)
        return self.seen

    def _act(self, call: CoreCall) -> tuple[Orders | None, tuple[int, ...]]:
        ledger = self.engine.ledger
        self.holders = ledger.requests.rows()
        try:
            return super()._act(call)
        finally:
            self.holders |= ledger.requests.rows()
            last = self.values[call.core].saved.ledger.last_number
            self.made = [
                (
                    number,
                    job.direction,
                    job.owner or "",
                    tuple(int(life) & ID_MASK for life in job.lives),
                    tuple(int(slot) for slot in job.slots),
                )
                for job in ledger.jobs.known()
                if (number := job.number) > last
            ]
            self.said = _said_by(self.engine)

    def counted(self, step: CoreStep) -> bool:
        """Whether the fault of a step was found by the ledger's invariants, after the call."""
        return bool(step.names.blocks) and step.problem == self._problems[step.core]


class _RecordedWorld(World):
    """A world that records what its last step did."""

    last: _HeardCore

    def __init__(self, settings: WorldSettings) -> None:
        super().__init__(settings, self._listen)
        self.judged: tuple[int, int] | None = None

    def _listen(self, settings: WorldSettings, below: WorldStore | None) -> CoreMemo:
        self.last = _HeardCore(settings, below)
        return self.last

    def take(self, state: State, action: Action) -> State:
        """One step, recorded."""
        self.last.forget_last()
        self.judged = None
        return self.step(state, action)

    def _judge(self, core: int, device: int) -> tuple[str, str] | None:
        self.judged = core, device
        return super()._judge(core, device)

    def moment(self, state: State) -> tuple[_Said, FrozenDevice]:
        """The ledger's state and the device's."""
        self.engine.thaw(self.core(state).saved)
        return _said_by(self.engine), self.device(state)

    def device_now(self) -> FrozenDevice:
        """The device at the point where it raised a fault."""
        return self._devices.device.freeze()


def _said_by(engine: Engine) -> _Said:
    ledger = engine.ledger
    holders: dict[int, list[str]] = {}
    for name in ledger.requests:
        for group in range(ledger.limits.num_groups):
            for life in ledger.requests.table(name, group):
                if life & ID_MASK and name not in holders.setdefault(life & ID_MASK, []):
                    holders[life & ID_MASK].append(name)

    def block(place: int) -> str:
        key = ledger.blocks.key(place)
        parts = [ledger.blocks.state(place).name]
        parts += [f"held by {', '.join(holders[place])}"] if place in holders else []
        parts += [f"found as {key.decode()}"] if key is not None else []
        return ", ".join(parts)

    def slot(place: int) -> str:
        key = ledger.slots.key(place)
        parts = [ledger.slots.state(place).name]
        parts += [f"{ledger.slots.pins(place)} pins"] if ledger.slots.pins(place) else []
        parts += [f"found as {key.decode()}"] if key is not None else []
        return ", ".join(parts)

    return _Said(tuple(map(block, range(len(ledger.blocks)))), tuple(map(slot, range(len(ledger.slots)))))


# --- telling ----------------------------------------------------------------------------------------------------------------


def retell(world: World, found: Counterexample[Action]) -> Story:
    """The story of a counterexample. Raises `MisuseError` if the path is impossible in this world."""
    return tell(world.settings, found.actions, found.rule, found.message)


def tell(settings: WorldSettings, actions: Sequence[Action], rule: str = "", message: str = "") -> Story:
    """The story of a path. It ends where a rule breaks; if none does, *rule* and *message* say what is wrong at the end."""
    world = _RecordedWorld(settings)
    size = settings.engine.blocks_per_chunk
    names = _StoryNames(list(range(settings.engine.num_blocks + 1)), list(range(settings.engine.num_slots)), size)
    copies: dict[int, Copy] = {}
    steps: list[Happened] = []
    broken: Broken | None = None
    state = world.initial()
    (said, device), shown = world.moment(state), names
    for number, action in enumerate(actions, start=1):
        if action not in list(world.actions(state)):
            raise MisuseError(f"step {number} of the path: {action} cannot happen there")
        before = evolve(names, blocks=list(names.blocks), slots=list(names.slots), jobs=dict(names.jobs))
        try:
            after: State | None = world.take(state, action)
            broken = None
        except Broken as problem:
            after, broken = None, problem
        steps.append(_happened(world, state, after, action, before, copies))
        names.made, names.jobs, shown = before.made, dict(before.jobs), before
        if world.last.seen is not None and _went_over(world):
            names.go_over(world.last.seen)
        if world.judged is not None or broken is None:
            shown = names
        if broken is not None:
            said, device = _at_the_end(world, state)
            rule, message = broken.rule, names.text(str(broken), copies)
            break
        if after is not None:
            state = after
            said, device = world.moment(state)
    core = world.core(_at(world, state))
    return Story(
        settings=settings,
        rule=rule,
        message=message,
        breaks=broken is not None,
        steps=tuple(steps),
        requests=tuple((name, at.name) for name, at in core.requests),
        copies=tuple(copies.values()),
        places=tuple(_places(said, device, shown)),
        out=tuple(sorted({shown.job(job) for job in _out(device)})),
        plans_out=core.plans_out,
        asleep=core.asleep,
        lost=core.lost,
        idle=core.idle,
    )


def _went_over(world: _RecordedWorld) -> bool:
    """Whether the last step was completed, so that messages about it use the names of the state after it."""
    seen = world.last.seen
    return world.judged is not None or (seen is not None and seen.problem is not None and world.last.counted(seen))


def _at(world: _RecordedWorld, state: State) -> State:
    """The ledger and the device at the point where the last step stopped."""
    if world.judged is not None:
        return state._replace(core=world.judged[0], device=world.judged[1])
    seen = world.last.seen
    return state._replace(core=seen.core) if seen is not None and _went_over(world) else state


def _at_the_end(world: _RecordedWorld, state: State) -> tuple[_Said, FrozenDevice]:
    """Ledger and device where a rule broke: after the step, or in the middle of it."""
    if world.judged is not None:
        return world.moment(_at(world, state))
    said = world.last.said or world.moment(state)[0]
    if world.last.seen is not None and world.last.seen.problem is not None:
        return said, world.device(state)
    return said, world.device_now()


def _happened(
    world: _RecordedWorld, state: State, after: State | None, action: Action, names: _StoryNames, copies: dict[int, Copy]
) -> Happened:
    """One step, in the names of the state before it."""
    seen = world.last.seen
    made = []
    for number, direction, owner, blocks, slots in world.last.made if seen is not None else ():
        name, stores = names.job(number), direction in (Direction.STORE, Direction.PROMOTE)
        own, held = tuple(names.blocks[each] for each in blocks), tuple(names.slots[each] for each in slots)
        copies[name] = Copy(name, stores, owner, own, held, not direction.on_device)
        made.append(copies[name])
    named = names.action(action)
    orders = None if seen is None or seen.orders is None else names.orders(seen.orders)
    launched = []
    if orders is not None:
        for rank, worker in enumerate(world.device(state).workers):
            launched += [(names.job(order.job), rank) for order in worker.held_back if not worker.lost]
    landed = _landed(world, state, after, named, names)
    happened = Happened(
        action=action,
        named=named,
        sentence="",
        changes=tuple(_changes(world, names)) if seen is not None else (),
        orders=orders,
        made=tuple(made),
        launched=tuple(launched),
        landed=landed,
        told=names.landings(world.last.told) if seen is not None and action.verb.startswith("settle") else (),
        proven=tuple(names.job(job) for job in seen.proven) if seen is not None else (),
    )
    late = world.core(state).plans_out
    oldest = 1 + names.plans if late else 0
    return evolve(happened, sentence=_sentence(happened, world.settings, copies, oldest))


def _landed(world: _RecordedWorld, state: State, after: State | None, named: Action, names: _StoryNames) -> tuple[Landing, ...]:
    """What landed on the device in this step."""
    if named.verb in ("land", "fail", "refuse"):
        return (Landing(named.job, named.worker, named.verb != "fail"),)
    seen = world.last.seen
    if seen is None or seen.orders is None or after is None:
        return ()
    old = {new: job for job, new in seen.names.jobs.items()}
    told = [each._replace(job=seen.names.jobs[each.job]) for each in state.env.inbox]
    fresh = [each for each in after.env.inbox if each not in told]
    return names.landings(each._replace(job=old[each.job]) for each in fresh)


def _changes(world: _RecordedWorld, names: _StoryNames) -> Iterator[Change]:
    """The states that each thing went through in the last call."""
    found: dict[tuple[str, str], list[str]] = {}
    for told in world.last.heard:
        table = MACHINES[told.machine]
        for place, index in told.steps():
            row = table.row(index)
            thing = {
                "block": lambda place=place: str(names.blocks[place]),
                "slot": lambda place=place: str(names.slots[place]),
                "job": lambda place=place: str(names.job(place)),
                "request": lambda place=place: world.last.holders.get(place, str(place)),
            }[told.machine]()
            states = found.setdefault((told.machine, thing), [row.source.name])
            if row.target.name != states[-1]:
                states.append(row.target.name)
    for machine in MACHINES:
        for (kind, thing), states in found.items():
            if kind == machine and len(states) > 1:
                yield Change(kind, thing, tuple(states))


def _numbered(kind: str, numbers: Sequence[int]) -> str:
    plural = "s" if len(numbers) != 1 else ""
    return f"{kind}{plural} {', '.join(map(str, numbers))}"


def _sentence(step: Happened, settings: WorldSettings, copies: Mapping[int, Copy], oldest: int) -> str:
    """A step in plain words."""
    named = step.named
    if named.verb == "arrive":
        script = next(each for each in settings.requests if each.name == named.request)
        prompt, output = script.text[: script.prompt], script.text[script.prompt :]
        return f"request {named.request} arrives with the prompt {prompt!r}; its output will be {output!r}"
    if named.verb in ("step", "step_failing"):
        return "; ".join(_planned(step, copies))
    if named.verb in ("settle", "settle_late"):
        late = ", after the deadlines of all running copies" if named.verb == "settle_late" else ""
        reports = [f"job {each.job} {'landed' if each.ok else 'failed'} on worker {each.worker}" for each in step.told]
        return f"plan {oldest} settles{late}" + (f"; the engine hears that {' and '.join(reports)}" if reports else "")
    if named.verb == "prove":
        return f"the device is proven quiet: {_numbered('job', step.proven)} will never run again"
    if named.verb in OF_ENTRIES:
        space, group, key = WorldStore(settings).names[named.job]
        where = f" of space {space.decode()!r}" if space else ""
        return ACTIONS[named.verb].says.format(named, f"{key.decode()} in group {group}{where}")
    return ACTIONS[named.verb].says.format(named, copies.get(named.job, ""))


def _planned(step: Happened, copies: Mapping[int, Copy]) -> Iterator[str]:
    """The orders of an engine step, and what the workers did."""
    orders = step.orders
    if orders is None:
        yield "the engine plans its next step"
        return
    yield f"the engine makes plan {orders.plan}"
    if step.launched:
        jobs = list(dict.fromkeys(job for job, _ in step.launched))
        yield f"{_numbered('job', jobs)} start{'s' * (len(jobs) == 1)} on the device"
    for order in orders.below:
        yield f"{copies.get(order.job, f'job {order.job}')} starts"
    if orders.flushes:
        badly = ", which fails" if step.named.verb == "step_failing" else ""
        yield f"it waits for {_numbered('job', orders.flushes)}{badly}"
    written = [f"{content} into block {block}" for block, content in orders.forward.writes]
    if written:
        yield f"the workers compute {', '.join(written)}"
    for order in orders.loads:
        yield f"{copies.get(order.job, f'job {order.job}')} starts on the device"
    for order in orders.stores:
        yield f"{copies.get(order.job, f'job {order.job}')} is held back until the next plan"


# --- both truths ------------------------------------------------------------------------------------------------------------


def _places(said: _Said, device: FrozenDevice, names: _StoryNames) -> Iterator[Place]:
    """Every place, in the order of its name."""
    blocks = sorted((names.blocks[at], at) for at in range(1, len(said.blocks)))
    for name, at in blocks:
        real = tuple(_real(worker.lost, [worker.blocks[at]], _touching(device, rank, names, block=at))
                     for rank, worker in enumerate(device.workers))  # fmt: skip
        yield Place(name=f"block {name}", said=said.blocks[at], real=real)
    for name, at in sorted((names.slots[at], at) for at in range(len(said.slots))):
        places = range(at * names.size, (at + 1) * names.size)
        real = tuple(_real(worker.lost, [worker.places[each] for each in places], _touching(device, rank, names, slot=at))
                     for rank, worker in enumerate(device.workers))  # fmt: skip
        yield Place(name=f"slot {name}", said=said.slots[at], real=real)


def _out(device: FrozenDevice) -> Iterator[int]:
    for worker in device.workers:
        yield from (order.job for order, _, _ in worker.copies)
        yield from (order.job for order in worker.held_back)


def _real(lost: bool, contents: Sequence[object], touching: Sequence[str]) -> str:
    held = "gone" if lost else " | ".join("garbage" if each is None else str(each) for each in contents)
    return ", ".join([held, *touching])


def _touching(device: FrozenDevice, rank: int, names: _StoryNames, *, block: int = -1, slot: int = -1) -> list[str]:
    """The copies of a worker that touch a place."""
    worker = device.workers[rank]
    found = []
    for order, running in (*((order, True) for order, _, _ in worker.copies), *((order, False) for order in worker.held_back)):
        if block in order.blocks or slot in {place // names.size for place in order.places}:
            reads = order.stores == (block >= 0)
            doing = ("reads" if reads else "writes") if running else ("will read" if reads else "will write")
            found.append(f"job {names.job(order.job)} {doing} it")
    return found


def _text(story: Story) -> Iterator[str]:
    """A story as text: two lines a step, the rule, then ledger and device side by side."""
    width = len(str(len(story.steps)))
    for number, step in enumerate(story.steps, start=1):
        yield f"{number:>{width}}. {step.sentence}"
        if step.changes:
            yield f"{'':{width}}  [{'; '.join(map(str, step.changes))}]"
    if story.rule:
        yield f"\n{story.rule} is broken: {story.message}"
    if story.requests:
        yield "\nrequests: " + ", ".join(f"{name} {at}" for name, at in story.requests)
    workers = len(story.places[0].real)
    heads = ["place", "the ledger says"]
    heads += ["the device has"] if workers == 1 else [f"worker {rank} has" for rank in range(workers)]
    rows = [[place.name, place.said, *place.real] for place in story.places]
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    yield ""
    for row in [heads, *rows]:
        yield "  ".join(f"{cell:{size}}" for cell, size in zip(row, widths, strict=True)).rstrip()
