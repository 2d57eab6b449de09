"""The explorer on models small enough to be drawn by hand.

Goal: every verdict is right, every counterexample is a shortest one, and a search that did not see everything never passes.
Method: a model is a table of steps; what it should find is read off the table.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from attrs import define, field

from blocklife.testing import Bounds, Broken, Kind, Property, Verdict, explore


@define(eq=False)
class Toy:
    """Steps by state and action; a step to a negative state breaks the rule *law*."""

    steps: Mapping[int, Mapping[str, int]]
    wanted: Sequence[Property[int, str]] = ()
    asked: list[tuple[int, str]] = field(factory=list)

    def initial(self) -> int:
        return 0

    def actions(self, state: int) -> Iterable[str]:
        return self.steps.get(state, {})

    def step(self, state: int, action: str) -> int:
        self.asked.append((state, action))
        after = self.steps[state][action]
        if after < 0:
            raise Broken("law", f"{action} from {state}")
        return after

    def properties(self) -> Sequence[Property[int, str]]:
        return self.wanted

    def rules(self) -> Sequence[str]:
        return ("law",)


DIAMOND = {0: {"a": 1, "b": 2}, 1: {"c": 3}, 2: {"d": 3}, 3: {"e": 0}}
"""Four states, five steps, two of them deep."""


def always(judge: Callable[[int], str]) -> Property[int, str]:
    return Property("small", Kind.ALWAYS, "states are small", always=judge)


def test_explore_visits_every_state_once() -> None:
    """States, steps and depth are those of the drawing, and each step is asked for once."""
    model = Toy(DIAMOND)
    seen = explore(model)

    assert (seen.states, seen.edges, seen.depth) == (4, 5, 2)
    assert seen.complete
    assert seen.verdict is Verdict.HOLDS
    assert sorted(model.asked) == [(0, "a"), (0, "b"), (1, "c"), (2, "d"), (3, "e")]


def test_explore_finds_the_shortest_way_to_a_bad_state() -> None:
    """Breadth first: the long way round is found later."""
    model = Toy(
        {0: {"slow": 1, "fast": 3}, 1: {"slow": 2}, 2: {"slow": 3}}, [always(lambda state: "three" if state == 3 else "")]
    )
    (found,) = explore(model).counterexamples

    assert (found.rule, found.message, found.actions) == ("small", "three", ("fast",))


def test_explore_judges_the_first_state() -> None:
    """It may be wrong before anything happens."""
    (found,) = explore(Toy({}, [always(lambda state: "bad")])).counterexamples

    assert found.actions == ()


def test_explore_takes_a_broken_step_for_a_counterexample() -> None:
    """The step itself is the last action."""
    seen = explore(Toy({0: {"a": 1}, 1: {"b": -1}}))
    (found,) = seen.counterexamples

    assert (found.rule, found.message, found.actions) == ("law", "b from 1", ("a", "b"))
    assert seen.verdicts["law"] is Verdict.VIOLATED


def test_explore_takes_broken_trying_for_a_counterexample() -> None:
    """A model that finds out by trying what is possible, and breaks a property with that."""

    class Trying(Toy):
        def actions(self, state: int) -> Iterable[str]:
            if state == 1:
                raise Broken("law", "tried")
            return super().actions(state)

    (found,) = explore(Trying({0: {"a": 1}})).counterexamples

    assert (found.rule, found.message, found.actions) == ("law", "tried", ("a",))


def test_explore_stops_at_the_first_counterexample_unless_told() -> None:
    """With *every* it goes on, and finds one of each rule."""
    steps = {0: {"a": -1, "b": 1}, 1: {"c": 9}}
    wanted = [always(lambda state: "nine" if state == 9 else "")]

    assert [each.rule for each in explore(Toy(steps, wanted)).counterexamples] == ["law"]
    assert sorted(each.rule for each in explore(Toy(steps, wanted), every=True).counterexamples) == ["law", "small"]


def test_explore_judges_steps() -> None:
    """An edge property sees both ends and the action."""
    down = Property[int, str](
        "up", Kind.EDGE, "it goes up", edge=lambda a, action, b: f"{action} goes down" if b < a and action != "e" else ""
    )
    good, bad = explore(Toy(DIAMOND, [down])), explore(Toy(DIAMOND | {3: {"f": 1}}, [down]))

    assert good.verdict is Verdict.HOLDS
    assert [(each.message, each.actions) for each in bad.counterexamples] == [("f goes down", ("a", "c", "f"))]


@pytest.mark.parametrize(("goal", "verdict"), [(3, Verdict.HOLDS), (7, Verdict.VIOLATED)])
def test_explore_knows_what_is_never_reached(goal: int, verdict: Verdict) -> None:
    """*sometimes* is refuted only by the whole world."""
    wanted = Property[int, str]("seen", Kind.SOMETIMES, "it is seen", goal=lambda state: state == goal)

    assert explore(Toy(DIAMOND, [wanted])).verdicts["seen"] is verdict


def leads(closing: str) -> Property[int, str]:
    return Property(
        "home", Kind.LEADS_TO, "it comes home", goal=lambda state: state == 0, closing=lambda action: action in closing
    )


def test_explore_knows_who_cannot_reach_the_goal() -> None:
    """Only the actions that are allowed count, and the nearest lost state is named."""
    assert explore(Toy(DIAMOND, [leads("cde")])).verdict is Verdict.HOLDS
    lost = explore(Toy(DIAMOND, [leads("ce")]))

    assert lost.verdicts["home"] is Verdict.VIOLATED
    assert lost.counterexamples[0].actions == ("b",)


def test_explore_follows_long_ways_home() -> None:
    """A chain of a thousand steps is walked back to its end."""
    chain = {number: {"n": (number + 1) % 1000} for number in range(1000)}

    assert explore(Toy(chain, [leads("n")])).verdict is Verdict.HOLDS
    assert explore(Toy({**chain, 999: {}}, [leads("n")])).verdict is Verdict.VIOLATED


@pytest.mark.parametrize("bounds", [Bounds(max_states=2), Bounds(max_depth=1), Bounds(max_seconds=0.0)], ids=str)
def test_explore_never_passes_where_a_bound_was_hit(bounds: Bounds) -> None:
    """Nothing is known then of what was not refuted: no verdict but UNKNOWN, of progress and of reachability, too."""
    never = Property[int, str]("seen", Kind.SOMETIMES, "it is seen", goal=lambda state: state == 99)
    seen = explore(Toy(DIAMOND, [leads("cde"), never]), bounds)

    assert not seen.complete
    assert len(seen.bounds_hit) == 1
    assert seen.verdict is Verdict.UNKNOWN
    assert set(seen.verdicts.values()) == {Verdict.UNKNOWN}


def test_explore_refutes_within_bounds() -> None:
    """A counterexample is one, bound or not."""
    seen = explore(Toy({0: {"a": -1, "b": 1}, 1: {"c": 2}}), Bounds(max_depth=1), every=True)

    assert seen.verdict is Verdict.VIOLATED


def test_explore_can_be_stopped() -> None:
    """What is known so far is told, and is no pass."""
    chain = {number: {"n": number + 1} for number in range(1000)}
    asked: list[int] = []
    seen = explore(Toy(chain), progress=lambda states, edges, depth: asked.append(states), stop=lambda: len(asked) > 3)

    assert seen.interrupted
    assert 0 < seen.states < 1000
    assert seen.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("before", [(700, 10, 10), (0, 10, 10), (900_000, 5, 5)], ids=str)
def test_explore_leaves_the_collector_as_it_was(before: tuple[int, int, int]) -> None:
    """It looks for cycles less often meanwhile, or as seldom as somebody else has chosen; after an error, too."""
    during: list[int] = []

    def look(state: int) -> str:
        during.append(gc.get_threshold()[0])
        if state:
            raise ValueError(state)
        return ""

    usual = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        with pytest.raises(ValueError, match="1"):
            explore(Toy(DIAMOND, [always(look)]))
        after = gc.get_threshold()
    finally:
        gc.set_threshold(*usual)

    assert after == before
    assert during[0] == (max(before[0], 200_000) if before[0] else 0)
