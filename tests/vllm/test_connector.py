"""blocklife as vLLM's offloading layer, under vLLM's real scheduler, every byte checked whenever it is read.

Goal: whatever vLLM decides, no request reads a wrong byte, no rule of the ledger is broken, and nothing is left when the engine
is idle. Method: the rig (`connector_rig`): real scheduler, real connector on both sides, copies that lag and fail by a seed,
the ledger in strict mode and all its invariants after every step. First scenes with a point, then random walks over worlds that
differ in one thing each.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from random import Random
from unittest import mock

import pytest
from attrs import evolve
from vllm.config import VllmConfig
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from blocklife.engines.vllm.connector import _connector as connector
from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import MisuseError
from blocklife.ledger import Direction, Transfer
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger._limits import MAX_REQUESTS
from blocklife.states import JobLife, Slot
from tests.vllm.connector_rig import EVERY_TOKEN, ConnectorRig, sessions, walk, with_guesses
from tests.vllm.connector_worlds import AHEAD, CROWDED, DRAFTERS, FULL, MODELS, ROOMY, STATE, WINDOW, ask, prompt
from tests.vllm.drive import judge
from tests.vllm.engine import MINOR
from tests.vllm.lag_copier import LagCopier
from tests.vllm.listeners import send_events
from tests.vllm.worlds import WORLDS, GroupSpec, Lag

# --- scenes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("model", MODELS)
@AHEAD
def test_connector_brings_back_what_the_device_forgot(model: str, ahead: bool) -> None:
    """A prompt whose blocks the device has forgotten is loaded from host memory, and every byte of it is right."""
    rig = ConnectorRig(evolve(ROOMY, groups=MODELS[model], async_scheduling=ahead, world_size=2, lag=Lag(0, 3)))
    ask(rig, prompt(41))
    stored = rig.stored
    rig.reset_prefix_cache()
    ask(rig, prompt(41))

    assert stored >= 5
    assert rig.loaded >= len(MODELS[model])
    assert rig.verified > 0


def test_connector_loads_nothing_that_the_device_has() -> None:
    """A prefix hit of vLLM's own is taken as it is: nothing is loaded, and nothing is stored a second time."""
    rig = ConnectorRig(ROOMY)
    ask(rig, prompt(40))
    stored = rig.stored
    ask(rig, prompt(40), answer=1)

    assert rig.loaded == 0
    assert rig.stored == stored


def test_connector_stores_for_all_requests_of_a_step_at_once() -> None:
    """What a step fills goes into one copy that serves every request of it; each of them counts it as its own."""
    rig = ConnectorRig(evolve(ROOMY, lag=Lag(3, 3), max_num_batched_tokens=64))
    for start in (100, 200, 300):
        rig.add(prompt(16, start), 2)
    rig.step()
    ledger = rig.side.ledger
    (job,) = ledger.jobs.alive()

    assert len(job.lives) == 12
    assert {name for name in ledger.requests if ledger.jobs.serve(name)} == {job.owner, *job.sharers} == set(ledger.requests)
    rig.drain()
    rig.check_empty()
    assert rig.stored == 12
    assert rig.side.offload.statistics().refused_stores == 0


def test_connector_counts_no_refusal_where_all_is_stored_already() -> None:
    """A request computes what the host has: nothing of it is stored, and the host has not lacked room."""
    rig = ConnectorRig(ROOMY)
    ask(rig, prompt(16))
    rig.reset_prefix_cache()
    rig.wants_no_prefix(rig.add(prompt(16), 2))
    rig.drain()
    counts = rig.side.offload.statistics()

    assert (rig.stored, counts.already_stored, counts.refused_stores) == (4, 4, 0)


def test_connector_splits_a_store_that_is_too_long() -> None:
    """No store moves more blocks than the user has allowed, and none is lost by it."""
    rig = ConnectorRig(evolve(ROOMY, lag=Lag(3, 3), max_num_batched_tokens=64, extra_config={"max_job_blocks": 5}))
    for start in (100, 200, 300):
        rig.add(prompt(16, start), 2)
    rig.step()
    sizes = [len(job.lives) for job in rig.side.ledger.jobs.alive()]
    rig.drain()
    rig.check_empty()

    assert sizes == [5, 5, 2]
    assert rig.stored == 12


def test_connector_loads_behind_what_the_device_has() -> None:
    """Where the device has a part of a prefix, only the rest of it is loaded."""
    rig = ConnectorRig(evolve(ROOMY, num_gpu_blocks=16, max_num_batched_tokens=16))
    ask(rig, prompt(40))
    ask(rig, prompt(24, start=5000), answer=8)  # hands out the later half of the first prompt's blocks
    ask(rig, prompt(40))

    assert 0 < rig.loaded < 9


@pytest.mark.parametrize("model", MODELS)
def test_connector_survives_preemption(model: str) -> None:
    """Requests that do not fit at once are preempted and come back, with what they had in host memory."""
    rig = ConnectorRig(evolve(ROOMY, groups=MODELS[model], num_gpu_blocks=24, lag=Lag(0, 4)))
    for number in range(6):
        rig.add(prompt(18, start=1000 * number), 24)
    steps = 0
    while rig.step():
        rig.check()
        steps += 1

    assert steps < 2000
    assert rig.side.ledger.counts.flushes["preempted"] or rig.loaded or model == "window"
    rig.check_empty()


def test_connector_waits_for_a_copy_that_reads_what_is_handed_out() -> None:
    """A block that a slow store still reads is handed out behind a wait, and the store is right all the same."""
    rig = ConnectorRig(evolve(ROOMY, num_gpu_blocks=12, lag=Lag(50, 50)))
    rig.add(prompt(32), 1)
    while rig.running:
        rig.step()
    rig.add(prompt(36, start=5000), 1)
    rig.drain()

    assert rig.side.ledger.counts.flushes["handed out"] > 0
    rig.check_empty()
    rig.reset_prefix_cache()
    ask(rig, prompt(32), answer=1)
    assert rig.loaded > 0


