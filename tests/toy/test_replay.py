"""A replay ends, loses nothing, and its report is true; and a planted bug ends it with exit status 1.

Method: small worlds under all the pressure that the options allow, each under a limit of steps, so that a hang is a failure and
not a wait. Bugs are planted in the compiled tables or in one method, and the very default run has to find them: once with the
books checked, once with what the workers saw and the bytes alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy as clone
from types import SimpleNamespace
from typing import Any

import pytest

from blocklife.cli import main
from blocklife.copiers import CpuCopier, Executor, FaultRates
from blocklife.core import _moves as moves
from blocklife.core._columns import Blocks, Core
from blocklife.core._rules import PlaceMove
from blocklife.engines.toy import Replay, ReplayOptions, ReplayReport, WorkloadRequest, generate_workload
from blocklife.engines.toy import _engine as engine
from blocklife.engines.toy import _sequences as sequences
from blocklife.errors import MisuseError
from blocklife.ledger import Checking, Contract, Direction
from blocklife.ledger._checks import Checks
from blocklife.ledger._ids import ID_MASK
from blocklife.offload import FullAttention, Geometry, Mamba, SlidingWindow
from blocklife.offload._stores import Chunk, StoreLine
from tests.planting import planted
from tests.toy.worlds import BAD_DAY, HYBRID, assert_clean, chats, longest, options, random_world, run, untimed, world

# --- clean runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("faults", "copier"), [(None, "cpu"), (BAD_DAY, "cpu"), (BAD_DAY, "torch")])
def test_replay_is_a_function_of_its_options(faults: FaultRates | None, copier: str) -> None:
    """Twice the same run gives the same report, the two timings apart, also on CPU tensors; another seed is another bad day."""
    workload = chats(25)
    first, again, other = (
        untimed(run(workload, options(workload, faults=faults, workers=2, seed=seed, copier=copier))) for seed in (5, 5, 6)
    )

    assert first == again
    assert (first == other) is (faults is None)


@pytest.mark.parametrize("gpu_share", [1, 30], ids=["pressed", "roomy"])
@pytest.mark.parametrize("contract", list(Contract), ids=lambda each: each.name.lower())
def test_replay_accounts_for_every_token(contract: Contract, gpu_share: int) -> None:
    """A token is computed, hit on the device or loaded: exactly once each, unless blocks were given up and made again."""
    workload = chats(30, mean_output_tokens=80)
    goals = sum(request.input_length + request.output_length - 1 for request in workload)
    report = run(workload, options(workload, contract=contract, gpu_blocks=gpu_share * longest(workload) + 3, max_jobs=16))
    found = report.tokens_computed + report.tokens_hit_gpu + report.tokens_hit_host

    assert_clean(report)
    assert found >= goals
    assert report.preemptions + report.failed_loads > 0 or found == goals
    assert (gpu_share == 1) == (report.preemptions > 0)


def test_replay_loads_what_it_has_stored() -> None:
    """What the device forgot comes back from the host, and each loaded block counts its tokens."""
    workload = chats(60, mean_turns=5)
    report = run(workload, options(workload, host_slots=2_000, max_jobs=16, link_blocks=24))

    assert_clean(report)
    assert report.blocks_loaded > 0
    assert report.failed_loads == report.aborted_requests == 0
    assert report.tokens_hit_host == report.blocks_loaded * 64


def test_replay_counts_what_the_tables_count() -> None:
    """The totals of the report are those of the rows that were taken."""
    workload = chats(40, mean_output_tokens=80)
    report = run(workload, options(workload, faults=BAD_DAY, abort=0.1))
    block, job, request = (report.transitions[name] for name in ("block", "job", "request"))
    ends = dict.fromkeys(report.jobs, 0)
    for row, count in job.items():
        source, target = row.split(" --")[0], row.split("--> ")[1]
        if target in ends and source != target:
            ends[target] += count

    assert ends == report.jobs
    assert sum(count for row, count in request.items() if row.endswith("FINISHED")) >= report.requests
    assert sum(count for row, count in request.items() if "preempt--> PREEMPTED" in row) == report.preemptions
    assert sum(count for row, count in job.items() if "--flush-->" in row) == report.flushes
    assert block["LOADING --land [arrived]--> SEALED"] == report.blocks_loaded


# --- pressure -----------------------------------------------------------------------------------------------------------


TIGHT: dict[str, dict[str, Any]] = {
    "blocks for one request": {"gpu_blocks": "most"},
    "one slot": {"host_slots": 1},
    "one job": {"max_jobs": 1},
    "one block a step": {"link_blocks": 1},
    "one step a job": {"deadline": 1},
    "one request at a time": {"max_running": 1},
    "eight bytes": {"block_bytes": 8},
    "a token a step": {"step_tokens": 1},
    "a token a block": {"block_tokens": 1},
    "no patience": {"abort": 1.0},
    "all at once": {"gpu_blocks": "most", "host_slots": 1, "max_jobs": 1, "link_blocks": 1, "deadline": 1, "block_bytes": 8},
    "no host to speak of": {"gpu_blocks": "most", "host_slots": 2, "max_jobs": 1, "link_blocks": 1, "deadline": 999},
}


@pytest.mark.sampled
@pytest.mark.parametrize("faults", [None, BAD_DAY], ids=["calm", "faults"])
@pytest.mark.parametrize("contract", list(Contract), ids=lambda each: each.name.lower())
@pytest.mark.parametrize("tight", TIGHT)
def test_replay_ends_clean_under_pressure(tight: str, contract: Contract, faults: FaultRates | None) -> None:
    """However small one limit is, and all of them, every request comes to its end, or its client goes away."""
    workload = chats(8, max_input_length=800, mean_output_tokens=10)
    changes: dict[str, Any] = {
        name: longest(workload) + 1 if value == "most" else value for name, value in TIGHT[tight].items()
    }
    chosen = options(workload, contract=contract, faults=faults, **{"abort": 0.0, **changes})
    report = run(workload, chosen)

    assert_clean(report)
    assert (report.skipped_requests, report.aborted_requests) == (0, 8 if chosen.abort else 0)
    assert report.steps >= report.tokens_computed / chosen.step_tokens


# --- requests that do not fit, go away, or come later --------------------------------------------------------------------


def test_replay_skips_what_no_memory_holds() -> None:
    """A request longer than the memory is counted and passed over; one that just fits runs."""
    fits, too_long = WorkloadRequest(0.0, 256, 1, (1,)), WorkloadRequest(0.0, 257, 1, (1,))
    report = run([too_long, fits, too_long], options([fits], gpu_blocks=5))

    assert_clean(report)
    assert (report.requests, report.skipped_requests) == (3, 2)
    assert report.tokens_computed == 256


def test_replay_builds_nothing_for_what_it_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of a file may ask for 2^31 tokens: its lengths alone tell that it does not fit."""
    monkeypatch.setattr(sequences.RequestSequence, "of", lambda *_: pytest.fail("built"))
    report = run([WorkloadRequest(0.0, 257, 1, (1,))], ReplayOptions(gpu_blocks=5, block_tokens=64))

    assert (report.requests, report.skipped_requests) == (1, 1)


