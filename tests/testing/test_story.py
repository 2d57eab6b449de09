"""A counterexample can be followed, pasted, replayed and drawn: bugs are planted, and their stories judged.

Method: the derived mutants and the seed bugs give counterexamples of many kinds. A story must break the same rule as the
exploration did, call one block by one name throughout (which is checked against an engine that runs without any renaming), and
every other form must show the same.
"""

from __future__ import annotations

import contextlib
import io
import re
from zlib import crc32

import pytest
from attrs import evolve

from blocklife.errors import MisuseError
from blocklife.ledger import Contract, Plan
from blocklife.offload import LastStep, Mode, OffloadScheduler
from blocklife.offload._admissions import Admissions
from blocklife.testing import (
    Action,
    Bounds,
    Counterexample,
    Faults,
    Kind,
    Outcome,
    Story,
    World,
    WorldSettings,
    explore,
    parse_scenario,
    pinned_world,
    retell,
    run_scenario,
    tell,
)
from blocklife.testing.exploring._story_forms import diagram, program, replayed, scenario_text
from blocklife.testing.worlds._cross_checks import LAST_STEP, TOLD
from blocklife.testing.worlds._engine import USUAL, Engine, Settings
from tests.planting import without
from tests.proof.mutants.planting import Mutant, all_mutants, planted

MUTANTS = {each.name: each for each in all_mutants()}
LOADS = pinned_world("loads-fence").settings
STEP, SETTLE = Action("step"), Action("settle")
STORED = (Action("arrive", "a"), STEP, SETTLE, STEP)
"""Request a has ended, and its store is held back."""


def found(settings: WorldSettings, mutant: Mutant) -> tuple[Counterexample[Action], Story]:
    """The first counterexample in a world with a mutant, and its story; both are made with it."""
    with planted(mutant):
        world = World(settings)
        (counterexample,) = explore(world, Bounds(max_seconds=60)).counterexamples
        return counterexample, retell(world, counterexample)


def seed(start: str) -> Mutant:
    """The mutant whose name starts so."""
    return next(each for name, each in MUTANTS.items() if name.startswith(start))


SEED = seed("S1: ")
EARLY = seed("submitted: no block.submit")
# one in forty, by name, so that a mutant more leaves the others where they are
SPREAD = [each for name, each in MUTANTS.items() if crc32(name.encode()) % 40 == 0]


# --- the story --------------------------------------------------------------------------------------------------------------


def test_story_says_what_happened_and_what_it_changed() -> None:
    """One line a step in plain words, with the transitions of that very call below it."""
    text = str(tell(LOADS, (*STORED, SETTLE, STEP)))

    assert "1. request a arrives with the prompt 'ab'; its output will be 'c'" in text
    assert "2. the engine makes plan 1; the workers compute 0:a into block 1, 0:ab into block 2\n" in text
    assert "request a WAITING > RUNNING" in text
    assert "job 1 (store of a, blocks 1, 2 to slots 0, 1) is held back until the next plan" in text
    assert "6. the engine makes plan 3; job 1 starts on the device; it waits for job 1" in text
    assert "broken" not in text


def test_story_shows_both_truths_side_by_side() -> None:
    """The table at the end has what the ledger says of each place, and what each worker has there."""
    story = tell(pinned_world("two-workers").settings, STORED)
    places = {each.name: each for each in story.places}

    assert list(places) == ["block 1", "block 2", "block 3", "slot 0", "slot 1"]
    assert places["block 1"].said == "IN_FLIGHT, found as 0:a"
    assert places["block 1"].real == ("0:a, job 1 will read it",) * 2
    assert places["slot 0"].said == "WRITING, found as 0:a"
    assert "worker 0 has" in str(story)


def test_story_calls_a_block_by_one_name() -> None:
    """The same path on an engine that renames nothing gives the same contents in the same blocks, up to one fixed renaming."""
    settings = WorldSettings(engine=Settings(num_blocks=4), requests=("ab.cd", "ab.ce"))
    path = [Action("arrive", "a"), STEP, SETTLE, STEP, Action("arrive", "b"), SETTLE, STEP, SETTLE, STEP, SETTLE]
    told = [step.orders for step in tell(settings, path).steps if step.orders is not None]
    engine = Engine(settings.engine)
    plain = []
    for action in path:
        if action.verb == "arrive":
            script = settings.requests["ab".index(action.request)]
            engine.add(script.name, script.text, script.prompt)
        elif action.verb == "step":
            plain.append(engine.step().orders)
        else:
            engine.settle()
    pairs = set[tuple[int, int]]()
    for ours, theirs in zip(told, plain, strict=True):
        pairs |= set(zip((at for at, _ in ours.forward.writes), (at for at, _ in theirs.forward.writes), strict=True))
        for one, other in zip((*ours.stores, *ours.loads), (*theirs.stores, *theirs.loads), strict=True):
            pairs |= set(zip(one.blocks, other.blocks, strict=True))
        assert [order.job for order in ours.stores] == [order.job for order in theirs.stores]
        assert (ours.plan, ours.flushes) == (theirs.plan, theirs.flushes)

    assert len(pairs) >= 3
    assert len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs}) == len(pairs)


