"""The world that is explored: it is the real code, under other names, and both truths are looked at in every state.

Goal: a verdict of the explorer is worth something. Method: long random runs of a plain engine, which is never put back and
whose places keep their names, are compared step by step with the world, which goes from value to value; broken cores and
devices are made by hand, and the world has to see each of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache

import pytest
from attrs import evolve

from blocklife.errors import MisuseError
from blocklife.ledger import Contract, Direction
from blocklife.ledger.invariants import check
from blocklife.offload import LastStep, Mode
from blocklife.offload._snapshot import SavedScheduler
from blocklife.scheduler_states import SCHEDULER_MACHINES
from blocklife.states import MACHINES
from blocklife.testing import (
    Action,
    Bounds,
    Broken,
    Device,
    Faults,
    Kind,
    Landing,
    State,
    Verdict,
    World,
    WorldSettings,
    explore,
    pinned_world,
)
from blocklife.testing.worlds import _cross_checks as cross_checks
from blocklife.testing.worlds._actions import FAULT_DOCS, Acts, faults_with
from blocklife.testing.worlds._core_memo import CoreCall, CoreMemo, CoreStep
from blocklife.testing.worlds._cross_checks import LAST_STEP, LAWFUL, RULES, TOLD, CoreValue
from blocklife.testing.worlds._engine import USUAL, Engine, Settings
from blocklife.testing.worlds._world import Script

TEXTS = ("abc.defgh", "abc.dexy", "abcd.uvw", "qrs.tuvwx")
SETTINGS = {
    "full": Settings(groups="full:2", num_blocks=8, num_slots=6, max_jobs=6),
    "hold": Settings(groups="full:1", num_blocks=14, num_slots=5, contract=Contract.HOLD),
    "tight": Settings(groups="full:2", num_blocks=4, num_slots=3, max_jobs=2),
    "async": Settings(groups="full:2,swa:2:4", num_blocks=12, num_slots=8, asynchronous=True),
    "chunks": Settings(
        groups="full:1,swa:1:3", blocks_per_chunk=2, num_blocks=24, num_slots=8, policies=evolve(USUAL, partial_chunks=True)
    ),
    "mamba": Settings(groups="full:2,mamba:2", num_blocks=14, num_slots=8, step_tokens=2, replacement="arc"),
    "lazy": Settings(groups="full:2", num_blocks=7, num_slots=6, policies=evolve(USUAL, mode=Mode.LAZY)),
    "workers": Settings(groups="full:2", num_blocks=8, num_slots=4, num_workers=2, replacement="arc"),
}
PLENTY = Faults(abort=9, preempt=9, reset=9, renew=9, sleep=9)
VERBS = ("arrive", "abort", "preempt", "reset", "renew", "sleep", "wake", "step", "settle")


class Plain:
    """An engine with a device that are never put back."""

    def __init__(self, settings: WorldSettings) -> None:
        self.engine = Engine(settings.engine)
        self.settings = settings
        sizes = settings.engine
        places = sizes.num_slots * sizes.blocks_per_chunk
        self.device = Device(sizes.num_blocks + 1, places, sizes.num_workers)
        self.inbox: list[Landing] = []

    def take(self, action: Action) -> None:
        """One action of a world that names no job."""
        engine, scheduler = self.engine, self.engine.scheduler
        match action.verb:
            case "arrive":
                script = next(each for each in self.settings.requests if each.name == action.request)
                engine.add(script.name, script.text, script.prompt)
            case "step":
                stepped = engine.step()
                self.device.hand_out(stepped.handed_out, fence=self.settings.engine.contract is Contract.FENCE)
                self.inbox += self.device.carry_out(stepped.orders)
            case "settle":
                plan = scheduler.plans_out[0]
                engine.settle(sorted(self.inbox))
                self.device.finish_pass(plan)
                self.inbox = []
            case "abort":
                engine.scheduler.abort(action.request)
            case "preempt":
                engine.scheduler.preempt(action.request)
            case "renew":
                scheduler.reset(generation=scheduler.generation + "x")
            case verb:
                getattr(scheduler, verb)()

    def land_all(self) -> None:
        """Every copy that runs arrives."""
        self.inbox += [self.device.land(job, worker) for job, worker, _ in self.device.running()]


@pytest.mark.parametrize("name", SETTINGS)
def test_world_goes_where_a_plain_engine_goes(name: str) -> None:
    """After each of many random actions the engine that was never put back has the very value of the world's core."""
    settings = WorldSettings(engine=SETTINGS[name], requests=TEXTS, faults=PLENTY)
    rnd = random.Random(f"world {name}")
    seen = 0
    for _ in range(6):
        world, plain = World(settings), Plain(settings)
        state = world.initial()
        for _ in range(45):
            if rnd.random() < 0.4:
                plain.land_all()
                while (land := next((each for each in world.actions(state) if each.verb == "land"), None)) is not None:
                    state = world.step(state, land)
            offered = [each for each in world.actions(state) if each.verb in VERBS]
            quiet = [each for each in offered if each.verb in ("arrive", "step", "settle", "wake")]
            if not offered:
                break
            action = rnd.choice(quiet if quiet and rnd.random() < 0.8 else offered)
            state = world.step(state, action)
            plain.take(action)
            seen += 1

            assert plain.engine.freeze(landing.job for landing in plain.inbox)[0] == world.core(state).saved, action
            assert check(plain.engine.ledger) == []
    print(f"{name}: {seen} actions")
    assert seen > 100


