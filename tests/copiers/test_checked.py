"""Host memory that is checked: a load brings what was stored, or it fails and moves nothing.

Method: real memory and a real copier on CPU tensors; bytes of host memory are changed between a store and its load, as damage
does, and a copier inside that lands only when it is told to shows in which order things are reported.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from attrs import define, field

from blocklife.copiers import Sharing
from blocklife.copiers._checksum import checksum
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._checked import CheckedCopier, PlaceSums, SummedTierCopier
from blocklife.errors import MisuseError
from blocklife.ledger.records import Completion, Direction, JobId, Result, TierTransfer, Transfer, Worker
from blocklife.testing import MemoryStore
from blocklife.tiers import Identity, StoreCopier

BLOCKS, PLACES, PAGE = 6, 8, 5_000
STORE, LOAD = Direction.STORE, Direction.LOAD


class Wanted(Future[Any]):
    """Its result makes the work happen."""

    def __init__(self, later: Later) -> None:
        super().__init__()
        self._later = later

    def result(self, timeout: float | None = None) -> Any:
        """Do all that is left, then as usual."""
        self._later.work()
        return super().result(timeout)


class Later(ThreadPoolExecutor):
    """Work that is done when somebody wants it: nothing depends on how fast a thread is."""

    def __init__(self) -> None:
        super().__init__(1)
        self.left: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Wanted:
        """Keep it for `work`."""
        future = Wanted(self)

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as problem:
                future.set_exception(problem)

        self.left.append(run)
        return future

    def work(self) -> None:
        """Do all that is left."""
        while self.left:
            self.left.pop(0)()


@define(eq=False)
class Rig:
    """A copier whose host memory is checked."""

    shared: Sharing | None = None
    pool: ThreadPoolExecutor = field(factory=lambda: Later())
    told: list[str] = field(factory=list)
    num_jobs: int = 0
    device: torch.Tensor = field(init=False)
    host: HostMemory = field(init=False)
    copier: CheckedCopier = field(init=False)
    sums: PlaceSums = field(init=False)

    def __attrs_post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.device = torch.from_numpy(rng.integers(0, 256, (BLOCKS, PAGE), np.uint8))
        cache = KvCache([[self.device]])
        self.host = HostMemory(cache.row_bytes, PLACES, pinned=False, shared=self.shared)
        self.sums = PlaceSums(self.host, self.pool, self.told.append)
        worker = Worker(0 if self.shared is None else self.shared.rank)
        self.copier = CheckedCopier(TorchCopier(cache, self.host, worker=worker), self.sums)
        self.copier.computed()

    def transfer(self, direction: Direction, source: list[int], target: list[int]) -> Transfer:
        self.num_jobs += 1
        return Transfer(JobId(1, self.num_jobs), direction, np.array(source), np.array(target), (len(source),))

    def launch(self, direction: Direction, source: list[int], target: list[int]) -> JobId:
        transfer = self.transfer(direction, source, target)
        self.copier.launch(transfer)
        return transfer.job

    def work(self) -> None:
        """Make the sums that are wanted."""
        if isinstance(self.pool, Later):
            self.pool.work()

    def landed(self) -> list[Completion]:
        """All that is reported until nothing is left."""
        found = []
        while self.copier.busy():
            self.work()
            found += self.copier.poll()
        return found

    def store(self, blocks: list[int], places: list[int]) -> None:
        job = self.launch(STORE, blocks, places)
        assert self.landed() == [Completion(job, self.copier.worker, Result.OK)]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.copier.close()
    made.host.close()


def test_what_was_stored_comes_back(rig: Rig) -> None:
    wanted = rig.device[:3].clone()
    rig.store([0, 1, 2], [3, 1, 7])
    rig.device.fill_(0)
    job = rig.launch(LOAD, [3, 1, 7], [0, 1, 2])

    assert rig.landed() == [Completion(job, Worker(0), Result.OK)]
    assert torch.equal(rig.device[:3], wanted)
    assert (rig.told, rig.sums.num_damaged) == ([], 0)


@pytest.mark.parametrize("seed", range(12))
def test_a_place_with_one_wrong_bit_is_never_loaded(rig: Rig, seed: int) -> None:
    """Its load fails, moves nothing into any block and is told of; other loads come."""
    dice = random.Random(seed)
    rig.store([0, 1, 2], [3, 1, 7])
    rig.host.rows[1, dice.randrange(PAGE)] ^= 1 << dice.randrange(8)
    rig.device.fill_(0)
    bad, good = rig.launch(LOAD, [3, 1], [4, 5]), rig.launch(LOAD, [7], [2])

    found = {completion.job: completion.result for completion in rig.landed()}
    assert found == {bad: Result.FAILED, good: Result.OK}
    assert not rig.device[4:].any()
    assert rig.device[2].any()
    assert rig.sums.num_damaged == 1
    (told,) = rig.told
    assert told == (
        f"worker 0: load {bad} moves nothing: host memory holds other bytes than were stored at places [1] of 1 (its request "
        "computes instead)"
    )


def test_a_store_is_reported_when_its_places_are_summed(rig: Rig) -> None:
    """Before that nobody may read them: their sums are those of what was there before."""
    job = rig.launch(STORE, [0], [2])
    rig.copier.wait([job])

    assert rig.copier.poll() == []
    assert rig.copier.busy()
    rig.work()
    assert [completion.job for completion in rig.copier.poll()] == [job]
    assert not rig.copier.busy()


def test_a_sum_that_is_made_while_it_is_asked_for_is_reported_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked whether it is done, a future says no and is done right behind that."""
    job = rig.launch(STORE, [0], [2])
    rig.copier.wait([job])
    done = Wanted.done

    def late(self: Wanted) -> bool:
        found = done(self)
        self._later.work()
        return found

    monkeypatch.setattr(Wanted, "done", late)
    reported = [completion.job for _ in range(4) for completion in rig.copier.poll()]

    assert reported == [job]


