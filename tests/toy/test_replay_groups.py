"""A hybrid model is replayed as cleanly as a plain one, and what goes wrong with its groups, windows and chunks is found.

Method: small worlds, each for one thing; the engine reads what the model's groups say, not what the scheduler was told. Then
bugs are planted. All combinations of groups and options are drawn in `test_replay`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import numpy as np
import pytest

from blocklife.copiers import Executor, FaultRates, Report
from blocklife.core._progress import TokenProgress
from blocklife.engines.toy import Memory, Replay, ReplayOptions, ReplayReport, WorkloadRequest, generate_workload
from blocklife.engines.toy import _engine as engine
from blocklife.engines.toy import _sequences as sequences
from blocklife.ledger import Checking, Contract, Plan
from blocklife.ledger._rows import RowVerbs
from blocklife.offload import Geometry, Hit, OffloadScheduler
from blocklife.offload._offers import Offers
from blocklife.states import Slot
from tests.toy.worlds import HYBRID, PLAIN, WINDOWED, assert_clean, chats, most, options, run

Patch = pytest.MonkeyPatch

# --- clean runs ---------------------------------------------------------------------------------------------------------


def found_in(replay: Replay) -> tuple[list[set[bytes]], list[set[bytes]]]:
    """The names of what can be read at the end, by group: on the device, and in the host tier."""
    ledger = replay.ledger
    groups = range(len(replay.options.geometry.groups))
    return (
        [{key for own, key, _ in ledger.blocks.named() if own == group} for group in groups],
        [
            {key for own, key, slot in ledger.slots.named() if own == group and ledger.slots.state(slot) is Slot.READY}
            for group in groups
        ],
    )


@pytest.mark.sampled
@pytest.mark.parametrize("max_running", [1, 256], ids=["one at a time", "all at once"])
@pytest.mark.parametrize("blocks_per_chunk", [1, 4])
@pytest.mark.parametrize("groups", [PLAIN, WINDOWED, HYBRID])
def test_replay_ends_with_the_same_content_sync_and_async(groups: str, blocks_per_chunk: int, max_running: int) -> None:
    """With room for everything, planning ahead changes neither what is computed nor what can be found afterwards."""
    workload = chats(15)
    goals = sum(request.input_length + request.output_length - 1 for request in workload)
    ends = []
    for asynchronous in (False, True):
        room = len(workload) * most(workload, Geometry.parse(groups))
        chosen = options(
            workload, groups, blocks_per_chunk, gpu_blocks=room + 1, host_slots=room, max_running=max_running,
            step_tokens=1 << 20, link_blocks=room, max_jobs=64, deadline=1024, asynchronous=asynchronous,
        )  # fmt: skip
        replay = Replay(workload, chosen)
        report = replay.run()
        assert_clean(report)
        assert report.tokens_computed + report.tokens_hit_gpu + report.tokens_hit_host == goals
        ends.append((report.tokens_computed, report.blocks_hit_gpu, found_in(replay)))

    assert ends[0] == ends[1]
    assert all(len(names) > 0 for tier in ends[0][2] for names in tier)
    assert (max_running == 1) == (ends[0][0] < goals)


def test_replay_of_a_hybrid_model_sees_everything() -> None:
    """A workload with many turns, in a small memory under faults: every figure of the offload layer moves."""
    workload = generate_workload(requests=150, seed=1, mean_turns=4, max_input_length=8_000, num_system_prompts=2)
    report = run(
        workload,
        ReplayOptions(
            groups="full:64,swa:64:1024,mamba:512",
            blocks_per_chunk=2,
            gpu_blocks=1_000,
            host_slots=1_500,
            block_bytes=16,
            link_blocks=12,
            max_jobs=8,
            faults=FaultRates.default(),
        ),
    )

    assert_clean(report)
    assert min(report.blocks_hit_gpu) > 0
    assert min(report.blocks_hit_host) > 0
    assert sum(report.blocks_hit_host) >= report.blocks_loaded > 0
    assert report.flushes_by_cause["handed out"] > 0
    assert sum(report.flushes_by_cause.values()) == report.flushes
    for figure in (
        "already_stored", "already_in_flight", "stale_entries", "deferred_lookups", "refused_stores", "preemptions",
        "failed_loads", "stale_detected", "aborted_requests",
    ):  # fmt: skip
        assert getattr(report, figure) > 0, figure


def test_replay_waits_for_its_copies_at_the_last_step() -> None:
    """When the last request is over, its stores are still out on a slow link: one plan waits for all of them."""
    report = run([WorkloadRequest(0.0, 400, 1, (1,))], ReplayOptions(groups=HYBRID, link_blocks=1))

    assert_clean(report)
    assert set(report.flushes_by_cause) == {"last step"}
    assert report.steps < 10


# --- requests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "tokens", "blocks"),
    [
        ("full:64,mamba:64", 256, 4 + 2),
        ("mamba:64", 64, 1),
        ("swa:64:64", 2_048, 3),
        ("swa:64:64", 128, 2),
        ("full:128,swa:64:65,mamba:32", 512, 4 + 3 + 2),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_replay_counts_all_groups_of_what_does_not_fit(groups: str, tokens: int, blocks: int, asynchronous: bool) -> None:
    """A window holds only what it needs for a step; with a plan ahead it, and a state, holds one step more."""
    workload = [WorkloadRequest(0.0, tokens, 1, tuple(range(-(-tokens // 512))))]
    if asynchronous:
        blocks += sum(each.split(":")[0] != "full" and tokens > 128 for each in groups.split(","))
    fits: dict[str, Any] = {"groups": groups, "step_tokens": 64, "asynchronous": asynchronous}
    report = run(workload, ReplayOptions(gpu_blocks=blocks + 1, **fits))

    assert_clean(report)
    assert report.skipped_requests == 0
    assert run(workload, ReplayOptions(gpu_blocks=max(2, blocks), **fits)).skipped_requests == (blocks > 1)


def test_replay_names_content_only_for_those_whose_turn_has_come(monkeypatch: Patch) -> None:
    """A workload of thousands must not cost the memory of all their keys at once."""
    alive, highest = 0, 0
    build, drop = sequences.RequestSequence.build, sequences.RequestSequence.drop

    def counted_build(sequence: sequences.RequestSequence, geometry: Geometry) -> None:
        nonlocal alive, highest
        alive += 1
        highest = max(highest, alive)
        build(sequence, geometry)

    def counted_drop(sequence: sequences.RequestSequence) -> None:
        nonlocal alive
        alive -= 1
        drop(sequence)

    monkeypatch.setattr(sequences.RequestSequence, "build", counted_build)
    monkeypatch.setattr(sequences.RequestSequence, "drop", counted_drop)
    workload = chats(80)
    report = run(workload, options(workload, HYBRID, max_running=3, abort=0.2))

    assert_clean(report)
    assert alive == 0
    assert 0 < highest <= 3 + engine.LOOK_AHEAD + 1


@pytest.mark.parametrize("waiting", [engine.LOOK_AHEAD - 1, engine.LOOK_AHEAD])
def test_replay_lets_others_pass_a_deferred_lookup(waiting: int, monkeypatch: Patch) -> None:
    """Requests that wait for a copy hold up nobody behind them, as long as they are few; they come first when it has landed."""
    real = OffloadScheduler.lookup
    begun: list[str] = []

    def lookup(offload: OffloadScheduler, name: str, known_tokens: int, device_tokens: int | None = None) -> Hit:
        hit = real(offload, name, known_tokens, device_tokens)
        late = int(name[1:]) < waiting and offload.ledger.plans.number < 50
        return attrs.evolve(hit, deferred=True) if late else hit

    def watch(replay: Replay) -> None:
        begun.extend(name for name in replay.ledger.requests if replay.ledger.requests.size(name, 0) and name not in begun)

    monkeypatch.setattr(OffloadScheduler, "lookup", lookup)
    workload = [WorkloadRequest(0.0, 100, 5, (number,)) for number in range(engine.LOOK_AHEAD + 4)]
    report = run(workload, options(workload, HYBRID, gpu_blocks=1_000), watch)
    names = [f"r{number}" for number in range(len(workload))]

    assert_clean(report)
    assert begun == (names[waiting:] + names[:waiting] if waiting < engine.LOOK_AHEAD else names)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_replay_executes_plans_when_their_time_has_come(asynchronous: bool, monkeypatch: Patch) -> None:
    """In the step in which they were made, or in the one after; each of them once, the last ones too."""
    made: list[int] = []
    executed: dict[int, int] = {}
    build, execute = OffloadScheduler.build_plan, Executor.execute

    def building(offload: OffloadScheduler, now: float) -> Plan:
        made.append(int(now))
        return build(offload, now)

    def executing(executor: Executor, plan: Plan, forward: Callable[[], None]) -> Report:
        assert plan.number not in executed
        executed[plan.number] = replay.engine.counts.steps
        return execute(executor, plan, forward)

    monkeypatch.setattr(OffloadScheduler, "build_plan", building)
    monkeypatch.setattr(Executor, "execute", executing)
    workload = chats(20)
    replay = Replay(workload, options(workload, HYBRID, asynchronous=asynchronous))

    assert_clean(replay.run())
    assert [executed[number] - at for number, at in enumerate(made, 1)] == [int(asynchronous)] * len(made)


@pytest.mark.parametrize("contract", list(Contract), ids=lambda each: each.name.lower())
def test_replay_lets_a_lone_request_wait_for_its_own_copies(contract: Contract) -> None:
    """Blocks that have left its window are held by their stores for long; it pauses, instead of beginning anew for ever."""
    workload = [WorkloadRequest(0.0, 600, 20, (1, 2))]
    chosen = ReplayOptions(
        groups="swa:16:100", gpu_blocks=10, step_tokens=17, link_blocks=1, max_jobs=1, deadline=16, contract=contract,
        faults=FaultRates(fail=1.0, late=1.0), abort=0.0,
    )  # fmt: skip
    report = run(workload, chosen)

    assert_clean(report)
    assert (report.skipped_requests, report.preemptions, report.tokens_computed) == (0, 0, 619)


# --- chunks -------------------------------------------------------------------------------------------------------------


def test_replay_audits_every_block_of_a_chunk_that_was_written() -> None:
    """At the end each place of the host tier counts that a store has written, be it the last of its chunk or not."""
    workload = chats(10)
    replay = Replay(workload, options(workload, HYBRID, 4, gpu_blocks=2_000, host_slots=2_000))
    report = replay.run()
    station = replay.stations[0]
    memory = station.memory
    ready = np.array(replay.ledger.slots.where(Slot.READY))
    written = station.traffic.written(ready)
    places = ready[:, None] * 4 + np.arange(4)

    assert_clean(report)
    assert isinstance(memory, Memory)
    assert written[:, -1].all()
    assert not written.all()  # the states have one block each
    for where, corrupt in ((places[~written], 0), (places[written][:3], 3), (places[written], int(written.sum()))):
        counts = replay.engine.counts
        before = counts.corrupt_blocks
        memory.host[where] ^= np.uint64(1)
        replay.engine.audit()
        memory.host[where] ^= np.uint64(1)
        assert counts.corrupt_blocks - before == corrupt


# --- planted bugs -------------------------------------------------------------------------------------------------------


def seal_before_it_is_full(patch: Patch) -> None:
    """A block is final with its first token, and a chunk is stored with its last block."""
    real, offer = TokenProgress.finishing, Offers.offer_chunks

    def finishing(table: TokenProgress, rows: Any, computed: Any) -> Any:
        ahead = min(each.tokens for each in table.groups) - 1
        return real(table, rows, [tokens + ahead for tokens in computed])

    def chunks(steps: Offers, name: str, row: int, group: int, stop: int, *, every: bool) -> None:
        held = steps._ledger.requests.size(name, group) // steps._geometry.blocks_per_chunk
        offer(steps, name, row, group, max(stop, held), every=every)

    patch.setattr(TokenProgress, "finishing", finishing)
    patch.setattr(Offers, "offer_chunks", chunks)


def load_skips_a_group(patch: Patch) -> None:
    """The load of a hybrid hit brings all groups but the last."""
    real = RowVerbs.plan_load

    def plan(verbs: RowVerbs, progress: Any, spans: Any, keys: Any, slots: Any, size: int, *, within: bool) -> None:
        spans, keys, slots = ((each[:-1] or each) for each in (spans, keys, slots))
        real(verbs, progress, spans, keys, slots, size, within=within)

    patch.setattr(RowVerbs, "plan_load", plan)


def load_confuses_the_places_of_a_chunk(patch: Patch) -> None:
    """The blocks of a chunk come back in another order."""
    real = RowVerbs.plan_load

    def plan(verbs: RowVerbs, progress: Any, spans: Any, keys: Any, slots: Any, size: int, *, within: bool) -> None:
        real(verbs, progress, spans, keys, slots, size, within=within)
        jobs = verbs._core.jobs
        begin = jobs.begin[jobs.by_number[jobs.last_number]]
        for _, _, start, stop in spans:
            end = begin + stop - start
            if size > 1:  # else these are the slots, too
                jobs.slot[begin:end] = jobs.slot[begin:end][::-1]
            begin = end

    patch.setattr(RowVerbs, "plan_load", plan)


def window_leaves_too_early(patch: Patch) -> None:
    """One block more is given back than the window has left."""
    real = TokenProgress.first_needed

    def more(table: TokenProgress, group: int, row: int) -> int:
        return real(table, group, row) + (group == 1)

    patch.setattr(TokenProgress, "first_needed", more)


def states_are_taken_from_the_table(patch: Patch) -> None:
    """What the table of a Mamba group has at the end of a chunk is stored, whether the engine has kept the state or not."""
    real = OffloadScheduler.__init__

    def init(offload: OffloadScheduler, *rest: Any, **named: Any) -> None:
        real(offload, *rest, **named)
        offload._state.attention = list(offload._state.groups)
        for each in offload._progress.groups:
            each.fills = True

    patch.setattr(OffloadScheduler, "__init__", init)
    patch.setattr(OffloadScheduler, "hand_off", lambda *_: None)


PLANTS: dict[Callable[[Patch], None], int] = {
    # bug: blocks of a chunk in the world that shows it
    seal_before_it_is_full: 2,
    load_skips_a_group: 2,
    load_confuses_the_places_of_a_chunk: 2,
    window_leaves_too_early: 2,
    states_are_taken_from_the_table: 1,
}


def hybrid(blocks_per_chunk: int, checking: Checking) -> ReplayReport:
    """A small world that shows them."""
    workload = chats(120, mean_turns=5)
    return run(workload, options(workload, HYBRID, blocks_per_chunk, checking=checking, step_tokens=300))


in_order = cache(hybrid)
"""The same without a bug."""


@pytest.mark.sampled
@pytest.mark.parametrize("checking", [Checking.STRICT, Checking.OFF], ids=lambda each: each.name.lower())
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_replay_finds_a_planted_bug_of_groups(plant: Callable[[Patch], None], checking: Checking, monkeypatch: Patch) -> None:
    """A small hybrid world is clean, and is not with the bug."""
    assert_clean(in_order(PLANTS[plant], checking))
    plant(monkeypatch)
    report = hybrid(PLANTS[plant], checking)

    print(plant.__name__, report.corrupt_blocks, report.leaked_places, report.violation_messages[:2])
    assert not report.clean