def test_world_does_not_care_what_was_explored_before() -> None:
    """A path is the same in a new world and in one that has seen everything."""
    settings = WorldSettings(faults=Faults(preempt=1))
    old, new = World(settings), World(settings)
    explore(old)
    paths = []
    for world in (old, new):
        rnd, state, path = random.Random(4), world.initial(), []
        for _ in range(60):
            offered = list(world.actions(state))
            if not offered:
                break
            action = rnd.choice(offered)
            state = world.step(state, action)
            path.append((action, world.core(state).saved, world.device(state), state.env))
        paths.append(path)

    assert paths[0] == paths[1]


def test_world_counts_do_not_depend_on_the_order_of_search() -> None:
    """Depth first finds the same states."""
    world = World(WorldSettings(faults=Faults(fail=1, abort=1)))
    seen = explore(world)
    found, _ = all_of(world)

    assert len(found) == seen.states


def test_world_folds_requests_that_say_the_same() -> None:
    """Who of two equals comes first makes no difference, so that only one order is explored."""
    twins, others = (World(WorldSettings(requests=texts)) for texts in (("a.b", "a.b"), ("a.b", "a.c")))

    assert [str(each) for each in twins.actions(twins.initial())] == ["arrive a"]
    assert [str(each) for each in others.actions(others.initial())] == ["arrive a", "arrive b"]
    assert explore(twins).states < explore(others).states


def test_world_runs_the_real_code_once_for_each_call() -> None:
    """Most steps are new pairs of known halves."""
    world = World(WorldSettings(engine=Settings(num_workers=2), faults=Faults(fail=1)))
    seen = explore(world)
    calls = world.core_calls
    explore(world)

    assert calls < seen.edges / 2
    assert world.core_calls == calls


class Again(CoreMemo):
    """A core that makes each call each time, and compares what it remembers with what comes of it."""

    def step(self, call: CoreCall, kept: tuple[int, ...]) -> CoreStep:
        """A call."""
        found = super().step(call, kept)
        again = self._call(call, kept)

        assert (found.core, found.orders, found.names.jobs) == (again.core, again.orders, again.names.jobs)
        return found


def test_world_remembers_what_every_call_would_do_again() -> None:
    """Of which jobs a report is under way matters only for those that are over: what is remembered fits every case."""
    world = World(pinned_world("reports-twice").settings, Again)
    seen = explore(world, Bounds(max_depth=12))
    shared = {call for call, _ in world._cores._known}

    assert seen.verdict is Verdict.UNKNOWN
    assert seen.counterexamples == ()
    assert len(shared) < len(world._cores._known)


def test_world_watches_every_invariant() -> None:
    """All rules that this world can break, the last step, what is told, and that no lawful call is refused; and it drains."""
    world = World(WorldSettings())
    seen = explore(world)

    assert set(seen.verdicts) == {*RULES, LAST_STEP, TOLD, LAWFUL, "drains", "stores", "finishes"}
    assert seen.verdict is Verdict.HOLDS
    assert seen.complete


def test_world_tells_which_rows_were_taken() -> None:
    """Coverage is that of the real tables, and grows with the world."""
    world = World(WorldSettings())
    before = sum(sum(rows.values()) for rows in world.coverage().values())
    explore(world)
    rows = {str(row) for each in world.coverage().values() for row, times in each.items() if times}

    assert before == 0
    assert set(world.coverage()) == {*MACHINES, *SCHEDULER_MACHINES}
    assert "FREED --allocate--> ALLOCATED" in rows
    assert "LOADING --expire [is_own]--> QUARANTINED" not in rows


