"""Smoke for the smoke alarms: a ledger is broken by hand, and exactly the rule that it breaks is named first.

A busy ledger that nobody touched breaks none. Each row of `BROKEN` writes something behind the ledger's back: the rule that it
breaks is the first that is named, or is asked alone where what others count is broken with it (`ALONE`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

import pytest

from blocklife.core._couplings import name_block
from blocklife.ledger import Contract, GroupTransfer, Launched, Ledger, Store, Worker
from blocklife.ledger._ids import EPOCH_SHIFT, NULL
from blocklife.ledger.invariants import INVARIANTS, Look, check
from blocklife.states import Block, BlockLife, Job, JobLife, Request, RequestLife, Slot, SlotLife
from tests.worlds import BOTH, behind_fence, held, in_flight, keys, make_ledger, ready, report, sealed, store


def busy(contract: Contract = Contract.FENCE) -> Ledger:
    """Every state that a ledger can show at once, or nearly so."""
    ledger = make_ledger(num_blocks=16, num_slots=8, max_jobs=12, max_requests=8, contract=contract, requests=("a", "b"))
    ready(ledger, "cached", 0)  # block 1 CACHED, slot 0 READY
    in_flight(ledger, "a", "busy", 1)  # block 2 IN_FLIGHT, slot 1 WRITING
    _, job = in_flight(ledger, "b", "late", 4)  # block 3 QUARANTINED, slot 4 QUARANTINED
    ledger.launched(Launched(job, Worker(0)), 0.0)
    ledger.finish("b")
    ledger.expire(100.0)
    held(ledger, "a")  # block 4 ALLOCATED
    store(ledger, sealed(ledger, "a", keys("pending")), keys("pending"), 2)  # block 5 PENDING_STORE
    ledger.plan_store(Store.of(held(ledger, "a"), [3], keys("pledged")))  # block 6 PLEDGED
    sealed(ledger, "a", keys("sealed"))  # block 7 SEALED
    ledger.add_request("w")
    ledger.plan_load("w", GroupTransfer(ledger.allocate("w", 1), [0]))  # block 8 LOADING
    ledger.pin("somebody", [0])
    return ledger


CACHED, IN_FLIGHT, QUARANTINED, ALLOCATED, PENDING, PLEDGED, SEALED, LOADING = range(1, 9)


Change: TypeAlias = "Callable[[Ledger], object]"


def put(column: str, place: int, value: int) -> Change:
    """Write one number of a column of the kernel, such as ``blocks.pins``."""
    return lambda ledger: attrgetter(column)(ledger._state.core).__setitem__(place, value)


def add(column: str, by: int, place: int | None = None) -> Change:
    """Count wrongly, in a column or beside it."""
    of, _, name = column.rpartition(".")

    def change(ledger: Ledger) -> None:
        part = attrgetter(of)(ledger._state.core)
        if place is None:
            setattr(part, name, getattr(part, name) + by)
        else:
            getattr(part, name)[place] += by

    return change


def state(place: int, to: Block | Slot) -> Change:
    """Write the state of a block or of a slot."""
    life, column = (BlockLife, "blocks.state") if isinstance(to, Block) else (SlotLife, "slots.state")
    return put(column, place, life.table.index[to])


def of_job(column: str, number: int, value: int) -> Change:
    """Write a number of a job."""
    return lambda ledger: put(f"jobs.{column}", row_of(ledger, number), value)(ledger)


def of_request(column: str, name: str, value: int, *, more: int = 0) -> Change:
    """Write a number of a request, or make it larger."""

    def change(ledger: Ledger) -> None:
        requests = ledger._state.core.requests
        numbers = getattr(requests, column)
        numbers[requests.by_name[name]] = numbers[requests.by_name[name]] + more if more else value

    return change


def both(*changes: Change) -> Change:
    """One after the other."""
    return lambda ledger: [each(ledger) for each in changes]


def row_of(ledger: Ledger, number: int) -> int:
    """The row of a job."""
    return ledger._state.core.jobs.by_number[number]


def content(ledger: Ledger, name: str) -> int:
    """The number of a content of group 0, a new one if nothing names it yet."""
    return ledger._state.core.contents.intern(0, name.encode())


def unname(places: str, place: int) -> Change:
    """Forget the key of a block or a slot, and where it was found."""

    def change(ledger: Ledger) -> None:
        core = ledger._state.core
        keys_of = getattr(core, places).key
        getattr(core.contents, places.removesuffix("s"))[keys_of[place]] = -1
        keys_of[place] = 0

    return change


def unlink_job(ledger: Ledger) -> None:
    """A job that is out is taken from the list of those."""
    jobs, row = ledger._state.core.jobs, row_of(ledger, 2)
    jobs.following[jobs.before[row]] = jobs.following[row]
    jobs.before[jobs.following[row]] = jobs.before[row]


def unlink_slot(ledger: Ledger) -> None:
    """An empty slot is taken from the list of those."""
    slots = ledger._state.core.slots
    slots.following[slots.before[7]], slots.before[slots.following[7]] = slots.following[7], slots.before[7]


def hold_what_is_over(ledger: Ledger) -> None:
    """A table names a life that there is not."""
    requests = ledger._state.core.requests
    table = requests.by_name["a"]
    requests.reserve(table, 1)
    requests.lives[requests.begin[table] + requests.length[table]] = 5 << EPOCH_SHIFT | SEALED
    requests.length[table] += 1


def lose_the_owner(ledger: Ledger) -> None:
    """The table of a holder is emptied with the count."""
    requests, position = ledger._state.core.requests, ledger.requests.table("a").index(ledger.blocks.life(SEALED))
    requests.lives[requests.begin[requests.by_name["a"]] + position] = NULL
    ledger._state.core.blocks.refs[SEALED] = 0


def read_twice(ledger: Ledger) -> None:
    """Two stores have one life for a source."""
    jobs = ledger._state.core.jobs
    mine, other = jobs.begin[row_of(ledger, 3)], jobs.begin[row_of(ledger, 2)]
    jobs.place[mine], jobs.epoch[mine] = jobs.place[other], jobs.epoch[other]


def keep(ledger: Ledger, what: str, value: object) -> None:
    """Something is kept of a job that was never made."""
    getattr(ledger._state.core.jobs, what)[99] = value


def name_a_spare_row(ledger: Ledger) -> None:
    """A row of requests that can be had has a name."""
    requests = ledger._state.core.requests
    requests.names[requests.spare[0]] = "z"


def circle(places: str) -> Change:
    """The list of free places does not lead back."""
    return lambda ledger: put(f"{places}.before", getattr(ledger._state.core, places).following[-1], 0)(ledger)


BROKEN: tuple[tuple[str, Change, str], ...] = (
    # a copy reads or writes the block, and the block says otherwise
    ("I1", put("blocks.pins", IN_FLIGHT, 0), "pins of place 2 say 0, counted 1"),
    ("I1", put("blocks.pins", SEALED, 1), "pins of place 7 say 1, counted 0"),
    ("I1", put("blocks.writes", LOADING, 0), "writes of place 8 say 0, counted 1"),
    ("I1", put("blocks.overdue", QUARANTINED, 0), "overdue of place 3 say 0, counted 1"),
    *(
        ("I1", state(IN_FLIGHT, to), f"block 2 is {to.name} while 1 copies may touch it")
        for to in (Block.FREED, Block.CACHED, Block.ALLOCATED, Block.SEALED)
    ),
    *(
        ("I1", state(SEALED, to), f"block 7 is {to.name} although no copy touches it")
        for to in (Block.IN_FLIGHT, Block.STALE, Block.LOADING)
    ),
    # one job takes the report of another
    ("I3", add("jobs.last_number", -1), "the last number given out is"),
    ("I3", lambda x: x._state.core.jobs.by_number.__setitem__(2, row_of(x, 1)), "job 1 does not own row"),
    # a hold that is none, or is not counted
    *(("I4", add("blocks.refs", by, SEALED), f"refs of place 7 say {1 + by}, counted 1") for by in (+1, -1)),
    ("I4", hold_what_is_over, "request a holds life 5 of block 7, which is over"),
    ("I4", add("blocks.free", 1), "blocks, 9 are counted free, 8 are free"),
    # a job that never ends, or of which something is left
    ("I5", unlink_job, "are filed as out"),
    ("I5", add("jobs.live", 1), "are counted"),
    ("I5", lambda x: x._state.core.jobs.planned.popitem(), "are filed as planned"),
    ("I5", of_request("serving", "a", 0, more=1), "by owner"),
    ("I5", of_request("named", "a", 0, more=1), "by name"),
    ("I5", lambda x: keep(x, "space", b""), "jobs [99] are not known, and something of them is kept"),
    ("I5", lambda x: keep(x, "missing", frozenset({1})), "jobs [99] are not known, and something of them is kept"),
    ("I5", add("jobs.num_spare", -1), "can be made, of 12 in all"),
    # content that is found under another key, or too early, or never
    ("I6", lambda x: put("blocks.key", SEALED, content(x, "other"))(x), "is filed under block 7, which has another"),
    ("I6", lambda x: x._state.core.contents.key.__setitem__(content(x, "sealed"), b"other"), "which is another"),
    ("I6", unname("blocks", SEALED), "block 7 is SEALED and has no key"),
    (
        "I6",
        lambda x: name_block(x._state.core, ALLOCATED, content(x, "early")),
        "block 4 can be found under its key while ALLOCATED",
    ),
    (
        "I6",
        lambda x: both(put("contents.slot", content(x, "none"), 6), put("slots.key", 6, content(x, "none")))(x),
        "slot 6 can be found under its key while EMPTY",
    ),
    # a slot that is read, and says otherwise
    *(("I7", add("slots.pins", by, 0), f"pins of place 0 say {2 + by}, counted 2") for by in (+1, -1)),
    # a store that goes before its source is final, or of which the source does not know
    ("I8", state(IN_FLIGHT, Block.PENDING_STORE), "block 2 is PENDING_STORE while its store 2 is IN_FLIGHT"),
    (
        "I8",
        both(state(PLEDGED, Block.IN_FLIGHT), lambda x: put("blocks.key", PLEDGED, content(x, "pledged"))(x)),
        "block 6 is IN_FLIGHT while its store 5 is PLANNED",
    ),
    # all workers have reported and nobody drew the conclusion, or it was drawn too early
    ("I9", of_job("reported", 2, 1), "job 2 is IN_FLIGHT although every worker has reported"),
    ("I9", of_job("reported", 1, 0), "job 1 is DONE with reports 0 and failed=False"),
    ("I9", of_job("failed", 1, 1), "job 1 is DONE with reports 1 and failed=True"),
    # a request waits for what never comes, or a load that nobody waits for counts as wanted
    ("I10", of_request("state", "w", RequestLife.table.index[Request.RUNNING]), "request w is RUNNING with load"),
    *(
        ("I10", of_request("load", "w", number), f"request w waits for job {number}, which is over or abandoned")
        for number in (1, 99)
    ),
    (
        "I10",
        both(of_request("load", "w", 0), of_request("state", "w", RequestLife.table.index[Request.WAITING])),
        "job 6 is PLANNED, and no request waits for it",
    ),
    (
        "I10",
        both(lambda x: x.add_request("z"), of_request("state", "z", RequestLife.table.index[Request.FINISHED])),
        "is FINISHED, and still known",
    ),
    # a place, a row or a number that is lost, or that two can have
    ("I13", state(6, Slot.WRITING), "slot 6 is WRITING, and its store is over"),
    ("I13", lambda x: x._state.core.requests.spare.pop(), "are in use or spare of 8"),
    ("I13", lambda x: x._state.core.requests.spare_places.pop(), "of requests are in use or spare of 8"),
    ("I13", add("requests.live", -1), "and 1 of 2 requests are counted"),
    ("I13", lambda x: add("contents.uses", 1, content(x, "cached"))(x), "content 1 is counted "),
    ("I13", lambda x: content(x, "asked about"), "contents [1, 2, 3, "),
    ("I13", lambda x: x._state.core.contents.spare.append(content(x, "cached")), "can be had, and is named"),
    (
        "I13",
        lambda x: x._state.core.requests.names.__setitem__(x._state.core.requests.spare[0], "z"),
        "can be had, and is named",
    ),
    *(("I13", circle(places), f"the list of free {places} does not lead back") for places in ("blocks", "slots")),
    ("I13", add("contents.top", 1), "contents [1, 2, 3, "),
    ("I13", put("blocks.refs", QUARANTINED, 1), "block 3 is QUARANTINED and still held"),
    ("I13", lose_the_owner, "block 7 is SEALED and held by nobody"),
    ("I13", put("blocks.epoch", NULL, 1), "the null block was handed out"),
    ("I13", add("slots.free", 1), "slots are counted empty"),
    ("I13", unlink_slot, "3 slots are counted empty, 2 are listed, 3 are"),
    ("I13", add("slots.in_state", 1, SlotLife.table.index[Slot.READY]), "2 slots are counted READY, and 1 are"),
    ("I13", add("slots.held", 1), "2 READY slots are counted pinned, and 1 are"),
    # one content is stored twice, or not again
    ("I14", put("blocks.job", IN_FLIGHT, 0), "block 2 does not name its store 2"),
    ("I14", put("blocks.job", SEALED, 1), "block 7 is SEALED and names job row 1"),
    ("I14", read_twice, "block 2 is the source of 2 stores at once"),
    (
        "I14",
        lambda x: both(put("slots.key", 1, x._state.core.slots.key[0]), state(1, Slot.READY))(x),
        "two slots hold the same content",
    ),
    # a job counts other blocks than it has
    (
        "I15",
        lambda x: put("jobs.group", x._state.core.jobs.begin[row_of(x, 2)], 1)(x),
        "job 2 has 1 blocks, 1 places, sizes (0,)",
    ),
    ("I15", of_job("num_blocks", 2, 0), "job 2 has 0 blocks"),
)
"""The rule, what is done to the busy ledger, and what is said then."""
ALONE = {
    "are filed as out",
    "has 0 blocks",
    "which is another",
    "still held",
    "is the source of 2",
    "two slots hold",
    "can be had",
    "its store is",
}
"""What is asked alone."""


def expect(ledger: Ledger, rule: str, said: str) -> None:
    """The first violation is of this rule, or one of its own where others are broken with it."""
    alone, found = check(ledger, rule), check(ledger)

    assert any(said in each.message for each in alone), [str(each) for each in alone]
    assert any(each in said for each in ALONE) or str(found[0]) == f"{rule}: {alone[0].message}", [str(each) for each in found]


@pytest.mark.parametrize(("rule", "change", "said"), BROKEN, ids=[f"{rule}-{said}" for rule, _, said in BROKEN])
def test_broken_rule_is_noticed(rule: str, change: Change, said: str) -> None:
    """By its number, with the place and what is wrong there."""
    ledger = busy()
    change(ledger)

    expect(ledger, rule, said)


def stored(ledger: Ledger) -> None:
    """A store has landed."""
    ledger.complete(report(in_flight(ledger)[1]))


def launched(ledger: Ledger) -> None:
    """A store is out, and its deadline runs."""
    ledger.launched(Launched(in_flight(ledger)[1], Worker(0)), 0.0)


def pinned(ledger: Ledger) -> None:
    """Slot 0 can be read, and somebody counts on it."""
    ready(ledger)
    ledger.pin("p", [0])


def released(ledger: Ledger) -> None:
    """Nobody holds the block that a store reads."""
    in_flight(ledger)
    ledger.release("a", [0])


JOB = JobLife.table.index
ALSO_BROKEN: tuple[tuple[str, Callable[[Ledger], object], Change, str], ...] = (
    *(
        (
            *("I1", released),
            both(state(1, to), put("blocks.overdue", 1, overdue), of_job("state", 1, JOB[job])),
            f"is {to.name} with {overdue} copies past their deadline",
        )
        for to, overdue, job in ((Block.STALE, 1, Job.QUARANTINED), (Block.QUARANTINED, 0, Job.UNWANTED))
    ),
    ("I5", launched, lambda x: x._state.core.deadlines.clear(), "job 1 has a deadline that nobody watches"),
    ("I6", stored, of_job("state", 1, JOB[Job.FAILED]), "slot 0 is READY with content that job 1 failed to store"),
    ("I6", in_flight, of_job("state", 1, JOB[Job.UNWANTED]), "slot 0 is found as on its way, although its store is given up"),
    ("I7", pinned, both(unname("slots", 0), state(0, Slot.EMPTY)), "slot 0 is read while EMPTY"),
    ("I7", ready, both(unname("slots", 0), state(0, Slot.STALE)), "slot 0 is STALE although nobody reads it"),
    ("I12", behind_fence, lambda x: x._state.core.to_flush.clear(), "block 1 is FLUSHED and no plan waits for its copy"),
    ("I12", stored, lambda x: x._state.core.to_flush.__setitem__(1, None), "the next plan is to wait for job 1, which is over"),
    *(
        ("I13", in_flight, state(0, to), f"slot 0 is {to.name}, and its store is IN_FLIGHT")
        for to in (Slot.EMPTY, Slot.QUARANTINED)
    ),
)
"""The same for ledgers with less in them; a copy past its deadline is asked alone."""


@pytest.mark.parametrize(
    ("rule", "begin", "change", "said"), ALSO_BROKEN, ids=[f"{rule}-{said}" for rule, *_, said in ALSO_BROKEN]
)
def test_rule_that_is_broken_in_a_small_ledger_is_noticed(
    rule: str, begin: Callable[[Ledger], object], change: Change, said: str
) -> None:
    """As above."""
    ledger = make_ledger(num_blocks=2 if begin is behind_fence else 6)
    begin(ledger)
    change(ledger)

    assert check(ledger)
    assert any(said in each.message for each in check(ledger, rule))


def test_every_invariant_is_broken_above() -> None:
    """Each rule that is checked has a row."""
    assert {rule for rule, *_ in (*BROKEN, *ALSO_BROKEN)} == set(INVARIANTS)


@BOTH
def test_busy_ledger_breaks_nothing(contract: Contract) -> None:
    """Almost every state at once, and no rule is broken, one by one or all together."""
    ledger = busy(contract)

    assert len({ledger.blocks.state(place) for place in range(1, 10)}) == 9
    assert check(ledger) == []
    assert [check(ledger, rule) for rule in INVARIANTS] == [[]] * len(INVARIANTS)


def break_something(ledger: Ledger, rnd: random.Random) -> None:
    """Write one byte or one name behind the ledger's back, of a block or of a slot."""
    blocks, slots = ledger._state.core.blocks, ledger._state.core.slots
    place, slot = rnd.randrange(blocks.size), rnd.randrange(slots.size)
    match rnd.choice(("state", "refs", "job", "key", "slot")):
        case "state":
            blocks.state[place] = rnd.choice(list(BlockLife.table.index.values()))
        case "refs":
            blocks.refs[place] = rnd.randrange(2)
        case "job":
            blocks.job[place] = rnd.randrange(2)
        case "key":
            blocks.key[place] = 0
        case _:
            slots.state[slot] = rnd.choice(list(SlotLife.table.index.values()))


@BOTH
@pytest.mark.parametrize("seed", range(100))
def test_what_fits_by_itself_is_what_the_rules_find_nothing_in(contract: Contract, seed: int) -> None:
    """Rules do not look at places one by one where all are among the lawful ones: what they would say is the same."""
    rnd, ledger = random.Random(seed), busy(contract)
    for _ in range(rnd.choice((0, 1, 1, 2))):
        break_something(ledger, rnd)
    quick, thorough = Look(ledger._state), Look(ledger._state)
    thorough.blocks_fit = thorough.slots_fit = False

    for judge in INVARIANTS.values():
        said: tuple[list[str], list[str]] = ([], [])
        judge(quick, said[0].append)
        judge(thorough, said[1].append)
        assert said[0] == said[1]
