"""The building blocks of the offload scheduler's calls.

Rules of this file:

* `_scheduler.py` and `_decided.py` have the calls of an engine and refuse a wrong order; the work is done here.
* A change goes to the ledger first and is noted here afterwards, so that a refusal leaves both unchanged.
* A call asks the engine's key functions for all that it needs (the functions that begin with ``ask_``) before it changes
  anything: an error in them leaves everything as it was. What they have answered is kept until the next call begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NoReturn, Protocol, TypeAlias

from attrs import evolve

from blocklife.core._progress import PlanTokens, Span
from blocklife.core._tables import ENDLESS
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Contract
from blocklife.ledger import _edge as edge
from blocklife.ledger._ids import NULL
from blocklife.ledger._refusals import counted, some
from blocklife.ledger._rows import SealedContent
from blocklife.ledger.jobs import Allocated, Batch, GroupTransfer
from blocklife.ledger.views import block_of
from blocklife.offload._groups import FullAttention, Mamba
from blocklife.offload._state import SchedulerState, Tracked
from blocklife.offload._stores import Chunk, Filled
from blocklife.offload.records import Hit, LastStep
from blocklife.states import ADMISSIBLE, KEYED, Block, Request, Trait, states_with

_BYTES = frozenset({bytes})
_FREE = states_with(Trait.FREE, Block)

Content: TypeAlias = tuple[Span, list[int], Sequence[bytes]]
"""Neighbouring blocks of one request, their lives and their keys."""


class StorePlanner(Protocol):
    """A replacement for the choice of stores in a step, from the chunks that requests fill and those that wait."""

    def plan_stores(self, rows: list[int]) -> None:
        """Choose, and plan the stores."""


class SchedulerSteps:
    """The building blocks of one scheduler. With its own *planner*, an engine chooses itself what a step stores."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._ledger, self._rows = state.ledger, state.rows
        self._geometry = state.geometry
        self._policies = state.policies
        self._progress = state.progress
        self._stores = state.stores
        self._drafts = any(state.geometry.drafters)
        self._keeps_one = [isinstance(group, Mamba) for group in state.geometry.groups]
        self.planner: StorePlanner | None = None

    # --- letting in ---------------------------------------------------------------------------------------------------------

    def take_in(self, name: str, hit: Hit, end: int) -> None:
        """Fill the empty tables: nulls outside the window, the device hit, then blocks for the load or the first tokens."""
        ledger = self._ledger
        fresh = 0
        plans = []
        for group in self._state.groups:
            stop = -(-end // self._geometry.block_tokens[group])
            lives = list(hit.lives[group])
            mamba = isinstance(self._geometry.groups[group], Mamba)
            begin = self.load_start(group, hit) - len(lives)
            # in a Mamba group only the state at the end has a block, and those of drafts have
            skip = max(0, stop - self._progress.most_states - (begin + len(lives))) if mamba else 0
            count = max(0, stop - begin - len(lives) - skip)
            plans.append((group, begin, lives, skip, count))
            fresh += count
        total = len(ledger.blocks) - 1
        if (wanted := fresh + sum(map(len, hit.lives))) > total:
            raise CapacityError(
                f"request {name}: {counted(wanted, 'block')} wanted, and the device has {total} "
                "(it never fits: refuse the request)"
            )
        cold = copied = 0
        for _, _, lives, _, _ in plans:
            for life in lives:
                place = block_of(life)
                if (state := ledger.blocks.of(life)) is None:
                    raise CapacityError(f"request {name}: block {place} of its hit was handed out meanwhile (look it up again)")
                if ledger.blocks.refs(place) == 0:
                    cold += state in _FREE
                    copied += state not in _FREE
        # waiting for a copy is worth it only if no other request makes progress
        alone = ledger.contract is Contract.FENCE and not (self._progress.active or self._state.waiting_loads)
        short = fresh + cold - ledger.blocks.free
        if short > 0 and not (alone and short <= ledger.statistics().freeing_soon - copied):
            raise CapacityError(
                f"request {name}: {counted(fresh + cold, 'block')} wanted, {cold} of them for its hit, and "
                f"{some(ledger.blocks.free)} free (preempt a request, or wait for a copy to land)"
            )
        for group, begin, lives, _, _ in plans:  # all hits first, so that no hand-out takes one of them
            if begin:
                ledger.skip(name, begin, group)
            if lives:
                ledger.acquire(name, lives, group)
        for group, _, _, skip, count in plans:
            if skip:
                ledger.skip(name, skip, group)
            if count:
                ledger.allocate(name, count, group)

    def note_placed(self, name: str, row: int) -> None:
        for group in self._state.groups:
            self._progress.placed[group * self._progress.size + row] = self._ledger.requests.size(name, group)

    def check_placed(self, rows: Sequence[int], ends: Sequence[int]) -> None:
        """Refuse requests whose tables do not hold the tokens before *ends*."""
        table = self._progress
        for group in self._state.groups:
            if (at := table.missing(rows, group, ends)) >= 0:
                row, end = rows[at], ends[at]
                needed = -(-end // self._geometry.block_tokens[group])
                raise MisuseError(
                    f"request {self._state.names[row]}: group {group} has {table.placed[group * table.size + row]} places, "
                    f"and the tokens before {end} need {needed} (place them first)"
                )

    def load_hit(self, name: str, tracked: Tracked, hit: Hit) -> None:
        """Plan the one load of all groups, into the blocks after the device hit."""
        transfers: list[GroupTransfer[Allocated]] = []
        brought = list(self.brought(tracked, hit))
        size = self._geometry.blocks_per_chunk
        for group in self._state.groups:
            slots = hit.slots[group]
            if not slots:
                continue
            start, stop = self.load_start(group, hit), hit.tokens // self._geometry.block_tokens[group]
            chunk = start // size
            names = list(self.keys_of(tracked, group, start, stop))
            if tail := self._tail_of(tracked, group, hit):
                stop += 1
                names.append(tail)
            lives = self._ledger.requests.held(name, group, start, stop)
            keys = names[(chunk + 1) * size - 1 - start :: size]
            places = [slots[at // size - chunk] * size + at % size for at in range(start, stop)] if size > 1 else None
            transfers.append(GroupTransfer(Batch(lives, group), list(slots), keys, places, names))
        self._ledger.plan_group_load(name, transfers, within=hit.within)
        for transfer in transfers:
            self._state.host_hits[transfer.blocks.group] += len(transfer.blocks)
        self.expect(name, brought)

    def _tail_of(self, tracked: Tracked, group: int, hit: Hit) -> bytes | None:
        """The key of the tail that a hit ends with in one group; None if it ends with a block."""
        ends_inside = hit.tokens % self._geometry.block_tokens[group]
        return self.tail_key_of(tracked, group, hit.tokens) if ends_inside else None

    def expect(self, name: str, contents: Iterable[tuple[int, bytes]]) -> None:
        """Note that a load of a request brings these, so that no other request loads them."""
        own = self._state.bringing.setdefault(name, [])
        for content in contents:
            own.append(content)
            self._state.loading[content] = name

    def brought(self, tracked: Tracked, hit: Hit) -> Iterator[tuple[int, bytes]]:
        """The whole blocks that a load of this hit brings, by group and key; nobody else can hit its tail on the device."""
        for group in self._state.groups:
            if hit.slots[group]:
                start, stop = self.load_start(group, hit), hit.tokens // self._geometry.block_tokens[group]
                for key in self.keys_of(tracked, group, start, stop):
                    yield group, key

    def load_start(self, group: int, hit: Hit) -> int:
        """The first block that a load of one group fills."""
        first = self._geometry.needed(group, hit.compute_from).start
        return max(first, hit.device_tokens // self._geometry.block_tokens[group])

    def enter(self, name: str, tracked: Tracked, hit: Hit, tokens: int) -> None:
        """Set up an admitted request; without *tokens* it does not run yet."""
        row, table = tracked.row, self._progress
        if name in self._state.pinned:
            self.unpin(name)
        for group in self._state.groups:
            self._state.device_hits[group] += len(hit.lives[group]) if hit.lives else 0
            held = self._ledger.requests.held(name, group)
            first = next((position for position, life in enumerate(held) if life != NULL), len(held))
            offered, sealed = first // self._geometry.blocks_per_chunk, hit.tokens // self._geometry.block_tokens[group]
            table.begin(row, group, len(held), first, offered, sealed)
        table.step[row] = table.making
        tracked.until = tracked.below_until = None
        if hit.tokens > hit.device_tokens:
            self._state.waiting_loads[name] = hit
        else:
            self._ledger.admit(name)
        if not tokens:
            return
        table.run(row, hit.compute_from)
        table.wanted[row] = tokens

    # --- loads within a step ------------------------------------------------------------------------------------------------

    def within_budget(self, name: str, hit: Hit, known: int) -> Hit:
        """The same hit with ``within`` set, if what it loads fits into what this step may wait for.

        A request that would compute nothing in this step gains nothing; the engine may copy a state before the load; and behind
        a tail the request writes into a block of the load itself, which begins another life only when the load has landed.
        """
        taken, most = self._state.within, self._policies.load_within_tokens
        inside = hit.tokens % self._geometry.block_alignment
        if inside or self._state.has_states or hit.tokens >= known or sum(taken.values()) + hit.host_tokens > most:
            return hit
        taken[name] = hit.host_tokens
        return evolve(hit, within=True)

    def in_doubt(self) -> list[int]:
        """The rows of requests that run behind a load within a step whose plan has not settled.

        What they compute counts only if the load is done: it is neither sealed nor stored before. Without
        `Policies.load_within_tokens` there are no such requests, and callers skip this call.
        """
        running, requests = self._progress.running, self._state.requests
        rows = [requests[name].row for name in self._state.waiting_loads]
        return [row for row in rows if running[row]]

    # --- waiting ----------------------------------------------------------------------------------------------------------

    def waits_on(self, tracked: Tracked) -> bool:
        """Whether a deferred lookup need not be made again: what it waits for is not final on the device, and it may wait."""
        return self._lasts(tracked.until) and (tracked.awaits is None or self._ledger.blocks.find(*tracked.awaits) is None)

    def may_wait(self, tracked: Tracked) -> bool:
        """Whether a request may wait for content on its way, from its first deferred lookup on; if not, it never does again."""
        if tracked.until is None:
            tracked.until = self._state.now + self._policies.pending_wait
        if self._lasts(tracked.until):
            return True
        if tracked.until > -inf:
            tracked.until = -inf
            self._state.counts["overdue"] += 1
        return False

    def _lasts(self, until: float | None) -> bool:
        """Whether a wait until then is not over; None: it has not begun."""
        return until is None or self._state.now < until

    # --- the tier below ---------------------------------------------------------------------------------------------------

    def may_wait_below(self, tracked: Tracked) -> bool:
        """Whether a lookup may count on the tier below: there is one, and the request has not waited too long."""
        return self._state.below is not None and self._lasts(tracked.below_until)

    def give_up_below(self, tracked: Tracked) -> None:
        """A request has waited too long for the tier below: from now on it goes on without."""
        below = self._state.below
        if below is not None and tracked.below_until is not None and tracked.below_until > -inf:
            tracked.below_until = -inf
            below.gave_up()

    def fetch_below(self, tracked: Tracked) -> bool:
        """Fetch what the last search lacks in the host tier; False if the request goes on without."""
        below, state = self._state.below, self._state
        if below is None:
            return False
        if tracked.below_until is None:
            tracked.below_until = state.now + below.policies.max_wait
        search = state.search
        if below.promote(search.wanted, search.present, tracked.fetched, len(state.pinned)):
            return True
        tracked.below_until = -inf
        return False

    # --- growing ------------------------------------------------------------------------------------------------------------

    def schedule(self, wanted: Mapping[int, int]) -> list[int]:
        """Schedule all running requests that are not scheduled yet: one token each, or as in *wanted*.

        If the ledger owns the pool, their blocks are taken and given back; returns the rows without room, which are not
        scheduled then. Otherwise their tables must hold the tokens. If it is refused, nobody is scheduled.
        """
        table = self._progress
        short: list[int] = []
        for row, count in wanted.items():
            if count != 1:
                table.speak_up(row)
        rows = table.propose()
        try:
            for row, count in wanted.items():
                if not table.silent[row]:
                    table.wanted[row] = count
            if self._state.has_states:
                self.check_no_drafts(rows)
            looked = sorted([*rows, *due]) if (due := table.due_now()) else rows
            if self._ledger.own_pool:
                self.leave_windows(looked)
                short = self.make_room(looked, list(wanted))
            elif lacking := sorted({row for _, row, _, _ in table.lacking(looked) if table.wanted_of(row)}):
                self.check_placed(lacking, [table.end_of(row) for row in lacking])
        except BaseException:
            table.withdraw(rows)
            raise
        table.schedule(rows)
        for row in short:
            table.call_off(row)
        return short

    def leave_windows(self, rows: list[int]) -> None:
        """Release blocks that no settled token needs any more; tokens in flight can still be taken back."""
        if spans := self._progress.leaving(rows):
            self._rows.leave_spans(self._progress, spans)

    def make_room(self, rows: list[int], order: Sequence[int]) -> list[int]:
        """Allocate the missing blocks of these requests, at once or one after the other. Returns the rows without room."""
        spans = self._progress.lacking(rows)
        if not spans:
            return []
        if self._blocks_of(spans) <= self._ledger.blocks.free:
            self._rows.grow(self._progress, spans)
            return []
        by_row: dict[int, list[Span]] = {}
        for span in sorted(spans, key=_row_of):
            by_row.setdefault(span[1], []).append(span)
        first = dict.fromkeys([row for row in order if row in by_row])
        queue = [*first, *[row for row in by_row if row not in first]]
        for at, row in enumerate(queue):
            # all groups or none: the place of a state depends on where the step ends, and the next one may end elsewhere
            if not self._ledger.has_room(self._blocks_of(by_row[row])):
                return queue[at:]
            self._rows.grow(self._progress, by_row[row])
        return []

    def _blocks_of(self, spans: Sequence[Span]) -> int:
        """The number of blocks for some entries of tables."""
        return sum([self._progress.blocks_of(group, start, stop) for group, _, start, stop in spans])

    # --- offering -----------------------------------------------------------------------------------------------------------

    def plan_stores(self, rows: list[int], spans: list[Span]) -> None:
        """Choose what is stored now, from the chunks that these requests fill, *spans*, and those that wait, and plan it."""
        if self.planner is not None:
            self.planner.plan_stores(rows)
        elif self._state.lost or self._geometry.blocks_per_chunk > 1:
            self.offer_filled(spans)
            self.plan_waiting()
        else:
            self._stores.plan_filled(self.take_filled(spans))

    def plan_waiting(self) -> None:
        """Plan the stores of the queued chunks."""
        if not self._state.lost:
            self._stores.plan()

    def offer_filled(self, spans: Sequence[Span]) -> None:
        """Offer the chunks that this step fills; only requests that cross a boundary are looked at."""
        for group, row, _, stop in spans:
            self.offer_chunks(self._state.names[row], row, group, stop)

    def take_filled(self, spans: list[Span]) -> list[Filled]:
        """The same, if a chunk is one block; marks them as offered."""
        if not spans:
            return []
        names = self._state.names
        found = [(names[span[1]], span[0], lives, keys) for span, lives, keys in self.contents(spans)]
        self._progress.offered_up_to(spans)
        return found

    def contents(self, spans: Sequence[Span]) -> list[Content]:
        """The lives and the keys of some blocks of requests."""
        found: list[Content] = []
        names, tracked, held = self._state.names, self._state.requests, self._ledger.requests.held
        for span in spans:
            group, row, start, stop = span
            name = names[row]
            if name not in self._ledger.requests or len(lives := held(name, group, start, stop)) < stop - start:
                raise self.changed_beside(name)
            found.append((span, lives, self.keys_of(tracked[name], group, start, stop)))
        return found

    def offer(self, name: str, tracked: Tracked, tokens: int) -> None:
        """Offer what a request leaves behind: the chunks of its first *tokens* that have not had their turn."""
        bound = self._progress.bound(tracked.row, tokens)
        for group in self._state.attention:
            chunks = self._progress.full_units(group, tracked.row, bound, self._geometry.chunk_tokens[group])
            if chunks > self._progress.offered[group * self._progress.size + tracked.row]:
                self.offer_chunks(name, tracked.row, group, chunks)
        if name in self._state.states:
            self.cut_states(name, tokens)
            self.offer_states(name, tracked.row)

    def offer_chunks(self, name: str, row: int, group: int, stop: int) -> None:
        self.check_held(name)
        size, table = self._geometry.blocks_per_chunk, self._ledger.requests.held(name, group)
        if len(table) < stop * size:
            raise self.changed_beside(name)
        start = self._progress.offered[group * self._progress.size + row]
        chunks: list[Chunk] = []
        if not self._state.lost:
            keys = self.keys_of(self._state.requests[name], group, start * size, stop * size)
            for chunk in range(start, stop):
                # a hit reads at least the end of a chunk
                if table[(chunk + 1) * size - 1] != NULL:
                    lives = table[chunk * size : (chunk + 1) * size]
                    chunks.append(Chunk(name, group, keys[(chunk - start + 1) * size - 1], lives))
        self._progress.offered_up_to([(group, row, start, stop)])
        self._stores.offer(chunks)

    def offer_tail(self, name: str, tracked: Tracked, tokens: int) -> None:
        """Offer the tail that a request leaves behind in its attention groups: it ends, so nobody writes there any more.

        It ends where states were handed off or, without groups of states, at the last boundary within the first *tokens* that
        leaves room for the proof of a drafter. If the proof ends with the block, the block is stored as any that is full.
        """
        end, size = self._tail_end(tracked, tokens), self._geometry.block_tokens[0]
        if not end or self._state.lost:
            return
        for group in self._state.attention:
            if not (end + self._geometry.tail_proofs[group]) % size:
                continue
            key = self.tail_key_of(tracked, group, end)
            (life,) = self._ledger.requests.held(name, group, end // size, end // size + 1)
            state = self._ledger.blocks.of(life) if life != NULL else None
            if key is None or state is None or (state is not Block.ALLOCATED and state not in KEYED):
                continue  # a block behind a wait has no final content
            if state is Block.ALLOCATED:
                self._ledger.seal(Batch[Allocated]([life], group), [key])
            self._stores.offer([Chunk(name, group, key, [life], tail=True)])

    def _tail_end(self, tracked: Tracked, tokens: int) -> int:
        """Where the tail ends that a request of so many tokens leaves behind; 0 if it leaves none."""
        unit = self._geometry.tail_tokens
        if unit is None or tracked.tails is None:
            return 0
        bound = self._progress.bound(tracked.row, tokens) - max(self._geometry.tail_proofs)
        end = tracked.tail if self._state.has_states else bound - bound % unit
        return end if end <= bound and end % self._geometry.block_tokens[0] else 0

    def offer_states(self, name: str, row: int) -> None:
        """Offer the states of one request that were handed off, as far as their tokens are known; others wait."""
        size, later, chunks = self._geometry.blocks_per_chunk, [], []
        for group, boundary, life in self._state.states[name]:
            if boundary > self._progress.known_of(row):
                later.append((group, boundary, life))  # planned ahead: its last token has not been sampled yet
            elif boundary <= self._progress.bound(row, boundary) and not self._state.lost:
                position = boundary // self._geometry.block_tokens[group] - 1
                (key,) = self.keys_of(self._state.requests[name], group, position, position + 1)
                chunks.append(Chunk(name, group, key, [NULL] * (size - 1) + [life]))
        del self._state.states[name]
        if later:
            self._state.states[name] = later
        self._stores.offer(chunks)

    def cut_states(self, name: str, tokens: int) -> None:
        """Of the states that were handed off and not offered, keep those of the first *tokens*."""
        if name in self._state.states:
            self._state.states[name] = [state for state in self._state.states[name] if state[1] <= tokens]

    # --- settling -----------------------------------------------------------------------------------------------------------

    def advance(self, turn: PlanTokens, sampled: Mapping[str, int]) -> tuple[list[int], list[int], list[int]]:
        """Of the requests that a plan says something of: their rows, and the known and computed tokens once it settles.

        Besides those in its turn these are silent ones that may need attention then.
        """
        table = self._progress
        counts: dict[int, int] = {}
        for name, count in sampled.items():
            if count < 0:
                raise MisuseError(f"request {name}: cannot have sampled {count} tokens")
            row = self._state.requests[name].row
            if count != 1:
                table.speak_up(row)
            counts[row] = count
        if counts and self._state.has_states:
            for row, tokens, serial in zip(turn.rows, turn.tokens, turn.serials, strict=True):
                if row in counts and table.serial[row] == serial:
                    news = 1 if table.computed_of(row) + tokens >= table.known_of(row) else 0
                    self._check_sampled(row, tokens, counts[row], news)
        return table.reach(turn, counts)

    def _check_sampled(self, row: int, tokens: int, count: int, expected: int) -> None:
        """Refuse fewer tokens than expected where a state has taken in what was to be sampled."""
        name = self._state.names[row]
        ahead = self._progress.in_flight_of(row) > tokens
        if ahead and count < expected and not self._state.requests[name].ending:
            raise MisuseError(
                f"request {name}: a Mamba state cannot be taken back, and a plan that is out takes in the token that "
                f"plan {next(iter(self._state.plans))} was to sample (it has sampled 1 at least; preempt the request first)"
            )

    def seals(self, spans: Sequence[Span]) -> list[SealedContent]:
        """The blocks that are full now, by group, with their keys."""
        names, requests = self._state.names, self._state.requests
        keys = [self.keys_of(requests[names[row]], group, start, stop) for group, row, start, stop in spans]
        return [each for each in self._rows.seals_of(self._progress, spans, keys) if each[1]]

    def ask_keys_of_ending(self, turn: PlanTokens, reached: Mapping[int, int]) -> None:
        """`ask_end` for all requests that end with this plan; *reached*: how many tokens each has computed then."""
        state, tokens = self._state, dict(zip(turn.rows, turn.tokens, strict=True))
        for name in sorted(state.ending):
            tracked = state.requests[name]
            if tracked.row in reached and self._progress.in_flight[tracked.row] == tokens[tracked.row]:
                self.ask_end(tracked, reached[tracked.row])

    def state_seals(self, handed: Iterable[tuple[str, int, int, int]], computed: Mapping[int, int]) -> list[SealedContent]:
        """The handed-off states that were reached, by group: a request that has ended may not have got its last token."""
        table = self._progress
        found: dict[int, tuple[list[int], list[bytes]]] = {}
        for name, serial, group, boundary in handed:
            tracked = self._state.requests.get(name)
            row = 0 if tracked is None else tracked.row
            if tracked is None or table.serial[row] != serial or computed.get(row, table.after(row)) < boundary:
                continue
            position = boundary // self._geometry.block_tokens[group] - 1
            lives, keys = found.setdefault(group, ([], []))
            lives += self._ledger.requests.held(name, group, position, position + 1)
            keys += self.keys_of(tracked, group, position, position + 1)
        return [(group, lives, keys) for group, (lives, keys) in found.items()]

    def hear_of_loads(self) -> tuple[list[str], list[str]]:
        """Handle requests whose load is over: they run, or wait again. While no request leaves LOADING there is none."""
        loaded: list[str] = []
        failed: list[str] = []
        if (left := self._ledger.requests.times_left(Request.LOADING)) == self._state.loads_heard:
            return loaded, failed
        table = self._progress
        for name, hit in list(self._state.waiting_loads.items()):
            state = self._ledger.request_state(name)
            if state is Request.LOADING:
                continue
            tracked = self._state.requests[name]
            if state is Request.RUNNING:
                self.end_load(name)
                if not hit.within:  # otherwise it runs since its admission
                    self._write_behind(name, hit)
                    table.run(tracked.row, hit.compute_from)
                loaded.append(name)
            else:
                tracked.failures += 1
                self.drop(name, tracked)
                failed.append(name)
        self._state.loads_heard = left
        return loaded, failed

    def _write_behind(self, name: str, hit: Hit) -> None:
        """A request computes on behind a tail, in the same blocks: the content that was final there is none any more."""
        for group, tokens in enumerate(self._geometry.block_tokens):
            if hit.tokens % tokens:
                self._ledger.reopen(name, hit.tokens // tokens, group)

    def over(self) -> list[str]:
        """Requests that only waited for their plans to settle, and whose plans have."""
        in_flight, state = self._progress.in_flight_of, self._state
        rows = sorted([state.requests[name].row for name in state.ending])
        return [state.names[row] for row in rows if not in_flight(row)]

    # --- ending -------------------------------------------------------------------------------------------------------------

    def end(self, name: str, how: str) -> None:
        """Queue the last stores and release everything; delayed while an outstanding plan still writes for the request."""
        tracked = self.tracked(name)
        self.check_held(name)
        row, table = tracked.row, self._progress
        if not table.in_flight_of(row) and self._ledger.request_state(name) is Request.RUNNING:
            self.ask_end(tracked, table.computed_of(row))
        self._ledger.calls.writes()
        if table.in_flight_of(row):
            tracked.ending = how
            self._state.ending.add(name)
            self.stop_drafting(row)
            table.wanted[row] = 0
            self.cut_states(name, table.begin_of(row))
            return
        self.leave_behind(name, tracked, how)
        self._ledger.finish(name)
        self.leave(name, tracked)

    def end_many(self, names: Sequence[str]) -> None:
        """`end` for requests whose plans have settled. If the engine owns the pool, their blocks are released in one call."""
        if self._ledger.own_pool:
            for name in names:
                self.end(name, self._state.requests[name].ending)
            return
        for name in names:
            tracked = self._state.requests[name]
            self.leave_behind(name, tracked, tracked.ending)
        self._ledger.finish_many(names)
        for name in names:
            self.leave(name, self._state.requests[name])

    def leave_behind(self, name: str, tracked: Tracked, how: str) -> None:
        """Queue the last stores of a request without outstanding plans."""
        if self._ledger.request_state(name) is Request.RUNNING:
            row, table = tracked.row, self._progress
            computed = table.computed_of(row)
            last = computed if how == "abort" else max(table.prompt[row], table.known_of(row) - 1)
            self.stop_drafting(row)
            if self._drafts and (spans := table.finishing([row], [computed])):
                self._rows.seal(self.seals(spans))
                table.sealed_up_to(spans)
            self.offer(name, tracked, min(computed, last))
            if self._geometry.tail_tokens is not None:
                self.offer_tail(name, tracked, min(computed, last))
            if not self._state.lost:
                self._stores.plan([name])
            self.touch_own(tracked, computed)

    def stop_drafting(self, row: int) -> None:
        """A request runs no more, so no draft follows: the last full unit of a group with a drafter is final as well."""
        self._progress.stop(row)
        if self._drafts:
            self._progress.look(row)

    def leave(self, name: str, tracked: Tracked) -> None:
        """Forget a request that has left the ledger."""
        self.drop(name, tracked)
        self._progress.leave(tracked.row)
        del self._state.requests[name], self._state.names[tracked.row]
        self._state.ending.discard(name)
        self._state.preempted.pop(name, None)
        if self._ledger.jobs.serve(name):
            self._state.outlived.add(name)

    def drop(self, name: str, tracked: Tracked) -> None:
        """The request holds nothing any more: forget its progress, and what it waited for."""
        if name in self._state.waiting_loads:
            self._state.given_up += 1
        self.end_load(name)
        self.unpin(name)
        self._state.states.pop(name, None)
        tracked.hit = None
        tracked.tail = 0
        self._progress.clear(tracked.row)

    def end_load(self, name: str) -> None:
        """Forget the load of a request, planned or only expected."""
        self._state.waiting_loads.pop(name, None)
        for content in self._state.bringing.pop(name, ()):
            if self._state.loading.get(content) == name:
                del self._state.loading[content]

    def forget(self, *, drain: bool, host: bool) -> list[str]:
        """All content is gone, that of the host tier only with *host*; requests wait, and pending ends are completed."""
        alive = {name: self._ledger.request_state(name) for name in self._state.requests}
        self._ledger.reset(drain=drain, host=host)
        self._stores.clear()
        preempted = []
        for name, state in alive.items():
            tracked = self._state.requests[name]
            ending, tracked.ending = tracked.ending, ""
            # a load that has failed but was not reported yet counts as well
            loads = name in self._state.waiting_loads
            self.drop(name, tracked)
            if ending:
                self.end(name, ending)
            elif loads or state is Request.RUNNING:
                preempted.append(name)
        return preempted

    def is_last_step(self) -> bool:
        """Whether at least one request is tracked, all that are tracked are over, and copies are then to be waited for.

        A request is tracked until its last job is over (vLLM's change 42611; waiting for "no request is tracked" would never
        flush).
        """
        state = self._state
        if self._policies.last_step is not LastStep.FLUSH:
            return False
        return len(state.ending) == len(state.requests) and bool(state.ending or state.outlived)

    # --- asking -------------------------------------------------------------------------------------------------------------

    def keys_of(self, tracked: Tracked, group: int, start: int, stop: int) -> Sequence[bytes]:
        """The keys of some blocks, from the engine's key function, unless it has answered in this call already."""
        known = self._state.answers.present().keys.get((tracked.row, group))
        if known is not None and known[0] <= start and stop - known[0] <= len(known[1]):
            return known[1][start - known[0] : stop - known[0]]
        keys = tracked.keys(group, start, stop)
        if type(keys) is not list or not _BYTES.issuperset(map(type, keys)):
            keys = edge.keys(keys, "keys")
        if len(keys) < stop - start:
            raise MisuseError(f"keys of blocks {start} to {stop} of group {group}: {len(keys)} were given (one for each block)")
        return keys

    def tail_key_of(self, tracked: Tracked, group: int, end: int) -> bytes | None:
        """The key of a tail that ends at this token, from the engine's functions; None if there is none.

        With layers of a drafter it is that of the prefix with its proof, which may be a whole number of blocks.
        """
        end += self._geometry.tail_proofs[group]
        position, inside = divmod(end, self._geometry.block_tokens[group])
        place, answers = (tracked.row, group, end), self._state.answers.present().tails
        if not inside and place not in answers:
            (answers[place],) = self.keys_of(tracked, group, position - 1, position)
        return self.tail_answer(tracked, group, end)

    def tail_answer(self, tracked: Tracked, group: int, end: int) -> bytes | None:
        """What the engine's function for tails says of a token inside a block; it is asked once in a call."""
        place, answers = (tracked.row, group, end), self._state.answers.present().tails
        if place not in answers:
            key = None if tracked.tails is None else tracked.tails(group, end)
            if key is not None and type(key) is not bytes:
                raise MisuseError(f"the key of the tail of group {group} at token {end} must be bytes or None, not {key!r}")
            answers[place] = key
        return answers[place]

    def ask_keys(self, tracked: Tracked, group: int, start: int, stop: int) -> None:
        """Ask for the keys of some blocks, and keep them for this call."""
        if start < stop:
            self._state.answers.present().keys[tracked.row, group] = start, self.keys_of(tracked, group, start, stop)

    def ask_names(self, tracked: Tracked, known: int) -> list[Sequence[bytes]]:
        """Ask for the keys of all blocks that a hit of a request with *known* tokens may have; fewer may be given."""
        found = self._state.search.names(tracked.keys, known)
        for group, keys in enumerate(found):
            self._state.answers.present().keys[tracked.row, group] = 0, keys
        return found

    def ask_load(self, tracked: Tracked, hit: Hit) -> None:
        """Ask for all keys of the load of a hit."""
        for group, slots in enumerate(hit.slots):
            if slots:
                self.ask_keys(tracked, group, self.load_start(group, hit), hit.tokens // self._geometry.block_tokens[group])
                self._tail_of(tracked, group, hit)

    def ask_filled(self, spans: Iterable[Span]) -> None:
        """Ask for all keys of the chunks that a step fills, and of the states that were handed off."""
        state, size = self._state, self._geometry.blocks_per_chunk
        if state.lost:
            return
        for group, row, start, stop in spans:
            self.ask_keys(state.requests[state.names[row]], group, start * size, stop * size)
        for name in state.states:
            self._ask_states(state.requests[name], name, ENDLESS)

    def ask_offer(self, name: str, tracked: Tracked, tokens: int) -> None:
        """Ask for all keys of what a request leaves behind: chunks of its first *tokens*, and states within them."""
        if self._state.lost:
            return
        bound, size = self._progress.bound(tracked.row, tokens), self._geometry.blocks_per_chunk
        for group in self._state.attention:
            stop = self._progress.full_units(group, tracked.row, bound, self._geometry.chunk_tokens[group])
            self.ask_keys(tracked, group, self._progress.offered[group * self._progress.size + tracked.row] * size, stop * size)
        self._ask_states(tracked, name, tokens)

    def _ask_states(self, tracked: Tracked, name: str, tokens: int) -> None:
        """The same of the states that were handed off within its first *tokens*."""
        known = self._progress.bound(tracked.row, tokens)
        found: dict[int, list[int]] = {}
        for group, boundary, _ in self._state.states.get(name, ()):
            if boundary <= known:
                found.setdefault(group, []).append(boundary // self._geometry.block_tokens[group])
        for group, ends in found.items():
            self.ask_keys(tracked, group, min(ends) - 1, max(ends))

    def ask_end(self, tracked: Tracked, computed: int) -> None:
        """Ask for all keys of what a request leaves behind when it ends with so many *computed* tokens, and of what it used."""
        table, row = self._progress, tracked.row
        for group, size in enumerate(self._geometry.block_tokens):
            if self._keeps_one[group]:
                start = self._used(group, computed).start
            else:
                at = group * table.size + row
                start = min(table.sealed[at], table.offered[at] * self._geometry.blocks_per_chunk)
            for each, boundary, _ in self._state.states.get(self._state.names[row], ()):
                if each == group and boundary <= computed:
                    start = min(start, boundary // size - 1)
            self.ask_keys(tracked, group, start, computed // size)
            if end := self._tail_end(tracked, computed):
                self.tail_key_of(tracked, group, end)

    def _used(self, group: int, tokens: int) -> range:
        """The blocks that a prefix of this length reads in whole chunks: all in full groups, the window in the others."""
        size = self._geometry.blocks_per_chunk
        stop = tokens // self._geometry.chunk_tokens[group]
        full, window = isinstance(self._geometry.groups[group], FullAttention), self._geometry.window_chunks[group]
        start = 0 if full or window is None else max(0, stop - window)
        return range(start * size, stop * size)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def touch(self, tracked: Tracked, tokens: int) -> None:
        """Record a use of the content that a prefix of this length reads, by its keys."""
        slots: list[int] = []
        for group in self._state.groups:
            slots += self._slots_named(tracked, group, self._used(group, tokens))
        if slots:
            self._state.tier.touch(slots)

    def _slots_named(self, tracked: Tracked, group: int, used: range) -> list[int]:
        size = self._geometry.blocks_per_chunk
        keys = self.keys_of(tracked, group, used.start, used.stop)[size - 1 :: size] if used else ()
        return self._ledger.slots.found(group, reversed(keys))

    def touch_own(self, tracked: Tracked, tokens: int) -> None:
        """The same of a request that has it in its tables; states have left them."""
        slots: list[int] = []
        for group in self._state.groups:
            used = self._used(group, tokens)
            if self._keeps_one[group]:
                slots += self._slots_named(tracked, group, used)
            elif used:
                size = self._geometry.blocks_per_chunk
                slots += self._rows.slots_behind(self._progress, group, tracked.row, used.start, used.stop, size)
        if slots:
            self._state.tier.touch(slots)

    def unpin(self, name: str) -> None:
        if slots := self._state.pinned.pop(name, None):
            self._ledger.unpin(f"lookup {name}", slots)

    def tracked(self, name: str) -> Tracked:
        try:
            found = self._state.requests.get(name)
        except TypeError:  # not even hashable
            found = None
        if found is None:
            edge.text(name, "name")
            raise edge.unknown(name)
        return found

    def check_held(self, name: str) -> None:
        """Refuse a call for a request that only the scheduler knows."""
        if name not in self._ledger.requests:
            raise self.changed_beside(name)

    def changed_beside(self, name: str) -> MisuseError:
        """The error for a request that a verb of the ledger has changed, which the scheduler does not hear of."""
        requests = self._ledger.requests
        what, whom = "it was finished", "it"
        if name in requests:
            what, whom = "its blocks were given back", f"them; it is {requests.at(name).name}"
        return MisuseError(
            f"request {name}: {what} beside the scheduler, which still counts on {whom} (call finish, abort, preempt and reset "
            "of the scheduler, not of its ledger)"
        )

    def check_open(self, *, awake: bool = True) -> None:
        """Refuse a call of a step while no step can be made."""
        if len(self._state.plans) > self._policies.plans_ahead:
            plan = next(iter(self._state.plans))
            raise MisuseError(f"plan {plan} is not settled (settle it first; plans_ahead={self._policies.plans_ahead})")
        if awake and self._state.asleep:
            raise MisuseError("the scheduler sleeps (wake it first)")

    def check_no_drafts(self, rows: Sequence[int]) -> None:
        """A state cannot step back: beyond the known tokens it may include only tokens that an outstanding plan will sample.

        Besides these, as many drafts as the policies give states to.
        """
        table = self._progress
        for row in rows:
            # a plan that reaches the last known token samples one more, so the next step may go one token further
            ahead = table.begin_of(row) + (table.in_flight_of(row) > 0)
            most = max(table.known_of(row), ahead) + self._policies.state_drafts
            if table.end_of(row) > most:
                self.refuse_drafts(self._state.names[row], table.known_of(row), most)

    def refuse_drafts(self, name: str, known: int, most: int) -> NoReturn:
        raise MisuseError(
            f"request {name}: a Mamba state cannot be taken back, so that at most {most - known} tokens beyond the known "
            f"{known} can be scheduled (one for each plan that is out and samples it, and state_drafts)"
        )

    def check_waiting(self, name: str, what: str) -> None:
        """Refuse a call for a request that does not wait, or while no step can be made."""
        if self._state.asleep or len(self._state.plans) > self._policies.plans_ahead:
            self.check_open()
        self.check_held(name)
        state = self._ledger.requests.at(name)
        if state not in ADMISSIBLE:
            loads = state is Request.LOADING
            why = (
                "it waits for its load (wait until it has landed)"
                if loads
                else "it is in the batch (grow it, or preempt it first)"
            )
            raise MisuseError(f"request {name}: cannot {what} while {state.name}: {why}")


def _row_of(span: Span) -> int:
    return span[1]
