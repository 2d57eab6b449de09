"""What a call of the scheduler asks the engine's key functions.

Rules of this file:

* A call asks for all that it needs (the functions that begin with ``ask_``) before it changes anything: an error in a key
  function leaves everything as it was. What was answered is kept until the next call begins, and for a plan until it settles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from blocklife.core._progress import EntrySpans, PlanTokens, Span
from blocklife.core._tables import ENDLESS
from blocklife.errors import MisuseError
from blocklife.groups import FullAttention, Mamba
from blocklife.ledger import _edge as edge
from blocklife.offload._state import KeysGiven, SchedulerState, Tracked
from blocklife.offload.records import Hit

_NONE: KeysGiven = {}


class Asking:
    """The questions of one scheduler.

    Invariant: behind `_present`, ``keys_given`` and ``tails_given`` have answers of the outermost call that is being made, and
    ``keys_planned`` those of the call that made the plan which settles in this one, if any; they hold in the same stay only.
    Within a call no row gets another request.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state, self._geometry, self._progress = state, state.geometry, state.progress
        self._requests, self._names = state.requests, state.names
        self._keeps_one = [isinstance(group, Mamba) for group in state.geometry.groups]
        self._journal, self._call = state.ledger._calls, 0
        self.keys_given: KeysGiven = {}
        self.keys_planned: KeysGiven = {}
        self.tails_given: dict[tuple[int, int, int], bytes | None] = {}
        """By row, group and the token at which the tail ends."""
        self.known_of: Callable[[str], int] | None = None
        """How many tokens a request has, where an engine decides first: a step may then lack keys, and content is stored only
        when it is final. None where each call says what it needs."""

    def _present(self) -> Asking:
        """Forget what was answered in earlier calls."""
        if self._call != self._journal.calls:
            self._call = self._journal.calls
            self.keys_given.clear()
            self.tails_given.clear()
            self.keys_planned = _NONE
        return self

    def given(self, tracked: Tracked, group: int, start: int, stop: int) -> list[bytes]:
        """What the engine's key function says of some blocks; there may be fewer. The list is ours: the engine's may change."""
        keys = tracked.keys(group, start, stop)
        wrong = type(keys) is not list
        if not wrong:
            for key in keys:
                wrong = wrong or type(key) is not bytes
        found = list(edge.keys(keys, "keys") if wrong else keys)
        if len(found) > stop - start:
            raise self._miscounted(group, start, stop, len(found))
        return found

    def asked(self, tracked: Tracked, group: int, start: int, stop: int) -> list[bytes]:
        """The keys of some blocks, all of them, from the engine's key function."""
        keys = self.given(tracked, group, start, stop)
        if len(keys) < stop - start:
            raise self._miscounted(group, start, stop, len(keys))
        return keys

    def _miscounted(self, group: int, start: int, stop: int, count: int) -> MisuseError:
        return MisuseError(f"keys of blocks {start} to {stop} of group {group}: {count} were given (one for each block)")

    def keys_of(self, tracked: Tracked, group: int, start: int, stop: int) -> Sequence[bytes]:
        """The keys of some blocks, from the engine's key function, unless it has answered in this call already."""
        given, place = self._present(), group * self._progress.size + tracked.row
        known = given.keys_given.get(place)
        if known is None and given.keys_planned:
            known = given.keys_planned.get(place)
            if known is not None and known[0] != self._progress.serial[tracked.row]:
                known = None
        if known is not None:
            _, first, keys = known
            if first == start and stop - first == len(keys):
                return keys
            if first <= start and stop - first <= len(keys):
                return keys[start - first : stop - first]
        return self.asked(tracked, group, start, stop)

    def note_given(self, row: int, group: int, start: int, keys: Sequence[bytes]) -> None:
        """Keep these keys of blocks from *start* on for this call."""
        table = self._progress
        self._present().keys_given[group * table.size + row] = table.serial[row], start, keys

    def hand_over(self) -> KeysGiven:
        """What was answered in this call, which has made a plan; it is not kept here any more."""
        keys, self.keys_given = self._present().keys_given, {}
        return keys

    def recall(self, keys: KeysGiven) -> None:
        """A plan settles in this call, for which these keys were given."""
        self._present().keys_planned = keys

    def tail_key_of(self, tracked: Tracked, group: int, end: int) -> bytes | None:
        """The key of a tail that ends at this token, from the engine's functions; None if the engine has no key for it.

        In a group with layers of a drafter the key covers the proof, too, and may then end with a whole block.
        """
        end += self._geometry.tail_proofs[group]
        position, inside = divmod(end, self._geometry.block_tokens[group])
        place, answers = (tracked.row, group, end), self._present().tails_given
        if not inside and place not in answers:
            (answers[place],) = self.keys_of(tracked, group, position - 1, position)
        return self.tail_answer(tracked, group, end)

    def tail_answer(self, tracked: Tracked, group: int, end: int) -> bytes | None:
        """What the engine's function for tails says of a token inside a block; it is asked once in a call."""
        place, answers = (tracked.row, group, end), self._present().tails_given
        if place not in answers:
            key = None if tracked.tails is None else tracked.tails(group, end)
            if key is not None and type(key) is not bytes:
                raise MisuseError(f"the key of the tail of group {group} at token {end} must be bytes or None, not {key!r}")
            answers[place] = key
        return answers[place]

    def ask_keys(self, tracked: Tracked, group: int, start: int, stop: int) -> Sequence[bytes]:
        """Ask for the keys of some blocks, and keep them for this call."""
        found: Sequence[bytes] = self.keys_of(tracked, group, start, stop) if start < stop else ()
        if start < stop:
            self.note_given(tracked.row, group, start, found)
        return found

    def ask_names(self, tracked: Tracked, known: int) -> list[list[bytes]]:
        """Ask for the keys of all blocks that a hit of a request with *known* tokens may have; fewer may be given."""
        found = self._state.search.names(partial(self.given, tracked), known)
        for group, keys in enumerate(found):
            self.note_given(tracked.row, group, 0, keys)
        return found

    def ask_load(self, tracked: Tracked, hit: Hit, starts: Sequence[int]) -> tuple[list[Span], list[Sequence[bytes]]]:
        """Ask for all keys of the load of a hit; returns the entries of tables that it fills, and the keys of each span.

        *starts*: the first of them, by group. The last entry of a span may be that of a tail.
        """
        spans: list[Span] = []
        found: list[Sequence[bytes]] = []
        for group, slots in enumerate(hit.slots):
            if slots:
                start, (stop, inside) = starts[group], divmod(hit.tokens, self._geometry.block_tokens[group])
                keys = self.ask_keys(tracked, group, start, stop)
                tail = self.tail_key_of(tracked, group, hit.tokens) if inside else None
                if tail is not None:
                    keys, stop = [*keys, tail], stop + 1
                spans.append((group, tracked.row, start, stop))
                found.append(keys)
        return spans, found

    def ask_filled(self, spans: EntrySpans) -> list[Sequence[bytes]]:
        """Ask for all keys of the chunks that a step fills, and of the states that were handed off; returns the former."""
        state, size = self._state, self._geometry.blocks_per_chunk
        if state.lost:
            return []
        found = self.ask_spans(spans, size)
        for name in state.states:
            self._ask_states(state.requests[name], name, ENDLESS)
        return found

    def ask_spans(self, spans: EntrySpans, size: int) -> list[Sequence[bytes]]:
        """Ask for the keys of units of *size* blocks that a step fills (`ask_span`)."""
        found: list[Sequence[bytes]] = []
        for each in range(spans.count):
            start, stop = spans.start[each] * size, spans.stop[each] * size
            found.append(self.ask_span(spans.group[each], spans.row[each], start, stop))
        return found

    def ask_span(self, group: int, row: int, start: int, stop: int) -> Sequence[bytes]:
        """Ask for the keys of some blocks that a step fills, and keep them for this call.

        Where an engine decides first, there may be fewer tokens than expected: then progress counts them from here on.
        """
        tracked = self._requests[self._names[row]]
        if self.known_of is None:
            found = self.asked(tracked, group, start, stop)
            self.note_given(row, group, start, found)
            return found
        found = self.given(tracked, group, start, stop)
        if len(found) < stop - start:
            self._progress.speak_up(row)
            self._progress.known[row] = self.known_of(self._names[row])
        return found

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

    def ask_end(self, tracked: Tracked, computed: int, known: int, *, early: bool) -> None:
        """Ask for all keys of what a request leaves behind when it ends with so many *computed* tokens, and of what it used."""
        table, row = self._progress, tracked.row
        last = self.last(tracked, computed, known, early=early)
        for group, size in enumerate(self._geometry.block_tokens):
            if self._keeps_one[group]:
                start = self.used(group, computed).start
            else:
                at = group * table.size + row
                start = min(table.sealed[at], table.offered[at] * self._geometry.blocks_per_chunk)
            for each, boundary, _ in self._state.states.get(self._state.names[row], ()):
                if each == group and boundary <= computed:
                    start = min(start, boundary // size - 1)
            self.ask_keys(tracked, group, start, computed // size)
            if end := self.tail_end(tracked, last):
                self.tail_key_of(tracked, group, end)

    def last(self, tracked: Tracked, computed: int, known: int, *, early: bool) -> int:
        """How many tokens of a request are stored when it ends: the last that was sampled only if it ends *early*."""
        return computed if early else min(computed, max(self._progress.prompt[tracked.row], known - 1))

    def used(self, group: int, tokens: int) -> range:
        """The blocks that a prefix of this length reads in whole chunks: all in full groups, the window in the others."""
        size = self._geometry.blocks_per_chunk
        stop = tokens // self._geometry.chunk_tokens[group]
        full, window = isinstance(self._geometry.groups[group], FullAttention), self._geometry.window_chunks[group]
        start = 0 if full or window is None else max(0, stop - window)
        return range(start * size, stop * size)

    def tail_end(self, tracked: Tracked, tokens: int) -> int:
        """Where the tail ends that a request of so many known tokens leaves behind; 0 if it leaves none."""
        unit = self._geometry.tail_tokens
        if unit is None or tracked.tails is None:
            return 0
        bound = min(tokens, self._progress.most_stored[tracked.row]) - max(self._geometry.tail_proofs)
        end = tracked.tail if self._state.has_states else bound - bound % unit
        return end if end <= bound and end % self._geometry.block_tokens[0] else 0

    def load_starts(self, hit: Hit) -> list[int]:
        """The first block that a load fills, by group."""
        return [
            max(self._geometry.needed(group, hit.compute_from).start, hit.device_tokens // tokens)
            for group, tokens in enumerate(self._geometry.block_tokens)
        ]

    def ask_keys_of_ending(self, turn: PlanTokens, known: Mapping[int, int], computed: Mapping[int, int]) -> None:
        """`ask_end` for all requests that end with this plan; how many tokens each row has *known* and *computed* then."""
        state, tokens = self._state, dict(zip(turn.rows, turn.tokens, strict=True))
        for name in sorted([state.names[row] for row in state.stays.ending]):
            tracked = state.requests[name]
            row = tracked.row
            if row in computed and self._progress.in_flight[row] == tokens[row]:
                self.ask_end(tracked, computed[row], known[row], early=state.stays.is_aborted(row))
