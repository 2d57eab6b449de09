"""The copier to a store: content comes back byte for byte or is told as missing, and no store ever touches a slot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from blocklife.copiers import Sharing
from blocklife.errors import MisuseError
from blocklife.ledger.records import Completion, Direction, JobId, Result, Worker
from blocklife.testing import MemoryStore
from blocklife.tiers import (
    HEADER_BYTES,
    CircuitBreaker,
    ContentStore,
    FaultyStore,
    FileStore,
    Identity,
    Page,
    StoreCopier,
    StoreFaultRates,
    StoreOutcome,
)
from tests.disks import small_disk
from tests.programs import HANGS_S
from tests.tiers.fakes import Call, PlayedStore, Seconds
from tests.tiers.rig import DEMOTE, EMPTY, IDENTITY, NUM_SLOTS, PROMOTE, SLOT_BYTES, STRIDE, Rig, name

Make = Callable[..., Rig]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Rig] = []

    def make(store: ContentStore, rank: int = 0, **more: object) -> Rig:
        made.append(Rig(store, rank, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for rig in made:
        rig.close()


# --- content -----------------------------------------------------------------------------------------------------------


def test_content_comes_back_byte_for_byte(make: Make) -> None:
    """In another copier, into other slots, in another order; a job may need many pieces."""
    store = MemoryStore()
    first, second = make(store), make(store)
    keys = list(range(30))
    first.fill(keys, keys)
    report = first.run(DEMOTE, keys, keys)
    assert report == Completion(report.job, Worker(0), Result.OK)

    slots = [63 - key for key in keys]
    report = second.run(PROMOTE, slots, keys)
    assert report == Completion(report.job, Worker(0), Result.OK)
    assert all(second.holds(slot, key) for slot, key in zip(slots, keys, strict=True))
    assert all(second.is_empty(slot) for slot in range(34))
    assert first.copier.statistics().demoted == second.copier.statistics().promoted == 30
    assert first.copier.statistics().bytes_demoted == second.copier.statistics().bytes_promoted == 30 * SLOT_BYTES


def test_content_of_another_rank_space_or_model_is_never_asked_for(make: Make) -> None:
    store = MemoryStore()
    rig = make(store)
    rig.put("abc", space=b"one")
    other = Identity(model="n", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=SLOT_BYTES, num_ranks=2)

    assert rig.run(PROMOTE, range(3), "abc", b"two").missing == (0, 1, 2)
    assert make(store, rank=1).run(PROMOTE, range(3), "abc", b"one").missing == (0, 1, 2)
    assert make(store, identity=other).run(PROMOTE, range(3), "abc", b"one").missing == (0, 1, 2)
    assert rig.run(PROMOTE, range(3), "abc", b"one").missing == ()


def test_what_is_missing_is_told_by_position(make: Make) -> None:
    """Its slots are left alone, and the others come."""
    rig = make(MemoryStore())
    rig.put("bdf")
    report = rig.run(PROMOTE, range(10, 17), "abcdefg")

    assert report.result is Result.OK
    assert report.missing == (0, 2, 4, 6)
    assert [rig.is_empty(slot) for slot in range(10, 17)] == [True, False] * 3 + [True]
    assert all(rig.holds(slot, key) for slot, key in ((11, "b"), (13, "d"), (15, "f")))
    assert rig.copier.statistics().absent == 4


def test_content_that_the_store_has_is_not_put_again(make: Make) -> None:
    store = MemoryStore()
    rig = make(store)
    rig.put("abc")
    before = dict(store.values)
    rig.fill(range(4), "abcd")

    assert rig.run(DEMOTE, range(4), "abcd").missing == ()
    assert rig.copier.statistics().already_there == 3
    assert rig.copier.statistics().demoted == 4
    assert all(store.values[key] is kept for key, kept in before.items())


def test_ranks_that_share_slots_move_each_slot_once(make: Make) -> None:
    """Of four workers the last two share: their part of the store is the second, and each moves the slots that it writes."""
    store = MemoryStore()
    first, second = sharing(make, store)
    keys, slots = list(range(20)), list(range(30, 10, -1))
    first.fill(slots, keys)
    reports = [rig.run(DEMOTE, slots, keys) for rig in (first, second)]

    assert reports == [Completion(report.job, Worker(rank), Result.OK) for rank, report in zip((2, 3), reports, strict=True)]
    assert sorted(store.values) == sorted(name(key, rank=1) for key in keys)
    assert first.copier.statistics().demoted == second.copier.statistics().demoted == 10

    first.host[:] = EMPTY
    reports = [rig.run(PROMOTE, [0, 1, 2, 3, 4], [0, 1, "none", "nor this", 4]) for rig in (first, second)]
    assert [report.missing for report in reports] == [(2,), (3,)]
    assert all(second.holds(slot, slot) for slot in (0, 1, 4))
    assert first.run(PROMOTE, [5, 7], keys[5:7]).missing == ()
    assert first.is_empty(5)
    assert first.is_empty(7)


def sharing(make: Make, store: ContentStore) -> list[Rig]:
    host: NDArray[np.uint8] = np.full((NUM_SLOTS, SLOT_BYTES), EMPTY, np.uint8)
    return [make(store, 2 + rank, host=host, shared=Sharing("test", rank, 2)) for rank in range(2)]


def test_a_rank_that_shares_is_one_of_its_neighbours() -> None:
    with pytest.raises(MisuseError, match="worker 2 is not 1 of its 2 neighbours"):
        Rig(MemoryStore(), 2, shared=Sharing("test", 1, 2))


def test_entry_of_something_else_under_this_name_is_foreign(make: Make) -> None:
    """Whole entries that were moved: of another key, another rank, another model."""
    store = MemoryStore()
    rig, second = make(store), make(store, rank=1)
    other = Identity(model="n", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=SLOT_BYTES, num_ranks=2)
    rig.put("abcd")
    second.put("b")
    make(store, identity=other).put("c")
    store.values[name("a")] = store.values[name("d")]
    store.values[name("b")] = store.values[name("b", rank=1)]
    store.values[name("c")] = store.values[name("c", identity=other)]

    assert rig.run(PROMOTE, range(4), "abcd").missing == (0, 1, 2)
    assert rig.copier.statistics().foreign == 3
    assert all(rig.is_empty(slot) for slot in range(3))


def test_store_that_is_full_refuses_content(make: Make) -> None:
    full = [StoreOutcome.OK] * 2 + [StoreOutcome.FULL] * 3
    rig = make(PlayedStore(lambda method, _, call: full if method == "put" else call()), num_threads=1, entries=5)
    rig.fill(range(5), "abcde")

    assert rig.run(DEMOTE, range(5), "abcde") == Completion(JobId(1, 1), Worker(0), Result.OK, (2, 3, 4))
    assert rig.copier.statistics().refused == 3
    assert rig.copier.statistics().demoted == 2


# --- a store that fails --------------------------------------------------------------------------------------------------


def test_store_that_is_down_is_left_alone_and_comes_back(make: Make) -> None:
    """After some failures nothing is called; later one piece is tried, and then all goes on."""
    down = [True]
    calls: list[int] = []

    def play(method: str, asked: Sequence[object], call: Call) -> list[StoreOutcome]:
        calls.extend([len(asked)] * (method == "get"))
        return [StoreOutcome.FAILED] * len(asked) if down and method == "get" else call()

    clock = Seconds()
    breaker = CircuitBreaker(2, first_wait_s=5.0, clock=clock)
    rig = make(PlayedStore(play), breaker=breaker, num_threads=1)
    rig.put("ab")
    for _ in range(5):
        report = rig.run(PROMOTE, range(2), "ab")
        assert (report.result, report.missing) == (Result.OK, (0, 1))
    assert calls == [2, 2]
    assert rig.copier.statistics().failed == 4
    assert rig.copier.statistics().skipped == 6

    down.clear()
    clock.now = 5.0
    assert rig.run(PROMOTE, range(2), "ab").missing == ()
    assert not breaker.statistics().is_down


@pytest.mark.parametrize(("broken", "whole"), [(DEMOTE, PROMOTE), (PROMOTE, DEMOTE)])
def test_store_that_fails_one_way_is_used_the_other_way(make: Make, broken: Direction, whole: Direction) -> None:
    """A disk that has become read-only refuses every put, and gets go on; and the other way round."""

    failing = list[str]()

    def play(method: str, asked: Sequence[object], call: Call) -> list[StoreOutcome]:
        return [StoreOutcome.FAILED] * len(asked) if method in failing else call()

    store, clock = PlayedStore(play), Seconds()
    gets, puts = (CircuitBreaker(2, first_wait_s=5.0, clock=clock) for _ in range(2))
    rig = make(store, breaker=gets, put_breaker=puts, num_threads=1)
    rig.put("ab")
    failing.append("put" if broken is DEMOTE else "get")
    for number in range(20):
        new = [f"{number}a", f"{number}b"]
        assert rig.run(broken, range(2), new if broken is DEMOTE else "ab").missing == (0, 1)
        assert rig.run(whole, range(2), new if whole is DEMOTE else "ab").missing == ()

    down, up = (puts, gets) if broken is DEMOTE else (gets, puts)
    assert (down.statistics().times_down, down.statistics().is_down, down.statistics().failures) == (1, True, 2)
    assert (up.statistics().times_down, up.statistics().failures) == (0, 0)
    assert (rig.copier.statistics().failed, rig.copier.statistics().skipped) == (4, 36)

    failing.clear()
    clock.now = 5.0
    assert rig.run(broken, range(2), "yz" if broken is DEMOTE else "ab").missing == ()
    assert not down.statistics().is_down


def test_read_only_disk_gives_what_it_has(make: Make, tmp_path: Path) -> None:
    """A real one: each get comes, beside demotions of new content that all fail, with no breaker but those of the copier."""
    with small_disk(tmp_path, 8 << 20) as remount:
        store = FileStore(tmp_path / "store", 4 << 20)
        rig = make(store)
        for number in range(8):
            rig.put([f"{number}a", f"{number}b"])
        remount("ro")
        for number in range(64):
            assert rig.run(DEMOTE, range(2), [f"{number}new", f"{number}newer"]).missing == (0, 1)
            assert rig.run(PROMOTE, range(2), [f"{number % 8}a", f"{number % 8}b"]).missing == ()
        statistics = rig.copier.statistics()
        rig.copier.close()
        store.close()

    assert statistics.promoted == 128
    assert statistics.failed + statistics.skipped == 128
    assert statistics.skipped > 0


@pytest.mark.parametrize("method", ["exists", "put", "get", "remove"])
@pytest.mark.parametrize("answer", [RuntimeError("a bug"), [], [StoreOutcome.OK] * 3], ids=["raises", "short", "long"])
def test_store_that_breaks_its_word_costs_content_only(make: Make, method: str, answer: Exception | list[StoreOutcome]) -> None:
    broken = list[str]()

    def play(called: str, _: Sequence[object], call: Call) -> list[StoreOutcome]:
        if called not in broken:
            return call()
        if isinstance(answer, Exception):
            raise answer
        return answer

    store = PlayedStore(play)
    rig = make(store, num_threads=1)
    rig.put("ab")
    broken.append(method)
    if method == "remove":
        store.values[name("a")] = b"spoilt"
        assert rig.run(PROMOTE, range(2), "ab").missing == (0,)
    else:
        direction, keys = (PROMOTE, "ab") if method == "get" else (DEMOTE, "xy")
        assert rig.run(direction, range(2), keys).missing == (0, 1)
    broken.clear()
    assert rig.copier.statistics().last_error == (
        repr(answer)
        if isinstance(answer, Exception)
        else f"ValueError('{len(answer)} outcomes for {1 if method == 'remove' else 2} keys')"
    )
    assert rig.run(PROMOTE, [5], "b").missing == ()


def test_store_never_gets_the_address_of_a_slot(make: Make) -> None:
    """What it registers and is asked to write lies in the staging area, page by page."""
    seen: list[tuple[int, int]] = []

    class Watching(MemoryStore):
        def register(self, address: int, size: int) -> None:
            seen.append((address, size))
            assert address % 4096 == 0
            super().register(address, size)

        def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
            seen.extend((page.address, page.size) for page in pages)
            assert all(page.address % 4096 == 0 for page in pages)
            return super().get(pages)

    rig = make(Watching())
    rig.put("abcdefgh")
    rig.run(PROMOTE, range(8), "abcdefgh")
    first = int(rig.host.ctypes.data)

    assert len(seen) == 2 + 8
    assert [each for each in seen if each[0] < first + rig.host.nbytes and first < each[0] + each[1]] == []


def test_store_that_writes_late_spoils_no_slot(make: Make) -> None:
    """It scribbles over every page it ever got once the call is over."""
    got: list[memoryview] = []

    class Late(MemoryStore):
        def _get(self, page: Page, view: memoryview) -> StoreOutcome:
            got.append(view)
            return super()._get(page, view)

    rig = make(Late())
    rig.put("abcd")
    assert rig.run(PROMOTE, range(4), "abcd").missing == ()
    for view in got:
        view[:] = bytes(len(view))

    assert all(rig.holds(slot, key) for slot, key in enumerate("abcd"))


@pytest.mark.parametrize(("slot_bytes", "entries"), [(SLOT_BYTES, 512), ((4 << 20) - HEADER_BYTES, 1), (4 << 20, 1)])
def test_staging_area_is_small_by_default(slot_bytes: int, entries: int) -> None:
    """4 MiB for each thread, which stay in the cache of a processor; one entry where that is larger."""
    areas: list[int] = []

    class Registering(MemoryStore):
        def register(self, address: int, size: int) -> None:
            areas.append(size)

    identity = Identity(model="m", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=slot_bytes, num_ranks=1)
    StoreCopier(Registering(), np.zeros((1, slot_bytes), np.uint8), identity, worker=Worker(0)).close()

    stride = -(-identity.entry_bytes // 4096) * 4096
    assert areas == [entries * stride] * 2


def test_bytes_in_flight_are_bounded(make: Make) -> None:
    """A job far larger than the staging area: no call has more pages than a thread has room for, no page is in two calls."""
    in_flight: set[int] = set()
    most, calls, lock = [0], [0], threading.Lock()

    def play(method: str, pages: Sequence[Page], call: Call) -> list[StoreOutcome]:
        if method not in ("put", "get"):
            return call()
        addresses = {page.address for page in pages}
        with lock:
            assert len(addresses) == len(pages) <= 4
            assert in_flight.isdisjoint(addresses)
            in_flight.update(addresses)
            most[0] = max(most[0], len(in_flight))
            calls[0] += 1
        outcomes = call()
        with lock:
            in_flight.difference_update(addresses)
        return outcomes

    rig = make(PlayedStore(play), entries=4, num_threads=3)
    keys = range(NUM_SLOTS)
    rig.put(keys)
    assert rig.run(PROMOTE, range(NUM_SLOTS), keys).missing == ()

    assert all(rig.holds(slot, key) for slot, key in zip(range(NUM_SLOTS), keys, strict=True))
    assert calls[0] >= 2 * NUM_SLOTS // 4
    assert 0 < most[0] <= 3 * 4
    assert rig.copier.statistics().last_error == ""


@pytest.mark.parametrize("direction", [DEMOTE, PROMOTE])
@pytest.mark.parametrize("raises", [False, True])
def test_failure_in_the_middle_of_a_job_costs_its_piece_alone(make: Make, direction: Direction, *, raises: bool) -> None:
    """What came before and comes after is moved; the slots of the piece are told, and those of a promotion left alone."""
    failing = [False]

    def play(method: str, pages: Sequence[Page], call: Call) -> list[StoreOutcome]:
        if not failing[0] or method not in ("put", "get") or all(page.key != name(20) for page in pages):
            return call()
        if raises:
            raise RuntimeError("in the middle")
        return [StoreOutcome.FAILED] * len(pages)

    rig = make(store := PlayedStore(play), entries=4, num_threads=1)
    keys = range(NUM_SLOTS)
    if direction is PROMOTE:
        rig.put(keys)
    else:
        rig.fill(range(NUM_SLOTS), keys)
    failing[0] = True
    report = rig.run(direction, range(NUM_SLOTS), keys)

    assert (report.result, report.missing) == (Result.OK, (20, 21, 22, 23))
    assert rig.copier.statistics().failed == 4
    if direction is PROMOTE:
        assert [slot for slot in range(NUM_SLOTS) if rig.is_empty(slot)] == [20, 21, 22, 23]
        assert all(rig.holds(slot, slot) for slot in range(NUM_SLOTS) if slot not in report.missing)
    else:
        assert [slot for slot in range(NUM_SLOTS) if name(slot) not in store.values] == [20, 21, 22, 23]


# --- a store that hangs --------------------------------------------------------------------------------------------------


def hanging(method: str, *, first: int = 1, after: int = 0) -> tuple[FaultyStore, MemoryStore]:
    """A store of which some calls hang until it is released: the first ones of a method, after some that do not."""
    inner = MemoryStore()

    class Hanging(FaultyStore):
        def _begin(self, called: str, keys: Sequence[bytes]) -> list[bool]:
            nonlocal first, after
            with self._changed:
                hangs = called == method and not after and first > 0
                first -= hangs
                after -= called == method and after > 0
            if hangs:
                return super()._begin(called, keys)
            return [False] * len(keys)

    return Hanging(inner, StoreFaultRates(hang=1.0), 0), inner


@pytest.mark.parametrize("method", ["exists", "put", "get"])
def test_job_whose_call_hangs_is_given_up(make: Make, method: str) -> None:
    """Poll says FAILED once the time is over. What the call brings later touches nothing, and its thread goes on."""
    store, inner = hanging(method)
    helper = make(inner)
    helper.put("a")
    rig = make(store, num_threads=1, timeout_s=10.0)
    job = rig.launch(PROMOTE if method == "get" else DEMOTE, [0], "a" if method == "get" else "b")
    assert store.wait_until_hanging()
    rig.clock.now = 9.9
    assert rig.copier.poll() == []
    assert rig.copier.busy()
    rig.clock.now = 10.0
    assert rig.copier.poll() == [Completion(job, Worker(0), Result.FAILED)]
    assert not rig.copier.busy()
    assert rig.copier.statistics().threads_lost == rig.copier.statistics().hung_calls == 1

    late = rig.launch(PROMOTE, [1], "a")
    assert rig.copier.poll() == [Completion(late, Worker(0), Result.FAILED)]  # no thread is left for it
    rig.host[:] = EMPTY
    store.release()
    while rig.copier.statistics().threads_lost:
        threading.Event().wait(0)
    assert rig.run(PROMOTE, [5], "a").missing == ()
    assert rig.holds(5, "a")
    assert rig.is_empty(0)
    assert rig.is_empty(1)


def test_wait_ends_though_a_call_hangs(make: Make) -> None:
    """It gives up what it waits for, no later than its own time; another thread serves the other jobs."""
    store, inner = hanging("get")
    make(inner).put("ab")
    rig = make(store, timeout_s=0.2, num_threads=2)
    hung = rig.launch(PROMOTE, [0], "a")
    assert store.wait_until_hanging()
    other = rig.launch(PROMOTE, [1], "b")
    rig.copier.wait([other, JobId(9, 9)])
    assert rig.copier.poll() == [Completion(other, Worker(0), Result.OK)]

    rig.copier._clock = ticking = Ticking()
    rig.copier.wait([hung])
    assert ticking.now >= 0.2
    assert rig.copier.poll() == [Completion(hung, Worker(0), Result.FAILED)]
    store.release()
    assert rig.run(PROMOTE, [2, 3], "ab").missing == ()
    assert rig.is_empty(0)


def test_job_that_was_given_up_is_not_begun_later(make: Make) -> None:
    """Neither one that waits nor the rest of one of which a part has moved; what has moved counts as moved."""
    store, inner = hanging("put", after=1)
    rig = make(store, num_threads=1, entries=4, timeout_s=10.0)
    keys = range(12)
    rig.fill(keys, keys)
    half = rig.launch(DEMOTE, keys, keys)
    queued = rig.launch(DEMOTE, [20], "x")
    assert store.wait_until_hanging()
    rig.clock.now = 10.0
    assert {each.job for each in rig.copier.poll()} == {half, queued}
    statistics = rig.copier.statistics()
    assert (statistics.demoted, statistics.failed) == (4, 9)

    store.release()
    while rig.copier.statistics().threads_lost:
        threading.Event().wait(0)
    rig.copier.close()
    assert set(inner.values) == {name(key) for key in range(8)}
    assert rig.copier.statistics().demoted == 4


class Ticking:
    """A clock on which every look takes a little."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.02
        return self.now


