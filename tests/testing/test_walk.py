"""Long walks through a world that is too large to enumerate.

Goal: a walk finds what an exploration cannot reach, can be repeated by its seed, and shows what it finds by a short path.
Method: walks of the real code, whose seeds are printed, must find nothing; walks of code with a planted bug must find it, and
the path that is left is taken again in a world of its own, where every action of it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import asdict, evolve

from blocklife.core._progress import TokenProgress
from blocklife.errors import MisuseError
from blocklife.ledger import Contract, Plan
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger._rows import RowVerbs
from blocklife.offload import Demote, Mode, OffloadScheduler
from blocklife.offload import _search as search_module
from blocklife.offload import _stores as stores_module
from blocklife.offload._endings import Endings
from blocklife.offload._lookup import Found, common_length
from blocklife.offload._stores import StoreLine
from blocklife.testing import Action, Broken, Faults, Walked, World, WorldSettings, pinned_world, walk
from blocklife.testing.exploring._walk import LARGE, WORLD, Guide, carry, only_used, shrink
from blocklife.testing.worlds import _world as world_module
from blocklife.testing.worlds._actions import CLOSING, NEW_SPACE
from blocklife.testing.worlds._engine import USUAL_BELOW, Settings
from blocklife.testing.worlds._next_actions import Env

SEEDS = (11, 12)
STEPS = 800
QUIET = WorldSettings()
SMALL = WorldSettings(faults=Faults(fail=2, hang=1, lose=1, abort=2, preempt=2, reset=1, renew=1, sleep=1))
WORLDS = {
    "large": LARGE,
    "hold": evolve(LARGE, engine=evolve(LARGE.engine, contract=Contract.HOLD)),
    "lazy": evolve(
        LARGE,
        engine=evolve(LARGE.engine, policies=evolve(LARGE.engine.policies, mode=Mode.LAZY, lazy_blocks=4), asynchronous=False),
    ),
    "states": evolve(LARGE, engine=evolve(LARGE.engine, groups="full:1,mamba:2", blocks_per_chunk=1, num_blocks=14)),
    "partial": evolve(
        LARGE, engine=evolve(LARGE.engine, policies=evolve(LARGE.engine.policies, partial_chunks=True), replacement="arc")
    ),
}


def breaks(settings: WorldSettings, actions: tuple[Action, ...]) -> str:
    """The rule that the last action of a path breaks; empty where none does, or an action is not possible."""
    world = World(settings)
    state = world.initial()
    for action in actions:
        if action not in list(world.actions(state)):
            return ""
        try:
            state = world.step(state, action)
        except Broken as broken:
            return broken.rule if action is actions[-1] else ""
    return ""


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: no plan waits for a copy whose block is handed out."""
    build_plan = OffloadScheduler.build_plan

    def hasty(self: OffloadScheduler, now: float) -> Plan:
        return evolve(build_plan(self, now), flushes=())

    monkeypatch.setattr(OffloadScheduler, "build_plan", hasty)


# --- what walks find --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WORLDS)
def test_walk_finds_nothing_in_large_worlds(name: str, seed: int) -> None:
    """Whatever goes wrong, every rule holds and every leg drains."""
    walked = walk(WORLDS[name], steps=STEPS, seed=seed)
    print(name, *walked.lines(), sep="\n")

    assert walked.finding is None
    assert walked.steps >= STEPS
    assert walked.drained == walked.legs > 1
    assert sum(walked.taken.values()) == walked.steps


@pytest.mark.parametrize("name", ["below-forgets", "below-drains", "below-refuses", "wide-below-weights"])
def test_walk_forgets_a_store_below_as_often_as_its_world_can(name: str) -> None:
    """Each time needs a new space, of which the store has so many; the next leg begins with all of them."""
    settings = pinned_world(name).settings
    walked = walk(settings, steps=400, seed=SEEDS[0])
    spaces = {kind: times for kind, times in settings.faults.items() if kind in NEW_SPACE and times}

    assert walked.finding is None
    assert all(1 < walked.taken[kind] <= times * walked.legs for kind, times in spaces.items())


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("settings", [LARGE, SMALL, QUIET], ids=["large", "small", "quiet"])
def test_walk_finds_a_planted_bug_and_shows_a_short_path(settings: WorldSettings) -> None:
    """The path that is left breaks the same rule in a world of its own, and no action of it can be left out."""
    walked = walk(settings, steps=20_000, seed=SEEDS[0])
    print(*walked.lines(), sep="\n")
    found = walked.finding

    assert found is not None
    assert found.rule in ("I1", "I6", "last step")
    assert len(found.actions) <= 16
    assert breaks(found.settings, found.actions) == found.rule
    for at in range(len(found.actions) - 1):
        assert breaks(found.settings, found.actions[:at] + found.actions[at + 1 :]) != found.rule


