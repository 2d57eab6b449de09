"""A replay says the same with its blocks in tensors as in numpy, and a copier of torch gets to hear what it must.

Method: `CASES` are small worlds, one for each thing that could go wrong with another copier; they run here on CPU tensors and
in `tests/gpu` on a device, by the same code. What a GPU would do to the order of things is done by a fake device: it lands each
copy when the dice say so, and finds races.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest

from blocklife.copiers import FaultRates
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._copier import _Covered
from blocklife.copiers.torch._layout import CopyLayout, HostRows, Pages
from blocklife.copiers.torch._moves import RunMover
from blocklife.engines.toy import Replay, ReplayOptions, ReplayReport, Words
from blocklife.engines.toy import _engine as engine
from blocklife.engines.toy import _replay as replay
from blocklife.engines.toy import _tensors as tensors
from blocklife.engines.toy._tensors import TensorDevice, TensorMemory
from blocklife.errors import CapacityError, InvariantError, MisuseError
from blocklife.ledger import Contract, Direction
from blocklife.ledger.records import Completion, Ids, Transfer, Worker
from blocklife.offload import Mode
from blocklife.testing import FakeDevice, FakeEvent, FakeStream
from blocklife.testing._fake_device import Operation, Span
from tests.programs import HANGS_S
from tests.toy.worlds import BAD_DAY, HYBRID, LOADING, assert_clean, run, world

ROOT = Path(__file__).parents[2]
Patch = pytest.MonkeyPatch

CASES: dict[str, dict[str, Any]] = {
    "fence": {},
    "loads": LOADING,
    "loads, faults": {**LOADING, "faults": BAD_DAY, "workers": 2},
    "hold": {"contract": Contract.HOLD},
    "fence, faults": {"faults": BAD_DAY, "abort": 0.1},
    "hold, faults": {"faults": BAD_DAY, "abort": 0.1, "contract": Contract.HOLD},
    "workers, faults": {"workers": 3, "faults": BAD_DAY},
    "async": {"asynchronous": True},
    "async, faults, hold": {"asynchronous": True, "faults": BAD_DAY, "contract": Contract.HOLD},
    "wide blocks": {"block_bytes": 4_096},
    "one job, one slot": {"max_jobs": 1, "host_slots": 1},
    "a step's deadline": {"deadline": 1},
    "some verified": {"verify": 0.3, "workers": 2},
    "time passes": {"speed": 10.0},
    "every client goes away": {"abort": 1.0, "faults": BAD_DAY},
    "groups": {"groups": HYBRID},
    "groups, chunks": {"groups": HYBRID, "blocks_per_chunk": 4},
    "groups, chunks, faults": {"groups": HYBRID, "blocks_per_chunk": 4, "faults": BAD_DAY, "workers": 2},
    "groups, chunks, async, hold": {
        "groups": HYBRID, "blocks_per_chunk": 2, "asynchronous": True, "contract": Contract.HOLD, "faults": BAD_DAY,
    },
    "lazy, arc": {"groups": HYBRID, "mode": Mode.LAZY, "policy": "arc", "asynchronous": True},
    "states only": {"groups": "mamba:64", "faults": BAD_DAY},
}  # fmt: skip


def check_case(case: str, copier: str) -> ReplayReport:
    """One of `CASES` with that copier is clean, and it does what it is there for."""
    report = run(*world(**CASES[case], copier=copier))

    assert_clean(report)
    assert (report.requests, report.skipped_requests, report.interrupted) == (20, 0, False)
    assert report.verified_blocks > 0
    assert report.jobs["DONE"] > 0 or case in ("every client goes away", "a step's deadline")
    if CASES[case].get("faults"):
        assert report.jobs["FAILED"] > 0
        assert report.late_completions + report.duplicate_completions > 0
    return report


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", CASES)
def test_replay_of_tensors_is_clean(case: str) -> None:
    """Every option, on CPU tensors."""
    report = check_case(case, "torch")

    assert report.copier == "torch on cpu"


def in_peace(copier: str, workers: int) -> dict[str, Any]:
    """The report of a run in which the time that a copy takes changes nothing but the number of steps."""
    workload, chosen = world(30, **{**LOADING, "deadline": 4_000, "max_jobs": 64}, workers=workers, copier=copier)
    report = run(workload, chosen)
    assert_clean(report)
    return attrs.asdict(report)


def check_agreement(copier: str, workers: int) -> None:
    """What was computed, found and verified is what the cpu copier's run has, block for block."""
    ours, cpu = in_peace(copier, workers), in_peace("cpu", workers)
    figures = (
        "requests", "tokens_computed", "tokens_hit_gpu", "tokens_hit_host", "blocks_hit_gpu", "blocks_hit_host",
        "blocks_stored", "blocks_loaded", "already_stored", "failed_loads", "verified_blocks",
    )  # fmt: skip

    assert {name: ours[name] for name in figures} == {name: cpu[name] for name in figures}
    assert min(ours["blocks_loaded"], ours["tokens_hit_gpu"], ours["verified_blocks"]) > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_replay_of_tensors_verifies_what_that_of_numpy_verifies(workers: int) -> None:
    """Where the time that a copy takes decides nothing. Where it does, other blocks are found, and so others are read."""
    check_agreement("torch", workers)


