"""The building blocks of the offload scheduler's calls.

Rules of this file:

* `_scheduler.py` and `_engine_pool.py` have the calls of an engine and refuse a wrong order; the work is done here.
* A change goes to the ledger first and is noted here afterwards, so that a refusal leaves both unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from attrs import evolve

from blocklife.core._progress import EntrySpans, PlanTokens, Span, spans_of
from blocklife.core._steps import StoreTurn
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Contract, Plan
from blocklife.ledger import _edge as edge
from blocklife.ledger._ids import NULL
from blocklife.ledger._refusals import counted, some
from blocklife.ledger._rows import SealedContent
from blocklife.ledger.jobs import Allocated, Batch
from blocklife.ledger.records import Completion, Launched
from blocklife.ledger.views import block_of
from blocklife.offload._asking import Asking
from blocklife.offload._groups import Mamba
from blocklife.offload._state import PlanOut, SchedulerState, Tracked
from blocklife.offload._stores import Chunk
from blocklife.offload.records import Hit, LastStep, Mode, Settled
from blocklife.states import ADMISSIBLE, KEYED, Block, Request, Trait, states_with

_FREE = states_with(Trait.FREE, Block)
_NOBODY_SETTLED = Settled((), (), ())


class SchedulerSteps:
    """The building blocks of one scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._ledger, self._rows = state.ledger, state.rows
        self._blocks, self._jobs, self._own_pool = state.ledger.blocks, state.ledger.jobs, state.ledger.own_pool
        self._geometry = state.geometry
        self._policies = state.policies
        self._progress, self._stays = state.progress, state.stays
        self._stores = state.stores
        self.asking = Asking(state)
        self._calls = state.ledger._calls
        self._drafts = any(state.geometry.drafters)
        self._keeps_one = [isinstance(group, Mamba) for group in state.geometry.groups]
        self.turn = StoreTurn()
        """What is ready to be stored in this step."""
        self.direct = state.geometry.blocks_per_chunk == 1 and state.policies.mode is Mode.EAGER
        """Whether what is ready can be stored at once, without the queue."""
        self._most = min(state.policies.max_job_blocks, len(state.ledger.slots))

    # --- a plan -------------------------------------------------------------------------------------------------------------

    def make_plan(self, now: float) -> Plan:
        """The plan of this step (`OffloadScheduler.build_plan`)."""
        table = self._progress
        rows = table.looked_at()
        doubtful = self.in_doubt() if self._state.waiting_loads and self._policies.load_within_tokens else []
        spans = table.filling([row for row in rows if row not in doubtful] if doubtful else rows)
        keys = self.asking.ask_filled(spans)
        self._calls.writes()
        if self._state.preempted:
            if (jobs := self._jobs.of(*self._state.preempted)).ids:
                self._ledger.flush(jobs, "preempted")
            self._state.preempted.clear()
        self.plan_stores(spans, keys, list(self._state.states))
        if self.is_last_step() and (jobs := self._jobs.submitted(on_device=True)).ids:
            self._ledger.flush(jobs, "last step")
        if self._state.pinned:
            for name in list(self._state.pinned):
                self.unpin(name)
        self._state.now = now
        if self._state.below is not None:
            self._state.below.plan_demotions()
        plan = self._rows.dispatch(now)
        table.depart(doubtful)
        self._state.plans[plan.number] = PlanOut(self._state.handed, self.asking.hand_over())
        self._state.handed = {}
        self._state.within.clear()
        return plan

    def settle(
        self, plan: int, now: float, sampled: Mapping[str, int], launched: Iterable[Launched], completions: Iterable[Completion]
    ) -> Settled:
        """Apply the oldest plan that is out (`OffloadScheduler.settle`)."""
        table = self._progress
        (handed, keys), turn = self._state.plans[plan], table.turns[0]
        rows, known, computed = self.advance(turn, sampled)
        self.asking.recall(keys)
        final = table.finishing(rows, computed)
        seals = self.seals(final) if final else []
        if handed or self._stays.ending:
            reached = dict(zip(rows, computed, strict=True))
            self.asking.ask_keys_of_ending(turn, dict(zip(rows, known, strict=True)), reached)
            seals += self.state_seals(handed, reached)
        # the reports come first: seals of a request whose load has failed are stale by then, and change nothing
        self._rows.settle(plan, now, launched, completions, seals)
        del self._state.plans[plan]
        if self._state.below is not None:
            self._state.below.land()
        loads = bool(self._state.waiting_loads)
        before = [table.known[row] for row in rows] if loads else known
        table.settle(rows, known, computed)
        if final:
            table.sealed_up_to(final)
        loaded, failed = self.hear_of_loads() if loads else ([], [])
        if failed:  # what they have sampled is void
            lost = {self._state.requests[name].row for name in failed}
            for row, tokens in zip(rows, before, strict=True):
                if row in lost:
                    table.known[row] = tokens
        if ended := self.over() if self._stays.ending else []:
            self.end_many(ended)
            loaded = [name for name in loaded if name not in ended]
            failed = [name for name in failed if name not in ended]
        if self._state.outlived:
            self._state.outlived = {name for name in self._state.outlived if self._jobs.serve(name)}
        return Settled(tuple(loaded), tuple(failed), tuple(ended)) if loaded or failed or ended else _NOBODY_SETTLED

    # --- letting in ---------------------------------------------------------------------------------------------------------

    def fill_tables(self, name: str, hit: Hit, starts: Sequence[int], end: int) -> None:
        """Fill the empty tables: nulls outside the window, the device hit, then blocks for the load or the first tokens.

        *starts*: where the blocks begin that come behind the hit, by group.
        """
        begins: list[int] = []
        skips: list[int] = []
        counts: list[int] = []
        for group in self._state.groups:
            lacking = -(-end // self._geometry.block_tokens[group]) - starts[group]
            # in a Mamba group only the state at the end has a block, and those of drafts have
            count = self._progress.blocks_of(group, 0, lacking) if lacking > 0 else 0
            begins.append(starts[group] - len(hit.lives[group]))
            skips.append(max(0, lacking - count))
            counts.append(count)
        self._check_room(name, hit, sum(counts))
        self._rows.fill_tables(name, begins, hit.lives, skips, counts)

    def _check_room(self, name: str, hit: Hit, fresh: int) -> None:
        """Refuse a hit of which a block is gone, and so many *fresh* blocks beside it if there is no room for them."""
        blocks, total, wanted = self._blocks, len(self._blocks) - 1, fresh + sum(map(len, hit.lives))
        if wanted > total:
            raise CapacityError(
                f"request {name}: {counted(wanted, 'block')} wanted, and the device has {total} "
                "(it never fits: refuse the request)"
            )
        cold = copied = 0
        for lives in hit.lives:
            for life in lives:
                place = block_of(life)
                if (state := blocks.of(life)) is None:
                    raise CapacityError(f"request {name}: block {place} of its hit was handed out meanwhile (look it up again)")
                if blocks.refs(place) == 0:
                    cold += state in _FREE
                    copied += state not in _FREE
        short = fresh + cold - blocks.free
        if short <= 0:
            return
        # waiting for a copy is worth it only if no other request makes progress
        alone = self._ledger.contract is Contract.FENCE and not (self._progress.active or self._state.waiting_loads)
        if not alone or short > self._ledger.statistics().freeing_soon - copied:
            raise CapacityError(
                f"request {name}: {counted(fresh + cold, 'block')} wanted, {cold} of them for its hit, and "
                f"{some(blocks.free)} free (preempt a request, or wait for a copy to land)"
            )

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

    def load_hit(self, name: str, hit: Hit, spans: Sequence[Span], keys: Sequence[Sequence[bytes]]) -> None:
        """Plan the one load of all groups, into the blocks after the device hit."""
        slots, size = [own for own in hit.slots if own], self._geometry.blocks_per_chunk
        self._rows.plan_load(self._progress, spans, keys, slots, size, within=hit.within)
        for group, _, start, stop in spans:
            self._state.host_hits[group] += stop - start
        self.expect(name, hit.tokens, spans, keys)

    def expect(self, name: str, tokens: int, spans: Sequence[Span], keys: Sequence[Sequence[bytes]]) -> None:
        """Note that a load brings these blocks, so that no other request loads them. Nobody else can hit its tail there."""
        own, loading = self._state.bringing.setdefault(name, []), self._state.loading
        for (group, _, start, _), names in zip(spans, keys, strict=True):
            for key in names[: max(0, tokens // self._geometry.block_tokens[group] - start)]:
                content = group, key
                own.append(content)
                loading[content] = name

    def enter(self, name: str, tracked: Tracked, hit: Hit, tokens: int) -> None:
        """Set up an admitted request; without *tokens* it does not run yet."""
        row, table = tracked.row, self._progress
        if name in self._state.pinned:
            self.unpin(name)
        for group, lives in enumerate(hit.lives):
            self._state.device_hits[group] += len(lives)
        self._rows.begin_tables(table, row, hit.tokens)
        table.step[row] = table.making
        self._stays.admitted(row, hit.tokens > hit.device_tokens)
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
        lasts = self._stays.waits.lasts(tracked.row, self._state.now)
        return lasts and (tracked.awaits is None or self._blocks.find(*tracked.awaits) is None)

    def may_wait(self, row: int) -> bool:
        """Whether a request may wait for content on its way, from its first deferred lookup on; if not, it never does again."""
        waits, now = self._stays.waits, self._state.now
        waits.begin(row, now + self._policies.pending_wait)
        if waits.lasts(row, now):
            return True
        self._state.counts["overdue"] += waits.give_up(row)
        return False

    # --- the tier below ---------------------------------------------------------------------------------------------------

    def may_wait_below(self, row: int) -> bool:
        """Whether a lookup may count on the tier below: there is one, and the request has not waited too long."""
        return self._state.below is not None and self._stays.waits_below.lasts(row, self._state.now)

    def give_up_below(self, row: int) -> None:
        """A request has waited too long for the tier below: from now on it goes on without."""
        below = self._state.below
        if below is not None and self._stays.waits_below.give_up(row):
            below.gave_up()

    def fetch_below(self, tracked: Tracked) -> bool:
        """Fetch what the last search lacks in the host tier; False if the request goes on without."""
        below, state = self._state.below, self._state
        if below is None:
            return False
        self._stays.waits_below.begin(tracked.row, state.now + below.policies.max_wait)
        search = state.search
        if below.promote(search.wanted, search.present, tracked.fetched, len(state.pinned)):
            return True
        self._stays.waits_below.give_up(tracked.row)
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
            due = table.due_now()
            looked = sorted([*rows, *due]) if rows and due else due or rows
            if self._own_pool:
                self.leave_windows(looked)
                short = self.make_room(looked, list(wanted))
            elif spans := table.lacking(looked):
                lacking = sorted({row for _, row, _, _ in spans.tuples() if table.wanted_of(row)})
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
        if self._blocks_of(spans) <= self._blocks.free:
            self._rows.grow(self._progress, spans)
            return []
        by_row: dict[int, list[Span]] = {}
        for span in sorted(spans.tuples(), key=_row_of):
            by_row.setdefault(span[1], []).append(span)
        first = dict.fromkeys([row for row in order if row in by_row])
        queue = [*first, *[row for row in by_row if row not in first]]
        for at, row in enumerate(queue):
            # all groups or none: the place of a state depends on where the step ends, and the next one may end elsewhere
            own = spans_of(by_row[row])
            if not self._blocks.has_room(self._blocks_of(own)):
                return queue[at:]
            self._rows.grow(self._progress, own)
        return []

    def _blocks_of(self, spans: EntrySpans) -> int:
        """The number of blocks for some entries of tables."""
        total = 0
        for each in range(spans.count):
            total += self._progress.blocks_of(spans.group[each], spans.start[each], spans.stop[each])
        return total

    def hand_off(self, name: str, tracked: Tracked, group: int, boundary: int) -> None:
        """Note that this step leaves a state in the block before a token (`OffloadScheduler.hand_off`)."""
        if not 0 <= group < len(self._keeps_one) or not self._keeps_one[group]:
            raise MisuseError(f"group {group}: only states of Mamba groups are handed off")
        table, block_tokens, row = self._progress, self._geometry.block_tokens[group], tracked.row
        start, end = table.begin_of(row), table.end_of(row)
        scheduled = end > start and table.is_scheduled(row)
        if not scheduled or not start < boundary <= end or boundary % block_tokens:
            reached = f"it computes tokens {start} to {end}" if scheduled else "the request is not scheduled in it"
            raise MisuseError(
                f"request {name}: cannot hand off the state at token {boundary}: it must be a multiple of {block_tokens} that "
                f"this step reaches ({reached})"
            )
        known, ahead = table.known_of(row), table.in_flight_of(row) > 0
        if boundary > known + ahead and self._policies.state_drafts:
            raise MisuseError(
                f"request {name}: cannot hand off the state at token {boundary}: {known} tokens are known, and the others are "
                "drafts, which may be wrong (hand it off when its tokens are known)"
            )
        position = boundary // block_tokens - 1
        lives = self._ledger.requests.table(name, group, position, position + 1)
        if not lives or lives[0] == NULL:
            raise MisuseError(f"request {name}: no block of group {group} was placed for the state at token {boundary}")
        handed = (name, table.serial[row], group, boundary)
        if handed in self._state.handed:
            raise MisuseError(f"request {name}: its state at token {boundary} of group {group} is handed off already")
        self._state.handed[handed] = None
        if boundary % self._geometry.chunk_tokens[group] == 0:
            self._state.states.setdefault(name, []).append((group, boundary, lives[0]))

    # --- offering -----------------------------------------------------------------------------------------------------------

    def plan_stores(self, spans: EntrySpans, keys: Sequence[Sequence[bytes]], handed: Sequence[str]) -> None:
        """Choose what is stored now, from the chunks that a step fills, *spans* with *keys*, and those that wait; plan it.

        *handed*: requests with states that were handed off. These come behind the chunks, which may be refused.

        Where nothing waits, chunks of one block that are ready are stored at once, in few jobs, each for all requests whose
        blocks it moves. If the host tier has no room for all of them, they wait as well, in the order of their requests. Of
        blocks with the same content one is stored, where an engine decides first; elsewhere the others are stored as well,
        because the content would be missing if the store of the first failed.
        """
        line, turn, lost = self._stores, self.turn, self._state.lost
        line.requeue()
        try:
            # first, because it may be refused
            all_taken = self.direct and not lost and self.collect_ready(spans, keys)
            for name in handed:
                self.offer_states(name, self._state.requests[name].row, direct=self.direct and not line.waits)
            if not all_taken and (self.asking.known_of is None or not self.direct):
                self.offer_filled(spans)
            names = self._rows.names_left(self._progress, turn) if turn.count else []
            if names and (line.waits or not self._store(names)):
                line.offer(self._chunks(names))
            if turn.twins and self.asking.known_of is None:
                line.offer(self._twins())
        finally:
            self._rows.end_turn(turn)
        if line.is_busy and not lost:
            line.plan()
        if turn.stored or turn.in_flight:
            line.counts["already stored"] += turn.stored
            line.counts["in flight"] += turn.in_flight
            turn.stored = turn.in_flight = 0

    def collect_ready(self, spans: EntrySpans, keys: Sequence[Sequence[bytes]]) -> bool:
        """Chunks of one block have their turn, as far as they are ready; returns whether all are."""
        return not spans or self._rows.offer_spans(self._progress, spans, keys, self.turn, self.asking.known_of is None)

    def _store(self, names: Sequence[tuple[int, bytes]]) -> bool:
        """Store what is ready under these names; False, with nothing changed, if there is no room for all of it."""
        if -(-len(names) // self._most) > self._jobs.room or (slots := self._state.tier.reserve(names)) is None:
            return False
        numbers = self._rows.plan_turn(self._progress, self.turn, slots, self._most)
        suffix = self._stores.suffix
        for slot in slots:
            suffix[slot] = 1
        if self.asking.known_of is None:  # they are submitted when their content is final
            owners, lives, most = self.turn.owners(self._state.names), self.turn.lives(), self._most
            for at, number in enumerate(numbers):
                part = slice(at * most, (at + 1) * most)
                self._stores.await_submit(number, (owners[part], names[part], lives[part]))
        return True

    def _chunks(self, names: Sequence[tuple[int, bytes]]) -> list[Chunk]:
        """What is ready as chunks with these names."""
        owners, lives = self.turn.owners(self._state.names), self.turn.lives()
        return [Chunk(owner, group, key, [life]) for owner, (group, key), life in zip(owners, names, lives, strict=True)]

    def _twins(self) -> list[Chunk]:
        """What is ready in other blocks with the same content."""
        return [
            Chunk(self._state.names[row], group, key, [life])
            for (group, row, life, _), key in zip(self.turn.twins, self._rows.keys_of_twins(self.turn), strict=True)
        ]

    def offer_filled(self, spans: EntrySpans) -> None:
        """Offer the chunks that this step fills and that have not had their turn; only who crosses a boundary is looked at."""
        for each in range(spans.count):
            group, row, stop = spans.group[each], spans.row[each], spans.stop[each]
            if self._progress.offered[group * self._progress.size + row] < stop:
                self.offer_chunks(self._state.names[row], row, group, stop, every=True)

    def offer(self, name: str, tracked: Tracked, tokens: int, *, at_once: bool = False) -> None:
        """Offer what a request leaves behind: the chunks of its first *tokens* that have not had their turn.

        *at_once*: the line is planned right behind this call. Then what is stored already would be dropped there.
        """
        bound = self._progress.bound(tracked.row, tokens)
        every = not at_once or self._policies.mode is Mode.LAZY or not self._jobs.room
        for group in self._state.attention:
            chunks = self._progress.full_units(group, tracked.row, bound, self._geometry.chunk_tokens[group])
            if chunks > self._progress.offered[group * self._progress.size + tracked.row]:
                self.offer_chunks(name, tracked.row, group, chunks, every=every)
        if name in self._state.states:
            self.cut_states(name, tokens)
            self.offer_states(name, tracked.row, direct=False)

    def offer_chunks(self, name: str, row: int, group: int, stop: int, *, every: bool) -> None:
        """Offer the chunks of a group before *stop* that have not had their turn: *every* one, or those that are not stored."""
        size, start = self._geometry.blocks_per_chunk, self._progress.offered[group * self._progress.size + row]
        chunks: list[Chunk] = []
        if not self._state.lost:
            keys = self.asking.keys_of(self._state.requests[name], group, start * size, stop * size)
            ends = keys[size - 1 :: size] if size > 1 else keys
            found, stored = self._rows.unstored(self._progress, group, row, start, stop, size, ends, every=every)
            chunks = [Chunk(name, group, ends[at], lives) for at, lives in found]
            if stored:
                self._stores.counts["already stored"] += stored
        self._progress.offer_up_to(group, row, stop)
        self._stores.offer(chunks)

    def offer_tail(self, name: str, tracked: Tracked, tokens: int) -> None:
        """Offer the tail that a request leaves behind in its attention groups: it ends, so nobody writes there any more.

        It ends where states were handed off or, without groups of states, at the last boundary within the first *tokens* that
        leaves room for the proof of a drafter. If the proof ends with the block, the block is stored as any that is full.
        """
        end, size = self.asking.tail_end(tracked, tokens), self._geometry.block_tokens[0]
        if not end or self._state.lost:
            return
        for group in self._state.attention:
            if not (end + self._geometry.tail_proofs[group]) % size:
                continue
            key = self.asking.tail_key_of(tracked, group, end)
            (life,) = self._ledger.requests.table(name, group, end // size, end // size + 1)
            state = self._blocks.of(life) if life != NULL else None
            if key is None or state is None or (state is not Block.ALLOCATED and state not in KEYED):
                continue  # a block behind a wait has no final content
            if state is Block.ALLOCATED:
                self._ledger.seal(Batch[Allocated]([life], group), [key])
            self._stores.offer([Chunk(name, group, key, [life], tail=True)])

    def offer_states(self, name: str, row: int, *, direct: bool) -> None:
        """Offer the states of one request that were handed off, as far as their tokens are known; others wait.

        *direct*: those that are ready have their turn at once.
        """
        size, later, chunks, early = self._geometry.blocks_per_chunk, [], [], self.asking.known_of is None
        for group, boundary, life in self._state.states[name]:
            if boundary > self._progress.known_of(row):
                later.append((group, boundary, life))  # planned ahead: its last token has not been sampled yet
            elif boundary <= self._progress.bound(row, boundary) and not self._state.lost:
                position = boundary // self._geometry.block_tokens[group] - 1
                (key,) = self.asking.keys_of(self._state.requests[name], group, position, position + 1)
                if not (direct and self._rows.offer_life(group, row, life, key, self.turn, early)):
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
        if ahead and count < expected and not self._stays.is_ending(row):
            raise MisuseError(
                f"request {name}: a Mamba state cannot be taken back, and a plan that is out takes in the token that "
                f"plan {next(iter(self._state.plans))} was to sample (it has sampled 1 at least; preempt the request first)"
            )

    def seals(self, spans: EntrySpans) -> list[SealedContent]:
        """The blocks that are full now, by group, with their keys."""
        names, requests = self._state.names, self._state.requests
        keys: list[Sequence[bytes]] = []
        for each in range(spans.count):
            tracked = requests[names[spans.row[each]]]
            keys.append(self.asking.keys_of(tracked, spans.group[each], spans.start[each], spans.stop[each]))
        return [found for found in self._rows.seals_of(self._progress, spans, keys) if found[1]]

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
            (life,) = self._ledger.requests.table(name, group, position, position + 1)
            if life != NULL:  # the engine's allocator may have taken the block back
                lives, keys = found.setdefault(group, ([], []))
                lives.append(life)
                keys += self.asking.keys_of(tracked, group, position, position + 1)
        return [(group, lives, keys) for group, (lives, keys) in found.items()]

    def hear_of_loads(self) -> tuple[list[str], list[str]]:
        """Handle requests whose load is over: they run, or wait again. While no request leaves LOADING there is none."""
        loaded: list[str] = []
        failed: list[str] = []
        if (left := self._ledger.requests.times_left(Request.LOADING)) == self._state.loads_heard:
            return loaded, failed
        table = self._progress
        for name, hit in list(self._state.waiting_loads.items()):
            state = self._ledger.requests.state(name)
            if state is Request.LOADING:
                continue
            tracked = self._state.requests[name]
            if state is Request.RUNNING:
                self.end_load(name)
                self._stays.landed(tracked.row)
                if not hit.within:  # otherwise it runs since its admission
                    if hit.tokens % self._geometry.block_alignment:
                        self._write_behind(name, hit)
                    table.run(tracked.row, hit.compute_from)
                loaded.append(name)
            else:
                self.load_failed(name, tracked)
                failed.append(name)
        self._state.loads_heard = left
        return loaded, failed

    def load_failed(self, name: str, tracked: Tracked) -> None:
        """The load of a request has failed: it holds nothing, and waits again."""
        tracked.failures += 1
        self.drop(name, tracked)

    def _write_behind(self, name: str, hit: Hit) -> None:
        """A request computes on behind a tail, in the same blocks: the content that was final there is none any more."""
        for group, tokens in enumerate(self._geometry.block_tokens):
            if hit.tokens % tokens:
                self._rows.reopen(name, hit.tokens // tokens, group)

    def over(self) -> list[str]:
        """Requests that only waited for their plans to settle, and whose plans have."""
        in_flight, state = self._progress.in_flight_of, self._state
        return [state.names[row] for row in sorted(self._stays.ending) if not in_flight(row)]

    # --- ending -------------------------------------------------------------------------------------------------------------

    def end(self, name: str, *, early: bool) -> None:
        """Queue the last stores and release everything; delayed while an outstanding plan still writes for the request."""
        tracked = self.tracked(name)
        self.check_held(name)
        row, table = tracked.row, self._progress
        if not table.in_flight_of(row) and self._ledger.requests.state(name) is Request.RUNNING:
            self.asking.ask_end(tracked, table.computed_of(row), table.known_of(row), early=early)
        self._calls.writes()
        if table.in_flight_of(row):
            self._stays.ended(row, early=early, computes=True)
            self.stop_drafting(row)
            table.wanted[row] = 0
            self.cut_states(name, table.begin_of(row))
            return
        self.leave_behind(name, tracked, early=early)
        self._ledger.finish(name)
        self.leave(name, tracked, early=early)

    def end_many(self, names: Sequence[str]) -> None:
        """`end` for requests whose plans have settled. If the engine owns the pool, their blocks are released in one call."""
        if self._own_pool:
            for name in names:
                self.end(name, early=self._stays.is_aborted(self._state.requests[name].row))
            return
        for name in names:
            tracked = self._state.requests[name]
            self.leave_behind(name, tracked, early=self._stays.is_aborted(tracked.row))
        self._rows.finish_many(names)
        for name in names:
            tracked = self._state.requests[name]
            self.leave(name, tracked, early=self._stays.is_aborted(tracked.row))

    def leave_behind(self, name: str, tracked: Tracked, *, early: bool) -> None:
        """Queue the last stores of a request without outstanding plans."""
        if self._ledger.requests.state(name) is Request.RUNNING:
            row, table = tracked.row, self._progress
            computed = table.computed_of(row)
            last = self.asking.last(tracked, computed, table.known_of(row), early=early)
            self.stop_drafting(row)
            if self._drafts and (spans := table.finishing([row], [computed])):
                self._rows.seal(self.seals(spans))
                table.sealed_up_to(spans)
            self.offer(name, tracked, last, at_once=not self._state.lost)
            if self._geometry.tail_tokens is not None:
                self.offer_tail(name, tracked, last)
            if not self._state.lost:
                self._stores.plan([name])
            self.touch_own(tracked, computed)

    def stop_drafting(self, row: int) -> None:
        """A request runs no more, so no draft follows: the last full unit of a group with a drafter is final as well."""
        self._progress.stop(row)
        if self._drafts:
            self._progress.look(row)

    def leave(self, name: str, tracked: Tracked, *, early: bool) -> None:
        """Forget a request that has left the ledger."""
        self.drop(name, tracked)
        self._stays.ended(tracked.row, early=early, computes=False)
        self._progress.leave(tracked.row)
        del self._state.requests[name], self._state.names[tracked.row]
        self._state.preempted.pop(name, None)
        if self._jobs.serve(name):
            self._state.outlived.add(name)

    def drop(self, name: str, tracked: Tracked) -> None:
        """The request holds nothing any more: forget its progress, and what it waited for."""
        if name in self._state.waiting_loads:
            self._state.given_up += 1
        self.end_load(name)
        self.unpin(name)
        self._state.states.pop(name, None)
        self._stays.emptied(tracked.row)
        tracked.hit = None
        tracked.tail = 0
        self._progress.clear(tracked.row)

    def end_load(self, name: str) -> None:
        """Forget the load of a request, planned or only expected."""
        self._state.waiting_loads.pop(name, None)
        loading = self._state.loading
        for content in self._state.bringing.pop(name, ()):
            if loading.get(content) == name:
                del loading[content]

    def reset(self, *, drain: bool, host: bool) -> list[str]:
        """All content is gone, that of the host tier only with *host*; requests wait, and pending ends are completed."""
        alive = {name: self._ledger.requests.state(name) for name in self._state.requests}
        self._ledger.reset(drain=drain, host=host)
        self._stores.clear()
        preempted = []
        for name, state in alive.items():
            tracked = self._state.requests[name]
            ending = self._stays.is_ending(tracked.row)
            # a load that has failed but was not reported yet counts as well
            loads = name in self._state.waiting_loads
            self.drop(name, tracked)
            if ending:
                self.end(name, early=self._stays.is_aborted(tracked.row))
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
        ending = self._stays.ending
        return len(ending) == len(state.requests) and bool(ending or state.outlived)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def touch(self, tracked: Tracked, tokens: int) -> None:
        """Record a use of the content that a prefix of this length reads, by its keys."""
        slots: list[int] = []
        for group in self._state.groups:
            slots += self._slots_named(tracked, group, self.asking.used(group, tokens))
        if slots:
            self._state.tier.touch(slots)

    def _slots_named(self, tracked: Tracked, group: int, used: range) -> list[int]:
        size = self._geometry.blocks_per_chunk
        keys = self.asking.keys_of(tracked, group, used.start, used.stop)[size - 1 :: size] if used else ()
        return self._ledger.slots.found(group, reversed(keys))

    def touch_own(self, tracked: Tracked, tokens: int) -> None:
        """The same of a request that has it in its tables; states have left them."""
        slots: list[int] = []
        for group in self._state.groups:
            used = self.asking.used(group, tokens)
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
            what, whom = "its blocks were given back", f"them; it is {requests.state(name).name}"
        return MisuseError(
            f"request {name}: {what} beside the scheduler, which still counts on {whom} (call finish, abort, preempt and reset "
            "of the scheduler, not of its ledger)"
        )

    def check_open(self, awake: bool = True) -> None:
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
        state = self._ledger.requests.state(name)
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
