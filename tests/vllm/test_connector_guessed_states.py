"""Speculative decoding beside Mamba states: what a guess has led to is stored when its tokens are known, and never before.

Goal: no state of a guess is stored, hit or loaded as that of a known token, and no state that vLLM keeps is lost for the host.
Method: random traffic through vLLM's scheduler. The runner writes the state after each guess to a block of its own, junk behind
the first wrong one, and moves what it keeps as vLLM's workers do. Every state is compared when it is read.
Controls plant bugs.
"""

from __future__ import annotations

from collections import Counter

import pytest
from attrs import evolve

from blocklife.core._progress import PlanTokens
from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import MisuseError
from blocklife.ledger import Batch, Direction
from blocklife.ledger._ids import NULL
from blocklife.ledger.jobs import Allocated
from blocklife.ledger.views import block_of
from blocklife.offload import EnginePool
from blocklife.offload._steps import SchedulerSteps
from blocklife.states import Block
from tests.vllm.behaviour.scenes import ROOMY, prompt
from tests.vllm.connector_rig import ConnectorRig, walk, with_guesses
from tests.vllm.connector_worlds import AHEAD
from tests.vllm.worlds import GroupSpec, Lag, WorldSpec

FULL, WINDOW, STATE = GroupSpec("full"), GroupSpec("swa", window=9), GroupSpec("mamba")
DRAFTER = GroupSpec("full", drafter=True)
MODELS = {
    "full and state": ("mtp", (FULL, STATE)),
    "window and state": ("ngram", (WINDOW, STATE)),
    "two states": ("mtp", (FULL, STATE, STATE)),
    "drafter and state": ("eagle", (DRAFTER, STATE)),
    "drafter, window and state": ("eagle", (DRAFTER, WINDOW, STATE)),
}
"""How each guesses, and its groups."""
CROWDED = WorldSpec(num_gpu_blocks=48, host_blocks=60, max_num_seqs=4, max_num_batched_tokens=48, lag=Lag(0, 6))