def check_wrong_copies(copier: str, monkeypatch: Patch) -> None:
    """A copier that takes the blocks of a job in another order leaves wrong bytes, on the device and in the slots."""

    class Mixed(TorchCopier):
        def launch(self, transfer: Transfer) -> None:
            super().launch(attrs.evolve(transfer, source=np.roll(transfer.source, 1)))

    monkeypatch.setattr(tensors, "TorchCopier", Mixed)
    chosen = world(30, **LOADING, copier=copier)
    without_audit = Replay(*chosen)
    without_audit.engine.audit = lambda: 0  # type: ignore[method-assign]
    read, all_of_it = without_audit.run(), run(*chosen)

    assert 0 < read.corrupt_blocks < all_of_it.corrupt_blocks
    assert not all_of_it.clean


def test_replay_of_tensors_finds_wrong_copies(monkeypatch: Patch) -> None:
    """What steps read on the device is looked at, and at the end what lies in host memory."""
    check_wrong_copies("torch", monkeypatch)


# --- where the engine stands ----------------------------------------------------------------------------------------------


Said = tuple[str, int]
"""What was said or done, and for which worker."""


def listened(monkeypatch: Patch, **changes: Any) -> tuple[list[Said], ReplayReport]:
    """Everything that the orderings and the copiers hear, and what the forward passes do, in its order."""
    said: list[Said] = []
    rank: dict[int, int] = {}

    class Listener(TorchCopier):
        def __init__(self, cache: KvCache, host: HostRows, *, worker: Worker) -> None:
            super().__init__(cache, host, worker=worker)
            rank[cache.layers[0].data_ptr()] = worker

        def before_forward(self, engine: object = None, blocks: Sequence[int] | Ids | None = None) -> None:
            said.append(("before", self.worker))
            super().before_forward(engine, blocks)

        def computed(self, engine: object = None) -> None:
            said.append(("computed", self.worker))
            super().computed(engine)

        def launch(self, transfer: Transfer) -> None:
            said.append(("launch", self.worker))
            super().launch(transfer)

    class Watched(TensorMemory):
        def write(self, blocks: Ids, fingerprints: Words, start: Ids, stop: Ids) -> None:
            said.append(("forward", rank[self.device.data_ptr()]))
            super().write(blocks, fingerprints, start, stop)

    monkeypatch.setattr(tensors, "TorchCopier", Listener)
    monkeypatch.setattr(tensors, "TensorMemory", Watched)
    return said, run(*world(copier="torch", **changes))


