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
from blocklife.ledger import Direction
from blocklife.ledger.views import block_of
from blocklife.offload import EnginePool
from blocklife.offload._asking import Asking
from blocklife.offload._lookup import Answer
from blocklife.offload._search import Search
from blocklife.offload._state import Tracked
from blocklife.offload._steps import SchedulerSteps
from blocklife.offload.records import TailKeys
from tests.vllm.behaviour.scenes import Scene, prompt
from tests.vllm.beside_rig import BesideRig
from tests.vllm.connector_rig import ConnectorRig, walk, with_guesses
from tests.vllm.connector_worlds import AHEAD, SETS, WORLDS
from tests.vllm.mend_copies import mend_copies
from tests.vllm.rig import Rank, Rig
from tests.vllm.test_connector_below import BelowRig
from tests.vllm.worlds import GroupSpec, Lag, WorldSpec

FULL, STATE = GroupSpec("full", 8), GroupSpec("mamba", 8)
MODELS = SETS["tails"]
CROWDED = evolve(WORLDS["tails"], groups=(FULL, STATE))
ROOMY = WorldSpec((FULL, STATE), num_gpu_blocks=64, host_blocks=96, hash_tokens=2)
pytestmark = pytest.mark.skipif(not release().keeps_tails, reason="before 0.33 hits inside a block are refused")


def promised(scene: Scene) -> list[int | None]:
    """What vLLM is told from now on: how many tokens a load would bring."""
    connector, told = scene.rig.scheduler.connector, list[int | None]()
    ask = connector.get_num_new_matched_tokens

    def noted(request: object, tokens: int) -> tuple[int | None, bool]:
        found: tuple[int | None, bool] = ask(request, tokens)
        told.append(found[0])
        return found

    connector.get_num_new_matched_tokens = noted
    return told


@AHEAD
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("answer", [1, 12])
def test_prompt_is_found_up_to_its_last_hash(model: str, ahead: bool, answer: int) -> None:
    """All but the last tokens of a prompt are loaded, whether its request has ended inside the block or behind it."""
    scene = Scene(MODELS[model], world=ROOMY, ahead=ahead, lag=Lag(0, 3))
    scene.ask(prompt(30), answer)
    scene.reset_device()
    told = promised(scene)
    scene.ask(prompt(30), 3)

    assert told[-1] == 28
    assert scene.sizes(Direction.LOAD) == tuple(4 if group.kind == "full" else 1 for group in MODELS[model])


@AHEAD
@pytest.mark.parametrize("model", MODELS)
def test_tail_is_stored_from_where_nobody_writes(model: str, ahead: bool) -> None:
    """States from the blocks that vLLM has copied them to; attention from the request's own last block, when it has ended."""
    scene = Scene(MODELS[model], world=ROOMY, ahead=ahead)
    connector, handed = scene.rig.scheduler.connector, dict[int, int]()
    build = connector.build_connector_meta

    def noted(output: SchedulerOutput) -> object:
        for states in output.kv_connector_block_state.boundary_state_offloads.values():
            handed.update((group, block) for group, block, boundary in states if boundary == 28)
        return build(output)

    connector.build_connector_meta = noted
    name = scene.add(prompt(30), 1)
    key = scene.rig.scheduler.requests[name].block_hashes[13]
    own = last_blocks(scene, name)
    slots = scene.rig.side.tier.slot_of
    sources = {
        target: int(source) for each in scene.stores for source, target in zip(each.source, each.target.tolist(), strict=True)
    }
    found = {group: sources[slot] for group in range(len(MODELS[model])) if (slot := slots(group, key)) is not None}

    assert found == {group: handed.get(group, own[group]) for group in range(len(MODELS[model]))}
    assert all(block != own[group] for group, block in handed.items())


def last_blocks(scene: Scene, name: str) -> list[int]:
    """The last block that a request held in each group; at the end nothing is left to be done."""
    last: list[int] = []
    while scene.rig.running:
        scene.rig.step()
        if name in scene.rig.scheduler.requests:
            last = [table[-1] for table in scene.rig.scheduler.kv_cache_manager.get_block_ids(name) if table] or last
    scene.drain()
    return last


@AHEAD
def test_load_ends_with_the_tails_in_the_last_blocks(ahead: bool) -> None:
    """Of attention whole blocks and the tail behind them, of the states the one at its end; the last blocks get them."""
    scene = Scene((FULL, STATE), world=ROOMY, ahead=ahead)
    scene.ask(prompt(30))
    scene.reset_device()
    name = scene.add(prompt(30), 3)
    names = scene.rig.scheduler.requests[name].block_hashes
    scene.rig.step()
    (load,) = scene.loads
    full, state = scene.rig.scheduler.kv_cache_manager.get_block_ids(name)
    slots = scene.rig.side.ledger.slots
    read = [slots.key(int(slot)) for slot in load.source]
    scene.drain()

    assert read == [names[3], names[7], names[11], names[13], names[13]]
    assert load.target.tolist() == [*full[:4], state[3]]
    assert load.group_sizes == (4, 1)


