"""Smoke for the smoke alarms: a ledger is broken by hand, and exactly the rule that it breaks is named first.

A busy ledger that nobody touched breaks none. Where one hand's turn breaks two rules, the one that is meant is named first by
asking it alone as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from blocklife.core._couplings import name_block
from blocklife.ledger import Batch, Contract, GroupTransfer, Launched, Ledger, Store, Worker
from blocklife.ledger._ids import EPOCH_SHIFT, NULL
from blocklife.ledger.invariants import INVARIANTS, Look, check
from blocklife.states import Block, BlockLife, Job, JobLife, Request, RequestLife, Slot, SlotLife
from tests.worlds import BOTH, behind_fence, block_of, held, in_flight, keys, make_ledger, ready, report, sealed, store


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


def put_block(ledger: Ledger, place: int, state: Block) -> None:
    """Write the state of a block behind the ledger's back."""
    ledger._state.core.blocks.state[place] = BlockLife.table.index[state]


def put_slot(ledger: Ledger, place: int, state: Slot) -> None:
    """Write the state of a slot behind the ledger's back."""
    ledger._state.core.slots.state[place] = SlotLife.table.index[state]


def put_job(ledger: Ledger, number: int, state: Job) -> None:
    """Write the state of a job behind the ledger's back."""
    ledger._state.core.jobs.state[row_of(ledger, number)] = JobLife.table.index[state]


def put_request(ledger: Ledger, name: str, state: Request) -> None:
    """Write the state of a request behind the ledger's back."""
    requests = ledger._state.core.requests
    requests.state[requests.by_name[name]] = RequestLife.table.index[state]


def row_of(ledger: Ledger, number: int) -> int:
    """The row of a job."""
    return ledger._state.core.jobs.by_number[number]


def content(ledger: Ledger, name: str) -> int:
    """The number of a content of group 0, a new one if nothing names it yet."""
    return ledger._state.core.contents.intern(0, name.encode())


def unname_block(ledger: Ledger, place: int) -> None:
    """Forget the key of a block behind the ledger's back, and where it was found."""
    core = ledger._state.core
    core.contents.block[core.blocks.key[place]] = -1
    core.blocks.key[place] = 0


def unname_slot(ledger: Ledger, place: int) -> None:
    """Forget the key of a slot likewise."""
    core = ledger._state.core
    core.contents.slot[core.slots.key[place]] = -1
    core.slots.key[place] = 0


def breaks(ledger: Ledger, rule: str, message: str) -> None:
    """The first violation is of this rule, and its sentence says this."""
    found = check(ledger)

    assert found, "nothing was noticed"
    assert found[0].rule == rule, [str(each) for each in found]
    assert message in found[0].message
    assert str(found[0]).startswith(f"{rule}: ")
    assert check(ledger, rule)[0].message == found[0].message


@BOTH
def test_busy_ledger_breaks_nothing(contract: Contract) -> None:
    """Almost every state at once, and no rule is broken, one by one or all together."""
    ledger = busy(contract)

    assert len({ledger.blocks.state(place) for place in range(1, 10)}) == 9
    assert check(ledger) == []
    assert [check(ledger, rule) for rule in INVARIANTS] == [[]] * len(INVARIANTS)


def test_every_invariant_has_smoke() -> None:
    """Each rule that is checked has a test here that breaks it."""
    for rule in INVARIANTS:
        assert any(name.startswith(f"test_{rule.lower()}_") for name in globals()), rule


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


# --- I1 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x._state.core.blocks.pins.__setitem__(IN_FLIGHT, 0), "pins of place 2 say 0, counted 1"),
        (lambda x: x._state.core.blocks.pins.__setitem__(SEALED, 1), "pins of place 7 say 1, counted 0"),
        (lambda x: x._state.core.blocks.writes.__setitem__(LOADING, 0), "writes of place 8 say 0, counted 1"),
        (lambda x: x._state.core.blocks.overdue.__setitem__(QUARANTINED, 0), "overdue of place 3 say 0, counted 1"),
    ],
    ids=["pin lost", "pin too many", "write lost", "overdue pin lost"],
)
def test_i1_pins_count_the_jobs_that_touch_a_block(change: Callable[[Ledger], None], message: str) -> None:
    """Pins, writes and overdue pins are those of the jobs that are out."""
    ledger = busy()
    change(ledger)

    breaks(ledger, "I1", message)


