"""Hooks on a vLLM scheduler as a whole: what it tells its workers, and when it raises an error, becomes idle, or is stuck.

*Checks of a plan.* Workers build their own tables of blocks from nothing but what they are sent. So that must agree with the
engine's tables, and tokens that count as computed must have been computed, hit or loaded.

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

from blocklife.engines.vllm.watch._pool import PoolHooks
from blocklife.engines.vllm.watch._reading import EngineProgress, Tables, blocks_of, tables_of
from blocklife.watch import CONNECTOR, HeardCall, Mirror, TierJob, Watch

Content: TypeAlias = tuple[int, bytes | None]

NUM_STILL = 32
"""Steps without any activity after which an engine counts as deadlocked. An idle loop takes this many within moments."""
_MAY_FALL = ("schedule", "finish_requests", "reset_prefix_cache", "add_request")
"""Calls of the engine that may break a rule, except for the one that ends a step."""
_WAITING = {"WAITING", "PREEMPTED", "WAITING_FOR_REMOTE_KVS"}
"""Statuses of requests that wait only for the engine. In other statuses they may wait for a client, or for a compiler."""
_STILL_NAMED = 4


class EngineHooks:
    """Hooks on one scheduler."""

    def __init__(self, watch: Watch, engine: object) -> None:
        self._watch, ears = watch, watch.ears
        self._engine = engine
        self._mirrors = watch.mirrors
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
        for name in _MAY_FALL:
            ears.hear(engine, name, before=lambda call: watch.catch_up)
        ears.hear(engine, "update_from_output", before=lambda call: watch.catch_up, after=self._processed)

    # --- hooked calls -------------------------------------------------------------------------------------------------------

    def _processed(self, call: HeardCall) -> None:
        """The engine has processed the output of a step."""
        has_requests: Callable[[], bool] | None = getattr(self._engine, "has_requests", None)
        if has_requests is not None and not has_requests():
            for mirror in self._mirrors:
                if not _look_behind(mirror) and not getattr(self._engine, "deferred_frees", None):
                    self._look_for_lost(mirror)
        if not getattr(call.first, "total_num_scheduled_tokens", 1):
            self._look_for_progress()
        else:
            self._num_still, self._is_told = 0, False
            self._leave_circle()
            for mirror in self._mirrors:
                if mirror.below is not None:
                    mirror.below.slots.progressed()
        self._watch.end_step()

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

    def _look_for_circle(self, mirror: Mirror, waiting: int) -> None:
        """No request runs: whatever is stored now was computed by finished requests.

        Waiting requests may still be scheduled once some stores have landed, so they are given some time.
        """
        at = id(mirror)
        stored, latest = self._stored.setdefault(at, set()), self._latest.get(at, -1)
        fresh = {copy.number: copy for copy in mirror.jobs.stores_out() if copy.number > latest}
        for number, copy in sorted(fresh.items()):
            lives = {(mirror.holders.life(piece.block), piece.key): piece.block for piece in copy.pieces}
            again = [block for content, block in lives.items() if content in stored]
            stored.update(lives)
            self._latest[at] = number
            if again and not self._is_told and (not waiting or self._num_resting >= NUM_STILL):
                self._is_told = True
                since = f"anything was computed, and {waiting} requests wait" if waiting else "the last request has finished"
                what = f"job {number} stores block {again[0]} a second time since {since}: this never ends"
                mirror.story.violate("I12", what, block=again[0], job=number)

    def _look_for_promotions(self, mirror: Mirror, waiting: int) -> None:
        """All requests wait: what is promoted again and again is never read."""
        if mirror.below is None or self._num_resting < NUM_STILL or self._is_circling or not waiting:
            return
        if circle := mirror.below.slots.circles():
            self._is_circling = True
            mirror.story.violate("I12", f"for {NUM_STILL} steps {waiting} requests wait, and content {circle}")


def _look_behind(mirror: Mirror) -> bool:
    """Whether any job is in flight."""
    mirror.catch_up()
    if below := _below(mirror):
        mirror.story.violate("I5", f"no step will follow, and {below[0].name} is still out", request=below[0].request)
    if left := mirror.jobs.left_behind():
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        mirror.story.violate("I5", f"no step will follow, but job {left[0]}{more} is still in flight", job=left[0])
        mirror.jobs.give_up(left)
    return bool(left)


def _below(mirror: Mirror) -> list[TierJob]:
    """The jobs of tiers below the host that are in flight."""
    return [] if mirror.below is None else mirror.below.left_behind()


def _is_paused(engine: object) -> bool:
    return getattr(getattr(engine, "pause_state", None), "name", "UNPAUSED") != "UNPAUSED"


def _who_waits(requests: Collection[str], holding: Mapping[str, int]) -> str:
    if not holding:
        return f"{len(requests)} requests wait, {next(iter(requests))} first, and none of them holds a block"
    named = [f"request {name} holds {held}" for name, held in list(holding.items())[:_STILL_NAMED]]
    more = f", {len(holding) - len(named)} more hold some" if len(holding) > len(named) else ""
    return ", ".join(named) + more + " of the blocks that others wait for"


_GROWING = ("FullAttentionManager", "SlidingWindowManager", "ChunkedLocalAttentionManager")
"""Managers whose tables grow only at the end, and have a block at every position that is read."""


_RING = "CircularBufferManager"
"""The manager of a group with one block for each request, for its last tokens: where a request begins it has none of them."""


class TablesHooks:
    """Hooks on one engine. *pool* knows what was handed out in a step, *progress* what was computed."""

    def __init__(
        self, watch: Watch, engine: object, pool: PoolHooks, managers: Sequence[object], progress: EngineProgress
    ) -> None:
        self._watch = watch
        self._progress = progress
        self._mirrors = watch.mirrors
        self._pool = pool
        self._managers = managers
        self._grows = [type(manager).__name__ in _GROWING for manager in managers]
        cache_manager = getattr(engine, "kv_cache_manager", None)
        blocks = getattr(cache_manager, "block_pool", None)
        self._num_free: Callable[[], int] | None = getattr(blocks, "get_num_free_blocks", None)
        self._num_blocks = len(blocks_of(blocks))
        self._odd_free = 0
        # An unwatched connector may load content within a step.
        self._is_alone = not getattr(getattr(engine, "connector", None), "_connectors", None)
        watch.ears.hear(engine, "schedule", before=self._schedules, after=self._scheduled)

    def _schedules(self, call: HeardCall) -> None:
        self._pool.names.begin()
        self._pool.given.clear()

    def _scheduled(self, call: HeardCall) -> None:
        scheduled = getattr(call.result, "num_scheduled_tokens", None)
        if isinstance(scheduled, dict):
            progress = self._progress
            progress.advance(call.result)
            progress.leave()
            for what, request in progress.odd:
                self._watch.violate("I6", what, request=request)
            self._pool.names.settle(scheduled, progress.reach)
            self._ask_tables(call.result)
            self._ask_free()

    # --- tables -------------------------------------------------------------------------------------------------------------

    def _ask_tables(self, output: object) -> None:
        tables = [tables_of(manager) for manager in self._managers]
        for new in getattr(output, "scheduled_new_reqs", ()):
            self._ask_row(new.req_id, new.block_ids, tables, whole=True)
            if not getattr(new, "replay_start", 0):
                self._ask_content(new.req_id, new.num_computed_tokens)
        cached = getattr(output, "scheduled_cached_reqs", None)
        names: Sequence[str] = getattr(cached, "req_ids", ())
        rows: Sequence[Sequence[Sequence[int]] | None] = getattr(cached, "new_block_ids", ())
        resumed: Collection[str] = getattr(cached, "resumed_req_ids", ())
        for name, row in zip(names, rows, strict=False):
            if row is not None:
                self._ask_row(name, row, tables, whole=name in resumed)
        if resumed:
            for name, computed in zip(names, getattr(cached, "num_computed_tokens", ()), strict=False):
                if name in resumed:
                    self._ask_content(name, computed)

    def _ask_row(self, name: str, row: Sequence[Sequence[int]], tables: Sequence[Tables], *, whole: bool) -> None:
        """Check that the workers get exactly the blocks in the table of a request."""
        for group, told in enumerate(row[: len(tables)]):
            if not told or not (whole or self._grows[group]) or (table := tables[group].get(name)) is None:
                continue
            start = 0 if whole else len(table) - len(told)
            there = [block.block_id for block in table[max(0, start) : start + len(told)]]
            if there != told and there != list(told):
                odd = next((at for at, (one, other) in enumerate(zip(there, told, strict=False)) if one != other), len(there))
                here = f"block {there[odd]}" if odd < len(there) else "nothing"
                named = f"block {told[odd]}" if odd < len(told) else "nothing"
                what = (
                    f"workers are told that {name} has {named} at position {start + odd} of group {group}, where {here} stands"
                )
                self._watch.violate("I8", what, request=name)

    def _ask_content(self, name: str, computed: int) -> None:
        """Check that a new or resumed request has the content that counts as computed, as far as it will be read."""
        given = {block for holder, blocks in self._pool.given if holder == name for block in blocks} if computed else set()
        if self._is_alone:
            given -= {block for mirror in self._mirrors for block in mirror.brought}
        else:
            given = set()
        for group, manager in enumerate(self._managers if computed else ()):
            size, window = getattr(manager, "block_size", 0), getattr(manager, "sliding_window", None)
            begins = self._is_alone and name not in self._progress.going_on
            if begins and type(manager).__name__ == _RING and size and computed % size:
                lacking = f"its ring in group {group} has nothing of the {computed % size} before"
                self._watch.violate("I6", f"{name} begins at token {computed}, and {lacking}", request=name)
            if not self._grows[group] or not size or type(manager).__name__ == "ChunkedLocalAttentionManager":
                continue
            first = max(0, computed - window + 1) // size if isinstance(window, int) else 0
            table = tables_of(manager).get(name, ())
            ids = [block.block_id for block in table[first : computed // size]]
            if all(ids) and given.isdisjoint(ids):  # the usual case
                continue
            at, block = next((at, block) for at, block in enumerate(ids, first) if not block or block in given)
            why = f"there is block {block}, which this step has handed out and no load fills" if block else "there is no block"
            what = f"{name} counts {computed} tokens as computed, and at position {at} of group {group} {why}"
            self._watch.violate("I6", what, request=name, block=block or None)

    # --- counts -------------------------------------------------------------------------------------------------------------

    def _ask_free(self) -> None:
        """Check that the pool does not count more free blocks than have no reference."""
        mirror = self._mirrors[0]
        if self._num_free is None or mirror.sample > 1 or mirror.is_behind:
            return
        more = self._num_free() + len(mirror.holders.where) - (self._num_blocks - 1)
        if more > 0 and more != self._odd_free:
            held, blocks = len(mirror.holders.where), self._num_blocks - 1
            what = f"{self._num_free()} blocks count as free, although {held} of {blocks} are held: {more} too many"
            self._watch.violate("I4", what)
        self._odd_free = max(0, more)
