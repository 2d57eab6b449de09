"""A replay with a tier below finds there what earlier runs left, every byte verified; whatever the store does, it ends clean.

Goal: content outlives a run, and is shared; what a store loses, damages, refuses or never answers costs hits, and nothing else.
Method: small worlds on folders of their own, with a host tier too small for the workload. Stores that tests make are named by
an address, as an operator would. Each run must end within a limit of steps, and leave no thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from blocklife.cli import main
from blocklife.copiers import FaultRates, FaultyCopier
from blocklife.engines.toy import (
    BelowOptions,
    BelowReport,
    Replay,
    ReplayOptions,
    ReplayReport,
    WorkloadRequest,
)
from blocklife.engines.toy import _below as tier
from blocklife.engines.toy._sequences import fingerprints, keys_of
from blocklife.errors import MisuseError
from blocklife.ledger import Contract, TierTransfer
from blocklife.offload import BelowPolicies, Demote, Geometry, Mode
from blocklife.tiers import CircuitBreaker, EntryVerdict, StoreCopier, StoreFaultRates, StoreOutcome
from blocklife.tiers import _copier as copier
from tests.programs import HANGS_S
from tests.tiers.fakes import Call, PlayedStore
from tests.toy.worlds import BAD_DAY, HYBRID, WINDOWED, assert_clean, chats, options, run, threads

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]

PATIENT = 100_000
"""Steps that requests wait for content from below: on a busy machine, too, it comes in that time."""
WORKLOAD = chats(10)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call counts as hung, however long a busy machine takes for it; tests of calls that hang are less patient."""
    monkeypatch.setattr(tier, "CALL_S", 3600.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def below(store: str | Path, **changes: Any) -> BelowOptions:
    address = f"fs:{store}" if isinstance(store, Path) else store
    policies = BelowPolicies(max_wait=changes.pop("wait", PATIENT), **changes.pop("policies", {}))
    return BelowOptions(store=address, policies=policies, **changes)


def replay(
    chosen: ReplayOptions, workload: Sequence[WorkloadRequest] = WORKLOAD, watch: Callable[[Replay], None] = lambda _: None
) -> tuple[ReplayReport, BelowReport]:
    """A clean run; its report, and that of its tier below."""
    report = run(workload, chosen, watch)

    assert_clean(report)
    assert report.below is not None
    return report, report.below


def small(store: str | Path = "", workload: Sequence[WorkloadRequest] = WORKLOAD, **changes: Any) -> ReplayOptions:
    """A small world; without a store, without a tier below."""
    policies = {name: changes.pop(name) for name in ("demote", "max_slots", "job_slots") if name in changes}
    said = {"policies": policies, **{name: changes.pop(name) for name in ("wait",) if name in changes}}
    if "rates" in changes:
        said["faults"] = StoreFaultRates(**changes.pop("rates"))
    return options(workload, below=below(store, **said) if store else None, **changes)


def entries(folder: Path) -> list[Path]:
    """The files of a store that are entries."""
    return sorted(path for path in folder.glob("??/*") if len(path.name) == 64)


# --- what earlier runs left ---------------------------------------------------------------------------------------------


LEFT: dict[str, dict[str, Any]] = {
    "plain": {},
    "two ranks, hold": {"workers": 2, "contract": Contract.HOLD},
    "async, lazy": {"asynchronous": True, "mode": Mode.LAZY, "policy": "arc"},
    "bad day": {"workers": 2, "faults": BAD_DAY},
    "windows": {"groups": WINDOWED},
    "windows, chunks": {"groups": WINDOWED, "blocks_per_chunk": 2},
    "hybrid": {"groups": HYBRID},
}


@pytest.mark.parametrize("case", LEFT)
def test_second_run_hits_what_the_first_left(folder: Path, case: str) -> None:
    """Every byte that comes from below is verified when it is read, as any other; each group has its own names.

    On a bad day the second run loads more, so more of its loads fail and are computed again. Which promotions fail depends on
    the order in which the store answers, and it may be all that anybody waits for.
    """
    chosen = small(folder, **LEFT[case])
    slot_bytes = chosen.block_bytes * chosen.geometry.blocks_per_chunk * chosen.workers
    first, left = replay(chosen)
    second, found = replay(chosen)

    assert (left.promoted > 0) is (left.tokens_hit > 0) or chosen.faults
    assert left.bytes_demoted >= left.demoted * slot_bytes > 0
    assert found.bytes_promoted >= found.promoted * slot_bytes > 0
    assert second.tokens_hit_host >= found.tokens_hit
    assert found.tokens_hit > 0 or chosen.faults
    assert second.tokens_computed < first.tokens_computed or chosen.faults
    assert second.verified_blocks > 0
    assert (found.damaged, found.foreign, found.failed_calls, found.times_down) == (0, 0, 0, 0)


def test_tensors_and_arrays_share_a_store(folder: Path) -> None:
    """The bytes of a slot are the same, whatever copies them."""
    replay(small(folder))
    _, found = replay(small(folder, copier="torch"))

    assert found.tokens_hit > 0


def test_content_of_one_run_returns_in_the_same_run(folder: Path) -> None:
    """A host tier that is too small for the workload gets back what it has evicted."""
    workload = chats(40, mean_turns=8, num_system_prompts=0)
    report, found = replay(small(folder, workload, host_slots=30), workload)

    assert report.tokens_hit_host >= found.tokens_hit > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_other_workloads_share_a_store(folder: Path, seed: int) -> None:
    """Requests with the same number have other content, and a chunk may have prompt and answer: nothing is mixed up."""
    for workload in (chats(10), chats(10, seed), chats(10, seed, max_input_length=900)):
        replay(options(workload, "full:64", 4, below=below(folder)), workload)


# --- when content goes below --------------------------------------------------------------------------------------------


def test_never_demoting_only_reads(folder: Path) -> None:
    """What is there is hit; nothing is put."""
    _, nothing = replay(small(folder, demote=Demote.NEVER))
    empty = entries(folder)
    replay(small(folder))
    _, found = replay(small(folder, demote=Demote.NEVER))

    assert (nothing.demoted, empty) == (0, [])
    assert found.demoted == 0
    assert found.tokens_hit > 0


def test_lazy_demotion_puts_what_is_evicted_next(folder: Path) -> None:
    """It is hit by the next run; where nothing is evicted, the hottest content is not put."""
    _, crowded = replay(small(folder / "crowded", host_slots=60, demote=Demote.LAZY))
    _, found = replay(small(folder / "crowded", host_slots=60, demote=Demote.LAZY))
    _, eager = replay(small(folder / "eager", host_slots=400))
    _, roomy = replay(small(folder / "roomy", host_slots=400, demote=Demote.LAZY))

    assert crowded.demoted > 0
    assert found.tokens_hit > 0
    assert roomy.demoted < eager.demoted


# --- faults of copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rates",
    [{"fail": 0.5}, {"late": 0.5}, {"twice": 0.5}, {"reorder": 0.5}, {"never": 0.2}],
    ids=lambda each: next(iter(each)),
)
def test_copies_to_and_from_the_store_have_faults_too(folder: Path, rates: dict[str, float]) -> None:
    """They fail in the middle, or their reports are late, repeated, out of order or lost: each run is clean, and ends."""
    chosen = small(folder, faults=FaultRates(**rates), workers=2, wait=16)
    injected: list[FaultyCopier[TierTransfer]] = []

    def watch(at: Replay) -> None:
        """Let all that is out be over: several reports come together then, however busy the machine is."""
        injected[:] = [each.inner for each in at._tier_copiers if isinstance(each.inner, FaultyCopier)]
        for each in injected:
            inner = each._inner
            assert isinstance(inner, StoreCopier)
            inner.wait(list(inner._out))

    replay(chosen, watch=watch)
    _, found = replay(chosen, watch=watch)
    (fault,) = rates
    happened = [each.statistics() for each in injected]

    assert sum(attrs.asdict(each)[FAULTS[fault]] for each in happened) > 0
    assert (found.damaged, found.foreign, found.failed_calls) == (0, 0, 0)


