"""The actions of an engine and a device in a small world, and their effects: the hand-written part of the program.

Rules of this file:

* It is text in the language of `model.py`. ``{name}`` stands for the effects of the coupling with that name, in its order.
* A function that begins with an ``assert`` is an action, which can happen where that holds; its docstring is its meaning. A
  predicate with a docstring holds in every state.
* States are changed only by events of machines. Counts, names of content and running copies are changed here.
"""

from __future__ import annotations

import itertools

from blocklife.states import (
    ADMISSIBLE,
    ADMITTED,
    MACHINES,
    OUT,
    PINNED,
    STORE_READS,
    Block,
    Request,
    RequestLife,
    StateT,
    Trait,
    states_before,
    states_with,
)
from tests.proof.judges.model import ModelAction, Variable
from tests.proof.ledger_world.settings import PLAIN, VERBS, LedgerSettings

# --- sets of states ----------------------------------------------------------------------------------------------------


def _one_of(name: str, place: str, states: frozenset[StateT]) -> str:
    """A predicate: the place is in one of these states."""
    (machine,) = {type(each).__name__ for each in states}
    tests = [f"{machine.lower()}[{place}] == {machine.upper()}_{each}" for each in sorted(each.name for each in states)]
    return f"def {name}({place}):\n    return {' or '.join(tests)}"


_SETS = "\n\n".join(
    (
        _one_of("submitted", "j", OUT),
        _one_of("touched", "b", PINNED),
        _one_of("given_up", "b", STORE_READS - states_with(Trait.HELD, Block)),
        _one_of("grows", "r", ADMISSIBLE | ADMITTED - states_before(RequestLife.table.events["loaded"], Request)),
    )
)

# --- the effects of couplings ------------------------------------------------------------------------------------------

_LIVES = """
def alive(j):
    return job[j] == JOB_PLANNED or submitted(j)

def on_device(j):
    return any(share[j * WORKERS + w] == HELD_BACK or share[j * WORKERS + w] == RUNS for w in range(WORKERS))

def under_way(j):
    return any(share[j * WORKERS + w] == LANDED or share[j * WORKERS + w] == FAILED for w in range(WORKERS))

def ripe(j):
    return job[j] == JOB_PLANNED and (kind[j] == LOAD or block[jblock[j]] != BLOCK_PLEDGED)

def end_life(b):
    "holders of the life, and its job, now refer to a life that is over"
    refs[b] = 0
    bkey[b] = 0
    source[b] = 0
    for k in range(JOBS):
        if alive(k) and jblock[k] == b:
            fresh[k] = 0
    for q in range(REQUESTS):
        if table[q] == b + 1:
            table[q] = 0
"""

_COUPLED = """
def over(j):
    "the state is kept while a report of the job is on its way"
    kind[j] = 0
    jblock[j] = 0
    jslot[j] = 0
    jkey[j] = 0
    fresh[j] = 0
    failed[j] = 0
    expired[j] = 0
    armed[j] = 0
    ordered[j] = 0
    awaited[j] = 0
    awaited_next[j] = 0
    for w in range(WORKERS):
        reported[j * WORKERS + w] = 0
    if not under_way(j):
        job[j] = NONE

def land_store(j, ok):
    b = jblock[j]
    pins[b] = pins[b] - 1
    if expired[j] == 1:
        overdue[b] = overdue[b] - 1
    if fresh[j] == 1:
        source[b] = 0
    block_land(b, 0, ok)

def land_load(j, ok):
    b = jblock[j]
    own = fresh[j]
    pins[b] = pins[b] - 1
    writes[b] = writes[b] - 1
    if expired[j] == 1:
        overdue[b] = overdue[b] - 1
    block_land(b, own, ok)
    if own == 1 and ok == 1:
        bkey[b] = jkey[j]

def cancel_block(j):
    b = jblock[j]
    pins[b] = pins[b] - 1
    if fresh[j] == 1:
        source[b] = 0
        block_cancel(b)

def expire_block(j):
    b = jblock[j]
    own = fresh[j] if kind[j] == LOAD else 0
    overdue[b] = overdue[b] + 1
    block_expire(b, own)

def land_slot(j, ok):
    "of two stores of the same content only the first to land is published"
    s = jslot[j]
    wanted = 0 if any(slot[t] == SLOT_READY and skey[t] == jkey[j] for t in range(SLOTS)) else ok
    slot_land(s, wanted)

"""

