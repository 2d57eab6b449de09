"""The hooks on a manager of tiers: what they hear, when they tell, and that nothing of them is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto

import pytest
from attrs import define, field

from blocklife.engines.vllm.watch import Options, Watch, WatchError, WatchMode, attach, detach
from blocklife.errors import MisuseError

COUNT, STRICT = Options(mode=WatchMode.COUNT), Options(mode=WatchMode.STRICT)
A, B = b"a\0\0\0\0", b"b\0\0\0\0"


class Found(Enum):
    """vLLM's LookupResult."""

    MISS = auto()
    HIT = auto()


@define(eq=False)
class Context:
    """vLLM's ReqContext."""

    req_id: str = "r"


@define(eq=False)
class Chunk:
    """vLLM's ChunkStatus."""

    chunk_id: int
    ref_cnt: int = -1


@define(eq=False)
class Spec:
    """vLLM's CPULoadStoreSpec."""

    chunk_ids: list[int]


@define(eq=False)
class Prepared:
    """vLLM's PrepareStoreOutput."""

    keys_to_store: list[bytes]
    store_spec: Spec
    evicted_keys: list[bytes] = field(factory=list)


@define(eq=False)
class Job:
    """vLLM's TransferJob."""

    job_id: int
    keys: list[bytes]
    chunk_ids: list[int]
    is_promotion: bool
    req_context: Context = field(factory=Context)


@define(eq=False)
class Result:
    """vLLM's JobResult."""

    job_id: int
    success: bool = True
    successful_keys: tuple[bytes, ...] | None = None


class Policy:
    """Where the primary tier keeps its chunks."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, Chunk] = {}
        self.get = self.chunks.get


class Primary:
    """The primary tier: it counts and evicts nothing by itself."""

    def __init__(self) -> None:
        self._num_chunks, self._num_allocated_chunks = 4, 0
        self._policy = Policy()
        self.complete_read, self.prepare_write, self.complete_write = (
            self.complete_load,
            self.prepare_store,
            self.complete_store,
        )

    def lookup(self, key: bytes, req_context: Context) -> Found:
        chunk = self._policy.chunks.get(key)
        return Found.HIT if chunk is not None and chunk.ref_cnt >= 0 else Found.MISS

    def prepare_store(self, keys: Collection[bytes], req_context: Context) -> Prepared:
        slots = [len(self._policy.chunks) + at for at in range(len(keys))]
        self._policy.chunks.update({key: Chunk(slot) for key, slot in zip(keys, slots, strict=True)})
        return Prepared(list(keys), Spec(slots))

    def complete_store(self, keys: Collection[bytes], req_context: Context, success: bool = True) -> None:
        for key in keys:
            if success:
                self._policy.chunks[key].ref_cnt = 0
            else:
                del self._policy.chunks[key]

    def prepare_load(self, keys: Collection[bytes], req_context: Context) -> Spec:
        for key in keys:
            self._policy.chunks[key].ref_cnt += 1
        return Spec([self._policy.chunks[key].chunk_id for key in keys])

    prepare_read = prepare_load

    def complete_load(self, keys: Collection[bytes], req_context: Context) -> None:
        for key in keys:
            assert self._policy.chunks[key].ref_cnt > 0
            self._policy.chunks[key].ref_cnt -= 1

    def reset_cache(self) -> None:
        self._policy.chunks.clear()


class Tier:
    """A tier that reports what a test wants it to."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    def submit_store(self, job_metadata: Job) -> None:
        """Nothing moves."""

    def submit_load(self, job_metadata: Job) -> None:
        """Nothing moves."""

    def get_finished_jobs(self) -> Iterable[Result]:
        results, self.results = self.results, []
        return results

    def serve_external_requests(self, parent: object) -> None:
        """Nobody asks."""


@define
class JobMetadata:
    """What the manager keeps of a job."""

    transfer_job: Job
    tier_idx: int