def all_of(world: World) -> tuple[set[State], set[str]]:
    """Every state, found depth first, and the verbs of all steps between them."""
    found, todo, taken = {world.initial()}, [world.initial()], set[str]()
    while todo:
        state = todo.pop()
        for action in world.actions(state):
            taken.add(action.verb)
            after = world.step(state, action)
            if after not in found:
                found.add(after)
                todo.append(after)
    return found, taken


FOLLOWS = {"hang": {"settle_late", "prove"}, "lose": {"settle_late", "prove"}, "repeat": {"echo"}, "sleep": {"wake"},
           "fail": {"step_failing"}, "lend": {"give_back"}}  # fmt: skip
"""What a fault makes possible besides itself."""


@cache
def taken_in_calm() -> set[str]:
    """The verbs of a world without faults."""
    return all_of(World(WorldSettings()))[1]


@pytest.mark.parametrize("fault", sorted(FAULT_DOCS.keys() - faults_with(Acts.OF_STORE) - {"lose_worker"}))
def test_world_offers_each_fault_only_where_it_is_wanted(fault: str) -> None:
    """With a fault its actions occur, and what follows from them; without it they never do."""
    _, taken = all_of(World(WorldSettings(faults=Faults(**{fault: 1}))))

    assert taken - taken_in_calm() == {fault} | FOLLOWS.get(fault, set())


def test_world_loses_and_regains_a_worker() -> None:
    """That takes two of them."""
    settings = WorldSettings(engine=Settings(num_workers=2), requests=("a.b",), faults=Faults(lose_worker=1))

    assert explore(World(settings)).verdict is Verdict.HOLDS
    with pytest.raises(MisuseError, match="a worker can be lost only where there are two"):
        WorldSettings(faults=Faults(lose_worker=1))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (lambda: WorldSettings(requests=()), "a world has 1 to 26 requests"),
        (lambda: WorldSettings(requests=("a.b",) * 27), "a world has 1 to 26 requests"),
        (lambda: WorldSettings(requests=("ab",)), "write prompt and output as letters"),
        (lambda: WorldSettings(requests=(".b",)), "write prompt and output as letters"),
        (lambda: WorldSettings(requests=("a.",)), "write prompt and output as letters"),
        (lambda: WorldSettings(requests=("abcdef.g",)), "6 letters|7 letters need up to 6 blocks, and there are 3"),
        (lambda: Faults(fail=-1), "fail must be a whole number of at least 0"),
        (lambda: Faults(fail=True), "fail must be a whole number"),
    ],
)
def test_world_refuses_what_cannot_be(settings: object, match: str) -> None:
    """Before anything is explored, and with the remedy."""
    with pytest.raises(MisuseError, match=match):
        settings()  # type: ignore[operator]


def test_script_is_a_prompt_and_what_follows() -> None:
    """The dot is where the prompt ends."""
    assert Script.parse("a", "ab.cd") == Script("a", "abcd", 2)


# --- both truths --------------------------------------------------------------------------------------------------------


def walked(world: World, wanted: Iterable[str]) -> State:
    """The state after these actions, by their words."""
    state = world.initial()
    for words in wanted:
        state = world.step(state, next(each for each in world.actions(state) if str(each) == words))
    return state


BEGIN = ("arrive a", "step", "settle", "step")