_STORES = """
def cancel_orphans():
    "cancels planned stores whose life is over"
    for k in range(JOBS):
        if job[k] == JOB_PLANNED and kind[k] == STORE and fresh[k] == 0:
            cancel_store(k)

def prove_older(j):
    "every worker waited for the older copies of the target before it launched the load"
    for k in range(JOBS):
        if k != j and alive(k) and jblock[k] == jblock[j]:
            if kind[k] == LOAD:
                refused = 1
            else:
                quiesce_store(k)

def flush_all(b):
    for k in range(JOBS):
        if submitted(k) and jblock[k] == b:
            job_flush(k)
            ordered[k] = 1

def submit_block(j):
    b = jblock[j]
    if fresh[j] == 1:
        block_submit(b)

def release_block(b):
    refs[b] = refs[b] - 1
    block_release(b)
    {life_ends}

def release_all(r):
    held = table[r]
    table[r] = NONE
    if held > 0 and held <= BLOCKS:
        b = held - 1
        release_block(b)
"""

_REQUESTS = """
def loaded(j):
    for q in range(REQUESTS):
        if load[q] == j + 1:
            load[q] = 0
            request_loaded(q)

def give_up_load(r):
    "cancelled if it is planned, abandoned if it is submitted"
    if load[r] > 0:
        k = load[r] - 1
        load[r] = 0
        if job[k] == JOB_PLANNED:
            cancel_load(k)
        else:
            if can_job_abandon(k):
                job_abandon(k)

def give_up(r):
    {request_gives_up}

def load_failed(j):
    for q in range(REQUESTS):
        if load[q] == j + 1:
            load[q] = 0
            give_up(q)
            request_load_failed(q)
"""

_RESET = """
def reset_requests():
    for q in range(REQUESTS):
        if can_request_preempt(q):
            give_up(q)
            request_preempt(q)
        else:
            release_all(q)

def reset_planned():
    for k in range(JOBS):
        if job[k] == JOB_PLANNED:
            if kind[k] == STORE:
                cancel_store(k)
            else:
                refused = 1

def reset_submitted():
    for k in range(JOBS):
        if can_job_abandon(k):
            job_abandon(k)

def reset_blocks():
    for b in range(BLOCKS):
        if can_block_drop(b):
            block_drop(b)

def reset_slots():
    for s in range(SLOTS):
        if slot[s] == SLOT_READY:
            slot_drop(s)
"""

# --- what can happen ---------------------------------------------------------------------------------------------------

_ENGINE = """
def letter(r):
    return {letter}

def stored(key):
    return any(slot[s] == SLOT_READY and skey[s] == key for s in range(SLOTS))

def job_is_next(j):
    return job[j] == NONE and all(k >= j or job[k] != NONE for k in range(JOBS))

def may_grow(r):
    return table[r] == NONE and grows(r)

def add(r):
    "The engine knows a request."
    assert request[r] == REQUEST_FINISHED
    request[r] = REQUEST_WAITING

def admit(r):
    "It enters the batch."
    assert can_request_admit(r)
    request_admit(r)

def preempt(r):
    "It gives everything back, and waits to be admitted again."
    assert can_request_preempt(r)
    give_up(r)
    request_preempt(r)

def finish(r):
    "It gives everything back for good."
    assert can_request_finish(r)
    give_up(r)
    request_finish(r)

def allocate(r, b):
    "A block is handed out to a request."
    assert may_grow(r) and can_block_allocate(b)
    block_allocate(b)
    refs[b] = 1
    table[r] = b + 1
    {life_ends}
    if block[b] == BLOCK_FLUSHED:
        {hand_out_flushes}

def acquire(r, b):
    "A prefix hit: a request holds a block with its content."
    assert may_grow(r) and can_block_acquire(b) and bkey[b] == letter(r)
    refs[b] = refs[b] + 1
    block_acquire(b)
    table[r] = b + 1

def seal(r, b):
    "A forward pass writes a block, and its content is final."
    assert request[r] == REQUEST_RUNNING and table[r] == b + 1 and can_block_seal(b)
    block_seal(b)
    bkey[b] = letter(r)

def release(r):
    "A request releases its block and goes on."
    assert table[r] > 0 and table[r] <= BLOCKS
    release_all(r)
    table[r] = BLOCKS + 1
"""

