"""What vLLM's tests of its offloading scheduler say about stores, said of our connector.

Goal: what is full is stored once, when it is full, as a whole, under its own name; what is refused is tried again. Method: the
rig with vLLM's real scheduler; what was planned is read from the plans. Which test of theirs each of these stands for is in
`tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from blocklife.ledger import Direction
from blocklife.offload._host import Name
from tests.vllm.behaviour.scenes import FULL, ROOMY, WINDOW, Scene, prompt
from tests.vllm.connector_rig import configured
from tests.vllm.connector_worlds import AHEAD
from tests.vllm.worlds import GroupSpec


@AHEAD
@pytest.mark.parametrize(("answer", "blocks"), [(1, 3), (12, 3), (13, 6)])
def test_chunks_are_stored_when_they_are_full(answer: int, blocks: int, ahead: bool) -> None:
    """A chunk is stored when its last token was computed, and not one token before: the one that is sampled last never is."""
    scene = Scene(ahead=ahead, chunk=3)
    scene.ask(prompt(12), answer)

    assert scene.sizes(Direction.STORE) == (blocks,)


@AHEAD
def test_what_the_host_has_is_not_stored_again(ahead: bool) -> None:
    """Of a prompt whose first and last chunk the host has lost these two are stored again, and not the one between them."""
    scene = Scene(ahead=ahead, chunk=3)
    names = scene.ask(prompt(37))
    scene.reset_device()
    scene.forget([names[2], names[8]])
    scene.ask(prompt(37))
    stored = [scene.rig.side.ledger.slots.key(int(target) // 3) for each in scene.stores for target in each.target[::3]]

    assert scene.loads == []
    assert stored == [names[2], names[8]]


@pytest.mark.parametrize("chunk", [1, 3])
@AHEAD
def test_refused_store_is_tried_again(ahead: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no room is offered in each step until it does, each of which is counted, and then it is stored."""
    scene = Scene(ahead=ahead, chunk=chunk)
    tier, refused = scene.rig.side.tier, list[int]()
    reserve = tier.reserve

    def refuse(names: list[Name]) -> list[int] | None:
        if scene.rig.step_number < 4:
            refused.append(scene.rig.step_number)
            return None
        return reserve(names)

    monkeypatch.setattr(tier, "reserve", refuse)
    names = scene.ask(prompt(12), 8)
    counted = scene.rig.side.offload._stores.counts["refused"]

    assert set(refused) == {1, 2, 3}
    assert counted >= len(set(refused))
    assert scene.has(names) == ([0, 1, 2] if chunk == 1 else [2])


@AHEAD
def test_groups_with_blocks_of_two_sizes_are_stored_and_loaded_as_they_fill(ahead: bool) -> None:
    """Each group is stored in its own blocks, when they are full; a load brings what both have."""
    scene = Scene((FULL, GroupSpec("full", 16)), ahead=ahead)
    scene.ask(prompt(25))
    first = scene.sizes(Direction.STORE)
    scene.steps.clear()
    scene.ask(prompt(33))
    second = scene.sizes(Direction.STORE)
    scene.reset_device()
    scene.ask(prompt(33))

    assert first == (6, 1)
    assert second == (2, 1)
    assert scene.sizes(Direction.LOAD) == (8, 2)


@AHEAD
def test_groups_with_blocks_that_do_not_divide_each_other_are_loaded_up_to_where_both_end(ahead: bool) -> None:
    """Blocks of 12 and of 16 tokens: each group is stored as it fills; a hit ends where a block of both does."""
    scene = Scene((GroupSpec("full", 12), GroupSpec("full", 16)), ahead=ahead)
    stored = []
    for tokens in (25, 33, 37, 97):
        scene.ask(prompt(tokens))
        stored.append(scene.sizes(Direction.STORE))
    loaded = []
    for tokens in (48, 49, 86, 97):
        scene.reset_device()
        scene.steps.clear()
        scene.ask(prompt(tokens))
        loaded.append(scene.sizes(Direction.LOAD))

    assert stored == [(2, 1), (2, 2), (3, 2), (8, 6)]
    assert loaded == [(0, 0), (4, 3), (4, 3), (8, 6)]