@pytest.mark.parametrize("state", [Block.FREED, Block.CACHED, Block.ALLOCATED, Block.SEALED])
def test_i1_busy_block_is_neither_free_nor_newly_owned(state: Block) -> None:
    """The early release: the store still reads it."""
    ledger = busy()
    put_block(ledger, IN_FLIGHT, state)

    breaks(ledger, "I1", f"block 2 is {state.name} while 1 copies may touch it")


@pytest.mark.parametrize("state", [Block.IN_FLIGHT, Block.STALE, Block.LOADING])
def test_i1_block_without_a_copy_waits_for_none(state: Block) -> None:
    """A place that waits for nothing would wait for ever."""
    ledger = busy()
    put_block(ledger, SEALED, state)

    breaks(ledger, "I1", f"block 7 is {state.name} although no copy touches it")


# --- I3, I4, I5 ---------------------------------------------------------------------------------------------------------


def test_i3_job_is_filed_under_its_own_number() -> None:
    """A number that was never given out is noticed."""
    ledger = busy()
    ledger._state.core.jobs.last_number -= 1

    breaks(ledger, "I3", "the last number given out is")


def test_i3_job_owns_its_row() -> None:
    """Two jobs on one row would take each other's reports."""
    ledger = busy()
    ledger._state.core.jobs.by_number[2] = row_of(ledger, 1)

    breaks(ledger, "I3", "job 1 does not own row")


def test_i1_what_nobody_has_is_quarantined_exactly_if_overdue() -> None:
    """A place with an overdue pin could be handed out under fence; one without would never come back."""
    for state, overdue, said in ((Block.STALE, 1, "STALE with 1"), (Block.QUARANTINED, 0, "QUARANTINED with 0")):
        ledger = make_ledger()
        source, job = in_flight(ledger)
        ledger.release("a", [0])
        place = block_of(source)
        put_block(ledger, place, state)
        ledger._state.core.blocks.overdue[place] = overdue
        put_job(ledger, job.number, Job.QUARANTINED if overdue else Job.UNWANTED)

        assert any(f"is {said} copies past their deadline" in each.message for each in check(ledger, "I1"))


def test_i4_refs_count_the_tables() -> None:
    """One reference too many is a block that is never free again, one too few a block with two owners."""
    for change in (+1, -1):
        ledger = busy()
        ledger._state.core.blocks.refs[SEALED] += change

        breaks(ledger, "I4", f"refs of place 7 say {1 + change}, counted 1")


def test_i4_table_holds_only_current_lives() -> None:
    """A reference that is over is no hold."""
    ledger = busy()
    requests = ledger._state.core.requests
    table = requests.by_name["a"]
    requests.reserve(table, 1)
    requests.lives[requests.begin[table] + requests.length[table]] = 5 << EPOCH_SHIFT | SEALED
    requests.length[table] += 1

    breaks(ledger, "I4", "request a holds life 5 of block 7, which is over")


def test_i4_free_block_stands_in_the_queue_once() -> None:
    """A block that was pushed out of turn, or a count that went wrong."""
    ledger = busy()
    ledger._state.core.blocks.free += 1

    breaks(ledger, "I4", "blocks, 9 are counted free, 8 are free")


def test_i5_jobs_that_are_out_are_filed() -> None:
    """Ticking goes on for as long as one is out: asked alone, for the places of a job that is lost are broken with it."""
    ledger = busy()
    jobs, row = ledger._state.core.jobs, row_of(ledger, 2)
    jobs.following[jobs.before[row]] = jobs.following[row]
    jobs.before[jobs.following[row]] = jobs.before[row]

    assert "are filed as out" in check(ledger, "I5")[0].message


def test_i5_jobs_that_are_out_are_counted() -> None:
    """The count is what the engine asks before it sleeps."""
    ledger = busy()
    ledger._state.core.jobs.live += 1

    breaks(ledger, "I5", "are counted")