@AHEAD
def test_tail_is_loaded_between_two_steps_into_blocks_that_have_their_names(ahead: bool) -> None:
    """With a budget for loads within a step, too: such a load would come behind the copy of the state, so the request waits."""
    scene = Scene((FULL, STATE), world=ROOMY, ahead=ahead, extra={"sync_load_budget_bytes": 1 << 40})
    scene.ask(prompt(30))
    scene.reset_device()
    name = scene.add(prompt(30), 3)
    while not scene.loads:
        assert scene.rig.step()
    (load,) = scene.loads
    full, state = scene.rig.scheduler.kv_cache_manager.get_block_ids(name)
    waits = scene.rig.scheduler.requests[name].status.name
    within = {job.number for step in scene.steps for plan in step.plans for job in plan.within}
    scene.drain()

    assert waits == "WAITING_FOR_REMOTE_KVS"
    assert load.target.tolist() == [*full[:4], state[3]]
    assert load.group_sizes == (4, 1)
    assert within == set()


@AHEAD
@pytest.mark.parametrize("host", [True, False], ids=["host", "no host"])
def test_tail_on_the_device_is_copied_and_needs_no_load(host: bool, ahead: bool) -> None:
    """The device has a prefix that ends inside a block, too: nothing is loaded, and each request writes in its own block."""
    scene = Scene((FULL, STATE), world=ROOMY, ahead=ahead, extra={} if host else {"max_store_tokens": 0})
    scene.ask(prompt(30))
    for _ in range(2):
        scene.add([*prompt(28), 7, 8, 9, 10], 9)
    copies = 0
    prepare = scene.rig._prepare

    def counted(rank: Rank, output: SchedulerOutput) -> None:
        nonlocal copies
        copies += len(output.kv_cache_block_copies or ())
        prepare(rank, output)

    scene.rig._prepare = counted  # type: ignore[method-assign]  # to look on
    scene.drain()

    assert scene.loads == []
    assert copies >= 4


@AHEAD
def test_longer_tail_of_the_host_replaces_that_of_the_device(ahead: bool) -> None:
    """The device ends inside a block at one boundary, the host at a later one: all of the block is loaded."""
    scene = Scene((FULL, STATE), world=ROOMY, ahead=ahead)
    scene.ask(prompt(30))
    scene.reset_device()
    scene.forget(scene.ask(prompt(27))[12:13], 0)
    told = promised(scene)
    scene.steps.clear()
    scene.ask(prompt(30))

    assert told == [4]
    assert scene.sizes(Direction.LOAD) == (1, 1)


