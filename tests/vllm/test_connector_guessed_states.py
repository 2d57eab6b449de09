"""Speculative decoding beside Mamba states: what a guess has led to is stored when its tokens are known, and never before.

Goal: no state of a guess is stored, hit or loaded as that of a known token, and no state that vLLM keeps is lost for the host.
Method: random traffic through vLLM's scheduler (`test_connector_walks` has more). The runner writes the state after each guess
to a block of its own, junk behind the first wrong one, and moves what it keeps as vLLM's workers do. Every state is compared
when it is read. Controls plant bugs.
"""

from __future__ import annotations

from collections import Counter

import pytest
from attrs import evolve

from blocklife.core._progress import PlanTokens
from blocklife.engines.vllm.connector._step import ScheduledStep
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import MisuseError
from blocklife.ledger import Batch
from blocklife.ledger._ids import NULL
from blocklife.ledger.jobs import Allocated
from blocklife.ledger.views import block_of
from blocklife.offload import EnginePool
from blocklife.offload._steps import SchedulerSteps
from blocklife.states import Block
from tests.vllm.connector_rig import ConnectorRig, walk, with_guesses
from tests.vllm.connector_worlds import AHEAD, ROOMY, WORLDS, prompt
from tests.vllm.worlds import GroupSpec

FULL, WINDOW, STATE = GroupSpec("full"), GroupSpec("swa", window=9), GroupSpec("mamba")
DRAFTER = GroupSpec("full", drafter=True)


def guessing(monkeypatch: pytest.MonkeyPatch, seed: int, *, ahead: bool = False) -> ConnectorRig:
    """An engine that guesses three tokens a step; vLLM keeps the state at every block of it."""
    with_guesses(monkeypatch, "mtp")
    return ConnectorRig(evolve(WORLDS["guessing"], groups=(FULL, STATE), async_scheduling=ahead), seed, drafts=True)


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
        monkeypatch.setattr(ScheduledStep, "_hand_off_reached", lambda self, output: set())
    walk(guessing(monkeypatch, 4, ahead=ahead), 4, 40, resets=False)

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
        walk(guessing(monkeypatch, 1), 1, 60)

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