def test_replay_of_one_token_ends() -> None:
    """The smallest request: one token in, one token out."""
    report = run([WorkloadRequest(0.0, 1, 1, (0,))], ReplayOptions(gpu_blocks=2, host_slots=1, block_bytes=8, block_tokens=1))

    assert_clean(report)
    assert report.tokens_computed == 1


def most_at_once(workload: Sequence[WorkloadRequest], chosen: ReplayOptions) -> tuple[int, ReplayReport]:
    most = 0

    def watch(replay: Replay) -> None:
        nonlocal most
        most = max(most, len(replay.ledger.requests))

    report = run(workload, chosen, watch)
    return most, report


def test_replay_speed_honours_the_arrivals() -> None:
    """Requests an hour apart meet when all have arrived, and never when time passes."""
    workload = [WorkloadRequest(3_600_000.0 * number, 100, 50, (number,)) for number in range(4)]
    together, _ = most_at_once(workload, options(workload, gpu_blocks=100))
    apart, report = most_at_once(workload, options(workload, gpu_blocks=100, speed=10.0))

    assert together == 4
    assert apart == 1
    assert_clean(report)


@pytest.mark.parametrize("speed", [1e-300, 1e-9, 1e-3, 0.3, 1.0, 1e3, 9.9e11])
def test_replay_ends_at_any_speed(speed: float) -> None:
    """Where nobody is there the clock jumps: no speed makes a run wait, nor its jobs run out of time."""
    workload = [WorkloadRequest(at, 100, 5, (number,)) for number, at in enumerate((0.0, 0.1, 1e3, 1e9, 2.0**53))]
    report = run(workload, options(workload, speed=speed, deadline=64))

    assert_clean(report)
    assert report.steps < 200
    assert report.jobs["FAILED"] == 0