def test_world_sees_content_that_is_not_what_it_is_found_as(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that garbles one block: the ledger's books are in order, and the world breaks I6."""
    world = World(WorldSettings())
    right = Device.carry_out

    def garbling(device: Device, *args: object, **named: object) -> list[Landing]:
        landed = right(device, *args, **named)  # type: ignore[arg-type]
        device.workers[0].blocks = ["0:zzz" if each is not None else None for each in device.workers[0].blocks]
        return landed

    monkeypatch.setattr(Device, "carry_out", garbling)
    with pytest.raises(Broken, match="is found as 0:a, but holds 0:zzz") as broken:
        walked(world, BEGIN)

    assert broken.value.rule == "I6"


def test_world_sees_a_copy_on_a_place_that_is_said_to_be_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that lets a block go while it is copied: the device still reads it, and the world breaks I1."""
    world = World(WorldSettings())
    state = walked(world, BEGIN)
    said = tuple("FREED" for _ in world.core(state).blocks)
    right = cross_checks.described

    def mistaken(engine: Engine, saved: SavedScheduler, weights: str) -> CoreValue:
        return evolve(right(engine, saved, weights), blocks=said)

    monkeypatch.setattr("blocklife.testing.worlds._core_memo.described", mistaken)
    with pytest.raises(Broken, match="which is FREED in the ledger") as broken:
        world.step(state, Action("arrive", "b"))

    assert broken.value.rule == "I1"


def test_world_sees_content_that_is_fetched_twice() -> None:
    """A lookup that does not know what is on its way plans a second copy of it, and I12 is broken."""
    world = World(pinned_world("sleep").settings)
    world.engine.scheduler._state.search._loading = {}  # it was the scheduler's own
    seen = explore(world)

    assert seen.counterexamples[0].rule == "I12"
    assert "loads already" in seen.counterexamples[0].message


BESIDE_A_DRAFTER = {
    "blocks": (
        WorldSettings(
            engine=Settings(groups="full:1+drafter", num_blocks=2, num_slots=6), requests=("ab.c", "de.g", "ab.x", "ab.y")
        ),
        (*BEGIN, "arrive b", "arrive c", "arrive d", "settle", "step", "settle", "step"),
    ),
    "tails": (
        WorldSettings(
            engine=Settings(groups="full:3+drafter/1", num_blocks=4, num_slots=5),
            requests=("abcdex.g", "abcde.y", "abcde.f", "abcdex.h"),
        ),
        ("arrive a", "arrive b", "step", "settle", "step", "settle", "step", "arrive c", "arrive d", "settle", "step"),
    ),
}


@pytest.mark.parametrize("name", BESIDE_A_DRAFTER)
def test_world_lets_each_load_a_last_block_beside_a_drafter(name: str) -> None:
    """Its proof is not loaded, so nobody can hit it on the device: two loads of it at once break no rule."""
    settings, path = BESIDE_A_DRAFTER[name]
    world = World(settings)
    jobs = world.core(walked(world, path)).saved.ledger.jobs
    first = [job.payload.keys[0] for job in jobs if job.direction is Direction.LOAD]

    assert len(first) == 2
    assert first[0] == first[1]


def test_world_sees_a_proven_block_that_is_fetched_twice_beside_a_drafter() -> None:
    """Others can hit all but the last block of a load as soon as it lands."""
    engine = Settings(groups="full:1+drafter", num_blocks=6, num_slots=12)
    world = World(WorldSettings(engine=engine, requests=("abc.d", "efghij.k", "abc.x", "abc.y")))
    world.engine.scheduler._state.search._loading = {}
    before = walked(world, (*BEGIN, "settle", "step", "arrive b", "arrive c", "arrive d", "settle", "step", "settle"))

    with pytest.raises(Broken, match="loads 0:a, which job 3 loads already"):
        world.step(before, Action("step"))


def test_world_takes_an_error_of_the_real_code_for_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of a lawful engine is refused; whatever it raises is a counterexample, with the rule that it names."""
    world = World(WorldSettings())
    monkeypatch.setattr(Engine, "step", lambda engine: 1 // 0)
    with pytest.raises(Broken, match="ZeroDivisionError") as broken:
        walked(world, ("arrive a", "step"))

    assert broken.value.rule == LAWFUL


def test_world_knows_who_cannot_drain() -> None:
    """A device that never lands anything: the rules hold, and progress does not."""

    class Stuck(World):
        def actions(self, state: State) -> Iterable[Action]:  # type: ignore[override]
            return (each for each in super().actions(state) if each.verb != "land")

    seen = explore(Stuck(WorldSettings(engine=Settings(policies=evolve(USUAL, last_step=LastStep.DRAIN)))))

    assert seen.verdicts["drains"] is Verdict.VIOLATED
    assert seen.verdicts["I1"] is Verdict.HOLDS
    assert seen.counterexamples[0].rule == "drains"


def test_world_is_explored_within_bounds() -> None:
    """What was cut short is unknown."""
    assert explore(World(WorldSettings()), Bounds(max_states=20)).verdict is Verdict.UNKNOWN


def test_world_properties_have_their_kinds() -> None:
    """One of progress, two of reachability."""
    kinds = {each.name: each.kind for each in World(WorldSettings()).properties()}

    assert kinds == {"drains": Kind.LEADS_TO, "stores": Kind.SOMETIMES, "finishes": Kind.SOMETIMES}
