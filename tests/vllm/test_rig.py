"""Goal: what the rig calls clean is clean, and what it calls corrupt is.

Method: traffic without pressure under the release that is here; single requests with one fault planted below vLLM; then random
traffic, which must show the faults that a release is known to have and no others.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.behind.worlds import known
from tests.vllm.device import Copy
from tests.vllm.drive import judge
from tests.vllm.engine import RELEASE
from tests.vllm.rig import GroupSpec, Lag, Rig, WorldSpec
from tests.vllm.traffic import QUIET, Traffic
from tests.vllm.worlds import WORLDS, Connector

FULL, WINDOW, STATE = GroupSpec("full"), GroupSpec("swa", window=8), GroupSpec("mamba")
GROUPS = {"full": (FULL,), "window": (WINDOW,), "hybrid": (FULL, WINDOW), "states": (FULL, STATE)}
ROOMY = WorldSpec(num_gpu_blocks=600, host_blocks=1200, lag=Lag(0, 3))


def impossible(groups: str, chunk: int, connector: Connector) -> str | None:
    """Why this release cannot run such a world, if it cannot."""
    if connector == "simple" and (groups == "window" or chunk > 1):
        return "SimpleCPUOffload needs a full-attention group and knows no chunks"
    if groups == "states" and RELEASE in ("0.21.0", "0.22.1"):
        return "no loads into models with states"
    if groups == "states" and RELEASE == "0.23.0" and connector == "offloading":
        return "a full hit counts a state that is not there"
    if groups in ("window", "hybrid") and chunk > 1 and RELEASE == "0.21.0":
        return "group sizes count null blocks"
    return None


@pytest.mark.sampled(pairs=True)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("groups", sorted(GROUPS))
@pytest.mark.parametrize("connector", ["offloading", "simple"])
def test_rig_with_room_for_all_sees_nothing_wrong(
    connector: Connector, groups: str, chunk: int, workers: int, asynchronous: bool
) -> None:
    """Without memory pressure all requests end, with their own text, and every block read holds what it should."""
    if reason := impossible(groups, chunk, connector):
        pytest.skip(f"{RELEASE}: {reason}")
    spec = evolve(
        ROOMY,
        groups=GROUPS[groups],
        blocks_per_chunk=chunk,
        world_size=workers,
        async_scheduling=asynchronous,
        connector=connector,
    )
    rig = Rig(spec, seed=7)
    traffic = Traffic.drawn(rig, 7, QUIET)
    for _ in range(3):
        traffic.run(60)
        rig.drain()
        rig.reset_prefix_cache()
    copies = rig.ranks[-1].copies

    assert [str(each) for each in rig.corruptions] == []
    assert rig.wrong_texts == []
    assert not rig.running
    assert len(rig.finished) == len(rig.texts) > 50
    assert copies.stores > 0
    assert copies.loads > 0 or chunk > 1 or RELEASE != "0.33.0"
    assert rig.ranks[-1].verified > 1000


def _ask(rig: Rig, prompt: list[int], answer: int = 1) -> None:
    rig.add(prompt, answer)
    rig.drain()


def test_rig_sees_a_copy_that_took_the_wrong_block() -> None:
    """One store whose sources are swapped shows when the blocks are loaded and read."""
    rig = Rig(ROOMY)

    def swap(copy: Copy) -> None:
        if copy.is_store:
            copy.sources = copy.sources[::-1].copy()

    rig.ranks[0].copies.tamper = swap
    prompt = list(range(100, 121))
    _ask(rig, prompt)
    assert not rig.corruptions
    rig.reset_prefix_cache()
    _ask(rig, prompt)

    assert {each.request for each in rig.corruptions} == {"r1"}
    assert {each.position for each in rig.corruptions} == {0, 4, 8, 12, 16} - {8}, "the middle one of five stays in place"


def test_rig_sees_a_block_that_was_handed_out_too_early() -> None:
    """A block that goes back to the pool while a request holds it shows as soon as another request writes it."""
    rig = Rig(evolve(ROOMY, num_gpu_blocks=16))
    first = rig.add(list(range(100, 121)), 20)
    rig.step()
    manager = rig.scheduler.kv_cache_manager
    held = manager.coordinator.single_type_managers[0].req_to_blocks[first][2]
    manager.block_pool.free_blocks([held])
    rig.add(list(range(500, 530)), 4)
    rig.add(list(range(700, 716)), 4)
    for _ in range(6):
        rig.step()

    assert {(each.request, each.position, each.block) for each in rig.corruptions} >= {(first, 8, held.block_id)}


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_rig_sees_a_flush_that_is_not_waited_for(lost: bool) -> None:
    """A store in flight when its block gets a new tenant brings the wrong bytes, unless the flush is waited for."""
    rig = Rig(evolve(ROOMY, num_gpu_blocks=7, max_num_batched_tokens=16, lag=Lag(6, 6)))
    copies, waited = rig.ranks[0].copies, list[int]()
    wait = copies.wait

    def note(names: set[int]) -> None:
        waited.extend(names)
        if not lost:
            wait(names)

    copies.wait = note  # type: ignore[method-assign,assignment]
    prompt = list(range(100, 117))
    rig.add(prompt, 1)
    rig.step()
    rig.step()
    _ask(rig, list(range(500, 522)))
    rig.drain()
    rig.reset_prefix_cache()
    _ask(rig, prompt)

    assert waited, "no flush was asked for"
    assert bool(rig.corruptions) is lost


def test_rig_sees_a_torn_copy() -> None:
    """A load that lands after its request reads finds the half of it that was moved at its start, and misses the other."""
    rig = Rig(evolve(ROOMY, lag=Lag(3, 3)))
    prompt = list(range(100, 133))
    _ask(rig, prompt)
    rig.reset_prefix_cache()
    copies = rig.ranks[0].copies
    real = copies.poll

    def early() -> list[int]:
        """Report what is out as landed without moving the rest of it."""
        names = [copy.name for queue in copies.queues.values() for copy in queue]
        for queue in copies.queues.values():
            queue.clear()
        return real() + names

    copies.poll = early  # type: ignore[method-assign]
    _ask(rig, prompt)

    assert 0 < len(rig.corruptions) < 8


def test_rig_does_the_same_for_the_same_seed() -> None:
    """Two runs of a seed agree in every figure and every corruption; another seed does something else."""
    world = WORLDS["hybrid"]
    first, second, other = (judge("hybrid", world, seed, 150) for seed in (3, 3, 4))

    assert first == second
    assert first != other


def test_rig_refuses_stores_as_it_is_told() -> None:
    """With all stores refused nothing reaches the host, and the requests end as without a host."""
    rig = Rig(ROOMY)
    rig.refuse = True
    _ask(rig, list(range(100, 140)), 8)

    assert rig.refused > 0
    assert rig.ranks[0].copies.stores == 0
    assert len(rig.finished) == 1


def test_rig_aborts_while_the_workers_have_the_step() -> None:
    """An abort that comes while a step runs ends the request at that step's output, and nothing of it is left."""
    rig = Rig(evolve(ROOMY, async_scheduling=True, lag=Lag(2, 2)))
    name = rig.add(list(range(100, 160)), 50)
    for _ in range(4):
        rig.step()
    rig.abort(name, late=True)
    rig.drain()

    assert not rig.running
    assert name not in rig.finished
    assert rig.idle


