"""Hooks on vLLM's TieringOffloadingManager, its primary tier and the tiers below; they translate its calls for the book.

*Threads.* vLLM enters the manager from the scheduler's thread and, for tiers that serve other engines, from a thread of its
own, always with the manager's lock. The book is used under that lock only. The mirror belongs to the scheduler's thread: what
is meant for it is kept until a call of that thread ends (`Watch.later`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, cast

from attrs import evolve

from blocklife.watch import HeardCall, Mirror, TierBook, TierJob, Watch

_SUBMITS = ("submit_store", "submit_load")
"""The methods by which a tier gets a job."""
_PROCESSING, _SERVING = "processing", "serving"
"""Scopes of calls: those in which reports are acted on, and those in which a tier serves another engine."""


class ChunkLike(Protocol):
    """What the primary tier keeps of a key."""

    chunk_id: int
    ref_cnt: int


class JobLike(Protocol):
    """vLLM's TransferJob."""

    job_id: int
    keys: Iterable[bytes]
    chunk_ids: Iterable[int]
    is_promotion: bool
    req_context: object


class ResultLike(Protocol):
    """vLLM's JobResult."""

    job_id: int
    success: bool
    successful_keys: Iterable[bytes] | None


def is_tiering(manager: object) -> bool:
    """Whether it is a manager with tiers below the host, whose slots can be followed."""
    return hasattr(manager, "secondary_tiers") and hasattr(getattr(manager, "primary_tier", None), "_policy")


def primary_of(manager: object) -> object:
    """The manager of the host's slots: a tier of a tiering manager, or the manager itself."""
    return manager.primary_tier if hasattr(manager, "primary_tier") else manager


