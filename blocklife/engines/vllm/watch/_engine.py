"""Hooks on a vLLM scheduler as a whole: when it raises an error, becomes idle, or makes no progress.

*Checks at the end of each step.* If the engine will take no further step, no job may be in flight (I5) and no block may be held
(I4). If requests hold blocks, none of them runs, and for `NUM_STILL` steps nothing was computed, nothing was in flight and no
copy landed, they are deadlocked: only a step could release a block (I12). If there are no requests, or all have waited for
`NUM_STILL` steps, nothing new can have been computed; a block that is stored a second time then will be stored for ever (I12).

An error of the engine itself is never hidden. What happened before it in the same step is checked first, so that a step that
breaks a rule and then raises is reported by its rule; then the error is raised again. A strict watch raises its own error
instead, with the engine's as its context.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from blocklife.watch._below import TierJob
from blocklife.watch._calls import CallsThrough, Original
from blocklife.watch._holders import CONNECTOR
from blocklife.watch._jobs import FollowedJob
from blocklife.watch._mirror import Mirror

Content: TypeAlias = tuple[int, bytes | None]

NUM_STILL = 32
"""Steps without any activity after which an engine counts as deadlocked. An idle loop takes this many within moments."""
_MAY_FALL = ("schedule", "finish_requests", "reset_prefix_cache", "add_request")
"""Calls of the engine that may break a rule, except for the one that ends a step."""
_WAITING = {"WAITING", "PREEMPTED", "WAITING_FOR_REMOTE_KVS"}
"""Statuses of requests that wait only for the engine. In other statuses they may wait for a client, or for a compiler."""
_STILL_NAMED = 4


class EngineHooks:
    """Hooks on one scheduler. *after* is called at the end of each step, after all checks."""

    def __init__(self, engine: object, mirrors: Sequence[Mirror], after: Callable[[], None]) -> None:
        self._engine = engine
        self._mirrors = mirrors
        self._after = after
        self._num_still = 0
        self._is_told = False
        self._num_resting = 0
        self._is_circling = False
        self._stored: dict[int, set[Content]] = {}
        self._latest: dict[int, int] = {}
        self._there: set[str] = set()
        self._held: dict[int, int | None] = {}
        # Another connector beside the watched one may have jobs in flight that the watch does not see.
        self._is_alone = not getattr(getattr(engine, "connector", None), "_connectors", None)
        self.calls = CallsThrough()
        for name in _MAY_FALL:
            self.calls.add(engine, name, self._call)
        self.calls.add(engine, "update_from_output", self._settled)

    # --- hooked calls -------------------------------------------------------------------------------------------------------

    def _call(self, original: Original, *args: object, **kwargs: object) -> object:
        try:
            return original(*args, **kwargs)
        except Exception:
            self._catch_up()
            raise

    def _settled(self, original: Original, *args: object, **kwargs: object) -> object:
        """The engine has processed the output of a step."""
        result = self._call(original, *args, **kwargs)
        output = args[0] if args else kwargs.get("scheduler_output")
        has_requests: Callable[[], bool] | None = getattr(self._engine, "has_requests", None)
        if has_requests is not None and not has_requests():
            for mirror in self._mirrors:
                if not _look_behind(mirror) and not getattr(self._engine, "deferred_frees", None):
                    self._look_for_lost(mirror)
        if not getattr(output, "total_num_scheduled_tokens", 1):
            self._look_for_progress()
        else:
            self._num_still, self._is_told = 0, False
            self._leave_circle()
            for mirror in self._mirrors:
                if mirror.below is not None:
                    mirror.below.progressed()
        self._after()
        return result

    def _catch_up(self) -> None:
        """Check what has happened so far in the current step."""
        for mirror in self._mirrors:
            mirror.catch_up()

    def _look_for_lost(self, mirror: Mirror) -> None:
        """No step will follow: finished requests, and a connector without jobs in flight, must hold nothing."""
        requests = getattr(self._engine, "requests", None)
        if not isinstance(requests, Mapping):
            return
        known = requests.keys() | ({CONNECTOR} if mirror.jobs.gave_up or not self._is_alone else set())
        for name, blocks in mirror.holders.left_behind(known).items():
            who = f"{name}, with nothing in flight," if name == CONNECTOR else f"{name}, which is finished,"
            what = f"no step will follow, and {who} holds block {blocks[0]}" + (
                f" and {len(blocks) - 1} more" if blocks[1:] else ""
            )
            mirror.story.violate("I4", what, block=blocks[0], request=None if name == CONNECTOR else name)
            mirror.holders.drop_all(blocks)
        self._look_for_held_slots(mirror)
        mirror.tell()

    def _look_for_held_slots(self, mirror: Mirror) -> None:
        """No step will follow, and nothing is in flight: every slot must be available again, exactly once."""
        at, held = id(mirror), mirror.num_held() if self._is_alone and not mirror.jobs.gave_up else None
        if held and held != self._held.get(at):
            slots = "a slot" if abs(held) == 1 else f"{abs(held)} slots"
            what = f"{slots} of the host can never be reused" if held > 0 else f"{slots} of the host can be handed out twice"
            mirror.story.violate("I4", f"no step will follow, nothing is in flight, and {what}")
        self._held[at] = held

    # --- deadlocks and endless stores ---------------------------------------------------------------------------------------

    def _look_for_progress(self) -> None:
        """Called for a step that has computed nothing."""
        requests = getattr(self._engine, "requests", None)
        if not isinstance(requests, Mapping):
            return
        if requests.keys() != self._there:
            self._there = set(requests)
            self._leave_circle()
        rests = self._rests(requests)
        self._look_for_standstill(requests, rests)
        if rests and not any(mirror.jobs.has_loads_out() for mirror in self._mirrors):
            self._num_resting += 1
            for mirror in self._mirrors:
                self._look_for_circle(mirror, len(requests))
                self._look_for_promotions(mirror, len(requests))
        else:
            self._leave_circle()

    def _leave_circle(self) -> None:
        self._num_resting, self._is_circling = 0, False
        self._stored.clear()

    def _rests(self, requests: Mapping[str, object]) -> bool:
        """Whether all requests wait, and only for the engine."""
        states = {getattr(getattr(request, "status", None), "name", "") for request in requests.values()}
        return states <= _WAITING and not (getattr(self._engine, "running", None) or _is_paused(self._engine))

    def _look_for_standstill(self, requests: Mapping[str, object], rests: bool) -> None:
        is_still = bool(requests) and rests and self._is_alone
        if not is_still or any(mirror.jobs.left_behind() or _below(mirror) for mirror in self._mirrors):
            self._num_still = 0
            return
        self._num_still += 1
        if self._num_still < NUM_STILL or self._is_told:
            return
        self._is_told = True
        for mirror in self._mirrors:
            mirror.catch_up()
            holding = {name: held for name in requests if (held := mirror.holders.count(name))}
            if holding or (mirror.hears_all and getattr(self._engine, "ec_connector", None) is None):
                what = f"for {NUM_STILL} steps nothing was computed or in flight, and {_who_waits(requests, holding)}"
                mirror.story.violate("I12", what, request=next(iter(holding or requests)))
                mirror.tell()

    def _look_for_circle(self, mirror: Mirror, waiting: int) -> None:
        """No request runs: whatever is stored now was computed by finished requests.

        Waiting requests may still be scheduled once some stores have landed, so they are given some time.
        """
        at = id(mirror)
        stored, latest = self._stored.setdefault(at, set()), self._latest.get(at, -1)
        fresh = {job.copy.number: job for job in _stores(mirror.jobs.touching.values()) if job.copy.number > latest}
        for number, job in sorted(fresh.items()):
            lives = {(mirror.holders.life(piece.block), piece.key): piece.block for piece in job.copy.pieces}
            again = [block for content, block in lives.items() if content in stored]
            stored.update(lives)
            self._latest[at] = number
            if again and not self._is_told and (not waiting or self._num_resting >= NUM_STILL):
                self._is_told = True
                since = f"anything was computed, and {waiting} requests wait" if waiting else "the last request has finished"
                what = f"job {number} stores block {again[0]} a second time since {since}: this never ends"
                mirror.story.violate("I12", what, block=again[0], job=number)
        mirror.tell()

    def _look_for_promotions(self, mirror: Mirror, waiting: int) -> None:
        """All requests wait: what is promoted again and again is never read."""
        if mirror.below is None or self._num_resting < NUM_STILL or self._is_circling or not waiting:
            return
        if circle := mirror.below.circles():
            self._is_circling = True
            mirror.story.violate("I12", f"for {NUM_STILL} steps {waiting} requests wait, and content {circle}")
            mirror.tell()


def _look_behind(mirror: Mirror) -> bool:
    """Whether any job is in flight."""
    mirror.catch_up()
    if below := _below(mirror):
        mirror.story.violate("I5", f"no step will follow, and {below[0].name} is still out", request=below[0].request)
        mirror.tell()
    if left := mirror.jobs.left_behind():
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        mirror.story.violate("I5", f"no step will follow, but job {left[0]}{more} is still in flight", job=left[0])
        mirror.jobs.give_up(left)
        mirror.tell()
    return bool(left)


def _below(mirror: Mirror) -> list[TierJob]:
    """The jobs of tiers below the host that are in flight."""
    return [] if mirror.below is None else mirror.below.left_behind()


def _stores(touching: Collection[Sequence[FollowedJob]]) -> list[FollowedJob]:
    return [job for jobs in touching for job in jobs if job.is_store]


def _is_paused(engine: object) -> bool:
    return getattr(getattr(engine, "pause_state", None), "name", "UNPAUSED") != "UNPAUSED"


def _who_waits(requests: Collection[str], holding: Mapping[str, int]) -> str:
    if not holding:
        return f"{len(requests)} requests wait, {next(iter(requests))} first, and none of them holds a block"
    named = [f"request {name} holds {held}" for name, held in list(holding.items())[:_STILL_NAMED]]
    more = f", {len(holding) - len(named)} more hold some" if len(holding) > len(named) else ""
    return ", ".join(named) + more + " of the blocks that others wait for"