@pytest.mark.usefixtures("forgetful")
def test_finding_is_told_to_people_and_machines() -> None:
    """Seed, step, rule and story are in both, and the record is JSON."""
    walked = walk(SMALL, steps=20_000, seed=SEEDS[0])
    found = walked.finding
    assert found is not None
    record = json.loads(json.dumps(walked.record()))

    assert record["finding"]["actions"] == [str(each) for each in found.actions]
    assert record["finding"]["rule"] == found.rule == found.counterexample.rule
    assert str(found.story()) == record["finding"]["story"]
    assert f"seed {SEEDS[0]}, leg {found.leg}, step {found.step}: {found.rule}" in "\n".join(walked.lines())


def test_walk_finds_what_never_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps are no closing actions, who has come never goes, and one arrival shows it."""
    monkeypatch.setattr(world_module, "CLOSING", CLOSING - {"step"})
    found = walk(QUIET, steps=500, seed=SEEDS[0]).finding

    assert found is not None
    assert found.rule == "drains"
    assert [each.verb for each in found.actions] == ["arrive"]
    assert not found.story().breaks


def test_walk_finds_where_the_world_itself_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the test's own code comes with its path, too."""
    mislay = World._mislay

    def fails(self: World, env: Env, action: Action) -> Env:
        if action.verb == "lose":
            raise KeyError("planted")
        return mislay(self, env, action)

    monkeypatch.setattr(World, "_mislay", fails)
    found = walk(evolve(SMALL, faults=Faults(lose=1)), steps=5_000, seed=SEEDS[0]).finding

    assert found is not None
    assert (found.rule, found.message) == (WORLD, "KeyError: 'planted'")
    assert found.actions[-1].verb == "lose"
    assert str(found.story())


# --- bugs that are planted ----------------------------------------------------------------------------------------------------


def plant_window_of_unsettled_tokens(patch: pytest.MonkeyPatch) -> None:
    """Blocks leave a window when tokens are scheduled, not when they are settled."""
    right = TokenProgress.first_needed

    def wrong(table: TokenProgress, group: int, row: int) -> int:
        ahead = table.end_of(row) - table.computed_of(row)
        table.computed[row] += ahead
        found = right(table, group, row)
        table.computed[row] -= ahead
        return found

    patch.setattr(TokenProgress, "first_needed", wrong)


def plant_forgotten_epochs(patch: pytest.MonkeyPatch) -> None:
    """A chunk is taken for fresh because its blocks exist."""
    right = StoreLine._judge

    def wrong(line: StoreLine, chunk: stores_module.Chunk) -> Any:
        epoch = line._ledger.blocks.epochs
        chunk.lives = [life and epoch[life & ID_MASK] << 32 | life & ID_MASK for life in chunk.lives]
        return right(line, chunk)

    patch.setattr(StoreLine, "_judge", wrong)


def plant_loads_from_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    """The blocks of a chunk come back in the wrong order."""
    right = RowVerbs.plan_load

    def wrong(rows: RowVerbs, *given: Any, within: bool) -> None:
        right(rows, *given, within=within)
        jobs = rows._core.jobs
        row = jobs.by_number[jobs.last_number]
        begin, end = jobs.begin[row], jobs.begin[row] + jobs.num_blocks[row]
        jobs.slot[begin:end] = jobs.slot[begin:end][::-1]

    patch.setattr(RowVerbs, "plan_load", wrong)


def plant_holes_closed_up(patch: pytest.MonkeyPatch) -> None:
    """What follows a hole in a chunk moves to the hole's place in the host tier."""
    right = StoreLine._columns

    def wrong(line: StoreLine, orders: Sequence[Sequence[stores_module.Chunk]], slots: list[int]) -> Any:
        for chunks in orders:
            for chunk in chunks:
                chunk.lives = sorted(chunk.lives, key=lambda life: life == 0)
        return right(line, orders, slots)

    patch.setattr(StoreLine, "_columns", wrong)


