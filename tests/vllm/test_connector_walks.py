"""Random walks of the connector: whatever differs, nothing is wrong at any step, and nothing is left.

Method: the rig of `test_connector`, in a small world with too little room; a scene has what differs, and what each of its walks
has to show by its end.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.behind.scenes import Scene
from tests.proof.drivers.vllm import making
from tests.vllm.connector_rig import ConnectorRig, walk
from tests.vllm.connector_worlds import CROWDED
from tests.vllm.stage import play, scenes

SCENES = scenes(
    """
plain model=* ahead=* seed=1|2 world_size=2
    walk; then stored > 0
other-choices model=full_and_window ahead=* seed=3
    with choose=policy:arc|mode:lazy|blocks_per_chunk:2,prompt_only:yes|max_job_blocks:1,last_step:flush|max_jobs:3
    walk; then stored > 0
stores-yield-to-loads model=full|full_and_window ahead=* seed=3|4 max_store_blocks_beside=0|3 lag=0-6
    walk; then stored > 0 and loaded > 0
parts-of-chunks model=full_and_window ahead=* seed=3 partial_chunks=yes blocks_per_chunk=3
    walk; then stored > 0
limits-of-all-requests model=full_and_window ahead=* seed=3 max_store_tokens=12 max_load_tokens=8
    walk; then stored > 0
failing-copies model=* seed=4 world_size=2 fails=load:0.3,store:0.2 recompute=yes|no
    # what they left is never read
    walk; then ended["FAILED"] > 0
no-prefix-caching model=full|full_and_window seed=5 prefix_caching=no
    # where the device finds nothing again, everything comes from host memory
    walk resets=no; then loaded > 0
three-steps-ahead model=full_and_window|all ahead=* seed=6 depth=3
    # as with pipeline stages, three steps are with the workers at once, and settle in their order
    walk; then stored > 0
room-for-few-requests model=full_and_window ahead=* seed=7 max_num_seqs=3 kind=hurried spare_requests=1|3
    # they are forgotten while they wait, or were preempted, and come again; some are let in without a lookup
    walk 60; then loaded > 0
zeroed-first since=33 model=full_and_state|all ahead=* seed=5 second_runner=yes blocks_per_chunk=1|2 lag=2-6
    # the second runner zeroes a block before it waits for the store that reads it: the result of such a store is discarded
    listen abandon; walk 60 resets=no; then len(heard) > 3 and loaded > 0
# --- requests with the same tokens whose content differs: salts, LoRA adapters, images
what-is-beside-the-tokens model=full|full_and_window|full_and_state ahead=* seed=1|2 encoder_tokens=64 host_blocks=120
    walk 60 differs=yes; then stored > 0 and loaded > 0
what-is-beside-latents of=latents model=with_a_window|with_states ahead=* seed=1|2 encoder_tokens=64 host_blocks=120
    walk 60 differs=yes; then stored > 0 and loaded > 0
# --- an engine that is a producer or a consumer of content alone
roles model=* ahead=* seed=1|2 world_size=2 role=kv_producer|kv_consumer
    # vLLM hands out the blocks of a producer's requests while the last step that computes them is out
    walk; then stored > 0
roles-beside-another model=full|full_and_window ahead=* seed=0|1 world_size=2 role=kv_producer|kv_consumer
    with beside=any,within:0.3,asks_again:0.1
    walk; then stored > 0 and second.told.chosen
roles-with-drafters of=drafters model=shared|own|own_window|window_and_drafter ahead=* seed=1|2 num_gpu_blocks=40 guesses=eagle
    with role=kv_producer|kv_consumer
    walk 60; then stored > 0
roles-and-tails since=33 world=tails of=tails model=full_and_state|two_of_each ahead=* seed=1|2 role=kv_producer|kv_consumer
    walk 60; then stored > 0
roles-and-failing-copies model=* ahead=yes seed=3 role=kv_producer fails=load:0.2,store:0.2 recompute=yes|no
    walk; then ended["FAILED"] > 0
