"""How far requests are: columns say who crosses a boundary, and what has left a window.

Method: small tables by hand, and the arithmetic against a count of tokens one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from blocklife.core._progress import EntrySpans, Span, TokenProgress, spans_of
from blocklife.core._tables import ENDLESS
from blocklife.offload import Geometry, Policies
from blocklife.offload._state import progress_of

ValueT = TypeVar("ValueT")


def table_of(groups: str, size: int = 4) -> TokenProgress:
    return progress_of(size, Geometry.parse(groups), Policies())


def of(table: TokenProgress, column: Sequence[int], row: int) -> list[int]:
    """What a column says of one request, group by group."""
    return [column[group * table.size + row] for group in range(table.num_groups)]


def test_a_table_that_has_grown_is_looked_at_when_it_is_full_again() -> None:
    """What the engine's allocator has put behind a table is room for so many tokens."""
    table = table_of("full:4,swa:2:3")
    table.grown(0, 1, 2)
    table.grown(1, 1, 1)
    table.grown(1, 1, 2)

    assert of(table, table.placed, 1) == [2, 3]
    assert of(table, table.room_at, 1) == [8, 6]


@pytest.mark.parametrize(
    ("span", "end", "direct", "most", "in_turn", "offered", "alarm"),
    [
        ((0, 1, 2, 4), 4, True, 99, True, 4, 20),
        ((0, 1, 2, 4), 3, True, 99, True, 3, 16),  # one of them cannot be final yet
        ((0, 1, 2, 4), 4, True, 16, True, 4, ENDLESS),  # no more of it may be stored
        ((0, 1, 2, 4), 4, True, 15, False, 2, 12),  # not all of them may be stored
        ((0, 1, 3, 4), 4, True, 99, False, 2, 12),  # those before them have not had their turn
        ((0, 1, 2, 4), 4, False, 99, False, 2, 12),
    ],
)
def test_what_is_final_early_has_had_its_turn_where_it_comes_next(
    span: Span, end: int, direct: bool, most: int, in_turn: bool, offered: int, alarm: int
) -> None:
    """It is final up to where it could be sealed; its turn has come if nothing before it waits, and all of it may be stored."""
    table = table_of("full:4")
    table.most_stored[1], table.sealed[1] = most, span[2]
    table.offer_up_to(0, 1, 2)
    spans = spans_of([span])
    spans.end[0] = end

    assert table.promised(spans, 0, direct) is in_turn
    assert (table.sealed[1], table.final_at[1]) == (end, (end + 1) * 4)
    assert (table.offered[1], table.fill_at[1]) == (offered, alarm)


def offer_all(table: TokenProgress, spans: EntrySpans) -> None:
    """All chunks of these spans have their turn."""
    for at in range(spans.count):
        spans.end[at] = spans.stop[at]
    table.offered_up_to(spans)


def columns(table: TokenProgress, row: int) -> list[int]:
    """Every count of one row but the serial and the step, of which no two may be equal."""
    single = (table.running, table.prompt, table.known, table.computed, table.in_flight, table.wanted)
    by_group = (table.placed, table.first, table.sealed, table.offered)
    return [each[row] for each in single] + [count for each in by_group for count in of(table, each, row)]


def test_a_row_is_zero_when_nobody_has_it() -> None:
    """A request enters with its prompt; preempted it keeps its tokens; it leaves nothing behind."""
    table = table_of("full:4,swa:4:8")
    table.enter(2, 9)
    entered = columns(table, 2)
    for column in (table.computed, table.in_flight, table.wanted):
        column[2] = 5
    for group in (0, 1):
        table.begin(2, group, 3, 3, 3, 3)
    table.run(2, 5)
    table.known[2] = 11
    table.clear(2)
    cleared = columns(table, 2)
    table.leave(2)

    assert entered == [0, 9, 9, *[0] * 11]
    assert cleared == [0, 9, 11, *[0] * 11]
    assert columns(table, 2) == [0] * 14
    assert all(columns(table, row) == [0] * 14 for row in (0, 1, 3))


def test_every_stay_has_a_serial_of_its_own() -> None:
    """A plan that is out speaks of one stay in one row; the next stay is another, also of the same request."""
    table = table_of("full:4")
    serials = []
    for row in (0, 1, 0):
        table.enter(row, 1)
        serials.append(table.serial[row])
        table.clear(row)
        serials.append(table.serial[row])
        table.leave(row)
        serials.append(table.serial[row])

    assert len(set(serials)) == len(serials)
    assert 0 not in serials


# --- alarms -------------------------------------------------------------------------------------------------------------

ALARMED = ["full:4", "full:4,swa:4:6", "swa:2:3,full:4", "full:4,mamba:4", "swa:4:9,mamba:4", "full:4,local:4:8", "local:4:6"]


