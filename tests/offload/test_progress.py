"""How far requests are: columns say who crosses a boundary, and what has left a window.

Method: small tables by hand, and the arithmetic against a count of tokens one by one.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from blocklife.offload import Geometry, Policies
from blocklife.offload._progress import NEVER, ProgressTable, Span

LOCAL = ["local:4:8", "local:4:6", "local:4:3"]
GROUPS = ["full:4", "swa:4:1", "swa:4:2", "swa:4:6", "swa:4:9", "swa:1:3", *LOCAL, "mamba:4", "mamba:1"]


def table_of(groups: str, size: int = 4) -> ProgressTable:
    return ProgressTable(size, Geometry.parse(groups), Policies())


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def read_from(groups: str, token: int) -> set[int]:
    """The blocks that a request reads which computes this token next, and every token behind it."""
    (group,) = groups.split(",")
    kind, *sizes = group.split(":")
    tokens = int(sizes[0])
    found: set[int] = set()
    for later in range(token, token + 40):
        if kind == "full":
            found |= {at // tokens for at in range(later)}
        elif kind == "swa":
            found |= {at // tokens for at in range(max(0, later - int(sizes[1]) + 1), later)}
        elif kind == "local":
            found |= {at // tokens for at in range(later // int(sizes[1]) * int(sizes[1]), later)}
        elif later:
            found.add((later - 1) // tokens)
    return found


@pytest.mark.parametrize("groups", GROUPS)
def test_first_needed_is_the_first_block_that_is_ever_read_again(groups: str) -> None:
    """Nothing before it is read from the settled tokens on, and the block itself is, or will be written."""
    table = table_of(groups)
    tokens = int(groups.split(":")[1])
    for computed in range(30):
        table.computed[1] = computed
        first = table.first_needed(0, 1)
        ahead = {at for at in read_from(groups, computed) if at * tokens < computed}

        assert first == min(ahead, default=computed // tokens)


def test_first_needed_looks_at_settled_tokens_only() -> None:
    """Tokens in flight can still be taken back, and then the window reaches further back."""
    table = table_of("swa:4:5,mamba:4")
    table.computed[0], table.in_flight[0], table.wanted[0] = 8, 8, 8

    assert [table.first_needed(group, 0) for group in (0, 1)] == [1, 1]


def test_ends_and_missing_count_what_is_settled_in_flight_and_wanted() -> None:
    """A table lacks the blocks up to the last token of this step; one that has more lacks none."""
    table = table_of("full:4,swa:2:3")
    table.computed[:3], table.in_flight[:3], table.wanted[:3] = [4, 0, 0], [1, 0, 0], [4, 1, 0]
    table.placed[:, :3] = [[2, 0, 5], [2, 1, 0]]
    chosen = rows(0, 1, 2)
    ends = table.ends(chosen)

    assert ends.tolist() == [9, 1, 0]
    assert table.missing(chosen, ends).tolist() == [[1, 1, 0], [3, 0, 0]]


def test_rows_are_looked_at_in_the_order_asked_for() -> None:
    """Any rows, in any order, none as well."""
    table = table_of("full:4")
    table.computed[:] = [1, 2, 3, 4]

    assert table.ends(rows(3, 0)).tolist() == [4, 1]
    assert table.ends(rows()).tolist() == []
    assert table.missing(rows(), rows()).tolist() == [[]]


def test_a_table_that_has_grown_is_looked_at_when_it_is_full_again() -> None:
    """What the engine's allocator has put behind a table is room for so many tokens."""
    table = table_of("full:4,swa:2:3")
    table.grown(0, 1, 2)
    table.grown(1, 1, 1)
    table.grown(1, 1, 2)

    assert table.placed[:, 1].tolist() == [2, 3]
    assert table.room_at[:, 1].tolist() == [8, 6]