_JOBS = """
def store(b, s, j):
    "Final content is chosen for a store into a slot."
    assert (
        job_is_next(j) and can_slot_reserve(s) and block[b] != BLOCK_ALLOCATED and can_block_plan_store(b)
        and not stored(bkey[b])
    )
    key = bkey[b]
    plan_store(b, s, j, key)

def pledge(r, b, s, j):
    "Content that is being computed is chosen for a store into a slot."
    assert (
        job_is_next(j) and can_slot_reserve(s) and table[r] == b + 1 and block[b] == BLOCK_ALLOCATED
        and request[r] == REQUEST_RUNNING and not stored(letter(r))
    )
    key = letter(r)
    plan_store(b, s, j, key)

def plan_store(b, s, j, key):
    {store_planned}
    job[j] = JOB_PLANNED
    kind[j] = STORE
    jblock[j] = b
    fresh[j] = 1
    jslot[j] = s
    jkey[j] = key
    source[b] = j + 1

def load(r, b, s, j):
    "A request waits for content from a slot."
    assert (
        job_is_next(j) and can_request_plan_load(r) and table[r] == b + 1 and can_block_plan_load(b)
        and slot[s] == SLOT_READY and skey[s] == letter(r)
    )
    {load_planned}
    job[j] = JOB_PLANNED
    kind[j] = LOAD
    jblock[j] = b
    fresh[j] = 1
    jslot[j] = s
    jkey[j] = letter(r)
    load[r] = j + 1

def submit_job(j):
    job_submit(j)
    {submitted}

def submit(j):
    "A job is handed to the workers without a plan."
    assert ripe(j) and not any(k != j and alive(k) and jblock[k] == jblock[j] and ordered[k] == 1 for k in range(JOBS))
    submit_job(j)
    for w in range(WORKERS):
        share[j * WORKERS + w] = RUNS

def cancel(j):
    "A planned store is cancelled."
    assert can_job_cancel(j) and kind[j] == STORE
    cancel_store(j)

def abandon(j):
    "The result of a submitted store is not wanted any more."
    assert can_job_abandon(j) and kind[j] == STORE
    job_abandon(j)

def flush(j):
    "The next plan will wait for a job."
    assert can_job_flush(j) and ordered[j] == 0
    job_flush(j)
    ordered[j] = 1

def drop(b):
    "The content of a block that nobody holds is forgotten."
    assert can_block_drop(b)
    block_drop(b)
    {life_ends}

def pin(s):
    "A lookup counts on a slot."
    assert counted[s] == 0 and can_slot_pin(s)
    counted[s] = 1
    spins[s] = spins[s] + 1
    slot_pin(s)

def unpin(s):
    "The lookup no longer counts on it."
    assert counted[s] == 1
    counted[s] = 0
    spins[s] = spins[s] - 1
    slot_unpin(s)

def reset():
    "All content is forgotten."
    assert 0 == 0
    {reset_now}
"""