def test_story_tells_the_message_in_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world calls the job of a later plan by its age among those that are out; the story counts all of them."""
    path = (*STORED, SETTLE, STEP, SETTLE, Action("arrive", "b"), STEP, SETTLE, STEP)
    right = OffloadScheduler.build_plan

    def wrong(scheduler: OffloadScheduler, now: float) -> Plan:
        ledger = scheduler.ledger
        if len(ledger.journal) and ledger.jobs.live and not ledger.requests:
            for job in ledger.jobs.known():
                if any(key == b"0:d" for key in job.keys):
                    raise MisuseError(f"job {job.number}: planted")
        return right(scheduler, now)

    monkeypatch.setattr(OffloadScheduler, "build_plan", wrong)
    story = tell(LOADS, path)

    assert story.rule == "lawful"
    assert story.message == "MisuseError: job 2: planted"


def test_story_of_what_never_comes_ends_where_it_cannot() -> None:
    """A state that cannot drain breaks nothing on the way: rule and message are those of the search."""
    story = tell(LOADS, STORED, "drains", "not from here")

    assert not story.breaks
    assert str(story).count("drains is broken: not from here") == 1


def test_story_refuses_a_path_that_cannot_be_taken() -> None:
    """The step that is impossible is named."""
    with pytest.raises(MisuseError, match="step 2 of the path: settle cannot happen there"):
        tell(LOADS, (Action("arrive", "a"), SETTLE))


def test_story_names_reports_and_faults() -> None:
    """Copies that fail, hang and land, reports that are lost and told: each has its sentence."""
    settings = WorldSettings(requests=("ab.c", "ab.d"), faults=Faults(hang=1, lose=1, repeat=1, renew=1))
    path = (*STORED, SETTLE, STEP, SETTLE, Action("arrive", "b"))
    engine = Settings(num_blocks=2, policies=evolve(USUAL, last_step=LastStep.DRAIN))
    running = WorldSettings(engine=engine, requests=("ab.c", "de.f"), faults=Faults(fail=1))
    failing = (*STORED, SETTLE, STEP, SETTLE, Action("arrive", "b"), Action("step_failing"))
    sleepy = WorldSettings(requests=("ab.c",), faults=Faults(sleep=1))

    assert "the weights change" in str(tell(settings, (Action("arrive", "a"), Action("renew"))))
    assert "the engine hears that job 1 landed on worker 0" in str(tell(settings, path))
    assert "it waits for job 1, which fails" in str(tell(running, failing))
    assert "the device memory is given up" in str(tell(sleepy, (*STORED, Action("sleep"))))


# --- other forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", [SEED, EARLY, seed("job.finish from IN_FLIGHT to DONE without")], ids=lambda each: each.name)
def test_program_prints_the_story(mutant: Mutant) -> None:
    """Pasted into Python it takes the path again, bug and all, and prints the same."""
    _, story = found(LOADS, mutant)
    printed = io.StringIO()
    with planted(mutant), contextlib.redirect_stdout(printed):
        exec(program(story), {})

    assert printed.getvalue() == f"{story}\n"


def test_program_says_what_a_path_does_not_break() -> None:
    """Where something is missing at the end, the program passes the rule on; odd names of requests are kept."""
    story = tell(
        WorldSettings(engine=Settings(contract=Contract.HOLD, policies=evolve(USUAL, mode=Mode.LAZY))),
        STORED[:2],
        "drains",
        "it's stuck",
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program(story), {})

    assert "drains is broken: it's stuck" in printed.getvalue()


WORLDS = (
    "loads-fence",
    "loads-hold",
    "overdue-hold",
    "two-workers",
    "ahead-fence",
    "windows",
    "reports-lost",
    "reports-twice",
    "sleep",
    "within-ahead",
    "tails-fence",
    "tails-drafter-proof",
)


@pytest.mark.parametrize("name", WORLDS)
def test_scenario_takes_the_same_path(name: str) -> None:
    """Winding paths through worlds that hold, with all kinds of faults: as a scenario every one of them holds, too."""
    settings = pinned_world(name).settings
    world = World(settings)
    paths = _paths(world)

    for path in paths:
        story = tell(settings, path)
        verdict = run_scenario(parse_scenario(scenario_text(story)))

        assert verdict.outcome is Outcome.HELD, (verdict.message, [str(each) for each in path])


def _paths(world: World, steps: int = 40, count: int = 12) -> list[tuple[Action, ...]]:
    """Some paths, by a rule that needs no dice: at each state another of the actions that are offered."""
    found = []
    for turn in range(count):
        state, path = world.initial(), list[Action]()
        for step in range(steps):
            offered = list(world.actions(state))
            if not offered:
                break
            action = offered[(turn * 7 + step * (turn + 3)) % len(offered)]
            state = world.step(state, action)
            path.append(action)
        found.append(tuple(path))
    return found


@pytest.mark.parametrize("mutant", [SEED, EARLY, *SPREAD], ids=lambda each: each.name)
def test_story_breaks_the_rule_and_its_scenario_fails_while_the_bug_is_there(mutant: Mutant) -> None:
    """Retelling takes the path again by the same code: same rule, as many steps, and the story ends with it.

    Its scenario has no expectation of its own: it is the regression test that the bug deserves, and holds without the bug.
    """
    with planted(mutant):
        world = World(LOADS)
        # of what never happens in a world there is no path, and no scenario
        never = {each.name for each in world.properties() if each.kind is Kind.SOMETIMES}
        counterexamples = explore(world, Bounds(max_seconds=30)).counterexamples
        retold = [retell(world, each) for each in counterexamples]
        stories = [story for story in retold if story.rule not in never]
        # A scenario has no hooks, so that it cannot break the rule about them. And it restores nothing: only a scheduler that
        # was restored, as the world's is before each action, asks the ledger for every load that it waits for, also for one
        # whose request is over; and only a list that was lined up anew lacks the link back that an older one happens to have.
        of_restored = ("it is not known", "does not lead back")
        told = [story for story in stories if story.rule != TOLD and not any(each in story.message for each in of_restored)]
        problems = [replayed(story) for story in told]

    for counterexample, story in zip(counterexamples, retold, strict=True):
        assert (story.rule, len(story.steps)) == (counterexample.rule, len(counterexample.actions))
        assert f"{story.rule} is broken: {story.message}" in str(story)
    assert set(problems) <= {""}
    for story in stories:
        if story.rule != LAST_STEP:
            assert run_scenario(parse_scenario(scenario_text(story))).outcome is Outcome.HELD


@pytest.mark.interpreted
def test_scenario_of_a_load_within_a_step_fails_while_the_bug_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file says how much a step may load before its forward pass: without that, its path knows no such load."""
    settings = pinned_world("within-fence").settings
    with monkeypatch.context() as patch:
        without(patch, Admissions, "load_hit", {"within=hit.within": "within=False"})
        world = World(settings)
        story = retell(world, explore(world, Bounds(max_seconds=30)).counterexamples[0])
        problem = replayed(story)

    assert problem == ""
    assert f"load_within_tokens = {settings.engine.policies.load_within_tokens}\n" in scenario_text(story)
    assert run_scenario(parse_scenario(scenario_text(story))).outcome is Outcome.HELD


LABEL = r"[^:;\n]+(?:#\d+;[^:;\n]*)*"
STATEMENT = re.compile(
    r"sequenceDiagram|    participant \w+ as (engine|ledger|worker \d+)"
    rf"|    (E|L|W\d+)(->>|-->>|--x)(E|L|W\d+): {LABEL}"
    rf"|    Note over (E|L|W\d+)(,W\d+)?: {LABEL}"
)


def test_diagram_has_only_statements_of_its_grammar() -> None:
    """Every line is one statement, no label holds a character that would end it, and everybody is a participant."""
    _, story = found(pinned_world("two-workers").settings, EARLY)
    lines = diagram(story).splitlines()

    assert lines[0] == "sequenceDiagram"
    assert [line.split()[1] for line in lines[1:5]] == ["E", "L", "W0", "W1"]
    for line in lines:
        assert STATEMENT.fullmatch(line), line
    assert "is broken" in lines[-1]