@pytest.mark.parametrize("workers", [1, 3])
def test_replay_verifies_the_share_that_it_is_told(workers: int) -> None:
    """All, some or none of the blocks that steps read; the host tier is always read at the end."""
    workload = chats(20)
    none, some, every = (
        run(workload, options(workload, verify=share, workers=workers)).verified_blocks for share in (0.0, 0.5, 1.0)
    )

    assert 0 < none < some < every
    assert 0.3 < (some - none) / (every - none) < 0.8


@pytest.mark.parametrize(("block_bytes", "verified"), [(8, 9 + 1), (16, 2 * 9 + 1)])
def test_replay_counts_as_verified_what_it_has_looked_at(block_bytes: int, verified: int) -> None:
    """Nine steps read a whole block and a tail, which has no whole word where a block is one; one slot is READY at the end."""
    report = run([WorkloadRequest(0.0, 100, 10, (1,))], ReplayOptions(block_tokens=64, block_bytes=block_bytes))

    assert_clean(report)
    assert report.steps == 10
    assert report.verified_blocks == verified


def test_replay_report_changes_nothing() -> None:
    """It can be read at any time and any number of times; a block that a request holds is not leaked."""
    workload = chats(10)
    seen: list[int] = []
    replay = Replay(workload, options(workload))
    last = replay.run(progress=lambda: seen.append(replay.report().leaked_places))
    unseen = run(workload, options(workload))

    assert set(seen) == {0}
    assert replay.report() == replay.report() == last
    assert last.verified_blocks == unseen.verified_blocks


def test_replay_times_the_scheduler_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of all invariants, and proofs that copies are quiet, are not the scheduler's: its clock stands meanwhile."""
    now = [0.0]
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    for name in ("check", "prove_quiet"):
        monkeypatch.setattr(engine.ToyEngine, name, lambda _: now.append(now.pop() + 1.0))
    report = run([WorkloadRequest(0.0, 300, 1, (1,))], ReplayOptions(step_tokens=1))

    assert report.steps > 256
    assert now[0] > 0.0
    assert report.scheduler_us_per_step == 0.0


