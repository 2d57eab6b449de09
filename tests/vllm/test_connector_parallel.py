"""The connector with context parallelism, with pipeline stages that lack a group, and with a scheduler in each worker.

Goal: whatever way the workers share the work, each block that is stored on all of them comes back on all of them, to the byte.
Method: the rig of `test_connector` with ranks that have their share of the tokens or layers (`parallel_rig`), under vLLM's real
scheduler with the real settings.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import pytest
from attrs import evolve

from blocklife.engines.vllm.connector._groups import geometry_of
from blocklife.engines.vllm.connector._worker import ConnectorWorker
from blocklife.errors import MisuseError
from blocklife.ledger import Direction
from blocklife.offload import FullAttention, SlidingWindow
from tests.behind.scenes import Scene
from tests.proof.drivers.vllm import making
from tests.vllm import engine
from tests.vllm.connector_rig import walk
from tests.vllm.connector_worlds import AHEAD, CROWDED, FULL, ROOMY, STATE
from tests.vllm.parallel_rig import Parallel, ParallelRig
from tests.vllm.stage import play, scenes
from tests.vllm.worlds import GroupSpec, Lag

SCENES = scenes("""
context-parallel-blocks-come-back blocks_per_chunk=1|2 world_size=4 lag=0-3
    with parallel=decode:2|decode:2,interleave:4|decode:4,interleave:2|prefill:2|decode:2,prefill:2
    # a block covers the tokens of all decode ranks, and goes to host memory and back on each of them
    ask 50 2; note tokens 4 * parallel.decode; note span tokens * {blocks_per_chunk}
    then side.shape.geometry.block_tokens == (tokens,) and stored == 51 // span * {blocks_per_chunk}; reset; ask 50 2
    then loaded == 49 // span * {blocks_per_chunk} and verified > 0
last-blocks-of-an-aborted-request-are-stored world_size=2 max_num_batched_tokens=16 parallel=decode:2
    # what was computed until then, in whole blocks of all ranks
    add 60 9; step 3; abort r0; drain; then stored == 48 // 8
""")


@pytest.mark.parametrize("scene", SCENES)
def test_parallel_scene(scene: Scene) -> None:
    """A small story, each with one thing that could go wrong in it."""
    play(scene)


# --- context parallelism ----------------------------------------------------------------------------------------------------


def test_budget_counts_bytes_on_one_worker() -> None:
    """A worker has its share of the tokens of a block: with twice the ranks a step may load twice the tokens."""
    found = []
    for ranks in (1, 2, 4):
        spec = evolve(ROOMY, world_size=ranks, extra_config={"sync_load_budget_bytes": 1 << 20})
        found.append(ParallelRig(spec, parallel=Parallel(decode=ranks)).side.shape.load_within_tokens)

    assert found == [found[0], 2 * found[0], 4 * found[0]]


SHARED = evolve(CROWDED, groups=(FULL, STATE), world_size=2)
"""Each rank has half of the attention's tokens, and every state."""


@pytest.mark.skipif(engine.MINOR < 33, reason="refused before 0.33")
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_states_with_decode_context_parallelism_come_back(seed: int, ahead: bool) -> None:
    """vLLM hits prefixes on the device up to a state inside a block that the ranks share; the host has whole blocks."""
    rig = ParallelRig(evolve(SHARED, async_scheduling=ahead), seed, parallel=Parallel(decode=2))
    assert rig.side.shape.geometry.block_tokens == (8, 4)
    walk(rig, seed)

    assert rig.verified > 0
    assert rig.loaded > 0


@pytest.mark.skipif(engine.MINOR >= 33, reason="taken from 0.33 on")
def test_states_with_decode_context_parallelism_are_refused_before() -> None:
    """There vLLM hits prefixes inside a block, which is not offered."""
    with pytest.raises(MisuseError, match=r"not offered before 0.33: .*\(use decode_context_parallel_size=1\)"):
        ParallelRig(SHARED, parallel=Parallel(decode=2))