def test_a_store_that_cannot_be_summed_has_failed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could compare what it brought."""

    def refuse(_self: PlaceSums, _places: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(PlaceSums, "_sum", refuse)
    job = rig.launch(STORE, [0], [2])

    assert rig.landed() == [Completion(job, Worker(0), Result.FAILED)]
    assert rig.told == [f"worker 0: what job {job} brought cannot be summed: OSError('no memory')"]


def test_all_is_reported_once_by_threads_of_their_own() -> None:
    """Two hundred stores and loads with real threads; how fast they are changes nothing."""
    dice = random.Random(7)
    with ThreadPoolExecutor(2) as pool:
        rig = Rig(pool=pool)
        for _ in range(100):
            blocks = dice.sample(range(BLOCKS), 2)
            stored = rig.launch(STORE, blocks, [2, 5])
            found = []
            while rig.copier.busy():
                found += rig.copier.poll()
            loaded = rig.launch(LOAD, [5, 2], blocks)
            while rig.copier.busy():
                found += rig.copier.poll()
            assert found == [Completion(job, Worker(0), Result.OK) for job in (stored, loaded)]
        rig.copier.close()
        rig.host.close()


@pytest.mark.parametrize("stops", ["wait", "fence", "close"])
def test_whoever_waits_for_a_load_waits_for_its_check(rig: Rig, stops: str) -> None:
    """And a wrong one is quiet, for nothing of it moves."""
    rig.store([0, 1], [2, 3])
    rig.device.fill_(0)
    rig.host.rows[3, 0] ^= 1
    good, bad = rig.launch(LOAD, [2], [4]), rig.launch(LOAD, [3], [5])
    assert not rig.device.any()
    if stops == "close":
        rig.copier.close()
    else:
        getattr(rig.copier, stops)([good, bad])

    assert rig.device[4].any()
    assert not rig.device[5].any()
    assert {each.job: each.result for each in rig.copier.poll()} == {good: Result.OK, bad: Result.FAILED}


def test_a_load_that_is_needed_now_is_launched_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever its check is over; and no other load is."""
    rig.store([0, 1], [2, 3])
    inner, seen = rig.copier._inner, []
    assert isinstance(inner, TorchCopier)
    launch = inner.launch

    def listening(transfer: Transfer) -> None:
        seen.append((transfer.job, inner._needed_now))
        launch(transfer)

    monkeypatch.setattr(inner, "launch", listening)
    with rig.copier.needed_now():
        now = rig.launch(LOAD, [2], [4])
    later = rig.launch(LOAD, [3], [5])
    rig.landed()

    assert seen == [(now, True), (later, False)]


