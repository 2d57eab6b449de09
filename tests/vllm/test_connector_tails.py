"""Prefixes that end inside a block, under vLLM's real scheduler, every byte checked whenever it is read.

Goal: where vLLM's hashes are of fewer tokens than a block, what a prompt has behind its last full block is found again, and
nobody reads what was written behind it. Method: as in `test_connector`. Blocks of eight tokens and hashes of two, a group of
full attention and one or two of states; layers of a drafter in that of attention, or in one of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve
from vllm.v1.core.sched.output import SchedulerOutput

from blocklife.engines.vllm.connector._known import KnownRequests
from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler
from blocklife.engines.vllm.connector._shapes import VllmRequest
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import BlocklifeError, MisuseError
from blocklife.ledger.views import block_of
from blocklife.offload import EnginePool
from blocklife.offload._asking import Asking
from blocklife.offload._lookup import Answer
from blocklife.offload._search import Search
from blocklife.offload._state import Tracked
from blocklife.offload._steps import SchedulerSteps
from blocklife.offload.records import TailKeys
from tests.behind.scenes import Scene
from tests.vllm.below_rig import BelowRig
from tests.vllm.connector_rig import ConnectorRig, walk, with_guesses
from tests.vllm.connector_worlds import AHEAD, WORLDS, prompt
from tests.vllm.mend_copies import mend_copies
from tests.vllm.rig import Rig
from tests.vllm.stage import made, play, scenes
from tests.vllm.worlds import GroupSpec, WorldSpec

FULL, STATE = GroupSpec("full", 8), GroupSpec("mamba", 8)
CROWDED = evolve(WORLDS["tails"], groups=(FULL, STATE))
ROOMY = WorldSpec((FULL, STATE), num_gpu_blocks=64, host_blocks=96, hash_tokens=2)
pytestmark = pytest.mark.skipif(not release().keeps_tails, reason="before 0.33 hits inside a block are refused")


TAILS = {"groups": "full:8/mamba:8", "hash_tokens": "2"}
SCENES = scenes(
    """
prompt-is-found-up-to-its-last-hash of=tails model=full_and_state|two_of_each ahead=* lag=0-3 $answer=1|12
    # all but its last tokens are loaded, whether its request has ended inside the block or behind it
    ask 30 {answer}; reset_device; ask 30 3; then promised[-1] == 28
    then load_sizes == tuple(4 if each.kind == "full" else 1 for each in spec.groups)
tail-is-stored-from-where-nobody-writes of=tails model=full_and_state|two_of_each ahead=*
    # states from the blocks that vLLM has copied them to; attention from the request's own last block, when it has ended
    add 30; note key hashes[13]; until requests["r0"].num_computed_tokens >= 28
    note own [table("r0", group)[-1] for group in range(groups)]; drain
    note copied dict(each for store in stores for each in zip(store.target.tolist(), store.source.tolist(), strict=True))
    note states {group: block for group, block, at in handed if at == 28}
    note found [copied[side.tier.slot_of(group, key)] for group in range(groups)]
    then found == [states.get(group, own[group]) for group in range(groups)]
    then states and all(block != own[group] for group, block in states.items())
load-ends-with-the-tails-in-the-last-blocks ahead=*
    # of attention whole blocks and the tail behind them, of the states the one at its end
    ask 30; reset_device; add 30 3; step; then loads[0].target.tolist() == [*table("r1")[:4], table("r1", 1)[3]]
    then [ledger.slots.key(int(slot)) for slot in loads[0].source] == [hashes[at] for at in (3, 7, 11, 13, 13)]
    then loads[0].group_sizes == (4, 1); drain; then len(loads) == 1
tail-is-loaded-between-two-steps ahead=* sync_load_budget_bytes=1099511627776
    # with a budget for loads within a step, too: such a load would come behind the copy of the state, so the request waits
    ask 30; reset_device; add 30 3; until loads; then requests["r1"].status.name == "WAITING_FOR_REMOTE_KVS"
    then loads[0].target.tolist() == [*table("r1")[:4], table("r1", 1)[3]] and loads[0].group_sizes == (4, 1); drain
    then not [job for each in steps for plan in each.plans for job in plan.within]
tail-on-the-device-needs-no-load ahead=* max_store_tokens=999|0
    # the device has a prefix that ends inside a block, too: it is copied, and each request writes in its own block
    ask 30; note copied copies; add 28+4@7 9; add 28+4@7 9; drain; then loads == [] and copies - copied >= 4
longer-tail-of-the-host-replaces-that-of-the-device ahead=*
    # the device ends inside a block at one boundary, the host at a later one: all of the block is loaded
    ask 30; reset_device; ask 27; forget 12; anew; ask 30; then promised == [4] and load_sizes == (1, 1)
tail-is-found-behind-a-block-without-a-state guesses=mtp
    # a drafter that shares the model's layers is in no group, and vLLM keeps states as if it were: at 16 and 28, not at 24
    ask 31; reset_device; ask 31 3; then has(None, 1) == [7, 13] and promised[-1] == 28
