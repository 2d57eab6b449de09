"""What vLLM's tests of its offloading scheduler say about states of Mamba layers, said of our connector.

Goal: a state is stored from the block that vLLM names, at the boundary that it names, and from no other; a hit ends where
there is a state; a block that holds one is not written while its store is out. Method: the rig with vLLM's real scheduler;
what vLLM hands over is noted beside the plans, and every state is checked when it is read. Which test of theirs each of these
stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from blocklife.ledger import Direction, Transfer
from tests.vllm.behaviour.scenes import FULL, ROOMY, STATE, Scene, prompt
from tests.vllm.connector_rig import configured
from tests.vllm.connector_worlds import AHEAD
from tests.vllm.worlds import GroupSpec, Lag


def states_of(transfer: Transfer) -> list[int]:
    """The blocks of the second group that a store reads."""
    return [int(block) for block in transfer.source[transfer.group_sizes[0] :]]


def handed_over(scene: Scene) -> list[tuple[int, int]]:
    """Note from now on the block and the boundary of every state that vLLM hands to the connector."""
    connector = scene.rig.scheduler.connector
    build = connector.build_connector_meta
    found: list[tuple[int, int]] = []

    def noted(output: object) -> object:
        state = getattr(output, "kv_connector_block_state", None)
        offloads = {} if state is None else state.boundary_state_offloads
        found.extend((block, boundary) for states in offloads.values() for _, block, boundary in states)
        return build(output)

    connector.build_connector_meta = noted
    return found


@AHEAD
def test_state_is_stored_from_the_block_that_was_handed_off(ahead: bool) -> None:
    """The store of a state reads the very block that vLLM has named, under the name of the boundary; attention is beside it."""
    scene = Scene((FULL, STATE), world=evolve(ROOMY, dense_retention=True), ahead=ahead)
    handed = handed_over(scene)
    names = scene.ask(prompt(33))
    ledger = scene.rig.side.ledger
    stored = [(block, target) for each in scene.stores for block, target in zip(each.source, each.target, strict=True)]
    keys = {(int(block), ledger.slots.key(int(target))) for block, target in stored if ledger.slots.group(int(target)) == 1}

    assert handed
    assert keys == {(block, names[boundary // 4 - 1]) for block, boundary in handed}
    assert scene.sizes(Direction.STORE) == (8, len(handed))


@AHEAD
def test_only_states_that_were_handed_off_are_stored(ahead: bool) -> None:
    """Blocks of states that vLLM has not named are in no store, although they are full by their number."""
    scene = Scene((FULL, STATE), ahead=ahead)
    handed = handed_over(scene)
    for start in (100, 5000):
        scene.ask(prompt(30, start), 7)
    read = [block for each in scene.stores for block in states_of(each)]

    assert len(read) == len(handed) > 0
    assert set(read) == {block for block, _ in handed}
    assert scene.sizes(Direction.STORE)[0] > len(read)


@AHEAD
def test_block_of_a_state_is_handed_out_behind_a_wait_for_its_store(ahead: bool) -> None:
    """Whoever gets the block of a state while its store is out gets it in a step that waits for the store first."""
    scene = Scene((FULL, STATE), world=evolve(ROOMY, num_gpu_blocks=16), lag=Lag(60, 60), ahead=ahead)
    handed = handed_over(scene)
    first = scene.add(prompt(33))
    names = list(scene.rig.scheduler.requests[first].block_hashes)
    while scene.rig.running:
        scene.rig.step()
    blocks = {block for block, _ in handed}
    jobs = {each.job.number for each in scene.stores if blocks & set(states_of(each))}
    second = scene.add(prompt(41, start=5000))
    taken: set[int] = set()
    while scene.rig.running:
        scene.rig.step()
        if second in scene.rig.scheduler.requests:
            taken.update(*scene.rig.scheduler.kv_cache_manager.get_block_ids(second))
    waits = scene.waited_for()
    scene.drain()

    assert jobs
    assert blocks & taken
    assert jobs & waits
    assert scene.has(names, group=1) == [boundary // 4 - 1 for _, boundary in handed if boundary <= 33]


@AHEAD
def test_hit_ends_at_the_last_state_that_is_there(ahead: bool) -> None:
    """All of the attention is in the host, and a state at one boundary only: the hit ends there, and loads just that state."""
    scene = Scene((FULL, STATE), world=evolve(ROOMY, dense_retention=True, max_num_batched_tokens=16), ahead=ahead)
    names = scene.ask(prompt(49))
    there = scene.has(names, group=1)
    scene.reset_device()
    scene.forget([names[at] for at in there[1:]], group=1)
    scene.ask(prompt(49))

    assert len(there) > 1
    assert scene.sizes(Direction.LOAD) == (there[0] + 1, 1)


@AHEAD
@pytest.mark.parametrize(("retention", "kept"), [(None, [4, 8, 12, 16]), (32, [8, 16]), (0, [16])], ids=["dense", "32", "none"])
def test_states_are_kept_where_vllm_keeps_them(
    retention: int | None, kept: list[int], ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interval of retention says which states of a prompt are handed over: these are stored, and a hit ends at each."""
    configured(monkeypatch, lambda config: setattr(config.cache_config, "prefix_cache_retention_interval", retention))
    scene = Scene((FULL, STATE), world=evolve(ROOMY, max_num_batched_tokens=16), ahead=ahead)
    names = scene.ask(prompt(65))
    stored = scene.has(names, group=1)
    hits = []
    for blocks in (16, 12, 8, 4):  # the longest first: what is computed behind a hit leaves states as well
        scene.reset_device()
        scene.ask([*prompt(blocks * 4), 7])
        hits.append(scene.sizes(Direction.LOAD)[0])

    assert [at + 1 for at in stored] == kept
    assert hits == [max([0, *(each for each in kept if each <= blocks)]) for blocks in (16, 12, 8, 4)]


@AHEAD
def test_load_behind_a_hit_on_the_device_fills_the_blocks_behind_it(ahead: bool) -> None:
    """With a hit on the device a load brings the rest of the attention and the last state, into blocks behind the hit."""
    scene = Scene((FULL, STATE), ahead=ahead)
    scene.ask(prompt(41))
    scene.reset_device()
    scene.ask(prompt(17))
    scene.steps.clear()
    name = scene.add(prompt(41))
    scene.rig.step()
    (load,) = scene.loads
    full, state = scene.rig.scheduler.kv_cache_manager.get_block_ids(name)
    targets = load.target.tolist()
    count = load.group_sizes[0]
    scene.drain()

    assert [full.index(block) for block in targets[:count]] == list(range(10 - count, 10))
    assert 0 < count < 10
    assert [state.index(block) for block in targets[count:]] == [9]


@AHEAD
def test_prompt_with_states_is_served_up_to_its_last_state(ahead: bool) -> None:
    """What a request has stored serves the next one with the same prompt up to the last boundary that has a state."""
    scene = Scene((GroupSpec("full", 16), GroupSpec("mamba", 16)), ahead=ahead)
    scene.ask(prompt(28), 2)
    scene.reset_device()
    scene.ask(prompt(28), 2)

    assert scene.sizes(Direction.LOAD) == (1, 1)
