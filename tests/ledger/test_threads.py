"""Calls of several threads: those that overlap are refused where checking is strict, and those that take turns are not.

Method: code of the user runs in the middle of a call, a hook or a key function, and lets another thread call; it goes on when
that one is done. So every overlap is certain, and nothing waits for a clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from blocklife.errors import BlocklifeError, InterruptedCallError, MisuseError
from blocklife.ledger import Checking, Ledger, Limits
from blocklife.ledger._journal import CallStage
from blocklife.offload import Geometry, HostTier, OffloadScheduler
from tests.programs import HANGS_S
from tests.worlds import make_ledger, unchanged


def elsewhere(call: Callable[[], object], name: str = "reporter") -> BlocklifeError | None:
    """Make a call from another thread; what it was refused with."""
    refused: list[BlocklifeError] = []

    def run() -> None:
        try:
            call()
        except BlocklifeError as problem:
            refused.append(problem)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join(HANGS_S)
    return refused[0] if refused else None


def in_a_hook(ledger: Ledger, call: Callable[[], object]) -> BlocklifeError | None:
    """Let another thread call while hooks of this one's call are told."""
    found: list[BlocklifeError | None] = []
    with ledger.on(hook=lambda _: found.append(elsewhere(call))):
        ledger.allocate("a", 1)
    return found[0]


def in_a_key_function(checking: Checking, call: Callable[[OffloadScheduler], object]) -> BlocklifeError | None:
    """Let another thread call while a lookup of this one asks for keys."""
    ledger = Ledger(Limits(num_blocks=8, num_slots=4), checking=checking)
    scheduler = OffloadScheduler(ledger, HostTier(ledger), Geometry.parse("full:4"))
    found: list[BlocklifeError | None] = []

    def keys_of(group: int, start: int, stop: int) -> list[bytes]:
        found.append(elsewhere(lambda: call(scheduler)))
        return [b"%d" % at for at in range(start, stop)]

    scheduler.add_request("a", keys_of, prompt_tokens=9)
    assert not scheduler.lookup("a", 9).deferred
    return found[0]


def test_call_in_the_middle_of_another_threads_call_is_refused() -> None:
    """The message names both threads and both calls, and what to do. The call that runs is not disturbed."""
    ledger = make_ledger()
    problem = in_a_hook(ledger, lambda: ledger.skip("a", 1))

    assert isinstance(problem, MisuseError)
    assert str(problem) == (
        f"skip: thread reporter calls it, and thread {threading.current_thread().name} is in allocate (one call at a time: "
        "hold a lock of your own around each, or hand the call to the thread of the scheduler)"
    )
    assert len(ledger.requests.table("a")) == 1
    assert elsewhere(lambda: ledger.skip("a", 1)) is None
    assert len(ledger.requests.table("a")) == 2


CALLS: dict[str, Callable[[OffloadScheduler], object]] = {
    "ledger": lambda scheduler: scheduler.ledger.add_request("b"),
    "scheduler": lambda scheduler: scheduler.grow(),
    "tier": lambda scheduler: scheduler.tier.touch([]),
    "restore": lambda scheduler: scheduler.ledger.restore(scheduler.ledger.snapshot()),
}


@pytest.mark.parametrize("whose", CALLS)
def test_calls_of_ledger_scheduler_and_tier_are_one(whose: str) -> None:
    """They share their outermost call, so that none of them can begin within one of another thread's."""
    problem = in_a_key_function(Checking.STRICT, CALLS[whose])

    assert isinstance(problem, MisuseError)
    assert "thread reporter calls it" in str(problem)
    assert "is in lookup (one call at a time" in str(problem)


@pytest.mark.parametrize("checking", [Checking.COUNT, Checking.OFF])
def test_overlap_is_not_looked_for_where_checking_is_not_strict(checking: Checking) -> None:
    """Which thread calls is not even asked."""
    assert in_a_key_function(checking, CALLS["ledger"]) is None


def test_threads_may_take_turns() -> None:
    """Also behind calls that were refused, that an error of a hook has ended, and that were made within another one."""
    ledger = make_ledger()
    assert elsewhere(lambda: ledger.add_request("b")) is None
    with pytest.raises(MisuseError, match="request b: it is known already"):
        ledger.add_request("b")
    assert isinstance(elsewhere(lambda: ledger.add_request("b")), MisuseError)
    with ledger.on(hook=lambda _: print(1 // 0)), pytest.raises(ZeroDivisionError):
        ledger.allocate("b", 1)
    with unchanged(ledger):
        assert "request c: it is not known" in str(elsewhere(lambda: ledger.finish("c")))
    assert elsewhere(lambda: ledger.finish("b")) is None
    assert list(ledger.requests) == ["a"]


def test_ledger_that_an_interrupt_has_closed_says_so_to_every_thread() -> None:
    """A call that is refused for that holds nobody up."""
    ledger = make_ledger()
    saved = ledger.snapshot()
    ledger._calls.stage = CallStage.CLOSED
    for _ in range(2):
        assert isinstance(elsewhere(lambda: ledger.admit("a")), InterruptedCallError)
        with pytest.raises(InterruptedCallError):
            ledger.admit("a")
    assert elsewhere(lambda: ledger.restore(saved)) is None
    ledger.allocate("a", 1)
