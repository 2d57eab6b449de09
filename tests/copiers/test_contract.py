"""What every copier promises: bytes arrive in order, an error is a result, a wait is a proof, and a close drains."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from blocklife.copiers import Copier, CpuCopier
from blocklife.copiers.torch import KvCache, TorchCopier
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Limits
from tests.copiers.rig import (
    FAILED,
    KINDS,
    LOAD,
    OK,
    PLACES,
    RANK,
    STORE,
    WORDS,
    Rows,
    Words,
    job,
    numbers,
    results,
    tensors,
    transfer,
)


@pytest.fixture
def ends() -> tuple[Words, Words]:
    """The device and the host."""
    return tensors()


@pytest.fixture(params=KINDS)
def copier(request: pytest.FixtureRequest, ends: tuple[Words, Words]) -> Iterator[Copier]:
    made = KINDS[request.param](*ends)
    yield made
    made.close()


def test_bytes_move_both_ways(copier: Copier, ends: tuple[Words, Words]) -> None:
    """Every target row holds its source row, all others are as before; the worker signs, once."""
    device, host = ends
    want_device, want_host = device.copy(), host.copy()
    want_host[[7, 1, 4]] = device[[1, 2, 3]]
    want_device[[9, 8]] = host[[10, 11]]
    copier.launch(transfer(1, STORE, [1, 2, 3], [7, 1, 4]))
    copier.launch(transfer(2, LOAD, [10, 11], [9, 8]))
    copier.wait([job(1), job(2)])

    assert copier.worker == RANK
    assert copier.poll() == [Completion(job(1), RANK, OK), Completion(job(2), RANK, OK)]
    assert copier.poll() == []
    np.testing.assert_array_equal(device, want_device)
    np.testing.assert_array_equal(host, want_host)


def test_launch_takes_its_ids_with_it(copier: Copier, ends: tuple[Words, Words]) -> None:
    """The caller may reuse the id arrays as soon as launch has returned."""
    given = transfer(1, STORE, [1, 2], [3, 4])
    copier.launch(given)
    given.source[:] = given.target[:] = 0
    copier.wait([job(1)])

    np.testing.assert_array_equal(ends[1][[3, 4]], ends[0][[1, 2]])


def test_each_direction_is_first_in_first_out(copier: Copier, ends: tuple[Words, Words]) -> None:
    """Stores to one slot leave the last one's bytes, and land in order."""
    for number in range(1, 9):
        copier.launch(transfer(number, STORE, [number], [0]))
    landed: list[int] = []
    while copier.busy():
        landed += numbers(copier.poll())

    assert landed == list(range(1, 9))
    np.testing.assert_array_equal(ends[1][0], ends[0][8])


@pytest.mark.parametrize("bad", [PLACES, -1])
def test_an_error_becomes_a_result(copier: Copier, bad: int) -> None:
    """A place that does not exist fails its own job; neighbours and polls go on."""
    copier.launch(transfer(1, STORE, [1, bad, 2], [1, 2, 3]))
    copier.launch(transfer(2, STORE, [1], [4]))
    copier.launch(transfer(3, LOAD, [bad], [4]))
    copier.wait([job(1), job(2), job(3)])

    assert results(copier.poll()) == [(1, FAILED), (2, OK), (3, FAILED)]


def test_wait_ignores_what_it_does_not_know(copier: Copier) -> None:
    """Unknown and landed jobs are quiet."""
    copier.launch(transfer(1))
    for asked in ([job(1), job(99)], [job(1)], []):
        copier.wait(asked)

    assert numbers(copier.poll()) == [1]


def test_close_drains_and_may_be_repeated(copier: Copier, ends: tuple[Words, Words]) -> None:
    """What was launched has moved, may still be polled, and no thread is left; a launch is refused, and queues nothing."""
    copier.launch(transfer(1, STORE, [1, 2, 3], [4, 5, 6]))
    copier.close()
    copier.close()
    with pytest.raises(MisuseError, match=r"job 1\.2: cannot LAUNCH while the copier is CLOSED"):
        copier.launch(transfer(2))

    np.testing.assert_array_equal(ends[1][[4, 5, 6]], ends[0][[1, 2, 3]])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("blocklife-copier")]
    assert copier.busy()
    assert numbers(copier.poll()) == [1]
    assert not copier.busy()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cpu"])  # which may have landed it meanwhile
