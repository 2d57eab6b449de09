"""Long seeded walks through worlds too large to enumerate, with the explorer's actions and checks.

Rules of this file:

* A walk is a function of its settings and its seed: a finding can be reproduced.
* A walk proves nothing. It ends without a finding, or with a path that can be replayed step by step in a `World`.
* A walk can be arbitrarily long: a world remembers every value seen, so the walk moves to a new one now and then (`carry`).

Theory. A walk consists of *legs*. Each leg starts in an empty world, draws new probabilities for the kinds of actions (some get
0), refills the fault budgets as it goes, lets the same requests arrive again under other names, and ends with closing actions
alone (those that add no request and cause no fault), which must drain the world. So every finding is a path from the start of
one leg, and a path of a `World` with the requests and faults that the leg has used.

A path is shortened by leaving actions out, first many at once, then one by one. Actions that become impossible are left out
too; the same rule must still break.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, evolve, field, fields, frozen

from blocklife.errors import MisuseError
from blocklife.offload import LastStep
from blocklife.testing.exploring._explore import Counterexample
from blocklife.testing.exploring._model import Broken, Kind, Property
from blocklife.testing.exploring._story import Story, tell
from blocklife.testing.worlds._actions import ACTIONS, FAULT_DOCS, NEW_SPACE, SPENDS, Action, Acts, Faults, faults_with
from blocklife.testing.worlds._engine import USUAL, Settings
from blocklife.testing.worlds._format import words_of
from blocklife.testing.worlds._settings import rooms
from blocklife.testing.worlds._world import Script, State, World, WorldSettings

KEEP = 30_000
"""Values and steps that a world may remember before the walk moves to a new one."""
LEG = (20, 240)
"""The fewest and the most steps of a leg, before it is drained."""
DRAIN = 600
"""Closing actions after which a world that has not drained counts as one that never drains."""
TRIES = 3_000
"""The most paths tried to shorten a finding."""
ROUNDS = 4
"""How often each request arrives in one leg, at most."""
WORLD = "world"
"""The rule that the world itself raises no error; breaking it is a fault of the test tool."""
NAMES = [chr(each) for each in range(ord("a"), ord("z") + 1)]
REFILL = 0.02
"""The probability, in each step, that the fault budgets are refilled."""

LARGE = WorldSettings(
    engine=Settings(
        groups="full:1,swa:1:2",
        blocks_per_chunk=2,
        num_blocks=12,
        num_slots=8,
        max_jobs=8,
        max_requests=6,
        num_workers=2,
        asynchronous=True,
        policies=evolve(USUAL, last_step=LastStep.DRAIN),
    ),
    requests=("abcd.ef", "abcd.eg", "abc.d", "ab.cd", "xyz.ab", "xy.z"),
    faults=Faults(**dict.fromkeys(FAULT_DOCS.keys() - faults_with(Acts.OF_STORE) - {"lend"}, 2)),
)
"""A world too large to enumerate: a hybrid model, chunks of two, two workers, plans made ahead, and every fault that needs no
store below, and no second owner, beside whom nothing can be forgotten."""


@frozen(kw_only=True)
class Finding:
    """A broken rule, and a short path to where it breaks."""

    rule: str
    message: str
    seed: int
    leg: int
    """The leg of the walk, from 1."""
    step: int
    """The step of the walk, from 1."""
    found_after: int
    """The length of the path first found."""
    actions: tuple[Action, ...]
    """The shortened path."""
    settings: WorldSettings
    """The world in which the path can be replayed."""

    @property
    def counterexample(self) -> Counterexample[Action]:
        """The finding as a counterexample of the explorer."""
        return Counterexample(self.rule, self.message, self.actions)

    def story(self) -> Story:
        """The story of the path."""
        return story_of(self.settings, self.actions, self.rule, self.message)

    def record(self) -> dict[str, object]:
        """For machines."""
        return {
            "rule": self.rule,
            "message": self.message,
            "seed": self.seed,
            "leg": self.leg,
            "step": self.step,
            "found_after": self.found_after,
            "world": words_of(self.settings),
            "actions": [str(each) for each in self.actions],
            "story": str(self.story()),
        }

    def lines(self) -> list[str]:
        """For people."""
        left = f"{len(self.actions)} of {self.found_after} actions are left"
        return [f"seed {self.seed}, leg {self.leg}, step {self.step}: {self.rule}; {left}", "", *str(self.story()).splitlines()]


@frozen(kw_only=True)
class Walked:
    """The result of a walk."""

    seed: int
    steps: int
    legs: int
    drained: int
    """Legs completed, that is drained by closing actions alone."""
    states: int
    """Distinct states; a state seen in several of the walk's worlds counts once in each."""
    worlds: int
    seconds: float
    taken: Mapping[str, int]
    """How often each kind of action was taken."""
    rules: tuple[str, ...]
    """The rules checked after every step."""
    coverage: Mapping[str, Mapping[str, int]]
    """How often the real code took each row of each table."""
    finding: Finding | None = None
    interrupted: bool = False

    @property
    def steps_per_second(self) -> float:
        """Steps taken per second."""
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def rows_never(self) -> tuple[str, ...]:
        """Table rows that were never taken."""
        return tuple(f"{name}: {row}" for name, rows in self.coverage.items() for row, times in rows.items() if not times)

    def record(self) -> dict[str, object]:
        """For machines."""
        found: dict[str, object] = {each.name: getattr(self, each.name) for each in fields(Walked)}
        plain = {"seconds": round(self.seconds, 3), "rules": list(self.rules), "rows_never": list(self.rows_never)}
        return found | plain | {"finding": None if self.finding is None else self.finding.record()}

    def lines(self) -> list[str]:
        """For people."""
        rows = sum(map(len, self.coverage.values()))
        speed = f"{self.steps_per_second:.0f} steps/s"
        said = [
            f"seed {self.seed}: {self.steps} steps in {self.legs} legs, {self.states} states, {speed}",
            f"rows taken: {rows - len(self.rows_never)} of {rows}",
            "actions: " + ", ".join(f"{verb} {times}" for verb, times in sorted(self.taken.items(), key=lambda each: -each[1])),
        ]
        if self.interrupted:
            said.append("interrupted: nothing was found so far")
        return [*said, *(self.finding.lines() if self.finding is not None else ["nothing was found"])]


