"""Orders ahead of a step: an engine that launches copies, and waits for them, while it still schedules.

Goal: what such an engine tells its workers is carried out in its order, and judged. Method: a scripted engine of one step,
whose orders are chosen here; what must not be has its own script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from blocklife.testing import (
    CopyOrder,
    Driver,
    EngineSetup,
    EngineStep,
    Landing,
    Orders,
    Outcome,
    Pass,
    ScenarioVerdict,
    SettledPlan,
    parse_scenario,
    run_scenario,
)

WRITTEN = Pass(writes=((1, "0:abcd"),))
NOTHING = Pass()
STORE = CopyOrder(1, True, (1,), (0,))
OTHER = CopyOrder(2, True, (2,), (0,))
BACK = CopyOrder(3, False, (0,), (3,))


class Scripted(Driver):
    """An engine whose second step is given."""

    def __init__(self, second: EngineStep) -> None:
        self.second = second
        self.num_steps = 0
        self.heard: list[Landing] = []

    def start(self, world: EngineSetup) -> None:
        """Nothing is to be set up."""

    def arrive(self, request: str, prompt: str, tokens: int | None = None, reply: str = "") -> None:
        """There is one request only."""

    def step(
        self, *, compute: Mapping[str, int] | None, let_in: Mapping[str, int] | None, preempt: Sequence[str] = ()
    ) -> EngineStep:
        """The first step writes block 1; what comes behind the second does nothing."""
        self.num_steps += 1
        steps = {1: EngineStep(orders=Orders(1, (), (), (), WRITTEN)), 2: self.second}
        return steps.get(self.num_steps, EngineStep(orders=Orders(self.num_steps, (), (), ())))

    def settle(
        self, reports: Sequence[Landing], *, launched: Sequence[tuple[int, int]] = (), sampled: Mapping[str, int] | None = None
    ) -> SettledPlan:
        """Keep the reports."""
        self.heard += reports
        return SettledPlan()

    def table(self, request: str, group: int) -> list[int]:
        """Block 1 is that of a."""
        return [1]


def step(
    *ahead: Orders, handed_out: tuple[int, ...] = (), loads: tuple[CopyOrder, ...] = (), forward: Pass = NOTHING
) -> EngineStep:
    """The second step, with these orders ahead."""
    waits = tuple(order.job for order in loads)
    owners = {order.job: "a" for each in ahead for order in each.stores}
    return EngineStep(orders=Orders(2, waits, loads, (), forward), ahead=ahead, handed_out=handed_out, owners=owners)


def run(driver: Scripted, expected: str = "") -> ScenarioVerdict:
    """Two steps of it, the second with an expectation, and a third."""
    text = f"""
    id = "one"
    title = "one"
    tests = "safety"
    [world]
    contract = "hold"
    [[step]]
    do = "arrive"
    request = "a"
    prompt = "abcde"
    [[step]]
    do = "step"
    [[step]]
    do = "step"
    {expected}
    [[step]]
    do = "step"
    """
    return run_scenario(parse_scenario(text), lambda: driver)


def test_store_ahead_runs_from_the_step_itself_on() -> None:
    """Other stores are held back until the next step."""
    verdict = run(
        Scripted(step(Orders(2, (), (), (STORE,)))), 'expect.out = ["the store of a"]\nexpect.stores = ["block 0 of a"]'
    )

    assert str(verdict) == "one: holds"


def test_wait_ahead_ends_the_store_and_reports_it() -> None:
    """So its block may be handed out in the same step."""
    driver = Scripted(step(Orders(2, (), (), (STORE,)), Orders(2, (1,), (), ()), handed_out=(1,)))
    verdict = run(driver, 'expect.out = []\nexpect.flushes = ["the store of a"]\nexpect.handed_out = ["block 0 of a"]')

    assert str(verdict) == "one: holds"
    assert driver.heard == [Landing(1, 0, True)]


def test_block_that_is_handed_out_without_the_wait_is_found() -> None:
    """What the first step wrote is being read."""
    verdict = run(Scripted(step(Orders(2, (), (), (STORE,)), handed_out=(1,))))

    assert verdict.outcome is Outcome.UNSAFE
    assert "I1: block 1 (block 0 of a) was handed out while copy 1 (the store of a) touches it" in verdict.message


@pytest.mark.parametrize(
    ("ahead", "found"),
    [
        ((Orders(2, (), (), (STORE,)), Orders(2, (1,), (), ())), ""),
        ((Orders(2, (), (), (STORE,)), Orders(2, (1,), (), ()), Orders(2, (), (), (OTHER,)), Orders(2, (2,), (), ())), "I6"),
    ],
    ids=["what was stored", "what was stored over it"],
)
def test_load_of_the_step_reads_what_the_stores_ahead_left(ahead: tuple[Orders, ...], found: str) -> None:
    """They are carried out one after the other, and the step comes last."""
    reads = Pass(reads=((3, "0:abcd"),))
    verdict = run(Scripted(step(*ahead, loads=(BACK,), forward=reads)))

    assert (verdict.outcome is Outcome.HELD) == (not found)
    assert found in verdict.message


def test_owner_of_a_copy_ahead_must_be_a_request() -> None:
    """As of any other copy."""
    wrong = EngineStep(orders=Orders(2, (), (), ()), ahead=(Orders(2, (), (), (STORE,)),), owners={1: "b"})
    verdict = run(Scripted(wrong))

    assert verdict.outcome is Outcome.FAILED
    assert "EngineStep.owners says that copy 1 is of request 'b'" in verdict.message