@pytest.mark.parametrize(
    ("span", "end", "direct", "most", "in_turn", "offered", "alarm"),
    [
        ((0, 1, 2, 4), 4, True, 99, True, 4, 20),
        ((0, 1, 2, 4), 3, True, 99, True, 3, 16),  # one of them cannot be final yet
        ((0, 1, 2, 4), 4, True, 16, True, 4, NEVER),  # no more of it may be stored
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
    table.most_stored[1], table.sealed[0, 1] = most, span[2]
    table.offered_up_to([(0, 1, 0, 2)])

    assert table.promised([span], [end], direct) == [in_turn]
    assert (int(table.sealed[0, 1]), int(table.final_at[0, 1])) == (end, (end + 1) * 4)
    assert (int(table.offered[0, 1]), int(table.fill_at[0, 1])) == (offered, alarm)


def columns(table: ProgressTable, row: int) -> list[int]:
    """Every count of one row but the serial and the step, of which no two may be equal."""
    single = (table.running, table.prompt, table.known, table.computed, table.in_flight, table.wanted)
    by_group = (table.placed, table.first, table.sealed, table.offered)
    return [int(each[row]) for each in single] + [int(count) for each in by_group for count in each[:, row]]


def test_a_row_is_zero_when_nobody_has_it() -> None:
    """A request enters with its prompt; preempted it keeps its tokens; it leaves nothing behind."""
    table = table_of("full:4,swa:4:8")
    table.enter(2, 9)
    entered = columns(table, 2)
    for column in (table.computed, table.in_flight, table.wanted):
        column[2] = 5
    for placed in (table.placed, table.first, table.sealed, table.offered):
        placed[:, 2] = 3
    table.running[2] = True
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
        serials.append(int(table.serial[row]))
        table.clear(row)
        serials.append(int(table.serial[row]))
        table.leave(row)
        serials.append(int(table.serial[row]))

    assert len(set(serials)) == len(serials)
    assert 0 not in serials


# --- alarms -------------------------------------------------------------------------------------------------------------

ALARMED = ["full:4", "full:4,swa:4:6", "swa:2:3,full:4", "full:4,mamba:4", "swa:4:9,mamba:4", "full:4,local:4:8", "local:4:6"]


def alarms(table: ProgressTable, row: int) -> list[int]:
    """At which token one request is looked at next: for room, for its window, for what fills, for what is final."""
    return [int(alarm[:, row].min()) for alarm in (table.room_at, table.window_at, table.fill_at, table.final_at)]


def by_hand(groups: str, table: ProgressTable, row: int) -> dict[str, list[Span]]:
    """What there is to do for one request, group by group, without any alarm."""
    found: dict[str, list[Span]] = {"leaving": [], "lacking": [], "filling": [], "finishing": []}
    computed, known = int(table.computed[row]), int(table.known[row])
    end = computed + int(table.in_flight[row] + table.wanted[row])
    for group, text in enumerate(groups.split(",")):
        kind, *sizes = text.split(":")
        tokens, fills = int(sizes[0]), kind != "mamba"
        placed, first = int(table.placed[group, row]), int(table.first[group, row])
        behind = {"full": 1 << 40, "mamba": 1}.get(kind, int(sizes[-1]) - 1)
        left = computed // int(sizes[-1]) * int(sizes[-1]) if kind == "local" else max(0, computed - behind)
        spans = {
            "leaving": (first, min(left // tokens, placed)),
            "lacking": (placed, -(-end // tokens)),
            "filling": (int(table.offered[group, row]), min(end, known) // tokens if fills else 0),
            "finishing": (int(table.sealed[group, row]), computed // tokens if fills else 0),
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
        table.known[1] = max(int(table.known[1]), int(table.ends(rows(1))[0]) - rnd.choice([0, 0, 1]))
        expected = by_hand(groups, table, 1)
        found = {"leaving": table.leaving(rows(1)), "lacking": table.lacking(rows(1)), "filling": table.filling(rows(1))}
        found["finishing"] = table.finishing(rows(1), table.computed[rows(1)])
        print(f"seed {seed}, step {step}: {found}")

        assert found == expected
        if rnd.random() < 0.8:  # else they are refused, and asked again
            table.left(found["leaving"])
            table.extended(found["lacking"])
            table.offered_up_to(found["filling"])
            table.sealed_up_to(found["finishing"])
        table.computed[1] += table.wanted[1]


def test_request_in_which_nothing_changes_is_not_looked_at() -> None:
    """Between two boundaries no alarm rings, and one that has rung for nothing does not ring again."""
    table = table_of("full:4,swa:4:6", 2)
    table.enter(1, 9)
    table.computed[1] = 9
    table.extended(table.lacking(rows(1)))
    table.left(table.leaving(rows(1)))
    table.offered_up_to(table.filling(rows(1)))
    table.sealed_up_to(table.finishing(rows(1), table.computed[rows(1)]))

    assert alarms(table, 1) == [12, 13, 12, 12]
    table.look(1)
    assert alarms(table, 1) == [0, 0, 0, 0]
    for found in (table.lacking(rows(1)), table.leaving(rows(1)), table.filling(rows(1))):
        assert found == []
    assert table.finishing(rows(1), table.computed[rows(1)]) == []
    assert alarms(table, 1) == [12, 13, 12, 12]
    table.clear(1)
    assert alarms(table, 1) == [0, 0, 0, 0]


def test_cap_silences_the_alarm_of_what_may_not_be_stored() -> None:
    """Beyond the cap nothing fills; another cap makes the table look again."""
    table = table_of("full:4", 2)
    table.enter(1, 12)
    table.cap(1, 4, None)
    table.computed[1] = 12
    table.offered_up_to(table.filling(rows(1)))

    assert (table.filling(rows(1)), int(table.fill_at[0, 1])) == ([], NEVER)
    table.cap(1, None, None)
    assert table.filling(rows(1)) == [(0, 1, 1, 3)]
