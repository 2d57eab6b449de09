"""A Hypothesis state machine over a world: one rule for each kind of action, enabled only where the action is possible.

Rules of this file:

* Hypothesis stays optional: only this module imports it, and nothing in the package imports this module.
* World, actions and checks are those of `explore` and `walk`; Hypothesis only chooses.

Hypothesis shrinks a failing example and prints how to reproduce it; the shrunk path is told as a story.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import note
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from blocklife.errors import MisuseError
from blocklife.testing.exploring._explore import Broken
from blocklife.testing.exploring._walk import KEEP, Guide, only_used, shrink, story_of
from blocklife.testing.worlds._actions import ACTIONS, Action
from blocklife.testing.worlds._world import State, World, WorldSettings

_MOST = 63


class MachineViolation(AssertionError):  # noqa: N818 - what it reports is no error of the test
    """A rule that does not hold."""


class WorldMachine(RuleBasedStateMachine):
    """One example: a path through a world. Made by `machine_for`.

    Invariant: ``path`` leads from the initial state to ``state``; ``kinds`` are the kinds of actions possible there.
    """

    settings_of_world: ClassVar[WorldSettings]
    _guide: ClassVar[Guide | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.guide = self._shared()
        self.state: State = self.guide.world.initial()
        self.path: list[Action] = []
        self.broken: Broken | None = None
        self.kinds: dict[str, list[Action]] = {}
        self._look()

    @classmethod
    def _shared(cls) -> Guide:
        """The world, shared by all examples, so that each step is computed once."""
        if cls._guide is None or cls._guide.world.remembered > KEEP:
            cls._guide = Guide(World(cls.settings_of_world))
        return cls._guide

    def _look(self) -> None:
        self.kinds = {}
        for action in self.guide.world.actions(self.state):
            self.kinds.setdefault(action.verb, []).append(action)

    def act(self, verb: str, pick: int) -> None:
        """Take one of the actions of a kind."""
        offered = self.kinds[verb]
        action = offered[pick % len(offered)]
        self.path.append(action)
        try:
            self.state = self.guide.step(self.state, action)
        except Broken as broken:
            self.broken = broken
            raise MachineViolation(f"{broken.rule}: {broken}") from broken
        self._look()

    @precondition(lambda self: not self.kinds)
    @rule()
    def begin_again(self) -> None:
        """Do nothing: no action is possible, since all requests have come and gone."""
        self.state, self.path = self.guide.world.initial(), []
        self._look()

    def teardown(self) -> None:
        """Drain the rest by closing actions alone, and report a failure as a story."""
        if self.broken is None:
            try:
                self.guide.drain(self.state)
            except Broken as broken:
                note(_Told(self.settings_of_world, self.path, broken))
                raise MachineViolation(f"{broken.rule}: {broken}") from broken
        else:
            note(_Told(self.settings_of_world, self.path, self.broken))


class _Told:
    """The story of a failure. Made for the last one only, since Hypothesis prints no other."""

    def __init__(self, settings: WorldSettings, path: Sequence[Action], broken: Broken) -> None:
        self.settings, self.path, self.broken = settings, tuple(path), broken

    def __repr__(self) -> str:
        try:
            path, message = shrink(self.settings, self.path, self.broken.rule)
        except MisuseError:
            path, message = self.path, str(self.broken)
        return str(story_of(only_used(self.settings, path), path, self.broken.rule, message))


def machine_for(settings: WorldSettings) -> type[WorldMachine]:
    """A machine for `hypothesis.stateful.run_state_machine_as_test`, or, as its ``TestCase``, for pytest."""

    class Made(WorldMachine):
        settings_of_world = settings

    Made.__name__ = Made.__qualname__ = WorldMachine.__name__
    for verb in ACTIONS:
        setattr(Made, verb, _rule_of(verb))
    Made.TestCase.settings = hypothesis_settings(Made.TestCase.settings, deadline=None, print_blob=True)
    return Made


def _rule_of(verb: str) -> object:
    def act(self: WorldMachine, pick: int) -> None:
        self.act(verb, pick)

    act.__name__ = act.__qualname__ = verb
    return precondition(lambda self: verb in self.kinds)(rule(pick=st.integers(0, _MOST))(act))