_DEVICE = """
def dispatch():
    "A plan is made, and every worker executes it."
    assert (
        plans < PLANS and any(ordered[j] == 1 or ripe(j) or any(share[j * WORKERS + w] == HELD_BACK
        for w in range(WORKERS)) for j in range(JOBS))
    )
    "all workers execute the plan: held-back stores, waits, loads; its own stores are held back"
    for j in range(JOBS):
        for w in range(WORKERS):
            if share[j * WORKERS + w] == HELD_BACK:
                share[j * WORKERS + w] = RUNS
            if ordered[j] == 1 and share[j * WORKERS + w] == RUNS:
                share[j * WORKERS + w] = LANDED
    for j in range(JOBS):
        if ripe(j):
            submit_job(j)
            for w in range(WORKERS):
                share[j * WORKERS + w] = HELD_BACK if kind[j] == STORE else RUNS
        if ordered[j] == 1:
            ordered[j] = 0
            armed[j] = 1
            if plans == 0:
                awaited[j] = 1
            else:
                awaited_next[j] = 1
    plans = plans + 1

def settle():
    "The oldest plan is settled."
    assert plans > 0
    "the jobs that the plan waited for are quiet, even if their reports have not come"
    plans = plans - 1
    for j in range(JOBS):
        waited = awaited[j]
        awaited[j] = awaited_next[j]
        awaited_next[j] = 0
        if waited == 1:
            quiesce_job(j)

def quiesce_job(j):
    if kind[j] == STORE:
        quiesce_store(j)
    else:
        quiesce_load(j)

def expire_job(j):
    if kind[j] == STORE:
        expire_store(j)
    else:
        expire_load(j)

def land(j, w):
    "A worker's share of a copy lands."
    assert share[j * WORKERS + w] == RUNS
    share[j * WORKERS + w] = LANDED

def fail(j, w):
    "A worker's share of a copy fails."
    assert share[j * WORKERS + w] == RUNS and failures > 0
    failures = failures - 1
    share[j * WORKERS + w] = FAILED

def report(j, w):
    "The report of it reaches the ledger."
    assert share[j * WORKERS + w] == LANDED or share[j * WORKERS + w] == FAILED
    good = 1 if share[j * WORKERS + w] == LANDED else 0
    share[j * WORKERS + w] = IDLE
    count_report(j, w, good)

def repeat(j, w):
    "A report reaches the ledger, and will come again."
    assert may_report(j, w) and repeats > 0
    "the report is counted now, and comes again later"
    good = 1 if share[j * WORKERS + w] == LANDED else 0
    repeats = repeats - 1
    count_report(j, w, good)

def count_report(j, w, good):
    if alive(j):
        if reported[j * WORKERS + w] == 0:
            reported[j * WORKERS + w] = 1
            if good == 0:
                failed[j] = 1
            more = 1 if any(reported[j * WORKERS + v] == 0 for v in range(WORKERS)) else 0
            ok = 1 if failed[j] == 0 else 0
            if kind[j] == STORE:
                finish_store(j, more, ok)
            else:
                finish_load(j, more, ok)
    else:
        job_finish(j, 0, good)
        forget(j)

def forget(j):
    if not alive(j) and not under_way(j):
        job[j] = NONE

def lose(j, w):
    "A report is lost."
    assert may_report(j, w) and losses > 0
    losses = losses - 1
    share[j * WORKERS + w] = IDLE
    forget(j)

def launched(j):
    "A worker reports the launch of a job: its deadline starts."
    assert submitted(j) and armed[j] == 0 and any(share[j * WORKERS + w] == RUNS for w in range(WORKERS))
    armed[j] = 1

def expire():
    "Every running deadline passes."
    assert any(armed[j] == 1 and can_job_expire(j) for j in range(JOBS))
    for j in range(JOBS):
        if armed[j] == 1 and can_job_expire(j):
            expire_job(j)

def quiesce(j):
    "The engine has proof that no worker touches the places of a job."
    assert submitted(j) and not on_device(j)
    if job[j] == JOB_IN_FLIGHT:
        expire_job(j)
    quiesce_job(j)
"""

_ALWAYS = """
def counts_match_holders():
    "I4: refs count the tables that hold a life"
    return all(refs[b] == count(table[q] == b + 1 for q in range(REQUESTS)) for b in range(BLOCKS))

def pins_match_jobs():
    "I1: pins count the jobs that may touch a block"
    return all(pins[b] == count(alive(k) and jblock[k] == b for k in range(JOBS)) for b in range(BLOCKS))

def writes_match_loads():
    "I1: writes count the loads among them"
    return (
        all(writes[b] == count(alive(k) and kind[k] == LOAD and jblock[k] == b for k in range(JOBS))
        for b in range(BLOCKS))
    )

def overdue_match_jobs():
    "I1: the overdue pins are those of jobs past their deadline"
    return all(overdue[b] == count(job[k] == JOB_QUARANTINED and jblock[k] == b for k in range(JOBS)) for b in range(BLOCKS))

def slot_pins_match_readers():
    "I7: a slot is pinned by the loads that read it, and by lookups that count on it"
    return (
        all(spins[s] == counted[s] + count(alive(k) and kind[k] == LOAD and jslot[k] == s for k in range(JOBS))
        for s in range(SLOTS))
    )

def quiet_places_are_quiet():
    "I1: no copy touches a free or newly allocated block"
    return all(pins[b] == 0 or touched(b) for b in range(BLOCKS))

def overdue_is_quarantined():
    "I1: a block without holders is QUARANTINED exactly if an overdue copy may touch it"
    return (
        all(refs[b] > 0 or not given_up(b) or (block[b] == BLOCK_QUARANTINED) == (overdue[b] > 0) for b in range(BLOCKS))
    )

def device_runs_what_is_out():
    "I1: no worker runs a copy that is over"
    return all(submitted(j) or not on_device(j) for j in range(JOBS))

def requests_wait_for_loads():
    "I10: a request waits exactly for its one live load"
    return all((request[q] == REQUEST_LOADING) == (load[q] > 0) for q in range(REQUESTS))

def nothing_is_refused():
    "if a verb is possible, so is everything that is coupled to it"
    return refused == 0
"""