def plant_old_weights(patch: pytest.MonkeyPatch) -> None:
    """Other weights come, and the host tier keeps what the former ones made."""
    right = Endings.reset

    def wrong(core: Endings, *, drain: bool, host: bool) -> list[str]:
        return right(core, drain=drain, host=False)

    patch.setattr(Endings, "reset", wrong)


def plant_one_stay_taken_for_another(patch: pytest.MonkeyPatch) -> None:
    """What a plan computed before a preemption counts for the stay after it."""
    right = TokenProgress.clear

    def wrong(table: TokenProgress, row: int) -> None:
        serial = table.serial[row]
        right(table, row)
        table.serial[row] = serial

    patch.setattr(TokenProgress, "clear", wrong)


def plant_pending_taken_for_there(patch: pytest.MonkeyPatch) -> None:
    """Content on its way is counted, and not waited for."""
    right: Callable[..., Found] = common_length

    def wrong(*args: Any, **named: Any) -> Found:
        found = right(*args, **named)
        return Found(found.length, False, found.rounds)

    patch.setattr(search_module, "common_length", wrong)


def of_blocks(groups: str, chunk: int = 1, blocks: int = 30, *, partial: bool = False) -> WorldSettings:
    """Blocks of several tokens, texts that part inside a block, and memory for all of it."""
    policies = evolve(LARGE.engine.policies, partial_chunks=partial)
    engine = Settings(groups=groups, blocks_per_chunk=chunk, num_blocks=blocks, num_slots=8, policies=policies)
    return evolve(SMALL, engine=engine, requests=("abcdefghijkl.mnopq", "abcdefghwxyz.v", "abcdefghijkl.mnz", "wxyz.v"))


PLANTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[WorldSettings, str]] = {
    plant_window_of_unsettled_tokens: (of_blocks("swa:4:8"), "I6"),
    plant_forgotten_epochs: (of_blocks("full:4", blocks=6), "lawful"),
    plant_loads_from_the_wrong_place: (of_blocks("full:4", 2), "I6"),
    plant_holes_closed_up: (of_blocks("swa:2:5", 3, partial=True), "I6"),
    plant_old_weights: (of_blocks("full:4"), "I10"),
    plant_one_stay_taken_for_another: (of_blocks("full:4", blocks=6), "lawful"),
    plant_pending_taken_for_there: (of_blocks("full:4", blocks=6), "lawful"),
}
"""The world of each bug, and the rule that it breaks there."""