def test_connector_stores_what_leaves_a_window_with_the_step_behind_the_one_that_filled_it() -> None:
    """A block that was handed out behind a wait is final when its plan settles; vLLM hands it out again in the next step."""
    rig = ConnectorRig(evolve(ROOMY, groups=(WINDOW,), num_gpu_blocks=9, max_num_batched_tokens=16, lag=Lag(6, 6)))
    rig.add(prompt(16), 1)
    while rig.running:
        rig.step()
    rig.add(prompt(48, start=5000), 4)
    rig.drain()

    assert rig.stored == (16 + 48) // 4
    rig.check_empty()


def test_connector_stores_the_last_block_of_a_request_that_is_over() -> None:
    """What a request computed in its last step is stored, although its blocks are handed out in the very next step."""
    rig = ConnectorRig(evolve(ROOMY, num_gpu_blocks=6, lag=Lag(3, 3)))
    rig.add(prompt(11), 6)  # its fourth block fills with its last step
    while rig.running:
        rig.step()
    rig.add(prompt(16, start=5000), 1)
    rig.drain()

    assert rig.side.ledger.slots.count()[Slot.READY] >= 4 + 4
    rig.check_empty()


@pytest.mark.parametrize("late", [False, True], ids=["between steps", "while a step is out"])
def test_connector_gives_an_aborted_load_up(late: bool) -> None:
    """A request that is aborted while it loads leaves nothing: its blocks are free when the copy has landed."""
    rig = ConnectorRig(evolve(ROOMY, lag=Lag(5, 5)))
    ask(rig, prompt(40))
    rig.reset_prefix_cache()
    name = rig.add(prompt(40), 4)
    rig.step()
    loading = rig.side.ledger.jobs.live
    rig.abort(name, late=late)
    rig.drain()

    assert loading == 1
    assert rig.side.ledger.counts.ended["CANCELLED"] == 1
    rig.check_empty()


def test_connector_forgets_the_host_and_lets_requests_go_on() -> None:
    """A reset of the connector empties host memory at once; running requests go on, and are stored anew."""
    rig = ConnectorRig(evolve(ROOMY, lag=Lag(4, 4)))
    ask(rig, prompt(16))
    rig.add(prompt(24, start=5000), 8)
    for _ in range(3):
        rig.step()
    rig.reset_prefix_cache(reset_connector=True)
    ready = rig.side.ledger.slots.count()[Slot.READY]
    rig.drain()
    rig.reset_prefix_cache()
    ask(rig, prompt(16))
    without = rig.loaded
    ask(rig, prompt(24, start=5000))

    assert ready == 0
    assert without == 0
    assert rig.loaded > 0


def test_connector_offers_all_of_a_running_request_anew_when_the_host_was_forgotten() -> None:
    """Also where the next step fills a block: its turn comes behind that of the blocks before it, which are gone there."""
    rig = ConnectorRig(ROOMY)
    rig.add(prompt(16), 8)
    while rig.side.ledger.slots.count()[Slot.READY] < 4:
        rig.step()
    (request,) = rig.scheduler.requests.values()
    while request.num_tokens < 20:
        rig.step()
    rig.side.reset()
    fills = request.num_tokens, rig.side.ledger.slots.count()[Slot.READY]
    rig.drain()

    assert fills == (20, 0)
    assert rig.side.ledger.slots.count()[Slot.READY] == 5


@pytest.mark.skipif(MINOR < 32, reason="before 0.32 nothing of a session is stored")
@AHEAD
@pytest.mark.parametrize("answer", range(1, 9))
def test_connector_stores_of_a_session_what_it_does_not_take_back(answer: int, ahead: bool) -> None:
    """When a session goes on, the last token of the answer is gone: a block that it filled is stored with another one there.

    With steps ahead vLLM computes a token before it is known; a block that it fills is stored when the session goes on or ends.
    """
    rig = ConnectorRig(evolve(ROOMY, async_scheduling=ahead))
    rig.part("s", prompt(13), answer)
    rig.drain()
    before, first = rig.stored, list(rig.scheduler.requests["s"].all_token_ids)
    rig.part("s", prompt(6, 900), answer)
    rig.drain()
    second = list(rig.scheduler.requests["s"].all_token_ids)
    rig.engine.abort(["s"])
    rig.drain()
    rig.check_empty()
    rig.reset_prefix_cache()
    stored = rig.stored
    ask(rig, second)

    assert second[: 12 + answer + 6] == first[:-1] + prompt(6, 900)
    assert before == (12 + answer - ahead) // 4
    assert stored == rig.loaded == (12 + answer + 6 + answer - 1) // 4


@pytest.mark.skipif(MINOR < 32, reason="before 0.32 nothing of a session is stored")
def test_connector_offers_a_session_anew_when_the_host_was_forgotten() -> None:
    """As those of other requests: the chunks that it has filled, and no slot waits for the one that it has not."""
    rig = ConnectorRig(evolve(ROOMY, extra_config={"blocks_per_chunk": 2}))
    rig.part("s", prompt(16), 8)
    for _ in range(3):
        rig.step()
    rig.side.reset()
    rig.drain()
    ready = rig.side.ledger.slots.count()[Slot.READY]
    rig.engine.abort(["s"])
    rig.drain()

    rig.check_empty()
    assert (ready, rig.side.ledger.slots.count()[Slot.READY]) == (2, 2)


@pytest.mark.skipif(MINOR < 32, reason="before 0.32 nothing of a session is stored")
def test_connector_refuses_a_session_that_goes_back_behind_what_is_final() -> None:
    """No other vLLM takes back more than a token, so that nothing of it can have been served: if one did, it would show."""
    rig = ConnectorRig(ROOMY)
    rig.part("s", prompt(16), 5)
    rig.drain()
    pool = rig.side.pool
    message = "request s: it cannot go back to token 19: content up to 20 is final"

    with pytest.raises(MisuseError, match=message):
        pool.go_on("s", 20, 16, 19)
    pool.go_on("s", 21, 16, 20)