def test_jobs_that_wait_for_lost_threads_fail(make: Make) -> None:
    """Both directions; nothing waits for ever."""
    store, _ = hanging("exists", first=2)
    rig = make(store, timeout_s=10.0, num_threads=2)
    jobs = [rig.launch(DEMOTE, [slot], [slot]) for slot in range(2)]
    assert store.wait_until_hanging(2)
    jobs += [rig.launch(direction, [5], "x") for direction in (DEMOTE, PROMOTE)]
    rig.clock.now = 10.0

    assert {(each.job, each.result) for each in rig.copier.poll()} == {(job, Result.FAILED) for job in jobs}
    assert rig.copier.statistics().failed == 4


class GatedHost:
    """Slots of which one cannot be written until a test opens it."""

    def __init__(self, host: NDArray[np.uint8]) -> None:
        self.host = host
        self.reached, self.opened = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return len(self.host)

    def __setitem__(self, slot: int, content: NDArray[np.uint8]) -> None:
        self.reached.set()
        assert self.opened.wait(HANGS_S)
        self.host[slot] = content


def test_job_is_reported_only_when_nobody_touches_its_slots(make: Make) -> None:
    """A thread is in the middle of a copy when the job is given up: `wait` returns after the copy, not before."""
    store = MemoryStore()
    rig = make(store, timeout_s=10.0)
    rig.put("a")
    gate = GatedHost(rig.host)
    rig.copier._host = gate  # type: ignore[assignment]
    job = rig.launch(PROMOTE, [0], "a")
    assert gate.reached.wait(HANGS_S)
    waiting = threading.Event()

    def wait() -> None:
        rig.copier.wait([job])
        waiting.set()

    waiter = threading.Thread(target=wait)
    rig.copier._clock = Ticking()
    rig.copier._timeout_s = 0.01
    waiter.start()
    while not rig.copier._out[job].given_up:
        threading.Event().wait(0)
    assert rig.copier.poll() == []
    assert not waiting.is_set()
    gate.opened.set()
    waiter.join()

    assert rig.holds(0, "a")
    assert rig.copier.poll() == [Completion(job, Worker(0), Result.FAILED)]