# --- from world to world ----------------------------------------------------------------------------------------------------


def carry(state: State, old: World, new: World) -> State:
    """The same state in a new world of the same settings, whose memory is empty."""
    return new.enter(old.core(state), old.device(state), state.env)


def _again(settings: WorldSettings) -> WorldSettings:
    """The same world, in which every request arrives again under other names, but no more at once than there were.

    Where nobody gives way it gets the blocks that the largest need together.
    """
    written, used = settings.requests, {each.name for each in settings.requests}
    spare = iter([name for name in NAMES if name not in used])
    rounds = min(ROUNDS, len(NAMES) // len(written))
    requests = (*written, *[Script(next(spare), each.text, each.prompt) for _ in range(rounds - 1) for each in written])
    engine = evolve(settings.engine, max_requests=min(len(written) + settings.faults.lend, settings.engine.max_requests))
    needed = max(blocks for _, blocks in rooms(requests, engine, again=True))
    return evolve(settings, requests=requests, engine=evolve(engine, num_blocks=max(engine.num_blocks, needed)))


def _refilled(settings: WorldSettings, left: Sequence[int]) -> tuple[int, ...]:
    """The fault budgets filled again, but for those that take a new space of a store below, which has only so many."""
    kept = NEW_SPACE if settings.engine.below is not None else frozenset[str]()
    pairs = zip(settings.faults.items(), left, strict=True)
    return tuple([rest if name in kept else full for (name, full), rest in pairs])


def only_used(settings: WorldSettings, actions: Sequence[Action]) -> WorldSettings:
    """The world that a path needs: its requests, and its faults.

    With a store below also each text and each new space: the numbers of its entries, which actions name, come from these.
    """
    came = {each.request for each in actions if each.verb == "arrive"}
    below, texts = settings.engine.below is not None, set[str]()
    requests = []
    for each in settings.requests:
        if each.name in came or (below and each.text not in texts):
            requests.append(each)
            texts.add(each.text)
    spent = Counter(SPENDS.get(each.verb, "") for each in actions)
    times = {name: full if below and name in NEW_SPACE else spent[name] for name, full in settings.faults.items()}
    if settings.timed and not times["hang"] and not times["lose"]:
        # these two decide whether deadlines pass
        times["hang" if settings.faults.hang else "lose"] = 1
    return evolve(settings, requests=requests or settings.requests[:1], faults=Faults(**times))


# --- taking a path ----------------------------------------------------------------------------------------------------------


@define(eq=False)
class Guide:
    """The actions of a walk in a world."""

    world: World
    drains: Property[State, Action] = field(init=False)
    finishes: Property[State, Action] = field(init=False)

    def __attrs_post_init__(self) -> None:
        kinds = {each.kind: each for each in self.world.properties()}
        self.drains, self.finishes = kinds[Kind.LEADS_TO], kinds[Kind.SOMETIMES]

    def is_over(self, state: State) -> bool:
        """Whether all requests have come and gone."""
        return self.finishes.goal is not None and self.finishes.goal(state)

    def step(self, state: State, action: Action) -> State:
        """The state after an action. Raises `Broken`, also if the world itself raises an error: the path matters then, too."""
        try:
            return self.world.step(state, action)
        except Broken:
            raise
        except Exception as problem:
            raise Broken(WORLD, f"{type(problem).__name__}: {problem}") from problem

    def next_closing(self, state: State, turn: int) -> Action | None:
        """The next action to drain the world; None if it has drained. Raises `Broken` if it does not drain."""
        goal, allowed = self.drains.goal, self.drains.closing
        if goal is None or allowed is None:
            raise MisuseError(f"property {self.drains.name}: it has no goal, or no closing actions")
        if goal(state):
            return None
        offered = [each for each in self.world.actions(state) if allowed(each)]
        if not offered or turn >= DRAIN:
            so_far = f"not after {turn} closing actions" if offered else "no closing action is left"
            raise Broken(self.drains.name, f"{self.drains.doc}: {so_far}")
        return min(offered, key=lambda each: _urgency(each, turn))

    def drain(self, state: State) -> None:
        """Take closing actions until the world has drained."""
        turn = 0
        while (action := self.next_closing(state, turn)) is not None:
            state = self.step(state, action)
            turn += 1

    def retake(self, actions: Sequence[Action], *, drain: bool) -> tuple[list[Action], Broken | None]:
        """Replay a path, skipping impossible actions. Returns the actions taken, and what broke at the end."""
        state, taken = self.world.initial(), list[Action]()
        try:
            for action in actions:
                if action in self.world.actions(state):
                    taken.append(action)
                    state = self.step(state, action)
        except Broken as broken:
            return taken, broken
        try:
            if drain:
                self.drain(state)
        except Broken as broken:
            return taken, broken
        return taken, None


def _urgency(action: Action, turn: int) -> int:
    """The order of closing actions: those that happen by themselves, then settling (in time, and late), then a step."""
    verb = action.verb
    return _ORDER["settle"] - 1 if verb == "settle_late" and turn % 3 == 0 else _ORDER[verb]


_ORDER = {verb: at for at, verb in enumerate(ACTIONS)}


def story_of(settings: WorldSettings, actions: Sequence[Action], rule: str, message: str) -> Story:
    """The story of a path that ends where a rule breaks."""
    # if the world itself raised an error, its last step cannot be told
    return tell(settings, actions[:-1] if rule == WORLD else actions, rule, message)


# --- making it shorter ------------------------------------------------------------------------------------------------------


def shrink(
    settings: WorldSettings,
    actions: Sequence[Action],
    rule: str,
    *,
    tries: int = TRIES,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[tuple[Action, ...], str]:
    """Shorten a path that breaks a rule. Returns the shorter path, and the message of the rule there.

    Raises `MisuseError` for a path that does not break the rule.
    """
    settings = evolve(settings, faults=_enough(settings, actions))
    guide = Guide(World(settings))

    def broken(tried: Sequence[Action]) -> tuple[list[Action], str] | None:
        nonlocal guide
        if guide.world.remembered > KEEP:
            guide = Guide(World(settings))
        taken, found = guide.retake(tried, drain=rule == guide.drains.name)
        return (taken, str(found)) if found is not None and found.rule == rule else None

    best = broken(actions)
    if best is None:
        raise MisuseError(f"these {len(actions)} actions do not break {rule} (give the settings with which they were found)")
    size = len(best[0]) // 2
    while size and tries > 0 and not stop():
        at, shorter = 0, False
        while at < len(best[0]) and tries > 0 and not stop():
            tries -= 1
            found = broken([*best[0][:at], *best[0][at + size :]])
            if found is not None and len(found[0]) < len(best[0]):
                best, shorter = found, True
            else:
                at += size
        size = size if shorter and size == 1 else min(size, len(best[0])) // 2
    return tuple(best[0]), best[1]


def _enough(settings: WorldSettings, actions: Sequence[Action]) -> Faults:
    """Settings with at least as many faults as a path needs."""
    spent = Counter(SPENDS.get(each.verb, "") for each in actions)
    return Faults(**{name: max(times, spent[name]) for name, times in settings.faults.items()})


# --- the walk ---------------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Walker:
    """A running walk.

    Invariant: ``path`` leads from the start of the leg to ``state``, in a world with enough faults.
    """

    settings: WorldSettings
    seed: int
    keep: int
    guide: Guide = field(init=False)
    state: State = field(init=False)
    path: list[Action] = field(factory=list)
    steps: int = 0
    legs: int = 0
    drained: int = 0
    worlds: int = 1
    states: int = 0
    taken: Counter[str] = field(factory=Counter)
    coverage: dict[str, Counter[str]] = field(factory=dict)
    _seen: set[State] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.settings = _again(self.settings)
        self.guide = Guide(World(self.settings))
        self.state = self.guide.world.initial()

    def walk_leg(self, most: int) -> Iterator[int]:
        """One leg of at most so many steps, then draining; yields after each step. Raises `Broken`."""
        self.legs += 1
        rnd = random.Random(f"{self.seed}/{self.legs}")
        likes: dict[str, float] = {}
        self.state, self.path = self.guide.world.initial(), []
        for _ in range(min(rnd.randint(*LEG), most)):
            if self.guide.is_over(self.state):
                break
            if rnd.random() < REFILL:
                env = self.state.env
                self.state = self.state._replace(env=env._replace(left=_refilled(self.settings, env.left)))
            action = self._choose(rnd, likes)
            if action is None:
                break
            self.take(action)
            yield self.steps
        turn, begin = 0, len(self.path)
        try:
            while (action := self.guide.next_closing(self.state, turn)) is not None:
                self.take(action)
                turn += 1
                yield self.steps
        except Broken as broken:
            if broken.rule == self.guide.drains.name:
                del self.path[begin:]  # a replay of the path drains by itself
            raise
        self.drained += 1

    def _choose(self, rnd: random.Random, likes: dict[str, float]) -> Action | None:
        """Choose a possible kind of action by the leg's probabilities, then any action of that kind."""
        kinds: dict[str, list[Action]] = {}
        for action in self.guide.world.actions(self.state):
            kinds.setdefault(action.verb, []).append(action)
        if not kinds:
            return None
        for verb in kinds.keys() - likes.keys():
            # by name, so that it does not depend on when the kind first becomes possible
            liked = random.Random(f"{self.seed}/{self.legs}/{verb}").choice((0.0, 0.2, 1.0, 1.0, 3.0))
            likes[verb] = liked * (0.1 if verb in FAULT_DOCS else 1.0)  # a world with frequent faults would not get far
        weights = [likes[verb] for verb in kinds]
        chosen = rnd.choices(list(kinds), weights)[0] if any(weights) else rnd.choice(list(kinds))
        return rnd.choice(kinds[chosen])

    def take(self, action: Action) -> None:
        """Record an action, then take it: it is part of the path even if it breaks a rule."""
        self.path.append(action)
        self.steps += 1
        self.taken[action.verb] += 1
        self.state = self.guide.step(self.state, action)
        if self.state not in self._seen:
            self._seen.add(self.state)
            self.states += 1
        if self.guide.world.remembered > self.keep:
            self.renew()

    def renew(self) -> None:
        """Move to a new world."""
        old = self.guide.world
        self.count()
        self.guide = Guide(World(self.settings))
        self.state = carry(self.state, old, self.guide.world)
        self._seen = {self.state}
        self.worlds += 1

    def count(self) -> None:
        """Add the row counts of the present world."""
        for name, rows in self.guide.world.coverage().items():
            mine = self.coverage.setdefault(name, Counter())
            for row, times in rows.items():
                mine[str(row)] += times


def walk(
    settings: WorldSettings = LARGE,
    *,
    steps: int,
    seed: int = 0,
    keep: int = KEEP,
    shorten: bool = True,
    progress: Callable[[int, int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Walked:
    """Walk *steps* steps, and on until the last leg has drained; ends at the first finding.

    *keep*: how much a world may remember before the walk moves to a new one; it changes nothing else. *progress* is called from
    time to time with steps, legs and states; *stop* is called as often, also while a finding is shortened (*shorten*).
    """
    if type(steps) is not int or steps < 1:
        raise MisuseError(f"steps must be a whole number of at least 1, not {steps!r}")
    walker = _Walker(settings, seed, keep)
    started = time.perf_counter()
    finding: Finding | None = None
    interrupted = False
    try:
        while walker.steps < steps and not interrupted:
            for done in walker.walk_leg(steps - walker.steps):
                if not done & 63:
                    if progress is not None:
                        progress(done, walker.legs, walker.states)
                    if interrupted := stop():
                        break
    except Broken as broken:
        finding = _found(walker, broken, shorten=shorten, stop=stop)
    walker.count()
    return Walked(
        seed=seed,
        steps=walker.steps,
        legs=walker.legs,
        drained=walker.drained,
        states=walker.states,
        worlds=walker.worlds,
        seconds=time.perf_counter() - started,
        taken=dict(walker.taken),
        rules=(*walker.guide.world.rules(), walker.guide.drains.name),
        coverage={name: dict(rows) for name, rows in walker.coverage.items()},
        finding=finding,
        interrupted=interrupted,
    )


def _found(walker: _Walker, broken: Broken, *, shorten: bool, stop: Callable[[], bool]) -> Finding:
    actions, message = tuple(walker.path), str(broken)
    if shorten:
        try:
            actions, message = shrink(walker.settings, actions, broken.rule, stop=stop)
        except MisuseError:
            message += " (not when the path is replayed: the fault depends on more than the calls)"
    return Finding(
        rule=broken.rule,
        message=message,
        seed=walker.seed,
        leg=walker.legs,
        step=walker.steps,
        found_after=len(walker.path),
        actions=actions,
        settings=only_used(walker.settings, actions),
    )