def test_i5_jobs_that_no_worker_has_are_filed() -> None:
    """A planned job that is not in the list would never be submitted."""
    ledger = busy()
    ledger._state.core.jobs.planned.popitem()

    breaks(ledger, "I5", "are filed as planned")


def test_i5_jobs_are_counted_by_owner() -> None:
    """What is preempted would not wait for its stores."""
    ledger = busy()
    requests = ledger._state.core.requests
    requests.serving[requests.by_name["a"]] += 1

    breaks(ledger, "I5", "by owner")


def test_i5_known_jobs_are_counted_by_name() -> None:
    """A name keeps its row as long as a known job is for it, also one that is over."""
    ledger = busy()
    requests = ledger._state.core.requests
    requests.named[requests.by_name["a"]] += 1

    breaks(ledger, "I5", "by name")


@pytest.mark.parametrize("kept", ["space", "missing"])
def test_i5_nothing_is_kept_of_a_job_that_is_not_known(kept: str) -> None:
    """It would be taken for a later job's, or grow for ever."""
    ledger = busy()
    getattr(ledger._state.core.jobs, kept)[99] = b"" if kept == "space" else frozenset({1})

    breaks(ledger, "I5", "jobs [99] are not known, and something of them is kept")


def test_i5_row_of_a_job_that_is_over_can_be_used_again() -> None:
    """Jobs would run out one by one."""
    ledger = busy()
    ledger._state.core.jobs.num_spare -= 1

    breaks(ledger, "I5", "can be made, of 12 in all")


def test_i5_deadline_is_watched() -> None:
    """A job with a deadline that nobody looks at never ends."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.launched(Launched(job, Worker(0)), 0.0)
    ledger._state.core.deadlines.clear()

    breaks(ledger, "I5", "job 1 has a deadline that nobody watches")


# --- I6, I7, I8 ---------------------------------------------------------------------------------------------------------


def test_i6_block_is_found_only_under_its_own_key() -> None:
    """An index that points to other content serves another request's text."""
    ledger = busy()
    ledger._state.core.blocks.key[SEALED] = content(ledger, "other")

    breaks(ledger, "I6", "is filed under block 7, which has another")


def test_i6_content_is_filed_under_its_own_key() -> None:
    """A number that two keys have would make them one content."""
    ledger = busy()
    ledger._state.core.contents.key[content(ledger, "sealed")] = b"other"

    assert "which is another" in check(ledger, "I6")[0].message


def test_i6_final_content_has_a_key() -> None:
    """Nobody could ever find it, and it would be computed again and again."""
    ledger = busy()
    unname_block(ledger, SEALED)

    breaks(ledger, "I6", "block 7 is SEALED and has no key")


def test_i6_open_content_is_not_found() -> None:
    """A key that names a block whose content is being made."""
    ledger = busy()
    name_block(ledger._state.core, ALLOCATED, content(ledger, "early"))

    breaks(ledger, "I6", "block 4 can be found under its key while ALLOCATED")


def test_i6_slot_is_found_only_with_content() -> None:
    """A key that names an empty slot."""
    ledger = busy()
    ledger._state.core.contents.slot[content(ledger, "nothing")] = 6
    ledger._state.core.slots.key[6] = content(ledger, "nothing")

    breaks(ledger, "I6", "slot 6 can be found under its key while EMPTY")


def test_i6_failed_store_leaves_nothing_to_read() -> None:
    """The bytes of a store that failed are not under its key."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.complete(report(job))
    put_job(ledger, job.number, Job.FAILED)

    breaks(ledger, "I6", "slot 0 is READY with content that job 1 failed to store")


def test_i6_unwanted_store_is_not_found_to_be_on_its_way() -> None:
    """A lookup would wait for what is thrown away."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    put_job(ledger, job.number, Job.UNWANTED)

    breaks(ledger, "I6", "slot 0 is found as on its way, although its store is given up")