FAULTS = {
    "fail": "num_failed",
    "late": "num_late",
    "twice": "num_twice",
    "reorder": "num_reordered",
    "never": "num_never",
}
"""Where the statistics of a copier count each fault."""


# --- faults of the store ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "counted"),
    [
        ({"fail": 0.3}, "failed_calls"),
        ({"cut": 0.3}, "damaged"),
        ({"flip": 0.3}, "damaged"),
        ({"slow": 0.2}, "promoted"),
        ({"fail": 0.1, "slow": 0.05, "cut": 0.1, "flip": 0.1, "lose": 0.1}, "damaged"),
    ],
    ids=lambda each: "+".join(each) if isinstance(each, dict) else "",
)
def test_faults_of_the_store_are_counted_misses(folder: Path, rates: dict[str, float], counted: str) -> None:
    """The faults are planted beneath the checks: the second run meets what the first has put, and what it is told."""
    replay(small(folder))
    _, found = replay(small(folder, rates=rates, seed=3))

    assert attrs.asdict(found)[counted] > 0


def test_entries_that_are_removed_while_they_are_wanted(folder: Path) -> None:
    """After every step: what was there when it was asked for is gone when it is fetched, sooner or later."""
    replay(small(folder))

    def remove(_: Replay) -> None:
        for path in entries(folder):
            path.unlink(missing_ok=True)

    replay(small(folder), watch=remove)