@pytest.mark.parametrize("aborted", [False, True], ids=["goes on", "aborted"])
@AHEAD
def test_connector_stores_nothing_that_was_computed_before_a_reset_of_everything(ahead: bool, aborted: bool) -> None:
    """New weights: vLLM preempts who runs, then resets the connector; what they had computed is not stored behind that."""
    rig = ConnectorRig(evolve(ROOMY, async_scheduling=ahead))
    name = rig.add(prompt(40), 9)
    for _ in range(4):
        rig.step()
    rig.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    rig.drain()
    done, before = rig.reset_prefix_cache(reset_running=True, reset_connector=True), rig.stored
    rig.renew_weights()
    if aborted:
        rig.abort(name)
    rig.scheduler.set_pause_state(PauseState.UNPAUSED)
    rig.drain()
    stored = rig.stored - before
    rig.reset_prefix_cache()
    ask(rig, prompt(40))

    assert done
    assert before > 0
    assert (stored == 0) == aborted
    assert (rig.loaded == 0) == aborted


@pytest.mark.parametrize("steps", range(4, 9))
def test_connector_stores_nothing_of_who_ended_before_a_reset(steps: int) -> None:
    """A request that is over while a step of it is out leaves nothing to the host tier that was reset meanwhile."""
    rig = ConnectorRig(evolve(ROOMY, async_scheduling=True))
    name = rig.add(prompt(40), 20)
    for _ in range(steps):
        rig.step()
    rig.abort(name)
    ending = name in rig.side.offload.requests
    rig.side.reset()
    rig.drain()

    assert ending
    assert rig.side.ledger.slots.count()[Slot.READY] == 0
    rig.check_empty()