tail-of-a-drafter-needs-the-token-behind-it ahead=* groups=full:8+drafter/mamba:8 guesses=eagle looks_ahead=yes
    # what its layers keep of the tail's last token was computed from another one: nothing of the last block is loaded
    ask 30; reset_device; ask 28+4@7; then promised == [16]
""",
    {"since": "33", **TAILS},
)


@pytest.mark.parametrize("scene", SCENES)
def test_tail_scene(scene: Scene) -> None:
    """A small story, each with one thing that could go wrong in it."""
    play(scene)


@AHEAD
def test_target_of_a_copy_is_written_behind_a_wait_for_its_store(ahead: bool) -> None:
    """Blocks that vLLM copies to are handed out like others: a store that still reads one is waited for first."""
    scene = made(**TAILS, num_gpu_blocks="12", lag="60", ahead="yes" if ahead else "no")
    scene.ask(30)
    targets: set[int] = set()
    connector, build = scene.rig.scheduler.connector, scene.rig.scheduler.connector.build_connector_meta
    waited: list[tuple[int, set[int]]] = []
    reads: dict[int, set[int]] = {}

    def noted(output: SchedulerOutput) -> object:
        targets.update(copied := {copy.dst_block_id for copy in output.kv_cache_block_copies or ()})
        metadata = build(output)
        for plan in metadata.step.plans:
            reads.update({each.job.number: set(each.source.tolist()) for each in plan.stores})
            waited.extend((job.number, copied & reads.get(job.number, set())) for job in plan.flushes)
        return metadata

    connector.build_connector_meta = noted
    for start in range(1000, 12_000, 1000):
        scene.add(f"{27 + start // 1000}@{start}")
        while scene.rig.running:
            scene.rig.step()
    scene.drain()

    assert any(blocks for _, blocks in waited)


def test_states_of_another_block_size_are_refused() -> None:
    """vLLM ends steps at blocks of attention then, inside those of the states, and names states that it has not."""
    with pytest.raises(MisuseError, match=r"group 1 has states of 16 tokens, and vLLM cuts prompts at blocks of 4"):
        ConnectorRig(evolve(ROOMY, groups=(GroupSpec("full", 4), GroupSpec("mamba", 16)), hash_tokens=None))


def test_tail_is_of_the_tier_that_it_comes_from() -> None:
    """vLLM is told of every token that a load brings, also of those behind the last full block."""
    sources = pytest.importorskip("vllm.v1.metrics.cache_hit_source", reason="before 0.32 hits have no sources")
    scene = made(**TAILS)
    scene.ask(30)
    scene.reset_device()
    request = scene.requests[scene.add(30, 3)]
    scene.step()
    found = scene.rig.scheduler.connector.get_external_cache_hit_sources(request, 28)
    scene.drain()

    assert found == {sources.CacheHitSource.HOST: 28}


@AHEAD
def test_session_leaves_no_tails(ahead: bool) -> None:
    """Nor does it go wrong where vLLM copies for it."""
    rig = ConnectorRig(evolve(CROWDED, async_scheduling=ahead), 9)
    for turn in range(4):
        rig.part("s", prompt(11 + 3 * turn, 500 * turn), 5)
        rig.add(prompt(30), 4)
        while rig.running - {"s"}:
            rig.step()
            rig.check()
        for _ in range(30):
            rig.step()
            rig.check()
    rig.engine.abort(["s"])
    rig.drain()
    rig.check_empty()

    assert rig.stored > 0


# --- beside others ----------------------------------------------------------------------------------------------------------


def promises(side: ConnectorScheduler) -> list[int]:
    """How many tokens each load brings that was promised to vLLM from now on."""
    ask, told = side.look_up, list[int]()

    def noted(request: VllmRequest, device_tokens: int) -> int | None:
        found = ask(request, device_tokens)
        told.extend([found] if found else [])
        return found

    side.look_up = noted  # type: ignore[method-assign]  # to listen
    return told


@AHEAD
def test_connector_walks_with_tails_and_a_store_below(ahead: bool, tmp_path: Path) -> None:
    """Whole blocks go below and come back; tails are in the host tier alone, where they are found all the same."""
    spec = evolve(CROWDED, async_scheduling=ahead, host_blocks=40)
    check_tails_of_two_engines(spec, tmp_path, seeds=4)


def check_tails_of_two_engines(spec: WorldSpec, folder: Path, seeds: int, *, drafts: bool = False) -> None:
    """Two engines walk, one after the other, over one store: content goes below and comes back, and tails are found."""
    tails = promoted = 0
    for seed in range(seeds):
        for turn in range(2):
            rig = BelowRig(spec, f"fs:{folder / str(seed)}", seed, keeps_up=True, drafts=drafts)
            told = promises(rig.side)
            walk(rig, seed, 40, resets=bool(turn))
            tails += sum(1 for each in told if each % 8)
            promoted += rig.below.promoted
            assert turn or rig.below.demoted > 0
            rig.close()

    assert tails > 0
    assert promoted > 0


# --- beside a drafter -------------------------------------------------------------------------------------------------------

DRAFTER = GroupSpec("full", 8, drafter=True)
DRAFTED = {"shared": (DRAFTER, STATE), "own": (FULL, STATE, DRAFTER), "two of states": (DRAFTER, STATE, STATE)}
GUESSED = evolve(CROWDED, groups=DRAFTED["shared"], num_gpu_blocks=60)


@AHEAD
def test_connector_walks_with_tails_of_a_drafter_and_a_store_below(
    ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full blocks come back from below, and serve as tails of prompts that end inside them."""
    with_guesses(monkeypatch, "eagle")
    mend_copies(monkeypatch)
    spec = evolve(GUESSED, async_scheduling=ahead, host_blocks=40)
    check_tails_of_two_engines(spec, tmp_path, seeds=3, drafts=True)