def test_a_second_launch_of_a_job_is_refused(kind: str, ends: tuple[Words, Words]) -> None:
    """A job that is out is not launched again; the first launch goes on."""
    copier = KINDS[kind](*ends)
    copier.launch(transfer(1))
    with pytest.raises(MisuseError, match="launched once"):
        copier.launch(transfer(1, LOAD))
    copier.close()

    assert numbers(copier.poll()) == [1]


def test_busy_until_the_last_completion_was_polled(copier: Copier) -> None:
    idle = copier.busy()
    copier.launch(transfer(1))
    queued = copier.busy()
    copier.wait([job(1)])
    landed = copier.busy()
    copier.poll()

    assert (idle, queued, landed, copier.busy()) == (False, True, True, False)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_walk_leaves_the_bytes_of_one_copy_after_the_other(kind: str, seed: int) -> None:
    """Random launches, polls, waits and overwrites: each job is reported once, and whenever all is quiet all bytes agree.

    Stores and loads keep to a half each, but where no copy runs beside its caller: races between directions are nobody's
    promise, and sources are overwritten only where all is quiet.
    """
    dice = random.Random(seed)
    device, host = tensors()
    copier, wanted = KINDS[kind](device, host), (device.copy(), host.copy())
    reported: list[int] = []
    number, half = 0, PLACES if kind == "torch" else PLACES // 2
    for _ in range(150):
        match dice.choices(["launch", "poll", "wait", "quiet"], [dice.randint(1, 6), 4, 1, 1])[0]:
            case "launch":
                number += 1
                direction = dice.choice([STORE, LOAD])
                places = range(half) if direction is STORE else range(PLACES - half, PLACES)
                count = dice.randint(1, half)
                given = transfer(number, direction, dice.choices(places, k=count), dice.sample(places, count))
                copier.launch(given)
                source, target = wanted if direction is STORE else wanted[::-1]
                for one, other in zip(given.source.tolist(), given.target.tolist(), strict=True):
                    target[other] = source[one]
            case "poll":
                reported += numbers(copier.poll())
            case "wait":
                copier.wait([job(dice.randint(1, number + 1)) for _ in range(2)])
            case _:
                copier.wait([job(name) for name in range(number + 1)])
                np.testing.assert_array_equal(device, wanted[0])
                np.testing.assert_array_equal(host, wanted[1])
                row, word = dice.randrange(PLACES), dice.randrange(1 << 30)
                device[row] = wanted[0][row] = host[row] = wanted[1][row] = word
    copier.close()
    while copier.busy():
        reported += numbers(copier.poll())

    assert sorted(reported) == list(range(1, number + 1))
    np.testing.assert_array_equal(device, wanted[0])
    np.testing.assert_array_equal(host, wanted[1])


# --- memory and ledger ----------------------------------------------------------------------------------------------------


def of_torch(limits: Limits, places_per_slot: int) -> Copier:
    cache, host = KvCache([[torch.zeros(PLACES, WORDS)]]), Rows(torch.zeros(PLACES, 4 * WORDS, dtype=torch.uint8))
    return TorchCopier(cache, host, worker=RANK, limits=limits, places_per_slot=places_per_slot)


def of_numpy(limits: Limits, places_per_slot: int) -> Copier:
    return CpuCopier(*tensors(), worker=RANK, limits=limits, places_per_slot=places_per_slot)


@pytest.mark.parametrize("make", [of_numpy, of_torch])
@pytest.mark.parametrize(
    ("num_blocks", "num_slots", "each", "said"),
    [
        (17, 4, 1, "the device has 16 blocks, and the ledger 17"),
        (8, 17, 1, "the host has 16 places, and the ledger needs 17"),
        (8, 6, 3, "the host has 16 places, and the ledger needs 18: num_slots=6, with 3 places each"),
        (4, 4, 0, "places_per_slot must be at least 1, not 0"),
        (16, 16, 1, ""),
        (16, 4, 4, ""),
    ],
)
def test_memory_that_is_smaller_than_the_ledger_is_refused(
    make: Callable[[Limits, int], Copier], num_blocks: int, num_slots: int, each: int, said: str
) -> None:
    """Before a thread starts; without this the first copy of a place that is not there would fail, long after."""
    before, limits = threading.active_count(), Limits(num_blocks=num_blocks, num_slots=num_slots)
    if said:
        with pytest.raises(MisuseError, match=said):
            make(limits, each)
    else:
        make(limits, each).close()
    assert threading.active_count() == before