@pytest.mark.parametrize("faults", [None, BAD_DAY], ids=["calm", "faults"])
def test_engine_says_where_it_stands_to_each_worker(faults: FaultRates | None, monkeypatch: Patch) -> None:
    """Computed before anything else; then before each forward pass and after it, and nothing is launched between them."""
    said, report = listened(monkeypatch, workers=2, faults=faults)

    assert_clean(report)
    for worker in range(2):
        heard = [word for word, whom in said if whom == worker]
        assert heard[0] == "computed"
        assert heard.count("before") == report.steps
        assert heard.count("computed") == report.steps + 1
        assert heard.count("launch") > 0
        for word, follower in pairwise(heard):
            assert word != "before" or follower in ("forward", "computed"), "nothing is launched before a forward pass"
            assert word != "forward" or follower == "computed", "each forward pass is over before anything else"


def test_engine_says_that_it_has_computed_after_a_forward_pass_that_raised(monkeypatch: Patch) -> None:
    """The run ends with that error; what it had queued is known to the copies that are still launched."""

    def broken(*_: object) -> tuple[int, int]:
        raise InvariantError("planted")

    monkeypatch.setattr(engine, "check_and_write", broken)
    said, report = listened(monkeypatch)

    assert report.violation_messages == ["InvariantError: planted"]
    assert [word for word, _ in said] == ["computed", "before", "computed"]


# --- copies that take their time ------------------------------------------------------------------------------------------


class LateStream(FakeStream):
    """A stream of `LateDevice`."""

    def copy(self, pages: Pages, direction: Direction) -> None:
        super().copy(pages, direction)
        if isinstance(self.device, LateDevice):
            self.device.copies[self.queue[-1]] = (pages, direction)


class LateDevice(FakeDevice):
    """A fake device that does move bytes: each copy at the moment in which the dice let it land, never earlier."""

    def __init__(self, mover: RunMover, seed: int) -> None:
        super().__init__(seed)
        self.mover = mover
        self.copies: dict[Operation, tuple[Pages, Direction]] = {}

    def stream(self, name: str, *, copies: bool = True, priority: int = 0) -> FakeStream:
        self.streams.append(LateStream(self, name))
        return self.streams[-1]

    def land(self, stream: FakeStream) -> Operation:
        operation = super().land(stream)
        if operation in self.copies:
            self.mover.move(*self.copies.pop(operation))
        return operation


class LateCopier(TorchCopier):
    """Its copies land between two polls, as many as the dice say, so that they are steps late."""

    made: ClassVar[list[LateCopier]] = []

    def __init__(self, cache: KvCache, host: HostRows, *, worker: Worker) -> None:
        self.fake = LateDevice(RunMover(CopyLayout(cache, host)), seed=worker)
        self.dice = random.Random(worker)
        super().__init__(cache, host, worker=worker, device=self.fake)
        self.made.append(self)
        LateMemory.fakes[cache.layers[0].data_ptr()] = self.fake

    def poll(self) -> list[Completion]:
        for _ in range(self.dice.choice([0, 1, 3, 8])):
            if self.fake.landable():
                self.fake.land_any()
        return super().poll()


class LateMemory(TensorMemory):
    """What the engine reads and writes is known to the fake device, so that it finds who races with it."""

    fakes: ClassVar[dict[int, LateDevice]] = {}

    def _kernel(self, label: str, blocks: Ids, *, writes: bool) -> None:
        row = self.words * 8
        spans: tuple[Span, ...] = tuple(
            (self.device.data_ptr() + block * row, self.device.data_ptr() + (block + 1) * row)
            for block in np.unique(blocks).tolist()
        )
        self.fakes[self.device.data_ptr()].engine.kernel(label, *(((), spans) if writes else (spans, ())))

    def write(self, blocks: Ids, fingerprints: Words, start: Ids, stop: Ids) -> None:
        self._kernel("a forward pass writes", blocks, writes=True)
        super().write(blocks, fingerprints, start, stop)

    def corrupt(self, blocks: Ids, fingerprints: Words, words: Ids | None = None) -> Ids:
        self._kernel("a forward pass reads", blocks, writes=False)
        return super().corrupt(blocks, fingerprints, words)


@pytest.fixture
def late(monkeypatch: Patch) -> Iterator[list[LateCopier]]:
    """From here on the copies of ``torch`` are late; every copier that was made."""
    monkeypatch.setattr(tensors, "TorchCopier", LateCopier)
    monkeypatch.setattr(tensors, "TensorMemory", LateMemory)
    monkeypatch.setattr(replay, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None))
    LateCopier.made.clear()
    yield LateCopier.made
    LateCopier.made.clear()
    LateMemory.fakes.clear()