# --- misuse, and the end ---------------------------------------------------------------------------------------------------


def test_close_drains_and_reports_afterwards(make: Make) -> None:
    store = MemoryStore()
    rig = make(store)
    rig.fill(range(40), range(40))
    jobs = {rig.launch(DEMOTE, range(start, start + 10), range(start, start + 10)) for start in range(0, 40, 10)}
    rig.copier.close()
    rig.copier.close()

    assert {each.job for each in rig.copier.poll()} == jobs
    assert len(store.values) == 40
    with pytest.raises(MisuseError, match="while the copier is CLOSED"):
        rig.launch(DEMOTE, [0], "a")


def test_close_gives_up_what_hangs(make: Make) -> None:
    """The thread ends once the store lets it go."""
    store, _ = hanging("exists")
    rig = make(store, timeout_s=0.05)
    rig.copier._clock = Ticking()
    job = rig.launch(DEMOTE, [0], "a")
    assert store.wait_until_hanging()
    rig.copier.close()

    assert rig.copier.poll() == [Completion(job, Worker(0), Result.FAILED)]


def test_launch_refuses_what_cannot_be(make: Make) -> None:
    store, _ = hanging("exists")
    rig = make(store)
    transfer = rig.transfer(DEMOTE, [0], "a")
    rig.copier.launch(transfer)
    assert store.wait_until_hanging()

    with pytest.raises(MisuseError, match="a job is launched once"):
        rig.copier.launch(transfer)
    with pytest.raises(MisuseError, match="no slot 64 among 64"):
        rig.launch(DEMOTE, [3, 64], "ab")
    with pytest.raises(MisuseError, match="no slot -1 among 64"):
        rig.launch(DEMOTE, [-1, 5], "ab")


