"""What the scheduler keeps of a request as lifecycles: lookup, wait and end.

Goal: every row of the three tables is taken at the scheduler's doors, a step without a row is refused, and a restored scheduler
goes on as the one that was saved. Method: rigs whose copies land when a test says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from blocklife.ledger import Completion, Result, Worker
from blocklife.offload import LastStep, Policies
from blocklife.scheduler_states import SCHEDULER_MACHINES
from tests.offload.test_waits import stored_only
from tests.rigs import Rig, letters

PATIENT = Policies(pending_wait=9.0, last_step=LastStep.DRAIN, max_load_failures=3)


def running(rig: Rig) -> None:
    """Request *a* runs, and a plan that is out computes it."""
    rig.add("a", letters(9))
    rig.let_in("a")
    rig.plan()


def ends(rig: Rig) -> None:
    """The end is asked for once, twice in every order, and when no plan is out."""
    for first in ("finish", "abort"):
        for second in ("", "finish", "abort"):
            running(rig)
            for how in (first, second):
                if how:
                    getattr(rig.scheduler, how)("a")
            rig.settle()
            assert "a" not in rig.scheduler.requests
        rig.add("a", letters(5))
        getattr(rig.scheduler, first)("a")


def waits(rig: Rig) -> None:
    """*b* waits for a store and is answered, *c* waits in vain, and both are admitted."""
    stored_only(rig, letters(8))
    for name in "bc":
        rig.add(name, letters(9))
        assert rig.hit(name).deferred
    rig.scheduler.abort("b")
    rig.now += 9.0
    rig.tick(land=False)
    assert not rig.hit("c").deferred
    rig.let_in("c")
    rig.drain()


def answers(rig: Rig) -> None:
    """A lookup is deferred again and again, then answered and loaded; another load fails; a third finds nothing, twice."""
    stored_only(rig, letters(8))
    rig.add("b", letters(9))
    assert rig.hit("b").deferred
    rig.add("p", letters(5, "p"))
    rig.let_in("p")
    rig.tick(land=False)
    rig.tick(land=False)
    rig.ledger.complete(Completion(rig.out.pop(), Worker(0), Result.OK))
    assert rig.hit("b").deferred
    rig.scheduler.finish("p")
    rig.tick()
    assert not rig.let_in("b")
    rig.drain()
    rig.add("x", letters(9))
    rig.scheduler.abort("b")
    rig.reset_device()
    assert not rig.let_in("x")
    rig.tick(ok=False)
    for _ in range(2):
        assert not rig.hit("x").tokens
    rig.scheduler.abort("x")


def changes(rig: Rig) -> None:
    """*b* was deferred and is given up; what *e* has found is on its way again when it asks once more."""
    stored_only(rig, letters(8))
    for name in "be":
        rig.add(name, letters(9))
    assert rig.hit("b").deferred
    rig.scheduler.abort("b")
    assert rig.hit("e").deferred
    rig.tick()
    assert rig.hit("e").host_tokens == 8
    rig.tick()
    rig.ledger.evict([slot for slot in range(16) if rig.ledger.slots.key(slot)])
    stored_only(rig, letters(8))
    assert rig.hit("e").deferred
    rig.scheduler.abort("e")
    rig.drain()


SCENES: tuple[tuple[Callable[[Rig], None], Policies | None], ...] = (
    (ends, None), (waits, PATIENT), (answers, PATIENT), (changes, PATIENT),
)  # fmt: skip


def test_every_row_is_taken_at_the_doors_of_the_scheduler() -> None:
    """A row that nothing takes is a rule that nobody needs."""
    taken: Counter[str] = Counter()
    for scene, policies in SCENES:
        rig = Rig(blocks=60, slots=16, policies=policies)
        scene(rig)
        for machine, rows in rig.scheduler.requests.row_counts().items():
            taken.update({f"{machine} {row}": times for row, times in rows.items()})

    assert [row for row, times in taken.items() if not times] == []
    assert len(taken) == sum(len(table.rows) for table in SCHEDULER_MACHINES.values())


def test_load_that_fails_between_two_plans_is_heard_of_by_the_next_lookup() -> None:
    """The request asks for what is there now, does not wait for its own load, and is not told of the failure once more."""
    rig = Rig(blocks=60, slots=16, policies=PATIENT)
    rig.fill("a", letters(8))
    rig.reset_device()
    rig.add("b", letters(9))
    assert not rig.let_in("b")
    (load,) = rig.plan().loads
    rig.settle(land=False)
    rig.ledger.complete(Completion(load.job, Worker(0), Result.FAILED))
    hit = rig.hit("b")

    assert (hit.tokens, hit.deferred) == (0, False)
    assert rig.scheduler.admit("b", hit, 9)
    rig.tick(land=False)
    assert not rig.settled.failed
    assert rig.scheduler.requests.is_running("b")
