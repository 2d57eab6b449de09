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
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from blocklife.engines.vllm.connector import _connector as connector
from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.errors import MisuseError
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger._limits import MAX_REQUESTS
from blocklife.states import Slot
from tests.behind.scenes import Scene
from tests.vllm.connector_rig import EVERY_TOKEN, ConnectorRig, sessions, walk, with_guesses
from tests.vllm.connector_worlds import AHEAD, CROWDED, DRAFTERS, MODELS, ROOMY, STATE, ask, prompt
from tests.vllm.drive import judge
from tests.vllm.engine import MINOR
from tests.vllm.listeners import send_events
from tests.vllm.stage import play, scenes
from tests.vllm.worlds import WORLDS, Lag

# --- scenes -----------------------------------------------------------------------------------------------------------------

SCENES = scenes("""
# --- what is stored and loaded
what-the-device-forgot-is-loaded model=* ahead=* world_size=2 lag=0-3
    # every byte of it is right
    ask 41 2; then stored >= 5; reset; ask 41 2; then loaded >= groups and verified > 0
what-the-device-has-is-not-loaded
    # nor stored a second time
    ask 40 2; note before stored; ask 40; then loaded == 0 and stored == before
requests-of-a-step-are-stored-at-once lag=3 max_num_batched_tokens=64
    # in one copy; each of them counts it as its own
    add 16 2; add 16@200 2; add 16@300 2; step
    then [len(job.lives) for job in jobs] == [12]
    note served {each for each in ledger.requests if ledger.jobs.serve(each)}
    then served == {jobs[0].owner, *jobs[0].sharers} == set(ledger.requests)
    drain; then stored == 12 and statistics.refused_stores == 0
what-the-host-has-is-no-refusal
    # a request computes it: nothing is stored, and the host has not lacked room
    ask 16 2; reset; hurried 16 2; drain
    then (stored, statistics.already_stored, statistics.refused_stores) == (4, 4, 0)
store-that-is-too-long-is-split lag=3 max_num_batched_tokens=64 max_job_blocks=5
    # and no block is lost by it
    add 16 2; add 16@200 2; add 16@300 2; step; then [len(job.lives) for job in jobs] == [5, 5, 2]; drain; then stored == 12
rest-is-loaded-behind-what-the-device-has num_gpu_blocks=16 max_num_batched_tokens=16
    # the second request is handed out the later half of the first prompt's blocks
    ask 40 2; ask 24@5000 8; ask 40 2; then 0 < loaded < 9
requests-are-preempted-and-come-back model=* num_gpu_blocks=24 lag=0-4
    # with what they had in host memory
    crowd 6 18 24 apart=1000; until not running; drain; then flushes["preempted"] or loaded or "{model}" == "window"
block-that-a-store-reads-is-handed-out-behind-a-wait num_gpu_blocks=12 lag=50
    # and the store is right all the same
    add 32; until not running; add 36@5000; drain; then flushes["handed out"] > 0; reset; ask 32; then loaded > 0
what-leaves-a-window-is-stored-in-the-next-step groups=swa:4:10 num_gpu_blocks=9 max_num_batched_tokens=16 lag=6
    # a block that was handed out behind a wait is final when its plan settles; vLLM hands it out again in the next step
    add 16; until not running; add 48@5000 4; drain; then stored == (16 + 48) // 4
last-block-of-a-request-is-stored num_gpu_blocks=6 lag=3
    # its fourth block fills with its last step, and its blocks are handed out in the very next one
    add 11 6; until not running; add 16@5000; drain; then ready >= 4 + 4
load-of-an-aborted-request-leaves-nothing lag=5 $late=no|yes
    # its blocks are free when the copy has landed
    ask 40 2; reset; add 40 4; step; then len(jobs) == 1; abort r1 late={late}; drain; then ended["CANCELLED"] == 1
requests-of-a-step-share-a-store max_num_batched_tokens=128
    # vLLM hits what it has just scheduled
    add 32; add 33; drain; then stored == 8
block-that-fills-with-this-step-is-shared
    # a running request has had it for long, and vLLM hits it in the same step
    add 14 20; until requests["r0"].num_tokens >= 20; note said [texts["r0"].token(at) for at in range(20)] + [5000]
    add said 2; step; then ledger.requests.table("r1")[:5] == ledger.requests.table("r0")[:5]; drain
outputs-are-not-held-back-for-copies
    # a store that is lost costs a hit later: vLLM need not drop what a request has said since
    then not scheduler.requires_kv_delivery
engine-steps-until-every-copy-has-landed lag=7
    # the last store outlives the last request
    add 16; until not running; then scheduler.connector.has_pending_push_work(); note begun step_number; drain
    then step_number - begun >= 7 and not scheduler.connector.has_pending_push_work()
last-copies-are-flushed-instead lag=500 last_step=flush
    # the step behind the last request waits for them, however slow they are
    add 16; drain; then step_number < 20 and flushes["last step"] > 0 and ready == 4
# --- resets and sessions
reset-of-the-connector-empties-the-host lag=4
    # at once; running requests go on, and are stored anew
    ask 16 2; add 24@5000 8; step 3; reset connector; then ready == 0; drain; reset; ask 16 2; then loaded == 0
    ask 24@5000 2; then loaded > 0
all-of-a-running-request-is-offered-to-a-host-that-forgot
    # also where the next step fills a block: its turn comes behind that of the blocks before it, which are gone there
    add 16 8; until ready >= 4; until requests["r0"].num_tokens >= 20; reset_host
    then (requests["r0"].num_tokens, ready) == (20, 0); drain; then ready == 5
session-is-stored-but-for-what-it-takes-back since=32 ahead=* $answer=1|2|3|4|5|6|7|8
    # the last token of the answer is gone when it goes on: a block that it filled is stored with another one there
    # with steps ahead vLLM computes a token before it is known: such a block is stored when the session goes on or ends
    part s 13 {answer}; idle; then stored == (12 + {answer} - ("{ahead}" == "yes")) // 4
    note first list(requests["s"].all_token_ids); part s 6@900 {answer}; idle; note second list(requests["s"].all_token_ids)
    then second[: 12 + {answer} + 6] == first[:-1] + text("6@900"); end s; drain; reset; note before stored
    ask second 2; then before == loaded == (12 + {answer} + 6 + {answer} - 1) // 4
session-is-offered-to-a-host-that-forgot since=32 blocks_per_chunk=2
    # the chunks that it has filled, and no slot waits for the one that it has not
    part s 16 8; step 3; reset_host; idle; then ready == 2; end s; drain; then ready == 2
nothing-computed-before-a-reset-of-all-is-stored ahead=*
    # new weights: vLLM preempts who runs, then resets the connector
    add 40 9; step 4; pause; idle; reset running connector; then done and stored > 0; note before stored; renew_weights
    abort r0; go_on; drain; then stored == before; reset; ask 40 2; then loaded == 0
what-goes-on-behind-a-reset-of-all-is-stored ahead=*
    add 40 9; step 4; pause; idle; reset running connector; then done and stored > 0; note before stored; renew_weights
    go_on; drain; then stored > before; reset; ask 40 2; then loaded > 0
nothing-of-who-ended-before-a-reset-is-stored ahead=yes $steps=4|5|6|7|8
    # it is over while a step of it is out
    add 40 20; step {steps}; abort r0; then "r0" in side.offload.requests; reset_host; drain; then ready == 0
reset-of-a-paused-engine-with-steps-out ahead=yes depth=3 prompt_only=yes $steps=2|3|4|5|6|7|8|9|10|11
    # vLLM drops the outputs of who was preempted by it, and tells the connector of that only with the next step
    add 10 30; step {steps}; pause; reset running; until not rig._queue; go_on; drain
# --- copies that fail
failed-load-is-computed-again groups=full|swa:4:10|full/swa:4:10 world_size=1|2 lag=0-2 fails=load:0.9
    # on any worker: by its blocks in one full group, by its request elsewhere
    ask 40 2; reset; ask 40 2; then ended["FAILED"] > 0 and len(finished) == 2
request-of-a-failed-load-ends-where-vllm-wants-that fails=load:1.0 recompute=no
    ask 40 2; reset; ask 40 2; then finished["r1"] == []
loads-that-fail-again-and-again groups=full/swa:4:10 fails=load:1.0
    ask 40 2; reset; ask 40 2; reset; ask 40 2; reset; ask 40 2; then loaded == 0 and len(finished) == 4
what-a-failed-store-has-left-is-never-found fails=store:1.0
    ask 40 2; reset; ask 40 2; then stored == loaded == 0
# --- who waits
more-requests-wait-than-the-ledger-knows max_num_seqs=2 spare_requests=2
    # those that hold nothing are forgotten and looked up again
    crowd 20 9 3; drain; then len(finished) == 20
who-waits-for-a-copy-is-forgotten-for-another max_num_seqs=2 lag=40 spare_requests=2
    # who waits for a slow store holds nothing, and keeps nobody waiting who needs none of it
    add 16; until not running; reset; crowd 6 16 own=5000; add 16@9000; step 8; then sorted(finished) == ["r0", "r7"]
    drain; then len(finished) == 8
no-more-loads-are-promised-than-there-are-jobs max_num_batched_tokens=64 lag=2 max_job_blocks=8 max_jobs=1
    # of two requests whose prompts are in the host tier, in one step, one is put off
    add 17; add 17@5000; drain; reset; add 17; add 17@5000; drain; then loaded == 8
silent-store ahead=* model=full|full_and_local_attention num_gpu_blocks=400 host_blocks=400 pending_wait_s=10
    # nobody waits for ever: what it has not brought is computed; when it has landed all the same, others load it
    silence store; count_seconds; add 40 2; until len(finished) == 1; reset; crowd 3 40 2 own=5000; note begun step_number
    until len(finished) == 4; then 10 <= step_number - begun < 30 and (stored, loaded) == (0, 0)
    then statistics.overdue_requests >= 1; land; reset; add 40+1@9 2; note begun step_number; until len(finished) == 5
    then step_number - begun < 10 and loaded > 0; land
silent-store-with-states since=33 ahead=* model=full_and_state num_gpu_blocks=400 host_blocks=400 pending_wait_s=10
    # 0.30 keeps no state at the end of such a prompt, so that there is no hit to wait for (0.31, 0.32: not tried)
    like silent-store
silent-store-and-no-room-for-who-waits num_gpu_blocks=200 host_blocks=200 max_num_seqs=2 spare_requests=4 pending_wait_s=10
    # more wait than the ledger has room for: each is forgotten in every step, and added again
    silence store; count_seconds; add 40; until len(finished) == 1; reset; crowd 20 40 own=5000; note begun step_number
    until len(finished) == 21; then 10 <= step_number - begun < 60; land
silent-load num_gpu_blocks=200 pending_wait_s=10
    # vLLM cannot give it up; requests that want the same content compute it
    ask 40 2; reset; silence load; count_seconds; crowd 3 40 2 own=5000; note begun step_number; until len(finished) == 3
    then 10 <= step_number - begun < 20 and list(running) == ["r1"]; land; then len(finished) == 4 and loaded == 10
silent-stores-have-every-job num_gpu_blocks=200 host_blocks=200 pending_wait_s=10 max_jobs=2 max_job_blocks=64
    # a load would need one: who has a hit in the host tier computes it instead
    ask 17; silence store; add 17@3000; until len(finished) == 2; add 17@5000; until len(finished) == 3; reset; count_seconds
    add 17; note begun step_number; until len(finished) == 4
    then ledger.jobs.room == 0 and 10 <= step_number - begun < 20 and loaded == 0 and statistics.overdue_requests == 1; land
who-waited-and-was-given-up-is-forgotten max_num_seqs=2 lag=3 spare_requests=4
    # of who was looked up, forgotten to make room, and aborted nothing is left; nor of those that come again
    ask 40; reset; crowd 20 40 own=5000; step; abort r2; abort r4; abort r6; abort r8; abort r10; abort r12; abort r14
    abort r16; abort r18; abort r20; drain; then len(finished) == 11
who-does-not-ask-is-let-in num_gpu_blocks=80 max_num_seqs=2 max_num_batched_tokens=256 lag=4 spare_requests=4
    # whatever its lookup says: there is room for it, however much the others load
    crowd 20 5 apart=1000; drain; reset; crowd 20 5 apart=1000; hurried 10@50000; hurried 10@50100; hurried 10@50200; drain
    then len(finished) == 43 and loaded > 0
lookup-that-came-to-nothing num_gpu_blocks=66 max_num_seqs=2 max_num_batched_tokens=8192 lag=30 priority=yes
    with full_hit=recompute_last_token spare_requests=4
    # who was looked up, found no room on the device, was forgotten, and is let in later starts from what is there then
    crowd 6 4 apart=1000 priority=5; drain; reset; add 100@9000 20 priority=0; step
    crowd 3 4 apart=1000 priority=5; step; note free scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    note large list(range(20000, 20008 + 4 * free)); hurried large 1 priority=7; step
    add 4@3000 1 priority=1; add 4@4000 1 priority=1; step; until "r6" in finished; add 4@5000 1 priority=1; drain
    then len(finished) == 14
# --- who has lost a load
failed-load-in-little-room model=full|window num_gpu_blocks=14 max_num_batched_tokens=32 fails=load:1.0
    # its request is computed: a second load would wait for room that vLLM keeps for the first one
    ask 43; reset; ask 43; then ended["FAILED"] == 1
failed-load-in-little-room-for-two-groups model=full_and_window num_gpu_blocks=28 max_num_batched_tokens=32 fails=load:1.0
    like failed-load-in-little-room
nobody-waits-for-ever-behind-a-lost-load groups=full/swa:4:5 num_gpu_blocks=17|20|40 host_blocks=200 dense_retention=yes
    # vLLM keeps requests whose load has failed ahead of those whose loads have landed
    ask 26; ask 26@300; reset; lose_first_load; add 26; add 26@300; drain 100
    then ended["FAILED"] == 1 and len(finished) == 4
others-load-while-who-has-lost-a-load-waits groups=full/swa:4:10 lag=3
    ask 41; ask 41@300; reset; lose_first_load; add 41; until ended["FAILED"]; add 41@300; drain
    then ended["FAILED"] == 1 and loaded > 0
others-load-when-who-has-lost-a-load-is-gone groups=full/swa:4:10 lag=3
    ask 41; ask 41@300; reset; lose_first_load; add 41; until ended["FAILED"]; abort r2; add 41@300; drain
    then ended["FAILED"] == 1 and loaded > 0
others-load-however-long-who-has-lost-a-load-must-wait groups=full/swa:4:10 max_num_seqs=1 priority=yes
    # urgent requests go before it again and again
    ask 24; ask 24@300; reset; lose_first_load; add 24 1 priority=9; add 5@9000 9; until ended["FAILED"]
    crowd 5 24@300 3 own=1; drain forgets=yes; then loaded > 0
room-that-is-kept-for-a-lost-load-is-there num_gpu_blocks=14 max_num_batched_tokens=32 priority=yes lag=3
    # who stands before the loser and finds no room for a load is computed
    ask 42; ask 30@300; reset; lose_first_load; add 2@9000 17; step 3; add 42 1 priority=5; until ended["FAILED"]; step 2
    add 30@300; drain 200; then len(finished) == 5
who-has-lost-a-load-is-computed-in-a-pause since=32 model=full|full_and_window lag=3
    # that waits for those who hold blocks, as without a connector
    ask 41; reset; lose_first_load; add 41; step; pause new; drain 100; then ended["FAILED"] == 1 and "r1" in finished
who-has-lost-a-load-is-computed-behind-a-pause till=31 model=full|full_and_window lag=3
    # before 0.32 a pause waits for those who run only
    ask 41; reset; lose_first_load; add 41; step; pause new; idle 100; then "r1" not in finished; go_on; drain 100
    then ended["FAILED"] == 1 and "r1" in finished
who-has-lost-a-load-may-load-again-when-preempted groups=full/swa:4:10 lag=3 max_load_failures=1|2
    # it was computed in between; with 1 it looks no further than the device
    ask 41; reset; lose_first_load; add 41 20; until requests["r1"].status.name == "RUNNING"; then loaded == 0
    reset running; drain; then ended["FAILED"] == 1 and (loaded > 0) == ({max_load_failures} > 1)
""")


@pytest.mark.parametrize("scene", SCENES)
def test_connector_scene(scene: Scene) -> None:
    """A small story, each with one thing that could go wrong in it."""
    play(scene)


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
