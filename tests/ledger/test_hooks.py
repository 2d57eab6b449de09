"""Hooks of a ledger: what a record tells of a place, whom it is told, and what is refused at the registration.

Method: one store goes from its plan to its end, and every record is read. The order of hooks, their errors and interrupts are
in `test_ledger.py`, refusals that are told in `tests/recording/test_recording.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import Contract, Direction, Ledger, LedgerMove, LedgerTransition, Refusal, Store, block_of
from blocklife.ledger._journal import call
from blocklife.lifecycle import Transition
from blocklife.states import Block, BlockLife, Job, JobLife, Request, RequestLife, Slot, SlotLife
from tests.test_hooks import Lamp, LampLife, later
from tests.worlds import held, in_flight, keys, make_ledger, report, sealed, store


def moves(transitions: list[LedgerTransition]) -> list[LedgerMove]:
    """What all places of some records did."""
    return [move for transition in transitions for move in transition]


def test_record_tells_all_that_is_known_of_a_step() -> None:
    """Machine, event, plan; of each place its states, the guard, life, job, request and group."""
    ledger = make_ledger(groups=2, incarnation=3)
    ledger.dispatch(0.0)
    with ledger.on() as heard:
        batch = ledger.allocate("a", 1, 1)
        job = store(ledger, ledger.seal(batch, keys("k")), keys("k"), 0, owner="a").ids[0]
    allocate, seal, plan_block, plan_slot = heard.heard
    (first,), (second,), (third,), (slot,) = allocate, seal, plan_block, plan_slot
    life = batch.lives[0]

    assert [(each.machine, each.event, each.plan) for each in heard.heard] == [
        ("block", "allocate", 1),
        ("block", "seal", 1),
        ("block", "plan_store", 1),
        ("slot", "reserve", 1),
    ]
    assert first == LedgerMove(block_of(life), Block.FREED, Block.ALLOCATED, "", life, None, "a", 1)
    assert (second.life, second.job, second.request, second.group) == (life, None, "", 1)
    assert third == LedgerMove(block_of(life), Block.SEALED, Block.PENDING_STORE, "", life, job, "a", 1)
    assert slot == LedgerMove(0, Slot.EMPTY, Slot.WRITING, "", None, job, "a", 1)


def test_record_of_jobs_names_who_they_are_made_for() -> None:
    """Several jobs that take one step together, each with its own request; an owner that there is none of is empty."""
    ledger = make_ledger(requests=("a", "b"))
    jobs = [store(ledger, sealed(ledger, name, keys(name)), keys(name), at, owner=name) for at, name in enumerate("ab")]
    plan = ledger.dispatch(0.0)
    with ledger.on(JobLife.finish) as heard:
        ledger.settle(plan.number, 0.0, completions=[report(each.ids[0]) for each in jobs])
        orphan = ledger.submit(ledger.plan_store(Store.of(sealed(ledger, "a", keys("z")), [3], keys("z")))).ids[0]
        ledger.complete(report(orphan))

    assert [(move.job, move.request, move.guard) for move in moves(heard.heard)] == [
        (jobs[0].ids[0], "a", "all_ok"),
        (jobs[1].ids[0], "b", "all_ok"),
        (orphan, "", "all_ok"),
    ]


class TwoVerbs:
    """A call made of several verbs, as those of a scheduler are."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self._calls = ledger, ledger._calls

    @call
    def hand_out_twice(self) -> None:
        """The same block for one group and, after its release, for another."""
        for group in (1, 0):
            self.ledger.allocate("a", 1, group)
            self.ledger.release("a", [len(self.ledger.requests.table("a", group)) - 1], group)


def test_record_tells_what_was_so_when_its_verb_was_over() -> None:
    """Hooks are told at the end of the outermost call, of each step as it was then."""
    ledger = make_ledger(num_blocks=2, groups=2)
    with ledger.on(BlockLife.allocate) as heard:
        TwoVerbs(ledger).hand_out_twice()

    assert [(move.place, move.group) for move in moves(heard.heard)] == [(1, 1), (1, 0)]