class Manager:
    """The manager, as far as the watch looks at it."""

    def __init__(self) -> None:
        self.primary_tier, self.secondary_tiers = Primary(), [Tier()]
        self._job_id_counter = 0
        self._tier_poll_thread: threading.Thread | None = None
        self.jobs: dict[int, Job] = {}
        self._jobs: dict[int, JobMetadata] = {}
        self.may_store = True
        self.ignores_pressure = False

    def _register_job(self, transfer_job: Job, tier_idx: int) -> None:
        self.jobs[transfer_job.job_id] = transfer_job

    def _should_store_to_tier(self, tier: Tier, num_blocks: int) -> bool:
        return self.may_store

    def store(self, *keys: bytes) -> None:
        """The device has stored these keys."""
        self.primary_tier.prepare_store(keys, Context())
        self.complete_store(keys, Context())

    def complete_store(self, keys: Collection[bytes], req_context: Context, success: bool = True) -> None:
        self.primary_tier.complete_store(keys, req_context, success)
        if self._should_store_to_tier(self.secondary_tiers[0], len(keys)) or self.ignores_pressure:
            spec = self.primary_tier.prepare_read(keys, req_context)
            self._submit(list(keys), spec.chunk_ids, promotes=False)

    def promote(self, key: bytes) -> None:
        """A key is promoted."""
        prepared = self.primary_tier.prepare_write([key], Context())
        self._submit([key], prepared.store_spec.chunk_ids, promotes=True)

    def _submit(self, keys: list[bytes], slots: list[int], *, promotes: bool) -> None:
        job = Job(self._job_id_counter, keys, slots, promotes)
        self._job_id_counter += 1
        self._register_job(job, 0)
        tier = self.secondary_tiers[0]
        (tier.submit_load if promotes else tier.submit_store)(job)

    def _process_finished_jobs(self) -> None:
        for result in self.secondary_tiers[0].get_finished_jobs():
            job = self.jobs.pop(result.job_id)
            if job.is_promotion:
                self.primary_tier.complete_write(job.keys, job.req_context, result.success)
            else:
                self.primary_tier.complete_read(job.keys, job.req_context)

    def on_schedule_end(self, context: object) -> None:
        self._process_finished_jobs()

    def has_pending_work(self) -> bool:
        return False

    def reset_cache(self) -> None:
        self.primary_tier.reset_cache()


@pytest.fixture
def manager() -> Manager:
    return Manager()


def _step(manager: Manager, *results: Result) -> None:
    manager.secondary_tiers[0].results += results
    manager.on_schedule_end(None)


def _parts(manager: Manager) -> list[dict[str, object]]:
    return [dict(vars(part)) for part in (manager, manager.primary_tier, *manager.secondary_tiers)]


def test_content_that_goes_below_and_comes_back_is_followed_in_silence(manager: Manager) -> None:
    """With a ledger that pins what is read, from the job to its report."""
    watch = attach(manager, STRICT)
    manager.store(A)
    _step(manager)
    assert watch.mirror.ledger.slots.pins(0) == 1
    _step(manager, Result(0))
    manager.promote(B)
    _step(manager, Result(1))
    assert manager.primary_tier.lookup(B, Context()) is Found.HIT
    _step(manager)

    assert watch.mirror.ledger.slots.pins(0) == 0
    assert watch.steps == 4
    assert watch.mirror.counts["tier jobs"] == 2
    assert watch.counts == {}
    assert watch.of == "the scheduler's side of Manager"


def test_jobs_from_before_the_watch_are_believed(manager: Manager) -> None:
    """They end in silence; and what they read and fill is kept from others all the same."""
    manager.store(A)
    manager.promote(B)
    manager.primary_tier.prepare_load([A], Context())
    manager._jobs = {number: JobMetadata(job, 0) for number, job in manager.jobs.items()}
    watch = attach(manager, STRICT)
    below = watch.mirror.below
    assert below is not None
    assert [job.number for job in below.left_behind()] == [0, 1]
    slots = [chunk.chunk_id for key in (A, B) if (chunk := manager.primary_tier._policy.get(key)) is not None]
    assert [below.slots.holds(key) for key in (A, B)] == [(slots[0], 2), (slots[1], -1)]
    _step(manager, Result(1), Result(0))
    manager.primary_tier.complete_load([A], Context())
    _step(manager)

    assert watch.counts == {}
    assert below.left_behind() == []
    assert [below.slots.holds(key) for key in (A, B)] == [(slots[0], 0), (slots[1], 0)]


def test_slot_that_a_job_from_before_the_watch_reads_is_not_given_away(manager: Manager) -> None:
    """The watch knows from the engine what is read, although it has not seen how that began."""
    manager.store(A)
    manager._jobs = {number: JobMetadata(job, 0) for number, job in manager.jobs.items()}
    attach(manager, STRICT)
    slot = manager.primary_tier._policy.get(A)
    assert slot is not None

    with pytest.raises(WatchError, match=f"I7.*slot {slot.chunk_id} is let go of while tier job 0 still reads it"):
        manager.primary_tier.complete_read([A], Context())


