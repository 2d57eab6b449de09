"""Hooks on vLLM's TieringOffloadingManager, its primary tier and the tiers below; they translate its calls for the book.

*Threads.* vLLM enters the manager from the scheduler's thread and, for tiers that serve other engines, from a thread of its
own, always with the manager's lock. The book is used under that lock only. The mirror belongs to the scheduler's thread: what
is meant for it is kept until a call of that thread ends (`_leave`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from attrs import evolve

from blocklife.watch import CallsThrough, Mirror, Original, TierBook, TierJob, given

_SUBMITS = ("submit_store", "submit_load")
"""The methods by which a tier gets a job."""


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

    def __init__(self, mirror: Mirror, manager: object, *, alone: bool) -> None:
        self._mirror = mirror
        self._manager = manager
        self._alone = alone
        self._primary = primary = primary_of(manager)
        self._tiers: list[object] = list(getattr(manager, "secondary_tiers", ()))
        self._find: Callable[[bytes], ChunkLike | None] = getattr(getattr(primary, "_policy", None), "get", lambda key: None)
        self._depth = 0
        self._serving = 0
        self._is_processing = False
        self._later: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """Functions to call, with their arguments."""
        self._submits: list[object] = []
        """The hooked methods of the tiers that take jobs, two for each."""
        is_new = not getattr(manager, "_job_id_counter", 1) and not getattr(primary, "_num_allocated_chunks", 1)
        num_slots = getattr(primary, "_num_chunks", 0)
        self.below = TierBook(num_slots, self._odd, has_tiers=bool(self._tiers), sees_all=is_new)
        mirror.below = self.below
        self.calls = CallsThrough()
        self.all_calls: list[CallsThrough] = [self.calls]
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
        manager, primary = self._manager, self._primary
        for name in ("lookup", "prepare_store", "complete_store", "create_store_job"):
            self.calls.add(manager, name, self._call)
        self.calls.add(manager, "on_schedule_end", self._end_step)
        self.calls.add(manager, "reset_cache", self._call)
        self.calls.add(manager, "on_reset_flushed", self._flushed)
        self.calls.add(manager, "has_pending_work", self._asked_for_work)
        self.calls.add(manager, "_process_finished_jobs", self._process)
        self.calls.add(manager, "_register_job", self._register)
        self.calls.add(manager, "_should_store_to_tier", self._ask)
        self.calls.add(primary, "lookup", self._look_up)
        self.calls.add(primary, "prepare_store", functools.partial(self._prepare, False))
        self.calls.add(primary, "prepare_write", functools.partial(self._prepare, True))
        self.calls.add(primary, "complete_store", functools.partial(self._complete, False))
        self.calls.add(primary, "complete_write", functools.partial(self._complete, True))
        self.calls.add(primary, "prepare_load", functools.partial(self._hold, False))
        self.calls.add(primary, "prepare_read", functools.partial(self._hold, True))
        self.calls.add(primary, "complete_load", functools.partial(self._release, False))
        self.calls.add(primary, "complete_read", functools.partial(self._release, True))
        self.calls.add(primary, "reset_cache", self._reset)
        for tier in self._tiers:
            self.calls.add(tier, "serve_external_requests", self._serve)
        for number, tier in enumerate(self._tiers):
            self.calls.add(tier, "submit_store", functools.partial(self._submit, number, False))
            self.calls.add(tier, "submit_load", functools.partial(self._submit, number, True))
            self.calls.add(tier, "get_finished_jobs", functools.partial(self._finished, number))
            self._submits += [getattr(tier, name, None) for name in _SUBMITS]

    # --- the mirror's side --------------------------------------------------------------------------------------------------

    def _odd(self, rule: str, what: str, request: str | None, history: tuple[str, ...]) -> None:
        self._later.append((self._violate, (rule, what, request, history)))

    def _violate(self, rule: str, what: str, request: str | None, history: tuple[str, ...]) -> None:
        story = self._mirror.story
        story.add(evolve(story.violation(rule, what, request=request), history=history))

    def _leave(self) -> None:
        """A call has ended: what is meant for the mirror goes there, unless this is the thread that polls tiers."""
        if self._depth or not self._later or threading.current_thread() is getattr(self._manager, "_tier_poll_thread", None):
            return
        later, self._later = self._later, []
        for fact, of in later:
            fact(*of)
        self._mirror.tell()

    def _call(self, original: Original, *args: object, **kwargs: object) -> object:
        """Call the engine; what was wrong is told when its outermost call ends, with an error or without."""
        self._depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            self._depth -= 1
            self._leave()

    # --- slots --------------------------------------------------------------------------------------------------------------

    def _prepare(self, promotes: bool, original: Original, *args: object, **kwargs: object) -> object:
        output = original(*args, **kwargs)
        if output is not None:
            self._mirror.minded(lambda: self._has_reserved(promotes, output, _request_of(args, kwargs)))
        self._leave()
        return output

    def _has_reserved(self, promotes: bool, output: object, request: str | None) -> None:
        self.below.evicted(getattr(output, "evicted_keys", ()))
        keys, slots = list(getattr(output, "keys_to_store", ())), _slots(getattr(output, "store_spec", None))
        self.below.reserved(keys, slots, promotes=promotes, request=request)
        self._count(keys)

    def _complete(self, promotes: bool, original: Original, *args: object, **kwargs: object) -> object:
        success = given(args, kwargs, "keys", "req_context", "success")[2]
        listed = _keys_of(args, kwargs)
        result = original(*args, **kwargs)
        if success is None or success:
            self._mirror.minded(lambda: self._has_published(promotes, listed))
        else:
            self._mirror.minded(lambda: self.below.dropped(listed))
        self._leave()
        return result

    def _has_published(self, promotes: bool, keys: Sequence[bytes]) -> None:
        found = self.below.published([key for key in keys if self._find(key) is not None], promoted=promotes)
        self._count(keys)
        if promotes:
            self._later.append((self._mirror.brought_up, (found,)))
        else:
            self._later.append((self._mirror.published, ([slot for _, slot in found],)))

    def _hold(self, by_tier: bool, original: Original, *args: object, **kwargs: object) -> object:
        keys = _keys_of(args, kwargs)
        try:
            spec = original(*args, **kwargs)
        except Exception:
            self._leave()
            raise
        self._mirror.minded(lambda: self._has_held(by_tier, keys, spec, _request_of(args, kwargs)))
        self._leave()
        return spec

    def _has_held(self, by_tier: bool, keys: Sequence[bytes], spec: object, request: str | None) -> None:
        self.below.held(keys, _slots(spec), by_tier=by_tier, request=request)
        self._count(keys)

    def _release(self, by_tier: bool, original: Original, *args: object, **kwargs: object) -> object:
        keys = _keys_of(args, kwargs)
        self._mirror.minded(lambda: self.below.released(keys, by_tier=by_tier))
        try:
            result = original(*args, **kwargs)
            self._mirror.minded(lambda: self._count(keys))
        finally:
            self._leave()
        return result

    def _look_up(self, original: Original, *args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        if getattr(result, "name", None) == "HIT":
            (key,) = given(args, kwargs, "key")
            if isinstance(key, bytes):
                self._mirror.minded(lambda: self._has_hit(key))
                self._leave()
        return result

    def _has_hit(self, key: bytes) -> None:
        if (chunk := self._find(key)) is not None:
            self.below.hit(key, chunk.chunk_id, chunk.ref_cnt)

    def _reset(self, original: Original, *args: object, **kwargs: object) -> object:
        for job in self.below.left_behind():
            self._later.append((self._mirror.returned, (job.name,)))
        self._mirror.minded(self.below.resets)
        result = original(*args, **kwargs)
        self._leave()
        return result

    def _count(self, keys: Iterable[bytes]) -> None:
        """Compare the engine's counts of holds with those of the book."""
        for key in keys:
            if (chunk := self._find(key)) is not None:
                self.below.counted(key, chunk.ref_cnt)

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    def _register(self, original: Original, job: JobLike, tier_idx: int) -> object:
        self._mirror.minded(lambda: self._has_made(job, tier_idx))
        return self._call(original, job, tier_idx)

    def _has_made(self, job: JobLike, tier_idx: int) -> None:
        keys, slots = list(job.keys), [int(slot) for slot in job.chunk_ids]
        request = _name_of(job.req_context)
        made = TierJob(job.job_id, tier_idx, request, keys, slots, bool(job.is_promotion))
        self.below.made(made, is_known=not self._sees(tier_idx, made.promotes), is_external=bool(self._serving))
        if made.promotes:
            self._later.append((self._mirror.promoting, (made.name, list(zip(keys, slots, strict=False)))))
        else:
            self._later.append((self._mirror.lent, (made.name, slots)))
        self._count(keys)

    def _sees(self, tier: int, promotes: bool) -> bool:
        """Whether it is seen when a tier gets a job: vLLM's tests put other methods in that place."""
        name = _SUBMITS[promotes]
        return getattr(self._tiers[tier], name, None) is self._submits[tier * len(_SUBMITS) + promotes]

    def _submit(self, tier: int, promotes: bool, original: Original, *args: object, **kwargs: object) -> object:
        (job,) = given(args, kwargs, "job_metadata")
        self._mirror.minded(lambda: self._has_handed_over(job, tier, promotes))
        return self._call(original, *args, **kwargs)

    def _has_handed_over(self, job: object, tier: int, promotes: bool) -> None:
        if isinstance(number := getattr(job, "job_id", None), int):
            content = list(zip(getattr(job, "keys", ()), map(int, getattr(job, "chunk_ids", ())), strict=False))
            self.below.handed_over(number, tier, content, promotes=promotes)

    def _finished(self, tier: int, original: Callable[..., Iterable[ResultLike]]) -> Iterable[ResultLike]:
        """The reports of a tier. They count where the manager reads them, one by one; whoever else reads them is a test."""
        return self._reports(tier, original()) if self._is_processing else original()

    def _reports(self, tier: int, results: Iterable[ResultLike]) -> Iterator[ResultLike]:
        for result in results:
            self._mirror.minded(functools.partial(self._has_reported, tier, result))
            yield result

    def _has_reported(self, tier: int, result: ResultLike) -> None:
        good = list(result.successful_keys or ())
        job = self.below.reported(result.job_id, tier, ok=bool(result.success), good=good)
        if job is not None:
            self._later.append((self._landed, (job,)))

    def _landed(self, job: TierJob) -> None:
        self._mirror.counts["tier jobs"] += 1
        content = zip(job.keys, job.slots, strict=False)
        self._mirror.returned(job.name, [slot for key, slot in content if key in job.good])

    def _process(self, original: Original, *args: object, **kwargs: object) -> object:
        was, self._is_processing = self._is_processing, True
        self._depth += 1
        try:
            result = original(*args, **kwargs)
            self._mirror.minded(self.below.settled)
            return result
        finally:
            self._is_processing = was
            self._depth -= 1
            self._leave()

    def _ask(self, original: Original, *args: object, **kwargs: object) -> object:
        """Back-pressure: whether a tier takes a store now."""
        result = original(*args, **kwargs)
        tier = given(args, kwargs, "tier")[0]
        number = next((at for at, each in enumerate(self._tiers) if each is tier), -1)
        self.below.asked(number, may_store=bool(result))
        return result

    def _serve(self, original: Original, *args: object, **kwargs: object) -> object:
        """A tier serves another engine: it knows of the jobs that it asks for."""
        self._serving += 1
        try:
            return self._call(original, *args, **kwargs)
        finally:
            self._serving -= 1

    # --- steps --------------------------------------------------------------------------------------------------------------

    def _end_step(self, original: Original, *args: object, **kwargs: object) -> object:
        self.below.step = self._mirror.steps + 1
        self._depth += 1
        try:
            result = original(*args, **kwargs)
            self._mirror.minded(self.below.ends_step)
        finally:
            self._depth -= 1
            self._leave()
        if self._alone:
            self._mirror.step()
        return result

    def _flushed(self, original: Original, *args: object, **kwargs: object) -> object:
        self.below.flushed()
        return self._call(original, *args, **kwargs)

    def _asked_for_work(self, original: Original, *args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        if not result:
            self._mirror.minded(self.below.rests)
            self._leave()
        return result


def _slots(spec: object) -> list[int]:
    """The slots of a description of the host's end of a copy."""
    return [int(slot) for slot in getattr(spec, "chunk_ids", ())]


def _keys_of(args: Sequence[object], kwargs: Mapping[str, object]) -> list[bytes]:
    found = given(args, kwargs, "keys")[0]
    return list(found) if isinstance(found, Iterable) else []


def _request_of(args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    return _name_of(given(args, kwargs, "keys", "req_context")[1])


def _name_of(context: object) -> str | None:
    name = getattr(context, "req_id", None)
    return name if isinstance(name, str) else None