@AHEAD
def test_chunk_with_a_hole_is_stored_when_it_is_whole(ahead: bool) -> None:
    """A chunk of a window that lacks a block behind a hit on the device is not stored; who computes it anew stores it."""
    scene = Scene((FULL, WINDOW), world=evolve(ROOMY, dense_retention=True), ahead=ahead, chunk=2)
    names = scene.ask(prompt(12))
    scene.forget(names[1:2], group=0)
    scene.forget(names[1:2], group=1)
    scene.steps.clear()
    scene.ask([*prompt(12), 7])
    with_a_hole = scene.sizes(Direction.STORE)
    scene.reset_device()
    scene.ask([*prompt(8), *prompt(5, start=5000)])

    assert with_a_hole == (2, 0)
    assert scene.sizes(Direction.STORE) == (0, 2)


@AHEAD
@pytest.mark.parametrize("retention", [None, 0, 32], ids=["dense", "none", "32"])
def test_window_has_all_that_a_hit_at_any_boundary_reads(
    retention: int | None, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever shares a prompt up to a block of the full group is served up to there: the window's end, and no more of it."""
    configured(monkeypatch, lambda config: setattr(config.cache_config, "prefix_cache_retention_interval", retention))
    scene = Scene((GroupSpec("full", 16), WINDOW), ahead=ahead)
    scene.ask(prompt(65))
    for boundary in (16, 32, 48, 64):
        scene.reset_device()
        scene.ask([*prompt(boundary), 7])

        assert scene.sizes(Direction.LOAD) == (boundary // 16, 2)


@AHEAD
@pytest.mark.parametrize(("aborted", "served"), [(False, 180), (True, 72)], ids=["whole", "aborted"])
def test_window_is_stored_across_the_parts_of_a_long_prompt(aborted: bool, served: int, ahead: bool) -> None:
    """A prompt that is computed in parts is served up to its last boundary; one that is given up, up to that of its part."""
    groups = (GroupSpec("full", 36), GroupSpec("swa", window=16))
    scene = Scene(groups, world=evolve(ROOMY, num_gpu_blocks=128, host_blocks=128, max_num_batched_tokens=100), ahead=ahead)
    scene.add(prompt(181), 4)
    scene.rig.step()
    if aborted:
        scene.rig.abort("r0")
    scene.drain()
    for boundary in range(36, served + 1, 36):
        scene.reset_device()
        scene.ask([*prompt(boundary), 7])

        assert scene.sizes(Direction.LOAD) == (boundary // 36, 4)


def test_block_without_a_name_waits_for_it() -> None:
    """A full block whose name is not known yet is not stored, and nothing else is under its name; later it is."""
    scene = Scene()
    name = scene.add(prompt(8), 4)
    request = scene.rig.scheduler.requests[name]
    connector = scene.rig.scheduler.connector
    build = connector.build_connector_meta
    stored = []

    def unnamed(output: object) -> object:
        missing = request.block_hashes.pop() if scene.rig.step_number < 3 else None
        try:
            return build(output)
        finally:
            if missing is not None:
                request.block_hashes.append(missing)

    connector.build_connector_meta = unnamed
    names = list(request.block_hashes)
    while scene.rig.step():
        stored.append(scene.sizes(Direction.STORE))

    assert stored[:3] == [(1,), (1,), (2,)]
    assert scene.has(names) == [0, 1]


@AHEAD
@pytest.mark.parametrize(("cap", "blocks"), [(None, 9), (0, 0), (24, 6), (30, 6)])
def test_cap_on_stores(cap: int | None, blocks: int, ahead: bool) -> None:
    """A cap on stores keeps the chunks that lie within it, and none of it means that nothing is stored."""
    scene = Scene(ahead=ahead, chunk=3, extra={} if cap is None else {"max_store_tokens": cap})
    scene.ask(prompt(36))

    assert scene.sizes(Direction.STORE) == (blocks,)
    assert scene.waited_for() == set()