def test_hanging_calls_are_given_up(folder: Path, monkeypatch: Patch) -> None:
    """They cost their jobs; requests go on, and no thread is left once the store lets go."""
    monkeypatch.setattr(tier, "CALL_S", 0.05)
    replay(small(folder))
    begin = time.monotonic()
    report, found = replay(small(folder, rates={"hang": 0.5}, wait=16))

    assert found.hung_calls + found.unanswered > 0
    assert report.tokens_computed > 0
    assert time.monotonic() - begin < HANGS_S


class SickStore(PlayedStore):
    """A store of which some methods always answer this; an address names one that is made without arguments."""

    answers: ClassVar[dict[str, StoreOutcome | Exception]] = {}

    def __init__(self) -> None:
        super().__init__(self._sick)

    def _sick(self, method: str, asked: Sequence[Any], call: Call) -> list[StoreOutcome]:
        answer = self.answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        return call() if answer is None else [answer] * len(asked)


DOWN: dict[str, StoreOutcome | Exception] = dict.fromkeys(("exists", "put", "get"), StoreOutcome.FAILED)


@pytest.mark.parametrize(
    ("answers", "moved", "still"),
    [
        (DOWN, "times_down failed_calls", "promoted demoted tokens_hit"),
        (DOWN | {"exists": OSError("the network is gone")}, "times_down failed_calls", "promoted demoted tokens_hit"),
        ({"put": StoreOutcome.FULL}, "refused", "demoted times_down"),
        ({"exists": StoreOutcome.OK}, "missing already_below", "promoted tokens_hit bytes_demoted"),
    ],
    ids=["down", "raises", "full", "has nothing of what it says"],
)
def test_store_that_is_sick_costs_hits_alone(
    answers: dict[str, StoreOutcome | Exception], moved: str, still: str, monkeypatch: Patch
) -> None:
    """All is computed as without it, what it did is counted, and a breaker leaves it alone while it is down."""
    monkeypatch.setattr(SickStore, "answers", answers)
    report, found = replay(small(f"{__name__}:SickStore"))
    counts = attrs.asdict(found)

    assert [name for name in moved.split() if not counts[name]] == []
    assert [name for name in still.split() if counts[name]] == []
    assert report.tokens_computed > 0


class RestartedStore(PlayedStore):
    """It is down until it was called often enough."""

    def __init__(self) -> None:
        super().__init__(self._restarted)
        self.calls_left = 9  # those that look and those that put have a breaker each, and one of these has five of them

    def _restarted(self, method: str, asked: Sequence[Any], call: Call) -> list[StoreOutcome]:
        self.calls_left -= method != "get"
        return [StoreOutcome.FAILED] * len(asked) if method != "get" and self.calls_left >= 0 else call()


def test_store_that_is_started_again_is_used_again(monkeypatch: Patch) -> None:
    """By itself, after a probe that it answers."""
    monkeypatch.setattr(tier, "CircuitBreaker", partial(CircuitBreaker, first_wait_s=0.005, longest_wait_s=0.01))
    # steps so slow that it is up again before the last of them
    _, found = replay(small(f"{__name__}:RestartedStore"), watch=lambda _: time.sleep(0.002))

    assert found.times_down >= 1
    assert found.demoted > 0
    assert found.bytes_demoted > 0


@pytest.mark.parametrize("where", ["slots", "blocks"])
def test_replay_finds_content_that_nobody_checked(where: str, folder: Path, monkeypatch: Patch) -> None:
    """With the check of entries switched off, the bytes tell: when a step reads them, or in the slots at the end."""
    monkeypatch.setattr(copier, "check", lambda *_: EntryVerdict.GOOD)
    replay(small(folder))
    report = run(WORKLOAD, small(folder, rates={"flip": 1.0}, verify=1.0 if where == "blocks" else 0.0))

    assert report.below is not None
    assert report.below.promoted > 0
    assert report.corrupt_blocks > 0
    assert not report.clean


# --- the end ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hang", [0.0, 1.0], ids=["well", "hanging"])
def test_interrupted_run_leaves_nothing(folder: Path, hang: float, monkeypatch: Patch) -> None:
    """Stopped between two steps: copies land or are given up, nothing more is demoted, and no thread is left."""
    monkeypatch.setattr(tier, "CALL_S", 0.05)
    chosen = small(folder, rates={"hang": hang} if hang else {}, max_slots=2, job_slots=2)
    stopped = Replay(WORKLOAD, chosen)
    report = stopped.run(stop=lambda: stopped.engine.counts.steps >= 20)

    assert_clean(report)
    assert report.interrupted
    assert report.below is not None
    assert report.steps < 2000
    assert not threads()


