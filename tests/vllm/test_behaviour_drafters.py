"""What vLLM's tests of its offloading scheduler say about the layers of a drafter, said of our connector.

Goal: a hit whose next token is not known to be the same is not used, and no other hit is lost for it.
Method: the rig with vLLM's real scheduler; what was planned is read from the plans, and every byte is checked when it is read.
Which test of theirs each of these stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

import pytest

from blocklife.ledger import Direction
from tests.vllm.behaviour.scenes import Scene, prompt
from tests.vllm.worlds import GroupSpec

DRAFTER = GroupSpec("full", 4, drafter=True)


@pytest.mark.parametrize("group", [DRAFTER, GroupSpec("swa", 4, window=9, drafter=True)], ids=["full", "window"])
def test_lookup_asks_for_the_chunk_behind_its_limit(group: GroupSpec) -> None:
    """A prompt of four blocks is hit up to the third: the fourth, which is computed again in any case, is its proof."""
    scene = Scene((group,))
    names = scene.ask(prompt(16))
    scene.reset_device()
    scene.add(prompt(16))
    scene.drain()
    whole = scene.sizes(Direction.LOAD)
    scene.reset_device()
    scene.forget(names[3:])
    scene.add(prompt(16))
    scene.drain()
    without = scene.sizes(Direction.LOAD)

    assert whole == (3 if group.window is None else 2,)
    assert without == (2,)


@pytest.mark.parametrize("other", ["same", "different"])
def test_hit_ends_before_the_last_chunk_unless_the_next_token_is_known_to_be_the_same(other: str) -> None:
    """Two requests with three blocks in common and another fourth: two of them are loaded."""
    scene = Scene((DRAFTER,))
    scene.ask(prompt(20))
    scene.reset_device()
    scene.add(prompt(20) if other == "same" else prompt(12) + prompt(8, 900))
    scene.drain()

    assert scene.sizes(Direction.LOAD) == ((4,) if other == "same" else (2,))


def test_coarse_group_is_not_starved_by_the_drafter() -> None:
    """A group with blocks of sixteen tokens is hit at 16: the drafter's fifth block of four is the proof, and none is lost."""
    scene = Scene((GroupSpec("full", 16), DRAFTER))
    scene.ask(prompt(28))
    scene.reset_device()
    scene.add(prompt(28))
    scene.drain()

    assert scene.sizes(Direction.LOAD) == (1, 4)


def test_drafter_keeps_what_is_decoded_back_until_the_next_block_is_full() -> None:
    """The other group stores a block when it is full; at the end of the request both have all that is full."""
    scene = Scene((GroupSpec("full", 4), DRAFTER))
    scene.add(prompt(8), 14)
    seen = set()
    while scene.rig.step():
        seen.add(tuple(scene.sizes(Direction.STORE)))

    assert {(2, 2), (3, 2), (4, 3), (5, 4), (5, 5)} <= seen
    assert all(full - drafter in (0, 1) for full, drafter in seen)