class TieringHooks:
    """Hooks on one manager. *alone*: without a scheduler, so that the end of its step is the end of the mirror's."""

    def __init__(self, watch: Watch, mirror: Mirror, manager: object, *, alone: bool) -> None:
        self._watch = watch
        self._mirror = mirror
        self._ears = watch.add_ears()  # the mirror must have all of its facts ahead of the step that they belong to
        self._manager = manager
        self._alone = alone
        self._primary = primary = primary_of(manager)
        self._tiers: list[object] = list(getattr(manager, "secondary_tiers", ()))
        self._find: Callable[[bytes], ChunkLike | None] = getattr(getattr(primary, "_policy", None), "get", lambda key: None)
        self._submits: list[object] = []
        """The hooked methods of the tiers that take jobs, two for each."""
        is_new = not getattr(manager, "_job_id_counter", 1) and not getattr(primary, "_num_allocated_chunks", 1)
        num_slots = getattr(primary, "_num_chunks", 0)
        self.below = TierBook(num_slots, self._odd, has_tiers=bool(self._tiers), sees_all=is_new)
        mirror.below = self.below
        watch.is_apart = lambda: threading.current_thread() is getattr(manager, "_tier_poll_thread", None)
        for made in list(getattr(manager, "_jobs", {}).values()):
            self._adopt(made.transfer_job, made.tier_idx)
        self._hook()

    def _adopt(self, job: JobLike, tier: int) -> None:
        """A job that was out before the watch."""
        chunks = {key: chunk for key in job.keys if (chunk := self._find(key)) is not None}
        slots = [chunk.chunk_id for chunk in chunks.values()]
        early = TierJob(job.job_id, tier, _name_of(job.req_context), list(chunks), slots, bool(job.is_promotion))
        self.below.adopt_job(early, [chunk.ref_cnt for chunk in chunks.values()])

    def _hook(self) -> None:
        manager, primary, hear = self._manager, self._primary, self._ears.hear
        for name in ("lookup", "prepare_store", "complete_store", "create_store_job", "reset_cache"):
            hear(manager, name)
        hear(manager, "on_schedule_end", before=self._ends_step, after=self._has_ended_step)
        hear(manager, "on_reset_flushed", before=lambda call: self.below.flushed())
        hear(manager, "has_pending_work", after=self._has_asked_for_work)
        hear(manager, "_process_finished_jobs", after=lambda call: self.below.settled(), scope=_PROCESSING)
        hear(manager, "_register_job", before=self._makes)
        hear(manager, "_should_store_to_tier", after=self._has_asked)
        hear(primary, "lookup", after=self._has_looked_up)
        for by_tier, ends in ((False, ("store", "load")), (True, ("write", "read"))):
            store, load = ends
            hear(primary, f"prepare_{store}", after=functools.partial(self._has_reserved, by_tier))
            hear(primary, f"complete_{store}", after=functools.partial(self._has_completed, by_tier))
            hear(primary, f"prepare_{load}", after=functools.partial(self._has_held, by_tier))
            hear(primary, f"complete_{load}", before=functools.partial(self._releases, by_tier), after=self._count_keys)
        hear(primary, "reset_cache", before=self._resets)
        for tier in self._tiers:
            hear(tier, "serve_external_requests", scope=_SERVING)
        for number, tier in enumerate(self._tiers):
            for promotes, name in enumerate(_SUBMITS):
                hear(tier, name, before=functools.partial(self._hands_over, number, bool(promotes)))
            hear(tier, "get_finished_jobs", after=functools.partial(self._finished, number))
            self._submits += [getattr(tier, name, None) for name in _SUBMITS]

    # --- the mirror's side --------------------------------------------------------------------------------------------------

    def _odd(self, rule: str, what: str, request: str | None, history: tuple[str, ...]) -> None:
        self._watch.later(self._violate, rule, what, request, history)

    def _violate(self, rule: str, what: str, request: str | None, history: tuple[str, ...]) -> None:
        story = self._mirror.story
        story.add(evolve(story.violation(rule, what, request=request), history=history))

    # --- slots --------------------------------------------------------------------------------------------------------------

    def _has_reserved(self, promotes: bool, call: HeardCall) -> None:
        if call.result is not None:
            self.below.slots.evicted(getattr(call.result, "evicted_keys", ()))
            keys, slots = list(getattr(call.result, "keys_to_store", ())), _slots(getattr(call.result, "store_spec", None))
            self.below.slots.reserved(keys, slots, promotes=promotes, request=_request_of(call))
            self._count(keys)

    def _has_completed(self, promotes: bool, call: HeardCall) -> None:
        success = call.given("keys", "req_context", "success")[2]
        if success is not None and not success:
            self.below.slots.dropped(_keys_of(call))
            return
        found = self.below.slots.published([key for key in _keys_of(call) if self._find(key) is not None], promoted=promotes)
        self._count(_keys_of(call))
        if promotes:
            self._watch.later(self._mirror.brought_up, found)
        else:
            self._watch.later(self._mirror.published, [slot for _, slot in found])

    def _has_held(self, by_tier: bool, call: HeardCall) -> None:
        self.below.slots.held(_keys_of(call), _slots(call.result), by_tier=by_tier, request=_request_of(call))
        self._count(_keys_of(call))

    def _releases(self, by_tier: bool, call: HeardCall) -> None:
        self.below.slots.released(_keys_of(call), by_tier=by_tier)

    def _has_looked_up(self, call: HeardCall) -> None:
        (key,) = call.given("key")
        is_hit = getattr(call.result, "name", None) == "HIT"
        if is_hit and isinstance(key, bytes) and (chunk := self._find(key)) is not None:
            self.below.slots.hit(key, chunk.chunk_id, chunk.ref_cnt)

    def _resets(self, call: HeardCall) -> None:
        for job in self.below.left_behind():
            self._watch.later(self._mirror.returned, job.name)
        self.below.resets()

    def _count_keys(self, call: HeardCall) -> None:
        self._count(_keys_of(call))

    def _count(self, keys: Iterable[bytes]) -> None:
        """Compare the engine's counts of holds with those of the book."""
        for key in keys:
            if (chunk := self._find(key)) is not None:
                self.below.slots.counted(key, chunk.ref_cnt)

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    def _makes(self, call: HeardCall) -> None:
        job, tier_idx = cast("tuple[JobLike, int]", tuple(call.given("transfer_job", "tier_idx")))
        keys, slots = list(job.keys), [int(slot) for slot in job.chunk_ids]
        request = _name_of(job.req_context)
        promotes = bool(job.is_promotion)
        is_believed = not self._sees(tier_idx, promotes)
        made = TierJob(job.job_id, tier_idx, request, keys, slots, promotes, is_believed=is_believed)
        self.below.made(made, is_external=self._ears.is_within(_SERVING))
        if made.promotes:
            self._watch.later(self._mirror.promoting, made.name, list(zip(keys, slots, strict=False)))
        else:
            self._watch.later(self._mirror.lent, made.name, slots)
        self._count(keys)

    def _sees(self, tier: int, promotes: bool) -> bool:
        """Whether it is seen when a tier gets a job: vLLM's tests put other methods in that place."""
        name = _SUBMITS[promotes]
        return getattr(self._tiers[tier], name, None) is self._submits[tier * len(_SUBMITS) + promotes]

    def _hands_over(self, tier: int, promotes: bool, call: HeardCall) -> None:
        (job,) = call.given("job_metadata")
        if isinstance(number := getattr(job, "job_id", None), int):
            content = list(zip(getattr(job, "keys", ()), map(int, getattr(job, "chunk_ids", ())), strict=False))
            self.below.handed_over(number, tier, content, promotes=promotes)

    def _finished(self, tier: int, call: HeardCall) -> None:
        """The reports of a tier. They count where the manager reads them, one by one; whoever else reads them is a test."""
        if self._ears.is_within(_PROCESSING):
            call.result = self._reports(tier, cast("Iterable[ResultLike]", call.result))

    def _reports(self, tier: int, results: Iterable[ResultLike]) -> Iterator[ResultLike]:
        for result in results:
            self._watch.minded(functools.partial(self._has_reported, tier, result))
            yield result

    def _has_reported(self, tier: int, result: ResultLike) -> None:
        good = list(result.successful_keys or ())
        job = self.below.reported(result.job_id, tier, ok=bool(result.success), good=good)
        if job is not None:
            self._watch.later(self._landed, job)

    def _landed(self, job: TierJob) -> None:
        self._mirror.counts["tier jobs"] += 1
        content = zip(job.keys, job.slots, strict=False)
        self._mirror.returned(job.name, [slot for key, slot in content if key in job.good])

    def _has_asked(self, call: HeardCall) -> None:
        """Back-pressure: whether a tier takes a store now."""
        (tier,) = call.given("tier")
        number = next((at for at, each in enumerate(self._tiers) if each is tier), -1)
        self.below.asked(number, may_store=bool(call.result))

    # --- steps --------------------------------------------------------------------------------------------------------------

    def _ends_step(self, call: HeardCall) -> None:
        self.below.slots.step = self._mirror.steps + 1

    def _has_ended_step(self, call: HeardCall) -> None:
        self.below.ends_step()
        if self._alone:
            self._watch.later(self._mirror.step)

    def _has_asked_for_work(self, call: HeardCall) -> None:
        if not call.result:
            self.below.rests()


def _slots(spec: object) -> list[int]:
    """The slots of a description of the host's end of a copy."""
    return [int(slot) for slot in getattr(spec, "chunk_ids", ())]


def _keys_of(call: HeardCall) -> list[bytes]:
    """The keys that a call of the primary tier names."""
    found = call.given("keys")[0]
    return list(found) if isinstance(found, Iterable) else []


def _request_of(call: HeardCall) -> str | None:
    """The request that a call of the primary tier is for."""
    return _name_of(call.given("keys", "req_context")[1])


def _name_of(context: object) -> str | None:
    name = getattr(context, "req_id", None)
    return name if isinstance(name, str) else None
