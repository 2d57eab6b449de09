"""What requests leave behind: the content that is final and gets its keys, and what of it is offered to the host tier.

A change goes to the ledger first and is noted here afterwards, so that a refusal leaves both unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from blocklife.core._progress import EntrySpans
from blocklife.core._steps import StoreTurn
from blocklife.errors import MisuseError
from blocklife.groups import Mamba
from blocklife.ledger._ids import NULL
from blocklife.ledger._rows import SealedContent
from blocklife.ledger.jobs import Allocated, Batch
from blocklife.offload._asking import Asking
from blocklife.offload._state import SchedulerState, Tracked
from blocklife.offload._stores import Chunk
from blocklife.policies import Mode
from blocklife.states import KEYED, Block


class Offers:
    """What the requests of one scheduler leave behind."""

    def __init__(self, state: SchedulerState, asking: Asking) -> None:
        self._state, self._ledger, self._rows, self._asking = state, state.ledger, state.rows, asking
        self._blocks, self._jobs = state.ledger.blocks, state.ledger.jobs
        self._geometry, self._policies = state.geometry, state.policies
        self._progress, self._stores = state.progress, state.stores
        self._keeps_one = [isinstance(group, Mamba) for group in state.geometry.groups]
        self.turn = StoreTurn()
        """What is ready to be stored in this step."""
        self.direct = state.geometry.blocks_per_chunk == 1 and state.policies.mode is Mode.EAGER
        """Whether what is ready can be stored at once, without the queue."""
        self._most = min(state.policies.max_job_blocks, len(state.ledger.slots))

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
            if not all_taken and (self._asking.known_of is None or not self.direct):
                self.offer_filled(spans)
            names = self._rows.names_left(self._progress, turn) if turn.count else []
            if names and (line.waits or not self._store(names)):
                line.offer(self._chunks(names))
            if turn.twins and self._asking.known_of is None:
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
        return not spans or self._rows.offer_spans(self._progress, spans, keys, self.turn, self._asking.known_of is None)

    def _store(self, names: Sequence[tuple[int, bytes]]) -> bool:
        """Store what is ready under these names; False, with nothing changed, if there is no room for all of it."""
        if self._stores.room_beside(len(names)) < len(names):
            return False
        if -(-len(names) // self._most) > self._jobs.room or (slots := self._state.tier.reserve(names)) is None:
            return False
        numbers = self._rows.plan_turn(self._progress, self.turn, slots, self._most)
        suffix = self._stores.suffix
        for slot in slots:
            suffix[slot] = 1
        if self._asking.known_of is None:  # they are submitted when their content is final
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
            keys = self._asking.keys_of(self._state.requests[name], group, start * size, stop * size)
            ends = keys[size - 1 :: size] if size > 1 else keys
            found, stored = self._rows.unstored(self._progress, group, row, start, stop, size, ends, every=every)
            chunks = [Chunk(name, group, ends[at], lives) for at, lives in found]
            if stored:
                self._stores.counts["already stored"] += stored
        self._progress.offer_up_to(group, row, stop)
        self._stores.offer(chunks)

    def offer_tail(self, name: str, tracked: Tracked, tokens: int) -> None:
        """Offer the tail of a request that ends, in its attention groups. No step writes into those blocks any more.

        It ends where states were handed off or, without groups of states, at the last boundary within the first *tokens* that
        leaves room for the proof of a drafter. If the proof ends with the block, the block is stored as any that is full.
        """
        end, size = self._asking.tail_end(tracked, tokens), self._geometry.block_tokens[0]
        if not end or self._state.lost:
            return
        for group in self._state.attention:
            if not (end + self._geometry.tail_proofs[group]) % size:
                continue
            key = self._asking.tail_key_of(tracked, group, end)
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
        size, later, chunks, early = self._geometry.blocks_per_chunk, [], [], self._asking.known_of is None
        for group, boundary, life in self._state.states[name]:
            if boundary > self._progress.known_of(row):
                later.append((group, boundary, life))  # planned ahead: its last token has not been sampled yet
            elif boundary <= self._progress.bound(row, boundary) and not self._state.lost:
                position = boundary // self._geometry.block_tokens[group] - 1
                (key,) = self._asking.keys_of(self._state.requests[name], group, position, position + 1)
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

    def seals(self, spans: EntrySpans) -> list[SealedContent]:
        """The blocks that are full now, by group, with their keys."""
        names, requests = self._state.names, self._state.requests
        keys: list[Sequence[bytes]] = []
        for each in range(spans.count):
            tracked = requests[names[spans.row[each]]]
            keys.append(self._asking.keys_of(tracked, spans.group[each], spans.start[each], spans.stop[each]))
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
                keys += self._asking.keys_of(tracked, group, position, position + 1)
        return [(group, lives, keys) for group, (lives, keys) in found.items()]

    def touch(self, tracked: Tracked, tokens: int) -> None:
        """Record a use of the content that a prefix of this length reads, by its keys."""
        slots: list[int] = []
        for group in self._state.groups:
            slots += self._slots_named(tracked, group, self._asking.used(group, tokens))
        if slots:
            self._state.tier.touch(slots)

    def _slots_named(self, tracked: Tracked, group: int, used: range) -> list[int]:
        size = self._geometry.blocks_per_chunk
        keys = self._asking.keys_of(tracked, group, used.start, used.stop)[size - 1 :: size] if used else ()
        return self._ledger.slots.found(group, reversed(keys))

    def touch_own(self, tracked: Tracked, tokens: int) -> None:
        """The same of a request that has it in its tables; states have left them."""
        slots: list[int] = []
        for group in self._state.groups:
            used = self._asking.used(group, tokens)
            if self._keeps_one[group]:
                slots += self._slots_named(tracked, group, used)
            elif used:
                size = self._geometry.blocks_per_chunk
                slots += self._rows.slots_behind(self._progress, group, tracked.row, used.start, used.stop, size)
        if slots:
            self._state.tier.touch(slots)