@pytest.mark.parametrize("checking", [Checking.STRICT, Checking.COUNT], ids=lambda each: each.name.lower())
def test_replay_counts_a_violation_of_the_ledger_once(checking: Checking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it ends the run and is named, or is only counted."""
    real, looks = Checks.judged, iter(range(1 << 30))

    def recheck(check: Checks) -> None:
        real(check)
        if next(looks) == 5:
            check.violate("planted")

    monkeypatch.setattr(Checks, "judged", recheck)
    workload = chats(10)

    assert run(workload, options(workload, checking=checking)).violations == 1


def test_replay_counts_once_what_stays_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that was found broken at one check is not found again at the next."""
    monkeypatch.setattr(engine, "check", lambda _: ["planted"])
    report = run([WorkloadRequest(0.0, 300, 1, (1,))], ReplayOptions(step_tokens=1, checking=Checking.COUNT))

    assert report.violations == 1


STOPPED: dict[str, dict[str, Any]] = {
    "plain": {},
    "tensors": {"copier": "torch"},
    "hybrid": {"groups": HYBRID, "blocks_per_chunk": 2},
    "hybrid, async": {"groups": HYBRID, "blocks_per_chunk": 2, "asynchronous": True},
}


@pytest.mark.sampled
@pytest.mark.parametrize("steps", [1, 2, 20, 60])
@pytest.mark.parametrize("case", STOPPED)
def test_replay_that_is_stopped_aborts_and_reports(case: str, steps: int) -> None:
    """A stop between two steps gives every request up, with a plan that is out when it has settled; every copy lands."""
    replay = Replay(*world(40, faults=BAD_DAY, **STOPPED[case]))
    report = replay.run(stop=lambda: replay.engine.counts.steps >= steps)

    assert_clean(report)
    assert report.interrupted
    assert report.aborted_requests > 0
    assert (replay.ledger.jobs.live, len(replay.ledger.requests), replay.finished) == (0, 0, 40)


# --- the default run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_engine_that_loses_a_worker_comes_to_its_end(asynchronous: bool) -> None:
    """Whatever a plan that is out speaks of, no request is waited for that nobody will name again."""
    workload = chats()
    replay = Replay(workload, options(workload, workers=2, asynchronous=asynchronous))
    engine = replay.engine
    for request in workload:
        engine.add(request)
    for _ in range(60):
        engine.step()
    before = engine.unfinished
    engine.lose_worker(1)
    left = engine.unfinished
    for _ in range(1_000):
        if not engine.idle:
            engine.step()
    engine.close()

    assert before > left == 0
    assert engine.idle
    assert engine.counts.violations == []


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_replay_with_default_faults_sees_everything(seed: int) -> None:
    """The default run under faults ends jobs in every way, and meets refusals, preemptions and flushes; it stays clean."""
    report = run(generate_workload(requests=600, seed=seed), ReplayOptions(faults=FaultRates.default(), seed=seed))

    assert_clean(report)
    assert set(report.jobs) == {"DONE", "FAILED", "CANCELLED"}
    assert min(report.jobs.values()) > 0
    for figure in (
        "tokens_hit_gpu", "tokens_hit_host", "blocks_stored", "blocks_loaded", "preemptions", "flushes", "late_completions",
        "already_in_flight", "duplicate_completions", "aborted_requests", "failed_loads",
    ):  # fmt: skip
        assert getattr(report, figure) > 0, figure


def test_replay_default_is_clean() -> None:
    """The default run without faults: every copy arrives."""
    report = run(generate_workload(requests=600, seed=0), ReplayOptions())

    assert_clean(report)
    assert report.jobs["FAILED"] == 0
    assert min(report.preemptions, report.flushes, report.blocks_loaded) > 0
    assert set(report.flushes_by_cause) == {"handed out", "preempted"}


# --- many worlds --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("seed", range(200))
def test_replay_is_clean_in_a_random_world(seed: int) -> None:
    """Two hundred worlds whose every option is drawn, groups and chunks too; the seed names the world."""
    workload, chosen = random_world(seed)
    print(f"seed {seed}: {len(workload)} requests, {chosen}")
    report = run(workload, chosen)

    assert_clean(report)
    assert (report.requests, report.interrupted) == (len(workload), False)
    for blocks, moved in ((report.blocks_stored, report.bytes_stored), (report.blocks_loaded, report.bytes_loaded)):
        assert moved == blocks * chosen.block_bytes * chosen.workers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu_blocks": 1}, "--gpu-blocks must be at least 2"),
        ({"block_tokens": 100}, "--block-tokens must divide 512"),
        ({"block_bytes": 12}, "--block-bytes must be a multiple of 8"),
        ({"max_running": 65_535}, "--max-running can be at most 64511"),
        *(({"speed": wrong}, "--speed must be above 0") for wrong in (0.0, -1.0, float("nan"), float("inf"))),
        *(({"abort": wrong}, "--abort must be a share") for wrong in (-0.1, float("nan"))),
        *(({"seed": wrong}, "--seed must be from 0") for wrong in (-1, 1 << 63)),
        ({"workers": 65}, "--workers can be at most 64"),
        ({"verify": 1.5}, "--verify must be a share"),
        ({"host_slots": 1 << 31}, "this machine has"),
        ({"copier": "gpu"}, "--copier must be one of cpu, torch, cuda, not 'gpu'"),
        ({"groups": "full"}, "--groups: 'full' is not a valid group"),
        ({"groups": ""}, "--groups: '' is not a valid group"),
        ({"groups": "full:0"}, "--groups: block_tokens of FullAttention must be a whole number of at least 1"),
        ({"groups": "full:48"}, "--groups: full:48 has blocks that do not divide 512"),
        ({"groups": "full:16,swa:1024:4"}, "--groups: swa:1024:4 has blocks that do not divide 512"),
        ({"groups": "full:16", "block_tokens": 128}, "--block-tokens 128 and --groups full:16 both name the groups"),
        ({"groups": Geometry([Mamba(3)])}, "--groups: mamba:3 has blocks that do not divide 512"),
        ({"groups": Geometry([Mamba(4)], 2), "blocks_per_chunk": 3}, "--blocks-per-chunk 3 and groups with blocks_per_chunk 2"),
        ({"blocks_per_chunk": 0}, "--blocks-per-chunk must be at least 1"),
        ({"blocks_per_chunk": 65}, "--blocks-per-chunk can be at most 64"),
        ({"block_tokens": 0}, "--block-tokens must be at least 1"),
        ({"policy": "nonesuch"}, "replacement 'nonesuch': unknown"),
        ({"host_slots": 1 << 28, "blocks_per_chunk": 64}, "x --blocks-per-chunk 64"),
    ],
    ids=str,
)
def test_replay_options_refuse_what_cannot_work(given: dict[str, Any], message: str) -> None:
    """A refusal names the option as the command line spells it."""
    with pytest.raises(MisuseError) as refusal:
        ReplayOptions(**given)

    assert message in str(refusal.value)


