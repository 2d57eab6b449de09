"""vLLM's tiers below the host, under the watch: random traffic through its file-system tier, every byte compared."""

from __future__ import annotations

import pytest
from attrs import evolve

from blocklife.engines.vllm.watch import Options, Watch, WatchMode, attach
from tests.vllm.planted.play import Rest
from tests.vllm.rig import Rig
from tests.vllm.traffic import QUIET, Traffic
from tests.vllm.worlds import TIERED, Lag

STEPS = 250
RESETS = evolve(QUIET, arrival=0.7, repeat=0.7, reset=0.05, reset_connector=1.0)
"""The habits of traffic whose host tier is reset now and then."""


def played(name: str, seed: int, steps: int = STEPS) -> tuple[Rig, Watch]:
    """A run of random traffic under a strict watch, to the end."""
    world = TIERED[name]
    rig = Rig(world.spec, seed)
    watch = attach(rig.scheduler, Options(mode=WatchMode.STRICT))
    try:
        Traffic.drawn(rig, seed, RESETS if world.spec.file_threads else None, world=world).run(steps)
        rig.drain()
    finally:
        watch.close()
        rig.close()
    return rig, watch


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", TIERED)
def test_watch_is_silent_and_every_byte_is_right(name: str, seed: int) -> None:
    """What the engine reads, what the slots hold in the end, and what the files say."""
    rig, watch = played(name, seed)

    assert rig.corruptions == []
    assert rig.wrong_texts == []
    assert rig.verified > 500
    assert not Rest(rig).slot_is_wrong()
    assert watch.counts == {}
    assert watch.mirror.counts["tier jobs"] > 20
    assert watch.mirror.below is not None
    assert watch.mirror.below.left_behind() == []


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["below", "below-faults"])
def test_watch_that_comes_late_is_silent(name: str, seed: int) -> None:
    """Jobs of the tier, holds and content from before it are believed; every other run of steps is watched."""
    world = TIERED[name]
    rig = Rig(world.spec, seed)
    assert rig.disk is not None
    traffic = Traffic.drawn(rig, seed, None, world=world)
    jobs_out = 0
    try:
        for _ in range(8):
            traffic.run(15)
            jobs_out += len(rig.disk.manager._jobs)
            watch = attach(rig.scheduler, Options(mode=WatchMode.STRICT))
            traffic.run(15)
            assert watch.counts == {}
            watch.close()
        rig.drain()
    finally:
        rig.close()

    assert jobs_out > 4
    assert rig.corruptions == []


def test_files_are_written_and_read_again() -> None:
    """The traffic goes through the tier in both directions, and on a bad disk some of it fails."""
    rig, _ = played("below-faults", 0)

    assert rig.disk is not None
    assert rig.disk.threads is not None
    assert min(rig.disk.moved) > 20
    assert rig.disk.threads.failed > 5


def test_a_file_with_other_bytes_is_seen_by_the_check_itself() -> None:
    """The check of the files is not blind."""
    rig, _ = played("below", 1, 60)
    assert rig.disk is not None
    path = next(iter(rig.disk.files()))
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))

    assert Rest(rig).slot_is_wrong()


def test_ledger_pins_what_a_tier_reads_and_holds_nothing_at_rest() -> None:
    """A cascade is a demotion in the ledger, from its beginning to its report, and a promotion is one."""
    rig = Rig(evolve(TIERED["below"].spec, below=Lag(3, 3)), 0)
    watch = attach(rig.scheduler, Options(mode=WatchMode.STRICT))
    rig.add(list(range(100, 140)), 1)
    most = 0
    while rig.step():
        slots = watch.mirror.ledger.slots
        most = max(most, sum(slots.pins(slot) > 0 for slot in range(16)))
    watch.mirror.catch_up()
    rig.reset_prefix_cache()
    for start in (500, 600):
        rig.add(list(range(start, start + 40)), 1)
        rig.drain()
    rig.add(list(range(100, 140)), 1)
    rig.drain()
    watch.mirror.catch_up()

    assert watch.mirror.ledger.counts.moved["PROMOTE"] >= 5
    assert watch.mirror.ledger.counts.moved["DEMOTE"] >= 30
    assert most >= 4
    assert all(watch.mirror.ledger.slots.pins(slot) == 0 for slot in range(16))
    watch.close()
    rig.close()
