"""What vLLM's tests of its offloading scheduler say about lookups and loads, said of our connector.

Goal: a hit is what a load can bring, no request loads what another one is loading, and none waits for what it cannot use.
Method: the rig with vLLM's real scheduler; what was planned is read from the plans, and every byte is checked when it is read.
Which test of theirs each of these stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

import pytest
from attrs import evolve
from vllm.v1.kv_cache_interface import KVCacheConfig

from blocklife.ledger import Direction
from blocklife.offload._lookup import Answer, Unit, common_length
from blocklife.offload._search import HostAnswers
from tests.proof.drivers.vllm import making
from tests.vllm.behaviour.scenes import FULL, ROOMY, WINDOW, Scene, prompt
from tests.vllm.connector_rig import ConnectorRig, walk
from tests.vllm.connector_worlds import AHEAD
from tests.vllm.worlds import GroupSpec, Lag


def test_uncertain_window_is_asked_for_no_other_units() -> None:
    """Where nobody knows yet, the scan of a window asks for each unit once more at most, and for none outside its range."""
    asked: list[int] = []

    def ask(_group: int, unit: int, _blocks: int) -> Answer:
        asked.append(unit)
        return Answer.RETRY

    found = common_length([Unit(tokens=1, window=1, tail=1, size=1)], 0, 3, ask)

    assert found.deferred
    assert set(asked) == {0, 1, 2}
    assert max(map(asked.count, asked)) <= 2


def keep_more(monkeypatch: pytest.MonkeyPatch, extra: int, *, drafter: bool) -> None:
    """In engines that are made from now on, the second group's window keeps so many tokens more."""
    cache_of = making.cache_of

    def keeping_more(shape: making.Shape) -> KVCacheConfig:
        made = cache_of(shape)
        object.__setattr__(made.kv_cache_groups[1].kv_cache_spec, "extra_retained_tokens", extra)
        object.__setattr__(made.kv_cache_groups[1], "is_eagle_group", drafter)
        return made

    monkeypatch.setattr(making, "cache_of", keeping_more)


