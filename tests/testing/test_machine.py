"""Hypothesis drives the same world: the rules of its machine are the kinds of actions, offered only where they are possible.

Goal: the machine finds what walks find, and a failure is a story and a line that reproduces it. Method: a bounded number of
examples from a printed seed, with the real code and with a planted bug.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from attrs import evolve
from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from blocklife.ledger import Plan
from blocklife.offload import OffloadScheduler
from blocklife.testing.exploring._machine import MachineViolation, WorldMachine, machine_for
from blocklife.testing.exploring._walk import LARGE, walk
from blocklife.testing.worlds import _world as world_module
from blocklife.testing.worlds._actions import ACTIONS, CLOSING
from blocklife.testing.worlds._world import Faults, WorldSettings

SEED = 7
SMALL = WorldSettings(faults=Faults(fail=1, abort=1, preempt=1, renew=1))


def run(machine: type[WorldMachine], examples: int, steps: int, number: int = SEED) -> None:
    """Run so many examples of so many steps at most."""
    print(f"seed {number}, {examples} examples of {steps} steps")
    bounds = settings(machine.TestCase.settings, max_examples=examples, stateful_step_count=steps, database=None)
    run_state_machine_as_test(seed(number)(machine), settings=bounds)


@pytest.mark.parametrize("world", [SMALL, LARGE], ids=["small", "large"])
def test_machine_finds_nothing_in_the_real_code(world: WorldSettings) -> None:
    """Whatever Hypothesis chooses, every rule holds, and every example drains."""
    run(machine_for(world), examples=12, steps=30)


def test_machine_finds_a_planted_bug_and_tells_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure names the rule, says how to reproduce it, and tells the shortest path step by step."""
    build_plan = OffloadScheduler.build_plan

    def hasty(self: OffloadScheduler, now: float) -> Plan:
        return evolve(build_plan(self, now), flushes=())

    monkeypatch.setattr(OffloadScheduler, "build_plan", hasty)
    with pytest.raises(MachineViolation, match=": ") as caught:
        run(machine_for(SMALL), examples=200, steps=30)
    told = "\n".join(caught.value.__notes__)
    print(told)

    assert "reproduce_failure" in told
    assert "the engine makes plan" in told
    assert "last step is broken" in told


def test_machine_finds_what_never_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of every example is judged, too."""
    monkeypatch.setattr(world_module, "CLOSING", CLOSING - {"step"})
    with pytest.raises(MachineViolation, match="drains: "):
        run(machine_for(SMALL), examples=20, steps=10)


def test_machine_has_a_rule_for_every_kind_of_action() -> None:
    """What a walk with all faults takes, the machine can take."""
    taken = {verb for number in range(3) for verb in walk(LARGE, steps=400, seed=number, shorten=False).taken}

    assert {"step_failing", "echo", "prove", "regain_worker"} & taken
    assert taken <= set(ACTIONS)


def test_machines_of_two_worlds_share_nothing() -> None:
    """Each has its own world, which its examples share."""
    one, other = machine_for(SMALL), machine_for(LARGE)

    assert one().guide is one().guide
    assert one().guide is not other().guide
    assert machine_for(SMALL)().guide is not one().guide


def test_hypothesis_is_needed_by_the_machine_alone() -> None:
    """Whoever walks, visits or writes tests with the plugin does without it."""
    script = (
        "import sys, blocklife.testing.exploring._walk, blocklife.testing.plugin._visit, blocklife.testing.plugin._hooks\n"
        "sys.exit('hypothesis' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=False)

    assert ran.returncode == 0