def _plain(name: str, machine: str) -> str:
    """The action of one of the verbs that are an event and nothing else."""
    place, doc, life_ends = machine[0], MACHINES[machine].events[name].doc, "    {life_ends}\n" * (machine == "block")
    event = f"{machine}_{name}({place})"
    return f'def {name}({place}):\n    "{doc}"\n    assert can_{event}\n    {event}\n{life_ends}'


HANDWRITTEN = (
    *(_SETS, _LIVES, _COUPLED, _STORES, _REQUESTS, _RESET, _ENGINE, _JOBS, _DEVICE, _ALWAYS),
    *(_plain(name, machine) for name, machine in PLAIN.items()),
)
"""The whole text; the calls in it have no cycle."""

_SIZES = {"r": "requests", "b": "blocks", "s": "slots", "j": "jobs", "w": "workers"}

NEEDS = {
    **{verb: verb for verb in VERBS},
    "load": "loads",
    "fail": "failures",
    "lose": "losses",
    "repeat": "repeats",
    "unpin": "pin",
    "launched": "expire",
}
"""The setting that enables an action, where one must."""


def action_of(name: str, params: tuple[str, ...], doc: str, settings: LedgerSettings) -> ModelAction | None:
    """An action with all its instances in one world; None where the world does not have it."""
    needs = NEEDS.get(name)
    if needs and needs not in settings.verbs and not getattr(settings, needs, False):
        return None
    ranges = [range(getattr(settings, _SIZES[each])) for each in params]
    return ModelAction(name, params, tuple(itertools.product(*ranges)), doc)


def variables(settings: LedgerSettings) -> tuple[Variable, ...]:
    """All variables of the state, in the order of the abstraction."""
    blocks, slots, jobs, requests = settings.blocks, settings.slots, settings.jobs, settings.requests
    shares = jobs * settings.workers
    return (
        Variable("block", blocks, "the state of each block", MACHINES["block"].index[MACHINES["block"].initial]),
        Variable("refs", blocks, "requests that hold its life"),
        Variable("pins", blocks, "jobs that may touch it"),
        Variable("writes", blocks, "loads among them"),
        Variable("overdue", blocks, "how many of its pins are overdue"),
        Variable("bkey", blocks, "its content, as a letter from 1; 0 while it is not final"),
        Variable("source", blocks, "the store that has its life as source, from 1"),
        Variable("slot", slots, "the state of each slot", MACHINES["slot"].index[MACHINES["slot"].initial]),
        Variable("spins", slots, "loads that read it, and lookups that count on it"),
        Variable("skey", slots, "the content that it has, or will have"),
        Variable("counted", slots, "whether a lookup counts on it"),
        Variable("job", jobs, "the state of each job, from 1; 0 for no job"),
        Variable("kind", jobs, "store or load"),
        Variable("jblock", jobs, "its block"),
        Variable("fresh", jobs, "whether the life of its block is not over"),
        Variable("jslot", jobs, "its slot"),
        Variable("jkey", jobs, "the content that it moves"),
        Variable("failed", jobs, "whether a worker has reported a failure"),
        Variable("expired", jobs, "whether it is past its deadline"),
        Variable("armed", jobs, "whether its deadline runs"),
        Variable("ordered", jobs, "whether the next plan will wait for it"),
        Variable("awaited", jobs, "whether the oldest outstanding plan waits for it"),
        Variable("awaited_next", jobs, "whether the plan after that does"),
        Variable("reported", shares, "whether a worker's report was counted"),
        Variable("request", requests, "the state of each request", MACHINES["request"].index[Request.FINISHED]),
        Variable("table", requests, "the block that it holds, from 1; BLOCKS + 1 after it released one"),
        Variable("load", requests, "the load that it waits for, from 1"),
        Variable("plans", 0, "outstanding plans"),
        Variable("share", shares, "the stage of a job on a worker"),
        Variable("failures", 0, "copies that may still fail", settings.failures),
        Variable("losses", 0, "reports that may still be lost", settings.losses),
        Variable("repeats", 0, "reports that may still come twice", settings.repeats),
        Variable("refused", 0, "whether a coupling was refused; never"),
    )