def guessing(monkeypatch: pytest.MonkeyPatch, model: str, seed: int, world: WorldSpec = CROWDED) -> ConnectorRig:
    """An engine that guesses three tokens a step; vLLM keeps the state at every block of it."""
    method, groups = MODELS[model]
    with_guesses(monkeypatch, method)
    return ConnectorRig(evolve(world, groups=groups, dense_retention=True), seed, drafts=True)


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_connector_walks_with_guesses_beside_states(
    model: str, seed: int, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses are right and wrong, with a step ahead too: a request steps back to the state of its last right guess."""
    rig = guessing(monkeypatch, model, seed, evolve(CROWDED, async_scheduling=ahead))
    assert rig.side.offload.policies.state_drafts == 3
    walk(rig, seed, 60)

    assert rig.loaded > 0


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("model", ["full and state", "drafter, window and state"])
def test_connector_walks_with_guesses_beside_states_in_chunks_on_two_workers(
    model: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with chunks of two blocks, prompts in parts, and two workers."""
    world = evolve(CROWDED, async_scheduling=ahead, blocks_per_chunk=2, world_size=2, part_tokens=8)
    rig = guessing(monkeypatch, model, 3, world)
    walk(rig, 3, 60)

    assert rig.loaded > 0


@AHEAD
def test_connector_walks_with_guesses_beside_states_and_failing_copies(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the loads and a sixth of the stores fail, under the runner that zeroes new blocks first."""
    method, groups = MODELS["two states"]
    with_guesses(monkeypatch, method)
    spec = evolve(CROWDED, groups=groups, async_scheduling=ahead)
    rig = ConnectorRig(spec, 5, drafts=True, fails={Direction.LOAD: 0.2, Direction.STORE: 0.15}, second_runner=True)
    walk(rig, 5, 60)

    assert rig.loaded > 0


def watch_hand_offs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the states that vLLM keeps: those whose block the ledger still has in the request's table, and the lost ones."""
    found, hand_off = Counter[str](), EnginePool.hand_off_state

    def counted(self: EnginePool, name: str, group: int, boundary: int, block: int) -> None:
        position = boundary // self._geometry.block_tokens[group] - 1
        held = self._ledger.requests.table(name, group, position, position + 1)
        found["kept" if held and block_of(held[0]) == block else "lost"] += 1
        hand_off(self, name, group, boundary, block)

    monkeypatch.setattr(EnginePool, "hand_off_state", counted)
    return found


@pytest.mark.parametrize("planted", [False, True], ids=["", "control"])
@AHEAD
def test_state_that_guesses_have_passed_is_stored(ahead: bool, planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right guesses lead beyond the end of a block: vLLM keeps the state there, and takes its block from the table at once."""
    found = watch_hand_offs(monkeypatch)
    if planted:  # all states in one go, when the tables of the step are known
        monkeypatch.setattr(ConnectorScheduler, "_hand_off_reached", lambda self, output: set())
    walk(guessing(monkeypatch, "full and state", 4, evolve(CROWDED, async_scheduling=ahead)), 4, 40, resets=False)

    assert found["kept"] > 20
    assert (found["lost"] > 0) is planted


# --- controls ---------------------------------------------------------------------------------------------------------------


def next_state(self: EnginePool, name: str, group: int, boundary: int, block: int) -> None:
    """Take the state of the first guess for that of the known tokens before it."""
    position = boundary // self._geometry.block_tokens[group] - 1
    held = self._ledger.requests.table(name, group, position, position + 2)
    if len(held) < 2 or held[1] == NULL or self._ledger.blocks.of(held[1]) is not Block.ALLOCATED:
        return hand_off_state(self, name, group, boundary, block)
    tracked = self._state.requests[name]
    self._ledger.seal(Batch[Allocated]([held[1]], group), tracked.keys(group, position, position + 1))
    self._state.states.setdefault(name, []).append((group, boundary, held[1]))
    return None


def all_right(self: SchedulerSteps, turn: PlanTokens, sampled: dict[str, int]) -> tuple[list[int], list[int], list[int]]:
    """Take every token that was scheduled for computed, right or wrong."""
    rows, known, _ = advance(self, turn, sampled)
    scheduled = dict(zip(turn.rows, turn.tokens, strict=True))
    ends = [self._progress.computed_of(row) + scheduled.get(row, 1) for row in rows]
    return rows, known, list(map(min, ends, known))


hand_off_state, advance = EnginePool.hand_off_state, SchedulerSteps.advance
BUGS = {
    "the state of a guess is stored": (EnginePool, "hand_off_state", next_state),
    "wrong guesses count": (SchedulerSteps, "advance", all_right),
    "moved blocks stay where they were": (EnginePool, "move_on", lambda self, name, tables: None),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("bug", BUGS)
def test_walk_with_guesses_beside_states_finds_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong bytes are read, or the ledger refuses what vLLM has done."""
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises((AssertionError, MisuseError)) as found:
        walk(guessing(monkeypatch, "full and state", 1), 1, 60)

    print(f"seed 1: {found.value}")


# --- what is not offered ----------------------------------------------------------------------------------------------------


def test_connector_stores_nothing_of_a_session_that_goes_on_from_guessed_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM goes on from the first state of the last step, however many guesses were right: what follows may be wrong."""
    with_guesses(monkeypatch, "mtp")
    rig = ConnectorRig(evolve(ROOMY, groups=(FULL, STATE)), 3, drafts=True)
    rig.part("s", prompt(9), 11)
    rig.drain()
    stored = rig.stored
    rig.part("s", prompt(20, 900), 9)
    rig.drain()
    rig.engine.abort(["s"])
    rig.drain()

    assert stored > 0
    assert rig.stored == stored


def test_guesses_beside_states_are_refused_before_a_release_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.33 random traffic with a step ahead ended in an error."""
    with_guesses(monkeypatch, "mtp")
    monkeypatch.setattr(type(release()), "guesses_beside_states", False)
    with pytest.raises(MisuseError, match=r"speculative decoding with Mamba layers is not offered before 0\.33"):
        ConnectorRig(evolve(ROOMY, groups=(FULL, STATE)), drafts=True)