roles-and-rings of=unnamed model=ring|ring_and_window ahead=yes seed=1|2 role=kv_producer num_gpu_blocks=30 lag=2-6
    walk 60; then stored > 0
# --- groups over latents, and groups whose blocks have nothing that is found again
latents of=latents model=with_a_window|of_three_sizes|with_states ahead=* seed=1|3 world_size=2
    with host_blocks=200 num_gpu_blocks=60
    walk 60; then stored > 0 and loaded > 0
latents-and-failing-copies of=latents ahead=* seed=3 fails=load:0.2,store:0.2 recompute=yes|no
    with model=with_a_window|of_three_sizes|with_states
    walk; then ended["FAILED"] > 0
rings of=unnamed model=ring|ring_first|ring_and_window|ring_and_state ahead=* seed=1|2|3 world_size=2 num_gpu_blocks=30
    # the ring of a request may be any block, also one that a store still reads
    walk; then stored > 0 and loaded > 0
rings-beside-much-traffic of=unnamed ahead=* seed=4|5 num_gpu_blocks=30 max_num_seqs=3 lag=2-6
    with model=ring|ring_first|ring_and_window|ring_and_state
    with blocks_per_chunk=1|2 late_fences=yes
    walk 60; then stored > 0
rings-and-failing-copies of=unnamed ahead=* seed=6 num_gpu_blocks=30 fails=load:0.2,store:0.2 recompute=yes
    with model=ring|ring_first|ring_and_window|ring_and_state
    walk; then ended["FAILED"] > 0
rings-zeroed-first since=33 of=unnamed model=ring_and_state ahead=* seed=5 second_runner=yes num_gpu_blocks=30 lag=2-6
    walk 60 resets=no; then stored > 0
rings-beside-another of=unnamed model=ring|ring_first ahead=* seed=0|1 world_size=2 num_gpu_blocks=40 first=no|yes
    with beside=any,within:0.3,asks_again:0.1
    walk; then stored > 0 and second.told.chosen
rings-and-windows-that-another-restores since=33 ahead=* seed=0|1 num_gpu_blocks=60 second_runner=yes
    with of=unnamed model=ring|ring_and_window first=no|yes beside=any,within:0.0,restores:1
    # as a transfer of a request's own blocks does: nothing is computed once more behind it
    walk; then stored > 0 and second.told.chosen
replays-that-another-restores since=33 of=replays model=replay|replay_and_ring ahead=* seed=0|1 num_gpu_blocks=60
    with second_runner=yes first=no|yes beside=any,within:0.0,restores:1
    walk; then stored > 0 and second.told.chosen
rings-within-steps of=unnamed model=ring|ring_and_window ahead=* seed=1|2 num_gpu_blocks=30 sync_load_budget_bytes=1GiB
    walk; then flushes["within the step"] > 0
replays since=33 of=replays ahead=* seed=1|2|3 world_size=2 num_gpu_blocks=60 host_blocks=100 second_runner=yes
    with model=replay|replay_and_ring|ring,_latents_and_replay
    # vLLM computes the end of a hit once more, and leaves what is stored as it is
    walk 60; then stored > 0 and loaded > 0
replays-in-parts since=33 of=replays ahead=* seed=4|5 num_gpu_blocks=60 host_blocks=100 second_runner=yes part_tokens=3
    with model=replay|replay_and_ring|ring,_latents_and_replay
    with blocks_per_chunk=1|2
    walk 60; then stored > 0 and loaded > 0
replays-and-failing-copies since=33 of=replays ahead=* seed=6 num_gpu_blocks=60 host_blocks=100 second_runner=yes
    with model=replay|replay_and_ring|ring,_latents_and_replay
    with fails=load:0.2,store:0.2 recompute=yes|no
    walk 60; then ended["FAILED"] > 0
replays-within-steps since=33 of=replays ahead=* seed=1|2 num_gpu_blocks=60 host_blocks=100 second_runner=yes
    with model=replay|replay_and_ring|ring,_latents_and_replay
    with sync_load_budget_bytes=1GiB
    walk 60; then flushes["within the step"] > 0
