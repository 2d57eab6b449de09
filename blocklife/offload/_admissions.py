"""How a request enters the batch: what it waits for, the blocks that its hit and its load get, and what they bring.

A change goes to the ledger first and is noted here afterwards, so that a refusal leaves both unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from blocklife.core._progress import Span
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Contract
from blocklife.ledger._refusals import counted, some
from blocklife.ledger.views import block_of
from blocklife.offload._state import SchedulerState, Tracked
from blocklife.offload.records import Hit
from blocklife.states import Block, Trait, states_with

_FREE = states_with(Trait.FREE, Block)


class Admissions:
    """What admits the requests of one scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self._state, self._ledger, self._rows = state, state.ledger, state.rows
        self._blocks = state.ledger.blocks
        self._geometry, self._policies = state.geometry, state.policies
        self._progress, self._stays = state.progress, state.stays

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

    def end_load(self, name: str) -> None:
        """Forget the load of a request, planned or only expected."""
        self._state.waiting_loads.pop(name, None)
        loading = self._state.loading
        for content in self._state.bringing.pop(name, ()):
            if loading.get(content) == name:
                del loading[content]

    def enter(self, name: str, tracked: Tracked, hit: Hit, tokens: int | None) -> None:
        """Set up an admitted request; with None for *tokens* it does not run yet."""
        row, table = tracked.row, self._progress
        if name in self._state.pinned:
            self._state.unpin(name)
        for group, lives in enumerate(hit.lives):
            self._state.device_hits[group] += len(lives)
        self._rows.begin_tables(table, row, hit.tokens)
        table.step[row] = table.making
        self._stays.admitted(row, hit.tokens > hit.device_tokens)
        if hit.tokens > hit.device_tokens:
            self._state.waiting_loads[name] = hit
        else:
            self._ledger.admit(name)
        if tokens is None:
            return
        table.run(row, hit.compute_from)
        table.wanted[row] = tokens

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