def test_attention_copied_in_the_step_that_fills_it_is_wrong_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any connector, and why `mend_copies` is there: the copy is made before the forward pass that it is a copy of."""
    wrong = []
    for mended in (False, True):
        if mended:
            mend_copies(monkeypatch)
        rig = Rig(evolve(ROOMY, connector=None))
        rig.add(prompt(14), 1)
        while rig.running:
            rig.step()
        fresh = rig.add(prompt(40), 2)
        rig.scheduler.requests[fresh].skip_reading_prefix_cache = True
        rig.add(prompt(21), 2)
        while rig.running:
            rig.step()
        wrong.append(rig.corrupt > 0)

    assert wrong == [True, False]


# --- controls ---------------------------------------------------------------------------------------------------------------


def key_without_proof(_self: SchedulerSteps, tracked: Tracked, group: int, end: int) -> bytes | None:
    """A tail of a drafter under the name of its own end."""
    return None if tracked.tails is None else tracked.tails(group, end)


def asked_without_proof(self: Search, names: Sequence[Sequence[bytes]], tails: TailKeys, group: int, end: int) -> bytes | None:
    """The same in a lookup."""
    return tails(group, end - self._geometry.tail_proofs[group])


def test_tail_of_a_drafter_without_its_proof_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: stored and found under the name of its own end, it is read by a request that goes on differently."""
    monkeypatch.setattr(Search, "_tail_key", asked_without_proof)
    monkeypatch.setattr(Asking, "tail_key_of", key_without_proof)

    scene = made(groups="full:8+drafter/mamba:8", hash_tokens="2", guesses="eagle", looks_ahead="yes")
    scene.ask(30)
    scene.reset_device()

    with pytest.raises(AssertionError, match="reads wrong bytes"):
        scene.ask("28+4@7")


def test_tail_whose_block_before_is_gone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is found although the host tier has not that block, and its load has nothing to read."""
    scene, found = made(groups="full:8+drafter/mamba:8", hash_tokens="2", guesses="eagle"), list[int | None]()
    names = scene.ask(14)
    for there in (True, False):
        scene.forget([] if there else names[3:4])
        scene.reset_device()
        scene.ask(14)
        found.append(scene.promised[-1])
    scene.forget(names[3:4])
    scene.reset_device()
    monkeypatch.setattr(Search, "_bridge", lambda _self, _names, _position: Answer.HIT)

    assert found == [12, 0]
    with pytest.raises(KeyError):
        scene.ask(14)


def goes_wrong() -> str:
    """What the walks say, the first that finds something."""
    for seed in range(1, 7):
        rig = ConnectorRig(evolve(CROWDED, async_scheduling=seed % 2 == 0), seed)
        try:
            walk(rig, seed, 60)
        except (AssertionError, BlocklifeError) as problem:
            return f"{type(problem).__name__}: {problem}"
    return "nothing"


def test_walk_finds_a_state_that_is_stored_where_its_request_writes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: not from the target of the copy, but from the block of the request, which is written in the same step."""
    hand_off = EnginePool.hand_off_tail

    def from_its_own(self: EnginePool, name: str, group: int, end: int, block: int) -> None:
        hand_off(self, name, group, end, block_of(self._ledger.requests.table(name, group)[end // 8]))

    monkeypatch.setattr(EnginePool, "hand_off_tail", from_its_own)

    assert "reads wrong bytes" in goes_wrong()


def test_walk_finds_a_tail_that_is_final_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a loaded tail stays final, and its request writes on: what the block holds then has two names."""
    monkeypatch.setattr(SchedulerSteps, "_write_behind", lambda _self, _name, _hit: None)

    assert "one content, one key" in goes_wrong()


def test_walk_finds_a_copy_that_nobody_was_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the targets of copies are not reported, so that no step waits for what still reads them."""
    monkeypatch.setattr(EnginePool, "handed_out", lambda _self, _blocks: None)
    monkeypatch.setattr(EnginePool, "hand_off_tail", lambda _self, _name, _group, _end, _block: None)

    assert goes_wrong() != "nothing"


def test_walk_finds_a_tail_under_the_key_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: tails are looked up one hash too far on the left, where there is other content."""
    monkeypatch.setattr(KnownRequests, "_tails_of", lambda _self, request: lambda _group, end: request.block_hashes[0])

    assert goes_wrong() != "nothing"