# --- guesses: what was guessed wrong is junk, and is never stored
drafts model=full|window|full_and_window seed=7 num_gpu_blocks=30 guesses=ngram|mtp
    # without layers of a drafter nothing is kept back for it
    walk; then loaded > 0
drafter of=drafters model=shared|own|own_window|window_and_drafter seed=1|2 num_gpu_blocks=40 guesses=eagle blocks_per_chunk=1|2
    # its layers are in a group of the model, or in one of their own, which they write to once more in the next step
    walk 60; then loaded > 0
guesses-beside-states since=33 world=guessing of=guessing model=full_and_state|two_states ahead=* seed=1|2 guesses=mtp
    # with a step ahead too: a request steps back to the state of its last right guess
    walk 60; then loaded > 0 and side.offload.policies.state_drafts == 3
guesses-from-the-text-beside-states since=33 world=guessing of=guessing model=window_and_state ahead=* seed=1|2 guesses=ngram
    walk 60; then loaded > 0 and side.offload.policies.state_drafts == 3
drafter-beside-states since=33 world=guessing of=guessing ahead=* seed=1|2 guesses=eagle
    with model=drafter_and_state|drafter,_window_and_state
    walk 60; then loaded > 0 and side.offload.policies.state_drafts == 3
guesses-beside-states-in-chunks since=33 world=guessing of=guessing model=full_and_state ahead=* seed=3 guesses=mtp
    # and prompts in parts, and two workers
    with blocks_per_chunk=2 world_size=2 part_tokens=8
    walk 60; then loaded > 0
drafter-beside-states-in-chunks since=33 world=guessing of=guessing model=drafter,_window_and_state ahead=* seed=3 guesses=eagle
    with blocks_per_chunk=2 world_size=2 part_tokens=8
    walk 60; then loaded > 0
guesses-beside-states-and-failing-copies since=33 world=guessing of=guessing model=two_states ahead=* seed=5 guesses=mtp
    with dense_retention=no fails=load:0.2,store:0.15 second_runner=yes
    walk 60; then loaded > 0
# --- loads within steps
within-steps ahead=* seed=1|2 world_size=2 sync_load_budget_bytes=1GiB
    with model=full|window|full_and_window|blocks_of_two_sizes|full_and_local_attention|blocks_of_4_and_6
    walk; then flushes["within the step"] > 0
states-within-steps model=full_and_state|all ahead=* seed=1|2 world_size=2 sync_load_budget_bytes=1GiB
    # they are never loaded within a step
    walk; then flushes["within the step"] == 0
drafter-within-steps of=drafters model=shared|own|own_window|window_and_drafter seed=1|2 num_gpu_blocks=40 guesses=eagle
    with sync_load_budget_bytes=1GiB blocks_per_chunk=1|2
    # guesses are computed behind loads of the same step, and the drafter writes once more to what the next step reads
    walk 60; then flushes["within the step"] > 0
failing-loads-within-steps kind=failing model=full seed=0|1|2|3 world_size=2 fails=load:0.3,store:0.1
    with sync_load_budget_bytes=1GiB
    # on one of two workers: their requests end, and nobody reads what was named behind them
    walk; then void_once
failing-loads-within-steps-ahead kind=failing model=full ahead=yes seed=0|1|2|3 world_size=2 fails=load:0.3,store:0.1
    with sync_load_budget_bytes=1GiB
    # the engine may stop, where a request was preempted while the step with its load was out
    walk stops=yes
failing-loads-within-steps-of-a-drafter kind=failing of=drafters model=shared seed=0|1|2|3 fails=load:0.3,store:0.1
    with num_gpu_blocks=40 guesses=eagle sync_load_budget_bytes=1GiB
    # what was guessed and accepted behind them is never stored, hit or answered
    walk 60; then void_once
small-budget-within-steps model=full ahead=yes seed=7 budget_tokens=4|12 choose=seed:7|blocks_per_chunk:2|max_jobs:3|mode:lazy
    # one block or three: some hits load within the step, others between two
    walk; then side.shape.load_within_tokens == {budget_tokens}
    then flushes["within the step"] > 0 or {budget_tokens} == 4 or "max_jobs" in "{choose}"