def alarms(table: TokenProgress, row: int) -> list[int]:
    """At which token one request is looked at next: for room, for its window, for what fills, for what is final."""
    return [min(of(table, alarm, row)) for alarm in (table.room_at, table.window_at, table.fill_at, table.final_at)]


def by_hand(groups: str, table: TokenProgress, row: int) -> dict[str, list[Span]]:
    """What there is to do for one request, group by group, without any alarm."""
    found: dict[str, list[Span]] = {"leaving": [], "lacking": [], "filling": [], "finishing": []}
    computed, known, end = table.computed_of(row), table.known_of(row), table.end_of(row)
    for group, text in enumerate(groups.split(",")):
        kind, *sizes = text.split(":")
        tokens, fills = int(sizes[0]), kind != "mamba"
        at = group * table.size + row
        placed, first = table.placed[at], table.first[at]
        behind = {"full": 1 << 40, "mamba": 1}.get(kind, int(sizes[-1]) - 1)
        left = computed // int(sizes[-1]) * int(sizes[-1]) if kind == "local" else max(0, computed - behind)
        spans = {
            "leaving": (first, min(left // tokens, placed)),
            "lacking": (placed, -(-end // tokens)),
            "filling": (table.offered[at], min(end, known) // tokens if fills else 0),
            "finishing": (table.sealed[at], computed // tokens if fills else 0),
        }
        for what, (start, stop) in spans.items():
            if stop > start:
                found[what].append((group, row, start, stop))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("groups", ALARMED)
def test_alarms_ring_whenever_there_is_something_to_do(groups: str, seed: int) -> None:
    """A request that computes on and on, by one token or by many: what is found is what is there, step by step."""
    table, rnd = table_of(groups, 2), random.Random(seed)
    table.enter(1, 64)
    for step in range(200):
        table.wanted[1] = rnd.choice([1, 1, 1, 2, 7])
        table.known[1] = max(table.known[1], table.end_of(1) - rnd.choice([0, 0, 1]))
        expected = by_hand(groups, table, 1)
        found = {"leaving": table.leaving([1]), "lacking": table.lacking([1]), "filling": table.filling([1])}
        found["finishing"] = table.finishing([1], [table.computed[1]])
        told = {name: spans.tuples() for name, spans in found.items()}
        print(f"seed {seed}, step {step}: {told}")

        assert told == expected
        if rnd.random() < 0.8:  # else they are refused, and asked again
            table.left(found["leaving"])
            table.extended(found["lacking"])
            offer_all(table, found["filling"])
            table.sealed_up_to(found["finishing"])
        table.computed[1] += table.wanted[1]


def test_request_in_which_nothing_changes_is_not_looked_at() -> None:
    """Between two boundaries no alarm rings, and one that has rung for nothing does not ring again."""
    table = table_of("full:4,swa:4:6", 2)
    table.enter(1, 9)
    table.computed[1] = 9
    table.extended(table.lacking([1]))
    table.left(table.leaving([1]))
    offer_all(table, table.filling([1]))
    table.sealed_up_to(table.finishing([1], [table.computed[1]]))

    assert alarms(table, 1) == [12, 13, 12, 12]
    table.look(1)
    assert alarms(table, 1) == [0, 0, 0, 0]
    for found in (table.lacking([1]), table.leaving([1]), table.filling([1])):
        assert found.tuples() == []
    assert table.finishing([1], [table.computed[1]]).tuples() == []
    assert alarms(table, 1) == [12, 13, 12, 12]
    table.clear(1)
    assert alarms(table, 1) == [0, 0, 0, 0]


def test_what_a_step_fills_is_asked_anew_of_each_step() -> None:
    """It is full and known once the step has run; what was answered before is no part of the answer."""
    table = table_of("full:4", 2)
    table.enter(1, 9)
    table.computed[1], table.wanted[1] = 3, 5
    found = [table.fills([1]).tuples() for _ in range(2)]
    table.wanted[1] = 1
    found.append(table.fills([1]).tuples())

    assert found == [[(0, 1, 0, 2)], [(0, 1, 0, 2)], [(0, 1, 0, 1)]]


def test_cap_silences_the_alarm_of_what_may_not_be_stored() -> None:
    """Beyond the cap nothing fills; another cap makes the table look again."""
    table = table_of("full:4", 2)
    table.enter(1, 12)
    table.cap(1, 4, -1)
    table.computed[1] = 12
    offer_all(table, table.filling([1]))

    assert (table.filling([1]).tuples(), table.fill_at[1]) == ([], ENDLESS)
    table.cap(1, -1, -1)
    assert table.filling([1]).tuples() == [(0, 1, 1, 3)]


# --- silence ------------------------------------------------------------------------------------------------------------


class Twins:
    """The same requests in two tables, of which one lets nobody fall silent: both must say the same at every moment."""

    def __init__(self, groups: str, seed: int, ahead: int) -> None:
        self.rnd, self.ahead = random.Random(seed), ahead
        self.tables = [table_of(groups, 6), table_of(groups, 6)]
        self.tables[1].falls_silent = False
        self.silences = 0

    def both(self, act: Callable[[TokenProgress], ValueT]) -> ValueT:
        """Do the same to both; they must answer the same."""
        first, second = map(act, self.tables)
        assert first == second
        return first

    def check(self) -> None:
        """What others may ask of each request."""
        self.both(lambda table: table.find_ends(list(range(6)), True))
        for row in range(6):
            self.both(lambda table, row=row: (  # type: ignore[misc]
                table.running[row], table.computed_of(row), table.known_of(row), table.in_flight_of(row), table.wanted_of(row),
                table.begin_of(row), table.end_of(row), table.ends[row], table.is_scheduled(row), table.bound(row, 50),
                *(table.first_needed(group, row) for group in range(table.num_groups)),
            ))  # fmt: skip
        self.both(lambda table: (table.active, of(table, table.placed, 1), of(table, table.first, 1)))

    def step(self) -> None:
        """Schedule all, some with other tokens than one; grow, fill, and let the plan depart."""
        rows = self.both(lambda table: table.active)
        refused = self.rnd.random() < 0.1
        odd = {row: self.rnd.choice([0, 2, 5]) for row in self.tables[0].active if self.rnd.random() < 0.08}

        def schedule(table: TokenProgress) -> object:
            for row in odd:
                table.speak_up(row)
            rows = table.propose()
            for row, count in odd.items():
                table.wanted[row] = count
            looked = sorted({*rows, *table.due_now()})
            leaving, lacking = table.leaving(looked), table.lacking(looked).tuples()
            left = leaving.tuples()
            short = {row for _, row, _, _ in lacking} if refused else set()
            table.left(leaving)
            table.extended(spans_of([span for span in lacking if span[1] not in short]))
            table.schedule(rows)
            for row in short:
                table.call_off(row)
            return left, lacking

        def build(table: TokenProgress) -> object:
            filling = table.filling(table.looked_at())
            offer_all(table, filling)
            table.depart(())
            return filling.tuples()

        self.both(schedule)
        if rows and self.rnd.random() < 0.1:
            capped, most = self.rnd.choice(rows), self.rnd.randrange(-1, 60)
            self.both(lambda table: table.cap(capped, most, -1))
        self.check()
        if self.rnd.random() < 0.1 and (rows := self.tables[0].active):
            gone = self.rnd.choice(rows)
            self.both(lambda table: table.clear(gone))
        self.both(build)
        self.silences += sum(self.tables[0].silent)

    def settle(self) -> None:
        """The oldest plan is over: each request that ran its last known token has sampled one more."""

        def settle(table: TokenProgress) -> object:
            turn = table.turns[0]
            found = {
                row: (table.known_of(row), table.computed_of(row) + tokens)
                for row, tokens, serial in zip(turn.rows, turn.tokens, turn.serials, strict=True)
                if table.serial[row] == serial
            }
            silent = {row: (table.known_of(row), table.computed_of(row) + 1) for row in turn.due if table.silent[row]}
            rows = sorted({**silent, **found})
            reached = {**silent, **found}
            known = [reached[row][0] + (reached[row][1] >= reached[row][0]) for row in rows]
            computed = [min(reached[row][1], reached[row][0]) for row in rows]
            finishing = table.finishing(rows, computed)
            table.settle(rows, known, computed)
            table.sealed_up_to(finishing)
            return finishing.tuples()

        self.both(settle)
        self.check()


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [*ALARMED, "full:4+drafter,swa:4:6"])
def test_silent_requests_are_as_those_that_speak(groups: str, seed: int, ahead: int) -> None:
    """Whatever is asked of them, at every moment, with plans that overlap; and they are silent most of the time."""
    twins = Twins(groups, seed, ahead)
    print(f"seed {seed}")
    for step in range(300):
        free = [row for row in range(6) if not twins.tables[0].running[row]]
        if free and twins.rnd.random() < 0.3:
            row, prompt = twins.rnd.choice(free), twins.rnd.randrange(1, 12)

            def enter(table: TokenProgress, row: int = row, prompt: int = prompt) -> None:
                table.enter(row, prompt)
                table.run(row, 0)
                table.wanted[row] = prompt
                table.step[row] = table.making
                for group in range(table.num_groups):
                    table.begin(row, group, prompt, 0, 0, 0)

            twins.both(enter)
        twins.step()
        for _ in range(len(twins.tables[0].turns) - twins.rnd.randrange(ahead + 1)):
            twins.settle()
        if step % 50 == 49:
            twins.both(lambda table: table.speak_up_all())
            twins.both(lambda table: [bytes(column) for column in table.columns])

    assert twins.silences > 100
