"""Host memory that is checked, under vLLM's scheduler: whatever happens to it, no request reads other bytes than were stored.

Method: the walks of the connector with `host_checksums`, in which bits of blocks that can be loaded turn over at random.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from attrs import evolve

from blocklife.engines.vllm.connector import _cache as cache
from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.engines.vllm.connector._metrics import BlocklifeStats
from blocklife.errors import MisuseError
from tests.behind.scenes import Scene
from tests.vllm.connector_rig import ConnectorRig, walk
from tests.vllm.connector_worlds import AHEAD, CROWDED, MODELS, ROOMY, ask, prompt
from tests.vllm.stage import play, scenes

SCENES = scenes(
    """
checked model=full|full_and_window|full_and_state ahead=* seed=1 world_size=2 host_checksums=yes late_fences=yes
    walk; then stored > 0 and loaded > 0
checked-in-chunks-on-ranks-that-share model=full ahead=* seed=2 world_size=4 alike=2 blocks_per_chunk=2 host_checksums=yes
    walk; then stored > 0 and loaded > 0
checked-within-steps model=full ahead=* seed=3 world_size=2 host_checksums=yes sync_load_budget_bytes=1GiB
    walk; then flushes["within the step"] > 0
checked-where-copies-fail model=full ahead=* seed=4 world_size=2 host_checksums=yes fails=load:0.2,store:0.2 recompute=yes
    walk; then ended["FAILED"] > 0
checked-from-below kind=below ahead=* world_size=2 alike=1|2 blocks_per_chunk=1|2 host_checksums=yes
    # what another engine has put there is summed when it comes
    ask 50 2; another; ask 50 2; then below.promoted > 0 and loaded > 0
""",
    {"world": "crowded"},
)


@pytest.mark.parametrize("scene", SCENES)
def test_checked_scene(scene: Scene, tmp_path: Path) -> None:
    """All is as without checks."""
    play(scene, tmp_path)


class Damaging(ConnectorRig):
    """A rig in which, between steps, a bit turns over in a block of host memory that nobody copies to or from."""

    damaged = 0

    def step(self) -> bool:
        """A step, and damage in every fourth."""
        slots, dice = self.side.ledger.slots, Random(f"{self.seed}/{self.step_number}")
        ready = [slot for slot in range(len(slots)) if slots.can_evict(slot)]
        if ready and dice.random() < 0.5:
            worker = dice.choice(self.ranks).worker
            assert worker is not None
            host, chunk = worker.connector.worker._host, self.spec.blocks_per_chunk
            place = dice.choice(ready) * chunk + dice.randrange(chunk)
            host.rows[place, dice.randrange(host.row_bytes)] ^= 1 << dice.randrange(8)
            self.damaged += 1
        return super().step()


@AHEAD
@pytest.mark.parametrize("alike", [1, 2])
@pytest.mark.parametrize("model", ["full", "full and window"])
def test_damage_is_found_before_anybody_reads_it(model: str, alike: int, ahead: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Requests compute what they would have loaded. Without the checks the same walk reads wrong bytes."""
    spec = evolve(CROWDED, groups=MODELS[model], world_size=2, alike=alike, async_scheduling=ahead)
    rig = Damaging(evolve(spec, extra_config={"host_checksums": True, "max_load_failures": 100}), seed=1)
    walk(rig, 1, 60)
    counted = sum("holds other bytes than were stored" in each.getMessage() for each in caplog.records)

    assert rig.damaged > 5
    assert rig.side.ledger.counts.ended["FAILED"] > 0
    assert counted > 0
    rig = Damaging(spec, seed=1)
    with pytest.raises(AssertionError, match="reads wrong bytes"):
        walk(rig, 1, 60)


def test_damage_is_counted() -> None:
    """By block and worker, once for each load that met it."""
    rig = ConnectorRig(evolve(ROOMY, world_size=2, extra_config={"host_checksums": True}))
    told = BlocklifeStats(data={})
    read = rig.scheduler.connector.get_kv_connector_stats

    def tell() -> BlocklifeStats | None:
        if (said := read()) is not None:
            told.aggregate(BlocklifeStats(data=said.data))
        return said  # type: ignore[no-any-return]  # vLLM's

    rig.scheduler.connector.get_kv_connector_stats = tell
    ask(rig, prompt(40))
    worker = rig.ranks[1].worker
    assert worker is not None
    worker.connector.worker._host.rows[:, 0] ^= 1
    rig.reset_prefix_cache()
    ask(rig, prompt(40))
    for _ in range(16):
        ask(rig, prompt(5, 900))

    assert told.data["vllm:kv_offload_host_damaged"] == {"": 9}


def test_checks_are_refused_where_schedulers_must_decide_alike() -> None:
    rig = ConnectorRig(ROOMY)
    parallel = rig.engine.config.parallel_config
    object.__setattr__(parallel, "distributed_executor_backend", "external_launcher")
    object.__setattr__(parallel, "world_size", 2)
    config = ConnectorConfig.read({"host_blocks": 8, "host_checksums": True})

    with pytest.raises(MisuseError, match="host_checksums with external_launcher is not offered"):
        cache.shape_of(rig.engine.config, rig.engine.kv_cache_config, config)