def test_blocks_of_each_group_cover_the_tokens_of_all_ranks_once() -> None:
    """A group whose tokens are shared out has larger blocks and the same window; one that every rank has whole does not."""
    rig = ParallelRig(ROOMY, parallel=Parallel(decode=2))
    config = rig.engine.kv_cache_config
    groups = making.cache_of(
        engine.shape_of(evolve(ROOMY, groups=(GroupSpec("full", 36), GroupSpec("swa", 4, 16))))
    ).kv_cache_groups
    config.kv_cache_groups[:] = groups
    shared = geometry_of(config, rig.side.config, 2).groups
    if engine.MINOR < 31:  # there every group is shared out
        assert shared == (FullAttention(72), SlidingWindow(8, 16))
        return
    groups[1].kv_cache_spec = dataclasses.replace(groups[1].kv_cache_spec, dcp_sharded=False)
    whole = geometry_of(config, rig.side.config, 2).groups

    assert shared == (FullAttention(72), SlidingWindow(8, 16))
    assert whole == (FullAttention(72), SlidingWindow(4, 16))


# --- a scheduler in each worker ---------------------------------------------------------------------------------------------


def launched(number: int, *, ahead: bool, fails: Mapping[Direction, float] | None = None) -> list[tuple[object, ...]]:
    """What the scheduler of one worker decides, step by step: the traffic is that of all workers, the copies' time its own.

    So is its clock: a look at it takes as many minutes as the worker has a number.
    """
    extra = {"pending_wait_s": 5}
    spec = evolve(CROWDED, async_scheduling=ahead, lag=Lag(0, 6), num_gpu_blocks=20, extra_config=extra)
    parallel = Parallel(launcher="external_launcher", launched=2)
    rig = ParallelRig(spec, number, parallel=parallel, fails=fails)
    assert rig.side.ledger.limits.num_workers == 1
    minutes = itertools.count()
    rig.side._clock = lambda: 60.0 * number * next(minutes)
    decided: list[tuple[object, ...]] = []
    schedule = rig.scheduler.schedule

    def keep() -> object:
        found = schedule()
        new = [(each.req_id, each.block_ids, each.num_computed_tokens) for each in found.scheduled_new_reqs]
        old = found.scheduled_cached_reqs
        decided.append((dict(found.num_scheduled_tokens), new, list(old.req_ids), list(old.new_block_ids)))
        return found

    rig.scheduler.schedule = keep
    walk(rig, 8)
    assert rig.loaded > 0
    return decided


@AHEAD
def test_all_schedulers_of_an_external_launcher_decide_alike(ahead: bool) -> None:
    """However long copies take on each worker, the steps are the same: none ends before its copies."""
    assert launched(0, ahead=ahead) == launched(1, ahead=ahead)


def test_schedulers_decide_alike_because_copies_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: without the wait, the time that a copy takes on a worker decides what its scheduler does."""
    monkeypatch.setattr(ConnectorWorker, "_wait_in_step", lambda *_: None)

    assert launched(0, ahead=False) != launched(1, ahead=False)


def test_a_copy_that_fails_on_one_worker_stops_it() -> None:
    """With an external launcher nobody else hears of it: the schedulers would go different ways."""
    with pytest.raises(MisuseError, match=r"a copy failed on this worker, and with external_launcher the others do not hear"):
        launched(0, ahead=False, fails={Direction.STORE: 0.5})


def test_a_store_below_is_refused_with_an_external_launcher(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It answers each scheduler at its own time."""
    extra = {"below": f"fs:{tmp_path_factory.mktemp('below')}"}
    with pytest.raises(MisuseError, match="below with external_launcher is not offered"):
        ParallelRig(evolve(ROOMY, extra_config=extra), parallel=Parallel(launcher="external_launcher", launched=2))