def test_i7_slot_is_pinned_by_its_readers() -> None:
    """One pin a load and a holder, no more and no less."""
    for change in (+1, -1):
        ledger = busy()
        ledger._state.core.slots.pins[0] += change

        breaks(ledger, "I7", f"pins of place 0 say {2 + change}, counted 2")


def test_i7_slot_that_is_read_has_content() -> None:
    """Nobody counts on what is not there."""
    ledger = make_ledger()
    ready(ledger)
    ledger.pin("p", [0])
    unname_slot(ledger, 0)
    put_slot(ledger, 0, Slot.EMPTY)

    breaks(ledger, "I7", "slot 0 is read while EMPTY")


def test_i7_dead_slot_has_a_reader() -> None:
    """Without one nobody would ever empty it."""
    ledger = make_ledger()
    ready(ledger)
    unname_slot(ledger, 0)
    put_slot(ledger, 0, Slot.STALE)

    breaks(ledger, "I7", "slot 0 is STALE although nobody reads it")


@pytest.mark.parametrize(
    ("place", "state", "job"), [(IN_FLIGHT, Block.PENDING_STORE, "IN_FLIGHT"), (PLEDGED, Block.IN_FLIGHT, "PLANNED")]
)
def test_i8_only_sealed_content_is_submitted(place: int, state: Block, job: str) -> None:
    """A submitted store whose block was never submitted, or a block that is read before its store was submitted."""
    ledger = busy()
    put_block(ledger, place, state)
    blocks = ledger._state.core.blocks
    blocks.key[place] = blocks.key[place] or content(ledger, "pledged")

    breaks(ledger, "I8", f"block {place} is {state.name} while its store")
    assert job in check(ledger)[0].message


# --- I9, I10, I12 -------------------------------------------------------------------------------------------------------


def test_i9_job_that_is_out_misses_a_worker() -> None:
    """All have reported, and nobody drew the conclusion."""
    ledger = busy()
    ledger._state.core.jobs.reported[row_of(ledger, 2)] = 1

    breaks(ledger, "I9", "job 2 is IN_FLIGHT although every worker has reported")


@pytest.mark.parametrize(("reported", "failed"), [(0, False), (1, True)], ids=["too early", "in spite of a failure"])
def test_i9_done_needs_every_worker_and_no_failure(reported: int, failed: bool) -> None:
    """The first job of the busy ledger is DONE."""
    ledger = busy()
    jobs, row = ledger._state.core.jobs, row_of(ledger, 1)
    jobs.reported[row], jobs.failed[row] = reported, failed

    breaks(ledger, "I9", f"job 1 is DONE with reports {reported:b} and failed={failed}")


def test_i10_request_waits_exactly_for_its_load() -> None:
    """Loading without a load, or a load without loading."""
    ledger = busy()
    put_request(ledger, "w", Request.RUNNING)

    breaks(ledger, "I10", "request w is RUNNING with load")


@pytest.mark.parametrize("number", [1, 99], ids=["over", "unknown"])
def test_i10_load_that_a_request_waits_for_can_come(number: int) -> None:
    """It waits for a job that will never tell it anything."""
    ledger = busy()
    requests = ledger._state.core.requests
    requests.load[requests.by_name["w"]] = number

    breaks(ledger, "I10", f"request w waits for job {number}, which is over or abandoned")


def test_i10_load_that_nobody_waits_for_is_given_up() -> None:
    """The request has gone, and its load counts as wanted."""
    ledger = busy()
    requests, load = ledger._state.core.requests, ledger.requests.load("w")
    requests.load[requests.by_name["w"]] = 0
    put_request(ledger, "w", Request.WAITING)

    breaks(ledger, "I10", f"job {load} is PLANNED, and no request waits for it")


def test_i10_request_that_is_over_is_not_known() -> None:
    """Its name could never be used again; one that a known job is for stays until that job is forgotten."""
    ledger = busy()
    ledger.add_request("z")
    put_request(ledger, "z", Request.FINISHED)

    breaks(ledger, "I10", "is FINISHED, and still known")