@pytest.mark.parametrize(("extra", "blocks"), [(0, 2), (1, 2), (2, 3), (3, 3), (6, 4)])
def test_window_that_keeps_more_is_stored_and_loaded_with_it(extra: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 8 tokens in blocks of 4 that keeps more, as for a drafter with several modules: a hit reads that, too."""
    keep_more(monkeypatch, extra, drafter=False)
    scene = Scene((FULL, WINDOW))
    scene.ask(prompt(40))
    scene.reset_device()
    scene.steps.clear()
    scene.ask(prompt(40))
    walked = ConnectorRig(evolve(ROOMY, groups=(FULL, WINDOW), num_gpu_blocks=30, host_blocks=40, lag=Lag(0, 4)), extra)
    walk(walked, extra)

    assert scene.sizes(Direction.LOAD) == (9, blocks)
    assert walked.loaded > 0


@pytest.mark.parametrize("extra", [1, 3])
@pytest.mark.parametrize("chunk", [1, 2])
def test_window_of_a_drafter_that_keeps_more_is_stored_and_loaded_with_it(
    chunk: int, extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where the window's group has layers of a drafter: what vLLM leaves in the table is what is loaded."""
    keep_more(monkeypatch, extra, drafter=True)
    spec = evolve(ROOMY, groups=(FULL, WINDOW), num_gpu_blocks=30, host_blocks=40, lag=Lag(0, 4), blocks_per_chunk=chunk)
    walked = ConnectorRig(spec, extra)
    walk(walked, extra, 60)

    assert walked.loaded > 0


def on_its_way(monkeypatch: pytest.MonkeyPatch, content: tuple[int, bytes]) -> None:
    """From now on, a store brings this content to the host tier."""
    held = HostAnswers.held

    def scanned(self: HostAnswers, group: int, key: bytes, slot: int) -> int:
        return Answer.PENDING.code if (group, key) == content else held(self, group, key, slot)

    monkeypatch.setattr(HostAnswers, "held", scanned)


@pytest.mark.parametrize(
    ("left", "loads"),
    [("present", (12, 6)), ("missing", (4, 4)), ("pending", (0, 0))],
)
def test_window_reaches_into_the_chunk_on_its_left(left: str, loads: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that begins inside a chunk needs that chunk: without it the hit is shorter, and while it comes nobody loads."""
    scene = Scene((FULL, GroupSpec("swa", window=22)), chunk=4)
    names = scene.ask(prompt(49))
    scene.reset_device()
    middle = names[7]
    if left == "missing":
        scene.forget([middle], group=1)
    if left == "pending":
        on_its_way(monkeypatch, (1, middle))
    scene.add(prompt(49))
    scene.rig.step()

    assert scene.sizes(Direction.LOAD) == loads
    assert scene.rig.scheduler.running == []


def test_ready_prefix_does_not_wait_for_a_store_behind_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way behind a gap of a window cannot make the hit longer: the prefix before the gap is loaded at once."""
    scene = Scene((FULL, WINDOW))
    names = scene.ask(prompt(17))
    scene.reset_device()
    scene.forget(names[2:3], group=1)
    on_its_way(monkeypatch, (1, names[3]))
    scene.add(prompt(17))
    scene.rig.step()

    assert scene.sizes(Direction.LOAD) == (2, 2)


@AHEAD
@pytest.mark.parametrize("together", [False, True], ids=["a step later", "in one step"])
def test_same_prefix_is_loaded_once(ahead: bool, together: bool) -> None:
    """A request whose prefix another one is loading waits for that load, and takes it from the device."""
    scene = Scene(lag=Lag(6, 6), ahead=ahead)
    scene.ask(prompt(40))
    scene.reset_device()
    scene.add(prompt(40))
    if not together:
        scene.rig.step()
    scene.add(prompt(40))
    scene.drain()

    assert scene.sizes(Direction.LOAD) == (9,)
    assert len(scene.rig.finished) == 3


@AHEAD
def test_no_tokens_to_load_asks_nothing(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cap of no tokens on loads the host tier is not even asked, and what it has not is stored as always."""
    scene = Scene(ahead=ahead, chunk=3, extra={"max_load_tokens": 0})
    names = scene.ask(prompt(25))
    scene.reset_device()
    scene.forget(names[2::3])
    asked: list[object] = []
    monkeypatch.setattr(scene.rig.side.tier, "answer", lambda *question: asked.append(question))
    scene.ask(prompt(25))

    assert asked == []
    assert scene.loads == []
    assert scene.sizes(Direction.STORE) == (6,)


def test_cap_on_loads_counts_behind_the_device() -> None:
    """A cap on loads counts the tokens that are loaded, and not those that the device has."""
    scene = Scene(extra={"max_load_tokens": 8})
    scene.ask(prompt(40))
    scene.reset_device()
    scene.ask(prompt(17))
    scene.steps.clear()
    scene.add(prompt(40))
    scene.rig.step()
    (load,) = scene.loads
    table = scene.rig.scheduler.kv_cache_manager.get_block_ids("r2")[0]

    assert [table.index(block) for block in load.target] == [4, 5]


def test_cap_on_loads_rounds_down_to_chunks() -> None:
    """A cap that ends inside a chunk ends the load before that chunk."""
    scene = Scene(chunk=2, extra={"max_load_tokens": 12})
    scene.ask(prompt(40))
    scene.reset_device()
    scene.ask(prompt(40))

    assert scene.sizes(Direction.LOAD) == (2,)


@AHEAD
def test_chunk_in_the_middle_of_a_prompt_is_loaded(ahead: bool) -> None:
    """Where the device has the first chunk and the host the second, the second is loaded behind the first."""
    scene = Scene(ahead=ahead, chunk=3)
    names = scene.ask(prompt(37))
    scene.reset_device()
    scene.forget([names[8]])
    scene.ask(prompt(13))
    scene.steps.clear()
    scene.add(prompt(37))
    scene.rig.step()
    (load,) = scene.loads
    table = scene.rig.scheduler.kv_cache_manager.get_block_ids("r2")[0]

    assert [table.index(block) for block in load.target] == [3, 4, 5]