@pytest.mark.parametrize("steps", range(2, 12))
def test_connector_survives_a_reset_of_a_paused_engine_with_steps_out(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM drops the outputs of who was preempted by it, and tells the connector of that only with the next step."""
    monkeypatch.setattr(VllmConfig, "max_concurrent_batches", 3)
    rig = ConnectorRig(evolve(ROOMY, async_scheduling=True, extra_config={"prompt_only": True}), depth=3)
    rig.add(prompt(10), 30)
    for _ in range(steps):
        rig.step()
    rig.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    rig.reset_prefix_cache(reset_running=True)
    while rig._queue:
        rig.step()
    rig.scheduler.set_pause_state(PauseState.UNPAUSED)
    rig.drain()

    rig.check_empty()


def test_connector_keeps_the_engine_stepping_until_every_copy_has_landed() -> None:
    """The last store outlives the last request: the engine has work until it has reported, and none after."""
    rig = ConnectorRig(evolve(ROOMY, lag=Lag(7, 7)))
    rig.add(prompt(16), 1)
    while rig.running:
        rig.step()
    pending = rig.scheduler.connector.has_pending_push_work()
    steps = rig.drain()

    assert pending
    assert steps >= 7
    assert not rig.scheduler.connector.has_pending_push_work()
    rig.check_empty()


def test_connector_can_flush_the_last_copies_instead() -> None:
    """With last_step=flush the step behind the last request waits for the copies, however slow they are."""
    rig = ConnectorRig(evolve(ROOMY, lag=Lag(500, 500), extra_config={"last_step": "flush"}))
    rig.add(prompt(16), 1)
    steps = rig.drain()

    assert steps < 20
    assert rig.side.ledger.counts.flushes["last step"] > 0
    assert rig.side.ledger.slots.count()[Slot.READY] == 4


@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,), (FULL, WINDOW)], ids=["blocks", "window", "requests"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_connector_reports_failed_loads_so_that_vllm_computes_again(groups: tuple[GroupSpec, ...], ranks: int) -> None:
    """A load that fails on any worker is computed again: by its blocks in one full group, by its request elsewhere."""
    world = evolve(ROOMY, groups=groups, world_size=ranks, lag=Lag(0, 2))
    rig = ConnectorRig(world, fails={Direction.LOAD: 0.9})
    ask(rig, prompt(40))
    rig.reset_prefix_cache()
    ask(rig, prompt(40))

    assert rig.side.ledger.counts.ended["FAILED"] > 0
    assert len(rig.finished) == 2


def test_connector_ends_requests_whose_load_failed_where_vllm_wants_that() -> None:
    """With vLLM's policy *fail* the request ends with an error, and nothing of it stays."""
    rig = ConnectorRig(ROOMY, fails={Direction.LOAD: 1.0}, recompute=False)
    ask(rig, prompt(40))
    rig.reset_prefix_cache()
    ask(rig, prompt(40))

    assert rig.finished["r1"] == []


def test_connector_computes_what_fails_to_load_again_and_again() -> None:
    """A request whose loads fail again and again ends all the same."""
    rig = ConnectorRig(evolve(ROOMY, groups=(FULL, WINDOW)), fails={Direction.LOAD: 1.0})
    for _ in range(4):
        ask(rig, prompt(40))
        rig.reset_prefix_cache()

    assert rig.loaded == 0
    assert len(rig.finished) == 4


def test_connector_publishes_nothing_of_a_store_that_failed() -> None:
    """What a failed store left in host memory is never found."""
    rig = ConnectorRig(ROOMY, fails={Direction.STORE: 1.0})
    ask(rig, prompt(40))
    rig.reset_prefix_cache()
    ask(rig, prompt(40))

    assert rig.stored == rig.loaded == 0


def test_connector_shares_what_the_same_step_computes() -> None:
    """Two requests with one prompt that come together: vLLM hits what it has just scheduled, and one store is made of it."""
    rig = ConnectorRig(evolve(ROOMY, max_num_batched_tokens=128))
    rig.add(prompt(32), 1)
    rig.add(prompt(33), 1)
    rig.drain()

    assert rig.stored == 8
    rig.check_empty()


def test_connector_shares_what_a_step_fills_in_blocks_that_were_there_before() -> None:
    """A block that a running request has had for long is full with this step, and vLLM hits it in the same step."""
    rig = ConnectorRig(ROOMY)
    first = rig.add(prompt(14), 20)
    while rig.scheduler.requests[first].num_tokens < 20:
        rig.step()
    other = rig.add([rig.texts[first].token(position) for position in range(20)] + [5000], 2)
    rig.step()
    shared = rig.side.ledger.requests.table(other)[:5] == rig.side.ledger.requests.table(first)[:5]
    rig.drain()
    rig.check_empty()

    assert shared


def test_connector_asks_again_how_many_tokens_there_are_where_one_was_not_said() -> None:
    """A block that is full by what was expected and has no name yet tells that the engine has fewer tokens."""
    rig = ConnectorRig(evolve(ROOMY, async_scheduling=True))
    name = rig.add(prompt(14), 20)
    while rig.scheduler.requests[name].num_tokens < 17:
        rig.step()
    offload, request = rig.side.offload, rig.scheduler.requests[name]
    row = offload._state.requests[name].row
    offload._state.progress.speak_up(row)
    offload._state.progress.known[row] += 8
    while request.num_tokens < 22:
        rig.step()
    ahead = offload.requests.progress(name).known - request.num_tokens
    rig.drain()

    assert ahead <= 0
    assert rig.side.ledger.slots.count()[Slot.READY] == 33 // 4


def test_hit_that_is_something_else_to_the_ledger_is_left_out_of_a_table() -> None:
    """What was handed out unsaid is said once and forgotten; what nobody has seen computed is a hole; the rest is shared."""
    rig = ConnectorRig(evolve(ROOMY, extra_config={"checking": "count"}))
    ask(rig, prompt(16), 1)
    pool, ledger = rig.side.pool, rig.side.ledger
    blocks = [block for block in range(len(ledger.blocks)) if ledger.blocks.key(block) is not None]
    keys = [ledger.blocks.key(block) or b"" for block in blocks]
    rig.add(prompt(6), 9)
    rig.step()
    table = ledger.requests.table(next(iter(ledger.requests)))
    held, open_ = (life & ID_MASK for life in table)
    free = next(block for block in blocks if block != held)
    found = [
        pool._known(0, blocks, keys),
        pool._known(0, [free], [b"another"]),
        pool._known(0, [open_, NULL, held], [b"another", b"null", ledger.blocks.key(held) or b""]),
        pool._known(0, [held], [b"another"]),
    ]

    assert found == [blocks, [NULL], [NULL, NULL, held], [NULL]]
    assert (pool.holes, ledger.statistics().violations) == (3, 2)
    assert ledger.blocks.key(free) is None
    assert ledger.blocks.key(held) in keys


def test_connector_lets_many_requests_wait() -> None:
    """More requests than the ledger knows at once may wait: those that hold nothing are forgotten and looked up again."""
    rig = ConnectorRig(evolve(ROOMY, max_num_seqs=2), spare_requests=2)
    for number in range(20):
        rig.add(prompt(9, start=100 * number), 3)
    rig.drain()

    assert len(rig.finished) == 20
    rig.check_empty()


def test_connector_forgets_who_waits_for_a_copy_to_look_somebody_else_up() -> None:
    """Requests that wait for a slow store hold nothing, and keep nobody waiting who needs none of it."""
    rig = ConnectorRig(evolve(ROOMY, max_num_seqs=2, lag=Lag(40, 40)), spare_requests=2)
    rig.add(prompt(16), 1)
    while rig.running:
        rig.step()
    rig.reset_prefix_cache()
    for number in range(6):
        rig.add([*prompt(16), 5000 + number], 1)
    other = rig.add(prompt(16, start=9000), 1)
    for _ in range(8):
        rig.step()
    served = sorted(rig.finished)
    rig.drain()

    assert served == ["r0", other]
    assert len(rig.finished) == 8
    rig.check_empty()


def test_connector_promises_no_more_loads_than_there_can_be_jobs() -> None:
    """Of two requests whose prompts are in the host tier, in one step, one is put off where there is one job."""
    rig = ConnectorRig(
        evolve(ROOMY, max_num_batched_tokens=64, lag=Lag(2, 2), extra_config={"max_job_blocks": 8, "max_jobs": 1})
    )
    for _ in range(2):
        for start in (100, 5000):
            rig.add(prompt(17, start), 1)
        rig.drain()
        rig.reset_prefix_cache()

    assert rig.loaded == 8
    rig.check_empty()


def silence(monkeypatch: pytest.MonkeyPatch, *directions: Direction) -> None:
    """From now on nothing is heard of copies in these directions, unless a step waits for them."""
    launch = LagCopier.launch

    def launch_silently(self: LagCopier, transfer: Transfer) -> None:
        with monkeypatch.context() as patch:
            if transfer.direction in directions:
                patch.setattr(self, "_lag", Lag(1 << 30, 1 << 30))
            launch(self, transfer)

    monkeypatch.setattr(LagCopier, "launch", launch_silently)


def count_seconds(rig: ConnectorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector's clock goes on by a second with each step."""
    now, step = [1000.0], rig.step

    def later() -> bool:
        now[0] += 1.0
        return step()

    monkeypatch.setattr(rig.side, "_clock", lambda: now[0])
    monkeypatch.setattr(rig, "step", later)


def steps_until(rig: ConnectorRig, finished: int, most: int = 100) -> int:
    """How many steps it takes until so many requests have finished; everything is checked after each."""
    for steps in range(most):
        if len(rig.finished) >= finished:
            return steps
        rig.step()
        rig.check()
    return most


def land(rig: ConnectorRig) -> None:
    """Everything lands after all, and is heard of."""
    for copier in rig.copiers:
        copier.close()
    rig.drain()


@AHEAD
@pytest.mark.parametrize("model", ["full", "full and state", "full and local attention"])
def test_nobody_waits_for_ever_for_a_store_of_which_nothing_is_heard(
    model: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has not brought is computed after the wait; when it has landed all the same, others load it."""
    if model == "full and state" and not release().keeps_tails:
        pytest.skip(
            "0.30 keeps no state at the end of such a prompt, so that there is no hit to wait for (0.31, 0.32: not tried)"
        )
    spec = evolve(ROOMY, groups=MODELS[model], num_gpu_blocks=400, host_blocks=400, async_scheduling=ahead)
    rig = ConnectorRig(evolve(spec, extra_config={"pending_wait_s": 10}))
    silence(monkeypatch, Direction.STORE)
    count_seconds(rig, monkeypatch)
    rig.add(prompt(40), 2)
    steps_until(rig, 1)
    rig.reset_prefix_cache()
    for number in range(3):
        rig.add([*prompt(40), 5000 + number], 2)
    steps = steps_until(rig, 4)

    assert 10 <= steps < 30
    assert (rig.stored, rig.loaded) == (0, 0)
    assert rig.side.offload.statistics().overdue_requests >= 1
    land(rig)
    rig.reset_prefix_cache()
    rig.add([*prompt(40), 9], 2)
    assert steps_until(rig, 5) < 10
    assert rig.loaded > 0
    land(rig)
    rig.check_empty()


def test_wait_goes_on_for_who_was_forgotten_to_look_others_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests wait for a silent store than the ledger has room for: each is forgotten in every step, and added again."""
    spec = evolve(ROOMY, num_gpu_blocks=200, host_blocks=200, max_num_seqs=2, extra_config={"pending_wait_s": 10})
    rig = ConnectorRig(spec, spare_requests=4)
    silence(monkeypatch, Direction.STORE)
    count_seconds(rig, monkeypatch)
    rig.add(prompt(40), 1)
    steps_until(rig, 1)
    rig.reset_prefix_cache()
    for number in range(20):
        rig.add([*prompt(40), 5000 + number], 1)
    steps = steps_until(rig, 21)

    assert 10 <= steps < 60
    land(rig)
    rig.check_empty()


def test_nobody_waits_for_ever_for_the_load_of_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM cannot give that load up; requests that want the same content compute it."""
    rig = ConnectorRig(evolve(ROOMY, num_gpu_blocks=200, extra_config={"pending_wait_s": 10}))
    ask(rig, prompt(40))
    rig.reset_prefix_cache()
    silence(monkeypatch, Direction.LOAD)
    count_seconds(rig, monkeypatch)
    names = [rig.add([*prompt(40), 5000 + number], 2) for number in range(3)]
    steps = steps_until(rig, 3)

    assert 10 <= steps < 20
    assert list(rig.running) == names[:1]
    land(rig)
    assert len(rig.finished) == 4
    assert rig.loaded == 10
    rig.check_empty()


def test_nobody_waits_for_ever_where_silent_stores_have_taken_every_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load would need one: who has a hit in the host tier computes it instead."""
    extra = {"pending_wait_s": 10, "max_jobs": 2, "max_job_blocks": 64}
    rig = ConnectorRig(evolve(ROOMY, num_gpu_blocks=200, host_blocks=200, extra_config=extra))
    ask(rig, prompt(17), 1)
    silence(monkeypatch, Direction.STORE)
    for start in (3000, 5000):
        rig.add(prompt(17, start), 1)
        steps_until(rig, len(rig.finished) + 1)
    rig.reset_prefix_cache()
    count_seconds(rig, monkeypatch)
    rig.add(prompt(17), 1)
    steps = steps_until(rig, 4)

    assert rig.side.ledger.jobs.room == 0
    assert 10 <= steps < 20
    assert rig.loaded == 0
    assert rig.side.offload.statistics().overdue_requests == 1
    land(rig)
    rig.check_empty()


def test_connector_stores_all_that_who_wants_no_prefix_computes_again() -> None:
    """What it had said before it was preempted is known when it comes again, also if it was forgotten meanwhile."""
    rig = ConnectorRig(ROOMY)
    name = rig.add(prompt(16), 20)
    rig.wants_no_prefix(name)
    while rig.scheduler.requests[name].num_tokens < 30:
        rig.step()
    done = rig.reset_prefix_cache(reset_running=True, reset_connector=True)
    rig.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    rig._update(*rig._launch())  # a step without anybody
    forgotten = rig.side.pool.release_waiting(())
    for each in forgotten:
        rig.side.requests.by_name.pop(each).name = ""
    rig.scheduler.set_pause_state(PauseState.UNPAUSED)
    rig.drain()

    assert done
    assert forgotten == [name]
    assert rig.side.ledger.slots.count()[Slot.READY] == 35 // 4
    rig.check_empty()


def test_connector_forgets_who_waited_and_was_given_up() -> None:
    """Of requests that were looked up, forgotten to make room, and aborted nothing is left; nor of those that come again."""
    rig = ConnectorRig(evolve(ROOMY, max_num_seqs=2, lag=Lag(3, 3)), spare_requests=4)
    ask(rig, prompt(40), 1)
    rig.reset_prefix_cache()
    names = [rig.add([*prompt(40), 5000 + number], 1) for number in range(20)]
    rig.step()
    for name in names[1::2]:
        rig.abort(name)
    rig.drain()

    assert len(rig.finished) == 11
    rig.check_empty()


def test_connector_lets_in_who_does_not_ask_however_many_load() -> None:
    """A request that wants no prefix is let in whatever its lookup says: there is room for it, however much the others take."""
    spec = evolve(ROOMY, num_gpu_blocks=80, max_num_seqs=2, max_num_batched_tokens=256, lag=Lag(4, 4))
    rig = ConnectorRig(spec, spare_requests=4)
    prompts = [prompt(5, start=1000 * number) for number in range(20)]
    for tokens in prompts:
        rig.add(tokens, 1)
    rig.drain()
    rig.reset_prefix_cache()
    for tokens in prompts:
        rig.add(tokens, 1)
    for number in range(3):
        rig.wants_no_prefix(rig.add(prompt(10, start=50000 + 100 * number), 1))
    rig.drain()

    assert len(rig.finished) == 43
    assert rig.loaded > 0
    rig.check_empty()


@pytest.mark.parametrize("model", ["full", "window", "full and window"])
def test_a_request_whose_load_has_failed_is_computed_however_little_room_there_is(model: str) -> None:
    """A second load would wait for room that vLLM keeps for the first one."""
    spec = evolve(ROOMY, groups=MODELS[model], num_gpu_blocks=14 * len(MODELS[model]), max_num_batched_tokens=32)
    rig = ConnectorRig(spec, fails={Direction.LOAD: 1.0})
    tokens = prompt(43)
    ask(rig, tokens, 1)
    rig.reset_prefix_cache()
    ask(rig, tokens, 1)

    assert rig.side.ledger.counts.ended["FAILED"] == 1
    rig.check_empty()


def lose_first_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first load that is launched from now on fails, and no other."""
    launch, lost = LagCopier.launch, list[Transfer]()

    def launch_and_lose(self: LagCopier, transfer: Transfer) -> None:
        if transfer.direction is not Direction.LOAD or lost:
            return launch(self, transfer)
        lost.append(transfer)
        with monkeypatch.context() as patch:
            patch.setitem(self.fails, Direction.LOAD, 1.0)
            return launch(self, transfer)

    monkeypatch.setattr(LagCopier, "launch", launch_and_lose)


@pytest.mark.parametrize("blocks", [17, 20, 40])
def test_nobody_waits_for_ever_behind_a_lost_load(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM keeps requests whose load has failed ahead of those whose loads have landed."""
    groups = (FULL, GroupSpec("swa", window=5))
    rig = ConnectorRig(evolve(ROOMY, groups=groups, num_gpu_blocks=blocks, host_blocks=200, dense_retention=True))
    texts = prompt(26), prompt(26, start=300)
    for text in texts:
        ask(rig, text, 1)
    rig.reset_prefix_cache()
    lose_first_load(monkeypatch)
    for text in texts:
        rig.add(text, 1)
    rig.drain(100)

    assert rig.side.ledger.counts.ended["FAILED"] == 1
    assert len(rig.finished) == 4
    rig.check_empty()


@pytest.mark.parametrize("leaves", [False, True])
def test_others_load_while_who_has_lost_a_load_waits_and_when_it_is_gone(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed itself; or its client leaves."""
    rig = ConnectorRig(evolve(ROOMY, groups=(FULL, WINDOW), lag=Lag(3, 3)))
    other = prompt(41, start=300)
    ask(rig, prompt(41), 1)
    ask(rig, other, 1)
    rig.reset_prefix_cache()
    lose_first_load(monkeypatch)
    name = rig.add(prompt(41), 1)
    while not rig.side.ledger.counts.ended["FAILED"]:
        rig.step()
    if leaves:
        rig.abort(name)
    rig.add(other, 1)
    rig.drain()
    rig.check_empty()

    assert rig.side.ledger.counts.ended["FAILED"] == 1
    assert rig.loaded > 0


def test_others_load_however_long_who_has_lost_a_load_must_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Urgent requests go before it again and again: their prompts are loaded all the same."""
    rig = ConnectorRig(evolve(ROOMY, groups=(FULL, WINDOW), max_num_seqs=1, priority=True))
    texts = prompt(24), prompt(24, start=300)
    for text in texts:
        ask(rig, text, 1)
    rig.reset_prefix_cache()
    lose_first_load(monkeypatch)
    rig.add(texts[0], 1, priority=9)
    rig.add(prompt(5, start=9000), 9)
    while not rig.side.ledger.counts.ended["FAILED"]:
        rig.step()
    for number in range(5):
        rig.add([*texts[1], number], 3)
    while rig.step():
        rig.reset_prefix_cache()
    rig.check_empty()

    assert rig.loaded > 0


def test_nobody_waits_for_ever_for_room_that_is_kept_for_a_lost_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stands before the loser and finds no room for a load is computed: the room is there."""
    rig = ConnectorRig(evolve(ROOMY, num_gpu_blocks=14, max_num_batched_tokens=32, priority=True, lag=Lag(3, 3)))
    long, urgent = prompt(42), prompt(30, start=300)
    ask(rig, long, 1)
    ask(rig, urgent, 1)
    rig.reset_prefix_cache()
    lose_first_load(monkeypatch)
    rig.add(prompt(2, start=9000), 17)
    for _ in range(3):
        rig.step()
    rig.add(long, 1, priority=5)
    while not rig.side.ledger.counts.ended["FAILED"]:
        rig.step()
    rig.step()
    rig.step()
    rig.add(urgent, 1)
    rig.drain(200)
    rig.check_empty()

    assert len(rig.finished) == 5


@pytest.mark.parametrize("model", ["full", "full and window"])
def test_who_has_lost_a_load_is_computed_before_a_pause_is_over(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that waits for those who hold blocks waits for it too, as without a connector.

    Before 0.32 a pause waits for those who run only: there it is computed when the pause is over.
    """
    rig = ConnectorRig(evolve(ROOMY, groups=MODELS[model], lag=Lag(3, 3)))
    ask(rig, prompt(41), 1)
    rig.reset_prefix_cache()
    lose_first_load(monkeypatch)
    name = rig.add(prompt(41), 1)
    rig.step()
    rig.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    rig.drain(100)
    if MINOR < 32:
        assert name not in rig.finished
        rig.scheduler.set_pause_state(PauseState.UNPAUSED)
        rig.drain(100)

    assert rig.side.ledger.counts.ended["FAILED"] == 1
    assert name in rig.finished


@pytest.mark.parametrize("most", [1, 2])
def test_who_has_lost_a_load_may_load_again_when_it_was_preempted(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was computed in between; with `max_load_failures` of 1 it looks no further than the device."""
    extra = {"max_load_failures": most}
    rig = ConnectorRig(evolve(ROOMY, groups=(FULL, WINDOW), lag=Lag(3, 3), extra_config=extra))
    ask(rig, prompt(41), 1)
    rig.reset_prefix_cache()
    lose_first_load(monkeypatch)
    name = rig.add(prompt(41), 20)
    while rig.scheduler.requests[name].status is not RequestStatus.RUNNING:
        rig.step()
    before = rig.loaded
    rig.reset_prefix_cache(reset_running=True)
    rig.drain()
    rig.check_empty()

    assert (rig.side.ledger.counts.ended["FAILED"], before) == (1, 0)
    assert (rig.loaded > 0) == (most > 1)


def test_connector_does_not_hold_outputs_back_for_its_copies() -> None:
    """A store that is lost costs a hit later: vLLM need not drop what a request has said since."""
    assert not ConnectorRig(ROOMY).scheduler.requires_kv_delivery


def test_connector_keeps_no_request_that_is_over() -> None:
    """vLLM's requests may hold images and embeddings."""
    rig = ConnectorRig(evolve(ROOMY, max_num_seqs=2))
    known: list[weakref.ref[Request]] = []
    add = rig.scheduler.add_request

    def add_and_know(request: Request) -> None:
        known.append(weakref.ref(request))
        add(request)

    with mock.patch.object(rig.scheduler, "add_request", add_and_know):
        for number in range(20):
            ask(rig, prompt(9, start=100 * number))
    gc.collect()

    assert len(known) == 20
    assert [each for each in known if each() is not None] == []


def test_connector_forgets_a_lookup_that_came_to_nothing() -> None:
    """Who was looked up, found no room on the device, was forgotten, and is let in later, starts from what is there then."""
    spec = evolve(
        ROOMY, num_gpu_blocks=66, max_num_seqs=2, max_num_batched_tokens=8192, lag=Lag(30, 30), priority=True,
        extra_config={"full_hit": "recompute_last_token"},
    )  # fmt: skip
    rig = ConnectorRig(spec, spare_requests=4)
    prompts = [prompt(4, start=1000 * number) for number in range(6)]
    for tokens in prompts:
        rig.add(tokens, 1, priority=5)
    rig.drain()
    rig.reset_prefix_cache()
    runner = rig.add(prompt(100, start=9000), 20, priority=0)
    rig.step()
    for tokens in prompts[:3]:
        rig.add(tokens, 1, priority=5)
    rig.step()
    free = rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    rig.wants_no_prefix(rig.add(prompt(4 * free + 8, start=20000), 1, priority=7))
    rig.step()
    for tokens in prompts[3:5]:
        rig.add(tokens, 1, priority=1)
    rig.step()
    while runner not in rig.finished:
        rig.step()
    rig.add(prompts[5], 1, priority=1)
    rig.drain()

    assert len(rig.finished) == 14
    rig.check_empty()


def test_connector_starts_for_more_running_requests_than_a_ledger_can_know_with_their_followers() -> None:
    """Rows are kept for those that are preempted or over while a plan is out, as far as there can be so many."""
    rig = ConnectorRig(evolve(ROOMY, max_num_seqs=16000, max_num_batched_tokens=16000))
    ask(rig, prompt(8))

    assert rig.side.ledger.limits.max_requests == MAX_REQUESTS


def test_connector_takes_a_name_that_is_used_again() -> None:
    """A request may come with the name of one that is over and whose last copies are out, and another one after it."""
    rig = ConnectorRig(evolve(ROOMY, lag=Lag(9, 9)))
    for start in (100, 5000, 9000):
        rig.texts.clear()
        rig.finished.clear()
        rig.add(prompt(16, start), 1)
        while rig.running:
            rig.step()
    ledger = rig.side.ledger
    out = len({owner for job in ledger.jobs.alive() for owner in (job.owner, *job.sharers) if owner is not None})
    rig.drain()

    assert out == 3
    assert list(rig.finished) == ["r0"]
    rig.check_empty()


def test_connector_takes_a_request_that_it_was_not_told_of() -> None:
    """A connector around it may keep `on_new_request` to itself: the first hook that names a request is enough."""
    rig = ConnectorRig(ROOMY)
    with mock.patch.object(BlocklifeConnector, "on_new_request", return_value=None):
        ask(rig, prompt(16))
        rig.reset_prefix_cache()
        ask(rig, prompt(17))

    assert (rig.stored, rig.loaded) == (4, 4)


def test_connector_tells_what_changes_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV events: each block that can be read from the host is told as stored, under vLLM's hash; a reset tells them removed."""
    from vllm.distributed.kv_events import BlockRemoved, BlockStored
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    send_events(monkeypatch)
    rig = ConnectorRig(ROOMY)
    told: list[object] = []
    take = rig.scheduler.connector.take_events

    def keep() -> list[object]:
        told.extend(found := list(take()))
        return found

    monkeypatch.setattr(rig.scheduler.connector, "take_events", keep)
    rig.add(prompt(16), 1)
    hashes = [maybe_convert_block_hash(each) for each in rig.scheduler.requests["r0"].block_hashes]
    rig.drain()
    stored = [event for event in told if isinstance(event, BlockStored)]
    rig.reset_prefix_cache(reset_connector=True)
    removed = [event for event in take() if isinstance(event, BlockRemoved)]

    assert [each for event in stored for each in event.block_hashes] == hashes
    assert {event.medium for event in stored} == {"CPU"}
    assert sorted(each for event in removed for each in event.block_hashes) == sorted(hashes)


@pytest.mark.parametrize(
    ("given", "stored", "loaded"),
    [
        (None, 10, 9),
        ({"max_offload_tokens": 13}, 3, 3),
        ({"max_offload_tokens": 0}, 0, 0),
        ({"max_load_tokens": 22}, 10, 5),
        ({"max_offload_tokens": -1, "max_load_tokens": "many"}, 10, 9),
        ({"max_offload_tokens": 1 << 63, "max_load_tokens": 1 << 70}, 10, 9),
    ],
    ids=["no caps", "stores", "no stores", "loads", "no numbers", "huge"],
)
def test_connector_keeps_to_what_a_request_allows(
    given: Mapping[str, object] | None, stored: int, loaded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parameters of one request cap what is stored and loaded of it; what is no number is left out, and said in the log."""
    said: list[str] = []
    monkeypatch.setattr(connector.logger, "warning", lambda text, *values: said.append(text % values))
    hear = BlocklifeConnector.on_new_request

    def with_parameters(self: BlocklifeConnector, request: Request) -> None:
        request.kv_transfer_params = given
        hear(self, request)

    monkeypatch.setattr(BlocklifeConnector, "on_new_request", with_parameters)
    rig = ConnectorRig(ROOMY)
    ask(rig, prompt(40))
    first = rig.stored
    rig.reset_prefix_cache()
    ask(rig, prompt(40))

    assert (first, rig.loaded) == (stored, loaded)
    assert len(said) == (4 if given and given.get("max_load_tokens") == "many" else 0)


# --- walks ------------------------------------------------------------------------------------------------------------------


def test_walk_with_a_drafter_finds_what_is_stored_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a drafter's last full block, stored as any other."""
    with_guesses(monkeypatch, "eagle")
    spec = evolve(CROWDED, groups=DRAFTERS["own"], num_gpu_blocks=40)
    rig = ConnectorRig(spec, 1, drafts=True)
    for each in rig.side.offload._state.progress.groups:
        each.drafter = False

    with pytest.raises(AssertionError, match="is written again while a store reads it"):
        walk(rig, 1, 60)


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("model", MODELS)
def test_connector_walks_with_sessions(model: str, ahead: bool) -> None:
    """A session takes its last token back and goes on; what it shares with others is served, and every byte of it is right."""
    rig = ConnectorRig(evolve(CROWDED, groups=MODELS[model], async_scheduling=ahead), 9)
    rng, parts = Random(9), 0
    for step in range(300):
        for name in dict.fromkeys((f"s{step // 30}", f"s{step // 20}x")):
            held = rig.scheduler.requests.get(name)
            if held is None or (held.status == RequestStatus.WAITING_FOR_STREAMING_REQ and held.num_tokens < 60):
                rig.part(name, prompt(rng.randint(1, 9)), rng.randint(1, 6))
                parts += 1
        if step % 30 == 0:
            rig.engine.abort([f"s{step // 30 - 2}"])
        if rng.random() < 0.2:
            rig.add(prompt(rng.randint(1, 40)), rng.randint(1, 9))
        rig.step()
        rig.check()
    rig.engine.abort([name for name in rig.scheduler.requests if name.startswith("s")])
    rig.drain()
    rig.check_empty()

    assert parts > 20
    assert rig.stored > 0
    assert rig.loaded > 0


@pytest.mark.parametrize("name", ["hybrid", "states", "resets"])
def test_driver_runs_our_connector_too(name: str) -> None:
    """The worlds of the watch with our connector in place of theirs: bytes move, and nothing is wrong."""
    world = WORLDS[name]
    found = judge(name, evolve(world, spec=evolve(world.spec, connector="blocklife")), 3, 120)

    assert found.clean, str(found)
    assert found.stored > 0
    assert found.verified > 0


@pytest.mark.skipif(MINOR < 32, reason="before 0.32 nothing of a session is stored")
@pytest.mark.parametrize("model", [name for name, groups in MODELS.items() if STATE not in groups])
def test_connector_walks_with_sessions_that_stop_behind_a_step_ahead(model: str) -> None:
    """An answer ends with a token of the model's choice, which the step that is out has computed: that is never stored."""
    rig = ConnectorRig(evolve(CROWDED, groups=MODELS[model], async_scheduling=True), 3)
    rng, void = Random(3), 0
    for held in sessions(rig, rng, count=10, steps=40):
        if rng.random() < 0.2:
            rig.add(prompt(rng.randint(1, 12)), rng.randint(1, 4))
        rig.step()
        rig.check()
        void += held is not None and held.drop_stale_output and held.num_stale_output_tokens > 0
    rig.drain()
    rig.check_empty()

    assert void > 20
    assert rig.stored > 0


@pytest.mark.skipif(MINOR < 32, reason="before 0.32 nothing of a session is stored")
def test_connector_stores_nothing_more_of_a_session_whose_state_is_wrong() -> None:
    """vLLM goes on from a Mamba state that has taken in the token that was taken back: what follows from it is wrong.

    With a step ahead, and an answer that ends with a token of the model's choice. It is so without a connector, too.
    """
    rig = ConnectorRig(evolve(ROOMY, groups=MODELS["full and state"], async_scheduling=True))
    rig.part("s", prompt(9), 30)
    while rig.scheduler.requests["s"].num_output_tokens < 4:
        rig.step()
    rig.scheduler.requests["s"].sampling_params.stop_token_ids = EVERY_TOKEN
    rig.drain()
    stored = rig.stored
    rig.part("s", prompt(20, 900), 9)
    rig.drain()
    rig.engine.abort(["s"])
    rig.drain()

    assert stored > 0
    assert rig.stored == stored
    assert {each.group for each in rig.corruptions} == {1}


@pytest.mark.sampled
@pytest.mark.skipif(MINOR < 33, reason="before 0.33 a configuration with this runner needs Triton")
@pytest.mark.parametrize("chunk", [1, 2])
@AHEAD
@pytest.mark.parametrize("model", [name for name, groups in MODELS.items() if STATE in groups])
def test_connector_walks_with_a_runner_that_zeroes_first(model: str, ahead: bool, chunk: int) -> None:
    """The second runner zeroes a block before it waits for the store that reads it: the result of such a store is discarded."""
    spec = evolve(CROWDED, groups=MODELS[model], async_scheduling=ahead, blocks_per_chunk=chunk, lag=Lag(2, 6))
    rig = ConnectorRig(spec, 5, second_runner=True)
    given_up: list[object] = []
    rig.side.ledger.on(JobLife.abandon, hook=given_up.append)
    walk(rig, 5, 60, resets=False)

    assert len(given_up) > 3
    assert rig.loaded > 0
