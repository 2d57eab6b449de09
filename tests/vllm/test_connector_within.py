"""Loads within a step, under vLLM's real scheduler: small hits are there before the forward pass of the step that finds them.

Goal: whoever runs behind such a load reads the right bytes or none at all, and where the load fails nobody else reads anything
of what was named too early. Method: the rig, with copies that lag and fail; a request whose load has failed is allowed to read
garbage, but its answer must never be seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import evolve
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from blocklife.ledger import Direction
from tests.vllm.beside_rig import BesideRig
from tests.vllm.connector_rig import ConnectorRig, walk, with_guesses
from tests.vllm.connector_worlds import AHEAD, CROWDED, DRAFTERS, FULL, MODELS, ROOMY, ask, prompt
from tests.vllm.rig import Rank
from tests.vllm.runner import Turn
from tests.vllm.second import Habits
from tests.vllm.worlds import Lag, WorldSpec

ALL = {"sync_load_budget_bytes": "1GiB"}
STATELESS = [model for model in MODELS if model not in ("full and state", "all")]
JUNK, WRONG = 0xDEAD, 1


class FailingRig(ConnectorRig):
    """A rig in which a request whose load within a step has failed computes garbage from then on, and samples wrong tokens."""

    def __init__(
        self, spec: WorldSpec, seed: int = 0, fails: Mapping[Direction, float] | None = None, *, drafts: bool = False
    ) -> None:
        self.void: set[tuple[int, str]] = set()
        """Such requests, by worker."""
        self.void_once: set[str] = set()
        """All that ever were."""
        super().__init__(spec, seed, fails=fails, recompute=False, drafts=drafts)

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        back = output.scheduled_cached_reqs.resumed_req_ids
        self.void = {(rank, name) for rank, name in self.void if name not in back}
        result = super()._execute(output)
        lost = {name for _, name in self.void}
        self.void_once |= lost
        result.sampled_token_ids = [
            [WRONG] * len(said) if name in lost else said
            for name, said in zip(result.req_ids, result.sampled_token_ids, strict=True)
        ]
        return result

    def _execute_on(self, rank: Rank, output: SchedulerOutput, turns: list[Turn]) -> KVConnectorOutput | None:
        seen, failed = len(self.corruptions), self.copiers[rank.number].failed
        before = len(failed)
        result = super()._execute_on(rank, output, turns)
        jobs = set(failed[before:])
        self.void |= {(rank.number, doubt.owner.request_id) for doubt in self.side._doubts.open if doubt.job in jobs}
        self.corruptions[seen:] = [each for each in self.corruptions[seen:] if (each.rank, each.request) not in self.void]
        for turn in turns:
            if (rank.number, turn.row.name) in self.void:
                for group, table in zip(self.spec.groups, turn.row.tables, strict=True):
                    for token in range(turn.start, turn.stop):
                        words = rank.memory.device[table[token // group.block_tokens]].reshape(group.block_tokens, -1)
                        words[token % group.block_tokens] = JUNK
        return result


@AHEAD
@pytest.mark.parametrize("model", STATELESS)
def test_small_hit_is_there_in_the_step_that_finds_it(model: str, ahead: bool) -> None:
    """A prompt that the device has forgotten is answered in as many steps as one that it has, and every byte is right."""
    steps = []
    for extra in (ALL, {}):
        rig = ConnectorRig(
            evolve(ROOMY, groups=MODELS[model], async_scheduling=ahead, world_size=2, lag=Lag(0, 3), extra_config=extra)
        )
        ask(rig, prompt(41))
        rig.reset_prefix_cache()
        rig.add(prompt(41), 2)
        begun = rig.step_number
        while rig.running:
            rig.step()
        steps.append(rig.step_number - begun)
        rig.drain()
        rig.check_empty()
        assert rig.loaded >= len(MODELS[model])
    assert steps[0] < steps[1]


def test_requests_of_a_step_share_the_budget() -> None:
    """Of two hits that a step finds, the one that still fits loads within it, and the other between two."""
    world = evolve(ROOMY, blocks_per_chunk=3)
    a_token = (1 << 30) // ConnectorRig(evolve(world, extra_config=ALL)).side.shape.load_within_tokens
    rig = ConnectorRig(evolve(world, extra_config={"sync_load_budget_bytes": 24 * a_token}))
    ask(rig, prompt(25))
    ask(rig, prompt(37, 500))
    rig.reset_prefix_cache()
    begun = rig.step_number
    for tokens in (prompt(25), prompt(37, 500)):
        rig.add(tokens, 1)
    rig.step()

    assert rig.step_number == begun + 1
    assert list(rig.finished)[2:] == ["r2"]
    rig.drain()
    rig.check_empty()
    assert rig.loaded == 6 + 9
    assert rig.side.ledger.counts.flushes["within the step"] == 1


def forgotten(ahead: bool, tokens: int = 40, ranks: int = 1, model: str = "full") -> FailingRig:
    """A rig whose host memory has a prompt of so many tokens, and one more; all loads fail from now on."""
    world = evolve(ROOMY, groups=MODELS[model], async_scheduling=ahead, world_size=ranks, extra_config=ALL)
    rig = FailingRig(world)
    ask(rig, prompt(tokens + 1))
    rig.reset_prefix_cache()
    rig.copiers[-1].fails[Direction.LOAD] = 1.0
    return rig


@AHEAD
@pytest.mark.parametrize("ranks", [1, 2])
def test_request_of_a_failed_load_ends_and_who_shares_its_prompt_does_not(ahead: bool, ranks: int) -> None:
    """Two requests with one prompt come in one step: one loads, the other waits, and computes what did not come."""
    rig = forgotten(ahead, ranks=ranks)
    rig.add(prompt(41), 3)
    rig.add([*prompt(41), 7, 8, 9], 3)
    rig.drain()
    rig.check_empty()

    assert rig.void_once == {"r1"}
    assert (rig.finished["r1"], len(rig.finished["r2"])) == ([], 3)
    ask(rig, [*prompt(41), 7, 8, 9, 10], 3)


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("late", [False, True])
def test_nobody_hits_what_was_named_behind_a_failed_load(ahead: bool, late: bool) -> None:
    """The request of a failed load is over before the failure is heard of: vLLM's pool has its blocks, and forgets them."""
    rig = forgotten(ahead)
    name = rig.add(prompt(41), 9)
    rig.step()
    if rig.running:
        rig.abort(name, late=late)
    rig.drain()
    ask(rig, [*prompt(41), 7], 3)

    assert rig.void_once == {"r1"}


