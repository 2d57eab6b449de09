"""Hooks of lifecycles: one door for a machine, a column and a pool, and what it refuses.

Method: a lamp with a guard is stepped in every way that there is, and what hooks hear is compared with what it did.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable

import numpy as np
import pytest

from blocklife.errors import MisuseError, RefusedError
from blocklife.lifecycle import Column, Lifecycle, Pool, Subscription, Transition, edge, guard
from blocklife.states import Block, BlockLife


class Lamp(enum.Enum):
    OFF = "dark"
    DIM = "half"
    ON = "bright"


@guard
def strong(volts: int) -> bool:
    return volts > 100


class LampLife(Lifecycle[Lamp], initial=Lamp.OFF):
    """A lamp."""

    @edge(Lamp.OFF, to=Lamp.ON, when=strong)
    @edge(Lamp.OFF, to=Lamp.DIM)
    @edge(Lamp.DIM, to=Lamp.ON, when=strong)
    @edge(Lamp.DIM, to=Lamp.DIM)
    def press(self, volts: int = 230) -> None: ...

    @edge(Lamp.ON, Lamp.DIM, to=Lamp.OFF)
    def release(self) -> None: ...


class OtherLife(Lifecycle, initial=Lamp.OFF):
    """Another lamp with the same states."""

    @edge(Lamp.OFF, to=Lamp.ON)
    @edge(Lamp.ON, to=Lamp.DIM)
    @edge(Lamp.DIM, to=Lamp.OFF)
    def press(self) -> None: ...


def told(transition: Transition) -> list[str]:
    """What was heard, in words."""
    return [
        f"{each.place}: {each.source.name}-{transition.event}{each.guard and f'[{each.guard}]'}-{each.target.name}"
        for each in transition
    ]


# --- one machine ----------------------------------------------------------------------------------------------------------


def test_hook_hears_of_every_event_with_its_payload() -> None:
    """State before, event, guard, state after; and the arguments by name, defaults too."""
    lamp, heard = LampLife(), list[Transition]()
    lamp.on(hook=heard.append)
    lamp.press()
    lamp.release()
    lamp.press(volts=12)

    assert [told(each) for each in heard] == [["0: OFF-press[strong]-ON"], ["0: ON-release-OFF"], ["0: OFF-press-DIM"]]
    assert [each.payload for each in heard] == [{"volts": 230}, {}, {"volts": 12}]
    assert {each.machine for each in heard} == {"LampLife"}


CHOICES: dict[str, tuple[Callable[[LampLife], Subscription[Transition]], list[str]]] = {
    "all": (lambda lamp: lamp.on(), ["press", "press", "press", "release"]),
    "the lifecycle": (lambda lamp: lamp.on(LampLife), ["press", "press", "press", "release"]),
    "an event": (lambda lamp: lamp.on(LampLife.release), ["release"]),
    "two events": (lambda lamp: lamp.on(LampLife.release, LampLife.press), ["press", "press", "press", "release"]),
    "a state entered": (lambda lamp: lamp.on(entered=Lamp.DIM), ["press"]),
    "a state left": (lambda lamp: lamp.on(left=Lamp.DIM), ["press"]),
    "an edge": (lambda lamp: lamp.on(LampLife.press, left=Lamp.DIM, entered=Lamp.ON), ["press"]),
    "an edge not taken": (lambda lamp: lamp.on(LampLife.release, left=Lamp.DIM), []),
}


@pytest.mark.parametrize("case", CHOICES)
def test_hook_hears_what_it_was_registered_for(case: str) -> None:
    """OFF to DIM, a step that stays, DIM to ON, ON to OFF: a step that stays neither enters nor leaves."""
    choose, events = CHOICES[case]
    lamp = LampLife()
    with choose(lamp) as heard:
        for volts in (12, 12, 230):
            lamp.press(volts)
        lamp.release()

    assert [each.event for each in heard.heard] == events


def test_hook_can_be_a_decorator_and_is_given_back() -> None:
    """The function stays what it was; the subscription that registered it ends it."""
    lamp, heard = LampLife(), list[str]()
    subscription = lamp.on(LampLife.press)

    @subscription
    def hear(transition: Transition) -> None:
        heard.append(transition.event)

    lamp.press()
    subscription.remove()
    subscription.remove()
    lamp.release()
    lamp.press()

    assert heard == ["press"]
    assert hear.__name__ == "hear"


def test_hook_of_a_context_ends_with_it() -> None:
    """Also where the block raises, and with a hook of one's own."""
    lamp, heard = LampLife(), list[Transition]()
    with lamp.on(hook=heard.append) as subscription:
        lamp.press()
    with contextlib.suppress(KeyError), lamp.on(hook=heard.append):
        raise KeyError
    lamp.release()

    assert len(heard) == 1
    assert subscription.heard == []