def test_record_of_a_request_has_its_name() -> None:
    """The row is the request's number; the name stands beside it."""
    ledger = make_ledger(requests=("a",))
    with ledger.on(RequestLife, entered=Request.PREEMPTED) as heard:
        ledger.preempt("a")
        ledger.admit("a")

    assert [(move.request, move.source, move.target) for move in moves(heard.heard)] == [
        ("a", Request.RUNNING, Request.PREEMPTED)
    ]


CHOICES: dict[str, tuple[Callable[[Ledger], object], list[str]]] = {
    "a machine": (lambda ledger: ledger.on(SlotLife), ["slot.reserve", "slot.land"]),
    "two machines": (lambda ledger: ledger.on(SlotLife, JobLife), ["slot.reserve", "job.submit", "job.finish", "slot.land"]),
    "an event": (lambda ledger: ledger.on(BlockLife.seal), ["block.seal"]),
    "events of two machines": (lambda ledger: ledger.on(BlockLife.seal, JobLife.submit), ["block.seal", "job.submit"]),
    "a state entered": (lambda ledger: ledger.on(entered=Slot.READY), ["slot.land"]),
    "a state left": (lambda ledger: ledger.on(left=Job.PLANNED), ["job.submit"]),
    "an edge": (lambda ledger: ledger.on(BlockLife.land, left=Block.IN_FLIGHT, entered=Block.SEALED), ["block.land"]),
    "an edge that is not taken": (lambda ledger: ledger.on(BlockLife.land, entered=Block.CACHED), []),
}


@pytest.mark.parametrize("case", CHOICES)
def test_hook_hears_what_it_was_registered_for(case: str) -> None:
    """One store from the hand-out of its block to its landing."""
    choose, events = CHOICES[case]
    ledger = make_ledger()
    subscription = choose(ledger)
    heard: list[str] = []
    getattr(subscription, "__call__")(lambda each: heard.append(f"{each.machine}.{each.event}"))  # noqa: B004, B009
    _, job = in_flight(ledger)
    ledger.complete(report(job))

    assert heard == events


@pytest.mark.parametrize("count", [3, 300], ids=["few", "many"])
def test_hook_gets_the_places_of_a_batch_that_it_wants(count: int) -> None:
    """One call for the batch; places that take another row are left out, with their lives, groups and jobs."""
    ledger = make_ledger(num_blocks=count + 1, num_slots=2, requests=("a", "b"), max_journal=10_000)
    batch = sealed(ledger, "a", keys(*range(count)))
    ledger.acquire("b", batch.lives[:1])
    with ledger.on(BlockLife.release) as every, ledger.on(entered=Block.CACHED) as cached:
        ledger.release("a", range(count))

    assert [len(each) for each in every.heard] == [count]
    assert [list(each.places) for each in cached.heard] == [[block_of(int(life)) for life in batch.lives[1:]]]
    assert [move.life for move in moves(cached.heard)] == [int(life) for life in batch.lives[1:]]
    assert {move.group for move in moves(cached.heard)} == {0}
    assert {move.request for move in moves(every.heard)} == {"a"}


def test_hook_on_several_jobs_gets_its_own() -> None:
    """Where jobs of one record part, the numbers of those that are left go with their places."""
    ledger = make_ledger(contract=Contract.FENCE)
    first, second = (store(ledger, sealed(ledger, "a", keys(name)), keys(name), at) for at, name in enumerate("kl"))
    plan = ledger.dispatch(0.0)
    ledger.release("a", [1])
    with ledger.on(BlockLife.land, entered=Block.CACHED) as cached:
        ledger.settle(plan.number, 0.0, completions=[report(first.ids[0]), report(second.ids[0])])

    assert [(move.place, move.job) for move in moves(cached.heard)] == [(2, second.ids[0])]


