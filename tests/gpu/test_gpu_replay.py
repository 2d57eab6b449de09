"""Whole replays with their blocks on a GPU: every byte is verified there, and the host's slots at the end.

Method: the worlds and checks of `test_replay_copiers` and `test_replay_tensors`, which run on CPU tensors without a GPU; here
only the device is another one. Copies land when they land, so nothing is expected of the number of steps.
"""

from __future__ import annotations

import json

import pytest
import torch

from blocklife.cli import main
from blocklife.copiers import FaultRates
from blocklife.engines.toy import Replay, ReplayOptions, generate_workload
from blocklife.engines.toy import _tensors as tensors
from blocklife.engines.toy._tensors import TensorDevice, TensorMemory
from blocklife.errors import MisuseError
from blocklife.ledger import Contract
from tests.toy.test_replay_copiers import CASES, check_agreement, check_case, check_wrong_copies
from tests.toy.test_replay_tensors import check_walk, check_wrong_bit
from tests.toy.worlds import BAD_DAY, assert_clean, run, world

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES)
def test_replay_on_a_gpu_is_clean(case: str) -> None:
    """Every option."""
    report = check_case(case, "cuda")

    assert report.copier == f"cuda: {torch.cuda.get_device_name()}"


@pytest.mark.parametrize("contract", list(Contract), ids=lambda each: each.name.lower())
def test_replay_of_real_sizes_on_a_gpu_is_clean(contract: Contract) -> None:
    """Hundreds of requests under faults, on two workers of one device, with blocks of the size of real ones."""
    chosen = ReplayOptions(
        copier="cuda", contract=contract, faults=FaultRates.default(), workers=2, block_bytes=64 << 10, gpu_blocks=1_024
    )
    report = run(generate_workload(requests=300, seed=1), chosen)

    assert_clean(report)
    assert min(report.blocks_stored, report.blocks_loaded, report.preemptions) > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_replay_on_a_gpu_verifies_what_that_of_numpy_verifies(workers: int) -> None:
    """Where the time that a copy takes decides nothing."""
    check_agreement("cuda", workers)


def test_replay_on_a_gpu_finds_wrong_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What steps read on the device is looked at, and at the end what lies in pinned memory."""
    check_wrong_copies("cuda", monkeypatch)


def test_replay_on_a_gpu_that_is_stopped_aborts_and_reports() -> None:
    """The copies land, and nothing is left behind."""
    stopped = Replay(*world(30, faults=BAD_DAY, copier="cuda"))
    report = stopped.run(stop=lambda: stopped.engine.counts.steps >= 20)

    assert_clean(report)
    assert report.interrupted
    assert stopped.ledger.jobs.live == 0


def test_command_replays_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """With all that can be combined, and a report for machines."""
    options = ["--groups", "full:64,mamba:128", "--blocks-per-chunk", "2", "--async", "--faults", "--workers", "2"]
    status = main(["replay", "--copier", "cuda", "--requests", "50", "--json", *options])
    report = json.loads(capsys.readouterr().out)

    assert status == 0
    assert report["copier"].startswith("cuda: ")
    assert report["verified_blocks"] > 0


# --- the memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_tensors_on_a_gpu_answer_as_numpy_does(seed: int) -> None:
    check_walk(seed, TensorDevice("cuda").inner)


@pytest.mark.parametrize("seed", range(3))
def test_tensors_on_a_gpu_are_worked_on_piece_by_piece(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where a piece is a few words."""
    monkeypatch.setattr(tensors, "SLAB", 40)
    check_walk(seed, TensorDevice("cuda").inner)


@pytest.mark.parametrize("seed", range(5))
def test_tensors_on_a_gpu_show_one_wrong_bit(seed: int) -> None:
    check_wrong_bit(seed, TensorDevice("cuda").inner)


def test_tensors_on_a_gpu_have_pinned_host_memory() -> None:
    """The device has the blocks; the host memory is pinned until the close."""
    memory = TensorMemory(8, 8, 64, 0, device=TensorDevice("cuda").inner)
    before = (memory.device.is_cuda, memory.host.is_cuda, memory.pages.pinned)
    memory.close()

    assert before == (True, False, True)
    with pytest.raises(MisuseError, match="after CLOSE"):
        _ = memory.pages.rows


def test_options_refuse_what_the_gpu_has_no_room_for() -> None:
    """Before anything is taken, in one line that says how much there is."""
    there = torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(MisuseError, match=r"need .* GiB, and the device has room for .* GiB \(lower one\)$"):
        ReplayOptions(copier="cuda", gpu_blocks=2 + there // (1 << 20), block_bytes=1 << 20)