@pytest.mark.parametrize(
    ("host", "more", "says"),
    [
        (np.zeros((4, 99), np.uint8), {}, r"host is \(4, 99\) uint8"),
        (np.zeros((4, SLOT_BYTES), np.int8), {}, "int8"),
        (np.zeros(4, np.uint8), {}, r"host is \(4,\) uint8"),
        (None, {"worker": 2}, "no rank 2 among 2"),
        (None, {"staging_bytes": 2 * STRIDE - 1}, "give at least 16,384"),
        (None, {"num_threads": 0}, "move nothing"),
        (None, {"timeout_s": 0.0}, "move nothing"),
    ],
)
def test_copier_refuses_what_cannot_work(host: NDArray[np.uint8] | None, more: dict[str, object], says: str) -> None:
    memory = np.zeros((4, SLOT_BYTES), np.uint8) if host is None else host
    settings: dict[str, object] = {"worker": Worker(0), **more}
    with pytest.raises(MisuseError, match=says):
        StoreCopier(MemoryStore(), memory, IDENTITY, **settings)  # type: ignore[arg-type]


# --- all at once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_random_traffic_through_a_faulty_store(make: Make, seed: int) -> None:
    """Two ranks over one store that fails, loses, cuts and flips: a slot that is told as brought holds its content, every time.

    Many jobs are out at once, in both directions, each with slots of its own; keys are few, so that content is put, damaged,
    removed and put again all the time.
    """
    rng = np.random.default_rng(seed)
    store = FaultyStore(MemoryStore(60 * IDENTITY.entry_bytes), StoreFaultRates(0.05, 0.0, 0.0, 0.1, 0.1, 0.1), seed)
    rigs = [make(store, rank, breaker=CircuitBreaker(1_000), put_breaker=CircuitBreaker(1_000)) for rank in range(2)]
    brought = 0
    for _ in range(40):
        for rank, rig in enumerate(rigs):
            jobs: dict[JobId, tuple[Direction, list[int], list[int]]] = {}
            slots = rng.permutation(NUM_SLOTS)
            for part in np.split(slots, 8):
                direction = DEMOTE if rng.random() < 0.4 else PROMOTE
                keys = [int(key) for key in rng.choice(50, len(part), replace=False)]
                rig.host[part] = EMPTY
                if direction is DEMOTE:
                    rig.fill(part.tolist(), [(key, rank) for key in keys])
                jobs[rig.launch(direction, part.tolist(), keys)] = (direction, part.tolist(), keys)
            rig.copier.wait(list(jobs))
            reports = {report.job: report for report in rig.copier.poll()}
            assert reports.keys() == jobs.keys()
            for job, (direction, places, keys) in jobs.items():
                assert reports[job].result is Result.OK
                for at, (slot, key) in enumerate(zip(places, keys, strict=True)):
                    if direction is DEMOTE or at not in reports[job].missing:
                        assert rig.holds(slot, (key, rank))
                        brought += direction is PROMOTE
                    else:
                        assert rig.is_empty(slot)
    faults = store.statistics()
    assert brought > 300
    assert min(faults.failed, faults.cut, faults.flipped, faults.lost) > 20
    assert sum(rig.copier.statistics().damaged for rig in rigs) == faults.cut + faults.flipped - sum(
        rig.copier.statistics().foreign for rig in rigs
    )
