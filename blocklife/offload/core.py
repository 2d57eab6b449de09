"""The inside of the offload scheduler: what it knows of requests, and the parts that its steps are made of.

Rules of this file:

* Nothing here is called from outside; `scheduler.py` holds what an engine calls, and refuses what comes in the wrong order.
* What is told to the ledger first is noted here afterwards, so that a refusal leaves both as they were.
* The engine's keys are asked for before what needs them is noted: an error of theirs loses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn, TypeAlias

import numpy as np
from attrs import define
from numpy.typing import NDArray

from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Contract, Ledger, Seal, edge
from blocklife.ledger.jobs import Allocated, Batch, GroupTransfer
from blocklife.ledger.places import EPOCH_SHIFT, ID_MASK, NULL
from blocklife.offload.groups import FullAttention, Geometry, Mamba
from blocklife.offload.host import HostTier
from blocklife.offload.progress import ProgressTable
from blocklife.offload.records import FullHit, Hit, Keys, LastStep, Policies
from blocklife.offload.search import Search
from blocklife.offload.stores import Chunk, StoreLine
from blocklife.states import Block, BlockLife, Request

Rows: TypeAlias = NDArray[np.int64]

_CACHED = BlockLife.table.index[Block.CACHED]


@define(eq=False)
class Tracked:
    """What the scheduler knows of one request besides its row in the columns."""

    row: int
    keys: Keys
    hit: Hit | None = None
    """The latest lookup; while it loads, what it loads."""
    failures: int = 0
    """Loads of it that were lost."""
    ending: str = ""
    """`finish` or `abort`, where its end waits for a plan that is out."""
    asked: tuple[int, int, int | None] | None = None
    """Its latest lookup that was answered: verdicts on jobs and loads given up by then, known tokens, tokens on the device."""


@define(eq=False)
class OnItsWay:
    """The requests of one plan that has not settled."""

    rows: Rows
    tokens: Rows
    serials: Rows
    handed: Collection[tuple[str, int, int, int]]
    """States handed off: request, serial, group, boundary."""


class SchedulerCore(edge.NotCopied):
    """The state of a scheduler.

    Invariant: ``_names[row]`` is the request of a row, and ``_requests`` has exactly the requests that the ledger knows.
    Invariant: ``_plans`` holds the plans that are out, oldest first, at most ``plans_ahead`` + 1.
    Invariant: ``_loading`` maps what live loads bring, by group and key, to their request.
    """

    def __init__(self, ledger: Ledger, tier: HostTier, geometry: Geometry, policies: Policies | None = None) -> None:
        self.ledger = edge.member(ledger, Ledger, "ledger")
        self.tier = edge.member(tier, HostTier, "tier")
        self.geometry = geometry
        edge.member(geometry, Geometry, "geometry")
        self.policies = policies = Policies() if policies is None else edge.member(policies, Policies, "policies")
        _check_fit(ledger, geometry, policies)
        self.stores = StoreLine(ledger, tier, geometry, policies)
        self._groups = range(len(geometry.groups))
        self._attention = [group for group in self._groups if not isinstance(geometry.groups[group], Mamba)]
        self._has_states = len(self._attention) < len(self._groups)
        self._requests: dict[str, Tracked] = {}
        self._names: dict[int, str] = {}
        self._progress = ProgressTable(ledger.limits.max_requests, geometry)
        self._plans: dict[int, OnItsWay] = {}
        self._handed: dict[tuple[str, int, int, int], None] = {}
        self._states: dict[str, list[tuple[int, int, int]]] = {}
        """States that were handed off at the end of a chunk and not offered yet: group, boundary, life."""
        self._step = 1
        self._waiting_loads: dict[str, Hit] = {}
        self._loading: dict[tuple[int, bytes], str] = {}
        self._search = Search(ledger, tier, geometry, policies, self.stores.suffix, self._loading)
        self._pinned: dict[str, list[int]] = {}
        self._preempted: dict[str, None] = {}
        self._ending: set[str] = set()
        """Requests that are over and wait for a plan."""
        self._ended: set[str] = set()
        """Requests that are over and whose jobs are not."""
        self._given_up = 0
        self._lost: set[int] = set()
        self._asleep = False
        self.generation = ""
        """Which weights, layout and customers the content was made with, in the engine's words."""
        self._counts: Counter[str] = Counter()
        self._device_hits = [0] * len(geometry.groups)
        self._host_hits = [0] * len(geometry.groups)

    # --- letting in ---------------------------------------------------------------------------------------------------------

    def _take_in(self, name: str, hit: Hit, end: int) -> None:
        """Fill the empty tables: nulls outside the window, the device's hit, then blocks for the load or the first tokens."""
        ledger = self.ledger
        fresh = 0
        plans = []
        for group in self._groups:
            stop = -(-end // self.geometry.block_tokens[group])
            lives = list(hit.lives[group])
            mamba = isinstance(self.geometry.groups[group], Mamba)
            begin = self._load_start(group, hit) - len(lives)
            # of a Mamba group only the state at the end has a block
            skip = max(0, stop - 1 - (begin + len(lives))) if mamba else 0
            count = max(0, stop - begin - len(lives) - skip)
            plans.append((group, begin, lives, skip, count))
            fresh += count
        cold = copied = 0
        for _, _, lives, _, _ in plans:
            for life in lives:
                place = life & ID_MASK
                if ledger.blocks.epoch[place] != life >> EPOCH_SHIFT:
                    raise CapacityError(f"request {name}: block {place} of its hit was handed out meanwhile (look it up again)")
                if ledger.blocks.refs[place] == 0:
                    free = ledger.blocks.column.state[place] == _CACHED
                    cold += free
                    copied += not free
        # a wait for a copy is worth it only where nobody else makes progress
        alone = ledger.contract is Contract.FENCE and not (self._progress.running.any() or self._waiting_loads)
        if fresh + cold > ledger.blocks.free + (ledger.statistics().freeing_soon - copied if alone else 0):
            raise CapacityError(
                f"request {name}: {fresh} blocks wanted besides {cold} of its hit, {ledger.blocks.free} are free (preempt a "
                "request, or wait for a copy to land)"
            )
        for group, begin, lives, _, _ in plans:  # all hits first, so that no hand-out takes one of them
            ledger.skip(name, begin, group)
            if lives:
                ledger.acquire(name, lives, group)
        for group, _, _, skip, count in plans:
            ledger.skip(name, skip, group)
            if count:
                ledger.allocate(name, count, group)

    def _note_placed(self, name: str, row: int) -> None:
        for group, table in enumerate(self.ledger.requests[name].tables):
            self._progress.placed[group, row] = len(table)

    def _check_placed(self, rows: Rows, ends: Rows | None = None) -> None:
        """Refuse requests whose tables do not hold the tokens before *ends*; those where this step ends, if none are given."""
        table = self._progress
        ends = table.ends(rows) if ends is None else ends
        for group in self._groups:
            lacking = table.missing(group, rows, ends).nonzero()[0]
            if len(lacking):
                row, end = int(rows[lacking[0]]), int(ends[lacking[0]])
                needed = -(-end // self.geometry.block_tokens[group])
                raise MisuseError(
                    f"request {self._names[row]}: group {group} has {int(table.placed[group, row])} places, and the tokens "
                    f"before {end} need {needed} (place them first)"
                )

    def _load(self, name: str, tracked: Tracked, hit: Hit) -> None:
        """Plan the one load of all groups, into the places behind the device's hit."""
        transfers: list[GroupTransfer[Allocated]] = []
        size = self.geometry.blocks_per_chunk
        for group in self._groups:
            slots = hit.slots[group]
            if not slots:
                continue
            start, stop = self._load_start(group, hit), hit.tokens // self.geometry.block_tokens[group]
            chunk = start // size
            lives = self.ledger.requests[name].tables[group][start:stop].tolist()
            names = list(_keys_of(tracked, group, start, stop))
            keys = names[(chunk + 1) * size - 1 - start :: size]
            places = [slots[at // size - chunk] * size + at % size for at in range(start, stop)] if size > 1 else None
            transfers.append(GroupTransfer(Batch(lives, group), list(slots), keys, places, names))
            self._host_hits[group] += len(lives)
        self.ledger.plan_group_load(name, transfers)
        self._loading.update(dict.fromkeys(self._brought(tracked, hit), name))

    def _brought(self, tracked: Tracked, hit: Hit) -> Iterator[tuple[int, bytes]]:
        """What a load of this hit brings, by group and key."""
        for group in self._groups:
            if hit.slots[group]:
                start, stop = self._load_start(group, hit), hit.tokens // self.geometry.block_tokens[group]
                for key in _keys_of(tracked, group, start, stop):
                    yield group, key

    def _load_start(self, group: int, hit: Hit) -> int:
        """The first block that a load of one group fills."""
        first = self.geometry.needed(group, hit.compute_from).start
        return max(first, hit.device_tokens // self.geometry.block_tokens[group])

    def _start(self, name: str, tracked: Tracked, hit: Hit, tokens: int) -> None:
        """The request is in: note where it stands."""
        row, table = tracked.row, self._progress
        self._unpin(name)
        for group in self._groups:
            self._device_hits[group] += len(hit.lives[group]) if hit.lives else 0
            held = self.ledger.requests[name].tables[group]
            first = next((position for position, life in enumerate(held) if life != NULL), len(held))
            table.placed[group, row] = len(held)
            table.first[group, row] = first
            table.offered[group, row] = first // self.geometry.blocks_per_chunk
            table.sealed[group, row] = hit.tokens // self.geometry.block_tokens[group]
        table.step[row] = self._step
        if not tokens:
            self._waiting_loads[name] = hit
            return
        self.ledger.admit(name)
        table.computed[row] = hit.compute_from
        table.running[row] = True
        table.wanted[row] = tokens

    # --- growing ------------------------------------------------------------------------------------------------------------

    def _leave_windows(self, rows: Rows) -> None:
        """Give back what no settled token needs any more; tokens in flight can still be taken back."""
        table = self._progress
        for group in self._groups:
            if self.geometry.window_blocks[group] is None:
                continue
            needed = np.minimum(table.first_needed(group, rows), table.placed[group, rows])
            moved = (needed > table.first[group, rows]).nonzero()[0]
            if not len(moved):
                continue
            chosen = rows[moved]
            names = [self._names[row] for row in chosen.tolist()]
            spans = zip(table.first[group, chosen].tolist(), needed[moved].tolist(), strict=True)
            self.ledger.release_many(names, [range(start, stop) for start, stop in spans], group)
            table.first[group, chosen] = needed[moved]

    def _make_room(self, rows: Rows, order: Sequence[int]) -> list[int]:
        """Allocate what these requests lack: all of them at once, or one after the other. Returns the rows without room."""
        table = self._progress
        ends = table.ends(rows)
        missing = {group: table.missing(group, rows, ends) for group in self._groups}
        lacking = {group: count.nonzero()[0] for group, count in missing.items()}
        total = sum(
            len(lacking[group]) if isinstance(self.geometry.groups[group], Mamba) else int(missing[group].sum())
            for group in self._groups
        )
        if total <= self.ledger.blocks.free:
            for group in self._groups:
                if len(lacking[group]):
                    self._allocate(rows[lacking[group]], missing[group][lacking[group]], group)
            return []
        lack = np.sum(list(missing.values()), axis=0).nonzero()[0]
        by_row = dict(zip(rows[lack].tolist(), lack.tolist(), strict=True))
        first = dict.fromkeys(row for row in order if row in by_row)
        queue = [*first, *(row for row in by_row if row not in first)]
        for at, row in enumerate(queue):
            position = by_row[row]
            wanted = [group for group in self._groups if missing[group][position]]
            blocks = sum(1 if group not in self._attention else int(missing[group][position]) for group in wanted)
            # all groups or none: the place of a state depends on where the step ends, and the next one may end elsewhere
            if not self.ledger.has_room(blocks):
                return queue[at:]
            for group in wanted:
                self._allocate(rows[position : position + 1], missing[group][position : position + 1], group)
        return []

    def _allocate(self, rows: Rows, counts: Rows, group: int) -> None:
        """Extend the tables of one group; of a Mamba group only the last place gets a block."""
        names = [self._names[row] for row in rows.tolist()]
        if isinstance(self.geometry.groups[group], Mamba):
            self.ledger.allocate_many(names, [1] * len(names), group, skips=(counts - 1).tolist())
        else:
            self.ledger.allocate_many(names, counts.tolist(), group)
        self._progress.placed[group, rows] += counts

    # --- offering -----------------------------------------------------------------------------------------------------------

    def _bounds(self, rows: Rows, tokens: Rows) -> Rows:
        """How many tokens of each request may be stored, of its first *tokens*, which have, or will have, content."""
        table = self._progress
        found: Rows = np.minimum(tokens, table.known[rows])
        if self.policies.prompt_only:
            found = np.minimum(found, table.prompt[rows])
        if self.policies.max_store_tokens is not None:
            found = np.minimum(found, self.policies.max_store_tokens)
        return found

    def _bound(self, row: int, tokens: int) -> int:
        return int(self._bounds(np.array([row]), np.array([tokens]))[0])

    def _plan_stores(self, rows: Rows) -> None:
        """Choose what is stored now, of what these requests fill and of what waits, and plan it."""
        self._offer_filled(rows)
        if not self._lost:
            self.stores.plan()

    def _offer_filled(self, rows: Rows) -> None:
        """Offer the chunks that this step fills; only requests that cross a boundary are looked at."""
        table = self._progress
        bound = self._bounds(rows, table.ends(rows))
        alone = self.geometry.blocks_per_chunk == 1 and not self._lost
        for group in self._attention:
            chunks, offered = bound // self.geometry.chunk_tokens[group], table.offered[group, rows]
            where = (chunks > offered).nonzero()[0]
            if not len(where):
                continue
            filled, stops = rows[where], chunks[where]
            if not alone:
                for row, stop in zip(filled.tolist(), stops.tolist(), strict=True):
                    self._offer_chunks(self._names[row], row, group, stop)
                continue
            found: list[Chunk] = []
            for name, lives, keys in self._contents(group, filled, offered[where], stops):
                found += [Chunk(name, group, key, [life]) for life, key in zip(lives, keys, strict=True) if life != NULL]
            table.offered[group, filled] = stops
            self.stores.offer(found)

    def _contents(self, group: int, rows: Rows, starts: Rows, stops: Rows) -> list[tuple[str, Sequence[int], Sequence[bytes]]]:
        """Of some requests, the lives and the keys of some of their blocks."""
        found: list[tuple[str, Sequence[int], Sequence[bytes]]] = []
        names, tracked, requests = self._names, self._requests, self.ledger.requests
        for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True):
            name = names[row]
            found.append((name, requests[name].tables[group][start:stop], _keys_of(tracked[name], group, start, stop)))
        return found

    def _offer(self, name: str, tracked: Tracked, tokens: int) -> None:
        """Offer what a request leaves behind: the chunks of its first *tokens* that have not had their turn."""
        bound = self._bound(tracked.row, tokens)
        for group in self._attention:
            chunks = bound // self.geometry.chunk_tokens[group]
            if chunks > self._progress.offered[group, tracked.row]:
                self._offer_chunks(name, tracked.row, group, chunks)
        if name in self._states:
            self._cut_states(name, tokens)
            self._offer_states(name, tracked.row)

    def _offer_chunks(self, name: str, row: int, group: int, stop: int) -> None:
        size, table = self.geometry.blocks_per_chunk, self.ledger.requests[name].tables[group]
        start, chunks = int(self._progress.offered[group, row]), list[Chunk]()
        if not self._lost:
            keys = _keys_of(self._requests[name], group, start * size, stop * size)
            for chunk in range(start, stop):
                # a hit reads the end of a chunk at least
                if table[(chunk + 1) * size - 1] != NULL:
                    lives = table[chunk * size : (chunk + 1) * size].tolist()
                    chunks.append(Chunk(name, group, keys[(chunk - start + 1) * size - 1], lives))
        self._progress.offered[group, row] = stop
        self.stores.offer(chunks)

    def _offer_states(self, name: str, row: int) -> None:
        """Offer the states of one request that were handed off, as far as their tokens are known; others wait."""
        size, later, chunks = self.geometry.blocks_per_chunk, [], []
        for group, boundary, life in self._states[name]:
            if boundary > self._progress.known[row]:
                later.append((group, boundary, life))  # planned ahead: its last token has not been sampled yet
            elif boundary <= self._bound(row, boundary) and not self._lost:
                position = boundary // self.geometry.block_tokens[group] - 1
                key = _keys_of(self._requests[name], group, position, position + 1)[0]
                chunks.append(Chunk(name, group, key, [NULL] * (size - 1) + [life]))
        del self._states[name]
        if later:
            self._states[name] = later
        self.stores.offer(chunks)

    def _cut_states(self, name: str, tokens: int) -> None:
        """Of the states that were handed off and not offered, keep those of the first *tokens*."""
        if name in self._states:
            self._states[name] = [state for state in self._states[name] if state[1] <= tokens]

    # --- settling -----------------------------------------------------------------------------------------------------------

    def _advance(self, rows: Rows, tokens: Rows, sampled: Mapping[str, int]) -> tuple[Rows, Rows]:
        """What is known and computed once these tokens count."""
        table = self._progress
        known, end = table.known[rows], table.computed[rows] + tokens
        news = (end >= known).astype(np.int64)
        if sampled:
            where = {row: position for position, row in enumerate(rows.tolist())}
            for name, count in sampled.items():
                if count < 0:
                    raise MisuseError(f"request {name}: cannot have sampled {count} tokens")
                tracked = self._requests[name]
                if (position := where.get(tracked.row)) is None:
                    continue
                ahead = table.in_flight[tracked.row] > tokens[position]
                if self._has_states and ahead and count < news[position] and not tracked.ending:
                    raise MisuseError(
                        f"request {name}: a Mamba state cannot be taken back, and a plan that is out takes in the token that "
                        f"plan {next(iter(self._plans))} was to sample (it has sampled 1 at least; preempt the request first)"
                    )
                news[position] = count
        # a sampled token has no content yet; what was scheduled beyond the known tokens counts as far as it was sampled
        computed = np.minimum(end, known + np.maximum(news - 1, 0))
        return known + news, computed

    def _seals(self, rows: Rows, computed: Rows) -> tuple[list[Seal], dict[int, Rows]]:
        """The blocks that are full now, by group, with their keys."""
        seals: list[Seal] = []
        sealed: dict[int, Rows] = {}
        table = self._progress
        for group in self._attention:
            before = table.sealed[group, rows]
            sealed[group] = full = np.maximum(computed // self.geometry.block_tokens[group], before)
            where = (full > before).nonzero()[0]
            if not len(where):
                continue
            lives: list[int] = []
            keys: list[bytes] = []
            for _, held, names in self._contents(group, rows[where], before[where], full[where]):
                lives += held
                keys += names
            if NULL in lives:
                keys = [key for key, life in zip(keys, lives, strict=True) if life != NULL]
                lives = [life for life in lives if life != NULL]
            if lives:
                seals.append(Seal(group, lives, keys))
        return seals, sealed

    def _state_seals(self, handed: Iterable[tuple[str, int, int, int]], computed: Mapping[int, int]) -> list[Seal]:
        """The states that were handed off and reached, by group: who is over may not have got its last token."""
        found: dict[int, tuple[list[int], list[bytes]]] = {}
        for name, serial, group, boundary in handed:
            tracked = self._requests.get(name)
            if tracked is None or self._progress.serial[tracked.row] != serial or computed.get(tracked.row, 0) < boundary:
                continue
            position = boundary // self.geometry.block_tokens[group] - 1
            lives, keys = found.setdefault(group, ([], []))
            lives.append(self.ledger.requests[name].tables[group][position])
            keys += _keys_of(tracked, group, position, position + 1)
        return [Seal(group, lives, keys) for group, (lives, keys) in found.items()]

    def _hear_of_loads(self) -> tuple[list[str], list[str]]:
        """Requests whose load is over: they run, or wait again."""
        loaded: list[str] = []
        failed: list[str] = []
        table = self._progress
        for name, hit in list(self._waiting_loads.items()):
            state = self.ledger.request_state(name)
            if state is Request.LOADING:
                continue
            tracked = self._requests[name]
            if state is Request.RUNNING:
                self._end_load(name)
                table.computed[tracked.row] = hit.compute_from
                table.running[tracked.row] = True
                loaded.append(name)
            else:
                tracked.failures += 1
                self._drop(name, tracked)
                failed.append(name)
        return loaded, failed

    def _over(self) -> list[str]:
        """Requests that only waited for their plans to settle, and whose plans have."""
        in_flight = self._progress.in_flight
        return [self._names[row] for row in sorted(self._requests[name].row for name in self._ending) if not in_flight[row]]

    # --- ending -------------------------------------------------------------------------------------------------------------

    def _end(self, name: str, how: str) -> None:
        """Reserve the last stores and give everything back; later, where a plan that is out still writes for the request."""
        tracked = self._tracked(name)
        row, table = tracked.row, self._progress
        if table.in_flight[row]:
            tracked.ending = how
            self._ending.add(name)
            table.running[row] = False
            table.wanted[row] = 0
            self._cut_states(name, int(table.computed[row] + table.in_flight[row]))
            return
        self._leave_behind(name, tracked, how)
        self.ledger.finish(name)
        self._leave(name, tracked)

    def _end_many(self, names: Sequence[str]) -> None:
        """`_end` of requests whose plans have settled."""
        for name in names:
            self._end(name, self._requests[name].ending)

    def _leave_behind(self, name: str, tracked: Tracked, how: str) -> None:
        """Reserve the last stores of a request, which has no plan out."""
        if self.ledger.request_state(name) is Request.RUNNING:
            row, table = tracked.row, self._progress
            computed = int(table.computed[row])
            last = computed if how == "abort" else max(int(table.prompt[row]), int(table.known[row]) - 1)
            self._offer(name, tracked, min(computed, last))
            if not self._lost:
                self.stores.plan([name])
            self._touch(tracked, computed)

    def _leave(self, name: str, tracked: Tracked) -> None:
        """The ledger no longer knows the request."""
        self._drop(name, tracked)
        self._progress.leave(tracked.row)
        del self._requests[name], self._names[tracked.row]
        self._ending.discard(name)
        self._preempted.pop(name, None)
        if name in self.ledger.jobs.owned:
            self._ended.add(name)

    def _drop(self, name: str, tracked: Tracked) -> None:
        """The request holds nothing any more: forget how far it was, and what it waited for."""
        if name in self._waiting_loads:
            self._end_load(name)
            self._given_up += 1
        self._unpin(name)
        self._states.pop(name, None)
        tracked.hit = None
        self._progress.clear(tracked.row)

    def _end_load(self, name: str) -> None:
        for content in self._brought(self._requests[name], self._waiting_loads.pop(name)):
            if self._loading.get(content) == name:
                del self._loading[content]

    def _forget(self, *, drain: bool, host: bool) -> list[str]:
        """All content is gone, that of the host tier only with *host*; requests wait, and those that were over end."""
        alive = {name: self.ledger.request_state(name) for name in self._requests}
        self.ledger.reset(drain=drain, host=host)
        self.stores.clear()
        preempted = []
        for name, state in alive.items():
            tracked = self._requests[name]
            ending, tracked.ending = tracked.ending, ""
            # a load that is lost already, and that nobody has heard of, counts as well
            loads = name in self._waiting_loads
            self._drop(name, tracked)
            if ending:
                self._end(name, ending)
            elif loads or state is Request.RUNNING:
                preempted.append(name)
        return preempted

    def _most_loaded(self, row: int) -> int | None:
        """How many tokens a load of a request may bring; None: as many as there are."""
        return self.policies.max_load_tokens

    def _is_last_step(self) -> bool:
        """Whether at least one request is tracked, all that are tracked are over, and copies are then to be waited for.

        A request is tracked until its last job is over (vLLM's change 42611; "no request is tracked" would never flush).
        """
        if self.policies.last_step is not LastStep.FLUSH:
            return False
        return len(self._ending) == len(self._requests) and bool(self._ending or self._ended)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _touch(self, tracked: Tracked, tokens: int) -> None:
        """Note a use of what a prefix of so many tokens reads: all of it in full groups, the window in the others."""
        slots: list[int] = []
        for group in self._groups:
            tokens_each = self.geometry.chunk_tokens[group]
            stop = tokens // tokens_each
            full = isinstance(self.geometry.groups[group], FullAttention)
            window = self.geometry.window_chunks[group]
            start = 0 if full or window is None else max(0, stop - window)
            size, index = self.geometry.blocks_per_chunk, self.ledger.slots.index[group]
            if stop <= start:
                continue
            keys = _keys_of(tracked, group, start * size, stop * size)[size - 1 :: size]
            slots += [slot for slot in map(index.get, reversed(keys)) if slot is not None]
        if slots:
            self.tier.touch(slots)

    def _unpin(self, name: str) -> None:
        if slots := self._pinned.pop(name, None):
            self.ledger.unpin(f"lookup {name}", slots)

    def _tracked(self, name: str) -> Tracked:
        try:
            found = self._requests.get(name)
        except TypeError:  # not even hashable
            found = None
        if found is None:
            edge.text(name, "name")
            raise MisuseError(f"request {name}: it is not known (add_request first, and nothing after its end)")
        return found

    def _check_open(self, *, awake: bool = True) -> None:
        """Refuse what belongs to a step that cannot be made now."""
        if len(self._plans) > self.policies.plans_ahead:
            plan = next(iter(self._plans))
            raise MisuseError(f"plan {plan} is not settled (settle it first; plans_ahead={self.policies.plans_ahead})")
        if awake and self._asleep:
            raise MisuseError("the scheduler sleeps (wake it first)")

    def _check_no_drafts(self, rows: Rows) -> None:
        """A state cannot step back: beyond the known tokens it takes in only what a plan that is out is about to sample."""
        table = self._progress
        begins = table.computed[rows] + table.in_flight[rows]
        # a plan that reaches the last known token samples one more, so that behind it one step may go one token further
        most = np.maximum(table.known[rows], begins + (table.in_flight[rows] > 0))
        wrong = (begins + table.wanted[rows] > most).nonzero()[0]
        if len(wrong):
            row, end = int(rows[wrong[0]]), int(most[wrong[0]])
            table.wanted[rows] = 0
            self._refuse_drafts(self._names[row], int(table.known[row]), end)

    def _refuse_drafts(self, name: str, known: int, most: int) -> NoReturn:
        raise MisuseError(
            f"request {name}: a Mamba state cannot be taken back, so that at most {most - known} tokens beyond the known "
            f"{known} can be scheduled (one for each plan that is out and samples it)"
        )

    def _check_waiting(self, name: str, what: str) -> None:
        state = self.ledger.request_state(name)
        if state not in (Request.WAITING, Request.PREEMPTED):
            remedy = "its load must end first" if state is Request.LOADING else "grow it, or preempt it first"
            raise MisuseError(f"request {name}: cannot {what} while {state.name} ({remedy})")


def _keys_of(tracked: Tracked, group: int, start: int, stop: int) -> Sequence[bytes]:
    """The keys of some blocks, from a function of the engine's."""
    keys = edge.keys(tracked.keys(group, start, stop), "keys")
    if len(keys) < stop - start:
        raise MisuseError(f"keys of blocks {start} to {stop} of group {group}: {len(keys)} were given (one for each block)")
    return keys


def _check_fit(ledger: Ledger, geometry: Geometry, policies: Policies) -> None:
    """Refuse what cannot work together, with the two numbers that do not fit."""
    if len(geometry.groups) != ledger.limits.num_groups:
        raise MisuseError(
            f"{len(geometry.groups)} groups do not fit a ledger of num_groups={ledger.limits.num_groups} (make them equal)"
        )
    if policies.plans_ahead >= ledger.limits.max_plans:
        raise MisuseError(
            f"plans_ahead={policies.plans_ahead} does not fit a ledger of max_plans={ledger.limits.max_plans} (it must be less)"
        )
    if policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN:
        for number, group in enumerate(geometry.groups):
            if isinstance(group, Mamba):
                raise MisuseError(f"group {number} ({group}): a state cannot step back by one token (use DROP_LAST_BLOCK)")