def test_i12_block_behind_a_fence_has_a_wait() -> None:
    """The flush was forgotten: the new tenant stands there for ever, or writes too early."""
    ledger = make_ledger(num_blocks=2)
    behind_fence(ledger)
    ledger._state.core.to_flush.clear()

    breaks(ledger, "I12", "block 1 is FLUSHED and no plan waits for its copy")


def test_i12_nobody_waits_for_what_is_over() -> None:
    """The engine would tick on for a job that nobody has."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.complete(report(job))
    ledger._state.core.to_flush[job.number] = None

    breaks(ledger, "I12", "the next plan is to wait for job 1, which is over")


# --- I13, I14, I15 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "said"), [(Slot.EMPTY, "its store is IN_FLIGHT"), (Slot.QUARANTINED, "its store is IN_FLIGHT")]
)
def test_i13_slot_is_reserved_by_its_store(state: Slot, said: str) -> None:
    """A slot that a store fills is nobody else's, and overdue only with its store."""
    ledger = make_ledger()
    in_flight(ledger)
    put_slot(ledger, 0, state)

    assert f"slot 0 is {state.name}, and {said}" in [each.message for each in check(ledger, "I13")]


def test_i13_reserved_slot_has_a_store() -> None:
    """Nobody fills it, and nobody ever will."""
    ledger = make_ledger()
    put_slot(ledger, 3, Slot.WRITING)

    assert "slot 3 is WRITING, and its store is over" in [each.message for each in check(ledger, "I13")]


def test_i13_every_row_of_requests_is_in_use_or_to_be_had() -> None:
    """A row that is lost is a request that can never come."""
    ledger = busy()
    ledger._state.core.requests.spare.pop()

    breaks(ledger, "I13", "are in use or spare of 8")


def test_i13_every_place_of_requests_is_in_use_or_to_be_had() -> None:
    """Who is told of steps knows a request by its place."""
    ledger = busy()
    ledger._state.core.requests.spare_places.pop()

    breaks(ledger, "I13", "of requests are in use or spare of 8")


def test_i13_requests_are_counted() -> None:
    """A count that drifts refuses requests that fit."""
    ledger = busy()
    ledger._state.core.requests.live -= 1

    breaks(ledger, "I13", "and 1 of 2 requests are counted")


def test_i13_contents_are_counted() -> None:
    """By the places and the known jobs that name them."""
    ledger = busy()
    number = ledger._state.core.contents.find(0, b"cached")
    ledger._state.core.contents.uses[number] += 1

    breaks(ledger, "I13", f"content {number} is counted ")


def test_i13_content_that_nobody_names_is_forgotten() -> None:
    """Else each key that was ever asked for would stay."""
    ledger = busy()
    content(ledger, "asked about")

    breaks(ledger, "I13", "contents [1, 2, 3, ")


def test_i13_what_can_be_had_is_not_named() -> None:
    """Its key, or name, would never be let go of."""
    for named in ("contents", "requests"):
        ledger = busy()
        core = ledger._state.core
        if named == "contents":
            core.contents.spare.append(core.contents.find(0, b"cached"))
        else:
            core.requests.names[core.requests.spare[0]] = "gone"

        assert "the number of a content, or a row of requests, can be had, and is named" in [
            each.message for each in check(ledger, "I13")
        ]


@pytest.mark.parametrize("list_of", ["blocks", "slots"])
def test_i13_lists_of_free_places_lead_back(list_of: str) -> None:
    """What is taken out of the middle would take others with it."""
    ledger = busy()
    own = getattr(ledger._state.core, list_of)
    own.before[own.following[own.size]] = 0

    breaks(ledger, "I13", f"the list of free {list_of} does not lead back")


def test_i13_number_of_a_content_can_be_had_again() -> None:
    """Columns of contents would grow for ever."""
    ledger = busy()
    ledger._state.core.contents.top += 1

    breaks(ledger, "I13", "contents [1, 2, 3, ")


def test_i13_block_without_a_life_is_held_by_nobody() -> None:
    """The rule is asked alone, for the counts of I4 are broken with it."""
    ledger = busy()
    ledger._state.core.blocks.refs[QUARANTINED] = 1

    assert check(ledger, "I13")[0].message == "block 3 is QUARANTINED and still held"


