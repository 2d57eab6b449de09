"""What vLLM's tests of its offloading scheduler say about prefixes that end inside a block beside a drafter, said of ours.

Goal: what a prompt has behind its last full block is found again where layers of a drafter share the group of attention, and
only where the token behind it is known to be the same. Method: the rig with vLLM's real scheduler; what was planned is read
from the plans, and every byte is checked when it is read. There what a drafter keeps of a token depends on the next one, too.
Blocks of sixteen tokens, hashes of four. Which test of theirs each of these stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import evolve

from blocklife.ledger import Direction, Transfer
from blocklife.offload._lookup import Answer
from blocklife.offload._search import HostAnswers
from tests.vllm.behaviour.scenes import ROOMY, Scene, prompt
from tests.vllm.connector_rig import with_guesses
from tests.vllm.connector_worlds import AHEAD
from tests.vllm.worlds import GroupSpec

DRAFTER, STATE = GroupSpec("full", 16, drafter=True), GroupSpec("mamba", 16)
FINE = evolve(ROOMY, groups=(DRAFTER, STATE), hash_tokens=4)


@pytest.fixture(autouse=True)
def _guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines have a drafter, with layers of its own."""
    with_guesses(monkeypatch, "eagle")


def drafted(*, fine: bool = True, ahead: bool = False, **extra: str | int | float | bool) -> Scene:
    """A scene in which the layers of a drafter look one token ahead."""
    world = FINE if fine else evolve(FINE, hash_tokens=None)
    scene = Scene((DRAFTER, STATE), world=world, ahead=ahead, extra=extra, drafts=True)
    for rank in scene.rig.ranks:
        rank.forward.looks_ahead = True
    return scene


def hit(scene: Scene, tokens: Sequence[int], answer: int = 1) -> list[int]:
    """The host's part of each hit that vLLM was promised for one request."""
    ask, told = scene.rig.side.look_up, list[int]()

    def noted(request: object, device_tokens: int) -> int | None:
        found: int | None = ask(request, device_tokens)  # type: ignore[arg-type]
        told.extend([found] if found else [])
        return found

    scene.rig.side.look_up = noted  # type: ignore[method-assign]  # to listen
    scene.ask(tokens, answer)
    scene.rig.side.look_up = ask  # type: ignore[method-assign]
    return told


def read_by(scene: Scene, load: Transfer) -> set[tuple[int, bytes]]:
    """What a load reads, by group and name; to be asked before it has landed."""
    slots = scene.rig.side.ledger.slots
    groups = [group for group, size in enumerate(load.group_sizes) for _ in range(size)]
    return {(group, slots.key(int(slot)) or b"") for group, slot in zip(groups, load.source, strict=True)}


def loaded(scene: Scene, tokens: Sequence[int]) -> set[tuple[int, bytes]]:
    """What the one load of a request reads."""
    scene.steps.clear()
    scene.add(tokens)
    while not scene.loads:
        scene.rig.step()
    (load,) = scene.loads
    found = read_by(scene, load)
    scene.drain()
    return found


@AHEAD
@pytest.mark.parametrize(("fine", "tokens", "found"), [(True, 30, 24), (False, 46, 16)], ids=["hash", "block"])
def test_proof_of_a_tail_is_one_hash_and_that_of_a_block_one_block(fine: bool, tokens: int, found: int, ahead: bool) -> None:
    """Where vLLM hits inside blocks it drops one hash behind the hit; where it does not, one block. So does the host's hit."""
    scene = drafted(fine=fine, ahead=ahead)
    names = scene.ask(prompt(tokens))
    proof, size = (28, 4) if fine else (32, 16)
    kept = scene.has(names[proof // size - 1 : proof // size], 0)
    scene.reset_device()

    assert kept == [0]
    assert hit(scene, prompt(tokens)) == [found]


@AHEAD
def test_tail_of_a_drafter_is_stored_under_the_name_of_its_proof(ahead: bool) -> None:
    """Attention from the request's last block under the hash at 28, the state from its copy under that at 24."""
    scene = drafted(ahead=ahead)
    names = scene.ask(prompt(30))

    assert scene.has(names, 0) == [3, 6]
    assert scene.has(names, 1) == [5]
    assert scene.sizes(Direction.STORE) == (2, 1)


@pytest.mark.parametrize(("most", "stored"), [(24, []), (27, []), (28, [6]), (30, [6])])
def test_tail_of_a_drafter_is_stored_if_its_proof_may_be(most: int, stored: list[int]) -> None:
    """The proof is among what the key names: where 28 tokens of a request may be stored it is there, to its last token."""
    scene = drafted(max_store_tokens=most)
    names = scene.ask(prompt(30))

    assert scene.has(names[4:], 0) == [at - 4 for at in stored]


@AHEAD
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "aborted"])
def test_tail_of_a_drafter_is_not_stored_before_its_proof_is_computed(ends: bool, ahead: bool) -> None:
    """A request that is given up with 24 tokens computed leaves no tail; one that ends does."""
    scene = drafted(ahead=ahead)
    name = scene.add(prompt(30))
    names = list(scene.rig.scheduler.requests[name].block_hashes)
    while scene.rig.scheduler.requests[name].num_computed_tokens < 24:
        scene.rig.step()
    reached = scene.rig.scheduler.requests[name].num_computed_tokens
    if not ends:
        scene.rig.abort(name)
    scene.drain()

    assert reached == 24
    assert scene.has(names[6:7], 0) == ([0] if ends else [])


