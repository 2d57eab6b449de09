"""What vLLM's tests of its offloading scheduler say about prefixes that end inside a block beside a drafter, said of ours.

Goal: what a prompt has behind its last full block is found again where layers of a drafter share the group of attention, and
only where the token behind it is known to be the same. Method: the rig with vLLM's real scheduler; what was planned is read
from the plans, and every byte is checked when it is read. There what a drafter keeps of a token depends on the next one, too.
Blocks of sixteen tokens, hashes of four. Which test of theirs each scene stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

import pytest

from blocklife.offload._lookup import Answer
from blocklife.offload._search import HostAnswers
from tests.behind.scenes import Scene
from tests.vllm.stage import made, play, scenes

DRAFTED = {"groups": "full:16+drafter/mamba:16", "hash_tokens": "4", "guesses": "eagle", "looks_ahead": "yes"}
SCENES = scenes(
    """
proof-of-a-tail-is-one-hash ahead=*
    # where vLLM hits inside blocks it drops one hash behind the hit, and so does the host's hit
    ask 30; then has(hashes[6:7]) == [0]; reset_device; ask 30; then hits == [24]
proof-of-a-block-is-one-block ahead=* hash_tokens=none
    # where it does not, one block
    ask 46; then has(hashes[1:2]) == [0]; reset_device; ask 46; then hits == [16]
tail-is-stored-under-the-name-of-its-proof ahead=*
    # attention from the request's last block under the hash at 28, the state from its copy under that at 24
    ask 30; then has() == [3, 6] and has(None, 1) == [5] and store_sizes == (2, 1)
tail-is-stored-if-its-proof-may-be max_store_tokens=24|27|28|30
    # the proof is among what the key names
    ask 30; then has(hashes[4:]) == ([2] if {max_store_tokens} >= 28 else [])
tail-is-stored-when-its-proof-is-computed ahead=*
    add 30; note names hashes; until requests["r0"].num_computed_tokens >= 24; then requests["r0"].num_computed_tokens == 24
    drain; then has(names[6:7]) == [0]
tail-is-not-stored-before-its-proof-is-computed ahead=*
    # a request that is given up with 24 tokens computed leaves none
    add 30; note names hashes; until requests["r0"].num_computed_tokens >= 24; then requests["r0"].num_computed_tokens == 24
    abort r0; drain; then has(names[6:7]) == []
tail-is-not-proven-by-what-is-decoded-where-prompts-are-stored prompt_only=yes
    # a prompt of 26 tokens has a tail at 20, whose proof is in it, and none at 24, however much is decoded
    add 26 12; note request requests["r0"]; drain; note names list(request.block_hashes)
    then len(names) >= 7 and has(names[4:]) == [1] and has(names[4:], 1) == [0]
tail-is-loaded-with-the-block-before-it ahead=*
    # whose own proof was never computed, the proof at 28 and the state at 24
    ask 30; reset_device; add 30; until loads; then read == {(0, hashes[3]), (0, hashes[6]), (1, hashes[5])}; drain
    then load_sizes == (2, 1)
tail-without-its-proof-or-the-block-before-it-is-not-loaded ahead=* $gone=6|3
    ask 30; reset_device; forget {gone}; ask 30; then hits == []
tail-lies-behind-the-longest-hit-of-states
    # states at 16 and at 36: the hit is that at 36, with the blocks at 16 and 32, and not with what lies behind them
    ask 22; reset_device; ask 42; reset_device; ask 62; forget 13 1; reset_device; then has(None, 1) == [3, 8]
    add 62; until loads; then read == {(0, hashes[3]), (0, hashes[7]), (0, hashes[9]), (1, hashes[8])}; drain
prompt-comes-back-up-to-its-tail ahead=* max_num_batched_tokens=48|16 looks_ahead=no
    # all but its last six tokens come from the host, however its steps were cut
    ask 30; note kept {(group, hashes[at]) for group in (0, 1) for at in has(None, group)}; reset_device
    then kept == {(0, hashes[3]), (0, hashes[6]), (1, hashes[5])}; add 30; until loads; then read == kept; drain
tail-is-not-that-of-another-next-token
    # two prompts have 24 tokens in common: the second one is not given what depends on the 25th
    ask 30; reset_device; ask 24+6@900; then hits == []; anew; ask 28+2@900; then hits == [24]
tail-of-a-request-that-has-computed-is-stored
    # the device may forget it before the host does
    ask 24; reset_device; reset_host; ask 30; then hits == []; reset_device; ask 30; then hits == [24]
tail-of-a-request-that-has-loaded-is-stored
    ask 24; reset_device; ask 30; then hits == [20]; reset_device; ask 30; then hits == [24]
""",
    DRAFTED,
)


@pytest.mark.parametrize("scene", SCENES)
def test_tail_scene(scene: Scene) -> None:
    """As their test of that name, or those that the table names."""
    play(scene)


@pytest.mark.parametrize("there", [True, False], ids=["there", "gone"])
def test_block_before_the_tail_of_a_drafter_is_asked_for_once(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lookup of whole blocks, and once for all tails behind it: 24, of which there is no state, and 20."""
    scene = made(**DRAFTED)
    names = scene.ask(26)
    scene.reset_device()
    if not there:
        scene.forget(names[3:4])
    asked, answer, held = list[tuple[int, bytes]](), scene.rig.side.tier.answer, HostAnswers.held

    def noted(group: int, key: bytes) -> Answer:
        asked.append((group, key))
        return answer(group, key)

    def scanned(self: HostAnswers, group: int, key: bytes, slot: int) -> int:
        asked.append((group, key))
        return held(self, group, key, slot)

    monkeypatch.setattr(scene.rig.side.tier, "answer", noted)
    monkeypatch.setattr(HostAnswers, "held", scanned)
    told = scene.rig.side.look_up(scene.requests[scene.add(30)], 0)
    seen = list(asked)
    scene.drain()

    assert told == (20 if there else 0)
    assert seen.count((0, names[3])) == (2 if there else 3)  # its name is the proof of the tail at 12, too
    assert seen.count((1, names[4])) == there