@AHEAD
def test_target_of_a_copy_is_written_behind_a_wait_for_its_store(ahead: bool) -> None:
    """Blocks that vLLM copies to are handed out like others: a store that still reads one is waited for first."""
    scene = Scene((FULL, STATE), world=evolve(ROOMY, num_gpu_blocks=12), lag=Lag(60, 60), ahead=ahead)
    scene.ask(prompt(30))
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
        scene.add(prompt(27 + start // 1000, start))
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
    scene = Scene((FULL, STATE), world=ROOMY)
    scene.ask(prompt(30))
    scene.reset_device()
    name = scene.add(prompt(30), 3)
    request = scene.rig.scheduler.requests[name]
    scene.rig.step()
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


# --- what vLLM hits inside a block, and we do not store ---------------------------------------------------------------------


# --- beside others ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("first", [False, True], ids=["other first", "ours first"])
def test_connector_walks_with_tails_beside_another(first: bool, ahead: bool) -> None:
    """In vLLM's MultiConnector: another one brings and sends whole blocks, and ours loads tails.

    The pool is large: in a small one vLLM counts too few blocks for states behind a load, whoever loads, and raises.
    """
    found = 0
    for seed in range(3):
        rig = BesideRig(evolve(CROWDED, num_gpu_blocks=80, async_scheduling=ahead, world_size=2), seed, first=first)
        told = promises(rig.side)
        walk(rig, seed, 40)
        found += sum(1 for each in told if each % 8)

    assert found > 0


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


def test_tail_is_not_put_below(tmp_path: Path) -> None:
    """Another engine on the same store finds the prompt up to its last full block."""
    told = []
    for _ in range(2):
        rig = BelowRig(ROOMY, f"fs:{tmp_path}")
        told.append(promises(rig.side))
        rig.ask(prompt(30))
        rig.close()

    assert told == [[], [24]]


# --- beside a drafter -------------------------------------------------------------------------------------------------------

DRAFTER = GroupSpec("full", 8, drafter=True)
DRAFTED = {"shared": (DRAFTER, STATE), "own": (FULL, STATE, DRAFTER), "two of states": (DRAFTER, STATE, STATE)}
GUESSED = evolve(CROWDED, groups=DRAFTED["shared"], num_gpu_blocks=60)


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("model", DRAFTED)
def test_connector_walks_with_tails_and_a_drafter(model: str, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random traffic with right and wrong guesses: prefixes end inside blocks of the drafter's layers, no byte is wrong."""
    with_guesses(monkeypatch, "eagle")
    mend_copies(monkeypatch)
    found = 0
    for seed in range(1, 5):
        rig = ConnectorRig(evolve(GUESSED, groups=DRAFTED[model], async_scheduling=ahead, world_size=2), seed, drafts=True)
        assert rig.side.shape.geometry.tail_tokens == 2
        assert rig.side.shape.geometry.drafters == tuple(group.drafter for group in DRAFTED[model])
        told = promises(rig.side)
        walk(rig, seed, 60)
        found += sum(1 for each in told if each % 8)

    assert found > 0


@pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "fail"])
def test_connector_walks_with_tails_of_a_drafter_whose_copies_fail(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the loads and a fifth of the stores fail: what they left is never read."""
    with_guesses(monkeypatch, "eagle")
    mend_copies(monkeypatch)
    fails = {Direction.LOAD: 0.3, Direction.STORE: 0.2}
    rig = ConnectorRig(evolve(GUESSED, world_size=2), 4, fails=fails, recompute=recompute, drafts=True)
    walk(rig, 4, 60)

    assert rig.side.ledger.counts.ended["FAILED"] > 0


@AHEAD
def test_connector_walks_with_tails_of_a_drafter_and_a_store_below(
    ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full blocks come back from below, and serve as tails of prompts that end inside them."""
    with_guesses(monkeypatch, "eagle")
    mend_copies(monkeypatch)
    spec = evolve(GUESSED, async_scheduling=ahead, host_blocks=40)
    check_tails_of_two_engines(spec, tmp_path, seeds=3, drafts=True)


def test_tail_is_found_behind_a_block_without_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that shares the model's layers is in no group, and vLLM keeps states as if it were: at 16 and 28, not at 24."""
    with_guesses(monkeypatch, "mtp")
    scene = Scene((FULL, STATE), world=ROOMY, drafts=True)
    names = scene.ask(prompt(31))
    scene.reset_device()
    told = promised(scene)
    scene.ask(prompt(31), 3)

    assert scene.has(names, 1) == [7, 13]
    assert told[-1] == 28


def differing(scene: Scene) -> list[int | None]:
    """What is promised to a prompt that begins like another one up to its tail, and goes on with another token."""
    for rank in scene.rig.ranks:
        rank.forward.looks_ahead = True
    scene.ask(prompt(30))
    scene.reset_device()
    told = promised(scene)
    scene.ask([*prompt(28), 7, 8, 9, 10])
    return told


@AHEAD
def test_tail_of_a_drafter_needs_the_token_behind_it(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its layers keep of the tail's last token was computed from another one: nothing of the last block is loaded."""
    with_guesses(monkeypatch, "eagle")

    assert differing(Scene(DRAFTED["shared"], world=ROOMY, ahead=ahead, drafts=True)) == [16]


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
    with_guesses(monkeypatch, "eagle")
    monkeypatch.setattr(Search, "_tail_key", asked_without_proof)
    monkeypatch.setattr(Asking, "tail_key_of", key_without_proof)

    with pytest.raises(AssertionError, match="reads wrong bytes"):
        differing(Scene(DRAFTED["shared"], world=ROOMY, drafts=True))


def test_tail_whose_block_before_is_gone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is found although the host tier has not that block, and its load has nothing to read."""
    with_guesses(monkeypatch, "eagle")
    scene = Scene(DRAFTED["shared"], world=ROOMY, drafts=True)
    told, found = promised(scene), list[int | None]()
    names = scene.ask(prompt(14))
    for there in (True, False):
        scene.forget([] if there else names[3:4], 0)
        scene.reset_device()
        scene.ask(prompt(14))
        found.append(told[-1])
    scene.forget(names[3:4], 0)
    scene.reset_device()
    monkeypatch.setattr(Search, "_bridge", lambda _self, _names, _position: Answer.HIT)

    assert found == [12, 0]
    with pytest.raises(KeyError):
        scene.ask(prompt(14))


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
    monkeypatch.setattr(EnginePool, "copied_to", lambda _self, _blocks: None)
    monkeypatch.setattr(EnginePool, "hand_off_tail", lambda _self, _name, _group, _end, _block: None)

    assert goes_wrong() != "nothing"


def test_walk_finds_a_tail_under_the_key_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: tails are looked up one hash too far on the left, where there is other content."""
    monkeypatch.setattr(KnownRequests, "_tails_of", lambda _self, request: lambda _group, end: request.block_hashes[0])

    assert goes_wrong() != "nothing"