def test_a_load_that_is_out_or_comes_after_the_close_is_refused(rig: Rig) -> None:
    transfer = rig.transfer(LOAD, [0], [0])
    rig.copier.launch(transfer)
    with pytest.raises(MisuseError, match="a job is launched once"):
        rig.copier.launch(transfer)
    rig.copier.close()
    with pytest.raises(MisuseError, match="while the copier is CLOSED"):
        rig.copier.launch(rig.transfer(LOAD, [0], [0]))


def test_a_load_that_the_copier_inside_refuses_has_failed(rig: Rig) -> None:
    """It was checked in the meantime, and nobody is there to hear an error."""
    rig.store([0], [0])
    job = rig.launch(LOAD, [0], [BLOCKS])

    assert rig.landed() == [Completion(job, Worker(0), Result.FAILED)]


def test_ranks_that_share_memory_check_what_another_has_written() -> None:
    """Each sums the slots that it writes; all compare."""
    name = f"test-{os.getpid()}-{random.SystemRandom().randrange(1 << 32)}"
    ranks = [Rig(Sharing(name, rank, 2)) for rank in range(2)]
    for rig in ranks:
        rig.store([0, 1], [2, 3])
    assert all(np.array_equal(rig.host.sums, ranks[0].host.sums) for rig in ranks)
    ranks[0].host.rows[3, 9] ^= 1
    for rig in ranks:
        good, bad = rig.launch(LOAD, [2], [4]), rig.launch(LOAD, [3], [5])
        assert {each.job: each.result for each in rig.landed()} == {good: Result.OK, bad: Result.FAILED}
    for rig in ranks:
        rig.copier.close()
        rig.host.close()


@pytest.mark.parametrize("chunk", [1, 2])
def test_what_comes_from_a_store_below_is_summed(rig: Rig, chunk: int) -> None:
    """Missing slots are not: nobody may read them."""
    store, slots = MemoryStore(), PLACES // chunk
    identity = Identity(model="m", dtype="d", groups="full:4", blocks_per_chunk=chunk, slot_bytes=chunk * PAGE, num_ranks=1)
    below = StoreCopier(store, rig.host.rows.numpy().reshape(slots, -1), identity, worker=Worker(0))
    copier = SummedTierCopier(below, rig.sums, chunk)

    def run(number: int, direction: Direction, slots: list[int], keys: list[bytes]) -> Completion:
        job = JobId(1, number)
        copier.launch(TierTransfer(job, direction, np.array(slots, np.int64), bytes(len(slots)), tuple(keys), b""))
        copier.wait([job])
        found: list[Completion] = []
        while not found:
            found += copier.poll()
            rig.work()
        return found[0]

    rig.store([0, 1], [0, 1])
    assert run(90, Direction.DEMOTE, [0], [b"a"]).missing == ()
    assert run(91, Direction.PROMOTE, [2, 3], [b"a", b"none"]).missing == (1,)
    found = [int(each) for each in rig.host.sums]
    assert found[2 * chunk : 3 * chunk] == found[:chunk]
    assert found[3 * chunk :] == [0] * (PLACES - 3 * chunk)
    assert not copier.busy()
    copier.close()


@pytest.mark.parametrize("size", [0, 7, 4096, 4097, 3 * 4096 + 5])
def test_checksum_changes_with_every_single_byte(size: int) -> None:
    payload = bytearray(np.random.default_rng(size).integers(0, 256, size, np.uint8))
    before = checksum(memoryview(payload))
    for at in random.Random(size).sample(range(size), min(size, 50)):
        payload[at] ^= 0x10
        assert checksum(memoryview(payload)) != before
        payload[at] ^= 0x10
    assert checksum(memoryview(payload)) == before