@pytest.mark.parametrize("case", ["fence", "loads", "hold", "fence, faults", "async, faults, hold", "groups, chunks, faults"])
def test_replay_with_late_copies_is_exact_and_nothing_races(case: str, late: list[LateCopier]) -> None:
    """Every copy reads and writes when the dice land it, steps after its launch: every byte is right, and by no accident.

    No copy and no forward pass touches a byte beside another one that writes it, in whatever order they could have landed.
    """
    report = run(*world(**{"deadline": 64, **CASES[case]}, copier="torch"))

    assert_clean(report)
    assert min(report.blocks_stored, report.verified_blocks) > 0
    assert "fence" not in case or report.flushes > 0
    assert "loads" not in case or report.blocks_loaded > 0
    assert [finding for copier in late for finding in copier.fake.findings] == []
    assert [copier.statistics().num_suspect for copier in late] == [0] * len(late)


def never_computed(copier: TorchCopier, engine: object = None) -> None:
    copier._marked = _Covered.ALL


BROKEN: dict[str, tuple[type, str, Callable[..., object], str]] = {
    "events are taken for passed before they are": (FakeEvent, "query", lambda _: True, "corrupt"),
    "a flush is ordered, and the copier does not wait": (LateCopier, "wait", lambda *_: None, "races"),
    "copies are launched, and not told what was computed": (LateCopier, "computed", never_computed, "races"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_late_copies_are_late_enough_to_show(broken: str, late: list[LateCopier], monkeypatch: Patch) -> None:
    """Where one of the three is broken that keep late copies right, bytes are wrong or somebody races."""
    owner, name, wrong, found = BROKEN[broken]
    monkeypatch.setattr(owner, name, wrong)
    report = run(*world(copier="torch", deadline=64))
    findings = [finding for copier in late for finding in copier.fake.findings]

    assert report.corrupt_blocks > 0 if found == "corrupt" else "a forward pass writes" in " ".join(findings)


def test_engine_rests_while_a_device_copies_and_there_is_nothing_to_compute(late: list[LateCopier], monkeypatch: Patch) -> None:
    """Otherwise steps that take no time would use up the deadlines of copies that take some; numpy needs no rest."""
    rests: list[float] = []
    monkeypatch.setattr(replay, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=rests.append))
    report = run(*world(**LOADING, copier="torch"))
    of_device = len(rests)
    run(*world(**LOADING, copier="cpu"))

    assert_clean(report)
    assert 0 < of_device < report.steps
    assert set(rests) == {replay.IDLE_S}
    assert len(rests) == of_device


# --- trouble --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts(monkeypatch: Patch) -> list[HostMemory]:
    """Every host memory that a run takes."""
    made: list[HostMemory] = []

    class Noted(HostMemory):
        def _allocate(self, progress: Callable[[int, int], None]) -> None:
            made.append(self)
            super()._allocate(progress)

    monkeypatch.setattr(tensors, "HostMemory", Noted)
    return made


def closed(hosts: list[HostMemory]) -> list[bool]:
    return [repr(host).startswith("<HostMemory closed") for host in hosts]


def test_host_memory_is_given_back_by_the_run(hosts: list[HostMemory]) -> None:
    """After the last look at its bytes."""
    waiting = Replay(*world(copier="torch", workers=2))
    before = closed(hosts)
    report = waiting.run()

    assert_clean(report)
    assert before == [False, False]
    assert closed(hosts) == [True, True]


def test_host_memory_is_given_back_when_the_next_worker_gets_none(hosts: list[HostMemory], monkeypatch: Patch) -> None:
    """What the first worker has goes back; the message names the copier and what was asked for."""
    real = tensors.TensorMemory

    def take(*given: Any, **named: Any) -> TensorMemory:
        if hosts:
            raise CapacityError("host memory: 5 bytes asked for, 4 are available (ask for fewer places)")
        return real(*given, **named)

    monkeypatch.setattr(tensors, "TensorMemory", take)
    with pytest.raises(MisuseError, match=r"^--copier torch: host memory: 5 bytes asked for, 4 are available"):
        Replay(*world(copier="torch", workers=2))

    assert closed(hosts) == [True]


@pytest.mark.parametrize("call", ["write", "corrupt"])
def test_device_that_answers_with_an_error_ends_the_run_in_one_line(
    call: str, hosts: list[HostMemory], monkeypatch: Patch
) -> None:
    """No traceback; the run is not clean, and its memory is given back because its copies are proven quiet."""
    monkeypatch.setattr(TensorMemory, "_write" if call == "write" else "_differing", broken_device)
    report = run(*world(copier="torch"))
    (message,) = report.violation_messages

    assert message.startswith("DeviceLostError: the device returned an error: CUDA error: an illegal address (see")
    assert not report.clean
    assert closed(hosts) == [True]


def broken_device(*_: object) -> None:
    raise RuntimeError("CUDA error: an illegal address\nCompile with TORCH_USE_CUDA_DSA")


def test_memory_stays_where_copies_may_still_touch_it(hosts: list[HostMemory], late: list[LateCopier]) -> None:
    """A device that proves nothing any more ends the run in one line; its memory is left to the end of the process."""
    lost = Replay(*world(copier="torch"))

    def lose() -> None:
        if lost.engine.counts.steps == 20:
            for stream in late[0].fake.streams:
                stream.hangs = True

    report = lost.run(progress=lose)

    assert "cannot be proven quiet" in report.violation_messages[-1]
    assert len(report.violation_messages) <= 2
    assert not report.clean
    assert closed(hosts) == [False]


# --- options and the command line -----------------------------------------------------------------------------------------


def test_options_refuse_what_a_device_has_no_room_for(monkeypatch: Patch) -> None:
    """Blocks count against the device, slots against the host; each refusal says how much there is."""
    monkeypatch.setattr(TensorDevice, "room", lambda _: 3 << 20)
    ReplayOptions(copier="torch", gpu_blocks=3 << 10, block_bytes=1 << 10)
    with pytest.raises(MisuseError, match=r"^--workers 2 x --gpu-blocks 3072 .* and the device has room for 0\.0 GiB"):
        ReplayOptions(copier="torch", gpu_blocks=3 << 10, block_bytes=1 << 10, workers=2)
    with pytest.raises(MisuseError, match="this machine has"):
        ReplayOptions(copier="torch", host_slots=1 << 31)
    monkeypatch.setattr(TensorDevice, "room", lambda _: 1 << 60)
    ReplayOptions(
        copier="torch", gpu_blocks=1 << 16, host_slots=1, block_bytes=1 << 30
    )  # the host has no such memory, and needs none


def test_preparing_hears_of_all_host_memory() -> None:
    """From the first bytes of the first worker to the last of the last one."""
    heard: list[tuple[int, int]] = []
    workload, chosen = world(copier="torch", workers=3)
    Replay(workload, chosen, preparing=lambda done, total: heard.append((done, total))).run()
    total = 3 * chosen.host_slots * chosen.block_bytes

    assert heard == sorted(heard)
    assert heard[-1] == (total, total)
    assert {told for _, told in heard} == {total}


def in_a_process(script: str) -> subprocess.CompletedProcess[str]:
    """What other tests have imported is not there."""
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS_S
    )


def test_command_without_torch_says_what_to_install() -> None:
    """One line, exit status 2; the cpu copier runs without it, and does not load it where it is there."""
    ran = in_a_process(
        "import sys\n"
        "from blocklife.cli import main\n"
        "assert main(['replay', '--requests', '3', '--json']) == 0\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        "assert main(['replay', '--requests', '3', '--json']) == 0\n"
        "sys.exit(main(['replay', '--copier', 'torch']))\n"
    )

    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.startswith("blocklife: --copier torch needs torch: ")
    assert ran.stderr.endswith("(pip install 'torch>=2.4')\n")
    assert ran.stderr.count("\n") == 1
