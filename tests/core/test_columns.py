"""The columns: contents by number, spans of a pool, linked lists, and rows that grow."""

from __future__ import annotations

import random

import pytest

from blocklife.core._columns import Blocks, Contents, Requests, Slots, SpanPool, log_of
from blocklife.core._tables import INITIAL_REQUEST


def order(following: object, end: int) -> list[int]:
    """The places of a linked list."""
    found: list[int] = []
    place = following[end]  # type: ignore[index]
    while place != end:
        found.append(place)
        place = following[place]  # type: ignore[index]
    return found


def test_a_content_keeps_its_number_as_long_as_it_is_named() -> None:
    contents = Contents(2, 8)
    first, other = contents.intern(0, b"k"), contents.intern(1, b"k")
    contents.uses[first] += 2

    assert first != other
    assert contents.intern(0, b"k") == contents.find(0, b"k") == first
    contents.let_go(first)
    assert contents.find(0, b"k") == first
    contents.let_go(first)
    assert (contents.find(0, b"k"), contents.find(1, b"k")) == (0, other)
    assert contents.intern(1, b"new") == first  # the number is used again


def test_a_content_that_was_only_asked_about_is_forgotten() -> None:
    contents = Contents(1, 8)
    asked, named = contents.intern(0, b"asked"), contents.intern(0, b"named")
    contents.uses[named] += 1
    contents.tidy(asked)
    contents.tidy(named)
    contents.tidy(0)

    assert (contents.find(0, b"asked"), contents.find(0, b"named")) == (0, named)


def test_more_contents_than_there_was_room_for() -> None:
    contents = Contents(1, 4)
    numbers = [contents.intern(0, bytes([each])) for each in range(20)]

    assert len(set(numbers)) == 20
    assert [contents.key[number] for number in numbers] == [bytes([each]) for each in range(20)]
    assert {contents.block[number] for number in numbers} == {contents.slot[number] for number in numbers} == {-1}
    assert {contents.uses[number] for number in numbers} == {0}


@pytest.mark.interpreted
def test_a_mark_is_new_however_often_rows_are_marked() -> None:
    """A mark is one byte: what was marked 255 marks ago must not count as marked again."""
    blocks = Blocks(4, True)
    for turn in range(600):
        mark = blocks.mark()
        assert mark not in list(blocks.seen), turn
        blocks.seen[turn % 3] = mark


@pytest.mark.interpreted
def test_spans_do_not_overlap_and_are_used_again() -> None:
    """Random spans: none has an entry of another, and giving all back lets all be taken again without more room."""
    dice, spans = random.Random(7), SpanPool()
    held: dict[int, int] = {}
    for _ in range(500):
        if held and dice.random() < 0.45:
            begin = dice.choice(list(held))
            spans.give(begin, held.pop(begin))
            continue
        count = dice.randint(1, 40)
        begin = spans.claim(count)
        taken = [range(each, each + (1 << log_of(size))) for each, size in held.items()]
        assert all(begin >= each.stop or begin + (1 << log_of(count)) <= each.start for each in taken)
        held[begin] = count
    top, sizes = spans.top, list(held.values())
    for begin, count in held.items():
        spans.give(begin, count)
    for count in sizes:
        spans.claim(count)

    assert spans.top == top


@pytest.mark.interpreted
def test_free_blocks_are_a_list_with_two_ends() -> None:
    blocks = Blocks(6, True)
    for place in (2, 4):
        blocks.unlink(place)
    blocks.push_front(4)
    blocks.push_back(2)

    assert order(blocks.following, blocks.size) == [4, 1, 3, 5, 2]


@pytest.mark.interpreted
def test_empty_slots_come_last_emptied_first() -> None:
    slots = Slots(4)
    for place in (0, 2):
        slots.unlink(place)
    slots.push_front(0)
    slots.push_front(2)

    assert order(slots.following, slots.size) == [2, 0, 1, 3]


def test_a_table_moves_to_a_longer_span_with_what_it_has() -> None:
    requests = Requests(1, 2)
    row = requests.intern("a")
    requests.state[row] = INITIAL_REQUEST
    for table in (row * 2, row * 2 + 1):
        for each in range(100):
            requests.reserve(table, 1)
            requests.lives[requests.begin[table] + each] = 1000 * table + each
            requests.length[table] += 1

    for table in (row * 2, row * 2 + 1):
        begin = requests.begin[table]
        assert [requests.lives[begin + at] for at in range(100)] == [1000 * table + at for at in range(100)]


def test_more_names_than_there_were_rows_for() -> None:
    """Every column has a row for each, and what stood in the rows before stays."""
    requests = Requests(2, 3)
    requests.load[1], requests.begin[5] = 7, 9
    rows = [requests.intern(str(each)) for each in range(9)]
    single = (requests.state, requests.load, requests.serving, requests.named, requests.place, requests.seen, requests.names)
    by_group = (requests.begin, requests.length, requests.room)

    assert sorted(rows) == list(range(9))
    assert {len(column) for column in single} == {requests.rows}
    assert {len(column) for column in by_group} == {3 * requests.rows}
    assert (requests.load[1], requests.begin[5]) == (7, 9)


def test_a_name_keeps_its_row_while_a_job_is_for_it() -> None:
    requests = Requests(1, 1)
    first, second, third = (requests.intern(name) for name in "abc")
    requests.named[second] = 1
    for row in (first, second, third):
        requests.tidy(row)

    assert (requests.find("a"), requests.find("b"), requests.find("c")) == (-1, second, -1)
    assert requests.intern("d") in (first, third)