def test_rig_hands_its_scheduler_to_an_observer_before_the_first_request() -> None:
    """The hook is called once, with vLLM's scheduler, before anything was scheduled."""
    seen: list[tuple[object, int]] = []
    rig = Rig(ROOMY, on_scheduler=lambda scheduler: seen.append((scheduler, len(scheduler.requests))))

    assert seen == [(rig.scheduler, 0)]


SEEDS = range(6)
KNOWN = known("vllm")["worlds"]
"""What goes wrong in which world in releases with known faults; elsewhere these worlds are clean."""


@pytest.mark.parametrize("world", ["full", "window", "chunks", "simple"])
def test_drive_finds_the_known_faults_of_a_release_and_no_others(world: str) -> None:
    """Most seeds of a world show the fault that a release has, and all are clean where it is mended."""
    verdicts = [judge(world, WORLDS[world], seed, 400) for seed in SEEDS]
    lines = "\n".join(str(each) for each in verdicts)
    fault = KNOWN.get(RELEASE, {}).get(world)
    showing = {
        None: sum(not each.clean for each in verdicts),
        "left behind": sum(each.left_behind > 0 for each in verdicts),
        "corrupt": sum(bool(each.corruptions or each.raised) for each in verdicts),
        "raised": sum(each.raised is not None for each in verdicts),
        "stored twice": sum(each.stored_twice > 0 for each in verdicts),
    }[fault]

    assert showing > len(SEEDS) // 2 if fault else showing == 0, lines