@pytest.mark.interpreted
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.removeprefix("plant_"))
def test_bug_of_the_scheduler_ends_a_walk(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, chunks with holes, lives that are over, weights: none of them was thought of when the walk was written."""
    settings, rule = PLANTS[plant]
    assert walk(settings, steps=200, seed=SEEDS[0]).finding is None
    plant(monkeypatch)
    found = walk(settings, steps=4_000, seed=SEEDS[0], shorten=False).finding

    assert found is not None
    assert found.rule == rule


# --- what a walk is ---------------------------------------------------------------------------------------------------------


def without_time(walked: Walked) -> dict[str, object]:
    """Everything about a walk that its seed decides."""
    return {**asdict(walked, recurse=False), "seconds": 0, "worlds": 0, "states": 0, "coverage": 0}


def test_walk_is_decided_by_its_seed() -> None:
    """The same seed gives the same walk, another one another."""
    one, same, other = (walk(SMALL, steps=400, seed=seed) for seed in (1, 1, 2))

    assert without_time(one) == without_time(same)
    assert one.states == same.states
    assert one.coverage == same.coverage
    assert one.taken != other.taken


def test_walk_is_the_same_however_little_its_worlds_remember() -> None:
    """Going over to a new world changes nothing but what is counted twice."""
    full, poor = (walk(LARGE, steps=500, seed=SEEDS[0], keep=keep) for keep in (1_000_000, 1_000))

    assert (full.worlds, poor.worlds > 2) == (1, True)
    assert without_time(full) == without_time(poor)
    assert poor.states >= full.states
    assert {name: set(rows) for name, rows in full.coverage.items()} == {
        name: set(rows) for name, rows in poor.coverage.items()
    }


def test_carry_keeps_all_that_can_happen() -> None:
    """A state and its copy in a new world offer the same actions, and go the same way."""
    old, new = World(SMALL), World(SMALL)
    state = old.initial()
    for _ in range(30):
        copy = carry(state, old, new)
        actions = list(old.actions(state))
        if not actions:
            break
        assert list(new.actions(copy)) == actions
        state, after = old.step(state, actions[-1]), new.step(copy, actions[-1])

        assert carry(state, old, new) == after


def test_some_walks_starve_a_kind_of_action() -> None:
    """What one leg likes another does not: no weight is the same for all."""
    legs = [walk(LARGE, steps=60, seed=seed).taken for seed in range(12)]
    for verb in ("abort", "reset", "renew"):
        assert any(taken.get(verb, 0) == 0 for taken in legs), verb
        assert any(taken.get(verb, 0) > 1 for taken in legs), verb


def test_budgets_of_faults_are_filled_again() -> None:
    """A leg can have more faults than the settings say, and the world that is shown for a path has as many as it needs."""
    walked = walk(evolve(SMALL, faults=Faults(preempt=1)), steps=2_000, seed=SEEDS[0])

    assert walked.taken["preempt"] > walked.legs


def test_requests_come_again_and_never_too_many_at_once() -> None:
    """More come in a leg than there are, though the ledger never has to refuse one."""
    settings = WorldSettings(engine=Settings(max_requests=2), requests=("a.bc", "a.bd", "b.cd"))
    walked = walk(settings, steps=1_000, seed=SEEDS[0])

    assert walked.finding is None
    assert walked.taken["arrive"] > 3 * walked.legs


def test_requests_of_a_drafter_come_again_two_at_once() -> None:
    """Nobody gives way for others there, so the world gets room for two of the longest."""
    pinned = pinned_world("drafter").settings
    walked = walk(pinned, steps=400, seed=SEEDS[0])

    assert walked.finding is None
    assert walked.taken["arrive"] > len(pinned.requests) * walked.legs


def test_world_of_a_path_has_the_same_entries_below() -> None:
    """An answer names an entry by its number, which depends on all texts and spaces of a world."""
    engine, requests = Settings(below=evolve(USUAL_BELOW, demote=Demote.NEVER), below_shared=True), ("xy.z", "ab.c", "xy.z")
    settings = WorldSettings(engine=engine, requests=requests, faults=Faults(renew=1, reset=1, abort=1))
    world = World(settings)
    state, path = world.initial(), list[Action]()
    for verb in ("arrive b", "reset", "step", "answer_miss entry 15"):
        path.append(next(each for each in world.actions(state) if str(each) == verb))
        state = world.step(state, path[-1])
    small = only_used(settings, path)

    assert [each.name for each in small.requests] == ["a", "b"]
    assert (small.faults.abort, small.faults.renew) == (0, 1)
    assert Guide(World(small)).retake(path, drain=False) == (path, None)


def test_walk_can_be_stopped_and_says_how_far_it_is() -> None:
    """`progress` hears of steps, legs and states; `stop` ends the walk with what is known."""
    heard: list[tuple[int, int, int]] = []
    walked = walk(
        QUIET,
        steps=100_000,
        progress=lambda steps, legs, states: heard.append((steps, legs, states)),
        stop=lambda: len(heard) > 2,
    )

    assert walked.interrupted
    assert [steps for steps, _, _ in heard] == [64, 128, 192]
    assert walked.steps == 192
    assert "interrupted" in "\n".join(walked.lines())


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_walk_refuses_no_steps(steps: int) -> None:
    """A walk has steps."""
    with pytest.raises(MisuseError, match="steps must be a whole number of at least 1"):
        walk(QUIET, steps=steps)


def test_shrink_refuses_a_path_that_breaks_nothing() -> None:
    """Only what was found can be made shorter."""
    with pytest.raises(MisuseError, match="these 2 actions do not break I1"):
        shrink(QUIET, [Action("arrive", "a"), Action("step")], "I1")


def test_shrink_ends_where_it_is_told_to(forgetful: None) -> None:
    """With no tries left the path is what it was, without what was not possible anyway."""
    walked = walk(SMALL, steps=20_000, seed=SEEDS[0], shorten=False)
    found = walked.finding
    assert found is not None
    path, _ = shrink(found.settings, (Action("wake"), *found.actions), found.rule, tries=0)

    assert path == found.actions
    assert len(path) == found.found_after
