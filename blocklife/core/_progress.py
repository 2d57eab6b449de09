"""How far requests are, in tokens and entries of their tables, and who has to be looked at in a step.

Rules of this file:

* It counts tokens and entries; it holds no blocks and calls no other part.
* A row is the ledger's own row of a request. Rows and groups exist: whoever calls has checked that.

Theory. Tokens of a request are *computed* when a plan that scheduled them has settled, *in flight* while such a plan is out,
and *wanted* while the plan is being made. Freeing considers computed tokens only, because tokens in flight can still be
taken back. Storing may go further, up to the known tokens.

Most requests run one token a plan and sample one, plan after plan. Such a request is *silent*: its columns stand still, and
what it has computed is counted by two clocks, of the plans that were made and of those that have settled. It costs nothing
until the plan in which it needs attention, which is known when it falls silent (`wheel`). Whatever else happens to it makes
it *speak up*: then its columns are as those of any other. It falls silent again once every plan that is out runs one token
of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from blocklife.core._columns import Bytes, Ints, longer, zeros
from blocklife.core._tables import ENDLESS

Span: TypeAlias = tuple[int, int, int, int]
"""A range of table entries: the group, the row of the request, the first entry and the one after the last."""


class EntrySpans:
    """Ranges of table entries as columns, ``count`` of them.

    ``end`` is the entry up to which something was done, where it may not have been done to all of a range.
    """

    def __init__(self) -> None:
        self.count, self.size = 0, 16
        self.group, self.row = bytearray(self.size), zeros("i", self.size)
        self.start, self.stop, self.end = zeros("q", self.size), zeros("q", self.size), zeros("q", self.size)

    def __len__(self) -> int:
        return self.count

    def add(self, group: int, row: int, start: int, stop: int) -> None:
        """One range more."""
        if self.count == self.size:
            self.size = size = 2 * self.size
            self.group, self.row = bytearray(self.group) + bytearray(self.count), longer("i", self.row, size)
            self.start, self.stop = longer("q", self.start, size), longer("q", self.stop, size)
            self.end = longer("q", self.end, size)
        at, self.count = self.count, self.count + 1
        self.group[at], self.row[at], self.start[at], self.stop[at] = group, row, start, stop

    def tuples(self) -> list[Span]:
        """The ranges one by one."""
        return [(self.group[at], self.row[at], self.start[at], self.stop[at]) for at in range(self.count)]


def spans_of(ranges: Sequence[Span]) -> EntrySpans:
    """These ranges as columns."""
    found = EntrySpans()
    for group, row, start, stop in ranges:
        found.add(group, row, start, stop)
    return found


class GroupTokens:
    """How one group counts: tokens of a block and of a chunk, and what a request reads of those that it has computed.

    ``behind`` is the number of tokens before the next one that are still read; ``part``: those of the part that the next one is
    in, where attention is local, else 1. ``fills``: tokens fill blocks; that of a state is handed off instead. ``drafter``: its
    layers may write again into the last full unit of a request that decodes, so that it counts as not full yet.
    """

    def __init__(self, tokens: int, chunk: int, behind: int, part: int, fills: bool, drafter: bool) -> None:
        self.tokens, self.chunk, self.behind, self.part = tokens, chunk, behind, part
        self.fills, self.drafter = fills, drafter


class PlanTokens:
    """The part of requests in one plan: those that spoke, ascending, with their tokens and the serials of their stays.

    ``clock`` is the number of the plan among those in which silent requests run, 0 if they do not run in this one; ``due`` are
    silent ones to be looked at when it settles.
    """

    def __init__(self, rows: list[int], tokens: list[int], serials: list[int], due: list[int], clock: int) -> None:
        self.rows, self.tokens, self.serials, self.due, self.clock = rows, tokens, serials, due, clock


class TokenProgress:
    """The columns of all requests.

    Invariant: a row without a request is all zero. Of group *g*, at ``g * size + row``: ``placed`` counts the entries of the
    request's table, nulls included; entries before ``first`` are null, those before ``sealed`` are final or null; chunks before
    ``offered`` have had their turn. ``wanted`` is zero in every row that does not run, or whose ``step`` is not the one that is
    being made. ``most_stored`` and ``most_loaded`` are how many tokens of a request may be stored and loaded; these two say
    something of every row. ``home`` is the row of a request in the ledger, and ``came`` says which one it is (`Requests`).
    ``active`` has the rows that are ``running``, ascending.

    Four alarms per group give the token at which a request needs attention, so that it is looked at only then: its table needs
    a block (``room_at``), a block leaves the window (``window_at``), a chunk is full (``fill_at``), a block is full
    (``final_at``). Invariant: an alarm may go off too early, never too late; `look` sets off all alarms of a request.

    Invariant: a ``silent`` row runs, has one token in every turn with a clock behind ``since``, and one in the turns that are
    out and have it among their rows, all of which have a clock. It has computed ``settled`` tokens more than its columns say,
    as many more are known, and ``planned - settled`` are in flight. It is in ``wheel`` at the clock at which an alarm may go
    off, and ``due_at`` says which. ``spoken`` has the rows that run and are not silent, ascending.
    ``steady`` counts the latest turns in a row that had exactly one token of a request; ``turned`` is the clock of the last.
    """

    def __init__(self, size: int, groups: Sequence[GroupTokens], most_stored: int, most_loaded: int, prompt_only: bool) -> None:
        self.size, self.groups, self.num_groups = size, list(groups), len(groups)
        tables = size * len(groups)
        running, (prompt, known, computed, in_flight) = bytearray(size), [zeros("q", size) for _ in range(4)]
        wanted, stored, loaded = (zeros("q", size) for _ in range(3))
        placed, first, sealed, offered = (zeros("q", tables) for _ in range(4))
        self.running, self.prompt, self.known, self.computed, self.in_flight = running, prompt, known, computed, in_flight
        self.wanted, self.most_stored, self.most_loaded = wanted, stored, loaded
        self.placed, self.first, self.sealed, self.offered = placed, first, sealed, offered
        self.silent, self.serial, self.step = bytearray(size), zeros("q", size), zeros("q", size)
        self.ends = zeros("q", size)
        """What the latest `find_ends` has found; of other rows it says nothing."""
        self.since, self.due_at, self.steady, self.turned = (zeros("q", size) for _ in range(4))
        self.room_at, self.window_at, self.fill_at, self.final_at = (zeros("q", tables) for _ in range(4))
        self.home, self.came = zeros("i", size), zeros("q", size)
        self.active: list[int] = []
        self.spoken: list[int] = []
        self.turns: list[PlanTokens] = []
        self.wheel: dict[int, list[int]] = {}
        self.making = 1
        """The number of the step that is being made."""
        self.planned = self.settled = self.due_for = self.silent_step = self.silent_before = 0
        self.due: list[int] = []
        """Rows that may need attention in the turn whose clock is ``due_for``, ascending."""
        self.all_due = False
        """Whether all of them are silent: since they were last looked through, none has spoken up."""
        self.most_states = 1
        """How many states a request has at the end of its table, those of drafts included."""
        self.slides = any(each.behind < ENDLESS for each in groups)
        self.falls_silent = True
        """Whether requests may fall silent: not where nobody knows without asking how many tokens each has sampled."""
        self._leaving, self._lacking, self._filling, self._finishing = EntrySpans(), EntrySpans(), EntrySpans(), EntrySpans()
        self.last_serial, self.cap_stored, self.cap_loaded, self.prompt_only = 0, most_stored, most_loaded, prompt_only
        for row in range(size):
            self.most_stored[row], self.most_loaded[row] = most_stored, most_loaded
        self.columns: tuple[Bytes | Ints, ...] = (
            running, prompt, known, computed, in_flight, wanted, placed, first, sealed, offered, stored, loaded,
        )  # fmt: skip
        """What a request is made of where all have spoken up, without alarms, serials and steps."""

    # --- what is known of one -------------------------------------------------------------------------------------------------

    def computed_of(self, row: int) -> int:
        """The tokens of a request that have been computed."""
        return self.computed[row] + self.settled if self.silent[row] else self.computed[row]

    def known_of(self, row: int) -> int:
        """The tokens of a request that are known."""
        return self.known[row] + self.settled if self.silent[row] else self.known[row]

    def in_flight_of(self, row: int) -> int:
        """The tokens of a request in plans that are out."""
        return self.planned - self.settled if self.silent[row] else self.in_flight[row]

    def wanted_of(self, row: int) -> int:
        """The tokens of a request in the step that is being made."""
        if self.silent[row]:
            return 1 if self.silent_step == self.making else 0
        return self.wanted[row]

    def begin_of(self, row: int) -> int:
        """The token at which the step that is being made begins for a request."""
        return self.computed[row] + self.planned if self.silent[row] else self.computed[row] + self.in_flight[row]

    def end_of(self, row: int) -> int:
        """The token that a request reaches with the step that is being made."""
        return self.begin_of(row) + self.wanted_of(row)

    def is_scheduled(self, row: int) -> bool:
        """Whether a request is scheduled in the step that is being made, with no token perhaps."""
        return (self.silent_step if self.silent[row] else self.step[row]) == self.making

    def find_ends(self, rows: Sequence[int], filled: bool) -> None:
        """Note in ``ends`` what `end_of` says of each of these requests.

        *filled*: up to which token its content is there, and known, after the step that is being made.
        """
        for row in rows:
            end, known = self.end_of(row), self.known_of(row)
            self.ends[row] = known if filled and known < end else end

    def bound(self, row: int, tokens: int) -> int:
        """How many of a request's first *tokens*, which have or will have content, may be stored."""
        known, most = self.known_of(row), self.most_stored[row]
        least = known if known < most else most
        return tokens if tokens < least else least

    # --- coming, running and leaving ------------------------------------------------------------------------------------------

    def look(self, row: int) -> None:
        """The request has changed: look at it in the next step, whatever its alarms say."""
        self.speak_up(row)
        for group in range(self.num_groups):
            at = group * self.size + row
            self.room_at[at] = self.window_at[at] = self.fill_at[at] = self.final_at[at] = 0

    def enter(self, row: int, prompt: int) -> None:
        """Set up the row of a new request."""
        self.clear(row)
        self.prompt[row] = prompt
        self.known[row] = prompt
        self.cap(row, -1, -1)

    def cap(self, row: int, stored: int, loaded: int) -> None:
        """Limit how many tokens of the request are stored, and loaded; below 0: as the policies say."""
        most = self.cap_stored
        if self.prompt_only and self.prompt[row] < most:
            most = self.prompt[row]
        self.most_stored[row] = stored if 0 <= stored < most else most
        self.most_loaded[row] = loaded if 0 <= loaded < self.cap_loaded else self.cap_loaded
        self.look(row)

    def clear(self, row: int) -> None:
        """Reset a request that holds nothing any more; outstanding plans no longer apply to it."""
        self.stop(row)
        self.last_serial += 1
        self.serial[row] = self.last_serial
        self.computed[row] = self.in_flight[row] = self.wanted[row] = self.steady[row] = 0
        for group in range(self.num_groups):
            at = group * self.size + row
            self.placed[at] = self.first[at] = self.sealed[at] = self.offered[at] = 0
        self.look(row)

    def leave(self, row: int) -> None:
        """Free the row of a request."""
        self.clear(row)
        self.prompt[row] = self.known[row] = 0
        self.most_stored[row], self.most_loaded[row] = self.cap_stored, self.cap_loaded

    def begin(self, row: int, group: int, placed: int, first: int, offered: int, sealed: int) -> None:
        """Set up one table of a request."""
        at = group * self.size + row
        self.placed[at], self.first[at], self.offered[at], self.sealed[at] = placed, first, offered, sealed

    def run(self, row: int, computed: int) -> None:
        """The request is in the batch from now on, with so many tokens computed."""
        self.computed[row] = computed
        if not self.running[row]:
            self.running[row] = 1
            insort(self.active, row)
            insort(self.spoken, row)

    def stop(self, row: int) -> None:
        """The request is not in the batch any more."""
        if self.running[row]:
            self.speak_up(row)
            self.running[row] = 0
            self.active.remove(row)
            self.spoken.remove(row)

    def again(self, row: int, known: int, prompt: int, computed: int) -> None:
        """The request goes on behind its first *computed* tokens, and plans that are out do not apply to it any more."""
        tables = range(row, row + self.num_groups * self.size, self.size)
        kept = [(self.placed[at], self.first[at], self.sealed[at], self.offered[at]) for at in tables]
        self.clear(row)
        for at, (placed, first, sealed, offered) in zip(tables, kept, strict=True):
            self.placed[at], self.first[at], self.sealed[at], self.offered[at] = placed, first, sealed, offered
        self.known[row], self.prompt[row] = known, prompt
        self.run(row, computed)

    # --- silence ------------------------------------------------------------------------------------------------------------

    def speak_up(self, row: int) -> None:
        """A request is not silent any more: its columns and the turns that are out say what it has."""
        if not self.silent[row]:
            return
        self.silent[row] = 0
        self.all_due = False
        insort(self.spoken, row)
        self.computed[row] += self.settled
        self.known[row] += self.settled
        self.in_flight[row] = self.planned - self.settled
        self.steady[row], self.turned[row] = self.planned - self.settled, self.planned
        self.step[row] = self.silent_step
        self.wanted[row] = 1 if self.silent_step == self.making else 0
        for turn in self.turns:
            if turn.clock > self.since[row]:
                at = bisect_left(turn.rows, row)
                turn.rows.insert(at, row)
                turn.tokens.insert(at, 1)
                turn.serials.insert(at, self.serial[row])

    def speak_up_all(self) -> None:
        """Nobody is silent any more."""
        for row in [each for each in self.active if self.silent[each]]:
            self.speak_up(row)

    def may_fall_silent(self, row: int) -> bool:
        """Whether a request that ran one token in the latest turn goes on like that, as far as is known."""
        return self.steady[row] >= len(self.turns) and self.known[row] == self.computed[row] + 1

    def fall_silent(self, row: int) -> None:
        """From the next turn on it runs one token in each, and is not looked at before an alarm may go off."""
        self.silent[row] = 1
        self.since[row] = self.planned
        self.computed[row] -= self.settled
        self.known[row] -= self.settled
        self.in_flight[row] = 0
        self.arm(row)

    def arm(self, row: int) -> None:
        """Note in which turn a silent request is to be looked at next."""
        least = ENDLESS
        for group in range(self.num_groups):
            at = group * self.size + row
            if self.room_at[at] + 1 < least:
                least = self.room_at[at] + 1
            if self.window_at[at] < least:
                least = self.window_at[at]
            if self.fill_at[at] < least:
                least = self.fill_at[at]
            if self.final_at[at] < least:
                least = self.final_at[at]
        ahead = least - self.begin_of(row)
        clock = self.planned + (ahead if ahead > 1 else 1)
        self.due_at[row] = clock
        spoke = self.wheel.get(clock)
        if spoke is None:
            spoke = self.wheel[clock] = []
        spoke.append(row)

    # --- the step -----------------------------------------------------------------------------------------------------------

    def due_now(self) -> list[int]:
        """The silent requests that may need attention in the step that is being made, if silent ones run in it; ascending."""
        clock = self.planned + 1
        if self.due_for != clock:
            self.due_for, last, ascend = clock, -1, True
            due: list[int] = []
            for row in self.wheel.pop(clock, ()):
                if self.due_at[row] == clock:
                    ascend = ascend and row > last
                    last = row
                    due.append(row)
            if not ascend:  # they fell silent in different steps, one perhaps twice
                due = sorted(set(due))
            self.due, self.all_due = due, False
        if not self.all_due:
            self.due = [row for row in self.due if self.silent[row]]
            self.all_due = True
        return self.due

    def propose(self) -> list[int]:
        """All that run want one token in the step that is being made. Returns those that speak and are not scheduled in it yet.

        Next: `schedule` these or, to change nothing, `withdraw`.
        """
        self.silent_before, self.silent_step = self.silent_step, self.making
        found = [row for row in self.spoken if self.step[row] != self.making]
        for row in found:
            self.wanted[row] = 1
        return found

    def schedule(self, rows: Sequence[int]) -> None:
        """The requests that want tokens are scheduled in the step that is being made."""
        for row in rows:
            self.step[row] = self.making

    def withdraw(self, rows: Sequence[int]) -> None:
        """What was proposed is not scheduled."""
        self.silent_step = self.silent_before
        for row in rows:
            self.wanted[row] = 0

    def call_off(self, row: int) -> None:
        """There is no room for the tokens of a request that was scheduled: it is not scheduled in this step."""
        self.speak_up(row)
        self.wanted[row] = self.step[row] = 0

    def looked_at(self) -> list[int]:
        """The requests with tokens in the step that is being made that may need attention, ascending."""
        found = [row for row in self.spoken if self.wanted[row]]
        if self.silent_step == self.making and (due := self.due_now()):
            return sorted([*found, *due]) if found else due
        return found

    def depart(self, doubtful: Collection[int]) -> None:
        """The step is made: its tokens are in flight. Requests may fall silent then, but not the *doubtful*."""
        rows = [row for row in self.spoken if self.wanted[row]]
        clocked, all_clocked = self.silent_step == self.making, True
        due: list[int] = []
        if clocked:
            due = self.due_now()
            self.planned += 1
        for other in self.turns:
            if not other.clock:
                all_clocked = False
        tokens, serials = [self.wanted[row] for row in rows], [self.serial[row] for row in rows]
        self.turns.append(PlanTokens(rows, tokens, serials, due, self.planned if clocked else 0))
        quiet = False
        for row in rows:
            count = self.wanted[row]
            self.in_flight[row] += count
            self.wanted[row] = 0
            if count == 1 and clocked:
                self.steady[row] = self.steady[row] + 1 if self.turned[row] == self.planned - 1 else 1
                self.turned[row] = self.planned
                if self.falls_silent and all_clocked and self.may_fall_silent(row) and row not in doubtful:
                    self.fall_silent(row)
                    quiet = True
            else:
                self.steady[row] = 0
        if quiet:
            self.spoken = [row for row in self.spoken if not self.silent[row]]
        for row in due:
            self.arm(row)
        self.making += 1

    def after(self, row: int) -> int:
        """The tokens that a silent request has computed when the oldest turn settles; 0 for one that speaks."""
        return self.computed_of(row) + 1 if self.silent[row] else 0

    def reach(self, turn: PlanTokens, counts: Mapping[int, int]) -> tuple[list[int], list[int], list[int]]:
        """Of the requests that a turn says something of: their rows, and the known and computed tokens once it settles.

        Besides those in it these are silent ones that may need attention then. Who reaches its last known token has sampled
        one, or as many as *counts* says by row. A sampled token has no content yet; tokens that were scheduled beyond the known
        ones count as far as they were sampled.
        """
        rows: list[int] = []
        known_then: list[int] = []
        computed_then: list[int] = []
        due, waiting = turn.due, 0
        for at in range(len(turn.rows)):
            row = turn.rows[at]
            while waiting < len(due) and due[waiting] < row:
                self.reach_silent(due[waiting], rows, known_then, computed_then)
                waiting += 1
            if waiting < len(due) and due[waiting] == row:
                waiting += 1
            if self.serial[row] != turn.serials[at]:
                continue
            known, end = self.known_of(row), self.computed_of(row) + turn.tokens[at]
            news = 1 if end >= known else 0
            if counts:
                news = counts.get(row, news)
            most = known + news - 1 if news > 1 else known
            rows.append(row)
            known_then.append(known + news)
            computed_then.append(end if end < most else most)
        while waiting < len(due):
            self.reach_silent(due[waiting], rows, known_then, computed_then)
            waiting += 1
        return rows, known_then, computed_then

    def reach_silent(self, row: int, rows: list[int], known: list[int], computed: list[int]) -> None:
        """The same of one row that fell silent before the turn, if it still is."""
        if self.silent[row]:
            rows.append(row)
            known.append(self.known_of(row) + 1)
            computed.append(self.after(row))

    def settle(self, rows: Sequence[int], known: Sequence[int], computed: Sequence[int]) -> None:
        """The oldest turn is over. *rows* are those that it says something of, and what is known and computed of each then."""
        turn = self.turns.pop(0)
        if turn.clock:
            self.settled += 1
        said, spoke = 0, turn.rows  # ascending, as *rows* are
        for at in range(len(rows)):
            row = rows[at]
            if not self.silent[row]:
                while spoke[said] < row:
                    said += 1
                self.known[row], self.computed[row] = known[at], computed[at]
                self.in_flight[row] -= turn.tokens[said]

    def restored(self, turns: Sequence[PlanTokens], scheduled: Sequence[int]) -> None:
        """The columns were written by the caller: nobody is silent, all are to be looked at."""
        size, tables = self.size, self.size * self.num_groups
        self.last_serial = 1  # only equality between a turn and its request matters
        for row in range(size):
            self.silent[row] = 0
            self.serial[row] = 1
            self.step[row] = self.steady[row] = self.turned[row] = 0
        for at in range(tables):
            self.room_at[at] = self.window_at[at] = self.fill_at[at] = self.final_at[at] = 0
        self.active = [row for row in range(size) if self.running[row]]
        self.spoken = list(self.active)
        self.turns, self.planned, self.settled = list(turns), len(turns), 0
        self.wheel.clear()
        self.due, self.due_for, self.making, self.silent_step, self.silent_before = [], 0, 1, 0, 0
        self.all_due = False
        for row in scheduled:
            self.step[row] = self.making

    # --- what there is to do --------------------------------------------------------------------------------------------------

    def missing(self, rows: Sequence[int], group: int, ends: Sequence[int]) -> int:
        """Where in *rows* the first stands whose table lacks entries to hold the tokens before its end; -1 for none."""
        own = self.groups[group]
        for at in range(len(rows)):
            if (ends[at] + own.tokens - 1) // own.tokens > self.placed[group * self.size + rows[at]]:
                return at
        return -1

    def first_needed(self, group: int, row: int) -> int:
        """The first block that a request still reads, given its settled tokens; all blocks before it have left the window.

        With full attention this is always the first block.
        """
        own = self.groups[group]
        left = self.computed_of(row) - own.behind
        return left // own.part * own.part // own.tokens if left > 0 else 0

    def leaves_at(self, group: int, block: int) -> int:
        """With how many settled tokens a block has left the window of its group."""
        own = self.groups[group]
        return ((block + 1) * own.tokens + own.behind + own.part - 1) // own.part * own.part

    def leaving(self, rows: Sequence[int]) -> EntrySpans:
        """The blocks that have left the windows of these requests, as far as tokens are settled.

        What this and the questions below return stands until the same question is asked again.
        """
        found = self._leaving
        found.count = 0
        if not self.slides:
            return found
        for group in range(self.num_groups):
            for row in rows:
                at = group * self.size + row
                if self.computed_of(row) >= self.window_at[at]:
                    start, stop = self.first[at], self.first_needed(group, row)
                    if stop > self.placed[at]:
                        stop = self.placed[at]
                    if stop > start:
                        found.add(group, row, start, stop)
                    else:
                        self.window_at[at] = self.leaves_at(group, start)
        return found

    def left(self, spans: EntrySpans) -> None:
        """Note that these blocks were released."""
        for each in range(spans.count):
            group, stop = spans.group[each], spans.stop[each]
            at = group * self.size + spans.row[each]
            self.first[at] = stop
            self.window_at[at] = self.leaves_at(group, stop)

    def lacking(self, rows: Sequence[int]) -> EntrySpans:
        """The entries that the tables of these requests lack for the step being made."""
        found = self._lacking
        found.count = 0
        self.find_ends(rows, False)
        for group in range(self.num_groups):
            own = self.groups[group]
            tokens = own.tokens
            for row in rows:
                at, end = group * self.size + row, self.ends[row]
                if end > self.room_at[at]:
                    start, stop = self.placed[at], (end + tokens - 1) // tokens
                    if stop > start:
                        found.add(group, row, start, stop)
                    else:
                        self.room_at[at] = start * tokens
        return found

    def blocks_of(self, group: int, start: int, stop: int) -> int:
        """How many blocks these new entries of a table get: states have one at the end, and those of drafts have."""
        count = stop - start
        own = self.groups[group]
        if not own.fills and count > self.most_states:
            return self.most_states
        return count

    def extended(self, spans: EntrySpans) -> None:
        """Note that these entries were added."""
        for each in range(spans.count):
            group = spans.group[each]
            own, at = self.groups[group], group * self.size + spans.row[each]
            self.placed[at] = spans.stop[each]
            self.room_at[at] = spans.stop[each] * own.tokens

    def grown(self, group: int, row: int, count: int) -> None:
        """So many entries more are there now."""
        at, own = group * self.size + row, self.groups[group]
        self.placed[at] += count
        self.room_at[at] = self.placed[at] * own.tokens

    def filling(self, rows: Sequence[int]) -> EntrySpans:
        """The chunks of these requests that are full after the step being made, and may be stored."""
        found = self._filling
        found.count = 0
        self.find_ends(rows, True)
        for group in range(self.num_groups):
            own = self.groups[group]
            size = own.chunk
            for row in rows:
                at, tokens = group * self.size + row, self.ends[row]
                if tokens >= self.fill_at[at]:
                    most = self.most_stored[row]
                    start, stop = self.offered[at], self.full_units(group, row, tokens if tokens < most else most, size)
                    if stop > start:
                        found.add(group, row, start, stop)
                    else:
                        self.set_fill_alarm(group, row)
        return found

    def offered_up_to(self, spans: EntrySpans) -> None:
        """Note that the chunks of each span before its end have had their turn."""
        for each in range(spans.count):
            self.offer_up_to(spans.group[each], spans.row[each], spans.end[each])

    def offer_up_to(self, group: int, row: int, chunk: int) -> None:
        """Note that the chunks of a request before this one have had their turn."""
        self.offered[group * self.size + row] = chunk
        self.set_fill_alarm(group, row)

    def offer_nothing(self, row: int) -> None:
        """Nothing more of a request is offered."""
        for group in range(self.num_groups):
            self.offered[group * self.size + row] = ENDLESS

    def close(self, row: int) -> None:
        """Nothing more of a request becomes final, or is offered."""
        self.offer_nothing(row)
        for group in range(self.num_groups):
            self.sealed[group * self.size + row] = ENDLESS

    def offer_from(self, group: int, row: int, chunk: int) -> None:
        """The chunks of a request from this one on are to be offered again."""
        self.speak_up(row)
        self.offered[group * self.size + row] = chunk
        self.fill_at[group * self.size + row] = 0

    def set_fill_alarm(self, group: int, row: int) -> None:
        """The next chunk goes on the alarm, if it may be stored."""
        at, own = group * self.size + row, self.groups[group]
        full = self.full_at(group, row, self.offered[at] + 1, own.chunk)
        self.fill_at[at] = full if full <= self.most_stored[row] else ENDLESS

    def finishing(self, rows: Sequence[int], computed: Sequence[int]) -> EntrySpans:
        """The blocks of these requests that become final when this many tokens of each are computed."""
        found = self._finishing
        found.count = 0
        for group in range(self.num_groups):
            for each in range(len(rows)):
                row, tokens = rows[each], computed[each]
                if tokens >= self.final_at[group * self.size + row]:
                    self.finish(found, group, row, tokens)
        return found

    def fills(self, rows: Sequence[int]) -> EntrySpans:
        """The blocks of these requests that are full and known after the step that is being made."""
        found = self._finishing
        found.count = 0
        self.find_ends(rows, True)
        for group in range(self.num_groups):
            for row in rows:
                if self.ends[row] >= self.final_at[group * self.size + row]:
                    self.finish(found, group, row, self.ends[row])
        return found

    def finish(self, found: EntrySpans, group: int, row: int, tokens: int) -> None:
        """Add the blocks of one request that become final with so many tokens, at which its alarm goes off."""
        own = self.groups[group]
        start, stop = self.sealed[group * self.size + row], self.full_units(group, row, tokens, own.tokens)
        if stop > start:
            found.add(group, row, start, stop)
        else:
            self.set_final_alarm(group, row)

    def sealed_up_to(self, spans: EntrySpans) -> None:
        """Note that these blocks are final."""
        for each in range(spans.count):
            group, row = spans.group[each], spans.row[each]
            self.sealed[group * self.size + row] = spans.stop[each]
            self.set_final_alarm(group, row)

    def set_final_alarm(self, group: int, row: int) -> None:
        """The next block goes on the alarm."""
        at, own = group * self.size + row, self.groups[group]
        self.final_at[at] = self.full_at(group, row, self.sealed[at] + 1, own.tokens)

    def promised(self, spans: EntrySpans, each: int, direct: bool) -> bool:
        """Blocks that the step fills are final already: those of one span before its end.

        With *direct*, where what is final is stored without a line, those have had their turn that come next in the order in
        which they are stored. Returns whether that is so.
        """
        group, row, end = spans.group[each], spans.row[each], spans.end[each]
        at, own = group * self.size + row, self.groups[group]
        self.sealed[at] = end
        self.set_final_alarm(group, row)
        if direct and spans.stop[each] * own.tokens <= self.most_stored[row] and self.offered[at] == spans.start[each]:
            self.offered[at] = end  # without a line a chunk is one block
            self.set_fill_alarm(group, row)
            return True
        return False

    def full_units(self, group: int, row: int, tokens: int, size: int) -> int:
        """How many units of *size* tokens, blocks or chunks of a group, the first *tokens* of a request fill for good."""
        own = self.groups[group]
        if not own.fills:
            return 0
        if own.drafter and self.running[row] and tokens > self.prompt[row]:
            tokens -= size
        return tokens // size

    def full_at(self, group: int, row: int, count: int, size: int) -> int:
        """With how many tokens *count* units of a running request are full for good."""
        own = self.groups[group]
        if not own.fills:
            return ENDLESS
        tokens = count * size
        return tokens + size if own.drafter and tokens > self.prompt[row] else tokens