# --- waits on the device: what a step has waited for is reported some steps later
late-fences model=* ahead=* seed=1|2 world_size=2 late_fences=yes
    walk; then stored > 0
late-fences-within-steps model=full|full_and_window ahead=* seed=1|2|3 world_size=2 sync_load_budget_bytes=1GiB late_fences=yes
    walk; then flushes["within the step"] > 0
late-fences-and-failing-copies model=* ahead=* seed=3|4 world_size=2 fails=load:0.2,store:0.2 late_fences=yes recompute=yes
    walk; then ended["FAILED"] > 0
late-fences-flushed-at-the-end model=full_and_window|all ahead=* seed=5|6 last_step=flush late_fences=yes
    walk; then flushes["handed out"] > 0
loads-by-layer model=full|window|full_and_window|blocks_of_two_sizes ahead=* seed=1|2 world_size=2 sync_load_parts=4
    with sync_load_budget_bytes=1GiB
    # each layer of the forward pass waits for its own part of the loads
    walk; then flushes["within the step"] > 0
failing-loads-by-layer kind=failing model=full seed=0|1 world_size=2 fails=load:0.3,store:0.1 sync_load_parts=2
    with sync_load_budget_bytes=1GiB
    walk; then void_once
# --- workers that share the work in another way
context-parallelism model=full ahead=* seed=3 world_size=4 num_gpu_blocks=14 fails=load:0.1,store:0.1
    with parallel=decode:2|decode:2,interleave:4|decode:4,interleave:2|prefill:2|decode:2,prefill:2
    # copies that fail, and resets, where a block covers the tokens of all decode ranks
    walk 40; then stored > 0 and verified > 0
stages-without-a-group model=full_and_window|full_and_state ahead=* seed=5 world_size=2 num_gpu_blocks=40
    with lacks=0:1|1:0|0:1/1:0|1:0+1
    # a stage that has no layer of a group takes part in its copies all the same, and moves nothing of it
    walk; then stored > 0 and verified > 0
ranks-that-share-host-memory model=full|full_and_window ahead=* seed=1|2 world_size=4 alike=2|4 blocks_per_chunk=1|2
    # each slot is written by one of the ranks that hold the same, and read by all of them
    walk; then stored > 0 and loaded > 0 and shares == {alike}
ranks-that-share-host-memory-where-copies-fail model=full ahead=* seed=3|4 world_size=4 alike=2 recompute=yes
    with fails=load:0.2,store:0.2
    # on the rank that writes, or on one that reads
    walk; then ended["FAILED"] > 0
ranks-that-share-host-memory-within-steps model=full|full_and_window ahead=* seed=3 world_size=2 alike=2
    with sync_load_budget_bytes=1GiB late_fences=yes
    walk; then flushes["within the step"] > 0
# --- beside another connector; with states in a small pool vLLM counts too few blocks behind a load, whoever loads, and raises
beside-another model=full|window|full_and_window|blocks_of_two_sizes ahead=* seed=0|1|2 world_size=2 first=no|yes
    with beside=any,within:0.3,asks_again:0.1
    walk; then stored > 0 and second.told.chosen
beside-another-with-states model=full_and_state ahead=* seed=0|1|2 world_size=2 first=no|yes num_gpu_blocks=80
    with beside=any,within:0.3,asks_again:0.1
    like beside-another
beside-another-that-fails model=full seed=4 world_size=2 num_gpu_blocks=32 fails=load:0.2,store:0.1 recompute=yes|no
    with beside=any,within:0.5,fails:0.3
    # copies of both fail: what they left is never read, and never stored
    walk; then sum(each.told.failed for each in seconds)
beside-another-that-fails-between-steps model=full|window|full_and_window|blocks_of_two_sizes ahead=* seed=4 world_size=2
    with num_gpu_blocks=32 fails=load:0.2,store:0.1 recompute=yes|no beside=any,within:0.0,fails:0.3
    # with several groups, windows or steps ahead vLLM takes no report of a failure within a step
    like beside-another-that-fails
