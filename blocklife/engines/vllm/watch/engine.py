"""Listens to a vLLM scheduler as a whole: when it falls, when it goes to sleep, and when it gets no further.

*What is asked of an engine at the end of each step.* If it will not take another one, no job may be out (I5), and nobody may
hold anything (I4). If it computes nothing, nothing is out and nothing was heard of for `NUM_STILL` steps, while requests hold
blocks and none of them runs, then they wait for each other, for only a step could give a block back (I12). While nobody asks
anything of it, or all who do wait for `NUM_STILL` steps, a block that it stores a second time is stored for ever, for nothing
new can have come (I12).

An error of the engine's own is never hidden. What happened before it, in the same step, is asked first, so that a step that
breaks a rule and falls is told by its rule; then the error goes on. A strict watch raises in its place, with the error as its
context.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from blocklife.engines.vllm.watch.calls import CallsThrough, Original
from blocklife.engines.vllm.watch.holders import CONNECTOR
from blocklife.engines.vllm.watch.jobs import FollowedJob
from blocklife.engines.vllm.watch.mirror import Mirror

Content: TypeAlias = tuple[int, bytes | None]

NUM_STILL = 32
"""Steps without anything after which an engine stands still. A loop without work takes so many in a moment."""
_MAY_FALL = ("schedule", "finish_requests", "reset_prefix_cache", "add_request")
"""Calls of the engine in which something may go wrong; the last one of a step is another."""
_WAITING = {"WAITING", "PREEMPTED", "WAITING_FOR_REMOTE_KVS"}
"""Statuses of requests that wait for the engine alone. In others a client may be what they wait for, or a compiler."""
_STILL_NAMED = 4


class EngineHooks:
    """Listens to one scheduler. *after* is called when a step has come back and was asked for all that it can break."""

    def __init__(self, engine: object, mirrors: Sequence[Mirror], after: Callable[[], None]) -> None:
        self._engine = engine
        self._mirrors = mirrors
        self._after = after
        self._num_still = 0
        self._is_told = False
        self._num_resting = 0
        self._stored: dict[int, set[Content]] = {}
        self._latest: dict[int, int] = {}
        self._there: set[str] = set()
        self._held: dict[int, int | None] = {}
        # Another connector beside the watched one may have something out that nobody sees.
        self._is_alone = not getattr(getattr(engine, "connector", None), "_connectors", None)
        self.calls = CallsThrough()
        for name in _MAY_FALL:
            self.calls.add(engine, name, self._call)
        self.calls.add(engine, "update_from_output", self._settled)

    # --- what it hears ------------------------------------------------------------------------------------------------------

    def _call(self, original: Original, *args: object, **kwargs: object) -> object:
        try:
            return original(*args, **kwargs)
        except Exception:
            self._catch_up()
            raise

    def _settled(self, original: Original, *args: object, **kwargs: object) -> object:
        """The engine has taken in what came back from a step."""
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
        self._after()
        return result

    def _catch_up(self) -> None:
        """Ask of what has happened in the step that is being made."""
        for mirror in self._mirrors:
            mirror.catch_up()

    def _look_for_lost(self, mirror: Mirror) -> None:
        """No step will follow: whose requests are gone must hold nothing, and a connector that has nothing out neither."""
        requests = getattr(self._engine, "requests", None)
        if not isinstance(requests, Mapping):
            return
        known = requests.keys() | ({CONNECTOR} if mirror.jobs.gave_up or not self._is_alone else set())
        for name, blocks in mirror.holders.left_behind(known).items():
            who = f"{name}, with nothing out," if name == CONNECTOR else f"{name}, who is gone,"
            what = f"no step will follow, and {who} holds block {blocks[0]}" + (
                f" and {len(blocks) - 1} more" if blocks[1:] else ""
            )
            mirror.story.violate("I4", what, block=blocks[0], request=None if name == CONNECTOR else name)
            mirror.holders.drop_all(blocks)
        self._look_for_held_slots(mirror)
        mirror.tell()

    def _look_for_held_slots(self, mirror: Mirror) -> None:
        """No step will follow, and nothing is out: every slot can be given to somebody else, once."""
        at, held = id(mirror), mirror.num_held() if self._is_alone and not mirror.jobs.gave_up else None
        if held and held != self._held.get(at):
            slots = "a slot" if abs(held) == 1 else f"{abs(held)} slots"
            what = f"{slots} of the host can be given to nobody" if held > 0 else f"{slots} of the host can be given away twice"
            mirror.story.violate("I4", f"no step will follow, nothing is out, and {what}")
        self._held[at] = held

    # --- what never ends ----------------------------------------------------------------------------------------------------

    def _look_for_progress(self) -> None:
        """A step has computed nothing."""
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
        else:
            self._leave_circle()

    def _leave_circle(self) -> None:
        self._num_resting = 0
        self._stored.clear()

    def _rests(self, requests: Mapping[str, object]) -> bool:
        """Whether nobody is there, or only who waits for the engine."""
        states = {getattr(getattr(request, "status", None), "name", "") for request in requests.values()}
        return states <= _WAITING and not (getattr(self._engine, "running", None) or _is_paused(self._engine))

    def _look_for_standstill(self, requests: Mapping[str, object], rests: bool) -> None:
        is_still = bool(requests) and rests and self._is_alone
        if not is_still or any(mirror.jobs.left_behind() for mirror in self._mirrors):
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
                what = f"for {NUM_STILL} steps nothing was computed and nothing is out, and {_who_waits(requests, holding)}"
                mirror.story.violate("I12", what, request=next(iter(holding or requests)))
                mirror.tell()

    def _look_for_circle(self, mirror: Mirror, waiting: int) -> None:
        """Nobody is there who runs: whatever is stored now was stored for somebody who is gone.

        Requests that wait may get by, by chance, when more stores than usual have landed: they are given some time.
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
                since = f"anything was computed, and {waiting} requests wait" if waiting else "the last request has gone"
                what = f"job {number} stores block {again[0]} a second time since {since}: that leads nowhere"
                mirror.story.violate("I12", what, block=again[0], job=number)
        mirror.tell()


def _look_behind(mirror: Mirror) -> bool:
    """Whether anything is out."""
    mirror.catch_up()
    if left := mirror.jobs.left_behind():
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        mirror.story.violate("I5", f"no step will follow, and job {left[0]}{more} is still out", job=left[0])
        mirror.jobs.give_up(left)
        mirror.tell()
    return bool(left)


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