def test_hook_runs_after_the_commit_and_cannot_undo_it() -> None:
    """All hooks run in the order in which they were registered, then the first error is raised; the machine has moved."""
    lamp, seen = LampLife(), list[object]()

    @lamp.on(LampLife.press)
    def first(_: Transition) -> None:
        seen.append(lamp.state)
        raise KeyError("first")

    @lamp.on(LampLife.press)
    def second(_: Transition) -> None:
        seen.append("second")
        raise ValueError("second")

    with pytest.raises(KeyError, match="first"):
        lamp.press()

    assert seen == [Lamp.ON, "second"]
    assert lamp.state is Lamp.ON


def test_interrupt_in_a_hook_goes_before_its_errors() -> None:
    """Ctrl-C is not lost behind an error, and later hooks run all the same."""
    lamp, seen = LampLife(), list[str]()
    subscriptions = [lamp.on(), lamp.on(), lamp.on()]

    @subscriptions[0]
    def failing(_: Transition) -> None:
        raise ValueError

    @subscriptions[1]
    def interrupted(_: Transition) -> None:
        raise KeyboardInterrupt

    @subscriptions[2]
    def last(transition: Transition) -> None:
        seen.append(transition.event)

    with pytest.raises(KeyboardInterrupt):
        lamp.press()

    assert seen == ["press"]


def test_refused_event_is_heard_by_nobody() -> None:
    """Nothing was committed."""
    lamp = LampLife()
    with lamp.on() as heard, pytest.raises(RefusedError):
        lamp.release()

    assert heard.heard == []


def test_hook_may_fire_another_event_of_its_own_machine() -> None:
    """The inner step is told at once, before the next hook hears of the outer one."""
    lamp, order = LampLife(), list[str]()

    @lamp.on(entered=Lamp.ON)
    def back(_: Transition) -> None:
        lamp.release()

    lamp.on(hook=lambda transition: order.append(transition.event))
    lamp.press()

    assert order == ["release", "press"]
    assert lamp.state is Lamp.OFF


def test_machine_begins_where_it_is_told() -> None:
    """In its initial state, or in another of its own; anything else is refused."""
    assert LampLife().state is Lamp.OFF
    assert LampLife(Lamp.DIM).state is Lamp.DIM
    for wrong in (Block.FREED, "OFF", 1):
        with pytest.raises(MisuseError, match=r"LampLife: it cannot begin at .* \(its states are OFF, DIM, ON\)"):
            LampLife(wrong)  # type: ignore[arg-type]


async def later(_: Transition) -> None:
    """A coroutine."""


class Later:
    """Something whose call makes a coroutine."""

    async def __call__(self, _: Transition) -> None: ...