def test_tail_of_a_drafter_is_not_proven_by_what_is_decoded_where_prompts_are_stored() -> None:
    """A prompt of 26 tokens has a tail at 20, whose proof is in it, and none at 24, however much is decoded."""
    scene = drafted(prompt_only=True)
    name = scene.add(prompt(26), 12)
    request = scene.rig.scheduler.requests[name]
    scene.drain()
    names = list(request.block_hashes)

    assert len(names) >= 7
    assert scene.has(names[4:], 0) == [1]
    assert scene.has(names[4:], 1) == [0]


@AHEAD
@pytest.mark.parametrize("missing", [None, 6, 3], ids=["none", "proof", "block"])
def test_tail_of_a_drafter_is_loaded_with_the_block_before_it(missing: int | None, ahead: bool) -> None:
    """The hit at 24 needs the block before it, whose own proof was never computed, the proof at 28 and the state at 24."""
    scene = drafted(ahead=ahead)
    names = scene.ask(prompt(30))
    scene.reset_device()
    if missing is not None:
        scene.forget(names[missing : missing + 1], 0)
        assert hit(scene, prompt(30)) == []
        return

    assert loaded(scene, prompt(30)) == {(0, names[3]), (0, names[6]), (1, names[5])}
    assert scene.sizes(Direction.LOAD) == (2, 1)


@pytest.mark.parametrize("there", [True, False], ids=["there", "gone"])
def test_block_before_the_tail_of_a_drafter_is_asked_for_once(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lookup of whole blocks, and once for all tails behind it: 24, of which there is no state, and 20."""
    scene = drafted()
    names = scene.ask(prompt(26))
    scene.reset_device()
    if not there:
        scene.forget(names[3:4], 0)
    asked, answer, ask, held = list[tuple[int, bytes]](), scene.rig.side.tier.answer, scene.rig.side.look_up, HostAnswers.held

    def noted(group: int, key: bytes) -> Answer:
        asked.append((group, key))
        return answer(group, key)

    def scanned(self: HostAnswers, group: int, key: bytes, slot: int) -> int:
        asked.append((group, key))
        return held(self, group, key, slot)

    monkeypatch.setattr(scene.rig.side.tier, "answer", noted)
    monkeypatch.setattr(HostAnswers, "held", scanned)
    name = scene.add(prompt(30))
    told = ask(scene.rig.scheduler.requests[name], 0)
    seen = list(asked)
    scene.drain()

    assert told == (20 if there else 0)
    assert seen.count((0, names[3])) == (2 if there else 3)  # its name is the proof of the tail at 12, too
    assert seen.count((1, names[4])) == there


def test_tail_of_a_drafter_lies_behind_the_longest_hit_of_states() -> None:
    """States at 16 and at 36: the hit is that at 36, with the blocks at 16 and 32, and not with what lies behind them."""
    scene = drafted()
    scene.ask(prompt(22))
    scene.reset_device()
    scene.ask(prompt(42))
    scene.reset_device()
    names = scene.ask(prompt(62))
    scene.forget(names[13:14], 1)
    scene.reset_device()
    kept = scene.has(names, 1)

    assert kept == [3, 8]
    assert loaded(scene, prompt(62)) == {(0, names[3]), (0, names[7]), (0, names[9]), (1, names[8])}


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("whole", [True, False], ids=["at once", "in two steps"])
def test_prompt_of_a_drafter_comes_back_up_to_its_tail(whole: bool, ahead: bool) -> None:
    """Stored, ended and sent again: all but the last six tokens come from the host, however its steps were cut."""
    world = evolve(FINE, max_num_batched_tokens=48 if whole else 16)
    scene = Scene((DRAFTER, STATE), world=world, ahead=ahead, drafts=True)
    names = scene.ask(prompt(30))
    stored = {(group, names[at]) for group in (0, 1) for at in scene.has(names, group)}
    scene.reset_device()

    assert stored == {(0, names[3]), (0, names[6]), (1, names[5])}
    assert loaded(scene, prompt(30)) == stored


def test_tail_of_a_drafter_is_not_that_of_another_next_token() -> None:
    """Two prompts have 24 tokens in common: the second one is not given what depends on the 25th."""
    scene = drafted()
    scene.ask(prompt(30))
    scene.reset_device()

    assert hit(scene, prompt(24) + prompt(6, 900)) == []
    assert hit(scene, prompt(28) + prompt(2, 900)) == [24]


@pytest.mark.parametrize("loads", [False, True], ids=["computed", "loaded"])
def test_tail_of_a_drafter_is_stored_whether_or_not_its_request_has_loaded(loads: bool) -> None:
    """The device may forget it before the host does."""
    scene = drafted()
    scene.ask(prompt(24))
    scene.reset_device()
    if not loads:
        scene.rig.side.reset()
    told = hit(scene, prompt(30))
    scene.reset_device()

    assert told == ([20] if loads else [])
    assert hit(scene, prompt(30)) == [24]