@AHEAD
def test_nothing_is_stored_that_was_computed_behind_a_failed_load(ahead: bool) -> None:
    """What a request has computed behind a load that failed is garbage: host memory never has it."""
    rig = forgotten(ahead, 20)
    rig.add(prompt(50), 9)
    rig.drain()
    rig.check_empty()
    rig.reset_prefix_cache()
    rig.copiers[-1].fails.clear()
    ask(rig, prompt(50), 3)

    assert rig.void_once == {"r1"}
    assert rig.loaded == 0


@AHEAD
@pytest.mark.parametrize("model", ["window", "full and window"])
def test_engine_stops_where_vllm_cannot_be_told_of_a_failed_load(ahead: bool, model: str) -> None:
    """With several groups, or a window, vLLM has no word for it: nothing that was sampled from garbage is answered."""
    rig = forgotten(ahead, model=model)
    rig.add(prompt(41), 3)

    with pytest.raises(RuntimeError, match="request r1: a load failed that its step was to read"):
        rig.drain()
    assert not rig.finished.get("r1")


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("model", STATELESS)
@pytest.mark.parametrize("first", [False, True])
def test_connector_walks_beside_another_with_loads_within_steps(model: str, ahead: bool, first: bool) -> None:
    """Two connectors bring content within the steps that read it, each of its own requests, and nobody waits for ever."""
    spec = evolve(CROWDED, groups=MODELS[model], async_scheduling=ahead, world_size=2, num_gpu_blocks=32, extra_config=ALL)
    rig = BesideRig(spec, 3, Habits(within=0.5, asks_again=0.1), first=first)
    walk(rig, 3, 60)

    assert rig.second.told.chosen
    assert rig.side.ledger.counts.flushes["within the step"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_connector_walks_with_a_drafter_and_failing_loads_within_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where a third of the loads fail: what was guessed and accepted behind them is never stored, hit or answered."""
    with_guesses(monkeypatch, "eagle")
    spec = evolve(CROWDED, groups=DRAFTERS["shared"], num_gpu_blocks=40, extra_config=ALL)
    rig = FailingRig(spec, seed, fails={Direction.LOAD: 0.3, Direction.STORE: 0.1}, drafts=True)
    walk(rig, seed, 60)

    assert rig.void_once


@pytest.mark.sampled
@pytest.mark.parametrize("extra", [{}, {"blocks_per_chunk": 2}, {"max_jobs": 3}, {"mode": "lazy"}], ids=str)
@pytest.mark.parametrize("tokens", [4, 12])
def test_connector_walks_with_a_small_budget(extra: Mapping[str, object], tokens: int) -> None:
    """The same where the budget of a step is one block or three: some hits load within the step, others between two."""
    size = int(str(extra.get("blocks_per_chunk", 1)))
    world = evolve(CROWDED, groups=(FULL,), async_scheduling=True, blocks_per_chunk=size)
    a_token = (1 << 30) // ConnectorRig(evolve(world, extra_config=ALL)).side.shape.load_within_tokens
    rig = ConnectorRig(evolve(world, extra_config={"sync_load_budget_bytes": tokens * a_token, **extra}), 7)
    walk(rig, 7)

    within = rig.side.ledger.counts.flushes["within the step"]
    assert rig.side.shape.load_within_tokens == tokens
    assert within > 0 or tokens == 4 or "max_jobs" in extra


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("seed", range(4))
def test_connector_walks_with_failing_loads_within_steps(ahead: bool, seed: int) -> None:
    """A third of the loads fail on one of two workers: their requests end, and nobody reads what was named behind them."""
    world = evolve(CROWDED, groups=(FULL,), async_scheduling=ahead, world_size=2, extra_config=ALL)
    rig = FailingRig(world, seed, fails={Direction.LOAD: 0.3, Direction.STORE: 0.1})
    try:
        walk(rig, seed)
    except RuntimeError as stopped:  # a request was preempted while the step with its load was out
        if not ahead or "a load failed that its step was to read" not in str(stopped):
            raise

    assert rig.void_once or ahead
