"""What can be explored: a model that answers five questions, and properties, each a name and a predicate.

Theory. There are four kinds of properties. *always*: a predicate holds in every state. *edge*: a predicate holds for every
step, that is for a state, an action and the state after it. *sometimes*: some state is reached, so that the model is not
vacuous. *leads to*: from every state a goal can be reached by closing actions alone (those that start nothing new); it is
checked at the end, backwards from all states in which the goal holds.

A model that cannot take a step without breaking a rule raises `Broken`: the step itself is then the counterexample.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from attrs import frozen

from blocklife.errors import MisuseError

StateT = TypeVar("StateT", bound=Hashable)
ActionT = TypeVar("ActionT", bound=Hashable)


class Broken(Exception):  # noqa: N818 - what it reports is no error of the caller
    """A step of a model breaks a property that the model itself checks."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        """The name of the property."""

    def __reduce__(self) -> tuple[type[Broken], tuple[str, str]]:
        return type(self), (self.rule, str(self))


class Model(Protocol[StateT, ActionT]):
    """A model that can be explored. States are hashable values; equal states are one state."""

    def initial(self) -> StateT:
        """The initial state."""
        ...

    def actions(self, state: StateT) -> Iterable[ActionT]:
        """The actions possible in a state, in a fixed order. Raises `Broken` if finding them breaks a property."""
        ...

    def step(self, state: StateT, action: ActionT) -> StateT:
        """The state after an action. Raises `Broken` if the step breaks a property."""
        ...

    def properties(self) -> Sequence[Property[StateT, ActionT]]:
        """The properties to check."""
        ...

    def rules(self) -> Sequence[str]:
        """The rules that the model checks in each step: the names that `Broken` can carry."""
        ...


Steps: TypeAlias = list[tuple[ActionT, StateT | Broken]] | Broken
"""Every action with its next state, or with the `Broken` of its step; just a `Broken` if finding the actions raises it."""


def steps_of(model: Model[StateT, ActionT], state: StateT) -> Steps[ActionT, StateT]:
    """All steps out of a state."""
    try:
        offered = list(model.actions(state))
    except Broken as broken:
        return broken
    found: list[tuple[ActionT, StateT | Broken]] = []
    for action in offered:
        try:
            found.append((action, model.step(state, action)))
        except Broken as broken:
            found.append((action, broken))
    return found


class Kind(enum.Enum):
    """The kinds of properties."""

    ALWAYS = "it holds in every state"
    EDGE = "it holds for every step"
    SOMETIMES = "it holds in some state"
    LEADS_TO = "from every state, a state in which it holds can be reached by closing actions alone"


_PREDICATES = {
    Kind.ALWAYS: {"always"},
    Kind.EDGE: {"edge"},
    Kind.SOMETIMES: {"goal"},
    Kind.LEADS_TO: {"goal", "closing"},
}


@frozen
class Property(Generic[StateT, ActionT]):
    """A property: name, kind, one sentence, and the predicate that its kind needs (*leads to* needs goal and closing)."""

    name: str
    kind: Kind
    doc: str
    always: Callable[[StateT], str] | None = None
    """What is wrong in a state; empty if nothing is."""
    edge: Callable[[StateT, ActionT, StateT], str] | None = None
    """What is wrong with a step; empty if nothing is."""
    goal: Callable[[StateT], bool] | None = None
    """Whether the goal holds in a state (*sometimes*, *leads to*)."""
    closing: Callable[[ActionT], bool] | None = None
    """Whether an action may be used to reach the goal (*leads to*)."""

    def __attrs_post_init__(self) -> None:
        given = {name for name in ("always", "edge", "goal", "closing") if getattr(self, name) is not None}
        if given != _PREDICATES[self.kind]:
            wanted = " and ".join(sorted(_PREDICATES[self.kind]))
            raise MisuseError(f"property {self.name}: the kind {self.kind.name} takes {wanted}, and nothing else")