WRONG: dict[str, tuple[Callable[[LampLife], object], str]] = {
    "a coroutine": (lambda lamp: lamp.on(hook=later), "hook later is a coroutine function: calling it would not run it"),  # type: ignore[arg-type]
    "an object with a coroutine": (lambda lamp: lamp.on(hook=Later()), "is a coroutine function"),  # type: ignore[arg-type]
    "no function": (lambda lamp: lamp.on(hook="print"), "a hook is a function, not 'print'"),  # type: ignore[arg-type]
    "an event of another lifecycle": (lambda lamp: lamp.on(OtherLife.press), r"OtherLife\.press: nothing of it can be heard"),
    "another lifecycle": (lambda lamp: lamp.on(BlockLife), "BlockLife: nothing of it can be heard here"),
    "a state without its keyword": (
        lambda lamp: lamp.on(Lamp.ON),  # type: ignore[arg-type]
        r"a state goes to entered= or left=: entered=Lamp\.ON",
    ),
    "a hook without its keyword": (
        lambda lamp: lamp.on(LampLife.press, print),  # type: ignore[arg-type]
        "a hook goes behind hook=, or below @",
    ),
    "no lifecycle": (lambda lamp: lamp.on("press"), "'press': nothing of it can be heard"),  # type: ignore[arg-type]
    "a foreign state": (lambda lamp: lamp.on(entered=Block.FREED), "FREED.* is not a state of LampLife"),
    "no state": (lambda lamp: lamp.on(left="OFF"), r"'OFF' is not a state of LampLife \(pass the enum member\)"),  # type: ignore[arg-type]
    "a list": (lambda lamp: lamp.on(left=[1]), r"\[1\] is not a state of LampLife"),  # type: ignore[arg-type]
    "what no row does": (
        lambda lamp: lamp.on(LampLife.release, left=Lamp.OFF),
        r"no row of release leaves Lamp\.OFF: this hook would never run",
    ),
    "what no row joins": (
        lambda lamp: lamp.on(entered=Lamp.DIM, left=Lamp.ON),
        r"no row of any event enters Lamp\.DIM and leaves Lamp\.ON",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_can_never_be_heard_is_refused_at_once(case: str) -> None:
    """At the registration, and nothing is registered."""
    register, message = WRONG[case]
    lamp = LampLife()
    with pytest.raises(MisuseError, match=message):
        register(lamp)
    lamp.press()


def test_subscription_has_one_hook() -> None:
    """Who wants another calls `on` again."""
    lamp = LampLife()
    subscription = lamp.on(hook=print)

    with pytest.raises(MisuseError, match="has a hook already"):
        subscription(print)


# --- many places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bulk", [False, True], ids=["list", "array"])
def test_column_tells_a_batch_once_and_only_the_places_that_are_wanted(bulk: bool) -> None:
    """Places that take another row are left out; who listens to all hears all of them in the same call."""
    column = Column(LampLife.table, 6)
    press = LampLife.press.event
    ids = np.array([4, 1, 3]) if bulk else [4, 1, 3]
    with column.on() as every, column.on(entered=Lamp.ON) as bright, column.on(LampLife.release) as released:
        column.fire(press, ids, [1, 0, 1], {"volts": "as measured"})

    assert [told(each) for each in every.heard] == [["4: OFF-press[strong]-ON", "1: OFF-press-DIM", "3: OFF-press[strong]-ON"]]
    assert [told(each) for each in bright.heard] == [["4: OFF-press[strong]-ON", "3: OFF-press[strong]-ON"]]
    assert released.heard == []
    assert every.heard[0].payload == bright.heard[0].payload == {"volts": "as measured"}


def test_column_tells_of_a_slice() -> None:
    """Its places are spelt out."""
    column = Column(LampLife.table, 4)
    with column.on() as heard:
        column.fire(LampLife.press.event, slice(1, 3))

    assert told(heard.heard[0]) == ["1: OFF-press-DIM", "2: OFF-press-DIM"]


def test_pool_tells_with_the_payload_of_the_batch() -> None:
    """One payload for all, or arrays with one value for each place."""
    pool = Pool(LampLife, 3)
    with pool.on(LampLife.press) as heard:
        pool.fire(LampLife.press, pool.handle(Lamp.OFF, [0]), volts=230)
        pool.fire_each(LampLife.press, pool.handle(Lamp.OFF), volts=np.array([12, 230]))

    assert [told(each) for each in heard.heard] == [
        ["0: OFF-press[strong]-ON"],
        ["1: OFF-press-DIM", "2: OFF-press[strong]-ON"],
    ]
    assert [np.asarray(each.payload["volts"]).tolist() for each in heard.heard] == [230, [12, 230]]


def test_pool_has_moved_when_its_hooks_run() -> None:
    """A hook that raises leaves the batch moved and its handle used up."""
    pool = Pool(LampLife, 2)
    handle = pool.handle(Lamp.OFF)

    @pool.on()
    def failing(_: Transition) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        pool.fire(LampLife.press, handle)
    with pytest.raises(MisuseError, match="used up"):
        pool.fire(LampLife.press, handle)

    assert pool.column.count()[Lamp.ON] == 2


def test_pool_gives_the_places_from_which_an_event_can_start() -> None:
    """By event instead of by state: one handle on places in several states."""
    pool = Pool(LampLife, 4)
    pool.fire(LampLife.press, pool.handle(Lamp.OFF, [1]), volts=230)
    pool.fire(LampLife.press, pool.handle(Lamp.OFF, [2]), volts=12)

    assert pool.handle(LampLife.release).ids.tolist() == [1, 2]
    with pytest.raises(MisuseError, match="place 0 is OFF, not ON or DIM"):
        pool.handle(LampLife.release, [0])
    with pytest.raises(MisuseError, match=r"OtherLife\.press is not an event of LampLife"):
        pool.handle(OtherLife.press)


def test_who_comes_or_goes_while_hooks_run_changes_the_next_step() -> None:
    """The step that is being told is told to those who were there."""
    lamp, heard = LampLife(), list[str]()

    @lamp.on(LampLife.press)
    def once(_: Transition) -> None:
        heard.append("first")
        lamp.on(LampLife.press, hook=lambda _: heard.append("second"))

    lamp.press()
    assert heard == ["first"]
    lamp.release()
    lamp.press()
    assert heard == ["first", "first", "second"]


def test_pool_refuses_what_is_no_event_handle_or_lifecycle() -> None:
    """In one line with the remedy, and nothing has changed."""
    pool = Pool(LampLife, 2)
    with pytest.raises(MisuseError, match=r"LampLife: 'press' is not an event \(name it by its class, LampLife\.press\)"):
        pool.fire("press", pool.handle(Lamp.OFF))  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match=r"LampLife\.press: \[0, 1\] is not a handle \(pool\.handle"):
        pool.fire(LampLife.press, [0, 1])  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="is not a lifecycle"):
        Pool(Lamp, 2)  # type: ignore[arg-type]

    assert pool.column.count()[Lamp.OFF] == 2


class Nameless:
    """Its repr has an address of memory, and it cannot be called."""


def test_no_error_prints_an_address_of_memory() -> None:
    """Whatever was given by mistake is said without it."""
    lamp, pool, thing = LampLife(), Pool(LampLife, 2), Nameless()
    mistakes: list[Callable[[], object]] = [
        lambda: lamp.on(hook=thing),  # type: ignore[arg-type]
        lambda: lamp.on(hook=Later()),  # type: ignore[arg-type]
        lambda: lamp.on(thing),  # type: ignore[arg-type]
        lambda: lamp.on(entered=thing),  # type: ignore[arg-type]
        lambda: lamp.can(thing),  # type: ignore[arg-type]
        lambda: LampLife(thing),  # type: ignore[arg-type]
        lambda: Pool(thing, 1),  # type: ignore[arg-type]
        lambda: pool.handle(thing),  # type: ignore[call-overload]
        lambda: pool.fire(thing),  # type: ignore[arg-type]
        lambda: pool.fire(LampLife.press, thing),  # type: ignore[arg-type]
    ]
    for mistake in mistakes:
        with pytest.raises(MisuseError) as told:
            mistake()
        assert "0x" not in str(told.value)
        assert "tests.test_hooks." in str(told.value)