def test_watch_leaves_nothing_behind(manager: Manager) -> None:
    """Methods that the engine has put on the object itself are there again."""
    before = _parts(manager)
    attach(manager, STRICT)
    assert _parts(manager) != before
    detach(manager)

    assert _parts(manager) == before


def _published_early(manager: Manager) -> None:
    manager.promote(A)
    manager.primary_tier.complete_write([A], Context())


def _reported_twice(manager: Manager) -> None:
    manager.promote(A)
    _step(manager, Result(0))
    _step(manager, Result(0))


def _stored_under_pressure(manager: Manager) -> None:
    manager.may_store, manager.ignores_pressure = False, True
    manager.store(A)


def _reset_too_soon(manager: Manager) -> None:
    manager.promote(A)
    manager.reset_cache()


def _asleep(manager: Manager) -> None:
    manager.store(A)
    manager.has_pending_work()


UNLAWFUL: dict[str, tuple[Callable[[Manager], None], str]] = {
    "published early": (_published_early, "I6"),
    "reported twice": (_reported_twice, "I9"),
    "stored under pressure": (_stored_under_pressure, "I12"),
    "reset without a drain": (_reset_too_soon, "I1"),
    "asleep with a job out": (_asleep, "I5"),
}


@pytest.mark.parametrize("case", UNLAWFUL)
def test_strict_watch_raises_in_the_call_that_broke_the_rule(case: str, manager: Manager) -> None:
    """An error of the engine itself that comes of it is the context."""
    act, rule = UNLAWFUL[case]
    attach(manager, STRICT)
    with pytest.raises(WatchError) as raised:
        act(manager)

    assert raised.value.violation.rule == rule
    assert raised.value.violation.request in ("r", None)


def test_error_of_the_engine_goes_on_behind_what_led_to_it(manager: Manager) -> None:
    """A hold that is given up once too often: told, and vLLM's own assertion raised."""
    watch = attach(manager, COUNT)
    manager.store(A)
    _step(manager, Result(0))
    with pytest.raises(AssertionError):
        manager.primary_tier.complete_read([A], Context())

    assert watch.counts == {"I4": 1}


def test_thread_that_polls_tiers_leaves_telling_to_the_scheduler(manager: Manager) -> None:
    """The mirror belongs to the scheduler's thread; the history of the slot goes with the violation."""
    watch = attach(manager, COUNT)
    thread = manager._tier_poll_thread = threading.Thread(target=_published_early, args=(manager,))
    thread.start()
    thread.join()
    assert watch.counts == {}
    manager.on_schedule_end(None)

    assert watch.counts == {"I6": 1}
    assert watch.violations[0].history[-1] == "step 0, slot 0: being promoted by tier job 0"


def test_tier_whose_methods_a_test_has_replaced_counts_as_told(manager: Manager) -> None:
    """vLLM's own tests do so: the job is checked when it is made."""
    watch = attach(manager, STRICT)
    vars(manager.secondary_tiers[0])["submit_load"] = lambda job: None
    manager.promote(A)
    _step(manager)
    _step(manager, Result(0))

    assert watch.counts == {}


def test_reports_that_somebody_else_reads_do_not_count(manager: Manager) -> None:
    watch = attach(manager, STRICT)
    manager.promote(A)
    tier = manager.secondary_tiers[0]
    tier.results.append(Result(0))
    results = list(tier.get_finished_jobs())
    _step(manager, *results)

    assert [result.job_id for result in results] == [0]
    assert watch.counts == {}


def test_manager_whose_slots_cannot_be_seen_is_refused(manager: Manager) -> None:
    """A double without a policy, say."""
    del manager.primary_tier._policy
    with pytest.raises(MisuseError, match="nothing to watch"):
        attach(manager, STRICT)


def test_watch_is_kept(manager: Manager) -> None:
    watch = attach(manager, STRICT)

    assert isinstance(watch, Watch)
    assert attach(manager) is watch


def test_fault_of_the_book_never_stops_the_engine(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch is lost, says why, and leaves the engine as it was."""
    before = _parts(manager)
    watch = attach(manager, COUNT)
    assert watch.mirror.below is not None
    monkeypatch.setattr(watch.mirror.below.slots, "reserved", lambda *args, **kwargs: 1 // 0)
    manager.store(A)
    monkeypatch.undo()

    assert isinstance(watch.lost, ZeroDivisionError)
    assert manager.primary_tier.lookup(A, Context()) is Found.HIT
    assert _parts(manager)[1].keys() == before[1].keys()