beside-another-with-states-that-fails model=full_and_state ahead=* seed=4 world_size=2 num_gpu_blocks=80
    with fails=load:0.2,store:0.1 recompute=yes|no beside=any,within:0.0,fails:0.3
    like beside-another-that-fails
beside-another-within-steps ahead=* seed=3 world_size=2 num_gpu_blocks=32 first=no|yes sync_load_budget_bytes=1GiB
    with model=full|window|full_and_window|blocks_of_two_sizes|full_and_local_attention|blocks_of_4_and_6
    with beside=any,within:0.5,asks_again:0.1
    # two connectors bring content within the steps that read it, each of its own requests, and nobody waits for ever
    walk 60; then second.told.chosen and flushes["within the step"] > 0
# --- prefixes that end inside a block
tails since=33 world=tails of=tails model=full_and_state|two_of_each ahead=* seed=1|2|3|4|5|6 world_size=2
    walk 60; then loaded > 0
preempted-once-and-loaded-before-a-reset since=33 world=tails of=tails model=two_of_each ahead=yes seed=3|5 world_size=2
    # what was preempted once, and has loaded, is PREEMPTED to vLLM until it is scheduled, and keeps its blocks all the same
    walk 60; then loaded > 0
tails-and-other-choices since=33 world=tails of=tails model=full_and_state ahead=* seed=3
    with choose=prompt_only:yes|max_store_tokens:22,max_load_tokens:14|max_job_blocks:1,max_jobs:3,policy:arc
    walk 60; then stored > 0 and side.shape.geometry.tail_tokens is not None
tails-that-are-left-out since=33 world=tails of=tails model=full_and_state ahead=* seed=3 choose=mode:lazy|blocks_per_chunk:2
    # with lazy stores and larger chunks there are none; vLLM still hits inside a block on the device
    walk 60; then stored > 0 and side.shape.geometry.tail_tokens is None
tails-and-failing-copies since=33 world=tails of=tails model=full_and_state seed=4 world_size=2 fails=load:0.3,store:0.2
    with recompute=yes|no
    walk 60; then ended["FAILED"] > 0
tails-beside-another since=33 world=tails of=tails model=full_and_state ahead=* seed=0|1|2 world_size=2 num_gpu_blocks=80
    with beside=any first=no|yes
    # another one brings and sends whole blocks, and ours loads tails
    walk 40; then [each for each in hits if each % 8]
tails-of-a-drafter since=33 world=tails num_gpu_blocks=60 ahead=* seed=1|2|3|4 world_size=2 guesses=eagle mended=yes
    with groups=full:8+drafter/mamba:8|full:8/mamba:8/full:8+drafter|full:8+drafter/mamba:8/mamba:8
    # right and wrong guesses: prefixes end inside blocks of its layers
    walk 60; then side.shape.geometry.tail_tokens == 2 and [each for each in hits if each % 8]
tails-of-a-drafter-and-failing-copies since=33 world=tails num_gpu_blocks=60 seed=4 world_size=2 guesses=eagle mended=yes
    with groups=full:8+drafter/mamba:8 fails=load:0.3,store:0.2 recompute=yes|no
    walk 60; then ended["FAILED"] > 0
""",
    {"world": "crowded"},
)


@pytest.mark.parametrize("scene", SCENES)
def test_connector_walks(scene: Scene) -> None:
    """Nothing is wrong at any step, nothing is left at the end, and what the walk is about has happened."""
    play(scene)


@pytest.mark.parametrize(("left_out", "nothing"), [("adapter", None), ("images", ())])
def test_walk_finds_content_of_another_tenant(left_out: str, nothing: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the hashes of blocks do not cover what is beside the tokens."""
    make = making.request_of
    monkeypatch.setattr(making, "request_of", lambda *given, **more: make(*given, **{**more, left_out: nothing}))
    spec = evolve(CROWDED, encoder_tokens=64, host_blocks=120)

    def walks() -> None:
        for seed in range(5):
            walk(ConnectorRig(spec, seed), seed, 60, differs=True)

    with pytest.raises(AssertionError, match="reads wrong bytes"):
        walks()