def test_replay_options_name_their_geometry() -> None:
    """The short form, the text and the record mean the same."""
    three = Geometry([FullAttention(16), SlidingWindow(16, 1_024), Mamba(16)], 4)

    assert ReplayOptions().geometry == Geometry([FullAttention(128)])
    assert ReplayOptions(block_tokens=16).geometry == Geometry([FullAttention(16)])
    assert ReplayOptions(groups=str(three), blocks_per_chunk=4).geometry == three
    assert ReplayOptions(groups=three).geometry == three


# --- planted bugs -------------------------------------------------------------------------------------------------------


Patch = pytest.MonkeyPatch


def everything_is_fresh(patch: Patch) -> None:
    """No reference is ever stale."""
    patch.setattr(Blocks, "is_current", lambda blocks, life: True)


def epochs_stand_still(patch: Patch) -> None:
    """A new tenancy has the epoch of the former one."""
    real = moves.end_life

    def end_life(core: Core, place: int, left: int) -> int:
        before = max(1, core.blocks.epoch[place])
        real(core, place, left)
        core.blocks.epoch[place] = before
        return 0

    planted(patch, real, end_life)


def nobody_waits(patch: Patch) -> None:
    """A flush is ordered and not waited for."""
    patch.setattr(Executor, "_stop_for", lambda _, jobs, *, queued: None)


def half_is_enough(patch: Patch) -> None:
    """Of each block only the first half is copied."""

    def copy(copier: CpuCopier, direction: Direction, source: Any, target: Any) -> None:
        half = copier._host.shape[1] // 2
        if direction is Direction.STORE:
            copier._host[target, :half] = copier._device[source, :half]
        else:
            copier._device[target, :half] = copier._host[source, :half]

    patch.setattr(CpuCopier, "_copy", copy)


def slot_pins_leak(patch: Patch) -> None:
    """Loads never let go of their slots."""
    real = moves.write_slots

    def write(core: Core, move: PlaceMove, count: int) -> int:
        if move.pins < 0:
            move = clone(move)
            move.pins = 0
        return real(core, move, count)

    planted(patch, real, write)


def wishes_follow_the_block(patch: Patch) -> None:
    """A chunk that is to be stored names blocks and not lives."""
    real = StoreLine._judge

    def judge(line: StoreLine, chunk: Chunk) -> Any:
        chunk.lives = [line._ledger.blocks.life(life & ID_MASK) for life in chunk.lives]
        return real(line, chunk)

    patch.setattr(StoreLine, "_judge", judge)


PLANTS: dict[Callable[[Patch], None], tuple[bool, str, str]] = {
    # bug: (needs faults, what finds it with checking strict, what finds it with checking off)
    everything_is_fresh: (True, "books", "books"),
    epochs_stand_still: (True, "books", "name"),
    nobody_waits: (False, "clash", "clash"),
    half_is_enough: (False, "bytes", "bytes"),
    slot_pins_leak: (False, "books", "leak"),
}
FOUND_BY: dict[str, Callable[[dict[str, Any]], bool]] = {
    "bytes": lambda report: report["corrupt_blocks"] > 0,
    "leak": lambda report: report["leaked_places"] > 0,
    "clash": lambda report: " meets job " in report["violation_messages"][0],
    "name": lambda report: "(one content, one key)" in report["violation_messages"][0],
    "books": lambda report: report["violation_messages"][0].startswith("InvariantError: "),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("checking", ["strict", "off"])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_replay_finds_a_planted_bug(
    plant: Callable[[Patch], None], checking: str, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default run ends with 1 and shows what its column says: names, the books, a worker's record, bytes or a leak."""
    faults, *found_by = PLANTS[plant]
    plant(monkeypatch)
    status = main(["replay", "--json", "--checking", checking, *(["--faults"] if faults else [])])
    report = json.loads(capsys.readouterr().out)

    assert status == 1
    assert FOUND_BY[found_by[checking == "off"]](report), report["violation_messages"]


def test_replay_finds_a_planted_bug_where_many_stores_are_refused(monkeypatch: Patch) -> None:
    """Chunks that outlive their blocks' lives need a line of refused stores to go wrong; then a block would have two names."""
    wishes_follow_the_block(monkeypatch)
    workload = generate_workload(requests=300, seed=0)
    report = run(workload, ReplayOptions(faults=FaultRates.default(), max_jobs=4, abort=0.2, checking=Checking.OFF))

    assert "one content" in report.violation_messages[0]
    assert not report.clean
