"""Verbs of the ledger, called beside the scheduler that counts on its requests: what the scheduler says of it, and when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blocklife.errors import MisuseError
from blocklife.ledger import Ledger
from tests.rigs import Rig

TEXT = "abcdefghijklmnopqrst"
OVER = (
    r"^request a: it was finished beside the scheduler, which still counts on it "
    r"\(call finish, abort, preempt and reset of the scheduler, not of its ledger\)$"
)
GIVEN_BACK = (
    r"^request a: its blocks were given back beside the scheduler, which still counts on them; it is {} "
    r"\(call finish, abort, preempt and reset of the scheduler, not of its ledger\)$"
)


def waiting(chunk: int = 1) -> Rig:
    """Request *a* is in the scheduler."""
    rig = Rig(chunk=chunk, max_requests=1)
    rig.add("a", TEXT, 10)
    return rig


def admitted(chunk: int = 1) -> Rig:
    """Request *a* is in the batch of the next plan."""
    rig = waiting(chunk)
    rig.let_in("a")
    return rig


def running() -> Rig:
    """Request *a* has computed its prompt."""
    rig = admitted()
    rig.tick()
    return rig


@pytest.mark.parametrize(
    ("before", "then"),
    [
        (waiting, lambda rig: rig.let_in("a")),
        (waiting, lambda rig: rig.scheduler.finish("a")),
        (waiting, lambda rig: rig.scheduler.abort("a")),
        (waiting, lambda rig: rig.scheduler.preempt("a")),
        (waiting, lambda rig: rig.add("a", TEXT)),
        (waiting, lambda rig: rig.add("b", TEXT)),
        (admitted, lambda rig: rig.plan()),
        (running, lambda rig: rig.scheduler.finish("a")),
        (running, lambda rig: [(rig.scheduler.grow(), rig.tick()) for _ in range(4)]),
    ],
    ids=["admit", "finish", "abort", "preempt", "add it again", "add another", "plan", "finish running", "steps"],
)
def test_request_that_was_finished_in_the_ledger_is_named(before: Callable[[], Rig], then: Callable[[Rig], object]) -> None:
    """At the first call that needs it; the ledger may have given its row to another request."""
    rig = before()
    rig.ledger.finish("a")
    with pytest.raises(MisuseError, match=OVER):
        then(rig)


@pytest.mark.parametrize("chunk", [1, 2], ids=["blocks", "chunks"])
@pytest.mark.parametrize(
    ("act", "state"),
    [
        (lambda ledger: ledger.preempt("a"), "PREEMPTED"),
        (lambda ledger: ledger.reset(), "PREEMPTED"),
        (lambda ledger: (ledger.finish("a"), ledger.add_request("a")), "WAITING"),
    ],
    ids=["preempt", "reset", "finish and add"],
)
def test_request_whose_blocks_were_given_back_in_the_ledger_is_named(
    act: Callable[[Ledger], object], state: str, chunk: int
) -> None:
    """Where the plan needs the blocks, or settles."""
    rig = admitted(chunk)
    act(rig.ledger)
    with pytest.raises(MisuseError, match=GIVEN_BACK.format(state)):
        rig.plan()

    rig = admitted(chunk)
    rig.plan()
    act(rig.ledger)
    with pytest.raises(MisuseError, match=GIVEN_BACK.format(state)):
        rig.settle()


def test_request_added_after_one_was_finished_in_the_ledger_is_not_there() -> None:
    """A refusal leaves nothing of it: the ledger would have it in the row of the other."""
    rig = waiting()
    rig.ledger.finish("a")
    with pytest.raises(MisuseError, match=OVER):
        rig.add("b", TEXT)

    assert "b" not in rig.scheduler.requests
    assert "b" not in rig.ledger.requests