def test_second_interrupt_leaves_no_thread(folder: Path) -> None:
    """An exception in the middle of a step, as of a second Ctrl-C."""
    stopped = Replay(WORKLOAD, small(folder))

    def interrupt() -> None:
        if stopped.engine.counts.steps == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.run(progress=interrupt)

    assert not threads()


def test_store_is_closed_when_the_memory_cannot_be_made(folder: Path, monkeypatch: Patch) -> None:
    """A run that is refused after its store was opened leaves no thread."""

    def refuse(*_: object) -> None:
        raise MisuseError("no memory for this station")

    monkeypatch.setattr(Replay, "_station", refuse)
    with pytest.raises(MisuseError, match="no memory"):
        Replay(WORKLOAD, small(folder))

    assert not threads()


# --- the command line ---------------------------------------------------------------------------------------------------


def call(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        status = main(list(argv))
    except SystemExit as left:
        status = int(left.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_cli_reports_the_tier_below(folder: Path, capsys: Capture) -> None:
    """In the tables and in JSON, by the same names; without a tier below, neither."""
    argv = ("replay", "--requests", "3", "--below", f"fs:{folder}", "--below-wait", str(PATIENT), "--below-slots", "64")
    status, out, err = call(capsys, *argv, "--demote", "eager")
    _, found, _ = call(capsys, *argv, "--json")
    _, without, _ = call(capsys, "replay", "--requests", "3", "--json")
    report = json.loads(found)["below"]

    assert (status, err) == (0, "")
    assert set(report) == {field.name for field in attrs.fields(BelowReport)}
    assert report["tokens_hit"] > 0
    assert all(name.replace("_", " ") in out for name in report if name != "store")
    assert f"fs:{folder}" in out
    assert json.loads(without)["below"] is None


def test_cli_plants_faults_below(folder: Path, capsys: Capture) -> None:
    """Beside those of copies, alone, and by default."""
    for faults in ("below_flip=1,fail=0.1", "below_flip=1", "default"):
        status, out, err = call(capsys, "replay", "--requests", "3", "--below", f"fs:{folder}", "--faults", faults, "--json")
        assert (status, err) == (0, "")
        assert json.loads(out)["below"]["demoted"] > 0 or faults != "below_flip=1"


def test_recording_of_a_run_with_a_tier_below_is_legal(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    path = str(tmp_path / "run.jsonl")

    assert call(capsys, "replay", "--requests", "3", "--below", f"fs:{folder}", "--record", path)[0] == 0
    assert call(capsys, "recording", "check", path)[::2] == (0, "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--below fs:{}/file", "is no folder"),
        ("--below fs:/proc/kv", "cannot be used as a store"),
        ("--below fs:{}/kv:0", "a bound of 0 bytes"),
        ("--below disk", "is no address"),
        ("--below fs:{}/kv --below-wait 0", "--below-wait must be"),
        ("--below fs:{}/kv --below-slots -1", "--below-slots must be"),
        ("--below fs:{}/kv --demote often", "invalid choice"),
        ("--below fs:{}/kv --faults below_burn=1", "'below_burn': unknown"),
        ("--below fs:{}/kv --faults below_flip=2", "is not a share"),
        ("--demote lazy", "no store is named for it .add --below"),
        ("--below-wait 5", "no store is named for it .add --below"),
        ("--below-slots 5", "no store is named for it .add --below"),
        ("--faults below_flip=0.1", "there is no tier below"),
    ],
)
def test_cli_refuses_in_one_line(options: str, says: str, tmp_path: Path, capsys: Capture) -> None:
    """What is wrong, and what to write instead; nothing is begun."""
    (tmp_path / "file").write_text("no folder")
    status, out, err = call(capsys, "replay", "--requests", "2", *options.format(tmp_path).split())

    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert any(each in err.replace("(", ".") for each in says.split("|"))
    assert "Traceback" not in err
    assert not threads()


# --- keys ---------------------------------------------------------------------------------------------------------------


def test_a_key_names_its_content_in_every_workload() -> None:
    """Equal keys of two workloads have equal content, and so have all blocks before them: a chunk has one key, of its last."""
    geometry = Geometry.parse("full:64,mamba:128")
    seen: dict[bytes, bytes] = {}
    many = [chats(12, seed) for seed in range(4)]
    many.append([attrs.evolve(each, input_length=each.input_length - (each.input_length % 512 > 100) * 70) for each in many[0]])
    for workload in many:
        for number, request in enumerate(workload):
            for keys in keys_of(request, number, geometry):
                prints = fingerprints(keys)
                for at in range(len(keys)):
                    before = prints[max(0, at - 7) : at + 1].tobytes()
                    assert seen.setdefault(keys[at].tobytes(), before) == before
    assert len(seen) > 400