def test_i13_owned_block_has_an_owner() -> None:
    """The table of its holder was emptied with the count."""
    ledger = busy()
    requests, position = ledger._state.core.requests, ledger.requests.table("a").index(ledger.blocks.life(SEALED))
    requests.lives[requests.begin[requests.by_name["a"]] + position] = NULL
    ledger._state.core.blocks.refs[SEALED] = 0

    breaks(ledger, "I13", "block 7 is SEALED and held by nobody")


def test_i13_null_block_is_never_handed_out() -> None:
    """Block 0 stands outside of everything."""
    ledger = busy()
    ledger._state.core.blocks.epoch[NULL] = 1

    breaks(ledger, "I13", "the null block was handed out")


def test_i13_empty_slots_are_counted() -> None:
    """A count that drifts refuses stores that fit, or plans ones that do not."""
    ledger = busy()
    ledger._state.core.slots.free += 1

    breaks(ledger, "I13", "slots are counted empty")


def test_i13_empty_slots_are_listed() -> None:
    """One that is in no list is never filled again."""
    ledger = busy()
    slots = ledger._state.core.slots
    slots.following[slots.before[7]], slots.before[slots.following[7]] = slots.following[7], slots.before[7]

    breaks(ledger, "I13", "3 slots are counted empty, 2 are listed, 3 are")


def test_i13_slots_are_counted_by_state() -> None:
    """A tier would look for one that can be evicted where there is none, or not look where there is one."""
    ledger = busy()
    ledger._state.core.slots.in_state[SlotLife.table.index[Slot.READY]] += 1

    breaks(ledger, "I13", "2 slots are counted READY, and 1 are")


def test_i13_pinned_slots_are_counted() -> None:
    """As above: what is pinned cannot be evicted."""
    ledger = busy()
    ledger._state.core.slots.held += 1

    breaks(ledger, "I13", "2 READY slots are counted pinned, and 1 are")


def test_i14_block_names_its_store() -> None:
    """A store that its block does not know would be planned again."""
    ledger = busy()
    ledger._state.core.blocks.job[IN_FLIGHT] = 0

    breaks(ledger, "I14", "block 2 does not name its store 2")


def test_i14_block_that_is_not_copied_names_no_store() -> None:
    """The mark of a store that is over would exempt the next life from being stored."""
    ledger = busy()
    ledger._state.core.blocks.job[SEALED] = 1

    breaks(ledger, "I14", "block 7 is SEALED and names job row 1")


def test_i14_life_is_the_source_of_one_store() -> None:
    """Two stores of one life: asked alone, for the pins of I1 are broken with it."""
    ledger = busy()
    jobs = ledger._state.core.jobs
    mine, other = jobs.begin[row_of(ledger, 3)], jobs.begin[row_of(ledger, 2)]
    jobs.place[mine], jobs.epoch[mine] = jobs.place[other], jobs.epoch[other]

    assert any(each.message == "block 2 is the source of 2 stores at once" for each in check(ledger, "I14"))


def test_i14_content_has_one_slot() -> None:
    """The same key in two slots is one slot wasted, and two truths."""
    ledger = busy()
    slots = ledger._state.core.slots
    slots.key[1] = slots.key[0]
    put_slot(ledger, 1, Slot.READY)

    assert "two slots hold the same content" in [each.message for each in check(ledger, "I14")]


def test_i15_sizes_add_up() -> None:
    """A job whose group sizes do not add up would read another group's blocks."""
    ledger = busy()
    jobs = ledger._state.core.jobs
    jobs.group[jobs.begin[row_of(ledger, 2)]] = 1

    breaks(ledger, "I15", "job 2 has 1 blocks, 1 places, sizes (0,)")


def test_i15_job_has_something_to_copy() -> None:
    """A job with no rows would be completed without a copy."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger._state.core.jobs.num_blocks[row_of(ledger, job.number)] = 0

    assert [each.rule for each in check(ledger, "I15")] == ["I15"]
    assert block_of(Batch([ledger.blocks.life(1)])) == 1