def test_hook_that_launches_copies_finds_what_to_move() -> None:
    """The number of a job is enough; a job that nobody knows any more is refused."""
    ledger, found = make_ledger(num_slots=4), list[tuple[Direction, list[int], list[int]]]()

    @ledger.on(JobLife.submit)
    def launch(transition: LedgerTransition) -> None:
        for move in transition:
            transfer = ledger.jobs.transfer(move.place)
            found.append((transfer.direction, transfer.source.tolist(), transfer.target.tolist()))

    _, job = in_flight(ledger)

    assert found == [(Direction.STORE, [1], [0])]
    assert ledger.jobs.transfer(job.number).job == job
    with pytest.raises(MisuseError, match="job 99: it is not known"):
        ledger.jobs.transfer(99)


def test_hook_for_refusals_hears_what_a_table_refuses() -> None:
    """As a decorator, too; where only refusals are listened to, nothing else is told."""
    ledger, heard = make_ledger(), list[Refusal]()
    with ledger.on_refusal(heard.append) as subscription:
        with pytest.raises(RefusedError):
            ledger.admit("a")
        ledger.preempt("a")
    with pytest.raises(RefusedError):
        ledger.preempt("a")

    assert [(each.machine, each.event, each.state) for each in heard] == [("request", "admit", "RUNNING")]
    assert subscription.heard == []


def test_removed_hook_costs_and_hears_nothing() -> None:
    """Nobody listens any more: a verb is told to nobody, and the journal goes on."""
    ledger = make_ledger()
    with ledger.on() as heard:
        held(ledger, "a")
    held(ledger, "a")

    assert [each.event for each in heard.heard] == ["allocate"]
    assert [each.event for each in ledger.journal[-2:]] == ["allocate", "allocate"]
    assert ledger._state.journal.hooks.active is False


def hear(_: Transition) -> None:
    """A hook for any lifecycle."""


WRONG: dict[str, tuple[Callable[[Ledger], object], str]] = {
    "a coroutine": (lambda ledger: ledger.on(hook=later), "hook later is a coroutine function: calling it"),  # type: ignore[arg-type]
    "a coroutine for refusals": (lambda ledger: ledger.on_refusal(later), "is a coroutine function"),  # type: ignore[arg-type]
    "no function": (lambda ledger: ledger.on(BlockLife, hook=3), "a hook is a function, not 3"),  # type: ignore[arg-type]
    "a lifecycle of one's own": (lambda ledger: ledger.on(LampLife), "LampLife: nothing of it can be heard here"),
    "an event of one's own": (lambda ledger: ledger.on(LampLife.press), r"LampLife\.press: nothing of it"),
    "a name": (lambda ledger: ledger.on("block"), "'block': nothing of it can be heard"),  # type: ignore[arg-type]
    "a foreign state": (lambda ledger: ledger.on(entered=Lamp.ON), "is not a state of BlockLife, SlotLife"),  # type: ignore[arg-type]
    "a state of another machine": (
        lambda ledger: ledger.on(BlockLife.seal, entered=Slot.READY),
        r"no row of seal enters Slot\.READY: this hook would never run",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_can_never_be_heard_is_refused_at_once(case: str) -> None:
    """At the registration; nothing is registered, and the ledger goes on."""
    register, message = WRONG[case]
    ledger = make_ledger()
    with pytest.raises(MisuseError, match=message):
        register(ledger)
    held(ledger, "a")

    assert ledger._state.journal.hooks.active is False
    assert ledger.on(hook=hear).heard == []


def test_journal_is_the_same_whoever_listens() -> None:
    """What a hook is told besides is not kept: the journal of two equal ledgers is one."""
    heard, silent = make_ledger(), make_ledger()
    with heard.on():
        in_flight(heard)
    in_flight(silent)
    told = [[(*each.steps(), each.event, each.request, list(each.epochs)) for each in one.journal] for one in (heard, silent)]

    assert told[0] == told[1]
